"""The question alone beside the union: what is searched once more, and when it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest
from small_world import done_by, journaled, stable

from blendfilter import BM25, BlendFilter, ChainOfThought, Retriever, Run, as_retriever
from blendfilter.errors import BudgetSpent, CannotWrite
from blendfilter.metrics import retrieval
from blendfilter.records import Passage
from blendfilter.retrieval.base import Hits
from blendfilter.tasks import Questions

NAMES = ["q", "q_ex", "q_in", "union", "kept"]


def test_the_question_alone_stands_beside_the_union(index: BM25, questions: Questions, tmp_path: Path) -> None:
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


class Searching(Retriever):
    """An index that breaks down on more passages than a method asks for, or says that it cut such a query."""

    fingerprint = "f" * 16

    def __init__(self, index: BM25, error: Exception | None = None) -> None:
        self.index, self.error = index, error

    def find(self, queries: Any, k: int) -> Any:
        if k > 5 and self.error is not None:
            raise self.error
        return [Hits(found, cut=k > 5) for found in self.index.find(queries, k)]


@pytest.fixture
def unsearched(index: BM25, questions: Questions, tmp_path: Path) -> Run:
    """A run whose index broke down on every such search."""
    with pytest.warns(UserWarning, match=r"searches for a question alone that failed: 6 \(RuntimeError: no\)"):
        return done_by(BlendFilter(Searching(index, RuntimeError("no"))), questions, tmp_path / "run")[0]


def test_no_question_fails_for_it_and_the_report_names_what_is_missing(unsearched: Run) -> None:
    assert unsearched.errors == 0
    assert list(unsearched.metrics["retrieval"]) == NAMES
    assert [row["unsearched"] for row in unsearched.rows] == [["q@15"]] * 6
    line = "Not searched: q alone, 15 passages of 6 of 6 questions, for the index failed; the same command searches"
    assert line in unsearched.report()
    assert line in unsearched.html().read_text()


def test_the_same_command_makes_up_what_is_missing_and_asks_no_model(
    unsearched: Run, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    before = stable(unsearched.folder)
    with pytest.warns(UserWarning, match="question alone that failed: 6"):
        done_by(BlendFilter(Searching(index, RuntimeError("no"))), questions, tmp_path / "run", replay=True)
    assert stable(unsearched.folder) == before
    again, engine = done_by(BlendFilter(Searching(index)), questions, tmp_path / "run")
    fresh, _ = done_by(BlendFilter(Searching(index)), questions, tmp_path / "fresh")
    assert engine.calls == 0
    assert stable(again.folder) == stable(fresh.folder)
    assert again.metrics["flags"]["query_cut"] == 0, "what is cut there is no event of the method"
    gone = Searching(index, RuntimeError("gone"))
    replayed, _ = done_by(BlendFilter(gone), questions, tmp_path / "run", replay=True)
    assert stable(replayed.folder) == stable(fresh.folder), "the search is in the journal by now"


class Changed(dspy.Module):
    """BlendFilter with another first query, or another index beside its own."""

    def __init__(self, index: Any, suffix: str = "", other: Any = None) -> None:
        super().__init__()
        self.inside, self.suffix, self.other = BlendFilter(index), suffix, other

    async def aforward(self, question: str) -> dspy.Prediction:
        result = await self.inside.acall(question=question)
        queries = {**result.queries, "q": question + self.suffix}
        return dspy.Prediction(answer=result.answer, branches=result.branches, queries=queries)


def test_only_the_question_itself_in_one_index_large_enough_is_searched_for(
    index: BM25, questions: Questions, tmp_path: Path
) -> None:
    small = BM25.build([Passage(str(n), f"Pier {n}", "A pier.") for n in range(9)])
    methods = {
        "same": Changed(index),
        "rewritten": Changed(index, " (rewritten)"),
        "two indexes": Changed(index, other=as_retriever(lambda query, k: [])),
        "small": BlendFilter(small),
    }
    found = {name: done_by(method, questions[:1], tmp_path / name)[0] for name, method in methods.items()}
    retrieved = {name: [each for each in run.rows[0]["retrieval"] if "@" in each] for name, run in found.items()}
    assert retrieved == {"same": ["q@15"], "rewritten": [], "two indexes": [], "small": []}


@pytest.mark.parametrize("error", [CannotWrite("full"), BudgetSpent("full")])
def test_what_ends_a_run_is_not_passed_over(
    error: Exception, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    with pytest.raises(type(error), match="full"):
        done_by(BlendFilter(Searching(index, error)), questions[:1], tmp_path / "run")
