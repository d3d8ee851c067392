"""`blendfilter compile`: a DSPy optimiser over a filter or a method, saved as a program with its recipe.

FilCo's filters are compiled against silver contexts (a file, or one made of questions), CDIT's judge against passages
that are gold and others, a method against its task's metric.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import Field

from blendfilter.cli.app import State, command
from blendfilter.cli.console import Bars, say, show
from blendfilter.cli.making import (
    DEFAULT_K,
    connect,
    connect_both,
    maker,
    prompts_in,
    retriever,
    say_unshown,
    say_what_answers,
)
from blendfilter.cli.options import (
    METHODS,
    TASKS,
    AnySources,
    DemosFile,
    FilterModelOptions,
    FilterName,
    KOfMethod,
    Limit,
    MethodOptions,
    ModelOptions,
    Models,
    PricesFile,
    PromptsName,
    ReplyTokens,
    RuleOptions,
    SpendingOptions,
)
from blendfilter.cli.silver import say_left_out
from blendfilter.errors import BadArgument, UnknownName
from blendfilter.settings import Argument, Decoding, Option, Rare, Settings
from blendfilter.table import Table

if TYPE_CHECKING:
    import dspy

    from blendfilter.compiling.compile import Compiled
    from blendfilter.filters.cdit import Mode
    from blendfilter.filters.filco import Unit
    from blendfilter.oracles.measures import Measure

FILTERS: dict[str, Unit] = {"filco": "sentence", "filco-passage": "passage"}
"""What is compiled against silver contexts."""
JUDGES: dict[str, Mode] = {"cdit": "word", "cdit-components": "components"}
"""What is compiled against gold passages and others; anything else is a method, compiled against answers."""
Examples = list["dspy.Example"]
Material = tuple[Any, Examples, Examples, Callable[..., Any], str]
"""The module, the examples it is compiled on and those held back, its metric, and what the recipe calls the measure."""


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
    """Questions that are compiled on."""
    valid: Rare[int] = Field(20, ge=1)
    """Questions held back for the scores before and after."""
    seed: Rare[int] = 0
    """Of the split and of every random choice."""
    negatives: Annotated[int | None, Option(rare=True, of=(*JUDGES,))] = Field(None, ge=1)
    """cdit: passages of a question that are not gold (1); gold ones are as many at most."""


class MIPROOptions(Settings, panel="Method", of=("mipro",)):
    """How far mipro and gepa search."""

    candidates: Rare[int | None] = Field(None, ge=2)
    """mipro: instructions, and sets of demonstrations, to choose from (4)."""
    trials: Rare[int | None] = Field(None, ge=1)
    """mipro: combinations tried (8)."""
    metric_calls: Annotated[int | None, Option(rare=True, of=("gepa",))] = Field(None, ge=1)
    """gepa: answers measured. Without it: by the data's size."""


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
    RuleOptions,
    MIPROOptions,
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
            help="filco, filco-passage (against silver contexts); cdit, cdit-components (against gold passages and "
            f"others); or a method: {', '.join(METHODS)}."
        ),
    ]
    task: Annotated[str, Option(panel="Data", help=f"{', '.join(TASKS)}.")]
    out: Annotated[Path, Option(panel="Output")]
    """The program's file, JSON: --program of ask and eval reads it."""
    run: Annotated[Path, Option(panel="Output")]
    """The folder of the journal; the same command again goes on there."""
    filter: FilterName = None
    optimizer: str = "bootstrap"
    """labeled (training rows as demonstrations), bootstrap (answers of the model that the metric accepts),
    mipro (instructions and demonstrations, searched; wants optuna), gepa (instructions, by reflection)."""
    max_demos: Rare[int] = Field(4, ge=0)
    """Demonstrations a predictor gets at the most."""
    max_demo_tokens: Rare[int | None] = Field(None, ge=0)
    """Tokens that a predictor's demonstrations may have; the longest are dropped first."""
    mode: Annotated[str | None, Option(rare=True, of=(*JUDGES,))] = None
    """cdit: word (one word, True or False; the default) or components (what was compared too)."""
    threshold: Rare[float | None] = None
    """The score from which an answer may become a demonstration (filco 0.55, a method 1)."""
    teacher_lm: Annotated[str | None, Option(panel="Model")] = None
    """A better model that fills demonstrations, proposes and reflects. Without it: --lm."""
    prompts: PromptsName = None
    demos: DemosFile = None
    reply_tokens: ReplyTokens = None
    concurrency: Annotated[int, Option(panel="Limits", rare=True)] = Field(4, ge=1)
    """Model calls in flight."""
    prices: PricesFile = None

    def check(self) -> None:
        """Raise `BadArgument` or `UnknownName` for options that do not go together."""
        from blendfilter.compiling.optimisers import OPTIMIZERS

        what = self.what
        if self.optimizer not in OPTIMIZERS:
            raise UnknownName.of("optimiser", self.optimizer, OPTIMIZERS)
        if what not in (*FILTERS, *JUDGES, *METHODS) and ":" not in what:
            known = (*FILTERS, *JUDGES, *METHODS)
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
        if needless and what in (*FILTERS, *JUDGES):
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

    def note(self) -> str:
        """That the examples are the sample world's, where they are."""
        source = {} if self.silver is None else _silver_settings(self.silver).get("data", {})
        sample = "sample" in (self.data, source.get("source"))
        return "compiled on the sample world: shows the form, not a gain" if sample else ""


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

    what, task, run, out = options.what, options.task, options.run, options.out
    check_place(out)
    options.check()
    budget = options.budget()
    connects, connects_filter = connect_both(options)
    lm, filter_lm = connects(), connects_filter()
    teacher = None
    if options.teacher_lm is not None:
        teacher = connect(ModelOptions(lm=options.teacher_lm), prices=options.prices)
    with Bars() as bars:
        if what in FILTERS:
            student, train, valid, metric, measure = _filter(options, bars)
        elif what in JUDGES:
            student, train, valid, metric, measure = _judge(options)
        else:
            student, train, valid, metric, measure = _method(options)
        say_what_answers(options, options.prompts, student)
        done = compile_program(
            student,
            train,
            valset=valid,
            metric=metric,
            run=run,
            optimizer=options.optimizer,
            lm=lm,
            teacher=teacher,
            filter_lm=filter_lm,
            seed=options.seed,
            max_demos=options.max_demos,
            max_demo_tokens=options.max_demo_tokens,
            **options.given(MIPROOptions),
            concurrency=options.concurrency,
            budget=budget,
            task=task,
            measure=measure,
            note=options.note(),
            out=out,
            progress=bars,
        )
    save_program(done.program, out, done.recipe)
    scored = (
        "balanced accuracy, {} pairs held back" if what in JUDGES else "score on {} held back"
    )
    _summarise(done, out, scored, changed=state_of(done.program) != state_of(student))


