"""Scores of answers and of retrieved titles, as fractions of 1.

Answers: exact match and F1 of the official HotPotQA evaluation (Yang et al. 2018), the best over the aliases as for
2WikiMultihopQA (Ho et al. 2020); accuracy for yes/no questions (StrategyQA, Geva et al. 2021) and for labels of claims
(FEVER, Thorne et al. 2018); covering, for answers in whole sentences. Retrieval: recall, precision and S-precision
(BlendFilter, Wang et al. 2024) of titles against a question's gold titles.

Differs from the official scripts: one normaliser serves every task; retrieval is scored on titles, each counted once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from blendfilter.errors import UnknownName
from blendfilter.records import Question
from blendfilter.text import folded, normalize_answer, overlap, tokens

_CLOSED = frozenset({"yes", "no", "noanswer"})
VERDICTS = {"yes": "yes", "true": "yes", "no": "no", "false": "no"}
"""Normalised words that decide a yes/no question, and what they say."""
_VERDICT = re.compile(r"\b(?:yes|no|true|false)\b")
LABELS = ("SUPPORTS", "REFUTES", "NOT ENOUGH INFO")
"""What is said of a claim, as FEVER's files write it."""
_LABEL = re.compile(
    r"(?<![\w-])(?:(?P<NEI>not[ _]?enough[ _]?info(?:rmation)?)|(?P<SUPPORTS>support(?:s|ed)?)|refute[sd]?)"
    r"(?![\w-])(?P<none>\s+(?:by\s+)?(?:no|none|nothing|neither|nobody)\b)?",
    re.IGNORECASE,
)
_NEGATION = re.compile(
    r"\b(?:not|no|never|none|nothing|nobody|neither|nor|cannot|without|hardly|barely|fail(?:s|ed)?|unable|whether|if"
    r"|doubt(?:s|ed|ful)?|unlikely|unclear|uncertain)\b"
    r"|n['’]t\b",
    re.IGNORECASE,
)
_CLAUSE_END = re.compile(r"(?<=[.!?;:])\s|\n|\bbut\b", re.IGNORECASE)


def exact_match(prediction: str, answers: Iterable[str]) -> float:
    """1.0 where the normalised prediction equals one of the normalised answers, else 0.0.

    >>> exact_match("The Lighthouse.", ["lighthouse", "beacon"])
    1.0
    """
    said = normalize_answer(prediction)
    return float(any(said == normalize_answer(answer) for answer in answers))


def f1(prediction: str, answers: Iterable[str]) -> float:
    """Unigram F1 of the normalised prediction, the best over the answers.

    Where either side is yes, no or noanswer and they differ, it is 0: half a verdict is none.

    >>> f1("the old harbour", ["harbour master"])
    0.5
    """
    return max((_f1(prediction, answer) for answer in answers), default=0.0)


def _f1(prediction: str, answer: str) -> float:
    said, right = normalize_answer(prediction), normalize_answer(answer)
    if said != right and (said in _CLOSED or right in _CLOSED):
        return 0.0
    return overlap(tokens(prediction), tokens(answer)).f1


def verdict(text: str) -> str | None:
    """The first yes or no of a reply (true and false count as these), None where it has neither.

    >>> verdict("So the answer is: False."), verdict("Nobody knows")
    ('no', None)
    """
    match = _VERDICT.search(normalize_answer(text))
    return VERDICTS[match.group()] if match else None


def label(text: str) -> str | None:
    """The one label that a reply gives to a claim, None where it gives none or several.

    Read strictly: only the labels' own words count ("support" and "supported" too, not "supporting"), and not true or
    false, which no prompt here offers. A label is not read where a word before it in its clause denies or doubts it
    ("not supported"), where what follows it empties it ("supported by nothing"), or in a question.

    >>> label("The claim is refuted."), label("It is not supported."), label("SUPPORTS, not REFUTES"), label("True")
    ('REFUTES', None, 'SUPPORTS', None)
    """
    found = {said for clause in _CLAUSE_END.split(text) if not clause.endswith("?") for said in _labels_in(clause)}
    return found.pop() if len(found) == 1 else None


