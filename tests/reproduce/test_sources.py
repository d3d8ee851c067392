"""Places that a command names: read, the nearest one taken, what is missing named with the next move."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoints import tiny_bert
from reproduce_world import HEAD, ROWS, written

from blendfilter import BM25
from blendfilter.errors import BadArgument, BadData, EmptyData, UnknownName
from blendfilter.records import Passage, Question
from blendfilter.reproduce import tables
from blendfilter.reproduce.sources import VECTORS, Given, OwnParagraphs, gather
from blendfilter.reproduce.tables import PaperTable
from blendfilter.resources import sample
from blendfilter.retrieval.indexes import build
from blendfilter.tasks import TASKS, Questions


@pytest.fixture
def small(tmp_path: Path) -> PaperTable:
    return written(tmp_path, HEAD + ROWS)


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """Questions without gold titles or paragraphs."""
    (path := tmp_path / "q.jsonl").write_text('{"question": "Where?", "answer": "Here"}\n', encoding="utf-8")
    return str(path)


def test_a_place_says_for_what_it_is() -> None:
    address = "http://localhost:8893/?x=1"
    for words, place in {
        "hotpotqa=indexes/a": ("", "hotpotqa", "indexes/a"), "bm25:indexes/a": ("bm25", "", "indexes/a"),
        f"colbert:twowiki={address}": ("colbert", "twowiki", address), "./a=b": ("", "", "./a=b"),
        address: ("", "", address),
    }.items():  # fmt: skip
        assert Given.of(words, "--index", TASKS, "bm25|colbert")[:3] == place


def test_what_is_missing_is_named_with_the_next_move(small: PaperTable, bare: str) -> None:
    with pytest.raises(UnknownName, match=r"no task 'hotpoqa'\. Did you mean 'hotpotqa'"):
        gather(small, data=["hotpoqa=dev.json"])
    with pytest.raises(BadArgument, match=r"questions of hotpotqa\? Add data='hotpotqa=FILE', or leave it out"):
        gather(small, data=[])
    with pytest.raises(BadArgument, match=r"which index is bm25 for hotpotqa\? Add index='bm25:hotpotqa=DIR'"):
        gather(small, data=["sample"], index=["colbert:nowhere"])
    with pytest.raises(BadArgument, match="hotpotqa 2 times"):
        gather(small, data=["hotpotqa=sample", "hotpotqa=sample"])
    with pytest.raises(BadArgument, match="a and sample are both bm25 for hotpotqa: name one"):
        gather(small, data=["sample"], index=["a"], corpus=["sample"])
    with pytest.raises(UnknownName, match="no task 'twowiki'"):
        gather(small, data=["sample"], tasks=["twowiki"])
    figure = small.model_copy(update={"kind": "retrieval", "tasks": ("hotpotqa",)})
    with pytest.raises(BadArgument, match="the questions of hotpotqa must name their gold titles"):
        gather(figure, data=[bare], corpus=["sample"])
    assert gather(small.cut(["direct"]), data=[bare], tasks=["hotpotqa"]).indexes == {}, "no row searches"


def test_the_nearest_index_is_taken_and_a_stand_in_is_noted(small: PaperTable, tmp_path: Path) -> None:
    """A place for the retriever goes before one for the task, and one for both before both."""
    made = {k1: BM25.build(sample("corpus.jsonl"), tmp_path / f"k{k1}", k1=k1) for k1 in (1, 2, 3)}
    index = [f"hotpotqa={tmp_path / 'k1'}", f"bm25:{tmp_path / 'k2'}", str(tmp_path / "k3")]
    found = gather(small, data=["sample"], limit=2, index=index)
    assert [found.indexes[task, "bm25"].fingerprint for task in small.tasks] == [made[2].fingerprint] * 2
    found = gather(small, data=["sample"], limit=2, index=[f"bm25:hotpotqa={tmp_path / 'k3'}", *index])
    assert [found.indexes[task, "bm25"].fingerprint for task in small.tasks] == [
        made[3].fingerprint, made[2].fingerprint,
    ]  # fmt: skip
    colbert = small.model_copy(update={"retriever": "colbert", "tasks": ("hotpotqa",)})
    found = gather(colbert, data=["sample"], limit=2, index=[str(tmp_path / "k3"), f"bm25:{tmp_path / 'k2'}"])
    assert found.indexes["hotpotqa", "colbert"].fingerprint == made[3].fingerprint
    assert found.notes == ["hotpotqa: bm25 stands in for the paper's colbert"]


def test_kinds_of_one_dense_index_stand_in_for_each_other_and_a_note_says_so(tmp_path: Path) -> None:
    table = tables.read("cdit-table2")
    lines = sample("corpus.jsonl").read_text(encoding="utf-8").splitlines()
    places = []
    for number, role in enumerate(VECTORS, 20):
        (path := tmp_path / f"{role}.jsonl").write_text("\n".join(lines[:number]), encoding="utf-8")
        BM25.build(path, tmp_path / role)
        places.append(f"{role}:{tmp_path / role}")
    options: dict[str, Any] = {"data": ["sample"], "tasks": ["popqa"], "limit": 3}
    found = gather(table, index=places, **options)
    assert [len(found.indexes["popqa", role]) for role in VECTORS] == [20, 21, 22]  # type: ignore[index]
    assert not [note for note in found.notes if "one index" in note]
    found = gather(table, index=places[:1], **options)
    assert found.notes == [
        *(f"popqa: other retriever: bm25 stands in for the paper's {role}" for role in VECTORS),
        "popqa: flat, hnsw, ivf are one index here, and their rows the same runs",
    ]
    assert len({found.indexes["popqa", role].fingerprint for role in VECTORS}) == 1  # type: ignore[index]
    with pytest.raises(BadArgument, match="which index is flat for popqa"):
        gather(table, index=[places[0].replace("flat:", "bm25:")], **options)


@pytest.mark.parametrize("similarity", ["dot", "l2", "cosine"])
def test_a_note_says_where_a_flat_index_is_not_the_papers_l2(tmp_path: Path, similarity: str) -> None:
    """Of vectors of length 1, which cosine compares, both find the same."""
    pytest.importorskip("faiss")
    pytest.importorskip("sentence_transformers")
    build("dense", sample("corpus.jsonl"), tmp_path / "flat", encoder=tiny_bert(), similarity=similarity)
    table = tables.read("cdit-table3")
    found = gather(table, data=["sample"], index=[f"flat:{tmp_path / 'flat'}"], tasks=["popqa"], limit=3)
    noted = "popqa: flat is by inner product, the paper's IndexFlatL2 by L2 (build with --similarity l2)"
    assert found.notes == [noted] * (similarity == "dot")


# --- the questions' own paragraphs ---


def file_of(path: Path, *with_paragraphs: bool) -> str:
    context = {"metadata": {"context": [{"title": "T", "sentences": ["One.", " Two."]}]}}
    rows = [{"id": f"{at}", "question": f"Q{at}?", "golden_answers": ["One"], **(context if there else {})}
            for at, there in enumerate(with_paragraphs)]  # fmt: skip
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


def test_own_paragraphs_come_in_their_order_and_hold_nothing_of_gold() -> None:
    context = tuple(Passage(f"p{at}", "T", f"Text {at}.", 3.0, {"is_supporting": True}) for at in range(3))

    def own(*questions: Question) -> OwnParagraphs:
        return OwnParagraphs(Questions(questions, TASKS["nq"], "mine"))

    index = own(Question("1", "Who  is\nit?", ("A",), context=context), Question("2", "Why?"))
    (found,) = index.search([" Who  is it? "], 2)
    assert [(each.id, each.score, dict(each.metadata)) for each in found] == [("p0", None, {}), ("p1", None, {})]
    assert index.search(["Why?"], 2) == [[]]
    assert index.info()["kind"] == "own"
    assert own(Question("1", "Who is it?", ("A",), context=context[1:])).fingerprint != index.fingerprint
    with pytest.raises(BadData, match="'2' is there twice, with other paragraphs"):
        own(*(Question(name, "Why?", context=of) for name, of in (("1", context), ("2", context[1:]))))


def test_questions_without_paragraphs_are_left_out_and_counted(tmp_path: Path) -> None:
    table, data = tables.read("filco-table3"), [f"nq={file_of(tmp_path / 'q.jsonl', True, False, True, True)}"]
    found = gather(table, data=data, corpus=["nq=own"], limit=2)
    assert [one.id for one in found.questions["nq"]] == ["0", "2"]
    assert "nq: left out, for want of paragraphs of their own: 1 of the questions" in found.notes
    assert "nq: the questions' own paragraphs stand in for the paper's dpr" in found.notes
    (missing,) = [note for note in found.notes if "--data TASK=FILE" in note]
    assert missing.endswith("triviaqa, hotpotqa, eli5, fever, wow, twowiki")
    file_of(tmp_path / "q.jsonl", False)
    with pytest.raises(EmptyData, match="the questions of nq bring no paragraphs"):
        gather(table, data=data, corpus=["own"])


def test_own_paragraphs_serve_the_question_alone_and_a_task_with_its_own_index_does_without(tmp_path: Path) -> None:
    """BlendFilter searches for more. What is named for one task goes before what is named for all."""
    table, path = tables.read("filco-frontier"), file_of(tmp_path / "q.jsonl", True, True, False)
    data, corpus = [f"nq={path}", f"triviaqa={path}"], ["own", "nq=sample"]
    found = gather(table, data=data, corpus=corpus, tasks=["nq"])
    assert [one.id for one in found.questions["nq"]] == ["0", "1", "2"]
    both = gather(table.cut(["direct-retrieval"]), data=data, corpus=corpus)
    assert {task: len(questions) for task, questions in both.questions.items()} == {"nq": 3, "triviaqa": 2}
    with pytest.raises(BadArgument, match=r"^blendfilter searches .* triviaqa alone"):
        gather(table, data=data, corpus=corpus)
