"""`blendfilter doctor`: does this model do what the pipeline asks, and what to change."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from blendfilter.cli.app import State, command
from blendfilter.cli.console import say, show
from blendfilter.cli.making import connect, prompts_in, say_what_answers
from blendfilter.cli.options import (
    DemosFile,
    Json,
    MaxBadReplies,
    ModelOptions,
    PricesFile,
    PromptsName,
    SpendingOptions,
    declared,
)
from blendfilter.errors import BadArgument


@command()
def doctor(
    model: ModelOptions,
    limits: SpendingOptions,
    prices: PricesFile = None,
    questions: Annotated[
        int, declared("Data", help="How many of the sample's questions, spread over its kinds.")
    ] = 20,
    run: Annotated[
        Path | None,
        declared(
            "Output",
            help="The run's folder; the same command again goes on there. Else a temporary one.",
        ),
    ] = None,
    concurrency: Annotated[int, declared("Limits", help="Model calls in flight.")] = 16,
    max_bad_replies: MaxBadReplies = 0.05,
    prompts: PromptsName = None,
    demos: DemosFile = None,
    json: Json = False,
) -> None:
    """Examine a model: sample questions through BlendFilter, its replies counted, its server probed, what to change.

    Example: blendfilter doctor --lm my-model --api-base http://localhost:8000/v1
    """
    from blendfilter.asking import TaskWording
    from blendfilter.evaluation.run_status import check_share
    from blendfilter.report.doctor import examine, text_of

    State.goes_on = run is not None
    budget = limits.budget()
    if budget is not None and run is None:
        raise BadArgument(
            "a limit goes with --run DIR: in a temporary folder what was paid for could not go on"
        )
    check_share(max_bad_replies, "--max-bad-replies")
    lm = connect(model, prices)
    templates, wording = prompts_in(prompts), TaskWording.of("hotpotqa").with_demos(demos)
    say_what_answers(model, prompts)
    examination = examine(
        lm,
        questions=questions,
        run=run,
        concurrency=concurrency,
        budget=budget,
        max_bad_replies=max_bad_replies,
        prompts=templates,
        wording=wording,
    )
    if json:
        show(dumps(examination.as_dict(), ensure_ascii=False, indent=2))
    else:
        show(text_of(examination).removesuffix("\n"))
        show(f"run: {examination.run.folder}")
    if not examination.healthy:
        say("this model does not do what the pipeline asks: see what to change")
        raise typer.Exit(1)
