"""`compile_program`: a DSPy optimiser over any module, every call through one journal, scored on what it never saw.

Killed and run again in the same folder, it repeats no call that was journaled and gives the same program, byte for
byte: see `blendfilter.compiling.optimisers` for what that takes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import logging
import os
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import dspy
import tqdm  # type: ignore[import-untyped]

from blendfilter.asking import Ask, kind_of_model, reply_tokens_of
from blendfilter.compiling.measuring import (
    CompilationWatch,
    CountedMetric,
    Scored,
    guarded,
    score,
)
from blendfilter.compiling.optimisers import (
    DemoCount,
    Optimiser,
    OptimiserWork,
    hold_to,
    keep_own_fields,
    optimiser_for,
)
from blendfilter.compiling.programs import (
    Gain,
    PairedScores,
    ProgramRecipe,
    fields_of,
    fingerprint,
    kind_of,
    outcome_of,
    question_in,
    read_program,
    recipes_in,
    state_of,
    templates_of,
    worded_of,
)
from blendfilter.compiling.settings import SearchSettings
from blendfilter.compiling.silver import SilverMetric
from blendfilter.dspy_surface import AdapterParseError, compiled_no_more
from blendfilter.errors import (
    BadArgument,
    BadData,
    CodeFailed,
    CompilationStopped,
    EmptyData,
    Leak,
    RunMismatch,
    WorkFailed,
    interruptible,
)
from blendfilter.extras import quiet_loggers
from blendfilter.files import path_of, write_whole
from blendfilter.filters.base import with_filter_lm
from blendfilter.journal import FILE, Journal
from blendfilter.lm.attempts import Gate
from blendfilter.lm.budget import Budget
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.lm.tokenisers import tokeniser_for
from blendfilter.prompting import TemplateAdapter
from blendfilter.retrieval.base import ProgressCallback, silent
from blendfilter.run_context import RunContext, check_module, lms_of
from blendfilter.settings_diff import different_settings
from blendfilter.text import question_digest

BEFORE, OPTIMISING, AFTER = "score before", "optimising", "score after"
"""The phases of progress."""
LONGEST_WAIT = 60.0
"""Seconds that calls in flight have to come back once the work is over."""


class JournaledCalls(NamedTuple):
    """Model calls in a journal and their tokens, those of earlier sessions in the same folder included."""

    calls: int
    tokens_in: int
    tokens_out: int

    @classmethod
    def of(cls, journal: Journal) -> JournaledCalls:
        """Those that succeeded."""
        calls = [call for call in journal.records("call") if not call.get("error")]
        tokens = (
            sum(int(call.get(name) or 0) for call in calls)
            for name in ("tokens_in", "tokens_out")
        )
        return cls(len(calls), *tokens)


class Compiled(NamedTuple):
    """A compiled program, its recipe, and the calls in its journal."""

    program: dspy.Module
    recipe: ProgramRecipe
    spent: JournaledCalls

    def __repr__(self) -> str:  # the recipe has a digest of every question
        return (
            f"<{self.recipe.module} compiled by {self.recipe.optimizer}: {self.recipe.outcome}>"
        )


@interruptible()
def compile_program(
    student: dspy.Module,
    trainset: Sequence[dspy.Example],
    *,
    metric: Callable[..., Any],
    valset: Sequence[dspy.Example],
    run: str | Path,
    optimizer: str = "bootstrap",
    lm: dspy.BaseLM | str | None = None,
    filter_lm: dspy.BaseLM | str | None = None,
    teacher: dspy.BaseLM | str | None = None,
    seed: int = 0,
    max_demos: int = 4,
    max_demo_tokens: int | None = None,
    candidates: int = 4,
    trials: int = 8,
    metric_calls: int | None = None,
    concurrency: int = 4,
    budget: Budget | None = None,
    pool: Sequence[dspy.Example] = (),
    beside: tuple[str, Callable[..., float]] | None = None,
    task: str = "",
    measure: str = "",
    note: str = "",
    out: str | Path | None = None,
    progress: ProgressCallback = silent,
) -> Compiled:
    """Compile `student`; the module itself is left as it is.

    Args:
        student: any `dspy.Module`: a filter, a method, a user's own.
        trainset, valset: `dspy.Example`s with their inputs named; the second is held back for the scores alone.
        metric: (example, prediction, trace=None), or GEPA's five arguments: `silver_metric()`, `Questions.metric`.
        run: the folder of the journal. The same arguments again go on there.
        optimizer: labeled, bootstrap, search, mipro or gepa.
        lm: the model compiled for; DSPy's configured one by default, else the offline reader.
        filter_lm: another model that answers the calls of the method's filter. None: `lm`.
        teacher: the model that fills demonstrations, proposes and reflects; `lm` by default.
        seed: of the order of the examples and of every random choice.
        max_demos: demonstrations a predictor gets at the most, bootstrapped and labelled together.
        max_demo_tokens: tokens that those of one predictor may have together; the longest are dropped first.
        candidates: sets of demonstrations that search draws; MIPROv2's instructions and sets of demonstrations.
        trials: MIPROv2's combinations tried.
        metric_calls: GEPA's answers measured; by default twelve times the set it chooses by, and 40.
        concurrency: model calls in flight. budget: what all sessions together may take.
        pool: examples that demonstrations are made of, in place of `trainset`, which then only chooses among them: the
            program holds none of its text (`blendfilter.compiling.pool`).
        beside: a name, and what scores (example, prediction) without a model, for `recipe.beside`.
        task, measure, note: what the recipe says of the data.
        out: where the program will be saved: one that other settings made is not replaced.
        progress: called with the phase, and how many answers of it were measured.

    Raises:
        UnknownName, MissingExtra, Leak, BadArgument, BadData: what cannot be compiled, found before any call.
        RunMismatch: `run` or `out` is of other settings. BudgetSpent, ServerRefused, ModelError: the same arguments
        again go on. WorkFailed: the model that proposes does not write what it is asked for.
    """
    settings = SearchSettings(
        optimizer=optimizer,
        seed=seed,
        max_demos=max_demos,
        max_demo_tokens=max_demo_tokens,
        candidates=candidates,
        trials=trials,
        metric_calls=metric_calls,
    )
    train, valid, pool = list(trainset), list(valset), list(pool)
    earlier = _check(student, [*train, *pool], valid)
    judge = None if filter_lm is None else connect(filter_lm)
    context = RunContext(
        lm,
        student if judge is None else with_filter_lm(student, judge),
        others=[] if teacher is None else [teacher],
        concurrency=concurrency,
        budget=budget,
    )
    assert context.module is not None
    work = OptimiserWork(
        student=compiled_no_more(context.module.deepcopy()),
        train=random.Random(settings.seed).sample(train, len(train)),
        metric=metric,
        teacher=(context.others or [context.model])[0],
        settings=settings,
        threads=concurrency,
        pool=random.Random(settings.seed).sample(pool, len(pool)),
    )
    optimiser = optimiser_for(work)
    recipe = {
        **_recipe(student, work, context.model, judge),
        "data": {**_data("train", train), **_data("valid", valid), **_data("pool", pool)},
        "task": task,
        "measure": measure,
    }
    check_replaced(out, recipe)
    with Journal(path_of(run) / FILE, exclusive=True) as journal:
        bind(run, {**recipe, "student": fingerprint([dspy.Example(state_of(student))])})
        with context.opened(journal):
            made, before, after, demos = _compiled(context, optimiser, work, valid, progress)
        spent = JournaledCalls.of(journal)
    recipe["settings"]["demos"] = demos.left
    if max_demo_tokens is not None:
        recipe["settings"]["demos_dropped"] = demos.dropped
    program = _with_own_lms(made, student)
    if beside is not None:
        name, scores = beside
        order = [scores(*each) for each in zip(valid, after.predictions, strict=True)]
        recipe["beside"] = Gain.of(name, order, after.values, settings.seed)
    digests = [question_digest(question_in(example)) for example in (*train, *valid)]
    program.compiled_by = ProgramRecipe(
        **recipe,
        **_gained(before, after, measure, settings.seed),
        trained_on=tuple(dict.fromkeys([*digests, *earlier])),
        versions={package: version(package) for package in ("blendfilter", "dspy")},
        note=note,
        kind=kind_of_model(judge or context.model),
    )
    return Compiled(program, program.compiled_by, spent)


def _recipe(
    student: dspy.Module, work: OptimiserWork, lm: ConnectedLM, judge: ConnectedLM | None
) -> dict[str, Any]:
    """What the recipe says of the module, the models and the optimiser before the work."""
    metric, limit = work.metric, work.settings.max_demo_tokens
    weights = getattr(metric, "weights", None)
    settings = {
        **work.settings.shaping(),
        "metric": weights() if weights else getattr(metric, "__name__", type(metric).__name__),
        **reply_tokens_of(student),
    }
    if limit is not None:
        settings |= {"max_demo_tokens": limit, "tokeniser": tokeniser_for(lm).name}
    if judge is not None:
        settings |= {"filter_lm": judge.name}
    return {
        "module": kind_of(student),
        "fields": fields_of(student),
        "templates": templates_of(student),
        "worded": worded_of(student),
        "optimizer": work.settings.optimizer,
        "settings": settings,
        "lm": lm.name,
        "teacher": work.teacher.name,
        "seed": work.settings.seed,
    }


def _data(name: str, examples: Sequence[dspy.Example]) -> dict[str, Any]:
    """A set of examples in a recipe; nothing where it is empty."""
    return {name: fingerprint(examples), f"n_{name}": len(examples)} if examples else {}


def _gained(before: Scored, after: Scored, measure: str, seed: int) -> dict[str, Any]:
    """What the recipe says of the scores before and after."""
    paired = PairedScores.of(before.values, after.values)
    return {
        "before": before.mean,
        "after": after.mean,
        "paired": paired,
        "outcome": outcome_of(before.mean, after.mean, paired),
        "gain": Gain.of(measure or "score", before.values, after.values, seed),
    }


def _with_own_lms(program: dspy.Module, student: dspy.Module) -> dspy.Module:
    """`program` with the student's own models: those of the work were journaled, and its journal is closed."""
    theirs = {own.name: own.lm for own in lms_of(student)}
    for own in lms_of(program):
        own.put(theirs.get(own.name))
    return compiled_no_more(program)


