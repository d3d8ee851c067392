"""`kill -9` of a run at random moments while calls are in flight, then the same command again.

    python eval/bench/kill.py [--kills 20] [--questions 40]

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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from model_server import Server, serve

import blendfilter as bf

FILES = ("predictions.jsonl", "metrics.json")


def start(folder: Path, url: str, questions: int, *more: str) -> subprocess.Popen[bytes]:
    """The run's command, in a process group of its own."""
    command = [
        sys.executable, "-m", "blendfilter.cli", "eval", "qa", "--data", "sample", "--method", "blendfilter",
        "--limit", str(questions), "--lm", "any/model", "--api-base", url, "--run", str(folder), "--concurrency", "8",
        *more,
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait for a run that is left alone."""
    _, errors = process.communicate(timeout=300)
    if process.returncode:
        raise SystemExit(f"the run failed ({process.returncode}): {errors.decode()[-500:]}")


def journaled(folder: Path) -> set[str]:
    """Prompts that the journal holds, the torn last line left out."""
    if not (folder / "journal.jsonl").is_file():
        return set()
    with bf.Journal(folder, "replay") as journal:
        return {record["prompt"] for record in journal.records() if record["kind"] == "call"}


def disturbed(folder: Path, servers: list[Server], kills: int, questions: int, longest: float) -> tuple[int, int, int]:
    """Kill and resume until done; kills that met calls in flight, calls asked in all, journaled calls asked again."""
    chance = random.Random(20)
    met = asked = again = 0
    for sitting in range(kills + 1):
        server = servers[sitting * len(servers) // (kills + 1)]
        held = journaled(folder)
        server.reset()
        process = start(folder, server.url, questions)
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
        again += sum(prompt in held for prompt in stats["prompts"])
        met += sitting < kills and len(journaled(folder) - held) < stats["requests"]
    return met, asked, again


def main() -> None:
    """Run, kill, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--questions", type=int, default=40)
    args = parser.parse_args()
    options = {"reply": "offline", "delay": 0.03, "jitter": 1, "jitter_max": 0.05, "keep": True}
    with tempfile.TemporaryDirectory() as scratch, serve(**options) as one, serve(**options) as other:
        calm, rough = Path(scratch) / "calm", Path(scratch) / "rough"
        finish(start(calm, one.url, args.questions))
        needed = one.stats()["requests"]
        met, asked, again = disturbed(
            rough, [one, other], args.kills, args.questions, needed * 0.055 / 8 / args.kills * 1.6
        )
        same = [(calm / name).read_bytes() == (rough / name).read_bytes() for name in FILES]
        print(f"{args.questions} questions, {needed} calls; {args.kills} kills, {met} of them with calls in flight,")
        print("  half of the sittings on another port")
        print(f"  asked of the servers in all: {asked}; journaled calls asked again: {again}")
        for name, equal in zip(FILES, same, strict=True):
            print(f"  {name}: {'the same bytes' if equal else 'DIFFERENT'}")
        one.stop()
        other.stop()
        before = {name: (rough / name).read_bytes() for name in FILES}
        finish(start(rough, one.url, args.questions, "--replay"))
        replayed = all((rough / name).read_bytes() == before[name] for name in FILES)
        print(f"  replay with both servers gone: {'the same bytes' if replayed else 'DIFFERENT'}")
    if not (all(same) and replayed and not again):
        raise SystemExit("the run did not survive")


if __name__ == "__main__":
    main()
