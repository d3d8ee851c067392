"""The filter that keeps what an oracle chose: FilCo's SILVER, an upper bound, because the oracle has read the answer.

Wang et al. 2023, "Learning to Filter Context for Retrieval-Augmented Generation", https://arxiv.org/abs/2311.08377,
section 4.2. It keeps the chosen sentences as `Excerpt`s, in rank order (of BIDER's synthesis in the order of
selection), and asks no model. The command line does not offer it: reports of such answers must say that they read gold.

    silver = SilverFilter("silver/nq.jsonl")
    bf.evaluate(bf.Direct(index, filter=silver), questions)     # the index and K that the silver file was made over
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import dspy

from blendfilter.dspy_surface import Shared
from blendfilter.errors import BadArgument, BadData, EmptyData, UnknownName
from blendfilter.files import path_of
from blendfilter.filters.base import Filter, selection
from blendfilter.journal import digest
from blendfilter.oracles.measures import can_label
from blendfilter.oracles.silver_making import measure_of
from blendfilter.oracles.silver_rows import STAGES, SilverRow, Stage, read_silver
from blendfilter.records import Excerpt, Passage, one_line
from blendfilter.retrieval.callables import as_passages

UPPER_BOUND = "upper bound: reads the answer"

_Key: TypeAlias = tuple[str, str]
"""A passage of a file: its id, and a digest of its text."""


class _Context(NamedTuple):
    """The passages of a question and the places chosen in each, or (BIDER) all that was chosen in its own order."""

    places: dict[_Key, tuple[tuple[int, int], ...]]
    order: tuple[tuple[_Key, tuple[tuple[int, int], ...]], ...] | None = None


class _SilverContexts(Shared, dict[str, _Context]):
    """Contexts by question."""


class SilverFilter(Filter):
    """Keeps the sentences that the silver file at `path` has chosen for a question: an upper bound.

    Args:
        path: a file of `make_silver`. Questions are known by their text.
        partly: drop passages that the file does not have, as in a branch of BlendFilter that searched with another
            query; without it such a passage is an error.
        stage: of BIDER's synthesis what is kept: `cleaned` (its result), `refined`, `extracted`, or `by_target`, the
            sentences most like the answer (Figure 3 of Jin et al. 2024).
        unlabelled: questions that the file's measure cannot label (STRINC, a yes or no): everything is kept for them;
            without it such a question is an error, as any that the file does not have.
        keep_unlabelled: False: nothing is kept for them, as in FilCo's Table 5. Where all are so, `path` is None.

    Rows of a file of STRINC's whose answer is a yes or no, which earlier versions wrote, are not read.

    Raises:
        MissingFile, BadData: no such file, or no silver file; one question with two contexts. EmptyData: no rows.
        UnknownName, BadArgument: no such stage; a stage of a file that BIDER's synthesis did not make.
    """

    def __init__(
        self,
        path: str | Path | None,
        *,
        partly: bool = False,
        stage: Stage = "cleaned",
        unlabelled: Iterable[str] = (),
        keep_unlabelled: bool = True,
    ) -> None:
        super().__init__()
        if stage not in STAGES:
            raise UnknownName.of("stage", stage, STAGES)
        self.file = None if path is None else path_of(path)
        self.partly = partly
        self.unlabelled = frozenset(map(one_line, unlabelled))
        self.keep_unlabelled = keep_unlabelled
        self.chosen = _SilverContexts()
        measure = "" if path is None else measure_of(path)
        for row in () if path is None else read_silver(path):
            if not can_label(measure, row.golden_answers):
                continue
            if row.stages is None and stage != "cleaned":
                raise BadArgument(
                    f"{path} has no stages: the measure bider makes such files, this one is {measure}'s"
                )
            question, context = one_line(row.question), _context(row, stage)
            if self.chosen.setdefault(question, context) != context:
                raise BadData(
                    f"{path}: the question {question[:80]!r} has two different contexts: leave one of the two"
                )
        if not self.chosen and path is not None:
            raise EmptyData(
                f"{path} has no rows that its measure could label: is it the right file?"
            )
        contexts = sorted(
            (
                question,
                sorted(context.places.items()),
                *([context.order] if context.order else []),
            )
            for question, context in self.chosen.items()
        )
        self.fingerprint = digest(
            contexts,
            *([sorted(self.unlabelled)] if self.unlabelled else []),
            *([] if keep_unlabelled else ["nothing"]),
        )

    def arguments(self) -> dict[str, Any]:
        """A digest of the file: another file's contexts are another run."""
        return {"silver": self.fingerprint[:16], **({"partly": True} if self.partly else {})}

    async def aforward(self, question: str, passages: Sequence[Passage]) -> dspy.Prediction:
        """What was chosen of these passages.

        Raises:
            BadArgument: a question, or (unless `partly`) a passage, that the file does not have.
        """
        context = self.chosen.get(one_line(question))
        if context is None:
            if one_line(question) in self.unlabelled:
                return selection(
                    as_passages(passages) if self.keep_unlabelled else [],
                    f"no silver for this question: {'all' if self.keep_unlabelled else 'nothing'} was kept",
                    UPPER_BOUND,
                )
            raise BadArgument(
                f"no silver context in {self.file} for the question {question.strip()[:80]!r}: make the file over the "
                "questions of the run (strinc leaves those out that are answered by a yes or no: take lexical or cxmi)"
            )
        given: dict[_Key, Passage] = {}
        for passage in as_passages(passages):
            given.setdefault(_key(passage), passage)
        missing = [name for name, text in given if (name, text) not in context.places]
        if missing and not self.partly:
            known = any(missing[0] == name for name, _ in context.places)
            raise BadArgument(
                f"passage '{missing[0]}' {'has another text' if known else 'is not'} in {self.file}: make the file "
                "over the same index, with the same k"
            )
        chosen = context.order or [(key, context.places.get(key, ())) for key in given]
        kept = [_excerpt(given[key], at) for key, at in chosen if at and key in given]
        return selection(
            kept, f"kept {len(kept)} of {len(passages)}" if passages else "empty", UPPER_BOUND
        )


def _excerpt(passage: Passage, places: tuple[tuple[int, int], ...]) -> Passage:
    # What an index gives as a piece of a longer text is a passage of its own in a silver file.
    source = (
        passage
        if type(passage) is Passage
        else Passage(passage.id, passage.title, passage.text)
    )
    return Excerpt.of(source, places).scored(passage.score)


def _key(passage: Passage) -> _Key:
    return passage.id, digest(passage.text)[:16]


def _context(row: SilverRow, stage: Stage) -> _Context:
    """A passage may stand in a row twice: what was chosen of either was chosen of it."""
    places: dict[_Key, tuple[tuple[int, int], ...]] = {
        _key(passage): () for passage in row.passages
    }
    if row.stages is not None:
        kept = [each for each in row.excerpts(stage) if isinstance(each, Excerpt)]
        return _Context(
            places,
            tuple(
                (_key(one.source), tuple((at.start, at.end) for at in one.spans))
                for one in kept
            ),
        )
    for at in row.chosen:
        sentence = row.sentences[at]
        places[_key(row.passages[sentence.passage])] += ((sentence.start, sentence.end),)
    return _Context(places)
