"""`load` and its question sets: where rows come from, what is refused, and that a limit hides nothing."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blendfilter.errors import BadArgument, BadData, EmptyData, MissingFile, UnknownName
from blendfilter.records import Question
from blendfilter.tasks import TASKS, Hub, Questions, load
from blendfilter.tasks.loading import read_questions

ROWS = [{"id": f"m{number}", "question": f"Question {number}?", "answer": str(number)} for number in range(5)]
MILL = Question("1", "Who runs the mill?", ("Ane Lindqvist", "Lindqvist"), ("Tide Mill",), (("Tide Mill",),))
QUAY = Question("2", "Is the quay old?", ("yes",))


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    return path


# --- tasks and question sets ---


def test_the_registry_knows_its_tasks_by_name_and_imports_nothing_heavy() -> None:
    assert list(TASKS) == [task.name for task in TASKS.values()]
    # anyone's own questions are asked in HotPotQA's words: short answers, yes/no among them
    assert {name: task.wording for name, task in TASKS.items()} == {
        **{name: name for name in TASKS if name != "qa"},
        "qa": "hotpotqa",
    }
    code = "import sys, blendfilter.tasks.loading; print({'dspy', 'datasets', 'openai', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.parametrize("name", [name for name in TASKS if name != "strategyqa"])
def test_every_task_has_questions_in_the_sample_world(name: str) -> None:
    """StrategyQA takes its yes/no questions out of the others' file, where it is asked for."""
    questions = load(name, "sample")
    assert questions.source == "sample"
    assert len(questions) >= 10
    assert all(one.gold_titles for one in questions)
    assert questions.task.wording == TASKS[name].wording


@pytest.mark.parametrize(
    "change", [{"id": "9"}, {"question": "Who?"}, {"golden_answers": ("x",)}, {"evidence": (("Quay",),)}]
)
def test_the_fingerprint_is_of_questions_and_gold(change: dict[str, object]) -> None:
    task = TASKS["qa"]
    fingerprint = Questions((MILL, QUAY), task).fingerprint
    assert len(fingerprint) == 16
    assert int(fingerprint, 16) >= 0
    same = Questions((dataclasses.replace(MILL, metadata={"x": 1}), QUAY), task, "elsewhere")
    assert fingerprint == same.fingerprint
    assert fingerprint != Questions((dataclasses.replace(MILL, **change), QUAY), task).fingerprint
    assert fingerprint != Questions((QUAY, MILL), task).fingerprint


def test_questions_serve_dspys_own_tools() -> None:
    """`examples` and `metric` are what `dspy.Evaluate` and the optimisers ask for."""
    questions = load("qa", [{"id": "1", "question": "Who?", "answers": ["Ada Orm", "Orm"]}])
    (example,) = questions.examples()
    assert (example.id, example.question, example.answer) == ("1", "Who?", "Ada Orm")
    assert example.golden_answers == ["Ada Orm", "Orm"]
    assert example.inputs().toDict() == {"question": "Who?"}
    right, wrong = SimpleNamespace(answer="the orm"), SimpleNamespace(answer="Bea")
    assert (questions.metric(example, right), questions.metric(example, wrong)) == (1.0, 0.0)
    assert (questions.metric(example, right, trace=[]), questions.metric(example, wrong, trace=[])) == (True, False)


# --- files and memory ---


def test_one_argument_is_a_file_of_ones_own(mine: Path) -> None:
    questions = load(str(mine), metrics=["f1"])
    assert (len(questions), questions.source, questions.task.name) == (5, "mine.jsonl", "qa")
    assert questions.task.score("3", questions[3]) == {"f1": 1.0}
    assert list(load(mine)) == list(load("qa", ROWS)) == list(load(ROWS))


def test_a_limit_takes_the_first_and_hides_no_damage_behind_it(mine: Path, shared_data: Path) -> None:
    assert [question.id for question in load(mine, limit=2)] == ["m0", "m1"]
    assert len(load(mine, limit=99)) == 5
    mine.write_text(mine.read_text() + "\n{broken")
    with pytest.raises(BadData, match="line 6"):
        load(mine, limit=2)
    with pytest.raises(BadData, match="cut off"):
        load("hotpotqa", shared_data / "raw" / "hotpotqa" / "truncated_official_dev.json", limit=5)


def test_whole_numbers_of_numpy_are_counts_and_ids() -> None:
    """Ids and numbers of shards are kept as JSON, which takes no number of NumPy's."""
    questions = load([{"id": np.int64(at), "question": f"Question {at}?", "answer": "x"} for at in range(4)])
    assert [question.id for question in load(questions, limit=np.int64(2))] == ["0", "1"]
    assert json.dumps(questions.shard(np.int64(1), np.int32(2)).part) == json.dumps([1, 2, questions.fingerprint, 4])


