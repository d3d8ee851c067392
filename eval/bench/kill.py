"""`kill -9` of a run at random moments while calls are in flight, then the same command again.

    python eval/bench/kill.py [--kills 20] [--questions 40] [--method react] [--repeats 2]

A run of the sample world against a local model server (every call takes 30 to 80 ms) is killed at random moments and
resumed, in the middle once with the server on another port. Checked at the end: `predictions.jsonl` and `metrics.json`
are, byte for byte, those of an undisturbed run; no call that the journal held was asked of a server again; a replay
with the server gone gives the same bytes.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from model_server import Server, serve

import blendfilter as bf

FILES = ("predictions.jsonl", "metrics.json")


def start(folder: Path, url: str, how: list[str], *more: str) -> subprocess.Popen[bytes]:
    """The run's command, in a process group of its own."""
    command = [
        sys.executable, "-m", "blendfilter.cli", "eval", "qa", "--data", "sample", *how,
        "--lm", "any/model", "--api-base", url, "--run", str(folder), "--concurrency", "8", *more,
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait for a run that is left alone."""
    _, errors = process.communicate(timeout=300)
    if process.returncode:
        raise SystemExit(f"the run failed ({process.returncode}): {errors.decode()[-500:]}")


def journaled(folder: Path) -> Counter[str]:
    """How many calls the journal holds of each prompt (a repeat is a call of its own), the torn last line left out."""
    if not (folder / "journal.jsonl").is_file():
        return Counter()
    with bf.Journal(folder, "replay") as journal:
        return Counter(record["prompt"] for record in journal.records() if record["kind"] == "call")


def disturbed(
    folder: Path, servers: list[Server], kills: int, how: list[str], longest: float, needed: Counter[str]
) -> tuple[int, int, int]:
    """Kill and resume until done; kills that met calls in flight, calls asked in all, journaled calls asked again.

    `needed`: the calls of an undisturbed run; what is asked beyond those that the journal lacked was asked again.
    """
    chance = random.Random(20)
    met = asked = again = 0
    for sitting in range(kills + 1):
        server = servers[sitting * len(servers) // (kills + 1)]
        held = journaled(folder)
        server.reset()
        process = start(folder, server.url, how)
        if sitting < kills:
            # Moments are drawn from the time at which calls begin, so that few kills fall into the imports.
            while not server.stats()["requests"] and process.poll() is None:
                time.sleep(0.01)
            time.sleep(chance.uniform(0, longest))
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        else:
            finish(process)
        time.sleep(0.1)
        stats = server.stats()
        asked += stats["requests"]
        again += (Counter(stats["prompts"]) - (needed - held)).total()
        met += sitting < kills and (journaled(folder) - held).total() < stats["requests"]
    return met, asked, again


def main() -> None:
    """Run, kill, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--method", default="blendfilter")
    parser.add_argument("--repeats", type=int, default=1)
    args = parser.parse_args()
    how = ["--method", args.method, "--limit", str(args.questions), "--repeats", str(args.repeats)]
    options = {"reply": "offline", "delay": 0.03, "jitter": 1, "jitter_max": 0.05, "keep": True}
    with tempfile.TemporaryDirectory() as scratch, serve(**options) as one, serve(**options) as other:
        calm, rough = Path(scratch) / "calm", Path(scratch) / "rough"
        finish(start(calm, one.url, how))
        needed = one.stats()["requests"]
        longest = needed * 0.055 / 8 / args.kills * 1.6
        met, asked, again = disturbed(rough, [one, other], args.kills, how, longest, journaled(calm))
        same = [(calm / name).read_bytes() == (rough / name).read_bytes() for name in FILES]
        print(f"{args.method}, {args.questions} questions x {args.repeats}, {needed} calls;")
        print(f"  {args.kills} kills, {met} of them with calls in flight, half of the sittings on another port")
        print(f"  asked of the servers in all: {asked}; journaled calls asked again: {again}")
        for name, equal in zip(FILES, same, strict=True):
            print(f"  {name}: {'the same bytes' if equal else 'DIFFERENT'}")
        one.stop()
        other.stop()
        before = {name: (rough / name).read_bytes() for name in FILES}
        finish(start(rough, one.url, how, "--replay"))
        replayed = all((rough / name).read_bytes() == before[name] for name in FILES)
        print(f"  replay with both servers gone: {'the same bytes' if replayed else 'DIFFERENT'}")
    if not (all(same) and replayed and not again):
        raise SystemExit("the run did not survive")


if __name__ == "__main__":
    main()
