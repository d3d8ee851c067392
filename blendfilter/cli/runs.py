"""Runs on the command line: `eval` makes one, `report`, `compare` and `rescore` read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from pydantic import Field

from blendfilter.cli.app import State, command
from blendfilter.cli.console import Bars, say, show, show_figures
from blendfilter.cli.given import from_run, settings_given
from blendfilter.cli.making import (
    connect,
    connect_both,
    for_files,
    maker,
    retriever,
    say_what_answers,
    with_trained,
)
from blendfilter.cli.options import (
    METRICS,
    AnySources,
    AsJson,
    BatchOptions,
    Html,
    InData,
    InLimits,
    JudgeOptions,
    Limit,
    MaxBadReplies,
    MaxRetries,
    MethodOptions,
    Models,
    PricesFile,
    PromptsName,
    SpendingOptions,
    Task,
)
from blendfilter.context import setting
from blendfilter.errors import (
    AskedWrong,
    BadArgument,
    BadData,
    MissingExtra,
    MissingFile,
    ServerRefused,
    UnknownName,
)
from blendfilter.settings import Argument, Decoding, Option, Rare, Settings
from blendfilter.table import Table
from blendfilter.terminal import terminal_width

if TYPE_CHECKING:
    from blendfilter.evaluation.run import Run
    from blendfilter.lm.model import ConnectedLM
    from blendfilter.lm.prices import Prices
    from blendfilter.tasks import Questions

T = TypeVar("T")
UNSURE = 0.05
"""The share of unreadable verdicts above which a figure is the judge's own."""


class PlanOptions(Settings, panel="Output"):
    """Whether a run is planned and not made, and how."""

    plan: bool = False
    """Print calls, tokens, cost and time stage by stage, and stop: nothing is spent."""
    plan_questions: Annotated[int | None, Option(rare=True, goes_with="plan")] = None
    """Questions, evenly spread, that a plan is made from (20)."""
    ask_server: Annotated[bool, Option(rare=True, goes_with="plan")] = False
    """A plan counts tokens by the server's own tokeniser (vLLM, llama.cpp); no model is asked."""


class RayOptions(Settings, panel="Limits"):
    """Whether the work is done by a Ray cluster."""

    ray: Annotated[str | None, Option(rare=True, metavar="ADDRESS")] = None
    """Do it by Ray tasks: local (this machine's processors), auto (the cluster it belongs to) or the address of one
    that shares this folder, ray://HOST:10001."""
    shards: Annotated[int | None, Option(rare=True, goes_with="ray")] = Field(None, ge=1)
    """With --ray: how many parts the work is done in."""
    ray_gpus: Annotated[float, Option(rare=True, goes_with="ray")] = Field(0.0, ge=0)
    """With --ray: GPUs of each task, for a model in its process."""


class DataOptions(Settings, panel="Data"):
    """Which questions are answered, and how often."""

    task: Task
    data: str
    """A question file (qa: JSON Lines with question, answer or answers, and if known id, gold_titles); 'hub' (Hugging
    Face), or 'sample', the small made-up world that comes with the package."""
    limit: Limit = None
    shard: Annotated[str | None, Option(rare=True, metavar="I/N")] = None
    """Every N-th question, beginning with the I-th: a part that `merge` joins with the others."""
    leave_out_compiled: Rare[bool] = False
    """Leave out the questions that --program was compiled on, or a model of hf/ trained on."""
    repeats: Rare[int] = Field(1, ge=1)
    """Answers to each question, because servers are not deterministic; a finished run may be given more."""
    seed: Rare[int] = 0
    """Of the bootstrap intervals."""


class RunOptions(Settings, panel="Output"):
    """Where a run is kept, and what it takes from others."""

    run: Path | None = None
    """The run's folder; the same command again goes on there."""
    reuse: list[Path] | None = None
    """Runs whose calls may be used; may be repeated."""
    replay: bool = False
    """Answer from the run's journal alone; no call."""
    html: Html = True


