"""What a command prints: results on stdout, notices and progress on stderr."""

from __future__ import annotations

import sys
import time
from json import dumps
from typing import TYPE_CHECKING, Any

from blendfilter.secrets import hidden
from blendfilter.table import Table
from blendfilter.terminal import EVERY, console, is_terminal, note, terminal_width
from blendfilter.text import visible

if TYPE_CHECKING:
    from rich.progress import Progress


def show(*parts: str | Table) -> None:
    """Print results: a text as a line that is never cut, a table in the terminal's width."""
    for part in parts:
        text = f"{part.text(terminal_width())}\n" if isinstance(part, Table) else part
        print(visible(text), flush=True)


def show_figures(figures: Any, text: str | Table, *, as_json: bool) -> None:
    """Print figures as text, or (`--json`) all of them as JSON."""
    show(dumps(figures.as_dict(), ensure_ascii=False, indent=2) if as_json else text)


def say(line: str) -> None:
    """Print a notice."""
    note(f"blendfilter: {hidden(line)}")


class Bars:
    """A bar on the terminal for each phase of long work, as it begins; elsewhere a line now and then.

    Used as `with Bars() as bars`.

    `bars(phase, done, total)` is a `blendfilter.retrieval.base.ProgressCallback`; without a total, it counts.
    """

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._tasks: dict[str, Any] = {}
        self._last_line = time.monotonic()

    def __enter__(self) -> Bars:
        return self

    def _begin(self) -> Progress:
        """Draw from now on; short work, which reports nothing, need not wait for rich."""
        from rich.progress import (
            BarColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        bar = Progress(*columns, console=console(sys.stderr), transient=True)
        bar.start()
        return bar

    def __call__(self, phase: str, done: int, total: int | None = None) -> None:
        count = f"{done:,}" if total is None else f"{done:,} of {total:,}"
        if not is_terminal(sys.stderr):
            if time.monotonic() - self._last_line >= EVERY:
                self._last_line = time.monotonic()
                say(f"{phase}: {count}")
            return
        self._bar = self._bar or self._begin()
        if phase not in self._tasks:
            self._tasks[phase] = self._bar.add_task(phase, total=total, count=count)
        self._bar.update(self._tasks[phase], completed=done, total=total, count=count)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
