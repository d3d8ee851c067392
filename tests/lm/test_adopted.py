"""A user's own model, journaled and counted like ours."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy import lm15
from dspy.utils import DummyLM
from model_server import serve
from openai.types.chat import ChatCompletion
from scripted import response

from blendfilter.errors import ModelError, ReplayMiss, ServerRefused
from blendfilter.journal import Journal
from blendfilter.lm.adopted import is_asynchronous
from blendfilter.lm.connect import connect
from blendfilter.lm.model import ConnectedLM

pytestmark = pytest.mark.filterwarnings("ignore:Implementing custom LMs:DeprecationWarning")


class Shout:
    """A synchronous engine of a user's own: says the prompt in capitals."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, lm15.Config]] = []
        self.threads: set[str] = set()

    def complete(self, request: lm15.Request) -> lm15.Response:
        prompt = request.messages[-1].parts[0].text
        self.calls.append((prompt, request.config))
        self.threads.add(threading.current_thread().name)
        return response(prompt.upper(), usage=(3, 1))


class AsyncShout(Shout):
    """The same, awaited."""

    async def complete(self, request: lm15.Request) -> lm15.Response:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().complete(request)


def body(text: str) -> dict[str, Any]:
    message = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [message], "usage": usage}


class Legacy(dspy.BaseLM):  # type: ignore[misc]
    """A `BaseLM` as DSPy had them before engines: synchronous, OpenAI-shaped."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[dict[str, Any]] = []

    def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        self.seen.append({"messages": messages, **kwargs})
        return ChatCompletion.model_validate(body(f"{messages[-1]['content']}!"))


class AsyncLegacy(Legacy):
    async def aforward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        return self.forward(prompt, messages, **kwargs)


def test_a_synchronous_engine_is_called_in_a_worker_thread_and_journaled(tmp_path: Path) -> None:
    engine = Shout()
    own = dspy.LM("own/shout", engine=engine, temperature=0.4, cache=True)
    with Journal(tmp_path) as journal:
        lm = connect(own, journal=journal, label="mine")
        assert isinstance(lm, ConnectedLM)
        assert (lm.name, lm.kwargs) == ("own/shout", {"temperature": 0.4})
        assert [lm("hello"), lm("hello")] == [["HELLO"], ["HELLO"]]
        (record,) = journal.records()
    assert (record["model"], record["label"], record["prompt"], record["reply"]) == (
        "own/shout", "mine", "hello", "HELLO",
    )  # fmt: skip
    assert (record["tokens_in"], record["tokens_out"]) == (3, 1)
    assert [(prompt, config.temperature) for prompt, config in engine.calls] == [("hello", 0.4)]
    assert all(name.startswith("blendfilter-worker") for name in engine.threads)
    with Journal(tmp_path, "replay") as journal:
        lm = connect(own, journal=journal, label="mine")
        assert lm("hello") == ["HELLO"]
        with pytest.raises(ReplayMiss):
            lm("hello there")
    assert len(engine.calls) == 1


def test_an_asynchronous_engine_is_awaited_on_the_loop() -> None:
    engine = AsyncShout()
    lm = connect(dspy.LM("own/shout", engine=Shout(), async_engine=engine))
    assert lm("hello") == ["HELLO"]
    assert asyncio.run(lm.acall("there")) == ["THERE"]
    assert [prompt for prompt, _ in engine.calls] == ["hello", "there"]
    assert engine.threads == {"blendfilter-loop", threading.main_thread().name}


def test_slow_synchronous_models_run_side_by_side() -> None:
    together = threading.Barrier(4, timeout=10)

    class Slow(Shout):
        def complete(self, request: lm15.Request) -> lm15.Response:
            together.wait()  # passes only where four calls are inside at once
            return super().complete(request)

    lm = connect(dspy.LM("own/slow", engine=Slow()))
    replies = asyncio.run(_all(lm, ["a", "b", "c", "d"]))
    assert replies == [["A"], ["B"], ["C"], ["D"]]


async def _all(lm: Any, prompts: list[str]) -> list[Any]:
    return await asyncio.gather(*(lm.acall(prompt) for prompt in prompts))


@pytest.mark.parametrize("kind", [Legacy, AsyncLegacy])
def test_a_base_lm_from_before_engines_works(tmp_path: Path, kind: type[Legacy]) -> None:
    own = kind("old/model", temperature=0.2)
    with Journal(tmp_path) as journal:
        lm = connect(own, journal=journal)
        assert [lm("hello"), lm("hello")] == [["hello!"], ["hello!"]]
        assert lm("hello", temperature=0.9) == ["hello!"]
        assert [record["parameters"] for record in journal.records()] == [{"temperature": 0.2}, {"temperature": 0.9}]
    inner = lm.inner.lm  # type: ignore[attr-defined]
    assert [(seen["messages"][-1]["content"], seen["temperature"]) for seen in inner.seen] == [
        ("hello", 0.2), ("hello", 0.9),
    ]  # fmt: skip


def test_dspys_own_dummy_answers_predictors(tmp_path: Path) -> None:
    predict = dspy.Predict("question -> answer")
    with Journal(tmp_path) as journal:
        lm = connect(DummyLM([{"answer": "red"}, {"answer": "blue"}]), journal=journal)
        with dspy.context(lm=lm):
            assert [predict(question=question).answer for question in ("a", "b", "a")] == ["red", "blue", "red"]
        assert [record["stage"] for record in journal.records()] == ["predict", "predict"]


def test_three_samples_of_an_adopted_model_are_three_records(tmp_path: Path) -> None:
    engine = Shout()
    with Journal(tmp_path) as journal:
        lm = connect(dspy.LM("own/shout", engine=engine, temperature=1.0), journal=journal)
        assert lm("hello", n=3) == ["HELLO"] * 3
        # They come from worker threads, in any order.
        assert sorted(record["sample"][1] for record in journal.records()) == [0, 1, 2]
    assert len(engine.calls) == 3


def test_a_dspy_lm_reaches_its_own_server_with_its_own_settings_and_no_secret_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = "sk-verysecret0123456789"
    with serve(keep=True) as server, Journal(tmp_path) as journal:
        own = dspy.LM("openai/test-model", api_base=server.url, api_key=key, temperature=0.3, presence_penalty=0.5,
                      max_tokens=3, num_retries=0, cache=False, aws_secret_access_key="aws-verysecret")  # fmt: skip
        with caplog.at_level(logging.WARNING, "blendfilter"):
            lm = connect(own, journal=journal)
        assert lm("hello") == ["So the answer"]
        (sent,) = server.stats()["bodies"]
        assert (sent["model"], sent["temperature"], sent["presence_penalty"]) == ("test-model", 0.3, 0.5)
        assert 3 in (sent.get("max_tokens"), sent.get("max_completion_tokens"))
        (record,) = journal.records()
        assert record["parameters"] == {"temperature": 0.3, "max_tokens": 3, "presence_penalty": 0.5}
    assert "openai/test-model that are not passed on: aws_secret_access_key" in caplog.text
    for text in ((tmp_path / "journal.jsonl").read_text(), caplog.text, str(lm.__dict__), str(lm.history)):
        assert "verysecret" not in text


@pytest.mark.parametrize(
    ("behave", "error", "kind"),
    [("unauthorized", ServerRefused, ""), ("context", ModelError, "context_too_long"), ("no-model", ServerRefused, "")],
)
def test_the_faults_of_a_dspy_lm_are_told_like_ours(behave: str, error: type[Exception], kind: str) -> None:
    with serve(behave=behave) as server:
        lm = connect(dspy.LM("openai/test-model", api_base=server.url, api_key="sk-verysecret0123", num_retries=0))
        with pytest.raises(error) as told:
            lm("hello CONTEXT-TOO-LONG")
    assert getattr(told.value, "kind", "") == kind
    assert "verysecret" not in str(told.value)


def test_an_error_inside_a_users_model_is_that_calls_error(tmp_path: Path) -> None:
    class Broken(Legacy):
        def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
            raise RuntimeError("out of memory")

    with Journal(tmp_path) as journal:
        lm = connect(Broken("own/broken"), journal=journal)
        with pytest.raises(ModelError, match="out of memory"):
            lm("hello")
        assert [record["error"]["kind"] for record in journal.records()] == ["unexpected"]


def test_a_users_model_is_saved_as_itself() -> None:
    own = dspy.LM("openai/test-model", api_key="sk-verysecret0123", temperature=0.3)
    state = connect(own).dump_state()
    again = dspy.BaseLM.load_state(state)
    assert (type(again), again.model, again.kwargs["temperature"]) == (dspy.LM, "openai/test-model", 0.3)
    assert "verysecret" not in str(state)


def test_which_models_can_be_awaited() -> None:
    assert not is_asynchronous(Legacy("old/model"))
    assert is_asynchronous(AsyncLegacy("old/model"))
    assert not is_asynchronous(dspy.LM("own/shout", engine=Shout()))
    assert is_asynchronous(dspy.LM("own/shout", engine=Shout(), async_engine=AsyncShout()))
    assert is_asynchronous(dspy.LM("openai/gpt-4o-mini"))
    assert is_asynchronous(DummyLM([]))
    assert is_asynchronous(connect("offline"))


ABILITIES = ("supports_function_calling", "supports_response_schema", "supports_reasoning", "supported_params")


@pytest.mark.parametrize("name", ["openai/gpt-4o", "openai/o3-mini", "own/unknown"])
def test_what_a_users_model_can_do_is_still_known(name: str) -> None:
    own = dspy.LM(name, api_key="sk-verysecret0123")
    lm = connect(own)
    assert [getattr(lm, each) for each in ABILITIES] == [getattr(own, each) for each in ABILITIES]
    assert [getattr(lm.copy(temperature=0.9), each) for each in ABILITIES] == [getattr(own, each) for each in ABILITIES]
    if name == "openai/gpt-4o":
        assert lm.supports_function_calling is True


def test_of_our_own_models_nothing_is_claimed() -> None:
    assert [getattr(connect("offline"), each) for each in ABILITIES] == [False, False, False, set()]
