"""A run's shards as Ray tasks: on the processors of this machine, or on a cluster that shares the run's folder.

A shard is what `Questions.shard` makes, evaluated in a folder of its own (`RUN.shards/1of8`) with a journal of its own.
A worker that is lost takes nothing with it: Ray starts its task again, which goes on from the journal. The shards are
merged into the run that one process would have made.

A budget is dealt out in equal parts, so that all shards together never pass it; what some leave is dealt out again to
those that were stopped, until nothing is left that lets one go on.

Method, questions and model travel by pickle: an index by its folder, a model by the settings that connect it, never
with a key, which each worker takes from its own environment.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import dspy

from blendfilter import aio, errors
from blendfilter.context import GIVEN, setting
from blendfilter.errors import BadArgument, BlendFilterError, BudgetSpent, RunMismatch, WorkFailed
from blendfilter.evaluation.merging import merge
from blendfilter.evaluation.rows import how_far, repeat_of
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.run_folder import PREDICTIONS, RUN, iterate_rows
from blendfilter.evaluation.run_loop import RunProgress
from blendfilter.evaluation.runner import as_questions, evaluated
from blendfilter.files import path_of
from blendfilter.journal import FILE, Journal
from blendfilter.lm.budget import NOTHING, Amount, Budget, marked
from blendfilter.lm.model import connect
from blendfilter.retrieval.indexes import open_index
from blendfilter.retrieval.on_ray import LOCAL, connected
from blendfilter.retrieval.stored import Stored
from blendfilter.run_context import check_module
from blendfilter.tasks.base import Questions

RETRIES = 5
"""How often Ray starts a shard again whose worker was lost."""
EVERY = 0.5
"""Seconds between two looks at how far the shards are."""


class Ended(NamedTuple):
    """How a shard ended: the exit code and the words of its error (0: it is finished), and what it spent by now."""

    code: int
    words: str
    kind: str
    spent: Amount


def evaluate_on_ray(
    method: dspy.Module,
    questions: Questions | Sequence[Any],
    *,
    shards: int,
    run: str | Path,
    address: str = LOCAL,
    lm: dspy.BaseLM | str | None = None,
    filter_lm: dspy.BaseLM | str | None = None,
    budget: Budget | None = None,
    gpus: float = 0.0,
    progress: RunProgress | bool = True,
    **options: Any,
) -> Run:
    """`evaluate`, by so many shards as Ray tasks.

    Args:
        shards: how many; each has `concurrency` calls in flight.
        run: the folder of the run. A run that is there already goes on in this process alone.
        address: `local`; `auto` for the cluster that this machine belongs to; or a cluster's, ``ray://HOST:10001``.
        budget: of all shards together.
        gpus: of each shard, for a model in its process.
        options: of `evaluate`.

    Raises:
        ServerRefused: no cluster answers there. MissingExtra: ray is not installed. BadArgument: more shards than
        questions; a budget too small to be dealt out. RunMismatch: shards of another number are there. WorkFailed: a
        shard was lost each time. BudgetSpent: of all shards; and as `evaluate` does.
    """
    check_module(method)
    questions, folder = as_questions(questions), path_of(run)
    lm = connect(lm if lm is not None else dspy.settings.lm or "offline")
    judge = None if filter_lm is None else connect(filter_lm)
    given = {"lm": lm, "filter_lm": judge, **options}
    if folder.exists():
        if not (folder / RUN).is_file():  # else all shards would be paid for before the merge says so
            raise BadArgument(f"{folder} is there already and holds no run: name a new folder for this one")
        return aio.run(evaluated(method, questions, run=folder, budget=budget, progress=progress, **given), "evaluate")
    parts = {number: questions.shard(number, shards) for number in range(1, shards + 1)}
    folders = {number: _shards_of(folder) / f"{number}of{shards}" for number in parts}
    _check_number(folder, shards)
    limits = dealt(budget, shards)
    if isinstance(progress, bool):
        progress = RunProgress(questions.task.metrics, None, progress)
    repeats = options.get("repeats", 1)
    with connected(address) as ray:
        payload = ray.put(packed((method, given, GIVEN.get()), ray))
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_evaluate_shard)

        def start(number: int) -> Any:
            where = str(folders[number].resolve())
            return task.remote(payload, pickle.dumps(parts[number]), where, limits[number], os.getcwd())

        watch = _Watch({number: path / PREDICTIONS for number, path in folders.items()}, progress)
        progress.start(len(questions) * repeats, watch.known())
        try:
            _all(ray, start, limits, budget, watch, len(questions) * repeats, _shards_of(folder))
        finally:
            progress.stop()
    models = (lm, *(() if judge is None else (judge,)))
    return merge(*folders.values(), out=folder, prices={each.name: each.terms.prices for each in models})


def _all(
    ray: Any, start: Any, limits: dict[int, Budget | None], budget: Budget | None, watch: _Watch, answers: int,
    place: Path,
) -> None:  # fmt: skip
    """Have every shard finished, as far as the budget goes. Raises: what stopped one of them."""
    left, spent = [*limits], dict.fromkeys(limits, NOTHING)
    while left:
        ended = _round(ray, {number: start(number) for number in left}, watch)
        for end in ended.values():
            if end.code not in (0, BudgetSpent.exit_code):
                raise _as_error(end)
        stopped = [number for number, end in ended.items() if end.code]
        went_on = any(ended[number].spent != spent[number] for number in stopped)
        spent |= {number: end.spent for number, end in ended.items()}
        spare = None if budget is None else shared(budget, spent.values(), len(stopped))
        if stopped and (spare is None or not went_on):
            done = how_far(watch.rows(), answers)
            total = sum(spent.values(), NOTHING)
            raise BudgetSpent(
                f"the budget of all shards is spent ({total.words()}): {done}, and the same command with a higher "
                f"limit goes on in {place}"
            )
        if spare is not None:
            limits |= {number: raised(spent[number], spare) for number in stopped}
        left = stopped


def _round(ray: Any, started: Mapping[int, Any], watch: _Watch) -> dict[int, Ended]:
    """How each of these shards ended. The first error but a spent budget ends the others. Raises: WorkFailed."""
    by_task, ended = {task: number for number, task in started.items()}, dict[int, Ended]()
    pending = [*by_task]
    try:
        while pending:
            ready, pending = ray.wait(pending, timeout=EVERY)
            watch.look()
            for task in ready:
                try:
                    ended[by_task[task]] = end = Ended(*ray.get(task))
                except ray.exceptions.RayError as lost:
                    words = str(lost).strip().splitlines()[0]
                    raise WorkFailed(
                        f"shard {by_task[task]} could not be finished ({type(lost).__name__}: {words}); the same "
                        "command goes on where it was"
                    ) from None
                if end.code not in (0, BudgetSpent.exit_code):
                    return ended
    finally:
        for task in pending:
            with suppress(ray.exceptions.RayError):
                ray.cancel(task, force=True)
    return ended


def _evaluate_shard(
    payload: bytes, questions: bytes, folder: str, budget: Budget | None, cwd: str
) -> tuple[int, str, str, Amount]:
    """In a worker: one shard, and how it ended."""
    with suppress(OSError):  # a machine that has no such folder: paths are absolute there
        os.chdir(cwd)
    try:
        method, given, options = pickle.loads(payload)
        Path(folder).parent.mkdir(parents=True, exist_ok=True)
        with setting(GIVEN, options):
            work = evaluated(method, pickle.loads(questions), run=folder, budget=budget, progress=False, **given)
            aio.run(work, "evaluate")
    except BlendFilterError as error:
        return error.exit_code, str(error), type(error).__name__, _spent(Path(folder))
    return 0, "", "", _spent(Path(folder))


def _spent(folder: Path) -> Amount:
    """What the account of a shard says; nothing where it keeps none."""
    if not (folder / FILE).is_file():
        return NOTHING
    with Journal(folder, "replay") as journal:
        return marked(journal)


def _as_error(end: Ended) -> BlendFilterError:
    """A shard's error, here."""
    kind = getattr(errors, end.kind, WorkFailed)
    try:
        made = kind(end.words)
    except TypeError:
        made = WorkFailed(end.words)
    assert isinstance(made, BlendFilterError)
    return made


