"""A run as text: headline, retrieval per query, losses, flags, the ledger with what is not stored in it."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blendfilter.evaluation.known import Known
from blendfilter.evaluation.ledger import Entry
from blendfilter.evaluation.losses import LOSSES
from blendfilter.evaluation.planned import money
from blendfilter.evaluation.run import READS_GOLD
from blendfilter.report.pictures import LOSS_WORDS
from blendfilter.text import visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

    from blendfilter.evaluation.run import Run

OFFLINE = "The offline reader answered: this shows the pipeline, not the quality of a method or a model."
UPPER_BOUND = f"The filter {READS_GOLD}."
PARTIAL = "Partial: the figures are over the questions answered so far, and will change."
_VARIANT_WORDS = {"union": "all together", "kept": "kept for the answer"}


def report_text(run: Run, width: int = 100) -> str:
    """The report as plain text, `width` columns wide."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, legacy_windows=False, markup=False, emoji=False)
    for part in report(run):
        console.print(part, soft_wrap=isinstance(part, str))
    return "\n".join(visible(line.rstrip()) for line in out.getvalue().removesuffix("\n").split("\n")) + "\n"


def report(run: Run) -> list[RenderableType]:
    """The report's parts, for a rich console; of an unfinished run, what is known so far, and that it is that."""
    known = Known(run)
    parts: list[RenderableType] = [known.headline]
    if run.offline:
        parts.append(OFFLINE)
    if run.reads_gold:
        parts.append(UPPER_BOUND)
    parts += [*(f"Warning: {line}" for line in known.warnings), *unsearched(known), *known.outdated, *_limits(known)]
    if known.rows:
        parts += [] if run.finished else [PARTIAL]
        parts += _figures(known)
    elif known.paid:
        parts.append(f"{known.paid[0].upper()}{known.paid[1:]}")
    return parts


def unsearched(known: Known) -> Iterator[str]:
    """The searches for a question alone that the index failed in."""
    for name, count in Counter(name for row in known.rows for name in row.get("unsearched", ())).items():
        rows = f"{count} of {len(known.rows)} {'answers' if known.repeats > 1 else 'questions'}"
        yield f"Not searched: {variant_words(name)} of {rows}, for the index failed; the same command searches again."


def _limits(known: Known) -> Iterator[str]:
    """What is gone of the run's limits, where it had some."""
    told = (
        f"${gone:.4f} of ${limit:g}" if name == "dollars" else f"{gone:,} of {limit:,} {name}"
        for name, (gone, limit) in known.limits.items()
    )
    if line := ", ".join(told):
        yield f"Limits: {line} are gone"


def variant_words(name: str) -> str:
    """What a retrieval variant is called in reports; a query keeps its own name.

    >>> variant_words("q@15"), variant_words("union"), variant_words("q_ex")
    ('q alone, 15 passages', 'all together', 'q_ex')
    """
    deeper = re.fullmatch(r"q@(\d+)", name)
    return f"q alone, {deeper[1]} passages" if deeper else _VARIANT_WORDS.get(name, name)


def _figures(known: Known) -> Iterator[RenderableType]:
    metrics, rows = known.metrics, known.rows
    yield _scores(known)
    if metrics["retrieval"]:
        yield _retrieval(known)
    gold = sum(bool(row["gold_titles"]) for row in rows)
    yield _losses(rows, gold, "answers" if known.repeats > 1 else "questions")
    yield _flags(metrics["flags"])
    yield _ledger(known.entries, len(rows), "an answer" if known.repeats > 1 else "a question", known.paid)
    if metrics["flags"]["errors"]:
        yield _errors(known)


