"""A reply in server-sent events: what is read of it however its bytes come, and what is handed on of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from blendfilter.lm.streamed import ReplyEvents


def piece(content: Any, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"id": "1", "choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish, **fields}]}


def lines(*events: Any, end: str = "\n\n") -> bytes:
    texts = (event if isinstance(event, str) else json.dumps(event, ensure_ascii=False) for event in events)
    return "".join(f"data: {text}{end}" for text in texts).encode()


def read(body: bytes, step: int) -> dict[str, Any]:
    """The reply in one piece, of a body that comes `step` bytes at a time; {} where it is none."""
    events = ReplyEvents()
    for length in range(step, len(body) + step, step):
        events.take(body[:length])
    events.take(body, whole=True)
    return json.loads(events.whole() or b"{}")


WHOLE = [piece("Jón "), piece("Brask"), piece("", "stop")]
TEXT = {"type": "text", "text": "Jón Brask"}
THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "Who?"}]}
BODIES: dict[str, bytes] = {
    "events": lines(*WHOLE, "[DONE]"),
    "no [DONE]": lines(*WHOLE),
    "no last line feed": lines(*WHOLE).rstrip(),
    "no space": lines(*WHOLE, "[DONE]").replace(b"data: ", b"data:"),
    "carriage returns": lines(*WHOLE, end="\r\r"),
    "both": lines(*WHOLE, end="\r\n\r\n"),
    "keep-alives": b": wait\n\n" + lines("", WHOLE[0]) + b":\n\nretry: 3\n" + lines(*WHOLE[1:]),
    "content in blocks": lines(piece([THOUGHT]), piece([TEXT]), piece("", "stop")),
    "blocks of other types": lines(piece([{**TEXT, "type": "output_text"}]), piece("", "stop")),
    "bare texts and objects": lines(piece(["Jón ", {"text": {"value": "Brask"}}]), piece("", "stop")),
    "an event behind the end that is none": lines(*WHOLE, "<html>"),
}


@pytest.mark.parametrize("step", [1, 7, 100_000])
@pytest.mark.parametrize("name", BODIES)
def test_a_reply_is_the_same_however_its_lines_end_and_its_bytes_come(name: str, step: int) -> None:
    """Byte by byte, the reads end in the middle of a line, of its end, and of a character."""
    (choice,) = read(BODIES[name], step)["choices"]
    thought = "Who?" if name == "content in blocks" else ""
    assert choice["message"] == {"content": "Jón Brask", "reasoning_content": thought}
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "body",
    [
        lines(piece("Jon")),
        lines(piece("Jon"), "<html>", piece("", "stop"), "[DONE]"),
        lines(piece("Jon"), {"choices": "none"}, piece("", "stop"), "[DONE]"),
        lines(piece("Jon")) + b'{"error": {"message": "boom"}}\n\n' + lines("[DONE]"),
        lines(piece("Jon"), "[DONE]"),  # its finish reason never came
        lines(piece("Jon", ""), piece(" Br", "")),  # some gateways state an empty one in each event
        b"",
    ],
)
def test_a_stream_without_an_end_or_with_a_part_that_cannot_be_read_is_no_reply(body: bytes) -> None:
    assert read(body, 7) == {}


def test_a_server_that_states_no_finish_reason_ends_a_reply_by_done() -> None:
    event = {"choices": [{"index": 0, "delta": {"content": "Jon"}}]}
    assert read(lines(event, "[DONE]"), 7)["choices"][0]["text"] == "Jon"
    assert read(lines(event), 7) == {}


DIED = {"message": "the provider died", "code": 502}


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize(
    "event",
    [
        lines({"error": DIED}),
        lines({**piece("", "error"), "error": DIED}),
        lines({"object": "error", **DIED}),
        b"event: error\n" + lines(DIED),
        lines(DIED),
        b"error: " + json.dumps(DIED).encode() + b"\n\n",  # llama.cpp
    ],
)
def test_an_error_behind_text_is_handed_on_beside_it(event: bytes, done: bool) -> None:
    whole = read(lines(piece("Jon")) + event + (lines("[DONE]") if done else b""), 7)
    assert whole["error"]["message"] == "the provider died"
    assert whole["choices"][0]["text"] == "Jon"


@pytest.mark.parametrize("reason", ["error", "abort", "length"])
def test_the_finish_reason_that_was_stated_last_is_handed_on(reason: str) -> None:
    whole = read(lines(piece("Jon", "stop"), piece("", reason, error=DIED), piece(""), {"choices": []}, "[DONE]"), 7)
    (choice,) = whole["choices"]
    assert (choice["finish_reason"], choice["error"], choice["text"]) == (reason, DIED, "Jon")