def _labels_in(clause: str) -> Iterator[str]:
    for match in _LABEL.finditer(clause):
        if match["NEI"]:
            yield LABELS[2]
        elif not match["none"] and not _NEGATION.search(clause, 0, match.start()):
            yield LABELS[0] if match["SUPPORTS"] else LABELS[1]


def accuracy(prediction: str, answers: Iterable[str]) -> float:
    """1.0 where the prediction decides a yes/no question or a claim as the answer does; what decides nothing is wrong.

    >>> accuracy("Yes, because it floats.", ["yes"]), accuracy("REFUTES", ["SUPPORTS"])
    (1.0, 0.0)
    """
    return float(any(_decides(prediction, answer) for answer in answers))


def _decides(prediction: str, answer: str) -> bool:
    read = label if answer.strip().upper() in LABELS else verdict
    said = read(prediction)
    return said is not None and said == read(answer)


def cover_em(prediction: str, answers: Iterable[str]) -> float:
    """1.0 where the words of a normalised answer stand side by side in the normalised prediction, else 0.0.

    It forgives a long answer, and also one that says several things. Whole words only: "art" does not cover "artist".

    >>> cover_em("It was the old lighthouse keeper.", ["lighthouse keeper"]), cover_em("artists", ["art"])
    (1.0, 0.0)
    """
    said = f" {normalize_answer(prediction)} "
    return float(any(right and f" {right} " in said for right in map(normalize_answer, answers)))


Metric = Callable[[str, Iterable[str]], float]
"""``(prediction, answers) -> a fraction of 1``."""
METRICS: Mapping[str, Metric] = MappingProxyType(
    {"em": exact_match, "f1": f1, "accuracy": accuracy, "cover-em": cover_em}
)
"""The metrics of answers, by name."""


def metric(name: str) -> Metric:
    """The metric called `name`. Raises `UnknownName`, with a suggestion."""
    if name not in METRICS:
        raise UnknownName.of("metric", name, METRICS)
    return METRICS[name]


class Retrieval(NamedTuple):
    """How well a set of titles meets a question's gold titles; each a fraction of 1."""

    recall: float
    """Share of the gold titles that are there."""
    precision: float
    """Share of the titles that are gold; 0 for no titles."""
    s_precision: float
    """1.0 where both are the same set."""


def retrieval(titles: Iterable[str], question: Question) -> Retrieval | None:
    """`titles` against the question's gold titles; None where it has none.

    With several annotators it is the one with the best recall that counts for all three (among equals, the one with the
    best precision). Titles are compared after Unicode NFC and white-space folding, each counted once.

    >>> retrieval(["Quay", "Mill", "Quay"], Question("1", "?", gold_titles=("Mill", "Tower")))
    Retrieval(recall=0.5, precision=0.5, s_precision=0.0)
    """
    found = {folded(title) for title in titles}
    annotators = [gold for gold in question.evidence or (question.gold_titles,) if gold]
    return max((_against(found, {folded(title) for title in gold}) for gold in annotators), default=None)


def _against(found: set[str], gold: set[str]) -> Retrieval:
    hits = len(found & gold)
    return Retrieval(hits / len(gold), hits / len(found) if found else 0.0, float(found == gold))


def recall(titles: Iterable[str], question: Question) -> float | None:
    """Share of the best annotator's gold titles among `titles`; None where the question has none."""
    scores = retrieval(titles, question)
    return None if scores is None else scores.recall


def precision(titles: Iterable[str], question: Question) -> float | None:
    """Share of `titles` that are gold for the annotator that `recall` is measured by; None without gold titles."""
    scores = retrieval(titles, question)
    return None if scores is None else scores.precision


def s_precision(titles: Iterable[str], question: Question) -> float | None:
    """1.0 where `titles` are exactly that annotator's gold titles, as sets; None without gold titles."""
    scores = retrieval(titles, question)
    return None if scores is None else scores.s_precision
