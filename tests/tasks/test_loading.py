"""`load`: which argument is what, what it refuses, and that a limit hides nothing."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from blendfilter.errors import BadArgument, BadData, EmptyData, MissingFile, UnknownName
from blendfilter.records import Question
from blendfilter.tasks import TASKS, load

ROWS = [{"id": f"m{number}", "question": f"Question {number}?", "answer": str(number)} for number in range(5)]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    return path


def test_one_argument_is_a_file_of_ones_own(mine: Path) -> None:
    questions = load(str(mine), metrics=["f1"])
    assert (len(questions), questions.source, questions.task.name) == (5, "mine.jsonl", "qa")
    assert questions.task.score("3", questions[3]) == {"f1": 1.0}
    assert list(load(mine)) == list(load("qa", ROWS)) == list(load(ROWS))


def test_no_folder_of_this_machine_shows(mine: Path) -> None:
    questions = load(mine)
    assert str(mine.parent) not in questions.source + repr(questions)
    elsewhere = mine.with_name("other.jsonl.gz")
    elsewhere.write_bytes(gzip.compress(mine.read_bytes()))
    assert load(elsewhere).fingerprint == questions.fingerprint


def test_records_in_memory_are_taken_as_they_are() -> None:
    record = Question("1", "Who?", ("Ane",))
    assert load("hotpotqa", [record])[0] is record
    again = load("twowiki", load("qa", ROWS)[:2])
    assert (again.source, again.task.name, len(again)) == ("rows", "twowiki", 2)


def test_a_task_of_ones_own(mine: Path) -> None:
    assert load(TASKS["qa"], mine, limit=1).task is TASKS["qa"]


def test_a_limit_takes_the_first(mine: Path) -> None:
    assert [question.id for question in load(mine, limit=2)] == ["m0", "m1"]
    assert len(load(mine, limit=99)) == 5
    assert list(load(mine, limit=3)) == list(load(mine)[:3])


def test_a_limit_hides_no_damage_behind_it(mine: Path, shared_data: Path) -> None:
    mine.write_text(mine.read_text() + "\n{broken")
    with pytest.raises(BadData, match="line 6"):
        load(mine, limit=2)
    with pytest.raises(BadData, match="cut off"):
        load("hotpotqa", shared_data / "raw" / "hotpotqa" / "truncated_official_dev.json", limit=5)


def test_a_split_keeps_the_rows_marked_with_it() -> None:
    rows = [{**row, "split": "dev" if at % 2 else "train"} for at, row in enumerate(ROWS)]
    assert [question.id for question in load("qa", rows, split="dev")] == ["m1", "m3"]
    with pytest.raises(EmptyData, match=r"no questions of split 'test' .*dev, train"):
        load("qa", rows, split="test")


def test_the_sample_world() -> None:
    questions = load("qa", "sample")
    assert questions.source == "sample"
    assert len(questions) >= 60
    assert all(question.gold_titles for question in questions)


@pytest.mark.parametrize("limit", [0, -3])
def test_a_limit_below_one(mine: Path, limit: int) -> None:
    with pytest.raises(BadArgument, match=f"limit is {limit}: it must be 1 or more"):
        load(mine, limit=limit)


def test_unknown_names_come_with_a_suggestion(mine: Path) -> None:
    with pytest.raises(UnknownName, match=r"no task 'hotpoqa'. Did you mean 'hotpotqa'"):
        load("hotpoqa", mine)
    with pytest.raises(UnknownName, match=r"no task 'stratgyqa'. Did you mean 'strategyqa'.*no file of that name"):
        load("stratgyqa")
    with pytest.raises(UnknownName, match="no metric 'f2'"):
        load(mine, metrics=["f2"])


@pytest.mark.parametrize("metrics", ["f1", []])
def test_metrics_are_a_list(mine: Path, metrics: object) -> None:
    with pytest.raises(BadArgument, match="list of names"):
        load(mine, metrics=metrics)  # type: ignore[arg-type]


def test_where_the_data_is_has_to_be_said() -> None:
    with pytest.raises(BadArgument, match="where are the questions of 'hotpotqa'"):
        load("hotpotqa")
    with pytest.raises(BadArgument, match="where are the questions of 'qa'"):
        load(TASKS["qa"])
    with pytest.raises(BadArgument, match="the data is a int"):
        load("qa", 5)  # type: ignore[arg-type]


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for attempt in (lambda: load("nowhere.jsonl"), lambda: load("hotpotqa", tmp_path / "nowhere.json")):
        with pytest.raises(MissingFile, match=r"no file '.*nowhere"):
            attempt()


@pytest.mark.parametrize("text", ["", "\n \n", "[]", "[ ]\n"])
def test_nothing_in_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "empty.json").write_text(text)
    with pytest.raises(EmptyData, match=r"empty.json has no questions"):
        load("hotpotqa", tmp_path / "empty.json")


def test_an_empty_question_is_named(mine: Path) -> None:
    mine.write_text(json.dumps(ROWS[0]) + "\n" + json.dumps({**ROWS[1], "question": " \n"}))
    with pytest.raises(BadData, match=r"mine.jsonl, line 2: question 'm1' is empty"):
        load(mine)


def test_an_id_used_twice_names_both_places(mine: Path) -> None:
    mine.write_text("\n".join(json.dumps(row) for row in [ROWS[0], ROWS[1], ROWS[0]]))
    with pytest.raises(BadData, match=r"mine.jsonl, line 3: question id 'm0' was used before, at .*line 1"):
        load(mine)


def test_a_record_without_answers_is_refused() -> None:
    with pytest.raises(BadData, match="item 1: question '1' has no golden answers"):
        load("qa", [Question("1", "Who?")])


def test_other_kinds_of_files_are_refused_in_one_line(tmp_path: Path) -> None:
    for name, data in [("q.csv", b"question,answer\n"), ("q.jsonl.gz", b"no gzip"), ("q.bin", b"\xff\xfe{\x00")]:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(BadData, match=f"{name}, line 1") as caught:
            load(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_tasks_import_without_heavy_packages() -> None:
    code = "import sys, blendfilter.tasks; print(sorted({'dspy', 'datasets', 'openai', 'numpy'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
