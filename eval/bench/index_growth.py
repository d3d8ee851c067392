"""What building a ColBERT index on the CPU takes, at three sizes: seconds a phase, and the peak of memory.

    python eval/bench/index_growth.py --corpus corpus/hotpotqa.jsonl.gz [--sizes 2000 6000 19000] [--checkpoint minilm]

Each build runs in a process of its own. `--checkpoint tiny` takes a random BERT of 32 numbers a token, which costs next
to nothing to run, and so shows everything but the encoder. `--repeat-text N` makes every text N times as long with
`--doc-maxlen` as it was: the vectors stay the same in number, and memory should, too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))


def build(asked: argparse.Namespace) -> None:
    """In the child: build once, print what it took as JSON."""
    from checkpoints import minilm_colbert, tiny_colbert

    from blendfilter.retrieval.colbert import ColBERT
    from blendfilter.retrieval.corpus import read_corpus

    def passages():  # type: ignore[no-untyped-def]
        rows = itertools.islice(read_corpus(asked.corpus), asked.build)
        for passage in rows:
            yield replace(passage, text=" ".join([passage.text] * asked.repeat_text))

    with tempfile.TemporaryDirectory() as folder:
        make = {"minilm": minilm_colbert, "tiny": tiny_colbert}[asked.checkpoint]
        checkpoint = make(Path(folder) / "checkpoint")
        phases: dict[str, list[float]] = {}
        started = time.perf_counter()

        def progress(phase: str, done: int, total: int | None = None) -> None:
            phases.setdefault(phase, [time.perf_counter()]).append(time.perf_counter())

        out = Path(folder) / "index"
        index = ColBERT.build(passages(), out, checkpoint=checkpoint, doc_maxlen=asked.doc_maxlen, progress=progress)
        ended = time.perf_counter()
        marks = [times[0] for times in phases.values()] + [ended]
        spans = {name: round(b - a, 2) for name, a, b in zip(phases, marks, marks[1:], strict=False)}
        size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        settings, peak = index.info()["settings"], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        told = {"passages": len(index), "vectors": settings["vectors"], "partitions": settings["partitions"]}
        told |= {"sampled": settings["sampled_passages"], "seconds": round(ended - started, 1), "phases": spans}
        print(json.dumps(told | {"peak_mb": round(peak / 1024), "disk_mb": round(size / 1e6, 1)}))


def main() -> None:
    """A process a size; then the exponent by which seconds and memory grow between the first and the last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="any corpus file that blendfilter reads")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2000, 6000, 19000])
    parser.add_argument("--checkpoint", choices=("minilm", "tiny"), default="minilm")
    parser.add_argument("--doc-maxlen", type=int, default=220)
    parser.add_argument("--repeat-text", type=int, default=1)
    parser.add_argument("--build", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.build:
        return build(asked)
    told = []
    for size in asked.sizes:
        done = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--build", str(size)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        told.append(json.loads(done.stdout.splitlines()[-1]))
        print(json.dumps(told[-1]), flush=True)
    if len(told) > 1:
        first, last = told[0], told[-1]
        for what in ("seconds", "peak_mb", "disk_mb"):
            power = math.log(last[what] / first[what]) / math.log(last["passages"] / first["passages"])
            print(f"{what} grow as passages to the power of {power:.2f}")
    return None


if __name__ == "__main__":
    main()
