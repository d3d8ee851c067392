"""What a server that fails costs a run of BlendFilter: a clean server, a flaky one, and two of which one is killed.

    python eval/bench/faults.py [--questions 200] [--share 0.2] [--concurrency 32] [--delay 0.02]

Questions and passages are those of the sample world (its own, then one about each passage); the offline reader answers
from a server in a process of its own, which fails a share of the calls in five ways: a 429 with ``Retry-After``, a 500,
a dropped connection, a page in place of JSON, JSON that is cut off. Checked: `predictions.jsonl` and `metrics.json` are
the clean run's byte for byte, no call is lost or journaled twice, and every fault of the server is an attempt in the
journal. Told: calls, faults by kind, retries, and the time in terms of the clean run's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from model_server import Server, serve
from small_world import Watching

import blendfilter as bf
from blendfilter.resources import sample

FILES = ("predictions.jsonl", "metrics.json")


def questions(count: int) -> Any:
    """The sample's questions, and more about its passages."""
    rows = [json.loads(line) for line in sample("questions.jsonl").read_text().splitlines()]
    asked = [{name: row[name] for name in ("id", "question", "golden_answers")} for row in rows]
    for passage in map(json.loads, sample("corpus.jsonl").read_text().splitlines()):
        text = f"What is {passage['title']} known for?"
        asked.append({"id": passage["id"], "question": text, "golden_answers": [passage["title"]]})
    return bf.load("qa", asked[:count])


def answered(args: argparse.Namespace, folder: Path, servers: list[Server], at: Any = lambda count: None) -> float:
    """A run over these servers; seconds."""
    lm = bf.connect("any/model", api_base=[server.url for server in servers])
    method, asked = bf.BlendFilter(bf.BM25.for_corpus(sample("corpus.jsonl"))), questions(args.questions)
    began = time.perf_counter()
    run = bf.evaluate(method, asked, lm=lm, run=folder, concurrency=args.concurrency, progress=Watching(at))
    if run.errors:
        raise SystemExit(f"{run.errors} questions ended in an error")
    return time.perf_counter() - began


def check(folder: Path, clean: Path, servers: list[Server]) -> tuple[int, int, Counter[str]]:
    """Calls, retries and calls by address of a run, which must be the clean one but for those."""
    with bf.Journal(folder, "replay") as journal:
        calls = [record for record in journal.records() if record["kind"] == "call"]
    counted = [server.stats() for server in servers]
    if [(folder / name).read_bytes() for name in FILES] != [(clean / name).read_bytes() for name in FILES]:
        raise SystemExit("the results are not those of the clean run")
    if len({record["key"] for record in calls}) != len(calls):
        raise SystemExit("a call is journaled twice")
    retries = sum(record["attempts"] - 1 for record in calls)
    if counted and len(calls) != sum(each["answered"] for each in counted):
        raise SystemExit("the journal and the server do not agree on the calls")
    if counted and retries != sum(sum(each["faults"].values()) for each in counted):
        raise SystemExit("the journal and the server do not agree on the faults")
    return len(calls), retries, Counter(record["address"] for record in calls)


def main() -> None:
    """Run the three, check and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--share", type=float, default=0.2, help="of the calls, fails")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--delay", type=float, default=0.02, help="seconds that each reply takes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        clean, flaky, killed = (Path(place) / name for name in ("clean", "flaky", "killed"))
        with serve(reply="offline", delay=args.delay) as server:
            usual = answered(args, clean, [server])
            calls, _, _ = check(clean, clean, [server])
        print(f"clean: {args.questions} questions, {calls:,} calls, {calls / usual:.0f} calls a second")
        with serve(reply="offline", delay=args.delay, behave="flaky", share=args.share, retry_after=1) as server:
            took = answered(args, flaky, [server])
            calls, retries, _ = check(flaky, clean, [server])
            faults = server.stats()["faults"]
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(faults.items()))
        print(f"flaky: {calls:,} calls, {sum(faults.values())} faults ({kinds}), {retries} retries; "
              f"{took / usual:.2f} x the clean run's time; the same bytes")  # fmt: skip
        one, other = (serve(reply="offline", delay=args.delay) for _ in range(2))
        with one, other:
            shared: list[int] = []

            def kill(count: int) -> None:
                if count == args.questions // 2:
                    shared.extend(server.stats()["requests"] for server in (one, other))
                    threading.Thread(target=one.stop).start()

            took = answered(args, killed, [one, other], kill)
        calls, retries, _ = check(killed, clean, [])
        print(f"two servers: {shared[0]} and {shared[1]} calls until one is killed; {retries} retries; "
              f"{took / usual:.2f} x the clean run's time; the same bytes")  # fmt: skip


if __name__ == "__main__":
    main()
