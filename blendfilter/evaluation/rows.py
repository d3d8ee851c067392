"""One answer's line of `predictions.jsonl`: answer, scores, what was retrieved and kept, where it was lost, its calls.

Nothing here depends on clock, address or order of arrival: a run killed and resumed, or replayed, gives the same bytes.
Where a run answers every question several times, a row also has the number of its repeat; a run without repeats says
nothing of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from blendfilter.context import CallNote, calls_of
from blendfilter.errors import BadArgument, CodeFailed, ModelError, words_of
from blendfilter.metrics import METRICS, metric, retrieval
from blendfilter.modules.base import FLAGS, union
from blendfilter.records import Excerpt, Passage, Question
from blendfilter.retrieval.callables import as_passage
from blendfilter.tasks.base import Task
from blendfilter.text import folded

PredictionRow = dict[str, Any]
Loss = Literal["not_retrieved", "filtered_away", "answered_wrong", "right", "right_without_gold"]
LOSSES: tuple[Loss, ...] = get_args(Loss)
"""Where a question can be lost, in the order of the pipeline; `metrics.json` and every report keep it."""
UNION = "union"
"""The name of all queries' passages together."""
DIGITS = 6
"""Decimals of every stored figure."""
NEAR = 2e-6
"""How far figures may lie apart that were rounded so."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Where an object lay in memory, in its repr."""


def answered(task: Task, question: Question, prediction: Any, notes: Sequence[CallNote]) -> PredictionRow:
    """The row of an answered question, by whatever module: `answer` is required, all else is read where it is there.

    Raises:
        BadArgument: there is no `answer`, or knowledge that cannot be read as passages.
    """
    answer = _answer(prediction)
    branches: Mapping[str, Any] = _field(prediction, "branches") or {}
    knowledge = [as_passage(item) for item in _field(prediction, "knowledge") or []]
    retrieved = union(branch.retrieved for branch in branches.values()) if branches else knowledge
    passages: dict[str, Iterable[Passage]] = {name: branch.retrieved for name, branch in branches.items()}
    if branches or knowledge:
        passages |= {UNION: retrieved, "kept": knowledge}
    scores = {name: round(value, DIGITS) for name, value in task.score(answer, question).items()}
    correct = scores[task.metrics[0]] == 1.0
    return {
        **_question_fields(question),
        "answer": answer,
        **scores,
        "correct": correct,
        "queries": {
            name: query if isinstance(query, str) else json.dumps(query, ensure_ascii=False)
            for name, query in dict(_field(prediction, "queries") or {}).items()
        },
        "branches": {
            name: {
                "retrieved": [passage.id for passage in branch.retrieved],
                "kept": [passage.id for passage in branch.kept],
                "ids_read": branch.ids_read,
                **_spans(branch.kept),
            }
            for name, branch in branches.items()
        },
        "knowledge": [passage.id for passage in knowledge],
        **_spans(knowledge),
        "retrieval": retrieval_figures(passages, question),
        "loss": loss(correct, _titles(retrieved), _titles(knowledge), question.evidence or (question.gold_titles,)),
        "calls": [[note.stage, note.key] for note in calls_of(notes)],
        "flags": dict.fromkeys(FLAGS, 0) | dict(_field(prediction, "flags") or _events(notes)),
        "error": None,
    }


def failed(task: Task, question: Question, error: BaseException, notes: Sequence[CallNote]) -> PredictionRow:
    """The row of a question that could not be answered: it counts as 0, and as an error."""
    return {
        **_question_fields(question),
        "answer": None,
        **dict.fromkeys(task.metrics, 0.0),
        "correct": False,
        "queries": {},
        "branches": {},
        "knowledge": [],
        "retrieval": {},
        "loss": loss(False, [], [], question.evidence or (question.gold_titles,)),
        "calls": [[note.stage, note.key] for note in calls_of(notes)],
        "flags": dict.fromkeys(FLAGS, 0) | _events(notes),
        "error": {
            "kind": error.kind if isinstance(error, ModelError | CodeFailed) else type(error).__name__,
            "stage": error.stage if isinstance(error, ModelError) else "",
            "message": _ADDRESS.sub("", words_of(error)),
        },
    }


