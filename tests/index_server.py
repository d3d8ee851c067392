"""Index servers for tests: in a thread over any index, or the command itself as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blendfilter import resources
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.bm25 import BM25
from blendfilter.server.running import IndexServer

ROOT = Path(__file__).parents[1]


def sample_index(out: Path | None = None, **settings: Any) -> BM25:
    """BM25 over the sample world."""
    return BM25.build(resources.sample("corpus.jsonl"), out, **settings)


@contextmanager
def served(index: Retriever, **options: Any) -> Iterator[IndexServer]:
    """A server for `index` on a free port, in a thread of this process."""
    server = IndexServer(index, **{"port": 0, **options})
    ready = threading.Event()
    thread = threading.Thread(target=server.run, args=(ready.set,), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield server
    finally:
        server.stop()
        thread.join(20)
        assert not thread.is_alive()


class Process:
    """`blendfilter serve …` in a process of its own; `line` is what it printed once it was there.

    `files` is how many it may open.
    """

    def __init__(self, *words: object, token: str = "", code: str = "", files: int = 0) -> None:
        run = [sys.executable, *(["-c", code] if code else ["-m", "blendfilter.cli", "serve"])]
        if files:
            run = ["sh", "-c", 'ulimit -n "$0"; exec "$@"', str(files), *run]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
        environment.pop("BLENDFILTER_INDEX_TOKEN", None)
        self.process = subprocess.Popen(
            [*run, *map(str, words)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment | ({"BLENDFILTER_INDEX_TOKEN": token} if token else {}),
        )  # fmt: skip
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline().rstrip("\n")
        self.url = self.line.partition(" ")[0]

    def end(self, how: int = signal.SIGTERM) -> tuple[int, str]:
        """Its exit code and what it said on stderr, after a signal."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            _, result = self.process.communicate(timeout=600)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, result

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
