"""The report as HTML: one file for a run of up to 1,000 answers, a folder of pages for a longer one.

`report.html` needs nothing but itself: no request leaves it. Above 1,000 answers the file lists all questions, and
their traces are on pages of 500 in a folder of its name, `report/`.

Everything a page shows of questions is data in it: the list as JSON, the traces packed (deflate, base64) until one is
opened. Scripts put texts into the page as text alone, and the page's policy lets nothing else run or load. The same run
gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from blendfilter.errors import BadArgument
from blendfilter.evaluation.comparison import CORRECT, Comparison, chance, compare, percent
from blendfilter.evaluation.ledger import per_question
from blendfilter.evaluation.rows import ERROR, LOSSES, Json, Record, key_of
from blendfilter.evaluation.run import Run, named_runs
from blendfilter.evaluation.run_folder import REPORT, write_text
from blendfilter.evaluation.run_passages import Passages
from blendfilter.evaluation.run_status import RunStatus, stage_of
from blendfilter.journal import FILE, Journal
from blendfilter.modules.base import QUERY_WORDS
from blendfilter.report.card import interval, loss_bar, swatch
from blendfilter.report.run_text import (
    LOSS_WORDS,
    PARTIAL,
    heading,
    ledger_table,
    remarks,
    retrieval_table,
)
from blendfilter.report.trace import reasons_of
from blendfilter.retrieval.base import Trim
from blendfilter.table import Table
from blendfilter.text import folded, visible

SINGLE, PAGE = 1000, 500
"""Answers on one self-contained page; answers a page where there are more."""
KEPT, GOLD = 1, 2
"""Marks of a passage, added."""
_LINE = re.compile(r"(knowledge \d+: )?(?:([^|]*?)( \| ))?(.*)", re.DOTALL)
"""A passage in a prompt: its number, its title, the bar, its text; so a passage's own pieces serve every prompt."""
_FIGURES = (
    "model",
    "tokens_in",
    "tokens_cached",
    "tokens_out",
    "seconds",
    "finish",
    "attempts",
    "cost",
)
_ONE_BY_ONE = ("relevant", "consistent", "consistent_again")
"""The stages that judge a passage a call; of CDIT's the second reply counts where there is one."""


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
        raise BadArgument(
            f"'{path}' is no page's name: end it in .html (a long run gets a folder of the name without)"
        )
    _check_ours(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    head, metrics = head_of(known, beside), list(known.run.settings["metrics"])
    by_key = [{key_of(row): row for row in other.rows} for other in beside]
    entries = [
        _entry(row, [rows.get(key_of(row)) for rows in by_key], metrics) for row in known.rows
    ]
    shared = {
        "run": run.name,
        "metrics": metrics,
        "beside": [other.run.name for other in beside],
    }
    folder = path.with_suffix("")
    firsts = range(0, len(entries), PAGE) if len(entries) > SINGLE else ()
    parts = []
    for number, first in enumerate(firsts, 1):
        title = f"questions {first + 1} to {min(first + PAGE, len(entries))}"
        parts.append(Part(f"questions-{number}.html", title, first))
    names = [part.file for part in parts]
    _check_ours(*(folder / name for name in names))
    whole, beside_it = (quote(os.fsencode(place.name)) for place in (path, folder))
    links = {"parts": parts, "whole": whole, "folder": beside_it}
    traces = _packed_traces(known)
    for part in parts:
        folder.mkdir(exist_ok=True)
        rows = entries[part.first : part.first + PAGE]
        data = shared | {"rows": rows, "first": part.first}
        page = _render(data, head=head, traces=next(traces), part=part, **links)
        write_text(folder / part.file, page)
    data = shared | {"rows": entries, "first": 0}
    if parts:
        data |= {"pages": [f"{beside_it}/{name}" for name in names], "size": PAGE}
    own = "" if parts else next(traces, "")
    write_text(path, _render(data, head=head, traces=own, part=None, **links))
    _clear(folder, names)
    return path


def _entry(row: Record, others: Sequence[Record | None], metrics: Sequence[str]) -> Any:
    """A row in the list of questions that a page shows at once: what to search, to filter by and to open."""
    entry = {
        "id": row["id"],
        "question": row["question"],
        "answer": row["answer"],
        "golden": row["golden_answers"],
        "scores": [row[name] for name in metrics],
        "right": row["correct"],
        "loss": row["loss"],
        "unread": sum(row["flags"].get(name, 0) for name in ("unparseable_ids", "suspect_ids")),
        "error": row["error"] is not None,
    }
    if "repeat" in row:
        entry["repeat"] = row["repeat"]
    if others:
        entry["others"] = [other and [other["answer"], other["correct"]] for other in others]
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


def _render(data: Record, **values: Any) -> str:
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
    script = "\n".join(
        (folder / name).read_text("utf-8") for name in ("data.js", "trace.js", "list.js")
    )
    # Nothing loads, and only this very style and script apply.
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    page = environment.get_template("page.html").render(
        **values, data=inlined(data), style=style, script=script, policy=policy
    )
    return page.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _visible(value: Any) -> Any:
    """A text as a page shows it; HTML of ours as it is."""
    return visible(value) if type(value) is str else value


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _clear(folder: Path, kept: Collection[str]) -> None:
    """Take away the pages of an earlier report that this one does not have."""
    for path in folder.glob("questions-*.html"):
        if path.name not in kept and _is_ours(path):
            path.unlink()
    with suppress(OSError):  # it holds a file that is not ours
        folder.rmdir()


def _check_ours(*paths: Path) -> None:
    """Raise `BadArgument` for a file that is there and is no page of an earlier report."""
    for path in paths:
        if path.is_file() and not _is_ours(path):
            raise BadArgument(
                f"{path} is there, and is no report: move it away, or name another file for the report"
            )


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        return b'content="blendfilter report"' in file.read(300)


# --- above the questions ---


def head_of(known: RunStatus, others: Sequence[RunStatus]) -> Json:
    """What stands above the questions, under the names that `page.html` reads; no `figures` where there is nothing yet.

    Raises as `compare` does where others do not fit beside it.
    """
    run, metrics = known.run, known.metrics
    labels = named_runs([one.run for one in (known, *others)])
    runs = dict(zip(labels, (known, *others), strict=True))
    compared = compare(labels) if others else None
    head: Json = {
        "name": run.name,
        "title": f"{run.settings['task']} · {run.settings['method']['name']}",
        "signature": metrics["signature"] if run.finished else "",
        "recipe": _recipe(known),
        "failures": known.failures,
        "notes": list(_notes(known)),
        "figures": {},
    }
    if metrics:
        head["figures"] = {
            "scores": [] if known.failed else list(_scores(known)),
            "sides": _side_by_side(runs, compared) if compared else None,
            "losses": [_loss_bars(label, one) for label, one in runs.items()],
            "retrieval": retrieval_table(known) if metrics["retrieval"] else None,
            "ledger": ledger_table(known.entries, len(known.rows), "a question", known.paid),
            "events": [(name, count) for name, count in metrics["flags"].items() if count],
        }
    return head


def _notes(known: RunStatus) -> Iterator[str]:
    if not known.run.finished:
        yield f"{known.unfinished[0].upper()}{known.unfinished[1:]}."
        yield PARTIAL if known.rows else "Nothing is answered yet."
        if known.paid and not known.rows:
            yield f"{known.paid[0].upper()}{known.paid[1:]}."
    yield from remarks(known)


def _recipe(known: RunStatus) -> list[tuple[str, str]]:
    """What the figure was made with, as names and values; the signature's own parts where there is one."""
    settings = known.run.settings
    if known.run.finished:
        parts = known.metrics["signature"].partition(" | ")[2].split("|")
        pairs = (part.partition(":") for part in parts)
        return [(name, value) for name, _, value in pairs if name or value]
    return [
        ("data", settings["data"]["source"]),
        ("method", settings["method"]["name"]),
        ("lm", known.run.models),
    ]


def _scores(known: RunStatus) -> Iterator[dict[str, str]]:
    for name, score in known.metrics["metrics"].items():
        note = f"{known.repeats} repeats" if known.repeats > 1 else ""
        if "between_repeats" in score:
            note += f", {percent(score['between_repeats'])} between them"
        yield _score(name, score, note)
    for rescored in known.rescored:
        failed = f", {rescored.errors} judgements ended in an error" if rescored.errors else ""
        yield _score(rescored.metric, vars(rescored), f"rescored{failed}")


def _score(name: str, score: Record, note: str) -> dict[str, str]:
    """One metric of one run, in %."""
    value, low, high = score["value"], score["low"], score["high"]
    return {
        "name": heading(name),
        "value": percent(value),
        "low": percent(low),
        "high": percent(high),
        "half": percent((high - low) / 2),
        "picture": interval(value, low, high),
        "note": note,
    }


def _side_by_side(runs: Mapping[str, RunStatus], compared: Comparison) -> Table:
    """A line a run: its score, its difference from the first run, what a question costs.

    `p` tests the difference: exact McNemar where the metric is right or wrong, as in every other table of this package.
    """
    metric = compared.rows[0].measure
    found = {(row.run, row.measure): row for row in compared.rows}
    lines = []
    for label, known in runs.items():
        row = found[label, metric]
        correct = found.get((label, CORRECT), row)
        score = _score(metric, known.metrics["metrics"][metric], "")
        line = [label, known.run.settings["method"]["name"], known.run.models]
        line.append("failed" if known.failed else f"{score['value']} ± {score['half']}")
        line.append(str(known.run.errors or ""))
        change = ""
        if row.difference is not None:  # not of the first run, nor of one that failed
            change = f"{percent(row.difference, '+')} [{percent(row.low, '+')}, {percent(row.high, '+')}]"
        won = "" if correct.won is None else f"{correct.won} / {correct.lost}"
        tested = correct if correct.difference == row.difference else row
        holm = chance(tested.p_holm, "") if len(runs) > 2 else ""
        calls, spent = per_question(known.run)
        tokens = "-" if spent is None else f"{spent:,.0f}"
        lines.append([*line, change, won, chance(tested.p, ""), holm, f"{calls:.1f}", tokens])
    header = ["run", "method", "model", heading(metric), "errors", "difference", "won / lost"]
    header += ["p", "Holm", "calls", "tokens"]
    notes = [
        "Calls and tokens are a question's; differences are from the first run, in points, with a 95 % interval.",
        *compared.notes,
    ]
    return Table(header, lines, notes=notes, left=3).without_empty()


def _loss_bars(label: str, known: RunStatus) -> Json:
    """One run's bar, and its parts as (key, words, swatch, count, %)."""
    losses, rows = known.metrics["losses"], len(known.rows)
    gold = sum(bool(row["gold_titles"]) for row in known.rows)
    notes = [f"Every one of the {rows} answers counts."] if known.repeats > 1 else []
    names: Sequence[str] = LOSSES
    words = LOSS_WORDS
    if not gold:
        notes.append(
            "No gold titles are known: where questions are lost cannot be told, only which are right."
        )
        names = ("answered_wrong", "right", ERROR)
        words = LOSS_WORDS | {"answered_wrong": "wrong"}
    elif gold < rows:
        notes.append(f"Gold titles are known for {gold} of {rows}; the others count as kept.")
    parts = [
        (name, words[name], swatch(name), losses[name], percent(losses[name] / rows))
        for name in names
        if name in losses
    ]
    return {
        "label": label,
        "picture": loss_bar(losses),
        "parts": parts,
        "note": " ".join(notes),
    }


# --- traces ---


class Pieces:
    """A table of texts, each stored once. Piece 0 is the line break.

    >>> pieces = Pieces()
    >>> pieces.of("knowledge 0: Ormskerry | A town."), pieces.of("Ormskerry | A town.")
    ([1, 2, 3, 4], [2, 3, 4])
    >>> pieces.table
    ['\\n', 'knowledge 0: ', 'Ormskerry', ' | ', 'A town.']
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"\n": 0}

    @property
    def table(self) -> list[str]:
        """All pieces, by number."""
        return list(self._numbers)

    def one(self, text: str) -> int:
        """The number of `text` as one piece."""
        return self._numbers.setdefault(text, len(self._numbers))

    def of(self, text: str) -> list[int]:
        """The numbers of the pieces of `text`; joined, they are the text again."""
        numbers: list[int] = []
        for place, line in enumerate(text.split("\n")):
            if place:
                numbers.append(0)
            match = _LINE.fullmatch(line)
            numbers += [
                self.one(part) for part in (match.groups() if match else (line,)) if part
            ]
        return numbers


class Traces:
    """The traces of one page. `data()` is what the page's script reads (`trace.js` names the fields)."""

    def __init__(self, journal: Journal, passages: Passages) -> None:
        self._journal, self._stored = journal, passages
        self._pieces = Pieces()
        self._passages: list[list[Any]] = []
        self._titles: list[str] = []
        self._places: dict[str, int] = {}
        self._traces: list[Json] = []

    def add(self, row: Record) -> None:
        """The trace of one row of `predictions.jsonl`."""
        titles, queries, stored = row["gold_titles"], row["queries"], row["branches"]
        gold = {folded(title) for title in titles}
        names = {**queries, **stored}
        calls = [(stage, self._journal.read_call(key)) for stage, key in row["calls"]]
        retrieved = {
            name: stored[name]["retrieved"] if name in stored else [] for name in names
        }
        judged_for, reasons = judgements(calls, retrieved)
        branches = [
            self._branch(name, queries.get(name), stored.get(name), gold, reasons[name])
            for name in names
        ]
        found: dict[str, str] = {}
        for query in queries.values():
            found = self._stored.of(query) | found
        spans = row.get("spans", {})
        knowledge = [
            self._marked(name, found, {name}, gold, spans) for name in row["knowledge"]
        ]
        written = [text for text in row.get("written", []) if isinstance(text, str)]
        self._traces.append(
            {
                "branches": branches,
                "knowledge": knowledge,
                "written": list(map(self._pieces.of, written)),
                "gold": self._gold(titles, branches, knowledge),
                "calls": [
                    self._call(*call, names)
                    for call, names in zip(calls, judged_for, strict=True)
                ],
                "retrieval": row["retrieval"],
                "flags": {name: count for name, count in row["flags"].items() if count},
                "error": row["error"],
            }
        )

    def data(self) -> Json:
        """All of it, as JSON."""
        return {
            "pieces": self._pieces.table,
            "passages": self._passages,
            "traces": self._traces,
        }

    def _branch(
        self,
        name: str,
        query: str | None,
        row: Record | None,
        gold: set[str],
        reasons: Sequence[str],
    ) -> Json:
        branch = row or {"retrieved": [], "kept": [], "ids_read": ""}
        found, kept = self._stored.of(query), set(branch["kept"])
        spans, trim = branch.get("spans", {}), branch.get("trim")
        return {
            "name": name,
            "words": QUERY_WORDS.get(name, ""),
            "query": self._pieces.of(query or ""),
            "read": branch["ids_read"] or "",
            "searched": row is not None,
            "trim": Trim.model_validate(trim).line if trim else "",
            "passages": [
                self._marked(one, found, kept, gold, spans) for one in branch["retrieved"]
            ],
            "reasons": reasons,
        }

    def _marked(
        self,
        name: str,
        found: Mapping[str, str],
        kept: set[str],
        gold: set[str],
        spans: Record,
    ) -> list[Any]:
        """[place in the table of passages, marks, spans that were kept of it]."""
        key = self._stored.key(name, found)
        place = self._place(name, key)
        marks = KEPT * (name in kept) + GOLD * (self._titles[place] in gold)
        return [place, marks, spans[name]] if name in spans and name in kept else [place, marks]

    def _place(self, name: str, key: str | None) -> int:
        """The place of a passage in the table; its id stands for one that the journal does not hold."""
        place = key or f"id {name}"
        if place not in self._places:
            self._places[place] = len(self._passages)
            record = self._stored.read(key) if key is not None else None
            if record is None:
                self._passages.append([name, self._pieces.one(name), None])
                self._titles.append("")
            else:
                text = self._pieces.one(record["text"])  # numbered before the title
                self._passages.append([name, self._pieces.one(record["title"]), text])
                self._titles.append(folded(record["title"]))
        return self._places[place]

    def _gold(
        self,
        titles: Iterable[str],
        branches: Sequence[Record],
        knowledge: Sequence[Sequence[Any]],
    ) -> list[list[Any]]:
        """[title, kept | dropped | missing, the queries that found it] of each gold title."""
        kept = {self._titles[place] for place, *_ in knowledge}
        found = {
            branch["name"]: {self._titles[place] for place, *_ in branch["passages"]}
            for branch in branches
        }
        rows = []
        for title in titles:
            by = [name for name, titles_of in found.items() if folded(title) in titles_of]
            state = "dropped" if by else "missing"
            rows.append([title, "kept" if folded(title) in kept else state, by])
        return rows

    def _call(self, stage: str, record: Record | None, branches: Sequence[str]) -> Json:
        if record is None:
            return {"stage": stage, "gone": True}
        prompt = record.get("prompt") or ""
        turns = [["", prompt]] if isinstance(prompt, str) else prompt
        return {
            "stage": stage,
            "of": branches,
            "prompt": [[role, self._pieces.of(text)] for role, text in turns],
            "reply": self._pieces.of(record.get("reply") or ""),
            "reasoning": self._pieces.of(record.get("reasoning") or ""),
            "error": (record.get("error") or {}).get("message", ""),
            **{name: record[name] for name in _FIGURES if record.get(name) is not None},
        }


def judgements(
    calls: Sequence[tuple[str, Record | None]],
    retrieved: Mapping[str, Sequence[str]],
) -> tuple[list[list[str]], dict[str, list[str]]]:
    """Which branches' passages each call judged, and the reason that was given for each branch's passages.

    Args:
        calls: (stage, journal record) in plan order; a record says which passages the call `judged`, and of a hop for
            which `branch`. Records of older versions do not: none is matched to them.
        retrieved: passage ids by branch.

    Branches that bring the same passages in the same order share their calls; a filter over a union serves them all.
    """
    judged_for: list[list[str]] = [[] for _ in calls]
    reasons: dict[str, list[str]] = {}
    for name, ids in retrieved.items():
        judged = {
            place: list(record["judged"])
            for place, (_, record) in enumerate(calls)
            if ids and record and record.get("judged") and record.get("branch") in (None, name)
        }
        whole = [place for place in judged if judged[place] == ids]
        whole = whole or [place for place in judged if {*ids} <= {*judged[place]}]
        texts: dict[str, str] = {}
        for place, passages in judged.items():
            stage, reply = stage_of(calls[place][0]), (calls[place][1] or {}).get("reply") or ""
            alone = stage in _ONE_BY_ONE and passages[0] in ids
            if not alone and place not in whole:
                continue
            judged_for[place].append(name)
            words = []
            if stage in _ONE_BY_ONE:
                words = ["; ".join(reply.split("\n"))]
            elif stage in ("check", "judge"):  # others give numbers alone
                words = [*reasons_of(reply, len(passages))]
            for passage, reason in zip(passages, words, strict=False):
                if passage not in texts or stage == _ONE_BY_ONE[-1]:
                    texts[passage] = reason
        reasons[name] = [texts.get(each, "") for each in ids] if any(texts.values()) else []
    return judged_for, reasons
