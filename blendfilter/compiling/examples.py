"""Training sets: examples drawn by a seed, and CDIT's pairs of a question and one passage.

CDIT ("Context-Driven Index Trimming", Ma et al. 2024, https://arxiv.org/abs/2408.05524), section 4.2: a model says
whether a passage is consistent with a question. `consistency_examples` makes as many consistent pairs (gold passages)
as others (found for the question, and not gold); `consistency` is the metric.

Differs from the paper: its judge is a prompt by hand. What an annotator called gold stands in for a verdict here, which
is near to it and not the same: the second step of a chain need not be like the question, and an unmarked passage may
be. No verdict is wrong, whichever was wanted.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import dspy

from blendfilter.compiling.programs import question_in
from blendfilter.compiling.silver import overlap
from blendfilter.errors import EmptyData, check_count
from blendfilter.filters.cdit import Rule, rules_of
from blendfilter.oracles.measures import strinc
from blendfilter.records import Passage, Question
from blendfilter.retrieval.base import Retriever
from blendfilter.tasks.base import Questions
from blendfilter.text import folded, question_digest


def drawn(examples: Sequence[dspy.Example], size: int, seed: int) -> list[dspy.Example]:
    """Examples of `size` different questions, drawn by `seed`. Raises `EmptyData` where there are not so many."""
    once = list(
        {question_digest(question_in(each)): each for each in reversed(examples)}.values()
    )[::-1]
    if len(once) < size:
        raise EmptyData(
            f"there are {len(once)} different questions, fewer than {size}: give more data, or ask for fewer (train=, "
            "valid=)"
        )
    return random.Random(seed).sample(once, size)


def consistency_examples(
    questions: Questions,
    *,
    rules: Sequence[str | Rule] = ("phi1",),
    retriever: Retriever | None = None,
    k: int = 5,
    negatives: int = 1,
    seed: int = 0,
) -> list[dspy.Example]:
    """An example a question with its `pairs`: split the examples, then take the pairs, so that none leaks.

    Args:
        questions: with gold titles, from `load`.
        rules: those of the judge; a demonstration names them.
        retriever: what finds `k` passages for each question; its own paragraphs come after them.
        negatives: passages that are not gold, of each question at most; gold ones are as many.
        seed: of the choice among a question's passages, which does not depend on the other questions.

    Raises:
        BadArgument: `negatives` below 1. EmptyData: no question has a gold passage and another one.
    """
    negatives = check_count("negatives", negatives)
    lines = [rule.line for rule in rules_of(rules)]
    hits: Sequence[Sequence[Passage]] = [()] * len(questions)
    if retriever is not None and len(questions):
        hits = retriever.search([question.question for question in questions], k)
    made = []
    for question, some in zip(questions, hits, strict=True):
        # passages that read the same are taken once
        found = list(
            {each.line: each for each in reversed([*some, *question.context])}.values()
        )[::-1]
        if pairs := _pairs(question, lines, found, negatives, seed):
            example = dspy.Example(id=question.id, question=question.question, pairs=pairs)
            made.append(example.with_inputs("question"))
    if not made:
        raise EmptyData(
            f"no question of {questions.source} has both a gold passage and another one among those found: take "
            "questions that name gold passages (hotpotqa, twowiki, or 'gold_titles' of your own), name the corpus that "
            "these are of (corpus=, index=), or look deeper (-k)"
        )
    return made


def _pairs(
    question: Question, rules: list[str], passages: Sequence[Passage], negatives: int, seed: int
) -> list[dspy.Example]:
    is_gold = [_answers(question, passage) for passage in passages]
    gold = [passage for passage, right in zip(passages, is_gold, strict=True) if right]
    others = [passage for passage, right in zip(passages, is_gold, strict=True) if not right]
    draw = random.Random(f"{seed} {question.id}")
    many = min(negatives, len(gold), len(others))
    chosen = [
        (each, some is gold) for some in (gold, others) for each in draw.sample(some, many)
    ]
    draw.shuffle(chosen)
    return [
        dspy.Example(
            id=question.id,
            question=question.question,
            passages=[Passage(each.id, each.title, each.text)],
            rules=rules,
            passage=each.line,
            verdict=str(consistent),
            consistent=consistent,
        ).with_inputs("question", "passages")
        for each, consistent in chosen
    ]


def _answers(question: Question, passage: Passage) -> bool:
    """Whether a passage is gold: by its title; where the question names none, by an answer that stands in it."""
    if question.gold_titles:
        return folded(passage.title) in {folded(title) for title in question.gold_titles}
    return bool(strinc(passage.line, question.golden_answers))


def relevance_examples(
    questions: Questions, retriever: Retriever, *, k: int = 5, seed: int = 0
) -> list[dspy.Example]:
    """Examples for filters that name passages: `k` passages of each question, shuffled, and which of them are gold.

    Shuffled by question and seed, because a filter that reads passages in their ranked order learns to keep the first.
    `chosen` are the positions of gold passages, `ranked` the positions in the retriever's order. Questions of which
    every passage is gold, or none, are left out.

    Raises:
        EmptyData: no question is left.
    """
    found = retriever.search([question.question for question in questions], k)
    made = []
    for question, hits in zip(questions, found, strict=True):
        passages = list(hits)
        random.Random(f"{seed} {question.id}").shuffle(passages)
        chosen = [at for at, each in enumerate(passages) if _answers(question, each)]
        if not 0 < len(chosen) < len(passages):
            continue
        example = dspy.Example(
            id=question.id,
            question=question.question,
            passages=passages,
            chosen=chosen,
            ranked=[passages.index(hit) for hit in hits],
        )
        made.append(example.with_inputs("question", "passages"))
    if not made:
        raise EmptyData(
            f"no question of {questions.source} has both a gold passage and another one among {k}: take questions that "
            "name gold passages, name the corpus that these are of (corpus=, index=), or look deeper (-k)"
        )
    return made


def relevance(
    example: Any,
    prediction: Any,
    trace: Any = None,
    pred_name: Any = None,
    pred_trace: Any = None,
) -> float | bool | dspy.Prediction:
    """The F1 of the passages kept against the gold ones; for a predictor, with feedback."""
    kept, gold = set(_places(example, prediction)), set(example.chosen)
    score = overlap(kept, gold)
    if pred_name is None and trace is None:
        return score
    if pred_name is None:
        # what was read on the second request only is no demonstration of the first
        return kept == gold and prediction.status == "ids" and not prediction.flags
    lines = [f"F1 of the passages kept: {score:.2f} of 1."]
    for name, numbers in (("Missed", gold - kept), ("Superfluous", kept - gold)):
        lines += [f"{name}: {at} ('{example.passages[at].line}')." for at in sorted(numbers)]
    return dspy.Prediction(score=score, feedback=" ".join(lines))


def relevance_of_order(example: Any, prediction: Any) -> float:
    """What the retriever's first passages would score, as many as `prediction` kept."""
    kept = _places(example, prediction) if prediction else []
    return overlap({*example.ranked[: len(kept)]}, {*example.chosen})


