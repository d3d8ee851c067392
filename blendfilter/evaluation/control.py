"""Runs in progress: which there are on this machine, and what may be changed of one while it runs.

A running evaluation looks once a second for `control.json` in its folder, which `blendfilter tune` writes: the calls in
flight, a pause, limits. The file is the session's own, and gone when it ends; the next session begins by its options.
A run is in progress where its journal has a writer, which the system knows. To look takes no lock, not for a moment, or
a run that starts at that moment would be refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import struct
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ConfigDict, Field, ValidationError

from blendfilter.errors import BadArgument, BadData, MissingFile, words_of
from blendfilter.evaluation.rows import repeats_in
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.run_folder import PREDICTIONS, RUN, write_json
from blendfilter.files import AnyPath, open_regular
from blendfilter.journal import FILE
from blendfilter.lm.attempts import Gate
from blendfilter.lm.budget import Budget, BudgetAccount
from blendfilter.settings import Settings

logger = logging.getLogger(__name__)
CONTROL = "control.json"
EVERY = 1.0
"""Seconds between two looks at a run's `control.json`."""
_LARGEST = 1 << 16
"""Bytes that a `control.json` has at the most."""
_LOCKS = Path("/proc/locks")
_TAIL = 1 << 18
"""Bytes of a journal's end in which the last minute's calls are looked for at first."""


class Control(Settings):
    """What was asked of a running run; None: nothing, as it was started."""

    model_config = ConfigDict(strict=True)
    concurrency: int | None = Field(None, ge=1)
    paused: bool = False
    calls: int | None = Field(None, ge=1)
    tokens: int | None = Field(None, ge=1)
    dollars: float | None = Field(None, gt=0)

    @classmethod
    def read(cls, folder: Path) -> Control:
        """That of a run's folder; nothing where there is no such file. Raises: BadData."""
        try:
            # on the run's loop, which must not wait
            with open_regular(folder / CONTROL) as file:
                return cls.model_validate_json(file.read(_LARGEST))
        except FileNotFoundError:
            return cls()
        except ValidationError as error:
            why = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            raise BadData(f"{folder / CONTROL}: {why}; blendfilter tune writes it") from None


def tune(run: AnyPath, **changes: Any) -> Control:
    """Change a run in progress: `concurrency`, `paused`, `calls`, `tokens`, `dollars` (limits it was started with).

    Raises:
        BadArgument: a value that is none, a limit for a run without one; the run is not in progress.
        MissingFile: no run there.
    """
    opened = Run.of(run)
    if not in_progress(opened.folder):
        raise BadArgument(
            f"{opened.folder} is not in progress: its next session takes the options of eval"
        )
    limited = {name for name in ("calls", "tokens", "dollars") if changes.get(name) is not None}
    if lacking := limited - (opened.notes.get("budget") or {}).keys():
        raise BadArgument(
            f"{opened.folder} was started without a limit of {min(lacking)}, so none is counted: stop it, and give the "
            "limit to the same command"
        )
    wanted = Control.read(opened.folder).but(**changes)
    write_json(opened.folder / CONTROL, wanted.model_dump(exclude_defaults=True))
    return wanted


@contextlib.asynccontextmanager
async def steered(folder: Path, gate: Gate, purse: BudgetAccount | None) -> AsyncIterator[None]:
    """Inside the block, what `control.json` says holds for the run's calls, a second after it was written."""
    path = folder / CONTROL
    _remove(path)  # of a session that was killed
    watching = asyncio.get_running_loop().create_task(_watch(folder, gate, purse))
    try:
        yield
    finally:
        watching.cancel()
        gate.hold(False)
        _remove(path)


def _remove(path: Path) -> None:
    """Remove `path`; what cannot be removed (a folder of that name) is warned of when it is read, and ends no run."""
    with contextlib.suppress(OSError):
        path.unlink()


async def _watch(folder: Path, gate: Gate, purse: BudgetAccount | None) -> None:
    started = gate.limit
    budget = purse.budget if purse is not None else Budget()
    seen = Control()
    warned = ""
    while True:
        await asyncio.sleep(EVERY)
        try:
            wanted = Control.read(folder)
        except (BadData, OSError) as error:
            if (words := words_of(error)) != warned:
                logger.warning("%s", words)
            warned = words
            continue
        warned = ""
        if wanted == seen:
            continue
        seen = wanted
        gate.limit_to(wanted.concurrency or started)
        gate.hold(wanted.paused)
        if purse is not None:
            limits = {
                name: getattr(wanted, name) or getattr(budget, name)
                for name in ("calls", "tokens", "dollars")
            }
            purse.limit_to(Budget(**limits))
        logger.warning("%s: %s", folder, wanted.model_dump_json(exclude_defaults=True))


# --- which there are --------------------------------------------------------------------------------------------------


