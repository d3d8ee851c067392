"""What a user's own model brings along: where it is served, fields of its own, and what it cannot be connected with."""

from __future__ import annotations

from pathlib import Path

import dspy
import pytest
from dspy import lm15
from model_server import serve
from scripted import response

from blendfilter.errors import BadArgument
from blendfilter.journal import Journal
from blendfilter.lm.connect import connect


class Named:
    """An engine of one's own."""

    def complete(self, request: lm15.Request) -> lm15.Response:
        return response("yes")


def test_where_a_users_model_is_served_is_recorded_without_a_login(tmp_path: Path) -> None:
    own = dspy.LM("openai/x", api_base="http://me:sk-verysecret0123@127.0.0.1:9/v1?key=verysecret", api_key="none")
    assert connect(own).address == "http://127.0.0.1:9/v1"
    assert connect(dspy.LM("openai/x", base_url="http://127.0.0.1:9/v1")).address == "http://127.0.0.1:9/v1"
    assert connect(dspy.LM("openai/x")).address == ""


@pytest.mark.parametrize("variable", ["OPENAI_API_BASE", "OPENAI_BASE_URL"])
def test_a_server_that_the_environment_names_is_no_provider(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    home = connect(dspy.LM("openai/gpt-4o-mini"))
    monkeypatch.setenv(variable, "http://127.0.0.1:9/v1")
    away = connect(dspy.LM("openai/gpt-4o-mini"))
    assert (home.address, home.profile.json_schema, home.terms.price is None) == ("", True, False)
    assert (away.address, away.profile.json_schema, away.terms.price) == ("http://127.0.0.1:9/v1", None, None)
    assert connect(dspy.LM("openai/x", engine=Named())).address == ""


def test_a_text_completion_model_is_refused_before_any_call() -> None:
    with pytest.raises(BadArgument, match=r"openai/m is a text-completion model.*endpoint='completions'"):
        connect(dspy.LM("openai/m", model_type="text", api_key="k"))


@pytest.mark.parametrize("engine", ["auto", "litellm"])
def test_fields_of_its_own_are_sent_and_tell_its_calls_apart(engine: str, tmp_path: Path) -> None:
    extra = {"top_k": 20, "chat_template_kwargs": {"enable_thinking": False}}
    with serve(keep=True) as server, Journal(tmp_path) as journal:
        for given in ({"extra_body": extra}, {}):
            lm = connect(dspy.LM("openai/m", api_base=server.url, api_key="k", engine=engine, **given), journal=journal)
            lm("hello")
        sent, plain = server.stats()["bodies"]
        keys = [record["key"] for record in journal.records()]
    assert {name: sent.get(name) for name in extra} == extra
    assert not extra.keys() & plain.keys()
    assert len(set(keys)) == 2


def test_a_key_among_these_fields_is_refused() -> None:
    own = dspy.LM("openai/m", api_key="k", extra_body={"plugins": [{"api_key": "sk-test-0123456789"}]})
    with pytest.raises(BadArgument, match="extra_body must hold no key, and 'api_key' looks like one"):
        connect(own)
