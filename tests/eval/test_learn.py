"""The first learned table, its whole script: the sample world, and a model with random weights."""

from __future__ import annotations

import gzip
import json
import runpy
import sys
from pathlib import Path

import pytest
from checkpoints import classifier, tiny_bert
from scoring_models import llama

from blendfilter.resources import sample

SCRIPT = Path(__file__).parents[2] / "eval" / "learn.py"
ROWS = [
    "gold passage, untrained", "gold passage", "FULL", "FULL, read by the generator of the rest", "PSG",
    "BM25 sentence", "embedding sentence", "FILCO, prompted", "FILCO, trained on 6", "SILVER", "BIDER, synthesised",
    "BIDER, synthesised, lambda_min from round 1", "BIDER, distilled", "BIDER, aligned",
]  # fmt: skip


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sample world in the layout of the data: each question with one of its gold passages."""
    monkeypatch.setenv("BLENDFILTER_CACHE", str(tmp_path / "cache"))
    corpus = [json.loads(line) for line in sample("corpus.jsonl").read_text(encoding="utf-8").splitlines()]
    by_title = {passage["title"]: passage["text"] for passage in corpus}
    rows = []
    for line in sample("questions.jsonl").read_text(encoding="utf-8").splitlines()[:14]:
        row = json.loads(line)
        title = row["metadata"]["gold_titles"][-1]
        row["metadata"]["context"] = [{"title": title, "sentences": [by_title[title]]}]
        rows.append(row)
    for name, lines in {
        "nq/dev_gold": rows,
        "corpus/nq_gold": corpus[:90],
        "corpus/wiki18_retrieved": corpus[90:],
    }.items():
        path = tmp_path / "data" / f"{name}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    return tmp_path / "data"


def run(data: Path, *only: str) -> None:
    """The script, in this process."""
    nli = data.parent / "nli"
    if not nli.exists():
        classifier(nli, [2.0, 0.0], ["entailment", "not_entailment"])
    options = {
        "--data": data, "--runs": data.parent / "runs", "--base": llama(positions=2048), "--encoder": tiny_bert(),
        "--nli": nli, "--test": 3, "--train": 6, "--generator": 7, "--steps": 2,
    }  # fmt: skip
    before = sys.argv
    sys.argv = [
        str(SCRIPT),
        *(str(word) for pair in options.items() for word in pair),
        *(["--only", *only] if only else []),
    ]
    try:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    finally:
        sys.argv = before


def lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.open(encoding="utf-8")]


def test_what_is_trained_on_shares_no_passage_with_what_is_held_back(data: Path) -> None:
    run(data, "questions")
    runs = data.parent / "runs"
    test, train = ({row["id"] for row in lines(runs / f"{name}.jsonl")} for name in ("test", "train"))
    assert (len(test), len(train), test & train) == (3, 7, set())
    passages = {str(row["question"]): {each["id"] for each in row["passages"]} for row in lines(runs / "hits.jsonl")}  # type: ignore[attr-defined]
    assert all(len(three) == 3 for three in passages.values())
    for row in lines(runs / "gold.jsonl"):
        assert {each["id"] for each in row["passages"]} < passages[str(row["question"])]  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.timeout(3600)  # a dozen commands, each of which loads torch
def test_all_of_it_comes_to_one_table_and_is_not_done_again(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(data)
    table = [line for line in capfd.readouterr().out.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0].removeprefix("| ") for line in table[2:]] == ROWS
    models = data.parent / "runs" / "models"
    recipes = {name: json.loads((models / name / "recipe.json").read_text()) for name in ("generator-7", "full-7")}
    assert {name: recipe["reads"] for name, recipe in recipes.items()} == {
        "generator-7": "silver,psg",
        "full-7": "full",
    }
    assert len({json.dumps(recipe["settings"]) for recipe in recipes.values()}) == 1, "the same questions and passes"
    journals = {file: file.read_bytes() for file in (data.parent / "runs").rglob("journal.jsonl")}
    assert len(journals) > len(ROWS)
    run(data)
    assert [line for line in capfd.readouterr().out.splitlines() if line.startswith("| ")] == table
    assert {file: file.read_bytes() for file in journals} == journals
