"""Passages encoded by a Ray cluster: an index's chunks, each made by whichever worker is free and kept until all are.

Ray Data deals the numbers of the missing chunks to a pool of workers, each of which loads the encoder once. A worker
reads its passages from the folder that is being built and leaves the chunk's files beside it, in `OUT.chunks`, which
the machines of the cluster share. A build that was killed finds them there and makes the others. Chunks have the size,
and their batches the composition, that one process gives them, so that the index is the one it would have built.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from blendfilter.errors import BadArgument, ServerRefused, WorkFailed, check_count
from blendfilter.extras import needed
from blendfilter.files import AnyPath, path_of
from blendfilter.journal import digest
from blendfilter.retrieval.base import ProgressCallback

LOCAL = "local"
"""The address of a cluster of this machine alone, which is started for the work."""
PATIENCE = 10.0
"""Seconds in which a cluster's address must take a connection."""
ENCODING = "encoding passages"


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Ray, connected to a cluster inside the block. Raises: MissingExtra, ServerRefused."""
    ray = needed("ray", "ray", "a run or an index by Ray")
    if ray.is_initialized():  # by the user, who ends it too
        yield ray
        return
    logging.getLogger("ray").setLevel(logging.ERROR)
    more = {"include_dashboard": False} if address == LOCAL else {}
    place = urlsplit(address if "://" in address else f"ray://{address}")
    try:
        if place.port is not None:  # ray itself would wait for minutes
            socket.create_connection(
                (place.hostname or "", place.port), timeout=PATIENCE
            ).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **more)
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        words = " ".join(str(error).split())[:300]
        raise ServerRefused(
            f"no Ray cluster answers at '{address}' ({words}): start one (ray start --head), or give address='local'"
        ).quoting(words) from None
    try:
        yield ray
    finally:
        ray.shutdown()


ChunkMaker = Callable[[int], object]
"""Makes one chunk, by its number: its files whole or not at all."""


class OnRay(NamedTuple):
    """A cluster that encodes passages.

    Attributes:
        address: `local`; `auto` for the cluster that this machine belongs to; or a cluster's, ``ray://HOST:10001``.
        workers: how many encode at a time; None: as many as there are processors, or GPUs where they take some.
        gpus: of each worker.
    """

    address: str = LOCAL
    workers: int | None = None
    gpus: float = 0.0

    def check(self, out: object) -> None:
        """Raise `BadArgument` for what cannot be."""
        if out is None:
            raise BadArgument(
                "an index that a cluster encodes lies in a folder: name one (out)"
            )
        if self.workers is not None:
            check_count("workers", self.workers)

    def make(
        self,
        maker: Callable[[], ChunkMaker],
        chunks: Sequence[int],
        done: Callable[[int], None],
    ) -> None:
        """Have workers make these chunks, each by its `maker()`; `done` gets the number of each. Raises: WorkFailed."""
        with connected(self.address) as ray:
            data = needed("ray.data", "ray", "an index by Ray")
            data.DataContext.get_current().enable_progress_bars = False
            logging.getLogger("ray.data").setLevel(logging.ERROR)
            kind = "GPU" if self.gpus else "CPU"
            there = int(ray.cluster_resources().get(kind, 1) / (self.gpus or 1))
            size = min(len(chunks), self.workers or max(1, there))
            numbers = [{"chunk": chunk} for chunk in chunks]
            encoded = data.from_items(numbers, override_num_blocks=len(chunks)).map_batches(
                _ChunkWorker,
                fn_constructor_args=(maker, os.getcwd()),
                compute=data.ActorPoolStrategy(size=size),
                batch_size=1,
                num_cpus=None if self.gpus else 1,
                num_gpus=self.gpus or None,
            )
            try:
                for row in encoded.iter_rows():
                    done(int(row["chunk"]))
            except ray.exceptions.RayError as error:
                lines = str(error).split("\n")
                last = next((line.strip() for line in reversed(lines) if line.strip()), "Ray")
                raise WorkFailed(
                    f"encoding by Ray failed ({last[:300]}); the same command goes on with the chunks that are missing"
                ) from None


class _ChunkWorker:
    """One of the pool: Ray Data gives it a batch of one chunk's number at a time."""

    def __init__(self, maker: Callable[[], ChunkMaker], cwd: str) -> None:
        with suppress(OSError):
            os.chdir(cwd)
        self._make = maker()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        for chunk in batch["chunk"]:
            self._make(int(chunk))
        return batch


class ChunkFolder:
    """Where chunks are kept until an index is made of them: `OUT.chunks`, of one build alone.

    Args:
        out: the index's folder.
        build: what decides the chunks: the corpus' hash, the encoder, the settings. Those of another build are removed.
        last: the file of a chunk that is written last, `{}` for its number.
    """

    def __init__(self, out: AnyPath, build: Sequence[Any], last: str) -> None:
        target = Path(os.path.realpath(path_of(out)))
        self.path, self._last = target.with_name(f"{target.name}.chunks"), last
        about = self.path / "build.json"
        wanted = json.dumps({"of": digest(*build)}) + "\n"
        if not about.is_file() or about.read_text(encoding="utf-8") != wanted:
            if self.path.exists() and not about.is_file():
                raise BadArgument(
                    f"{self.path} is there already and holds no chunks: move it, or name another index"
                )
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.mkdir(parents=True)
            about.write_text(wanted, encoding="utf-8")

    def missing(self, chunks: int) -> list[int]:
        """The numbers of those that are not there."""
        there = (self.path / self._last.format(chunk) for chunk in range(chunks))
        return [chunk for chunk, path in enumerate(there) if not path.exists()]

    def make(
        self,
        on: OnRay,
        maker: Callable[[], ChunkMaker],
        passages: int,
        size: int,
        progress: ProgressCallback,
    ) -> None:
        """Have a cluster make the missing chunks, of `size` passages each."""
        ends = [*range(0, passages, size), passages]
        missing = self.missing(len(ends) - 1)
        count = passages - sum(ends[chunk + 1] - ends[chunk] for chunk in missing)

        def done(chunk: int) -> None:
            nonlocal count
            count += ends[chunk + 1] - ends[chunk]
            progress(ENCODING, count, passages)

        progress(ENCODING, count, passages)
        if missing:
            on.make(maker, missing, done)

    def remove(self) -> None:
        """The index is made."""
        shutil.rmtree(self.path, ignore_errors=True)
