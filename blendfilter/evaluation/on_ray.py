"""A run's shards as Ray tasks: on the processors of this machine, or on a cluster that shares the run's folder.

A shard is what `Questions.shard` makes, evaluated in a folder of its own (`RUN.shards/1of8`) with a journal of its own.
A worker that is lost takes nothing with it: Ray starts its task again, which goes on from the journal. The shards are
merged into the run that one process would have made.

What is left of a budget is dealt out in equal parts, at the start of every session and again to the shards that were
stopped, until nothing is left that lets one go on. So all shards together never pass it, however often they are killed:
a shard's own journal says what it has spent. Limits a minute are kept by one actor for all shards.

Method, questions and model travel by pickle: an index by its folder, a model by the settings that connect it. A key or
a login that stands in those is an argument of the task, which no log shows and no disk holds; a key of the environment
is taken from the worker's own.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import dspy

from blendfilter import aio
from blendfilter.context import asker, setting
from blendfilter.errors import (
    BadArgument,
    BlendFilterError,
    BudgetSpent,
    MissingFile,
    RunLocked,
    RunMismatch,
    WorkFailed,
)
from blendfilter.evaluation.ledger import own_prices
from blendfilter.evaluation.merging import merge
from blendfilter.evaluation.own_program import ANSWER, ProgramCall, as_program
from blendfilter.evaluation.rows import Json, PredictionRow, Record, how_far, key_of
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.run_folder import PREDICTIONS, RUN, iterate_rows
from blendfilter.evaluation.run_loop import RunProgress
from blendfilter.evaluation.runner import as_questions, evaluated
from blendfilter.files import AnyPath, lock, open_regular, path_of
from blendfilter.filters.base import with_filter_lm
from blendfilter.journal import FILE, Journal
from blendfilter.lm.attempts import Pace, WindowEntry
from blendfilter.lm.budget import NOTHING, Amount, Budget, spent_in
from blendfilter.lm.model import ConnectedLM, connect, connected_again
from blendfilter.lm.prices import Price
from blendfilter.retrieval.indexes import open_index
from blendfilter.retrieval.on_ray import LOCAL, connected
from blendfilter.retrieval.stored import Stored
from blendfilter.run_context import AnyLM, RunContext
from blendfilter.tasks.base import Questions

RETRIES = 5
"""How often Ray starts a shard again whose worker was lost."""
EVERY = 0.5
"""Seconds between two looks at how far the shards are."""
SESSION = "session"
"""Beside the shards: the name of the session that deals out their budget, which locks the file."""
MOST_WAITING = 100_000
"""Calls of all shards that may wait for their turn within a limit a minute."""


class Ended(NamedTuple):
    """How a shard ended: its error (None: it is finished), and what it spent by now."""

    error: BlendFilterError | None
    spent: Amount

    @property
    def failure(self) -> BlendFilterError | None:
        """Its error, unless its budget was spent."""
        return None if type(self.error) is BudgetSpent else self.error


def evaluate_on_ray(
    method: dspy.Module,
    questions: Questions | Sequence[Any],
    *,
    shards: int,
    run: AnyPath,
    address: str = LOCAL,
    lm: AnyLM | None = None,
    filter_lm: AnyLM | None = None,
    budget: Budget | None = None,
    max_retries: int | None = None,
    gpus: float = 0.0,
    progress: RunProgress | bool = True,
    **options: Any,
) -> Run:
    """`evaluate`, by so many shards as Ray tasks.

    Args:
        shards: how many; each has `concurrency` calls in flight.
        run: the folder of the run. A run that is there already goes on in this process alone.
        address: `local`; `auto` for the cluster that this machine belongs to; or a cluster's, ``ray://HOST:10001``.
        budget: of all shards together, in all sessions.
        max_retries: of all shards together, dealt out in equal parts; by default each has what a run has.
        gpus: of each shard, for a model in its process.
        options: of `evaluate`.

    Raises:
        ServerRefused: no cluster answers there. MissingExtra: ray is not installed. BadArgument: more shards than
        questions; a budget too small to be dealt out. RunMismatch: shards of another number are there. RunLocked:
        another session is at work on them. WorkFailed: a shard was lost each time. BudgetSpent: of all shards; and as
        `evaluate` does.
    """
    method, folder = as_program(method), path_of(run)
    call = ProgramCall.of(options.get("inputs"), options.get("answer", ANSWER), questions)
    questions = as_questions(questions, call, options.get("metrics"))
    lm = connect(lm if lm is not None else dspy.settings.lm or "offline")
    judge = None if filter_lm is None else connect(filter_lm)
    given = {"lm": lm, "filter_lm": judge, **options}
    if folder.exists():
        # else all shards would be paid for before the merge says so
        if not (folder / RUN).is_file():
            raise BadArgument(
                f"{folder} is there already and holds no run: name a new folder for this one"
            )
        given |= {"budget": budget, "max_retries": max_retries}
        return aio.run(
            evaluated(method, questions, run=folder, progress=progress, **given), "evaluate"
        )
    parts = {number: questions.shard(number, shards) for number in range(1, shards + 1)}
    place = folder.with_name(f"{folder.name}.shards")
    folders = {number: place / f"{number}of{shards}" for number in parts}
    for path in place.glob("*of*"):
        if (found := re.fullmatch(r"\d+of(\d+)", path.name)) and int(found[1]) != shards:
            raise RunMismatch(
                f"{place} holds shards of {found[1]}: go on with shards={found[1]}, or name another run"
            )
    module = method if judge is None else with_filter_lm(method, judge)
    context = RunContext(lm, module, budget=budget, max_retries=max_retries)
    retries = [None] * shards if max_retries is None else parts_of(max_retries, shards)
    if isinstance(progress, bool):
        progress = RunProgress(questions.task.metrics, None, progress)
    spent = dict.fromkeys(folders, NOTHING)
    if budget is not None and len(dealt(budget, spent, [*spent])) < shards:
        limited = ", ".join(f"{limit:g} {name}" for name, limit in budget.given().items())
        raise BadArgument(
            f"a budget of {limited} cannot be dealt out to {shards} shards: give more of it"
        )
    with _alone(place) as session, connected(address) as ray:
        spent = {
            number: _spent(path, context.prices, budget) for number, path in folders.items()
        }
        payload, models, limits = packed((method, given, asker().options, context.prices), ray)
        payload, paces = ray.put(payload), None
        if limits:
            keeping = ray.remote(
                num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=MOST_WAITING
            )
            paces = keeping(_Paces).remote(limits)
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_evaluate_shard)

        def start(number: int, limit: Budget | None) -> Any:
            where, part = str(folders[number].resolve()), pickle.dumps(parts[number])
            retried = retries[number - 1]
            return task.remote(
                payload, models, paces, part, where, limit, retried, session, os.getcwd()
            )

        watch = _Watch([path / PREDICTIONS for path in folders.values()], progress)
        answers = len(questions) * options.get("repeats", 1)
        progress.start(answers, watch.known())
        try:
            _all(ray, start, spent, budget, watch, answers, place)
        finally:
            progress.stop()
    return merge(*folders.values(), out=folder, prices=own_prices(context))


@contextmanager
def _alone(place: Path) -> Iterator[str]:
    """Inside the block no other session deals out the budget of the shards in `place`; its name. Raises: RunLocked."""
    place.mkdir(parents=True, exist_ok=True)
    with (place / SESSION).open("a", encoding="ascii") as file:
        lock(file.fileno(), place, "by another process: wait for it, or name another run")
        file.truncate(0)
        file.write(name := uuid4().hex)
        file.flush()
        os.fsync(file.fileno())  # for the workers of other machines
        yield name


def _all(
    ray: Any,
    start: Callable[[int, Budget | None], Any],
    spent: dict[int, Amount],
    budget: Budget | None,
    watch: _Watch,
    answers: int,
    place: Path,
) -> None:
    """Have every shard finished, as far as the budget goes; `spent` is by shard. Raises: what stopped one of them."""
    left = [*spent]
    while left:
        limits = dealt(budget, spent, left)
        ended = _round(
            ray, {number: start(number, limit) for number, limit in limits.items()}, watch
        )
        for end in ended.values():
            if end.failure is not None:
                raise end.failure
        unfinished = [number for number in left if number not in ended or ended[number].error]
        went_on = len(unfinished) < len(left) or any(
            end.spent != spent[number] for number, end in ended.items()
        )
        spent |= {number: end.spent for number, end in ended.items()}
        left, total = unfinished, sum(spent.values(), NOTHING)
        nothing_left = budget is None or any(
            getattr(total, name) >= limit for name, limit in budget.given().items()
        )
        if left and (nothing_left or not went_on):
            raise BudgetSpent(
                f"the budget of all shards is spent ({total.words()}): {how_far(watch.rows(), answers)}, and the same "
                f"command with a higher limit goes on in {place}"
            )


def _round(ray: Any, started: Mapping[int, Any], watch: _Watch) -> dict[int, Ended]:
    """How each of these shards ended. The first error but a spent budget ends the others. Raises: WorkFailed."""
    by_task = {task: number for number, task in started.items()}
    ended = dict[int, Ended]()
    pending = [*by_task]
    try:
        while pending:
            ready, pending = ray.wait(pending, timeout=EVERY)
            watch.look()
            for task in ready:
                try:
                    ended[by_task[task]] = end = ray.get(task)
                except ray.exceptions.RayError as lost:
                    words = str(lost).strip().splitlines()[0]
                    raise WorkFailed(
                        f"shard {by_task[task]} could not be finished ({type(lost).__name__}: {words}); the same "
                        "command goes on where it was"
                    ) from None
                if end.failure is not None:
                    return ended
    finally:
        for task in pending:
            with suppress(ray.exceptions.RayError):
                ray.cancel(task, force=True)
    return ended


def _evaluate_shard(
    payload: bytes,
    models: Sequence[Record],
    paces: Any,
    questions: bytes,
    folder: str,
    budget: Budget | None,
    max_retries: int | None,
    session: str,
    cwd: str,
) -> Ended:
    """In a worker: one shard, and how it ended.

    `models` has the secrets of each model in the payload: an argument of its own, which Ray never writes to a disk.
    """
    with suppress(OSError):  # a machine that has no such folder: paths are absolute there
        os.chdir(cwd)
    place = Path(folder)
    error: BlendFilterError | None = None
    prices: dict[str, Price | None] = {}
    try:
        method, given, options, prices = unpacked(payload, models, paces)
        _check_session(place.parent, session)
        given |= {"run": place, "budget": budget, "max_retries": max_retries}
        with setting(options=options):
            work = evaluated(method, pickle.loads(questions), progress=False, **given)
            aio.run(work, "evaluate")
    except BlendFilterError as raised:
        error = raised
    ended = Ended(error, NOTHING)
    return ended if ended.failure else Ended(error, _spent(place, prices, budget))


def _check_session(place: Path, session: str) -> None:
    """Raise `RunLocked` in a worker of a session that ended: its limit would count beside those of the next one."""
    try:
        now = (place / SESSION).read_text(encoding="ascii")
    except FileNotFoundError:
        raise MissingFile(
            f"{place} is not there for a worker: name a folder (run=) that all machines share"
        ) from None
    if now != session:
        raise RunLocked(
            f"{place} is being written to by a later session: wait for it, or name another run"
        )


def _spent(folder: Path, prices: Mapping[str, Price | None], budget: Budget | None) -> Amount:
    """What all sessions of a shard took of a budget. Raises: RunLocked where one is still at work; BadData."""
    if budget is None or not (folder / FILE).is_file():
        return NOTHING
    with Journal(folder, "replay", exclusive=True) as journal:
        return spent_in(journal, prices, budget)


# --- limits of several ----------------------------------------------------------------------------------------------


def dealt(
    budget: Budget | None, spent: Mapping[int, Amount], among: Sequence[int]
) -> dict[int, Budget | None]:
    """The limits of the shards `among` these: what each has spent, and its part of what all have left of the budget.

    So what all have spent and may still spend is the budget at the most. A shard that has spent nothing and gets no
    part is left out.

    >>> dealt(Budget(calls=10), {1: Amount(calls=3), 2: Amount(calls=2)}, [1, 2])
    {1: Budget(calls=6, tokens=None, dollars=None), 2: Budget(calls=4, tokens=None, dollars=None)}
    """
    if budget is None:
        return dict.fromkeys(among)
    total = sum(spent.values(), NOTHING)
    limits: dict[int, Json] = {number: {} for number in among}
    for name, limit in budget.given().items():
        left, count = max(0, limit - getattr(total, name)), len(among)
        parts = [left / count] * count if name == "dollars" else parts_of(int(left), count)
        for number, part in zip(among, parts, strict=True):
            limits[number][name] = getattr(spent[number], name) + part
    return {number: Budget(**limit) for number, limit in limits.items() if all(limit.values())}


def parts_of(count: int, among: int) -> list[int]:
    """`count` in so many parts, the first of which are larger by one.

    >>> parts_of(5, 3)
    [2, 2, 1]
    """
    return [count // among + (number < count % among) for number in range(among)]


class _Paces:
    """An actor: the limits a minute of a run's models, for all its shards together."""

    def __init__(self, limits: Sequence[tuple[int | None, int | None]]) -> None:
        self._paces = [Pace(*of_one) for of_one in limits]
        self._entries: dict[int, WindowEntry] = {}
        self._number = 0

    async def turn(self, pace: int, bound: int, order: int) -> int:
        """Wait until a request of at most `bound` tokens fits; the number of its entry."""
        with setting(order=order):
            entry = await self._paces[pace].turn(bound)
        self._number += 1
        if bound:
            self._entries[self._number] = entry
        return self._number

    async def settle(self, pace: int, number: int, took: int, answered: bool) -> None:
        """Count what it really took."""
        # else another actor was started meanwhile
        if (entry := self._entries.pop(number, None)) is not None:
            self._paces[pace].settle(entry, took, answered=answered)


