"""`eval/bench/index_growth.py` at two small sizes: builds, searches, and says how each figure grows."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from blendfilter.resources import sample

SCRIPT = Path(__file__).parents[2] / "eval" / "bench" / "index_growth.py"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["bm25", "hnsw"])
def test_two_sizes(engine: str) -> None:
    if engine == "hnsw":
        pytest.importorskip("faiss", reason="needs the extra [dense]")
    command = [sys.executable, str(SCRIPT), "--corpus", str(sample("corpus.jsonl")), "--engine", engine, "--dim", "16"]
    done = subprocess.run(
        [*command, "--sizes", "300", "900", "--queries", "20"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    small, large, *powers = done.stdout.splitlines()
    rows = [json.loads(line) for line in (small, large)]
    assert [row["passages"] for row in rows] == [300, 900]
    assert rows[0]["disk_mb"] < rows[1]["disk_mb"]
    assert all(row["p50_ms"] > 0 for row in rows)
    assert rows[1].get("overlap_with_flat", 1) > 0.9
    assert len(powers) == 4


@pytest.mark.slow
def test_the_made_corpus_is_the_same_on_every_run_and_its_vocabulary_grows() -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        from index_growth import recombined
    finally:
        sys.path.remove(str(SCRIPT.parent))
    corpus = sample("corpus.jsonl")
    first = list(recombined(corpus, 2000))
    assert first[:500] == list(islice(recombined(corpus, 500), 500))
    words = [len({word for passage in first[:size] for word in passage.line.split()}) for size in (500, 1000, 2000)]
    assert words[0] < words[1] - 300 < words[2] - 600
