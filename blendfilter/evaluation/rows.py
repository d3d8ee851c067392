"""The rows of a run, one an answer (`predictions.jsonl`), and the figures that they give together (`metrics.json`).

Nothing here depends on clock, address or order of arrival: a run killed and resumed, or replayed, gives the same bytes.

Where every question is answered several times, a row has the number of its repeat. A score is then the mean over
questions of the mean over their answers, its interval is drawn at both levels, and `between_repeats` says how far whole
runs lie apart; flags, losses and the ledger count every answer.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from operator import itemgetter
from statistics import fmean, stdev
from sys import intern
from types import MappingProxyType
from typing import Any, Literal, get_args

import dspy

from blendfilter.context import CallNote, calls_of
from blendfilter.errors import BadArgument, CodeFailed, ModelError, words_of
from blendfilter.evaluation.provenance import Provenance
from blendfilter.metrics import METRICS, Retrieval, metric, retrieval
from blendfilter.modules.base import FLAGS, RARE_FLAGS, union
from blendfilter.records import Excerpt, Passage, Question, WrittenText, cell
from blendfilter.retrieval.base import trim_of
from blendfilter.retrieval.callables import as_passage
from blendfilter.secrets import hidden
from blendfilter.statistics import interval
from blendfilter.tasks.base import Task
from blendfilter.text import folded, shortened
from blendfilter.version import VERSION

Record = Mapping[str, Any]
"""An object of JSON as it is read: a row, a record of a journal, settings."""
Json = dict[str, Any]
"""An object of JSON that is being made; `PredictionRow`: a line of `predictions.jsonl`."""
PredictionRow = Json
Loss = Literal[
    "not_retrieved",
    "filtered_away",
    "answered_wrong",
    "right",
    "right_without_gold",
    "error",
    "unknown",
]
ERROR: Loss = "error"
UNKNOWN: Loss = "unknown"
LOSSES: tuple[Loss, ...] = get_args(Loss)
"""Where a question can be lost, in the order of the pipeline; `metrics.json` and every report keep it.

An `error` is lost to none of the others: what it would have retrieved is unknown. `unknown` is a question whose program
shows neither what it searched nor what it read; it is written where there is one.
"""
UNION = "union"
"""The name of all queries' passages together."""
KEPT = "kept"
"""The name of what an answer was read from."""
VARIANTS = ("q", "q_ex", "q_in", UNION, KEPT)
"""The queries of BlendFilter, all together, and what was kept: for these a question without one counts as 0."""
QUESTION_ALONE = "q@"
"""How the name of a search for the question alone begins, at another number of passages (`q@15`)."""
MEASURES = Retrieval._fields
"""Figures of retrieval. Rows that an earlier version wrote have fewer, and so has their `metrics.json`."""
DIGITS = 6
"""Decimals of every stored figure."""
NEAR = 2e-6
"""How far figures may lie apart that were rounded so."""
MESSAGE = 300
"""Characters of an error's message in a line about a whole run."""
_NO_FIGURE = frozenset(
    {
        "queries",
        "branches",
        "knowledge",
        "spans",
        "written",
        "calls",
        "answer",
        "golden_answers",
        "question",
    }
)
_SAME_NAME = (
    "k",
    "without",
    "filter",
    "filter_union",
    "drop_conclusion",
    "hops",
    "style",
    "iterations",
    "samples",
    "temperature",
)
_IN_SIGNATURE = {name: name for name in _SAME_NAME} | {
    "n": "filter_n",
    "by": "filter_by",
    "tokens": "filter_tokens",
}
"""Arguments of a method that are in its signature where they are set, as the command line calls them; never a path."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Where an object lay in memory, in its repr."""


