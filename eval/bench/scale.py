"""Runs beyond one process: shards, Ray and batches, killed and resumed.

    python eval/bench/scale.py shards [--questions 500] [--data FILE --corpus FILE]
    python eval/bench/scale.py encode --corpus FILE [--passages 20000]
    python eval/bench/scale.py pair [--questions 400] [--data FILE --corpus FILE]
    python eval/bench/scale.py batches [--questions 100] [--turnaround 30] [--data FILE --corpus FILE]

`shards` evaluates in one process, in 2 and in 7 shards of which one is killed and resumed, and by two Ray workers of
which one is killed, and compares the bytes; the offline reader answers.

`pair` measures one process against two shards side by side, over a server that answers at once: further calls a second.

`encode` builds a dense and a late-interaction index (MiniLM; MiniLM with a projection made up here) in one process and
by two Ray workers, on the first passages of the corpus, cut to 60 words: wall time, and whether the hits are the same.

`batches` asks a provider made up here (`tests/batch_server.py`, the offline reader) in batches that take --turnaround
seconds, 2 % of whose lines fail, from a process that is killed five times; beside it the same run live.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from batch_server import batching
from checkpoints import minilm, minilm_colbert
from model_server import serve
from small_world import stable

import blendfilter as bf
from blendfilter.evaluation.control import running
from blendfilter.retrieval.on_ray import OnRay

FAILING = 0.02
"""The share of lines that fail."""


def batches(given: argparse.Namespace) -> None:
    """The same run live, and in batches by a process that is killed five times."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with serve(reply="offline") as server:
            assert process(folder / "live", given, server.url).wait() == 0
        with batching(delay=given.turnaround, share=FAILING) as provider:
            began = time.time()
            for kill in range(1, 6):
                running = process(folder / "batches", given, provider.url, "--batch")
                while len(provider.created) < kill and running.poll() is None:
                    time.sleep(0.05)
                time.sleep(given.turnaround * (kill - 1) / 4)  # as soon as it is made … when it is answered
                running.send_signal(signal.SIGKILL)
                running.wait()
            assert process(folder / "batches", given, provider.url, "--batch").wait() == 0
            took = time.time() - began
        live, gathered = bf.Run(folder / "live"), bf.Run(folder / "batches")
        same = sum(a["answer"] == b["answer"] for a, b in zip(live.rows, gathered.rows, strict=True))
        calls = [run.metrics["ledger"]["total"]["calls"] for run in (live, gathered)]
        print(f"{len(live.rows)} questions, killed 5 times, {took:.0f} s: batches of {provider.created} lines, "
              f"{provider.singly} calls singly")  # fmt: skip
        print(f"answers as of live calls: {same}; calls: {calls[0]} live, {calls[1]} in batches; lines answered more "
              f"than once: {sum(n > 1 for n in provider.paid.values())}")  # fmt: skip


