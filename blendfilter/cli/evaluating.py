"""`blendfilter eval`: a method over a question set, as a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blendfilter.cli.app import State, app
from blendfilter.cli.console import say, show
from blendfilter.cli.making import connect, maker, retriever, say_what_answers
from blendfilter.cli.options import (
    AllowHost,
    Corpus,
    HowToAnswer,
    Index,
    Limits,
    MaxRetries,
    Planning,
    PricesFile,
    Retrieved,
    WhichModel,
    spread,
)
from blendfilter.errors import BadArgument, BadData, MissingExtra, MissingFile, ServerRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from blendfilter.evaluation.run import Run
    from blendfilter.lm.model import ConnectedLM
    from blendfilter.retrieval.base import Retriever
    from blendfilter.tasks import Questions


@app.command()
@spread
def eval(
    task: Annotated[
        str,
        typer.Argument(
            help="hotpotqa, twowiki, strategyqa, nq, triviaqa, fever, eli5, wow, or qa for anyone's own JSON Lines."
        ),
    ],
    data: Annotated[
        str,
        typer.Option(
            help="A question file (qa: JSON Lines with question, answer or answers, and if known id, gold_titles); "
            "'hub' (Hugging Face), or 'sample', the small made-up world that comes with the package."
        ),
    ],
    how: HowToAnswer,
    model: WhichModel,
    limits: Limits,
    planning: Planning,
    corpus: Corpus = None,
    index: Index = None,
    allow_host: AllowHost = None,
    retrieved: Retrieved = None,
    limit: Annotated[int | None, typer.Option(help="The first N questions.")] = None,
    leave_out_compiled: Annotated[
        bool, typer.Option("--leave-out-compiled", help="Leave out the questions that --program was compiled on.")
    ] = False,
    concurrency: Annotated[int, typer.Option(help="Model calls in flight in the whole run.")] = 16,
    run: Annotated[Path | None, typer.Option(help="The run's folder; the same command again goes on there.")] = None,
    reuse: Annotated[list[Path] | None, typer.Option(help="Runs whose calls may be used; may be repeated.")] = None,
    replay: Annotated[bool, typer.Option("--replay", help="Answer from the run's journal alone; no call.")] = False,
    repeats: Annotated[
        int, typer.Option(min=1, help="Answers to each question, for servers vary; a finished run may be given more.")
    ] = 1,
    max_retries: MaxRetries = None,
    prices: PricesFile = None,
    seed: Annotated[int, typer.Option(help="Of the bootstrap intervals.")] = 0,
    metric: Annotated[
        list[str] | None, typer.Option(help="For the task qa: em, f1, accuracy, cover-em, inclusion or inclusion_raw.")
    ] = None,
    max_bad_replies: Annotated[
        float,
        typer.Option(help="Share of unparseable, empty or cut replies above which it warns and ends with exit code 1."),
    ] = 0.05,
    html: Annotated[bool, typer.Option(help="Write the run as a page too, report.html in its folder.")] = True,
) -> None:
    """Evaluate a method on a question set: resumable, every call journaled once.

    Example: blendfilter eval hotpotqa --data hotpot_dev_distractor_v1.json --corpus pooled --lm openai/gpt-4o-mini
    """
    State.goes_on = not planning.plan  # before the imports: these take a second, and one may be stopped in it
    from blendfilter.evaluation.run_status import check_share
    from blendfilter.evaluation.runner import evaluate
    from blendfilter.tasks import load

    budget = limits.budget()
    planning.check(replay=replay)
    if leave_out_compiled and how.program is None:
        raise BadArgument("--leave-out-compiled goes with a compiled program: add --program FILE, or leave it out")
    check_share(max_bad_replies, "--max-bad-replies")
    questions = load(task, data, limit=limit, metrics=metric or None)
    if corpus is None and not index and retrieved is None and data == "sample":
        corpus = "sample"
    lm = _answering(lambda: connect(model, prices, keyless=planning.plan), model, run if replay else None)
    make = maker(how, model, questions.task.wording)
    module = make(
        _searched(
            lambda: retriever(corpus, index, questions, retrieved, allow_host=allow_host), run if replay else None
        )
    )
    say_what_answers(model)
    if how.program is not None:
        _say_what_for(module, how.program, task)
    if leave_out_compiled:
        questions = _without_compiled(module, questions)
    folder = run or _default_folder(module, questions, lm, seed, how.method)
    if planning.plan:
        from blendfilter.evaluation.plan import SAMPLE, plan

        planned = plan(
            module, questions, lm, run=folder, reuse=reuse or (), repeats=repeats, concurrency=concurrency,
            sample=SAMPLE if planning.plan_questions is None else planning.plan_questions,
            ask_server=planning.ask_server, budget=budget, name=how.method,
        )  # fmt: skip
        show(planned.text().rstrip("\n"))
        return
    done = evaluate(
        module, questions, lm=lm, run=folder, concurrency=concurrency, reuse=reuse or (), replay=replay,
        repeats=repeats, budget=budget, max_retries=max_retries, seed=seed, name=how.method,
    )  # fmt: skip
    done.max_bad_replies, done.prices = max_bad_replies, lm.terms.prices
    _tell(done, html=html)


def _say_what_for(module: Any, program: Path, task: str) -> None:
    """A program of another task may be meant, and nobody should have to guess that it was."""
    from blendfilter.compiling.programs import recipes_in

    for recipe in recipes_in(module):
        if recipe.task and recipe.task != task:
            say(f"{program} was compiled for {recipe.task}, and the questions are of {task}")


def _without_compiled(module: Any, questions: Questions) -> Questions:
    from blendfilter.evaluation.run_settings import not_compiled_on

    left = not_compiled_on(module, questions)
    say(f"{len(questions) - len(left)} questions that the program was compiled on are left out, {len(left)} are asked")
    return left


def _tell(done: Run, *, html: bool) -> None:
    """Show what came of it, write its page, and end with exit code 1 where questions failed or replies are bad."""
    from blendfilter.cli.reporting import write_page
    from blendfilter.report.run_text import report

    show(*report(done))
    if html:
        write_page(done)
    show(f"run: {done.folder}")
    if done.errors:
        say(f"{done.errors} of {len(done.rows)} questions ended in an error; the same command asks them again")
    if warned := done.warnings:
        say("too many bad replies (the warnings at the top): blendfilter doctor says what to change")
    if done.errors or warned:
        raise typer.Exit(1)


def _answering(open_: Callable[[], ConnectedLM], model: WhichModel, replayed: Path | None) -> ConnectedLM:
    """The model; in a replay, where its file is gone, what the run knows of it will do."""
    from blendfilter.evaluation.run_settings import recorded_model

    try:
        return open_()
    except (MissingFile, MissingExtra) as gone:
        decoding = {"temperature": model.temperature, "top_p": model.top_p}
        if replayed is None or (known := recorded_model(replayed, model.lm or "", gone, **decoding)) is None:
            raise
        say(f"the model cannot be had ({gone}): replaying from the journal alone")
        return known


def _searched(open_: Callable[[], Retriever | None], replayed: Path | None) -> Retriever | None:
    """The index; in a replay, where it is gone, what the run knows of it will do."""
    from blendfilter.evaluation.run_settings import recorded_index

    try:
        return open_()
    except (MissingFile, BadData, MissingExtra, ServerRefused) as gone:
        if replayed is None or (known := recorded_index(replayed, gone)) is None:
            raise
        say(f"the index cannot be had ({gone}): replaying from the journal alone")
        return known


def _default_folder(module: Any, questions: Any, model: ConnectedLM, seed: int, method: str) -> Path:
    """`runs/<task>-<method>-<digest>`: the same command finds its run again, another one gets another folder."""
    from blendfilter.evaluation.run_settings import settings_of
    from blendfilter.journal import digest

    settings = settings_of(module, questions, model, seed=seed, name=method)
    return Path("runs") / f"{questions.task.name}-{method.replace(':', '.')}-{digest(settings)[:8]}"