def answered(
    task: Task,
    question: Question,
    prediction: Any,
    notes: Sequence[CallNote],
    alone: Mapping[str, Iterable[Passage] | None] = MappingProxyType({}),
    own: Mapping[str, float] = MappingProxyType({}),
    *,
    observed: Callable[[], Provenance] | None = None,
    field: str = "answer",
) -> PredictionRow:
    """The row of an answered question, by whatever module: `field` is required, all else is read where it is there.

    `alone` are passages that the method never saw, beside the union; None in their place: that search failed. `own` are
    the scores by the user's own metrics. `observed` gives what the run saw, for a program that does not say what it
    searched and read.

    Raises:
        BadArgument: there is no `field`, or knowledge that cannot be read as passages.
    """
    given = as_prediction(prediction, field)
    answer = answer_of(given, field)
    origin = _origin(given, observed)
    branches, read = origin.branches, origin.kept
    knowledge = _joined(read)
    written = any(isinstance(each, WrittenText) for each in read)
    retrieved = union(branch.retrieved for branch in branches.values()) or knowledge
    passages: dict[str, Iterable[Passage]] = {
        name: branch.retrieved for name, branch in branches.items()
    }
    if branches or knowledge:
        beside = {name: found for name, found in alone.items() if found is not None}
        passages |= {UNION: retrieved, **beside}
        if origin.whole and (knowledge or not written):
            passages[KEPT] = knowledge
    figures = {
        name: {measure: round(value, DIGITS) for measure, value in measured._asdict().items()}
        for name, found in passages.items()
        if (measured := retrieval(_titles(found), question)) is not None  # gold is known
    }
    unsearched = [name for name, found in alone.items() if found is None and UNION in figures]
    # written text may stand on whatever was retrieved
    known = [*retrieved, *knowledge] if written else knowledge
    scored = {**task.score(answer, question), **own}
    scores = {name: round(scored[name], DIGITS) for name in task.metrics}
    correct = scores[task.metrics[0]] == 1.0
    return {
        **_question_fields(question),
        "answer": answer,
        **scores,
        "correct": correct,
        "queries": {
            name: query if isinstance(query, str) else json.dumps(query, ensure_ascii=False)
            for name, query in origin.queries.items()
        },
        "branches": {name: _branch(branch) for name, branch in branches.items()},
        "knowledge": [passage.id for passage in knowledge],
        **_spans(knowledge),
        **_written(read),
        "retrieval": figures,
        "loss": loss(
            correct,
            _titles(origin.retrieved),
            _titles(known),
            question.evidence or (question.gold_titles,),
            whole=origin.whole,
        ),
        "calls": [[note.stage, note.key] for note in calls_of(notes)],
        "flags": dict.fromkeys(FLAGS, 0) | (mapping_in(given, "flags") or _events(notes)),
        "error": None,
        **({"unsearched": unsearched} if unsearched else {}),
    }


def failed(
    task: Task, question: Question, error: BaseException, notes: Sequence[CallNote]
) -> PredictionRow:
    """The row of a question that ended in an error: it counts as 0, is a loss of its own, and has no retrieval."""
    return {
        **_question_fields(question),
        "answer": None,
        **dict.fromkeys(task.metrics, 0.0),
        "correct": False,
        "queries": {},
        "branches": {},
        "knowledge": [],
        "retrieval": {},
        "loss": ERROR,
        "calls": [[note.stage, note.key] for note in calls_of(notes)],
        "flags": dict.fromkeys(FLAGS, 0) | _events(notes),
        "error": {
            "kind": error.kind
            if isinstance(error, ModelError | CodeFailed)
            else type(error).__name__,
            "stage": error.stage if isinstance(error, ModelError) else "",
            "message": _ADDRESS.sub("", hidden(words_of(error))),
        },
    }


def loss(
    correct: bool,
    retrieved: Iterable[str],
    knowledge: Iterable[str],
    evidence: Sequence[Sequence[str]],
    *,
    whole: bool = True,
) -> Loss:
    """Where an answered question is lost: titles retrieved, titles of the knowledge, gold titles of each annotator.

    Gold is *kept* (*retrieved*) where **all** titles of at least one annotator are among the knowledge (among what was
    retrieved); what is in the knowledge counts as retrieved, for a method that does not report its searches.

    ======== ============ ==================================
    answer   gold is      the question is
    ======== ============ ==================================
    right    kept         right
    right    not kept     right_without_gold
    wrong    kept         answered_wrong
    wrong    retrieved    filtered_away
    wrong    neither      not_retrieved
    ======== ============ ==================================

    Where the knowledge is not `whole`, gold that is not in it may have been read all the same: that is `unknown`.

    Where no gold is known nothing can be missing: such a question is `right` or `answered_wrong`. Where a filter's
    model wrote text that stands in no passage, `answered` counts what was retrieved as kept.

    >>> loss(False, ["Ormskerry", "Tavenby"], ["Ormskerry"], [("Ormskerry", "Tavenby")])
    'filtered_away'
    """
    gold = [titles for titles in (set(map(folded, titles)) for titles in evidence) if titles]
    read = set(map(folded, knowledge))
    kept = not gold or any(titles <= read for titles in gold)
    if not kept and not whole:
        return UNKNOWN
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
        row.get(name)
        != (
            0.0
            if answer is None
            else round(metric(name)(answer, row["golden_answers"]), DIGITS)
        )
        for name in metrics
        if name in METRICS
    )


