"""Every question as a trace, for a page to open: queries and what they brought, prompts and replies, the answer.

In: rows of `predictions.jsonl`, their journal. Out: a `Traces` for one page, whose texts are numbers of pieces, so
that what is repeated is held (and sent) once. Prompts are read from the journal one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from blendfilter.evaluation.page.checks import Asked, judged
from blendfilter.evaluation.page.passages import Passages
from blendfilter.evaluation.page.pieces import Pieces
from blendfilter.journal import Journal
from blendfilter.modules.prediction import query_words
from blendfilter.records import Passage
from blendfilter.text import folded

KEPT, GOLD = 1, 2
"""Marks of a passage, added."""


class Traces:
    """The traces of one page. `data()` is what the page's script reads (`trace.js` names the fields)."""

    def __init__(self, journal: Journal, passages: Passages) -> None:
        self._journal, self._stored = journal, passages
        self._pieces = Pieces()
        self._passages: list[list[Any]] = []
        self._titles: list[str] = []
        self._lines: list[str] = []
        self._places: dict[str, int] = {}
        self._traces: list[dict[str, Any]] = []

    def add(self, row: Mapping[str, Any]) -> None:
        """The trace of one row."""
        gold = {folded(title) for title in row.get("gold_titles") or []}
        branches, queries = row.get("branches") or {}, row.get("queries") or {}
        shown = [self._branch(name, queries.get(name), branches.get(name), gold) for name in {**queries, **branches}]
        records = [(stage, self._journal.read_call(key)) for stage, key in row["calls"]]
        brought = {each["name"]: [self._lines[place] for place, *_ in each["passages"]] for each in shown}
        said = judged([Asked.of(*call) for call in records], brought)
        for each in shown:
            each["reasons"] = said.reasons.get(each["name"], [])
        found: dict[str, str] = {}
        for query in queries.values():
            found = self._stored.of(query) | found
        whole = row.get("spans") or {}
        knowledge = [self._marked(name, found, {name}, gold, whole) for name in row.get("knowledge") or []]
        self._traces.append(
            {
                "branches": shown,
                "knowledge": knowledge,
                "gold": self._gold(row.get("gold_titles") or [], shown, knowledge),
                "calls": [self._call(*call, names) for call, names in zip(records, said.queries, strict=True)],
                "retrieval": row.get("retrieval") or {},
                "flags": {name: count for name, count in (row.get("flags") or {}).items() if count},
                "error": row["error"],
            }
        )

    def data(self) -> dict[str, Any]:
        """All of it, as JSON."""
        return {"pieces": self._pieces.table, "passages": self._passages, "traces": self._traces}

    def _branch(self, name: str, query: str | None, branch: Mapping[str, Any] | None, gold: set[str]) -> dict[str, Any]:
        told = branch or {}
        found, kept, spans = self._stored.of(query), set(told.get("kept") or []), told.get("spans") or {}
        return {
            "name": name,
            "words": query_words(name),
            "query": self._pieces.of(query or ""),
            "read": told.get("ids_read") or "",
            "searched": branch is not None,
            "passages": [self._marked(each, found, kept, gold, spans) for each in told.get("retrieved") or []],
        }

    def _marked(
        self, name: str, found: Mapping[str, str], kept: set[str], gold: set[str], spans: Mapping[str, Any]
    ) -> list[Any]:
        """[place in the table of passages, marks, spans that were kept of it]."""
        key = self._stored.key(name, found)
        record = self._stored.read(key) if key is not None else None
        place = self._place(key or f"id {name}", name, record)
        marks = KEPT * (name in kept) + GOLD * (self._titles[place] in gold)
        return [place, marks, spans[name]] if name in spans and name in kept else [place, marks]

    def _place(self, key: str, name: str, record: Mapping[str, Any] | None) -> int:
        if key not in self._places:
            self._places[key] = len(self._passages)
            text = None if record is None else self._pieces.one(record["text"])
            title = self._pieces.one(record["title"] if record is not None else name)
            self._passages.append([name, title, text])
            self._titles.append(folded(record["title"]) if record is not None else "")
            self._lines.append(Passage(name, record["title"], record["text"]).line if record is not None else name)
        return self._places[key]

    def _gold(
        self, titles: Iterable[str], branches: Sequence[Mapping[str, Any]], knowledge: Sequence[Sequence[Any]]
    ) -> list[list[Any]]:
        """[title, kept | dropped | missing, the queries that found it], a gold title each."""
        kept = {self._titles[place] for place, *_ in knowledge}
        found = {branch["name"]: {self._titles[place] for place, *_ in branch["passages"]} for branch in branches}
        told = []
        for title in titles:
            by = [name for name, seen in found.items() if folded(title) in seen]
            told.append([title, "kept" if folded(title) in kept else "dropped" if by else "missing", by])
        return told

    def _call(self, stage: str, record: Mapping[str, Any] | None, queries: Sequence[str]) -> dict[str, Any]:
        if record is None:
            return {"stage": stage, "gone": True}
        prompt = record.get("prompt") or ""
        turns = [["", prompt]] if isinstance(prompt, str) else prompt
        told = {
            "stage": stage,
            "of": queries,
            "prompt": [[role, self._pieces.of(text)] for role, text in turns],
            "reply": self._pieces.of(record.get("reply") or ""),
            "reasoning": self._pieces.of(record.get("reasoning") or ""),
            "error": (record.get("error") or {}).get("message", ""),
        }
        figures = ("model", "tokens_in", "tokens_cached", "tokens_out", "seconds", "finish", "attempts", "cost")
        return told | {name: record[name] for name in figures if record.get(name) is not None}
