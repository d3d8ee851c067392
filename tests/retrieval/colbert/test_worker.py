"""Chunks encoded by processes beside this one: the same files, errors that are told, and nobody left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from blendfilter.errors import WorkFailed
from blendfilter.records import Passage
from blendfilter.retrieval.colbert import ColBERT, building
from blendfilter.retrieval.colbert import building as plan
from blendfilter.retrieval.colbert import building as worker
from blendfilter.retrieval.colbert import index as index_module
from blendfilter.retrieval.colbert.building import ENCODING, WorkerJob, chunks_of, compress, compress_beside
from blendfilter.retrieval.colbert.encoder import TokenEncoder
from blendfilter.retrieval.stored import StoredPassages

CHUNK = 40
IN_EVERY_PROCESS = f"""
import sys
if any("worker" in word for word in sys.orig_argv):
    sys.stderr.write("a library has much to say\\n" * 10_000)  # more than a pipe holds
    from blendfilter.retrieval.colbert import building, plan, worker
    for module in (building, plan, worker):
        module.CHUNK = {CHUNK}
"""
SLOWLY = """
import time
if any("worker" in word for word in sys.orig_argv):
    from blendfilter.retrieval.colbert.encoder import Encoder
    building.BLOCK = 1
    plain = Encoder.passages
    def slowly(*arguments):
        time.sleep(0.3)
        return plain(*arguments)
    Encoder.passages = slowly
"""
PARENT = """
import json, os, sys
from blendfilter.retrieval.colbert.building import Job, compress_beside
compress_beside([Job(*json.loads(sys.argv[1]), os.getpid())], 150)
"""


@pytest.fixture
def unfinished(index: ColBERT, tmp_path: Path) -> Path:
    """The folder of a build whose centroids are trained, and whose passages are not encoded yet."""
    assert index.path is not None
    folder = Path(shutil.copytree(index.path, tmp_path / "unfinished"))
    for path in [*folder.glob("0.*"), *folder.glob("doclens.*"), folder / "metadata.json", folder / "ivf.pid.pt"]:
        path.unlink()
    return folder


@pytest.fixture
def small_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Chunks of 40 passages, here and in the workers; returns the file that every new process runs first."""
    for module in (building, worker, plan):
        monkeypatch.setattr(module, "CHUNK", CHUNK)
    (tmp_path / "path").mkdir()
    start = tmp_path / "path" / "sitecustomize.py"
    start.write_text(IN_EVERY_PROCESS)
    monkeypatch.setenv("PYTHONPATH", str(start.parent), prepend=os.pathsep)
    return start


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that were started."""
    processes: list[subprocess.Popen[bytes]] = []
    plain = subprocess.Popen

    def start(*arguments: Any, **settings: Any) -> Any:
        processes.append(plain(*arguments, **settings))
        return processes[-1]

    monkeypatch.setattr(worker.subprocess, "Popen", start)
    return processes


def chunk_files(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for pattern in ("[0-9]*.codes.pt", "[0-9]*.residuals.pt", "[0-9]*.metadata.json", "doclens.*")
        for path in folder.glob(pattern)
    }


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
def test_two_workers_write_what_one_process_writes(
    unfinished: Path, checkpoint: Path, encoder: TokenEncoder, tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    alone = Path(shutil.copytree(unfinished, tmp_path / "alone"))
    list(compress(alone, StoredPassages(alone), encoder, 64, range(chunks_of(150))))
    told: list[Any] = []
    jobs = [WorkerJob(str(unfinished), str(checkpoint), "cpu", 220, 64, rank, 2, os.getpid()) for rank in range(2)]
    compress_beside(jobs, 150, lambda *row: told.append(row))
    assert len(chunk_files(alone)) == 4 * 4
    assert chunk_files(unfinished) == chunk_files(alone)
    assert told[-1] == (ENCODING, 150, 150)
    assert told == sorted(told)
    assert [process.poll() for process in started] == [0, 0]


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
def test_a_build_on_two_devices(
    index: ColBERT, towns: list[Passage], checkpoint: Path, monkeypatch: pytest.MonkeyPatch,
    started: list[subprocess.Popen[bytes]],
) -> None:  # fmt: skip
    monkeypatch.setattr(index_module, "devices_for", lambda gpus: ["cpu", "cpu"])
    other = ColBERT.build(towns, checkpoint=checkpoint)
    assert len(started) == 2
    for query in ("Which river is of 17?", "the king of the island"):
        assert [hit.id for hit in other(query, k=5)] == [hit.id for hit in index(query, k=5)]


def test_a_worker_that_fails_is_told_and_the_others_end(
    unfinished: Path, checkpoint: Path, tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    told = (checkpoint, tmp_path / "gone")
    jobs = [WorkerJob(str(unfinished), str(told[rank]), "cpu", 220, 64, rank, 2, os.getpid()) for rank in range(2)]
    said = r"^encoding on cpu \(1\) failed: .*MissingFile: no checkpoint at .*gone"
    with pytest.raises(WorkFailed, match=said) as error:
        compress_beside(jobs, 150)
    assert "\n" not in str(error.value)
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)


def test_a_worker_that_was_killed_says_how_it_ended(
    unfinished: Path, checkpoint: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    def kill(*_: Any) -> None:
        started[0].send_signal(signal.SIGKILL)
        started[0].wait()

    job = WorkerJob(str(unfinished), str(checkpoint), "cpu", 220, 64, 0, 1, os.getpid())
    with pytest.raises(WorkFailed, match=r"encoding on cpu \(0\) failed: exit status -9"):
        compress_beside([job], 150, kill)


def test_workers_end_with_a_build_that_is_stopped(
    unfinished: Path, checkpoint: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    job = WorkerJob(str(unfinished), str(checkpoint), "cpu", 220, 64, 0, 1, os.getpid())
    with pytest.raises(KeyboardInterrupt):
        compress_beside([job], 150, stop)
    assert started[0].poll() == -signal.SIGKILL


def running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def works(process: str) -> bool:
    """Whether it is a worker: what the parent imports may start short-lived processes of its own."""
    with suppress(OSError):
        return worker.__name__.encode() in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the worker in /proc")
def test_a_worker_whose_parent_was_killed_ends(unfinished: Path, checkpoint: Path, small_chunks: Path) -> None:
    """Killed as soon as the worker is there, long before it looks for its parent for the first time."""
    small_chunks.write_text(IN_EVERY_PROCESS + SLOWLY)
    job = [str(unfinished), str(checkpoint), "cpu", 220, 64, 0, 1]
    parent = subprocess.Popen([sys.executable, "-c", PARENT, json.dumps(job)], stderr=subprocess.DEVNULL)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    deadline = time.monotonic() + 60
    while not (found := [*filter(works, children.read_text().split())]) and time.monotonic() < deadline:
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    (child,) = map(int, found)
    assert running(child)
    while running(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    try:
        assert not running(child)
        assert not list(unfinished.glob("0.codes.pt")), "it did not go on to the end of a chunk (12 s)"
    finally:
        if running(child):
            os.kill(child, signal.SIGKILL)