# --- a budget of several -------------------------------------------------------------------------------------------


def dealt(budget: Budget | None, shards: int) -> dict[int, Budget | None]:
    """Each shard's part of a budget. Raises: BadArgument where there is less than one call or token for each.

    >>> dealt(Budget(calls=10), 3)[1]
    Budget(calls=3, tokens=None, dollars=None)
    """
    if budget is None:
        return dict.fromkeys(range(1, shards + 1))
    if (part := shared(budget, (), shards)) is None:
        limits = ", ".join(f"{limit:g} {name}" for name, limit in budget.given().items())
        raise BadArgument(f"a budget of {limits} cannot be dealt out to {shards} shards: give more of it")
    return dict.fromkeys(range(1, shards + 1), raised(NOTHING, part))


def shared(budget: Budget, spent: Iterable[Amount], shards: int) -> Budget | None:
    """What each of so many shards gets of what is left; None where it is not even one call or token each."""
    gone = sum(spent, NOTHING)
    left = {name: (limit - getattr(gone, name)) / max(1, shards) for name, limit in budget.given().items()}
    parts: dict[str, Any] = {name: part if name == "dollars" else int(part) for name, part in left.items()}
    return None if any(part <= 0 for part in parts.values()) else Budget(**parts)


def raised(spent: Amount, more: Budget) -> Budget:
    """The limit of a shard that spent so much and may spend so much more."""
    return Budget(**{name: getattr(spent, name) + part for name, part in more.given().items()})


