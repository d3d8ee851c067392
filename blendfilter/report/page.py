"""The report as HTML: one file for a run of up to 1,000 answers, a folder of pages for a longer one.

`report.html` needs nothing but itself: no request leaves it. Above 1,000 answers the file leads to a folder of its
name, `report/`, with all questions on `index.html` and their traces on pages of 500.

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
from blendfilter.evaluation.rows import LOSSES, key_of
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.run_folder import REPORT, write_text
from blendfilter.evaluation.run_passages import Passages
from blendfilter.evaluation.run_status import RunStatus
from blendfilter.journal import FILE, Journal
from blendfilter.report.page_head import head_of
from blendfilter.report.page_traces import Traces
from blendfilter.text import visible

SINGLE, PAGE = 1000, 500
"""Answers on one self-contained page; answers a page where there are more."""


class Part(NamedTuple):
    """One page of a long run: its file, its title, and its first row."""

    file: str
    title: str
    first: int


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
    head, metrics = head_of(known, beside), list(known.run.settings["metrics"])
    by_key = [{key_of(row): row for row in other.rows} for other in beside]
    entries = [_entry(row, [rows.get(key_of(row)) for rows in by_key], metrics) for row in known.rows]
    shared = {"run": run.name, "metrics": metrics, "beside": [other.run.name for other in beside]}
    folder = path.with_suffix("")

    def page(data: Mapping[str, Any], traces: str = "", parts: Sequence[Part] = (), part: Part | None = None) -> str:
        return _render("page.html", head=head, data={**shared, **data}, traces=traces, parts=parts, part=part)

    if len(entries) <= SINGLE:
        write_text(path, page({"rows": entries, "first": 0}, next(_packed_traces(known), "")))
        _clear(folder)
        return path
    folder.mkdir(exist_ok=True)
    parts = [
        Part(f"questions-{number}.html", f"questions {first + 1} to {min(first + PAGE, len(entries))}", first)
        for number, first in enumerate(range(0, len(entries), PAGE), 1)
    ]
    names = [part.file for part in parts]
    _check_ours(*(folder / name for name in names), folder / "index.html")
    for part, traces in zip(parts, _packed_traces(known), strict=True):
        rows = entries[part.first : part.first + PAGE]
        write_text(folder / part.file, page({"rows": rows, "first": part.first}, traces, parts, part))
    index = {"rows": entries, "first": 0, "pages": names, "size": PAGE}
    write_text(folder / "index.html", page(index, parts=parts))
    target = quote(os.fsencode(f"{folder.name}/index.html"))
    write_text(path, _render("leading.html", head=head, target=target))
    _clear(folder, {*names, "index.html"})
    return path


def _entry(row: Mapping[str, Any], others: Sequence[Mapping[str, Any] | None], metrics: Sequence[str]) -> Any:
    """A row in the list of questions that a page shows at once: what to search, to filter by and to open."""
    flags = row.get("flags") or {}
    entry = {
        "id": row["id"],
        "question": row.get("question", ""),
        "answer": row.get("answer"),
        "golden": list(row.get("golden_answers") or []),
        "scores": [row.get(name, 0.0) for name in metrics],
        "right": bool(row.get("correct")),
        "loss": row["loss"] if row.get("loss") in LOSSES else "",
        "unread": sum(flags.get(name, 0) for name in ("unparseable_ids", "suspect_ids")),
        "error": row["error"] is not None,
    }
    if "repeat" in row:
        entry["repeat"] = row["repeat"]
    if others:
        entry["others"] = [[other.get("answer"), bool(other.get("correct"))] if other else None for other in others]
    return entry


def _packed_traces(known: RunStatus) -> Iterator[str]:
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

    folder = files("blendfilter.report") / "assets"
    environment = Environment(
        loader=FileSystemLoader(str(folder)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=_visible,
    )
    style = (folder / "style.css").read_text("utf-8")
    script = "\n".join((folder / name).read_text("utf-8") for name in ("data.js", "trace.js", "list.js"))
    if "data" in values:
        values["data"] = inlined(values["data"])
    # Nothing loads, and only this very style and script apply.
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    page = environment.get_template(template).render(**values, style=style, script=script, policy=policy)
    return page.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _visible(value: Any) -> Any:
    """A text as a page shows it; HTML of ours as it is."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _clear(folder: Path, kept: Collection[str] = ()) -> None:
    """Take away the pages of an earlier report that this one does not have."""
    for path in [*folder.glob("questions-*.html"), *folder.glob("index.html")]:
        if path.name not in kept and _is_ours(path):
            path.unlink()
    with suppress(OSError):  # it holds a file that is not ours
        folder.rmdir()


def _check_ours(*paths: Path) -> None:
    """Raise `BadArgument` for a file that is there and is no page of an earlier report."""
    for path in paths:
        if path.is_file() and not _is_ours(path):
            raise BadArgument(f"{path} is there, and is no report: move it away, or name another file for the report")


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        return b'content="blendfilter report"' in file.read(300)
