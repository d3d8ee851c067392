"""`blendfilter report`: what a run shows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blendfilter.cli.app import app
from blendfilter.cli.console import show


@app.command(name="report")
def report_command(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
) -> None:
    """Show a run: scores with intervals, retrieval per query, losses, events, the ledger.

    Example: blendfilter report runs/blendfilter
    """
    from blendfilter.evaluation.report import report
    from blendfilter.evaluation.run import Run

    show(*report(Run(run)))
