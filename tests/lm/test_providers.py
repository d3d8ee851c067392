"""Providers that DSPy's own client speaks to: journaled, priced and retried like ours; nothing leaves loopback."""

from __future__ import annotations

import importlib.util
import logging
import sys
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import dspy
import pytest
from model_server import serve
from provider_server import playing

from blendfilter import Budget, ChainOfThought, Direct, SelfConsistency, evaluate, load
from blendfilter.errors import BadArgument, MissingExtra, ModelError, NoKey, ServerRefused, UnknownName
from blendfilter.evaluation.plan import plan
from blendfilter.journal import Journal
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.lm.prices import Price

KEY = "a-very-secret-key-0123456789"
STOPS = ["\nKnowledge:", "\nQuestion:"]


class Provider(NamedTuple):
    """A model's name, and the environment in which the client finds its server and its key."""

    name: str
    place: str
    keys: tuple[str, ...]
    price: Price | None
    at_home: bool = False  # whether an address that is set is the provider's own


PROVIDERS = [
    Provider("anthropic/claude-sonnet-4-5", "ANTHROPIC_API_BASE", ("ANTHROPIC_API_KEY",), Price(3, 15, 0.3)),
    Provider("gemini/gemini-2.5-flash", "GEMINI_API_BASE", ("GEMINI_API_KEY",), Price(0.3, 2.5, 0.03)),
    Provider("azure/gpt-4o", "AZURE_API_BASE", ("AZURE_API_KEY",), Price(2.5, 10, 1.25), at_home=True),
    Provider(
        "bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0", "AWS_BEDROCK_RUNTIME_ENDPOINT",
        ("AWS_SECRET_ACCESS_KEY",), Price(3.3, 16.5, 0.33), at_home=True,
    ),
    Provider("fireworks_ai/our-own", "FIREWORKS_API_BASE", ("FIREWORKS_AI_API_KEY",), None, at_home=True),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True", "AZURE_API_VERSION": "2024-10-21", "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=PROVIDERS, ids=lambda provider: provider.name.partition("/")[0])
