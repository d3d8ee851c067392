"""The user's cache: a call made twice outside of runs is paid for once, by whichever process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from textwrap import dedent

import dspy
import pytest
from model_server import Server, serve
from scripted import response
from small_world import Command

from blendfilter import resources
from blendfilter.dspy_surface import AdapterParseError
from blendfilter.errors import BadArgument, MissingFile, ModelError
from blendfilter.journal import CallCache, Journal
from blendfilter.lm.model import ConnectedLM, connect


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Server]:
    with serve(reply="Orm Pier") as running:
        yield running


@pytest.fixture
def server(shared_server: Server) -> Server:
    shared_server.reset()
    return shared_server


def calls(server: Server) -> int:
    return int(server.stats()["requests"])


def at(server: Server, **settings: object) -> ConnectedLM:
    return connect("test-model", api_base=server.url, **settings)  # type: ignore[arg-type]


def files() -> list[Path]:
    return sorted(resources.cache("calls").glob("*"))


# --- what is paid for ---


def test_asked_twice_paid_once(server: Server) -> None:
    assert at(server)("Where is it?") == at(server)("Where is it?") == ["Orm Pier"]
    assert calls(server) == 1
    assert at(server)("And who built it?") == ["Orm Pier"]
    assert calls(server) == 2


def test_without_the_cache_every_call_is_made_and_nothing_is_kept(server: Server) -> None:
    lm = at(server, cache=False)
    lm("q"), lm("q")
    assert calls(server) == 2
    assert files() == []


def test_one_call_can_be_made_anew_as_in_dspy(server: Server) -> None:
    lm = at(server)
    lm("q"), lm("q", cache=False), lm("q")
    assert calls(server) == 2
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        for _ in range(2):
            with pytest.raises(AdapterParseError):  # the server knows one reply, which is none of an adapter's
                dspy.Predict("question -> answer")(question="Where is it?", config={"cache": False})
    assert calls(server) == 4


def test_samples_are_told_apart_at_any_temperature(server: Server) -> None:
    """As with DSPy's cache: `n` replies stay `n`, the same request has the same replies, `rollout_id` asks for more."""
    lm = at(server, temperature=0.7)
    assert len(lm("q", n=3)) == 3
    assert calls(server) == 3
    lm("q", n=3), lm("q")  # the first of three is the one
    assert calls(server) == 3
    lm("q", rollout_id=1), lm("q", rollout_id=1), lm("q", rollout_id=2)
    assert calls(server) == 5


def test_another_address_may_serve_another_model(server: Server) -> None:
    """In a run's journal the address does not count; here nobody would notice that the model is another one."""
    with serve(reply="Low Quay") as other:
        assert at(server)("q") == ["Orm Pier"]
        assert at(other)("q") == ["Low Quay"]


def test_a_call_that_failed_is_made_again() -> None:
    with serve(context_limit=1) as strict:
        lm = at(strict)
        for _ in range(2):
            with pytest.raises(ModelError):
                lm("too long for it")
        assert calls(strict) == 2
    assert files() == []


def test_a_run_has_its_own_journal_and_the_cache_is_not_asked(server: Server, tmp_path: Path) -> None:
    at(server)("q")
    known = [path.read_bytes() for path in files()]
    with Journal(tmp_path) as journal:
        at(server).with_journal(journal)("q")
        assert len(journal) == 1
    at(server, journal=tmp_path)("q")
    assert calls(server) == 2
    assert [path.read_bytes() for path in files()] == known


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"mode": "replay"}, r"mode 'replay' is for a journal that is opened here: name .* \(journal=…\)"),
        ({"mode": "record"}, r"mode 'record' is for a journal .*"),
        ({"cache": "/some/folder"}, r"cache is '/some/folder': give True or False .* BLENDFILTER_CACHE\)"),
        ({"cache": True, "journal": "run"}, "calls are kept in the journal or in the cache, not in both: .*"),
    ],
)
def test_settings_that_the_cache_would_ignore_are_refused(
    settings: dict[str, object], line: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadArgument, match=f"^{line}$"):
        at(server, **settings)
    assert not any(tmp_path.iterdir())


# --- which models ---


def test_a_model_of_ones_own_is_cached_as_its_owner_wants(server: Server) -> None:
    """DSPy's `cache` says it; an engine of the user's own code may change under its name, and is cached when asked."""
    settings = {"api_base": server.url, "api_key": "none"}
    for lm in (dspy.LM("openai/test-model", **settings), dspy.LM("openai/test-model", cache=False, **settings)):
        before = calls(server)
        connect(lm)("q"), connect(lm)("q")
        assert calls(server) - before == (1 if lm.cache else 2)

    class Engine:
        made = 0

        def complete(self, request: object) -> object:
            Engine.made += 1
            return response("mine")

    mine = dspy.LM("my/model", engine=Engine())
    for cache, made in ((None, 2), (True, 1)):
        Engine.made = 0
        connect(mine, cache=cache)("q"), connect(mine, cache=cache)("q")
        assert made == Engine.made


def test_the_offline_reader_needs_no_cache() -> None:
    connect("offline")("Question: Who?\nAnswer:")
    assert files() == []


# --- what DSPy shows ---


