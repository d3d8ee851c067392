"""What building an index on the CPU takes, at three sizes: seconds a phase, the peak of memory, the size on disk.

    python eval/bench/index_growth.py --corpus corpus/hotpotqa.jsonl.gz [--sizes 2000 6000 19000] [--checkpoint minilm]
    python eval/bench/index_growth.py --corpus corpus/hotpotqa.jsonl.gz --engine bm25 --sizes 19000 95000 190000

Each build runs in a process of its own; a corpus that is too short begins again. `--checkpoint tiny` takes a random
BERT of 32 numbers a token, which costs next to nothing to run, and so shows everything but the encoder. `--repeat-text
N` makes every text N times as long with `--doc-maxlen` as it was: the vectors stay the same in number, and memory
should, too.
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

    from blendfilter.retrieval.corpus import read_corpus
    from blendfilter.retrieval.indexes import build as build_index

    def passages():  # type: ignore[no-untyped-def]
        rounds = (row for copy in itertools.count() for row in ((copy, each) for each in read_corpus(asked.corpus)))
        for copy, passage in itertools.islice(rounds, asked.build):
            text = " ".join([passage.text] * asked.repeat_text)
            yield replace(passage, id=f"{passage.id}-{copy}", text=text)

    with tempfile.TemporaryDirectory() as folder:
        settings = {}
        if asked.engine == "colbert":
            make = {"minilm": minilm_colbert, "tiny": tiny_colbert}[asked.checkpoint]
            settings = {"checkpoint": make(Path(folder) / "checkpoint"), "doc_maxlen": asked.doc_maxlen}
        phases: dict[str, list[float]] = {}
        started = time.perf_counter()

        def progress(phase: str, done: int, total: int | None = None) -> None:
            phases.setdefault(phase, [time.perf_counter()]).append(time.perf_counter())

        out = Path(folder) / "index"
        index = build_index(asked.engine, passages(), out, progress=progress, **settings)
        ended = time.perf_counter()
        marks = [times[0] for times in phases.values()] + [ended]
        spans = {name: round(b - a, 2) for name, a, b in zip(phases, marks, marks[1:], strict=False)}
        size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        known, peak = index.info()["settings"], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        told = {"passages": asked.build, **{name: known[name] for name in ("vectors", "partitions") if name in known}}
        told |= {"seconds": round(ended - started, 1), "phases": spans}
        print(json.dumps(told | {"peak_mb": round(peak / 1024), "disk_mb": round(size / 1e6, 1)}))


def main() -> None:
    """A process a size; then the exponent by which seconds and memory grow between the first and the last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="any corpus file that blendfilter reads")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2000, 6000, 19000])
    parser.add_argument("--engine", choices=("colbert", "bm25"), default="colbert")
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
