"""What a task is: a name, the metrics it is scored by, and how one row of its data becomes a `Question`."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, overload

from blendfilter.errors import BadArgument, BlendFilterError, CodeFailed, check_count, words_of
from blendfilter.files import JsonRow, json_rows
from blendfilter.metrics import METRICS, metric
from blendfilter.records import Question
from blendfilter.tasks.layouts import answers_of, question

MetricFunction = Callable[..., Any]
"""The user's own metric as DSPy has them, `(example, prediction, trace=None)`: a fraction of 1 or a truth value."""
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
        metrics: names in `blendfilter.metrics.METRICS` or among `functions`, the leading one first.
        functions: the user's own metrics, by name.
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
    functions: Mapping[str, MetricFunction] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name in self.metrics:
            if name not in self.functions:
                metric(name)

    def with_metrics(self, metrics: Sequence[str | MetricFunction]) -> Task:
        """The task scored by these: names of ours, or functions, which are called by their own names.

        Raises: UnknownName, and BadArgument for what is no metric or has no name of its own.
        """
        if isinstance(metrics, str) or not isinstance(metrics, Sequence) or not metrics:
            raise BadArgument(
                "metrics is a list of names and functions, such as ['em', 'f1'] or ['em', my_metric]"
            )
        functions: dict[str, MetricFunction] = {}
        names = [each if isinstance(each, str) else _named(each, functions) for each in metrics]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise BadArgument(f"two metrics are called '{twice}': give each its own name")
        return replace(self, metrics=tuple(names), functions=functions)

    def score(self, answer: str, question: Question) -> dict[str, float]:
        """`answer` by each metric of ours, as fractions of 1; the best over the question's golden answers."""
        ours = (name for name in self.metrics if name not in self.functions)
        return {name: metric(name)(answer, question.golden_answers) for name in ours}

    def score_own(self, question: Question, prediction: Any) -> dict[str, float]:
        """A prediction by each of the `functions`.

        Raises: CodeFailed where one raises; BadArgument where one returns no fraction of 1.
        """
        return {
            name: _score(name, function, question, prediction)
            for name, function in self.functions.items()
        }

    def asking(self, questions: Sequence[Question]) -> Task:
        """The task in the wording for these questions."""
        return replace(self, wording=self.wording_for(questions)) if self.wording_for else self


def _named(function: Any, functions: dict[str, MetricFunction]) -> str:
    """The name of a function, which goes into `functions`."""
    name = getattr(function, "__name__", None) or type(function).__name__
    is_plain = callable(function) and not inspect.iscoroutinefunction(function)
    if not is_plain or not name.isidentifier():
        raise BadArgument(
            f"{function!r:.80} is no metric: give a name, or a plain function (example, prediction, trace), written "
            "with def, under whose name it stands"
        )
    if name in METRICS:
        raise BadArgument(f"'{name}' is a metric of ours: call your function something else")
    functions[name] = function
    return str(name)


def _score(name: str, function: MetricFunction, question: Question, prediction: Any) -> float:
    try:
        given = function(example_of(question), prediction)
    except BlendFilterError:
        raise
    except Exception as error:
        kind = type(error).__name__
        raise CodeFailed(
            f"the metric {name} raised {kind}: {words_of(error)}", kind=kind
        ) from error
    try:
        score = float(given)  # of a DSPy prediction with a score, too
    except (TypeError, ValueError):
        score = -1.0
    if isinstance(given, str) or not 0.0 <= score <= 1.0:
        raise BadArgument(
            f"the metric {name} returned {given!r:.60} for question '{question.id}': a score is 0 to 1"
        )
    return score


def check_functions(questions: Questions) -> None:
    """Raise `BadArgument` for a metric of DSPy's that compares a `response` where the questions have none."""
    if not questions.task.functions:
        return
    import dspy

    for name, function in questions.task.functions.items():
        compares = isinstance(
            function, dspy.evaluate.SemanticF1 | dspy.evaluate.CompleteAndGrounded
        )
        if compares and not all("response" in question.metadata for question in questions):
            raise BadArgument(
                f"{name} compares the field 'response', and these questions have an 'answer': call it in a function "
                "that hands it the answers under that name (docs/tasks.md shows one)"
            )


