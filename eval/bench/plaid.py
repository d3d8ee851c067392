"""A ColBERT index against exhaustive scoring.

    python eval/bench/plaid.py --corpus corpus/hotpotqa.jsonl.gz --questions hotpotqa/dev.jsonl.gz

The share of the exhaustive top 10 (MaxSim over the vectors as they come from the encoder) that the index finds, and
the time a query, at several numbers of centroids, bits and efforts. The encoder is MiniLM written out as a ColBERT
checkpoint (tests/checkpoints.py): not trained for late interaction, so neighbours lie closer than ColBERTv2's.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
import torch
from checkpoints import minilm_colbert

from blendfilter.records import Passage
from blendfilter.retrieval.colbert import ColBERT
from blendfilter.retrieval.colbert.encoder import TokenEncoder
from blendfilter.retrieval.colbert.index import SearchEffort, effort_for
from blendfilter.retrieval.corpus import read_corpus
from blendfilter.tasks.loading import load

K = 10


class Remembering:
    """Encodes each passage once, however many indexes are built of it."""

    def __init__(self) -> None:
        self.plain = TokenEncoder.passages
        self.vectors: dict[str, Any] = {}

    def passages(self, encoder: TokenEncoder, texts: Sequence[str], batch_size: int = 64) -> tuple[Any, list[int]]:
        new = [text for text in dict.fromkeys(texts) if text not in self.vectors]
        if new:
            found, counts = self.plain(encoder, new, batch_size)
            self.vectors |= dict(zip(new, found.split(counts), strict=True))
        own = [self.vectors[text] for text in texts]
        return torch.cat(own), [len(each) for each in own]


def exhaustive(vectors: list[Any], queries: list[Any]) -> list[set[int]]:
    """Positions of the K best passages of each query by MaxSim over all of them."""
    flat = torch.cat(vectors).float()
    owners = torch.repeat_interleave(torch.arange(len(vectors)), torch.tensor([len(each) for each in vectors]))
    best = []
    for query in queries:
        scores = flat @ query.T
        tops = torch.full((len(vectors), len(query)), -9.0)
        tops.scatter_reduce_(0, owners[:, None].expand(-1, len(query)), scores, "amax")
        best.append(set(tops.sum(1).topk(K).indices.tolist()))
    return best


def overlap(corpus: list[Passage], queries: list[str], checkpoint: Path) -> None:
    """Print the share of the exhaustive top K found, and ms a query without the encoder's part."""
    encode = Remembering()
    TokenEncoder.passages = lambda encoder, texts, batch_size=64: encode.passages(encoder, texts, batch_size)
    default = effort_for(K, len(corpus))
    efforts = {"PLAID's own": SearchEffort(1, 0.5, 256), "default": default, "more": SearchEffort(4, 0.35, 2048)}
    exact = None
    print(
        "partitions  nbits  build without encoding    "
        + "    ".join(f"{name} {tuple(e)}" for name, e in efforts.items())
    )
    for nbits, partitions in itertools.product((2, 4, 8), (256, None, 4096)):
        with tempfile.TemporaryDirectory() as folder:
            if exact is None:  # the first build encodes
                ColBERT.build(corpus, Path(folder) / "first", checkpoint=checkpoint, nbits=nbits)
            started = time.perf_counter()
            out = Path(folder) / "index"
            index = ColBERT.build(corpus, out, checkpoint=checkpoint, nbits=nbits, partitions=partitions)
            built = time.perf_counter() - started
            vectors = index.encoder.queries(queries).vectors
            exact = exact or exhaustive([encode.vectors[passage.line] for passage in corpus], vectors)
            told = [measured(index, vectors, exact, effort) for effort in efforts.values()]
        mark = "*" if partitions is None else " "
        print(f"{index.info()['settings']['partitions']:8}{mark}  {nbits:5}  {built:10.1f} s    "
              + "    ".join(f"{share:.3f} {ms:6.1f} ms" for share, ms in told), flush=True)  # fmt: skip


def measured(index: ColBERT, vectors: list[Any], exact: list[set[int]], effort: SearchEffort) -> tuple[float, float]:
    """Mean share of the exact top K, and median ms a query."""
    shares, times = [], []
    for query, best in zip(vectors, exact, strict=True):
        started = time.perf_counter()
        found = index.ranked(query, K, effort)
        times.append(time.perf_counter() - started)
        shares.append(len(best & {at for at, _ in found}) / K)
    return statistics.mean(shares), 1000 * statistics.median(times)


def main() -> None:
    """Read the corpus, run what was asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="any corpus file that blendfilter reads")
    parser.add_argument("--questions", type=Path, required=True, help="a HotPotQA question file")
    parser.add_argument("--passages", type=int, default=2000)
    parser.add_argument("--queries", type=int, default=200)
    asked = parser.parse_args()
    corpus = list(itertools.islice(read_corpus(asked.corpus), asked.passages))
    queries = [question.question for question in load("hotpotqa", asked.questions, limit=asked.queries)]
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = minilm_colbert(Path(folder) / "minilm")
        overlap(corpus, queries, checkpoint)


if __name__ == "__main__":
    main()
