"""DSPy's optimisers by name, each made so that the same journal gives the same program.

LabeledFewShot, BootstrapFewShot (Khattab et al. 2023, "DSPy", https://arxiv.org/abs/2310.03714), MIPROv2 (Opsahl-Ong
et al. 2024, https://arxiv.org/abs/2406.11695) and GEPA (Agrawal et al. 2025, https://arxiv.org/abs/2507.19457), as
DSPy has them.

What the result could depend on beside the journal, and what is done about it: the order of the examples (shuffled by
the seed), random choices (every optimiser is given the seed), the order in which threads end (DSPy sums in the order of
the examples), checkpoints of a killed session (GEPA is given no folder: the journal is its memory). Which equal texts
are one object, and how a process hashes names, matters to a user's own call too: `blendfilter.lm.journaled` settles it.
MIPROv2 and GEPA choose among candidates by half of the training set, so the held-back set stays unseen.

DSPy hands predictors whole training rows, gold answers and passages included. A demonstration has its predictor's own
fields and no others, and no more tokens than allowed: what a predictor has no field for would only be carried along,
and what lacks one of its fields would be left out of every prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import dspy

from blendfilter.errors import BadArgument, UnknownName
from blendfilter.extras import needed
from blendfilter.filters.filco import unquoted
from blendfilter.filters.ids import read_ids
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.tokenisers import TokenCounter
from blendfilter.prompting import OPTIONAL_FIELDS


@dataclass(frozen=True)
class OptimiserWork:
    """What an optimiser is given, `train` in the order of the seed, and how far it goes (see `compile_program`)."""

    student: dspy.Module
    train: Sequence[dspy.Example]
    metric: Callable[..., Any]
    teacher: ConnectedLM
    seed: int
    demos: int
    candidates: int
    trials: int
    metric_calls: int | None
    threads: int

    def halves(self) -> tuple[list[dspy.Example], list[dspy.Example]]:
        """What candidates are made from, and what chooses among them."""
        cut = max(1, round(len(self.train) / 2))
        return list(self.train[:cut]), list(self.train[cut:])

    @property
    def labelled(self) -> int:
        """Labelled demonstrations a predictor may get: none where no row fills any predictor's fields."""
        return self.demos if fits_any(self.train, self.student) else 0


def labeled(work: OptimiserWork) -> dspy.Module:
    """Rows of the training set as demonstrations, as they are."""
    # One predictor's rows may lack another's fields; those that fill none would take a place for nothing.
    rows = [row for row in work.train if fits_any([row], work.student)]
    return _labelled_kept(
        work, dspy.LabeledFewShot(k=work.demos).compile(work.student, trainset=rows)
    )


def bootstrap(work: OptimiserWork) -> dspy.Module:
    """Answers of the teacher that the metric accepts, as demonstrations of all the predictors on the way."""
    optimiser = dspy.BootstrapFewShot(
        metric=work.metric,
        teacher_settings={"lm": work.teacher},
        max_bootstrapped_demos=work.demos,
        max_labeled_demos=work.labelled,
        max_errors=len(work.train) + 1,
    )
    if not (rows := _teaching(work.train, work.student)):
        return work.student.deepcopy()
    return _labelled_kept(work, optimiser.compile(work.student, trainset=rows))


def mipro(work: OptimiserWork) -> dspy.Module:
    """Instructions that a model proposes and bootstrapped demonstrations, searched together."""
    train, chooses = work.halves()
    train = _teaching(train, work.student) or train
    optimiser = dspy.MIPROv2(
        metric=work.metric,
        prompt_model=work.teacher,
        teacher_settings={"lm": work.teacher},
        auto=None,
        num_candidates=work.candidates,
        max_bootstrapped_demos=work.demos,
        max_labeled_demos=work.labelled,
        num_threads=work.threads,
        max_errors=10 * len(work.train),
        seed=work.seed,
        track_stats=False,
    )
    return optimiser.compile(
        work.student, trainset=train, valset=chooses, num_trials=work.trials, minibatch=False
    )


