"""Silver contexts as a training set for filters, and the metric that compares a filter with them.

Wang et al. 2023, "Learning to Filter Context for Retrieval-Augmented Generation" (https://arxiv.org/abs/2311.08377):
the silver context is what an oracle would have kept.

Differs from the paper: M_ctx is fine-tuned to write the silver text. Here a prompt is compiled, and what it is rewarded
for is agreement with silver (F1 over the candidates chosen; both empty is 1), the F1 of an answer given over what was
kept, and few tokens: reward = (agreement·A + answer·F) / (agreement + answer) - tokens·share, not below 0, where share
is the part of the candidates' words that was kept. The defaults: agreement 1; answer 0.5, because a filter may keep
another sentence that answers as well; tokens 0.1, so that of two filters that answer alike the smaller one wins and no
answer is worth losing for it. Where `answer` is 0, no answerer is called.

A demonstration is right by silver: it names every sentence that silver chose. A row of which silver chose none is
scored, and demonstrates nothing: naming none agrees with it, whatever the passages say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import dspy

from blendfilter.asking import Ask, TaskWording
from blendfilter.errors import BadArgument, BadData
from blendfilter.filters.filco import Unit, candidates_of
from blendfilter.lm.model import ConnectedLM
from blendfilter.metrics import f1
from blendfilter.modules.direct import Direct
from blendfilter.oracles.silver_rows import SilverRow
from blendfilter.prompting import Prompts
from blendfilter.retrieval.callables import as_retriever

WEIGHTS = ("agreement", "answer", "tokens", "threshold")
THRESHOLD = 0.55
"""A reward from which an answer may become a demonstration: silver's own choice reaches it whatever the answerer says,
by the default weights."""


def silver_examples(rows: Iterable[SilverRow], unit: Unit = "sentence") -> list[dspy.Example]:
    """Examples with the inputs `question` and `passages`.

    Beside them: `knowledge` and `ids` (what the filter's predictor reads and should say; `ids` is None where silver
    chose nothing, so that no demonstration is made of the row), `chosen` (positions in the numbering of its prompt),
    `golden_answers`.

    Raises:
        BadData: a row's choice is none of the candidates that the prompt would show.
    """
    made = []
    for row in rows:
        candidates = candidates_of(row.passages, unit)
        starts = unit != "passage"
        wanted = {
            (each.passage, each.start * starts)
            for each in (row.sentences[at] for at in row.chosen)
        }
        chosen = [
            at
            for at, each in enumerate(candidates)
            if (each.position, each.start * starts) in wanted
        ]
        if len(chosen) != len(wanted):
            raise BadData(
                f"the silver row of question '{row.id}' chooses what is no {unit} of its passages as they are cut now: "
                "make the file again (blendfilter silver)"
            )
        example = dspy.Example(
            id=row.id,
            question=row.question,
            passages=list(row.passages),
            knowledge=[candidate.line for candidate in candidates],
            ids=", ".join(map(str, chosen)) or None,
            chosen=chosen,
            golden_answers=list(row.golden_answers),
        )
        made.append(example.with_inputs("question", "passages"))
    return made


@dataclass(frozen=True)
class SilverMetric:
    """What `silver_metric` makes."""

    agreement: float
    answer: float
    tokens: float
    threshold: float
    answerer: Ask | None
    lm: ConnectedLM | None = None

    def weights(self) -> dict[str, float]:
        """Its weights and its threshold, for a recipe."""
        return {name: getattr(self, name) for name in WEIGHTS}

    def __call__(
        self,
        example: Any,
        prediction: Any,
        trace: Any = None,
        pred_name: Any = None,
        pred_trace: Any = None,
    ) -> float | bool | dspy.Prediction:
        """The reward; with a trace, whether it is good enough for a demonstration; for a predictor, with feedback."""
        wanted, kept = set(example.chosen), set(prediction.chosen)
        agreement, right = overlap(kept, wanted), 0.0
        sizes = [len(line.split()) for line in example.knowledge]
        share = sum(sizes[at] for at in kept if at < len(sizes)) / max(1, sum(sizes))
        lines = [f"Agreement with the right choice: {agreement:.2f} of 1."]
        for name, numbers in (("Missed", wanted - kept), ("Superfluous", kept - wanted)):
            if listed := [
                f"{at} ('{example.knowledge[at]}')" for at in sorted(numbers) if at < len(sizes)
            ]:
                lines.append(f"{name}: {'; '.join(listed)}.")
        if not wanted:
            lines.append("None helps here, the right reply is none.")
        feedback = " ".join([*lines, f"{share:.0%} of the words were kept."])
        if self.answer > 0:
            assert self.answerer is not None  # silver_metric gives one
            lines = [passage.line for passage in prediction.kept]
            # With a trace of its own: the program's must not have the metric's calls in it.
            with dspy.context(trace=[], **({} if self.lm is None else {"lm": self.lm})):
                answer = str(self.answerer(knowledge=lines, question=example.question).answer)
            right = f1(answer, example.golden_answers)
            golden = "; ".join(example.golden_answers)
            feedback += f" Over what was kept the answer given was '{answer}', the right one is: {golden}"
        gained = (self.agreement * agreement + self.answer * right) / (
            self.agreement + self.answer
        )
        score = max(0.0, gained - self.tokens * share)
        if pred_name is not None:
            return dspy.Prediction(score=score, feedback=feedback)
        if trace is None:
            return score
        # a first reply that had to be repeated teaches nothing, whatever came of it
        again = any(getattr(predictor, "name", "") == "ids_again" for predictor, *_ in trace)
        right_by_silver = bool(wanted) and wanted <= kept
        return (
            right_by_silver
            and score >= self.threshold
            and prediction.get("status", "ids") == "ids"
            and not again
        )


def silver_metric(
    *,
    agreement: float = 1.0,
    answer: float = 0.5,
    tokens: float = 0.1,
    threshold: float = THRESHOLD,
    wording: TaskWording | str = "hotpotqa",
    prompts: Prompts | str | None = None,
) -> SilverMetric:
    """A metric for filters on `silver_examples`.

    Args:
        agreement, answer, tokens: the weights of the module's docstring.
        threshold: the reward from which an answer may become a demonstration.
        wording, prompts: of the answerer, which is `Direct` over the lines that were kept.

    Raises:
        BadArgument: a weight below 0, or nothing that is rewarded.
    """
    weights = zip(WEIGHTS, (agreement, answer, tokens, threshold), strict=True)
    for name, value in weights:
        if not 0 <= value < float("inf"):
            raise BadArgument(f"the weight {name} is {value}: give 0 or a positive number")
    if agreement + answer <= 0:
        raise BadArgument(
            "agreement and answer both weigh 0: nothing would be rewarded, give one of them a weight"
        )
    answerer = None
    if answer > 0:
        nothing = as_retriever(lambda query, k: [])
        answerer = Direct(nothing, task=wording, prompts=prompts).direct
    return SilverMetric(agreement, answer, tokens, threshold, answerer)


def overlap(kept: set[int], wanted: set[int]) -> float:
    """F1 of two sets; two empty ones agree.

    >>> overlap({1, 2}, {2}), overlap(set(), set())
    (0.6666666666666666, 1.0)
    """
    if not kept and not wanted:
        return 1.0
    return 2 * len(kept & wanted) / (len(kept) + len(wanted))
