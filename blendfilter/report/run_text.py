"""A run as text: headline, scores, retrieval per query, losses, events, and the ledger with what it does not store."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from blendfilter.evaluation.comparison import percent
from blendfilter.evaluation.ledger import LedgerEntry, money
from blendfilter.evaluation.rows import ERROR, LOSSES, MEASURES, retrieval_known
from blendfilter.evaluation.run import READS_GOLD, Run
from blendfilter.evaluation.run_status import RunStatus
from blendfilter.retrieval.base import Trim
from blendfilter.text import visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

LOSS_WORDS = {
    "not_retrieved": "gold not retrieved",
    "filtered_away": "retrieved and filtered away",
    "answered_wrong": "kept and answered wrong",
    "right": "right",
    "right_without_gold": "right without gold",
    ERROR: "ended in an error",
}
OFFLINE = (
    "The offline reader answered: this shows the pipeline, not the quality of a method or a model."
)
UPPER_BOUND = f"The filter {READS_GOLD}."
PARTIAL = "Partial: the figures are over the questions answered so far, and will change."
MEASURE_WORDS = {"s_precision": "S-precision", "ndcg": "nDCG", "mrr": "MRR"}
_VARIANT_WORDS = {"union": "all together", "kept": "kept for the answer"}
_NOTHING = ("0", "0 %", "-", "")


def report_text(run: Run, width: int = 100) -> str:
    """The report as plain text, `width` columns wide."""
    return as_text(report(run), width)


def as_text(parts: Iterable[RenderableType], width: int) -> str:
    """What a console of `width` columns shows of `parts`, without colour."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(
        file=out, width=width, color_system=None, legacy_windows=False, markup=False, emoji=False
    )
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))
    return "".join(
        f"{visible(line.rstrip())}\n" for line in out.getvalue().removesuffix("\n").split("\n")
    )


def report(run: Run) -> list[RenderableType]:
    """The report's parts, for a rich console; of an unfinished run, what is known so far, and that it is that."""
    status = RunStatus(run)
    parts: list[RenderableType] = [
        status.headline,
        *[f"FAILED: {status.failures}."] * bool(status.failures),
    ]
    parts += [OFFLINE] * run.offline + [UPPER_BOUND] * run.reads_gold
    parts += [
        *(f"Warning: {line}" for line in status.warnings),
        *unsearched(status),
        *status.outdated,
    ]
    gone = ", ".join(
        f"${gone:.4f} of ${limit:g}" if name == "dollars" else f"{gone:,} of {limit:,} {name}"
        for name, (gone, limit) in status.limits.items()
    )
    parts += [f"Limits: {gone} are gone"] * bool(gone)
    if status.rows:
        parts += [] if run.finished else [PARTIAL]
        parts += _figures(status)
    elif status.paid:
        parts.append(f"{status.paid[0].upper()}{status.paid[1:]}")
    return parts


def unsearched(status: RunStatus) -> Iterator[str]:
    """The searches for a question alone that the index failed in."""
    for name, count in Counter(
        name for row in status.rows for name in row.get("unsearched", ())
    ).items():
        rows = f"{count} of {len(status.rows)} {'answers' if status.repeats > 1 else 'questions'}"
        yield f"Not searched: {variant_words(name)} of {rows}, for the index failed; the same command searches again."


def trimmed(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
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
            f"filled in {came:,} ({unjudged:,} never judged)\n"
        )


def variant_words(name: str) -> str:
    """What a retrieval variant is called in reports; a query keeps its own name.

    >>> variant_words("q@15"), variant_words("union"), variant_words("q_ex")
    ('q alone, 15 passages', 'all together', 'q_ex')
    """
    deeper = re.fullmatch(r"q@(\d+)", name)
    return f"q alone, {deeper[1]} passages" if deeper else _VARIANT_WORDS.get(name, name)


