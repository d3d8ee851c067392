"""The filter that keeps what an oracle chose: FilCo's SILVER, an upper bound, because the oracle has read the answer.

Wang et al. 2023, "Learning to Filter Context for Retrieval-Augmented Generation", https://arxiv.org/abs/2311.08377,
section 4.2. It keeps the chosen sentences as `Excerpt`s, in rank order, and asks no model. The command line does not
offer it: reports of such answers must say that they read gold.

    silver = SilverFilter("silver/nq.jsonl")
    bf.evaluate(bf.Direct(index, filter=silver), questions)     # the index and K that the silver file was made over
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias

import dspy

from blendfilter.errors import BadArgument, BadData, EmptyData
from blendfilter.filters.base import Filter, selection
from blendfilter.journal import digest
from blendfilter.oracles.measures import can_label
from blendfilter.oracles.silver_making import measure_of
from blendfilter.oracles.silver_rows import SilverRow, read_silver
from blendfilter.records import Excerpt, Passage, one_line
from blendfilter.retrieval.callables import as_passage

UPPER_BOUND = "upper bound: reads the answer"

_Key: TypeAlias = tuple[str, str]
"""A passage of a file: its id, and a digest of its text."""
_Context: TypeAlias = dict[_Key, tuple[tuple[int, int], ...]]
"""The places chosen in each passage of a question."""


class _SilverContexts(dict[str, _Context]):
    """Contexts by question; the copies that DSPy makes of modules share them."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class SilverFilter(Filter):
    """Keeps the sentences that the silver file at `path` has chosen for a question: an upper bound.

    Args:
        path: a file of `make_silver`. Questions are known by their text.
        partly: drop passages that the file does not have, as in a branch of BlendFilter that searched with another
            query; without it such a passage is an error.
        unlabelled: questions that the file's measure cannot label (STRINC, a yes or no): everything is kept for them;
            without it such a question is an error, as any that the file does not have.

    Rows of a file of STRINC's whose answer is a yes or no, which earlier versions wrote, are not read.

    Raises:
        MissingFile, BadData: no such file, or no silver file; one question with two contexts. EmptyData: no rows.
    """

    def __init__(self, path: str | Path, *, partly: bool = False, unlabelled: Iterable[str] = ()) -> None:
        super().__init__()
        self.file = Path(path)
        self.partly = partly
        self.unlabelled = frozenset(map(one_line, unlabelled))
        self.chosen = _SilverContexts()
        measure = measure_of(path)
        for row in read_silver(path):
            if not can_label(measure, row.golden_answers):
                continue
            question, context = one_line(row.question), _context(row)
            if self.chosen.setdefault(question, context) != context:
                raise BadData(
                    f"{path}: the question {question[:80]!r} has two different contexts: leave one of the two"
                )
        if not self.chosen:
            raise EmptyData(f"{path} has no rows that its measure could label: is it the right file?")
        contexts = sorted((question, sorted(context.items())) for question, context in self.chosen.items())
        self.fingerprint = digest(contexts, *([sorted(self.unlabelled)] if self.unlabelled else []))

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
                    list(map(as_passage, passages)), "no silver for this question: all was kept", UPPER_BOUND
                )
            raise BadArgument(
                f"no silver context in {self.file} for the question {question.strip()[:80]!r}: make the file over the "
                "questions of the run (strinc leaves those out that are answered by a yes or no: take lexical or cxmi)"
            )
        given: dict[_Key, Passage] = {}
        for passage in map(as_passage, passages):
            given.setdefault(_key(passage), passage)
        kept = [excerpt for passage in given.values() if (excerpt := self._of(passage, context)) is not None]
        return selection(kept, f"kept {len(kept)} of {len(passages)}" if passages else "empty", UPPER_BOUND)

    def _of(self, passage: Passage, context: _Context) -> Passage | None:
        # What an index gives as a piece of a longer text is a passage of its own in a silver file.
        source = passage if type(passage) is Passage else Passage(passage.id, passage.title, passage.text)
        places = context.get(_key(source))
        if places is None and not self.partly:
            what = "has another text in" if any(source.id == id for id, _ in context) else "is not in"
            raise BadArgument(
                f"passage '{source.id}' {what} {self.file}: make the file over the same index, with the same k"
            )
        return Excerpt.of(source, places).scored(passage.score) if places else None


def _key(passage: Passage) -> _Key:
    return passage.id, digest(passage.text)[:16]


def _context(row: SilverRow) -> _Context:
    """A passage may stand in a row twice: what was chosen of either was chosen of it."""
    context: _Context = {_key(passage): () for passage in row.passages}
    for at in row.chosen:
        sentence = row.sentences[at]
        context[_key(row.passages[sentence.passage])] += ((sentence.start, sentence.end),)
    return context