class EvalOptions(
    DataOptions,
    AnySources,
    MethodOptions,
    Models,
    Decoding,
    SpendingOptions,
    BatchOptions,
    RayOptions,
    RunOptions,
    PlanOptions,
):
    """The settings of `blendfilter eval`."""

    concurrency: InLimits[int] = 16
    """Model calls in flight in the whole run."""
    max_retries: MaxRetries = None
    max_bad_replies: MaxBadReplies = 0.05
    at_least: Annotated[
        list[str] | None, Option(panel="Limits", rare=True, metavar="NAME=SHARE")
    ] = None
    """A score (em=0.4, kept.recall=0.8) below which it ends with exit code 1; may be repeated."""
    prices: PricesFile = None
    metric: Annotated[
        list[str] | None,
        Option(
            panel="Method", rare=True, help=f"In place of the task's own: {', '.join(METRICS)}."
        ),
    ] = None
    like: Annotated[Path | None, Option(metavar="RUN", callback=from_run)] = None
    """Take the settings of a run that eval made, but no address and no package:Class. Options on the command line and
    in --config override them."""

    def check(self) -> None:
        """Raise `BadArgument` for options that do not go together."""
        if self.plan and self.replay:
            raise BadArgument(
                "a replay asks no model, so there is nothing to plan: leave --plan or --replay out"
            )
        if self.ray is not None and self.shards is None:
            raise BadArgument("--ray does a run in shards: say in how many, --shards 8")
        alone = self.given_options("shard", "batch", "batch_dir", "replay")
        if self.ray is not None and alone:
            raise BadArgument(f"--ray does all shards of a live run: leave out {alone[0]}")


@command()
def eval(ctx: typer.Context, options: EvalOptions) -> None:
    """Evaluate a method on a question set: resumable, every call journaled once.

    Example: blendfilter eval hotpotqa --data hotpot_dev_distractor_v1.json --corpus pooled --lm openai/gpt-4o-mini
    """
    # before the imports: these take a second, in which one may stop the command
    State.goes_on = not options.plan
    from blendfilter.evaluation.plan import SAMPLE, plan
    from blendfilter.evaluation.recorded import recorded_index
    from blendfilter.evaluation.run_status import check_share
    from blendfilter.filters.base import with_filter_lm
    from blendfilter.tasks import load

    budget, settings = options.budget(), settings_given(ctx)
    options.check()
    if (batch := options.chosen()) is not None and batch.folder is not None:
        options = for_files(options)
    check_share(options.max_bad_replies, "--max-bad-replies")
    questions = load(
        options.task, options.data, limit=options.limit, metrics=options.metric or None
    )
    floors = _floors(options.at_least or (), questions)
    replayed = options.run if options.replay else None
    lm, filter_lm = _models(options, replayed)
    make = maker(options, questions.task.wording, filter_lm, top_p=options.top_p)
    sample = options.data == "sample"
    index = _or_recorded(
        "index",
        lambda: retriever(options, questions, k=options.k, sample=sample, run=options.run),
        recorded_index,
        replayed,
    )
    module = make(index)
    if filter_lm is not None:
        with_filter_lm(module, filter_lm)  # it may have no filter that asks a model
    say_what_answers(options, module)
    questions = _left_to_ask(options, module, questions, [lm, *filter(None, [filter_lm])])
    shared: dict[str, Any] = options.given("reuse", "repeats", "concurrency") | {
        "run": options.run or _default_folder(module, questions, lm, filter_lm, options),
        "budget": budget,
        "name": options.method,
        "filter_lm": filter_lm,
        "batch": batch,
    }
    if options.plan:
        planned = plan(
            module,
            questions,
            lm,
            sample=SAMPLE if options.plan_questions is None else options.plan_questions,
            ask_server=options.ask_server,
            **shared,
        )
        show(planned.text().rstrip("\n"))
        return
    shared |= {"lm": lm, **options.given("max_retries", "seed")}
    with setting(options=settings):
        done = _evaluated(options, module, questions, **shared)
    done.max_bad_replies, done.prices = options.max_bad_replies, lm.terms.prices
    _conclude(done, html=options.html, floors=floors)


def _models(
    options: EvalOptions, replayed: Path | None
) -> tuple[ConnectedLM, ConnectedLM | None]:
    """The model, and that of the filter where it has one of its own."""
    from blendfilter.evaluation.recorded import recorded_model

    keyless = options.plan or options.replay or options.batch_dir is not None
    connects, connects_filter = connect_both(options, keyless=keyless)
    recorded = partial(recorded_model, temperature=options.temperature, top_p=options.top_p)
    lm = _or_recorded(
        "model", connects, lambda run, gone: recorded(run, options.lm or "", gone), replayed
    )
    name = with_trained(options).filter_lm or ""
    filter_lm = _or_recorded(
        "filter's model",
        connects_filter,
        lambda run, gone: recorded(run, name, gone, of_filter=True),
        replayed,
    )
    return lm, filter_lm


