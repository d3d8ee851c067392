"""`connect()`: from a name to a model, and one clear line where the name leads nowhere."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import dspy
import pytest
from model_server import serve

from blendfilter.context import NOTES, setting
from blendfilter.errors import (
    AskedWrong,
    BadArgument,
    MissingFile,
    NoKey,
    ReplayMiss,
    RunLocked,
    ServerRefused,
    UnknownName,
)
from blendfilter.journal import Journal
from blendfilter.lm.connect import connect
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.openai import OpenAIEngine
from blendfilter.lm.providers import PROVIDERS
from blendfilter.lm.retrying import Retry
from blendfilter.lm.terms import Terms


def test_without_a_name_the_offline_reader_answers() -> None:
    lm = connect()
    assert (lm.name, lm.address, lm.offline) == ("offline", "", True)
    assert isinstance(lm, dspy.LM)
    assert lm("Question: When did Orm Pier open?\nTopic:") == ["Orm Pier"]


@pytest.mark.parametrize("provider", sorted(PROVIDERS))
def test_a_providers_prefix_gives_address_and_model(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = PROVIDERS[provider]
    if known.key_variable:
        monkeypatch.setenv(known.key_variable, "sk-test-0123456789")
    lm = connect(f"{provider}/owner/some-model")
    assert (lm.name, lm.address) == ("owner/some-model", known.base_url)
    assert isinstance(lm.inner, OpenAIEngine)
    assert lm.terms.retry == Retry(timeout=120.0)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"),  # the owner's name is no provider
        ("vllm/Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("openai/gpt-4o-mini", "gpt-4o-mini"),
        ("llama3.2", "llama3.2"),
        ("mistral", "mistral"),  # a provider's name alone is a model's name there
    ],
)
def test_with_an_address_only_a_providers_prefix_comes_off(name: str, model: str) -> None:
    with serve(keep=True) as server:
        lm = connect(name, api_base=server.url + "/")
        assert (lm.name, lm.address) == (model, server.url)
        assert lm("hello") == ["So the answer is 42."]
        (body,) = server.stats()["bodies"]
    assert (body["model"], body["temperature"]) == (model, 0.0)


def test_settings_reach_the_server() -> None:
    with serve(keep=True) as server:
        lm = connect("m", api_base=server.url, endpoint="completions", temperature=0.5, top_p=0.9, seed=7,
                     max_tokens=3, extra_body={"top_k": 20})  # fmt: skip
        assert lm("hello", stop=["\nQuestion:"]) == ["So the answer"]
        (body,) = server.stats()["bodies"]
    assert body == {"model": "m", "prompt": "hello", "temperature": 0.5, "top_p": 0.9, "seed": 7, "max_tokens": 3,
                    "stop": ["\nQuestion:"], "top_k": 20}  # fmt: skip


def test_a_call_may_set_otherwise_what_the_model_was_given() -> None:
    with serve(keep=True) as server:
        connect("m", api_base=server.url, max_tokens=3)("hello", max_tokens=2, temperature=0.7)
        (body,) = server.stats()["bodies"]
    assert (body["max_tokens"], body["temperature"]) == (2, 0.7)


def test_the_papers_greedy_decoding_is_the_default() -> None:
    assert connect("offline").kwargs == {"temperature": 0.0}
    assert connect("offline", temperature=None).kwargs == {}


# ---- names that lead nowhere


@pytest.mark.parametrize("name", ["openai/gpt-4o-mini", "groq/llama-3.3-70b"])
def test_a_provider_without_its_key_names_the_variable(name: str) -> None:
    variable = f"{name.split('/', maxsplit=1)[0].upper()}_API_KEY"
    with pytest.raises(NoKey, match=f"{name} wants a key: set {variable}, or point --api-base at a server of your own"):
        connect(name)


def test_a_key_comes_from_the_argument_too() -> None:
    assert connect("openai/gpt-4o-mini", api_key="sk-test-0123456789").name == "gpt-4o-mini"


def test_an_unknown_provider_brings_a_suggestion() -> None:
    with pytest.raises(UnknownName, match=r"no provider 'opnai'\. Did you mean 'openai'\?.*groq.*--api-base URL"):
        connect("opnai/gpt-4o-mini")


@pytest.mark.parametrize("name", ["gpt-4o-mini", "", "openai", "openai/"])
def test_a_name_without_a_provider_says_how_to_write_it(name: str) -> None:
    with pytest.raises(BadArgument, match=r"names no provider: write provider/model \(openai/"):
        connect(name)


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(BadArgument, match="'localhost:8000' is no address: write it as http://host:port/v1"):
        connect("m", api_base="localhost:8000")


def test_the_offline_reader_is_at_no_address() -> None:
    with pytest.raises(BadArgument, match="offline is a reader in this process: name the model that the address"):
        connect("offline", api_base="http://localhost:8000/v1")


def test_an_unknown_endpoint_is_refused() -> None:
    with pytest.raises(BadArgument, match=r"no endpoint 'chats' \(known: chat, completions\)"):
        connect("m", api_base="http://127.0.0.1:9/v1", endpoint="chats")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("nosuch/model", {}),
        ("openai/gpt-4o-mini", {}),
        ("m", {"api_base": "localhost"}),
        ("m", {"api_base": "http://127.0.0.1:9/v1", "endpoint": "chats"}),
        ("m", {"api_base": "http://127.0.0.1:9/v1", "reasoning": "much"}),
        ("m", {"api_base": "http://127.0.0.1:9/v1", "reasoning": "low", "thinking": False}),
        ("offline", {"mode": "play"}),
    ],
)
def test_what_is_refused_makes_no_journal(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    with pytest.raises(AskedWrong):
        connect(name, journal=tmp_path / "run", **options)
    assert not list(tmp_path.iterdir())


def test_a_server_that_is_not_there_is_told_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as server:
        lm = connect("m", api_base=server.url)
    monkeypatch.setattr(lm, "terms", Terms(retry=Retry(wait_first=0.001)))
    lm = lm.with_journal(None)
    with pytest.raises(ServerRefused, match=f"no model server answers at {server.url}.*--api-base URL"):
        lm("hello")


# ---- journals


def test_a_journal_may_be_a_folder_a_file_or_open_already(tmp_path: Path) -> None:
    with Journal(tmp_path / "open") as opened:
        for journal in (tmp_path / "folder", str(tmp_path / "file.jsonl"), opened):
            lm = connect("offline", journal=journal)
            lm("Question: Where is Orm Pier?\nTopic:")
            assert lm.journal is not None
            assert len(lm.journal) == 1
            lm.journal.close()
    assert {path.name for path in tmp_path.rglob("*.jsonl")} == {"file.jsonl", "journal.jsonl"}


def test_the_mode_is_the_journals(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="no journal at"):
        connect("offline", journal=tmp_path, mode="replay")
    lm = connect("offline", journal=tmp_path)
    with pytest.raises(RunLocked):
        connect("offline", journal=tmp_path)
    reply = lm("hello")
    assert lm.journal is not None
    lm.journal.close()
    replaying = connect("offline", journal=tmp_path, mode="replay")
    assert replaying("hello") == reply
    with pytest.raises(ReplayMiss):
        replaying("hello there")


def test_a_connected_model_takes_another_journal_and_keeps_the_rest(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        lm = connect("m", api_base="http://127.0.0.1:9/v1", label="b", temperature=0.5)
        other = connect(lm, journal=journal)
        assert isinstance(other, ConnectedLM)
        assert (other.journal, lm.journal) == (journal, None)
        assert other.inner is lm.inner
        assert (other.identity, other.address, other.kwargs) == (lm.identity, lm.address, lm.kwargs)
        assert other.dump_state() == lm.dump_state()


def test_a_label_tells_two_servers_with_one_name_apart_and_a_new_port_does_not(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal, serve(reply="from the first") as first, serve(reply="from the second") as second:
        assert connect("m", api_base=first.url, journal=journal)("hello") == ["from the first"]
        assert connect("m", api_base=second.url, journal=journal)("hello") == ["from the first"]
        assert connect("m", api_base=second.url, journal=journal, label="b")("hello") == ["from the second"]
        assert [record["address"] for record in journal.records()] == [first.url, second.url]


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ({"rpm": 3}, "requests_per_minute"),
        ({"tpm": 3}, "tokens_per_minute"),
        ({"timout": 5}, "timeout"),
        ({"max_token": 7}, "max_tokens"),
        ({"temprature": 1}, "temperature"),
    ],
)
@pytest.mark.parametrize("name", ["offline", "openai/gpt-4o-mini"])
def test_a_mistyped_setting_is_told_at_once(wrong: dict[str, Any], meant: str, name: str) -> None:
    with pytest.raises(UnknownName, match=f"no setting '{next(iter(wrong))}'. Did you mean '{meant}'?"):
        connect(name, api_key="k-123456789", **wrong)


def test_what_dspy_hands_on_is_a_setting() -> None:
    lm = connect("m", api_base="http://127.0.0.1:9/v1", n=2, logit_bias={"5": 1}, metadata={"a": "b"})
    assert lm.kwargs["logit_bias"] == {"5": 1}
    with pytest.raises(UnknownName, match=r"extra_body=\{'min_p'"):
        connect("m", api_base="http://127.0.0.1:9/v1", min_p=0.1)


def test_what_is_no_model_or_no_prices_is_one_line() -> None:
    with pytest.raises(BadArgument, match="3 is no model"):
        connect(3)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="name a TOML file of prices"):
        connect("m", api_base="http://127.0.0.1:9/v1", prices={"m": 1})  # type: ignore[arg-type]


def test_a_refused_key_says_where_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(behave="unauthorized") as server:

        def told(name: str = "m", key: str | None = None) -> str:
            with pytest.raises(ServerRefused) as refused:
                connect(name, api_base=server.url, api_key=key)("hello")
            return str(refused.value)

        assert told().endswith("; none was given: set BLENDFILTER_API_KEY")
        assert told(key="key-0123456789").endswith("; check the key that was given (api_key=)")
        monkeypatch.setenv("OPENAI_API_KEY", "key-of-openai-987")
        line = told("openai/m")
        assert line.endswith("; check the key in the variable OPENAI_API_KEY")
        assert "key-of-openai-987" not in line


def test_dspys_line_on_a_cut_reply_stays_where_no_note_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    with serve() as server, caplog.at_level(logging.WARNING, "dspy.clients.lm"):
        lm = connect("m", api_base=server.url, max_tokens=2)
        monitor = logging.getLogger("dspy.clients.lm")
        monitor.addHandler(caplog.handler)
        try:
            with setting(NOTES, notes := []):
                lm("noted")
            assert [(note.event, caplog.messages) for note in notes] == [("cut_reply", [])]
            lm("by itself")
        finally:
            monitor.removeHandler(caplog.handler)
    assert any("truncated" in line for line in caplog.messages)
