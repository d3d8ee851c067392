"""What an index takes at several sizes: seconds a phase, the peak of memory, the size on disk, the time of a search.

    python eval/bench/index_growth.py --corpus corpus/hotpotqa.jsonl.gz [--sizes 2000 6000 19000] [--checkpoint minilm]
    python eval/bench/index_growth.py --corpus corpus/hotpotqa.jsonl.gz --engine bm25 --sizes 10000 100000 1000000
    python eval/bench/index_growth.py --corpus corpus/hotpotqa.jsonl.gz --engine hnsw --dim 64 --sizes 10000 100000

Each build runs in a process of its own, and so do the searches. Seconds are those of the processor, one thread, which
a busy machine does not stretch; `wall` has the clock's. ColBERT reads the corpus as it is; one that is too
short begins again. For the other engines the passages are made of it: sentences of its passages drawn anew, a title of
one of them, and two names a passage by Zipf's law from two million, so that the vocabulary grows as a real one does.

`flat` and `hnsw` are `Dense` over drawn vectors of `--dim` numbers, around 2,000 centres: everything but the encoder.

`--checkpoint tiny` takes a random BERT of 32 numbers a token, which costs next to nothing to run, and so shows
everything but the encoder. `--repeat-text N` makes every text N times as long with `--doc-maxlen` as it was: the
vectors stay the same in number, and memory should, too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from blendfilter.records import Passage
from blendfilter.retrieval.corpus import read_corpus

if TYPE_CHECKING:
    from blendfilter.retrieval.encoders import Encoded

K = 10
CLUSTERS = 2_000
NAMES = 2_000_000
DENSE = ("flat", "hnsw")


def repeated(corpus: Path, passages: int, times: int) -> Iterator[Passage]:
    """So many passages of the corpus, from its beginning again and again, each text `times` over."""
    rounds = (row for copy in itertools.count() for row in ((copy, passage) for passage in read_corpus(corpus)))
    for copy, passage in itertools.islice(rounds, passages):
        yield replace(passage, id=f"{passage.id}-{copy}", text=" ".join([passage.text] * times))


def recombined(corpus: Path, passages: int) -> Iterator[Passage]:
    """So many passages of two to four sentences each, drawn from the corpus; the same ones on every run."""
    chance, source = random.Random(7), list(read_corpus(corpus))
    sentences = [part for passage in source for part in re.split(r"(?<=[.!?])\s+", passage.text) if len(part) > 20]
    for at in range(passages):
        drawn = chance.choices(sentences, k=chance.randint(2, 4))
        # the inverse of Zipf's law: ranks so that their logarithms are drawn evenly
        names = [f"Q{int(NAMES ** chance.random()):x}" for _ in range(2)]
        title = f"{chance.choice(source).title} {names[0]}"
        yield Passage(str(at), title, f"{' '.join(drawn)} It was named after {names[1]}.")


def queries(corpus: Path, count: int) -> list[str]:
    """Eight words of one passage each: what a question shares with the passage that answers it, and more."""
    chance = random.Random(11)
    texts = [passage.text.split() for passage in itertools.islice(recombined(corpus, 5 * count), 0, None, 5)]
    return [" ".join(chance.sample(words, min(8, len(words)))) for words in texts]


class DrawnVectors:
    """An encoder that reads nothing: a text is a point around one of `CLUSTERS` centres, both drawn from its bytes."""

    def __init__(self, dim: int) -> None:
        from blendfilter.retrieval.encoders import EncodingOptions

        self.name, self.dimension, self.reading = "drawn vectors", dim, EncodingOptions("", "", "cosine", None)
        self.identity = f"drawn-{dim}"
        self._centres = np.random.default_rng(0).standard_normal((CLUSTERS, dim), dtype=np.float32)

    def line(self, passage: Passage) -> str:
        return passage.line

    def is_the_one(self, identity: str) -> bool:
        return identity == self.identity

    def encode_passages(self, texts: Sequence[str], batch_size: int = 64) -> Encoded:
        from blendfilter.retrieval.encoders import Encoded

        drawn = [zlib.crc32(text.encode()) for text in texts]
        noise = np.random.default_rng(drawn[0]).standard_normal((len(texts), self.dimension), dtype=np.float32)
        vectors = self._centres[np.array(drawn) % CLUSTERS] + noise
        return Encoded(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), [False] * len(texts))

    encode_queries = encode_passages


def without_encoder(dim: int) -> None:
    """Let dense indexes take drawn vectors, in this process: encoding a million texts is another measurement."""
    from blendfilter.retrieval import dense

    dense.load_encoder = lambda *_, **__: DrawnVectors(dim)  # type: ignore[attr-defined]


def memory(field: str) -> int:
    """Megabytes of this process: `RssAnon`, which no mapped file counts in."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) // 1024 if found else 0


