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

from blendfilter.asking import Ask, reply_tokens_of
from blendfilter.compiling.measuring import (
    CompilationWatch,
    CountedMetric,
    guarded,
    score,
)
from blendfilter.compiling.optimisers import (
    DemoCount,
    Optimiser,
    OptimiserWork,
    hold_to,
    keep_own_fields,
    optimiser_called,
)
from blendfilter.compiling.programs import (
    HeldOutScore,
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
    check_count,
    interruptible,
)
from blendfilter.extras import quiet_loggers
from blendfilter.files import path_of, write_whole
from blendfilter.filters.base import with_filter_lm
from blendfilter.journal import FILE, Journal
from blendfilter.lm.attempts import Gate
from blendfilter.lm.budget import Budget
from blendfilter.lm.model import connect
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
        optimizer: labeled, bootstrap, mipro or gepa.
        lm: the model compiled for; DSPy's configured one by default, else the offline reader.
        filter_lm: another model that answers the calls of the method's filter. None: `lm`.
        teacher: the model that fills demonstrations, proposes and reflects; `lm` by default.
        seed: of the order of the examples and of every random choice.
        max_demos: demonstrations a predictor gets at the most, bootstrapped and labelled together.
        max_demo_tokens: tokens that those of one predictor may have together; the longest are dropped first.
        candidates: MIPROv2's instructions and sets of demonstrations a predictor. trials: its combinations tried.
        metric_calls: GEPA's answers measured; by default twelve times the set it chooses by, and 40.
        concurrency: model calls in flight. budget: what all sessions together may take.
        task, measure, note: what the recipe says of the data.
        out: where the program will be saved: one that other settings made is not replaced.
        progress: called with the phase, and how many answers of it were measured.

    Raises:
        UnknownName, MissingExtra, Leak, BadArgument, BadData: what cannot be compiled, found before any call.
        RunMismatch: `run` or `out` is of other settings. BudgetSpent, ServerRefused, ModelError: the same arguments
        again go on. WorkFailed: the model that proposes does not write what it is asked for.
    """
    seed = check_count("seed", seed, 0)
    max_demos = check_count("max_demos", max_demos, 0)
    candidates = check_count("candidates", candidates, 2)
    trials = check_count("trials", trials)
    if metric_calls is not None:
        metric_calls = check_count("metric_calls", metric_calls)
    if max_demo_tokens is not None:
        max_demo_tokens = check_count("max_demo_tokens", max_demo_tokens, 0)
    train, valid = list(trainset), list(valset)
    earlier = _check(student, train, valid)
    optimiser = optimiser_called(optimizer, student, train)
    others = [] if teacher is None else [teacher]
    judge = None if filter_lm is None else connect(filter_lm)
    answering = student if judge is None else with_filter_lm(student, judge)
    context = RunContext(lm, answering, others=others, concurrency=concurrency, budget=budget)
    assert context.module is not None
    guide = (context.others or [context.model])[0]
    shuffled = random.Random(seed).sample(train, len(train))
    work = OptimiserWork(
        compiled_no_more(context.module.deepcopy()),
        shuffled,
        metric,
        guide,
        seed,
        max_demos,
        candidates,
        trials,
        metric_calls,
        concurrency,
    )
    searches: dict[str, dict[str, Any]] = {
        "mipro": {"candidates": candidates, "trials": trials},
        "gepa": {"metric_calls": metric_calls},
    }
    tokens = {
        "max_demo_tokens": max_demo_tokens,
        "tokeniser": tokeniser_for(context.model).name,
    }
    weights = getattr(metric, "__name__", type(metric).__name__)
    if hasattr(metric, "weights"):
        weights = metric.weights()
    recipe: dict[str, Any] = {
        "module": kind_of(student),
        "fields": fields_of(student),
        "templates": templates_of(student),
        "worded": worded_of(student),
        "task": task,
        "measure": measure,
        "optimizer": optimizer,
        "settings": {
            "max_demos": max_demos,
            **searches.get(optimizer, {}),
            **({} if max_demo_tokens is None else tokens),
            "metric": weights,
            **reply_tokens_of(student),
            **({} if judge is None else {"filter_lm": judge.name}),
        },
        "lm": context.model.name,
        "teacher": guide.name,
        "seed": seed,
        "data": {
            "train": fingerprint(train),
            "n_train": len(train),
            "valid": fingerprint(valid),
            "n_valid": len(valid),
        },
    }
    check_replaced(out, recipe)
    with Journal(path_of(run) / FILE, exclusive=True) as journal:
        bind(run, {**recipe, "student": fingerprint([dspy.Example(state_of(student))])})
        with context.opened(journal):
            made, before, after, paired, demos = _compiled(
                context, optimiser, work, valid, max_demo_tokens, progress
            )
        calls = [record for record in journal.records("call") if not record.get("error")]
        tokens_in, tokens_out = (
            sum(int(call.get(name) or 0) for call in calls)
            for name in ("tokens_in", "tokens_out")
        )
        spent = JournaledCalls(len(calls), tokens_in, tokens_out)
    dropped = {} if max_demo_tokens is None else {"demos_dropped": demos.dropped}
    recipe["settings"] |= {"demos": demos.left, **dropped}
    program = compiled_no_more(made)
    theirs = {own.name: own.lm for own in lms_of(student)}
    for own in lms_of(program):  # its own models were journaled, and the journal is closed
        own.put(theirs.get(own.name))
    program.compiled_by = ProgramRecipe(
        **recipe,
        before=before,
        after=after,
        trained_on=tuple(
            dict.fromkeys(
                [*(question_digest(question_in(each)) for each in [*train, *valid]), *earlier]
            )
        ),
        versions={package: version(package) for package in ("blendfilter", "dspy")},
        note=note,
        paired=paired,
        outcome=outcome_of(before, after, paired),
    )
    return Compiled(program, program.compiled_by, spent)


def _compiled(
    context: RunContext,
    optimiser: Optimiser,
    work: OptimiserWork,
    valid: Sequence[dspy.Example],
    max_demo_tokens: int | None,
    progress: ProgressCallback,
) -> tuple[dspy.Module, HeldOutScore, HeldOutScore, PairedScores, DemoCount]:
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
            before, each_before = score(work.student, valid, counted, work.threads)
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
            demos = hold_to(program, max_demo_tokens, tokeniser_for(context.model))
            counted.begin(AFTER, len(valid))
            after, each_after = score(program, valid, counted, work.threads)
            return program, before, after, PairedScores.of(each_before, each_after), demos
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