def _places(example: Any, prediction: Any) -> list[int]:
    ids = [passage.id for passage in example.passages]
    return [ids.index(passage.id) for passage in prediction.kept]


def consistency(
    example: Any,
    prediction: Any,
    trace: Any = None,
    pred_name: Any = None,
    pred_trace: Any = None,
) -> float | bool | dspy.Prediction:
    """Whether a `CDITFilter` judged the passage of an example as it should; for a predictor, with feedback.

    As many pairs are consistent as not, so the mean is the balanced accuracy.

    >>> consistency(dspy.Example(consistent=False), dspy.Prediction(verdicts=[None]))
    0.0
    """
    verdict = prediction.verdicts[0]
    right = verdict is example.consistent
    if pred_name is None and trace is None:
        return float(right)
    if pred_name is None:
        # What was read on the second request only is no demonstration of the first.
        return right and "unread_verdict" not in (prediction.get("flags") or {})
    words = f"The verdict was {verdict}."
    if verdict is None:
        words = "Nothing could be read as a verdict."
    if right:
        return dspy.Prediction(score=1.0, feedback=f"{words} That is right.")
    why = "it is not one that answers the question"
    if example.consistent:
        why = "the question is answered from it"
    reason = str(prediction.reason).removeprefix("knowledge 0: ")
    grounds = f" What was told of it: {reason}" if reason else ""
    feedback = f"{words} The right one is {example.consistent}: {why}. The passage: '{example.passage}'.{grounds}"
    return dspy.Prediction(score=0.0, feedback=feedback)
