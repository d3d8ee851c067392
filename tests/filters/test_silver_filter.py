"""SILVER as a filter: what a silver file chose, for the questions and passages it was made over, and nothing else."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from refusing import PASSAGES, ROWS

from blendfilter import BM25, Direct, Oracle, evaluate, load, make_silver
from blendfilter.errors import BadArgument, BadData
from blendfilter.filters.silver import UPPER_BOUND, SilverFilter
from blendfilter.journal import Journal
from blendfilter.records import Excerpt, Passage

CORPUS = [Passage(each["id"], each["title"], each["text"]) for each in PASSAGES]
WHERE = ROWS[0]["question"]


@pytest.fixture
def index() -> BM25:
    return BM25.build(CORPUS)


@pytest.fixture
def path(index: BM25, tmp_path: Path) -> Path:
    """Three questions over three passages each; STRINC, up to two sentences."""
    oracle = Oracle("strinc", task="qa", num_sentences=2)
    make_silver(load("qa", ROWS), oracle, tmp_path / "silver.jsonl", retriever=index, k=3)
    return tmp_path / "silver.jsonl"


def kept(select: SilverFilter, question: str, passages: list[Passage]) -> list[Passage]:
    return list(select(question=question, passages=passages).kept)


def test_the_chosen_sentences_are_kept_verbatim_in_rank_order(index: BM25, path: Path) -> None:
    """Of "Where was the designer of Orm Pier born?" two sentences hold Ormskerry; of the third's passages none "1871"
    but the second sentence of Orm Pier."""
    select = SilverFilter(path)
    found = index(WHERE, 3)
    prediction = select(question=f"  {WHERE}\n", passages=found)
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    chosen = [rows[0]["sentences"][at] for at in rows[0]["chosen"]]
    pieces = [(found[each["passage"]].id, each["start"], each["end"]) for each in chosen]
    assert pieces
    assert [(each.id, span.start, span.end) for each in prediction.kept for span in each.spans] == pieces
    assert all(isinstance(each, Excerpt) and each.source.text.find(each.text) >= 0 for each in prediction.kept)
    assert [each.score for each in prediction.kept] == [
        one.score for one in found if one.id in {p for p, _, _ in pieces}
    ]
    (orm,) = kept(select, ROWS[2]["question"], index(ROWS[2]["question"], 3))
    assert orm.text == "Lise Harrow designed it in 1871."
    assert prediction.reason == UPPER_BOUND


def test_a_question_or_passage_that_the_file_does_not_hold_is_an_error(index: BM25, path: Path) -> None:
    select = SilverFilter(path)
    with pytest.raises(
        BadArgument, match=r"no silver context in .*silver\.jsonl for the question 'Who\?': make the file"
    ):
        kept(select, "Who?", index("Who?", 2))
    found = index(WHERE, 3)
    missing = next(each for each in CORPUS if each not in [one.scored(None) for one in found])
    with pytest.raises(BadArgument, match=f"passage '{missing.id}' is not in .*: make the file over the same index"):
        kept(select, WHERE, [*found, missing])
    changed = Passage(found[0].id, found[0].title, "Other words. " + found[0].text)
    with pytest.raises(BadArgument, match=f"passage '{changed.id}' has another text in"):
        kept(select, WHERE, [changed])
    partly = SilverFilter(path, partly=True)
    assert kept(partly, WHERE, [missing, changed, *found[1:]]) == kept(select, WHERE, found[1:])
    assert kept(partly, WHERE, [missing]) == []


def test_a_yes_or_no_has_no_silver_of_strincs(index: BM25, path: Path) -> None:
    """Named as such, all is kept for it; a row that an earlier version wrote, with nothing chosen, is not read."""
    asked = "Is Orm Pier a pier in Tavenby?"
    row = json.loads(path.read_text("utf-8").splitlines()[0])
    old = {**row, "id": "y", "question": asked, "golden_answers": ["yes"], "output": "yes", "chosen": [], "target": ""}
    path.write_text(path.read_text("utf-8") + json.dumps(old) + "\n", "utf-8")
    found = index(asked, 3)
    with pytest.raises(BadArgument, match=r"no silver context .*answered by a yes or no: take lexical or cxmi"):
        kept(SilverFilter(path), asked, found)
    named = SilverFilter(path, unlabelled=[asked])
    assert kept(named, asked, found) == found
    assert named.arguments() != SilverFilter(path).arguments()


def test_of_one_question_with_two_contexts_none_is_right(path: Path) -> None:
    row = json.loads(path.read_text("utf-8").splitlines()[0])
    again, path_again = {**row, "id": "again"}, path.with_name("again.jsonl")
    path_again.write_text(json.dumps(row) + "\n" + json.dumps(again) + "\n", "utf-8")
    assert len(SilverFilter(path_again).chosen) == 1, "the same context twice is one"
    path_again.write_text(json.dumps(row) + "\n" + json.dumps({**again, "chosen": []}) + "\n", "utf-8")
    with pytest.raises(BadData, match="has two different contexts"):
        SilverFilter(path_again)


def test_copies_share_what_was_read_and_another_file_is_another_run(index: BM25, path: Path, tmp_path: Path) -> None:
    select = SilverFilter(path)
    assert copy.deepcopy(select).chosen is select.chosen
    one = Oracle("strinc", task="qa")
    make_silver(load("qa", ROWS), one, tmp_path / "other.jsonl", retriever=index, k=3)
    result: list[dict[str, Any]] = [SilverFilter(each).arguments() for each in (path, tmp_path / "other.jsonl")]
    assert result[0] != result[1]
    assert str(path) not in json.dumps(result), "a run's record holds no path"
    moved = path.rename(tmp_path / "moved.jsonl")
    assert SilverFilter(moved).arguments() == result[0]


def test_an_answer_is_read_from_the_chosen_sentences_alone(index: BM25, path: Path, tmp_path: Path) -> None:
    run = evaluate(Direct(index, 3, filter=SilverFilter(path)), load("qa", ROWS), lm="offline", run=tmp_path / "run")
    assert run.settings["method"]["arguments"]["filter"] == "SilverFilter"
    with Journal(run.folder / "journal.jsonl", "replay") as journal:
        prompts = [record["prompt"] for record in journal.records("call")]
    (orm,) = [prompt for prompt in prompts if ROWS[2]["question"] in str(prompt)]
    view = str(orm).rpartition("Knowledge:")[2]
    assert "Orm Pier | Lise Harrow designed it in 1871." in view
    assert "Orm Pier is a pier in Tavenby" not in view
    assert len(prompts) == 3, "the filter asks no model"
