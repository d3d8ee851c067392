"""`compile_program`: a DSPy optimiser over any module, every call through one journal, scored on what it never saw.

In: a module, examples, a metric. Out: the compiled program and its recipe, with the scores before and after on a set
that is held back. Killed and run again in the same folder, it repeats no call that was journaled and gives the same
program, byte for byte: see `blendfilter.compiling.optimisers` for what that takes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import dspy
from dspy.utils.exceptions import AdapterParseError

from blendfilter.compiling.bound import bind, check_replaced
from blendfilter.compiling.checks import check_examples, check_module, check_overlap, check_unused
from blendfilter.compiling.demos import Dropped, hold_to, keep_own_fields
from blendfilter.compiling.measuring import Accepting, Measured, Score, score
from blendfilter.compiling.optimisers import Effort, Optimiser, Work, optimiser_called
from blendfilter.compiling.programs import recipes_in, state_of
from blendfilter.compiling.quiet import quiet
from blendfilter.compiling.recipe import (
    Recipe,
    asked_in,
    fields_of,
    fingerprint,
    kind_of,
    question_digest,
    templates_of,
    worded_of,
)
from blendfilter.compiling.silver import SilverMetric
from blendfilter.compiling.stopping import Stopped, Watch, guarded
from blendfilter.errors import BadArgument, CodeFailed, WorkFailed
from blendfilter.journal import FILE, Journal
from blendfilter.lm.budget import Budget
from blendfilter.lm.connect import connect
from blendfilter.lm.gate import Gate
from blendfilter.lm.held import connected, held_by, with_held_connected
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.retrying import Allowance
from blendfilter.lm.spending import check_priced, purse_for
from blendfilter.lm.terms import Traffic
from blendfilter.lm.tokenisers import tokeniser_for
from blendfilter.retrieval.base import ProgressCallback, silent

BEFORE, OPTIMISING, AFTER = "score before", "optimising", "score after"
"""The phases that progress is told."""


LONGEST_WAIT = 60.0
"""Seconds that calls in flight have to come back once the work is over."""


class Spent(NamedTuple):
    """What a journal holds: calls of models, and their tokens. Those of earlier work in the same folder count too."""

    calls: int
    tokens_in: int
    tokens_out: int


class Compiled(NamedTuple):
    """A compiled program, how it came about, and what its journal holds."""

    program: dspy.Module
    recipe: Recipe
    spent: Spent


def compile_program(
    student: dspy.Module,
    trainset: Sequence[dspy.Example],
    *,
    metric: Callable[..., Any],
    valset: Sequence[dspy.Example],
    run: str | Path,
    optimizer: str = "bootstrap",
    lm: dspy.BaseLM | str | None = None,
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
        student: any `dspy.Module`: a filter, a method, one of your own.
        trainset, valset: `dspy.Example`s with their inputs named; the second is held back for the scores alone.
        metric: (example, prediction, trace=None), or GEPA's five arguments: `silver_metric()`, `Questions.metric`.
        run: the folder of the journal. The same arguments again go on there.
        optimizer: labeled, bootstrap, mipro or gepa.
        lm: the model compiled for; DSPy's configured one by default, else the offline reader.
        teacher: the model that fills demonstrations (bootstrap, mipro), proposes (mipro) and reflects (gepa); `lm`
            by default.
        seed: of the order of the examples and of every random choice.
        max_demos: demonstrations a predictor gets. max_demo_tokens: tokens that those of one predictor may have
            together, as `lm` counts them: the longest are dropped first.
        candidates, trials, metric_calls: how far mipro and gepa go (`blendfilter.compiling.optimisers.Effort`).
        concurrency: model calls in flight.
        budget: what all sittings together may take.
        task, measure, note: what the recipe says of the data.
        out: where the program will be saved: one that other settings made is not replaced.
        progress: told the phase, and how many answers of it were measured.

    Raises:
        UnknownName: no such optimiser. MissingExtra: it needs a package. Leak: a question is in both sets. BadArgument,
        BadData: what cannot be compiled, said before any call. RunMismatch: `run` or `out` is of other settings.
        BudgetSpent, ServerRefused, ModelError: the same arguments again go on. WorkFailed: the model that proposes does
        not write what it is asked for.
    """
    work = _Asked(list(trainset), list(valset), Effort(max_demos, candidates, trials, metric_calls, concurrency))
    _check_numbers(max_demo_tokens, seed)
    check_module(student)
    check_examples(work.train, work.valid)
    check_overlap(work.train, work.valid)
    earlier = [digest for recipe in recipes_in(student) for digest in recipe.trained_on]
    check_unused(work.valid, earlier)
    optimiser = optimiser_called(optimizer, student, work.train)
    model = connect(lm if lm is not None else dspy.settings.lm or "offline")
    guide = connect(teacher) if teacher is not None else model
    own = with_held_connected(student)
    prices = {each.name: each.terms.price for each in [model, guide, *connected(own).values()]}
    check_priced(budget, prices)
    asked: dict[str, Any] = {
        **_what_of(student), "task": task, "measure": measure, "optimizer": optimizer,
        "settings": {
            **_settings(optimizer, work.effort, max_demo_tokens, tokeniser_for(model).name),
            "metric": metric.weights() if isinstance(metric, SilverMetric | Accepting) else _name_of(metric),
        },
        "lm": model.name, "teacher": guide.name, "seed": seed, "data": work.data(),
    }  # fmt: skip
    check_replaced(out, asked)
    with ExitStack() as stack:
        journal = stack.enter_context(Journal(Path(run) / FILE, exclusive=True))
        bind(run, {**asked, "student": fingerprint([dspy.Example(state_of(student))])})
        purse = purse_for(journal, budget, prices)
        if purse is not None:
            stack.callback(purse.close)
        traffic = Traffic(gate=Gate(concurrency), purse=purse, retries=Allowance())
        at_work = _AtWork(Watch(type(student)), journal, traffic)
        made = at_work.made(
            optimiser, _open_again(own.deepcopy()), work, metric, model, guide, seed, max_demo_tokens, progress
        )
        spent = _spent(journal)
    asked["settings"] |= made.dropped(max_demo_tokens)
    recipe = Recipe(
        **asked,
        before=made.before,
        after=made.after,
        trained_on=tuple(dict.fromkeys([*work.digests(), *earlier])),
        versions={package: version(package) for package in ("blendfilter", "dspy")},
        note=note,
    )
    program = _open_again(_unbound(made.program, student))
    program.compiled_by = recipe  # an evaluation asks for it
    return Compiled(program, recipe, spent)


