"""`blendfilter compile`: a DSPy optimiser over a filter or a method, saved as a program with its recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from blendfilter.cli.app import State, app
from blendfilter.cli.console import Bars, say, show
from blendfilter.cli.examples import (
    Judging,
    Source,
    consistent_pairs,
    corpus_of,
    measure_of,
    of_sample,
    silver_file,
    split_of,
)
from blendfilter.cli.making import connect, maker, retriever, say_what_answers
from blendfilter.cli.options import FilterName, HowToAnswer, Limits, PricesFile, PromptsDir, WhichModel, spread
from blendfilter.errors import BadArgument, UnknownName

if TYPE_CHECKING:
    import dspy

    from blendfilter.compiling.compile import Compiled
    from blendfilter.compiling.splitting import Split
    from blendfilter.filters.cdit.judge import Mode
    from blendfilter.filters.filco import Unit
    from blendfilter.oracles.measures import Measure

FILTERS: dict[str, Unit] = {"filco": "sentence", "filco-passage": "passage"}
"""What is compiled against silver contexts."""
JUDGES: dict[str, Mode] = {"cdit": "word", "cdit-components": "components"}
"""What is compiled against gold passages and others; anything else is a method, compiled against answers."""
SAMPLE = "compiled on the sample world: shows the form, not a gain"


@dataclass(frozen=True)
class Optimising:
    """The optimiser and how far it goes."""

    optimizer: Annotated[
        str,
        typer.Option(
            help="labeled (training rows as demonstrations), bootstrap (answers of the model that the metric accepts), "
            "mipro (instructions and demonstrations, searched; wants optuna), gepa (instructions, by reflection)."
        ),
    ] = "bootstrap"
    teacher_lm: Annotated[
        str | None,
        typer.Option(help="A better model that fills demonstrations, proposes and reflects. Without it: --lm."),
    ] = None
    max_demos: Annotated[int, typer.Option(min=0, help="Demonstrations a predictor gets at the most.")] = 4
    max_demo_tokens: Annotated[
        int | None,
        typer.Option(min=0, help="Tokens that a predictor's demonstrations may have; the longest are dropped first."),
    ] = None
    candidates: Annotated[
        int | None, typer.Option(min=2, help="mipro: instructions, and sets of demonstrations, to choose from (4).")
    ] = None
    trials: Annotated[int | None, typer.Option(min=1, help="mipro: combinations tried (8).")] = None
    metric_calls: Annotated[
        int | None, typer.Option(min=1, help="gepa: answers measured. Without it: by the data's size.")
    ] = None
    weight_agreement: Annotated[float | None, typer.Option(help="filco: what agreement with silver counts (1).")] = None
    weight_answer: Annotated[
        float | None,
        typer.Option(help="filco: what the F1 of an answer over what was kept counts (0.5); 0 asks for no answer."),
    ] = None
    weight_tokens: Annotated[
        float | None, typer.Option(help="filco: what is taken off for the share of words that was kept (0.1).")
    ] = None
    threshold: Annotated[
        float | None,
        typer.Option(help="The score from which an answer may become a demonstration (filco 0.55, a method 1)."),
    ] = None

    def weights(self) -> dict[str, float]:
        """The weights that were given."""
        told = {"agreement": self.weight_agreement, "answer": self.weight_answer, "tokens": self.weight_tokens}
        return {name: value for name, value in told.items() if value is not None}

    def searched(self) -> dict[str, int]:
        """How far the search goes, as it was given. Raises: BadArgument where this optimiser does not search so."""
        told = {"candidates": self.candidates, "trials": self.trials, "metric_calls": self.metric_calls}
        given = {name: value for name, value in told.items() if value is not None}
        for name in given:
            taker = "gepa" if name == "metric_calls" else "mipro"
            if self.optimizer != taker:
                option = name.replace("_", "-")
                raise BadArgument(f"--{option} is for {taker}; {self.optimizer} does not take it: leave it")
        return given


@app.command(name="compile")
@spread
def compile_command(
    what: Annotated[
        str,
        typer.Argument(
            help="filco, filco-passage (against silver contexts); cdit, cdit-components (against gold passages and "
            "others); or a method: blendfilter, cot-retrieval, …"
        ),
    ],
    source: Source,
    judging: Judging,
    optimising: Optimising,
    model: WhichModel,
    limits: Limits,
    *,
    task: Annotated[str, typer.Option(help="nq, triviaqa, fever, eli5, wow, hotpotqa, twowiki, strategyqa or qa.")],
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
    State.goes_on = True  # before the imports: these take a second, and one may be stopped in it
    from blendfilter.compiling.compile import compile_program
    from blendfilter.compiling.optimisers import OPTIMIZERS
    from blendfilter.compiling.programs import check_place, save_program, state_of

    check_place(out)
    if optimising.optimizer not in OPTIMIZERS:
        raise UnknownName.of("optimiser", optimising.optimizer, OPTIMIZERS)
    search = optimising.searched()
    _check_what(what, task, source, judging, optimising, filter)
    how = HowToAnswer(method=what, k=source.k, filter=filter, prompts=prompts)
    budget = limits.budget()
    lm = connect(model, prices)
    teacher = None if optimising.teacher_lm is None else connect(WhichModel(lm=optimising.teacher_lm), prices)
    with Bars() as bars:
        if what in FILTERS:
            student, examples, metric, measure = _filter(what, task, how, source, optimising, run, bars)
        elif what in JUDGES:
            student, examples, metric, measure = _judge(what, task, how, source, judging)
        else:
            student, examples, metric, measure = _method(task, how, source, model, optimising.threshold)
        say_what_answers(model)
        done = compile_program(
            student, examples.train, valset=examples.valid, metric=metric, run=run, optimizer=optimising.optimizer,
            lm=lm, teacher=teacher, seed=source.seed, max_demos=optimising.max_demos,
            max_demo_tokens=optimising.max_demo_tokens, **search, concurrency=concurrency, budget=budget, task=task,
            measure=measure, note=SAMPLE if of_sample(source) else "", out=out, progress=bars,
        )  # fmt: skip
    save_program(done.program, out, done.recipe)
    scored = "balanced accuracy, {} pairs held back" if what in JUDGES else "score on {} held back"
    _tell(done, out, scored, changed=state_of(done.program) != state_of(student))


def _check_what(
    what: str, task: str, source: Source, judging: Judging, optimising: Optimising, filter: str | None
) -> None:
    """What goes with one kind of thing only."""
    from blendfilter.modules.methods import METHODS

    filters = {*FILTERS, *JUDGES}
    if what not in filters and what not in METHODS and ":" not in what:
        known = [*FILTERS, *JUDGES, *METHODS]
        raise UnknownName.of("filter or method", what, known, "- or package:Class for one of your own")
    if what in filters and filter is not None:
        raise BadArgument(f"--filter is for methods; {what} is a filter itself")
    if what not in FILTERS:
        of_filters = {"--silver": source.silver, "--measure": source.measure}
        given = [name for name, value in of_filters.items() if value is not None]
        given += ["--allow-empty-answers"] * source.allow_empty_answers
        given += [f"--weight-{name}" for name in optimising.weights()]
        against = "gold passages and others" if what in JUDGES else "its task's metric"
        if given:
            raise BadArgument(f"{given[0]} is for {' and '.join(FILTERS)}; {what} is compiled against {against}")
        if source.data is None:
            raise BadArgument(f"where are the questions of '{task}'? Give --data FILE, 'hub' or 'sample'")
    if what not in JUDGES and (of_judges := judging.given()):
        raise BadArgument(f"{of_judges[0]} is for {' and '.join(JUDGES)}; {what} does not take it: leave it")
    if what in JUDGES and optimising.threshold is not None:
        raise BadArgument(f"--threshold is for scores; a verdict of {what} is right or wrong: leave it")
    if what in FILTERS and source.silver is None and source.data is None:
        raise BadArgument("what is it compiled on? Give --silver FILE, or --data FILE for a silver file to be made of")
    if source.silver is not None and (needless := source.of_questions()):
        raise BadArgument(
            f"{needless[0]} is for a silver file to be made; {source.silver} holds its passages: leave it"
        )


Made = tuple[Any, "Split", Callable[..., Any], str]
"""The module, its examples, its metric, and what the recipe calls the measure."""


def _filter(
    what: str, task: str, how: HowToAnswer, source: Source, optimising: Optimising, run: Path, bars: Bars
) -> Made:
    from blendfilter.compiling.silver import silver_examples, silver_metric
    from blendfilter.filters.registry import make_filter
    from blendfilter.oracles.measures import MEASURES, measure_for
    from blendfilter.oracles.silver_rows import read_silver
    from blendfilter.prompting import Prompts
    from blendfilter.tasks import TASKS

    if task not in TASKS:
        raise UnknownName.of("task", task, TASKS)
    wording, templates = TASKS[task].wording, Prompts(how.prompts) if how.prompts else None
    threshold = {} if optimising.threshold is None else {"threshold": optimising.threshold}
    metric = silver_metric(**optimising.weights(), **threshold, wording=wording, prompts=templates)
    student = make_filter(what, wording=wording, prompts=templates)
    if source.measure is not None and source.measure not in MEASURES:
        raise UnknownName.of("measure", source.measure, MEASURES)
    if source.silver is not None:
        measure, file = measure_of(source.silver, task, source.measure), source.silver
    else:
        measure = chosen = cast("Measure", source.measure) or measure_for(task)
        file = silver_file(task, source, chosen, run / "silver.jsonl", bars)
    if source.valid_data is not None:
        measure_of(source.valid_data, task, measure)

    def examples(path: Path) -> list[dspy.Example]:
        return silver_examples(read_silver(path), FILTERS[what])

    return student, split_of(source, examples(file), examples), metric, measure


def _judge(what: str, task: str, how: HowToAnswer, source: Source, judging: Judging) -> Made:
    from blendfilter.asking import TaskWording
    from blendfilter.compiling.consistency import consistency
    from blendfilter.filters.cdit.filter import CDITFilter
    from blendfilter.prompting import Prompts
    from blendfilter.tasks import TASKS

    if task not in TASKS:
        raise UnknownName.of("task", task, TASKS)
    rules, wording = judging.chosen(), TaskWording.of(TASKS[task].wording)
    templates = Prompts(how.prompts) if how.prompts else None
    student = CDITFilter(judging.mode_of(what, JUDGES[what]), rules, wording=wording, prompts=templates)
    pairs = consistent_pairs(task, source, judging)
    return student, pairs, consistency, f"consistency {'+'.join(rule.name for rule in rules)}"


def _method(task: str, how: HowToAnswer, source: Source, model: WhichModel, threshold: float | None) -> Made:
    from blendfilter.compiling.measuring import Accepting
    from blendfilter.tasks import load

    questions = load(task, source.data, limit=source.limit)
    make = maker(how, model, questions.task.wording)
    chosen = split_of(source, questions.examples(), lambda path: load(task, path).examples())
    searched = retriever(corpus_of(source), source.index, questions, source.retrieved, allow_host=source.allow_host)
    module = make(searched)
    metric = questions.metric if threshold is None else Accepting(questions.metric, threshold)
    return module, chosen, metric, questions.task.metrics[0]


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _tell(done: Compiled, out: Path, scored: str, *, changed: bool) -> None:
    from rich.table import Table

    recipe = done.recipe
    table = Table(title=f"{recipe.module} by {recipe.optimizer}, {recipe.task} {recipe.measure}".rstrip(), min_width=60)
    for name in ("", "before", "after"):
        table.add_column(name, justify="left" if not name else "right")
    before, after = recipe.before, recipe.after
    table.add_row(scored.format(before.n), f"{before.value:.3f}", f"{after.value:.3f}")
    if before.failed or after.failed:
        table.add_row("of these without an answer", str(before.failed), str(after.failed))
    show(table)
    spent = done.spent
    show(
        f"demonstrations: {recipe.settings['demos']} over {_counted(len(recipe.fields), 'predictor')}; "
        f"the journal holds {spent.calls:,} calls, "
        f"{spent.tokens_in:,} tokens in, {spent.tokens_out:,} out"
    )
    if not changed:
        say(
            "the compiled program is the plain one: the optimiser found nothing that the metric accepts or likes better"
        )
    if after.value < before.value:
        say("the compiled program scores lower than the plain one: nothing was gained on the questions held back")
    show(f"program: {out}")