def is_whole(row: PredictionRow, metrics: Iterable[str]) -> bool:
    """Whether a later session keeps a row: no error, no search that failed, and the scores are its answer's."""
    return row["error"] is None and not row.get("unsearched") and not misscored(row, metrics)


# --- repeats --------------------------------------------------------------------------------------------------------


def repeats_in(settings: Record) -> int:
    """How many times each question is answered."""
    return int(settings.get("repeats", 1))


def filter_lm_of(settings: Record) -> str:
    """The name of the model that answers the filter's calls, where a run's settings name one of its own; else empty."""
    return str(((settings.get("lm") or {}).get("filter") or {}).get("name", ""))


def corpus_words(searched: Record) -> str:
    """A corpus by its name and size, of a run's setting `searched`; empty where nothing is known of it.

    >>> corpus_words({"corpus": "pooled", "passages": 1402})
    'pooled, 1,402 passages'
    """
    size = searched.get("passages")
    return ", ".join(filter(None, (searched.get("corpus"), size and f"{size:,} passages")))


def searched_in(settings: Record) -> list[Record]:
    """What is known of the corpora of a run's `retrievers`, an empty entry for each in an old run."""
    return settings.get("searched") or [{} for _ in settings["retrievers"]]


def repeat_of(row: Record) -> int:
    """Which of the answers to its question a row is, from 1."""
    return int(row.get("repeat", 1))


def key_of(row: Record) -> str:
    """An answer's name: its question's id, and which repeat it is where there are several.

    >>> key_of({"id": "q7"}), key_of({"id": "q7", "repeat": 2})
    ('q7', 'q7#2')
    """
    return f"{row['id']}#{row['repeat']}" if "repeat" in row else str(row["id"])


def how_far(rows: Iterable[Record], answers: int, repeats: int = 1) -> str:
    """How many of the run's `answers` there are; one that ended in an error does not count.

    >>> how_far([{"error": None}, {"error": {"kind": "timeout"}}], 4)
    '1 of 4 questions are answered, 1 ended in an error'
    """
    errors = [row["error"] is not None for row in rows]
    times = f" ({repeats} times each)" if repeats > 1 else ""
    ended = f", {sum(errors)} ended in an error" if any(errors) else ""
    return f"{errors.count(False)} of {answers} questions are answered{times}{ended}"


# --- errors ---------------------------------------------------------------------------------------------------------


def failures(rows: Iterable[Record], repeats: int = 1) -> str:
    """How many answers ended in an error, of which kinds, and the first of them, in one line; empty for none.

    >>> late = {"kind": "timeout", "stage": "ids", "message": ""}
    >>> failures([{"id": "q1", "error": None}, {"id": "q2", "error": late}])
    "1 of 2 questions ended in an error and counts as 0: 1 timeout (first 'q2', at ids)"
    """
    rows = [*rows]
    ended = [row for row in rows if row["error"] is not None]
    if not ended:
        return ""
    kinds = Counter(row["error"]["kind"] for row in ended)
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    of = "answers" if repeats > 1 else "questions"
    counting = "counts" if len(ended) == 1 else "count"
    first = f"first '{key_of(ended[0])}'{_place_and_words(ended[0]['error'])}"
    return f"{len(ended)} of {len(rows)} {of} ended in an error and {counting} as 0: {counts} ({first})"


