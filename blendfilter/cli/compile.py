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
from blendfilter.cli.making import DEFAULT_K, connect, maker, prompts_in, retriever, say_what_answers
from blendfilter.cli.options import (
    METHODS,
    TASKS,
    FilterName,
    KOfMethod,
    Limit,
    MethodOptions,
    ModelOptions,
    PassageOptions,
    PricesFile,
    PromptsDir,
    RuleName,
    RulesFile,
    SpendingOptions,
    given,
    given_values,
    option,
)
from blendfilter.errors import BadArgument, UnknownName

if TYPE_CHECKING:
    import dspy

    from blendfilter.compiling.compile import Compiled
    from blendfilter.compiling.examples import Split
    from blendfilter.filters.cdit import Mode
    from blendfilter.filters.filco import Unit
    from blendfilter.oracles.measures import Measure

FILTERS: dict[str, Unit] = {"filco": "sentence", "filco-passage": "passage"}
"""What is compiled against silver contexts."""
JUDGES: dict[str, Mode] = {"cdit": "word", "cdit-components": "components"}
"""What is compiled against gold passages and others; anything else is a method, compiled against answers."""
WEIGHTS = ("weight_agreement", "weight_answer", "weight_tokens")
Material = tuple[Any, "Split", Callable[..., Any], str]
"""The module, its examples, its metric, and what the recipe calls the measure."""


