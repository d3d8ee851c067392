"""One process of a build over several GPUs: `python -m blendfilter.retrieval.colbert.worker JOB`.

In: a `Job` as JSON, on the command line. Out: the chunks whose numbers are `rank`, `rank + of`, …; the parent counts
their files. A process of its own, and no fork of the parent: it needs no guard in anybody's script, and sees one GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from blendfilter.errors import WorkFailed
from blendfilter.retrieval.colbert.building import ENCODING, compress, writing
from blendfilter.retrieval.colbert.checkpoint import Checkpoint
from blendfilter.retrieval.colbert.encoder import Encoder
from blendfilter.retrieval.colbert.plan import CHUNK
from blendfilter.retrieval.passages import StoredPassages
from blendfilter.retrieval.progress import Progress, silent

LOOK_EVERY = 0.2
"""Seconds between two looks at the workers."""


class Job(NamedTuple):
    """One worker's part."""

    folder: str
    checkpoint: str
    device: str
    doc_maxlen: int
    batch_size: int
    rank: int
    of: int
    parent: int
    """Its process id."""


def run(job: Job) -> None:
    """Encode this worker's chunks; ends when the parent is gone."""
    folder = Path(job.folder)
    passages = StoredPassages(folder)
    encoder = Encoder(Checkpoint(job.checkpoint), job.device, doc_maxlen=job.doc_maxlen)
    chunks = range(job.rank, chunks_of(len(passages)), job.of)
    with writing(folder):
        for _ in compress(folder, passages, encoder, job.batch_size, chunks):
            if os.getppid() != job.parent:
                return


def chunks_of(passages: int) -> int:
    """How many chunks so many passages make."""
    return -(-passages // CHUNK)


def compress_beside(jobs: Sequence[Job], passages: int, progress: Progress = silent) -> None:
    """Run a worker a job and wait for all. Raises `WorkFailed`, with its last line, where one ends badly."""
    with ExitStack() as stack:
        started = [stack.enter_context(_started(job)) for job in jobs]
        while not all([_ended_well(worker) for worker in started]):  # noqa: C419 - each is looked at each time
            done = len(list(Path(jobs[0].folder).glob("[0-9]*.metadata.json")))
            progress(ENCODING, min(done * CHUNK, passages), passages)
            time.sleep(LOOK_EVERY)
        progress(ENCODING, passages, passages)


class _Worker(NamedTuple):
    job: Job
    process: subprocess.Popen[bytes]
    said: IO[bytes]


@contextmanager
def _started(job: Job) -> Iterator[_Worker]:
    """The worker of a job; it does not outlive the block."""
    visible = {"CUDA_VISIBLE_DEVICES": _gpu(job.rank)} if job.device == "cuda" else {}
    with tempfile.TemporaryFile() as said:  # a pipe that nobody reads would stop it once it is full
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(job)],
            env={**os.environ, **visible}, stdout=subprocess.DEVNULL, stderr=said,
        )  # fmt: skip
        try:
            yield _Worker(job, process, said)
        finally:
            process.kill()
            process.wait()


def _ended_well(worker: _Worker) -> bool:
    state = worker.process.poll()
    if state:
        worker.said.seek(0)
        said = worker.said.read().decode(errors="replace").strip().splitlines()
        where = f"{worker.job.device} ({worker.job.rank})"
        raise WorkFailed(f"encoding on {where} failed: {said[-1] if said else f'exit status {state}'}")
    return state == 0


def _gpu(rank: int) -> str:
    """The name of the GPU that is number `rank` among those that this process may see."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return seen.split(",")[rank] if seen else str(rank)


if __name__ == "__main__":
    run(Job(*json.loads(sys.argv[1])))
