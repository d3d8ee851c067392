"""The ledger against a server's own count, what a call leaves in memory, and how long a journal takes to read.

    python eval/bench/accounts.py ledger|kills|memory|reading [--kills 5] [--at-once 32] [--calls 5000]

BlendFilter over the sample world, answered by `tests/model_server.py` in a process of its own. `ledger`: calls and
tokens with a fifth of the calls failing. `kills`: the same command killed at random moments and run again; a call that
was answered while its process died is in the server's count and in no record. `memory`: bytes that Python's allocator
holds more for each further call. `reading`: opening a journal, and reading its calls as a budget does, as multiples of
the shortest.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from growth import Watch
from kill import finish, start
from model_server import Server, serve

import blendfilter as bf
from blendfilter.journal import digest
from blendfilter.lm.budget import Budget
from blendfilter.resources import sample

COUNTED = ("calls", "tokens_in", "tokens_out")


def answered(server: Server) -> tuple[int, ...]:
    """The server's own count of what it answered in full: calls, tokens in, tokens out."""
    stats = server.stats()
    return stats["requests"] - sum(stats["faults"].values()), stats["tokens_in"], stats["tokens_out"]


def accounted(folder: Path) -> tuple[int, ...]:
    """The same by the run's ledger."""
    total = bf.Run(folder).metrics["ledger"]["total"]
    return tuple(total[name] for name in COUNTED)


def ledger(args: argparse.Namespace, folder: Path) -> None:
    """With faults, many in flight."""
    method, questions = bf.BlendFilter(bf.BM25.build(sample("corpus.jsonl"))), bf.load("qa", "sample")
    with serve(reply="offline", behave="flaky", jitter=1, jitter_max=0.02) as server:
        lm = bf.connect("any/model", api_base=server.url)
        run = bf.evaluate(method, questions, lm=lm, run=folder, concurrency=args.at_once, progress=False)
        theirs, stats = answered(server), server.stats()
    print(f"{len(questions)} questions, at most {stats['max_in_flight']} in flight, {stats['requests']} requests, "
          f"faults {stats['faults']}, errors {run.errors}")  # fmt: skip
    for name, here, there in zip(COUNTED, accounted(folder), theirs, strict=True):
        print(f"  {name}: ledger {here:,}, server {there:,}")


def kills(args: argparse.Namespace, folder: Path) -> None:
    """Killed at random moments, in the end left alone."""
    chance, at_once = random.Random(5), ("--concurrency", str(args.at_once))
    with serve(reply="offline", delay=0.05, jitter=1, jitter_max=0.05) as server:
        for sitting in range(args.kills + 1):
            before = server.stats()["requests"]
            process = start(folder, server.url, ["--method", "blendfilter"], *at_once)
            if sitting == args.kills:
                finish(process)
                break
            while server.stats()["requests"] == before and process.poll() is None:
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.5))
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        time.sleep(0.5)
        theirs = answered(server)
    lost, most = theirs[0] - accounted(folder)[0], args.kills * args.at_once
    print(f"{args.kills} kills, {args.at_once} in flight: the server answered {theirs[0]:,} calls, {lost} of which are "
          f"in no record (at most {most})")  # fmt: skip
    if not 0 <= lost <= most:
        raise SystemExit("the account is wrong")


def memory(args: argparse.Namespace, folder: Path) -> None:
    """A long run, many in flight, with a budget that never ends it; read between its third and its seventh tenth.

    Before and after, the number of questions under work changes, and each of them holds some 100 kB.
    """
    method, questions = bf.BlendFilter(bf.BM25.build(sample("corpus.jsonl"))), bf.load("qa", "sample")
    repeats, watch = -(-args.calls // (10 * len(questions))), Watch()
    with serve(reply="offline", delay=0.05) as server:
        lm = bf.connect("any/model", api_base=server.url)
        bf.evaluate(method, questions[:20], lm=lm, run=folder / "warm", progress=False)
        tracemalloc.start()
        bf.evaluate(
            method, questions, lm=lm, run=folder / "run", repeats=repeats, concurrency=args.at_once, progress=watch,
            budget=Budget(calls=10**9, tokens=10**12),
        )  # fmt: skip
        tracemalloc.stop()
        most = server.stats()["max_in_flight"]
    (first, held), (last, holds) = watch.readings[2], watch.readings[6]
    grown = (holds - held) / (last - first)
    print(f"{watch.calls:,} calls, at most {most} in flight: memory grows by {grown:.0f} bytes a call")
    print("  MB at each tenth: " + ", ".join(f"{held / 1e6:.2f}" for _, held in watch.readings))


def reading(args: argparse.Namespace, folder: Path) -> None:
    """Journals of calls of 4 kB, each twice as long as the one before."""
    record = {
        "kind": "call", "stage": "check", "model": "m", "prompt": "word " * 600, "reply": "word " * 100, "attempts": 1,
        "tokens_in": 600, "tokens_out": 100, "error": None,
    }  # fmt: skip
    first: tuple[float, ...] = ()
    for records in (args.calls * factor for factor in (1, 2, 4, 8)):
        path = folder / f"{records}.jsonl"
        with bf.Journal(path) as journal:
            journal.append(*({"key": digest(number), **record} for number in range(records)))
        opening = quickest(lambda path=path: bf.Journal(path, "replay").close())
        with bf.Journal(path, "replay") as journal:
            counting = quickest(lambda journal=journal: sum(1 for _ in journal.records("call")))
        first = first or (opening, counting)
        print(f"{records:,} records, {path.stat().st_size / 1e6:.0f} MB: opened in {1000 * opening:.0f} ms "
              f"({opening / first[0]:.2f} x), calls read in {1000 * counting:.0f} ms ({counting / first[1]:.2f} x)",
              flush=True)  # fmt: skip
        path.unlink()


def quickest(work: Callable[[], object], rounds: int = 9) -> float:
    """Processor seconds of the quickest of some rounds: what else the machine did is in the others."""
    took = []
    for _ in range(rounds):
        begun = time.process_time()
        work()
        took.append(time.process_time() - begun)
    return min(took)


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[work.__name__ for work in (ledger, kills, memory, reading)])
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--calls", type=int, default=5000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        globals()[args.what](args, Path(scratch) / "run")


if __name__ == "__main__":
    main()
