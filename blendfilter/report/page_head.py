"""The top of a report's page: headline, scores, methods side by side, losses, retrieval, ledger, events.

`head_of` makes them words and figures; the template `page.html` only lays them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from blendfilter.evaluation.comparison import CORRECT, Comparison, compare, percent
from blendfilter.evaluation.ledger import LedgerEntry, tokens_of
from blendfilter.evaluation.rows import LOSSES
from blendfilter.evaluation.run import labelled
from blendfilter.evaluation.run_status import RunStatus
from blendfilter.report.pictures import LOSS_WORDS, interval, loss_bar, swatch
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


def head_of(known: RunStatus, others: Sequence[RunStatus]) -> dict[str, Any]:
    """What stands above the questions, under the names that `page.html` reads; empty lists where there is nothing yet.

    Raises as `compare` does where others do not fit beside it.
    """
    run, metrics = known.run, known.metrics
    runs = dict(zip(labelled([one.run for one in (known, *others)]), (known, *others), strict=True))
    compared = compare(*(one.run for one in runs.values())) if others else None
    head: dict[str, Any] = {
        "name": run.name,
        "title": f"{run.settings['task']} · {run.settings['method']['name']}",
        "signature": metrics["signature"] if run.finished else "",
        "recipe": _recipe(known),
        "notes": list(_notes(known)),
    }
    if not metrics:
        parts = ("scores", "sides", "side_notes", "losses", "retrieval", "ledger", "ledger_notes", "events")
        return head | dict.fromkeys(parts, ())
    return head | {
        "scores": list(_scores(known)),
        "sides": [_side(label, one, compared) for label, one in runs.items()] if compared else [],
        "side_notes": compared.notes if compared else [],
        "losses": [_losses(label, one) for label, one in runs.items()],
        "retrieval": list(_retrieval(known)),
        "ledger": list(_ledger(known.entries, len(known.rows))),
        "ledger_notes": list(ledger_notes(known.entries["total"], known.paid)),
        "events": [(name.replace("_", " "), count) for name, count in metrics["flags"].items() if count],
    }


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


def _scores(known: RunStatus) -> Iterator[dict[str, str]]:
    for name, score in known.metrics["metrics"].items():
        spread = f", {percent(score['between_repeats'])} between them" if "between_repeats" in score else ""
        yield _score(name, score, f"{known.repeats} repeats{spread}" if known.repeats > 1 else "")
    for rescored in known.rescored:
        yield _score(rescored.metric, vars(rescored), "rescored")


def _score(name: str, score: Mapping[str, Any], note: str = "") -> dict[str, str]:
    """One metric of one run, in %."""
    value, low, high = score["value"], score["low"], score["high"]
    return {
        "name": name.upper() if len(name) <= 3 else name,
        "value": percent(value),
        "low": percent(low),
        "high": percent(high),
        "half": percent((high - low) / 2),
        "picture": interval(value, low, high),
        "note": note,
    }


def _side(label: str, known: RunStatus, compared: Comparison) -> dict[str, Any]:
    """One run beside the others: its score, its difference from the first run, what a question costs.

    `p` tests the difference: exact McNemar where the metric is right or wrong, as in every other table of this package.
    """
    metrics, settings = known.metrics, known.run.settings
    name, score = next(iter(metrics["metrics"].items()))
    total, n = metrics["ledger"]["total"], len(known.rows)
    side = {
        "label": label,
        "method": settings["method"]["name"],
        "lm": settings["lm"]["name"],
        "score": _score(name, score),
        "calls": f"{total['calls'] / n:.1f}",
        "tokens": "-" if (spent := tokens_of(total)) is None else f"{spent / n:,.0f}",
        **dict.fromkeys(("difference", "won_lost", "p", "p_holm"), ""),
    }
    rows = {row.measure: row for row in compared.rows if row.run == label}
    row, correct = rows.get(name), rows.get(CORRECT, rows.get(name))
    if row is None or correct is None or row.difference is None or row.low is None or row.high is None:
        return side  # the first run
    tested = correct if correct.difference == row.difference else row
    several = len({one.run for one in compared.rows}) > 2
    return side | {
        "difference": f"{100 * row.difference:+.1f} [{100 * row.low:+.1f}, {100 * row.high:+.1f}]",
        "won_lost": f"{correct.won} / {correct.lost}" if correct.won is not None else "",
        "p": chance(tested.p) if tested.p is not None else "",
        "p_holm": chance(tested.p_holm) if several and tested.p_holm is not None else "",
    }


def _losses(label: str, known: RunStatus) -> dict[str, Any]:
    """One run's bar, and its parts as (key, words, swatch, count, %)."""
    losses, rows = known.metrics["losses"], len(known.rows)
    gold = sum(bool(row.get("gold_titles")) for row in known.rows)
    notes = [f"Every one of the {rows} answers counts."] if known.repeats > 1 else []
    names: Sequence[str] = LOSSES
    words = LOSS_WORDS
    if not gold:
        notes.append("No gold titles are known: where questions are lost cannot be told, only which are right.")
        names, words = ("answered_wrong", "right"), LOSS_WORDS | {"answered_wrong": "wrong"}
    elif gold < rows:
        notes.append(f"Gold titles are known for {gold} of {rows}; the others count as kept.")
    parts = [(name, words[name], swatch(name), losses[name], percent(losses[name] / rows)) for name in names]
    return {"label": label, "picture": loss_bar(losses), "parts": parts, "note": " ".join(notes)}


def _retrieval(known: RunStatus) -> Iterator[tuple[str, str, Sequence[str], str]]:
    """(name, words, the three measures in %, over how many questions where not over all whose gold is known)."""
    every = sum(bool(row["gold_titles"] or row["retrieval"]) for row in known.rows)
    for name, scores in known.metrics["retrieval"].items():
        figures = [percent(scores[measure]) for measure in ("recall", "precision", "s_precision")]
        yield name, variant_words(name), figures, str(scores["n"]) if scores.get("n", every) < every else ""


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


def chance(p: float) -> str:
    """A p-value as people read it."""
    return "< .0001" if p < 0.0001 else f"{p:.4f}".replace("0.", ".", 1)
