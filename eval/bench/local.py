"""What a model in this process costs, on the sample world's questions through BlendFilter.

    python eval/bench/local.py sample [--limit 20] [--lm local] [--runs DIR]   # accuracy, seconds, cached share, ids
    python eval/bench/local.py order [--limit 6] [--lm local] [--runs DIR]     # what the order of calls is worth

`sample` runs the questions twice, the ids held to a grammar and not. `order` takes the prompts of that run's first
questions and reads them again (one token of reply each), eight waiting at a time: first come, first served; the calls
first that share most with what is in the cache; and the same with copies of shared beginnings kept.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import NamedTuple

import blendfilter as bf
from blendfilter.context import ORDER, setting
from blendfilter.evaluation.known import Known
from blendfilter.evaluation.ledger import Entry
from blendfilter.journal import Journal
from blendfilter.lm.local import Decoding
from blendfilter.lm.local import (open_llama, weights_of)
from blendfilter.lm.local import (KEPT_BYTES, Prefixes)
from blendfilter.lm.local import (Model, Task)
from blendfilter.lm.local import Turns
from blendfilter.lm.local import Wording
from blendfilter.resources import sample

WAITING = 8


def run_sample(name: str, limit: int, runs: Path) -> None:
    """Twenty questions with ids held to a grammar, then without, and what each cost."""
    questions = bf.load("hotpotqa", "sample", limit=limit)
    index = bf.BM25.build(sample("corpus.jsonl"))
    earlier: list[Path] = []
    for schema in (True, False):
        lm, folder = bf.connect(name, json_schema=schema), runs / ("grammar" if schema else "free")
        started = time.perf_counter()
        done = bf.evaluate(bf.BlendFilter(index), questions, lm=lm, run=folder, concurrency=WAITING, reuse=earlier)
        took = time.perf_counter() - started
        earlier.append(folder)
        stages = Known(done).entries
        scores, flags = done.metrics["metrics"], done.metrics["flags"]
        print(f"\nids {'held to a grammar' if schema else 'as the model writes them'}: {lm.name}, {limit} questions")
        print(
            f"EM {scores['em']['value']:.2f}, F1 {scores['f1']['value']:.2f} (of 135M parameters: no sign of quality)"
        )
        print(f"{took:.0f} s, {took / limit:.1f} s a question; calls that the first run made are not made again")
        print(
            f"ids calls {stages['ids'].calls}, unparseable {flags['unparseable_ids']}, suspect {flags['suspect_ids']}"
        )
        for stage, entry in stages.items():
            print(f"  {stage:14}{_told(entry)}")


def _told(entry: Entry) -> str:
    share = entry.tokens_cached / max(entry.tokens_in, 1)
    return f"{entry.calls:5} calls {entry.tokens_in:8,} tokens in, {share:4.0%} cached {entry.tokens_out:7,} out"


class Way(NamedTuple):
    """A way to serve the queue: `by` prefix or by arrival, and bytes for copies."""

    name: str
    by_prefix: bool
    keep: int


WAYS = (
    Way("order of arrival", False, 0),
    Way("longest shared prefix first", True, 0),
    Way("order of arrival, copies kept", False, KEPT_BYTES),
    Way("longest shared prefix first, copies kept", True, KEPT_BYTES),
)


def run_order(name: str, limit: int, runs: Path) -> None:
    """The same prompts read in several ways: tokens read and processor seconds, as shares of the first way's."""
    if not (runs / "grammar").is_dir():
        sys.exit(f"the prompts are those of a run: make it first, python eval/bench/local.py sample --runs {runs}")
    llama = open_llama(weights_of(None if name == "local" else name))
    wording = Wording(llama)
    with Journal(runs / "grammar", "replay") as journal:
        texts = [record["prompt"] for record in journal.records("call")][: 11 * limit]
    tasks = [Task(wording.chat([["user", text]]), Decoding(), 1) for text in texts]
    whole = sum(len(task.tokens) for task in tasks)
    print(f"{len(tasks)} prompts, {whole:,} tokens")
    first: tuple[int, float] | None = None
    for way in WAYS:
        model = Model(llama, wording, Prefixes(llama, way.keep))
        model.prefixes.forget()
        saving = model.saving if way.by_prefix else _none
        started = time.process_time()
        reused = asyncio.run(_served(Turns(model.reply, saving), tasks))
        read, took = whole - reused, time.process_time() - started
        first = first or (read, took)
        print(f"{way.name:42}{read:8,} tokens read ({read / first[0]:4.2f})  {took:6.1f} s ({took / first[1]:4.2f})")


def _none(task: Task) -> int:
    return 0


async def _served(turns: Turns, tasks: list[Task]) -> int:
    """Serve all, so many waiting at a time, eleven to a question; how many tokens were not read again."""
    places = asyncio.Semaphore(WAITING)

    async def one(i: int, task: Task) -> int:
        async with places:
            with setting(ORDER, i // 11):
                return (await turns.take(task)).reused

    reused = await asyncio.gather(*(one(*each) for each in enumerate(tasks)))
    turns.close()
    return sum(reused)


def main() -> None:
    """Run one of the two measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sample", "order"))
    parser.add_argument("--limit", type=int)
    parser.add_argument("--lm", default="local")
    parser.add_argument("--runs", type=Path, default=Path("runs/bench-local"))
    asked = parser.parse_args()
    (run_sample if asked.what == "sample" else run_order)(
        asked.lm, asked.limit or (20 if asked.what == "sample" else 6), asked.runs
    )


if __name__ == "__main__":
    main()
