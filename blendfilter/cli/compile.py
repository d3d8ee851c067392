"""`blendfilter compile`: a DSPy optimiser over a filter or a method, saved as a program with its recipe.

FilCo's filters are compiled against silver contexts (a file, or one made of questions), CDIT's judge and BlendFilter's
knowledge filters against passages that are gold and others, a method against its task's metric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

from pydantic import Field

from blendfilter.cli.app import State, command
from blendfilter.cli.console import Bars, say, show
from blendfilter.cli.making import (
    DEFAULT_K,
    connect,
    connect_both,
    maker,
    retriever,
    say_unshown,
    say_what_answers,
)
from blendfilter.cli.options import (
    METHODS,
    TASKS,
    AnySources,
    FilterModelOptions,
    FilterName,
    InLimits,
    InModel,
    InOutput,
    KOfMethod,
    Limit,
    MethodOptions,
    ModelOptions,
    Models,
    PricesFile,
    PromptOptions,
    RuleOptions,
    SpendingOptions,
)
from blendfilter.cli.silver import say_left_out
from blendfilter.compiling.settings import SearchSettings
from blendfilter.errors import BadArgument, UnknownName
from blendfilter.settings import Argument, Decoding, Option, Rare, Settings
from blendfilter.table import Table

if TYPE_CHECKING:
    import dspy

    from blendfilter.compiling.compile import Compiled
    from blendfilter.filters.cdit import Mode
    from blendfilter.filters.filco import Unit
    from blendfilter.lm.model import ConnectedLM
    from blendfilter.oracles.measures import Measure
    from blendfilter.tasks import Questions

FILTERS: dict[str, Unit] = {"filco": "sentence", "filco-passage": "passage"}
"""What is compiled against silver contexts."""
JUDGES: dict[str, Mode] = {"cdit": "word", "cdit-components": "components"}
"""What is compiled against single passages, gold ones and others."""
SELECTORS = ("knowledge", "one-call")
"""What is compiled against the gold ones among passages; anything else is a method, compiled against answers."""
POOLS = {
    **dict.fromkeys(FILTERS, "filco"),
    **dict.fromkeys(JUDGES, "cdit"),
    **dict.fromkeys(SELECTORS, "knowledge"),
}
"""The pool of each."""
Examples = list["dspy.Example"]


class Material(NamedTuple):
    """What `compile_program` compiles, on which examples, by which metric, and its name in the recipe."""

    student: Any
    trainset: Examples
    valset: Examples
    metric: Callable[..., Any]
    measure: str
    pool: Sequence[dspy.Example] = ()
    beside: tuple[str, Callable[..., float]] | None = None


class ExampleOptions(AnySources, panel="Data"):
    """Where the examples come from."""

    data: str | None = None
    """A question file with answers; 'hub' (Hugging Face), or 'sample'."""
    silver: Annotated[Path | None, Option(of=(*FILTERS,))] = None
    """filco: a file that 'blendfilter silver' made; without it, one is made in the run's folder."""
    valid_data: Rare[Path | None] = None
    """A file of the same kind whose questions are held back, in place of a part of the first."""
    measure: Annotated[str | None, Option(rare=True, of=(*FILTERS,))] = None
    """filco: the oracle, strinc or lexical (cxmi: with --silver). Without it: the task's own."""
    k: KOfMethod = None
    limit: Limit = None
    allow_empty_answers: Annotated[bool, Option(rare=True, of=(*FILTERS,))] = False
    """filco: choose nothing where a question's answers are articles and punctuation alone."""
    train: int = Field(40, ge=1)
    """Questions that are compiled on; with --pool, those by which demonstrations are chosen."""
    pool: Annotated[str | None, Option(of=(*POOLS,))] = None
    """Where demonstrations come from: own (the package's examples) or a file of such; else from the questions."""
    valid: Rare[int] = Field(20, ge=1)
    """Questions held back for the scores before and after."""
    negatives: Annotated[int | None, Option(rare=True, of=(*JUDGES,))] = Field(None, ge=1)
    """cdit: passages of a question that are not gold (1); gold ones are as many at most."""


