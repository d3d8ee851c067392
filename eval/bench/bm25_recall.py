"""How many of the gold titles BM25 finds at 5, 10 and 15, asked with the question itself.

    python eval/bench/bm25_recall.py --task hotpotqa --questions hotpotqa/dev.jsonl.gz --corpus corpus/hotpotqa.jsonl.gz

Recall is the mean over questions of the share of a question's gold titles among the titles of its k best passages;
questions without gold titles are left out and counted. Times are wall time on this machine, one thread.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from blendfilter.records import Passage
from blendfilter.retrieval.indexes import ENGINES, build, open_index
from blendfilter.tasks.loading import TASKS, load
from blendfilter.text import folded

DEPTHS = (5, 10, 15)


def recall(golds: list[set[str]], found: list[list[Passage]], k: int) -> float:
    """Mean over questions of the share of gold titles among the first `k` passages."""
    shares = [
        len(gold & {folded(p.title) for p in best[:k]}) / len(gold) for gold, best in zip(golds, found, strict=True)
    ]
    return sum(shares) / len(shares)


def main() -> None:
    """Build, open, search, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(TASKS), default="hotpotqa")
    parser.add_argument("--questions", type=Path, required=True, help="any question file that the task reads")
    parser.add_argument("--corpus", type=Path, required=True, help="any corpus file that blendfilter reads")
    parser.add_argument("--engine", choices=sorted(ENGINES), default="bm25")
    parser.add_argument("--copies", type=int, default=1, help="repeat each question's words, to time long queries")
    asked = parser.parse_args()

    questions = load(asked.task, asked.questions)
    golds = [set(map(folded, question.gold_titles)) for question in questions if question.gold_titles]
    queries = [" ".join([question.question] * asked.copies) for question in questions if question.gold_titles]
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        build(asked.engine, asked.corpus, Path(folder) / "index")
        built = time.perf_counter()
        index = open_index(Path(folder) / "index")
        opened = time.perf_counter()
        found = index.search(queries, max(DEPTHS))
        searched = time.perf_counter()
    print(f"{asked.engine} {index.fingerprint}: {len(index):,} passages, {len(questions):,} questions, "
          f"{len(questions) - len(golds)} of them without gold titles")  # fmt: skip
    print("recall of gold titles " + "  ".join(f"@{k} {recall(golds, found, k):.4f}" for k in DEPTHS))
    print(f"build {built - started:.2f} s  open {1000 * (opened - built):.0f} ms  "
          f"{1000 * (searched - opened) / len(queries):.2f} ms a query")  # fmt: skip


if __name__ == "__main__":
    main()
