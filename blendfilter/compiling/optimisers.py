"""DSPy's optimisers by name, each made so that the same journal gives the same program.

LabeledFewShot, BootstrapFewShot (Khattab et al. 2023, "DSPy", https://arxiv.org/abs/2310.03714), MIPROv2 (Opsahl-Ong
et al. 2024, https://arxiv.org/abs/2406.11695) and GEPA (Agrawal et al. 2025, https://arxiv.org/abs/2507.19457), as
DSPy has them.

What the result could depend on beside the journal, and what is done about it: the order of the examples (shuffled by
the seed), random choices (every optimiser is given the seed), the order in which threads end (DSPy sums in the order of
the examples), checkpoints of a killed session (GEPA is given no folder: the journal is its memory). MIPROv2 and GEPA
choose among candidates by a part of the training set, so the held-back set stays unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import dspy

from blendfilter.compiling.demos import complete, fits_any
from blendfilter.errors import BadArgument, UnknownName, check_count
from blendfilter.extras import needed
from blendfilter.lm.model import ConnectedLM

TRAIN_SHARE = 0.5
"""The part of the training set that candidates are made from, where the rest chooses among them."""


@dataclass(frozen=True)
class OptimiserEffort:
    """How far an optimiser goes; None: its own measure.

    Attributes:
        demos: demonstrations a predictor gets at the most, bootstrapped and labelled together.
        candidates: MIPROv2's instructions and sets of demonstrations a predictor (4).
        trials: MIPROv2's combinations tried (8).
        metric_calls: GEPA's answers measured (twelve times the set it chooses by, and 40).
        threads: answers made at once.
    """

    demos: int = 4
    candidates: int = 4
    trials: int = 8
    metric_calls: int | None = None
    threads: int = 4

    def __post_init__(self) -> None:
        check_count("max_demos", self.demos, 0)  # by their names in `compile_program`
        check_count("candidates", self.candidates, 2)
        check_count("trials", self.trials)
        check_count("concurrency", self.threads)
        if self.metric_calls is not None:
            check_count("metric_calls", self.metric_calls)


@dataclass(frozen=True)
class OptimiserWork:
    """What an optimiser is given; `train` in the order of the seed."""

    student: dspy.Module
    train: Sequence[dspy.Example]
    metric: Callable[..., Any]
    teacher: ConnectedLM
    seed: int
    effort: OptimiserEffort

    def halves(self) -> tuple[list[dspy.Example], list[dspy.Example]]:
        """What candidates are made from, and what chooses among them."""
        cut = max(1, round(len(self.train) * TRAIN_SHARE))
        return list(self.train[:cut]), list(self.train[cut:])

    @property
    def labelled(self) -> int:
        """Labelled demonstrations a predictor may get: none where no row fills any predictor's fields."""
        return self.effort.demos if fits_any(self.train, self.student) else 0


def labeled(work: OptimiserWork) -> dspy.Module:
    """Rows of the training set as demonstrations, as they are."""
    # One predictor's rows may lack another's fields; those that fill none would take a place for nothing.
    rows = [row for row in work.train if fits_any([row], work.student)]
    return _labelled_kept(work, dspy.LabeledFewShot(k=work.effort.demos).compile(work.student, trainset=rows))


def bootstrap(work: OptimiserWork) -> dspy.Module:
    """Answers of the teacher that the metric accepts, as demonstrations of all the predictors on the way."""
    optimiser = dspy.BootstrapFewShot(
        metric=work.metric,
        teacher_settings={"lm": work.teacher},
        max_bootstrapped_demos=work.effort.demos,
        max_labeled_demos=work.labelled,
        max_errors=len(work.train) + 1,
    )
    return _labelled_kept(work, optimiser.compile(work.student, trainset=list(work.train)))


def mipro(work: OptimiserWork) -> dspy.Module:
    """Instructions that a model proposes and bootstrapped demonstrations, searched together."""
    train, chooses = work.halves()
    optimiser = dspy.MIPROv2(
        metric=work.metric,
        prompt_model=work.teacher,
        teacher_settings={"lm": work.teacher},
        auto=None,
        num_candidates=work.effort.candidates,
        max_bootstrapped_demos=work.effort.demos,
        max_labeled_demos=work.labelled,
        num_threads=work.effort.threads,
        max_errors=10 * len(work.train),
        seed=work.seed,
        track_stats=False,
    )
    return optimiser.compile(
        work.student, trainset=train, valset=chooses, num_trials=work.effort.trials, minibatch=False
    )


def gepa(work: OptimiserWork) -> dspy.Module:
    """Instructions that a model rewrites by reflecting on what went wrong."""
    train, chooses = work.halves()
    optimiser = dspy.GEPA(
        metric=work.metric,
        max_metric_calls=work.effort.metric_calls or 12 * len(chooses) + 40,
        # Reflection draws new instructions; greedy, the same failures would give the same ones.
        reflection_lm=work.teacher.copy(temperature=1.0),
        num_threads=work.effort.threads,
        seed=work.seed,
        warn_on_score_mismatch=False,
    )
    return optimiser.compile(work.student, trainset=train, valset=chooses)


def _labelled_kept(work: OptimiserWork, compiled: dspy.Module) -> dspy.Module:
    """A predictor that got no complete demonstration keeps those that it had."""
    had = dict(work.student.named_predictors())
    for name, predictor in compiled.named_predictors():
        if not any(complete(demo, predictor) for demo in predictor.demos):
            predictor.demos = list(had[name].demos)
    return compiled


class Optimiser(NamedTuple):
    """How it runs; how many training examples it wants; the module that it needs, if any."""

    run: Callable[[OptimiserWork], dspy.Module]
    least: int
    needs: str = ""


OPTIMIZERS: Mapping[str, Optimiser] = {
    "labeled": Optimiser(labeled, 1),
    "bootstrap": Optimiser(bootstrap, 1),
    "mipro": Optimiser(mipro, 2, "optuna"),
    "gepa": Optimiser(gepa, 2, "gepa"),
}


def optimiser_called(name: str, student: dspy.Module, train: Sequence[dspy.Example]) -> Optimiser:
    """The optimiser of that name, if it can do something for `student`.

    Raises:
        UnknownName: none by that name. MissingExtra: it needs a package. BadArgument: it could change nothing, or
            has too few examples.
    """
    if name not in OPTIMIZERS:
        raise UnknownName.of("optimiser", name, OPTIMIZERS)
    chosen = OPTIMIZERS[name]
    if chosen.needs:
        needed(chosen.needs, "compile", f"the optimiser {name}")
    if len(train) < chosen.least:
        raise BadArgument(f"{name} wants {chosen.least} training examples or more, there is {len(train)}: give it more")
    if name == "labeled" and not fits_any(train, student):
        first, predictor = next(iter(student.named_predictors()))
        names = ", ".join([*predictor.signature.input_fields, *predictor.signature.output_fields])
        raise BadArgument(
            f"labeled can do nothing for {type(student).__name__}: no training row fills the fields of a predictor of "
            f"its ('{first}' wants {names}): use bootstrap, which lets a model fill them"
        )
    return chosen