def _left_to_ask(
    options: EvalOptions, module: Any, questions: Questions, models: list[ConnectedLM]
) -> Questions:
    """The questions less those that a program or a model learned from, and those of other shards."""
    from blendfilter.compiling.programs import recipes_in
    from blendfilter.evaluation.checks import not_compiled_on

    for recipe in recipes_in(module):
        if recipe.task and recipe.task != options.task:  # it may be meant
            say(
                f"{options.program} was compiled for {recipe.task}, and the questions are of {options.task}"
            )
    left = questions
    if options.leave_out_compiled:
        left = not_compiled_on(module, questions, models)
        of = "the program was compiled on" if options.program else "the model was trained on"
        count = len(questions) - len(left)
        say(f"{count} questions that {of} are left out, {len(left)} are asked")
    return left if options.shard is None else left.shard(*_shard_of(options.shard))


def _floors(given: Iterable[str], questions: Questions) -> dict[str, float]:
    """The scores of --at-least, by names that the run will have. Raises: BadArgument, UnknownName."""
    from blendfilter.evaluation.rows import of_retrieval
    from blendfilter.evaluation.run_status import check_share

    floors: dict[str, float] = {}
    gold = any(question.gold_titles for question in questions)
    for one in given:
        name, _, share = one.partition("=")
        if name not in questions.task.metrics and not (gold and of_retrieval(name)):
            also = "and figures of retrieval, such as kept.recall" if gold else ""
            raise UnknownName.of("score", name, questions.task.metrics, also)
        try:
            least = float(share)
        except ValueError:
            raise BadArgument(
                f"--at-least is '{one}': give a name and a share, em=0.4"
            ) from None
        floors[name] = max(check_share(least, f"--at-least {name}"), floors.get(name, 0.0))
    return floors


def _evaluated(options: EvalOptions, module: Any, questions: Questions, **shared: Any) -> Run:
    """The run, by this process or by a cluster."""
    from blendfilter.evaluation.runner import evaluate

    if options.ray is None or options.shards is None:
        return evaluate(module, questions, replay=options.replay, **shared)
    from blendfilter.evaluation.on_ray import evaluate_on_ray

    return evaluate_on_ray(
        module,
        questions,
        address=options.ray,
        shards=options.shards,
        gpus=options.ray_gpus,
        **shared,
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
    options: EvalOptions,
) -> Path:
    """`runs/<task>-<method>-<digest>`: the same command finds its run again, another one gets another folder.

    The shards of one run share the digest: `…-1of4`.
    """
    from blendfilter.evaluation.run_settings import settings_of
    from blendfilter.journal import digest

    shard = ""
    settings = settings_of(
        module, questions, model, filter_lm=filter_lm, seed=options.seed, name=options.method
    )
    for name in ("searched", "seeds"):  # the fingerprints of passages and weights count
        settings.pop(name, None)
    if (part := questions.part) is not None:
        settings["data"] |= {"fingerprint": part.fingerprint, "n": part.n}
        del settings["data"]["shard"]
        shard = f"-{part.number}of{part.of}"
    method = options.method.replace(":", ".")
    return Path("runs") / f"{options.task}-{method}-{digest(settings)[:8]}{shard}"


def _shard_of(given: str) -> tuple[int, int]:
    """`I/N` as numbers."""
    number, _, of = given.partition("/")
    if not (number.isdecimal() and of.isdecimal()):
        raise BadArgument(f"--shard is '{given}': give a number and how many there are, 1/4")
    return int(number), int(of)


def _conclude(done: Run, *, html: bool, floors: Mapping[str, float] = {}) -> None:
    """Show the run, write its page, and end with exit code 1 where questions failed, replies are bad or scores low."""
    from blendfilter.report.run_text import report_text

    show(report_text(done, terminal_width()))
    if html:
        _write_page(done, [])
    show(f"run: {done.folder}")
    if warned := done.warnings:
        say(
            "too many bad replies (the warnings at the top): blendfilter doctor says what to change"
        )
    below = done.at_least(**floors)
    for line in below:
        say(line)
    if done.errors or warned or below:
        raise typer.Exit(1)


