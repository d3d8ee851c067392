"""Where questions are lost: not retrieved, retrieved and filtered away, kept and answered wrong, or not lost at all.

In: per question the titles that were retrieved and kept, the gold titles, and whether the answer was right. Out: one of
five words per question, or how many questions fell to each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

from blendfilter.text import folded

Loss = Literal["not_retrieved", "filtered_away", "answered_wrong", "right", "right_without_gold"]
LOSSES: tuple[Loss, ...] = get_args(Loss)
"""The five, in the order of the pipeline; `metrics.json` and every report keep it."""


class LossCase(NamedTuple):
    """One question as the loss table sees it.

    `retrieved_titles`: what all queries of the method retrieved together. `knowledge_titles`: what its answer was read
    from. `evidence`: one tuple of gold titles per annotator, as in `records.Question` (its `gold_titles` as the only
    one where it has no `evidence`); empty where no gold is known. Titles are compared as `metrics.retrieval` does.
    """

    correct: bool
    retrieved_titles: Sequence[str]
    knowledge_titles: Sequence[str]
    evidence: Sequence[Sequence[str]]


def loss(case: LossCase) -> Loss:
    """The one word for this question.

    Gold is *kept* (*retrieved*) where **all** titles of at least one annotator are among the knowledge (among what was
    retrieved); what is in the knowledge counts as retrieved, for a method that does not report its searches.

    ==================== ============ ==================================
    answer               gold is      the question is
    ==================== ============ ==================================
    right                kept         right
    right                not kept     right_without_gold
    wrong, or an error   kept         answered_wrong
    wrong, or an error   retrieved    filtered_away
    wrong, or an error   neither      not_retrieved
    ==================== ============ ==================================

    Where no gold is known nothing can be said to be missing: such a question is `right` or `answered_wrong`. A method
    that retrieves nothing (direct, cot) yields `right_without_gold` and `not_retrieved` wherever gold is known.

    >>> loss(LossCase(False, ["Ormskerry", "Tavenby"], ["Ormskerry"], [("Ormskerry", "Tavenby")]))
    'filtered_away'
    """
    gold = [titles for titles in map(_titles, case.evidence) if titles]
    knowledge = _titles(case.knowledge_titles)
    retrieved = knowledge | _titles(case.retrieved_titles)
    kept = not gold or any(titles <= knowledge for titles in gold)
    if case.correct:
        return "right" if kept else "right_without_gold"
    if kept:
        return "answered_wrong"
    return "filtered_away" if any(titles <= retrieved for titles in gold) else "not_retrieved"


def tally(cases: Iterable[LossCase]) -> dict[str, int]:
    """How many questions fell to each of the five, all five named; their sum is the number of questions.

    >>> tally([LossCase(True, [], [], [("Ormskerry",)])])["right_without_gold"]
    1
    """
    counted = Counter(map(loss, cases))
    return {name: counted[name] for name in LOSSES}


def _titles(titles: Iterable[str]) -> frozenset[str]:
    return frozenset(map(folded, titles))
