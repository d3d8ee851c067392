"""Model calls through the journal: what is served, what a key and a record hold, what failures leave behind."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy
import pytest
from calls import Live, ask, journaled, request, text_of
from dspy import lm15
from model_server import serve
from scripted import ScriptedEngine, response, scripted

from blendfilter.context import NOTES, ORDER, QUESTION, SAMPLE, STAGE, CallNote, CallSample, setting
from blendfilter.errors import ModelError, ReplayMiss, ServerRefused
from blendfilter.journal import Journal
from blendfilter.lm.attempts import AttemptingEngine, Retry
from blendfilter.lm.journaled import JournaledEngine, prompt_of
from blendfilter.lm.model import connect
from blendfilter.lm.rate_limit import Gate

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


# ---- the key


def key_of(asked: lm15.Request, sample: CallSample = CallSample(), **options: Any) -> str:
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
        (request(), {"sample": CallSample(None, 1)}),
        (request(), {"sample": CallSample(1, 0)}),
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
    def completions(lm: Any) -> list[str]:
        with dspy.context(lm=lm):
            return list(dspy.Predict("question -> answer", n=3, temperature=1.0)(question="?").completions.answer)

    with scripted(lambda _, __: f"[[ ## answer ## ]]\n{SAMPLE.get().i}\n[[ ## completed ## ]]") as lm:
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


def test_a_replay_miss_names_question_and_stage(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    missed = r"question 'q7', stage 'ids' asks for call [0-9a-f]{12}, which .*journal\.jsonl does not hold"
    live = Live()
    with Journal(tmp_path, "replay") as journal, setting(QUESTION, "q7"), setting(STAGE, "ids"):
        engine = journaled(live, journal)
        with pytest.raises(ReplayMiss, match=missed):
            ask(engine)
    assert live.calls == 0


# ---- what is in a request beside its words


def tool(name: str) -> lm15.FunctionTool:
    return lm15.FunctionTool(name=name, description="looks it up", parameters={"type": "object", "properties": {}})


def test_tools_and_efforts_are_part_of_the_key() -> None:
    """Of an effort both count: the option is the model's setting, that of the request this call's."""
    tools = [(), (tool("search"),), (tool("look"),), (tool("search"), tool("look"))]
    keys = [key_of(replace(request(), tools=each)) for each in tools]
    keys.append(key_of(replace(request(tool_choice=lm15.ToolChoice(mode="required")), tools=tools[1])))
    efforts = [request(), *(request(reasoning=lm15.Reasoning(effort=effort)) for effort in ("low", "high"))]
    keys += [key_of(each, options={"reasoning": option}) for each in efforts for option in ("low", "high")]
    assert len(set(keys)) == len(keys) == 11


def test_a_reply_with_tool_calls_survives_the_journal(tmp_path: Path) -> None:
    call = lm15.ToolCallPart(id="1", name="search", input={"query": "Orm Pier", "k": [1, None]})
    message = lm15.Message(role="assistant", parts=(lm15.TextPart(text="Let me look."), call))
    usage = lm15.Usage(input_tokens=3, output_tokens=2)
    result = lm15.Response(id="r", model="m", message=message, finish_reason="tool_call", usage=usage)

    async def answer(_: lm15.Request, __: int) -> lm15.Response:
        return result

    live = Live(answer)
    wanted = replace(request(), tools=(tool("search"),))
    with Journal(tmp_path) as journal, setting(NOTES, []) as notes:
        first = asyncio.run(journaled(live, journal).complete(wanted))
    with Journal(tmp_path, "replay") as journal:
        again = asyncio.run(journaled(live, journal).complete(wanted))
    assert live.calls == 1
    assert first.message == again.message == message
    assert (again.finish_reason, again.usage.input_tokens, again.usage.output_tokens) == ("tool_call", 3, 2)
    assert notes[0].event == ""


def test_equal_calls_in_flight_share_one_request_and_are_each_noted(tmp_path: Path) -> None:
    async def slow(_: lm15.Request, number: int) -> lm15.Response:
        await asyncio.sleep(0.02)
        return response(f"reply {number}")

    live = Live(slow)

    async def five(engine: JournaledEngine) -> list[str]:
        answers = await asyncio.gather(*(engine.complete(request()) for _ in range(5)))
        return [text_of(answer) for answer in answers]

    with Journal(tmp_path) as journal:
        engine = journaled(live, journal)
        with setting(NOTES, []) as notes:
            assert asyncio.run(five(engine)) == ["reply 1"] * 5
        assert live.calls == 1
        assert len(list(journal.records())) == 1
        assert len(notes) == 5


def test_where_the_leader_is_cancelled_a_follower_takes_over(tmp_path: Path) -> None:
    wanted = asyncio.Event()

    async def first_never(_: lm15.Request, number: int) -> lm15.Response:
        wanted.set()
        await asyncio.sleep(60 if number == 1 else 0)
        return response(f"reply {number}")

    live = Live(first_never)

    async def main(engine: JournaledEngine) -> list[str]:
        leader, *followers = (asyncio.create_task(engine.complete(request())) for _ in range(4))
        await wanted.wait()
        await asyncio.sleep(0.01)  # the others come too
        leader.cancel()
        answers = await asyncio.wait_for(asyncio.gather(*followers), 5)
        assert leader.cancelled()
        return [text_of(answer) for answer in answers]

    with Journal(tmp_path) as journal:
        assert asyncio.run(main(journaled(live, journal))) == ["reply 2"] * 3
        assert len(list(journal.records())) == 1
    assert live.calls == 2


def test_a_refusal_reaches_every_follower_and_the_next_call_is_made() -> None:
    async def refused(_: lm15.Request, number: int) -> lm15.Response:
        await asyncio.sleep(0.01)
        if number == 1:
            raise lm15.AuthError("bad key", status=401)
        return response("let in")

    live = Live(refused)
    engine = journaled(live)

    async def three() -> list[Any]:
        return await asyncio.gather(*(engine.complete(request()) for _ in range(3)), return_exceptions=True)

    ended = asyncio.run(three())
    assert [type(each) for each in ended] == [ServerRefused] * 3
    assert len({id(each) for each in ended}) == 3, "one object raised in three places would gather their tracebacks"
    assert len({str(each) for each in ended}) == 1
    assert ask(engine) == "let in"


def test_a_record_says_what_was_sent_and_what_came_back(tmp_path: Path) -> None:
    logprobs = (lm15.TokenLogprob("Orm", -0.25), lm15.TokenLogprob(" Pier", -1.5))
    data = {"attempts": 4, "cost": 0.25}
    answer = response("Orm Pier", reasoning="it is a pier", usage=(12, 3), logprobs=logprobs, provider_data=data)
    answer = replace(answer, usage=replace(answer.usage, cache_read_tokens=8))
    wanted = request("Question: q\nTopic:", stop=("\n",), top_p=0.9)
    with Journal(tmp_path) as journal:
        engine = journaled(ScriptedEngine([answer]), journal, label="b", address="http://127.0.0.1:9/v1",
                           options={"thinking": False, "extra_body": None})  # fmt: skip
        with setting(STAGE, "topic"), setting(SAMPLE, CallSample(3, 1)):
            live = asyncio.run(engine.complete(wanted))
            served = asyncio.run(engine.complete(wanted))
        (record,) = journal.records()
    assert record.pop("seconds") >= 0
    assert abs(time.time() - record.pop("at")) < 60
    assert len(record.pop("key")) == 32
    assert record == {
        "kind": "call", "stage": "topic", "model": "m", "label": "b", "endpoint": "chat",
        "prompt": "Question: q\nTopic:",
        "parameters": {"temperature": 0.0, "top_p": 0.9, "max_tokens": 32, "stop": ["\n"],
                       "options": {"thinking": False}},
        "sample": [3, 1], "address": "http://127.0.0.1:9/v1",
        "reply": "Orm Pier", "reasoning": "it is a pier", "finish": "stop",
        "logprobs": [["Orm", -0.25], [" Pier", -1.5]],
        "tokens_in": 12, "tokens_out": 3, "tokens_cached": 8, "cost": 0.25, "cost_by": "server",
        "attempts": 4, "error": None,
    }  # fmt: skip
    # Live and served are the same response, so that a resumed run reads what the first one read.
    assert live == served
    assert [type(part) for part in served.message.parts] == [lm15.ThinkingPart, lm15.TextPart]
    assert served.logprobs == answer.logprobs
    assert (served.finish_reason, served.usage) == ("stop", answer.usage)


@pytest.mark.parametrize(
    ("reply", "finish", "event"),
    [
        ("fine", "stop", ""),
        (" \n", "length", "empty_reply"),
        ("cut o", "length", "cut_reply"),
        ("I'm sorry, but I can’t help with that.", "stop", "refused_reply"),
        ("fine", "content_filter", "refused_reply"),
    ],
)
def test_how_a_reply_ended_is_noted_live_and_served(tmp_path: Path, reply: str, finish: str, event: str) -> None:
    live = ScriptedEngine([response(reply, finish=finish)])
    with Journal(tmp_path) as journal, setting(STAGE, "ids"), setting(NOTES, []) as notes:
        assert [ask(journaled(live, journal)) for _ in range(2)] == [reply, reply]
        (record,) = journal.records()
    assert notes == [CallNote("ids", record["key"], event)] * 2


def test_attempts_and_seconds_are_those_of_the_call_without_its_wait_at_the_gate(tmp_path: Path) -> None:
    async def slow(_: lm15.Request, number: int) -> lm15.Response:
        await asyncio.sleep(0.05)
        if number == 1:
            raise lm15.ServerError("busy", status=503)
        return response("done")

    async def no_wait(_: float) -> None:
        return None

    async def main(engine: JournaledEngine) -> None:
        await asyncio.gather(*(engine.complete(request(f"prompt {i}")) for i in range(4)))

    with Journal(tmp_path) as journal:
        engine = journaled(AttemptingEngine(Live(slow), [Gate(1)], Retry(), sleep=no_wait), journal)
        began = time.perf_counter()
        asyncio.run(main(engine))
        whole = time.perf_counter() - began
        *others, first = journal.records()
    # The first call's second attempt waits for its turn like the others: it holds no place while it waits.
    assert [record["attempts"] for record in others] == [1, 1, 1]
    assert (first["prompt"], first["attempts"]) == ("prompt 0", 2)
    assert first["seconds"] >= 0.1
    assert min(record["seconds"] for record in others) >= 0.05
    # One place, so none overlap: with a wait in any of them, together they would be longer than all of it took.
    assert sum(record["seconds"] for record in (*others, first)) <= whole
    went = [record["at"] for record in (*others, first)]
    assert max(went) - min(went) >= 0.1, "when each went out, not when it was made"


def test_hits_go_past_a_full_gate(tmp_path: Path) -> None:
    async def main(engine: JournaledEngine, gate: Gate) -> None:
        await engine.complete(request())
        await gate.before()
        await asyncio.wait_for(engine.complete(request()), 5)

    gate = Gate(1)
    with Journal(tmp_path) as journal:
        asyncio.run(main(journaled(AttemptingEngine(Live(), [gate]), journal), gate))


SECRET = "sk-verysecret0123456789abcdef"


@pytest.mark.parametrize("behave", ["plain", "unauthorized", "context", "reasoning"])
def test_no_byte_of_a_key_reaches_journal_state_or_message(
    tmp_path: Path, behave: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("BLENDFILTER_API_KEY", SECRET)
    texts: list[str] = []
    with serve(behave=behave) as server, Journal(tmp_path) as journal:
        login = server.url.replace("http://", "http://user:hunter2hunter2@")
        models = [
            connect("openai/test-model", api_base=server.url, journal=journal, label="provider's variable"),
            connect("test-model", api_base=server.url, journal=journal, label="own server's variable"),
            connect("test-model", api_base=server.url, api_key=SECRET, journal=journal, label="argument"),
            connect("test-model", api_base=login, journal=journal, label="login"),
        ]
        for lm in models:
            try:
                texts += lm("prompt CONTEXT-TOO-LONG")
            except (ServerRefused, ModelError) as error:
                texts.append(f"{error!r} {error.__cause__!r} {error.__context__!r}")
            texts.append(f"{lm.dump_state()} {lm.inner!r} {lm.address} {lm.__dict__} {lm.history}")
        assert server.stats()["requests"] >= len(models)
    written = (tmp_path / "journal.jsonl").read_bytes().decode()
    assert written.count("\n") == (0 if behave == "unauthorized" else len(models))
    for text in (written, *texts):
        for secret in (SECRET, "hunter2", "Authorization", "Bearer"):
            assert secret not in text