def _write_page(run: Run, others: list[Run]) -> None:
    """Write a run's page and say where it is; a folder that cannot be written to is a notice, not a failed command."""
    try:
        path = run.html(*others)
    except (OSError, BadArgument) as error:
        say(f"no page was written: {error}")
    else:
        show(f"page: {path}")


class MergeOptions(Settings, panel="Output"):
    """The settings of `blendfilter merge`."""

    runs: Argument[list[Path]]
    """The folders of all shards, in any order."""
    out: Path
    """The new folder of the merged run."""
    prices: PricesFile = None
    html: Html = True


@command()
def merge(options: MergeOptions) -> None:
    """Make one run of the shards of one (eval --shard I/N): the run that one process would have made.

    Example: blendfilter merge runs/blendfilter-*of4 --out runs/blendfilter
    """
    from blendfilter.evaluation.merging import merge as merge_runs

    prices = _own_prices(options.prices)
    done = merge_runs(*options.runs, out=options.out, prices=prices)
    done.prices = prices
    _conclude(done, html=options.html)


def _own_prices(file: Path | None) -> Prices | None:
    from blendfilter.lm.prices import read_prices

    return None if file is None else read_prices(file)


class PsOptions(Settings):
    """The settings of `blendfilter ps`."""

    runs: Argument[list[Path] | None] = None
    """Run folders; without them, every run in progress on this machine."""


@command()
def ps(options: PsOptions) -> None:
    """List the runs in progress: how far each is, its errors, and how many calls it made in the last minute.

    Example: blendfilter ps
    """
    from blendfilter.evaluation.control import running

    found = running(options.runs or ())
    if not found:
        say("no run is in progress")
        return
    rows = []
    for running_run in found:
        changed = [
            name if name == "paused" else f"{name} {value:,}"
            for name, value in running_run.control.model_dump(exclude_defaults=True).items()
        ]
        row = [
            str(running_run.run.folder),
            str(running_run.pid or "-"),
            f"{running_run.answered:,} of {running_run.answers:,}",
            str(running_run.errors),
            f"{running_run.calls_a_minute:,}",
            f"{running_run.seconds / 60:.1f}",
            ", ".join(changed) or "-",
        ]
        rows.append(row)
    header = ["run", "process", "answered", "errors", "calls a minute", "minutes", "changed"]
    show(Table(header, rows))


class TuneOptions(SpendingOptions, panel="Limits"):
    """The settings of `blendfilter tune`."""

    run: Argument[Path]
    """The folder of a run in progress."""
    concurrency: int | None = None
    """Model calls in flight in the whole run."""
    pause: bool = False
    """Let no further call out; those in flight are finished."""
    resume: bool = False
    """Go on after --pause."""


@command()
def tune(options: TuneOptions) -> None:
    """Change a run while it runs: calls in flight, a pause, a limit that it was started with; a second later it holds.

    Example: blendfilter tune runs/blendfilter --concurrency 64
    """
    from blendfilter.evaluation.control import tune as change

    if options.pause and options.resume:
        raise BadArgument("--pause and --resume exclude each other")
    changes = options.given("concurrency", SpendingOptions)
    if options.pause or options.resume:
        changes["paused"] = options.pause
    if not changes:
        raise BadArgument(
            "change what? --concurrency N, --pause, --resume, --max-calls, --max-tokens or --max-cost"
        )
    now = change(options.run, **changes)
    show(f"{options.run}: {now.model_dump_json(exclude_defaults=True)}")


class ReportOptions(Settings, panel="Output"):
    """The settings of `blendfilter report`."""

    runs: Argument[list[Path]]
    """A run's folder; more runs over the same questions stand beside it on the page."""
    html: bool = True
    """Write the page, report.html, into the (first) run's folder."""
    trec: bool = False
    """Write its rankings by query, run.QUERY.trec, and qrels.trec (ir_measures)."""
    prices: PricesFile = None