def shared_failure(rows: Iterable[Record], repeats: int = 1) -> tuple[str, str] | None:
    """The kind and the words of the error that every answer ended in; None where any was given, or kinds differ."""
    errors = [row["error"] for row in rows]
    if None in errors or len({error["kind"] for error in errors}) != 1:
        return None
    of = f"all {len(errors)} {'answers' if repeats > 1 else 'questions'} failed the same way"
    of = "the only question failed" if len(errors) == 1 else of
    kind: str = errors[0]["kind"]
    return kind, f"{of}: {kind}{_place_and_words(errors[0])}"


def _place_and_words(error: Record) -> str:
    """Where an error arose and its message, for the end of a line.

    >>> _place_and_words({"kind": "timeout", "stage": "ids", "message": "no reply"})
    ', at ids: no reply'
    """
    at, words = error["stage"], shortened(error["message"], MESSAGE)
    return f"{', at ' if at else ''}{at}{': ' if words else ''}{words}"


# --- parts of a row -------------------------------------------------------------------------------------------------


def _question_fields(question: Question) -> PredictionRow:
    return {
        "id": question.id,
        "question": question.question,
        "golden_answers": list(question.golden_answers),
        "gold_titles": list(question.gold_titles),
    }


def _branch(branch: Any) -> PredictionRow:
    kept, trim = _joined(branch.kept), trim_of(branch.retrieved)
    return {
        "retrieved": [passage.id for passage in branch.retrieved],
        "kept": [passage.id for passage in kept],
        "ids_read": branch.ids_read,
        **_spans(kept),
        **({"trim": trim.model_dump(mode="json")} if trim else {}),
    }


def _spans(passages: Iterable[Passage]) -> PredictionRow:
    """Where the kept pieces lie in their passages, by passage id; nothing where all are whole."""
    spans = {
        passage.id: [[span.start, span.end] for span in passage.spans]
        for passage in passages
        if isinstance(passage, Excerpt)
    }
    return {"spans": spans} if spans else {}


def _joined(passages: Iterable[Passage]) -> list[Passage]:
    """The passages, the excerpts of each one as one, without written text."""
    joined: list[Passage] = []
    places: dict[str, int] = {}
    for passage in passages:
        if isinstance(passage, Excerpt):
            place = places.setdefault(passage.id, len(joined))
            if place < len(joined):
                joined[place] = joined[place].joined(passage)  # type: ignore[attr-defined]
                continue
        if not isinstance(passage, WrittenText):
            joined.append(passage)
    return joined


def _written(passages: Sequence[Passage]) -> PredictionRow:
    """What the answerer read, in order, where ids and spans do not say it: text, or a passage's id and its pieces."""
    ids = [passage.id for passage in passages if isinstance(passage, Excerpt)]
    if len({*ids}) == len(ids) and not any(
        isinstance(passage, WrittenText) for passage in passages
    ):
        return {}
    return {
        "written": [
            passage.text
            if isinstance(passage, WrittenText)
            else [
                passage.id,
                [[span.start, span.end] for span in getattr(passage, "spans", ())],
            ]
            for passage in passages
        ]
    }


def _titles(passages: Iterable[Passage]) -> list[str]:
    return [passage.title for passage in passages]


def _events(notes: Sequence[CallNote]) -> dict[str, int]:
    return Counter(note.event for note in notes if note.event in (*FLAGS, *RARE_FLAGS))


def as_prediction(given: Any, field: str = "answer") -> Any:
    """What a method returned, as a prediction; it may give the bare answer, which is its `field`."""
    if isinstance(given, str | int | float | list | tuple):
        return dspy.Prediction(**{field: given})
    return dspy.Prediction(**given) if isinstance(given, Mapping) else given


def answer_of(prediction: Any, field: str) -> str:
    """The answer of a prediction as text. Raises: BadArgument where it has no such field."""
    if not hasattr(prediction, field):
        what = type(prediction).__name__
        fields = isinstance(prediction, dspy.Prediction) and ", ".join(prediction.keys())
        has = f" (it has: {fields}; answer= names the one to score)" if fields else ""
        raise BadArgument(
            f"the method returned a {what} without '{field}'{has}: return dspy.Prediction({field}=…)"
        )
    answer = cell(getattr(prediction, field))
    if isinstance(answer, list | tuple):  # scored as a reader would say them
        answer = ", ".join(map(str, answer))
    if isinstance(answer, bool):  # as golden answers are read
        return "yes" if answer else "no"
    return "" if answer is None else str(answer)


