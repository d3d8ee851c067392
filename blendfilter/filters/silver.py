"""The filter that keeps what an oracle chose: FilCo's SILVER, an upper bound, for the oracle has read the answer.

Wang et al. 2023, "Learning to Filter Context for Retrieval-Augmented Generation", https://arxiv.org/abs/2311.08377,
section 4.2. In: a question of a silver file, and passages. Out: the chosen sentences as `Excerpt`s, in rank order. No
model is asked. It is no filter for a command: whoever answers with it must say that it reads gold.

    silver = SilverFilter("silver/nq.jsonl")
    bf.evaluate(bf.Direct(index, filter=silver), questions)     # the index and K that the silver file was made over
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import dspy

from blendfilter.errors import BadArgument, BadData, EmptyData
from blendfilter.filters.base import Filter
from blendfilter.journal import digest
from blendfilter.oracles.silver_rows import SilverRow, read_silver
from blendfilter.records import Excerpt, Passage, one_line
from blendfilter.retrieval.callables import as_passage

UPPER_BOUND = "upper bound: reads the answer"


class _Known(NamedTuple):
    """A passage of a file: its id, and its text as a few characters."""

    id: str
    text: str

    @classmethod
    def of(cls, passage: Passage) -> _Known:
        return cls(passage.id, digest(passage.text)[:16])


_Held = dict[_Known, tuple[tuple[int, int], ...]]
"""What was chosen of each passage of a question."""


class _Chosen(dict[str, _Held]):
    """By question. DSPy copies modules; nobody wants a second copy of this."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class SilverFilter(Filter):
    """Keeps the sentences that the silver file at `path` has chosen for a question: an upper bound.

    Args:
        path: a file of `make_silver`. Questions are known by their text.
        partly: keep what the file knows of where a passage is not in it, as in a branch of BlendFilter that asked
            another query; without it such a passage is an error.

    Raises:
        MissingFile, BadData: no such file, or no silver file; one question with two contexts. EmptyData: no rows.
    """

    def __init__(self, path: str | Path, *, partly: bool = False) -> None:
        super().__init__()
        self.file = Path(path)
        self.partly = partly
        self.chosen = _Chosen()
        for row in read_silver(path):
            question, held = one_line(row.question), _held(row)
            if self.chosen.setdefault(question, held) != held:
                raise BadData(
                    f"{path}: the question {question[:80]!r} has two different contexts: leave one of the two"
                )
        if not self.chosen:
            raise EmptyData(f"{path} has no rows: is it the right file?")
        self.fingerprint = digest(sorted((question, sorted(held.items())) for question, held in self.chosen.items()))

    def arguments(self) -> dict[str, Any]:
        """What the file holds, as a digest: another file's contexts are another run."""
        return {"silver": self.fingerprint[:16], **({"partly": True} if self.partly else {})}

    async def aforward(self, question: str, passages: Sequence[Passage]) -> dspy.Prediction:
        """What was chosen of these passages.

        Raises:
            BadArgument: a question, or (unless `partly`) a passage, that the file does not hold.
        """
        known = self.chosen.get(one_line(question))
        if known is None:
            raise BadArgument(
                f"no silver context in {self.file} for the question {question.strip()[:80]!r}: "
                "make the file over the questions that are asked"
            )
        given: dict[_Known, Passage] = {}
        for each in map(as_passage, passages):
            given.setdefault(_Known.of(each), each)
        kept = [excerpt for passage in given.values() if (excerpt := self._of(passage, known)) is not None]
        status = f"kept {len(kept)} of {len(passages)}" if passages else "empty"
        return dspy.Prediction(kept=kept, status=status, reason=UPPER_BOUND, flags={})

    def _of(self, passage: Passage, known: _Held) -> Passage | None:
        # What an index gives as a piece of a longer text is a passage of its own in a silver file.
        source = passage if type(passage) is Passage else Passage(passage.id, passage.title, passage.text)
        places = known.get(_Known.of(source))
        if places is None and not self.partly:
            what = "has another text in" if any(source.id == each.id for each in known) else "is not in"
            raise BadArgument(
                f"passage '{source.id}' {what} {self.file}: make the file over the same index, with the same k"
            )
        return Excerpt.of(source, places).scored(passage.score) if places else None


def _held(row: SilverRow) -> _Held:
    """A passage may stand in a row twice: what was chosen of either was chosen of it."""
    held: _Held = {_Known.of(passage): () for passage in row.passages}
    for at in row.chosen:
        sentence = row.sentences[at]
        held[_Known.of(row.passages[sentence.passage])] += ((sentence.start, sentence.end),)
    return held
