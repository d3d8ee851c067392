"""Scores of answers and of retrieved titles, as fractions of 1.

Answers: exact match and F1 of the official HotPotQA evaluation (Yang et al. 2018), the best over the aliases as for
2WikiMultihopQA (Ho et al. 2020); accuracy for yes/no questions (StrategyQA, Geva et al. 2021), for labels of claims
(FEVER, Thorne et al. 2018; PubHealth, Kotonya and Toni 2020) and for options (ARC, Clark et al. 2018); inclusion and
covering, for short answers in whole sentences; ROUGE-L (Lin 2004), for whole sentences. Retrieval: recall, precision
and S-precision (BlendFilter, Wang et al. 2024), nDCG (Järvelin and Kekäläinen 2002) and reciprocal rank, of titles
against a question's gold titles.

Differs from the official scripts: one normaliser serves every task, ROUGE-L has its own words; retrieval is scored on
titles, each counted once, where its first passage stands.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from blendfilter.errors import UnknownName
from blendfilter.records import Question
from blendfilter.replies import LABELS, TRUTHS, choice, label, truth, verdict
from blendfilter.text import LETTERS, folded, nfc, normalize_answer, overlap, tokens

_LETTERS = frozenset(LETTERS)
_CLOSED = frozenset({"yes", "no", "noanswer"})
VERDICTS = {"yes": "yes", "true": "yes", "no": "no", "false": "no"}
"""Normalised words that decide a yes/no question, and what they say."""
_NO_ARTICLE = r"(?!\s+(?!(?:because|since|is|and|or)\b)[^\W\d_])"
"""Behind the letter A: not where it is the article of a word."""
_APART = r"(?!\w|['’]\w)"


def exact_match(prediction: str, answers: Iterable[str]) -> float:
    """1.0 where the normalised prediction equals one of the normalised answers, else 0.0.

    >>> exact_match("The Lighthouse.", ["lighthouse", "beacon"])
    1.0
    """
    predicted = normalize_answer(prediction)
    return float(any(predicted == normalize_answer(answer) for answer in answers))


def f1(prediction: str, answers: Iterable[str]) -> float:
    """Unigram F1 of the normalised prediction, the best over the answers.

    Where either side is yes, no or noanswer and they differ, it is 0: half a verdict is none.

    >>> f1("the old harbour", ["harbour master"])
    0.5
    """
    return max((_f1(prediction, answer) for answer in answers), default=0.0)


def _f1(prediction: str, answer: str) -> float:
    predicted, right = normalize_answer(prediction), normalize_answer(answer)
    if predicted != right and (predicted in _CLOSED or right in _CLOSED):
        return 0.0
    return overlap(tokens(prediction), tokens(answer)).f1


def accuracy(prediction: str, answers: Iterable[str]) -> float:
    """1.0 where the prediction decides as the answer does: a yes/no question, a claim, a choice; else 0.0.

    Answers of a choice hold its letter (A to E), and its text beside it: the letter is read by `choice`, and a reply
    that names no letter is right where it is that text. What decides nothing is wrong.

    >>> accuracy("Yes, because it floats.", ["yes"]), accuracy("REFUTES", ["SUPPORTS"]), accuracy("Ice.", ["B", "ice"])
    (1.0, 0.0, 1.0)
    """
    listed = list(answers)
    if letters := [answer for answer in listed if answer in _LETTERS]:
        predicted = choice(prediction)
        return (
            float(predicted in letters)
            if predicted
            else exact_match(prediction, set(listed) - set(letters))
        )
    return float(any(_decides(prediction, answer) for answer in listed))


def _decides(prediction: str, answer: str) -> bool:
    read = (
        truth
        if answer.strip().lower() in TRUTHS
        else label
        if answer.strip().upper() in LABELS
        else verdict
    )
    predicted = read(prediction)
    return predicted is not None and predicted == read(answer)


def inclusion(prediction: str, answers: Iterable[str]) -> float:
    """1.0 where a normalised answer occurs in the normalised prediction, else 0.0: the rough match of CDIT's tables.

    Ma et al., "Context-Driven Index Trimming" (2024), section 5.1: a generation is correct when the ground truth is
    included in it, after Mallen et al. (PopQA, 2023) and Asai et al. (Self-RAG, 2023). As there, an answer may begin
    and end inside words ("art" is included in "artist"); `cover_em` wants whole words. Differs from the paper: case,
    punctuation and articles do not count (`inclusion_raw` is without that), and the letter of an option, of which
    nothing or any word would be left, has to stand by itself, as a capital (and not as the article A of a sentence).

    >>> inclusion("He was an Artist.", ["the artist"]), inclusion("It is B, ice.", ["B"]), inclusion("bears", ["B"])
    (1.0, 1.0, 0.0)
    """
    predicted = normalize_answer(prediction)
    return float(any(_included(answer, prediction, predicted) for answer in answers))


def _included(answer: str, prediction: str, predicted: str) -> bool:
    if answer in _LETTERS:
        no_article = _NO_ARTICLE if answer == LETTERS[0] else ""
        return bool(re.search(rf"(?<!\w)(?<!\w['’]){answer}{_APART}{no_article}", prediction))
    right = normalize_answer(answer)
    return bool(right) and right in predicted


def inclusion_raw(prediction: str, answers: Iterable[str]) -> float:
    """1.0 where an answer occurs in the prediction letter by letter, else 0.0: `inclusion` as Self-RAG's code has it.

    Nothing but the Unicode form is normalised: case and spelling count, and a short answer is found in many words.

    >>> inclusion_raw("an Artist", ["Art"]), inclusion_raw("an artist", ["Art"])
    (1.0, 0.0)
    """
    predicted = nfc(prediction)
    return float(any(answer and nfc(answer) in predicted for answer in answers))


def cover_em(prediction: str, answers: Iterable[str]) -> float:
    """1.0 where the words of a normalised answer stand side by side in the normalised prediction, else 0.0.

    It forgives a long answer, and also one that says several things. Whole words only: "art" does not cover "artist".

    >>> cover_em("It was the old lighthouse keeper.", ["lighthouse keeper"]), cover_em("artists", ["art"])
    (1.0, 0.0)
    """
    predicted = f" {normalize_answer(prediction)} "
    return float(
        any(right and f" {right} " in predicted for right in map(normalize_answer, answers))
    )


def rouge_l(prediction: str, answers: Iterable[str]) -> float:
    """F-measure of the longest common subsequence of words (ROUGE-L, Lin 2004), the best over the answers.

    Precision and recall count alike. The words are the runs of letters and digits in lower case, articles too, without
    a stemmer: as in Google's `rouge-score`, which leaves out letters beyond a to z. (KILT's script has the same formula
    over words between spaces.)

    >>> rouge_l("The lamp warns the ships.", ["A lamp warns all ships off."])
    0.5454545454545454
    """
    predicted, best = _words(prediction), 0.0
    for right in map(_words, answers):
        if shared := _common_subsequence(predicted, right):
            precision, recalled = shared / len(predicted), shared / len(right)
            best = max(best, 2 * precision * recalled / (precision + recalled))
    return best


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", nfc(text).lower())


def _common_subsequence(first: list[str], second: list[str]) -> int:
    """Length of the longest common subsequence; a row of the table is one number (Hyyrö 2004): answers may be long."""
    places: dict[str, int] = {}
    for number, word in enumerate(first):
        places[word] = places.get(word, 0) | 1 << number
    every = (1 << len(first)) - 1
    row = every
    for word in second:
        hits = row & places.get(word, 0)
        row = ((row + hits) | (row - hits)) & every
    return len(first) - row.bit_count()


Metric = Callable[[str, Iterable[str]], float]
"""``(prediction, answers) -> a fraction of 1``."""
METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "em": exact_match,
        "f1": f1,
        "accuracy": accuracy,
        "cover-em": cover_em,
        "inclusion": inclusion,
        "inclusion_raw": inclusion_raw,
        "rouge-l": rouge_l,
    }
)
"""The metrics of answers, by name."""


def metric(name: str) -> Metric:
    """The metric called `name`. Raises `UnknownName`."""
    if name not in METRICS:
        raise UnknownName.of("metric", name, METRICS)
    return METRICS[name]


class Retrieval(NamedTuple):
    """How well a list of titles, the best first, meets a question's gold titles; each a fraction of 1."""

    recall: float  # share of the gold titles that are there
    precision: float  # share of the titles that are gold; 0 for no titles
    s_precision: float  # 1.0 where both are the same set
    ndcg: float  # discounted gain by rank, over that of all gold titles at the top
    mrr: float  # 1 / the rank of the first gold title; its mean over questions is the MRR


