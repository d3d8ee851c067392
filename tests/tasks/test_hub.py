"""The hub, without a network: rows in its layouts through `datasets`, a missing package, a hub that is away."""

from __future__ import annotations

import builtins
from typing import Any

import pytest

from blendfilter.errors import BadArgument, MissingExtra, MissingFile
from blendfilter.tasks import TASKS, load

HOTPOT = {
    "id": "5a7f",
    "question": "Who designed the light?",
    "answer": "Karl Ostrander",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": {"title": ["Skerry Light"], "sent_id": [1]},
    "context": {"title": ["Skerry Light"], "sentences": [["A light.", " Karl Ostrander drew it."]]},
}
STRATEGY = {"qid": "c91e", "term": "Ulla", "question": "Is it far?", "answer": True, "facts": [], "decomposition": []}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the loader was asked for; its answer is three rows in the layout of the data set that was named."""
    datasets = pytest.importorskip("datasets")
    calls: list[Any] = []

    def load_dataset(name: str, config: str | None, *, split: str) -> Any:
        calls.append((name, config, split))
        row, key = (STRATEGY, "qid") if "strategy" in name else (HOTPOT, "id")
        return datasets.Dataset.from_list([{**row, key: f"{row[key]}-{number}"} for number in range(3)])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return calls


@pytest.mark.parametrize(
    ("task", "place"),
    [
        ("hotpotqa", ("hotpotqa/hotpot_qa", "distractor", "validation")),
        ("twowiki", ("framolfese/2WikiMultihopQA", None, "validation")),
        ("strategyqa", ("tasksource/strategy-qa", None, "train")),
    ],
)
def test_every_task_reads_its_rows(asked: list[Any], task: str, place: tuple[str, str | None, str]) -> None:
    questions = load(task, "hub", limit=2)
    assert asked == [place]
    assert len(questions) == 2
    assert questions.source == ":".join(part for part in place if part)
    assert questions[1].id.endswith("-1")


def test_a_row_of_the_hub_is_the_question_it_is_in_memory(asked: list[Any]) -> None:
    assert load("hotpotqa", "hub")[0] == load("hotpotqa", [{**HOTPOT, "id": "5a7f-0"}])[0]
    assert load("strategyqa", "hub")[0].golden_answers == ("yes",)


def test_another_split(asked: list[Any]) -> None:
    assert load("hotpotqa", "hub", split="train").source == "hotpotqa/hotpot_qa:distractor:train"
    assert asked[0][2] == "train"


def test_a_task_that_is_not_there() -> None:
    assert TASKS["qa"].hub is None
    with pytest.raises(BadArgument, match="'qa' has no data set on the hub: give a file"):
        load("qa", "hub")


def test_without_the_package_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name == "datasets":
            raise ImportError("No module named 'datasets'")
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[data\]'"):
        load("hotpotqa", "hub")


@pytest.mark.parametrize("error", [ConnectionError("no way\nthere"), ValueError("Unknown split"), FileNotFoundError()])
def test_a_hub_that_is_away_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    datasets = pytest.importorskip("datasets")

    def away(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", away)
    with pytest.raises(MissingFile, match="cannot load 'hotpotqa/hotpot_qa:distractor:validation'") as caught:
        load("hotpotqa", "hub")
    assert "\n" not in str(caught.value)