def gepa(work: OptimiserWork) -> dspy.Module:
    """Instructions that a model rewrites by reflecting on what went wrong."""
    train, chooses = work.halves()
    optimiser = dspy.GEPA(
        metric=work.metric,
        max_metric_calls=work.metric_calls or 12 * len(chooses) + 40,
        # Reflection draws new instructions; greedy, the same failures would give the same ones.
        reflection_lm=work.teacher.copy(temperature=1.0),
        num_threads=work.threads,
        seed=work.seed,
        warn_on_score_mismatch=False,
    )
    return optimiser.compile(work.student, trainset=train, valset=chooses)


def _teaching(rows: Sequence[dspy.Example], student: dspy.Module) -> list[dspy.Example]:
    """`rows` but those whose output is given as None: of these no demonstration is made."""
    outputs = {
        name for _, each in student.named_predictors() for name in each.signature.output_fields
    }
    return [
        row for row in rows if not any(name in row and row[name] is None for name in outputs)
    ]


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
    "mipro": mipro,
    "gepa": gepa,
}
_SEARCHES = {"mipro": "optuna", "gepa": "gepa"}
"""Optimisers that choose among candidates, and the package that each needs."""


def optimiser_called(
    name: str, student: dspy.Module, train: Sequence[dspy.Example]
) -> Optimiser:
    """The optimiser of that name. Raises where it is missing or could change nothing."""
    if name not in OPTIMIZERS:
        raise UnknownName.of("optimiser", name, OPTIMIZERS)
    if name in _SEARCHES:
        needed(_SEARCHES[name], "compile", f"the optimiser {name}")
        if len(train) < 2:
            raise BadArgument(f"{name} wants two training examples or more: give it more")
    if name == "labeled" and not fits_any(train, student):
        raise BadArgument(
            f"labeled can do nothing for {type(student).__name__}: no training row fills the fields of a predictor of "
            "its; use bootstrap, which lets a model fill them"
        )
    return OPTIMIZERS[name]


# --- demonstrations ---------------------------------------------------------------------------------------------------


class DemoCount(NamedTuple):
    """Demonstrations: too many for `max_demo_tokens`, and left."""

    dropped: int
    left: int


def complete(row: Mapping[str, Any], predictor: dspy.Predict) -> bool:
    """Whether a row fills a predictor's fields; an empty list fills none."""
    inputs = [name for name in predictor.signature.input_fields if name not in OPTIONAL_FIELDS]
    return all(
        row.get(name) not in (None, [])
        for name in [*inputs, *predictor.signature.output_fields]
    )


def fits_any(rows: Iterable[Mapping[str, Any]], module: dspy.Module) -> bool:
    """Whether some row fills some predictor's fields."""
    predictors = [each for _, each in module.named_predictors()]
    return any(complete(row, predictor) for row in rows for predictor in predictors)


def reduced(row: Mapping[str, Any], predictor: dspy.Predict) -> dspy.Example:
    """A row's fields that `predictor` has, in its order; `augmented` (a model filled them) is kept."""
    inputs = list(predictor.signature.input_fields)
    names = [*inputs, *predictor.signature.output_fields]
    marked = {"augmented": True} if row.get("augmented") else {}
    return dspy.Example(
        **marked, **{name: row[name] for name in names if name in row}
    ).with_inputs(*inputs)


def keep_own_fields(module: dspy.Module) -> None:
    """Reduce every predictor's demonstrations, and leave out those that do not fill its fields, or show no ids."""
    for _, predictor in module.named_predictors():
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
    for _, predictor in module.named_predictors():
        sized = [(tokens_of(demo), place, demo) for place, demo in enumerate(predictor.demos)]
        while limit is not None and sized and sum(size for size, *_ in sized) > limit:
            sized.remove(max(sized, key=lambda each: each[:2]))
            dropped += 1
        predictor.demos = [demo for *_, demo in sized]
        left += len(sized)
    return DemoCount(dropped, left)
