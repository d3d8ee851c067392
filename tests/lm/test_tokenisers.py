"""Which tokeniser counts for a model, what it is called, and that nothing is downloaded for it."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path
from typing import Any

import pytest
from model_server import serve

from blendfilter import connect
from blendfilter.lm import tokenisers
from blendfilter.lm.tokenisers import ENOUGH, RULE, TOKENS_A_WORD, tokeniser_for

TEXT = "Who painted the pier at Ormskerry? <|endoftext|>"


def call(model: str = "m", tokens: int | None = 30, prompt: Any = "x" * 100) -> dict[str, Any]:
    return {"model": model, "prompt": prompt, "tokens_in": tokens}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any encoding of tiktoken's."""
    monkeypatch.setattr(tokenisers, "_folders", lambda: iter(()))


def having(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *names: str) -> None:
    """A machine with some of the encodings that this one has."""
    for name in names:
        address = f"https://openaipublic.blob.core.windows.net/encodings/{name}.tiktoken"
        file = hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()
        found = next((folder / file for folder in tokenisers._folders() if (folder / file).is_file()), None)
        if found is None:
            pytest.skip(f"tiktoken's {name} is not on this machine")
        (tmp_path / file).write_bytes(found.read_bytes())

    monkeypatch.setattr(tokenisers, "_folders", lambda: iter([tmp_path]))


# --- which one ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["vllm", "llama.cpp"])
def test_the_servers_own_where_it_is_asked(kind: str) -> None:
    with serve(tokenize=kind) as server:
        lm = connect("m", api_base=server.url)
        assert tokeniser_for(lm).name == RULE.name, "nothing is asked unasked"
        assert server.stats()["tokenized"] == 0
        found = tokeniser_for(lm, ask_server=True, calls=[call()] * ENOUGH)
        assert server.stats()["tokenized"] == 1
        assert found.name == f"the tokeniser of {server.url}"
        assert found.count(TEXT) == 7
        assert server.stats()["requests"] == 0, "no model was asked"


def test_a_server_that_counts_no_tokens_or_is_gone_leaves_the_next_best() -> None:
    with serve() as server:
        lm = connect("m", api_base=server.url)
        assert tokeniser_for(lm, ask_server=True) == RULE
    assert tokeniser_for(lm, ask_server=True, calls=[call()] * ENOUGH).name.startswith("0.300 tokens a byte")


def test_earlier_calls_of_the_model_count(bare: None) -> None:
    lm = connect("m", api_base="http://127.0.0.1:9/v1")
    calls = [call()] * 15 + [call(tokens=60)] * 5 + [call("other", 9999)] * 50 + [call(tokens=None)] * 50
    found = tokeniser_for(lm, calls=calls)
    assert found.name == "0.375 tokens a byte, as 20 earlier calls of m were counted"
    assert found.count("é" * 100) == pytest.approx(75)
    assert tokeniser_for(lm, calls=calls[:19]) == RULE, "too few to tell"


def test_a_rule_of_thumb_says_that_it_is_one(bare: None) -> None:
    found = tokeniser_for(connect("openai/gpt-4o-mini", api_key="k"))
    assert found == RULE
    assert found.name == f"words times {TOKENS_A_WORD} (a rule of thumb)"
    assert found.count("one two") == pytest.approx(2 * TOKENS_A_WORD)


# --- tiktoken -------------------------------------------------------------------------------------------------------


def test_tiktokens_own_goes_before_earlier_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    having(monkeypatch, tmp_path, "cl100k_base")
    for model, name in (("gpt-3.5-turbo-instruct", "tiktoken's cl100k_base"), ("gpt-4o-mini", "0.300 tokens a byte")):
        found = tokeniser_for(connect(f"openai/{model}", api_key="k"), calls=[call(model)] * ENOUGH)
        assert found.name.startswith(name)


def test_it_counts_as_tiktoken_itself_does_and_control_tokens_are_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    having(monkeypatch, tmp_path, "cl100k_base")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    import tiktoken

    found = tokeniser_for(connect("openai/gpt-4", api_key="k"))
    assert found.name == "tiktoken's cl100k_base"
    assert found.count(TEXT) == len(tiktoken.get_encoding("cl100k_base").encode_ordinary(TEXT))
    assert found.count("<|endoftext|>") > 1
    assert found.count("lone \ud800 surrogate") > 1


def test_a_damaged_encoding_is_none_and_nothing_is_downloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # fmt: skip
    having(monkeypatch, tmp_path, "cl100k_base")
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-100])

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert tokeniser_for(connect("openai/gpt-4", api_key="k")) == RULE
    assert file.is_file(), "it is somebody else's"
