"""`dspy.streamify` over our modules and models: status messages, errors, and whoever stops reading."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import dspy
import pytest
from isle import QUESTION, Echo, replies, three_lists
from scripted import ScriptedLM

from blendfilter.lm.model import connect
from blendfilter.modules.blendfilter import BlendFilter

ELEVEN = 11
STAGES = ("external", "internal", "topic", "check", "ids", "answer", "short_answer")


def statuses(reported: list[Any]) -> Counter[str]:
    """How often each status message came (between them come the replies, each in one piece)."""
    return Counter(each.message for each in reported if isinstance(each, dspy.streaming.StatusMessage))


class TestStreaming:
    @pytest.mark.timeout(60)
    @pytest.mark.parametrize("wrapped", [True, False])
    def test_the_synchronous_program_streams_too(self, wrapped: bool) -> None:
        """It runs on another thread, over the bridge; and sends more messages than DSPy's stream holds at once."""

        class Wrapped(dspy.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = BlendFilter(three_lists())

            def forward(self, question: str) -> dspy.Prediction:
                return self.inner(question=question)

        class Told(dspy.streaming.StatusMessageProvider):
            def module_start_status_message(self, instance: Any, inputs: Any) -> str:
                return type(instance).__name__

            def module_end_status_message(self, outputs: Any) -> str:
                return "over"

        async def follow() -> list[Any]:
            program = Wrapped() if wrapped else BlendFilter(three_lists())
            return [each async for each in dspy.streamify(program, Told())(question=QUESTION)]

        with dspy.context(lm=ScriptedLM(replies())):
            *result, last = asyncio.run(follow())
        assert last.answer == "Ada Brennock"
        reply = statuses(result)
        assert reply["Ask"] == ELEVEN
        assert reply["over"] == sum(reply.values()) / 2

    @pytest.mark.timeout(60)
    @pytest.mark.parametrize("is_async_program", [True, False])
    def test_whoever_stops_reading_stops_the_work(self, is_async_program: bool) -> None:
        async def follow() -> Any:
            stream = dspy.streamify(BlendFilter(three_lists()), is_async_program=is_async_program)(question=QUESTION)
            first = await anext(stream)
            await stream.aclose()
            return first

        lm = ScriptedLM(replies())
        with dspy.context(lm=lm):
            assert asyncio.run(asyncio.wait_for(follow(), 20)) is not None

    @pytest.mark.parametrize("connected", [True, False])
    @pytest.mark.parametrize("is_async_program", [True, False])
    def test_over_a_users_synchronous_model(
        self, connected: bool, is_async_program: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Told(dspy.streaming.StatusMessageProvider):
            def lm_start_status_message(self, instance: Any, inputs: Any) -> str:
                return "asked"

        async def follow() -> list[Any]:
            method = BlendFilter(three_lists())
            stream = dspy.streamify(method, status_message_provider=Told(), is_async_program=is_async_program)
            return [each async for each in stream(question=QUESTION)]

        with dspy.context(lm=connect(Echo("echo")) if connected else Echo("echo")):
            result = asyncio.run(follow())
        assert statuses(result) == {"asked": 9}  # q_ex and q_in bring the same list here: they share a filter
        assert isinstance(result[-1], dspy.Prediction)
        assert "Error when calling callback" not in caplog.text
