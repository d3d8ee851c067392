"""Runs beyond one process: when batches go out (simulated), and a killed run in batches (measured).

    python eval/bench/scale.py rule [--questions 20000]
    python eval/bench/scale.py shards [--questions 500] [--data FILE --corpus FILE]
    python eval/bench/scale.py predict [--questions 100] [--delay 0.3] [--in-flight 16] [--data FILE --corpus FILE]
    python eval/bench/scale.py encode --corpus FILE [--passages 20000]
    python eval/bench/scale.py pair [--questions 400] [--data FILE --corpus FILE]
    python eval/bench/scale.py batches [--questions 100] [--turnaround 30] [--data FILE --corpus FILE]

`rule` simulates BlendFilter's ten calls a question, five deep, in batches of a provider whose turnaround is drawn anew
for each (log-normal, median one hour; one in ten takes twelve times as long), where 2 % of the lines fail: so many
batches, of which so few lines, and the hours until the last answer, for the rule that is built in (`worth_sending`) and
for others.

`shards` evaluates in one process, in 2 and in 7 shards of which one is killed and resumed, and by two Ray workers of
which one is killed, and compares the bytes; the offline reader answers.

`pair` measures one process against two shards side by side, over a server that answers at once: further calls a second.

`predict` measures the processor time of a call (a server that answers at once), simulates a run over a server that
takes --delay seconds a call, with so many in flight, and measures that run; then it says what a million calls take.

`encode` builds a dense and a late-interaction index (MiniLM; MiniLM with a projection made up here) in one process and
by two Ray workers, on the first passages of the corpus, cut to 60 words: wall time, and whether the hits are the same.

`batches` asks a provider made up here (`tests/batch_server.py`, the offline reader) in batches that take --turnaround
seconds, 2 % of whose lines fail, from a process that is killed five times; beside it the same run live.
"""

from __future__ import annotations

import argparse
import heapq
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import count, islice
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from batch_server import batching
from checkpoints import minilm, minilm_colbert
from model_server import serve
from small_world import stable

import blendfilter as bf
from blendfilter.evaluation.control import running
from blendfilter.evaluation.plan import duration
from blendfilter.lm.batches import MOST_LINES, worth_sending
from blendfilter.retrieval.on_ray import OnRay

NEEDS = {
    "external": (), "internal": (), "check_q": (), "ids_q": ("check_q",),
    "check_ex": ("external",), "ids_ex": ("check_ex",), "check_in": ("internal",), "ids_in": ("check_in",),
    "answer": ("ids_q", "ids_ex", "ids_in"), "short_answer": ("answer",),
}  # fmt: skip
"""Each call of a question, and those before it."""
FAILING, LATE = 0.02, 0.1
"""The shares of lines that fail, and of batches that take twelve times as long."""
RULES: dict[str, Callable[[int, int], bool]] = {
    "what waits, at least a quarter of what is out": worth_sending,
    "at least a tenth": lambda waiting, out: waiting * 10 >= out,
    "at least as many": lambda waiting, out: waiting >= out,
    "whatever waits, at once": lambda waiting, out: True,
    "when nothing is out": lambda waiting, out: out == 0,
}


def simulated(questions: int, rule: Callable[[int, int], bool], seed: int) -> tuple[list[int], float]:
    """The sizes of the batches, and the hours until the last answer."""
    draw, now, numbers = random.Random(seed), 0.0, count()
    done: list[set[str]] = [set() for _ in range(questions)]
    asked: list[set[str]] = [set() for _ in range(questions)]
    waiting: list[tuple[int, str]] = []
    out: list[tuple[float, int, list[tuple[int, str]]]] = []
    sizes: list[int] = []

    def go_on(question: int) -> None:
        for call, needs in NEEDS.items():
            if call not in asked[question] and done[question].issuperset(needs):
                asked[question].add(call)
                waiting.append((question, call))

    for question in range(questions):
        go_on(question)
    while waiting or out:
        if waiting and not out and len(waiting) < bf.Batch.fewest:  # asked singly
            for question, call in waiting[:]:
                waiting.remove((question, call))
                done[question].add(call)
                go_on(question)
            continue
        if waiting and rule(len(waiting), sum(len(lines) for _, _, lines in out)):
            for start in range(0, len(waiting), MOST_LINES):
                lines = waiting[start : start + MOST_LINES]
                sizes.append(len(lines))
                late = 12.0 if draw.random() < LATE else 1.0
                heapq.heappush(out, (now + late * draw.lognormvariate(0.0, 0.7), next(numbers), lines))
            waiting.clear()
        now, _, lines = heapq.heappop(out)
        for question, call in lines:
            if draw.random() < FAILING:
                waiting.append((question, call))
            else:
                done[question].add(call)
                go_on(question)
    return sizes, now


