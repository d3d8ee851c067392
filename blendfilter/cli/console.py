"""What a command shows: results on stdout, notices and progress on stderr."""

from __future__ import annotations

import sys
import time
from typing import Any

EVERY = 20.0
"""Seconds between two lines of progress where there is no terminal to draw bars on."""
_CONTROLS = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}
"""What would move a terminal's cursor or colour it: a passage, an id or a reply may hold any of it."""


def show(*parts: Any) -> None:
    from rich.console import Console

    # Names and messages are data: a bracket in them is no markup. A line of text is never cut.
    console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 110)
    for part in parts:
        console.print(part.translate(_CONTROLS) if isinstance(part, str) else part, soft_wrap=isinstance(part, str))


def say(line: str) -> None:
    print(f"blendfilter: {line.translate(_CONTROLS)}", file=sys.stderr, flush=True)


class Bars:
    """A bar on the terminal for each phase of long work, as it begins; elsewhere a line now and then.

    Used as `with Bars() as bars`.

    `bars(phase, done, total)` is what `blendfilter.retrieval.progress.Progress` asks for; without a total, it counts.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, Any] = {}
        self._told = time.monotonic()

    def __enter__(self) -> Bars:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
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
