"""DSPy's optimisers killed with SIGKILL and begun again, by a user's own call and by `blendfilter compile`.

The program is that of a session which nobody killed, byte for byte, and no call is answered twice. A call is answered
for the journal once its record is a whole line there; that of a call which is under way at a kill may be lost, and then
it is asked again. So a kill comes in one of two ways. *Held*: from some request on the server answers none, what it
answered before reaches the journal, and the process dies: every answer is asked for once, without exception. *Any
time*: the process dies at any moment, with no more answers under way than its threads ask for at a time; no others come
twice.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from http_server import answering
from optimised import OPTIMIZERS, THREADS, WAYS, CountingServer, Sessions
from small_world import tree

HELD, ANY_TIME = "held", "any time"
BRANCHES = 3
"""Calls that one question has in flight at the most: one of each branch of BlendFilter."""


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sessions, Sessions]]:
    """Two processes whose hashes are seeded otherwise."""
    places = {name: tmp_path_factory.mktemp(name) for name in ("tmp", "home")}
    here = {"TMPDIR": str(places["tmp"]), "HOME": str(places["home"])}
    with Sessions(PYTHONHASHSEED="1", **here) as one, Sessions(PYTHONHASHSEED="2", **here) as other:
        yield one.ready(), other.ready()
    assert not any(tree(place) for place in places.values())


class Killing:
    """Sessions of one compilation in one folder, killed until it is through."""

    def __init__(self, what: tuple[str, str], folder: Path, server: CountingServer, url: str) -> None:
        self.what, self.folder, self.server, self.url = what, folder, server, url
        folder.mkdir()

    def session(self, sessions: Sessions, *, answers: float = float("inf"), delay: float | None = None) -> bool:
        """Whether it came to its end; it is killed after so many answers, or `delay` seconds after the last of them."""
        self.server.answer(float("inf") if delay is not None else answers)
        before, pid = self.server.answered.total(), sessions.begin(*self.what, self.url, self.folder)
        with ThreadPoolExecutor(1) as waiting:
            ended = waiting.submit(sessions.ended)
            while not ended.done():
                if delay is not None and self.server.answered.total() - before >= answers:
                    time.sleep(delay)
                elif not self.server.held.wait(0.001):
                    continue
                else:
                    self._settle(ended)
                self._kill(pid, ended)
            code, _ = ended.result()
        assert code in (0, -signal.SIGKILL), (self.folder / "session.log").read_text()
        return code == 0

    def _settle(self, ended: Future[Any]) -> None:
        """Wait until all that was answered is on file."""
        until = time.monotonic() + 60
        while len(self.calls()) < self.server.answered.total():
            assert time.monotonic() < until, "an answer never reached the journal"
            assert not ended.done()
            time.sleep(0.001)

    def _kill(self, pid: int, ended: Future[Any]) -> None:
        if not ended.done():
            os.kill(pid, signal.SIGKILL)
        ended.exception(60)

    def calls(self) -> list[str]:
        """The keys of the calls on file; a line that is torn is none."""
        path = self.folder / "run" / "journal.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
        records = [json.loads(line) for line in lines if line.endswith(b"}\n")]
        return [record["key"] for record in records if record["kind"] == "call"]

    def program(self) -> bytes:
        return (self.folder / "program.json").read_bytes()

    def files(self) -> set[str]:
        return {name for name in tree(self.folder) if name != "session.log"}


def killed(
    way: str, optimizer: str, when: str, kills: int, sessions: tuple[Sessions, Sessions], folder: Path, seed: int
) -> None:
    """Kill a compilation so many times, in as many runs as that takes."""
    rng, done = random.Random(f"{way} {optimizer} {when} {seed}"), 0
    server = CountingServer()
    with answering(server) as root:
        whole = Killing((way, optimizer), folder / "whole", server, f"{root}/v1")
        assert whole.session(sessions[0])
        wanted, total = server.answered, server.answered.total()
        assert total == len(whole.calls()) > 10
        if "our" not in way:  # what was found shows in it: a path of many turns
            shown = '"augmented"' if optimizer == "bootstrap" else '"instructions": "Read '
            assert shown in whole.program().decode()
        while done < kills:
            server.answered = Counter()
            before, place = done, folder / f"run after {done}"
            run = Killing((way, optimizer), place, server, f"{root}/v1")
            while True:
                answers = rng.randrange(2 * total // max(2, kills)) if done < kills else float("inf")
                delay = rng.random() / 50 if when == ANY_TIME else None
                if run.session(sessions[(done + 1) % 2], answers=answers, delay=delay):
                    break
                done += 1
            assert run.program() == whole.program()
            assert run.files() == whole.files()
            keys = run.calls()
            assert len({*keys}) == len(keys) == total  # what is on file was never asked again
            assert not wanted - server.answered
            lost = server.answered - wanted
            assert lost.total() <= (0 if when == HELD else THREADS * BRANCHES * (done - before))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_killed_and_begun_again(optimizer: str, sessions: tuple[Sessions, Sessions], tmp_path: Path) -> None:
    killed("dspy", optimizer, HELD, 1, sessions, tmp_path, 0)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("when", "kills"), [(HELD, 5), (ANY_TIME, 4)])
def test_a_hundred_kills(
    way: str, optimizer: str, when: str, kills: int, sessions: tuple[Sessions, Sessions], tmp_path: Path
) -> None:
    """Over the parameters: 108."""
    killed(way, optimizer, when, kills, sessions, tmp_path, 0)