class WeightOptions(Settings, panel="Method", of=(*FILTERS,)):
    """The weights of FilCo's metric."""

    weight_agreement: Rare[float | None] = None
    """filco: what agreement with silver counts (1)."""
    weight_answer: Rare[float | None] = None
    """filco: what the F1 of an answer over what was kept counts (0.5); 0 asks for no answer."""
    weight_tokens: Rare[float | None] = None
    """filco: what is taken off for the share of words that was kept (0.1)."""


class CompileOptions(
    ExampleOptions,
    SearchSettings,
    PromptOptions,
    RuleOptions,
    WeightOptions,
    Models,
    Decoding,
    SpendingOptions,
    panel="Method",
):
    """The settings of `blendfilter compile`."""

    what: Annotated[
        Argument[str],
        Option(
            help="filco, filco-passage (against silver contexts); cdit, cdit-components, knowledge, one-call (against "
            f"gold passages and others); or a method: {', '.join(METHODS)}."
        ),
    ]
    task: Annotated[str, Option(panel="Data", help=f"{', '.join(TASKS)}.")]
    out: InOutput[Path]
    """The program's file, JSON: --program of ask and eval reads it."""
    run: InOutput[Path]
    """The folder of the journal; the same command again goes on there."""
    plan: InLimits[bool] = False
    """Say how many calls and tokens it would take, and what they would cost; no model is asked."""
    filter: FilterName = None
    mode: Annotated[str | None, Option(rare=True, of=(*JUDGES,))] = None
    """cdit: word (one word, True or False; the default) or components (what was compared too)."""
    threshold: Rare[float | None] = None
    """The score from which an answer may become a demonstration (filco 0.55, a method 1)."""
    teacher_lm: Rare[InModel[str | None]] = None
    """A better model that fills demonstrations, proposes and reflects. Without it: --lm."""
    concurrency: Rare[InLimits[int]] = Field(4, ge=1)
    """Model calls in flight."""
    prices: PricesFile = None

    def check(self) -> None:
        """Raise `BadArgument` or `UnknownName` for options that do not go together."""
        from blendfilter.compiling.optimisers import OPTIMIZERS

        what = self.what
        if self.optimizer not in OPTIMIZERS:
            raise UnknownName.of("optimiser", self.optimizer, OPTIMIZERS)
        known = (*POOLS, *METHODS)
        if what not in known and ":" not in what:
            raise UnknownName.of(
                "filter or method", what, known, "- or package:Class for one of your own"
            )
        self.check_given(what, self.optimizer)
        if what not in JUDGES and (needless := self.given_options(RuleOptions)):
            raise BadArgument(f"{needless[0]} is for {' and '.join(JUDGES)}: leave it out")
        if what in JUDGES and self.threshold is not None:
            raise BadArgument(
                f"--threshold is for scores; a verdict of {what} is right or wrong: leave it"
            )
        if self.data is None and self.silver is None:
            or_silver = ", or --silver FILE" if what in FILTERS else ""
            raise BadArgument(
                f"what is it compiled on? Give --data FILE, 'hub' or 'sample'{or_silver}"
            )
        of_questions = self.given_options(
            "data", "corpus", "index", "retrieved", "k", "limit", "allow_empty_answers"
        )
        if self.silver is not None and of_questions:
            raise BadArgument(
                f"{of_questions[-1]} is for a silver file to be made; {self.silver} holds its passages: leave it"
            )
        if self.reply_tokens is not None and what in FILTERS:
            raise BadArgument(
                f"--reply-tokens is for reasonings, passages and judgements; {what} replies with ids: leave it out"
            )
        needless = self.given_options("filter", FilterModelOptions)
        if needless and what in POOLS:
            raise BadArgument(f"{needless[0]} is for methods; {what} is a filter itself")

    def retriever(self, questions: Any) -> Any:
        """What is searched; for the sample's questions, the sample corpus."""
        return retriever(self, questions, k=self.k, sample=self.data == "sample")

    def split(
        self, examples: Examples, read: Callable[[Path], Examples]
    ) -> tuple[Examples, Examples]:
        """What is compiled on and what is held back; `read` makes examples of a file."""
        from blendfilter.compiling.examples import drawn

        if self.valid_data is None:
            both = drawn(examples, self.train + self.valid, self.seed)
            return both[: self.train], both[self.train :]
        return drawn(examples, self.train, self.seed), drawn(
            read(self.valid_data), self.valid, self.seed
        )

    def halves(self, examples: Callable[[Questions], Examples]) -> tuple[Examples, Examples]:
        """The same of question files."""
        from blendfilter.tasks import load

        questions = load(self.task, self.data, limit=self.limit)
        return self.split(examples(questions), lambda path: examples(load(self.task, path)))

    def pooled(self) -> list[Any]:
        """The rows of the pool; none without one."""
        from blendfilter.compiling.pool import read_pool

        return [] if self.pool is None else read_pool(POOLS[self.what], self.pool)

    def note(self) -> str:
        """That the examples are the sample world's, where they are."""
        from blendfilter.oracles.silver_making import Places, read_recipe

        source = self.data
        if self.silver is not None:
            settings = read_recipe(Places.of(self.silver)).get("settings", {})
            source = settings.get("data", {}).get("source")
        return (
            "compiled on the sample world: shows the form, not a gain"
            if source == "sample"
            else ""
        )