class _Asked(NamedTuple):
    """What is compiled on, and how far it goes."""

    train: list[dspy.Example]
    valid: list[dspy.Example]
    effort: Effort

    def data(self) -> dict[str, Any]:
        """Which examples these are."""
        return {
            "train": fingerprint(self.train), "n_train": len(self.train),
            "valid": fingerprint(self.valid), "n_valid": len(self.valid),
        }  # fmt: skip

    def digests(self) -> list[str]:
        """Their questions, as a program remembers them."""
        return [question_digest(asked_in(each)) for each in [*self.train, *self.valid]]


class _Made(NamedTuple):
    program: dspy.Module
    before: Score
    after: Score
    demos: Dropped

    def dropped(self, max_demo_tokens: int | None) -> dict[str, Any]:
        """How many demonstrations are left, and how many a limit took."""
        taken = {} if max_demo_tokens is None else {"demos_dropped": self.demos.dropped}
        return {"demos": self.demos.left, **taken}


class _AtWork(NamedTuple):
    """One sitting: what ends it, and where its calls go."""

    watch: Watch
    journal: Journal
    traffic: Traffic

    def made(
        self, optimiser: Optimiser, student: dspy.Module, work: _Asked, metric: Callable[..., Any],
        model: ConnectedLM, guide: ConnectedLM, seed: int, max_demo_tokens: int | None, progress: ProgressCallback,
    ) -> _Made:  # fmt: skip
        """Score, optimise, score again. Raises: what ended it."""
        asked, teacher = self._through(model), self._through(guide)
        for held in held_by(student):
            held.put(self._through(connect(held.lm)))
        measured = Measured(metric.asking(asked) if isinstance(metric, SilverMetric) else metric, self.watch, progress)
        train = random.Random(seed).sample(work.train, len(work.train))
        callbacks = [*(dspy.settings.callbacks or []), self.watch]
        try:
            with quiet(), dspy.context(lm=asked, callbacks=callbacks, trace=[]):
                measured.begin(BEFORE, len(work.valid))
                before = score(student, work.valid, measured, work.effort.threads)
                measured.begin(OPTIMISING, None)
                program = self._optimised(optimiser, Work(student, train, measured, teacher, seed, work.effort))
                keep_own_fields(program)
                demos = hold_to(program, max_demo_tokens, tokeniser_for(model))
                measured.begin(AFTER, len(work.valid))
                after = score(program, work.valid, measured, work.effort.threads)
        except Stopped as stopped:
            _let_finish(self.traffic.gate)
            ended: Exception = stopped.error
        except KeyboardInterrupt:
            self.watch.interrupt()
            raise
        except Exception:
            raise
        except BaseException as error:  # a program that calls sys.exit() ends the work, not the process that compiles
            _let_finish(self.traffic.gate)
            raise CodeFailed.by(error) from error
        else:
            return _Made(program, before, after, demos)
        raise ended  # outside of the block: an error must not have for its context what came of it

    def _optimised(self, optimiser: Optimiser, work: Work) -> dspy.Module:
        try:
            program = optimiser.run(work)
        except AdapterParseError as error:
            wanted = ", ".join(error.signature.output_fields)
            raise WorkFailed(
                f"{work.teacher.name} proposes nothing: what it replied, where DSPy asks it for {wanted}, cannot be "
                "read: name a better model to propose (--teacher-lm, teacher=), or take the optimiser bootstrap"
            ) from error
        finally:
            self.watch.check()  # what ended the work comes before what came of it
        return program

    def _through(self, lm: ConnectedLM) -> ConnectedLM:
        return guarded(lm.with_journal(self.journal, self.traffic), self.watch)


