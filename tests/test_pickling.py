"""Whole programs saved and loaded (`save_program=True`, cloudpickle): no key, journal or lock goes into the file."""

from __future__ import annotations

import copy
import inspect
import logging
import pickle
from pathlib import Path
from typing import Any

import cloudpickle
import compiled
import dspy
import pytest
from dspy.utils import DummyLM
from model_server import serve

from blendfilter.asking import Ask
from blendfilter.errors import BadArgument, BadData, MissingFile, NoKey
from blendfilter.filters.registry import FILTERS, PLUG_INS, make_filter
from blendfilter.journal import Journal
from blendfilter.lm.model import ConnectedLM, LMSettings, connect
from blendfilter.lm.prices import read_prices
from blendfilter.modules.base import ShortAnswer
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.direct import Direct
from blendfilter.modules.methods import METHODS, make_method
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.indexes import open_index
from blendfilter.retrieval.stored import Stored

KEY = "sk-a-very-secret-key-0123456789"
QUESTION = "Who founded the Sallowmere Botanic Garden?"


def travelled(thing: Any) -> Any:
    return cloudpickle.loads(cloudpickle.dumps(thing))


def answer(method: dspy.Module) -> str:
    with dspy.context(lm=connect("offline")):
        return str(method(question=QUESTION).answer)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_comes_back_and_answers_alike(name: str) -> None:
    method = make_method(name, compiled.sample_index(), k=2)
    again = travelled(method)
    assert answer(again) == answer(method)
    assert [(name, type(each).__name__) for name, each in again.named_predictors()] == [
        (name, each.name) for name, each in method.named_predictors()
    ]


@pytest.mark.parametrize("name", [name for name in FILTERS if name not in PLUG_INS])
def test_every_filter_comes_back_and_keeps_alike(name: str) -> None:
    passages = compiled.sample_index()(QUESTION, k=2)
    select = make_filter(name, **({"lm": connect("offline")} if name == "bider" else {}))
    with dspy.context(lm=connect("offline")):
        first, second = (each(question=QUESTION, passages=passages).kept for each in (select, travelled(select)))
    assert first == second


