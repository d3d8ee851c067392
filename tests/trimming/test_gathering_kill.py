"""A trim killed with SIGKILL at twenty moments: what is lost is what was in flight, and both indexes still answer."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_server import serve

from blendfilter import BM25, load, open_index
from blendfilter.filters.cdit.judge import Judge
from blendfilter.journal import Journal
from blendfilter.lm.model import connect
from blendfilter.resources import sample
from blendfilter.trimming.folder import TrimFolder
from blendfilter.trimming.gathering import trim
from blendfilter.trimming.witnesses import Witnesses

KILLS, IN_FLIGHT = 20, 4
QUESTIONS = [*load("qa", "sample", limit=12)]


def gather(place: Path, url: str) -> None:
    folder = TrimFolder.read(place)
    index = open_index(folder.base)
    trim(index, QUESTIONS, Judge(), folder, lm=connect("test-model", api_base=url), concurrency=IN_FLIGHT)


def journaled(place: Path) -> Counter[str]:
    """How many calls the journal holds of each prompt."""
    if not (place / "journal.jsonl").is_file():
        return Counter()
    with Journal(place, "replay") as journal:
        return Counter(str(each["prompt"]) for each in journal.records("call"))


def verdicts(place: Path) -> dict[tuple[str, str], bool | None]:
    """Every verdict on file, of closed questions and of half-judged ones."""
    witnesses = Witnesses.read(place / "witnesses.jsonl")
    made: dict[tuple[str, str], bool | None] = {}
    for each in witnesses.judged.values():
        for verdict, names in ((True, each.accepted), (False, each.rejected), (None, each.silent)):
            made |= {(each.id, name): verdict for name in names}
    for half in witnesses.halves:
        made |= {(half, name): verdict for name, verdict in witnesses.half(half).items()}
    return made


def killed(place: Path, url: str, wanted: int) -> None:
    """Trim in a process of its own, and kill it once so many calls are on file; a fork is at work at once."""
    process = multiprocessing.get_context("fork").Process(target=gather, args=(place, url))
    process.start()
    deadline = time.monotonic() + 60
    path = place / "journal.jsonl"
    while process.is_alive() and time.monotonic() < deadline:
        if path.is_file() and path.read_bytes().count(b'"kind":"call"') >= wanted:
            break
        time.sleep(0.001)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(20)
    assert process.exitcode == -signal.SIGKILL


def state(place: Path) -> Any:
    witnesses = Witnesses.read(place / "witnesses.jsonl")
    judged = [replace(each, at="") for each in witnesses.judged.values()]
    return judged, list(witnesses.separated(1)), witnesses.digest(1)


@pytest.mark.slow
def test_killed_at_twenty_moments(tmp_path: Path) -> None:
    BM25.build(sample("corpus.jsonl"), tmp_path / "isles")
    calm, rough = (
        TrimFolder.create(tmp_path / "isles", tmp_path / name, k=10, threshold=1).place for name in ("calm", "rough")
    )
    bare = open_index(tmp_path / "isles")
    asked = [each.question for each in QUESTIONS]
    before = bare.search(asked, 5)
    with serve(reply="offline", delay=0.004, keep=True) as server:
        gather(calm, server.url)
        needed, right = journaled(calm), verdicts(calm)
        server.reset()
        chance = random.Random(7)
        total, lost, kept = needed.total(), 0, 0
        for at in sorted(chance.sample(range(1, total - IN_FLIGHT), KILLS)):
            killed(rough, server.url, max(at, kept + 1))
            time.sleep(0.03)  # what the server had in flight
            held, said = journaled(rough), verdicts(rough)
            assert held.total() >= kept, "nothing that was on file is gone"
            assert said.items() <= right.items(), "and nothing is on file that was not said"
            assert len(said) >= held.total() - IN_FLIGHT, "a verdict is lost only while it is in flight"
            assert bare.search(asked, 5) == before
            assert open_index(tmp_path / "isles").search(asked, 5) == before
            trimmed = open_index(rough).search(asked, 5)
            assert all(len(some) <= 5 and some for some in trimmed)
            kept, lost = held.total(), lost + IN_FLIGHT
            if kept == total:
                break
        gather(rough, server.url)
        prompts = Counter(server.stats()["prompts"])
    assert needed <= prompts
    assert prompts.total() <= total + lost, "only what was in flight at a kill is asked again"
    assert journaled(rough) == needed, "no call that was on file is there twice"
    assert state(rough) == state(calm)
    assert open_index(rough).fingerprint == open_index(calm).fingerprint
