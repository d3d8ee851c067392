"""A run as text: headline, retrieval per query, losses, flags, the ledger with what is not stored in it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blendfilter.evaluation.ledger import Entry, ledger
from blendfilter.journal import FILE, Journal

if TYPE_CHECKING:
    from rich.console import RenderableType

    from blendfilter.evaluation.run import Run

OFFLINE = "The offline reader answered: this shows the pipeline, not the quality of a method or a model."
_LOSS_WORDS = {
    "not_retrieved": "gold not retrieved",
    "filtered_away": "retrieved and filtered away",
    "answered_wrong": "kept and answered wrong",
    "right": "right",
    "right_without_gold": "right without gold",
}
_VARIANT_WORDS = {"union": "all together", "kept": "kept for the answer"}


def report_text(run: Run, width: int = 100) -> str:
    """The report as plain text, `width` columns wide."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, legacy_windows=False, markup=False, emoji=False)
    for part in report(run):
        console.print(part, soft_wrap=isinstance(part, str))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def report(run: Run) -> list[RenderableType]:
    """The report's parts, for a rich console."""
    metrics = run.metrics
    parts: list[RenderableType] = [metrics["signature"]]
    if run.offline:
        parts.append(OFFLINE)
    parts.append(_scores(metrics))
    if metrics["retrieval"]:
        parts.append(_retrieval(metrics["retrieval"]))
    parts.append(_losses(metrics["losses"], metrics["n"], sum(bool(row["gold_titles"]) for row in run.rows)))
    parts.append(_flags(metrics["flags"]))
    with Journal(run.folder / FILE, "replay") as journal:
        parts.append(_ledger(ledger(run.rows, journal.read), metrics["n"]))
    if run.errors:
        parts.append(_errors(run))
    return parts


def _table(title: str, *columns: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left", pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left")
    return table


def _scores(metrics: Mapping[str, Any]) -> Any:
    table = _table(f"Scores over {metrics['n']} questions, in %", "metric", "value", "95 % interval")
    for name, score in metrics["metrics"].items():
        table.add_row(name, _percent(score["value"]), f"{_percent(score['low'])} to {_percent(score['high'])}")
    return table


def _retrieval(variants: Mapping[str, Mapping[str, float]]) -> Any:
    table = _table("Gold titles, in %", "query", "recall", "precision", "S-precision")
    for name, scores in variants.items():
        table.add_row(_VARIANT_WORDS.get(name, name), *(_percent(value) for value in scores.values()))
    return table


def _losses(losses: Mapping[str, int], n: int, known: int) -> Any:
    if not known:
        return "No gold titles are known: where questions are lost cannot be told.\n"
    table = _table("Where questions are lost", "", "questions", "%")
    if known < n:
        table.caption = f"gold titles are known for {known} of {n}; the others count as kept"
    for name, count in losses.items():
        table.add_row(_LOSS_WORDS[name], str(count), _percent(count / n))
    return table


def _flags(flags: Mapping[str, int]) -> str:
    told = ", ".join(f"{name} {count}" for name, count in flags.items() if count)
    return f"Events: {told or 'none'}\n"


def _ledger(entries: Mapping[str, Entry], n: int) -> Any:
    columns = ("stage", "calls", "a question", "tokens in", "cached", "tokens out", "retries", "s a call", "cost")
    table = _table("Ledger", *columns)
    for stage, entry in entries.items():
        table.add_row(
            stage,
            str(entry.calls),
            f"{entry.calls / n:.2f}",
            f"{entry.tokens_in:,}",
            f"{entry.tokens_cached:,}",
            f"{entry.tokens_out:,}",
            str(entry.attempts - entry.calls),
            f"{entry.seconds / entry.calls:.3f}" if entry.calls else "-",
            "-" if entry.unpriced or entry.cost is None else f"${entry.cost:.4f}",
        )
    table.caption = "what the run used, reused calls included; equal calls count once"
    return table


def _errors(run: Run) -> Any:
    table = _table(f"Errors ({run.errors}); the same command again asks these questions again", "question", "stage", "")
    failed = [row for row in run.rows if row["error"]]
    for row in failed[:10]:
        table.add_row(row["id"], row["error"]["stage"] or "-", f"{row['error']['kind']}: {row['error']['message']}")
    if len(failed) > 10:
        table.add_row("…", "", f"and {len(failed) - 10} more")
    return table


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