def test_dspy_saves_and_loads_the_whole_program(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    method = BlendFilter(compiled.sample_index(), k=2, task="strategyqa")
    method.select.check.signature = method.select.check.signature.with_instructions("Judge each.")
    with caplog.at_level(logging.CRITICAL, "dspy"):
        method.save(tmp_path / "program", save_program=True)
    again = dspy.load(str(tmp_path / "program"), allow_pickle=True)
    assert answer(again) == answer(method)
    assert again.dump_state() == method.dump_state()
    assert again.select.check.signature.instructions == "Judge each."


def test_its_models_are_connected_again_and_neither_key_nor_journal_goes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(reply="Tolm") as server, Journal(tmp_path / "journal") as journal:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        method = Direct()
        method.direct.lm = connect("served", api_base=server.url, api_key=KEY, label="mine", seed=3, journal=journal)
        method.other = connect(dspy.LM("openai/gpt-5-mini", api_key=KEY, api_base=server.url))
        written = cloudpickle.dumps(method)
        assert KEY.encode() not in written
        assert str(tmp_path).encode() not in written
        again = pickle.loads(written)
        assert again(question=QUESTION).answer == "Tolm"
        lm = again.direct.lm
        assert isinstance(lm, ConnectedLM)
        assert lm.journal is not journal
        assert (lm.name, lm.identity, lm.kwargs) == (
            method.direct.lm.name, method.direct.lm.identity, method.direct.lm.kwargs,
        )  # fmt: skip
        assert isinstance(again.other, ConnectedLM)


@pytest.mark.parametrize(
    "secret",
    [
        {"api_base": "http://user:SECRET@127.0.0.1:9/v1"},
        {"api_base": "http://127.0.0.1:9/v1?code=SECRET"},
        {"headers": {"Authorization": "Bearer SECRET"}},
        {"extra_headers": {"X-Gateway": "SECRET"}},
        {"extra_query": {"sig": "SECRET"}},
        {"aws_secret_access_key": "SECRET"},
        {"azure_ad_token": "SECRET"},
        {"launch_kwargs": {"servers": [{"hf_token": "SECRET"}]}},
        {"api_key": KEY, "metadata": {"caller": f"Bearer {KEY}"}},
    ],
    ids=repr,
)
def test_no_secret_of_a_users_model_is_saved_and_its_other_settings_are(secret: dict[str, Any], tmp_path: Path) -> None:
    own = dspy.LM("openai/served", **{"api_version": "2024-06-01", "prompt_cache_key": "mine"} | secret)
    method = Direct()
    method.set_lm(connect(own))
    method.save(tmp_path / "state.json")
    written = cloudpickle.dumps(method)
    for text in (written, (tmp_path / "state.json").read_bytes()):
        assert b"SECRET" not in text
        assert KEY.encode() not in text
    again = pickle.loads(written).direct.lm.inner.lm
    assert (again.kwargs["api_version"], again.kwargs["prompt_cache_key"]) == ("2024-06-01", "mine")
    assert str(again.kwargs.get("api_base", "http://127.0.0.1:9/v1")) == "http://127.0.0.1:9/v1"


def test_no_login_in_an_address_that_dspys_client_calls_is_saved() -> None:
    lm = connect("azure/served", api_base="http://user:SECRET@127.0.0.1:9/v1", api_key=KEY)
    assert lm.dump_state()["api_base"] == "http://127.0.0.1:9/v1"


class Own(dspy.BaseLM):  # type: ignore[misc]
    """A model whose state, which is DSPy's default, lacks what it is made with."""

    def __init__(self, voice: str) -> None:
        super().__init__("own/model")
        self.voice = voice


@pytest.mark.parametrize("own", [Own("a"), DummyLM([{"answer": "Tolm"}])], ids=["own", "dummy"])
def test_a_model_that_could_not_be_loaded_again_is_refused_where_it_is_saved(own: dspy.BaseLM, tmp_path: Path) -> None:
    method = Direct()
    method.set_lm(connect(own))
    with pytest.raises(BadArgument, match=rf"{type(own).__name__} cannot be saved with a program.*TypeError"):
        cloudpickle.dumps(method)
    with pytest.raises(Exception, match="cannot be saved with a program"):
        method.save(tmp_path / "program", save_program=True)


def test_a_model_of_ones_own_that_makes_itself_again_comes_back() -> None:
    again = travelled(connect(Voiced("a"), label="mine"))
    assert (again.inner.lm.voice, again.identity) == ("a", {"label": "mine"})


class Voiced(Own):
    """The same with a state of its own."""

    def dump_state(self) -> dict[str, Any]:
        return {"_dspy_lm_class": f"{__name__}.Voiced", "voice": self.voice}


def test_what_connect_was_told_of_a_users_model_comes_back_with_it() -> None:
    lm = connect(dspy.LM("openai/m"), cache=False, label="mine", attempts=2, timeout=3.0, requests_per_minute=60)
    again = pickle.loads(pickle.dumps(lm.copy(temperature=0.9)))
    assert (again.journal, again.identity, again.kwargs) == (None, {"label": "mine"}, {"temperature": 0.9})
    assert (again.terms.retry, again.terms.pace is None) == (lm.terms.retry, False)
    assert pickle.loads(pickle.dumps(again)).state == again.state == lm.state


PLACE = "http://127.0.0.1:9/v1"
GIVEN: dict[str, Any] = {
    "name": "served", "api_base": [PLACE, "http://127.0.0.1:10/v1"], "endpoint": "completions", "temperature": 0.5,
    "top_p": 0.25, "label": "mine", "thinking": False, "reasoning": "low", "extra_body": {"top_k": 20},
    "json_schema": True, "prices": None, "cache": False, "timeout": 7.0, "attempts": 2, "deadline": 90.0,
    "requests_per_minute": 5, "tokens_per_minute": 9000, "context": 512, "threads": 3, "defaults": {"seed": 3},
}  # fmt: skip
"""A value of each argument of `connect` that is not its default; `prices` is a file of the test's."""
STAYS = {
    "api_key": "a secret, in no file",
    "journal": "whoever loads a program keeps a journal of their own",
    "mode": "of a journal",
}
"""Arguments that do not travel, and why."""
OF_A_PROCESS = ("context", "threads")
OF_ANOTHERS_MODEL = ("label", "prices", "cache", "timeout", "attempts", "deadline", "requests_per_minute")


@pytest.fixture
def own_prices(tmp_path: Path) -> Any:
    path = tmp_path / "prices.toml"
    path.write_text('[models]\n"served" = { input = 1.0, output = 2.0 }\n"openai/m" = { input = 3.0, output = 4.0 }\n')
    return read_prices(path)


def pickled(lm: ConnectedLM) -> ConnectedLM:
    return pickle.loads(pickle.dumps(lm))  # type: ignore[no-any-return]


def copied(lm: ConnectedLM) -> ConnectedLM:
    return lm.copy(model="another").copy(model=lm.name)


@pytest.mark.parametrize("name", [name for name in inspect.signature(connect).parameters if name not in STAYS])
@pytest.mark.parametrize("again", [pickled, copied])
def test_each_setting_of_a_model_is_that_of_the_model_made_again(name: str, again: Any, own_prices: Any) -> None:
    value = own_prices if name == "prices" else GIVEN[name]
    if name in OF_A_PROCESS:  # no server takes it: its state is what makes the model again
        assert LMSettings.model_construct(name="local", decoding={}, **{name: value}).state()[name] == value
        return
    given = {"name": "served", "api_base": PLACE, **(value if name == "defaults" else {name: value})}
    lm = connect(**given)
    made = again(lm)
    assert made.settings == lm.settings
    assert (made.identity, made.kwargs, made.profile) == (lm.identity, lm.kwargs, lm.profile)
    assert (made.terms.retry, made.terms.price, made.terms.prices) == (lm.terms.retry, lm.terms.price, lm.terms.prices)
    assert (made.terms.pace is None) == (lm.terms.pace is None)


@pytest.mark.parametrize("name", OF_ANOTHERS_MODEL)
def test_each_setting_of_a_users_own_model_is_that_of_the_model_made_again(name: str, own_prices: Any) -> None:
    lm = connect(dspy.LM("openai/m"), **{name: own_prices if name == "prices" else GIVEN[name]})
    made = pickled(lm)
    assert (made.state, made.settings.prices) == (lm.state, lm.settings.prices)
    assert (made.terms.retry, made.terms.price, made.identity) == (lm.terms.retry, lm.terms.price, lm.identity)


def test_another_model_of_the_same_server_is_called_with_the_same_key_and_login() -> None:
    place = "http://me:pass-word@127.0.0.1:9/v1"
    assert connect("a", api_base=place, api_key=KEY).copy(model="b").settings.secrets() == {
        "api_key": KEY,
        "api_base": place,
    }
    with pytest.raises(NoKey):  # another provider's key is none of theirs
        connect("openai/a", api_key=KEY).copy(model="groq/b")


def test_whoever_loads_a_providers_model_has_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    written = cloudpickle.dumps(connect("openai/gpt-4o-mini", api_key=KEY))
    with pytest.raises(NoKey, match="OPENAI_API_KEY"):
        pickle.loads(written)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert pickle.loads(written).name == "gpt-4o-mini"


class Mine(Ask):
    """A predictor of a user's own, with something of its own."""

    def greeting(self) -> str:
        return f"I am {self.name}"


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, travelled], ids=["copy", "deepcopy", "pickle"])
def test_a_subclass_of_a_predictor_stays_one(again: Any) -> None:
    made = again(Mine("mine", ShortAnswer, "blendfilter/short_answer", max_tokens=9))
    assert type(made) is Mine
    assert (made.greeting(), made.config) == ("I am mine", {"max_tokens": 9})