def packed(value: Any, ray: Any) -> bytes:
    """`value` as bytes that a worker unpickles: an index in a folder by that, code of a user's own script whole."""

    class Packer(ray.cloudpickle.CloudPickler):
        def reducer_override(self, given: Any) -> Any:
            if isinstance(given, Stored) and given.path is not None:
                return open_index, (given.path.resolve(),)
            return super().reducer_override(given)

    file = io.BytesIO()
    Packer(file).dump(value)
    return file.getvalue()


# --- how far it is --------------------------------------------------------------------------------------------------


class _Watch:
    """The shards' rows as they come, told to one progress."""

    def __init__(self, paths: Mapping[int, Path], progress: RunProgress) -> None:
        self._paths, self._progress = paths, progress
        self._seen: dict[int, set[tuple[int, str]]] = {number: set() for number in paths}
        self._at: dict[int, tuple[int, int]] = {}

    def known(self) -> int:
        """How many rows without an error earlier sessions left; they are not told again."""
        for number, row in self._new():
            if row["error"] is None:
                self._seen[number].add((repeat_of(row), row["id"]))
        self._at.clear()
        return sum(map(len, self._seen.values()))

    def look(self) -> None:
        """Tell what came since."""
        for number, row in self._new():
            if (key := (repeat_of(row), row["id"])) not in self._seen[number]:
                self._seen[number].add(key)
                self._progress.advance(row, None)  # their journals know the tokens

    def rows(self) -> Iterator[dict[str, Any]]:
        """All rows of all shards."""
        for path in self._paths.values():
            yield from iterate_rows(path)

    def _new(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Rows whose lines were not read before: behind the last one of a file, or of a file that was exchanged."""
        for number, path in self._paths.items():
            with suppress(FileNotFoundError), path.open("rb") as file:
                inode, size = (status := os.fstat(file.fileno())).st_ino, status.st_size
                before, at = self._at.get(number, (inode, 0))
                file.seek(at if before == inode and at <= size else 0)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    with suppress(ValueError):
                        yield number, json.loads(line)
                    self._at[number] = inode, file.tell()


def _shards_of(run: Path) -> Path:
    return run.with_name(f"{run.name}.shards")


def _check_number(run: Path, shards: int) -> None:
    """Raise `RunMismatch` where the run was begun with another number of shards."""
    for path in _shards_of(run).glob("*of*"):
        if (found := re.fullmatch(r"\d+of(\d+)", path.name)) and int(found[1]) != shards:
            raise RunMismatch(
                f"{path.parent} holds shards of {found[1]}: go on with --shards {found[1]}, or name another run"
            )
