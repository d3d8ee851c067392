"""What a command names to run a table on: places read, the nearest one taken, what is missing said."""

from __future__ import annotations

from pathlib import Path

import pytest
from blendfilter.evaluation.reproducing import sources
from blendfilter.evaluation.reproducing.papers import Table
from blendfilter.evaluation.reproducing.sources import Place
from small_table import HEAD, ROWS, written

from blendfilter import BM25
from blendfilter.errors import BadArgument, UnknownName
from blendfilter.records import Passage, Question
from blendfilter.resources import sample
from blendfilter.tasks import TASKS, Questions


@pytest.fixture
def small(tmp_path: Path) -> Table:
    return written(tmp_path, HEAD + ROWS)


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("indexes/a", Place(None, None, "indexes/a")),
        ("hotpotqa=indexes/a", Place(None, "hotpotqa", "indexes/a")),
        ("bm25:indexes/a", Place("bm25", None, "indexes/a")),
        ("colbert:twowiki=http://localhost:8893/?x=1", Place("colbert", "twowiki", "http://localhost:8893/?x=1")),
        ("./a=b", Place(None, None, "./a=b")),
    ],
)
def test_a_place_says_for_what_it_is(words: str, place: Place) -> None:
    assert Place.of(words) == place


def test_a_place_for_a_task_nobody_knows() -> None:
    with pytest.raises(UnknownName, match=r"no task 'hotpoqa'\. Did you mean 'hotpotqa'"):
        Place.of("hotpoqa=dev.json")


def test_what_is_missing_is_said_with_the_next_move(small: Table) -> None:
    with pytest.raises(BadArgument, match=r"questions of hotpotqa\? Add --data hotpotqa=FILE, or leave it out"):
        sources.gather(small, data=[])
    with pytest.raises(BadArgument, match=r"which index is bm25 for hotpotqa\? Add --index bm25:hotpotqa=DIR"):
        sources.gather(small, data=["sample"], index=["colbert:nowhere"])
    with pytest.raises(BadArgument, match="hotpotqa 2 times"):
        sources.gather(small, data=["hotpotqa=sample", "hotpotqa=sample"])
    with pytest.raises(UnknownName, match="no task 'twowiki'"):
        sources.gather(small, data=["sample"], tasks=["twowiki"])


def test_an_index_is_asked_for_where_a_row_searches(small: Table, tmp_path: Path) -> None:
    (path := tmp_path / "q.jsonl").write_text('{"question": "Where?", "answer": "Here"}\n', encoding="utf-8")
    found = sources.gather(small, data=[str(path)], tasks=["hotpotqa"], methods=["direct"])
    assert found.indexes == {}
    with pytest.raises(BadArgument, match="which index is bm25"):
        sources.gather(small, data=[str(path)], tasks=["hotpotqa"], methods=["direct", "cot-retrieval"])


def test_a_place_for_the_retriever_goes_before_one_for_the_task(small: Table, tmp_path: Path) -> None:
    made = {k1: BM25.build(sample("corpus.jsonl"), tmp_path / f"k{k1}", k1=k1) for k1 in (1, 2, 3)}
    index = [f"hotpotqa={tmp_path / 'k1'}", f"bm25:{tmp_path / 'k2'}", str(tmp_path / "k3")]
    found = sources.gather(small, data=["sample"], limit=2, index=index)
    assert {at: each.fingerprint for at, each in found.indexes.items()} == {
        ("hotpotqa", "bm25"): made[2].fingerprint, ("strategyqa", "bm25"): made[2].fingerprint,
    }  # fmt: skip


def test_two_indexes_for_one_part_are_refused(small: Table, tmp_path: Path) -> None:
    places = {"index": [str(tmp_path / "a")], "corpus": ["sample"]}
    with pytest.raises(BadArgument, match=r"a and sample are both bm25 for hotpotqa: name one .* colbert: or bm25:"):
        sources.gather(small, data=["sample"], limit=2, **places)


def test_a_figure_of_retrieval_wants_gold_titles_before_anything_is_spent(small: Table, tmp_path: Path) -> None:
    figure = small.model_copy(update={"kind": "retrieval", "tasks": ("hotpotqa",)})
    (path := tmp_path / "q.jsonl").write_text('{"question": "Where?", "answer": "Here"}\n', encoding="utf-8")
    with pytest.raises(BadArgument, match="the questions of hotpotqa must name their gold titles"):
        sources.gather(figure, data=[str(path)], corpus=["sample"])
    assert sources.gather(figure, data=["sample"], limit=2).indexes


def test_the_nearest_index_is_taken_and_a_stand_in_is_told(tmp_path: Path) -> None:
    both = written(tmp_path, HEAD.replace('"hotpotqa", "strategyqa"', '"hotpotqa"') + ROWS.replace(
        'method = "cot-retrieval"', 'method = "cot-retrieval"\nretriever = "colbert"').replace(
        "published.strategyqa = { accuracy = 0.6 }", ""))  # fmt: skip
    near, far = (BM25.build(sample("corpus.jsonl"), tmp_path / name, k1=k1) for name, k1 in (("near", 1.2), ("far", 2)))
    found = sources.gather(
        both, data=["sample"], index=[str(tmp_path / "far"), f"bm25:hotpotqa={tmp_path / 'near'}"], limit=2
    )
    assert found.indexes["hotpotqa", "bm25"].fingerprint == near.fingerprint
    assert found.indexes["hotpotqa", "colbert"].fingerprint == far.fingerprint
    assert found.notes == ["hotpotqa: bm25 stands in for the paper's colbert"]


def test_the_own_paragraphs_of_each_task_are_an_index_of_their_own() -> None:
    asked = {
        task: Questions((Question("1", "Where?", context=(Passage(task, task, f"Of {task}."),)),), TASKS[task], "mine")
        for task in ("hotpotqa", "strategyqa")
    }
    pooled = sources._Passages(Place.of("pooled"), "corpus")
    found = sources._with_indexes(["bm25"], asked, [pooled]).indexes
    assert found["hotpotqa", "bm25"].fingerprint != found["strategyqa", "bm25"].fingerprint
