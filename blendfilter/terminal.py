"""The terminal, guarded against what is printed on it.

Passages, replies, ids and names come from outside, and may hold what moves a terminal's cursor or colours its text. All
of it passes `visible`: in a rich `console` of ours, and in the streams that `guarded` puts in place of stdout and
stderr. Only rich's own codes reach the terminal as they are.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO, cast

from blendfilter.text import visible

if TYPE_CHECKING:
    from rich.console import Console


def console(stream: TextIO, **options: Any) -> Console:
    """A rich console on which no text acts: a bracket is no markup, an escape no colour. Options are rich's."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text

    class VisibleConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:  # before it is measured, so that columns stay straight
            return super().render_str(visible(text), **options)

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(visible(segment.text), segment.style)

    return VisibleConsole(file=stream, highlight=False, markup=False, emoji=False, **options)


@contextmanager
def guarded() -> Iterator[None]:
    """Whatever is printed meanwhile is made visible, by whomever: loggers, tracebacks, libraries, users' methods.

    While rich draws a live bar, it takes what is printed, and of its codes draws the colours alone.
    """
    out = cast(TextIO, _Guarded(sys.stdout, has_bars=False))
    err = cast(TextIO, _Guarded(sys.stderr, has_bars=True))
    with redirect_stdout(out), redirect_stderr(err):
        yield


class _Guarded:
    """A stream that makes visible what is written to it. What a progress bar of tqdm's draws itself with passes."""

    _bar = re.compile(r"\r|(?:\x1b\[A)+$")

    def __init__(self, stream: TextIO, *, has_bars: bool) -> None:
        self._stream, self._has_bars = stream, has_bars
        # rich looks for it: a console of ours draws on the stream itself, and has made its texts visible by then
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        bar = match.end() if self._has_bars and (match := self._bar.match(text)) else 0
        self._stream.write(text[:bar] + visible(text[bar:]))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
