"""The `dspy.LM` that `connect()` returns, as DSPy and people use it."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import warnings
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy import lm15
from dspy.utils.callback import BaseCallback
from scripted import ScriptedLM, scripted
from small_world import comes_of_itself

from blendfilter.context import NOTES, SAMPLE, STAGE, setting
from blendfilter.errors import ModelError, ReplayMiss, ServerRefused, UseAcall
from blendfilter.journal import Journal
from blendfilter.lm import bridge
from blendfilter.lm.connect import connect
from blendfilter.lm.gate import Gate
from blendfilter.lm.journaled import prompt_of
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.terms import Traffic

ANSWER = "[[ ## answer ## ]]\nfour\n[[ ## completed ## ]]"


# ---- calling it


@pytest.mark.filterwarnings("ignore:Passing OpenAI-style message:DeprecationWarning")
def test_it_is_called_with_a_text_messages_or_a_request_awaited_or_not() -> None:
    with scripted(["a", "b", "c", "d"]) as lm:
        assert lm("hello") == ["a"]
        assert lm(messages=[{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]) == ["b"]
        asked = lm15.Request(model=lm.model, messages=(lm15.Message.user("typed"),))
        assert [part.text for part in lm(request=asked).message.parts] == ["c"]
        assert asyncio.run(lm.acall("awaited")) == ["d"]
        assert [prompt for _, prompt in lm.prompts] == ["hello", "s\n\nu", "typed", "awaited"]
        assert prompt_of(lm.inner.requests[1]) == [["system", "s"], ["user", "u"]]


def test_history_is_kept_as_dspy_keeps_it() -> None:
    with scripted(["a"]) as lm:
        lm("hello")
    assert (lm.history[-1]["prompt"], lm.history[-1]["outputs"]) == ("hello", ["a"])


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(lm15.ContextLengthError("too long", status=400), "context_too_long"), (lm15.TimeoutError("late"), "timeout")],
)
def test_a_call_that_fails_raises_our_error_with_its_stage(fault: Exception, kind: str) -> None:
    with scripted([fault, fault]) as lm, setting(STAGE, "ids"):
        with pytest.raises(ModelError) as waited:
            lm("hello")
        with pytest.raises(ModelError) as awaited:
            asyncio.run(lm.acall("hello"))
    for error in (waited.value, awaited.value):
        assert (error.kind, error.stage) == (kind, "ids")
        assert not comes_of_itself(error)


def test_a_refusal_is_our_error_through_a_predictor_too() -> None:
    predict = dspy.Predict("question -> answer")
    with scripted([lm15.AuthError("bad key", status=401)]) as lm, dspy.context(lm=lm):
        with pytest.raises(ServerRefused, match="refuses the key"):
            predict(question="?")
        assert lm.calls == 1


def test_a_failed_call_is_not_tried_again_by_dspy() -> None:
    with scripted([lm15.ServerError("busy", status=503)]) as lm:
        with pytest.raises(ModelError):
            lm("hello")
        assert lm.calls == 1


def test_no_cache_of_dspys_stands_before_the_journal() -> None:
    with scripted(["one", "two"]) as lm:
        assert [lm("hello"), lm("hello")] == [["one"], ["two"]]


def test_the_synchronous_call_on_the_loop_thread_says_what_to_write() -> None:
    lm = connect("offline")

    async def inside() -> Any:
        return lm("hello")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(UseAcall, match=r"lm was called synchronously .* write `await lm\.acall\(…\)` there"):
            bridge.run(inside())
        gc.collect()
    assert not [each for each in caught if "never awaited" in str(each.message)]


# ---- samples


def test_n_replies_are_n_calls_with_their_sample(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal, scripted(["a", "b", "c"], journal=journal) as lm:
        assert lm("hello", n=2, temperature=1.0) == ["a", "b"]
        assert lm("hello", rollout_id=4, temperature=1.0) == ["c"]
        assert lm("hello", temperature=1.0) == ["a"]  # the first of n is what one call gives
        assert [record["sample"] for record in journal.records()] == [[None, 0], [None, 1], [4, 0]]


def test_where_one_sample_fails_the_others_are_waited_for_and_noted(tmp_path: Path) -> None:
    failing = lm15.ContextLengthError("too long", status=400)
    with Journal(tmp_path) as journal, scripted([failing, "b", "c"], journal=journal) as lm:
        quick = lm.inner.complete

        async def slower_later(request: Any) -> Any:
            await asyncio.sleep(0.03 * SAMPLE.get().i)
            return await quick(request)

        lm.inner.complete = slower_later  # type: ignore[method-assign]
        with setting(NOTES, []) as notes, pytest.raises(ModelError, match="too long"):
            lm("hello", n=3, temperature=1.0)
        assert len(list(journal.records())) == 3
        assert [note.event for note in notes].count("error") <= 1
        assert len([note for note in notes if note.event != "error"]) == 2


def test_samples_are_noted_in_their_order_not_in_that_of_arrival(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal, scripted(["c", "b", "a"], journal=journal) as lm:
        quick = lm.inner.complete

        async def slower_first(request: Any) -> Any:
            await asyncio.sleep(0.03 * (2 - SAMPLE.get().i))
            return await quick(request)

        lm.inner.complete = slower_first  # type: ignore[method-assign]
        with setting(NOTES, []) as notes:
            assert lm("hello", num_generations=3, temperature=1.0) == ["a", "b", "c"]
        arrived = {record["key"]: record["sample"][1] for record in journal.records()}
    assert list(arrived.values()) == [2, 1, 0]
    assert [arrived[note.key] for note in notes] == [0, 1, 2]


def test_a_copy_with_a_rollout_asks_anew_and_shares_journal_and_engine(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal, scripted(["a", "b"], journal=journal) as lm:
        other = lm.copy(rollout_id=1, temperature=1.0)
        assert (lm("hello"), other("hello"), other("hello"), lm("hello")) == (["a"], ["b"], ["b"], ["a"])
        assert [record["sample"] for record in journal.records()] == [[None, 0], [1, 0]]
        assert lm.kwargs == {"temperature": 0.0}


def test_two_stages_that_send_one_prompt_share_its_call_and_each_note_it(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal, scripted(["a"], journal=journal) as lm, setting(NOTES, []) as notes:
        for stage in ("check", "ids"):
            with setting(STAGE, stage):
                lm("hello")
        assert [note.stage for note in notes] == ["check", "ids"]
        assert [record["stage"] for record in journal.records()] == ["check"]


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


def test_a_predictor_of_a_users_own_module_is_named_by_its_attribute() -> None:
    with scripted(own_replies) as lm, dspy.context(lm=lm):
        Own()(question="?")
    assert [stage for stage, _ in lm.prompts] == ["draft", "self_check", "steps[0]"]


def test_predictors_outside_a_module_are_named_by_their_kind() -> None:
    with scripted(lambda _, __: "[[ ## reasoning ## ]]\nx\n" + ANSWER) as lm, dspy.context(lm=lm):
        dspy.Predict("question -> answer")(question="?")
        dspy.ChainOfThought("question -> answer")(question="?")
        lm("plain")
    assert [stage for stage, _ in lm.prompts] == ["predict", "predict", ""]


def test_a_modules_batch_and_parallel_keep_each_call_under_its_stage() -> None:
    with scripted(own_replies) as lm, dspy.context(lm=lm):
        Own().batch([dspy.Example(question=str(i)).with_inputs("question") for i in range(4)], num_threads=4)
    assert sorted(stage for stage, _ in lm.prompts) == ["draft"] * 4 + ["self_check"] * 4 + ["steps[0]"] * 4


# ---- callbacks, copies, state


class Watch(BaseCallback):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self.seen.append("start")

    def on_lm_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        self.seen.append("end" if exception is None else type(exception).__name__)


def test_dspy_callbacks_of_the_settings_and_of_the_model_are_called(tmp_path: Path) -> None:
    settings, models = Watch(), Watch()
    with scripted(["a", "b"], callbacks=[models]) as lm, dspy.context(callbacks=[settings]):
        lm("hello")
        with Journal(tmp_path) as journal:
            lm.with_journal(journal)("hello")
    assert settings.seen == models.seen == ["start", "end"] * 2


def test_a_deep_copy_shares_engine_and_journal_but_not_settings_or_history(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal, scripted(["a"], journal=journal) as lm:
        lm("hello")
        other = copy.deepcopy(lm)
        other.kwargs["temperature"] = 1.0
        assert other.inner is lm.inner
        assert (other.history, len(lm.history), lm.kwargs) == ([], 1, {"temperature": 0.0})
        module = dspy.Predict("question -> answer")
        module.set_lm(lm)
        assert module.deepcopy().lm.inner is lm.inner


def test_with_journal_keeps_settings_and_counts_by_the_gate(tmp_path: Path) -> None:
    lm = connect("offline", label="b", max_tokens=9)
    gate = Gate(1)
    with Journal(tmp_path) as journal:
        other = lm.with_journal(journal, Traffic(gate=gate))
        assert (other.kwargs, other.identity, other.name) == (lm.kwargs, {"label": "b"}, "offline")

        async def main() -> None:
            async with gate:
                call = asyncio.create_task(other.acall("hello"))
                await asyncio.sleep(0.05)
                assert not call.done()
            await call

        asyncio.run(main())
        assert len(journal) == 1


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


def test_state_is_that_of_a_changed_copy() -> None:
    state = connect("offline").copy(temperature=1.0, max_tokens=7).dump_state()
    assert ConnectedLM.load_state(state).kwargs == {"temperature": 1.0, "max_tokens": 7}


def test_a_program_with_its_model_saves_and_loads(tmp_path: Path) -> None:
    program = dspy.Predict("question -> answer")
    program.set_lm(connect("offline", label="b"))
    program.save(tmp_path / "program.json")
    again = dspy.Predict("question -> answer")
    again.load(tmp_path / "program.json", allow_unsafe_lm_state=True)
    assert again.lm.identity == {"label": "b"}
    assert again.lm("Question: Where is Orm Pier?\nTopic:") == ["Orm Pier"]


# ---- the fake itself


def test_a_script_raises_at_its_end_and_says_what_was_left() -> None:
    lm = ScriptedLM({"ids": ["1"], "check": ["x"]})
    with setting(STAGE, "ids"):
        assert lm("a") == ["1"]
        with pytest.raises(dspy.utils.exceptions.LMError, match=r"no answer is written for call 2 \(stage 'ids'"):
            lm("b")
    with pytest.raises(AssertionError, match=r"answers were missing for stages \['ids'\]"):
        lm.check()
    with pytest.raises(AssertionError, match=r"never asked for: \{'check': 1\}"), scripted({"check": ["x"]}):
        pass
    assert (lm.calls, lm.asked("ids")) == (2, ["a", "b"])


def test_a_replay_miss_comes_through_the_model(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    with Journal(tmp_path, "replay") as journal, scripted([], journal=journal) as lm, dspy.context(lm=lm):
        predict = dspy.Predict("question -> answer")
        with pytest.raises(ReplayMiss, match="stage 'predict' asks for call"):
            predict(question="?")
