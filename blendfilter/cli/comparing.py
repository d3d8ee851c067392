"""`blendfilter compare`: runs held against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blendfilter.cli.app import app
from blendfilter.cli.console import show


@app.command()
def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Two runs or more over the same questions; the first is the baseline.")
    ],
    metric: Annotated[list[str] | None, typer.Option(help="Which metrics; all of the task's by default.")] = None,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
) -> None:
    """Hold runs against the first: paired bootstrap intervals, exact McNemar, Holm's correction.

    Example: blendfilter compare runs/direct-retrieval runs/cot-retrieval runs/blendfilter
    """
    from blendfilter.evaluation.run import compare as compare_runs

    show(compare_runs(*runs, metrics=metric or None, seed=seed))
