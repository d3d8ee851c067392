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

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import AllowInfNan, Field, NonNegativeInt

from blendfilter.errors import BadData
from blendfilter.files import JsonRow, json_line, json_rows
from blendfilter.lm.tokenisers import TokenCounter
from blendfilter.oracles.candidates import Candidate, excerpts
from blendfilter.records import Passage, one_line
from blendfilter.tasks.layouts import Outside, checked
from blendfilter.text import normalize_answer, overlap, tokens

CONTEXTS = ("full", "psg", "silver")


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

    def candidates(self) -> list[Candidate]:
        """The sentences as candidates, each with its line ``Title | sentence``."""
        found = []
        for sentence in self.sentences:
            passage = self.passages[sentence.passage]
            text, title = passage.text[sentence.start : sentence.end], one_line(passage.title)
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
    lengths = [len(each.text) for each in passages]
    for at, each in enumerate(read.sentences):
        if each.passage >= len(lengths) or not each.start < each.end <= lengths[each.passage]:
            raise BadData(f"{row.where}: sentence {at} lies outside of the passages: make the file again")
    if any(at >= len(read.sentences) for at in read.chosen):
        raise BadData(f"{row.where}: chosen names a sentence that is not there: make the file again")
    return SilverRow(
        read.id, read.question, tuple(read.golden_answers), read.output, passages,
        tuple(read.sentences), tuple(read.chosen), read.target, read.positive,
    )  # fmt: skip


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


# --- what a silver file comes to --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """Means over the questions of a group; all but `tokens` are fractions of 1.

    Attributes:
        empty: the share of contexts without a word.
        precision: as in Table 3: of the context's normalised words, the share that are words of the output, each
            counted as often as both hold it. An empty context has 0. Titles are no part of it.
        not_empty: precision over the contexts that are not empty.
        characters: precision over characters in place of words, as the released code counts; the table's ELI5 and FEVER
            rows can hardly come about otherwise (a label is no word of any passage).
        tokens: as in Figure 5: of the question and the context as an answerer reads it.
    """

    empty: float
    precision: float
    not_empty: float
    characters: float
    tokens: float


@dataclass(frozen=True)
class SilverGroup:
    """`n` of the questions, and their figures in each context."""

    n: int
    full: Figures
    psg: Figures
    silver: Figures


@dataclass(frozen=True)
class Summary:
    """What a silver file comes to (Wang et al. 2023, sections 4.2 and 4.5), in three contexts.

    FULL is every passage; PSG the whole passages that hold a sentence above the oracle's threshold; SILVER the
    sentences that the oracle chose.

    Differs from the paper: its PSG is a fine-tuned model's choice; this one reads the answer, as SILVER does, and is an
    upper bound. Its 44 to 64 % fewer tokens are FILCO's, which a model chose; these are the oracle's.

    Attributes:
        n: how many questions. no_passages: how many of them came without any passage.
        positive: the share whose passages support the output, of those where that is known; None: of none.
        unknown: of how many it is not known.
        unscored: sentences that were too long for the model that scores, of all questions.
        tokeniser: whose tokens these are.
        groups: `all`, and of these `positive` and `negative` where there are any.
        left_out: questions without a row, because the measure cannot label them (STRINC, a yes or no).
    """

    n: int
    no_passages: int
    positive: float | None
    unknown: int
    unscored: int
    tokeniser: str
    groups: dict[str, SilverGroup] = field(repr=False)
    left_out: int = 0

    @property
    def empty(self) -> float:
        """The share of questions of which no sentence was chosen."""
        return self.groups["all"].silver.empty


def summarise(rows: Iterable[SilverRow], *, threshold: float, tokeniser: TokenCounter) -> Summary:
    """What `rows` come to; a sentence whose score is above `threshold` brings its passage into PSG."""
    names = [each.name for each in fields(Figures)]
    sums = {group: np.zeros((len(CONTEXTS), len(names))) for group in ("all", "positive", "negative")}
    n: Counter[str] = Counter()
    without = unscored = 0
    for row in rows:
        above = {each.passage for each in row.sentences if each.score is not None and each.score > threshold}
        psg = [each for at, each in enumerate(row.passages) if at in above]
        contexts = (row.passages, psg, row.excerpts())
        measured = [astuple(figures_of(context, row.question, row.output, tokeniser)) for context in contexts]
        without += not row.passages
        unscored += sum(each.score is None for each in row.sentences)
        for group in ("all", *({True: ["positive"], False: ["negative"], None: []}[row.positive])):
            n[group] += 1
            sums[group] += measured
    groups = {}
    for group, total in sums.items():
        if n[group] or group == "all":
            divisors = np.full_like(total, max(n[group], 1))
            divisors[:, names.index("not_empty")] = np.maximum(n[group] - total[:, names.index("empty")], 1)
            groups[group] = SilverGroup(n[group], *(Figures(*means) for means in (total / divisors).tolist()))
    known = n["positive"] + n["negative"]
    share = n["positive"] / known if known else None
    return Summary(n["all"], without, share, n["all"] - known, unscored, tokeniser.name, groups)


def figures_of(context: Sequence[Passage], question: str, output: str, tokeniser: TokenCounter) -> Figures:
    """The figures of one context, by any filter, for one question and its output."""
    text = "\n".join(each.text for each in context)
    precision = overlap(tokens(text), tokens(output)).precision
    by_character = overlap(normalize_answer(text), normalize_answer(output)).precision
    lines = "\n".join([*(each.line for each in context), question])
    return Figures(float(not text.strip()), precision, precision, by_character, tokeniser.count(lines))
