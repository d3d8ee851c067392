"""What a witnesses file costs: opening it, memory, its size, a verdict's and a closed question's append.

    python eval/bench/witnesses.py [--separations 100000] [--k 10] [--accepted 2] [--passages 20000]

Questions are made up; each retrieves `--k` neighbouring passages of which it accepts `--accepted` and rejects the
rest, until so many pairs have a witness. The file is written by `Writer`, the whole of it, so that appends are timed as
they are; opening runs in a process of its own, whose memory before and after is what the state takes. On a machine
that others use, read the seconds of CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from blendfilter.trimming.witnesses import JudgedBy, Witnesses, WitnessWriter

BY = JudgedBy("9f3a1c7702b4", "word", ("phi1",), "openai/gpt-4o-mini", "shipped")


def write(path: Path, asked: argparse.Namespace) -> dict[str, float]:
    """Fill the file; microseconds an append of each kind."""
    draw, verdicts, closings = random.Random(3), list[float](), list[float]()
    with WitnessWriter(path) as writer:
        while writer.witnesses.separations() < asked.separations:
            for _ in range(200):
                question = f"Who runs mill {len(closings)}, and which town is it in, if it stands?"
                first = draw.randrange(asked.passages - asked.k)
                found = [f"passage-{at}" for at in range(first, first + asked.k)]
                for at, passage in enumerate(found):
                    started = time.perf_counter()
                    writer.verdict(question, passage, at < asked.accepted, BY)
                    verdicts.append(time.perf_counter() - started)
                started = time.perf_counter()
                writer.close(question, found)
                closings.append(time.perf_counter() - started)
    last = verdicts[-len(verdicts) // 10 :]
    return {
        "questions": len(closings),
        "verdict_us": round(1e6 * statistics.median(verdicts), 1),
        "last_tenth_verdict_us": round(1e6 * statistics.median(last), 1),
        "close_us": round(1e6 * statistics.median(closings), 1),
    }


def opened(path: Path, threshold: int) -> None:
    """In the child: open it once, print what that took as JSON."""
    import gc

    gc.collect()
    before = _resident()
    started, begun = time.perf_counter(), time.process_time()
    witnesses = Witnesses.read(path)
    read, busy = time.perf_counter() - started, time.process_time() - begun
    gc.collect()
    after = _resident()
    started = time.perf_counter()
    digest = witnesses.digest(threshold)
    digested = time.perf_counter() - started
    started = time.perf_counter()
    reached = sum(1 for _ in witnesses.separated(threshold))
    listed = time.perf_counter() - started
    told = {"separations": witnesses.separations(), "reached": reached, "open_s": round(read, 2)}
    told |= {"open_cpu_s": round(busy, 2)}
    told |= {"state_mb": round((after - before) / 1e6, 1)}
    told |= {"peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)}
    told |= {"digest_s": round(digested, 2), "separated_s": round(listed, 2), "digest": digest}
    print(json.dumps(told))


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Write once; open three times, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--separations", type=int, default=100_000)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--accepted", type=int, default=2)
    parser.add_argument("--passages", type=int, default=20_000)
    parser.add_argument("--threshold", type=int, default=2)
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.open:
        return opened(asked.open, asked.threshold)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "witnesses.jsonl"
        told = write(path, asked)
        lines = path.read_bytes().count(b"\n")
        print(json.dumps(told | {"lines": lines, "file_mb": round(path.stat().st_size / 1e6, 1)}))
        for _ in range(3):
            words = [sys.executable, __file__, "--open", str(path), "--threshold", str(asked.threshold)]
            print(subprocess.run(words, capture_output=True, text=True, check=True).stdout, end="", flush=True)
    return None


if __name__ == "__main__":
    main()