class TestIndexes:
    def test_one_in_a_folder_is_named_not_copied(self, tmp_path: Path) -> None:
        BM25.build(list(compiled.sample_index().passages), tmp_path / "index")
        written = cloudpickle.dumps(BlendFilter(open_index(tmp_path / "index"), k=2).blending.retriever)
        assert len(written) < 1000
        assert pickle.loads(written)(QUESTION, k=2) == compiled.sample_index()(QUESTION, k=2)

    def test_another_one_in_that_folder_is_refused(self, tmp_path: Path) -> None:
        passages = list(compiled.sample_index().passages)
        written = cloudpickle.dumps(BM25.build(passages, tmp_path / "index"))
        BM25.build(passages[1:], tmp_path / "index", overwrite=True)
        with pytest.raises(BadData, match=r"is another one \(.*\) than when the program was saved"):
            pickle.loads(written)

    def test_one_that_holds_an_encoder_in_memory_says_what_to_do(self) -> None:
        index: Any = object.__new__(type("Encoding", (Stored,), {"find": None, "__len__": lambda self: 1}))
        index.path, index.encoder, index.fingerprint = None, object(), "0" * 16
        with pytest.raises(BadArgument, match=r"build it into a folder \(out='DIR'\)"):
            cloudpickle.dumps(index)


def test_templates_of_ones_own_are_named_by_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "prompts"
    folder.mkdir()
    (folder / "direct.j2").write_text("{# question, demos #}{{ question }}\nAnswer:")
    method = Direct(prompts=str(folder))
    written = cloudpickle.dumps(method)
    assert pickle.loads(written).direct.render(question="Who?") == method.direct.render(question="Who?")
    (folder / "direct.j2").unlink()
    folder.rmdir()
    with pytest.raises(MissingFile, match="no folder of prompts at"):
        pickle.loads(written)