@command("compile")
def compile_command(options: CompileOptions) -> None:
    """Compile a filter or a method with a DSPy optimiser, and save it as a program.

    A filter is compiled against silver contexts, a method against its task's metric, CDIT's judge against gold passages
    and others. The scores before and after are those of questions that the optimiser never saw; where nothing was
    gained, they say so.

    Example: blendfilter compile filco --task nq --data nq.jsonl --corpus wiki.jsonl.gz --lm openai/gpt-4o-mini
    --out programs/nq/filco.json --run runs/compile-nq
    """
    State.goes_on = (
        True  # before the imports: these take a second, in which one may stop the command
    )
    from blendfilter.compiling.compile import compile_program
    from blendfilter.compiling.programs import check_place, save_program, state_of

    what, run, out = options.what, options.run, options.out
    check_place(out)
    options.check()
    budget = options.budget()
    connects, connects_filter = connect_both(options, keyless=options.plan)
    lm, filter_lm = connects(), connects_filter()
    teacher = None
    if options.teacher_lm is not None:
        teacher = connect(
            ModelOptions(lm=options.teacher_lm), prices=options.prices, keyless=options.plan
        )
    with Bars() as bars, ExitStack() as stack:
        if options.plan:
            options = options.but(run=Path(stack.enter_context(TemporaryDirectory())))
        if what in FILTERS:
            given = _filter(options, bars)
        elif what in JUDGES:
            given = _judge(options)
        elif what in SELECTORS:
            given = _selector(options)
        else:
            given = _method(options)
        say_what_answers(options, given.student)
        compiled = partial(
            compile_program,
            **given._asdict(),
            **options.given(SearchSettings, "task", "concurrency"),
            note=options.note(),
            progress=bars,
        )
        models: dict[str, Any] = {"lm": lm, "teacher": teacher, "filter_lm": filter_lm}
        if options.plan:
            _plan(compiled, models, options.run)
            return
        done = compiled(**models, budget=budget, run=run, out=out)
    save_program(done.program, out, done.recipe)
    scored = (
        "balanced accuracy, {} pairs held back" if what in JUDGES else "score on {} held back"
    )
    _summarise(done, out, scored, changed=state_of(done.program) != state_of(given.student))


def _plan(
    compiled: Callable[..., Compiled],
    models: Mapping[str, ConnectedLM | None],
    folder: Path,
) -> None:
    """Say what the work would take, from a rehearsal by the offline reader."""
    from blendfilter.evaluation.ledger import money
    from blendfilter.evaluation.plan import Estimator, Rehearsal, added, of_models

    rehearsal, estimator = Rehearsal(), Estimator()
    stand_ins = {name: rehearsal.stand_in(model) for name, model in models.items() if model}
    compiled(**stand_ins, run=folder / "rehearsal")
    by_stage, everything = dict[str, list[Any]](), estimator.estimates(rehearsal.calls)
    for estimate in everything:
        by_stage.setdefault(estimate.call.stage or "proposing", []).append(estimate)
    rows = []
    for name, estimates in {**by_stage, "total": everything}.items():
        tokens = (added(estimates, figure) for figure in ("tokens_in", "tokens_out"))
        counts = (f"{count:,.0f}" for count in (len(estimates), *tokens))
        rows.append([name, *counts, money(added(estimates, "cost"))])
    notes = [
        "nothing was spent: the offline reader stood in for the model, whose replies decide how many calls there are",
        *of_models("tokens", estimator.tokenisers),
        *of_models("prices", estimator.prices),
    ]
    header = ["stage", "calls", "tokens in", "tokens out", "cost"]
    show(Table(header, rows, "plan", notes=notes, totals=1))