def retrieval(titles: Iterable[str], question: Question) -> Retrieval | None:
    """`titles` against the question's gold titles; None where it has none.

    With several annotators it is the one with the best recall that counts for all of them (among equals, the one with
    the best precision). Titles are compared after Unicode NFC and white-space folding, each counted once. Recall is
    recall@k of a list of k; nDCG, as in trec_eval, wants all gold titles, however short the list.

    >>> retrieval(["Quay", "Mill", "Quay"], Question("1", "?", gold_titles=("Mill",)))
    Retrieval(recall=1.0, precision=0.5, s_precision=0.0, ndcg=0.6309297535714575, mrr=0.5)
    """
    found = list(dict.fromkeys(map(folded, titles)))
    annotators = [gold for gold in question.evidence or (question.gold_titles,) if gold]
    return max(
        (_against(found, {folded(title) for title in gold}) for gold in annotators),
        default=None,
    )


def _against(found: Sequence[str], gold: set[str]) -> Retrieval:
    ranks = [rank for rank, title in enumerate(found, 1) if title in gold]
    hits = len(ranks)
    return Retrieval(
        recall=hits / len(gold),
        precision=hits / len(found) if found else 0.0,
        s_precision=float({*found} == gold),
        ndcg=_gain(ranks) / _gain(range(1, len(gold) + 1)),
        mrr=1 / ranks[0] if ranks else 0.0,
    )


def _gain(ranks: Iterable[int]) -> float:
    """Discounted cumulative gain of documents at these ranks, all equally relevant."""
    return sum(1 / math.log2(rank + 1) for rank in ranks)


def recall(titles: Iterable[str], question: Question) -> float | None:
    """Share of the best annotator's gold titles among `titles`; None where the question has none."""
    scores = retrieval(titles, question)
    return None if scores is None else scores.recall
