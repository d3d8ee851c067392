"""A budget of calls and one of tokens against a server's own count, over sittings, with faults and over kills.

    python eval/bench/budget.py [--at-once 32]

BlendFilter over the sample world, answered by `tests/model_server.py` in a process of its own, whose tokens are words
between white space, far fewer than the bytes that are reserved for them. Each run has three sittings; a sitting ends at
its limit, and the next has more. With faults a reply takes a fifth of a second, or a sitting would be over before the
first calls are tried again. With `kills`, the first two are killed (`kill -9`) on their way to the last limit.
Told is what the server counted, and its share of the limit: never more than 100 %.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from kill import start
from model_server import Server, serve

LIMITS = {"calls": (200, 400, 700), "tokens": (200_000, 400_000, 800_000)}
WAYS: dict[str, dict[str, Any]] = {
    "calm": {"jitter": 1, "jitter_max": 0.02},
    "a fifth of the calls fails": {"behave": "flaky", "delay": 0.15, "jitter": 1, "jitter_max": 0.1},
    "kills": {"delay": 0.03, "jitter": 1, "jitter_max": 0.05},
}


def used(server: Server, what: str) -> int:
    """What the server counted."""
    stats = server.stats()
    return int(stats["requests"] if what == "calls" else stats["tokens_in"] + stats["tokens_out"])


def sitting(folder: Path, server: Server, what: str, limit: int, at_once: int, kill_at: int | None) -> None:
    """One sitting, to its limit, or killed when the server has counted `kill_at`."""
    more = ("--concurrency", str(at_once), f"--max-{what}", str(limit), "--repeats", "4", "--no-html")
    process = start(folder, server.url, ["--method", "blendfilter"], *more)
    if kill_at is not None:
        while used(server, what) < kill_at and process.poll() is None:
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGKILL)
    _, said = process.communicate(timeout=300)
    if kill_at is None and process.returncode != 3:
        raise SystemExit(f"not ended by the budget ({process.returncode}): {said.decode()[-500:]}")
    time.sleep(0.2)


def main() -> None:
    """Run each limit in each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, default=32)
    args = parser.parse_args()
    passed = False
    for what, limits in LIMITS.items():
        for way, options in WAYS.items():
            told = []
            with tempfile.TemporaryDirectory() as scratch, serve(reply="offline", **options) as server:
                for number, limit in enumerate(limits):
                    killed = way == "kills" and number < len(limits) - 1
                    asked, kill_at = (limits[-1], limit // 3) if killed else (limit, None)
                    sitting(Path(scratch) / "run", server, what, asked, args.at_once, kill_at)
                    count = used(server, what)
                    passed = passed or count > asked
                    told.append(f"{count:,} of {asked:,} ({100 * count / asked:.1f} %{', killed' if killed else ''})")
                most = server.stats()["max_in_flight"]
            print(f"{what}, {way}, at most {most} in flight: {'; '.join(told)}", flush=True)
    if passed:
        raise SystemExit("a limit was passed")


if __name__ == "__main__":
    main()
