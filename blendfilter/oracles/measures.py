"""FilCo's three measures of how much a span of the retrieved passages helps to answer: pure functions, no model.

Wang et al. 2023, "Learning to Filter Context for Retrieval-Augmented Generation", https://arxiv.org/abs/2311.08377,
section 2.2. For a query q with output o and the spans t of all passages:

STRINC   1 where t contains o, else 0; the first span that does is the best
LEXICAL  unigram F1 of t and o, or of t and q in fact verification; above 0.5
CXMI     log p(o | t, q) - log p(o | q) under the generator; above 0

Differs from the paper: several right outputs (aliases) count, each by itself, and texts are compared as normalised
words: "art" is not in "party". CXMI is the difference of logarithms in place of the ratio of probabilities, which a
computer loses for long outputs (zero by zero). Both rank spans alike. A ratio is never below the text's threshold of 0;
its footnote 4 has 1.0 in that place, which is 0 here: a span must make the output likelier. `num_sentences` above 1 is
ours. A verdict (yes or no, the label of a claim) is no text that a passage could hold: STRINC labels no such question,
and LEXICAL compares spans with the question, as the paper does in fact verification alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, get_args

from blendfilter.errors import UnknownName
from blendfilter.metrics import VERDICTS
from blendfilter.records import Question
from blendfilter.replies import LABELS
from blendfilter.text import normalize_answer, overlap, tokens

Measure = Literal["strinc", "lexical", "cxmi"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
THRESHOLDS: Mapping[Measure, float] = MappingProxyType(
    {"strinc": 0.0, "lexical": 0.5, "cxmi": 0.0}
)
"""A span is chosen only where its score is above this."""

MEASURE_OF: Mapping[str, Measure] = MappingProxyType(
    {
        **dict.fromkeys(("nq", "triviaqa", "qa"), "strinc"),
        "wow": "lexical",
        **dict.fromkeys(("fever", "hotpotqa", "twowiki", "strategyqa", "eli5"), "cxmi"),
    }
)
"""The measure of a task."""


def strinc(span: str, outputs: Iterable[str]) -> float:
    """1.0 where `span` contains one of `outputs` as normalised words side by side, else 0.0.

    An output that normalises to nothing ("the") is contained nowhere.

    >>> strinc("It was The Old Mill, again.", ["mill old", "old mill"]), strinc("A party.", ["art"])
    (1.0, 0.0)
    """
    within = f" {normalize_answer(span)} "
    return float(
        any(f" {words} " in within for words in map(normalize_answer, _each(outputs)) if words)
    )


def lexical(span: str, references: Iterable[str]) -> float:
    """The best unigram F1 of `span` with one of `references`, on normalised words.

    >>> lexical("The mill burned.", ["Who burned the mill?"])
    0.8
    """
    words = tokens(span)
    found = (tokens(each) for each in _each(references))
    # 2PR / (P + R) as one division, so that rounding separates neither equals nor what is exactly at a threshold.
    return max(
        (2 * overlap(words, each).shared / (len(words) + len(each) or 1) for each in found),
        default=0.0,
    )


def best(
    scores: Sequence[float | None], *, threshold: float, num_sentences: int = 1
) -> tuple[int, ...]:
    """The positions of the `num_sentences` highest scores above `threshold`, in text order; () where none is.

    Of equal scores the earlier is taken, so that STRINC picks the first span. What has no score is never taken.

    >>> best([0.0, 1.0, 1.0], threshold=0.0), best([0.2, 0.9, 0.6], threshold=0.5, num_sentences=3)
    ((1,), (1, 2))
    """
    above = {
        at: score for at, score in enumerate(scores) if score is not None and score > threshold
    }
    return tuple(sorted(sorted(above, key=lambda at: -above[at])[:num_sentences]))


def measure_for(task: str) -> Measure:
    """The measure of `task`: the paper's rule (section 4.2), carried over to tasks of the same kind.

    Raises:
        UnknownName: the task has none; name a measure.
    """
    if task not in MEASURE_OF:
        raise UnknownName.of(
            "measure for task", task, MEASURE_OF, f"name one: {', '.join(MEASURES)}"
        )
    return MEASURE_OF[task]


def references_for(measure: str, task: str, question: Question) -> tuple[str, ...]:
    """What spans are compared with: the golden answers, or the question where LEXICAL is to support a verdict."""
    if measure == "lexical" and (task == "fever" or is_verdict(question.golden_answers)):
        return (question.question,)  # a label shares no words with any evidence; the claim does
    return question.golden_answers


def is_verdict(answers: Iterable[str]) -> bool:
    """Whether every answer is a yes or no, a true or false, or the label of a claim.

    >>> is_verdict(["Yes."]), is_verdict(["REFUTES"]), is_verdict(["No", "Dr. No"])
    (True, True, False)
    """
    listed = list(_each(answers))
    return bool(listed) and all(
        normalize_answer(answer) in VERDICTS or answer.strip().upper() in LABELS
        for answer in listed
    )


def can_label(measure: str, answers: Iterable[str]) -> bool:
    """Whether `measure` can say which span helps towards `answers`: STRINC cannot where they are a verdict.

    It would find none nearly everywhere (and the word "no" where it means nothing), and a filter that learns from that
    learns to keep nothing.
    """
    return measure != "strinc" or not is_verdict(answers)


def _each(texts: Iterable[str]) -> Iterable[str]:
    return (texts,) if isinstance(texts, str) else texts
