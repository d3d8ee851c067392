"""A silver file: for each question its passages, every sentence's score, and those that an oracle chose, a line each.

A row (made up; on one line in the file)::

    {"id": "m-17", "question": "Who runs the mill?", "golden_answers": ["Ane Lindqvist", "A. Lindqvist"],
     "output": "Ane Lindqvist",
     "passages": [{"id": "p4", "title": "Tide Mill", "text": "It grinds rye. Ane Lindqvist runs it.", "score": 9.1}],
     "sentences": [{"passage": 0, "start": 0, "end": 14, "score": 0.0},
                   {"passage": 0, "start": 15, "end": 37, "score": 1.0}],
     "chosen": [1], "target": "Ane Lindqvist runs it.", "positive": true}

`output` is the first golden answer: the one output that the paper has. A sentence's text is
``passages[passage].text[start:end]``; `chosen` are positions in `sentences`. `target` are the chosen sentences' texts
with a space between them, empty where none was chosen. `positive` says whether the passages support the output, null
where that is not known.

In FilCo's terms, its filter reads `question` and `passages` and writes `target`; its generator reads `question` and
`target` and writes `output` (Wang et al. 2023, sections 2.3 and 2.4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AllowInfNan, Field, NonNegativeInt

from blendfilter.errors import BadData
from blendfilter.files import JsonRow, json_line, json_rows
from blendfilter.oracles.candidates import Candidate, excerpts
from blendfilter.records import Passage, one_line
from blendfilter.tasks.layouts import Outside, checked


@dataclass(frozen=True, slots=True)
class SilverSentence:
    """A sentence of the passage at position `passage`, its place in that text, and the oracle's score.

    None: it has no score, because the model's context was too short for it.
    """

    passage: NonNegativeInt
    start: NonNegativeInt
    end: NonNegativeInt
    score: Annotated[float, AllowInfNan(False)] | None


@dataclass(frozen=True, slots=True)
class SilverRow:
    """One question's silver context."""

    id: str
    question: str
    golden_answers: tuple[str, ...]
    output: str
    passages: tuple[Passage, ...]
    sentences: tuple[SilverSentence, ...]
    chosen: tuple[int, ...]
    target: str
    positive: bool | None
    """Whether the passages support the output; None: it is not known."""

    def text(self, at: int) -> str:
        """The sentence at position `at` in `sentences`, verbatim."""
        sentence = self.sentences[at]
        return self.passages[sentence.passage].text[sentence.start : sentence.end]

    def candidates(self) -> list[Candidate]:
        """The sentences as candidates, each with its line ``Title | sentence``."""
        found = []
        for at, sentence in enumerate(self.sentences):
            text, title = self.text(at), one_line(self.passages[sentence.passage].title)
            line = f"{title} | {one_line(text)}" if title else one_line(text)
            found.append(Candidate(sentence.passage, sentence.start, sentence.end, text, line))
        return found

    def excerpts(self) -> list[Passage]:
        """SILVER: the chosen sentences as excerpts of their passages, verbatim, in rank order."""
        candidates = self.candidates()
        return excerpts(self.passages, [candidates[at] for at in self.chosen])


def line_of(row: SilverRow) -> bytes:
    """A row as a line of the file."""
    passages = [{"id": each.id, "title": each.title, "text": each.text, "score": each.score} for each in row.passages]
    value = {name: getattr(row, name) for name in row.__slots__}  # in the order of the fields
    value |= {"passages": passages, "sentences": [asdict(sentence) for sentence in row.sentences]}
    return json_line(value)


def read_silver(path: str | Path) -> Iterator[SilverRow]:
    """The rows of a silver file, one at a time, each checked.

    Raises:
        MissingFile: there is no such file. BadData: a line that is no row (which, and the field that is wrong).
    """
    return map(row_of, json_rows(path))


def row_of(row: JsonRow) -> SilverRow:
    """One line's value as a row. Raises `BadData`."""
    read = checked(_SilverLine, row)
    passages = tuple(Passage(each.id, each.title, each.text, each.score) for each in read.passages)
    for at, sentence in enumerate(read.sentences):
        if sentence.passage >= len(passages):
            raise _outside(row, f"sentence {at} names passage {sentence.passage}", len(passages), "passages")
        text = passages[sentence.passage].text
        if not sentence.start < sentence.end <= len(text):
            raise _outside(row, f"sentence {at} lies at {sentence.start}:{sentence.end}", len(text), "characters")
    for at in read.chosen:
        if at >= len(read.sentences):
            raise _outside(row, f"chosen names sentence {at}", len(read.sentences), "sentences")
    return SilverRow(
        read.id, read.question, tuple(read.golden_answers), read.output, passages,
        tuple(read.sentences), tuple(read.chosen), read.target, read.positive,
    )  # fmt: skip


def _outside(row: JsonRow, what: str, of: int, things: str) -> BadData:
    return BadData(f"{row.where}: {what}, of {of} {things}: make the file again (blendfilter silver)")


class _SilverPassage(Outside):
    id: str
    title: str
    text: str
    score: float | None = None


class _SilverLine(Outside):
    id: str
    question: str
    golden_answers: Sequence[str] = Field(min_length=1)
    output: str
    passages: Sequence[_SilverPassage]
    sentences: Sequence[SilverSentence]
    chosen: Sequence[NonNegativeInt]
    target: str
    positive: bool | None = None
