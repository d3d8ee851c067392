"""The report as HTML: one file for a run of up to 1,000 answers, a folder of pages for a longer one.

In: a run, others over the same questions beside it, a path. Out: `report.html` there, which needs nothing but itself:
no request leaves it. Above 1,000 answers the file leads to a folder of its name, `report/`, with all questions on
`index.html` and their traces on pages of 500.

Everything a page shows of questions is data in it: the list as JSON, the traces packed (deflate, base64) until one is
opened. Scripts put texts into the page as text alone, and the page's policy lets nothing else run or load. The same run
gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from blendfilter.errors import BadArgument
from blendfilter.evaluation.page.head import Head, head_of
from blendfilter.evaluation.page.listing import listing
from blendfilter.evaluation.page.passages import Passages
from blendfilter.evaluation.page.traces import Traces
from blendfilter.evaluation.rows import key_of
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.run_folder import REPORT, write_text
from blendfilter.evaluation.run_status import RunStatus
from blendfilter.journal import FILE, Journal
from blendfilter.text import visible

SINGLE, PAGE = 1000, 500
"""Answers on one self-contained page; answers a page where there are more."""
_SCRIPTS = ("data.js", "trace.js", "list.js")


class Part(NamedTuple):
    """One page: its file, its title, which rows it lists and whether it holds their traces."""

    file: str
    title: str
    first: int
    size: int


def write_report(run: Run, others: Sequence[Run] = (), path: Path | None = None) -> Path:
    """Write the report of `run` (default: into its folder) and return the path to open.

    Raises:
        RunMismatch, MissingFile: runs that cannot stand beside it (`compare` says why). BadArgument: a path that is no
        page's, or where a file is that is no report.
    """
    known, beside = RunStatus(run), [RunStatus(other) for other in others]
    path = path or run.folder / REPORT
    if path.suffix != ".html":
        raise BadArgument(f"'{path}' is no page's name: end it in .html (a long run gets a folder of the name without)")
    _check_ours(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    head = head_of(known, beside)
    metrics = list(known.run.settings["metrics"])
    entries = listing(known.rows, [{key_of(row): row for row in other.rows} for other in beside], metrics)
    shared = {"run": run.name, "metrics": metrics, "beside": [other.run.name for other in beside]}
    pages = _Pages(head, shared, entries)
    folder = path.with_suffix("")
    if len(entries) <= SINGLE:
        write_text(path, pages.whole(_traces(known)))
        _clear(folder)
        return path
    folder.mkdir(exist_ok=True)
    parts = [
        Part(f"questions-{number + 1}.html", f"questions {first + 1} to {min(first + PAGE, len(entries))}", first, PAGE)
        for number, first in enumerate(range(0, len(entries), PAGE))
    ]
    _check_ours(*(folder / part.file for part in parts), folder / "index.html")
    for part, packed in zip(parts, _traces(known), strict=True):
        write_text(folder / part.file, pages.part(part, parts, packed))
    write_text(folder / "index.html", pages.index(parts))
    write_text(path, pages.leading(f"{folder.name}/index.html"))
    _clear(folder, {part.file for part in parts} | {"index.html"})
    return path


class _Pages:
    """The kinds of page, all from one template."""

    def __init__(self, head: Head, shared: Mapping[str, Any], entries: Sequence[Any]) -> None:
        self._head, self._shared, self._entries = head, shared, entries

    def whole(self, packed: Iterator[str]) -> str:
        """Everything on one page."""
        data = {**self._shared, "rows": self._entries, "first": 0}
        return _render("page.html", head=self._head, data=data, traces=next(packed, ""), parts=[], part=None)

    def index(self, parts: Sequence[Part]) -> str:
        """The head, and all questions; each leads to its page."""
        data = {**self._shared, "rows": self._entries, "first": 0, "pages": [part.file for part in parts], "size": PAGE}
        return _render("page.html", head=self._head, data=data, traces="", parts=parts, part=None)

    def part(self, part: Part, parts: Sequence[Part], packed: str) -> str:
        """One page of questions with their traces."""
        rows = self._entries[part.first : part.first + part.size]
        data = {**self._shared, "rows": rows, "first": part.first}
        return _render("page.html", head=self._head, data=data, traces=packed, parts=parts, part=part)

    def leading(self, target: str) -> str:
        """The page in the run's folder that leads to the index."""
        return _render("leading.html", head=self._head, target=quote(os.fsencode(target)))


def _traces(known: RunStatus) -> Iterator[str]:
    """The packed traces, a page at a time; one page where there is room for all."""
    if not known.rows:
        return
    size = SINGLE if len(known.rows) <= SINGLE else PAGE
    with Journal(known.run.folder / FILE, "replay") as journal:
        passages, rows = Passages(journal), known.whole_rows()
        for _ in range(0, len(known.rows), size):
            traces = Traces(journal, passages)
            for row in islice(rows, size):
                traces.add(row)
            yield packed(traces.data())


def packed(value: Any) -> str:
    """`value` as JSON, deflated, in base64; the same bytes for the same value."""
    data = json.dumps(value, separators=(",", ":")).encode("ascii")
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")


def inlined(value: Any) -> str:
    """`value` as JSON that can stand in a script block: nothing in it begins or ends a tag.

    >>> inlined("</script>")
    '"\\\\u003c/script\\\\u003e"'
    """
    text = json.dumps(value, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _render(template: str, **values: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = files("blendfilter.evaluation.page") / "assets"
    loader = FileSystemLoader(str(folder))
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, finalize=_seen
    )
    style = (folder / "style.css").read_text("utf-8")
    script = "\n".join((folder / name).read_text("utf-8") for name in _SCRIPTS)
    if "data" in values:
        values["data"] = inlined(values["data"])
    page = environment.get_template(template).render(
        **values, style=style, script=script, policy=_policy(style, script)
    )
    return page.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _seen(value: Any) -> Any:
    """A text as a page shows it; HTML of ours as it is."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _policy(style: str, script: str) -> str:
    """Nothing loads, and only this very style and script apply."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _clear(folder: Path, kept: Collection[str] = ()) -> None:
    """Take away the pages of an earlier report that this one does not have."""
    for path in [*folder.glob("questions-*.html"), *folder.glob("index.html")]:
        if path.name not in kept and _is_ours(path):
            path.unlink()
    with suppress(OSError):  # something of somebody else's is in it
        folder.rmdir()


def _check_ours(*paths: Path) -> None:
    """Raise `BadArgument` for a file that is there and is no page of an earlier report."""
    for path in paths:
        if path.is_file() and not _is_ours(path):
            raise BadArgument(f"{path} is there, and is no report: move it away, or name another file for the report")


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        return b'content="blendfilter report"' in file.read(300)
