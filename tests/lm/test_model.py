"""connect() and the dspy.LM that it returns, as DSPy and people use it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy import lm15
from dspy35 import OF_34
from model_server import serve
from scripted import scripted
from small_world import comes_of_itself

from blendfilter import open_index
from blendfilter.context import asker, noting, setting
from blendfilter.errors import (
    AskedWrong,
    BadArgument,
    MissingFile,
    ModelError,
    NoKey,
    ReplayMiss,
    RunLocked,
    ServerRefused,
    UnknownName,
)  # fmt: skip
from blendfilter.journal import Journal
from blendfilter.lm.attempts import Retry
from blendfilter.lm.journaled import prompt_of
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.lm.openai import OpenAIEngine
from blendfilter.lm.profiles import PROVIDERS

HERE = "http://127.0.0.1:9/v1"


# ---- calling it


def test_it_is_called_with_a_text_or_a_request_awaited_or_not() -> None:
    with scripted(["a", "b", "c", "d"], n=1) as lm:
        assert lm("hello") == ["a"]
        wanted = lm15.Request(model=lm.model, system="s", messages=(lm15.Message.user("u"),))
        assert [lm(request=wanted).text, lm.copy(n=2)(wanted).text] == ["b", "c"]
        assert asyncio.run(lm.acall("awaited")) == ["d"]
        assert [prompt for _, prompt in lm.prompts] == ["hello", "s\n\nu", "s\n\nu", "awaited"]
        assert prompt_of(lm.inner.requests[1]) == [["system", "s"], ["user", "u"]]


@OF_34
@pytest.mark.filterwarnings("ignore:Passing OpenAI-style message:DeprecationWarning")
def test_it_is_called_with_messages_while_dspy_has_them() -> None:
    with scripted(["a"]) as lm:
        assert lm(messages=[{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]) == ["a"]
        assert prompt_of(lm.inner.requests[0]) == [["system", "s"], ["user", "u"]]


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(lm15.ContextLengthError("too long", status=400), "context_too_long"), (lm15.TimeoutError("late"), "timeout")],
)
def test_a_call_that_fails_raises_our_error_with_its_stage(fault: Exception, kind: str) -> None:
    with scripted([fault, fault]) as lm, setting(stage="ids"):
        with pytest.raises(ModelError) as waited:
            lm("hello")
        with pytest.raises(ModelError) as awaited:
            asyncio.run(lm.acall("hello"))
    for error in (waited.value, awaited.value):
        assert (error.kind, error.stage) == (kind, "ids")
        assert not comes_of_itself(error)


def test_where_one_sample_fails_the_others_are_waited_for_and_noted(tmp_path: Path) -> None:
    failing = lm15.ContextLengthError("too long", status=400)
    with Journal(tmp_path) as journal, scripted([failing, "b", "c"], journal=journal) as lm:
        quick = lm.inner.complete

        async def slower_later(request: Any) -> Any:
            await asyncio.sleep(0.03 * asker().sample.i)
            return await quick(request)

        lm.inner.complete = slower_later  # type: ignore[method-assign]
        with noting() as notes, pytest.raises(ModelError, match="too long"):
            lm("hello", n=3, temperature=1.0)
        assert len(list(journal.records())) == 3
        assert [note.event for note in notes].count("error") <= 1
        assert len([note for note in notes if note.event != "error"]) == 2


def test_a_copy_with_a_rollout_asks_anew_and_shares_journal_and_engine(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal, scripted(["a", "b"], journal=journal) as lm:
        other = lm.copy(rollout_id=1, temperature=1.0)
        assert (lm("hello"), other("hello"), other("hello"), lm("hello")) == (["a"], ["b"], ["b"], ["a"])
        assert [record["sample"] for record in journal.records()] == [[None, 0], [1, 0]]
        assert lm.kwargs == {"temperature": 0.0}


# ---- stages of a user's own modules


class Own(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.draft = dspy.ChainOfThought("question -> answer")
        self.self_check = dspy.Predict("question, answer -> verdict")
        self.steps = [dspy.Predict("verdict -> answer")]

    def forward(self, question: str) -> dspy.Prediction:
        draft = self.draft(question=question)
        verdict = self.self_check(question=question, answer=draft.answer).verdict
        return self.steps[0](verdict=verdict)


def own_replies(stage: str, prompt: str) -> str:
    fields = ("reasoning", "answer") if stage == "draft" else ("verdict",) if stage == "self_check" else ("answer",)
    return "\n".join(f"[[ ## {name} ## ]]\nx\n" for name in (*fields, "completed"))


def test_a_predictor_of_a_users_own_module_is_named_by_its_attribute_in_threads_too() -> None:
    with scripted(own_replies) as lm, dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
        Own()(question="?")
        assert [stage for stage, _ in lm.prompts] == ["draft", "self_check", "steps[0]"]
        Own().batch([dspy.Example(question=str(i)).with_inputs("question") for i in range(3)], num_threads=4)
    assert sorted(stage for stage, _ in lm.prompts) == ["draft"] * 4 + ["self_check"] * 4 + ["steps[0]"] * 4


# ---- callbacks, copies, state


def test_state_goes_round_without_a_key() -> None:
    lm = connect("openai/test-model", api_base="http://127.0.0.1:9/v1", api_key="sk-secret0123456789", label="b",
                 endpoint="completions", temperature=0.5, top_p=0.9, seed=3, extra_body={"top_k": 20},
                 json_schema=True)  # fmt: skip
    state = json.loads(json.dumps(lm.dump_state()))
    assert "sk-secret" not in json.dumps(state)
    again = dspy.BaseLM.load_state(state, allow_custom_lm_class=True)
    assert isinstance(again, ConnectedLM)
    assert again.dump_state() == state
    assert (again.name, again.address, again.identity) == (lm.name, lm.address, lm.identity)
    assert (again.kwargs, again.profile) == (lm.kwargs, lm.profile)
    with pytest.raises(ValueError, match="Refusing to import"):
        dspy.BaseLM.load_state(state)


def test_it_prints_as_one_line_that_says_how_it_was_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert repr(connect()) == "ConnectedLM('offline', temperature=0.0)"
    with Journal(tmp_path) as journal:
        base = connect("m", api_base=HERE, endpoint="completions", label="b", seed=3, timeout=9, journal=journal)
        assert repr(base) == (
            f"ConnectedLM('m', address='{HERE}', timeout=9, endpoint='completions', label='b', temperature=0.0, "
            f"seed=3, journal='{journal.path}')"
        )
    monkeypatch.setenv("BLENDFILTER_CACHE", str(tmp_path))
    assert repr(connect("m", api_base=HERE)) == (
        f"ConnectedLM('m', address='{HERE}', temperature=0.0, cache='{tmp_path}/calls')"
    )
    own = connect(dspy.LM("openai/gpt-4o", temperature=0.5, max_tokens=9), label="mine", cache=False)
    assert repr(own) == "ConnectedLM('openai/gpt-4o', label='mine', cache=False, temperature=0.5, max_tokens=9)"
    assert repr(own.copy(temperature=1.0)) == repr(own).replace("0.5", "1.0")


def test_it_prints_no_key_and_no_login() -> None:
    secret, place = "sk-0123456789-secret", "http://me:pass-9876543210@127.0.0.1:9/v1"
    for lm in (
        connect("groq/llama-3.1-8b", api_key=secret),
        connect("m", api_base=[place, HERE], api_key=secret),
        connect(dspy.LM("openai/gpt-4o", api_base=place, api_key=secret)),
        connect("m", api_base=HERE).copy(metadata={"key": secret}),
    ):
        assert "address='http" in repr(lm)
        assert secret not in repr(lm)
        assert "pass-9876543210" not in repr(lm)


# ---- from a name to a model


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
        ("mistral", "mistral"),  # a provider's name alone is a model's name there
    ],
)
def test_with_an_address_only_a_providers_prefix_comes_off(name: str, model: str) -> None:
    lm = connect(name, api_base=f"{HERE}/")
    assert (lm.name, lm.address) == (model, HERE)


def test_settings_reach_the_server_and_a_call_may_set_otherwise() -> None:
    with serve(keep=True) as server:
        lm = connect("m", api_base=server.url, endpoint="completions", temperature=0.5, top_p=0.9, seed=7,
                     max_tokens=3, extra_body={"top_k": 20})  # fmt: skip
        assert lm("hello", stop=["\nQuestion:"]) == ["So the answer"]
        lm("hello", max_tokens=2, temperature=0.7)
        first, second = server.stats()["bodies"]
    assert first == {"model": "m", "prompt": "hello", "temperature": 0.5, "top_p": 0.9, "seed": 7, "max_tokens": 3,
                     "stop": ["\nQuestion:"], "top_k": 20}  # fmt: skip
    assert (second["max_tokens"], second["temperature"]) == (2, 0.7)
    assert connect("offline").kwargs == {"temperature": 0.0}, "greedy, as in the papers"
    assert connect("offline", temperature=None).kwargs == {}
    assert connect("m", api_base=HERE, n=2, logit_bias={"5": 1}).kwargs["logit_bias"] == {"5": 1}, "as DSPy hands it on"


@pytest.mark.parametrize(
    ("name", "options", "kind", "message"),
    [
        ("openai/gpt-4o-mini", {}, NoKey, "openai/gpt-4o-mini wants a key: set OPENAI_API_KEY, or point api_base= at"),
        ("opnai/gpt-4o-mini", {}, UnknownName, r"no provider 'opnai'\. Did you mean 'openai'\?.*groq.*api_base=URL"),
        ("gpt-4o-mini", {}, BadArgument, r"names no provider: write provider/model \(openai/"),
        ("", {}, BadArgument, r"names no provider: write provider/model \(openai/"),
        ("openai/", {}, BadArgument, r"names no provider: write provider/model \(openai/"),
        ("offline", {"api_base": HERE}, BadArgument, "offline is a reader in this process: name the model"),
        ("m", {"api_base": HERE, "endpoint": "chats"}, BadArgument, r"no endpoint 'chats' \(known: chat, completions"),
        ("m", {"api_base": HERE, "reasoning": "low", "thinking": False}, BadArgument, "contradict each other"),
        ("m", {"api_base": HERE, "prices": {"m": 1}}, BadArgument, "name a TOML file of prices"),
        ("m", {"api_base": HERE, "min_p": 0.1}, UnknownName, r"extra_body=\{'min_p'"),
        (3, {}, BadArgument, "3 is no model"),
        ("offline", {"mode": "play"}, AskedWrong, "play"),
        ("offline", {"timout": 5}, UnknownName, "no setting 'timout'. Did you mean 'timeout'"),
        ("m", {"api_base": HERE, "attempts": 0}, BadArgument, "attempts is 0: give a whole number of 1 or more"),
        ("offline", {"requests_per_minute": 60}, BadArgument, "offline answers in this process: requests_per_minute"),
        ("m", {"api_base": f"{HERE}?key=k-123456789"}, BadArgument, "hold no query, such as a key: put the key"),
        ("openai/gpt-4o-mini", {"api_key": "k-123456789", "rpm": 3}, UnknownName, "mean 'requests_per_minute'"),
        ("openai/gpt-4o-mini", {"api_key": "k-123456789", "max_token": 7}, UnknownName, "mean 'max_tokens'"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_refused_is_one_line_and_makes_no_journal(
    tmp_path: Path, name: Any, options: dict[str, Any], kind: type[AskedWrong], message: str
) -> None:
    with pytest.raises(kind, match=message):
        connect(name, journal=tmp_path / "run", **options)
    assert not list(tmp_path.iterdir())


MALFORMED = [
    "http://me:SECRET123@host:notaport", "htp://me:SECRET123@host/v1", "http://me:SECRET123@ho st/v1",
    "http://me:SECRET123@[::1/v1", "http://me:SECRET123@[::g]:1/v1", "http://me:SECRET123@", "me:SECRET123@host",
    "//me:SECRET123@host", "http:/me:SECRET123@host/v1", "http://me:SECRET123%40host:9", "http://me:a/SECRET123@h:1",
    "http://me:SECRET123?@host:1", "http://me:SECRET123#x@host:1", "http://me:SECRET123@host:99999",
    "http://me:a@SECRET123@host:x", "http://me:SECRET123\uff20host:1x", "http://me:[SECRET123@h/v1", "http://h/v1#SECRET123",
    "http://h/v1?api-key=SECRET123",
]  # fmt: skip


@pytest.mark.parametrize("how", ["one", "several", "own", "index"])
def test_no_login_is_shown_of_what_is_no_address(how: str) -> None:
    for address in MALFORMED:
        text = ""
        try:
            if how == "own":  # a user's own model has an address of its own, which is shown and recorded
                text = connect(dspy.LM("openai/m", api_base=address, api_key="sk-0123")).address
            elif how == "index":
                open_index(address, attempts=1)
            else:
                connect("m", api_base=address if how == "one" else [HERE, address])
                pytest.fail(f"{address} was taken for an address")
        except AskedWrong as refused:
            text = str(refused)
        assert "SECRET123" not in text, address


@pytest.mark.parametrize(
    "options",
    [
        {"api_key": "sk-test-0123456789"}, {"temperature": 1.0}, {"extra_body": {"top_k": 5}}, {"label": "b"},
    ],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_settings_for_a_model_that_is_made_already_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="is made already: give its settings where it is made, or use its copy"):
        connect(connect("m", api_base=HERE), journal=tmp_path / "run", **options)
    assert list(tmp_path.iterdir()) == []
    if not options.keys() & {"label"}:  # which an adopted model takes
        with pytest.raises(BadArgument, match="openai/x is made already"):
            connect(dspy.LM("openai/x", api_key="sk-test-0123456789"), **options)


def test_a_refused_key_says_where_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(behave="unauthorized") as server:

        def line(name: str = "m", key: str | None = None) -> str:
            with pytest.raises(ServerRefused) as refused:
                connect(name, api_base=server.url, api_key=key)("hello")
            return str(refused.value)

        assert line().endswith("; none was given: set BLENDFILTER_API_KEY")
        assert line(key="key-0123456789").endswith("; check the key that was given (api_key=)")
        monkeypatch.setenv("OPENAI_API_KEY", "key-of-openai-987")
        assert line("openai/m").endswith("; check the key in the variable OPENAI_API_KEY")
        assert "key-of-openai-987" not in line("openai/m")


# ---- journals


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
    with Journal(tmp_path / "one") as one, Journal(tmp_path / "two") as two:
        lm = connect("m", api_base=HERE, label="b", temperature=0.5, journal=one)
        other = connect(lm, journal=two)
        assert connect(lm) is lm
        assert (other.journal, lm.journal, other.inner) == (two, one, lm.inner)
        assert (other.identity, other.address, other.kwargs) == (lm.identity, lm.address, lm.kwargs)
        assert other.dump_state() == lm.dump_state()


def test_a_label_tells_two_servers_with_one_name_apart_and_a_new_port_does_not(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal, serve(reply="from the first") as first, serve(reply="from the second") as second:
        assert connect("m", api_base=first.url, journal=journal)("hello") == ["from the first"]
        assert connect("vllm/m", api_base=second.url, journal=journal)("hello") == ["from the first"]
        assert connect("m", api_base=second.url, journal=journal, label="b")("hello") == ["from the second"]
        assert [record["address"] for record in journal.records()] == [first.url, second.url]


def test_one_name_at_two_providers_is_two_models() -> None:
    def key_of(lm: ConnectedLM) -> str:
        with noting() as notes:
            lm.inner = connect("offline").inner
            lm.with_journal(None)("hello")
        return str(notes[0].key)

    groq, together = (connect(f"{name}/llama-3.1-8b", api_key="sk-test-01234") for name in ("groq", "together"))
    assert groq.name == together.name == "llama-3.1-8b"
    assert groq.identity != together.identity
    assert key_of(groq) != key_of(together)