def build(asked: argparse.Namespace, work: Path) -> dict[str, Any]:
    """In the child: build once; what it took."""
    from blendfilter.retrieval.indexes import build as build_index

    settings: dict[str, Any] = {}
    engine, passages = asked.engine, recombined(asked.corpus, asked.passages)
    if engine == "colbert":
        from checkpoints import minilm_colbert, tiny_colbert

        make = {"minilm": minilm_colbert, "tiny": tiny_colbert}[asked.checkpoint]
        settings = {"checkpoint": make(work / "checkpoint"), "doc_maxlen": asked.doc_maxlen}
        passages = repeated(asked.corpus, asked.passages, asked.repeat_text)
    elif engine in DENSE:
        without_encoder(asked.dim)
        settings = {"encoder": "drawn", "index": engine, "ef_construction": asked.ef_construction}
        engine = "dense"
    if asked.engine != "colbert":  # making the passages is no part of building an index: they come from a file
        with open(work / "corpus.jsonl", "w", encoding="utf-8") as file:
            file.writelines(
                json.dumps({"id": passage.id, "title": passage.title, "text": passage.text}) + "\n"
                for passage in passages
            )
        passages = work / "corpus.jsonl"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    last: dict[str, float] = {}  # phase to the time of its last call: there is a first one only when a part is done
    wall, started = time.perf_counter(), time.process_time()

    def progress(phase: str, done: int, total: int | None = None) -> None:
        last[phase] = time.process_time()

    index = build_index(engine, passages, work / "index", progress=progress, **settings)
    last["the rest"] = ended = time.process_time()
    spans = {name: round(b - a, 2) for (name, b), a in zip(last.items(), [started, *last.values()], strict=False)}
    size = sum(path.stat().st_size for path in (work / "index").rglob("*") if path.is_file())
    known, peak = index.info()["settings"], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {name: known[name] for name in ("vectors", "partitions", "dimension") if name in known}
    found |= {"seconds": round(ended - started, 1), "phases": spans, "wall": round(time.perf_counter() - wall, 1)}
    found |= {"before_mb": round(before / 1024)}
    return found | {"peak_mb": round(peak / 1024), "disk_mb": round(size / 1e6, 1)}


def search(asked: argparse.Namespace, work: Path) -> dict[str, Any]:
    """In another child: open, search one by one; `anon_mb` is the memory that is not mapped files."""
    from blendfilter.retrieval.indexes import open_index

    if asked.engine in DENSE:  # a process loads these once, whatever it opens
        import_module("faiss")
        without_encoder(asked.dim)
    before = memory("RssAnon")
    started = time.perf_counter()
    index: Any = open_index(work / "index")
    opened, times = time.perf_counter() - started, []
    found = queries(asked.corpus, asked.queries)
    index.search(found[:10], K)
    for query in found:
        started = time.process_time()
        index.search([query], K)
        times.append(1000 * (time.process_time() - started))
    ninth = statistics.quantiles(times, n=10)[-1]
    measured: dict[str, Any] = {"open_ms": round(1000 * opened), "p50_ms": round(statistics.median(times), 2)}
    measured |= {"p90_ms": round(ninth, 2), "anon_mb": memory("RssAnon") - before}
    if asked.engine == "hnsw":
        import faiss

        vectors = index.encoder.encode_queries(found).vectors
        exact = faiss.downcast_index(index.faiss.storage).search(vectors, K)[1]
        near = index.faiss.search(vectors, K)[1]
        shares = [len({*row} & {*best}) / K for row, best in zip(near.tolist(), exact.tolist(), strict=True)]
        measured["overlap_with_flat"] = round(statistics.mean(shares), 3)
    return measured


def main() -> None:
    """Two processes a size; then the exponent by which each figure grows between the first size and the last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="any corpus file that blendfilter reads")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2000, 6000, 19000])
    parser.add_argument("--engine", choices=("colbert", "bm25", *DENSE), default="colbert")
    parser.add_argument("--checkpoint", choices=("minilm", "tiny"), default="minilm")
    parser.add_argument("--dim", type=int, default=64, help="of flat's and hnsw's vectors")
    parser.add_argument("--ef-construction", type=int, default=200, help="of hnsw")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--doc-maxlen", type=int, default=220)
    parser.add_argument("--repeat-text", type=int, default=1)
    parser.add_argument("--step", choices=("build", "search"), help=argparse.SUPPRESS)
    parser.add_argument("--passages", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.step:
        print(json.dumps({"build": build, "search": search}[asked.step](asked, asked.work)))
        return
    rows = []
    for size in asked.sizes:
        row: dict[str, Any] = {"engine": asked.engine, "passages": size}
        with tempfile.TemporaryDirectory() as work:
            for step in ("build", "search"):
                own = ["--step", step, "--passages", str(size), "--work", work]
                done = subprocess.run(
                    [sys.executable, __file__, *sys.argv[1:], *own], capture_output=True, text=True, check=False
                )
                if done.returncode:
                    raise SystemExit(done.stderr[-2000:])
                row |= json.loads(done.stdout.splitlines()[-1])
        rows.append(row)
        print(json.dumps(row), flush=True)
    if len(rows) > 1:
        first, last = rows[0], rows[-1]
        for what in ("seconds", "peak_mb", "disk_mb", "p50_ms"):
            power = math.log(last[what] / first[what]) / math.log(last["passages"] / first["passages"])
            print(f"{what} grow as passages to the power of {power:.2f}")


if __name__ == "__main__":
    main()
