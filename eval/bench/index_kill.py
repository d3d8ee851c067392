"""`kill -9` of an index build at random moments: what is left never opens as an index, and the next build is clean.

    python eval/bench/index_kill.py [--kills 10] [--engine colbert]

A build of the sample world (a few hundred passages, made a few times over) runs as a command and is killed at a random
moment of its life; half of the times it is to replace an index that stands there. Checked each time: the folder opens
as the old index, whole, or is no index at all; and after the last kill an undisturbed build leaves nothing else behind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from checkpoints import minilm, tiny_colbert

from blendfilter.errors import BlendFilterError
from blendfilter.resources import sample
from blendfilter.retrieval.corpus import read_corpus
from blendfilter.retrieval.indexes import open_index


def main() -> None:
    """Kill, look, build, look."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--engine", choices=("bm25", "colbert", "dense"), default="colbert")
    asked = parser.parse_args()
    chance = random.Random(3)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        corpus, out = root / "corpus.jsonl", root / "indexes" / "mine"
        with open(corpus, "w", encoding="utf-8") as file:
            for copy in range(10):
                for passage in read_corpus(sample("corpus.jsonl")):
                    row = {"id": f"{passage.id}-{copy}", "title": passage.title, "text": passage.text}
                    file.write(json.dumps(row) + "\n")
        options = {
            "bm25": [],
            "colbert": ["--checkpoint", str(tiny_colbert(root / "checkpoint"))] if asked.engine == "colbert" else [],
            "dense": ["--encoder", str(minilm(root / "encoder"))] if asked.engine == "dense" else [],
        }[asked.engine]
        command = [
            sys.executable, "-m", "blendfilter.cli", "index", str(corpus), "--out", str(out), "--engine", asked.engine,
            "--overwrite", *options,
        ]  # fmt: skip
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        whole = time.perf_counter() - started
        fingerprint = open_index(out).fingerprint
        shutil.copytree(out, root / "whole")
        opened = none = left = 0
        for kill in range(asked.kills):
            shutil.rmtree(out, ignore_errors=True)
            if kill % 2 == 0:
                shutil.copytree(root / "whole", out)
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                       start_new_session=True)  # fmt: skip
            time.sleep(chance.uniform(0.3, 1.0) * whole)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            left += sum(1 for path in out.parent.iterdir() if path.name.startswith("."))
            try:
                index = open_index(out)
            except BlendFilterError:
                none += 1
                continue
            if index.fingerprint != fingerprint or not index("harbour town", k=5):
                raise SystemExit(f"kill {kill}: what opens is not the index that was whole")
            opened += 1
        subprocess.run(command, check=True, capture_output=True)
        rest = sorted(path.name for path in out.parent.iterdir())
        same = open_index(out).fingerprint == fingerprint
        print(f"{asked.engine}, {whole:.1f} s a build; {asked.kills} kills: {opened} left the whole index, {none} none")
        print(f"{left} unfinished folders were swept; at the end there is {rest}, the same fingerprint: {same}")
        if rest != ["mine"] or not same:
            raise SystemExit("something was left over")


if __name__ == "__main__":
    main()
