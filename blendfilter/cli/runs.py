"""Runs on the command line: `eval` makes one, `report`, `compare` and `rescore` read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from blendfilter.cli.app import State, command
from blendfilter.cli.console import Bars, say, show
from blendfilter.cli.given import from_run, settings_given
from blendfilter.cli.making import (
    connect,
    connect_both,
    for_files,
    maker,
    prompts_in,
    retriever,
    say_what_answers,
    with_trained,
)
from blendfilter.cli.options import (
    BatchOptions,
    FilterModelOptions,
    Json,
    JudgeOptions,
    Limit,
    MaxBadReplies,
    MaxRetries,
    MethodOptions,
    ModelOptions,
    PassageOptions,
    PricesFile,
    PromptsName,
    RayOptions,
    SpendingOptions,
    Task,
    declared,
    option,
)
from blendfilter.context import setting
from blendfilter.errors import (
    AskedWrong,
    BadArgument,
    BadData,
    MissingExtra,
    MissingFile,
    ServerRefused,
)
from blendfilter.metrics import METRICS
from blendfilter.table import Table
from blendfilter.terminal import terminal_width

if TYPE_CHECKING:
    from blendfilter.evaluation.run import Run
    from blendfilter.lm.model import ConnectedLM
    from blendfilter.tasks import Questions

T = TypeVar("T")
UNSURE = 0.05
"""The share of unreadable verdicts above which a figure is the judge's own."""


@dataclass(frozen=True)
class PlanOptions:
    """Whether a run is planned and not made, and how."""

    plan: bool = option(
        "Output",
        "Print calls, tokens, cost and time stage by stage, and stop: nothing is spent.",
        "--plan",
        default=False,
    )
    plan_questions: int | None = option(
        "Output", "Questions, evenly spread, that a plan is made from (20).", rare=True
    )
    ask_server: bool = option(
        "Output",
        "A plan counts tokens by the server's own tokeniser (vLLM, llama.cpp); no model is asked.",
        "--ask-server",
        default=False,
        rare=True,
    )

    def check(self, *, replay: bool) -> None:
        """Raise `BadArgument` for what goes with a plan and has none, and for a plan of a run that calls no model."""
        if (self.ask_server or self.plan_questions is not None) and not self.plan:
            raise BadArgument(
                "--ask-server and --plan-questions shape a plan: add --plan, or leave them out"
            )
        if self.plan and replay:
            raise BadArgument(
                "a replay asks no model, so there is nothing to plan: leave --plan or --replay out"
            )


