"""DSPy's optimisers by name, each made so that the same journal gives the same program.

LabeledFewShot, BootstrapFewShot and its random search (Khattab et al. 2023, "DSPy", https://arxiv.org/abs/2310.03714),
MIPROv2 (Opsahl-Ong et al. 2024, https://arxiv.org/abs/2406.11695) and GEPA (Agrawal et al. 2025,
https://arxiv.org/abs/2507.19457), as DSPy has them.

What the result could depend on beside the journal, and what is done about it: the order of the examples (shuffled by
the seed), random choices (every optimiser is given the seed), the order in which threads end (DSPy sums in the order of
the examples), checkpoints of a killed session (GEPA is given no folder: the journal is its memory). Which equal texts
are one object, and how a process hashes names, matters to a user's own call too: `blendfilter.lm.journaled` settles it.
The random search, MIPROv2 and GEPA choose among candidates by half of the training set, so the held-back set stays
unseen. With a pool, demonstrations are the pool's, and they choose by the whole training set.

KNNFewShot is not here: it picks demonstrations for every question anew, which no saved program holds, and a prompt that
begins otherwise each time is read from its start each time.

DSPy hands predictors whole training rows, gold answers and passages included. A demonstration has its predictor's own
fields and no others, and no more tokens than allowed: what a predictor has no field for would only be carried along,
and what lacks one of its fields would be left out of every prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import dspy

from blendfilter.asking import demonstrations
from blendfilter.compiling.settings import SearchSettings
from blendfilter.errors import BadArgument, UnknownName
from blendfilter.extras import needed
from blendfilter.filters.filco import unquoted
from blendfilter.filters.ids import read_ids
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.tokenisers import TokenCounter
from blendfilter.prompting import field_names


@dataclass(frozen=True)
class OptimiserWork:
    """What an optimiser is given, `train` and `pool` in the order of the seed."""

    student: dspy.Module
    train: Sequence[dspy.Example]
    metric: Callable[..., Any]
    teacher: ConnectedLM
    settings: SearchSettings
    threads: int
    pool: Sequence[dspy.Example] = ()

    @property
    def halves(self) -> tuple[Sequence[dspy.Example], Sequence[dspy.Example]]:
        """What candidates are made from, and what chooses among them."""
        cut = max(1, round(len(self.train) / 2))
        return (self.pool, self.train) if self.pool else (self.train[:cut], self.train[cut:])

    @property
    def labelled_rows(self) -> list[dspy.Example]:
        """Rows that fill some predictor's fields; one predictor's may lack another's."""
        predictors = self.student.predictors()
        return [
            row
            for row in self.pool or self.train
            if any(complete(row, predictor) for predictor in predictors)
        ]

    @property
    def bootstrapping(self) -> dict[str, Any]:
        """Arguments that bootstrapping optimisers share; no labelled demonstrations where no row fills a predictor."""
        demos = self.settings.max_demos
        return {
            "metric": self.metric,
            "teacher_settings": {"lm": self.teacher},
            "max_bootstrapped_demos": demos,
            "max_labeled_demos": demos if self.labelled_rows else 0,
        }

    def teaching(self, rows: Sequence[dspy.Example]) -> list[dspy.Example]:
        """`rows` but those whose output is given as None: of these no demonstration is made."""
        outputs = {
            name for each in self.student.predictors() for name in each.signature.output_fields
        }
        return [row for row in rows if not any(row.get(name, "") is None for name in outputs)]


def labeled(work: OptimiserWork) -> dspy.Module:
    """Rows of the training set as demonstrations, as they are."""
    optimiser = dspy.LabeledFewShot(k=work.settings.max_demos)
    return _labelled_kept(work, optimiser.compile(work.student, trainset=work.labelled_rows))


def bootstrap(work: OptimiserWork) -> dspy.Module:
    """Answers of the teacher that the metric accepts, as demonstrations of all the predictors on the way."""
    rows = work.pool or work.train
    optimiser = dspy.BootstrapFewShot(**work.bootstrapping, max_errors=len(rows) + 1)
    if not (rows := work.teaching(rows)):
        return work.student.deepcopy()
    return _labelled_kept(work, optimiser.compile(work.student, trainset=rows))


def search(work: OptimiserWork) -> dspy.Module:
    """Sets of demonstrations drawn at random, labelled and bootstrapped: that which answers best."""
    teaching, chooses = work.halves
    optimiser = dspy.BootstrapFewShotWithRandomSearch(
        **work.bootstrapping,
        num_candidate_programs=work.settings.candidates,
        num_threads=work.threads,
        max_errors=len(teaching) + len(chooses) + 1,
    )
    rows = work.teaching(teaching) or teaching
    compiled = optimiser.compile(work.student, trainset=rows, valset=chooses)
    compiled.candidate_programs = []  # every set that was tried
    return _labelled_kept(work, compiled)