def _origin(given: Any, observed: Callable[[], Provenance] | None) -> Provenance:
    """Where an answer comes from, as its prediction says; where that does not say it, as the run `observed` it."""
    branches, queries = mapping_in(given, "branches"), mapping_in(given, "queries")
    stated = getattr(given, "knowledge", None)
    if not isinstance(
        stated, list | tuple
    ):  # what a program's model knows, in a field of that name
        stated = None
    kept = [as_passage(item) for item in stated or []]
    if observed is None or isinstance(getattr(given, "branches", None), Mapping):
        last = getattr(given, "answered_from", None) or branches
        return Provenance(
            queries, branches, union(branches[name].retrieved for name in last), kept
        )
    seen = observed()
    seen = seen._replace(queries={**seen.queries, **queries})
    return seen if stated is None else seen._replace(kept=kept, whole=True)


def mapping_in(prediction: Any, name: str) -> Json:
    """The mapping in that field of a prediction; empty where there is none, as in a program with a list of queries."""
    value = getattr(prediction, name, None)
    return dict(value) if isinstance(value, Mapping) else {}


# --- metrics.json -----------------------------------------------------------------------------------------------------


def slim(row: Record, without: Container[str] = _NO_FIGURE) -> PredictionRow:
    """A row without what no figure is made of, its names shared with every other row's: a long run has thousands."""
    return {intern(name): _shared(value) for name, value in row.items() if name not in without}


def _shared(value: Any) -> Any:
    if isinstance(value, dict):
        return {intern(name): _shared(part) for name, part in value.items()}
    # one that may recur, such as a loss
    return intern(value) if isinstance(value, str) and len(value) < 24 else value


def summarise(
    rows: Sequence[PredictionRow],
    settings: Record,
    ledger: Mapping[str, Record],
    *,
    made_by: Iterable[str] = (VERSION,),
) -> Json:
    """The whole of `metrics.json`; `ledger` as it is stored there, `made_by` the versions of this package."""
    repeats = repeats_in(settings)
    metrics = {name: score_of(rows, name, settings["seed"]) for name in settings["metrics"]}
    counts = figures_of(rows, [])
    return {
        "task": settings["task"],
        "method": settings["method"]["name"],
        "n": counts["n"],
        **({"repeats": repeats} if repeats > 1 else {}),
        "metrics": metrics,
        **({"searched": settings["searched"]} if "searched" in settings else {}),
        "retrieval": counts["retrieval"],
        "flags": counts["flags"],
        "losses": counts["losses"],
        "ledger": ledger,
        "signature": signature(
            settings, metrics, counts["n"], counts["flags"]["errors"], made_by
        ),
    }


def with_errors_apart(metrics: Record, rows: Iterable[PredictionRow]) -> Json:
    """`metrics.json` of a version that counted an error as a question whose gold was not found, counted as now."""
    if not (errors := metrics["flags"].get("errors")):
        return {**metrics, "losses": {**metrics["losses"], "error": 0}}
    counts = figures_of([*map(slim, rows)], [])
    n = f" | n:{metrics['n']}"
    named = metrics["signature"].replace(n, f"{n}|errors:{errors}", 1)
    retrieval, losses = counts["retrieval"], counts["losses"]
    return {**metrics, "retrieval": retrieval, "losses": losses, "signature": named}


def figures_of(rows: Sequence[PredictionRow], metrics: Iterable[str]) -> Json:
    """The figures of `metrics.json` that are counts and means over the rows: those without interval and journal."""
    flags = Counter[str]()
    for row in rows:
        flags.update(row["flags"])
    return {
        "n": len({row["id"] for row in rows}),
        "metrics": {
            name: {"value": round(fmean(map(fmean, _grouped(rows, name))), DIGITS)}
            for name in metrics
        },
        "retrieval": _retrieval(rows),
        "flags": {
            **{
                name: flags[name]
                for name in (*FLAGS, *RARE_FLAGS)
                if name in FLAGS or flags[name]
            },
            "errors": sum(row["error"] is not None for row in rows),
        },
        "losses": {
            name: count
            for name in LOSSES
            if (count := sum(row["loss"] == name for row in rows)) or name != UNKNOWN
        },
    }


