"""Everything that can go wrong, as one tree; each leaf is one kind of failure, and each branch has its exit code.

A failed model call is never an empty answer: it is recorded as that question's error.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable
from typing import TypeVar

E = TypeVar("E", bound=BaseException)
_LONGEST = 2_000
"""Characters of a message that are kept: some libraries put a whole response into theirs."""


class BlendFilterError(Exception):
    """Root of the tree. `exit_code` is what the command line ends with."""

    exit_code = 1


class AskedWrong(BlendFilterError):
    """Exit 2: the request is wrong; the message says what, where and the next move. Nothing was written."""

    exit_code = 2


class UnknownName(AskedWrong):
    """A name outside its registry; `of` offers the nearest one that exists."""

    @classmethod
    def of(cls, kind: str, name: str, known: Iterable[str], where: str = "") -> UnknownName:
        """The error for an unknown `kind`, with a suggestion when one is near.

        >>> str(UnknownName.of("task", "hotpoqa", ["hotpotqa", "twowiki"]))
        "no task 'hotpoqa'. Did you mean 'hotpotqa'? (known: hotpotqa, twowiki)"
        """
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=1)
        guess = f" Did you mean '{near[0]}'?" if near else ""
        listed = f" (known: {', '.join(names)})" if names else ""
        return cls(f"no {kind} '{name}'.{guess}{listed}{' ' + where if where else ''}")


class MissingFile(AskedWrong):
    """A file or folder that is not there."""


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
    """The index behind an address was rebuilt since it was opened."""


class ServerRefused(AskedWrong):
    """The model server is not there, or does not let us in."""


class BudgetSpent(BlendFilterError):
    """Exit 3: the run stopped at its limit of calls, tokens or dollars; what was paid for is kept, and it can go on."""

    exit_code = 3


class WorkFailed(BlendFilterError):
    """Exit 1: the work failed, wholly or for some questions."""


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

    @classmethod
    def by(cls, error: BaseException) -> CodeFailed:
        """The error that stands for `error`.

        >>> str(CodeFailed.by(SystemExit(3)))
        'the code raised SystemExit: 3; raise an ordinary error in place of sys.exit()'
        """
        kind, words = type(error).__name__, words_of(error)
        advice = next((f"; {move}" for known, move in _ADVICE.items() if isinstance(error, known)), "")
        return cls(f"the code raised {kind}{': ' if words else ''}{words}{advice}", kind=kind)


_ADVICE = {
    StopIteration: "give next(…) a default for where nothing matches",
    SystemExit: "raise an ordinary error in place of sys.exit()",
}


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise `BadArgument` unless `value` is a whole number of `least` or more; a truth value is none.

    >>> check_count("k", 0)
    Traceback (most recent call last):
    blendfilter.errors.BadArgument: k is 0: give a whole number of 1 or more
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadArgument(f"{name} is {value!r:.80}: give a whole number of {least} or more")


def words_of(error: BaseException) -> str:
    """The message of any error, of code that is not ours too: one that cannot be read, or has no end, is no fault."""
    try:
        words = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as unreadable:  # noqa: BLE001 - its own __str__ fails
        return f"(its message cannot be read: {type(unreadable).__name__})"
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]}… ({len(words):,} characters)"


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
    """

    attempts = 0

    def __init__(self, message: str, *, kind: str = "unexpected", stage: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.stage = stage
