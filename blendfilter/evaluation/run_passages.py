"""The passages that a run retrieved, found again in its journal, and those that each answer was read from.

Rows say by id and place what was kept, the journal has the texts; nothing is filtered or searched anew. Only keys are
kept in memory (about 150 bytes a search and a passage), never texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from blendfilter.errors import BadData
from blendfilter.evaluation.rows import KEPT, UNION, Record
from blendfilter.evaluation.run import Run
from blendfilter.journal import Journal
from blendfilter.modules.base import union
from blendfilter.records import Excerpt, Passage, WrittenText


class Passages:
    """The passages of `journal`, by the query that retrieved them.

    One id may stand for several texts (two indexes, or a service that shows other excerpts for other queries): the
    search that found it decides.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._by_id: dict[str, bytes] = {}
        self._by_query: dict[bytes, bytes] = {}
        for record in journal.records("passage", "search"):
            key = bytes.fromhex(record["key"])
            if record["kind"] == "passage":
                self._by_id.setdefault(record["id"], key)
            else:
                name = _digest(record["query"])
                self._by_query[name] = self._by_query.get(name, b"") + key

    def of(self, query: str | None) -> dict[str, str]:
        """The journal's key of each passage that was found for `query`, by the passage's id."""
        found: dict[str, str] = {}
        keys = self._by_query.get(_digest(query), b"") if query is not None else b""
        for start in range(0, len(keys), 16):
            search = self._journal.read(keys[start : start + 16].hex(), "search")
            if search is not None:
                found = dict(zip(search["ids"], search["passages"], strict=True)) | found
        return found

    def key(self, name: str, found: Mapping[str, str]) -> str | None:
        """The key of the passage with that id: as `found` has it, else the first one anywhere in the journal."""
        if name in found:
            return found[name]
        key = self._by_id.get(name)
        return key.hex() if key is not None else None

    def read(self, key: str) -> dict[str, Any] | None:
        """A passage's record; None where it is damaged, which `Passages` has warned of."""
        try:
            return self._journal.read(key, "passage")
        except BadData:
            return None


def _digest(query: str) -> bytes:
    return blake2b(query.encode("utf-8", "surrogatepass"), digest_size=16).digest()


# --- what each answer was read from ---------------------------------------------------------------------------------

SHORTENS = "short_answer"
"""The call that makes a reasoning short: it reads no passages."""


class InputTokens(NamedTuple):
    """Input tokens of one answer: of the call that read the passages, and of all; None where the server stated none."""

    prompt: int | None
    all_calls: int | None


class AnswerContext(NamedTuple):
    """One answer's passages: those retrieved by all queries, each once, and those kept, as they stood in the prompt.

    Of an answer that failed nothing is kept; `retrieved` is what its question had found.
    """

    row: Record
    retrieved: Sequence[Passage]
    kept: Sequence[Passage]
    tokens: InputTokens

    @property
    def failed(self) -> bool:
        """Whether it ended in an error."""
        return self.row["error"] is not None


def contexts(run: Run) -> Iterator[AnswerContext]:
    """Every answer of `run` with its passages, in the order of its rows."""
    with run.journal() as journal:
        passages = Passages(journal)
        for row in run.rows:
            found = _retrieved(passages, row)
            kept = list[Passage]()
            for read in row.get("written") or row["knowledge"]:
                if row.get("written") and isinstance(read, str):
                    kept.append(WrittenText(read))
                    continue
                name, places = (
                    (read, row.get("spans", {}).get(read)) if isinstance(read, str) else read
                )
                whole = _whole(run, passages, row, name, found)
                spans = [(start, end) for start, end in places or ()]
                kept.append(Excerpt.of(whole, spans) if spans else whole)
            yield AnswerContext(row, list(found.values()), kept, _tokens(row, journal))


def input_tokens(run: Run) -> Iterator[InputTokens]:
    """The input tokens of every answer of `run`, in the order of its rows; of one that failed, as far as it got."""
    with run.journal() as journal:
        yield from (_tokens(row, journal) for row in run.rows)


def rankings(run: Run) -> Iterator[tuple[Record, Mapping[str, Sequence[str]]]]:
    """Every answer's row, and the titles that each of its queries brought, all together (`union`) and kept, by rank.

    Raises: BadData where the journal lacks a passage.
    """
    with run.journal() as journal:
        passages = Passages(journal)
        for row in run.rows:
            ranked = {}
            for name, branch in row["branches"].items():
                ids = branch["retrieved"]
                found = _found(passages, row["queries"].get(name, row["question"]), ids)
                ranked[name] = [_whole(run, passages, row, each, found) for each in ids]
            together = union(ranked.values())
            by_id = {passage.id: passage for passage in together}
            kept = [_whole(run, passages, row, each, by_id) for each in row["knowledge"]]
            ranked |= {UNION: together or kept, KEPT: kept}
            yield row, {name: [each.title for each in found] for name, found in ranked.items()}


def _retrieved(passages: Passages, row: Record) -> dict[str, Passage]:
    """What all queries brought, by id; a row that failed names none, but the question itself may be searched."""
    question = row["question"]
    if row["error"] is not None:
        return _found(passages, question, [*passages.of(question)])
    found: dict[str, Passage] = {}
    for name, branch in row["branches"].items():
        found |= _found(passages, row["queries"].get(name, question), branch["retrieved"])
    return found


def _found(passages: Passages, query: str, ids: Sequence[str]) -> dict[str, Passage]:
    """The passages of `ids`, as far as the journal holds them, as `query` brought them."""
    by_query = passages.of(query)
    found = ((name, _passage(passages, by_query, name)) for name in ids)
    return {name: passage for name, passage in found if passage is not None}


def _whole(
    run: Run,
    passages: Passages,
    row: Record,
    name: str,
    found: Mapping[str, Passage],
) -> Passage:
    passage = found.get(name) or _passage(passages, passages.of(row["question"]), name)
    if passage is None:
        raise BadData(
            f"{run.folder}: its journal holds no passage '{name}', which question '{row['id']}' was read with"
        )
    return passage


def _passage(passages: Passages, by_query: Mapping[str, str], name: str) -> Passage | None:
    key = passages.key(name, by_query)
    record = None if key is None else passages.read(key)
    return None if record is None else Passage(record["id"], record["title"], record["text"])


def _tokens(row: Record, journal: Journal) -> InputTokens:
    by_call: dict[str, int | None] = {
        key: (journal.read_call(key) or {}).get("tokens_in") for _, key in row["calls"]
    }
    answering = next(
        (by_call[key] for stage, key in reversed(row["calls"]) if stage != SHORTENS), 0
    )
    known = [tokens for tokens in by_call.values() if tokens is not None]
    return InputTokens(answering, sum(known) if len(known) == len(by_call) else None)
