"""`blendfilter doctor`: does this model do what the pipeline asks, and what to change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blendfilter.cli.app import State, app
from blendfilter.cli.console import say, show
from blendfilter.cli.making import connect, say_what_answers
from blendfilter.cli.options import Limits, PricesFile, WhichModel, spread
from blendfilter.errors import BadArgument


@app.command()
@spread
def doctor(
    model: WhichModel,
    limits: Limits,
    prices: PricesFile = None,
    questions: Annotated[int, typer.Option(help="How many of the sample's questions, spread over its kinds.")] = 20,
    run: Annotated[
        Path | None, typer.Option(help="The run's folder; the same command again goes on there. Else a temporary one.")
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Model calls in flight.")] = 16,
    max_bad_replies: Annotated[
        float, typer.Option(help="Share of unparseable, empty or cut replies above which it ends with exit code 1.")
    ] = 0.05,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON, in fractions of 1.")] = False,
) -> None:
    """Examine a model: sample questions through BlendFilter, its replies counted, its server probed, what to change.

    Example: blendfilter doctor --lm my-model --api-base http://localhost:8000/v1
    """
    from json import dumps

    from blendfilter.evaluation.examining.examine import examine
    from blendfilter.evaluation.examining.printing import text_of
    from blendfilter.evaluation.run_status import check_share

    State.goes_on = run is not None
    budget = limits.budget()
    if budget is not None and run is None:
        raise BadArgument("a limit goes with --run DIR: in a temporary folder what was paid for could not go on")
    check_share(max_bad_replies, "--max-bad-replies")
    lm = connect(model, prices)
    say_what_answers(model)
    told = examine(
        lm, questions=questions, run=run, concurrency=concurrency, budget=budget, max_bad_replies=max_bad_replies
    )
    if json:
        show(dumps(told.as_dict(), ensure_ascii=False, indent=2))
    else:
        show(text_of(told).removesuffix("\n"))
        show(f"run: {told.run.folder}")
    if not told.healthy:
        say("this model does not do what the pipeline asks: see what to change")
        raise typer.Exit(1)
