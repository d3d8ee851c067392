"""The question alone beside the union: what is searched once more, and when it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dspy
import pytest
from small_world import done_by, journaled, stable

from blendfilter import BM25, BlendFilter, ChainOfThought, Precomputed, Retriever, as_retriever
from blendfilter.errors import CannotWrite
from blendfilter.evaluation.beside import holds
from blendfilter.metrics import retrieval
from blendfilter.tasks import Questions


def test_the_question_alone_is_held_beside_the_union(index: BM25, questions: Questions, tmp_path: Path) -> None:
    run, _ = done_by(BlendFilter(index, k=4), questions, tmp_path / "run")
    for question, row in zip(questions, run.rows, strict=True):
        titles = [passage.title for passage in index(question.question, 12)]
        told = retrieval(titles, question)
        assert told is not None
        assert row["retrieval"]["q@12"] == pytest.approx(told._asdict(), abs=1e-6)
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

    def __init__(self, index: BM25, error: Exception | None) -> None:
        self.index, self.error = index, error

    def find(self, queries: Any, k: int) -> Any:
        if k > 5 and self.error is not None:
            raise self.error
        return self.index.find(queries, k)


def test_no_question_fails_for_it(index: BM25, questions: Questions, tmp_path: Path) -> None:
    run, _ = done_by(BlendFilter(Failing(index, RuntimeError("no"))), questions, tmp_path / "run")
    assert run.errors == 0
    assert list(run.metrics["retrieval"]) == ["q", "q_ex", "q_in", "union", "kept"]
    again, _ = done_by(BlendFilter(Failing(index, RuntimeError("no"))), questions, tmp_path / "run", replay=True)
    assert stable(again.folder) == stable(run.folder)


def test_a_run_of_before_replays_without_it(index: BM25, questions: Questions, tmp_path: Path) -> None:
    """Its journal does not hold the search, and its rows stay as they were."""
    run, _ = done_by(BlendFilter(Failing(index, RuntimeError("no"))), questions, tmp_path / "run")
    before = stable(run.folder)
    again, _ = done_by(BlendFilter(Failing(index, None)), questions, tmp_path / "run", replay=True)
    assert stable(again.folder) == before
    fresh, _ = done_by(BlendFilter(Failing(index, None)), questions, tmp_path / "fresh")
    assert "q@15" in fresh.rows[0]["retrieval"]


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
    assert [holds(hits, "harbour", k) for k in (7, 8)] == [True, False]
    assert [holds(index, "harbour", k) for k in (193, 194, 0)] == [True, False, False]
    assert holds(as_retriever(lambda query, k: []), "harbour", 15), "nobody knows how many a function has"


def test_a_query_cut_there_is_no_event_of_the_method(index: BM25, questions: Questions, tmp_path: Path) -> None:
    from blendfilter.retrieval.hits import Hits

    class Cutting(Failing):
        def find(self, queries: Any, k: int) -> Any:
            return [Hits(found, cut=k > 5) for found in self.index.find(queries, k)]

    class Own(dspy.Module):
        """Of a module that counts no events itself, they are read off the notes of its calls and searches."""

        def __init__(self) -> None:
            super().__init__()
            self.inside = BlendFilter(Cutting(index, None))

        async def aforward(self, question: str) -> dspy.Prediction:
            told = await self.inside.acall(question=question)
            return dspy.Prediction(answer=told.answer, branches=told.branches, queries=told.queries)

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
            told = await self.inside.acall(question=question)
            queries = {**told.queries, "q": f"{question} (rewritten)"}
            return dspy.Prediction(answer=told.answer, branches=told.branches, queries=queries)

    run, _ = done_by(Rewriting(), questions[:1], tmp_path / "run")
    assert list(run.rows[0]["retrieval"]) == ["q", "q_ex", "q_in", "union", "kept"]


def test_a_search_that_cannot_be_kept_is_not_passed_over(index: BM25, questions: Questions, tmp_path: Path) -> None:
    with pytest.raises(CannotWrite, match="full"):
        done_by(BlendFilter(Failing(index, CannotWrite("full"))), questions[:1], tmp_path / "run")
