"""Models that refuse or misbehave, and runs that cannot go on: one clear line, the exit code, nothing half-written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from model_server import MARKER, Server, serve
from refusing import NOBODY, SECRET, evaluation, refused, untouched, world
from small_world import Command, tree


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
    result = blendfilter(*words)
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
    ("behave", "more", "expected"),
    [
        ("hang", ["--timeout", "0.2", "--attempts", "2"], ("no reply within the time", "blendfilter doctor")),
        ("context", [], ("longer than the model's context", "blendfilter doctor")),
    ],
)
def test_a_question_that_fails_says_who_which_step_and_what_next(
    blendfilter: Command, served: Callable[..., Server], behave: str, more: list[str], expected: tuple[str, ...]
) -> None:
    server = served(behave=behave)
    words = ["ask", MARKER, "--method", "direct", "--lm", "m", "--api-base", server.url, *more]
    refused(blendfilter(*words), server.url, "stage 'direct'", *expected, code=1)


def test_a_model_that_is_not_served(blendfilter: Command, here: Path, served: Callable[..., Server]) -> None:
    server = served(behave="no-model")
    before = tree(here)
    refused(blendfilter(*evaluation(lm="mimi", api_base=server.url)), "mimi", "does not serve", "--lm")
    untouched(here, before, indexed=True)  # so the next try, with the right name, finds no run of other settings


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
    ("options", "expected"),
    [
        ({"k": 3}, "method.arguments.k was 5, now 3"),
        ({"limit": 2}, "data.n was 3, now 2"),
        ({"temperature": 0.7}, "lm.parameters.temperature was 0.0, now 0.7"),
        ({"lm": "m", "api_base": NOBODY}, "lm.name was 'offline', now 'm'"),
    ],
)
def test_a_run_made_by_other_settings(
    blendfilter: Command, done: Path, here: Path, options: dict[str, object], expected: str
) -> None:
    before = tree(done)
    refused(
        blendfilter(*evaluation(**options)),
        "run holds a run with other settings",
        expected,
        "another folder",
        "--reuse",
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


@pytest.mark.parametrize("gone", [True, False])
def test_a_run_whose_rows_are_gone_is_named(gone: bool, blendfilter: Command, here: Path) -> None:
    """Its scores stand in metrics.json, and its page would be of no question."""
    assert blendfilter(*evaluation()).code == 0
    rows = here / "run/predictions.jsonl"
    rows.unlink() if gone else rows.write_text("")
    refused(blendfilter("report", "run"), "run/predictions.jsonl is empty or gone: the same command again")
    assert blendfilter(*evaluation()).code == 0
    assert blendfilter("report", "run").code == 0
