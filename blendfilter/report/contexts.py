"""What the answer to each question of a run was read from: the passages kept, as they stood in its prompt.

A run's rows say by id and place what was kept, its journal has each passage's text. Nothing is filtered or searched
anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from blendfilter.errors import BadData
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.run_passages import Passages
from blendfilter.journal import Journal
from blendfilter.records import Excerpt, Passage

SHORTENS = "short_answer"
"""The call that makes a reasoning short: it reads no passages."""


class InputTokens(NamedTuple):
    """Input tokens of one question: of the call that read the passages and answered, and of all its calls together.

    None where the server stated none.
    """

    prompt: int | None
    all_calls: int | None


class AnswerContext(NamedTuple):
    """One answer's passages: those retrieved by all queries, each once, and those kept, as they stood in the prompt.

    Of an answer that failed nothing is kept; `retrieved` is what its question had found.
    """

    row: Mapping[str, Any]
    retrieved: Sequence[Passage]
    kept: Sequence[Passage]
    tokens: InputTokens

    @property
    def failed(self) -> bool:
        """Whether it ended in an error."""
        return self.row["error"] is not None


def contexts(run: Run) -> Iterator[AnswerContext]:
    """Every answer of `run` with its passages, in the order of its rows.

    Raises:
        BadData: the journal lacks what a row names.
    """
    with run.journal() as journal:
        passages = Passages(journal)
        for row in run.rows:
            found = _retrieved(passages, row)
            kept = [_kept(run, passages, row, name, found) for name in row["knowledge"]]
            yield AnswerContext(row, list(found.values()), kept, _tokens(row, journal))


def input_tokens(run: Run) -> Iterator[InputTokens]:
    """The input tokens of every answer of `run`, in the order of its rows; of one that failed, as far as it got."""
    with run.journal() as journal:
        yield from (_tokens(row, journal) for row in run.rows)


def _retrieved(passages: Passages, row: Mapping[str, Any]) -> dict[str, Passage]:
    """What all queries brought, by id; a row that failed names none, but the question itself may be searched."""
    question = row["question"]
    queries = [(row["queries"].get(name, question), branch["retrieved"]) for name, branch in row["branches"].items()]
    found = {}
    for query, ids in queries if row["error"] is None else [(question, [*passages.of(question)])]:
        by_query = passages.of(query)
        for name in ids:
            if (passage := _passage(passages, by_query, name)) is not None:
                found[name] = passage
    return found


def _kept(run: Run, passages: Passages, row: Mapping[str, Any], name: str, found: Mapping[str, Passage]) -> Passage:
    whole = found.get(name) or _passage(passages, passages.of(row["question"]), name)
    if whole is None:
        where = f"question '{row['id']}'"
        raise BadData(f"{run.folder}: its journal holds no passage '{name}', which {where} was read with")
    places = row.get("spans", {}).get(name)
    return whole if places is None else Excerpt.of(whole, [(start, end) for start, end in places])


def _passage(passages: Passages, by_query: Mapping[str, str], name: str) -> Passage | None:
    key = passages.key(name, by_query)
    record = None if key is None else passages.read(key)
    return None if record is None else Passage(record["id"], record["title"], record["text"])


def _tokens(row: Mapping[str, Any], journal: Journal) -> InputTokens:
    by_call: dict[str, int | None] = {key: (journal.read_call(key) or {}).get("tokens_in") for _, key in row["calls"]}
    answering = next((by_call[key] for stage, key in reversed(row["calls"]) if stage != SHORTENS), 0)
    known = [tokens for tokens in by_call.values() if tokens is not None]
    return InputTokens(answering, sum(known) if len(known) == len(by_call) else None)
