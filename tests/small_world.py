"""What the tests of runs and of the command line share: a model that counts, the sample world, a command in-process.

Only the model is made up; prompts, filter, index, journal and runner are the package's own.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import dspy
import pytest
from dspy import lm15

from blendfilter import Run, cli, evaluate
from blendfilter.context import asker
from blendfilter.journal import Journal
from blendfilter.lm.journaled import prompt_of
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.offline import read
from blendfilter.lm.profiles import Profile
from blendfilter.tasks import Questions

FILES = {"run.json", "journal.jsonl", "predictions.jsonl", "metrics.json"}
"""What a run folder holds."""
ROW = [
    "id", "question", "golden_answers", "gold_titles", "answer", "em", "f1", "correct", "queries", "branches",
    "knowledge", "retrieval", "loss", "calls", "flags", "error",
]  # fmt: skip
"""The fields of a line of predictions.jsonl, on a task scored by EM and F1."""
STABLE = ("predictions.jsonl", "metrics.json")
"""What is the same bytes however the run came about."""


class CountingEngine:
    """The offline reader as an engine that counts what really reaches it.

    `before` is awaited with (stage, prompt) ahead of each reply: it may wait, or raise.
    """

    def __init__(
        self,
        before: Callable[[str, str], Awaitable[None]] | None = None,
        reply: Callable[[str], str] = read,
    ) -> None:
        self.before, self.reply = before, reply
        self.prompts: list[str] = []
        self.stages: Counter[str] = Counter()
        self.orders: list[int] = []
        self.in_flight = self.most_in_flight = 0

    async def complete(self, request: lm15.Request) -> lm15.Response:
        prompt = prompt_of(request)
        text = prompt if isinstance(prompt, str) else "\n\n".join(result for _, result in prompt)
        self.prompts.append(text)
        self.stages[asker().stage] += 1
        self.orders.append(asker().order)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if self.before is not None:
                await self.before(asker().stage, text)
        finally:
            self.in_flight -= 1
        reply = self.reply(text)
        return lm15.Response(
            id=None,
            model="counting",
            message=lm15.Message(role="assistant", parts=(lm15.TextPart(text=reply),)),
            finish_reason="stop",
            usage=lm15.Usage(input_tokens=len(text.split()), output_tokens=len(reply.split())),
        )

    @property
    def calls(self) -> int:
        return len(self.prompts)

    def lm(self, name: str = "counting", **defaults: Any) -> ConnectedLM:
        """A connected model that this engine answers."""
        return ConnectedLM(
            name, self, profile=Profile(), address="http://127.0.0.1:1/v1", **{"temperature": 0.0, **defaults}
        )


def slowly(seconds: float = 0.001) -> Callable[[str, str], Awaitable[None]]:
    """Wait a little before each reply, longer or shorter by the prompt, so that questions overtake each other."""

    async def wait(_stage: str, prompt: str) -> None:
        await asyncio.sleep(seconds * (sum(prompt.encode()[-400:]) % 7))

    return wait


def comes_of_itself(error: BaseException | None, above: tuple[BaseException, ...] = ()) -> bool:
    """Whether an error's causes and contexts lead back to it, or any of them to itself."""
    if error is None or any(error is each for each in above):
        return error is not None
    return any(comes_of_itself(each, (*above, error)) for each in (error.__cause__, error.__context__))


def stable(folder: Path) -> dict[str, bytes]:
    """The bytes of a run that must not depend on how it came about."""
    return {name: (folder / name).read_bytes() for name in STABLE}


def tree(folder: Path) -> dict[str, bytes]:
    """Every file under `folder` with its bytes, and every folder (empty bytes); hidden and temporary ones too."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
    }


def done_by(method: dspy.Module, questions: Questions, run: Path, **options: Any) -> tuple[Run, CountingEngine]:
    """A run by an engine of its own, and that engine."""
    engine = options.pop("engine", None) or CountingEngine()
    return evaluate(method, questions, lm=engine.lm(), run=run, progress=False, **options), engine


def journaled(run: Path, kind: str = "call") -> list[dict[str, Any]]:
    with Journal(run, "replay") as journal:
        return [record for record in journal.records() if record["kind"] == kind]


class Watching:
    """A `Progress` that keeps what it was told, and runs `at` after each question."""

    def __init__(self, at: Callable[[int], None] = lambda count: None) -> None:
        self.order: list[str] = []
        self.tokens = 0
        self.started: tuple[int, int] | None = None
        self.stopped = 0
        self.at = at

    def start(self, total: int, done: int) -> None:
        self.started = (total, done)

    def advance(self, row: Mapping[str, Any], tokens: int) -> None:
        self.order.append(row["id"])
        self.tokens += tokens
        self.at(len(self.order))

    def stop(self) -> None:
        self.stopped += 1


class Outcome(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def notices(self) -> list[str]:
        """Every line on stderr."""
        return self.err.splitlines()

    @property
    def error(self) -> str:
        """The last line on stderr, which says what is wrong."""
        return self.notices[-1]


class Command:
    """`blendfilter` in this process, as the shell would run it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *words: object) -> Outcome:
        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["blendfilter", *map(str, words)])
            patch.setattr(sys, "path", list(sys.path))
            self._capsys.readouterr()
            code = 0
            try:
                cli.main()
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
            printed = self._capsys.readouterr()
        return Outcome(code, printed.out, printed.err)


@pytest.fixture(scope="module")
def sample_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample corpus is indexed once for a file of tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def here(tmp_path: Path, sample_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, stood in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BLENDFILTER_CACHE", str(sample_cache))
    return tmp_path


@pytest.fixture
def blendfilter(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], here: Path) -> Command:
    """The command, run in `here`."""
    return Command(monkeypatch, capsys)


def shell(*words: object, timeout: float = 60) -> Outcome:
    """The same in a process of its own."""
    ended = subprocess.run(
        [sys.executable, "-m", "blendfilter.cli", *map(str, words)],
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    return Outcome(ended.returncode, ended.stdout, ended.stderr)


def small_eval(method: str, run: str, *more: object) -> tuple[object, ...]:
    """The words of an evaluation on four questions of the sample."""
    words = ("--data", "sample", "--corpus", "sample", "--lm", "offline", "--limit", 4)
    return ("eval", "hotpotqa", *words, "--method", method, "--run", run, *more)
