"""Addresses and settings of `connect()`: which are refused, what is shown, what tells two models apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest

from blendfilter import Direct, load, open_index
from blendfilter.context import NOTES, setting
from blendfilter.errors import AskedWrong, BadArgument
from blendfilter.evaluation.run_settings import settings_of
from blendfilter.journal import Journal
from blendfilter.lm.connect import connect
from blendfilter.lm.model import ConnectedLM

HERE = "http://127.0.0.1:9/v1"


@pytest.mark.parametrize(
    "address",
    [
        "http://host:port/v1",
        "http://localhost:99999/v1",
        "http://localhost:0/v1",
        "http://",
        "http:///v1",
        "ftp://x",
        "localhost",
        "//x/v1",
        "",
    ],
)
def test_what_is_no_address_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match=f"'{address}' is no address: write it as http://host:port/v1"):
        connect("m", api_base=address, journal=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["http://h/v1?api-key=SECRET123", "http://h:99999/v1?api-key=SECRET123"])
def test_a_key_in_the_address_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(BadArgument) as told:
        connect("m", api_base=address)
    assert "SECRET123" not in str(told.value)
    assert "address" in str(told.value)


MALFORMED = [
    "http://me:SECRET123@host:notaport", "htp://me:SECRET123@host/v1", "http://me:SECRET123@ho st/v1",
    "http://me:SECRET123@[::1/v1", "http://me:SECRET123@[::g]:1/v1", "http://me:SECRET123@", "me:SECRET123@host",
    "//me:SECRET123@host", "http:/me:SECRET123@host/v1", "http://me:SECRET123%40host:9", "http://me:a/SECRET123@h:1",
    "http://me:SECRET123?@host:1", "http://me:SECRET123#x@host:1", "http://me:SECRET123@host:99999",
    "http://me:a@SECRET123@host:x", "http://me:SECRET123\uff20host:1x", "http://me:[SECRET123@h/v1", "http://h/v1#SECRET123",
]  # fmt: skip


@pytest.mark.parametrize("address", MALFORMED)
@pytest.mark.parametrize("how", ["one", "several", "own", "index"])
def test_no_login_is_shown_of_what_is_no_address(address: str, how: str) -> None:
    shown = ""
    try:
        if how == "own":  # a user's own model has an address of its own, which is shown and recorded
            shown = connect(dspy.LM("openai/m", api_base=address, api_key="sk-0123")).address
        elif how == "index":
            open_index(address, attempts=1)
        else:
            connect("m", api_base=address if how == "one" else ["http://127.0.0.1:9/v1", address])
            pytest.fail("it was taken for an address")
    except AskedWrong as told:
        shown = str(told)
    assert "SECRET123" not in shown


def test_a_key_in_the_address_is_told_where_to_go() -> None:
    with pytest.raises(BadArgument, match="hold no query, such as a key: put the key into BLENDFILTER_API_KEY"):
        connect("m", api_base="http://h/v1?api-key=SECRET123")


def test_a_login_in_the_address_is_shown_nowhere(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        lm = connect("m", api_base="http://me:SECRET123@127.0.0.1:9/v1", journal=journal)
        assert "SECRET123" not in lm.address
        assert "127.0.0.1" in lm.address
        assert "SECRET123" not in str(lm.identity)


@pytest.mark.parametrize(
    "options",
    [
        {"api_base": HERE},
        {"api_key": "sk-test-0123456789"},
        {"temperature": 1.0},
        {"top_p": 0.5},
        {"thinking": False},
        {"reasoning": "low"},
        {"extra_body": {"top_k": 5}},
        {"json_schema": True},
        {"seed": 3},
        {"label": "b"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_settings_for_a_model_that_is_made_already_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    lm = connect("m", api_base=HERE)
    with pytest.raises(BadArgument, match="is made already: give its settings where it is made, or use its copy"):
        connect(lm, journal=tmp_path / "run", **options)
    assert list(tmp_path.iterdir()) == []
    if "label" not in options:  # which is how an adopted model is told from another
        with pytest.raises(BadArgument, match="openai/x is made already"):
            connect(dspy.LM("openai/x", api_key="sk-test-0123456789"), **options)


def test_a_connected_model_keeps_its_own_journal(tmp_path: Path) -> None:
    with Journal(tmp_path / "one") as one, Journal(tmp_path / "two") as two:
        lm = connect("offline", journal=one)
        assert connect(lm) is lm
        assert connect(lm).journal is one
        assert connect(lm, journal=two).journal is two
        assert lm.journal is one


def key_of(lm: ConnectedLM) -> str:
    """The journal key of one call, which no server answers."""
    with setting(NOTES, []) as notes:
        lm.inner = connect("offline").inner
        lm.with_journal(None)("hello")
    return str(notes[0].key)


def test_at_an_address_of_ones_own_the_providers_name_tells_nothing_apart() -> None:
    here = "http://127.0.0.1:9/v1"
    assert connect("vllm/m", api_base=here).identity == connect("m", api_base=here).identity


def test_one_name_at_two_providers_is_two_models() -> None:
    key = "sk-test-0123456789"
    groq, together = (connect(f"{name}/llama-3.1-8b", api_key=key) for name in ("groq", "together"))
    assert groq.name == together.name == "llama-3.1-8b"
    assert groq.identity != together.identity
    assert key_of(groq) != key_of(together)


def test_one_name_at_two_addresses_is_one_model() -> None:
    """A server moves to another port, and its run goes on."""
    one, other = (connect("m", api_base=f"http://127.0.0.1:{port}/v1") for port in (9, 10))
    assert one.identity == other.identity
    assert key_of(one) == key_of(other)


def test_json_schema_is_a_setting_of_the_run() -> None:
    questions = load("qa", [{"question": "Which?", "answer": "x"}])
    plain, constrained = (
        settings_of(Direct(), questions, connect("m", api_base=HERE, json_schema=asked), seed=0)["lm"]
        for asked in (False, True)
    )
    assert plain != constrained
    assert constrained["options"]["json_schema"] is True
    assert "json_schema" not in str(plain)
