"""Every question as a trace, for a page to open: queries and what they brought, prompts and replies, the answer.

Texts are lists of numbers of pieces, so that what is repeated (instructions, demonstrations, passages) is stored and
sent once. Prompts are read from the journal one at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from blendfilter.evaluation.run_passages import Passages
from blendfilter.evaluation.run_status import stage_of
from blendfilter.journal import Journal
from blendfilter.modules.base import query_words
from blendfilter.report.trace import reasons_of
from blendfilter.text import folded

KEPT, GOLD = 1, 2
"""Marks of a passage, added."""
_LINE = re.compile(r"(knowledge \d+: )?(?:([^|]*?)( \| ))?(.*)", re.DOTALL)
"""A passage in a prompt: its number, its title, the bar, its text; so a passage's own pieces serve every prompt."""
_FIGURES = ("model", "tokens_in", "tokens_cached", "tokens_out", "seconds", "finish", "attempts", "cost")
_ONE_BY_ONE = "consistent"
"""The stage of CDIT's judge, which reads a passage a call."""


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
            numbers += [self.one(part) for part in (match.groups() if match else (line,)) if part]
        return numbers


class Traces:
    """The traces of one page. `data()` is what the page's script reads (`trace.js` names the fields)."""

    def __init__(self, journal: Journal, passages: Passages) -> None:
        self._journal, self._stored = journal, passages
        self._pieces = Pieces()
        self._passages: list[list[Any]] = []
        self._titles: list[str] = []
        self._places: dict[str, int] = {}
        self._traces: list[dict[str, Any]] = []

    def add(self, row: Mapping[str, Any]) -> None:
        """The trace of one row of `predictions.jsonl`."""
        titles = row.get("gold_titles") or []
        gold = {folded(title) for title in titles}
        rows, queries = row.get("branches") or {}, row.get("queries") or {}
        branches = [self._branch(name, queries.get(name), rows.get(name), gold) for name in {**queries, **rows}]
        calls = [(stage, self._journal.read_call(key)) for stage, key in row["calls"]]
        retrieved = {branch["name"]: (rows.get(branch["name"]) or {}).get("retrieved") or [] for branch in branches}
        judged_for, reasons = judgements(calls, retrieved)
        for branch in branches:
            branch["reasons"] = reasons[branch["name"]]
        found: dict[str, str] = {}
        for query in queries.values():
            found = self._stored.of(query) | found
        spans = row.get("spans") or {}
        knowledge = [self._marked(name, found, {name}, gold, spans) for name in row.get("knowledge") or []]
        self._traces.append(
            {
                "branches": branches,
                "knowledge": knowledge,
                "gold": self._gold(titles, branches, knowledge),
                "calls": [self._call(*call, names) for call, names in zip(calls, judged_for, strict=True)],
                "retrieval": row.get("retrieval") or {},
                "flags": {name: count for name, count in (row.get("flags") or {}).items() if count},
                "error": row["error"],
            }
        )

    def data(self) -> dict[str, Any]:
        """All of it, as JSON."""
        return {"pieces": self._pieces.table, "passages": self._passages, "traces": self._traces}

    def _branch(self, name: str, query: str | None, row: Mapping[str, Any] | None, gold: set[str]) -> dict[str, Any]:
        branch = row or {}
        found, kept, spans = self._stored.of(query), set(branch.get("kept") or []), branch.get("spans") or {}
        return {
            "name": name,
            "words": query_words(name),
            "query": self._pieces.of(query or ""),
            "read": branch.get("ids_read") or "",
            "searched": row is not None,
            "passages": [self._marked(one, found, kept, gold, spans) for one in branch.get("retrieved") or []],
        }

    def _marked(
        self, name: str, found: Mapping[str, str], kept: set[str], gold: set[str], spans: Mapping[str, Any]
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
        self, titles: Iterable[str], branches: Sequence[Mapping[str, Any]], knowledge: Sequence[Sequence[Any]]
    ) -> list[list[Any]]:
        """[title, kept | dropped | missing, the queries that found it] of each gold title."""
        kept = {self._titles[place] for place, *_ in knowledge}
        found = {branch["name"]: {self._titles[place] for place, *_ in branch["passages"]} for branch in branches}
        rows = []
        for title in titles:
            by = [name for name, titles_of in found.items() if folded(title) in titles_of]
            rows.append([title, "kept" if folded(title) in kept else "dropped" if by else "missing", by])
        return rows

    def _call(self, stage: str, record: Mapping[str, Any] | None, branches: Sequence[str]) -> dict[str, Any]:
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
    calls: Sequence[tuple[str, Mapping[str, Any] | None]], retrieved: Mapping[str, Sequence[str]]
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
        alone = [place for place in judged if stage_of(calls[place][0]) == _ONE_BY_ONE and judged[place][0] in ids]
        whole = [place for place in judged if judged[place] == ids]
        texts: dict[str, str] = {}
        for place in sorted({*alone, *(whole or (place for place in judged if {*ids} <= {*judged[place]}))}):
            judged_for[place].append(name)
            stage, record = calls[place]
            for passage, reason in zip(judged[place], _reasons(stage, record, len(judged[place])), strict=False):
                texts.setdefault(passage, reason)
        reasons[name] = [texts.get(passage, "") for passage in ids] if any(texts.values()) else []
    return judged_for, reasons


def _reasons(stage: str, record: Mapping[str, Any] | None, k: int) -> Sequence[str]:
    """What a call's reply says of each of the `k` passages that it judged; nothing where it gives numbers alone."""
    reply = (record or {}).get("reply") or ""
    if stage_of(stage) == _ONE_BY_ONE:
        return ["; ".join(reply.split("\n"))]
    return reasons_of(reply, k) if stage_of(stage) in ("check", "judge") else ()
