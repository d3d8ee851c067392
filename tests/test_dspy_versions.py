"""DSPy 3.4 and 3.5 by one source: the same calls under either, by the same keys, and the same answers.

All of this runs under the version at hand, and once more in a process under 3.5's contract (`dspy35`), which also
replays what was recorded here.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import dspy
import pytest
from compiled import PROPOSED, compile_small, sample_index, written
from dspy import lm15
from dspy.streaming import StreamListener, StreamResponse
from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import AdapterParseError
from model_server import serve
from scripted import ScriptedLM, response
from small_world import journaled
from streaming_server import streaming

from blendfilter import BlendFilter, Direct, SelfConsistency, connect, evaluate, load
from blendfilter.filters.registry import make_filter
from blendfilter.journal import Journal, Mode
from blendfilter.modules.methods import METHODS, make_method

QUESTION = "Who founded the school in whose staircase the works of Bram Skarl's daughter hang?"
NEXT = hasattr(dspy.BaseLM, "agenerate")
RECORDED = "BLENDFILTER_RECORDED"
"""The variable that names a folder with what a process under the other version recorded."""
WARM: dict[str, Any] = {"temperature": 0.9}


class Judgement(dspy.Signature):
    """Judge."""

    context: list[str] = dspy.InputField()
    question: str = dspy.InputField()
    answer: str = dspy.OutputField()
    sure: bool = dspy.OutputField()


def everything(folder: Path, mode: Mode, url: str = "http://127.0.0.1:9/v1") -> dict[str, Any]:
    """What is answered to one question of everything that calls a model, and the calls' keys."""
    given = {"context": ["Gravenloe Mining School | It was founded by Ada Tolk."], "question": QUESTION}
    said: dict[str, Any] = {}
    with Journal(folder, mode) as journal:
        lm = connect("served", api_base=url, journal=journal, json_schema=True, max_tokens=200)
        with dspy.context(lm=lm):
            for name in METHODS:
                said[name] = make_method(name, sample_index(), k=2)(question=QUESTION).answer
            for name in ("knowledge", "one-call", "pointwise", "filco", "filco-passage", "summary", "cdit"):
                method = Direct(sample_index(), 3, filter=make_filter(name))
                said[f"filter {name}"] = method(question=QUESTION).answer
        for adapter in (dspy.ChatAdapter(), dspy.XMLAdapter()):
            with dspy.context(lm=lm, adapter=adapter):
                own, kind = dspy.Predict(Judgement), type(adapter).__name__
                said[f"{kind} three"] = own(**given, config={"n": 3, **WARM}).completions.answer
                said[f"{kind} of the model"] = own(**given, lm=lm.copy(n=2, **WARM)).completions.answer
                said[f"{kind} again"] = own(**given, config={"rollout_id": 7, **WARM}).answer
                said[f"{kind} settings"] = own(
                    **given, config={"reasoning_effort": "low", "stop": ["\n\n\n"], "seed": 3, "top_p": 0.5}
                ).answer
                said[f"{kind} awaited"] = asyncio.run(own.acall(**given)).answer
        said["text"] = [lm("Question: Who?\nAnswer:"), asyncio.run(lm.acall("Question: Where?\nAnswer:", n=2, **WARM))]
        asked = lm15.Request(model=lm.model, system="Be brief.", messages=(lm15.Message.user("Question: When?"),))
        said["request"] = lm(asked).text
    served = connect("served", api_base=url, json_schema=True)
    method, questions = BlendFilter(sample_index(), k=2), load("hotpotqa", "sample", limit=2)
    run = evaluate(method, questions, lm=served, run=folder / "run", replay=mode == "replay", progress=False)
    said["run"] = run.rows
    with Journal(folder, "replay") as journal:
        said["keys"] = sorted(record["key"] for record in journal.records())
    return said


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a journal, and what was answered; the server is asked each call once."""
    folder = tmp_path_factory.mktemp("recorded")
    with serve(reply="offline", behave="schema") as server:
        said = everything(folder, "record", server.url)
        assert server.stats()["requests"] == len(said["keys"]) + len(journaled(folder / "run"))
    return folder, said


def test_each_method_answers_and_what_it_asked_is_replayed(recorded: tuple[Path, dict[str, Any]]) -> None:
    folder, said = recorded
    assert all(said.values())
    assert [len(said[f"{kind} three"]) for kind in ("ChatAdapter", "XMLAdapter")] == [3, 3]
    assert [len(said[f"{kind} of the model"]) for kind in ("ChatAdapter", "XMLAdapter")] == [2, 2]
    assert everything(folder, "replay") == said


@pytest.mark.skipif(RECORDED not in os.environ, reason="the test below starts it, with what it recorded")
def test_what_the_other_version_recorded_is_replayed() -> None:
    folder = Path(os.environ[RECORDED])
    assert everything(folder, "replay") == json.loads((folder / "said.json").read_text())


@pytest.mark.skipif(NEXT, reason="this is 3.5")
@pytest.mark.timeout(300)
def test_all_of_this_holds_under_35(recorded: tuple[Path, dict[str, Any]]) -> None:
    folder, said = recorded
    (folder / "said.json").write_text(json.dumps(said))
    under = {**os.environ, "BLENDFILTER_DSPY": "3.5", RECORDED: str(folder)}
    tests = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-k", "not litellm", __file__]
    done = subprocess.run(tests, env=under, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4_000:]
    skipped = [line for line in re.findall("SKIPPED.*", done.stdout) if "optuna" not in line]
    assert len(skipped) == 1, "this test alone"


@pytest.mark.parametrize("awaited", [True, False])
def test_ten_samples_are_ten_calls(awaited: bool) -> None:
    """Were they not asked for one by one, they would all be the first: nothing but the bill would show it."""
    with serve(reply="offline", keep=True) as server, dspy.context(lm=connect("served", api_base=server.url)):
        method = SelfConsistency(sample_index(), samples=10)
        prediction = asyncio.run(method.acall(question=QUESTION)) if awaited else method(question=QUESTION)
        sent = Counter(server.stats()["prompts"])
    assert len(prediction.calls) == 11
    assert sorted(sent.values()) == [1, 10]


@pytest.mark.skipif(not NEXT, reason="of 3.5")
def test_the_contract_of_35_is_there() -> None:
    """What `dspy35` puts over 3.4, and 3.5 has of itself."""
    with serve() as server:
        for lm in (
            connect("served", api_base=server.url, cache=False),
            dspy.LM("own/shout", engine=Shouting(), cache=False),
        ):
            asked = lm15.Request(model=lm.model, messages=(lm15.Message.user("hello"),))
            three = lm.generate(asked, n=3)
            assert [type(each) for each in (lm(asked), *three)] == [lm15.Response] * 4
            with pytest.raises(TypeError, match=r"3\.5"):
                lm(messages=[{"role": "user", "content": "hello"}])
            with pytest.raises(TypeError, match=r"Request\.config"):
                lm(asked, temperature=0.5)
    prompt = dspy.ChatAdapter().format(Judgement, [], {"context": [], "question": QUESTION})
    assert isinstance(prompt, dspy.adapters.Prompt)
    assert ([turn.role for turn in prompt.messages], "Judge." in prompt.system) == (["user"], True)
    assert not hasattr(dspy.LM, "forward")
    with serve(keep=True) as server, dspy.context(lm=connect("served", api_base=server.url)):
        with pytest.raises(AdapterParseError, match=r"XMLAdapter|JSONAdapter"):
            dspy.Predict(Judgement)(context=[], question=QUESTION)
        assert "<answer>" in server.stats()["prompts"][0]


# --- history, copies, streams, optimisers, a user's own models ---


def test_each_call_stands_in_history_with_its_price_and_is_counted(tmp_path: Path) -> None:
    class Heard(BaseCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.events: list[str] = []

        def on_lm_start(self, call_id: str, instance: Any, inputs: Any) -> None:
            self.events.append("start")

        def on_lm_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
            self.events.append("end")

    prices = tmp_path / "prices.toml"
    prices.write_text("[models]\nserved = { input = 1000000, output = 0 }\n", encoding="utf-8")
    heard, direct = Heard(), Direct()
    with serve() as server, dspy.track_usage() as tracker:
        lm = connect("served", api_base=server.url, prices=prices)
        with dspy.context(lm=lm, callbacks=[heard]):
            for _ in range(2):  # the second time out of the user's cache
                direct(question=QUESTION)
    first, again = lm.history
    assert (first["messages"][0]["role"], first["outputs"]) == ("user", ["So the answer is 42."])
    assert QUESTION in first["messages"][0]["content"]
    assert (first["cost"], again["cost"], again["cache_hit"]) == (first["usage"]["prompt_tokens"], 0.0, True)
    assert [len(predictor.history) for predictor in direct.predictors()] == [2]
    assert tracker.get_total_tokens()[lm.model]["prompt_tokens"] == first["usage"]["prompt_tokens"]
    assert heard.events == ["start", "end"] * 2


def test_a_pickle_and_a_copy_ask_for_samples_as_the_model_does() -> None:
    with serve(keep=True) as server:
        lm = connect("served", api_base=server.url, cache=False, temperature=0.5)
        for each in (lm, lm.copy(), pickle.loads(pickle.dumps(lm))):
            assert each("hello", n=3) == ["So the answer is 42."] * 3
        assert server.stats()["requests"] == 9


def test_a_field_streams_while_its_server_writes_it() -> None:
    async def follow() -> list[Any]:
        program = dspy.streamify(Direct(), stream_listeners=[StreamListener("answer")])
        return [each async for each in program(question=QUESTION)]

    with streaming(lambda _: ["Ada", " Tolk"]) as server, dspy.context(lm=connect("m", api_base=server.url)):
        *pieces, last = asyncio.run(follow())
        assert server.bodies[0]["stream"]
    assert [piece.chunk for piece in pieces if isinstance(piece, StreamResponse)][:1] == ["Ada"]
    assert last.answer == "Ada Tolk"


@pytest.mark.parametrize("optimizer", ["bootstrap", "mipro", "gepa"])
def test_dspys_optimisers_compile(optimizer: str, tmp_path: Path) -> None:
    if optimizer == "mipro":
        pytest.importorskip("optuna")
    lm = ScriptedLM(written)
    done = compile_small("filco", optimizer, lm, tmp_path)
    if optimizer == "bootstrap":
        assert any(predictor.demos for predictor in done.program.predictors())
    else:
        assert any(PROPOSED in prompt for _, prompt in lm.prompts)


class Shouting:
    """An engine of a user's own: says the prompt in capitals, with thoughts beside."""

    def __init__(self) -> None:
        self.asked = 0

    def complete(self, request: lm15.Request) -> lm15.Response:
        self.asked += 1
        return response(request.messages[-1].text.upper(), reasoning="Loudly?", usage=(3, 1))