@command()
def eval(
    ctx: typer.Context,
    task: Task,
    data: Annotated[
        str,
        declared(
            "Data",
            help="A question file (qa: JSON Lines with question, answer or answers, and if known id, gold_titles); "
            "'hub' (Hugging Face), or 'sample', the small made-up world that comes with the package.",
        ),
    ],
    how: MethodOptions,
    model: ModelOptions,
    filter_model: FilterModelOptions,
    limits: SpendingOptions,
    planning: PlanOptions,
    batches: BatchOptions,
    cluster: RayOptions,
    sources: PassageOptions,
    limit: Limit = None,
    shard: Annotated[
        str | None,
        declared(
            "Data",
            metavar="I/N",
            rare=True,
            help="Every N-th question, beginning with the I-th: a part that `merge` joins with the others.",
        ),
    ] = None,
    leave_out_compiled: Annotated[
        bool,
        declared(
            "Data",
            "--leave-out-compiled",
            rare=True,
            help="Leave out the questions that --program was compiled on, or a model of hf/ trained on.",
        ),
    ] = False,
    concurrency: Annotated[
        int, declared("Limits", help="Model calls in flight in the whole run.")
    ] = 16,
    run: Annotated[
        Path | None,
        declared("Output", help="The run's folder; the same command again goes on there."),
    ] = None,
    reuse: Annotated[
        list[Path] | None, declared("Output", help="Runs whose calls may be used; may be repeated.")
    ] = None,
    replay: Annotated[
        bool, declared("Output", "--replay", help="Answer from the run's journal alone; no call.")
    ] = False,
    repeats: Annotated[
        int,
        declared(
            "Data",
            rare=True,
            min=1,
            help="Answers to each question, because servers are not deterministic; a finished run may be given more.",
        ),
    ] = 1,
    max_retries: MaxRetries = None,
    prices: PricesFile = None,
    seed: Annotated[int, declared("Data", rare=True, help="Of the bootstrap intervals.")] = 0,
    metric: Annotated[
        list[str] | None,
        declared("Method", rare=True, help=f"In place of the task's own: {', '.join(METRICS)}."),
    ] = None,
    max_bad_replies: MaxBadReplies = 0.05,
    html: Annotated[
        bool,
        declared(
            "Output", rare=True, help="Write the run as a page too, report.html in its folder."
        ),
    ] = True,
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            is_eager=True,
            callback=from_run,
            help="Take the settings of a run that eval made, but no address and no package:Class. Options on the "
            "command line and in --config override them.",
        ),
    ] = None,
) -> None:
    """Evaluate a method on a question set: resumable, every call journaled once.

    Example: blendfilter eval hotpotqa --data hotpot_dev_distractor_v1.json --corpus pooled --lm openai/gpt-4o-mini
    """
    State.goes_on = (
        not planning.plan
    )  # before the imports: these take a second, in which one may stop the command
    from blendfilter.compiling.programs import recipes_in
    from blendfilter.evaluation.plan import SAMPLE, plan
    from blendfilter.evaluation.run_settings import not_compiled_on, recorded_index, recorded_model
    from blendfilter.evaluation.run_status import check_share
    from blendfilter.filters.base import with_filter_lm
    from blendfilter.tasks import load

    budget = limits.budget()
    planning.check(replay=replay)
    cluster.check(shard=shard, batch=batches.batch, batch_dir=batches.batch_dir, replay=replay)
    if (batch := batches.chosen()) is not None and batch.folder is not None:
        model, filter_model = for_files(model, filter_model)
    check_share(max_bad_replies, "--max-bad-replies")
    questions = load(task, data, limit=limit, metrics=metric or None)
    replayed = run if replay else None
    decoding: dict[str, Any] = {"temperature": model.temperature, "top_p": model.top_p}
    connects, connects_filter = connect_both(
        model, filter_model, prices, keyless=planning.plan or batches.batch_dir is not None, how=how
    )
    lm = _or_recorded(
        "model",
        connects,
        lambda run, gone: recorded_model(run, model.lm or "", gone, **decoding),
        replayed,
    )
    filter_lm = _or_recorded(
        "filter's model",
        connects_filter,
        lambda run, gone: recorded_model(
            run, with_trained(filter_model, how).filter_lm or "", gone, of_filter=True, **decoding
        ),
        replayed,
    )
    make = maker(how, model, questions.task.wording, filter_lm)
    index = _or_recorded(
        "index",
        lambda: retriever(sources, questions, k=how.k, sample=data == "sample", run=run),
        recorded_index,
        replayed,
    )
    module = make(index)
    if filter_lm is not None:
        with_filter_lm(module, filter_lm)  # it may have no filter that asks a model
    say_what_answers(model, how.prompts, module)
    for recipe in recipes_in(module) if how.program is not None else ():
        if recipe.task and recipe.task != task:  # it may be meant
            say(f"{how.program} was compiled for {recipe.task}, and the questions are of {task}")
    if leave_out_compiled:
        models = [lm] if filter_lm is None else [lm, filter_lm]
        all_questions, questions = questions, not_compiled_on(module, questions, models)
        left_out = len(all_questions) - len(questions)
        of = (
            "the program was compiled on" if how.program is not None else "the model was trained on"
        )
        say(f"{left_out} questions that {of} are left out, {len(questions)} are asked")
    if shard is not None:
        questions = questions.shard(*_shard_of(shard))
    folder = run or _default_folder(module, questions, lm, filter_lm, seed, how.method)
    shared: dict[str, Any] = {
        "run": folder,
        "reuse": reuse or (),
        "repeats": repeats,
        "concurrency": concurrency,
        "budget": budget,
        "name": how.method,
        "filter_lm": filter_lm,
        "batch": batch,
    }
    if planning.plan:
        sample = SAMPLE if planning.plan_questions is None else planning.plan_questions
        planned = plan(
            module, questions, lm, sample=sample, ask_server=planning.ask_server, **shared
        )
        show(planned.text().rstrip("\n"))
        return
    shared |= {"lm": lm, "max_retries": max_retries, "seed": seed}
    with setting(options=settings_given(ctx)):
        done = _evaluated(cluster, module, questions, replay=replay, **shared)
    done.max_bad_replies, done.prices = max_bad_replies, lm.terms.prices
    _conclude(done, html=html)


