"""The rows of a run, one an answer (`predictions.jsonl`), and the figures that they give together (`metrics.json`).

Nothing here depends on clock, address or order of arrival: a run killed and resumed, or replayed, gives the same bytes.

Where every question is answered several times, a row has the number of its repeat. A score is then the mean over
questions of the mean over their answers, its interval is drawn at both levels, and `between_repeats` says how far whole
runs lie apart; flags, losses and the ledger count every answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from operator import itemgetter
from statistics import fmean, stdev
from sys import intern
from types import MappingProxyType
from typing import Any, Literal, get_args

import blendfilter
from blendfilter.context import CallNote, calls_of
from blendfilter.errors import BadArgument, CodeFailed, ModelError, words_of
from blendfilter.evaluation.statistics import interval
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
VARIANTS = ("q", "q_ex", "q_in", UNION, "kept")
"""The queries of BlendFilter, all together, and what was kept: for these a question without one counts as 0."""
QUESTION_ALONE = "q@"
"""How the name of a search for the question alone begins, at another number of passages (`q@15`)."""
MEASURES = ("recall", "precision", "s_precision")
DIGITS = 6
"""Decimals of every stored figure."""
NEAR = 2e-6
"""How far figures may lie apart that were rounded so."""
_NO_FIGURE = frozenset({"queries", "branches", "knowledge", "spans", "calls", "answer", "golden_answers", "question"})
_SAME_NAME = ("k", "without", "filter", "filter_union", "hops", "style", "iterations", "samples", "temperature")
_IN_SIGNATURE = {name: name for name in _SAME_NAME} | {"n": "filter_n", "by": "filter_by"}
"""Arguments of a method that are in its signature where they are set, as the command line calls them; never a path."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Where an object lay in memory, in its repr."""


