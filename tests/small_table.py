"""A small table of a paper that nobody wrote, for the tests of what `eval/reproduce.py` does."""

from __future__ import annotations

from pathlib import Path

from blendfilter.evaluation.reproducing import papers
from blendfilter.evaluation.reproducing.papers import Table

HEAD = """
title = "A small table"
paper = "P, Table 9"
kind = "scores"
reader = "counted"
retriever = "bm25"
n = 500
k = 5
tasks = ["hotpotqa", "strategyqa"]
against = "Whole"
"""
ROWS = """
[[rows]]
label = "Alone"
method = "direct"
published.hotpotqa = { em = 0.3, f1 = 0.4 }

[[rows]]
label = "Chain"
method = "cot-retrieval"
published.hotpotqa = { em = 0.25, f1 = 0.4 }
published.strategyqa = { accuracy = 0.6 }

[[rows]]
label = "Again"
method = "iter-retgen"
arguments = { iterations = 2 }

[[rows]]
label = "Whole"
method = "blendfilter"
published.hotpotqa = { em = 0.5, f1 = 0.6 }
"""


def written(folder: Path, text: str, name: str = "small") -> Table:
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return papers.table_of(path)
