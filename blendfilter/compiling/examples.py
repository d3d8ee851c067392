"""Training sets: a split into training and held-back examples, and CDIT's pairs of a question and one passage.

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
from typing import Any, NamedTuple

import dspy

from blendfilter.compiling.programs import question_digest, question_in
from blendfilter.errors import EmptyData, check_count
from blendfilter.filters.cdit import Rule, rules_of
from blendfilter.records import Passage, Question
from blendfilter.retrieval.base import Retriever
from blendfilter.tasks.base import Questions
from blendfilter.text import folded


class Split(NamedTuple):
    """What is compiled on, and what is held back for the scores."""

    train: list[dspy.Example]
    valid: list[dspy.Example]


def split(examples: Sequence[dspy.Example], train: int, valid: int, seed: int) -> Split:
    """`train` and `valid` examples, drawn by `seed`, without a question in common.

    A question that comes twice is taken once.

    >>> rows = [dspy.Example(question=f"{n}?").with_inputs("question") for n in range(5)]
    >>> [len(part) for part in split(rows, 3, 2, seed=0)]
    [3, 2]

    Raises:
        EmptyData: there are not so many different questions. BadArgument: a size below 1.
    """
    check_count("--train", train)
    check_count("--valid", valid)
    once = list({question_digest(question_in(each)): each for each in reversed(examples)}.values())[::-1]
    if len(once) < train + valid:
        raise EmptyData(
            f"there are {len(once)} different questions, too few to train on {train} and hold {valid} back: "
            "give more data, or ask for fewer (--train, --valid)"
        )
    chosen = random.Random(seed).sample(once, train + valid)
    return Split(chosen[:train], chosen[train:])


def drawn(examples: Sequence[dspy.Example], size: int, seed: int, name: str) -> list[dspy.Example]:
    """`size` of the examples of one file, drawn by `seed`. Raises as `split`."""
    check_count(f"--{name}", size)
    if len(examples) < size:
        raise EmptyData(f"there are {len(examples)} questions, fewer than --{name} {size}: give more, or ask for fewer")
    return random.Random(seed).sample(list(examples), size)


def consistency_examples(
    questions: Questions,
    *,
    rules: Sequence[str | Rule] = ("phi1",),
    retriever: Retriever | None = None,
    k: int = 5,
    negatives: int = 1,
    seed: int = 0,
) -> list[dspy.Example]:
    """An example a question with its `pairs`: split these by question, then `pairs_of` them.

    Args:
        questions: with gold titles, from `load`.
        rules: those of the judge; a demonstration names them.
        retriever: what finds `k` passages for each question; its own paragraphs come after them.
        negatives: passages that are not gold, of each question at most; gold ones are as many.
        seed: of the choice among a question's passages, which does not depend on the other questions.

    Raises:
        BadArgument: `negatives` below 1. EmptyData: no question has a gold passage and another one.
    """
    check_count("negatives", negatives)
    if not any(question.gold_titles for question in questions):
        raise EmptyData(
            f"the questions of {questions.source} name no gold passages, so nothing says what is consistent: take "
            "some that do (hotpotqa, twowiki, …, or a 'gold_titles' of your own)"
        )
    lines = [rule.line for rule in rules_of(rules)]
    hits: Sequence[Sequence[Passage]] = [()] * len(questions)
    if retriever is not None and len(questions):
        hits = retriever.search([question.question for question in questions], k)
    made = []
    for question, some in zip(questions, hits, strict=True):
        if question.gold_titles:  # passages that read the same are taken once
            found = list({each.line: each for each in reversed([*some, *question.context])}.values())[::-1]
            made.append(_example(question, lines, found, negatives, seed))
    if not any(each.pairs for each in made):
        raise EmptyData(
            f"no question of {questions.source} has both a gold passage and another one among those found: name the "
            "corpus that their gold titles are of (--corpus, --index), or look deeper (-k)"
        )
    return [each for each in made if each.pairs]


def _example(
    question: Question, rules: list[str], passages: Sequence[Passage], negatives: int, seed: int
) -> dspy.Example:
    titles = {folded(title) for title in question.gold_titles}
    gold = [each for each in passages if folded(each.title) in titles]
    others = [each for each in passages if folded(each.title) not in titles]
    draw = random.Random(f"{seed} {question.id}")
    many = min(negatives, len(gold), len(others))
    chosen = [(each, True) for each in draw.sample(gold, many)] + [(each, False) for each in draw.sample(others, many)]
    draw.shuffle(chosen)
    pairs = [
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
    return dspy.Example(id=question.id, question=question.question, pairs=pairs).with_inputs("question")


def pairs_of(split: Split) -> Split:
    """The pairs of the questions of a split: none of its questions is on both sides."""
    return Split(*([pair for each in part for pair in each.pairs] for part in split))


def consistency(
    example: Any, prediction: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> float | bool | dspy.Prediction:
    """Whether a `CDITFilter` judged the passage of an example as it should; for a predictor, with feedback.

    As many pairs are consistent as not, so the mean is the balanced accuracy.

    >>> consistency(dspy.Example(consistent=False), dspy.Prediction(verdicts=[None]))
    0.0
    """
    verdict = prediction.verdicts[0]
    right = verdict is example.consistent
    if pred_name is None:
        return float(right) if trace is None else right
    words = "Nothing could be read as a verdict." if verdict is None else f"The verdict was {verdict}."
    if right:
        return dspy.Prediction(score=1.0, feedback=f"{words} That is right.")
    why = "the question is answered from it" if example.consistent else "it is not one that answers the question"
    reason = str(prediction.reason).removeprefix("knowledge 0: ")
    grounds = f" What was told of it: {reason}" if reason else ""
    feedback = f"{words} The right one is {example.consistent}: {why}. The passage: '{example.passage}'.{grounds}"
    return dspy.Prediction(score=0.0, feedback=feedback)
