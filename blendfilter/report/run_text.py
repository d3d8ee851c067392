"""A run as text: headline, scores, retrieval per query, losses, events, and the ledger with what it does not store."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from blendfilter.evaluation.comparison import percent
from blendfilter.evaluation.ledger import LedgerEntry, money
from blendfilter.evaluation.rows import (
    ERROR,
    LOSSES,
    MEASURES,
    UNKNOWN,
    PredictionRow,
    retrieval_known,
)
from blendfilter.evaluation.run import READS_GOLD, Run
from blendfilter.evaluation.run_status import RunStatus
from blendfilter.retrieval.base import Trim
from blendfilter.table import Table
from blendfilter.text import visible

LOSS_WORDS = {
    "not_retrieved": "gold not retrieved",
    "filtered_away": "retrieved and filtered away",
    "answered_wrong": "kept and answered wrong",
    "right": "right",
    "right_without_gold": "right without gold",
    ERROR: "ended in an error",
    UNKNOWN: "unknown: the program shows no passages",
}
OFFLINE = "The offline reader answered: this shows the pipeline, not the quality of a method or a model."
UPPER_BOUND = f"The filter {READS_GOLD}."
PARTIAL = "Partial: the figures are over the questions answered so far, and will change."
_MEASURE_WORDS = {"s_precision": "S-precision", "ndcg": "nDCG", "mrr": "MRR"}
_VARIANT_WORDS = {"union": "all together", "kept": "kept for the answer"}
_NOTHING = ("0", "0 %", "-", "")
_LISTED = 10
"""Errors that are listed by question."""


def report_text(run: Run, width: int | None = 100) -> str:
    """The report as plain text; its tables fold where `width` is too short for them.

    Of an unfinished run it shows what is known so far, and that it is that.
    """
    parts = (
        f"\n{part.text(width)}" if isinstance(part, Table) else visible(part)
        for part in _parts(RunStatus(run))
    )
    return "\n".join(parts)


def _parts(status: RunStatus) -> Iterator[str | Table]:
    run = status.run
    yield status.headline
    if status.failures:
        yield f"FAILED: {status.failures}."
    yield from remarks(status)
    limits = [
        f"${spent:.4f} of ${limit:g}" if name == "dollars" else f"{spent:,} of {limit:,} {name}"
        for name, (spent, limit) in status.limits.items()
    ]
    if limits:
        yield f"Limits: {', '.join(limits)} are gone"
    if status.rows:
        if not run.finished:
            yield PARTIAL
        yield from _figures(status)
    elif status.paid:
        yield f"{status.paid[0].upper()}{status.paid[1:]}"


def _figures(status: RunStatus) -> Iterator[str | Table]:
    metrics, several = status.metrics, status.repeats > 1
    if not status.failed:
        yield _scores(status)
    if metrics["retrieval"]:
        yield retrieval_table(status)
    yield _losses(status)
    events = ", ".join(f"{name} {count}" for name, count in metrics["flags"].items() if count)
    yield f"\nEvents: {events or 'none'}"
    yield from trimmed(status.whole_rows())
    unit = "an answer" if several else "a question"
    yield ledger_table(status.entries, len(status.rows), unit, status.paid)
    if metrics["flags"]["errors"]:
        yield _errors(status)


def remarks(status: RunStatus) -> Iterator[str]:
    """What a reader of its figures must know, finished or not."""
    if status.run.offline:
        yield OFFLINE
    if status.run.reads_gold:
        yield UPPER_BOUND
    yield from (f"Warning: {line}" for line in status.warnings)
    # searches for a question alone that the index failed in
    failed = Counter(name for row in status.rows for name in row.get("unsearched", ()))
    for name, count in failed.items():
        of = f"{count} of {len(status.rows)} {'answers' if status.repeats > 1 else 'questions'}"
        yield f"Not searched: {variant_words(name)} of {of}, for the index failed; the same command searches again."
    yield from status.outdated


def trimmed(rows: Iterable[PredictionRow]) -> Iterator[str]:
    """What a trimmed index changed in the searches of these answers."""
    searches, trims = 0, list[Trim]()
    for branch in (branch for row in rows for branch in row["branches"].values()):
        searches += 1
        if branch.get("trim"):
            trims.append(Trim.model_validate(branch["trim"]))
    if trims:
        went = Counter(bool(kept) for trim in trims for kept in trim.dropped.values())
        came, unjudged = (
            sum(len(getattr(trim, side)) for trim in trims) for side in ("refilled", "unjudged")
        )
        yield (
            f"Trimmed index: {len(trims):,} of {searches:,} searches changed; dropped {went.total():,} passages "
            f"({went[False]:,} by the question's own verdict, {went[True]:,} beside an accepted one), "
            f"filled in {came:,} ({unjudged:,} never judged)"
        )


def heading(metric: str) -> str:
    """A metric as tables and plots are headed: EM, F1, accuracy."""
    return metric.upper() if len(metric) <= 3 else metric


def variant_words(name: str) -> str:
    """What a retrieval variant is called in reports; a query keeps its own name.

    >>> variant_words("q@15"), variant_words("union"), variant_words("q_ex")
    ('q alone, 15 passages', 'all together', 'q_ex')
    """
    deeper = re.fullmatch(r"q@(\d+)", name)
    return f"q alone, {deeper[1]} passages" if deeper else _VARIANT_WORDS.get(name, name)


def _scores(status: RunStatus) -> Table:
    metrics, several = status.metrics, status.repeats > 1
    over = f"{metrics['n']} questions" + (f", {status.repeats} answers each" if several else "")
    scores = dict(metrics["metrics"])
    for found in status.rescored:
        errors = f" (judge errors: {found.errors})" if found.errors else ""
        scores[found.metric + errors] = vars(found)
    rows = [
        [
            name,
            percent(score["value"]),
            f"{percent(score['low'])} to {percent(score['high'])}",
            percent(score.get("between_repeats")),
        ]
        for name, score in scores.items()
    ]
    header = ["metric", "value", "95 % interval", "between repeats"]
    return Table(header, rows, f"Scores over {over}, in %").without_empty()


def retrieval_table(status: RunStatus) -> Table:
    """Figures of retrieval by query, and what they leave out; a run of an earlier version has fewer."""
    retrieval = status.metrics["retrieval"]
    every = sum(map(retrieval_known, status.rows))
    rows, partly = [], []
    for name, scores in retrieval.items():
        rows.append(
            [variant_words(name), *(percent(scores.get(measure)) for measure in MEASURES)]
        )
        if scores.get("n", every) < every:
            partly.append(f"{variant_words(name)} {scores['n']}")
    notes = []
    if errors := status.metrics["flags"]["errors"]:
        of = "answers" if status.repeats > 1 else "questions"
        notes.append(f"without {errors} of {len(status.rows)} {of}, which ended in an error")
    if partly:
        notes.append(f"over the questions that have it: {', '.join(partly)}")
    header = ["query", *(_MEASURE_WORDS.get(measure, measure) for measure in MEASURES)]
    return Table(header, rows, "Gold titles, in %", notes).without_empty()


def _losses(status: RunStatus) -> str | Table:
    rows, n = status.rows, len(status.rows)
    known = sum(bool(row["gold_titles"]) for row in rows)
    if not known:
        return "\nNo gold titles are known: where questions are lost cannot be told."
    notes = []
    if known < n:
        notes.append(f"gold titles are known for {known} of {n}; the others count as kept")
    counts = Counter(row["loss"] for row in rows)
    lines = [
        [LOSS_WORDS[name], str(counts[name]), percent(counts[name] / n)]
        for name in LOSSES
        if counts[name] or name not in (ERROR, UNKNOWN)
    ]
    counted = "answers" if status.repeats > 1 else "questions"
    return Table(["", counted, "%"], lines, "Where questions are lost", notes)


def ledger_table(
    entries: Mapping[str, LedgerEntry], n: int, unit: str, paid: str = ""
) -> Table:
    """A line a stage; what no stage has (hits, cached tokens, retries, a price) has no column.

    Where several models answered, each has a line below the total.
    """
    several = len(entries["total"].models) > 1
    rows = []
    for stage, entry in entries.items():
        models = ", ".join(entry.models) if several and stage != "total" else ""
        rows.append([stage, models, *_account(entry, n)])
    by_model = entries["total"].models.items() if several else ()
    rows += [[f"of {model}", "", *_account(entry, n)] for model, entry in by_model]
    header = ["stage", "model", "calls", unit, "hits", "tokens in", "cached", "tokens out"]
    header += ["retries", "s a call", "cost"]
    notes = list(ledger_notes(entries["total"], paid))
    table = Table(header, rows, "Ledger", notes, left=2, totals=1 + len(by_model))
    return table.without_empty(_NOTHING)


def _account(entry: LedgerEntry, n: int) -> list[str]:
    return [
        f"{entry.calls:,}",
        f"{entry.calls / n:.2f}",
        f"{entry.hits:,}",
        tokens(entry.tokens_in, entry),
        share(entry),
        tokens(entry.tokens_out, entry),
        f"{entry.retries:,}",
        f"{entry.seconds / entry.calls:.3f}" if entry.calls else "-",
        money(entry.whole_cost),
    ]


def ledger_notes(total: LedgerEntry, paid: str = "") -> Iterator[str]:
    """How to read a ledger, what is unknown in it, and what was paid beyond it."""
    yield "what the run used, reused calls included; equal calls count once"
    if total.hits:
        yield "hits: uses of a call beyond its first, and calls of other runs"
    if total.without_tokens:
        yield f"no tokens told: {total.without_tokens:,} of {total.calls:,} calls"
    if total.unpriced and total.cost is not None:
        yield f"no price: {total.unpriced:,} of {total.calls:,} calls"
    if fewer := total.cost_by.get("price"):
        yield f"cost: at the price of {fewer:,} calls whose server stated less"
    if total.disbelieved:
        yield f"figures that cannot be true, taken as not told: of {total.disbelieved:,} of {total.calls:,} calls"
    if paid:
        yield paid


def tokens(number: int, entry: LedgerEntry) -> str:
    """A sum of tokens; ``≥`` where some calls' are unknown, ``-`` where all are."""
    words = f"{number:,}"
    if number >= 1_000_000:
        words = f"{number / 1e6:,.{2 if number < 10_000_000 else 1}f}M"
    if not entry.without_tokens:
        return words
    return "-" if entry.without_tokens == entry.calls else f"≥ {words}"


def share(entry: LedgerEntry) -> str:
    """The share of prompt tokens that the server had cached.

    >>> share(LedgerEntry(tokens_cached=30, cached_of=120)), share(LedgerEntry(cached_of=9)), share(LedgerEntry())
    ('25 %', '0 %', '-')
    """
    return "-" if entry.cached_share is None else f"{100 * entry.cached_share:.0f} %"


def _errors(status: RunStatus) -> Table:
    rows = [
        [
            row["id"],
            row["error"]["stage"] or "-",
            f"{row['error']['kind']}: {row['error']['message']}",
        ]
        for row in status.rows
        if row["error"]
    ]
    title = f"Errors ({len(rows)}); the same command again asks these questions again"
    notes = [f"and {len(rows) - _LISTED} more"] if len(rows) > _LISTED else []
    return Table(["question", "stage", ""], rows[:_LISTED], title, notes, left=3)