def _compiled(
    context: RunContext,
    optimiser: Optimiser,
    work: OptimiserWork,
    valid: Sequence[dspy.Example],
    progress: ProgressCallback,
) -> tuple[dspy.Module, Scored, Scored, DemoCount]:
    """Score, optimise, score again, while `context` is open. Raises: what ended it."""
    watch = CompilationWatch(type(work.student))
    lm, teacher = (
        guarded(context.journaled(each), watch) for each in (context.model, work.teacher)
    )
    for own in lms_of(work.student):
        own.put(guarded(context.journaled(own.lm), watch))
    metric = work.metric
    if isinstance(metric, SilverMetric):  # whatever model a teacher is, `lm` gives its answers
        metric = dataclasses.replace(metric, lm=lm)
    counted = CountedMetric(metric, watch, progress)
    work = dataclasses.replace(work, metric=counted, teacher=teacher)
    callbacks = [*(dspy.settings.callbacks or []), watch]
    try:
        with quiet(), dspy.context(lm=lm, callbacks=callbacks, trace=[]):
            counted.begin(BEFORE, len(valid))
            before = score(work.student, valid, counted, work.threads)
            counted.begin(OPTIMISING, None)
            try:
                program = optimiser(work)
            except AdapterParseError as error:
                wanted = ", ".join(error.signature.output_fields)
                raise WorkFailed(
                    f"{work.teacher.name} proposes nothing: what it replied, where DSPy asks it for {wanted}, cannot "
                    "be read: name a better model to propose (teacher=), or take the optimiser bootstrap"
                ) from error
            finally:
                watch.check()  # what ended the work comes before what came of it
            keep_own_fields(program)
            tokeniser = tokeniser_for(context.model)
            demos = hold_to(program, work.settings.max_demo_tokens, tokeniser)
            counted.begin(AFTER, len(valid))
            return program, before, score(program, valid, counted, work.threads), demos
    except CompilationStopped as stopped:
        _let_finish(context.gate)
        ended = stopped.error
    except KeyboardInterrupt:
        watch.interrupt()
        raise
    except (SystemExit, asyncio.CancelledError) as error:
        # a program that calls sys.exit() ends the work, not this process
        _let_finish(context.gate)
        raise CodeFailed.by(error) from error
    raise ended  # outside of the block: an error must not have for its context what came of it


