"""Progress of a run: rate, time left, running scores and tokens.

On a terminal it is one live line; elsewhere (a log file, CI) a plain line each tenth of the way.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol

from blendfilter.lm.attempts import Gate
from blendfilter.terminal import console
from blendfilter.text import visible


class RunProgress(Protocol):
    """What the runner reports to as it goes."""

    def start(self, total: int, done: int) -> None:
        """The run begins, `done` of `total` questions answered in earlier sessions."""

    def advance(self, row: Mapping[str, Any], tokens: int) -> None:
        """One more question is over; `tokens` were read and written for it (journal hits included)."""

    def stop(self) -> None:
        """The run is over or was stopped."""


class RunningScores:
    """Means over the questions answered in this session, printed nowhere; what earlier ones answered is not read again.

    Where there are such, `resumed` is set and the text says whose means they are.
    """

    def __init__(self, metrics: list[str], gate: Gate | None = None) -> None:
        self.metrics, self.gate = metrics, gate
        self.sums = dict.fromkeys(metrics, 0.0)
        self.seen = self.errors = self.tokens = 0
        self.resumed = False
        self.began = time.monotonic()

    def start(self, total: int, done: int) -> None:
        """The clock of the rate starts."""
        self.total, self.before, self.began, self.resumed = total, done, time.monotonic(), done > 0

    def advance(self, row: Mapping[str, Any], tokens: int) -> None:
        """Count one row."""
        self.seen += 1
        self.tokens += tokens
        self.errors += row["error"] is not None
        for name in self.metrics:
            self.sums[name] += row[name]

    def stop(self) -> None:
        """Nothing."""

    @property
    def rate(self) -> str:
        """Questions a second, or a minute where that says more: a run that waits for its pace is slow, not dead."""
        rate = self.seen / max(time.monotonic() - self.began, 1e-9)
        return f"{rate:.1f}/s" if rate >= 0.1 else f"{60 * rate:.1f}/min"

    def text(self) -> str:
        """`EM 41.2  F1 52.0  312k tokens  1 error  8 of 16 in flight`; the last where the server wants fewer calls."""
        parts = [f"{name.upper()} {100 * value / max(self.seen, 1):.1f}" for name, value in self.sums.items()]
        parts.append(f"{_short(self.tokens)} tokens")
        if self.errors:
            parts.append(f"{self.errors} error{'s' * (self.errors > 1)}")
        if self.gate is not None and self.gate.allowed < self.gate.limit:
            parts.append(f"{self.gate.allowed} of {self.gate.limit} in flight")
        return visible(("this session: " if self.resumed else "") + "  ".join(parts))


class ProgressLines(RunningScores):
    """A plain line each tenth of the way, for logs."""

    def start(self, total: int, done: int) -> None:
        """Note where the run begins."""
        super().start(total, done)
        if done:
            print(f"{done}/{total} questions were answered in an earlier session", file=sys.stderr, flush=True)

    def advance(self, row: Mapping[str, Any], tokens: int) -> None:
        """Count, and print at each tenth."""
        super().advance(row, tokens)
        done, step = self.before + self.seen, max(1, self.total // 10)
        if done % step == 0 or done == self.total:
            print(f"{done}/{self.total} questions  {self.rate}  {self.text()}", file=sys.stderr, flush=True)


class ProgressBar(RunningScores):
    """One live line on a terminal."""

    def __init__(self, metrics: list[str], gate: Gate | None = None) -> None:
        from rich import progress as rich

        super().__init__(metrics, gate)
        self.bar = rich.Progress(
            rich.BarColumn(bar_width=24),
            rich.MofNCompleteColumn(),
            rich.TextColumn("{task.fields[rate]}", markup=False),
            rich.TimeElapsedColumn(),
            rich.TextColumn("left"),
            rich.TimeRemainingColumn(),
            rich.TextColumn("{task.fields[scores]}", markup=False),
            console=console(sys.stderr),
        )

    def start(self, total: int, done: int) -> None:
        """Draw the bar."""
        super().start(total, done)
        self.task = self.bar.add_task("", total=total, completed=done, rate="", scores="")
        self.bar.start()

    def advance(self, row: Mapping[str, Any], tokens: int) -> None:
        """Move it on."""
        super().advance(row, tokens)
        self.bar.update(self.task, advance=1, rate=self.rate, scores=self.text())

    def stop(self) -> None:
        """Leave its last state standing."""
        self.bar.stop()


def progress_for(metrics: list[str], show: bool = True, gate: Gate | None = None) -> RunProgress:
    """The bar on a terminal, lines elsewhere, nothing printed where `show` is off; `gate`: what the calls pass."""
    if not show:
        return RunningScores(metrics, gate)
    return ProgressBar(metrics, gate) if sys.stderr.isatty() else ProgressLines(metrics, gate)


def _short(count: int) -> str:
    if count < 10_000:
        return str(count)
    return f"{count / 1000:.0f}k" if count < 999_500 else f"{count / 1e6:.1f}M"
