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

A row of BIDER's synthesis has `stages` besides: positions in `sentences` after extraction (`extracted`, the most alike
first) and refinement (`refined`, in the order of selection), what the entailment model said of the pool after each
nugget (`support`) and why refinement ended (`stop`), what each nugget but the first did for the answerer (`effects`, in
nats), the sentences most like the answer alone (`by_target`), the `evidence` that stood in for the answer ("" for
none), and whether a pool was too long to be read whole (`cut`). `chosen` is what cleaning left, in the order of
selection, and `target` and excerpts keep that order; a sentence's score is its similarity to question and answer.

In FilCo's terms, its filter reads `question` and `passages` and writes `target`; its generator reads `question` and
`target` and writes `output` (Wang et al. 2023, sections 2.3 and 2.4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AllowInfNan,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    TypeAdapter,
)

from blendfilter.errors import BadData
from blendfilter.files import JsonRow, json_line, json_rows
from blendfilter.lm.tokenisers import TokenCounter
from blendfilter.oracles.candidates import Candidate, excerpts
from blendfilter.oracles.measures import strinc
from blendfilter.records import Passage, one_line
from blendfilter.tasks.layouts import Outside, object_of, validated
from blendfilter.text import normalize_answer, overlap, tokens

CONTEXTS = ("full", "psg", "silver")
Stop = Literal["supported", "no gain", "all taken", "fact too long", "no nuggets", "no answer"]
"""Why BIDER's refinement ended: enough support; too little came with the last nugget; no nugget was left; question and
answer are too long for the entailment model; there was no sentence at all; the answer holds no word to look for."""
Stage = Literal["extracted", "refined", "cleaned", "by_target"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""What the steps of BIDER's synthesis leave, and the sentences most like the answer alone (Figure 3)."""


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
class Stages:
    """What the steps of BIDER's synthesis left of one question's sentences, and why; see above."""

    extracted: tuple[NonNegativeInt, ...]
    refined: tuple[NonNegativeInt, ...]
    support: tuple[Annotated[float, AllowInfNan(False)], ...]
    stop: Stop
    effects: tuple[Annotated[float, AllowInfNan(False)] | None, ...]
    by_target: tuple[NonNegativeInt, ...] = ()
    evidence: str = ""
    cut: bool = False


class _SilverPassage(Outside):
    id: str
    title: str
    text: str
    score: float | None = None


def _passage(value: Any) -> Passage:
    read = _SilverPassage.model_validate(value)
    return Passage(read.id, read.title, read.text, read.score)


@dataclass(frozen=True, slots=True)
class SilverRow:
    """One question's silver context; of BIDER's synthesis with its `stages`."""

    __pydantic_config__ = ConfigDict(coerce_numbers_to_str=True)

    id: str
    question: str
    golden_answers: Annotated[tuple[str, ...], Field(min_length=1)]
    output: str
    passages: tuple[Annotated[Passage, BeforeValidator(_passage)], ...]
    sentences: tuple[SilverSentence, ...]
    chosen: tuple[NonNegativeInt, ...]
    target: str
    positive: bool | None = None
    stages: Stages | None = None

    def candidates(self) -> list[Candidate]:
        """The sentences as candidates, each with its line ``Title | sentence``."""
        found = []
        for sentence in self.sentences:
            passage = self.passages[sentence.passage]
            text = passage.text[sentence.start : sentence.end]
            title = one_line(passage.title)
            line = f"{title} | {one_line(text)}" if title else one_line(text)
            found.append(Candidate(sentence.passage, sentence.start, sentence.end, text, line))
        return found

    def excerpts(self, stage: Stage = "cleaned") -> list[Passage]:
        """SILVER: the chosen sentences as excerpts of their passages, verbatim, in rank order.

        Of BIDER's synthesis those that `stage` left, in its order.
        """
        candidates = self.candidates()
        places = (
            self.chosen
            if self.stages is None or stage == "cleaned"
            else getattr(self.stages, stage)
        )
        return excerpts(
            self.passages, [candidates[at] for at in places], as_chosen=self.stages is not None
        )


def line_of(row: SilverRow) -> bytes:
    """A row as a line of the file."""
    value = {name: getattr(row, name) for name in row.__slots__}  # in the order of the fields
    value["passages"] = [
        {"id": passage.id, "title": passage.title, "text": passage.text, "score": passage.score}
        for passage in row.passages
    ]
    value["sentences"] = [asdict(sentence) for sentence in row.sentences]
    stages = value.pop("stages")
    return json_line(value if stages is None else {**value, "stages": asdict(stages)})


def read_silver(path: str | Path) -> Iterator[SilverRow]:
    """The rows of a silver file, one at a time, each checked.

    Raises:
        MissingFile: there is no such file. BadData: a line that is no row (which, and the field that is wrong).
    """
    return map(row_of, json_rows(path))


_ROW = TypeAdapter(SilverRow)


def row_of(row: JsonRow) -> SilverRow:
    """One line's value as a row. Raises `BadData`."""
    # as it is: a score that is NaN is damage, not a gap
    read = validated(_ROW.validate_python, object_of(row), row.where)
    lengths = [len(passage.text) for passage in read.passages]
    for at, each in enumerate(read.sentences):
        if each.passage >= len(lengths) or not each.start < each.end <= lengths[each.passage]:
            raise BadData(
                f"{row.where}: sentence {at} lies outside of the passages: make the file again"
            )
    named = {"chosen": read.chosen}
    if read.stages is not None:
        named |= {name: getattr(read.stages, name) for name in STAGES if name != "cleaned"}
    for name, places in named.items():
        if any(at >= len(read.sentences) for at in places):
            raise BadData(
                f"{row.where}: {name} names a sentence that is not there: make the file again"
            )
    return read


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
class StageFigures:
    """What one step of BIDER's synthesis left, as means over the questions.

    Attributes:
        nuggets: sentences.
        tokens: of their texts alone, without question and titles.
        holds: the share of contexts in which the answer stands, any alias of it.
        words: of the context's normalised words, the share that are the answer's (Table 3's precision in FilCo).
        words_per_token: the answer's words in all contexts over the tokens of all contexts.
    """

    nuggets: float
    tokens: float
    holds: float
    words: float
    words_per_token: float


@dataclass(frozen=True)
class SynthesisSummary:
    """What BIDER's synthesis comes to: the figures of `full` and of each step, and why refinement ended, how often.

    Attributes:
        support: the mean of what the entailment model says of the pool in the end.
        cut: questions with a pool that was too long for it. with_evidence: with evidence in place of the answer.
        unscored: nuggets that were too long for the answerer, and dropped.
    """

    stages: dict[str, StageFigures]
    stops: dict[str, int]
    support: float
    cut: int
    with_evidence: int
    unscored: int


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
        left_out: questions without a row, because the measure cannot label them (STRINC, a yes or no; BIDER, one
            without all of the evidence that stands in for such an answer).
        synthesis: of BIDER's, what its steps come to; PSG are the passages of which a sentence was chosen.
    """

    n: int
    no_passages: int
    positive: float | None
    unknown: int
    unscored: int
    tokeniser: str
    groups: dict[str, SilverGroup] = field(repr=False)
    left_out: int = 0
    synthesis: SynthesisSummary | None = None

    @property
    def empty(self) -> float:
        """The share of questions of which no sentence was chosen."""
        return self.groups["all"].silver.empty


def summarise(
    rows: Iterable[SilverRow], *, threshold: float | None, tokeniser: TokenCounter
) -> Summary:
    """What `rows` come to; a sentence with a score above `threshold` (None: one that was chosen) brings its passage
    into PSG.
    """
    measured: list[tuple[bool | None, list[Figures]]] = []
    without = unscored = 0
    synthesised: list[_Synthesised] = []
    for row in rows:
        if row.stages is not None:
            synthesised.append(_synthesised(row, row.stages, tokeniser))
        above = {row.sentences[at].passage for at in row.chosen}
        if threshold is not None:
            scored = [sentence for sentence in row.sentences if sentence.score is not None]
            above = {each.passage for each in scored if (each.score or 0.0) > threshold}
        psg = [each for at, each in enumerate(row.passages) if at in above]
        figures = [
            figures_of(context, row.question, row.output, tokeniser)
            for context in (row.passages, psg, row.excerpts())
        ]
        measured.append((row.positive, figures))
        without += not row.passages
        unscored += sum(sentence.score is None for sentence in row.sentences)
    groups = {"all": _group([figures for _, figures in measured])}
    for name, wanted in (("positive", True), ("negative", False)):
        if some := [figures for positive, figures in measured if positive is wanted]:
            groups[name] = _group(some)
    positive, negative = (
        groups[name].n if name in groups else 0 for name in ("positive", "negative")
    )
    known = positive + negative
    return Summary(
        len(measured),
        without,
        positive / known if known else None,
        len(measured) - known,
        unscored,
        tokeniser.name,
        groups,
        synthesis=_synthesis(synthesised) if synthesised else None,
    )


def _group(measured: Sequence[Sequence[Figures]]) -> SilverGroup:
    """The means of each context's figures."""
    return SilverGroup(
        len(measured), *(_means([row[at] for row in measured]) for at in range(len(CONTEXTS)))
    )


def _means(figures: Sequence[Figures]) -> Figures:
    means = {
        each.name: _mean(getattr(one, each.name) for one in figures) for each in fields(Figures)
    }
    means["not_empty"] = _mean(figure.precision for figure in figures if not figure.empty)
    return Figures(**means)


def _mean(values: Iterable[float]) -> float:
    return fmean([*values] or [0.0])


_Synthesised = tuple[Stages, dict[str, tuple[float, ...]]]
"""One row's stages, and for `full` and each of `STAGES`: nuggets, tokens, answer held, words' share, words."""


def _synthesised(row: SilverRow, stages: Stages, tokeniser: TokenCounter) -> _Synthesised:
    texts = [each.text for each in row.candidates()]
    found: dict[str, tuple[float, ...]] = {}
    for name in ("full", *STAGES):
        places = range(len(texts)) if name == "full" else getattr(stages, name, row.chosen)
        context = " ".join(texts[at] for at in places)
        shared = overlap(tokens(context), tokens(row.output))
        holds, words = strinc(context, row.golden_answers), float(shared.shared)
        found[name] = len(places), tokeniser.count(context), holds, shared.precision, words
    return stages, found


def _synthesis(rows: Sequence[_Synthesised]) -> SynthesisSummary:
    figures = {}
    for name in rows[0][1]:
        columns = zip(*(found[name] for _, found in rows), strict=True)
        nuggets, counted, holds, precision, words = map(fmean, columns)
        share = words / counted if counted else 0.0
        figures[name] = StageFigures(nuggets, counted, holds, precision, share)
    stages = [each for each, _ in rows]
    return SynthesisSummary(
        figures,
        dict(Counter(stage.stop for stage in stages).most_common()),
        fmean(stage.support[-1] if stage.support else 0.0 for stage in stages),
        sum(stage.cut for stage in stages),
        sum(bool(stage.evidence) for stage in stages),
        sum(effect is None for stage in stages for effect in stage.effects[1:]),
    )


def figures_of(
    context: Sequence[Passage], question: str, output: str, tokeniser: TokenCounter
) -> Figures:
    """The figures of one context, by any filter, for one question and its output."""
    text = "\n".join(each.text for each in context)
    precision = overlap(tokens(text), tokens(output)).precision
    by_character = overlap(normalize_answer(text), normalize_answer(output)).precision
    lines = "\n".join([*(each.line for each in context), question])
    return Figures(
        float(not text.strip()), precision, precision, by_character, tokeniser.count(lines)
    )