class Running(NamedTuple):
    """A run in progress: how far it is, and how many calls it made in the last minute."""

    run: Run
    pid: int
    answered: int
    answers: int
    errors: int
    calls_a_minute: int
    seconds: float
    """Since its session began."""
    control: Control


def running(folders: Iterable[AnyPath] = ()) -> list[Running]:
    """The runs in progress on this machine that this user may look at, or those of `folders` that are in progress.

    Raises:
        BadArgument: a system that does not say which files are locked, without `folders`. MissingFile: no run there.
        BadData: a journal that is a named pipe or a device.
    """
    given = [Run(folder).folder for folder in folders]
    if given:
        found = [(folder, 0) for folder in given if in_progress(folder)]
    elif _LOCKS.exists():
        found = sorted({*_writers()})
    else:
        raise BadArgument(
            "this system does not say which runs are in progress: name their folders"
        )
    return [state for folder, pid in found if (state := _state(folder, pid)) is not None]


def in_progress(folder: Path) -> bool:
    """Whether a process is writing the journal of the run in `folder`. Raises: BadData where it is no file.

    A writer in a container of its own, whose processes are not to be seen from here, is not found.
    """
    try:
        with open_regular(folder / FILE) as file:
            status = os.fstat(file.fileno())
            for pid, device, inode in _locked():
                # Some file systems (btrfs) give a file another device than the list: its process has it open.
                if inode == status.st_ino and (
                    device == status.st_dev
                    or any(os.path.samestat(status, other) for _, other in _files_of(pid))
                ):
                    return True
            return _is_locked_elsewhere(file.fileno())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _locked() -> Iterator[tuple[int, int, int]]:
    """The process, device and inode of each file that is locked as journals are."""
    if _LOCKS.exists():
        for line in _LOCKS.read_text(encoding="ascii").splitlines():
            fields = line.split()
            if len(fields) > 5 and fields[1] == "FLOCK":
                major, minor, inode = fields[5].split(":")
                yield int(fields[4]), os.makedev(int(major, 16), int(minor, 16)), int(inode)


_FLOCK = (
    ("qqihh", (0, 0, 0, fcntl.F_WRLCK, 0), 3)
    if sys.platform == "darwin"
    else ("hhqqi", (fcntl.F_WRLCK, 0, 0, 0, 0), 0)
)
"""How C lays out a `flock` (man fcntl), one that would lock a whole file, and where its kind stands."""


def _is_locked_elsewhere(fd: int) -> bool:
    """Whether a file has a lock that this system's list lacks: one of another machine, over NFS, or of macOS."""
    layout, wanted, kind = _FLOCK
    try:
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack(layout, *wanted))
    except OSError:  # a file system that does not say
        return False
    return bool(struct.unpack(layout, answer)[kind] != fcntl.F_UNLCK)


def _files_of(pid: int) -> Iterator[tuple[Path, os.stat_result]]:
    """The open files of a process, as links, and their status; none where it ended, or is another user's."""
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                yield link, link.stat()


def _writers() -> Iterator[tuple[Path, int]]:
    """Folders of runs whose journals are locked, and the process that has each."""
    for pid, _, inode in {*_locked()}:
        for link, status in _files_of(pid):
            with contextlib.suppress(OSError):
                journal = link.readlink()
                is_run = journal.name == FILE and (journal.parent / RUN).is_file()
                if is_run and status.st_ino == inode:
                    yield journal.parent, pid
                    break


def _state(folder: Path, pid: int) -> Running | None:
    try:
        run, began = Run(folder), (folder / RUN).stat().st_mtime
        control = Control.read(folder)
    except (MissingFile, BadData, OSError):  # it ended meanwhile, or is beginning
        return None
    answered = errors = 0
    with contextlib.suppress(FileNotFoundError), open_regular(folder / PREDICTIONS) as rows:
        for line in rows:
            answered, errors = answered + 1, errors + (b'"error": null' not in line)
    answers = run.settings["data"]["n"] * repeats_in(run.settings)
    return Running(
        run, pid, answered, answers, errors, _last_minute(folder), time.time() - began, control
    )


def _last_minute(folder: Path) -> int:
    """Calls that ended within the last minute: as much of the journal's end is read as they take."""
    since, tail = time.time() - 60, _TAIL
    with open_regular(folder / FILE) as file:
        size = file.seek(0, os.SEEK_END)
        while True:
            file.seek(max(0, size - tail))
            lines = file.read(tail).split(b"\n")
            ended = [*_ended(lines if tail >= size else lines[1:])]
            if tail >= size or min(ended, default=since) < since:
                return sum(each > since for each in ended)
            tail *= 4


def _ended(lines: Iterable[bytes]) -> Iterator[float]:
    """When each call among a journal's lines ended; a torn line is none."""
    for line in lines:
        if b'","kind":"call"' in line[:80]:
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                yield (record.get("at") or 0.0) + (record.get("seconds") or 0.0)