class ShoutingLater(Shouting):
    async def complete(self, request: lm15.Request) -> lm15.Response:  # type: ignore[override]
        return super().complete(request)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("kind", [dspy.LM, *([dspy.BaseLM] if NEXT else [])])
def test_a_model_of_the_users_own_is_journaled_under_its_history(kind: Any, waits: bool, tmp_path: Path) -> None:
    engine = ShoutingLater() if waits else Shouting()
    own = kind("own/shout", engine=Shouting() if waits else engine, async_engine=engine if waits else None)
    with Journal(tmp_path) as journal:
        lm = connect(own, journal=journal)
        assert [lm("hello", n=2, **WARM), lm("hello", n=2, **WARM)] == [
            [{"text": "HELLO", "reasoning_content": "Loudly?"}] * 2
        ] * 2
        with dspy.context(lm=lm):
            assert Direct()(question="who?").answer.startswith("ANSWER")
        assert [record["reasoning"] for record in journal.records()] == ["Loudly?"] * 3
    assert (engine.asked, len(lm.history), len(own.history)) == (3, 5, 0)


def test_a_model_that_dspys_client_calls_is_adopted() -> None:
    with serve(keep=True) as server:
        own = dspy.LM("openai/served", api_base=server.url, api_key="k", temperature=0.9, cache=True)
        with dspy.context(lm=connect(own, cache=False)):
            ten = SelfConsistency(sample_index(), samples=10)(question=QUESTION)
        assert (len(ten.calls), server.stats()["requests"]) == (11, 11)