def shards(given: argparse.Namespace) -> None:
    """The same run in one process, in shards and by Ray, each with a kill."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        assert process(folder / "whole", given, "").wait() == 0
        whole = stable(folder / "whole")
        for of in (2, 7):
            parts = [folder / f"{number}of{of}" for number in range(1, of + 1)]
            killed = process(parts[0], given, "", "--shard", f"1/{of}")
            while len(lines_of(parts[0])) < given.questions // of // 2:
                time.sleep(0.01)
            killed.send_signal(signal.SIGKILL)
            killed.wait()
            for number, part in enumerate(parts, 1):
                assert process(part, given, "", "--shard", f"{number}/{of}").wait() == 0
            merged = bf.merge(*parts, out=folder / f"merged{of}")
            print(f"{of} shards, one killed after {given.questions // of // 2} answers: the same bytes: "
                  f"{stable(merged.folder) == whole}", flush=True)  # fmt: skip
        by_ray = process(folder / "ray", given, "", "--ray", "local", "--shards", "2")
        part = folder / "ray.shards" / "1of2"
        while len(lines_of(part)) < given.questions // 4:
            time.sleep(0.01)
        (state,) = [each for each in running() if each.run.folder == part]
        os.kill(state.pid, signal.SIGKILL)
        assert by_ray.wait() == 0
        print(f"by Ray, a worker killed after {given.questions // 4} answers: the same bytes: "
              f"{stable(folder / 'ray') == whole}")  # fmt: skip


def pair(given: argparse.Namespace) -> None:
    """Calls a second of one process and of two shards, without what it takes to start."""
    with tempfile.TemporaryDirectory() as scratch, serve(reply="So the answer is 42.") as server:
        folder = Path(scratch)

        def took(name: str, questions: int, shards: int) -> float:
            run = argparse.Namespace(**{**vars(given), "questions": questions})
            began = time.time()
            parts = [
                process(folder / f"{name}{at}", run, server.url, "--concurrency", "32", "--shard", f"{at}/{shards}")
                for at in range(1, shards + 1)
            ]
            assert all(part.wait() == 0 for part in parts)
            return time.time() - began

        seconds = {
            shards: took(f"many{shards}-", 40 + given.questions, shards) - took(f"few{shards}-", 40, shards)
            for shards in (1, 2)
        }
        calls = [bf.Run(folder / f"{name}1-1").metrics["ledger"]["total"]["calls"] for name in ("few", "many")]
        further = calls[1] - calls[0]
        print(f"{further} further calls: {further / seconds[1]:.0f} a second in one process, "
              f"{further / seconds[2]:.0f} in two shards: {seconds[1] / seconds[2]:.2f} x")  # fmt: skip


def encode(given: argparse.Namespace) -> None:
    """Indexes by one process and by two workers of Ray."""
    import ray

    passages = [bf.Passage(each.id, each.title, " ".join(each.text.split()[:60]))
                for each in islice(bf.read_corpus(given.corpus), given.passages)]  # fmt: skip
    queries = [passage.title for passage in passages[:: max(1, len(passages) // 200)]]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        makers: dict[str, Callable[..., Any]] = {
            "dense": partial(bf.Dense.build, passages, encoder=minilm()),
            "colbert": partial(bf.ColBERT.build, passages, checkpoint=minilm_colbert(), partitions=1024),
        }
        for kind, make in makers.items():
            began = time.time()
            alone = make(folder / f"{kind}-1")
            middle = time.time()
            by_ray = make(folder / f"{kind}-2", on=OnRay(workers=2))
            took, with_ray = middle - began, time.time() - middle
            found = [[(hit.id, hit.score) for hit in hits] for hits in alone.search(queries, 10)]
            same = sum(
                [(hit.id, hit.score) for hit in hits] == other
                for hits, other in zip(by_ray.search(queries, 10), found, strict=True)
            )
            as_one = "the same" if alone.fingerprint == by_ray.fingerprint else "another"
            print(f"{kind}: {len(passages):,} passages, {took:.0f} s in one process, {with_ray:.0f} s by Ray "
                  f"({with_ray / took:.2f} x); hits the same for {same} of {len(queries)} queries; "
                  f"fingerprint {as_one}", flush=True)  # fmt: skip
    ray.shutdown()


def lines_of(run: Path) -> list[bytes]:
    """The answers of a run that is under way."""
    path = run / "predictions.jsonl"
    return path.read_bytes().splitlines() if path.exists() else []


def process(folder: Path, given: argparse.Namespace, url: str, *more: str) -> subprocess.Popen[bytes]:
    """An evaluation in a process of its own."""
    words = ["eval", "hotpotqa", "--data", given.data, "--corpus", given.corpus, "--limit", given.questions,
             *(["--lm", "m", "--api-base", url] if url else ["--lm", "offline"]), "--run", folder, "--no-html",
             "--max-bad-replies", 1, *more]  # fmt: skip
    code = "from blendfilter.cli import main, options; options.BatchOptions.poll = 0.5; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def main() -> None:
    """Do what is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(required=True)
    sources = {"data": "sample", "corpus": "sample"}
    for work, options in (
        (shards, {"questions": 500, **sources}),
        (pair, {"questions": 400, **sources}),
        (encode, {"corpus": "sample", "passages": 20_000}),
        (batches, {"questions": 100, "turnaround": 30.0, **sources}),
    ):
        command = what.add_parser(work.__name__, help=work.__doc__)
        command.set_defaults(work=work)
        for name, default in options.items():
            command.add_argument(f"--{name}", type=type(default), default=default)
    given = parser.parse_args()
    given.work(given)


if __name__ == "__main__":
    main()
