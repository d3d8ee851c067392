"""Gold titles found by BM25, by MiniLM as one vector, by MiniLM as one vector a token, and by hybrids, on one corpus.

    python eval/bench/engines.py --questions hotpotqa/dev.jsonl.gz --limit 500
    python eval/bench/engines.py --questions hotpotqa/dev.jsonl.gz --limit 500 --rerank [MODEL …] [--rerank-from N]

With --rerank: BM25, and its best passages reranked, by MiniLM's late interaction where no model is named (--width 384:
MiniLM's own vectors, which a rotation does not change).
The corpus is the questions' own paragraphs, all pooled, so every gold paragraph is in it. Recall at 5 is the mean over
questions of the share of gold titles among the five best; intervals are bootstrap ones, differences paired. MiniLM was
trained to be one mean-pooled vector, and not for late interaction (its projection here is a random rotation).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
import numpy as np
from checkpoints import minilm, minilm_colbert

from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.colbert import ColBERT
from blendfilter.retrieval.corpus import pooled
from blendfilter.retrieval.dense import Dense
from blendfilter.retrieval.hybrid import Hybrid
from blendfilter.retrieval.reranked import DEPTH, Reranked
from blendfilter.tasks.base import Questions
from blendfilter.tasks.loading import load

K, SAMPLES = 5, 10_000


def shares(index: Retriever, questions: Questions) -> np.ndarray:
    """For each question, the share of its gold titles among the K best passages."""
    found = index.search([question.question for question in questions], K)
    return np.array([
        len(set(question.gold_titles) & {passage.title for passage in best}) / len(set(question.gold_titles))
        for question, best in zip(questions, found, strict=True)
    ])  # fmt: skip


def interval(values: np.ndarray) -> tuple[float, float]:
    """The 95 % bootstrap interval of a mean."""
    drawn = np.random.default_rng(0).integers(0, len(values), (SAMPLES, len(values)))
    low, high = np.quantile(values[drawn].mean(1), (0.025, 0.975))
    return float(low), float(high)


def measure(built: dict[str, Retriever], questions: Questions) -> None:
    """Print the recall of each index, how it differs from BM25's, and what a query takes in processor time."""
    base = shares(built["BM25"], questions)
    for name, index in built.items():
        started = time.process_time()
        own = shares(index, questions)
        took = 1000 * (time.process_time() - started) / len(questions)
        (low, high), (less, more) = interval(own), interval(own - base)
        print(f"{name:28} recall@{K} {own.mean():.3f} [{low:.3f}, {high:.3f}]   against BM25 "
              f"{own.mean() - base.mean():+.3f} [{less:+.3f}, {more:+.3f}]   {took:.1f} ms",
              flush=True)  # fmt: skip


def main() -> None:
    """Build each index, print its recall and how it differs from BM25's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, required=True, help="a HotPotQA question file with paragraphs")
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--rerank", nargs="*", metavar="MODEL", help="rerankers: names or folders")
    parser.add_argument("--rerank-from", type=int, default=DEPTH)
    parser.add_argument("--width", type=int, default=128, help="numbers of a token's vector for --rerank")
    asked = parser.parse_args()
    questions = load("hotpotqa", asked.questions, limit=asked.limit)
    corpus = pooled(questions)
    print(f"{len(questions)} questions, {len(corpus):,} passages")
    with tempfile.TemporaryDirectory() as folder:
        root, built = Path(folder), {}
        started = time.perf_counter()

        def ready(name: str, index: Retriever) -> None:
            nonlocal started
            built[name] = index
            print(f"built {name}: {time.perf_counter() - started:.1f} s", flush=True)
            started = time.perf_counter()

        def reranked(model: Path | str) -> Retriever:
            return Reranked(built["BM25"], model, depth=asked.rerank_from)

        ready("BM25", BM25.build(corpus, root / "bm25"))
        if asked.rerank is not None:
            for model in asked.rerank or [minilm_colbert(root / f"late{asked.width}", dim=asked.width)]:
                ready(f"BM25's {asked.rerank_from} by {Path(model).name}", reranked(model))
            measure(built, questions)
            return
        pooled_encoder = minilm(root / "minilm")
        ready("MiniLM, mean-pooled", Dense.build(corpus, root / "dense", encoder=pooled_encoder, similarity="cosine"))
        checkpoint = minilm_colbert(root / "late")
        ready("MiniLM, late interaction", ColBERT.build(corpus, root / "colbert", checkpoint=checkpoint))
        ready("BM25 + mean-pooled", Hybrid([built["BM25"], built["MiniLM, mean-pooled"]]))
        ready("BM25 + late interaction", Hybrid([built["BM25"], built["MiniLM, late interaction"]]))
        measure(built, questions)


if __name__ == "__main__":
    main()