def _let_finish(gate: Gate) -> None:
    """Wait for the calls of other threads that are out: they are paid for, and the journal is about to close."""
    over = time.monotonic() + LONGEST_WAIT
    while gate.in_flight and time.monotonic() < over:
        time.sleep(0.02)
    time.sleep(0.02)  # what has come back is being appended


@contextmanager
def quiet() -> Iterator[None]:
    """Inside the block DSPy, GEPA and optuna, which print to standard output and draw bars, are silent."""
    drawn = tqdm.tqdm.__init__
    tqdm.tqdm.__init__ = functools.partialmethod(drawn, disable=True)
    try:
        with (
            open(os.devnull, "w", encoding="utf-8") as nowhere,
            redirect_stdout(nowhere),
            warnings.catch_warnings(),
            quiet_loggers("dspy", "gepa", "optuna", level=logging.CRITICAL),
        ):
            warnings.filterwarnings("ignore", module=r"(optuna|gepa|dspy)(\.|$)")
            yield
    finally:
        tqdm.tqdm.__init__ = drawn


def _check(student: Any, train: Sequence[Any], valid: Sequence[Any]) -> list[str]:
    """The digests of questions that the student was compiled on before. Raises for what cannot be compiled."""
    check_module(student, "student")
    if not student.predictors():
        raise BadArgument(
            f"{type(student).__name__} has no predictor: it asks no model, so nothing can be compiled"
        )
    for name, predictor in student.named_predictors():
        speaks = isinstance(predictor, Ask) and isinstance(predictor.adapter, TemplateAdapter)
        if speaks and not predictor.template.takes_instructions:
            raise BadData(
                f"{predictor.template.path} does not render {{{{ instructions }}}}: what is compiled for '{name}' "
                "would be lost; add it to the template, or compile without this override"
            )
    for called, examples in (("training set", train), ("set held back", valid)):
        if not examples:
            raise EmptyData(f"the {called} is empty: give it examples")
        for example in examples:
            example.inputs()  # DSPy says how to name them
    earlier = [digest for recipe in recipes_in(student) for digest in recipe.trained_on]
    trained = {*earlier, *(question_digest(question_in(each)) for each in train)}
    for question in map(question_in, valid):
        if question_digest(question) in trained:
            raise Leak(
                f"the question {question[:100]!r} is held back, and it is in the training set, or the module was "
                "compiled on it before: hold others back"
            )
    return earlier