@command("report")
def report_command(options: ReportOptions) -> None:
    """Show a run: scores with intervals, retrieval per query, losses, events, the ledger; every question on a page.

    Example: blendfilter report runs/blendfilter runs/direct-retrieval
    """
    from blendfilter.evaluation.run import Run
    from blendfilter.report.run_text import report_text

    prices = _own_prices(options.prices)
    first, *others = opened = [Run(run) for run in options.runs]
    for run in opened:
        run.prices = prices
    show(report_text(first, terminal_width()))
    if options.trec:
        rankings, gold = first.trec()
        show("TREC: " + ", ".join(map(str, [*rankings.values(), gold])))
    if options.html:
        _write_page(first, others)


class CompareOptions(Settings, panel="Method"):
    """The settings of `blendfilter compare`."""

    runs: Argument[list[Path]]
    """Two runs or more over the same questions; the first is the baseline."""
    against: str | None = None
    """Another of them as the baseline."""
    metric: list[str] | None = None
    """Which metrics, rescored ones too, or what was retrieved (q_ex.recall, union.precision); all of the task's by
    default."""
    seed: Rare[InData[int]] = 0
    """Of the bootstrap."""
    margin: float | None = None
    """Points that a run may lose: exit code 1 unless every run is shown to lose less (non-inferiority; one index)."""
    as_json: AsJson = False


@command()
def compare(options: CompareOptions) -> None:
    """Compare runs with the first one: paired bootstrap intervals, exact McNemar, Holm's correction.

    Example: blendfilter compare runs/direct-retrieval runs/cot-retrieval runs/blendfilter
    """
    from blendfilter.evaluation.comparison import compare as compare_runs

    compared = compare_runs(
        *options.runs,
        metrics=options.metric or None,
        seed=options.seed,
        against=options.against,
        margin=options.margin,
    )
    show_figures(compared, compared.table(), as_json=options.as_json)
    if worse := [run for run, within in compared.non_inferior.items() if not within]:
        say(f"not shown non-inferior to {compared.baseline}: {', '.join(worse)}")
        raise typer.Exit(1)


class RescoreOptions(JudgeOptions, SpendingOptions):
    """The settings of `blendfilter rescore`."""

    run: Argument[Path]
    """A finished run's folder."""
    metric: Annotated[
        list[str],
        Option(
            panel="Method",
            help=f"{', '.join(METRICS)}, or llm-judge (a model judges, --lm); may be repeated.",
        ),
    ]
    prices: PricesFile = None
    concurrency: InLimits[int] = 16
    """The judge's calls in flight."""
    prompts: PromptsName = None


@command()
def rescore(options: RescoreOptions) -> None:
    """Score a finished run by other metrics: no question is answered again, and no judgement is paid for twice.

    Example: blendfilter rescore runs/blendfilter --metric cover-em
    """
    State.goes_on = True
    from blendfilter.evaluation.rescoring import JUDGED, check_name
    from blendfilter.evaluation.rows import failures, repeats_in
    from blendfilter.evaluation.run import Run

    for name in options.metric:  # all of them before the first is paid for
        check_name(name)
    budget = options.budget()
    if (options.lm is not None or budget is not None) and JUDGED not in options.metric:
        what = "--lm" if options.lm is not None else "--max-…"
        raise BadArgument(
            f"only --metric {JUDGED} asks a model: leave {what} out, or add that metric"
        )
    scored, failed = Run(options.run), False
    for name in options.metric:
        judged = name == JUDGED
        with Bars() as bars:
            done = scored.rescore(
                name,
                lm=connect(options) if judged and (options.lm or options.api_base) else None,
                concurrency=options.concurrency,
                prompts=options.prompts,
                budget=budget if judged else None,
                progress=bars,
            )
        show(done.signature)
        if done.ledger is not None:
            took = ", ".join(
                f"{name} {done.ledger[name]}"
                for name in ("calls", "tokens_in", "tokens_out", "cost")
            )
            show(f"judged by {options.lm}: {took}; {done.unreadable} unreadable")
        if done.unreadable > UNSURE * len(done.rows):
            say(
                f"{done.unreadable} of {len(done.rows)} verdicts are unreadable and count as 0: take another judge"
            )
        failed |= done.errors > 0  # `rescore` warned
    if scored.errors:
        say(f"{failures(scored.rows, repeats_in(scored.settings))}, by every metric")
    show(f"kept in {options.run / 'rescore'}")
    if failed:
        raise typer.Exit(1)
