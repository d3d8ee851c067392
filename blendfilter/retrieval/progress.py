"""What long work tells whoever waits for it: which phase, how far, of how much.

In: nothing. Out: calls of a `Progress`. The command line draws a bar a phase; a notebook may pass `print`.
"""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called now and then, in order; a `total` of None means that nobody knows it yet."""

    def __call__(self, phase: str, done: int, total: int | None = None, /) -> object:
        """`done` of `total` things of `phase` are done."""


def silent(phase: str, done: int, total: int | None = None, /) -> None:
    """The `Progress` of whoever does not wait."""