def test_history_and_usage_show_what_was_paid(server: Server, tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text('[models]\n"test-model" = { input = 1.0, output = 1.0 }\n')
    lm = at(server, prices=str(prices))
    with dspy.context(lm=lm), dspy.track_usage() as tracker:
        lm("q")
        paid = tracker.get_total_tokens()
        lm("q")
        assert tracker.get_total_tokens() == paid
    first, again = lm.history
    assert paid["blendfilter/test-model"]["prompt_tokens"] == first["usage"]["prompt_tokens"] > 0
    assert first["cost"] > 0
    assert "cache_hit" not in first
    assert (again["cache_hit"], again["cost"], again["usage"], again["outputs"]) == (True, 0.0, {}, ["Orm Pier"])
    lm.inspect_history(n=1, file=(shown := StringIO()))
    assert "Orm Pier" in shown.getvalue()


# --- the folder ---


def test_nobody_else_can_read_it_and_it_holds_no_key(server: Server) -> None:
    at(server, api_key="sk-secret-0123456789")("q")
    (path,) = files()
    assert (path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    assert "sk-secret" not in path.read_text()
    assert json.loads(path.read_text())["reply"] == "Orm Pier"


@pytest.mark.parametrize("there", ["a file where the folder should be", "no home folder"])
def test_a_cache_that_cannot_be_used_is_one_warning(
    there: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if there == "no home folder":
        for name in ("BLENDFILTER_CACHE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(Path, "home", _no_home)
    else:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("BLENDFILTER_CACHE", str(tmp_path / "file"))
    lm = at(server)
    assert lm("q") == lm("q") == ["Orm Pier"]
    (record,) = caplog.records
    assert "BLENDFILTER_CACHE" in record.getMessage()


def _no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_a_full_disk_is_one_warning(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:20]) if b'"reply"' in data else write(fd, data))
    lm = at(server)
    lm("q"), lm("q")
    assert [record.getMessage().count("No space left") for record in caplog.records] == [1]
    monkeypatch.undo()


def test_the_folder_is_where_the_system_keeps_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resources.cache("calls") == Path(os.environ["BLENDFILTER_CACHE"], "calls")
    monkeypatch.delenv("BLENDFILTER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert resources.cache("calls") == Path("/somewhere/blendfilter/calls")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert resources.cache("calls") == Path.home() / ".cache/blendfilter/calls"


def test_the_folder_may_lie_at_home_and_never_depends_on_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLENDFILTER_CACHE", "~/kept")
    assert resources.cache("calls") == Path.home() / "kept/calls"
    for nowhere in ("kept", "~nobody-of-this-name/kept"):
        monkeypatch.setenv("BLENDFILTER_CACHE", nowhere)
        with pytest.raises(MissingFile, match="BLENDFILTER_CACHE"):
            resources.cache("calls")


# --- many writers ---


def record(number: int, reply: str = "x") -> dict[str, object]:
    return {"key": f"ab{number:030x}", "kind": "call", "reply": reply}


def test_a_process_finds_what_others_wrote_after_it_had_looked(tmp_path: Path) -> None:
    here, there = CallCache(tmp_path), CallCache(tmp_path)
    assert here.find(f"ab{1:030x}") is None
    there.append(record(1))
    assert here.find(f"ab{1:030x}") == record(1)
    there.append(record(1, "newer"))
    assert here.find(f"ab{1:030x}") == record(1, "newer")


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        (lambda data: data[:-9], {2}),  # torn by a kill
        (lambda data: data + b'{"key":"ab', set()),  # torn, after two whole ones
        (lambda data: data.replace(b'"reply":"x"', b'"reply":"y"', 1), {1}),  # edited
        (lambda data: b"my notes\n" + data, set()),
        (lambda data: b"", {1, 2}),  # emptied by its owner
    ],
)
def test_what_is_damaged_costs_a_call_and_nothing_else(damage: object, lost: set[int], tmp_path: Path) -> None:
    cache = CallCache(tmp_path)
    cache.append(record(1))
    cache.append(record(2))
    assert cache.find(f"ab{1:030x}") == record(1)
    path = tmp_path / "ab.jsonl"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    cache.append(record(3))
    assert {number for number in (1, 2, 3) if CallCache(tmp_path).find(f"ab{number:030x}") is None} == lost
    assert cache.find(f"ab{1:030x}") in (None, record(1))


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    code = dedent("""
        import sys
        from pathlib import Path
        from blendfilter.journal import CallCache
        cache, first = CallCache(Path(sys.argv[1])), int(sys.argv[2])
        for number in range(first, first + 150):
            cache.append({"key": f"ab{number:030x}", "kind": "call", "reply": "word " * 2000})
    """)
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(first)]) for first in (0, 1000, 2000)]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0]
    cache = CallCache(tmp_path)
    numbers = [first + number for first in (0, 1000, 2000) for number in range(150)]
    assert all(cache.find(f"ab{number:030x}") == record(number, "word " * 2000) for number in numbers)


# --- the command line ---


def test_ask_uses_it_too(blendfilter: Command, server: Server) -> None:
    words = ("ask", "Who?", "--method", "direct", "--lm", "test-model", "--api-base", server.url)
    first, again = blendfilter(*words), blendfilter(*words)
    assert (first.code, first.out) == (again.code, again.out)
    assert calls(server) == 1
    blendfilter(*words, "--no-cache")
    assert calls(server) == 2
