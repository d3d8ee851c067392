"""One question's line of `predictions.jsonl`: what a method answered, what it retrieved and kept, which calls it made.

Nothing here depends on clock, address or order of arrival: a run killed and resumed, or replayed, gives the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from blendfilter.context import CallNote, calls_of
from blendfilter.errors import BadArgument, CodeFailed, ModelError, words_of
from blendfilter.evaluation.losses import LossCase, loss
from blendfilter.metrics import METRICS, metric, retrieval
from blendfilter.modules.base import FLAGS, union
from blendfilter.records import Excerpt, Passage, Question
from blendfilter.retrieval.callables import as_passage
from blendfilter.tasks.base import Task

Row = dict[str, Any]
UNION = "union"
"""The name of all queries' passages together."""
DIGITS = 6
_PLACES = re.compile(r" at 0x[0-9a-fA-F]+")  # where an object lay in memory, in its repr
"""Decimals of every stored figure."""


def answered(
    task: Task,
    question: Question,
    prediction: Any,
    notes: Sequence[CallNote],
) -> Row:
    """The row of a question that was answered, by whatever module: it must give `answer`, the rest is read if there.

    Raises:
        BadArgument: there is no `answer`, or knowledge that cannot be read as passages.
    """
    answer = _answer(prediction)
    branches: Mapping[str, Any] = _field(prediction, "branches") or {}
    knowledge = [as_passage(item) for item in _field(prediction, "knowledge") or []]
    retrieved = union(branch.retrieved for branch in branches.values()) if branches else knowledge
    scores = {name: round(value, DIGITS) for name, value in task.score(answer, question).items()}
    correct = scores[task.metrics[0]] == 1.0
    flags = dict.fromkeys(FLAGS, 0) | dict(_field(prediction, "flags") or _noted(notes))
    return {
        **_asked(question),
        "answer": answer,
        **scores,
        "correct": correct,
        "queries": {name: _text(query) for name, query in dict(_field(prediction, "queries") or {}).items()},
        "branches": {name: _branch(branch) for name, branch in branches.items()},
        "knowledge": [passage.id for passage in knowledge],
        **_spans(knowledge),
        "retrieval": _retrieval(question, branches, retrieved, knowledge),
        "loss": loss(
            LossCase(correct, _titles(retrieved), _titles(knowledge), question.evidence or (question.gold_titles,))
        ),
        "calls": [[note.stage, note.key] for note in calls_of(notes)],
        "flags": flags,
        "error": None,
    }


def with_beside(row: Row, question: Question, beside: Mapping[str, Sequence[Passage] | None]) -> Row:
    """`row` with what passages that its method never saw would have brought, beside the union; by the search's name.

    None in the place of passages is a search that failed: the row names it (`unsearched`).
    """
    figures = row["retrieval"]
    if UNION not in figures:  # its gold is unknown
        return row
    for name, passages in beside.items():
        told = {} if passages is None else _figures({name: passages}, question)
        order = list(figures)
        order[order.index(UNION) + 1 : order.index(UNION) + 1] = [each for each in told if each not in figures]
        figures = {each: (figures | told)[each] for each in order}
    rest = {key: value for key, value in row.items() if key != "unsearched"} | {"retrieval": figures}
    missing = [name for name, passages in beside.items() if passages is None]
    return rest | ({"unsearched": missing} if missing else {})


def failed(task: Task, question: Question, error: BaseException, notes: Sequence[CallNote]) -> Row:
    """The row of a question that could not be answered: it counts as 0, and as an error."""
    return {
        **_asked(question),
        "answer": None,
        **dict.fromkeys(task.metrics, 0.0),
        "correct": False,
        "queries": {},
        "branches": {},
        "knowledge": [],
        "retrieval": {},
        "loss": loss(LossCase(False, [], [], question.evidence or (question.gold_titles,))),
        "calls": [[note.stage, note.key] for note in calls_of(notes)],
        "flags": dict.fromkeys(FLAGS, 0) | _noted(notes),
        "error": {
            "kind": error.kind if isinstance(error, ModelError | CodeFailed) else type(error).__name__,
            "stage": error.stage if isinstance(error, ModelError) else "",
            "message": _PLACES.sub("", words_of(error)),
        },
    }


