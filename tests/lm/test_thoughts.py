"""Models that think though their family is not known to: what their thoughts cut is asked for once more."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from calls import request, text_of
from dspy import lm15
from scripted import response

from blendfilter.errors import ReplayMiss
from blendfilter.journal import Journal
from blendfilter.lm.attempts import CallPolicy, Retry, Traffic
from blendfilter.lm.budget import Budget, BudgetAccount, spent_in
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.lm.prices import Price, cost_of
from blendfilter.lm.profiles import THINKING_TOKENS, Profile, profile_for
from blendfilter.lm.thoughts import ThoughtfulEngine

THOUGHT = "Is it 0, or 3? " * 20


class Thinker:
    """Thinks for 60 tokens before it says "0, 3"; what does not fit its cap is not said."""

    def __init__(self, form: str = "part", needs: int = 64) -> None:
        self.form, self.needs = form, needs
        self.caps: list[int | None] = []

    async def complete(self, asked: lm15.Request) -> lm15.Response:
        cap = asked.config.max_tokens
        self.caps.append(cap)
        fits = cap is None or cap >= self.needs
        text, finish = ("0, 3", "stop") if fits else ("", "length")
        if self.form == "tags":
            text = f"<think>{THOUGHT}</think>{text}" if fits else f"<think>{THOUGHT}"
        made = response(
            text, reasoning=THOUGHT if self.form == "part" else "", finish=finish, usage=(10, 64 if fits else 32)
        )
        if self.form == "usage":
            usage = lm15.Usage(input_tokens=10, output_tokens=made.usage.output_tokens, reasoning_tokens=32)
            made = lm15.Response(
                id=None, model="m", message=made.message, finish_reason=made.finish_reason, usage=usage
            )
        return made


def ask(engine: Any, *prompts: str, **config: Any) -> list[lm15.Response]:
    async def each() -> list[lm15.Response]:
        return [await engine.complete(request(prompt, **config)) for prompt in prompts]

    return asyncio.run(each())


def engine_over(inner: Any, profile: Profile = Profile()) -> ThoughtfulEngine:
    return ThoughtfulEngine(inner, "newcomer-8b", profile, threading.Event())


@pytest.mark.parametrize("form", ["part", "tags", "usage"])
def test_a_reply_lost_to_thoughts_is_asked_for_once_more_with_room(form: str) -> None:
    thinker = Thinker(form)
    engine = engine_over(thinker)
    first, second = ask(engine, "one", "two")
    assert text_of(first).endswith("0, 3")
    assert text_of(second).endswith("0, 3")
    # Nothing is learned of the first question for the second.
    assert thinker.caps == [32, 32 + THINKING_TOKENS] * 2
    assert (first.provider_data or {})["room"] == (second.provider_data or {})["room"] == THINKING_TOKENS
    assert engine.reply_cap(request()) == 32


def test_thoughts_that_fitted_cost_no_second_call() -> None:
    thinker = Thinker(needs=20)
    ask(engine_over(thinker), "one", "two")
    assert thinker.caps == [32, 32]


REFUSAL = (
    "Could not finish the message because max_tokens or model output limit was reached. Please try again with higher "
    "max_tokens."
)


def test_a_400_that_says_so_is_asked_again_with_room_and_another_is_not() -> None:
    class Refuser:
        def __init__(self, message: str) -> None:
            self.message, self.caps = message, list[int | None]()

        async def complete(self, asked: lm15.Request) -> lm15.Response:
            self.caps.append(asked.config.max_tokens)
            if (asked.config.max_tokens or 0) < 64:
                raise lm15.InvalidRequestError(self.message, status=400)
            return response("0, 3")

    (reply,) = ask(engine_over(refuser := Refuser(REFUSAL)), "one")
    assert (text_of(reply), refuser.caps) == ("0, 3", [32, 32 + THINKING_TOKENS])
    assert (reply.provider_data or {})["room"] == THINKING_TOKENS
    with pytest.raises(lm15.InvalidRequestError, match="role"):
        ask(engine_over(refuser := Refuser("no such role: max_tokens was 32")), "one")
    assert refuser.caps == [32]


TOO_LARGE = (
    "'max_tokens' or 'max_completion_tokens' is too large: {cap}. This model's maximum context length is 4096 tokens "
    "and your request has 100 input tokens ({cap} > 4096 - 100)."
)


class Short(Thinker):
    """A thinker whose server refuses a cap above its context."""

    def __init__(self, refusal: lm15.LM15Error | None = None) -> None:
        super().__init__()
        self.refusal = refusal or lm15.InvalidRequestError(TOO_LARGE.format(cap=32 + THINKING_TOKENS), status=400)

    async def complete(self, asked: lm15.Request) -> lm15.Response:
        reply = await super().complete(asked)
        if (asked.config.max_tokens or 0) > 4000:
            raise self.refusal
        return reply


@pytest.mark.parametrize("refusal", [None, lm15.ContextLengthError("you requested 4228 tokens", status=400)])
def test_where_the_room_is_refused_the_first_reply_stands(refusal: lm15.LM15Error | None) -> None:
    (reply,) = ask(engine_over(short := Short(refusal)), "one")
    assert short.caps == [32, 32 + THINKING_TOKENS]
    assert (reply.text, reply.finish_reason) == ("", "length")
    assert "room" not in (reply.provider_data or {})


@pytest.mark.parametrize(
    "refusal", [lm15.AuthError("no such key", status=401), lm15.ServerError("max_tokens", status=500)]
)
def test_another_fault_of_the_second_attempt_stays_one(refusal: lm15.LM15Error) -> None:
    with pytest.raises(type(refusal)):
        ask(engine_over(Short(refusal)), "one")


class SometimesThinker:
    """Thinks about "hard"; of "long" it writes 600 tokens without a thought."""

    async def complete(self, asked: lm15.Request) -> lm15.Response:
        (part,) = asked.messages[0].parts
        assert isinstance(part, lm15.TextPart)
        cap, thinks = asked.config.max_tokens or 0, part.text == "hard"
        fits = cap >= {"hard": 900, "long": 600}.get(part.text, 1)
        said = "" if thinks and not fits else f"{part.text}: {'all' if fits else 'half'}"
        return response(said, reasoning=THOUGHT if thinks else "", finish="stop" if fits else "length", usage=(10, 80))


def test_what_a_call_comes_to_depends_on_no_other_call() -> None:
    """In whichever order they are asked, and in one process or in three."""
    prompts = ("hard", "long", "easy")
    alone = {prompt: ask(engine_over(SometimesThinker()), prompt, max_tokens=448)[0] for prompt in prompts}
    assert [alone[prompt].finish_reason for prompt in prompts] == ["stop", "length", "stop"]
    for order in itertools.permutations(prompts):
        together = ask(engine_over(SometimesThinker()), *order, max_tokens=448)
        assert dict(zip(order, together, strict=True)) == alone


def test_thoughts_before_a_tool_call_have_lost_nothing() -> None:
    call = lm15.ToolCallPart(id="1", name="search", input={"query": "pier"})
    thought = lm15.ThinkingPart(text=THOUGHT)
    reply = lm15.Response(
        id=None, model="m", message=lm15.Message(role="assistant", parts=(thought, call)), finish_reason="tool_call",
        usage=lm15.Usage(),
    )  # fmt: skip

    class Caller:
        async def complete(self, asked: lm15.Request) -> lm15.Response:
            assert asked.config.max_tokens == 32
            return reply

    assert ask(engine_over(Caller()), "one") == [reply]


@pytest.mark.parametrize("reply", [response("", finish="length"), response("0, 3"), response("0", finish="length")])
def test_without_thoughts_nothing_is_learned_and_nothing_asked_again(reply: lm15.Response) -> None:
    """A reply that rambles to its cap, or says nothing, is no thought."""

    class Plain:
        caps: list[int | None] = []  # noqa: RUF012

        async def complete(self, asked: lm15.Request) -> lm15.Response:
            self.caps.append(asked.config.max_tokens)
            return reply

    plain = Plain()
    plain.caps = []
    assert ask(engine_over(plain), "one", "two") == [reply, reply]
    assert plain.caps == [32, 32]


def test_what_still_does_not_fit_is_asked_for_twice_at_most() -> None:
    thinker = Thinker(needs=10**6)
    replies = ask(engine_over(thinker), "one", "two")
    assert [reply.finish_reason for reply in replies] == ["length", "length"]
    assert len(thinker.caps) == 4


def test_an_engine_that_gives_room_itself_is_left_alone() -> None:
    class Roomy(Thinker):
        def reply_cap(self, asked: lm15.Request) -> int:
            return (asked.config.max_tokens or 0) + 4096

    roomy = Roomy(needs=10**6)
    ask(engine_over(roomy), "one", "two")
    assert roomy.caps == [32, 32]


@pytest.mark.parametrize(("name", "words"), [("newcomer-8b", "No switch"), ("gemma-4-27b", "thinking=False asks it")])
def test_one_notice_says_what_turns_it_off(name: str, words: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ask(engine_over(Thinker(), profile_for(name)), "one", "two", "three")
    (notice,) = caplog.messages
    assert "thinks before it replies" in notice
    assert words in notice
    assert "reply_tokens= caps" in notice
    assert (
        "thinking=True (or reasoning='low') gives every reply that room at once, which saves the second call" in notice
    )


class TestAsAModel:
    def model(self, thinker: Thinker, **more: Any) -> ConnectedLM:
        return ConnectedLM("newcomer-8b", thinker, temperature=0.0, max_tokens=32, **more)

    def test_its_record_says_so_and_a_replay_is_the_same(self, tmp_path: Path) -> None:
        """The key has the cap that was asked for: the second attempt is no other call."""
        with Journal(tmp_path) as journal:
            live = self.model(Thinker(), journal=journal)
            answers = [live("one"), live("two")]
            one, two = journal.records("call")
        assert [record["parameters"]["max_tokens"] for record in (one, two)] == [32, 32]
        for record in (one, two):
            assert (record["room"], record["attempts"], record["tokens_lost"]) == (THINKING_TOKENS, 2, 10 + 32)
            assert (record["first"]["tokens_in"], record["first"]["tokens_out"]) == (10, 32)
        with Journal(tmp_path, "replay") as journal:
            silent = Thinker()
            again = self.model(silent, journal=journal)
            assert [again("two"), again("one")] == answers[::-1]
            assert silent.caps == []
            with pytest.raises(ReplayMiss):
                again("three")

    def test_both_attempts_are_paid_from_the_budget(self) -> None:
        purse = BudgetAccount(Budget(calls=10, tokens=100_000))
        self.model(Thinker(), traffic=Traffic(purse=purse))("one")
        assert (purse.spent.calls, purse.spent.tokens) == (2, (10 + 32) + (10 + 64))
        assert purse.reserved.calls == 0

    @pytest.mark.parametrize(
        ("told", "by_whom"),
        [
            ({}, {"cost": (10 + 64 * 10 + 10 + 32 * 10) / 1e6}),
            ({"cost": 0.25}, {"cost": 0.5, "cost_by": "server"}),
            ({"cost": 0.0}, {"cost": (10 + 64 * 10 + 10 + 32 * 10) / 1e6, "cost_by": "price", "cost_stated": 0.0}),
        ],
        ids=["our price", "a dearer server", "a server that says 0"],
    )
    def test_both_replies_are_in_the_calls_dollars(
        self, tmp_path: Path, told: dict[str, Any], by_whom: dict[str, Any]
    ) -> None:
        price = Price(input=1, output=10)

        class Billed(Thinker):
            async def complete(self, asked: lm15.Request) -> lm15.Response:
                return dataclasses.replace(await super().complete(asked), provider_data=told)

        purse = BudgetAccount(Budget(calls=10))
        with Journal(tmp_path) as journal:
            self.model(Billed(), journal=journal, terms=CallPolicy(price=price), traffic=Traffic(purse=purse))("one")
            (record,) = journal.records("call")
            spent = spent_in(journal, {"newcomer-8b": price}, Budget(dollars=1))
        paid = {name: record[name] for name in ("cost", "cost_by", "cost_stated") if name in record}
        assert paid == pytest.approx(by_whom)
        assert spent.dollars == pytest.approx(purse.spent.dollars) == pytest.approx(by_whom["cost"])

    def test_without_a_price_its_dollars_are_unknown_and_a_later_price_counts_both_replies(
        self, tmp_path: Path
    ) -> None:
        with Journal(tmp_path) as journal:
            self.model(Thinker(), journal=journal)("one")
            (record,) = journal.records("call")
        assert record["cost"] is None
        assert cost_of(record, Price(input=1, output=10)) == pytest.approx((10 + 64 * 10 + 10 + 32 * 10) / 1e6)
        untold = {**record, "first": {"tokens_in": None, "tokens_out": 32, "tokens_cached": None}}
        assert cost_of(untold, Price(input=1, output=10)) is None

    def test_a_fault_of_the_second_attempt_does_not_ask_for_the_first_again(self, tmp_path: Path) -> None:
        class Faulty(Thinker):
            async def complete(self, asked: lm15.Request) -> lm15.Response:
                reply = await super().complete(asked)
                if len(self.caps) == 2:
                    raise lm15.ServerError("broken", status=500)
                return reply

        faulty, purse = Faulty(), BudgetAccount(Budget(calls=10, tokens=100_000))
        terms = CallPolicy(retry=Retry(wait_first=0.001, wait_max=0.01))
        with Journal(tmp_path) as journal:
            model = self.model(faulty, journal=journal, terms=terms, traffic=Traffic(purse=purse))
            assert model("one")[0]["text"] == "0, 3"
            (record,) = journal.records("call")
        assert faulty.caps == [32, 32 + THINKING_TOKENS, 32 + THINKING_TOKENS]
        assert (record["room"], record["attempts"]) == (THINKING_TOKENS, 3)
        # The broken attempt may have thought up to its own cap, which is the raised one.
        assert record["tokens_lost"] == (10 + 32) + (10 + 32 + THINKING_TOKENS)
        assert purse.spent.tokens == record["tokens_lost"] + 10 + 64

    def test_a_room_that_is_refused_took_a_call_and_no_tokens(self, tmp_path: Path) -> None:
        purse = BudgetAccount(Budget(calls=10, tokens=100_000))
        with Journal(tmp_path) as journal:
            assert self.model(Short(), journal=journal, traffic=Traffic(purse=purse))("one")[0]["text"] == ""
            (record,) = journal.records("call")
        assert (record["attempts"], record["tokens_in"], record["tokens_out"]) == (2, 10, 32)
        assert not {"room", "first"} & record.keys()
        assert not record.get("tokens_lost")
        assert (purse.spent.calls, purse.spent.tokens, purse.reserved.calls) == (2, 10 + 32, 0)

    def test_the_first_reply_stands_after_a_fault_as_well(self) -> None:
        class Faulty(Short):
            async def complete(self, asked: lm15.Request) -> lm15.Response:
                if len(self.caps) == 1:
                    self.caps.append(asked.config.max_tokens)
                    raise lm15.ServerError("broken", status=500)
                return await super().complete(asked)

        terms = CallPolicy(retry=Retry(wait_first=0.001, wait_max=0.01))
        assert self.model(faulty := Faulty(), terms=terms)("one")[0]["text"] == ""
        assert faulty.caps == [32, 32 + THINKING_TOKENS, 32 + THINKING_TOKENS]

    def test_an_attempt_is_sent_with_the_cap_that_it_was_reserved_at(self) -> None:
        """Thoughts that come back while other attempts wait for the budget change nothing of those.

        An attempt is reserved at some 1,000 tokens, one with room at some 5,100, and takes 90 at the most: of 7,000 a
        few go out at once, the rest wait, and the second attempt at "hard" with them.
        """
        in_flight: list[int] = []
        went_out: set[int] = set()

        class Watched(SometimesThinker):
            async def complete(self, asked: lm15.Request) -> lm15.Response:
                cap = asked.config.max_tokens or 0
                in_flight.append(cap)
                went_out.add(cap)
                assert sum(in_flight) <= purse.reserved.tokens
                await asyncio.sleep(0)
                in_flight.remove(cap)
                return await super().complete(asked)

        purse = BudgetAccount(Budget(tokens=7_000))
        model = ConnectedLM("newcomer-8b", Watched(), max_tokens=448, traffic=Traffic(purse=purse))

        async def all_at_once() -> None:
            await asyncio.gather(*(model.acall(prompt) for prompt in ("hard", *map(str, range(12)))))

        asyncio.run(all_at_once())
        assert went_out == {448, 448 + THINKING_TOKENS}

    def test_its_copies_give_one_notice(self, caplog: pytest.LogCaptureFixture) -> None:
        model = self.model(Thinker())
        with caplog.at_level(logging.WARNING):
            model("one")
            model.with_journal(None)("two")
        assert len(caplog.messages) == 1

    def test_a_raw_prompt_has_no_thoughts(self) -> None:
        thinker = Thinker("tags")
        self.model(thinker, identity={"endpoint": "completions"})("one")
        assert thinker.caps == [32]


class TestSwitches:
    @pytest.mark.parametrize(
        ("name", "off"),
        [
            ("gemini-2.5-flash", {"reasoning_effort": "none"}),
            ("google/gemini-2.5-pro", {"reasoning_effort": "low"}),
            ("gemini-3-pro-preview", {"reasoning_effort": "low"}),
            ("zai-org/GLM-4.6", {"chat_template_kwargs": {"enable_thinking": False}}),
            ("HuggingFaceTB/SmolLM3-3B", {"chat_template_kwargs": {"enable_thinking": False}}),
            ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B", {"chat_template_kwargs": {"enable_thinking": False}}),
            ("moonshotai/Kimi-K2.5", {"chat_template_kwargs": {"thinking": False}}),
            ("ByteDance-Seed/Seed-OSS-36B-Instruct", {"chat_template_kwargs": {"thinking_budget": 0}}),
            ("openai/gpt-oss-20b", {"reasoning_effort": "low"}),
            ("xai/grok-3-mini", {"reasoning_effort": "low"}),
            ("moonshotai/Kimi-K2-Thinking", {}),
            ("MiniMaxAI/MiniMax-M2", {}),
            ("microsoft/Phi-4-mini-reasoning", {}),
            ("x-ai/grok-4", {}),
            ("nvidia/nemotron-nano-9b-v2", {}),
            ("mistralai/Magistral-Small-2507", {}),
            ("Qwen/QwQ-32B", {}),
            ("allenai/Olmo-3-7B-Think", {}),
        ],
    )
    def test_families_that_think_have_room_and_their_own_switch(self, name: str, off: dict[str, Any]) -> None:
        profile = profile_for(name)
        assert profile.thinks
        assert profile.thinking_tokens >= 4096
        assert profile.steering("off") == off
        assert profile.thinks_at("off") != profile.can_stop_thinking
        assert bool(dataclasses.replace(profile, effort="off").unsteered) == (not off)

    @pytest.mark.parametrize(
        "name",
        [
            "grok-4-fast-non-reasoning", "grok-3", "Qwen3-4B-Instruct-2507", "granite-3.3-8b-instruct",
            "gemma-4-27b-it", "Kimi-K2-Instruct", "glm-4-9b-chat",
            "nvidia/Llama-3.1-Nemotron-70B-Instruct", "gemini-2.0-flash", "phi-4",
        ],
    )  # fmt: skip
    def test_their_neighbours_do_not_think(self, name: str) -> None:
        assert not profile_for(name).thinks

    def test_where_effort_is_asked_of_an_unknown_family_it_has_room(self) -> None:
        engine = connect("newcomer", api_base="http://127.0.0.1:1/v1", reasoning="low").inner
        assert engine.reply_cap(request()) == 32 + THINKING_TOKENS  # type: ignore[attr-defined]
        assert connect("newcomer", api_base="http://127.0.0.1:1/v1").inner.reply_cap(request()) == 32  # type: ignore[attr-defined]

    @pytest.mark.parametrize(
        ("name", "settings", "said"),
        [
            (
                "newcomer",
                {"thinking": True},
                "newcomer: no switch for its thinking is known, so thinking=True and reasoning=",
            ),
            (
                "QwQ-32B",
                {"thinking": False},
                "QwQ-32B: no switch that turns its thinking off is known, so thinking=False",
            ),
            ("newcomer", {"thinking": False}, ""),
            ("QwQ-32B", {}, ""),
            ("Qwen3-8B", {"thinking": False}, ""),
            ("newcomer", {"thinking": True, "endpoint": "completions"}, ""),
        ],
    )
    def test_a_switch_that_is_not_known_is_said(
        self, name: str, settings: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING):
            connect(name, api_base="http://127.0.0.1:1/v1", **settings)
        assert [message.startswith(said) for message in caplog.messages] == ([True] if said else [])
