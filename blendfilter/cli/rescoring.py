"""`blendfilter rescore`: other metrics over a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blendfilter.cli.app import State, app
from blendfilter.cli.console import Bars, say, show
from blendfilter.cli.making import connect
from blendfilter.cli.options import Limits, PricesFile, PromptsDir, WhichJudge, spread

if TYPE_CHECKING:
    from collections.abc import Mapping

UNSURE = 0.05
"""The share of unreadable verdicts above which a figure is the judge's own."""


@app.command()
@spread
def rescore(
    run: Annotated[Path, typer.Argument(help="A finished run's folder.")],
    metric: Annotated[
        list[str],
        typer.Option(
            help="cover-em, inclusion, inclusion_raw, llm-judge (a model judges, --lm), em, f1 or accuracy; may be "
            "repeated."
        ),
    ],
    judge: WhichJudge,
    limits: Limits,
    prices: PricesFile = None,
    concurrency: Annotated[int, typer.Option(help="The judge's calls in flight.")] = 16,
    prompts: PromptsDir = None,
) -> None:
    """Score a finished run by other metrics: no question is answered again, and no judgement is asked for twice.

    Example: blendfilter rescore runs/blendfilter --metric cover-em
    """
    from blendfilter.errors import BadArgument
    from blendfilter.evaluation.rescoring import JUDGED, check_name
    from blendfilter.evaluation.run import Run
    from blendfilter.prompting import Prompts

    State.goes_on = True
    for name in metric:  # all of them before the first is paid for
        check_name(name)
    budget = limits.budget()
    if (judge.lm is not None or budget is not None) and JUDGED not in metric:
        what = "--lm" if judge.lm is not None else "--max-…"
        raise BadArgument(f"only --metric {JUDGED} asks a model: leave {what} out, or add that metric")
    scored = Run(run)
    failed = 0
    for name in metric:
        asked = name == JUDGED and (judge.lm or judge.api_base)
        with Bars() as bars:
            done = scored.rescore(
                name,
                lm=connect(judge.model(), prices) if asked else None,
                concurrency=concurrency,
                prompts=Prompts(prompts) if prompts else None,
                budget=budget if name == JUDGED else None,
                progress=bars,
            )
        show(done.signature)
        if done.ledger is not None:
            show(f"judged by {judge.lm}: {_account(done.ledger)}; {done.unreadable} unreadable")
        if done.unreadable > UNSURE * len(done.rows):
            say(f"{done.unreadable} of {len(done.rows)} verdicts are unreadable and count as 0: this figure and any "
                "comparison by it tell more of the judge than of the answers; take another judge")  # fmt: skip
        failed += done.errors
    show(f"kept in {run / 'rescore'}")
    if failed:
        say(f"{failed} judgements ended in an error and count as 0; the same command asks for them again")
        raise typer.Exit(1)


def _account(ledger: Mapping[str, Any]) -> str:
    """What the judge took, in words; tokens that its server does not tell are unknown."""
    tokens_in, tokens_out, cost = (ledger[name] for name in ("tokens_in", "tokens_out", "cost"))
    known = tokens_in is not None and tokens_out is not None
    tokens = f"{tokens_in:,} tokens in, {tokens_out:,} out" if known else "tokens not told"
    return f"{ledger['calls']} calls, {tokens}" + ("" if cost is None else f", ${cost:.4f}")