def provider(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Provider:
    wanted: Provider = request.param
    if wanted.name.startswith("bedrock/") and importlib.util.find_spec("boto3") is None:
        pytest.skip("litellm reaches Bedrock through boto3, which is not installed")
    for name in wanted.keys:
        monkeypatch.setenv(name, KEY)
    return wanted


def ask(lm: ConnectedLM, prompt: str = "Question: Who?\nAnswer:", **more: Any) -> Any:
    return lm(prompt, **{"stop": STOPS, "max_tokens": 32, **more})


def all_of(folder: Path) -> str:
    return "".join(file.read_text(encoding="utf-8") for file in folder.rglob("*") if file.is_file())


# --- any provider -----------------------------------------------------------------------------------------------------


def test_a_provider_that_only_dspy_speaks_to_is_journaled_priced_and_retried(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert connect(provider.name).terms.price == provider.price, "litellm's, where it has one"
    with playing("Ada\nQuestion: and then?", failures=[529]) as server, Journal(tmp_path) as journal:
        monkeypatch.setenv(provider.place, server.url)
        with caplog.at_level(logging.DEBUG, "blendfilter"):
            lm = connect(provider.name, journal=journal)
            assert [ask(lm), ask(lm)] == [["Ada"], ["Ada"]], "the second from the journal, both cut at the stop string"
        (record,) = journal.records()
    assert len(server.seen) == 2, "the client has no retries of its own"
    assert (record["attempts"], record["tokens_in"], record["tokens_out"]) == (2, 1000, 100)
    assert (record["model"], record["parameters"]["options"]["provider"]) == tuple(
        reversed(provider.name.split("/", 1))
    )
    cost = provider.price and provider.price.of(1000, 100, record["tokens_cached"] or 0)
    assert record["cost"] == (pytest.approx(cost) if provider.at_home and cost else None), "a gateway's is unknown"
    for text in (all_of(tmp_path), caplog.text, repr(vars(lm)), repr(lm.history), str(lm.dump_state())):
        assert KEY not in text
    with Journal(tmp_path, "replay") as journal:
        assert ask(connect(provider.name, journal=journal)) == ["Ada"], "with the server gone"


def test_a_refused_key_stops_the_work_says_where_it_is_from_and_is_not_shown(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with playing(failures=[401] * 3) as server, Journal(tmp_path) as journal:
        monkeypatch.setenv(provider.place, server.url)
        with pytest.raises(ServerRefused, match="refuses the key") as refused:
            ask(connect(provider.name, journal=journal))
    assert len(server.seen) == 1, "no key gets better by asking again"
    shown = "".join(traceback.TracebackException.from_exception(refused.value, capture_locals=True).format())
    assert KEY not in shown + all_of(tmp_path)
    if provider.name.startswith(("anthropic", "gemini")):
        assert f"check the key in the variable {provider.keys[0]}" in str(refused.value)


def test_a_setting_that_a_model_refuses_is_left_out_from_then_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    with playing(refuse=["temperature", "stop_sequences"]) as server, Journal(tmp_path) as journal:
        monkeypatch.setenv("ANTHROPIC_API_BASE", server.url)
        lm = connect("anthropic/claude-sonnet-4-5", journal=journal)
        ask(lm)
        ask(lm, "Question: When?\nAnswer:")
        first, second = journal.records()
    sent = [{"temperature", "stop_sequences"} & seen.body.keys() for seen in server.seen]
    assert sent == [{"temperature", "stop_sequences"}, {"stop_sequences"}, set(), set()]
    assert (first["attempts"], second["attempts"]) == (3, 1)
    assert first["parameters"]["temperature"] == 0.0, "what was asked, as for every server"


def test_another_refusal_is_the_calls_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    with playing(refuse=["messages"]) as server:
        monkeypatch.setenv("ANTHROPIC_API_BASE", server.url)
        with pytest.raises(ModelError, match="messages") as failed:
            ask(connect("anthropic/claude-sonnet-4-5"))
    assert (failed.value.kind, len(server.seen)) == ("bad_request", 1)


def test_a_name_that_wants_a_key_says_which_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, variable in [("anthropic/c", "ANTHROPIC_API_KEY"), ("gemini/g", "GEMINI_API_KEY or GOOGLE_API_KEY"),
                           ("xai/g", "XAI_API_KEY"), ("cohere/c", "COHERE_API_KEY or CO_API_KEY")]:  # fmt: skip
        with pytest.raises(NoKey, match=f"{name} wants a key: set {variable}"):
            connect(name)
    assert connect("anthropic/c", api_key=KEY).name == "c"


def test_a_provider_that_is_not_set_up_says_what_it_lacks() -> None:
    with pytest.raises(ServerRefused, match=r"^azure cannot be asked: .*AZURE_OPENAI_ENDPOINT"):
        ask(connect("azure/gpt-4o"))


def test_a_package_that_a_providers_client_lacks_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("google.auth", "google.auth.credentials"):
        monkeypatch.setitem(sys.modules, module, None)  # it is not installed
    with pytest.raises(
        MissingExtra, match=r"^vertex_ai/\S+ cannot be called: .*google\.auth.*: pip install google-auth$"
    ):
        ask(connect("vertex_ai/gemini-2.5-flash"))


def test_what_no_client_knows_is_still_no_provider() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'anthropic'"):
        connect("anthropc/claude-sonnet-4-5")


def test_at_an_address_of_ones_own_a_server_speaks_openais_protocol_but_for_azure() -> None:
    for name, path, model in [
        ("anthropic/claude-sonnet-4-5", "/chat/completions", "anthropic/claude-sonnet-4-5"),
        ("azure/gpt-4o", "/openai/deployments/gpt-4o/chat/completions", "gpt-4o"),
    ]:
        with playing() as server:
            assert ask(connect(name, api_base=server.url, api_key=KEY)) == ["So the answer is 42."]
        assert [(seen.path, seen.body["model"]) for seen in server.seen] == [(path, model)]


def test_settings_that_such_a_client_cannot_send_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    with pytest.raises(BadArgument, match="sends no raw prompts"):
        connect("anthropic/c", endpoint="completions")
    with pytest.raises(BadArgument, match="'api_key' looks like one"):
        connect("anthropic/c", extra_body={"api_key": "x"})


def test_its_state_connects_it_again_without_the_key() -> None:
    lm = connect("anthropic/claude-sonnet-4-5", api_key=KEY, label="mine", seed=3)
    state = lm.dump_state()
    assert KEY not in str(state)
    with pytest.raises(NoKey):
        ConnectedLM.load_state(state)
    again = ConnectedLM.load_state({**state, "api_key": KEY})
    assert (again.name, again.identity, again.kwargs) == (lm.name, lm.identity, lm.kwargs)


def test_effort_reaches_the_provider_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", KEY)
    with playing() as server:
        monkeypatch.setenv("GEMINI_API_BASE", server.url)
        ask(connect("gemini/gemini-2.5-flash", reasoning="low"))
        ask(connect("gemini/gemini-2.5-flash", thinking=False), "Question: When?\nAnswer:")
    low, off = (seen.body for seen in server.seen)
    assert low["generationConfig"]["thinkingConfig"]["thinkingBudget"] > 0
    assert low["generationConfig"]["max_output_tokens"] > 8000, "room for thoughts beside the 32 tokens"
    assert off["generationConfig"]["thinkingConfig"]["thinkingBudget"] == 0
    assert off["generationConfig"]["max_output_tokens"] == 32


def test_fields_of_ones_own_are_sent_with_every_call_and_stay_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """litellm writes into what it is handed; a second call would find that, and so would the user."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    extra = {"metadata": {"user_id": "u"}}
    with playing() as server:
        monkeypatch.setenv("ANTHROPIC_API_BASE", server.url)
        lm = connect("anthropic/claude-sonnet-4-5", extra_body=extra)
        ask(lm)
        ask(lm, "Question: When?\nAnswer:")
    assert [seen.body["metadata"] for seen in server.seen] == [{"user_id": "u"}] * 2
    assert extra == {"metadata": {"user_id": "u"}}


def test_a_model_without_a_price_says_so_and_no_limit_of_dollars_is_feigned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIREWORKS_AI_API_KEY", KEY)
    questions = load("hotpotqa", "sample", limit=1)
    for name, price in [
        ("fireworks_ai/our-own", "no price is known (prices=FILE)"),
        ("vertex_ai/gemini-2.5-flash", "$0.3 in and $2.5 out a million tokens"),
    ]:
        estimate = plan(Direct(), questions, connect(name))
        assert estimate.prices == {name.partition("/")[2]: price}
    with pytest.raises(BadArgument, match="no price is known for the model 'our-own', so no limit of dollars"):
        evaluate(Direct(), questions, lm=connect("fireworks_ai/our-own"), budget=Budget(dollars=1.0), progress=False)


# --- a `dspy.LM` of one's own -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["auto", "litellm"])
@pytest.mark.parametrize("given", [{}, {"max_tokens": 16000}, {"max_tokens": 20000, "temperature": 1.0}])
def test_a_users_reasoning_model_is_asked_as_its_family_takes_it(
    engine: str, given: dict[str, Any], tmp_path: Path
) -> None:
    with serve(behave="reasoning", keep=True) as server, Journal(tmp_path) as journal:
        own = dspy.LM("openai/gpt-5-mini", api_base=server.url, api_key=KEY, engine=engine, **given)
        lm = connect(own, journal=journal)
        (reply,) = ask(lm, temperature=0.0)
        (record,) = journal.records()
        (sent,) = server.stats()["bodies"]
    assert reply["text"] == "So the answer is 42."
    assert not {"temperature", "stop", "max_tokens"} & sent.keys()
    assert sent["max_completion_tokens"] == given.get("max_tokens", 32 + 8192), "the user's room, or the family's"
    assert record["parameters"] == {"temperature": 0.0, "max_tokens": 32, "stop": STOPS}
    assert record["attempts"] == 1


def test_a_whole_method_answers_through_a_users_reasoning_model(tmp_path: Path) -> None:
    with serve(behave="reasoning") as server:
        own = dspy.LM("openai/gpt-5-mini", api_base=server.url, api_key=KEY, max_tokens=16000, temperature=1.0)
        with dspy.context(lm=connect(own)):
            assert "42" in ChainOfThought()(question="What is it?").answer


@pytest.mark.parametrize("given", [{}, {"max_tokens": 16000, "temperature": 1.0}])
def test_the_same_model_answers_where_it_is_not_connected(given: dict[str, Any]) -> None:
    """As a DSPy user has it: `dspy.configure(lm=dspy.LM(…))`, with DSPy's own cache, retries and history."""
    with serve(behave="reasoning", keep=True) as server:
        own = dspy.LM("openai/gpt-5-mini", api_base=server.url, api_key=KEY, cache=False, num_retries=0, **given)
        with dspy.context(lm=own):
            assert "42" in ChainOfThought()(question="What is it?").answer
        sent = server.stats()["bodies"]
    assert server_saw_no_refusal(sent, given)
    assert len(own.history) == len(sent), "the model's own history has the calls"


@pytest.mark.parametrize("engine", ["auto", "litellm"])
@pytest.mark.parametrize("n", [1, 3])
def test_it_draws_several_samples_at_its_own_temperature(engine: str, n: int) -> None:
    """Where several are drawn and no temperature is set, DSPy sets 0.7, which a reasoning model refuses."""
    given = {"n": n} if n > 1 else {}  # as the model's own setting, or as the method's
    with serve(behave="reasoning", keep=True) as server:
        own = dspy.LM("openai/gpt-5-mini", api_base=server.url, api_key=KEY, cache=False, engine=engine, **given)
        method = ChainOfThought() if given else SelfConsistency(lambda query, k: ["Ada kept the light."], 1, samples=3)
        with dspy.context(lm=own):
            assert "42" in method(question="What is it?").answer
        assert server.stats()["statuses"].keys() == {"200"}


def server_saw_no_refusal(sent: list[dict[str, Any]], given: dict[str, Any]) -> bool:
    caps = [body["max_completion_tokens"] for body in sent]
    least = given.get("max_tokens", 8192)
    return all("stop" not in body for body in sent) and all(cap >= least for cap in caps)


@pytest.mark.parametrize("name", ["anthropic/claude-sonnet-4-5", "gemini/gemini-2.5-flash"])
def test_dspys_native_client_is_counted_as_providers_bill(name: str, tmp_path: Path) -> None:
    """lm15's own counts leave out Anthropic's cached tokens and Gemini's thoughts."""
    with playing(failures=[500]) as server, Journal(tmp_path) as journal:
        lm = connect(dspy.LM(name, api_base=server.url, api_key=KEY), journal=journal)
        assert ask(lm) == ["So the answer is 42."]
        (record,) = journal.records()
    assert (record["tokens_in"], record["tokens_out"], record["attempts"]) == (1000, 100, 2)
    assert len(server.seen) == 2
    assert KEY not in all_of(tmp_path)


def test_thoughts_in_tags_and_what_follows_a_stop_string_are_no_reply(tmp_path: Path) -> None:
    with playing("<think>Ada or Bob?</think>Ada\nQuestion: and") as server, Journal(tmp_path) as journal:
        lm = connect(dspy.LM("anthropic/claude-sonnet-4-5", api_base=server.url, api_key=KEY), journal=journal)
        assert ask(lm)[0]["text"] == "Ada"
        (record,) = journal.records()
    assert (record["reasoning"], record["finish"], record["ran_on"]) == ("Ada or Bob?", "stop", True)
    assert server.seen


def test_the_command_line_takes_such_a_name(monkeypatch: pytest.MonkeyPatch, blendfilter: Any) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    with playing("So the answer is Ada.") as server:
        monkeypatch.setenv("ANTHROPIC_API_BASE", server.url)
        done = blendfilter("ask", "Who?", "--method", "cot", "--lm", "anthropic/claude-sonnet-4-5")
    assert done.code == 0
    assert "Ada" in done.out
    assert KEY not in done.out + done.err
