"""Models that refuse or misbehave, and runs that cannot go on: one clear line, the exit code, nothing half-written."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from model_server import MARKER, Server, serve
from refusing import NOBODY, ROWS, SECRET, evaluation, lines, refused, untouched, world
from small_world import Command, tree

from blendfilter.asking import TaskWording


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return world(tmp_path, monkeypatch)


@pytest.fixture
def blendfilter(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], here: Path) -> Command:
    return Command(monkeypatch, capsys)


@pytest.fixture(scope="module")
def served() -> Iterator[Callable[..., Server]]:
    """Servers by their settings, one process each, reset for each test that asks."""
    running: dict[str, Server] = {}

    def get(**settings: Any) -> Server:
        name = json.dumps(settings, sort_keys=True)
        if name not in running:
            running[name] = serve(keep=True, **settings)
        running[name].reset()
        return running[name]

    yield get
    for server in running.values():
        server.stop()


# models


def test_no_key_where_no_address_is_given(blendfilter: Command, here: Path) -> None:
    before = tree(here)
    result = blendfilter(*evaluation(lm="openai/gpt-4o-mini"))
    refused(result, "openai/gpt-4o-mini wants a key", "OPENAI_API_KEY", "--api-base")
    untouched(here, before)


@pytest.mark.parametrize(
    "words", [evaluation(lm="m", api_base=NOBODY), ["ask", "Who?", "--lm", "m", "--api-base", NOBODY]]
)
def test_a_server_that_is_not_there(blendfilter: Command, here: Path, words: list[object]) -> None:
    before = tree(here)
    started = time.monotonic()
    result = blendfilter(*words)
    assert time.monotonic() - started < 10
    refused(result, "no model server answers", NOBODY, "start it", notices=int(words[0] == "ask"))
    untouched(here, before, indexed=True)


def test_a_refused_key(
    blendfilter: Command, here: Path, served: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server says the key back; nobody is shown it, and no file holds it."""
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    server = served(behave="unauthorized")
    before = tree(here)
    result = blendfilter(*evaluation(lm="openai/m", api_base=server.url))
    refused(result, "refuses the key", "401", server.url, "check the key")
    assert "[key]" in result.error, "the server did say the key back"
    untouched(here, before, indexed=True)


@pytest.mark.parametrize(
    ("behave", "more", "said"),
    [
        ("hang", ["--timeout", "0.2", "--attempts", "2"], ("within the time allowed",)),
        ("context", [], ("longer than the model's context",)),
    ],
)
def test_a_question_that_fails_says_who_which_step_and_what_next(
    blendfilter: Command, served: Callable[..., Server], behave: str, more: list[str], said: tuple[str, ...]
) -> None:
    server = served(behave=behave)
    words = ["ask", MARKER, "--method", "direct", "--lm", "m", "--api-base", server.url, *more]
    refused(blendfilter(*words), server.url, "stage 'direct'", *said, code=1)


def test_a_model_that_is_not_served(blendfilter: Command, here: Path, served: Callable[..., Server]) -> None:
    server = served(behave="no-model")
    before = tree(here)
    refused(blendfilter(*evaluation(lm="mimi", api_base=server.url)), "mimi", "does not serve", "--lm")
    untouched(here, before, indexed=True)  # so the next try, with the right name, finds no run of other settings


def test_a_context_that_is_too_long(blendfilter: Command, here: Path, served: Callable[..., Server]) -> None:
    """That question's error, with its stage; the run goes on, ends with 1 and the count, and asks it again."""
    lines(here / "long.jsonl", [ROWS[0], {**ROWS[1], "question": f"{MARKER} {ROWS[1]['question']}"}, ROWS[2]])
    words = evaluation(data="long.jsonl", lm="m", api_base=served(behave="context", reply="offline").url)
    result = blendfilter(*words)
    assert result.code == 1
    assert result.error.startswith("blendfilter: 1 of 3 questions ended in an error; the same command asks ")
    assert "Traceback" not in result.err + result.out
    rows = [json.loads(line) for line in (here / "run/predictions.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == ["one", "two", "three"]
    assert rows[0]["error"] is rows[2]["error"] is None
    assert rows[1]["error"]["kind"] == "context_too_long"
    assert rows[1]["error"]["stage"] in ("external", "internal", "topic", "check")
    assert rows[1]["answer"] is None
    metrics = json.loads((here / "run/metrics.json").read_text())
    assert (metrics["n"], metrics["flags"]["errors"]) == (3, 1)
    assert "context_too_long" in result.out
    healthy = served(reply="offline")
    again = blendfilter(*evaluation(data="long.jsonl", lm="m", api_base=healthy.url))
    assert again.code == 0, again
    assert all(MARKER in prompt for prompt in healthy.stats()["prompts"]), "the others were not asked again"


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"reply": ""}, "empty_reply"),
        ({"behave": "empty-at-cap"}, "empty_reply"),
        ({"reply": "word " * 600}, "cut_reply"),
        ({"reply": "7, 9 and 12"}, "unparseable_ids"),
    ],
    ids=["nothing", "nothing at the cap", "cut off", "ids out of range"],
)
def test_a_model_that_misbehaves_is_counted(
    blendfilter: Command, here: Path, served: Callable[..., Server], settings: dict[str, str], flag: str
) -> None:
    result = blendfilter(*evaluation(lm="m", api_base=served(**settings).url))
    assert result.code == 1, result
    assert "blendfilter doctor says what to change" in result.error
    flags = json.loads((here / "run/metrics.json").read_text())["flags"]
    assert flags[flag] >= 3, flags
    assert flags["errors"] == 0
    assert flag in result.out
    rows = [json.loads(line) for line in (here / "run/predictions.jsonl").read_text().splitlines()]
    for branch in (branch for row in rows for branch in row["branches"].values()):
        assert branch["ids_read"] == "unparseable"
        assert branch["kept"] == branch["retrieved"], "the whole branch is kept"
    assert sum(flags[name] > 0 for name in ("unparseable_ids", "empty_reply", "cut_reply")) == 1, "each under one name"


