"""A ColBERT index against exhaustive scoring, and against colbert-ai called directly.

    python eval/bench/plaid.py overlap --corpus corpus/hotpotqa.jsonl.gz --questions hotpotqa/dev.jsonl.gz
    python eval/bench/plaid.py direct  --corpus corpus/hotpotqa.jsonl.gz --questions hotpotqa/dev.jsonl.gz
    python eval/bench/plaid.py encoders --corpus corpus/hotpotqa.jsonl.gz --questions hotpotqa/dev.jsonl.gz

`overlap`: the share of the exhaustive top 10 (MaxSim over the vectors as they come from the encoder) that the index
finds, and the time a query, at several numbers of centroids, bits and efforts. `direct`: the same folder searched by
our class and by colbert-ai's `Searcher`, query by query in turns. `encoders`: our vectors (by sentence-transformers)
beside those of colbert-ai's `Checkpoint`, and the processor time of both, in turns. The encoder is MiniLM written out
as a ColBERT checkpoint (tests/checkpoints.py): not trained for late interaction, so neighbours lie closer together than
ColBERTv2's.
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
from colbert_ai import patch_colbert

from blendfilter.records import Passage
from blendfilter.retrieval.colbert import ColBERT
from blendfilter.retrieval.colbert.encoder import ColBERTCheckpoint, TokenEncoder
from blendfilter.retrieval.colbert.index import SearchEffort, effort_for
from blendfilter.retrieval.corpus import read_corpus
from blendfilter.tasks.loading import load

K = 10
BLOCK = 200


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
    TokenEncoder.passages = lambda encoder, texts, batch_size=64: encode.passages(encoder, texts, batch_size)  # type: ignore[method-assign]
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


def direct(corpus: list[Passage], queries: list[str], checkpoint: Path) -> None:
    """Print ms a query of our class and of colbert-ai's Searcher over one folder, at the same effort."""
    patch_colbert()
    from colbert import Searcher
    from colbert.infra import ColBERTConfig

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "index"
        index = ColBERT.build(corpus, out, checkpoint=checkpoint)
        effort = effort_for(K, len(corpus))
        config = ColBERTConfig(ncells=effort.ncells, centroid_score_threshold=effort.threshold, ndocs=effort.ndocs)
        lines = [passage.line for passage in corpus]
        theirs = Searcher(
            index="index", index_root=folder, checkpoint=str(checkpoint), collection=lines, config=config, verbose=0
        )
        rounds: dict[str, list[float]] = {"ours": [], "colbert-ai": []}
        same: dict[bool, list[float]] = {False: [], True: []}
        for query in queries:
            started = time.perf_counter()
            ours = index.search([query], K)[0]
            between = time.perf_counter()
            positions = theirs.search(query, k=K)[0]
            ended = time.perf_counter()
            rounds["ours"].append(between - started)
            rounds["colbert-ai"].append(ended - between)
            longer = len(index.encoder.queries([query]).vectors[0]) > index.encoder.query_maxlen
            same[longer].append(len({passage.id for passage in ours} & {corpus[at].id for at in positions}) / K)
        batched = time.perf_counter()
        index.search(queries, K)
        batched = time.perf_counter() - batched
    ms = {name: 1000 * statistics.median(times[5:]) for name, times in rounds.items()}
    print(
        f"{len(queries)} queries in turns, median ms: ours {ms['ours']:.2f}, colbert-ai {ms['colbert-ai']:.2f}, ratio "
        f"{ms['ours'] / ms['colbert-ai']:.2f}; ours as one batch {1000 * batched / len(queries):.2f} a query"
    )
    for longer, shares in same.items():
        if shares:
            which = "over" if longer else "within"
            print(f"same top {K}: {statistics.mean(shares):.3f} of {len(shares)} queries {which} 32 tokens")


def encoders(corpus: list[Passage], queries: list[str], checkpoint: Path) -> None:
    """Print how far our vectors are from colbert-ai's, and the processor time of both, in turns."""
    patch_colbert()
    from colbert.infra import ColBERTConfig
    from colbert.modeling.checkpoint import Checkpoint

    ours = TokenEncoder(ColBERTCheckpoint(checkpoint), "cpu")
    theirs = Checkpoint(str(checkpoint), colbert_config=ColBERTConfig(), verbose=0)
    blocks = [[passage.line for passage in corpus[start : start + BLOCK]] for start in range(0, len(corpus), BLOCK)]
    short = [query for query in queries if len(ours.queries([query]).vectors[0]) == ours.query_maxlen]
    for what, texts, own, other in (
        ("queries, one by one", [[query] for query in short], lambda some: ours.queries(some).vectors[0],
         lambda some: theirs.queryFromText(some)[0]),
        (f"passages, {BLOCK} at a time", blocks, lambda some: ours.passages(some, 64)[0].float(),
         lambda some: theirs.docFromText(some, bsize=64, keep_dims="flatten")[0].float()),
    ):  # fmt: skip
        ratios, apart = [], 0.0
        for some in texts:
            times = [time.process_time()]
            vectors = []
            for encode in (own, other):
                vectors.append(encode(some))
                times.append(time.process_time())
            ratios.append((times[1] - times[0]) / (times[2] - times[1]))
            apart = max(apart, (vectors[0] - vectors[1]).abs().max().item())
        ratio = statistics.median(ratios)
        print(f"{what}, {sum(map(len, texts))}: at most {apart:.1e} apart, ours / colbert-ai's {ratio:.2f}", flush=True)


def main() -> None:
    """Read the corpus, run what was asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("overlap", "direct", "encoders"))
    parser.add_argument("--corpus", type=Path, required=True, help="any corpus file that blendfilter reads")
    parser.add_argument("--questions", type=Path, required=True, help="a HotPotQA question file")
    parser.add_argument("--passages", type=int, default=2000)
    parser.add_argument("--queries", type=int, default=200)
    asked = parser.parse_args()
    corpus = list(itertools.islice(read_corpus(asked.corpus), asked.passages))
    queries = [question.question for question in load("hotpotqa", asked.questions, limit=asked.queries)]
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = minilm_colbert(Path(folder) / "minilm")
        {"overlap": overlap, "direct": direct, "encoders": encoders}[asked.what](corpus, queries, checkpoint)


if __name__ == "__main__":
    main()