def signature(
    settings: Record,
    metrics: Record,
    n: int,
    errors: int = 0,
    made_by: Iterable[str] = (VERSION,),
) -> str:
    """The headline with its recipe: what was measured, on what, with what; and how many answers are errors, if any."""
    name, score = next(iter(metrics.items()))
    half = (score["high"] - score["low"]) / 2
    method, data = settings["method"], settings["data"]
    repeats, arguments = repeats_in(settings), method["arguments"]
    retrievers = (
        "+".join(f"{index['kind']}/{index['fingerprint']}" for index in settings["retrievers"])
        or "none"
    )
    named = {_IN_SIGNATURE[key]: arguments[key] for key in arguments if key in _IN_SIGNATURE}
    lm_seed = (settings["lm"].get("parameters") or {}).get("seed")
    recipe = {
        "n": n,
        "errors": errors,
        "repeats": repeats if repeats > 1 else None,
        "data": f"{data['source']}/{data['fingerprint']}",
        "method": method["name"],
        "lm": settings["lm"]["name"],
        "filter-lm": filter_lm_of(settings),
        "retriever": retrievers,
        "corpus": "+".join(filter(None, map(corpus_words, settings.get("searched", ())))),
        **named,
        "prompts": method.get("prompts"),
        "program": method["program"],
        "shipped": "+".join(method.get("shipped", ())),
        **{
            f"{name}-training-seed": str(seed)
            for name, seed in settings.get("seeds", {}).items()
        },
        "lm-seed": "" if lm_seed is None else str(lm_seed),
    }
    parts = [f"{key}:{value}" for key, value in recipe.items() if value]
    parts += [
        f"resampling-seed:{settings['seed']}",
        "+".join(f"v{version}" for version in made_by),
    ]
    return f"{settings['task']} {name.upper()} {100 * score['value']:.1f} ± {100 * half:.1f} | {'|'.join(parts)}"


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
    rows: Sequence[PredictionRow],
    name: str,
    by: Callable[[PredictionRow], Any] = itemgetter("id"),
) -> list[list[float]]:
    groups: dict[Any, list[float]] = {}
    for row in rows:
        groups.setdefault(by(row), []).append(row[name])
    return list(groups.values())


def _retrieval(rows: Sequence[PredictionRow]) -> dict[str, dict[str, float]]:
    """Means over the answers whose retrieval is known.

    Beyond the five fixed names, a query that only some questions have (a third hop) is the mean over those, with `n`;
    so is `kept` where written text is all that was read (`kept_known`).
    """
    known = [row for row in rows if retrieval_known(row)]
    found: dict[str, dict[str, float]] = {}
    for name in sorted({name for row in known for name in row["retrieval"]}, key=_place):
        fixed = name in VARIANTS
        figures = [row["retrieval"][name] for row in known if name in row["retrieval"]]
        n = len(known) if fixed else len(figures)
        if name == KEPT:
            n = sum(map(kept_known, known))
        found[name] = {
            measure: round(math.fsum(figure[measure] for figure in figures) / n, DIGITS)
            for measure in MEASURES
            if all(measure in figure for figure in figures)
        }
        if not fixed or n < len(known):
            found[name]["n"] = n
    return found


def retrieval_known(row: Record) -> bool:
    """Whether an answer counts in the figures of retrieval: its gold is known, and so is what became of it."""
    unknown = row["error"] is not None or (row["loss"] == UNKNOWN and not row["retrieval"])
    return not unknown and bool(row["gold_titles"] or row["retrieval"])


def of_retrieval(measure: str) -> bool:
    """Whether it names a figure of retrieval, by query and name: `q_ex.recall`."""
    query, _, figure = measure.rpartition(".")
    return bool(query) and figure in MEASURES


def kept_known(row: Record) -> bool:
    """Whether it is known what an answer was read from: False where that is text that stands in no passage alone."""
    return KEPT in row["retrieval"] or UNION not in row["retrieval"]


def _place(name: str) -> tuple[float, str]:
    """In the order of the pipeline, the question alone beside the union, whatever else behind."""
    if name.startswith(QUESTION_ALONE):
        return VARIANTS.index("union") + 0.5, name
    return (VARIANTS.index(name), "") if name in VARIANTS else (len(VARIANTS), name)
