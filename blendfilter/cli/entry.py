"""The entry point: parse, run the command, and end with one line and an exit code where something is wrong."""

from __future__ import annotations

import os
import sys
import traceback
from types import TracebackType
from typing import Any

import typer

from blendfilter.cli.app import State, app
from blendfilter.cli.console import say
from blendfilter.errors import BlendFilterError
from blendfilter.terminal import guarded
from blendfilter.text import visible

INTERRUPTED = 130
"""What shells and typer call the end by Ctrl-C."""


def main() -> None:
    """The entry point: errors of ours are one line and an exit code, never a traceback."""
    try:
        with guarded():
            _main()
    finally:
        sys.excepthook = _traceback  # typer has put its own there


def _main() -> None:
    _quiet_libraries()
    State.goes_on = False
    try:
        # Without its standalone mode typer hands an exit code back, it does not raise it.
        code = app(sys.argv[1:] or ["--help"], prog_name="blendfilter", standalone_mode=False)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)
    except typer.TyperException as error:
        fail(_usage(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        what = "the same command goes on where it was" if State.goes_on else "nothing of it was kept"
        fail(f"stopped; {what}", INTERRUPTED)
    except BlendFilterError as error:
        if State.debug:
            raise
        fail(str(error), error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read us has gone
        sys.exit(1)
    except OSError as error:  # a full disk, a folder one may not write to
        if State.debug:
            raise
        fail(f"{error.filename or 'the system says'}: {error.strerror or error}", 1)
    except Exception as error:  # nobody foresaw it: still one line, and the traceback for whoever wants it
        if State.debug:
            raise
        fail(_unforeseen(error), 1)


def _unforeseen(error: Exception) -> str:
    """What the command was about, by the files and folders it was given."""
    given = [word for word in sys.argv[1:] if not word.startswith("-") and os.path.exists(word)]
    about = f"{', '.join(given)}: " if given else ""
    what = f"{type(error).__name__}: {str(error)[:300]}"
    return f"{about}this should not have happened ({what}): a file may be damaged; blendfilter --debug … says more"


def _traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What Python prints of an error that ends it; its message may quote anything."""
    sys.stderr.write(visible("".join(traceback.format_exception(kind, error, trace))))


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "blendfilter"
    return f"{error.format_message().rstrip('.')} ({command} --help shows what it takes)"


def fail(line: str, code: int) -> None:
    say(" ".join(line.split()))
    sys.exit(code)


def _quiet_libraries() -> None:
    """Warnings as one line each; DSPy's and the clients' chatter off."""
    import logging
    import warnings

    warnings.showwarning = lambda message, *_args, **_kwargs: say(str(message))
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    logging.basicConfig(format="blendfilter: %(message)s", level=logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.ERROR)
    logging.getLogger("dspy.clients.lm").setLevel(logging.ERROR)  # cut replies are counted and shown by us