def loss(correct: bool, retrieved: Iterable[str], knowledge: Iterable[str], evidence: Sequence[Sequence[str]]) -> Loss:
    """Where this question is lost.

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

    Where no gold is known nothing can be missing: such a question is `right` or `answered_wrong`. A method that
    retrieves nothing (direct, cot) yields `right_without_gold` and `not_retrieved` wherever gold is known.

    Args:
        correct: whether the answer is right.
        retrieved: titles that all queries retrieved together.
        knowledge: titles that the answer was read from.
        evidence: a tuple of gold titles per annotator, as in `Question`. Titles compare as in `metrics.retrieval`.

    >>> loss(False, ["Ormskerry", "Tavenby"], ["Ormskerry"], [("Ormskerry", "Tavenby")])
    'filtered_away'
    """
    gold = [titles for titles in (set(map(folded, titles)) for titles in evidence) if titles]
    read = set(map(folded, knowledge))
    kept = not gold or any(titles <= read for titles in gold)
    if correct:
        return "right" if kept else "right_without_gold"
    if kept:
        return "answered_wrong"
    found = read | set(map(folded, retrieved))
    return "filtered_away" if any(titles <= found for titles in gold) else "not_retrieved"


def retrieval_figures(passages: Mapping[str, Iterable[Passage]], question: Question) -> dict[str, dict[str, float]]:
    """Recall, precision, S-precision of each set of passages; nothing where gold is unknown."""
    measured = {name: retrieval(_titles(found), question) for name, found in passages.items()}
    return {
        name: {key: round(value, DIGITS) for key, value in scores._asdict().items()}
        for name, scores in measured.items()
        if scores is not None
    }


def misscored(row: PredictionRow, metrics: Iterable[str]) -> str:
    """The first of `metrics` by which a row's answer does not score what the row says; empty where all agree.

    Metrics that are no names of `blendfilter.metrics` (a user's own) are taken as they stand.
    """
    answer = None if row["error"] else row["answer"]
    for name in metrics:
        if name in METRICS:
            right = 0.0 if answer is None else round(metric(name)(answer, row["golden_answers"]), DIGITS)
            if row.get(name) != right:
                return name
    return ""


# --- repeats --------------------------------------------------------------------------------------------------------


def repeats_in(settings: Mapping[str, Any]) -> int:
    """How many times each question is answered."""
    return int(settings.get("repeats", 1))


def repeat_of(row: Mapping[str, Any]) -> int:
    """Which of the answers to its question a row is, from 1."""
    return int(row.get("repeat", 1))


def numbered(row: Mapping[str, Any], repeat: int | None) -> PredictionRow:
    """The row with the number of its repeat behind its id, or without one.

    >>> numbered({"id": "q7", "answer": "yes"}, 2)
    {'id': 'q7', 'repeat': 2, 'answer': 'yes'}
    """
    rest = {name: value for name, value in row.items() if name not in ("id", "repeat")}
    return {"id": row["id"], **({} if repeat is None else {"repeat": repeat}), **rest}


def key_of(row: Mapping[str, Any]) -> str:
    """An answer's name: its question's id, and which repeat it is where there are several.

    >>> key_of({"id": "q7"}), key_of({"id": "q7", "repeat": 2})
    ('q7', 'q7#2')
    """
    return f"{row['id']}#{row['repeat']}" if "repeat" in row else str(row["id"])


def how_far(rows: Iterable[Mapping[str, Any]], answers: int, repeats: int = 1) -> str:
    """How many of the run's `answers` there are; one that ended in an error does not count.

    >>> how_far([{"error": None}, {"error": {"kind": "timeout"}}], 4)
    '1 of 4 questions are answered, 1 ended in an error'
    """
    errors = [row["error"] is not None for row in rows]
    times = f" ({repeats} times each)" if repeats > 1 else ""
    ended = f", {sum(errors)} ended in an error" if any(errors) else ""
    return f"{errors.count(False)} of {answers} questions are answered{times}{ended}"


# --- parts of a row -------------------------------------------------------------------------------------------------


def _question_fields(question: Question) -> PredictionRow:
    return {
        "id": question.id,
        "question": question.question,
        "golden_answers": list(question.golden_answers),
        "gold_titles": list(question.gold_titles),
    }


def _spans(passages: Iterable[Passage]) -> PredictionRow:
    """Where the kept pieces lie in their passages, by passage id; nothing where all are whole."""
    spans = {
        passage.id: [[span.start, span.end] for span in passage.spans]
        for passage in passages
        if isinstance(passage, Excerpt)
    }
    return {"spans": spans} if spans else {}


def _titles(passages: Iterable[Passage]) -> list[str]:
    return [passage.title for passage in passages]


def _events(notes: Sequence[CallNote]) -> dict[str, int]:
    events = [note.event for note in notes if note.event in FLAGS]
    return {event: events.count(event) for event in events}


def _answer(prediction: Any) -> str:
    found = "answer" in prediction if isinstance(prediction, Mapping) else hasattr(prediction, "answer")
    if not found and not isinstance(prediction, str):
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