def _filter(options: CompileOptions, progress: Bars) -> Material:
    from blendfilter.compiling.silver import silver_examples, silver_metric
    from blendfilter.filters.registry import make_filter
    from blendfilter.oracles.measures import MEASURES, can_label, measure_for
    from blendfilter.oracles.silver_rows import read_silver

    what, task = options.what, options.task
    worded: dict[str, Any] = {"wording": options.worded(task), "prompts": options.prompts}
    weights = options.given(WeightOptions, "threshold")
    metric = silver_metric(
        **{name.removeprefix("weight_"): value for name, value in weights.items()}, **worded
    )
    student = make_filter(what, **worded)
    if options.measure is not None and options.measure not in MEASURES:
        raise UnknownName.of("measure", options.measure, MEASURES)
    if options.silver is not None:
        measure = _measure_of(options.silver, task, options.measure)
        file = options.silver
    else:
        measure = chosen = cast("Measure", options.measure) or measure_for(task)
        file = _make_silver(options, chosen, progress)
    if options.valid_data is not None:
        _measure_of(options.valid_data, task, measure)

    def examples(path: Path) -> Examples:
        rows = list(read_silver(path))
        labelled = [row for row in rows if can_label(measure, row.golden_answers)]
        if rows and not labelled:
            raise BadArgument(
                f"{path}: {measure} cannot label an answer of yes or no, and all its rows have one: make it again with "
                "another measure (blendfilter silver --measure lexical or cxmi)"
            )
        say_left_out(measure, len(rows) - len(labelled), len(labelled))
        return silver_examples(labelled, FILTERS[what])

    pool = [row.example(FILTERS[what]) for row in options.pooled()]
    return Material(student, *options.split(examples(file), examples), metric, measure, pool)


def _judge(options: CompileOptions) -> Material:
    from blendfilter.compiling.examples import consistency, consistency_examples
    from blendfilter.filters.cdit import CDITFilter

    rules = options.chosen_rules()
    # the judge itself refuses one that it does not know
    mode = cast("Mode", options.mode or JUDGES[options.what])
    wording = options.worded(options.task)
    student = CDITFilter(mode, rules, wording=wording, prompts=options.prompts)
    say_unshown(options.demos, student, options.what)

    def examples(questions: Questions) -> Examples:
        made = consistency_examples(
            questions,
            rules=rules,
            retriever=options.retriever(questions),
            k=options.k or DEFAULT_K,
            negatives=options.negatives or 1,
            seed=options.seed,
        )
        if len(made) < len(questions):
            say(
                f"{len(questions) - len(made)} of {len(questions)} questions are left out: among what is found for "
                "them there is no gold passage, or no other"
            )
        return made

    halves = options.halves(examples)
    train, valid = ([pair for each in half for pair in each.pairs] for half in halves)
    pool = [row.example(rules) for row in options.pooled()]
    measure = f"consistency {'+'.join(rule.name for rule in rules)}"
    return Material(student, train, valid, consistency, measure, pool)


def _selector(options: CompileOptions) -> Material:
    from blendfilter.compiling import examples
    from blendfilter.filters.registry import make_filter

    wording = options.worded(options.task)
    student = make_filter(options.what, wording=wording, prompts=options.prompts)

    def relevant(questions: Questions) -> Examples:
        retriever = options.retriever(questions)
        if retriever is None:
            raise BadArgument(
                f"{options.what} chooses among passages that are found: name a corpus (--corpus, --index)"
            )
        k = options.k or DEFAULT_K
        return examples.relevance_examples(questions, retriever, k=k, seed=options.seed)

    halves = options.halves(relevant)
    pool = [row.example() for row in options.pooled()]
    order = ("the retriever's first, as many as are kept", examples.relevance_of_order)
    return Material(student, *halves, examples.relevance, "relevance", pool, order)


