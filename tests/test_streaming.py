"""`dspy.streamify` over our modules and models: status messages, whoever stops reading, fields as they are written."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy35 import OF_34
from isle import CHECK, INTERNAL, QUESTION, REASONING, Echo, replies, three_lists
from scripted import ScriptedLM
from streaming_server import DIED, Streaming, streaming

from blendfilter.journal import Journal
from blendfilter.lm.model import connect
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.direct import Direct

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
        assert sum(reply[stage] for stage in STAGES) == ELEVEN
        assert reply["Calling tool search..."] == 3
        assert reply["over"] == sum(
            reply[each] for each in ("BlendFilter", "KnowledgeFilter", "Answering", "Wrapped", *STAGES)
        )

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
    @OF_34
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
        assert statuses(result)["asked"] == 9  # q_ex and q_in bring the same list here: they share a filter
        assert isinstance(result[-1], dspy.Prediction)
        assert "Error when calling callback" not in caplog.text


# --- fields, while the server writes them ---

CUES = {"Let's think": REASONING, "Passage": INTERNAL, "Topic": "lighthouses", "Relevance": CHECK, "Ids": "0",
        "Answer": "Ada Brennock of Skerry Light"}  # fmt: skip


def pieces(prompt: str) -> list[str]:
    """The reply to a prompt, by its cue, in words."""
    last = prompt.rsplit("\n", 1)[-1]
    return re.findall(r"\s*\S+", next(text for cue, text in CUES.items() if last.startswith(cue)))


def asking(server: Streaming, endpoint: Any = "chat") -> Any:
    """The model behind the server as DSPy's."""
    return dspy.context(lm=connect("m", api_base=server.url, endpoint=endpoint))


def follow(
    method: dspy.Module, listeners: list[Any], server: Streaming, *, awaited: bool = True, generator: bool = False
) -> list[Any]:
    """All that `dspy.streamify` gives of one question; the server learns of the first chunk."""
    program = dspy.streamify(
        method, stream_listeners=listeners, is_async_program=awaited, async_streaming=not generator
    )

    def heard(each: Any) -> Any:
        if isinstance(each, dspy.streaming.StreamResponse):
            server.heard.set()
        return each

    async def read() -> list[Any]:
        return [heard(each) async for each in program(question=QUESTION)]

    return [heard(each) for each in program(question=QUESTION)] if generator else asyncio.run(read())


def chunks(result: list[Any], field: str) -> list[str]:
    found = [
        each
        for each in result
        if isinstance(each, dspy.streaming.StreamResponse) and each.signature_field_name == field
    ]
    assert [each.is_last_chunk for each in found] == [False] * (len(found) - 1) + [True]
    return [each.chunk for each in found]


DSPY_FORMS = {
    "chat": (dspy.ChatAdapter, "[[ ## reasoning ## ]]\nAda kept the light.\n\n[[ ## answer ## ]]\nAda Brennock\n\n"
             "[[ ## completed ## ]]"),
    "xml": (dspy.XMLAdapter, "<reasoning>Ada kept the light.</reasoning><answer>Ada Brennock</answer>"),
}  # fmt: skip
"""One reply as two of DSPy's adapters have it."""


