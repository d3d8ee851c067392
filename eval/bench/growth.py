"""What a run keeps in memory per call, and what its journal stores.

    python eval/bench/growth.py [--task TASK --questions FILE --corpus FILE] [--limit N]

BlendFilter against a local model server in a process of its own (which answers with the offline reader), over the
sample world by default. Memory is what Python's allocator holds (tracemalloc), read at every tenth of the run: its
growth from the third tenth to the last, divided by the calls between. The journal is read for passages stored twice.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from model_server import serve

import blendfilter as bf
from blendfilter.resources import sample


class Watch:
    """A progress that reads memory at every tenth."""

    def __init__(self) -> None:
        self.readings: list[tuple[int, int]] = []
        self.done = self.calls = 0

    def start(self, total: int, done: int) -> None:
        """Note the length of a tenth."""
        self.tenth = max(1, total // 10)

    def advance(self, row: Mapping[str, Any], tokens: int) -> None:
        """Read at each tenth."""
        self.done += 1
        self.calls += len(row["calls"])
        if self.done % self.tenth == 0:
            gc.collect()
            self.readings.append((self.calls, tracemalloc.get_traced_memory()[0]))

    def stop(self) -> None:
        """Nothing more to read."""

    def slope(self) -> float:
        """Bytes a call from the third reading to the last."""
        (first, held), (last, holds) = self.readings[2], self.readings[-1]
        return (holds - held) / (last - first)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="qa")
    parser.add_argument("--questions", default="sample")
    parser.add_argument("--corpus", default=str(sample("corpus.jsonl")))
    parser.add_argument("--limit", type=int)
    args = parser.parse_args()
    questions = bf.load(args.task, args.questions, limit=args.limit)
    method, watch = bf.BlendFilter(bf.BM25.for_corpus(args.corpus)), Watch()
    with tempfile.TemporaryDirectory() as folder, serve(reply="offline") as server:
        lm = bf.connect("any/model", api_base=server.url)
        bf.evaluate(method, questions[:20], lm=lm, run=f"{folder}/warm", progress=False)
        tracemalloc.start()
        bf.evaluate(method, questions, lm=lm, run=f"{folder}/run", progress=watch)
        tracemalloc.stop()
        tracemalloc.start()
        opened = bf.Journal(f"{folder}/run", "replay")
        index = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        kinds = Counter(record["kind"] for record in opened.records())
        passages = Counter(record["key"] for record in opened.records() if record["kind"] == "passage")
        size = Path(folder, "run", "journal.jsonl").stat().st_size
    print(f"{len(questions)} questions, {watch.calls} calls; journal {size / 1e6:.1f} MB: {dict(kinds)}")
    print(f"  memory grows by {watch.slope():.0f} bytes a call")
    print(f"  the journal's index holds {index / sum(kinds.values()):.0f} bytes a record")
    print(f"  {len(passages)} passages, each stored once: {set(passages.values()) == {1}}")


if __name__ == "__main__":
    main()