def example_of(question: Question) -> Any:
    """A question with all that is known of it, as a `dspy.Example` with the input `question`."""
    import dspy

    known = {
        "id": question.id,
        "question": question.question,
        "answer": next(iter(question.golden_answers), ""),
        "golden_answers": list(question.golden_answers),
        "gold_titles": list(question.gold_titles),
        "type": question.type,
    }
    return dspy.Example(**{**question.metadata, **known}).with_inputs("question")


class Shard(NamedTuple):
    """One of `of` parts, number 1 to `of`, of a set of `n` questions whose fingerprint is `fingerprint`."""

    number: int
    of: int
    fingerprint: str
    n: int


@dataclass(frozen=True)
class Questions(Sequence[Question]):
    """Questions of one task, in the order of their source; a slice is one too.

    `source` says where they come from without any folder of this machine: a file's name, a name on the hub, `sample`;
    `part` of what they are a shard, `rows` how many rows that file has (None: unknown, or no file).
    """

    items: tuple[Question, ...] = field(repr=False)
    task: Task
    source: str = "rows"
    part: Shard | None = field(default=None, repr=False)
    rows: int | None = field(default=None, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, at: int) -> Question: ...
    @overload
    def __getitem__(self, at: slice) -> Questions: ...
    def __getitem__(self, at: int | slice) -> Question | Questions:
        return (
            Questions(self.items[at], self.task, self.source)
            if isinstance(at, slice)
            else self.items[at]
        )

    def __iter__(self) -> Iterator[Question]:
        return iter(self.items)

    def __repr__(self) -> str:
        return f"<{len(self)} questions of {self.task.name} from {self.source}>"

    def shard(self, number: int, of: int) -> Questions:
        """Each `of`-th question, beginning with the `number`-th: a part that another process or machine evaluates.

        `merge` makes one run of the runs of all parts. Raises: BadArgument where there is no such part.

        >>> from blendfilter.tasks import load
        >>> five = load([{"question": f"Who won in {year}?", "answer": "?"} for year in range(1, 6)])
        >>> [each.question for each in five.shard(2, 3)]
        ['Who won in 2?', 'Who won in 5?']
        """
        number = check_count("number", number, 0)
        of = check_count("of", of)
        if not 1 <= number <= of or of > len(self):
            raise BadArgument(
                f"there is no shard {number}/{of}: shards are numbered 1 to {of}, and {len(self)} questions make "
                f"{len(self)} shards at most"
            )
        if self.part is not None:
            raise BadArgument(
                f"these are shard {self.part.number}/{self.part.of} of other questions: shard those"
            )
        return replace(
            self,
            items=self.items[number - 1 :: of],
            part=Shard(number, of, self.fingerprint, len(self)),
        )

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

    def metric(
        self,
        gold: Any,
        pred: Any,
        trace: Any = None,
        pred_name: Any = None,
        pred_trace: Any = None,
    ) -> Any:
        """The task's leading metric as DSPy and its optimisers call one, GEPA among them.

        A fraction of 1; right or wrong where an optimiser collects traces; with feedback where GEPA names a predictor.
        """
        import dspy

        right = answers_of(gold.items()) or ()
        leading = self.task.metrics[0]
        own = self.task.functions.get(leading)
        score = (
            metric(leading)(str(pred.answer), right) if own is None else float(own(gold, pred))
        )
        if pred_name is None:
            return score if trace is None else score == 1.0
        partly = f"It scores {score:.2f} of 1. " if 0 < score < 1 else ""
        verdict = (
            "That is right."
            if score == 1.0
            else f"{partly}The right answer is {' or '.join(map(repr, right))}."
        )
        return dspy.Prediction(
            score=score, feedback=f"The answer was {str(pred.answer)!r}. {verdict}"
        )

    @cached_property
    def fingerprint(self) -> str:
        """16 digits of the SHA-256 of ids, questions, answers and gold in order; contexts and metadata do not count."""
        digest = hashlib.sha256()
        for one in self:
            parts = [
                one.id,
                one.question,
                one.golden_answers,
                one.gold_titles,
                one.evidence,
                one.supporting_facts,
            ]
            digest.update(json.dumps(parts).encode() + b"\n")
        return digest.hexdigest()[:16]