def _evaluated(
    cluster: RayOptions, module: Any, questions: Questions, *, replay: bool, **options: Any
) -> Run:
    """The run, by this process or by a cluster."""
    from blendfilter.evaluation.runner import evaluate

    if cluster.ray is None or cluster.shards is None:
        return evaluate(module, questions, replay=replay, **options)
    from blendfilter.evaluation.on_ray import evaluate_on_ray

    return evaluate_on_ray(
        module,
        questions,
        address=cluster.ray,
        shards=cluster.shards,
        gpus=cluster.ray_gpus,
        **options,
    )


def _or_recorded(
    what: str,
    made: Callable[[], T],
    recorded: Callable[[Path, AskedWrong], Any],
    replayed: Path | None,
) -> T:
    """The index or the model; in a replay, where it is gone, what the run in that folder knows of it will do."""
    try:
        return made()
    except (MissingFile, BadData, MissingExtra, ServerRefused) as gone:
        if replayed is None or (known := recorded(replayed, gone)) is None:
            raise
        say(f"the {what} cannot be had ({gone}): replaying from the journal alone")
        return known  # type: ignore[no-any-return]


def _default_folder(
    module: Any,
    questions: Questions,
    model: ConnectedLM,
    filter_lm: ConnectedLM | None,
    seed: int,
    method: str,
) -> Path:
    """`runs/<task>-<method>-<digest>`: the same command finds its run again, another one gets another folder.

    The shards of one run share the digest: `…-1of4`.
    """
    from blendfilter.evaluation.run_settings import settings_of
    from blendfilter.journal import digest

    settings, shard = (
        settings_of(module, questions, model, filter_lm=filter_lm, seed=seed, name=method),
        "",
    )
    if (part := questions.part) is not None:
        settings["data"] |= {"fingerprint": part.fingerprint, "n": part.n}
        del settings["data"]["shard"]
        shard = f"-{part.number}of{part.of}"
    return (
        Path("runs")
        / f"{questions.task.name}-{method.replace(':', '.')}-{digest(settings)[:8]}{shard}"
    )


def _shard_of(given: str) -> tuple[int, int]:
    """`I/N` as numbers."""
    number, _, of = given.partition("/")
    if not (number.isdecimal() and of.isdecimal()):
        raise BadArgument(f"--shard is '{given}': give a number and how many there are, 1/4")
    return int(number), int(of)


def _conclude(done: Run, *, html: bool) -> None:
    """Show the run, write its page, and end with exit code 1 where questions failed or replies are bad."""
    from blendfilter.report.run_text import report_text

    show(report_text(done, terminal_width()))
    if html:
        _write_page(done, [])
    show(f"run: {done.folder}")
    if warned := done.warnings:
        say(
            "too many bad replies (the warnings at the top): blendfilter doctor says what to change"
        )
    if done.errors or warned:
        raise typer.Exit(1)


def _write_page(run: Run, others: list[Run]) -> None:
    """Write a run's page and say where it is; a folder that cannot be written to is a notice, not a failed command."""
    try:
        path = run.html(*others)
    except (OSError, BadArgument) as error:
        say(f"no page was written: {error}")
    else:
        show(f"page: {path}")


