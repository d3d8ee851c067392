"""`blendfilter compile`: a DSPy optimiser over a filter or a method, saved as a program with its recipe.

FilCo's filters are compiled against silver contexts (a file, or one made of questions), CDIT's judge against passages
that are gold and others, a method against its task's metric.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

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
    DemosFile,
    FilterModelOptions,
    FilterName,
    KOfMethod,
    Limit,
    MethodOptions,
    ModelOptions,
    PassageOptions,
    PricesFile,
    PromptsName,
    ReplyTokens,
    RuleName,
    RulesFile,
    SpendingOptions,
    declared,
    given,
    given_values,
    option,
)
from blendfilter.cli.silver import say_left_out
from blendfilter.errors import BadArgument, UnknownName
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
WEIGHTS = ("weight_agreement", "weight_answer", "weight_tokens")
TAKERS = {
    **dict.fromkeys(("silver", "measure", "allow_empty_answers", *WEIGHTS), tuple(FILTERS)),
    **dict.fromkeys(("mode", "rule", "rules", "negatives"), tuple(JUDGES)),
    **dict.fromkeys(("candidates", "trials"), ("mipro",)),
    "metric_calls": ("gepa",),
}
"""Options that only some of what is compiled, or some optimisers, take."""
Examples = list["dspy.Example"]
Material = tuple[Any, Examples, Examples, Callable[..., Any], str]
"""The module, the examples it is compiled on and those held back, its metric, and what the recipe calls the measure."""


@dataclass(frozen=True)
class CompileOptions(PassageOptions):
    """Where the examples come from, how a judge reads them, and the optimiser."""

    data: str | None = option(
        "Data", "A question file with answers; 'hub' (Hugging Face), or 'sample'."
    )
    silver: Path | None = option(
        "Data",
        "filco: a file that 'blendfilter silver' made; without it, one is made in the run's folder.",
    )
    valid_data: Path | None = option(
        "Data",
        "A file of the same kind whose questions are held back, in place of a part of the first.",
        rare=True,
    )
    measure: str | None = option(
        "Data",
        "filco: the oracle, strinc or lexical (cxmi: with --silver). Without it: the task's own.",
        rare=True,
    )
    k: KOfMethod = None
    limit: Limit = None
    allow_empty_answers: bool = option(
        "Data",
        "filco: choose nothing where a question's answers are articles and punctuation alone.",
        "--allow-empty-answers",
        default=False,
        rare=True,
    )
    train: int = option("Data", "Questions that are compiled on.", default=40, min=1)
    valid: int = option(
        "Data", "Questions held back for the scores before and after.", default=20, min=1, rare=True
    )
    seed: int = option("Data", "Of the split and of every random choice.", default=0, rare=True)
    mode: str | None = option(
        "Method",
        "cdit: word (one word, True or False; the default) or components (what was compared too).",
        rare=True,
    )
    rule: RuleName = None
    rules: RulesFile = None
    negatives: int | None = option(
        "Data",
        "cdit: passages of a question that are not gold (1); gold ones are as many at most.",
        min=1,
        rare=True,
    )
    optimizer: str = option(
        "Method",
        "labeled (training rows as demonstrations), bootstrap (answers of the model that the metric accepts), "
        "mipro (instructions and demonstrations, searched; wants optuna), gepa (instructions, by reflection).",
        default="bootstrap",
    )
    teacher_lm: str | None = option(
        "Model",
        "A better model that fills demonstrations, proposes and reflects. Without it: --lm.",
    )
    max_demos: int = option(
        "Method", "Demonstrations a predictor gets at the most.", default=4, min=0, rare=True
    )
    max_demo_tokens: int | None = option(
        "Method",
        "Tokens that a predictor's demonstrations may have; the longest are dropped first.",
        min=0,
        rare=True,
    )
    candidates: int | None = option(
        "Method",
        "mipro: instructions, and sets of demonstrations, to choose from (4).",
        min=2,
        rare=True,
    )
    trials: int | None = option("Method", "mipro: combinations tried (8).", min=1, rare=True)
    metric_calls: int | None = option(
        "Method", "gepa: answers measured. Without it: by the data's size.", min=1, rare=True
    )
    weight_agreement: float | None = option(
        "Method", "filco: what agreement with silver counts (1).", rare=True
    )
    weight_answer: float | None = option(
        "Method",
        "filco: what the F1 of an answer over what was kept counts (0.5); 0 asks for no answer.",
        rare=True,
    )
    weight_tokens: float | None = option(
        "Method", "filco: what is taken off for the share of words that was kept (0.1).", rare=True
    )
    threshold: float | None = option(
        "Method",
        "The score from which an answer may become a demonstration (filco 0.55, a method 1).",
        rare=True,
    )

    def check(self, what: str, filter: str | None) -> None:
        """Raise `BadArgument` or `UnknownName` for options that do not go with `what` or the optimiser."""
        from blendfilter.compiling.optimisers import OPTIMIZERS

        if self.optimizer not in OPTIMIZERS:
            raise UnknownName.of("optimiser", self.optimizer, OPTIMIZERS)
        if what not in (*FILTERS, *JUDGES, *METHODS) and ":" not in what:
            known = (*FILTERS, *JUDGES, *METHODS)
            raise UnknownName.of(
                "filter or method", what, known, "- or package:Class for one of your own"
            )
        if filter is not None and what in (*FILTERS, *JUDGES):
            raise BadArgument(f"--filter is for methods; {what} is a filter itself")
        for name, takers in TAKERS.items():
            one = self.optimizer if takers[0] in OPTIMIZERS else what
            if one not in takers and (options := given(self, name)):
                raise BadArgument(
                    f"{options[0]} is for {' and '.join(takers)}; {one} does not take it: leave it"
                )
        if what in JUDGES and self.threshold is not None:
            raise BadArgument(
                f"--threshold is for scores; a verdict of {what} is right or wrong: leave it"
            )
        if self.data is None and self.silver is None:
            or_silver = ", or --silver FILE" if what in FILTERS else ""
            raise BadArgument(
                f"what is it compiled on? Give --data FILE, 'hub' or 'sample'{or_silver}"
            )
        of_questions = given(
            self, "data", "corpus", "index", "retrieved", "k", "limit", "allow_empty_answers"
        )
        if self.silver is not None and of_questions:
            raise BadArgument(
                f"{of_questions[-1]} is for a silver file to be made; {self.silver} holds its passages: leave it"
            )

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
def compile_command(
    what: Annotated[
        str,
        typer.Argument(
            help="filco, filco-passage (against silver contexts); cdit, cdit-components (against gold passages and "
            f"others); or a method: {', '.join(METHODS)}."
        ),
    ],
    options: CompileOptions,
    model: ModelOptions,
    filter_model: FilterModelOptions,
    limits: SpendingOptions,
    *,
    task: Annotated[str, declared("Data", help=f"{', '.join(TASKS)}.")],
    out: Annotated[
        Path,
        declared("Output", help="The program's file, JSON: --program of ask and eval reads it."),
    ],
    run: Annotated[
        Path,
        declared("Output", help="The folder of the journal; the same command again goes on there."),
    ],
    filter: FilterName = None,
    prompts: PromptsName = None,
    demos: DemosFile = None,
    reply_tokens: ReplyTokens = None,
    concurrency: Annotated[
        int, declared("Limits", min=1, rare=True, help="Model calls in flight.")
    ] = 4,
    prices: PricesFile = None,
) -> None:
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

    check_place(out)
    options.check(what, filter)
    if reply_tokens is not None and what in FILTERS:
        raise BadArgument(
            f"--reply-tokens is for reasonings, passages and judgements; {what} replies with ids: leave it out"
        )
    budget = limits.budget()
    if (named := given(filter_model)) and what in (*FILTERS, *JUDGES):
        raise BadArgument(
            f"{named[0]} is for methods; {what} is a filter itself, whose model is --lm"
        )
    connects, connects_filter = connect_both(model, filter_model, prices)
    lm, filter_lm = connects(), connects_filter()
    teacher = (
        None if options.teacher_lm is None else connect(ModelOptions(lm=options.teacher_lm), prices)
    )
    with Bars() as bars:
        if what in FILTERS:
            student, train, valid, metric, measure = _filter(
                what, task, options, prompts, demos, run, bars
            )
        elif what in JUDGES:
            student, train, valid, metric, measure = _judge(
                what, task, options, prompts, demos, reply_tokens
            )
        else:
            how = MethodOptions(
                method=what,
                k=options.k,
                filter=filter,
                prompts=prompts,
                demos=demos,
                reply_tokens=reply_tokens,
            )
            student, train, valid, metric, measure = _method(task, options, how, model)
        say_what_answers(model, prompts, student)
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
            **given_values(options, "candidates", "trials", "metric_calls"),
            concurrency=concurrency,
            budget=budget,
            task=task,
            measure=measure,
            note=options.note(),
            out=out,
            progress=bars,
        )
    save_program(done.program, out, done.recipe)
    scored = "balanced accuracy, {} pairs held back" if what in JUDGES else "score on {} held back"
    _summarise(done, out, scored, changed=state_of(done.program) != state_of(student))


def _wording_of(task: str) -> str:
    from blendfilter.tasks import TASKS

    if task not in TASKS:
        raise UnknownName.of("task", task, TASKS)
    wording: str = TASKS[task].wording
    return wording


def _filter(
    what: str,
    task: str,
    options: CompileOptions,
    prompts: str | None,
    demos: Path | None,
    run: Path,
    progress: Bars,
) -> Material:
    from blendfilter.asking import TaskWording
    from blendfilter.compiling.silver import silver_examples, silver_metric
    from blendfilter.filters.registry import make_filter
    from blendfilter.oracles.measures import MEASURES, can_label, measure_for
    from blendfilter.oracles.silver_rows import read_silver

    wording, templates = TaskWording.of(_wording_of(task)).with_demos(demos), prompts_in(prompts)
    weights = given_values(options, *WEIGHTS, "threshold")
    metric = silver_metric(
        **{name.removeprefix("weight_"): value for name, value in weights.items()},
        wording=wording,
        prompts=templates,
    )
    student = make_filter(what, wording=wording, prompts=templates)
    if options.measure is not None and options.measure not in MEASURES:
        raise UnknownName.of("measure", options.measure, MEASURES)
    if options.silver is not None:
        measure, file = _measure_of(options.silver, task, options.measure), options.silver
    else:
        measure = chosen = cast("Measure", options.measure) or measure_for(task)
        file = _make_silver(task, options, chosen, run / "silver.jsonl", progress)
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


def _judge(
    what: str,
    task: str,
    options: CompileOptions,
    prompts: str | None,
    demos: Path | None,
    reply_tokens: int | None,
) -> Material:
    from blendfilter.asking import TaskWording
    from blendfilter.compiling.examples import consistency, consistency_examples
    from blendfilter.filters.cdit import CDITFilter, choose_rules
    from blendfilter.tasks import load

    wording = TaskWording.of(_wording_of(task)).with_demos(demos).with_reply_tokens(reply_tokens)
    rules = choose_rules(options.rule or (), options.rules)
    mode = cast(
        "Mode", options.mode or JUDGES[what]
    )  # the judge itself refuses one that it does not know
    student = CDITFilter(mode, rules, wording=wording, prompts=prompts_in(prompts))
    say_unshown(demos, student, what)

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


def _method(
    task: str, options: CompileOptions, how: MethodOptions, model: ModelOptions
) -> Material:
    from blendfilter.compiling.measuring import AcceptingMetric
    from blendfilter.tasks import load

    questions = load(task, options.data, limit=options.limit)
    make = maker(how, model, questions.task.wording)
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


def _make_silver(
    task: str, options: CompileOptions, measure: Measure, out: Path, progress: Bars
) -> Path:
    """A silver file in the run's folder."""
    from blendfilter.oracles.oracle import Oracle
    from blendfilter.oracles.silver_making import labelled, make_silver
    from blendfilter.tasks import load

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
