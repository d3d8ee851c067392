"""`blendfilter rescore`: other metrics over a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blendfilter.cli.app import State, app
from blendfilter.cli.console import Bars, say, show
from blendfilter.cli.options import ApiBase, Endpoint, Label, Lm, PromptsDir, Reasoning, Thinking

UNSURE = 0.05
"""The share of unreadable verdicts above which a figure is the judge's own."""


@app.command()
def rescore(
    run: Annotated[Path, typer.Argument(help="A finished run's folder.")],
    metric: Annotated[
        list[str], typer.Option(help="cover-em, llm-judge (a model judges, --lm), em, f1 or accuracy; may be repeated.")
    ],
    lm: Lm = None,
    api_base: ApiBase = None,
    endpoint: Endpoint = "chat",
    thinking: Thinking = None,
    reasoning: Reasoning = None,
    label: Label = "",
    concurrency: Annotated[int, typer.Option(help="The judge's calls in flight.")] = 16,
    prompts: PromptsDir = None,
) -> None:
    """Score a finished run by other metrics: no question is answered again, and no judgement is asked for twice.

    Example: blendfilter rescore runs/blendfilter --metric cover-em
    """
    from blendfilter.errors import BadArgument
    from blendfilter.evaluation.rescoring import JUDGED, check_name
    from blendfilter.evaluation.run import Run
    from blendfilter.lm.connect import connect
    from blendfilter.prompting import Prompts

    State.goes_on = True
    for name in metric:  # all of them before the first is paid for
        check_name(name)
    if lm is not None and JUDGED not in metric:
        raise BadArgument(f"only --metric {JUDGED} asks a model: leave --lm out, or add that metric")
    scored = Run(run)
    failed = 0
    for name in metric:
        judge = None
        if name == JUDGED and lm is not None:
            judge = connect(
                lm, api_base=api_base, endpoint=endpoint, thinking=thinking, reasoning=reasoning, label=label  # type: ignore[arg-type]
            )  # fmt: skip
        with Bars() as bars:
            done = scored.rescore(
                name,
                lm=judge,
                concurrency=concurrency,
                prompts=Prompts(prompts) if prompts else None,
                progress=bars,
            )
        show(done.signature)
        if done.ledger is not None:
            show(f"judged by {lm}: {done.ledger['calls']} calls, {done.ledger['tokens_in']:,} tokens in, "
                 f"{done.ledger['tokens_out']:,} out; {done.unreadable} unreadable")  # fmt: skip
        if done.unreadable > UNSURE * len(done.rows):
            say(f"{done.unreadable} of {len(done.rows)} verdicts are unreadable and count as 0: this figure and any "
                "comparison by it tell more of the judge than of the answers; take another judge")  # fmt: skip
        failed += done.errors
    show(f"kept in {run / 'rescore'}")
    if failed:
        say(f"{failed} judgements ended in an error and count as 0; the same command asks for them again")
        raise typer.Exit(1)