def mipro(work: OptimiserWork) -> dspy.Module:
    """Instructions that a model proposes and bootstrapped demonstrations, searched together."""
    train, chooses = work.halves
    optimiser = dspy.MIPROv2(
        **work.bootstrapping,
        prompt_model=work.teacher,
        auto=None,
        num_candidates=work.settings.candidates,
        num_threads=work.threads,
        max_errors=10 * len(work.train),
        seed=work.settings.seed,
        track_stats=False,
    )
    return optimiser.compile(
        work.student,
        trainset=work.teaching(train) or train,
        valset=chooses,
        num_trials=work.settings.trials,
        minibatch=False,
    )


def gepa(work: OptimiserWork) -> dspy.Module:
    """Instructions that a model rewrites by reflecting on what went wrong."""
    train, chooses = work.halves
    optimiser = dspy.GEPA(
        metric=work.metric,
        max_metric_calls=work.settings.metric_calls or 12 * len(chooses) + 40,
        # Reflection draws new instructions; greedy, the same failures would give the same ones.
        reflection_lm=work.teacher.copy(temperature=1.0),
        num_threads=work.threads,
        seed=work.settings.seed,
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


Optimiser = Callable[[OptimiserWork], dspy.Module]
OPTIMIZERS: Mapping[str, Optimiser] = {
    "labeled": labeled,
    "bootstrap": bootstrap,
    "search": search,
    "mipro": mipro,
    "gepa": gepa,
}
_SEARCHES = {"search": None, "mipro": "optuna", "gepa": "gepa"}
"""Optimisers that choose among candidates, and the package that each needs beside DSPy."""


def optimiser_for(work: OptimiserWork) -> Optimiser:
    """The optimiser that the settings name. Raises where it is missing or could change nothing."""
    name = work.settings.optimizer
    if name not in OPTIMIZERS:
        raise UnknownName.of("optimiser", name, OPTIMIZERS)
    if package := _SEARCHES.get(name):
        needed(package, "compile", f"the optimiser {name}")
    if name in _SEARCHES and len(work.train) < 2:
        raise BadArgument(f"{name} wants two training examples or more: give it more")
    if name == "labeled" and not work.labelled_rows:
        raise BadArgument(
            f"labeled can do nothing for {type(work.student).__name__}: no training row fills the fields of a "
            "predictor of its; use bootstrap, which lets a model fill them"
        )
    return OPTIMIZERS[name]


# --- demonstrations ---------------------------------------------------------------------------------------------------


class DemoCount(NamedTuple):
    """Demonstrations: too many for `max_demo_tokens`, and left."""

    dropped: int
    left: int


def complete(row: Mapping[str, Any], predictor: dspy.Predict) -> bool:
    """Whether a row fills a predictor's fields; an empty list fills none."""
    return all(row.get(name) not in (None, []) for name in field_names(predictor.signature))


def reduced(row: Mapping[str, Any], predictor: dspy.Predict) -> dspy.Example:
    """A row's fields that `predictor` has, in its order; `augmented` (a model filled them) is kept."""
    (demo,) = demonstrations(predictor, [row])
    if row.get("augmented"):
        demo.augmented = True
    return demo


def keep_own_fields(module: dspy.Module) -> None:
    """Reduce every predictor's demonstrations, and leave out those that do not fill its fields, or show no ids."""
    for predictor in module.predictors():
        own = (
            reduced(demo, predictor) for demo in predictor.demos if complete(demo, predictor)
        )
        predictor.demos = [demo for demo in own if _with_plain_ids(demo)]


def _with_plain_ids(demo: dspy.Example) -> bool:
    """Write a reply of ids (a model's, in JSON or among words) as the prompt asks for it: ``0, 3``, or ``none``.

    False where it cannot be read: it demonstrates what had to be asked for again.
    """
    if not ("ids" in demo and "knowledge" in demo):
        return True
    read = read_ids(unquoted(demo.ids, demo.knowledge), len(demo.knowledge))
    demo.ids = ", ".join(map(str, sorted(read.ids))) or "none"
    return read.status in ("ids", "none")


def hold_to(module: dspy.Module, limit: int | None, tokeniser: TokenCounter) -> DemoCount:
    """Drop demonstrations until each predictor's fit in `limit` tokens: the longest first, of equals the last added.

    Counted is the text of their fields; a template adds its cues, some words each.
    """

    def tokens_of(demo: Mapping[str, Any]) -> float:
        lines: list[Any] = []
        for name, value in demo.items():
            if name != "augmented":
                lines += value if isinstance(value, list | tuple) else [value]
        return tokeniser.count("\n".join(map(str, lines)))

    dropped = left = 0
    for predictor in module.predictors():
        demos = [*predictor.demos]
        sizes = [tokens_of(demo) for demo in demos]
        while limit is not None and sum(sizes) > limit:
            longest = max(range(len(sizes)), key=lambda at: (sizes[at], at))
            del sizes[longest], demos[longest]
            dropped += 1
        predictor.demos = demos
        left += len(demos)
    return DemoCount(dropped, left)