def measures_in(retrieval: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The figures of retrieval that a run has; one that an earlier version made has fewer."""
    return [
        measure for measure in MEASURES if any(measure in scores for scores in retrieval.values())
    ]


def _figures(status: RunStatus) -> Iterator[RenderableType]:
    metrics, several = status.metrics, status.repeats > 1
    if not status.failed:
        yield _scores(status)
    if metrics["retrieval"]:
        yield _retrieval(status)
    yield _losses(status, "answers" if several else "questions")
    events = ", ".join(f"{name} {count}" for name, count in metrics["flags"].items() if count)
    yield f"Events: {events or 'none'}\n"
    yield from trimmed(status.whole_rows())
    yield ledger_table(
        status.entries, len(status.rows), "an answer" if several else "a question", status.paid
    )
    if metrics["flags"]["errors"]:
        yield _errors(status)


def sheet(title: str, *columns: str) -> Any:
    """An empty table for a console: the first column to the left, the others to the right."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=title,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        pad_edge=False,
    )
    for number, name in enumerate(columns):
        words = map(len, name.split())  # a word is never cut, however narrow the terminal
        table.add_column(
            name,
            justify="right" if number else "left",
            min_width=max(words, default=0),
            overflow="fold",
        )
    return table


def _scores(status: RunStatus) -> Any:
    metrics, several = status.metrics, status.repeats > 1
    over = f"{metrics['n']} questions" + (f", {status.repeats} answers each" if several else "")
    table = sheet(
        f"Scores over {over}, in %",
        "metric",
        "value",
        "95 % interval",
        *["between repeats"] * several,
    )
    scores = dict(metrics["metrics"])
    for found in status.rescored:
        scores[found.metric + f" (judge errors: {found.errors})" * bool(found.errors)] = vars(found)
    for name, score in scores.items():
        between = [percent(score.get("between_repeats")) or "-"] * several
        table.add_row(
            name,
            percent(score["value"]),
            f"{percent(score['low'])} to {percent(score['high'])}",
            *between,
        )
    return table


def _retrieval(status: RunStatus) -> Any:
    measures = measures_in(status.metrics["retrieval"])
    table = sheet(
        "Gold titles, in %", "query", *(MEASURE_WORDS.get(measure, measure) for measure in measures)
    )
    every = sum(map(retrieval_known, status.rows))
    partly = []
    for name, scores in status.metrics["retrieval"].items():
        table.add_row(variant_words(name), *(percent(scores.get(measure)) for measure in measures))
        if scores.get("n", every) < every:
            partly.append(f"{variant_words(name)} {scores['n']}")
    captions = [without_errors(status)]
    captions += [f"over the questions that have it: {', '.join(partly)}"] * bool(partly)
    table.caption = "; ".join(filter(None, captions))
    return table


def without_errors(status: RunStatus) -> str:
    """What the figures of retrieval leave out, where answers ended in an error; else empty."""
    errors, of = status.metrics["flags"]["errors"], "answers" if status.repeats > 1 else "questions"
    return f"without {errors} of {len(status.rows)} {of}, which ended in an error" if errors else ""


def _losses(status: RunStatus, counted: str) -> Any:
    rows, n = status.rows, len(status.rows)
    known = sum(bool(row["gold_titles"]) for row in rows)
    if not known:
        return "No gold titles are known: where questions are lost cannot be told.\n"
    table = sheet("Where questions are lost", "", counted, "%")
    if known < n:
        table.caption = f"gold titles are known for {known} of {n}; the others count as kept"
    for name in LOSSES:
        count = sum(row["loss"] == name for row in rows)
        if count or name != ERROR:
            table.add_row(LOSS_WORDS[name], str(count), percent(count / n))
    return table


def ledger_table(entries: Mapping[str, LedgerEntry], n: int, unit: str, paid: str = "") -> Any:
    """A line a stage; what no stage has (hits, cached tokens, retries, a price) has no column."""
    lines = [
        (stage, {"model": asked, **_account(entry, n, unit)})
        for stage, asked, entry in ledger_lines(entries)
    ]
    columns = [
        name
        for name in lines[0][1]
        if any(cells[name] not in _NOTHING for _, cells in lines) or name == "calls"
    ]
    table = sheet("Ledger", "stage", *columns)
    table.columns[0].no_wrap = table.collapse_padding = True
    if "model" in columns:
        table.columns[1].justify = "left"
    for stage, cells in lines:
        table.add_row(stage, *(cells[name] for name in columns))
    table.caption = "; ".join(ledger_notes(entries["total"], paid))
    return _FittingTable(table)


