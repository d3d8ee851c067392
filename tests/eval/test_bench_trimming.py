"""`eval/bench/trimming.py` on a small world: what it measures holds there too, and it would notice if it did not."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

faiss = pytest.importorskip("faiss")

FILE = Path(__file__).parents[2] / "eval" / "bench" / "trimming.py"
THRESHOLDS = [1, 2]


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    path, threads = list(sys.path), faiss.omp_get_max_threads()
    spec = spec_from_file_location("bench_trimming", FILE)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = path
    faiss.omp_set_num_threads(threads)
    sys.modules.pop("trimming_world", None)


@pytest.fixture(scope="module")
def measured(bench: Any) -> tuple[dict[Any, Any], dict[Any, Any]]:
    faiss.omp_set_num_threads(1)
    made = bench.Bench(bench.world_of(2000, 60, seed=3))
    figures = {(each["state"], each["threshold"]): each for each in bench.run(made, THRESHOLDS)}
    return {(row.state, row.threshold, row.group): row for row in made.rows}, figures


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_the_overlay_drops_what_it_should_and_nothing_accepted(measured: Any, threshold: int) -> None:
    rows, figures = measured
    near = rows["overlay", threshold, "near"]
    assert near.still < 0.6
    assert near.rejected < rows["bare", 0, "near"].rejected - 1
    assert all(rows["overlay", threshold, group].kept == 1 for group in ("near", "new", "turned"))
    found = figures["overlay", threshold]
    assert found["had to go"] > 50
    assert (found["violations"], found["changed where nothing applies"]) == (0, 0)


def test_an_overlay_that_does_nothing_is_noticed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "Trimmed", lambda index, *_, **__: index)
    made = bench.Bench(bench.world_of(1000, 30, seed=3))
    found = bench.overlay(made, 1, "overlay", guard=True)
    assert found["violations"] == found["had to go"] > 0


def test_the_command_prints_a_table_and_leaves_json(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    small = ["--passages", "400", "--held", "20", "--thresholds", "1", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["trimming.py", *small])
    bench.main()
    printed = capsys.readouterr().out
    assert "| overlay | 1 |" in printed
    assert "violations 0" in printed
    found = json.loads(out.read_text(encoding="utf-8"))
    states = ["bare", "overlay", "overlay, no guard", "links cut", "links cut, holes", "deletion", "overlay, undone"]
    assert list(dict.fromkeys(row["state"] for row in found["rows"])) == states
    assert str(tmp_path) not in json.dumps(found)