def test_nan_is_a_gap_in_json_lines_and_named_in_a_list(tmp_path: Path) -> None:
    row = '{"id": NaN, "question": "When?", "answer": NaN, "aliases": ["1790"], "gold_titles": NaN, "context": NaN}'
    (tmp_path / "a.jsonl").write_text(row)
    (question,) = load(tmp_path / "a.jsonl")
    assert question == Question("row-0", "When?", ("1790",))
    (tmp_path / "a.json").write_text(f"[{row}]")
    with pytest.raises(BadData, match=r"a\.json, item 1: .*write null for NaN"):
        load(tmp_path / "a.json")


def test_a_split_keeps_the_rows_marked_with_it() -> None:
    rows = [{**row, "split": "dev" if at % 2 else "train"} for at, row in enumerate(ROWS)]
    assert [question.id for question in load("qa", rows, split="dev")] == ["m1", "m3"]
    with pytest.raises(EmptyData, match=r"no questions of split 'test' .*dev, train"):
        load("qa", rows, split="test")


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "problem"),
    [
        ((ROWS,), {"limit": 0}, BadArgument, "limit is 0: give a whole number of 1 or more"),
        ((ROWS,), {"metrics": "f1"}, BadArgument, "list of names"),
        ((ROWS,), {"metrics": ["f2"]}, UnknownName, "no metric 'f2'"),
        (("hotpoqa", ROWS), {}, UnknownName, r"no task 'hotpoqa'. Did you mean 'hotpotqa'"),
        (("stratgyqa",), {}, UnknownName, r"no task 'stratgyqa'. Did you mean 'strategyqa'.*no file of that name"),
        (("hotpotqa",), {}, BadArgument, "where are the questions of 'hotpotqa'"),
        (("hotpotqa", "nowhere.json"), {}, MissingFile, "no file 'nowhere"),
        (("qa", 5), {}, BadArgument, "questions are a file or a list of rows, .*; got 5"),
        (("qa", ROWS[0]), {}, BadArgument, "questions are a file or a list of rows"),
        (("qa", "hub"), {}, BadArgument, "'qa' has no data set on the hub: give a file"),
        (("qa", [QUAY, QUAY]), {}, BadData, "item 2: question id '2' was used before, at .*item 1"),
        (("qa", [{**ROWS[1], "question": " \n"}]), {}, BadData, "item 1: question 'm1' is empty"),
        (("qa", [Question("1", "Who?")]), {}, BadData, "item 1: question '1' has no golden answers"),
    ],
)
def test_what_cannot_be_loaded_is_named(
    arguments: tuple[Any, ...], options: dict[str, Any], kind: type[Exception], problem: str
) -> None:
    with pytest.raises(kind, match=problem):
        load(*arguments, **options)


@pytest.mark.parametrize("text", ["", "\n \n", "[]", "[ ]\n"])
def test_nothing_in_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "empty.json").write_text(text)
    with pytest.raises(EmptyData, match=r"empty.json has no questions"):
        load("hotpotqa", tmp_path / "empty.json")


# --- the hub, without a network ---

HOTPOT = {
    "id": "5a7f", "question": "Who designed the light?", "answer": "Karl Ostrander", "type": "bridge",
    "supporting_facts": {"title": ["Skerry Light"], "sent_id": [1]},
    "context": {"title": ["Skerry Light"], "sentences": [["A light.", " Karl Ostrander drew it."]]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("task", "split", "place"),
    [
        ("hotpotqa", "train", ("hotpotqa/hotpot_qa", "distractor", "train")),
        ("twowiki", None, ("framolfese/2WikiMultihopQA", None, "validation")),
    ],
)
def test_a_row_of_the_hub_is_the_question_it_is_in_memory(
    monkeypatch: pytest.MonkeyPatch, task: str, split: str | None, place: tuple[str, str | None, str]
) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{**HOTPOT, "id": f"5a7f-{number}"} for number in range(3)]
    calls: list[Any] = []

    def load_dataset(name: str, config: str | None, *, split: str) -> Any:
        calls.append((name, config, split))
        return datasets.Dataset.from_list(rows)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    questions = load(task, "hub", limit=2, split=split)
    assert calls == [place]
    assert questions.source == Hub(*place).label() == ":".join(part for part in place if part)
    assert list(questions) == list(load(task, rows[:2]))


# --- questions that need no answer ---

WHO, WHEN = "Who kept Skerry Light?", "When did Orm Pier open?"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", f"  {WHO} \n\n{WHEN}\n"),
        ("a.jsonl", f"{json.dumps({'question': WHO})}\n{json.dumps(WHEN)}\n"),
        ("a.jsonl", f"{json.dumps({'query': WHO})}\n{json.dumps(WHEN)}\n"),
    ],
)
def test_questions_alone_are_read_from_lines_and_rows(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_questions(tmp_path / name) == [WHO, WHEN]
    assert read_questions(tmp_path / name, limit=1) == [WHO]


def test_a_file_without_questions_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n")
    with pytest.raises(EmptyData, match="holds no question"):
        read_questions(tmp_path / "a.txt")
    with pytest.raises(MissingFile):
        read_questions(tmp_path / "gone.jsonl")
    with pytest.raises(BadArgument, match="limit is 0"):
        read_questions(tmp_path / "gone.jsonl", limit=0)