@command()
def merge(
    runs: Annotated[list[Path], typer.Argument(help="The folders of all shards, in any order.")],
    out: Annotated[Path, declared("Output", help="The new folder of the merged run.")],
    prices: PricesFile = None,
    html: Annotated[
        bool,
        declared(
            "Output", rare=True, help="Write the run as a page too, report.html in its folder."
        ),
    ] = True,
) -> None:
    """Make one run of the shards of one (eval --shard I/N): the run that one process would have made.

    Example: blendfilter merge runs/blendfilter-*of4 --out runs/blendfilter
    """
    from blendfilter.evaluation.merging import merge as merge_runs
    from blendfilter.lm.prices import read_prices

    own = None if prices is None else read_prices(prices)
    done = merge_runs(*runs, out=out, prices=own)
    done.prices = own
    _conclude(done, html=html)


@command()
def ps(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Run folders; without them, every run in progress on this machine."),
    ] = None,
) -> None:
    """List the runs in progress: how far each is, its errors, and how many calls it made in the last minute.

    Example: blendfilter ps
    """
    from blendfilter.evaluation.control import running

    found = running(runs or ())
    if not found:
        say("no run is in progress")
        return
    rows = []
    for each in found:
        changed = each.control.model_dump(exclude_defaults=True)
        rows.append(
            [
                str(each.run.folder),
                str(each.pid or "-"),
                f"{each.answered:,} of {each.answers:,}",
                str(each.errors),
                f"{each.calls_a_minute:,}",
                f"{each.seconds / 60:.1f}",
                ", ".join(
                    "paused" if name == "paused" else f"{name} {value:,}"
                    for name, value in changed.items()
                )
                or "-",
            ]
        )
    header = ["run", "process", "answered", "errors", "calls a minute", "minutes", "changed"]
    show(Table(header, rows))


@command()
def tune(
    run: Annotated[Path, typer.Argument(help="The folder of a run in progress.")],
    limits: SpendingOptions,
    concurrency: Annotated[
        int | None, declared("Limits", help="Model calls in flight in the whole run.")
    ] = None,
    pause: Annotated[
        bool,
        declared(
            "Limits", "--pause", help="Let no further call out; those in flight are finished."
        ),
    ] = False,
    resume: Annotated[bool, declared("Limits", "--resume", help="Go on after --pause.")] = False,
) -> None:
    """Change a run while it runs: calls in flight, a pause, a limit that it was started with; a second later it holds.

    Example: blendfilter tune runs/blendfilter --concurrency 64
    """
    from blendfilter.evaluation.control import tune as change

    if pause and resume:
        raise BadArgument("--pause and --resume exclude each other")
    given = {"concurrency": concurrency, "calls": limits.max_calls, "tokens": limits.max_tokens}
    changes: dict[str, Any] = {**given, "dollars": limits.max_cost}
    changes = {name: value for name, value in changes.items() if value is not None}
    if not (changes or pause or resume):
        raise BadArgument(
            "change what? --concurrency N, --pause, --resume, --max-calls, --max-tokens or --max-cost"
        )
    now = change(run, **changes, **({"paused": pause} if pause or resume else {}))
    show(f"{run}: {now.model_dump_json(exclude_defaults=True)}")


