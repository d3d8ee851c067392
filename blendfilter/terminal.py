"""The terminal, guarded against what is printed on it.

Passages, replies, ids and names come from outside, and may hold what moves a terminal's cursor or colours its text. All
of it passes `visible`: in a rich `console` of ours, and in the streams that `guarded` puts in place of stdout and
stderr. Only rich's own codes reach the terminal as they are. What a stream's encoding lacks is written as an escape,
too: output never ends work that is done.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, TextIO, cast

from blendfilter.text import visible

if TYPE_CHECKING:
    from rich.console import Console

EVERY = 20.0
"""Seconds between two lines of progress where there is no terminal to draw bars on."""
_AS_JSON = "blendfilter.as_json"
codecs.register_error(
    _AS_JSON,
    lambda error: (json.dumps(error.object[error.start : error.end])[1:-1], error.end),  # type: ignore[attr-defined]
)


def shown_on(stream: Any, text: str) -> str:
    """`text` made visible, with an escape for each character that the stream's encoding lacks.

    Escapes are those of JSON, so that JSON stays the same JSON.

    >>> shown_on(open("/dev/null", "w", encoding="latin-1"), "a caf\u00e9 \u2026")
    'a caf\u00e9 \\\\u2026'
    """
    if text.isascii():
        return visible(text)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return visible(text).encode(encoding, _AS_JSON).decode(encoding)


def is_terminal(stream: Any) -> bool:
    """Whether a stream draws; one that was closed before Python began is None."""
    return stream is not None and bool(stream.isatty())


def terminal_width() -> int:
    """The columns of the terminal; 110 where output goes to none."""
    return get_terminal_size((110, 24)).columns


def note(line: str) -> None:
    """Print a line on stderr. Where that is closed, or takes no more, the work that the line is about goes on."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(shown_on(sys.stderr, line), file=sys.stderr, flush=True)


def console(stream: TextIO, **options: Any) -> Console:
    """A rich console on which no text acts: a bracket is no markup, an escape no colour. Options are rich's."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text

    class VisibleConsole(Console):
        # before it is measured, so that columns stay straight
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(shown_on(stream, text), **options)

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield (
                    segment
                    if segment.control
                    else Segment(shown_on(stream, segment.text), segment.style)
                )

    return VisibleConsole(file=stream, highlight=False, markup=False, emoji=False, **options)


@contextmanager
def guarded() -> Iterator[None]:
    """Whatever is printed meanwhile is made visible, by whomever: loggers, tracebacks, libraries, users' methods.

    While rich draws a live bar, it takes what is printed, and of its codes draws the colours alone. Streams that were
    closed before Python began lead nowhere.
    """
    # a file of ours that got the number of a closed stream would take what C libraries and children print there
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        out = cast(TextIO, _Guarded(sys.stdout or nowhere, has_bars=False))
        err = cast(TextIO, _Guarded(sys.stderr or nowhere, has_bars=True))
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
        self._stream.write(text[:bar] + shown_on(self._stream, text[bar:]))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
