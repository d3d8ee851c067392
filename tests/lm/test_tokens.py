"""The bound on the tokens of a prompt: what it covers, byte by byte."""

from __future__ import annotations

from dspy import lm15
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.lm.tokens import A_MESSAGE, A_PICTURE, A_REQUEST, at_most, bytes_of


def asked(*texts: str, system: str | None = None, **config: object) -> lm15.Request:
    messages = tuple(lm15.Message.user(text) for text in texts)
    return lm15.Request(model="m", messages=messages, system=system, config=lm15.Config(**config))  # type: ignore[arg-type]


def test_a_text_counts_its_bytes_a_message_and_the_request_their_allowance() -> None:
    assert at_most(asked("abc")) == A_REQUEST + A_MESSAGE + 3
    assert at_most(asked("abc", "é")) == A_REQUEST + 2 * A_MESSAGE + 3 + 2
    assert at_most(asked("abc", system="be brief")) == A_REQUEST + 2 * A_MESSAGE + 3 + 8


@given(st.text())
def test_a_text_has_the_bytes_that_utf_8_writes(text: str) -> None:
    assert bytes_of(text) == len(text.encode("utf-8", "surrogatepass"))


def test_the_parts_of_a_message_are_counted_with_what_joins_them() -> None:
    parts = (lm15.TextPart("one"), lm15.TextPart("two"))
    request = lm15.Request(model="m", messages=(lm15.Message("user", parts),))
    assert at_most(request) == A_REQUEST + A_MESSAGE + len("one\ntwo")


def test_a_schema_and_a_tool_are_part_of_what_a_template_may_write_out() -> None:
    schema = {"type": "json_schema", "schema": {"type": "object", "properties": {"ids": {"type": "array"}}}}
    assert at_most(asked("q", response_format=schema)) >= at_most(asked("q")) + 2 * len(repr(schema))
    tool = lm15.FunctionTool(name="search", description="d" * 200)
    request = lm15.Request(model="m", messages=(lm15.Message.user("q"),), tools=(tool,))
    assert at_most(request) >= at_most(asked("q")) + 2 * 200


def test_a_picture_counts_more_than_its_address() -> None:
    parts = (lm15.TextPart("what is it?"), lm15.ImagePart(url="http://127.0.0.1/a.png", media_type="image/png"))
    request = lm15.Request(model="m", messages=(lm15.Message("user", parts),))
    assert at_most(request) > A_PICTURE
