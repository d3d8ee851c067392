"""What a model in this process costs, on the sample world's questions through BlendFilter.

    python eval/bench/local.py [--limit 20] [--lm local] [--runs DIR]   # accuracy, seconds, ids

    python eval/bench/local.py --journal RUN/journal.jsonl …                  # what kept beginnings save of its prompts
    python eval/bench/local.py --batch 8 --lm hf/FOLDER [--limit 32]          # one by one against batches

The questions are run twice: with the ids held to a grammar, and without. What is saved is counted, not timed: the
tokens of all prompts against those that are read, in the journal's order.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import blendfilter as bf
from blendfilter.evaluation.ledger import LedgerEntry
from blendfilter.evaluation.run_status import RunStatus
from blendfilter.lm.local import LocalEngine, chunk_keys, weights_of
from blendfilter.resources import sample

CONCURRENCY = 8


def run_sample(name: str, limit: int, runs: Path) -> None:
    """Twenty questions with ids held to a grammar, then without, and what each cost."""
    questions = bf.load("hotpotqa", "sample", limit=limit)
    index = bf.BM25.build(sample("corpus.jsonl"))
    earlier: list[Path] = []
    for schema in (True, False):
        lm, folder = bf.connect(name, json_schema=schema), runs / ("grammar" if schema else "free")
        started = time.perf_counter()
        done = bf.evaluate(bf.BlendFilter(index), questions, lm=lm, run=folder, concurrency=CONCURRENCY, reuse=earlier)
        took = time.perf_counter() - started
        earlier.append(folder)
        stages = RunStatus(done).entries
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


def _told(entry: LedgerEntry) -> str:
    return f"{entry.calls:5} calls {entry.tokens_in:8,} tokens in {entry.tokens_out:7,} out"


def count_saved(journal: Path, name: str) -> None:
    """How many tokens the prompts of a journal have, and how many of them are read."""
    engine = LocalEngine(weights_of(name))
    whole = read = calls = 0
    seen: set[bytes] = set()
    kept: set[bytes] = set()
    for record in map(json.loads, journal.read_text(encoding="utf-8").splitlines()):
        if record.get("kind") != "call" or not isinstance(record["prompt"], str):
            continue
        endpoint = engine._raw_tokens if record["endpoint"] == "completions" else _chat(engine)
        tokens = endpoint(record["prompt"])
        keys = chunk_keys(tokens)
        whole, calls = whole + len(tokens), calls + 1
        read += len(tokens) - max((at for at, key in keys.items() if key in kept), default=0)
        if shared := max((at for at, key in keys.items() if key in seen), default=0):
            kept.add(keys[shared])
        seen.update(keys.values())
    print(f"{journal.parent.name}: {calls} calls, {whole:,} tokens of prompts, {read:,} read ({whole / read:.2f} x)")


def time_batches(name: str, size: int, limit: int) -> None:
    """As many prompts, each with passages of its own, one by one and then in batches: seconds, and the same text?

    Of the processor's seconds, so that what else runs on the machine counts for little.
    """
    questions, index = bf.load("hotpotqa", "sample"), bf.BM25.build(sample("corpus.jsonl"))
    prompts = []
    for i in range(limit):
        question = questions[i % len(questions)].question
        (passages,) = index.search([question], k=1 + i // len(questions) + i % 2)
        lines = "\n".join(f"{passage.title} | {passage.text}" for passage in passages)
        prompts.append(f"Knowledge:\n{lines}\nQuestion: {question}\nSay in two sentences what is known about it.")
    replies, seconds = list[list[str]](), list[float]()
    for rows in (1, size):
        lm = bf.connect(f"{name}{'&' if '?' in name else '?'}batch_size={rows}", cache=False)
        lm("Hello.", max_tokens=1)  # opens the weights
        started, worked = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(4 * size) as pool:
            asked = pool.map(lambda prompt: lm(prompt, max_tokens=32)[0], prompts)  # noqa: B023
            replies.append(list(asked))
        took = time.perf_counter() - started
        seconds.append(time.process_time() - worked)
        tokens = sum(lm.inner.count_tokens(reply) for reply in replies[-1])
        print(
            f"{rows} at a time: {seconds[-1]:.1f} s of processor time ({took:.1f} s) for {limit} prompts, "
            f"some {tokens:,} tokens written",
            flush=True,
        )
    same = sum(one == other for one, other in zip(*replies, strict=True))
    print(f"{seconds[0] / seconds[1]:.2f} times the throughput; the same text in {same} of {limit}")


def _chat(engine: LocalEngine) -> Callable[[str], list[int]]:
    return lambda prompt: engine._chat_tokens([["user", prompt]], {})


def main() -> None:
    """Read the arguments, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--lm", default="local")
    parser.add_argument("--runs", type=Path, default=Path("runs/bench-local"))
    parser.add_argument("--journal", type=Path, action="append", default=[])
    parser.add_argument("--batch", type=int, help="replies written at a time, of a model of Hugging Face")
    given = parser.parse_args()
    if given.batch is not None:
        logging.getLogger("dspy").setLevel(logging.ERROR)  # replies are cut on purpose
        time_batches(given.lm, given.batch, given.limit)
        return
    for journal in given.journal:
        count_saved(journal, given.lm)
    if not given.journal:
        run_sample(given.lm, given.limit, given.runs)


if __name__ == "__main__":
    main()