def answered(
    task: Task,
    question: Question,
    prediction: Any,
    notes: Sequence[CallNote],
    alone: Mapping[str, Iterable[Passage] | None] = MappingProxyType({}),
) -> PredictionRow:
    """The row of an answered question, by whatever module: `answer` is required, all else is read where it is there.

    `alone` are passages that the method never saw, beside the union; None in their place: that search failed.

    Raises:
        BadArgument: there is no `answer`, or knowledge that cannot be read as passages.
    """
    there = "answer" in prediction if isinstance(prediction, Mapping) else hasattr(prediction, "answer")
    if not there and not isinstance(prediction, str):
        what = type(prediction).__name__
        raise BadArgument(f"the method returned a {what} without an answer: return dspy.Prediction(answer=…)")
    answer = "" if (found := field_of(prediction, "answer")) is None else str(found)
    branches: Mapping[str, Any] = field_of(prediction, "branches") or {}
    knowledge = [as_passage(item) for item in field_of(prediction, "knowledge") or []]
    retrieved = union(branch.retrieved for branch in branches.values()) if branches else knowledge
    passages: dict[str, Iterable[Passage]] = {name: branch.retrieved for name, branch in branches.items()}
    if branches or knowledge:
        beside = {name: found for name, found in alone.items() if found is not None}
        passages |= {UNION: retrieved, **beside, "kept": knowledge}
    figures = {
        name: {measure: round(value, DIGITS) for measure, value in measured._asdict().items()}
        for name, found in passages.items()
        if (measured := retrieval(_titles(found), question)) is not None  # gold is known
    }
    unsearched = [name for name, found in alone.items() if found is None and UNION in figures]
    scores = {name: round(value, DIGITS) for name, value in task.score(answer, question).items()}
    correct = scores[task.metrics[0]] == 1.0
    return {
        **_question_fields(question),
        "answer": answer,
        **scores,
        "correct": correct,
        "queries": {
            name: query if isinstance(query, str) else json.dumps(query, ensure_ascii=False)
            for name, query in dict(field_of(prediction, "queries") or {}).items()
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
        "retrieval": figures,
        "loss": loss(correct, _titles(retrieved), _titles(knowledge), question.evidence or (question.gold_titles,)),
        "calls": [[note.stage, note.key] for note in calls_of(notes)],
        "flags": dict.fromkeys(FLAGS, 0) | dict(field_of(prediction, "flags") or _events(notes)),
        "error": None,
        **({"unsearched": unsearched} if unsearched else {}),
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
    """Where this question is lost: titles retrieved, titles of the knowledge, and the gold titles of each annotator.

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

    Where no gold is known nothing can be missing: such a question is `right` or `answered_wrong`.

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


def misscored(row: PredictionRow, metrics: Iterable[str]) -> bool:
    """Whether a row's answer does not score what the row says, by metrics of ours; a user's own stand as they are."""
    answer = None if row["error"] else row["answer"]
    return any(
        row.get(name) != (0.0 if answer is None else round(metric(name)(answer, row["golden_answers"]), DIGITS))
        for name in metrics
        if name in METRICS
    )


# --- repeats --------------------------------------------------------------------------------------------------------


def repeats_in(settings: Mapping[str, Any]) -> int:
    """How many times each question is answered."""
    return int(settings.get("repeats", 1))


def repeat_of(row: Mapping[str, Any]) -> int:
    """Which of the answers to its question a row is, from 1."""
    return int(row.get("repeat", 1))


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


def field_of(prediction: Any, name: str) -> Any:
    if isinstance(prediction, Mapping):
        return prediction.get(name)
    if isinstance(prediction, str):  # a module may give the bare answer
        return prediction if name == "answer" else None
    return getattr(prediction, name, None)


# --- metrics.json -----------------------------------------------------------------------------------------------------


def slim(row: Mapping[str, Any], without: Container[str] = _NO_FIGURE) -> PredictionRow:
    """A row without what no figure is made of, its names shared with every other row's: a long run has thousands."""
    return {intern(name): _shared(value) for name, value in row.items() if name not in without}


def _shared(value: Any) -> Any:
    if isinstance(value, dict):
        return {intern(name): _shared(part) for name, part in value.items()}
    return intern(value) if isinstance(value, str) and len(value) < 24 else value  # one that may recur, such as a loss


def summarise(
    rows: Sequence[PredictionRow], settings: Mapping[str, Any], ledger: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The whole of `metrics.json`; `ledger` as it is stored there."""
    repeats = repeats_in(settings)
    metrics = {name: score_of(rows, name, settings["seed"]) for name in settings["metrics"]}
    counts = counted(rows, [])
    return {
        "task": settings["task"],
        "method": settings["method"]["name"],
        "n": counts["n"],
        **({"repeats": repeats} if repeats > 1 else {}),
        "metrics": metrics,
        "retrieval": counts["retrieval"],
        "flags": counts["flags"],
        "losses": counts["losses"],
        "ledger": ledger,
        "signature": signature(settings, metrics, counts["n"]),
    }


def counted(rows: Sequence[PredictionRow], metrics: Iterable[str]) -> dict[str, Any]:
    """The figures of `metrics.json` that are counts and means over the rows: those without interval and journal."""
    return {
        "n": len({row["id"] for row in rows}),
        "metrics": {name: {"value": round(fmean(map(fmean, _grouped(rows, name))), DIGITS)} for name in metrics},
        "retrieval": _retrieval(rows),
        "flags": {name: sum(row["flags"].get(name, 0) for row in rows) for name in FLAGS}
        | {"errors": sum(row["error"] is not None for row in rows)},
        "losses": {name: sum(row["loss"] == name for row in rows) for name in LOSSES},
    }


def signature(settings: Mapping[str, Any], metrics: Mapping[str, Any], n: int) -> str:
    """The headline with its recipe: what was measured, on what, with what."""
    name, score = next(iter(metrics.items()))
    half = (score["high"] - score["low"]) / 2
    method, data = settings["method"], settings["data"]
    repeats, arguments = repeats_in(settings), method["arguments"]
    retrievers = "+".join(f"{index['kind']}/{index['fingerprint']}" for index in settings["retrievers"]) or "none"
    recipe = [
        f"n:{n}",
        *[f"repeats:{repeats}"] * (repeats > 1),
        f"data:{data['source']}/{data['fingerprint']}",
        f"method:{method['name']}",
        f"lm:{settings['lm']['name']}",
        f"retriever:{retrievers}",
        *(f"{_IN_SIGNATURE[key]}:{value}" for key, value in arguments.items() if key in _IN_SIGNATURE and value),
        f"program:{method['program']}",
        f"seed:{settings['seed']}",
        f"v{blendfilter.__version__}",
    ]
    return f"{settings['task']} {name.upper()} {100 * score['value']:.1f} ± {100 * half:.1f} | {'|'.join(recipe)}"


def score_of(rows: Sequence[PredictionRow], name: str, seed: int) -> dict[str, float]:
    """A metric's entry: value, low, high; with several answers a question how far whole repeats lie apart too."""
    by_question = _grouped(rows, name)
    answers = {len(scores) for scores in by_question}
    # In a run under way some questions have more answers than others: their means are all there is to draw from.
    scores = by_question if len(answers) == 1 else [[fmean(scores)] for scores in by_question]
    entry = interval(scores, seed=seed)._asdict()
    if max(answers) > 1:
        entry["between_repeats"] = stdev(map(fmean, _grouped(rows, name, by=repeat_of)))
    return {key: round(value, DIGITS) for key, value in entry.items()}


def _grouped(
    rows: Sequence[PredictionRow], name: str, by: Callable[[PredictionRow], Any] = itemgetter("id")
) -> list[list[float]]:
    groups: dict[Any, list[float]] = {}
    for row in rows:
        groups.setdefault(by(row), []).append(row[name])
    return list(groups.values())


def _retrieval(rows: Sequence[PredictionRow]) -> dict[str, dict[str, float]]:
    """Means over the questions whose gold is known; an error's question counts as 0, for it retrieved nothing.

    Beyond the five fixed names, a query that only some questions have (a third hop) is the mean over those, with `n`;
    `q@15`, which stands beside the union, counts an error as the union does.
    """
    known = [row for row in rows if row["gold_titles"] or row["retrieval"]]
    found: dict[str, dict[str, float]] = {}
    for name in sorted({name for row in rows for name in row["retrieval"]}, key=_place):
        alone, fixed = name.startswith(QUESTION_ALONE), name in VARIANTS
        having = [row for row in known if fixed or name in row["retrieval"] or (alone and row["error"] is not None)]
        found[name] = {
            measure: round(fmean(row["retrieval"].get(name, {}).get(measure, 0.0) for row in having), DIGITS)
            for measure in MEASURES
        }
        if not fixed:
            found[name]["n"] = len(having)
    return found


def _place(name: str) -> tuple[float, str]:
    """In the order of the pipeline, the question alone beside the union, whatever else behind."""
    if name.startswith(QUESTION_ALONE):
        return VARIANTS.index("union") + 0.5, name
    return (VARIANTS.index(name), "") if name in VARIANTS else (len(VARIANTS), name)
