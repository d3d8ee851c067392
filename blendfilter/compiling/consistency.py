"""Gold and other passages as a training set for CDIT's judge, and the metric that holds a verdict against them.

CDIT ("Context-Driven Index Trimming"), section 4.2: a model says whether a passage is consistent with a question. In:
questions that name their gold passages, and an index or their own paragraphs. Out: pairs of a question and one passage,
as many consistent (gold) as not (found for the question, and not gold), and a metric of (example, prediction).

Differs from the paper: its judge is a prompt by hand. What an annotator called gold stands in for a verdict here, which
is near to it and not the same: the second step of a chain need not be like the question, and a passage that nobody
marked may be. No verdict is wrong, whichever was wanted.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import dspy

from blendfilter.compiling.splitting import Split
from blendfilter.errors import BadArgument, EmptyData
from blendfilter.filters.cdit.rules import Rule, rules_of
from blendfilter.records import Passage, Question
from blendfilter.retrieval.base import Retriever
from blendfilter.tasks.base import Questions
from blendfilter.text import folded


def consistency_examples(
    questions: Questions,
    *,
    rules: Sequence[str | Rule] = ("phi1",),
    retriever: Retriever | None = None,
    k: int = 5,
    negatives: int = 1,
    seed: int = 0,
) -> list[dspy.Example]:
    """An example a question, which holds its `pairs`: split these by question, then `pairs_of` them.

    Args:
        questions: with gold titles, from `load`.
        rules: those that the judge goes by; a demonstration names them.
        retriever: what finds `k` passages for each question; its own paragraphs come after them.
        negatives: passages that are not gold, of each question at most; gold ones are as many.
        seed: of the choice among a question's passages, which does not depend on the other questions.

    Raises:
        BadArgument: `negatives` below 1. EmptyData: no question has a gold passage and another one.
    """
    if isinstance(negatives, bool) or not isinstance(negatives, int) or negatives < 1:
        raise BadArgument(f"negatives is {negatives!r}: give 1 or more passages a question that are not gold")
    if not any(question.gold_titles for question in questions):
        raise EmptyData(
            f"the questions of {questions.source} name no gold passages, so nothing says what is consistent: take "
            "some that do (hotpotqa, twowiki, …, or a 'gold_titles' of your own)"
        )
    told = [rule.line for rule in rules_of(rules)]
    found = _found(questions, retriever, k)
    made = [
        _example(question, told, passages, negatives, seed)
        for question, passages in zip(questions, found, strict=True)
        if question.gold_titles
    ]
    if not any(each.pairs for each in made):
        raise EmptyData(
            f"no question of {questions.source} has both a gold passage and another one among those found: name the "
            "corpus that their gold titles are of (--corpus, --index), or look deeper (-k)"
        )
    return [each for each in made if each.pairs]


def _found(questions: Questions, retriever: Retriever | None, k: int) -> list[list[Passage]]:
    """For each question what is found, then its own paragraphs; what reads the same once."""
    hits: Sequence[Sequence[Passage]] = [()] * len(questions)
    if retriever is not None and len(questions):
        hits = retriever.search([question.question for question in questions], k)
    return [
        list({each.line: each for each in reversed([*some, *question.context])}.values())[::-1]
        for question, some in zip(questions, hits, strict=True)
    ]


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
    pairs = [_pair(question, rules, each, consistent) for each, consistent in chosen]
    return dspy.Example(id=question.id, question=question.question, pairs=pairs).with_inputs("question")


def _pair(question: Question, rules: list[str], passage: Passage, consistent: bool) -> dspy.Example:
    """What the filter is asked (one passage), and what its predictor reads and should say."""
    plain = Passage(passage.id, passage.title, passage.text)
    return dspy.Example(
        id=question.id,
        question=question.question,
        passages=[plain],
        rules=rules,
        passage=plain.line,
        verdict=str(consistent),
        consistent=consistent,
    ).with_inputs("question", "passages")


def pairs_of(split: Split) -> Split:
    """The pairs of the questions of a split: none of its questions is on both sides."""
    return Split(_flat(split.train), _flat(split.valid))


def _flat(examples: Iterable[dspy.Example]) -> list[dspy.Example]:
    return [pair for each in examples for pair in each.pairs]


def consistency(
    example: Any, prediction: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> float | bool | dspy.Prediction:
    """Whether a `CDITFilter` judged the passage of an example as it should; for a predictor, in words too.

    As many pairs are consistent as not, so the mean is the balanced accuracy.

    >>> consistency(dspy.Example(consistent=False), dspy.Prediction(verdicts=[None]))
    0.0
    """
    verdict = prediction.verdicts[0]
    right = verdict is example.consistent
    if pred_name is not None:
        return dspy.Prediction(score=float(right), feedback=_feedback(example, verdict, str(prediction.reason)))
    return float(right) if trace is None else right


def _feedback(example: Any, verdict: bool | None, reason: str) -> str:
    said = "Nothing could be read as a verdict." if verdict is None else f"The verdict was {verdict}."
    if verdict is example.consistent:
        return f"{said} That is right."
    why = "the question is answered from it" if example.consistent else "it is not one that answers the question"
    grounds = f" What was told of it: {reason.removeprefix('knowledge 0: ')}" if reason else ""
    return f"{said} The right one is {example.consistent}: {why}. The passage: '{example.passage}'.{grounds}"