def _table(title: str, *columns: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left", pad_edge=False)
    for number, name in enumerate(columns):
        words = map(len, name.split())  # a word is never cut, however narrow the terminal
        table.add_column(name, justify="right" if number else "left", min_width=max(words, default=0), overflow="fold")
    return table


def _scores(known: Known) -> Any:
    metrics, several = known.metrics, known.repeats > 1
    over = f"{metrics['n']} questions" + (f", {known.repeats} answers each" if several else "")
    columns = ("metric", "value", "95 % interval", *(["between repeats"] if several else []))
    table = _table(f"Scores over {over}, in %", *columns)
    scores = dict(metrics["metrics"]) | {told.metric: vars(told) for told in known.rescored}
    for name, score in scores.items():
        spread = score.get("between_repeats")
        told = [_percent(spread) if spread is not None else "-"] if several else []
        table.add_row(name, _percent(score["value"]), f"{_percent(score['low'])} to {_percent(score['high'])}", *told)
    return table


def _retrieval(known: Known) -> Any:
    table = _table("Gold titles, in %", "query", "recall", "precision", "S-precision")
    every = sum(bool(row["gold_titles"] or row.get("retrieval")) for row in known.rows)
    partly = []
    for name, scores in known.metrics["retrieval"].items():
        measures = (_percent(scores[measure]) for measure in ("recall", "precision", "s_precision"))
        table.add_row(variant_words(name), *measures)
        if scores.get("n", every) < every:
            partly.append(f"{variant_words(name)} {scores['n']}")
    if partly:
        table.caption = f"over the questions that have the query: {', '.join(partly)}"
    return table


def _losses(rows: Sequence[Mapping[str, Any]], known: int, counted: str) -> Any:
    """The five, and what ended in an error as a sixth: it was not searched for, so nothing can be said of its gold."""
    n = len(rows)
    if not known:
        return "No gold titles are known: where questions are lost cannot be told.\n"
    table = _table("Where questions are lost", "", counted, "%")
    if known < n:
        table.caption = f"gold titles are known for {known} of {n}; the others count as kept"
    told = {LOSS_WORDS[name]: sum(row["loss"] == name and not row["error"] for row in rows) for name in LOSSES}
    if failed := sum(bool(row["error"]) for row in rows):
        told["ended in an error"] = failed
    for words, count in told.items():
        table.add_row(words, str(count), _percent(count / n))
    return table


def _flags(flags: Mapping[str, int]) -> str:
    told = ", ".join(f"{name} {count}" for name, count in flags.items() if count)
    return f"Events: {told or 'none'}\n"


def _ledger(entries: Mapping[str, Entry], n: int, each: str, paid: str = "") -> Any:
    """A line a stage; what no stage has (hits, cached tokens, retries, a price) has no column."""
    told = [(stage, _account(entry, n, each)) for stage, entry in entries.items()]
    columns = [name for name in told[0][1] if any(cells[name] not in _NOTHING for _, cells in told) or name == "calls"]
    table = _table("Ledger", "stage", *columns)
    table.columns[0].no_wrap = table.collapse_padding = True
    for stage, cells in told:
        table.add_row(stage, *(cells[name] for name in columns))
    table.caption = "; ".join(ledger_notes(entries["total"], paid))
    return _Fitting(table)


class _Fitting:
    """A table that stands closer where the terminal is too narrow for it: a column that is cut off tells nothing."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if self.table.__rich_measure__(console, options).minimum > options.max_width:
            self.table.padding = 0
            for column in self.table.columns:  # rich would break a figure before it folds a heading
                column.width = max(map(len, [*column.header.split(), *column.cells]))
        yield self.table


def ledger_notes(total: Entry, paid: str = "") -> Iterator[str]:
    """How to read a ledger, what nobody told in it, and what was paid beyond it."""
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


_NOTHING = ("0", "0 %", "-")


def _account(entry: Entry, n: int, each: str) -> dict[str, str]:
    return {
        "calls": str(entry.calls),
        each: f"{entry.calls / n:.2f}",
        "hits": str(entry.hits),
        "tokens in": tokens(entry.tokens_in, entry),
        "cached": share(entry),
        "tokens out": tokens(entry.tokens_out, entry),
        "retries": str(entry.retries),
        "s a call": f"{entry.seconds / entry.calls:.3f}" if entry.calls else "-",
        "cost": cost(entry),
    }


def tokens(number: int, entry: Entry) -> str:
    """A sum of tokens; where a call told none, what is known of it, and where none did, that it is unknown."""
    told = f"{number:,}" if number < 1_000_000 else f"{number / 1e6:,.{2 if number < 10_000_000 else 1}f}M"
    return told if not entry.untold else "-" if entry.untold == entry.calls else f"≥ {told}"


def share(entry: Entry) -> str:
    """The share of prompt tokens that the server had cached.

    >>> share(Entry(tokens_cached=30, cached_of=120)), share(Entry(tokens_cached=0, cached_of=9)), share(Entry())
    ('25 %', '0 %', '-')
    """
    return "-" if entry.cached_share is None else f"{100 * entry.cached_share:.0f} %"


def cost(entry: Entry) -> str:
    """Dollars; unknown where any call's price is.

    >>> cost(Entry(cost=1323.18)), cost(Entry(cost=0.0912)), cost(Entry(cost=0.5, unpriced=1))
    ('$1,323.18', '$0.0912', '-')
    """
    return money(entry.whole_cost)


def _errors(known: Known) -> Any:
    failed = [row for row in known.rows if row["error"]]
    title = f"Errors ({known.metrics['flags']['errors']}); the same command again asks these questions again"
    table = _table(title, "question", "stage", "")
    for row in failed[:10]:
        table.add_row(row["id"], row["error"]["stage"] or "-", f"{row['error']['kind']}: {row['error']['message']}")
    if len(failed) > 10:
        table.add_row("…", "", f"and {len(failed) - 10} more")
    return table


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