WITHOUT_LITELLM = """
import importlib.machinery, os, sys
found = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = classmethod(
    lambda cls, name, *rest: None if name.partition(".")[0] == "litellm" else found(name, *rest)
)
if os.environ.get("BLENDFILTER_DSPY") == "3.5":
    import dspy35
    dspy35.install()
import dspy
from blendfilter import connect
place = {"api_base": sys.argv[1], "api_key": "k"}
for make in (
    lambda: connect("m", **place, cache=False),
    lambda: connect(dspy.LM("openai/m", **place), cache=False),
    lambda: connect(dspy.LM("openai/m", engine="litellm", **place), cache=False),
    lambda: connect("bedrock/claude"),
):
    try:
        print(make()("hello"))
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_without_litellm_only_what_it_speaks_to_is_missing_and_says_what_to_install() -> None:
    """It is an extra of 3.5."""
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    with serve() as server:
        code = [sys.executable, "-W", "ignore", "-c", WITHOUT_LITELLM, server.url]
        done = subprocess.run(code, env=paths, capture_output=True, text=True, check=False)
    ours, native, through, unknown = done.stdout.splitlines()
    assert ours == native == "['So the answer is 42.']"
    missing = r"MissingExtra openai/m cannot be called: litellm is required.*pip install dspy\[litellm\]"
    assert re.match(missing, through)
    assert re.match(r"UnknownName no provider 'bedrock'.*and others once litellm is there: pip install 'dspy", unknown)
    assert "bedrock, " not in unknown
