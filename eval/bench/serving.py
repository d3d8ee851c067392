"""`blendfilter serve` under load: 32 clients that ask 50 queries each, over BM25 and over ColBERT.

    python eval/bench/serving.py --corpus corpus/hotpotqa.jsonl.gz --questions hotpotqa/dev.jsonl.gz

The server is the command in a process of its own; the clients are threads of a second one, each with one connection and
one query in flight, in dspy.ColBERTv2's format (GET, k = 10). Told: errors, the median and the 99th percentile of a
request, queries a second, how many batches the server made of them, and the processor time of server and clients apart.
Beside it the same queries in this process: as one batch, and one by one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
import httpx
from checkpoints import minilm_colbert
from index_server import Process

from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.colbert import ColBERT
from blendfilter.retrieval.corpus import read_corpus
from blendfilter.tasks.loading import load

K = 10


def ask(url: str, queries: list[str], clients: int) -> dict[str, float]:
    """In the clients' process: every client asks its share, one after the other."""
    times: list[float] = []
    errors = 0
    start = threading.Barrier(clients + 1)

    def client(mine: list[str]) -> None:
        nonlocal errors
        with httpx.Client(base_url=url, timeout=120) as http:
            http.get("/health")
            start.wait()
            for query in mine:
                began = time.perf_counter()
                reply = http.get("/", params={"query": query, "k": K})
                times.append(time.perf_counter() - began)
                if reply.status_code != 200 or len(reply.json()["topk"]) != K:
                    errors += 1

    threads = [threading.Thread(target=client, args=(queries[at::clients],)) for at in range(clients)]
    for thread in threads:
        thread.start()
    start.wait()
    began, used = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.join()
    wall, times = time.perf_counter() - began, sorted(times)
    return {
        "errors": errors, "asked": len(times), "seconds": wall, "median": times[len(times) // 2],
        "p99": times[int(0.99 * len(times))], "cpu": time.process_time() - used,
    }  # fmt: skip


def seconds(index: Retriever, queries: list[str], batch: int) -> float:
    """Wall time of searching all of `queries` in batches of that size."""
    began = time.perf_counter()
    for start in range(0, len(queries), batch):
        index.search(queries[start : start + batch], K)
    return time.perf_counter() - began


def served(name: str, index: Retriever, folder: Path, queries: list[str], clients: int) -> None:
    """Serve `folder`, let the clients ask, print."""
    index.search(queries[:32], K)  # kernels and pages
    batch, single = seconds(index, queries, 64), seconds(index, queries, 1)
    with Process(folder, "--port", 0) as server:
        spent = cpu_of(server.process.pid)
        done = subprocess.run(
            [sys.executable, __file__, "--ask", server.url, "--clients", str(clients)],
            input=json.dumps(queries), capture_output=True, text=True, check=True,
        )  # fmt: skip
        spent = cpu_of(server.process.pid) - spent
        told = json.loads(done.stdout)
        counts = httpx.get(f"{server.url}/info").json()["served"]
    number = told["asked"]
    rate, each = number / told["seconds"], number / counts["batches"]
    lines = [
        f"{name}: {number} requests by {clients} clients, {told['errors']} errors; median "
        f"{1000 * told['median']:.1f} ms, 99th percentile {1000 * told['p99']:.1f} ms; {rate:.0f} a second",
        f"  {counts['batches']} batches, {each:.1f} queries each, largest {counts['largest_batch']}; processor time a "
        f"request: server {1000 * spent / number:.2f} ms, clients {1000 * told['cpu'] / number:.2f} ms",
        f"  in this process: {len(queries) / batch:.0f} a second in batches of 64, {len(queries) / single:.0f} one by "
        f"one; served / batch {rate * batch / len(queries):.2f}",
    ]
    print("\n".join(lines), flush=True)


def cpu_of(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Build both indexes, serve one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="any corpus file that blendfilter reads")
    parser.add_argument("--questions", type=Path, help="a HotPotQA question file")
    parser.add_argument("--passages", type=int, default=2000, help="of the corpus, for ColBERT")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--each", type=int, default=50, help="queries a client")
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.ask:
        print(json.dumps(ask(asked.ask, json.loads(sys.stdin.read()), asked.clients)))
        return
    known = [question.question for question in load("hotpotqa", asked.questions)]
    queries = list(itertools.islice(itertools.cycle(known), asked.clients * asked.each))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        bm25 = BM25.build(asked.corpus, root / "bm25")
        served(f"BM25, {len(bm25):,} passages", bm25, root / "bm25", queries, asked.clients)
        corpus = itertools.islice(read_corpus(asked.corpus), asked.passages)
        colbert = ColBERT.build(corpus, root / "colbert", checkpoint=minilm_colbert(root / "checkpoint"))
        served(f"ColBERT, {len(colbert):,} passages", colbert, root / "colbert", queries, asked.clients)
    print(f"peak memory of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
