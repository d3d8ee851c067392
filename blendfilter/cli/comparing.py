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
    against: Annotated[str | None, typer.Option(help="Another of them as the baseline.")] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="Which metrics, rescored ones too; all of the task's by default.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON, in fractions of 1.")] = False,
) -> None:
    """Hold runs against the first: paired bootstrap intervals, exact McNemar, Holm's correction.

    Example: blendfilter compare runs/direct-retrieval runs/cot-retrieval runs/blendfilter
    """
    from json import dumps

    from blendfilter.evaluation.comparison import compare as compare_runs

    compared = compare_runs(*runs, metrics=metric or None, seed=seed, against=against)
    if json:
        show(dumps(compared.as_dict(), ensure_ascii=False, indent=2))
    else:
        show(compared)
