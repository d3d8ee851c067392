"""What a command prints: results on stdout, notices and progress on stderr.

Passages, replies, ids and names come from outside, and may hold what moves a terminal's cursor or colours its text. All
output of ours passes `visible`, in `show` and `say`, and so does what libraries print, in the streams that `guarded`
puts in place of stdout and stderr. Only rich's own codes reach the terminal as they are.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from typing import TYPE_CHECKING, Any, TextIO, cast

from blendfilter.text import visible

if TYPE_CHECKING:
    from rich.console import Console

EVERY = 20.0
"""Seconds between two lines of progress where there is no terminal to draw bars on."""


def show(*parts: Any) -> None:
    """Print results: a text as a line that is never cut, anything else as rich draws it."""
    for part in parts:
        if isinstance(part, str):
            print(visible(part), flush=True)
        else:
            # Names and messages are data: a bracket in them is no markup.
            width = None if sys.stdout.isatty() else 110
            _console()(highlight=False, markup=False, emoji=False, width=width).print(part)


def say(line: str) -> None:
    """Print a notice."""
    print(f"blendfilter: {visible(line)}", file=sys.stderr, flush=True)


@contextmanager
def guarded() -> Iterator[None]:
    """Whatever is printed meanwhile is made visible, by whomever: loggers, tracebacks, libraries, users' methods."""
    out, err = (cast(TextIO, _Guarded(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        yield


class _Guarded:
    """A stream that makes visible what is written to it. What a progress bar of tqdm's draws itself with passes."""

    _bar = re.compile(r"\r|(?:\x1b\[A)+$")

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        # rich looks for it: a console of ours draws on the stream itself, and has made its texts visible by then
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        bar = match.end() if (match := self._bar.match(text)) else 0
        self._stream.write(text[:bar] + visible(text[bar:]))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@cache
def _console() -> type[Console]:
    """rich's console, imported when it is wanted, in which no text acts on the terminal."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text

    class VisibleConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:  # before it is measured, so that columns stay straight
            return super().render_str(visible(text), **options)

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(visible(segment.text), segment.style)

    return VisibleConsole


class Bars:
    """A bar on the terminal for each phase of long work, as it begins; elsewhere a line now and then.

    Used as `with Bars() as bars`.

    `bars(phase, done, total)` is what `blendfilter.retrieval.progress.Progress` asks for; without a total, it counts.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, Any] = {}
        self._told = time.monotonic()

    def __enter__(self) -> Bars:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=_console()(stderr=True), transient=True, disable=not sys.stderr.isatty())
        self._bar.start()
        return self

    def __call__(self, phase: str, done: int, total: int | None = None) -> None:
        count = f"{done:,}" if total is None else f"{done:,} of {total:,}"
        if phase not in self._tasks:
            self._tasks[phase] = self._bar.add_task(phase, total=total, count=count)
        self._bar.update(self._tasks[phase], completed=done, total=total, count=count)
        if self._bar.disable and time.monotonic() - self._told >= EVERY:
            self._told = time.monotonic()
            say(f"{phase}: {count}")

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