def ledger_lines(entries: Mapping[str, LedgerEntry]) -> Iterator[tuple[str, str, LedgerEntry]]:
    """The lines of a ledger: name, models, entry; where several models answered, one for each below the total."""
    several = len(entries["total"].models) > 1
    for stage, entry in entries.items():
        yield stage, ", ".join(entry.models) if several and stage != "total" else "", entry
    for model, entry in entries["total"].models.items() if several else ():
        yield f"of {model}", "", entry


class _FittingTable:
    """A table that stands closer where the terminal is too narrow for it: a column that is cut off tells nothing."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        if self.table.__rich_measure__(console, options).minimum > options.max_width:
            self.table.padding = 0
            for column in self.table.columns:  # rich would break a figure before it folds a heading
                column.width = max(map(len, [*column.header.split(), *column.cells]))
        yield self.table


def ledger_notes(total: LedgerEntry, paid: str = "") -> Iterator[str]:
    """How to read a ledger, what is unknown in it, and what was paid beyond it."""
    yield "what the run used, reused calls included; equal calls count once"
    if total.hits:
        yield "hits: uses of a call beyond its first, and calls of other runs"
    if total.untold:
        yield f"no tokens told: {total.untold:,} of {total.calls:,} calls"
    if total.unpriced and total.cost is not None:
        yield f"no price: {total.unpriced:,} of {total.calls:,} calls"
    if fewer := total.cost_by.get("price"):
        yield f"cost: at the price of {fewer:,} calls whose server stated less"
    if total.disbelieved:
        yield f"figures that cannot be true, taken as not told: of {total.disbelieved:,} of {total.calls:,} calls"
    if paid:
        yield paid


def _account(entry: LedgerEntry, n: int, unit: str) -> dict[str, str]:
    return {
        "calls": str(entry.calls),
        unit: f"{entry.calls / n:.2f}",
        "hits": str(entry.hits),
        "tokens in": tokens(entry.tokens_in, entry),
        "cached": share(entry),
        "tokens out": tokens(entry.tokens_out, entry),
        "retries": str(entry.retries),
        "s a call": f"{entry.seconds / entry.calls:.3f}" if entry.calls else "-",
        "cost": cost(entry),
    }


def tokens(number: int, entry: LedgerEntry) -> str:
    """A sum of tokens; ``≥`` where some calls' are unknown, ``-`` where all are."""
    words = (
        f"{number:,}"
        if number < 1_000_000
        else f"{number / 1e6:,.{2 if number < 10_000_000 else 1}f}M"
    )
    return words if not entry.untold else "-" if entry.untold == entry.calls else f"≥ {words}"


def share(entry: LedgerEntry) -> str:
    """The share of prompt tokens that the server had cached.

    >>> share(LedgerEntry(tokens_cached=30, cached_of=120)), share(LedgerEntry(cached_of=9)), share(LedgerEntry())
    ('25 %', '0 %', '-')
    """
    return "-" if entry.cached_share is None else f"{100 * entry.cached_share:.0f} %"


def cost(entry: LedgerEntry) -> str:
    """Dollars; unknown where any call's price is.

    >>> cost(LedgerEntry(cost=1323.18)), cost(LedgerEntry(cost=0.0912)), cost(LedgerEntry(cost=0.5, unpriced=1))
    ('$1,323.18', '$0.0912', '-')
    """
    return money(entry.whole_cost)


def _errors(status: RunStatus) -> Any:
    rows = [row for row in status.rows if row["error"]]
    title = f"Errors ({status.metrics['flags']['errors']}); the same command again asks these questions again"
    table = sheet(title, "question", "stage", "")
    for row in rows[:10]:
        table.add_row(
            row["id"],
            row["error"]["stage"] or "-",
            f"{row['error']['kind']}: {row['error']['message']}",
        )
    if len(rows) > 10:
        table.add_row("…", "", f"and {len(rows) - 10} more")
    return table
