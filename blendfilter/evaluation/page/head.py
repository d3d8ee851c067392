"""The top of a report: headline, scores, methods side by side, losses, retrieval, ledger, events, ready to be shown.

In: what is known of a run and of those beside it. Out: a `Head` of words and figures; the template only lays it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blendfilter.evaluation.comparison import CORRECT, Comparison, compare
from blendfilter.evaluation.ledger import LedgerEntry, tokens_of
from blendfilter.evaluation.page.pictures import LOSS_WORDS, interval, loss_bar, swatch
from blendfilter.evaluation.rows import LOSSES
from blendfilter.evaluation.run import labelled
from blendfilter.evaluation.run_status import RunStatus
from blendfilter.report.run_text import (
    OFFLINE,
    PARTIAL,
    UPPER_BOUND,
    cost,
    ledger_notes,
    share,
    tokens,
    unsearched,
    variant_words,
)

_MEASURES = ("recall", "precision", "s_precision")


@dataclass(frozen=True)
class Score:
    """One metric of one run, in %."""

    name: str
    value: str
    low: str
    high: str
    half: str
    picture: str
    note: str = ""


@dataclass(frozen=True)
class Side:
    """One run beside the others: its score, what it is from the first, what a question costs.

    `p` tests the difference: exact McNemar where the metric is right or wrong, as in every other table of this package.
    """

    label: str
    method: str
    lm: str
    score: Score
    calls: str
    tokens: str
    difference: str = ""
    won_lost: str = ""
    p: str = ""
    p_holm: str = ""


@dataclass(frozen=True)
class Losses:
    """One run's bar, and its parts as (key, words, swatch, count, %)."""

    label: str
    picture: str
    parts: Sequence[tuple[str, str, str, int, str]]
    note: str = ""


@dataclass(frozen=True)
class Head:
    """All that stands above the questions."""

    name: str
    title: str
    signature: str
    recipe: Sequence[tuple[str, str]]
    notes: Sequence[str]
    scores: Sequence[Score] = ()
    sides: Sequence[Side] = ()
    side_notes: Sequence[str] = ()
    losses: Sequence[Losses] = ()
    retrieval: Sequence[tuple[str, str, Sequence[str], str]] = ()
    ledger: Sequence[Sequence[str]] = ()
    ledger_notes: Sequence[str] = ()
    events: Sequence[tuple[str, int]] = field(default=())


def head_of(known: RunStatus, others: Sequence[RunStatus]) -> Head:
    """The head of a run's report. Raises as `compare` does where others do not fit beside it."""
    metrics = known.metrics
    named = labelled([each.run for each in (known, *others)])
    every = dict(zip(named, (known, *others), strict=True))
    compared = compare(*named.values()) if others else None
    task, method = known.run.settings["task"], known.run.settings["method"]["name"]
    if not metrics:
        return Head(known.run.name, f"{task} · {method}", "", _recipe(known), list(_notes(known)))
    return Head(
        name=known.run.name,
        title=f"{task} · {method}",
        signature=metrics["signature"] if known.run.finished else "",
        recipe=_recipe(known),
        notes=list(_notes(known)),
        scores=list(_scores(known)),
        sides=[_side(label, each, compared) for label, each in every.items()] if compared else [],
        side_notes=compared.notes if compared else [],
        losses=[_losses(label, each) for label, each in every.items()],
        retrieval=list(_retrieval(known)),
        ledger=list(_ledger(known.entries, len(known.rows))),
        ledger_notes=list(ledger_notes(known.entries["total"], known.paid)),
        events=[(name.replace("_", " "), count) for name, count in metrics["flags"].items() if count],
    )


def _notes(known: RunStatus) -> Iterator[str]:
    if not known.run.finished:
        yield f"{known.unfinished[0].upper()}{known.unfinished[1:]}."
        yield PARTIAL if known.rows else "Nothing is answered yet."
        if known.paid and not known.rows:
            yield f"{known.paid[0].upper()}{known.paid[1:]}."
    if known.run.offline:
        yield OFFLINE
    if known.run.reads_gold:
        yield UPPER_BOUND
    yield from known.warnings
    yield from unsearched(known)
    yield from known.outdated


def _recipe(known: RunStatus) -> list[tuple[str, str]]:
    """What the figure was made with, as names and values; the signature's own parts where there is one."""
    settings = known.run.settings
    if known.run.finished:
        parts = known.metrics["signature"].partition(" | ")[2].split("|")
        return [(name, value) for name, colon, value in (part.partition(":") for part in parts) if name or value]
    data, lm = settings["data"], settings["lm"]["name"]
    return [("data", data["source"]), ("method", settings["method"]["name"]), ("lm", lm)]