@command("report")
def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="A run's folder; more runs over the same questions stand beside it on the page."
        ),
    ],
    html: Annotated[
        bool, declared("Output", help="Write the page, report.html, into the (first) run's folder.")
    ] = True,
    trec: Annotated[
        bool,
        declared(
            "Output",
            "--trec",
            help="Write its rankings by query, run.QUERY.trec, and qrels.trec (ir_measures).",
        ),
    ] = False,
    prices: PricesFile = None,
) -> None:
    """Show a run: scores with intervals, retrieval per query, losses, events, the ledger; every question on a page.

    Example: blendfilter report runs/blendfilter runs/direct-retrieval
    """
    from blendfilter.evaluation.run import Run
    from blendfilter.lm.prices import read_prices
    from blendfilter.report.run_text import report_text

    own = None if prices is None else read_prices(prices)
    first, *others = opened = [Run(run) for run in runs]
    for run in opened:
        run.prices = own
    show(report_text(first, terminal_width()))
    if trec:
        rankings, gold = first.trec()
        show("TREC: " + ", ".join(map(str, [*rankings.values(), gold])))
    if html:
        _write_page(first, others)


@command()
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Two runs or more over the same questions; the first is the baseline."),
    ],
    against: Annotated[
        str | None, declared("Method", help="Another of them as the baseline.")
    ] = None,
    metric: Annotated[
        list[str] | None,
        declared(
            "Method",
            help="Which metrics, rescored ones too, or what was retrieved (q_ex.recall, union.precision); all of the "
            "task's by default.",
        ),
    ] = None,
    seed: Annotated[int, declared("Data", rare=True, help="Of the bootstrap.")] = 0,
    json: Json = False,
) -> None:
    """Compare runs with the first one: paired bootstrap intervals, exact McNemar, Holm's correction.

    Example: blendfilter compare runs/direct-retrieval runs/cot-retrieval runs/blendfilter
    """
    from blendfilter.evaluation.comparison import compare as compare_runs

    compared = compare_runs(*runs, metrics=metric or None, seed=seed, against=against)
    show(dumps(compared.as_dict(), ensure_ascii=False, indent=2) if json else compared.table())


@command()
def rescore(
    run: Annotated[Path, typer.Argument(help="A finished run's folder.")],
    metric: Annotated[
        list[str],
        declared(
            "Method",
            help=f"{', '.join(METRICS)}, or llm-judge (a model judges, --lm); may be repeated.",
        ),
    ],
    judge: JudgeOptions,
    limits: SpendingOptions,
    prices: PricesFile = None,
    concurrency: Annotated[int, declared("Limits", help="The judge's calls in flight.")] = 16,
    prompts: PromptsName = None,
) -> None:
    """Score a finished run by other metrics: no question is answered again, and no judgement is paid for twice.

    Example: blendfilter rescore runs/blendfilter --metric cover-em
    """
    State.goes_on = True
    from blendfilter.evaluation.rescoring import JUDGED, check_name
    from blendfilter.evaluation.rows import failures, repeats_in
    from blendfilter.evaluation.run import Run

    for name in metric:  # all of them before the first is paid for
        check_name(name)
    budget = limits.budget()
    if (judge.lm is not None or budget is not None) and JUDGED not in metric:
        what = "--lm" if judge.lm is not None else "--max-…"
        raise BadArgument(
            f"only --metric {JUDGED} asks a model: leave {what} out, or add that metric"
        )
    scored, failed = Run(run), False
    for name in metric:
        judged = name == JUDGED
        with Bars() as bars:
            done = scored.rescore(
                name,
                lm=connect(judge, prices) if judged and (judge.lm or judge.api_base) else None,
                concurrency=concurrency,
                prompts=prompts_in(prompts),
                budget=budget if judged else None,
                progress=bars,
            )
        show(done.signature)
        if done.ledger is not None:
            took = ", ".join(
                f"{name} {done.ledger[name]}"
                for name in ("calls", "tokens_in", "tokens_out", "cost")
            )
            show(f"judged by {judge.lm}: {took}; {done.unreadable} unreadable")
        if done.unreadable > UNSURE * len(done.rows):
            say(
                f"{done.unreadable} of {len(done.rows)} verdicts are unreadable and count as 0: take another judge"
            )
        failed |= done.errors > 0  # `rescore` warned
    if scored.errors:
        say(f"{failures(scored.rows, repeats_in(scored.settings))}, by every metric")
    show(f"kept in {run / 'rescore'}")
    if failed:
        raise typer.Exit(1)
