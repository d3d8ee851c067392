"""`blendfilter doctor`: does this model do what the pipeline asks, and what to change."""

from __future__ import annotations

from pathlib import Path

import typer

from blendfilter.cli.app import State, command
from blendfilter.cli.console import say, show_figures
from blendfilter.cli.making import connect, say_what_answers
from blendfilter.cli.options import (
    AsJson,
    DemosFile,
    InData,
    InLimits,
    InOutput,
    MaxBadReplies,
    ModelOptions,
    PricesFile,
    PromptsName,
    SpendingOptions,
)
from blendfilter.errors import BadArgument


class DoctorOptions(ModelOptions, SpendingOptions):
    """The settings of `blendfilter doctor`."""

    prices: PricesFile = None
    questions: InData[int] = 20
    """How many of the sample's questions, spread over its kinds."""
    run: InOutput[Path | None] = None
    """The run's folder; the same command again goes on there. Else a temporary one."""
    concurrency: InLimits[int] = 16
    """Model calls in flight."""
    max_bad_replies: MaxBadReplies = 0.05
    prompts: PromptsName = None
    demos: DemosFile = None
    as_json: AsJson = False


@command()
def doctor(options: DoctorOptions) -> None:
    """Examine a model: sample questions through BlendFilter, its replies counted, its server probed, what to change.

    Example: blendfilter doctor --lm my-model --api-base http://localhost:8000/v1
    """
    from blendfilter.asking import TaskWording
    from blendfilter.evaluation.run_status import check_share
    from blendfilter.report.doctor import examine, text_of

    State.goes_on = options.run is not None
    budget = options.budget()
    if budget is not None and options.run is None:
        raise BadArgument(
            "a limit goes with --run DIR: in a temporary folder what was paid for could not go on"
        )
    check_share(options.max_bad_replies, "--max-bad-replies")
    lm = connect(options)
    wording = TaskWording.of("hotpotqa").with_demos(options.demos)
    say_what_answers(options)
    examination = examine(
        lm,
        questions=options.questions,
        run=options.run,
        concurrency=options.concurrency,
        budget=budget,
        max_bad_replies=options.max_bad_replies,
        prompts=options.prompts,
        wording=wording,
    )
    text = f"{text_of(examination)}run: {examination.run.folder}"
    show_figures(examination, text, as_json=options.as_json)
    if not examination.healthy:
        say("this model does not do what the pipeline asks: see what to change")
        raise typer.Exit(1)
