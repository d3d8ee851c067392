"""The recipe of a small entailment model: what it learns from, what it is held out, and that the scorer opens it."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from checkpoints import tiny_bert

import blendfilter as bf

pytest.importorskip("transformers", reason="needs the extra [hf]")
RECIPE = Path(__file__).parents[2] / "eval" / "train_nli.py"
LABELS = ("SUPPORTS", "REFUTES", "NOT ENOUGH INFO")


def claims(path: Path, n: int = 36) -> Path:
    """Claims over twelve pages, each label in turn; those of the third have no evidence."""
    rows = []
    for at in range(n):
        title, stated = f"Town {at % 12}", at % 3 < 2
        rows.append(
            {
                "id": at, "claim": f"Claim {at} is of the town {at % 12}.", "label": LABELS[at % 3],
                "evidence": [[[1, 2, title, 0]]] if stated else [[[1, 2, None, None]]],
                "evidence_sentences": [f"The town {at % 12} -LRB- a harbour -RRB- has claim {at} ."] if stated else [],
            }
        )  # fmt: skip
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_no_page_of_a_held_out_claim_is_one_of_a_training_pairs(tmp_path: Path) -> None:
    recipe: dict[str, Any] = runpy.run_path(str(RECIPE))
    pairs = recipe["pairs_of"](bf.load("fever", claims(tmp_path / "claims.jsonl")))
    assert {each.label for each in pairs} == {"entailment", "contradiction", "neutral"}
    assert sum(each.label == "neutral" for each in pairs) == 24 // 4
    assert pairs[0].evidence == "The town 0 ( a harbour ) has claim 0."
    train, test = recipe["split"](pairs, 6)
    assert len(test) == 6
    assert not {title for each in train for title in each.titles} & {title for each in test for title in each.titles}
    assert not {each.evidence for each in train} & {each.evidence for each in test}


def test_it_makes_a_folder_that_the_scorer_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "nli"
    words = [claims(tmp_path / "claims.jsonl"), "--base", tiny_bert(), "--out", out, "--epochs", 1, "--held-out", 6]
    monkeypatch.setattr(sys, "argv", ["train_nli.py", *map(str, words)])
    runpy.run_path(str(RECIPE), run_name="__main__")
    printed = capsys.readouterr().out
    assert "of 6 held-out claims with evidence are right, entailed or not" in printed
    (sure,) = bf.scorer("nli", out).entailment([("The town is on the sea.", "It is a harbour.")])
    assert 0 < sure < 1
