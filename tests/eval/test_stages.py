"""The table of the pipeline's stages, learned: its whole script on the sample world, with the offline reader."""

from __future__ import annotations

import gzip
import json
import runpy
import sys
from pathlib import Path

import pytest
from scoring_models import llama

from blendfilter.resources import sample

SCRIPT = Path(__file__).parents[2] / "eval" / "stages.py"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of questions and corpora as the script wants them, of the sample world."""
    monkeypatch.setenv("BLENDFILTER_CACHE", str(tmp_path / "cache"))
    questions = sample("questions.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:12]
    for name, lines in {
        "hotpotqa/dev": questions[:8],
        "hotpotqa/train_sample": questions[8:],
        "2wikimultihopqa/dev_hipporag": questions[:8],
        "2wikimultihopqa/dev": questions[8:],
        "corpus/hotpotqa": [sample("corpus.jsonl").read_text(encoding="utf-8")],
        "corpus/2wikimultihopqa": [sample("corpus.jsonl").read_text(encoding="utf-8")],
    }.items():
        path = tmp_path / "data" / f"{name}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("".join(lines).encode()))
    return tmp_path / "data"


def run(data: Path, *only: str, **more: object) -> None:
    """The script, in this process."""
    options = {"data": data, "out": data.parent / "out", "n": 2, "train": 12, **more}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    before, sys.argv = sys.argv, [str(SCRIPT), *words, *(word for part in only for word in ("--only", part))]
    try:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    finally:
        sys.argv = before


def test_its_questions_are_apart_and_its_paragraphs_short(data: Path) -> None:
    run(data, "data", words=12)
    out = data.parent / "out"
    held_out, others = (
        {json.loads(line)["id"] for line in (out / f"hotpotqa.{name}.jsonl").open()} for name in ("held-out", "others")
    )
    assert (len(held_out), len(others)) == (4, 8)
    assert not held_out & others
    texts = [json.loads(line)["text"] for line in (out / "hotpotqa.corpus-12.jsonl").open()]
    assert all(0 < len(text.split()) <= 12 for text in texts)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # a dozen commands, each of which loads torch
def test_runs_tables_and_replays(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    parts = (
        "hotpotqa/direct-retrieval",
        "hotpotqa/blendfilter",
        "hotpotqa/blendfilter-pointwise",
        "untrained/pointwise",
    )
    run(data, "data", *parts, "replay", "table", lm="offline")
    told = capfd.readouterr().out
    assert "4 runs replayed from their journals: the same bytes" in told
    rows = [line.split(" | ")[0] for line in told.splitlines() if line.startswith("| ")]
    assert rows == ["| method", "| ---", "| direct-retrieval", "| blendfilter", "| blendfilter-pointwise",
                    "| filter", "| ---", "| knowledge", "| pointwise", "| pointwise"]  # fmt: skip
    run(data, "hotpotqa/blendfilter", lm="offline")  # goes on where it was: nothing is asked again
    assert "answered in an earlier session" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(3600)  # a dozen commands, each of which loads torch
def test_one_model_learns_every_stage_of_both_tasks_and_runs(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("peft", reason="training needs the extra [train]")
    parts = ("data", "train", "hotpotqa/direct-retrieval", "hotpotqa/blendfilter-pointwise", "replay", "table")
    run(data, *parts, base=llama(positions=8192), threads=1)
    told = capfd.readouterr().out
    assert "of 8 questions share gold with one held out: left out" in told
    assert "2 runs replayed from their journals: the same bytes" in told
    assert "| pointwise | trained | 2 |" in told
    recipe = json.loads((data.parent / "out" / "model" / "recipe.json").read_text())
    assert {each["demos"] for each in recipe["of"].values()} == {"none"}
    assert recipe["result"]["trained_on"] >= 8