@dataclass(slots=True)
class _SharedEntry(WindowEntry):
    number: int = 0


class _SharedPace(Pace):
    """One of `_Paces`, in a worker."""

    def __init__(self, paces: Any, index: int, own: Pace) -> None:
        super().__init__(own.requests_per_minute, own.tokens_per_minute)
        self._paces, self._index = paces, index

    async def turn(self, bound: int) -> WindowEntry:
        number = await self._paces.turn.remote(self._index, bound, asker().order)
        return _SharedEntry(0.0, 0.0, bound, number)

    def settle(self, entry: WindowEntry, took: int, *, answered: bool) -> None:
        assert isinstance(entry, _SharedEntry)
        self._paces.settle.remote(self._index, entry.number, took, answered)


# --- what travels ---------------------------------------------------------------------------------------------------


class Packed(NamedTuple):
    """A value for workers: its bytes, the secrets of each model in it, and the models' limits a minute."""

    payload: bytes
    models: list[Json]
    paces: list[tuple[int | None, int | None]]


def packed(value: Any, ray: Any) -> Packed:
    """`value` as a worker unpickles it: an index in a folder by that, code of a user's own script whole."""
    secrets: list[Json] = []
    paces: list[Pace] = []

    class Packer(ray.cloudpickle.CloudPickler):
        def reducer_override(self, given: Any) -> Any:
            if isinstance(given, Stored) and given.path is not None:
                return open_index, (given.path.resolve(),)
            if isinstance(given, ConnectedLM):
                _, arguments = given.__reduce__()
                secrets.append({} if given.settings is None else given.settings.secrets())
                if (pace := given.terms.pace) is not None and pace not in paces:
                    paces.append(pace)
                shared = None if pace is None else paces.index(pace)
                return _connected, (len(secrets) - 1, shared, arguments)
            return super().reducer_override(given)

    file = io.BytesIO()
    Packer(file).dump(value)
    limits = [(pace.requests_per_minute, pace.tokens_per_minute) for pace in paces]
    return Packed(file.getvalue(), secrets, limits)


