"""`kill -9` of an index build at random moments: what is left never opens as an index, and the next build is clean.

    python eval/bench/index_kill.py [--kills 10] [--engine colbert]
    python eval/bench/index_kill.py --update [--kills 20] [--engine bm25]

A build of the sample world (a few hundred passages, made a few times over) runs as a command and is killed at a random
moment of its life; half of the times it is to replace an index that stands there. Checked each time: the folder opens
as the old index, whole, or is no index at all; and after the last kill an undisturbed build leaves nothing else behind.

With `--update` it is an update (passages added, deleted and replaced) that is killed, from the moment at which it
begins. The folder must open as the old index or as the new one, and find what that finds; never as none. Meanwhile
another process opens it over and over, and searches.
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
from checkpoints import minilm, tiny_bert, tiny_colbert

from blendfilter.errors import BlendFilterError
from blendfilter.resources import sample
from blendfilter.retrieval.corpus import read_corpus
from blendfilter.retrieval.indexes import build, open_index
from blendfilter.retrieval.manifest import building
from blendfilter.retrieval.stored import Stored


def main() -> None:
    """Kill, look, build, look."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--engine", choices=("bm25", "colbert", "dense"), default="colbert")
    parser.add_argument("--update", action="store_true")
    asked = parser.parse_args()
    chance = random.Random(3)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        corpus, out = root / "corpus.jsonl", root / "indexes" / "mine"
        with open(corpus, "w", encoding="utf-8") as file:
            for copy in range(3 if asked.update else 10):
                for passage in read_corpus(sample("corpus.jsonl")):
                    row = {"id": f"{passage.id}-{copy}", "title": passage.title, "text": passage.text}
                    file.write(json.dumps(row) + "\n")
        encoder = tiny_bert if asked.update else minilm  # what an update does to files is the same
        options = {
            "bm25": [],
            "colbert": ["--checkpoint", str(tiny_colbert(root / "checkpoint"))] if asked.engine == "colbert" else [],
            "dense": ["--encoder", str(encoder(root / "encoder"))] if asked.engine == "dense" else [],
        }[asked.engine]
        command = [
            sys.executable, "-m", "blendfilter.cli", "index", str(corpus), "--out", str(out), "--engine", asked.engine,
            "--overwrite", *options,
        ]  # fmt: skip
        if asked.update:
            return updates(asked, root, chance)
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
    return None


READ = """
import os
import sys
from blendfilter.errors import BlendFilterError
from blendfilter.retrieval.indexes import open_index
print("begins", flush=True)
parent = os.getppid()
while os.getppid() == parent:  # who is killed itself leaves no reader behind
    try:
        index = open_index(sys.argv[1])
        ids = [passage.id for passage in index("harbour town", k=20)]
    except BlendFilterError as error:
        index, ids = None, [str(error)]
    print(index and index.fingerprint, *ids, flush=True)
"""


def begun(index: Stored, rows: list[dict[str, str]]) -> int:
    """The number of a process that updates `index`: a fork, so that nothing but the update takes time in it."""
    if child := os.fork():
        return child
    try:
        gone = [passage.id for passage in index.passages[:50]]
        index.update([row for row in rows if row["id"] not in gone], gone, replace=True)
        os._exit(0)
    finally:
        os._exit(1)


def updates(asked: argparse.Namespace, root: Path, chance: random.Random) -> None:
    """Update, kill, look."""
    out = root / "indexes" / "mine"
    rows = [json.loads(line) for line in (root / "corpus.jsonl").read_text("utf-8").splitlines()]
    new = [{**row, "id": f"new-{at}"} for at, row in enumerate(rows[:400])]
    new += [{**row, "text": f"{row['text']} And another harbour."} for row in rows[300:500]]  # with known ids

    def opened() -> Stored:
        index = open_index(out)
        assert isinstance(index, Stored)
        return index

    def answer() -> str:
        index = opened()
        return " ".join([index.fingerprint, *(passage.id for passage in index("harbour town", k=20))])

    how = {name: root / name for name in ("checkpoint", "encoder") if (root / name).exists()}
    build(asked.engine, root / "corpus.jsonl", out, **how)
    shutil.copytree(out, root / "old")
    old = answer()
    index, started = opened(), time.perf_counter()
    assert os.waitpid(begun(index, new), 0)[1] == 0
    whole, after = time.perf_counter() - started, answer()
    counts = {old: 0, after: 0}
    left = 0
    with open(root / "read.txt", "w", encoding="utf-8") as seen:
        reader = subprocess.Popen([sys.executable, "-c", READ, str(out)], stdout=seen, start_new_session=True)
        try:
            for kill in range(asked.kills):
                again = root / "again"
                shutil.copytree(root / "old", again)
                with building(out, overwrite=True) as folder:  # the old index, back in one step
                    shutil.copytree(again, folder, dirs_exist_ok=True)
                shutil.rmtree(again)
                process = begun(opened(), new)
                time.sleep(chance.uniform(0, 1.1) * whole)
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
                left += sum(1 for path in out.parent.iterdir() if path.name.startswith("."))
                found = answer()
                if found not in counts:
                    raise SystemExit(f"kill {kill}: what opens is neither the old index nor the new one: {found}")
                counts[found] += 1
        finally:
            os.killpg(reader.pid, signal.SIGKILL)
            reader.wait()
    lines = (root / "read.txt").read_text("utf-8").splitlines()[1:-1]
    if wrong := [line for line in lines if line not in counts]:
        raise SystemExit(f"a reader opened what is neither: {wrong[0]}")
    print(f"{asked.engine}, {whole:.2f} s an update; {asked.kills} kills: {counts[old]} left the old index, "
          f"{counts[after]} the new one")  # fmt: skip
    print(
        f"{left} unfinished folders were swept; a reader opened it {len(lines)} times meanwhile, one of the two always"
    )


if __name__ == "__main__":
    main()