@dataclass(frozen=True)
class CompileOptions(PassageOptions):
    """Where the examples come from, how a judge reads them, and the optimiser."""

    data: str | None = option("A question file with answers; 'hub' (Hugging Face), or 'sample'.")
    silver: Path | None = option(
        "filco: a file that 'blendfilter silver' made; without it, one is made in the run's folder."
    )
    valid_data: Path | None = option(
        "A file of the same kind whose questions are held back, in place of a part of the first."
    )
    measure: str | None = option(
        "filco: the oracle, strinc or lexical (cxmi: with --silver). Without it: the task's own."
    )
    k: KOfMethod = None
    limit: Limit = None
    allow_empty_answers: bool = option(
        "filco: choose nothing where a question's answers are articles and punctuation alone.",
        "--allow-empty-answers",
        default=False,
    )
    train: int = option("Questions that are compiled on.", default=40)
    valid: int = option("Questions held back for the scores before and after.", default=20)
    seed: int = option("Of the split and of every random choice.", default=0)
    mode: str | None = option(
        "cdit: word (one word, True or False; the default) or components (what was compared too)."
    )
    rule: RuleName = None
    rules: RulesFile = None
    negatives: int | None = option(
        "cdit: passages of a question that are not gold (1); gold ones are as many at most.", min=1
    )
    optimizer: str = option(
        "labeled (training rows as demonstrations), bootstrap (answers of the model that the metric accepts), "
        "mipro (instructions and demonstrations, searched; wants optuna), gepa (instructions, by reflection).",
        default="bootstrap",
    )
    teacher_lm: str | None = option(
        "A better model that fills demonstrations, proposes and reflects. Without it: --lm."
    )
    max_demos: int = option("Demonstrations a predictor gets at the most.", default=4, min=0)
    max_demo_tokens: int | None = option(
        "Tokens that a predictor's demonstrations may have; the longest are dropped first.", min=0
    )
    candidates: int | None = option("mipro: instructions, and sets of demonstrations, to choose from (4).", min=2)
    trials: int | None = option("mipro: combinations tried (8).", min=1)
    metric_calls: int | None = option("gepa: answers measured. Without it: by the data's size.", min=1)
    weight_agreement: float | None = option("filco: what agreement with silver counts (1).")
    weight_answer: float | None = option(
        "filco: what the F1 of an answer over what was kept counts (0.5); 0 asks for no answer."
    )
    weight_tokens: float | None = option("filco: what is taken off for the share of words that was kept (0.1).")
    threshold: float | None = option(
        "The score from which an answer may become a demonstration (filco 0.55, a method 1)."
    )

    def search(self) -> dict[str, int]:
        """How far the search goes. Raises: BadArgument where this optimiser does not search so."""
        takers = {"candidates": "mipro", "trials": "mipro", "metric_calls": "gepa"}
        for name, taker in takers.items():
            if self.optimizer != taker and (options := given(self, name)):
                raise BadArgument(f"{options[0]} is for {taker}; {self.optimizer} does not take it: leave it")
        return given_values(self, *takers)

    def check(self, what: str, task: str, filter: str | None) -> None:
        """Raise `BadArgument` or `UnknownName` for options that do not go with `what`."""
        from blendfilter.modules.methods import METHODS

        filters = {*FILTERS, *JUDGES}
        if what not in filters and what not in METHODS and ":" not in what:
            known = [*FILTERS, *JUDGES, *METHODS]
            raise UnknownName.of("filter or method", what, known, "- or package:Class for one of your own")
        if what in filters and filter is not None:
            raise BadArgument(f"--filter is for methods; {what} is a filter itself")
        if what not in FILTERS:
            if of_filters := given(self, "silver", "measure", "allow_empty_answers", *WEIGHTS):
                against = "gold passages and others" if what in JUDGES else "its task's metric"
                raise BadArgument(
                    f"{of_filters[0]} is for {' and '.join(FILTERS)}; {what} is compiled against {against}"
                )
            if self.data is None:
                raise BadArgument(f"where are the questions of '{task}'? Give --data FILE, 'hub' or 'sample'")
        if what not in JUDGES and (of_judges := given(self, "mode", "rule", "rules", "negatives")):
            raise BadArgument(f"{of_judges[0]} is for {' and '.join(JUDGES)}; {what} does not take it: leave it")
        if what in JUDGES and self.threshold is not None:
            raise BadArgument(f"--threshold is for scores; a verdict of {what} is right or wrong: leave it")
        if what in FILTERS and self.silver is None and self.data is None:
            raise BadArgument(
                "what is it compiled on? Give --silver FILE, or --data FILE for a silver file to be made of"
            )
        of_questions = given(self, "data", "corpus", "index", "retrieved", "k", "limit", "allow_empty_answers")
        if self.silver is not None and of_questions:
            first = "--data" if "--data" in of_questions else of_questions[0]
            raise BadArgument(f"{first} is for a silver file to be made; {self.silver} holds its passages: leave it")

    def retriever(self, questions: Any) -> Any:
        """What is searched; for the sample's questions, the sample corpus."""
        return retriever(self, questions, sample=self.data == "sample")

    def split(self, examples: list[dspy.Example], read: Callable[[Path], list[dspy.Example]]) -> Split:
        """What is compiled on and what is held back; `read` makes examples of a file."""
        from blendfilter.compiling.examples import Split, drawn, split

        if self.valid_data is None:
            return split(examples, self.train, self.valid, self.seed)
        held_back = drawn(read(self.valid_data), self.valid, self.seed, "valid")
        return Split(drawn(examples, self.train, self.seed, "train"), held_back)

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
    limits: SpendingOptions,
    *,
    task: Annotated[str, typer.Option(help=f"{', '.join(TASKS)}.")],
    out: Annotated[Path, typer.Option(help="The program's file, JSON: --program of ask and eval reads it.")],
    run: Annotated[Path, typer.Option(help="The folder of the journal; the same command again goes on there.")],
    filter: FilterName = None,
    prompts: PromptsDir = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Model calls in flight.")] = 4,
    prices: PricesFile = None,
) -> None:
    """Compile a filter or a method with a DSPy optimiser, and save it as a program.

    A filter is compiled against silver contexts, a method against its task's metric, CDIT's judge against gold passages
    and others. The scores before and after are those of questions that the optimiser never saw; where nothing was
    gained, they say so.

    Example: blendfilter compile filco --task nq --data nq.jsonl --corpus wiki.jsonl.gz --lm openai/gpt-4o-mini
    --out programs/nq/filco.json --run runs/compile-nq
    """
    State.goes_on = True  # before the imports: these take a second, in which one may stop the command
    from blendfilter.compiling.compile import compile_program
    from blendfilter.compiling.optimisers import OPTIMIZERS
    from blendfilter.compiling.programs import check_place, save_program, state_of

    check_place(out)
    if options.optimizer not in OPTIMIZERS:
        raise UnknownName.of("optimiser", options.optimizer, OPTIMIZERS)
    search = options.search()
    options.check(what, task, filter)
    budget = limits.budget()
    lm = connect(model, prices)
    teacher = None if options.teacher_lm is None else connect(ModelOptions(lm=options.teacher_lm), prices)
    with Bars() as bars:
        if what in FILTERS:
            student, examples, metric, measure = _filter(what, task, options, prompts, run, bars)
        elif what in JUDGES:
            student, examples, metric, measure = _judge(what, task, options, prompts)
        else:
            how = MethodOptions(method=what, k=options.k, filter=filter, prompts=prompts)
            student, examples, metric, measure = _method(task, options, how, model)
        say_what_answers(model)
        done = compile_program(
            student, examples.train, valset=examples.valid, metric=metric, run=run, optimizer=options.optimizer,
            lm=lm, teacher=teacher, seed=options.seed, max_demos=options.max_demos,
            max_demo_tokens=options.max_demo_tokens, **search, concurrency=concurrency, budget=budget, task=task,
            measure=measure, note=options.note(), out=out, progress=bars,
        )  # fmt: skip
    save_program(done.program, out, done.recipe)
    scored = "balanced accuracy, {} pairs held back" if what in JUDGES else "score on {} held back"
    _summarise(done, out, scored, changed=state_of(done.program) != state_of(student))


