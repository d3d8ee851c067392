"""What a task is: a name, the metrics it is scored by, and how one row of its data becomes a `Question`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, overload

from blendfilter.files import JsonRow, json_rows
from blendfilter.metrics import metric
from blendfilter.records import Question
from blendfilter.tasks.layouts import question

Parser = Callable[[JsonRow], Question]
"""Reads one row of a data set; raises `BadData` with the row's place and the field that is wrong."""


class Hub(NamedTuple):
    """Where a data set lies on the Hugging Face hub (plain files there, no loading script)."""

    name: str
    config: str | None
    split: str

    def label(self, split: str | None = None) -> str:
        """``name:config:split``, for reports."""
        return ":".join(part for part in (self.name, self.config, split or self.split) if part)


@dataclass(frozen=True)
class Task:
    """One kind of question set.

    Attributes:
        metrics: names in `blendfilter.metrics.METRICS`, the leading one first.
        wording: the set of prompts and demonstrations, `programs/<wording>`.
        beside: makes a parser that also uses what lies beside a data file.
        rows: reads a file whose rows are not its questions.
        sample, of_sample: the task's file in the sample world, and which of its rows are the task's.
        wording_for: chooses another wording by the questions at hand.
    """

    name: str
    metrics: tuple[str, ...]
    wording: str
    parse: Parser = field(default=question, repr=False)
    hub: Hub | None = None
    beside: Callable[[Path], Parser] | None = field(default=None, repr=False)
    rows: Callable[[Path], Iterator[JsonRow]] = field(default=json_rows, repr=False)
    sample: str = field(default="questions.jsonl", repr=False)
    of_sample: Callable[[JsonRow], bool] | None = field(default=None, repr=False)
    wording_for: Callable[[Sequence[Question]], str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in self.metrics:
            metric(name)

    def score(self, answer: str, question: Question) -> dict[str, float]:
        """`answer` by each of the task's metrics, as fractions of 1; the best over the question's golden answers."""
        return {name: metric(name)(answer, question.golden_answers) for name in self.metrics}

    def asking(self, questions: Sequence[Question]) -> Task:
        """The task in the wording for these questions."""
        return replace(self, wording=self.wording_for(questions)) if self.wording_for else self


@dataclass(frozen=True)
class Questions(Sequence[Question]):
    """Questions of one task, in the order of their source; a slice is one too.

    `source` says where they come from without any folder of this machine: a file's name, a name on the hub, `sample`.
    """

    items: tuple[Question, ...] = field(repr=False)
    task: Task
    source: str = "rows"

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, at: int) -> Question: ...
    @overload
    def __getitem__(self, at: slice) -> Questions: ...
    def __getitem__(self, at: int | slice) -> Question | Questions:
        return Questions(self.items[at], self.task, self.source) if isinstance(at, slice) else self.items[at]

    def __iter__(self) -> Iterator[Question]:
        return iter(self.items)

    def __repr__(self) -> str:
        return f"<{len(self)} questions of {self.task.name} from {self.source}>"

    def examples(self) -> list[Any]:
        """As `dspy.Example`s with the input `question`, for `dspy.Evaluate` and the optimisers."""
        import dspy

        return [
            dspy.Example(
                id=one.id,
                question=one.question,
                answer=next(iter(one.golden_answers), ""),
                golden_answers=list(one.golden_answers),
            ).with_inputs("question")
            for one in self
        ]

    def metric(self, example: Any, prediction: Any, trace: Any = None) -> float | bool:
        """The task's leading metric as DSPy calls one; right or wrong where an optimiser collects traces."""
        score = metric(self.task.metrics[0])(str(prediction.answer), example.golden_answers)
        return score if trace is None else score == 1.0

    @cached_property
    def fingerprint(self) -> str:
        """16 digits of the SHA-256 of ids, questions, answers and gold in order; contexts and metadata do not count."""
        digest = hashlib.sha256()
        for one in self:
            parts = [one.id, one.question, one.golden_answers, one.gold_titles, one.evidence, one.supporting_facts]
            digest.update(json.dumps(parts).encode() + b"\n")
        return digest.hexdigest()[:16]
