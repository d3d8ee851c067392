"""The question alone beside the union: what is searched once more, and when it is not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import dspy
import pytest
from small_world import done_by, journaled, stable

from blendfilter import BM25, BlendFilter, ChainOfThought, Precomputed, Retriever, Run, as_retriever
from blendfilter.errors import BudgetSpent, CannotWrite
from blendfilter.evaluation.question_alone import has_enough
from blendfilter.metrics import retrieval
from blendfilter.tasks import Questions


def test_the_question_alone_is_held_beside_the_union(index: BM25, questions: Questions, tmp_path: Path) -> None:
    run, _ = done_by(BlendFilter(index, k=4), questions, tmp_path / "run")
    for question, row in zip(questions, run.rows, strict=True):
        titles = [passage.title for passage in index(question.question, 12)]
        result = retrieval(titles, question)
        assert result is not None
        assert row["retrieval"]["q@12"] == pytest.approx(result._asdict(), abs=1e-6)
    assert list(run.metrics["retrieval"]) == ["q", "q_ex", "q_in", "union", "q@12", "kept"]
    assert run.metrics["retrieval"]["q@12"]["n"] == 6
    assert [search["k"] for search in journaled(run.folder, "search")].count(12) == 6


def test_two_queries_make_twice_k_and_one_none(index: BM25, questions: Questions, tmp_path: Path) -> None:
    two, _ = done_by(BlendFilter(index, without="q_in"), questions[:2], tmp_path / "two")
    assert "q@10" in two.rows[0]["retrieval"]
    for number, method in enumerate((ChainOfThought(index), BlendFilter(index, without="q"))):
        run, _ = done_by(method, questions[:2], tmp_path / str(number))
        assert not [name for name in run.rows[0]["retrieval"] if "@" in name]


class Failing(Retriever):
    """An index that has passages for what a method asks and breaks down on more."""

    fingerprint = "f" * 16

    def __init__(self, index: BM25, error: Exception | None, only: str = "") -> None:
        self.index, self.error, self.only = index, error, only
        self.failed = 0

    def find(self, queries: Any, k: int) -> Any:
        if k > 5 and self.error is not None and self.only in queries[0]:
            self.failed += 1
            raise self.error
        return self.index.find(queries, k)


NAMES = ["q", "q_ex", "q_in", "union", "kept"]
FAILED = "6 searches for a question alone could not be made (RuntimeError: no)"


@pytest.fixture
def failed(index: BM25, questions: Questions, tmp_path: Path) -> Run:
    """A run whose index broke down on every such search."""
    with pytest.warns(UserWarning, match=re.escape(FAILED)):
        return done_by(BlendFilter(Failing(index, RuntimeError("no"))), questions, tmp_path / "run")[0]


def test_no_question_fails_for_it_and_the_report_names_what_is_missing(failed: Run) -> None:
    assert failed.errors == 0
    assert list(failed.metrics["retrieval"]) == NAMES
    assert [row["unsearched"] for row in failed.rows] == [["q@15"]] * 6
    line = "Not searched: q alone, 15 passages of 6 of 6 questions, for the index failed; the same command searches"
    assert line in failed.report()
    assert line in failed.html().read_text()


def test_the_same_command_makes_up_what_is_missing_and_asks_no_model(
    failed: Run, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    again, engine = done_by(BlendFilter(Failing(index, None)), questions, tmp_path / "run")
    fresh, _ = done_by(BlendFilter(Failing(index, None)), questions, tmp_path / "fresh")
    assert engine.calls == 0
    assert stable(again.folder) == stable(fresh.folder)
    assert "Not searched" not in again.report()
    gone = Failing(index, RuntimeError("gone"))
    replayed, _ = done_by(BlendFilter(gone), questions, tmp_path / "run", replay=True)
    assert stable(replayed.folder) == stable(fresh.folder), "the search is in the journal by now"


def test_rows_that_name_no_missing_search_are_made_up_too(
    failed: Run, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    """Those of versions that left it out without a word."""
    path = failed.folder / "predictions.jsonl"
    rows = [{name: value for name, value in row.items() if name != "unsearched"} for row in failed.rows]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    again, _ = done_by(BlendFilter(Failing(index, None)), questions, tmp_path / "run")
    fresh, _ = done_by(BlendFilter(Failing(index, None)), questions, tmp_path / "fresh")
    assert stable(again.folder) == stable(fresh.folder)


def test_an_index_that_fails_still_is_not_asked_for_every_row(
    failed: Run, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    before = stable(failed.folder)
    still = Failing(index, RuntimeError("no"))
    with pytest.warns(UserWarning, match=re.escape(FAILED)):
        again, _ = done_by(BlendFilter(still), questions, tmp_path / "run", concurrency=1)
    assert stable(again.folder) == before
    assert still.failed <= 2, "those that were under way when the first one failed"


def test_a_replay_makes_it_up_where_the_index_answers(
    failed: Run, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    before = stable(failed.folder)
    with pytest.warns(UserWarning, match=re.escape(FAILED)):
        again, _ = done_by(BlendFilter(Failing(index, RuntimeError("no"))), questions, tmp_path / "run", replay=True)
    assert stable(again.folder) == before
    again, _ = done_by(BlendFilter(Failing(index, None)), questions, tmp_path / "run", replay=True)
    fresh, _ = done_by(BlendFilter(Failing(index, None)), questions, tmp_path / "fresh")
    assert stable(again.folder) == stable(fresh.folder)


def test_two_indexes_have_no_question_alone(index: BM25, questions: Questions, tmp_path: Path) -> None:
    class Both(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = BlendFilter(index), as_retriever(lambda query, k: [])

        async def aforward(self, question: str) -> dspy.Prediction:
            return await self.one.acall(question=question)

    run, _ = done_by(Both(), questions[:1], tmp_path / "run")
    assert list(run.rows[0]["retrieval"]) == ["q", "q_ex", "q_in", "union", "kept"]


def test_an_index_that_holds_fewer_is_no_fair_comparison(index: BM25, tmp_path: Path) -> None:
    file = tmp_path / "hits.jsonl"
    found = [{"id": str(i), "title": f"Pier {i}", "text": "A pier."} for i in range(7)]
    file.write_text(json.dumps({"question": "harbour", "passages": found}))
    hits = Precomputed(file)
    assert (hits.held("harbour"), hits.held(" harbour "), hits.held("pier")) == (7, 7, 0)
    assert [has_enough(hits, "harbour", k) for k in (7, 8)] == [True, False]
    assert [has_enough(index, "harbour", k) for k in (193, 194, 0)] == [True, False, False]
    assert has_enough(as_retriever(lambda query, k: []), "harbour", 15), "nobody knows how many a function has"


def test_a_query_cut_there_is_no_event_of_the_method(index: BM25, questions: Questions, tmp_path: Path) -> None:
    from blendfilter.retrieval.base import Hits

    class Cutting(Failing):
        def find(self, queries: Any, k: int) -> Any:
            return [Hits(found, cut=k > 5) for found in self.index.find(queries, k)]

    class Own(dspy.Module):
        """Of a module that counts no events itself, they are read off the notes of its calls and searches."""

        def __init__(self) -> None:
            super().__init__()
            self.inside = BlendFilter(Cutting(index, None))

        async def aforward(self, question: str) -> dspy.Prediction:
            result = await self.inside.acall(question=question)
            return dspy.Prediction(answer=result.answer, branches=result.branches, queries=result.queries)

    for name, method in (("ours", BlendFilter(Cutting(index, None))), ("own", Own())):
        run, _ = done_by(method, questions[:2], tmp_path / name)
        assert run.metrics["flags"]["query_cut"] == 0
        assert "q@15" in run.rows[0]["retrieval"] or "q@6" in run.rows[0]["retrieval"]


def test_a_first_query_that_is_not_the_question_stands_beside_nothing(
    index: BM25, questions: Questions, tmp_path: Path
) -> None:
    """A method may call a rewritten question `q`: the question alone is then no part of its union."""

    class Rewriting(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = BlendFilter(index)

        async def aforward(self, question: str) -> dspy.Prediction:
            result = await self.inside.acall(question=question)
            queries = {**result.queries, "q": f"{question} (rewritten)"}
            return dspy.Prediction(answer=result.answer, branches=result.branches, queries=queries)

    run, _ = done_by(Rewriting(), questions[:1], tmp_path / "run")
    assert list(run.rows[0]["retrieval"]) == ["q", "q_ex", "q_in", "union", "kept"]


@pytest.mark.parametrize("error", [CannotWrite("full"), BudgetSpent("full")])
def test_what_ends_a_run_is_not_passed_over(
    error: Exception, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    with pytest.raises(type(error), match="full"):
        done_by(BlendFilter(Failing(index, error)), questions[:1], tmp_path / "run")