_CONNECTING: ContextVar[tuple[Sequence[Record], Any]] = ContextVar("blendfilter_connecting")
"""In a worker that unpacks a payload: the models' secrets, and the `_Paces`."""


def unpacked(payload: bytes, secrets: Sequence[Record], paces: Any) -> Any:
    """What `packed` packed, its models connected with their `secrets`."""
    token = _CONNECTING.set((secrets, paces))
    try:
        return pickle.loads(payload)
    finally:
        _CONNECTING.reset(token)


def _connected(model: int, pace: int | None, arguments: Sequence[Any]) -> ConnectedLM:
    """A model of the payload, with its secrets and a pace that it shares with the other shards'."""
    secrets, paces = _CONNECTING.get()
    lm = connected_again(*arguments, secret=secrets[model])
    if pace is not None:
        assert lm.terms.pace is not None
        lm.terms = replace(lm.terms, pace=_SharedPace(paces, pace, lm.terms.pace))
    return lm


# --- how far it is --------------------------------------------------------------------------------------------------


class _Watch:
    """The shards' rows as they come, told to one progress."""

    def __init__(self, paths: Sequence[Path], progress: RunProgress) -> None:
        self._paths, self._progress = paths, progress
        self._seen = set[str]()
        self._at = dict[Path, tuple[int, int]]()

    def known(self) -> int:
        """How many rows without an error earlier sessions left; they are not told again."""
        self._seen |= {key_of(row) for row in self._new() if row["error"] is None}
        self._at.clear()
        return len(self._seen)

    def look(self) -> None:
        """Tell what came since."""
        for row in self._new():
            if key_of(row) not in self._seen:
                self._seen.add(key_of(row))
                self._progress.advance(row, None)  # their journals know the tokens

    def rows(self) -> Iterator[PredictionRow]:
        """All rows of all shards."""
        return chain.from_iterable(map(iterate_rows, self._paths))

    def _new(self) -> Iterator[PredictionRow]:
        """Rows whose lines were not read before: behind the last one of a file, or of a file that was exchanged."""
        for path in self._paths:
            with suppress(FileNotFoundError), open_regular(path) as file:
                status = os.fstat(file.fileno())
                inode, at = self._at.get(path, (status.st_ino, 0))
                file.seek(at if inode == status.st_ino and at <= status.st_size else 0)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    with suppress(ValueError):
                        yield json.loads(line)
                    self._at[path] = status.st_ino, file.tell()