def _wording_of(task: str) -> str:
    from blendfilter.tasks import TASKS

    if task not in TASKS:
        raise UnknownName.of("task", task, TASKS)
    wording: str = TASKS[task].wording
    return wording


def _filter(what: str, task: str, options: CompileOptions, prompts: Path | None, run: Path, progress: Bars) -> Material:
    from blendfilter.compiling.silver import silver_examples, silver_metric
    from blendfilter.filters.registry import make_filter
    from blendfilter.oracles.measures import MEASURES, measure_for
    from blendfilter.oracles.silver_rows import read_silver

    wording, templates = _wording_of(task), prompts_in(prompts)
    weights = given_values(options, *WEIGHTS, "threshold")
    metric = silver_metric(
        **{name.removeprefix("weight_"): value for name, value in weights.items()}, wording=wording, prompts=templates
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

    def examples(path: Path) -> list[dspy.Example]:
        return silver_examples(read_silver(path), FILTERS[what])

    return student, options.split(examples(file), examples), metric, measure


def _judge(what: str, task: str, options: CompileOptions, prompts: Path | None) -> Material:
    from blendfilter.asking import TaskWording
    from blendfilter.compiling.examples import consistency, consistency_examples, pairs_of
    from blendfilter.filters.cdit import CDITFilter, choose_rules
    from blendfilter.tasks import load

    wording, rules = TaskWording.of(_wording_of(task)), choose_rules(options.rule or (), options.rules)
    if what != "cdit" and options.mode not in (None, JUDGES[what]):
        raise BadArgument(
            f"{what} is of the mode {JUDGES[what]}, --mode says {options.mode}: leave it, or compile cdit"
        )
    mode = cast("Mode", options.mode or JUDGES[what])  # the judge itself refuses one that it does not know
    student = CDITFilter(mode, rules, wording=wording, prompts=prompts_in(prompts))

    def examples(data: str | Path | None, limit: int | None = None) -> list[dspy.Example]:
        questions = load(task, data, limit=limit)
        made = consistency_examples(
            questions, rules=rules, retriever=options.retriever(questions), k=options.k or DEFAULT_K,
            negatives=options.negatives or 1, seed=options.seed,
        )  # fmt: skip
        if len(made) < len(questions):
            say(
                f"{len(questions) - len(made)} of {len(questions)} questions are left out: among what is found for "
                "them there is no gold passage, or no other"
            )
        return made

    pairs = pairs_of(options.split(examples(options.data, options.limit), examples))
    return student, pairs, consistency, f"consistency {'+'.join(rule.name for rule in rules)}"


def _method(task: str, options: CompileOptions, how: MethodOptions, model: ModelOptions) -> Material:
    from blendfilter.compiling.measuring import AcceptingMetric
    from blendfilter.tasks import load

    questions = load(task, options.data, limit=options.limit)
    make = maker(how, model, questions.task.wording)
    examples = options.split(questions.examples(), lambda path: load(task, path).examples())
    module = make(options.retriever(questions))
    metric = questions.metric if options.threshold is None else AcceptingMetric(questions.metric, options.threshold)
    return module, examples, metric, questions.task.metrics[0]


def _measure_of(silver: Path, task: str, measure: str | None) -> str:
    """The oracle of a silver file: as its recipe says, else `measure`. Raises: BadArgument where they differ."""
    from blendfilter.oracles.silver_making import Places

    oracle = _silver_settings(silver).get("oracle", {})
    for name, wanted in (("task", task), ("measure", measure)):
        if wanted is not None and wanted != (known := oracle.get(name, wanted)):
            raise BadArgument(
                f"{silver} was made with {name} {known}, not {wanted}: give --{name} {known}, or another file"
            )
    chosen = measure or str(oracle.get("measure", ""))
    if not chosen and silver.is_file():
        raise BadArgument(
            f"nothing says which measure chose in {silver} ({Places.of(silver).recipe.name} is missing): name it "
            "(--measure), or put the recipe beside it"
        )
    return chosen


def _silver_settings(silver: Path) -> dict[str, Any]:
    """How a silver file was made, by its recipe; nothing where it has none."""
    from blendfilter.oracles.silver_making import Places, read_recipe

    places = Places.of(silver)
    return dict(read_recipe(places).get("settings", {})) if places.recipe.is_file() else {}


def _make_silver(task: str, options: CompileOptions, measure: Measure, out: Path, progress: Bars) -> Path:
    """A silver file in the run's folder."""
    from blendfilter.oracles.oracle import Oracle
    from blendfilter.oracles.silver_making import make_silver
    from blendfilter.tasks import load

    if measure == "cxmi":
        of_task = "" if options.measure else f", the measure of {task},"
        raise BadArgument(
            f"cxmi{of_task} asks a model that can score: make the file first (blendfilter silver {task} --measure cxmi "
            "--lm NAME --out silver.jsonl) and give it as --silver, or take --measure strinc or lexical"
        )
    questions = load(task, options.data, limit=options.limit)
    out.parent.mkdir(parents=True, exist_ok=True)
    make_silver(
        questions, Oracle(measure, task=task), out, retriever=options.retriever(questions), k=options.k or DEFAULT_K,
        allow_empty_answers=options.allow_empty_answers, progress=progress,
    )  # fmt: skip
    return out


def _summarise(done: Compiled, out: Path, scored: str, *, changed: bool) -> None:
    from rich.table import Table

    recipe, spent = done.recipe, done.spent
    before, after, predictors = recipe.before, recipe.after, len(recipe.fields)
    table = Table(title=f"{recipe.module} by {recipe.optimizer}, {recipe.task} {recipe.measure}".rstrip(), min_width=60)
    for name in ("", "before", "after"):
        table.add_column(name, justify="left" if not name else "right")
    table.add_row(scored.format(before.n), f"{before.value:.3f}", f"{after.value:.3f}")
    if before.failed or after.failed:
        table.add_row("of these without an answer", str(before.failed), str(after.failed))
    show(table)
    show(
        f"demonstrations: {recipe.settings['demos']} over {predictors} predictor{'s'[: predictors != 1]}; "
        f"the journal holds {spent.calls:,} calls, {spent.tokens_in:,} tokens in, {spent.tokens_out:,} out"
    )
    if not changed:
        say(
            "the compiled program is the plain one: the optimiser found nothing that the metric accepts or likes better"
        )
    if after.value < before.value:
        say("the compiled program scores lower than the plain one: nothing was gained on the questions held back")
    show(f"program: {out}")
