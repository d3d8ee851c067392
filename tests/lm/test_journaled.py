"""Model calls through the journal: what is served, what a key and a record hold, what failures leave behind."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from calls import Live, ask, journaled, request, text_of
from dspy import lm15
from gepa.proposer.merge import sample_and_attempt_merge_programs_by_common_predictors as merge
from scripted import ScriptedEngine, response

from blendfilter.context import CallNote, CallSample, asker, noting, setting
from blendfilter.errors import ModelError, ReplayMiss, ServerRefused
from blendfilter.journal import CallCache, Journal
from blendfilter.lm.journaled import JournaledEngine
from blendfilter.lm.model import connect

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


@pytest.mark.parametrize(
    ("kept", "served"),
    [
        ({"finish": "error"}, False),
        ({"finish": "content_filter", "reply": ""}, False),
        ({"finish": "content_filter"}, True),  # it is flagged: refused_reply
        ({"finish": "length"}, True),
        ({"finish": "stop", "reply": ""}, True),
    ],
)
@pytest.mark.parametrize("cached", [False, True])
def test_a_reply_that_broke_off_was_kept_by_earlier_versions_and_is_asked_for_again(
    tmp_path: Path, kept: dict[str, Any], served: bool, cached: bool
) -> None:
    live = Live()
    with Journal(tmp_path) as journal:
        store = CallCache(tmp_path / "calls") if cached else journal
        engine = journaled(live, store)
        ask(engine)
        (record,) = Journal(tmp_path, "replay").records() if not cached else cache_records(tmp_path)
        store.append({**record, **kept})
        assert ask(engine) == (kept.get("reply", "reply 1") if served else "reply 2")
        assert ask(engine) == (kept.get("reply", "reply 1") if served else "reply 2")
    assert live.calls == (1 if served else 2)


def cache_records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in (folder / "calls").iterdir() for line in file.read_text().splitlines()]


def test_a_replay_serves_what_an_earlier_version_kept(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        ask(journaled(Live(), journal))
        (record,) = journal.records()
        journal.append({**record, "finish": "error", "reply": "Jon"})
    with Journal(tmp_path, "replay") as journal:
        assert ask(journaled(Live(), journal)) == "Jon"


# ---- the key


def key_of(requested: lm15.Request, sample: CallSample = CallSample(), **options: Any) -> str:
    with noting() as notes, setting(sample=sample):
        ask(journaled(Live(), **options), requested)
    return str(notes[0].key)


@pytest.mark.parametrize(
    ("requested", "options"),
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
def test_whatever_may_change_a_reply_changes_the_key(requested: lm15.Request, options: dict[str, Any]) -> None:
    assert key_of(requested, **options) != key_of(request())


def test_where_it_is_called_and_who_asks_do_not_change_the_key() -> None:
    plain = key_of(request())
    assert key_of(request(), address="http://127.0.0.1:9/v1") == plain
    assert key_of(request(), options={"thinking": None}) == plain
    assert key_of(replace(request(), model="blendfilter/m")) == plain
    with setting(stage="ids", question="q7", order=3):
        assert key_of(request()) == plain


# ---- samples


def test_three_samples_are_three_records_and_replay_in_order_whatever_arrived_first(tmp_path: Path) -> None:
    arrived = []

    async def slow_first(_: lm15.Request, __: int) -> lm15.Response:
        i = asker().sample.i
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


# ---- failures


def test_a_final_error_is_journaled_and_replayed_as_itself_and_called_again_by_auto(tmp_path: Path) -> None:
    too_long = lm15.ContextLengthError("9 tokens too many", status=400)
    live = ScriptedEngine([too_long, "now it fits"])
    with Journal(tmp_path) as journal, setting(stage="check"), noting() as notes:
        engine = journaled(live, journal, address="http://127.0.0.1:9/v1")
        with pytest.raises(ModelError, match="longer than the model's context: 9 tokens too many") as live_error:
            ask(engine)
        assert (live_error.value.kind, live_error.value.stage) == ("context_too_long", "check")
        (record,) = journal.records()
        assert record["error"]["kind"] == "context_too_long"
        assert notes == [CallNote("check", record["key"], "error")]
    with Journal(tmp_path, "replay") as journal:
        with pytest.raises(ModelError) as replayed, setting(stage="answer"):
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
    with Journal(tmp_path, "replay") as journal, setting(question="q7", stage="ids"):
        engine = journaled(live, journal)
        with pytest.raises(ReplayMiss, match=missed):
            ask(engine)
    assert live.calls == 0


# ---- what is in a request beside its words


def tool(name: str) -> lm15.FunctionTool:
    return lm15.FunctionTool(name=name, description="looks it up", parameters={"type": "object", "properties": {}})


def test_a_reply_with_tool_calls_survives_the_journal(tmp_path: Path) -> None:
    call = lm15.ToolCallPart(id="1", name="search", input={"query": "Orm Pier", "k": [1, None]})
    message = lm15.Message(role="assistant", parts=(lm15.TextPart(text="Let me look."), call))
    usage = lm15.Usage(input_tokens=3, output_tokens=2)
    result = lm15.Response(id="r", model="m", message=message, finish_reason="tool_call", usage=usage)

    async def answer(_: lm15.Request, __: int) -> lm15.Response:
        return result

    live = Live(answer)
    wanted = replace(request(), tools=(tool("search"),))
    with Journal(tmp_path) as journal, noting() as notes:
        first = asyncio.run(journaled(live, journal).complete(wanted))
    with Journal(tmp_path, "replay") as journal:
        again = asyncio.run(journaled(live, journal).complete(wanted))
    assert live.calls == 1
    assert first.message == again.message == message
    assert (again.finish_reason, again.usage.input_tokens, again.usage.output_tokens) == ("tool_call", 3, 2)
    assert notes[0].event == ""


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
    data = {"cost": 0.25}
    answer = response("Orm Pier", reasoning="it is a pier", usage=(12, 3), logprobs=logprobs, provider_data=data)
    answer = replace(answer, usage=replace(answer.usage, cache_read_tokens=8))
    wanted = request("Question: q\nTopic:", stop=("\n",), top_p=0.9)
    with Journal(tmp_path) as journal:
        engine = journaled(ScriptedEngine([answer]), journal, label="b", address="http://127.0.0.1:9/v1",
                           options={"thinking": False, "extra_body": None})  # fmt: skip
        with setting(stage="topic", sample=CallSample(3, 1)):
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
        "attempts": 1, "error": None,
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
    with Journal(tmp_path) as journal, setting(stage="ids"), noting() as notes:
        assert [ask(journaled(live, journal)) for _ in range(2)] == [reply, reply]
        (record,) = journal.records()
    assert notes == [CallNote("ids", record["key"], event)] * 2


# ---- what optimisers leave to chance


def test_gepa_merges_two_programs_alike_in_every_process(tmp_path: Path) -> None:
    """It draws for each predictor in the order of a set of names, and a process hashes names as no other does."""
    names = [f"step {letter}" for letter in "fedcbagjihlk"]
    first, second = ({name: f"{name} {number}" for name in names} for number in (1, 2))
    seed, second["kept"] = {**dict.fromkeys(names, ""), "kept": ""}, ""
    first["kept"] = "better"
    with Journal(tmp_path) as journal:
        connect("offline", journal=journal)
    scores = [0.1, 0.5, 0.5]
    merged = merge(scores, random.Random(0), [1, 2], ([], []), [seed, first, second], [[None], [0], [0]])
    drawn = random.Random(0)
    drawn.sample([1, 2], 2)
    drawn.choices([0], k=1, weights=[0.1])
    expected = {name: drawn.choice([first, second])[name] for name in sorted(names)}
    assert merged is not None
    assert merged[0] == {**expected, "kept": "better"}