# runs


@pytest.fixture
def done(blendfilter: Command, here: Path) -> Path:
    """A finished run in `run`."""
    assert blendfilter(*evaluation()).code == 0
    return here / "run"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"k": 3}, "method.arguments.k was 5, now 3"),
        ({"limit": 2}, "data.n was 3, now 2"),
        ({"temperature": 0.7}, "lm.parameters.temperature was 0.0, now 0.7"),
        ({"lm": "m", "api_base": NOBODY}, "lm.name was 'offline', now 'm'"),
    ],
)
def test_a_run_made_by_other_settings(
    blendfilter: Command, done: Path, here: Path, options: dict[str, object], said: str
) -> None:
    before = tree(done)
    refused(
        blendfilter(*evaluation(**options)), "run holds a run with other settings", said, "another folder", "--reuse"
    )
    assert tree(done) == before


def test_a_folder_that_holds_something_else(blendfilter: Command, here: Path) -> None:
    (here / "run").mkdir()
    (here / "run/thesis.tex").write_text("All of it.")
    before = tree(here)
    refused(blendfilter(*evaluation()), "run is not empty and holds no run", "new folder")
    untouched(here, before, indexed=True)
    (here / "file").write_text("x")
    refused(blendfilter(*evaluation(run="file")), "file", "not a folder")
    assert (here / "file").read_text() == "x"


def test_a_replay_that_its_journal_cannot_serve(blendfilter: Command, done: Path) -> None:
    """One call taken out of the journal: the replay names the question and the stage that asks for it."""
    rows = [json.loads(line) for line in (done / "predictions.jsonl").read_text().splitlines()]
    stage, key = rows[1]["calls"][-1]
    assert stage == "short_answer"
    journal = done / "journal.jsonl"
    kept = [line for line in journal.read_text().splitlines(keepends=True) if f'"key":"{key}"' not in line]
    journal.write_text("".join(kept))
    before = tree(done)
    result = blendfilter(*evaluation(), "--replay")
    refused(result, "question 'two'", "stage 'short_answer'", "without --replay")
    assert tree(done) == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.json", "{}"),
        ("metrics.json", "nothing"),
        ("predictions.jsonl", "oops\n"),
    ],
)
def test_a_damaged_file_of_a_run(blendfilter: Command, done: Path, name: str, content: str) -> None:
    (done / name).write_text(content)
    before = tree(done)
    refused(blendfilter("report", "run"), name, "restore it" if name == "run.json" else "run")
    assert tree(done) == before


def test_a_report_of_a_run_that_is_not_finished(blendfilter: Command, done: Path) -> None:
    (done / "metrics.json").unlink()
    predictions = done / "predictions.jsonl"
    predictions.write_text("".join(predictions.read_text().splitlines(keepends=True)[:2]))
    result = blendfilter("report", "run")
    assert (result.code, result.err) == (0, "")
    headline, *rest = result.out.splitlines()
    assert headline == ("run: not finished: 2 of 3 questions are answered; missing: three; the same command goes on")
    assert any(line.startswith("Partial: ") for line in rest)
    assert "Not finished: 2 of 3" in (done / "report.html").read_text()
    refused(blendfilter("compare", "run", "run"), "run is not finished")


def test_a_question_that_is_also_a_demonstration(blendfilter: Command, here: Path) -> None:
    view = TaskWording.of("hotpotqa").demos[0].question
    lines(here / "leak.jsonl", [ROWS[0], {"id": "leak", "question": view.upper(), "answer": "x"}])
    before = tree(here)
    result = blendfilter(*evaluation(data="leak.jsonl"))
    refused(result, "question 'leak'", "also a demonstration of", "take it out")
    untouched(here, before, indexed=True)


# the loop thread