def rule(given: argparse.Namespace) -> None:
    """The table of the rules."""
    print("| what goes out | batches | median lines | under 100 lines | hours |\n|" + " --- |" * 5)
    for name, when in RULES.items():
        runs = [simulated(given.questions, when, seed) for seed in range(given.seeds)]
        figures = [
            (len(sizes), median(sizes), sum(size < 100 for size in sizes), hours) for sizes, hours in runs
        ]  # fmt: skip
        batches, lines, small, hours = (fmean(column) for column in zip(*figures, strict=True))
        print(f"| {name} | {batches:.0f} | {lines:,.0f} | {small:.0f} | {hours:.1f} |")


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


def predict(given: argparse.Namespace) -> None:
    """How long a run takes, by calculation and by the clock."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)

        def took(name: str, questions: int, delay: float) -> tuple[float, float, int]:
            """Seconds of the clock and of the processor, and calls, of a run."""
            with serve(reply="offline", delay=delay) as server:
                began = time.time()
                run = argparse.Namespace(**{**vars(given), "questions": questions})
                ended = process(folder / name, run, server.url, "--concurrency", str(given.in_flight))
                _, code, used = os.wait4(ended.pid, 0)
                assert code == 0
                calls = bf.Run(folder / name).metrics["ledger"]["total"]["calls"]
                return time.time() - began, used.ru_utime + used.ru_stime, calls

        few, many = took("few", 8, 0.0), took("many", 8 + given.questions, 0.0)
        a_call = (many[1] - few[1]) / (many[2] - few[2])
        per_question = (many[2] - few[2]) / given.questions
        start = few[0] - few[2] * a_call
        expected = start + clocked(given.questions, given.in_flight, given.delay, a_call * per_question / len(NEEDS))
        measured, _, calls = took("run", given.questions, given.delay)
        print(f"{1000 * a_call:.2f} ms of the processor a call, {start:.1f} s to start; {given.questions} questions, "
              f"{calls} calls of {given.delay:g} s, {given.in_flight} in flight: {expected:.1f} s expected, "
              f"{measured:.1f} s measured ({expected / measured:.2f} x)")  # fmt: skip
        print("| a million calls of | in flight | 1 process | 4 machines of 8 | 16 machines of 8 |\n|" + " --- |" * 5)
        for delay, in_flight in ((0.5, 32), (0.5, 128), (2.0, 64), (2.0, 256)):
            seconds = 1e6 * max(a_call, delay / in_flight)
            hours = [duration(seconds / shards) for shards in (1, 32, 128)]
            print(f"| {delay:g} s | {in_flight} a process | {' | '.join(hours)} |")


def clocked(questions: int, in_flight: int, delay: float, work: float) -> float:
    """Simulated seconds of a run: calls take `delay`, so many at a time, and `work` of the one processor each."""
    free, now = 0.0, 0.0
    done: list[set[str]] = [set() for _ in range(questions)]
    asked: list[set[str]] = [set() for _ in range(questions)]
    waiting: list[tuple[int, int, str]] = []
    out: list[tuple[float, int, str]] = []
    begun = min(questions, 2 * in_flight)
    order = count()

    def go_on(question: int) -> None:
        for call, needs in NEEDS.items():
            if call not in asked[question] and done[question].issuperset(needs):
                asked[question].add(call)
                heapq.heappush(waiting, (question, next(order), call))

    for question in range(begun):
        go_on(question)
    while waiting or out:
        while waiting and len(out) < in_flight:
            question, _, call = heapq.heappop(waiting)
            free = max(free, now) + work
            heapq.heappush(out, (free + delay, question, call))
        now, question, call = heapq.heappop(out)
        done[question].add(call)
        if len(done[question]) == len(NEEDS) and begun < questions:
            go_on(begun)
            begun += 1
        go_on(question)
    return now


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
        (rule, {"questions": 20_000, "seeds": 40}),
        (shards, {"questions": 500, **sources}),
        (pair, {"questions": 400, **sources}),
        (predict, {"questions": 100, "delay": 0.3, "in-flight": 16, **sources}),
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