def _scores(known: RunStatus) -> Iterator[Score]:
    for name, score in known.metrics["metrics"].items():
        spread = f", {percent(score['between_repeats'])} between them" if "between_repeats" in score else ""
        yield _score(name, score, f"{known.repeats} repeats{spread}" if known.repeats > 1 else "")
    for told in known.rescored:
        yield _score(told.metric, {"value": told.value, "low": told.low, "high": told.high}, "rescored")


def _score(name: str, score: Mapping[str, Any], note: str = "") -> Score:
    value, low, high = score["value"], score["low"], score["high"]
    shown = name.upper() if len(name) <= 3 else name
    half = percent((high - low) / 2)
    return Score(shown, percent(value), percent(low), percent(high), half, interval(value, low, high), note)


def _side(label: str, known: RunStatus, compared: Comparison) -> Side:
    metrics = known.metrics
    name, score = next(iter(metrics["metrics"].items()))
    rows = {row.measure: row for row in compared.rows if row.run == label}
    total, n = metrics["ledger"]["total"], len(known.rows)
    row, correct = rows.get(name), rows.get(CORRECT, rows.get(name))
    tested = correct if row is not None and correct is not None and correct.difference == row.difference else row
    several = len({each.run for each in compared.rows}) > 2
    settings = known.run.settings
    return Side(
        label=label,
        method=settings["method"]["name"],
        lm=settings["lm"]["name"],
        score=_score(name, score),
        calls=f"{total['calls'] / n:.1f}",
        tokens="-" if (spent := tokens_of(total)) is None else f"{spent / n:,.0f}",
        difference=_difference(row) if row is not None and row.difference is not None else "",
        won_lost=f"{correct.won} / {correct.lost}" if correct is not None and correct.won is not None else "",
        p=chance(tested.p) if tested is not None and tested.p is not None else "",
        p_holm=chance(tested.p_holm) if several and tested is not None and tested.p_holm is not None else "",
    )


def _difference(row: Any) -> str:
    return f"{100 * row.difference:+.1f} [{100 * row.low:+.1f}, {100 * row.high:+.1f}]"


def _losses(label: str, known: RunStatus) -> Losses:
    losses, rows = known.metrics["losses"], len(known.rows)
    gold = sum(bool(row.get("gold_titles")) for row in known.rows)
    notes = [f"Every one of the {rows} answers counts."] if known.repeats > 1 else []
    told: Sequence[str] = LOSSES
    words = LOSS_WORDS
    if not gold:
        notes.append("No gold titles are known: where questions are lost cannot be told, only which are right.")
        told, words = ("answered_wrong", "right"), LOSS_WORDS | {"answered_wrong": "wrong"}
    elif gold < rows:
        notes.append(f"Gold titles are known for {gold} of {rows}; the others count as kept.")
    parts = [(name, words[name], swatch(name), losses[name], percent(losses[name] / rows)) for name in told]
    return Losses(label, loss_bar(losses), parts, " ".join(notes))


def _retrieval(known: RunStatus) -> Iterator[tuple[str, str, Sequence[str], str]]:
    """(name, words, the three measures in %, over how many questions where not over all whose gold is known)."""
    every = sum(bool(row["gold_titles"] or row["retrieval"]) for row in known.rows)
    for name, scores in known.metrics["retrieval"].items():
        shown = [percent(scores[measure]) for measure in _MEASURES]
        yield name, variant_words(name), shown, str(scores["n"]) if scores.get("n", every) < every else ""


def _ledger(entries: Mapping[str, LedgerEntry], n: int) -> Iterator[Sequence[str]]:
    for stage, entry in entries.items():
        yield (
            stage,
            f"{entry.calls:,}",
            f"{entry.calls / n:.2f}",
            f"{entry.hits:,}",
            tokens(entry.tokens_in, entry),
            f"{entry.tokens_cached:,} ({share(entry)})" if entry.cached_of else "-",
            tokens(entry.tokens_out, entry),
            cost(entry),
            f"{entry.seconds / entry.calls:.3f}" if entry.calls else "-",
            f"{entry.retries:,}",
        )


def percent(value: float) -> str:
    """A fraction in %, one decimal."""
    return f"{100 * value:.1f}"


def chance(p: float) -> str:
    """A p-value as people read it."""
    return "< .0001" if p < 0.0001 else f"{p:.4f}".replace("0.", ".", 1)