def _let_finish(gate: Gate | None) -> None:
    """Wait for the calls of other threads that are out: they are paid for, and the journal is about to close."""
    over = time.monotonic() + LONGEST_WAIT
    while gate is not None and gate.in_flight and time.monotonic() < over:
        time.sleep(0.02)
    time.sleep(0.02)  # what has come back is being appended


def _what_of(student: dspy.Module) -> dict[str, Any]:
    """What is compiled: its kind, and the names and words that a program is bound to."""
    return {
        "module": kind_of(student), "fields": fields_of(student), "templates": templates_of(student),
        "worded": worded_of(student),
    }  # fmt: skip


def _settings(optimizer: str, effort: Effort, max_demo_tokens: int | None, tokeniser: str) -> dict[str, Any]:
    """What shaped the optimiser's work."""
    of_one: dict[str, dict[str, Any]] = {
        "mipro": {"candidates": effort.candidates, "trials": effort.trials},
        "gepa": {"metric_calls": effort.metric_calls},
    }
    limit = {} if max_demo_tokens is None else {"max_demo_tokens": max_demo_tokens, "tokeniser": tokeniser}
    return {"max_demos": effort.demos, **of_one.get(optimizer, {}), **limit}


def _check_numbers(max_demo_tokens: int | None, seed: int) -> None:
    if max_demo_tokens is not None and max_demo_tokens < 0:
        raise BadArgument(f"max_demo_tokens is {max_demo_tokens}: give 0 (no demonstration) or more")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise BadArgument(f"seed is {seed!r}: give 0 or a positive whole number")


def _spent(journal: Journal) -> Spent:
    calls = [record for record in journal.records("call") if not record.get("error")]
    tokens = {name: sum(int(record.get(name) or 0) for record in calls) for name in ("tokens_in", "tokens_out")}
    return Spent(len(calls), **tokens)


def _name_of(metric: Callable[..., Any]) -> str:
    return str(getattr(metric, "__name__", type(metric).__name__))


def _open_again(program: dspy.Module) -> dspy.Module:
    """`program`, which DSPy would not compile, or not show the parameters of, once it was compiled."""
    program._compiled = False
    return program


def _unbound(program: dspy.Module, student: dspy.Module) -> dspy.Module:
    """`program` with the models that `student` holds: the journal that its own went through is closed."""
    theirs: Mapping[str, Any] = {held.name: held.lm for held in held_by(student)}
    for held in held_by(program):
        held.put(theirs.get(held.name))
    return program
