"""The recipes in `eval/`, each on a tiny file in its data set's official layout, with the offline reader."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

RECIPES = Path(__file__).parents[2] / "eval"

SKERRY = ["Ulm Skerry", ["Ulm Skerry is a rock off Bremsund.", "Its lighthouse was designed by Ane Lindqvist."]]
DESIGNER = ["Ane Lindqvist", ["Ane Lindqvist was an engineer.", "She was born in Tarholm in 1821."]]
ASIDE = ["Bremsund", ["Bremsund is a harbour town with two mills."]]
BRIDGE = {
    "_id": "tiny-1", "question": "In which town was the designer of the lighthouse on Ulm Skerry born?",
    "answer": "Tarholm", "supporting_facts": [["Ulm Skerry", 1], ["Ane Lindqvist", 1]],
    "context": [SKERRY, DESIGNER, ASIDE],
}  # fmt: skip
ROWS: dict[str, dict[str, Any]] = {
    "hotpotqa": {**BRIDGE, "type": "bridge", "level": "hard"},
    "twowiki": {
        **BRIDGE, "type": "compositional",
        "evidences": [["Ulm Skerry", "designer", "Ane Lindqvist"], ["Ane Lindqvist", "place of birth", "Tarholm"]],
    },
    "strategyqa": {
        "qid": "tiny-1", "term": "Ulm Skerry", "description": "Rock", "answer": False, "facts": [], "decomposition": [],
        "question": "Was the designer of the lighthouse on Ulm Skerry alive in 1900?",
        "evidence": [[[["Ulm Skerry-1"]], [["Ane Lindqvist-1"]]]],
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BLENDFILTER_CACHE", str(tmp_path / "cache"))


def cook(recipe: str, *arguments: str) -> None:
    """Run a recipe as the shell would, in this process."""
    before, sys.argv = sys.argv, [f"eval/{recipe}.py", *arguments]
    try:
        runpy.run_path(str(RECIPES / f"{recipe}.py"), run_name="__main__")
    finally:
        sys.argv = before


def data(recipe: str) -> str:
    Path("data.json").write_text(json.dumps([ROWS[recipe]]), encoding="utf-8")
    return "data.json"


def corpus() -> str:
    rows = [{"id": str(i), "title": title, "text": " ".join(text)} for i, (title, text) in enumerate(BRIDGE["context"])]
    Path("corpus.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return "corpus.jsonl"


@pytest.mark.parametrize(
    ("recipe", "metrics"), [("hotpotqa", ["em", "f1"]), ("twowiki", ["em", "f1"]), ("strategyqa", ["accuracy"])]
)
def test_a_recipe_runs_and_reports(recipe: str, metrics: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    cook(recipe, "--data", data(recipe), "--corpus", corpus(), "--limit", "1")
    out = capsys.readouterr().out
    assert "Scores over 1 questions" in out
    assert all(metric in out for metric in metrics)
    made = json.loads(Path(f"runs/{recipe}-blendfilter/metrics.json").read_text(encoding="utf-8"))
    assert (made["task"], made["n"], list(made["metrics"])) == (recipe, 1, metrics)
    assert made["flags"]["errors"] == 0
    assert made["retrieval"]["q"]["recall"] > 0


@pytest.mark.parametrize("recipe", ["hotpotqa", "twowiki"])
def test_without_a_corpus_the_questions_bring_their_own(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    cook(recipe, "--data", data(recipe), "--run", "mine")
    assert "Ledger" in capsys.readouterr().out
    (line,) = Path("mine/predictions.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["branches"]["q"]["retrieved"]


def test_strategyqa_wants_a_corpus(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cook("strategyqa", "--data", data("strategyqa"))
    assert stopped.value.code == 2
    assert "--corpus" in capsys.readouterr().err
