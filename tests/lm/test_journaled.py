"""Model calls through the journal: what is served, what a key holds, what failures leave behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy
import pytest
from calls import Live, ask, journaled, request
from dspy import lm15
from scripted import ScriptedEngine, response, scripted

from blendfilter.context import NOTES, ORDER, QUESTION, SAMPLE, STAGE, CallNote, Sample, setting
from blendfilter.errors import ModelError, ReplayMiss, ServerRefused
from blendfilter.journal import Journal
from blendfilter.lm.connect import connect
from blendfilter.lm.journaled import prompt_of

# ---- hits and misses


def test_a_miss_is_called_and_on_file_before_it_is_used_and_a_hit_is_not_called(tmp_path: Path) -> None:
    live = Live()
    with Journal(tmp_path) as journal:
        engine = journaled(live, journal)
        assert ask(engine) == "reply 1"
        assert (tmp_path / "journal.jsonl").read_bytes().count(b"\n") == 1
        assert ask(engine) == "reply 1"
    with Journal(tmp_path) as journal:
        assert ask(journaled(live, journal)) == "reply 1"
    with Journal(tmp_path, "replay") as journal:
        assert ask(journaled(live, journal)) == "reply 1"
    assert live.calls == 1


def test_record_calls_again_and_the_newer_reply_replaces(tmp_path: Path) -> None:
    live = Live()
    for _ in range(2):
        with Journal(tmp_path, "record") as journal:
            ask(journaled(live, journal))
    with Journal(tmp_path, "replay") as journal:
        assert ask(journaled(live, journal)) == "reply 2"
    assert live.calls == 2


def test_without_a_journal_every_call_is_made_and_noted() -> None:
    engine = journaled(Live())
    with setting(NOTES, []) as notes, setting(STAGE, "ids"):
        assert [ask(engine), ask(engine)] == ["reply 1", "reply 2"]
    assert [note.stage for note in notes] == ["ids", "ids"]
    assert notes[0].key == notes[1].key


def test_a_reused_run_is_copied_in_call_by_call(tmp_path: Path) -> None:
    live = Live()
    with Journal(tmp_path / "old") as journal:
        ask(journaled(live, journal), request("one"))
        ask(journaled(live, journal), request("two"))
    with Journal(tmp_path / "new", reuse=[tmp_path / "old"]) as journal:
        engine = journaled(live, journal)
        assert [ask(engine, request("one")), ask(engine, request("three"))] == ["reply 1", "reply 3"]
    with Journal(tmp_path / "new", "replay") as alone:
        assert [record["prompt"] for record in alone.records()] == ["one", "three"]


# ---- the key


def key_of(asked: lm15.Request, sample: Sample = Sample(), **options: Any) -> str:
    with setting(NOTES, []) as notes, setting(SAMPLE, sample):
        ask(journaled(Live(), **options), asked)
    return str(notes[0].key)


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        (request(), {"model": "m2"}),
        (request(), {"label": "the other server"}),
        (request(), {"endpoint": "completions"}),
        (request(), {"options": {"thinking": False}}),
        (request(), {"options": {"extra_body": {"top_k": 20}}}),
        (request(), {"sample": Sample(None, 1)}),
        (request(), {"sample": Sample(1, 0)}),
        (request("Question: q \nAnswer:"), {}),
        (request(system="Be brief."), {}),
        (request(temperature=0.7), {}),
        (request(temperature=None), {}),
        (request(top_p=0.9), {}),
        (request(max_tokens=33), {}),
        (request(stop=("\n",)), {}),
        (request(seed=1), {}),
        (request(logprobs=0), {}),
        (request(response_format={"type": "json_object"}), {}),
        (request(extensions={"top_k": 5}), {}),
        (request(reasoning=lm15.Reasoning(effort="low")), {}),
    ],
    ids=lambda value: str(value)[-60:],
)  # fmt: skip
def test_whatever_may_change_a_reply_changes_the_key(asked: lm15.Request, options: dict[str, Any]) -> None:
    assert key_of(asked, **options) != key_of(request())


def test_where_it_is_called_and_who_asks_do_not_change_the_key() -> None:
    plain = key_of(request())
    assert key_of(request(), address="http://127.0.0.1:9/v1") == plain
    assert key_of(request(), options={"thinking": None}) == plain
    assert key_of(replace(request(), model="blendfilter/m")) == plain
    with setting(STAGE, "ids"), setting(QUESTION, "q7"), setting(ORDER, 3):
        assert key_of(request()) == plain


def test_stop_strings_given_in_another_order_are_another_request() -> None:
    assert key_of(request(stop=("a", "b"))) != key_of(request(stop=("b", "a")))


def test_a_single_user_message_is_its_text_and_a_conversation_its_roles() -> None:
    assert prompt_of(request("the prompt")) == "the prompt"
    assert prompt_of(request("hi", system="Be brief.")) == [["system", "Be brief."], ["user", "hi"]]
    turns = (lm15.Message.user("a"), lm15.Message.assistant("b"), lm15.Message.user("c"))
    assert prompt_of(replace(request(), messages=turns)) == [["user", "a"], ["assistant", "b"], ["user", "c"]]


# ---- samples


def test_three_samples_are_three_records_and_replay_in_order_whatever_arrived_first(tmp_path: Path) -> None:
    arrived = []

    async def slow_first(_: lm15.Request, __: int) -> lm15.Response:
        i = SAMPLE.get().i
        await asyncio.sleep(0.06 - 0.03 * i)
        arrived.append(i)
        return response(f"sample {i}")

    live = connect("offline").with_journal(None)
    live.inner = Live(slow_first)
    with Journal(tmp_path) as journal:
        replies = live.with_journal(journal)("prompt", n=3, temperature=1.0, rollout_id=5)
        assert replies == ["sample 0", "sample 1", "sample 2"]
        assert arrived == [2, 1, 0]
        assert [record["sample"] for record in journal.records()] == [[5, 2], [5, 1], [5, 0]]
        assert len(journal) == 3
    with Journal(tmp_path, "replay") as journal:
        assert live.with_journal(journal)("prompt", n=3, temperature=1.0, rollout_id=5) == replies
        # Two of the three are the first two: a sample is i, whatever n was.
        assert live.with_journal(journal)("prompt", n=2, temperature=1.0, rollout_id=5) == replies[:2]
        with pytest.raises(ReplayMiss):
            live.with_journal(journal)("prompt", n=3, temperature=1.0, rollout_id=6)
    assert len(arrived) == 3


def test_predict_with_n_gives_every_completion_live_and_replayed(tmp_path: Path) -> None:
    def said(i: int) -> str:
        return f"[[ ## answer ## ]]\n{i}\n[[ ## completed ## ]]"

    def completions(lm: Any) -> list[str]:
        with dspy.context(lm=lm):
            return list(dspy.Predict("question -> answer", n=3, temperature=1.0)(question="?").completions.answer)

    with scripted(lambda _, __: said(SAMPLE.get().i)) as lm:
        with Journal(tmp_path) as journal:
            assert completions(lm.with_journal(journal)) == ["0", "1", "2"]
        with Journal(tmp_path, "replay") as journal:
            assert completions(lm.with_journal(journal)) == ["0", "1", "2"]
        assert lm.calls == 3


# ---- failures


def test_a_final_error_is_journaled_and_replayed_as_itself_and_called_again_by_auto(tmp_path: Path) -> None:
    too_long = lm15.ContextLengthError("9 tokens too many", status=400)
    live = ScriptedEngine([too_long, "now it fits"])
    with Journal(tmp_path) as journal, setting(STAGE, "check"), setting(NOTES, []) as notes:
        engine = journaled(live, journal, address="http://127.0.0.1:9/v1")
        with pytest.raises(ModelError, match="longer than the model's context: 9 tokens too many") as live_error:
            ask(engine)
        assert (live_error.value.kind, live_error.value.stage) == ("context_too_long", "check")
        (record,) = journal.records()
        assert record["error"]["kind"] == "context_too_long"
        assert notes == [CallNote("check", record["key"], "error")]
    with Journal(tmp_path, "replay") as journal:
        with pytest.raises(ModelError) as replayed, setting(STAGE, "answer"):
            ask(journaled(live, journal))
        assert str(replayed.value) == str(live_error.value)
        assert (replayed.value.kind, replayed.value.stage) == ("context_too_long", "answer")
    assert len(live.prompts) == 1
    with Journal(tmp_path) as journal:
        assert ask(journaled(live, journal)) == "now it fits"
        assert ask(journaled(live, journal)) == "now it fits"
        assert len(journal) == 1
    assert len(live.prompts) == 2


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (lm15.RateLimitError("slow down", status=429), "rate_limited"),
        (lm15.ServerError("oops", status=500), "server_error"),
        (lm15.TimeoutError("no reply"), "timeout"),
        (lm15.InvalidRequestError("what?", status=400), "bad_request"),
        (lm15.TransportError("broke off"), "server_error"),
    ],
)
def test_every_fault_of_one_call_is_recorded_with_its_kind(tmp_path: Path, fault: Exception, kind: str) -> None:
    with Journal(tmp_path) as journal, pytest.raises(ModelError) as error:
        ask(journaled(ScriptedEngine([fault]), journal))
    assert error.value.kind == kind
    with Journal(tmp_path, "replay") as journal:
        assert [record["error"]["kind"] for record in journal.records()] == [kind]


@pytest.mark.parametrize(
    "fault", [lm15.AuthError("bad key", status=401), lm15.TransportError("no", provider_code="no_connection")]
)
def test_a_server_that_refuses_leaves_nothing_in_the_journal(tmp_path: Path, fault: Exception) -> None:
    with Journal(tmp_path) as journal:
        with pytest.raises(ServerRefused, match=r"http://127\.0\.0\.1:9/v1"):
            ask(journaled(ScriptedEngine([fault]), journal, address="http://127.0.0.1:9/v1"))
        assert len(journal) == 0


def test_an_error_of_the_program_itself_is_no_models_error(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        engine = journaled(ScriptedEngine([TypeError("a bug"), "fixed"]), journal)
        with pytest.raises(TypeError, match="a bug"):
            ask(engine)
        assert len(journal) == 0
        assert ask(engine) == "fixed"


def test_a_replay_miss_names_question_and_stage(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    told = r"question 'q7', stage 'ids' asks for call [0-9a-f]{12}, which .*journal\.jsonl does not hold"
    live = Live()
    with Journal(tmp_path, "replay") as journal, setting(QUESTION, "q7"), setting(STAGE, "ids"):
        engine = journaled(live, journal)
        with pytest.raises(ReplayMiss, match=told):
            ask(engine)
    assert live.calls == 0


# ---- what is in a request beside its words


def tool(name: str) -> lm15.FunctionTool:
    return lm15.FunctionTool(name=name, description="looks it up", parameters={"type": "object", "properties": {}})


def test_a_models_reasoning_and_a_calls_do_not_hide_each_other() -> None:
    """The option is the model's setting, the effort this call's: each may change the reply."""
    efforts = [request(reasoning=lm15.Reasoning(effort=effort)) for effort in ("low", "high")]
    keys = [
        key_of(asked, options=options)
        for asked in (request(), *efforts)
        for options in ({}, {"reasoning": "low"}, {"reasoning": "high"})
    ]
    assert len(set(keys)) == 9


def test_tools_and_how_they_are_to_be_chosen_are_part_of_the_key() -> None:
    asked = [
        request(),
        replace(request(), tools=(tool("search"),)),
        replace(request(), tools=(tool("look"),)),
        replace(request(), tools=(tool("search"), tool("look"))),
        replace(request(tool_choice=lm15.ToolChoice(mode="required")), tools=(tool("search"),)),
    ]
    assert len({key_of(each) for each in asked}) == len(asked)
    assert key_of(asked[1]) == key_of(replace(request(), tools=(tool("search"),)))


def test_a_reply_with_tool_calls_survives_the_journal(tmp_path: Path) -> None:
    call = lm15.ToolCallPart(id="1", name="search", input={"query": "Orm Pier", "k": [1, None]})
    message = lm15.Message(role="assistant", parts=(lm15.TextPart(text="Let me look."), call))
    usage = lm15.Usage(input_tokens=3, output_tokens=2)
    said = lm15.Response(id="r", model="m", message=message, finish_reason="tool_call", usage=usage)

    async def answer(_: lm15.Request, __: int) -> lm15.Response:
        return said

    live = Live(answer)
    asked = replace(request(), tools=(tool("search"),))
    with Journal(tmp_path) as journal, setting(NOTES, []) as notes:
        first = asyncio.run(journaled(live, journal).complete(asked))
    with Journal(tmp_path, "replay") as journal:
        again = asyncio.run(journaled(live, journal).complete(asked))
    assert live.calls == 1
    assert first.message == again.message == message
    assert (again.finish_reason, again.usage.input_tokens, again.usage.output_tokens) == ("tool_call", 3, 2)
    assert notes[0].event == ""


def test_a_reply_of_tool_calls_alone_is_not_empty() -> None:
    call = lm15.ToolCallPart(id="1", name="search", input={})

    async def answer(_: lm15.Request, __: int) -> lm15.Response:
        message = lm15.Message(role="assistant", parts=(call,))
        return lm15.Response(id=None, model="m", message=message, finish_reason="tool_call", usage=lm15.Usage())

    with setting(NOTES, []) as notes:
        asyncio.run(journaled(Live(answer)).complete(request()))
    assert [note.event for note in notes] == [""]


def test_samples_are_noted_in_their_order_whatever_arrived_first() -> None:
    async def slow_first(_: lm15.Request, __: int) -> lm15.Response:
        i = SAMPLE.get().i
        await asyncio.sleep(0.04 - 0.02 * i)
        return response("" if i == 0 else f"sample {i}")

    lm = connect("offline")
    lm.inner = Live(slow_first)
    lm = lm.with_journal(None)
    with setting(NOTES, []) as notes:
        lm("prompt", n=3, temperature=1.0)
    assert [note.event for note in notes] == ["empty_reply", "", ""]
    with setting(NOTES, []) as first:
        lm("prompt", temperature=1.0)
    assert notes[0] == first[0]