def _method(options: CompileOptions) -> Material:
    from blendfilter.compiling.measuring import AcceptingMetric
    from blendfilter.tasks import load

    task = options.task
    questions = load(task, options.data, limit=options.limit)
    how = MethodOptions(method=options.what, **options.given("k", "filter", PromptOptions))
    make = maker(how, questions.task.wording, top_p=options.top_p)
    halves = options.split(questions.examples(), lambda path: load(task, path).examples())
    module = make(options.retriever(questions))
    metric: Callable[..., Any] = questions.metric
    if options.threshold is not None:
        metric = AcceptingMetric(metric, options.threshold)
    return Material(module, *halves, metric, questions.task.metrics[0])


def _measure_of(silver: Path, task: str, measure: str | None) -> str:
    """The oracle of a silver file: as its recipe says, else `measure`. Raises: BadArgument where they differ."""
    from blendfilter.oracles.silver_making import oracle_of

    oracle = oracle_of(silver)
    for name, wanted in (("task", task), ("measure", measure)):
        if wanted is not None and wanted != (known := oracle.get(name, wanted)):
            raise BadArgument(
                f"{silver} was made with {name} {known}, not {wanted}: give --{name} {known}, or another file"
            )
    return measure or str(oracle.get("measure", ""))


def _make_silver(options: CompileOptions, measure: Measure, progress: Bars) -> Path:
    """A silver file in the run's folder."""
    from blendfilter.oracles.oracle import Oracle
    from blendfilter.oracles.silver_making import labelled, make_silver
    from blendfilter.tasks import load

    task, out = options.task, options.run / "silver.jsonl"
    if measure == "cxmi":
        raise BadArgument(
            f"cxmi asks a model that can score: make the file first (blendfilter silver {task} --measure cxmi "
            "--lm NAME --out silver.jsonl) and give it as --silver, or take --measure strinc or lexical"
        )
    questions = load(task, options.data, limit=options.limit)
    labelled(questions, measure)
    summary = make_silver(
        questions,
        Oracle(measure, task=task),
        out,
        retriever=options.retriever(questions),
        k=options.k or DEFAULT_K,
        allow_empty_answers=options.allow_empty_answers,
        progress=progress,
    )
    say_left_out(measure, summary.left_out, summary.n)
    return out


def _summarise(done: Compiled, out: Path, scored: str, *, changed: bool) -> None:
    recipe, spent = done.recipe, done.spent
    before, after, predictors = recipe.before, recipe.after, len(recipe.fields)
    rows = [[scored.format(before.n), f"{before.value:.3f}", f"{after.value:.3f}"]]
    if before.failed or after.failed:
        rows.append(["of these without an answer", str(before.failed), str(after.failed)])
    if recipe.beside is not None:
        rows.append([recipe.beside.metric, "", f"{recipe.beside.before:.3f}"])
    title = f"{recipe.module} by {recipe.optimizer}, {recipe.task} {recipe.measure}"
    show(Table(["", "before", "after"], rows, title))
    for words, gain in (("gain", recipe.gain), ("beside that order", recipe.beside)):
        if gain is not None:
            difference = gain.after - gain.before
            show(
                f"{words}: {difference:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}], paired, 95 %"
            )
    show(
        f"demonstrations: {recipe.settings['demos']} over {predictors} predictor{'s'[: predictors != 1]}; "
        f"the journal holds {spent.calls:,} calls, {spent.tokens_in:,} tokens in, {spent.tokens_out:,} out"
    )
    if not changed:
        say(
            "the compiled program is the plain one: the optimiser found nothing that the metric accepts or likes better"
        )
    if after.value > before.value:
        show(recipe.outcome)
    else:
        say(f"{recipe.outcome}; the program is written all the same, and says so")
    show(f"program: {out}")
