"""Dense search by L2, by inner product and by cosine over one set of vectors, and by FAISS called directly.

    python eval/bench/metrics_dense.py --questions hotpotqa/dev.jsonl.gz --limit 400

The passages are the questions' own paragraphs, all pooled; the vectors are MiniLM's, mean-pooled and of any length.
First: whether an index of ours with l2 has the ids of FAISS's own index over the same vectors, in its order, and its
distances. Then: how much of the ten best by L2 the others share, and the share of gold titles among the five best.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
import faiss
import numpy as np
from checkpoints import minilm

from blendfilter.retrieval.base import silent
from blendfilter.retrieval.corpus import pooled
from blendfilter.retrieval.dense import Dense, build_index, nearest
from blendfilter.tasks.base import Questions
from blendfilter.tasks.loading import load

K = 10
SETTINGS: dict[str, dict[str, Any]] = {
    "flat": {"index": "flat"},
    "hnsw": {"index": "hnsw", "m": 32, "ef_construction": 200, "ef_search": 64},
    "ivf": {"index": "ivf", "nlist": 50, "nprobe": 5},
}


def direct(kind: str, vectors: np.ndarray) -> Any:
    """FAISS's own index, by its constructor's default metric, which is L2."""
    made = SETTINGS[kind]
    dimension = vectors.shape[1]
    if kind == "flat":
        index = faiss.IndexFlatL2(dimension)
    elif kind == "hnsw":
        index = faiss.IndexHNSWFlat(dimension, made["m"])
        index.hnsw.efConstruction, index.hnsw.efSearch = made["ef_construction"], made["ef_search"]
    else:
        index = faiss.IndexIVFFlat(faiss.IndexFlatL2(dimension), dimension, made["nlist"])
        index.nprobe = made["nprobe"]
    index.train(vectors)
    index.add(vectors)
    return index


def recall(found: list[list[int]], titles: list[str], questions: Questions) -> float:
    """The mean share of a question's gold titles among its five best."""
    shares = [
        len(set(question.gold_titles) & {titles[at] for at in best[:5]}) / len(set(question.gold_titles))
        for question, best in zip(questions, found, strict=True)
    ]
    return float(np.mean(shares))


def main() -> None:
    """Print one line a comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, required=True, help="a HotPotQA question file with paragraphs")
    parser.add_argument("--limit", type=int, default=400)
    asked = parser.parse_args()
    questions = load("hotpotqa", asked.questions, limit=asked.limit)
    texts = [question.question for question in questions]
    with tempfile.TemporaryDirectory() as folder:
        index = Dense.build(
            pooled(questions), Path(folder) / "l2", encoder=minilm(Path(folder) / "minilm"), similarity="l2"
        )
        titles = [passage.title for passage in index.passages]
        vectors = np.stack([index.vector(at) for at in range(len(index))])
        queries = index.encoder.encode_queries(texts).vectors
        at = {passage.id: place for place, passage in enumerate(index.passages)}
        ours = {"flat": [[at[hit.id] for hit in hits] for hits in index.search(texts, K)]}
    lengths = np.linalg.norm(vectors, axis=1)
    spread = f"{lengths.min():.2f} to {lengths.max():.2f} (mean {lengths.mean():.2f})"
    print(f"{len(questions)} questions, {len(vectors):,} passages, lengths {spread}")
    for kind, settings in SETTINGS.items():
        if kind not in ours:
            made = build_index(vectors, settings, silent, "l2")
            ours[kind] = [positions for positions, _ in nearest(made, queries, K)]
        distances, theirs = direct(kind, vectors).search(queries, K)
        same = np.array([row == [*own] for row, own in zip(ours[kind], theirs, strict=True)])
        shared = np.mean([len({*row} & {*own}) / K for row, own in zip(ours[kind], theirs, strict=True)])
        exact = np.square(vectors[np.array(ours[kind])].astype(np.float64) - queries[:, None]).sum(2)
        level = np.isclose(exact, distances, rtol=1e-5).all(1)
        print(f"{kind:5} against FAISS: {same.sum()} of {len(same)} lists equal, with their order and all ten ids; "
              f"{level.sum()} with the same ten distances; {shared:.4f} of the ids shared")  # fmt: skip
    unit = vectors / lengths[:, None], queries / np.linalg.norm(queries, axis=1, keepdims=True)
    others = {"l2": ours["flat"]}
    for name, (passages, asking) in {"dot": (vectors, queries), "cosine": unit}.items():
        made = build_index(passages, SETTINGS["flat"], silent)
        others[name] = [positions for positions, _ in nearest(made, np.ascontiguousarray(asking), K)]
    for name, found in others.items():
        shared = np.mean([len({*row} & {*own}) / K for row, own in zip(found, ours["flat"], strict=True)])
        print(f"{name:6} shares {shared:.3f} of the ten best by l2; recall@5 {recall(found, titles, questions):.3f}")


if __name__ == "__main__":
    main()