# --- the settings of a folder and of a saved program ------------------------------------------------------------------
# Calls in flight and limits shape no program and may change.


def bind(run: str | Path, settings: Mapping[str, Any]) -> None:
    """Note in the folder what is compiled there. Raises: RunMismatch where something else was begun in it."""
    path = path_of(run) / "compile.json"
    try:
        known = json.loads(path.read_bytes())
    except FileNotFoundError:
        write_whole(path, [json.dumps(settings, indent=2).encode(), b"\n"])
        return
    except ValueError as error:
        raise BadData(f"{path}: cannot be read ({error}): name another folder (run=)") from None
    if differing := different_settings(known, settings):
        raise RunMismatch(
            f"{run} was begun with other settings: {differing}. Name another folder (run=)"
        )


def check_replaced(out: str | Path | None, settings: Mapping[str, Any]) -> None:
    """Raise `RunMismatch` where a file is there that the same settings did not make."""
    if out is None or not path_of(out).exists():
        return
    try:
        recipe = dataclasses.asdict(read_program(out)[1])
    except BadData:
        raise RunMismatch(
            f"{out} is there, and is no program of this version: name another file (out=)"
        ) from None
    known = {name: recipe[name] for name in settings}
    results = ["settings.demos", "settings.demos_dropped"]
    if differing := different_settings(known, settings, ignored=results):
        raise RunMismatch(
            f"{out} holds a program that was compiled otherwise: {differing}. Name another file (out=), or delete it"
        )