def _wording_of(task: str) -> str:
    from blendfilter.tasks import TASKS

    if task not in TASKS:
        raise UnknownName.of("task", task, TASKS)
    wording: str = TASKS[task].wording
    return wording


def _filter(options: CompileOptions, progress: Bars) -> Material:
    from blendfilter.asking import TaskWording
    from blendfilter.compiling.silver import silver_examples, silver_metric
    from blendfilter.filters.registry import make_filter
    from blendfilter.oracles.measures import MEASURES, can_label, measure_for
    from blendfilter.oracles.silver_rows import read_silver

    what, task, templates = options.what, options.task, prompts_in(options.prompts)
    wording = TaskWording.of(_wording_of(task)).with_demos(options.demos)
    weights = options.given(WeightOptions, "threshold")
    metric = silver_metric(
        **{name.removeprefix("weight_"): value for name, value in weights.items()},
        wording=wording,
        prompts=templates,
    )
    student = make_filter(what, wording=wording, prompts=templates)
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

    return student, *options.split(examples(file), examples), metric, measure


def _judge(options: CompileOptions) -> Material:
    from blendfilter.asking import TaskWording
    from blendfilter.compiling.examples import consistency, consistency_examples
    from blendfilter.filters.cdit import CDITFilter, choose_rules
    from blendfilter.tasks import load

    what, task = options.what, options.task
    wording = TaskWording.of(_wording_of(task)).with_demos(options.demos)
    wording = wording.with_reply_tokens(options.reply_tokens)
    rules = choose_rules(options.rule or (), options.rules)
    # the judge itself refuses one that it does not know
    mode = cast("Mode", options.mode or JUDGES[what])
    student = CDITFilter(mode, rules, wording=wording, prompts=prompts_in(options.prompts))
    say_unshown(options.demos, student, what)

    def examples(data: str | Path | None, limit: int | None = None) -> Examples:
        questions = load(task, data, limit=limit)
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

    halves = options.split(examples(options.data, options.limit), examples)
    train, valid = ([pair for each in half for pair in each.pairs] for half in halves)
    return (
        student,
        train,
        valid,
        consistency,
        f"consistency {'+'.join(rule.name for rule in rules)}",
    )


def _method(options: CompileOptions) -> Material:
    from blendfilter.compiling.measuring import AcceptingMetric
    from blendfilter.tasks import load

    task = options.task
    questions = load(task, options.data, limit=options.limit)
    how = MethodOptions(
        method=options.what,
        **options.given("k", "filter", "prompts", "demos", "reply_tokens"),
    )
    make = maker(how, questions.task.wording, top_p=options.top_p)
    halves = options.split(questions.examples(), lambda path: load(task, path).examples())
    module = make(options.retriever(questions))
    metric = (
        questions.metric
        if options.threshold is None
        else AcceptingMetric(questions.metric, options.threshold)
    )
    return module, *halves, metric, questions.task.metrics[0]


def _measure_of(silver: Path, task: str, measure: str | None) -> str:
    """The oracle of a silver file: as its recipe says, else `measure`. Raises: BadArgument where they differ."""
    oracle = _silver_settings(silver).get("oracle", {})
    for name, wanted in (("task", task), ("measure", measure)):
        if wanted is not None and wanted != (known := oracle.get(name, wanted)):
            raise BadArgument(
                f"{silver} was made with {name} {known}, not {wanted}: give --{name} {known}, or another file"
            )
    return measure or str(oracle.get("measure", ""))


def _silver_settings(silver: Path) -> dict[str, Any]:
    """How a silver file was made, by its recipe; nothing where it has none."""
    from blendfilter.oracles.silver_making import Places, read_recipe

    return dict(read_recipe(Places.of(silver)).get("settings", {}))


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
    title = f"{recipe.module} by {recipe.optimizer}, {recipe.task} {recipe.measure}"
    show(Table(["", "before", "after"], rows, title))
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
