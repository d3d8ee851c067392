"""Builds that were killed, and builds whose disk was full: never an index that opens and is not whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blendfilter.errors import MissingFile
from blendfilter.records import Passage
from blendfilter.retrieval.colbert import ColBERT
from blendfilter.retrieval.indexes import open_index

pytestmark = pytest.mark.slow
FORKED = """
import os, resource, signal, sys
from pathlib import Path
from blendfilter.records import Passage
from blendfilter.retrieval.colbert import ColBERT, index as module
from blendfilter.retrieval.colbert.encoder import Checkpoint
from blendfilter.retrieval.colbert.encoder import Encoder
import torch

torch.set_num_threads(1)
Encoder(Checkpoint(sys.argv[2]), "cpu")  # imports what a build imports, once for all of them

def build(out, checkpoint, **settings):
    return ColBERT.build([Passage(str(n), "", f"the river {n} of the sea") for n in range(90)], out,
                         checkpoint=checkpoint, **settings)

def forked(work):  # from a process whose torch has no threads, so that it may
    child = os.fork()
    if child == 0:
        try:
            work()
        except OSError as error:
            print(f"OSError {error.errno} {error.strerror}", file=sys.stderr, flush=True)
            os._exit(3)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(4)
        os._exit(0)
    return os.waitpid(child, 0)[1]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
"""
KILLED = """
out, checkpoint, overwrite = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "overwrite"
for moment in (1, 2, 4, 7, 8, "manifest"):
    def work():
        calls = []
        if moment == "manifest":
            module.write_manifest = die
        def progress(*row):
            calls.append(row)
            if len(calls) == moment:
                die()
        build(out, checkpoint, overwrite=overwrite, progress=progress)
    state = forked(work)
    assert os.WIFSIGNALED(state) and os.WTERMSIG(state) == signal.SIGKILL, (moment, state)
    assert out.exists() == overwrite
    assert len(list(out.parent.glob(".*building*"))) == 1, "what earlier ones left behind was swept"
"""
FULL = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
out, checkpoint, overwrite = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "overwrite"
for limit in (1_000, 5_000, 5_600, 15_000):
    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        build(out, checkpoint, overwrite=overwrite)
    state = forked(work)
    assert os.WIFEXITED(state) and os.WEXITSTATUS(state) == 3, (limit, state)
    assert out.exists() == overwrite
    assert not list(out.parent.glob(".*building*"))
"""


def script(code: str, *words: Any) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(
        [sys.executable, "-c", FORKED + code, *map(str, words)],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended


@pytest.fixture
def old(tmp_path: Path, towns: list[Passage], checkpoint: Path) -> ColBERT:
    return ColBERT.build(towns[:30], tmp_path / "place" / "index", checkpoint=checkpoint)


def test_a_killed_build_leaves_nothing_that_opens(tmp_path: Path, towns: list[Passage], checkpoint: Path) -> None:
    place = tmp_path / "place"
    script(KILLED, place / "index", checkpoint, "new")
    with pytest.raises(MissingFile):
        open_index(place / "index")
    assert len(list(place.iterdir())) == 1
    index = ColBERT.build(towns, place / "index", checkpoint=checkpoint)
    assert len(index("river", k=5)) == 5
    assert [path.name for path in place.iterdir()] == ["index"]


def test_a_killed_replacement_leaves_the_old_index(old: ColBERT, checkpoint: Path) -> None:
    assert old.path is not None
    script(KILLED, old.path, checkpoint, "overwrite")
    again = open_index(old.path)
    assert again.fingerprint == old.fingerprint
    assert again.search(["river"], 5) == old.search(["river"], 5)


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, checkpoint: Path) -> None:
    ended = script(FULL, tmp_path / "place" / "index", checkpoint, "new")
    assert not list((tmp_path / "place").iterdir())
    said = ended.stderr.splitlines()
    assert len(said) == 4
    assert all(line.startswith("OSError ") for line in said)
    assert any("torch could not write the index here: is the disk full?" in line for line in said)


def test_a_full_disk_leaves_the_old_index(old: ColBERT, checkpoint: Path) -> None:
    assert old.path is not None
    script(FULL, old.path, checkpoint, "overwrite")
    assert json.loads((old.path / "manifest.json").read_text())["fingerprint"] == old.fingerprint
    assert open_index(old.path).search(["river"], 5) == old.search(["river"], 5)
