"""Everything that can go wrong, as one tree; each leaf is one kind of failure, and each branch has its exit code.

A failed model call is never an empty answer: it is recorded as that question's error.
"""

from __future__ import annotations

import copy
import difflib
import operator
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

E = TypeVar("E", bound=BaseException)
_LONGEST = 2_000
"""Characters of a message that are kept: some libraries put a whole response into theirs."""


def guess(name: str, known: Iterable[str]) -> str:
    """What a message says where one of the `known` names is near: " Did you mean 'hotpotqa'?"; else nothing."""
    near = difflib.get_close_matches(name, [*known], n=1)
    return f" Did you mean '{near[0]}'?" if near else ""


class BlendFilterError(Exception):
    """Root of the tree. `exit_code` is what the command line ends with.

    Messages name parameters, with an equals sign behind (`api_base=URL`); the command line prints its options for them.
    `quoted` is the part that a server or a user's code wrote: it stays as it is.
    """

    exit_code = 1
    quoted = ""

    def quoting(self, text: str) -> Self:
        """The same error, whose message holds `text` of somebody else."""
        self.quoted = text
        return self


@contextmanager
def one_line() -> Iterator[None]:
    """For a script: inside the block, an error of ours is one line on stderr and its exit code, as of the command."""
    try:
        yield
    except BlendFilterError as error:
        print(f"{Path(sys.argv[0]).stem}: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(error.exit_code)


@contextmanager
def interruptible(line: str = "stopped; run it again to go on where it was") -> Iterator[None]:
    """Inside the block, or the function, an interrupted cell of a notebook shows `line` and no traceback.

    It stays a plain KeyboardInterrupt: of that very class alone, a script ends as killed by the signal.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        stop._render_traceback_ = lambda: [f"KeyboardInterrupt: {line}"]  # type: ignore[attr-defined]
        raise


class AskedWrong(BlendFilterError):
    """Exit 2: the request is wrong; the message says what, where and the next move. Nothing was written."""

    exit_code = 2

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: one line, because no traceback into this package helps (`%tb` has it all the same)."""
        line = f"{type(self).__name__}: {self}"
        return [
            "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)
        ]


class UnknownName(AskedWrong):
    """A name outside its registry; `of` offers the nearest one that exists."""

    @classmethod
    def of(cls, kind: str, name: str, known: Iterable[str], where: str = "") -> UnknownName:
        """The error for an unknown `kind`, with a suggestion when one is near.

        >>> str(UnknownName.of("task", "hotpoqa", ["hotpotqa", "twowiki"]))
        "no task 'hotpoqa'. Did you mean 'hotpotqa'? (known: hotpotqa, twowiki)"
        """
        names = sorted(known)
        listed = f" (known: {', '.join(names)})" if names else ""
        return cls(
            f"no {kind} '{name}'.{guess(name, names)}{listed}{' ' + where if where else ''}"
        )


class MissingFile(AskedWrong):
    """A file or folder that is not there."""

    @classmethod
    def of(cls, path: object, words: Iterable[str] = ()) -> MissingFile:
        """The error for a file; `words` have a meaning where files are named.

        >>> str(MissingFile.of("sampel", ["hub", "sample"]))
        "no file 'sampel': check the path. Did you mean 'sample'?"
        """
        near = guess(str(path), words)
        move = "standard input is /dev/stdin" if str(path) == "-" else "check the path"
        return cls(f"no file '{path}': {move}{'.' * bool(near)}{near}")


class BadData(AskedWrong):
    """A file that cannot be read as what it should be (which line)."""


class EmptyData(AskedWrong):
    """No questions or no passages."""


class BadArgument(AskedWrong, ValueError):
    """A value outside its range."""


class NoKey(AskedWrong):
    """A provider that wants a key, and none is set."""


class RunMismatch(AskedWrong):
    """A run folder made by other settings (what differs)."""


class RunLocked(AskedWrong):
    """Another process writes to this journal."""


class Leak(AskedWrong):
    """A question that is also a demonstration."""


class UseAcall(AskedWrong, RuntimeError):
    """The synchronous call was made on the loop thread, where it would wait for itself."""


class ReplayMiss(AskedWrong, LookupError):
    """A replay needs a call or search that its journal does not hold."""


class MissingExtra(AskedWrong, ImportError):
    """An optional package is not installed."""


class IndexChanged(AskedWrong):
    """Another index lies in the folder, or behind the address, than when it was opened."""


class ServerRefused(AskedWrong):
    """The model server is not there, or does not let us in."""


class BudgetSpent(BlendFilterError):
    """Exit 3: the run stopped at its limit of calls, tokens or dollars; what was paid for is kept, and it can go on."""

    exit_code = 3


class BatchWritten(BudgetSpent):
    """Exit 3: the calls that wait were written to batch files; once they are answered, the same command goes on."""


class WorkFailed(BlendFilterError):
    """Exit 1: the work failed, wholly or for some questions."""


class RunFailed(WorkFailed):
    """Every question of a run, or every judgement of its answers, failed the same way.

    `kind` names it, `folder` holds the run, which can be resumed.
    """

    def __init__(self, message: str, *, kind: str = "", folder: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.folder = folder
        # a fault of a server, or of a user's code
        if not isinstance(globals().get(kind), type):
            self.quoted = message


class CannotWrite(WorkFailed, OSError):
    """A file takes no more (a full disk): going on would pay for what is lost."""


class CodeFailed(WorkFailed):
    """Code of the user's own raised what is no ordinary error; `kind` is the name of what it raised.

    A future refuses a StopIteration, an event loop ends with a SystemExit, and a stray CancelledError looks
    like a cancellation: none of them may leave the code that raised it as it is.
    """

    def __init__(self, message: str, *, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.quoted = message

    @classmethod
    def by(cls, error: BaseException) -> CodeFailed:
        """The error that stands for `error`.

        >>> str(CodeFailed.by(SystemExit(3)))
        'the code raised SystemExit: 3; raise an ordinary error in place of sys.exit()'
        """
        kind, words = type(error).__name__, words_of(error)
        advice = next(
            (f"; {move}" for known, move in _ADVICE.items() if isinstance(error, known)), ""
        )
        return cls(f"the code raised {kind}{': ' if words else ''}{words}{advice}", kind=kind)


_ADVICE = {
    StopIteration: "give next(…) a default for where nothing matches",
    SystemExit: "raise an ordinary error in place of sys.exit()",
}


def check_count(name: str, value: Any, least: int = 1) -> int:
    """`value` as Python's whole number, which NumPy's are no instances of and JSON does not take.

    Raises: BadArgument unless it is a whole number of `least` or more; a truth value is none.

    >>> check_count("k", 0)
    Traceback (most recent call last):
    blendfilter.errors.BadArgument: k is 0: give a whole number of 1 or more
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if isinstance(value, bool) or number is None or number < least:
        raise BadArgument(f"{name} is {value!r:.80}: give a whole number of {least} or more")
    return number


def check_counts(record: object, names: Iterable[str]) -> None:
    """`check_count` of fields of a record, a frozen one's too. Raises: BadArgument."""
    for name in names:
        object.__setattr__(record, name, check_count(name, getattr(record, name)))


def words_of(error: BaseException) -> str:
    """The message of any error, of code that is not ours too: one that cannot be read, or has no end, is no fault."""
    try:
        words = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as unreadable:  # noqa: BLE001 - its own __str__ fails
        return f"(its message cannot be read: {type(unreadable).__name__})"
    return (
        words if len(words) <= _LONGEST else f"{words[:_LONGEST]}… ({len(words):,} characters)"
    )


def copied(error: E) -> E:
    """`error` again, for another one who waits: one object raised in several places gathers the tracebacks of all,
    and may become its own cause. The same object where its class cannot be made again.
    """
    try:
        twin = copy.copy(error)
    except Exception:  # noqa: BLE001 - a constructor of its own wants other arguments
        return error
    if type(twin) is not type(error):
        return error
    twin.__cause__ = error.__cause__
    return twin


class ModelError(WorkFailed):
    """One model call failed for good.

    `kind` is a stable word: `context_too_long`, `bad_request`, `rate_limited`, `server_error`, `timeout`, `unexpected`.
    `stage` is the predictor's name, empty outside a method. `attempts` is how many went out, 0 where that is unknown.
    `address` is where the model is, empty where that is unknown; no file has it.
    """

    attempts = 0
    address = ""

    def __init__(self, message: str, *, kind: str = "unexpected", stage: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.stage = stage
        self.quoted = message  # a server's


def for_good(error: BaseException) -> bool:
    """Whether the same call would meet this error again."""
    return isinstance(error, ModelError) and error.kind in ("context_too_long", "bad_request")


class CompilationStopped(BaseException):
    """A compilation is over; `error` says why. It is no `Exception`: optimisers call each of these a score of 0."""

    def __init__(self, error: Exception) -> None:
        super().__init__(
            f"{words_of(error)}; compile again: what was answered is in the journal"
        )
        self.error = error