class TestFields:
    @pytest.mark.timeout(120)
    @pytest.mark.parametrize("endpoint", ["chat", "completions"])
    @pytest.mark.parametrize(("awaited", "generator"), [(True, False), (False, False), (False, True)])
    def test_both_fields_of_a_method_come_while_they_are_written(
        self, endpoint: Any, awaited: bool, generator: bool
    ) -> None:
        """The server waits with the rest of a reply until its beginning has been heard."""
        method = BlendFilter(three_lists())
        listeners = [
            dspy.streaming.StreamListener("answer"),
            dspy.streaming.StreamListener("reasoning", predict=method.answering.answer),
        ]
        with streaming(pieces, wait_after=4) as server, asking(server, endpoint):
            result = follow(method, listeners, server, awaited=awaited, generator=generator)
        prediction = result[-1]
        assert not server.late
        assert "".join(chunks(result, "reasoning")) == prediction.reasoning == REASONING
        assert "".join(chunks(result, "answer")) == prediction.answer == "Ada Brennock of Skerry Light"
        assert sum("stream" in body for body in server.bodies) == 2, "nobody listens to the other stages"

    @pytest.mark.parametrize("endpoint", ["chat", "completions"])
    @pytest.mark.parametrize("awaited", [True, False])
    def test_a_method_of_one_call(self, endpoint: Any, awaited: bool) -> None:
        with streaming(pieces, wait_after=2) as server, asking(server, endpoint):
            result = follow(Direct(), [dspy.streaming.StreamListener("answer")], server, awaited=awaited)
        assert not server.late
        assert chunks(result, "answer")[0].startswith("Ada")
        assert "".join(chunks(result, "answer")) == result[-1].answer

    def test_a_streamed_reply_is_recorded_as_any_other_and_streams_from_the_journal(self, tmp_path: Path) -> None:
        with streaming(pieces) as server, Journal(tmp_path) as journal:
            lm = connect("m", api_base=server.url, journal=journal)
            with dspy.context(lm=lm):
                answer = Direct()(question=QUESTION).answer
                result = follow(Direct(), [dspy.streaming.StreamListener("answer")], server)
            (plain,) = journal.records("call")
            assert "".join(chunks(result, "answer")) == answer
        with streaming(pieces) as server, Journal(tmp_path / "streamed") as journal:
            with dspy.context(lm=connect("m", api_base=server.url, journal=journal)):
                follow(Direct(), [dspy.streaming.StreamListener("answer")], server)
            (streamed,) = journal.records("call")
        same = ("key", "reply", "finish", "tokens_in", "tokens_out", "attempts", "error")
        assert {name: streamed[name] for name in same} == {name: plain[name] for name in same}

    def test_a_connection_that_breaks_off_is_tried_again_and_nothing_comes_twice(self) -> None:
        with streaming(pieces, cut=3) as server, asking(server):
            result = follow(Direct(), [dspy.streaming.StreamListener("answer")], server)
        assert len(server.bodies) == 2
        assert "".join(chunks(result, "answer")) == result[-1].answer == "Ada Brennock of Skerry Light"

    @pytest.mark.parametrize("own", [False, True])
    @pytest.mark.parametrize(
        "died",
        [
            DIED,
            b'data: {"object": "error", "message": "it died", "code": 500}\n\n',
            b'data: {"error": "it died"}\n\n',
            b'event: error\ndata: {"message": "it died"}\n\n',
            b'error: {"code": 500, "message": "it died"}\n\n',
            b"",  # no finish reason came, though each event has a place for one
        ],
    )
    def test_a_stream_that_ends_in_an_error_is_tried_again(self, died: bytes, own: bool) -> None:
        """Though "[DONE]" follows; by our client and by DSPy's."""
        with streaming(pieces, dies=2, dies_by=died) as server:
            lm = dspy.LM("openai/m", api_base=server.url, api_key="k", cache=False)
            with dspy.context(lm=connect(lm)) if own else asking(server):
                result = follow(Direct(), [dspy.streaming.StreamListener("answer")], server)
        assert len(server.bodies) == 2
        assert "".join(chunks(result, "answer")) == result[-1].answer == "Ada Brennock of Skerry Light"

    @pytest.mark.parametrize("how", [{"plain": True}, {"refuses": "stream"}, {"refuses": "stream_options"}])
    def test_a_server_that_knows_no_streams_answers_all_the_same(self, how: dict[str, Any]) -> None:
        with streaming(pieces, **how) as server, asking(server):
            result = follow(Direct(), [dspy.streaming.StreamListener("answer")], server)
        assert "".join(chunks(result, "answer")) == result[-1].answer == "Ada Brennock of Skerry Light"

    def test_what_is_cut_off_or_around_the_answer_is_never_streamed(self) -> None:
        """A base model goes on past the answer; another thinks aloud, and repeats the cue."""
        for said in (
            "Ada Brennock\n\nQuestion: Who else?",
            "<think>Who kept it?</think>Answer: Ada Brennock",
            "analysisKept by? assistantfinalAda Brennock",
        ):
            words = re.findall(r"\s*\S+", said)
            with streaming(lambda prompt, words=words: words) as server, asking(server):
                result = follow(Direct(), [dspy.streaming.StreamListener("answer")], server)
            assert "".join(chunks(result, "answer")) == result[-1].answer == "Ada Brennock"

    @pytest.mark.parametrize("connected", [True, False])
    def test_a_users_own_model_streams_through_our_templates(self, connected: bool, tmp_path: Path) -> None:
        with streaming(pieces, wait_after=2) as server, Journal(tmp_path) as journal:
            lm = dspy.LM("openai/m", api_base=server.url, api_key="k", cache=False)
            with dspy.context(lm=connect(lm, journal=journal) if connected else lm):
                result = follow(Direct(), [dspy.streaming.StreamListener("answer")], server)
            if connected:
                (record,) = journal.records("call")
                assert (record["tokens_in"], record["tokens_out"]) == (7, 5)
        assert not server.late
        assert "".join(chunks(result, "answer")) == result[-1].answer == "Ada Brennock of Skerry Light"

    @pytest.mark.parametrize("form", DSPY_FORMS)
    @pytest.mark.parametrize("plain", [False, True])
    def test_dspys_own_adapters_find_their_fields_in_what_comes_at_once(self, form: str, plain: bool) -> None:
        """Events that arrive together, a reply in one piece, and one of the cache: a listener needs small chunks."""
        adapter, reply = DSPY_FORMS[form]
        with streaming(lambda _: re.findall(r"\s*\S+", reply), plain=plain) as server, asking(server):
            for _ in range(2):
                listeners = [dspy.streaming.StreamListener(field) for field in ("reasoning", "answer")]
                with dspy.context(adapter=adapter()):
                    result = follow(dspy.ChainOfThought("question -> answer"), listeners, server)
                assert (result[-1].reasoning, result[-1].answer) == ("Ada kept the light.", "Ada Brennock")
                for field, text in result[-1].items():
                    assert "".join(chunks(result, field)) == text
                    assert len(chunks(result, field)) > 1
            assert len(server.bodies) == 1

    def test_without_listeners_the_pieces_come_as_they_are(self) -> None:
        def heard(each: Any) -> Any:
            server.heard.set()
            return each

        async def read() -> list[Any]:
            program = dspy.streamify(Direct(), is_async_program=True)
            return [heard(each) async for each in program(question=QUESTION)]

        with streaming(pieces, wait_after=2) as server, asking(server):
            *result, last = asyncio.run(read())
        assert not server.late
        assert "".join(each.choices[0].delta.content for each in result) == last.answer
        assert len(result) > 1
