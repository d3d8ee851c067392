"""`blendfilter report`: what a run shows, as text and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blendfilter.cli.app import app
from blendfilter.cli.console import say, show
from blendfilter.cli.options import PricesFile
from blendfilter.errors import BadArgument

if TYPE_CHECKING:
    from blendfilter.evaluation.run import Run


@app.command(name="report")
def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(help="A run's folder; more runs over the same questions stand beside it on the page."),
    ],
    html: Annotated[bool, typer.Option(help="Write the page, report.html, into the (first) run's folder.")] = True,
    prices: PricesFile = None,
) -> None:
    """Show a run: scores with intervals, retrieval per query, losses, events, the ledger; every question on a page.

    Example: blendfilter report runs/blendfilter runs/direct-retrieval
    """
    from blendfilter.evaluation.run import Run
    from blendfilter.lm.prices import read_prices
    from blendfilter.report.run_text import report

    own = None if prices is None else read_prices(prices)
    first, *others = opened = [Run(run) for run in runs]
    for run in opened:
        run.prices = own
    show(*report(first))
    if html:
        write_page(first, others)


def write_page(run: Run, others: list[Run] | None = None) -> None:
    """Write a run's page and say where it is. A folder that cannot be written to is a notice, not a failed command;
    so is a file of somebody else's in its place."""
    try:
        path = run.html(*(others or []))
    except (OSError, BadArgument) as error:
        say(f"no page was written: {error}")
    else:
        show(f"page: {path}")
