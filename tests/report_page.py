"""A report's page read back as its script reads it, for the tests of what stands in it."""

from __future__ import annotations

import base64
import json
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

FIERCE = (
    "</script><script>document.title='broken'</script><!-- <b>bold</b> {{ 7 * 7 }} {% raw %} &amp; <img src=x "
    "onerror=\"document.title='broken'\"> \u202egnirts detrever\u202c \u0627\u0644\u0639\u0631\u0628\u064a\u0629 "
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \x00 \u2028 `${1}` ]]>"
)
"""What a passage may hold to break a page: tags, comments, templates, writing directions, emoji, NUL."""


class Page(NamedTuple):
    """The data of one page: its list, its unpacked traces (None on an index), and the text outside the scripts."""

    data: dict[str, Any]
    traces: dict[str, Any] | None
    text: str
    scripts: int

    def joined(self, pieces: list[int]) -> str:
        """A text from its pieces."""
        assert self.traces is not None
        return "".join(self.traces["pieces"][piece] for piece in pieces)

    def passage(self, marked: list[Any]) -> tuple[str, str, str | None]:
        """(id, title, text) of a marked passage."""
        assert self.traces is not None
        pieces = self.traces["pieces"]
        name, title, text = self.traces["passages"][marked[0]]
        return name, pieces[title], None if text is None else pieces[text]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.blocks: dict[str, str] = {}
        self.scripts = 0
        self.text: list[str] = []
        self._within: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style"):
            self.scripts += tag == "script"
            self._within = dict(attrs).get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._within = None

    def handle_data(self, data: str) -> None:
        if self._within is None:
            self.text.append(data)
        else:
            self.blocks[self._within] = self.blocks.get(self._within, "") + data


def read_page(path: Path) -> Page:
    """The page at `path`."""
    reader = _Reader()
    reader.feed(path.read_text("utf-8"))
    packed = reader.blocks.get("traces", "")
    traces = json.loads(zlib.decompress(base64.b64decode(packed))) if packed else None
    return Page(json.loads(reader.blocks["data"]), traces, " ".join("".join(reader.text).split()), reader.scripts)
