"""What the answer to each question of a run was read from: the passages kept, as they stood in its prompt.

In: a run's rows, which say by id and place what was kept, and its journal, which holds each passage's text. Out: a
`Context` an answer. Nothing is filtered or searched anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from blendfilter.errors import BadData
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.run_passages import Passages
from blendfilter.journal import FILE, Journal
from blendfilter.records import Excerpt, Passage

SHORTENS = "short_answer"
"""The call that makes a reasoning short: it reads no passages."""


class Read(NamedTuple):
    """Input tokens of one question: of the call that read the passages and answered, and of all its calls together.

    None where the server told none.
    """

    prompt: int | None
    all_calls: int | None


class Context(NamedTuple):
    """One answer's passages: those retrieved by all queries, each once, and those kept, as they were shown.

    Of an answer that failed nothing is kept, for nobody read it; retrieved is what its question had found.
    """

    row: Mapping[str, Any]
    retrieved: Sequence[Passage]
    kept: Sequence[Passage]
    tokens: Read

    @property
    def failed(self) -> bool:
        """Whether it ended in an error."""
        return self.row["error"] is not None


def contexts(run: Run) -> Iterator[Context]:
    """Every answer of `run` with its passages, in the order of its rows.

    Raises:
        BadData: the journal does not hold what a row names.
    """
    with Journal(run.folder / FILE, "replay") as journal:
        passages = Passages(journal)
        for row in run.rows:
            queries = _asked_before(passages, row) if row["error"] is not None else _queries(row)
            retrieved = {name: passage for query in queries for name, passage in _found(passages, row, *query)}
            kept = [_shown(run, passages, row, name, retrieved) for name in row["knowledge"]]
            yield Context(row, list(retrieved.values()), kept, _tokens(row, journal))


def read_tokens(run: Run) -> Iterator[Read]:
    """The input tokens of every answer of `run`, in the order of its rows; of one that failed, as far as it got."""
    with Journal(run.folder / FILE, "replay") as journal:
        yield from (_tokens(row, journal) for row in run.rows)


def _queries(row: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str]]]:
    """Each query with the ids of what it brought; a row that failed tells none."""
    for name, branch in row["branches"].items():
        yield row["queries"].get(name, row["question"]), branch["retrieved"]


def _asked_before(passages: Passages, row: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str]]]:
    """The question itself with the ids of what it had brought when the answer failed."""
    yield row["question"], list(passages.of(row["question"]))


def _found(
    passages: Passages, row: Mapping[str, Any], query: str, ids: Sequence[str]
) -> Iterator[tuple[str, Passage]]:  # fmt: skip
    by_query = passages.of(query)
    for name in ids:
        if (record := _record(passages, by_query, name)) is not None:
            yield name, _passage(record)


def _shown(
    run: Run, passages: Passages, row: Mapping[str, Any], name: str, retrieved: Mapping[str, Passage]
) -> Passage:  # fmt: skip
    """A passage that was kept, whole or in pieces."""
    whole = retrieved.get(name)
    if whole is None:
        if (record := _record(passages, passages.of(row["question"]), name)) is None:
            where = f"question '{row['id']}'"
            raise BadData(f"{run.folder}: its journal holds no passage '{name}', which {where} was read with")
        whole = _passage(record)
    places = row.get("spans", {}).get(name)
    return whole if places is None else Excerpt.of(whole, [(start, end) for start, end in places])


def _record(passages: Passages, found: Mapping[str, str], name: str) -> dict[str, Any] | None:
    key = passages.key(name, found)
    return None if key is None else passages.read(key)


def _passage(record: Mapping[str, Any]) -> Passage:
    return Passage(record["id"], record["title"], record["text"])


def _tokens(row: Mapping[str, Any], journal: Journal) -> Read:
    """A call that is used twice counts once."""
    told: dict[str, int | None] = {key: (journal.read_call(key) or {}).get("tokens_in") for _, key in row["calls"]}
    answering = next((told[key] for stage, key in reversed(row["calls"]) if stage != SHORTENS), 0)
    known = [each for each in told.values() if each is not None]
    return Read(answering, sum(known) if len(known) == len(told) else None)