def misscored(row: Row, metrics: Iterable[str]) -> str:
    """The first of `metrics` by which a row's answer does not score what the row says; empty where all agree.

    Metrics that are no names of `blendfilter.metrics` (a user's own) are taken as they stand.
    """
    for name in metrics:
        if name in METRICS:
            answer = row["answer"]
            right = (
                0.0 if row["error"] or answer is None else round(metric(name)(answer, row["golden_answers"]), DIGITS)
            )
            if row.get(name) != right:
                return name
    return ""


def lost(stored: Any, new: Any, path: str = "") -> str:
    """The first thing that `stored` says and `new` does not, by its path; empty where `new` says all of it, or more.

    >>> lost({"retrieval": {"q": 1, "q@15": 1}}, {"retrieval": {"q": 1}})
    'retrieval.q@15'
    """
    if isinstance(stored, Mapping) and isinstance(new, Mapping):
        for name, value in stored.items():
            where = f"{path}.{name}" if path else str(name)
            if name not in new:
                return where
            if found := lost(value, new[name], where):
                return found
        return ""
    return "" if stored == new else path


def _asked(question: Question) -> Row:
    return {
        "id": question.id,
        "question": question.question,
        "golden_answers": list(question.golden_answers),
        "gold_titles": list(question.gold_titles),
    }


def _branch(branch: Any) -> Row:
    return {
        "retrieved": [passage.id for passage in branch.retrieved],
        "kept": [passage.id for passage in branch.kept],
        "ids_read": branch.ids_read,
        **_spans(branch.kept),
    }


def _spans(passages: Iterable[Passage]) -> Row:
    """Where the pieces that were kept lie in their passages, by passage id; nothing where all are whole."""
    spans = {each.id: [[span.start, span.end] for span in each.spans] for each in passages if isinstance(each, Excerpt)}
    return {"spans": spans} if spans else {}


def _retrieval(
    question: Question,
    branches: Mapping[str, Any],
    retrieved: Sequence[Passage],
    knowledge: Sequence[Passage],
) -> dict[str, dict[str, float]]:
    """Recall, precision, S-precision per query, of their union and of what was kept."""
    sets: dict[str, Iterable[Passage]] = {name: branch.retrieved for name, branch in branches.items()}
    if branches or knowledge:
        sets |= {UNION: retrieved, "kept": knowledge}
    return _figures(sets, question)


def _figures(sets: Mapping[str, Iterable[Passage]], question: Question) -> dict[str, dict[str, float]]:
    """Recall, precision, S-precision of each set; nothing where gold is unknown."""
    measured = {name: retrieval(_titles(passages), question) for name, passages in sets.items()}
    return {
        name: {key: round(value, DIGITS) for key, value in scores._asdict().items()}
        for name, scores in measured.items()
        if scores is not None
    }


def _text(query: Any) -> str:
    return query if isinstance(query, str) else json.dumps(query, ensure_ascii=False)


def _titles(passages: Iterable[Passage]) -> list[str]:
    return [passage.title for passage in passages]


def _noted(notes: Sequence[CallNote]) -> dict[str, int]:
    events = [note.event for note in notes if note.event in FLAGS]
    return {event: events.count(event) for event in events}


def _answer(prediction: Any) -> str:
    there = "answer" in prediction if isinstance(prediction, Mapping) else hasattr(prediction, "answer")
    if not there and not isinstance(prediction, str):
        what = type(prediction).__name__
        raise BadArgument(f"the method returned a {what} without an answer: return dspy.Prediction(answer=…)")
    answer = _field(prediction, "answer")
    return "" if answer is None else str(answer)


def _field(prediction: Any, name: str) -> Any:
    if isinstance(prediction, Mapping):
        return prediction.get(name)
    if isinstance(prediction, str):  # a module may give the bare answer
        return prediction if name == "answer" else None
    return getattr(prediction, name, None)
