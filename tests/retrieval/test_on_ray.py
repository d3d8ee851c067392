"""Indexes whose passages a Ray cluster encodes: the index of one process, and a build that goes on after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import tiny_bert, tiny_colbert
from small_world import Command, shell

from blendfilter import ColBERT, Dense
from blendfilter.errors import BadArgument, WorkFailed
from blendfilter.retrieval.on_ray import ChunkFolder, OnRay

ray = pytest.importorskip("ray", reason="the extra ray is not installed")
pytestmark = pytest.mark.slow
QUERIES = ["word 12 word 70", "word 9999", "a passage of word 4242"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Passages of different lengths: six chunks of a dense index, two of a late-interaction one."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    rows = ({"id": str(n), "title": f"p{n}", "text": f"word {n} " * (1 + n % 7)} for n in range(10_300))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


BUILDS: dict[str, Any] = {
    "dense": lambda corpus, out, **more: Dense.build(corpus, out, encoder=tiny_bert(), **more),
    "colbert": lambda corpus, out, **more: ColBERT.build(corpus, out, checkpoint=tiny_colbert(), partitions=64, **more),
}


def hits(index: Any) -> list[list[tuple[str, float | None]]]:
    return [[(passage.id, passage.score) for passage in found] for found in index.search(QUERIES, 5)]


@pytest.mark.parametrize("kind", BUILDS)
def test_an_index_that_a_cluster_encodes_is_that_of_one_process(
    kind: str, cluster: None, corpus: Path, tmp_path: Path
) -> None:
    alone = BUILDS[kind](corpus, tmp_path / "alone")
    seen = list[tuple[str, int]]()
    by_ray = BUILDS[kind](corpus, tmp_path / "by-ray", on=OnRay(), progress=lambda *told: seen.append(told[:2]))
    assert by_ray.fingerprint == alone.fingerprint
    assert hits(by_ray) == hits(alone)
    assert ("encoding passages", 10_300) in seen
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "by-ray"]  # no chunks are left


@pytest.mark.parametrize("kind", BUILDS)
def test_a_build_goes_on_with_the_chunks_that_are_missing(
    kind: str, cluster: None, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[list[int]]()
    make = OnRay.make

    def once(self: OnRay, maker: Any, chunks: list[int], done: Any) -> None:
        made.append(list(chunks))
        make(self, maker, chunks[:1] if len(made) == 1 else chunks, done)
        if len(made) == 1:
            raise WorkFailed("the power failed")

    monkeypatch.setattr(OnRay, "make", once)
    with pytest.raises(WorkFailed):
        BUILDS[kind](corpus, tmp_path / "index", on=OnRay())
    assert not (tmp_path / "index").exists()
    index = BUILDS[kind](corpus, tmp_path / "index", on=OnRay())
    assert made[1] == made[0][1:]
    assert hits(index) == hits(BUILDS[kind](corpus, tmp_path / "alone"))


def test_the_command_is_killed_and_goes_on(corpus: Path, tmp_path: Path) -> None:
    words = ["index", str(corpus), "--engine", "dense", "--encoder", str(tiny_bert()), "--out", str(tmp_path / "index"),
             "--ray", "local", "--ray-workers", "1"]  # fmt: skip
    process = subprocess.Popen([sys.executable, "-m", "blendfilter.cli", *words], start_new_session=True)
    chunks = tmp_path / "index.chunks"
    while not [*chunks.glob("[0-9]*.npz")] and process.poll() is None:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert shell(*words, timeout=300).code == 0
    assert Dense.open(tmp_path / "index").search(["word 12"], 1)
    assert not chunks.exists()


def test_chunks_of_another_build_are_not_taken(tmp_path: Path) -> None:
    first = ChunkFolder(tmp_path / "index", ["a", 1], "{}.json")
    (first.path / "0.json").write_text("{}")
    assert ChunkFolder(tmp_path / "index", ["a", 1], "{}.json").missing(2) == [1]
    assert ChunkFolder(tmp_path / "index", ["b", 1], "{}.json").missing(2) == [0, 1]
    (tmp_path / "other.chunks").mkdir()
    with pytest.raises(BadArgument, match="is there already and holds no chunks"):
        ChunkFolder(tmp_path / "other", ["a"], "{}.json")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--ray", "local"], "--ray encodes the passages of one colbert or dense index"),
        (["--ray-workers", 2], "--ray-workers goes with --ray: add that"),
    ],
)
def test_what_a_cluster_does_not_do_is_one_line(options: list[object], words: str, blendfilter: Command) -> None:
    refused = blendfilter("index", "sample", "--out", "index", *options)
    assert (refused.code, words in refused.error) == (2, True), refused.error


def test_an_index_of_a_cluster_lies_in_a_folder() -> None:
    with pytest.raises(BadArgument, match="lies in a folder"):
        Dense.build([{"text": "a"}], encoder=tiny_bert(), on=OnRay())
