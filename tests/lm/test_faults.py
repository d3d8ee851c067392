"""Faults of servers: told apart, worded, journaled, and answered where a setting is refused."""

from __future__ import annotations

import email.utils
import json
import time
from typing import Any

import httpx
import openai
import pytest
from dspy import lm15
from hypothesis import given
from hypothesis import strategies as st

from blendfilter import http
from blendfilter.dspy_surface import transports
from blendfilter.errors import ModelError, ServerRefused
from blendfilter.lm import faults
from blendfilter.lm.outcome import ending
from blendfilter.lm.refusals import Refusals, refused

ADDRESS = "http://127.0.0.1:9/v1"
KEY = "sk-proj-abcdef0123456789"


def answered(status: int, body: Any = None, *, key: str = "", **headers: str) -> lm15.LM15Error:
    """The fault for a reply of this status."""
    body = body or error("the cause")
    content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return faults.of_reply(status, content, {name.replace("_", "-"): value for name, value in headers.items()}, key=key)


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None, **more}}


def final(fault: lm15.LM15Error, stage: str = "answer") -> ServerRefused | ModelError:
    return faults.final(fault, address=ADDRESS, stage=stage)


@pytest.mark.parametrize(
    ("status", "kind", "outcome"),
    [
        (400, lm15.InvalidRequestError, "bad_request"),
        (401, lm15.AuthError, "refused"),
        (402, lm15.BillingError, "refused"),
        (403, lm15.AuthError, "refused"),
        (404, lm15.InvalidRequestError, "refused"),
        (408, lm15.TimeoutError, "timeout"),
        (409, lm15.ServerError, "server_error"),
        (422, lm15.InvalidRequestError, "bad_request"),
        (429, lm15.RateLimitError, "rate_limited"),
        (500, lm15.ServerError, "server_error"),
        (503, lm15.ServerError, "server_error"),
        (504, lm15.TimeoutError, "timeout"),
    ],
)
def test_each_status_has_its_class_and_its_end_which_survives_the_journal(
    status: int, kind: type[lm15.LM15Error], outcome: str
) -> None:
    """A question's error names no address: it is stored, and a run taken up at another address is the same run."""
    fault = answered(status)
    assert (type(fault), fault.status) == (kind, status)
    assert faults.retryable(fault) is (status in (408, 409, 429) or status >= 500)
    end = final(fault)
    assert getattr(end, "kind", "refused") == outcome
    assert "the cause" in str(end)
    assert (ADDRESS in str(end)) is (outcome == "refused")
    for record in (faults.describe(fault, address=ADDRESS), faults.describe(end)):
        again = faults.restore(json.loads(json.dumps(record)), stage="answer")
        assert (type(again), str(again), vars(again)) == (type(end), str(end), vars(end))


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, error("too long", code="context_length_exceeded")),
        (400, error("This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.")),
        (400, {"object": "error", "message": "The prompt (total length 25938) is too long to fit into the model"}),
        (400, error("request (4390 tokens) exceeds the available context size (4096 tokens), try increasing it")),
        (500, {"error": {"code": 500, "message": "it does not fit", "type": "exceed_context_size_error"}}),
        (500, error("Requested tokens (2285) exceed context window of 2048")),
        (400, error("The input (5000 tokens) is longer than the model's context length (4096 tokens).")),
        (422, {"error": "`inputs` tokens + `max_new_tokens` must be <= 4096", "error_type": "validation"}),
        (400, error("prompt is too long: 210000 tokens > 200000 maximum")),
        (400, error("max_tokens must be at least 1, got -186.")),
        (
            400,
            error(
                "'max_tokens' or 'max_completion_tokens' is too large: 32. This model's maximum context length is "
                "4096 tokens and your request has 4090 input tokens (32 > 4096 - 4090)."
            ),
        ),
    ],
)
def test_a_context_that_is_too_long_is_known_in_every_wording(status: int, body: dict[str, Any]) -> None:
    fault = answered(status, body)
    assert type(fault) is lm15.ContextLengthError
    assert not faults.retryable(fault)
    assert refused(fault, SENT) is None
    end = final(fault, "check")
    assert isinstance(end, ModelError)
    assert (end.kind, end.stage) == ("context_too_long", "check")


@pytest.mark.parametrize(
    "message",
    [
        "'max_tokens' or 'max_completion_tokens' is too large: 4128. This model's maximum context length is 4096 "
        "tokens and your request has 100 input tokens (4128 > 4096 - 100).",
        "max_tokens is too large: 40000. This model supports at most 16384 completion tokens",
        "`max_tokens` must be less than or equal to `8192`",
        "max_tokens: 70000 > 64000, which is the maximum allowed number of output tokens",
        "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
    ],
)
def test_a_cap_that_is_too_large_is_not_about_the_prompt(message: str) -> None:
    fault = answered(400, error(message, param="max_tokens"))
    assert type(fault) is lm15.InvalidRequestError
    assert refused(fault, {"max_tokens": ("max_tokens", 4128)}) is None
    assert getattr(final(fault), "kind", "refused") == "bad_request"


# ---- Retry-After


def test_retry_after_as_seconds_thousandths_or_a_date_by_the_servers_own_clock() -> None:
    def wait(**headers: str) -> float | None:
        seconds: float | None = answered(429, **headers).retry_after
        return seconds

    skewed = time.time() + 3600
    date, later = (email.utils.formatdate(at, usegmt=True) for at in (skewed, skewed + 20))
    assert wait(retry_after="7") == 7.0
    assert wait(retry_after="2", retry_after_ms="1500") == 1.5
    assert wait(date=date, retry_after=later) == 20.0
    assert wait(retry_after=email.utils.formatdate(0)) == 0.0
    # This one stands in every reply, for requests and for tokens, and does not say which of them ran out.
    assert wait(x_ratelimit_reset_requests="6m0s") is None


@given(
    st.text() | st.sampled_from(["1e3", "-1", "9" * 400, "Wed, 99 Foo 2026", "Wed, 01 Jan 2026 00:00:00 +9999999999"])
)
def test_no_header_breaks_the_reading_of_retry_after(value: str) -> None:
    assert (http.seconds_to_wait({"retry-after": value, "date": value}) or 0.0) >= 0


# ---- ends


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (transports.ReadError("server closed connection before sending response"), "server_error"),
        (transports.ProtocolError("no HTTP"), "server_error"),
        (ConnectionResetError("reset"), "server_error"),
        (transports.ConnectError("failed to connect"), "refused"),
        (transports.ConnectTimeout("slow"), "refused"),
        (transports.ReadTimeout("slow"), "timeout"),
        (httpx.RemoteProtocolError("Server disconnected"), "server_error"),
        (httpx.ConnectError("All connection attempts failed"), "refused"),
        (httpx.ConnectTimeout("slow"), "refused"),
        (httpx.ReadTimeout(""), "timeout"),
        (openai.APITimeoutError(httpx.Request("POST", ADDRESS)), "timeout"),
    ],
)
def test_lost_late_and_missing_connections_are_told_apart(cause: Exception, kind: str) -> None:
    """Through our client, and through those that a user's own model may call."""
    fault = faults.translate(cause)
    assert faults.retryable(fault)
    assert getattr(final(fault), "kind", "refused") == kind
    assert (ADDRESS in str(final(fault)) and "api_base=URL" in str(final(fault))) is (kind == "refused")


@pytest.mark.parametrize(
    ("status", "body", "move"),
    [
        (401, error("no such key"), "key"),
        (403, error("not yours"), "key"),
        (404, error("The model `m` does not exist", code="model_not_found"), "(lm=)"),
        (400, error("foo/bar is not a valid model ID"), "(lm=)"),
        (404, '{"detail":"Not Found"}', "/v1"),
        (402, error("pay first"), "account"),
        (429, error("You exceeded your current quota", code="insufficient_quota"), "account"),
    ],
)
def test_what_cannot_be_helped_from_here_names_the_next_move_on_one_line(status: int, body: Any, move: str) -> None:
    fault = answered(status, body)
    end = final(fault)
    assert isinstance(end, ServerRefused)
    assert not faults.retryable(fault)
    assert move in str(end)
    assert ADDRESS in str(end)
    assert "\n" not in str(end)


@pytest.mark.parametrize(
    "body",
    [
        error("Your input was flagged by our moderation"),
        error("not allowed", code="content_policy_violation"),
        error("refused by the content filter"),
        error("This prompt is against the safety rules"),
    ],
)
def test_a_prompt_that_is_moderated_is_that_calls_error(body: dict[str, Any]) -> None:
    """Other questions may well be answered; a key that is refused stops the run."""
    end = final(answered(403, body), "internal")
    assert isinstance(end, ModelError)
    assert (end.kind, end.stage) == ("bad_request", "internal")
    assert isinstance(final(answered(403, error("this key may not use the model"))), ServerRefused)


def test_no_key_comes_back_from_a_server_that_echoes_it() -> None:
    body = error(f"Incorrect API key provided: {KEY}. Authorization was Bearer {KEY}; masked: sk-proj-****6789.")
    fault = answered(401, body, key=KEY)
    assert "sk-proj" not in str(fault)
    assert "sk-proj" not in str(faults.final(fault, address=ADDRESS))
    assert "[key]" in fault.message
    odd = answered(400, error("your token hunter2-hunter2 is odd"), key="hunter2-hunter2")
    assert "hunter2" not in str(odd)


GIVEN = {
    "max_tokens": 8,
    "temperature": 0.0,
    "top_p": 1.0,
    "stop": ["x"],
    "seed": 3,
    "chat_template_kwargs": {},
    "response_format": {"type": "json_schema"},
    "logprobs": True,
    "top_logprobs": 20,
}
SENT = {name: (name, value) for name, value in GIVEN.items()}


@pytest.mark.parametrize(
    ("status", "body", "name"),
    [
        (400, error("Unsupported parameter", param="max_tokens", code="unsupported_parameter"), "max_tokens"),
        (400, error("'temperature' does not support 0", param="temperature", code="unsupported_value"), "temperature"),
        (400, error("invalid temperature: only 1 is allowed for this model"), "temperature"),
        (400, error("Unrecognized request argument supplied: chat_template_kwargs"), "chat_template_kwargs"),
        (400, error("x", param="chat_template_kwargs.x", code="unknown_parameter"), "chat_template_kwargs"),
        (400, error("Argument not supported on this model: stop"), "stop"),
        (422, {"detail": [{"loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]}, "seed"),
        (422, {"error": "Input validation error: `top_p` must be > 0.0 and < 1.0"}, "top_p"),
        (400, error("Unsupported parameter: 'logit_bias'", param="logit_bias", code="unsupported_parameter"), None),
        (500, error("temperature is not supported"), None),
        (400, error("max_tokens is too large: 9000. At most 4096 completion tokens"), None),
        (503, error("temperature must be > 0"), None),
        (400, error("Invalid 'stop': array too long. Expected an array with maximum length 1", param="stop"), "stop"),
        (400, error("Invalid 'stop': array too long. Expected an array with maximum length 1"), "stop"),
        (400, error("stop_sequences: each stop sequence must contain non-whitespace"), "stop"),
        (400, error("stop sequences must contain non-whitespace"), "stop"),
        (400, error("this model supports up to 4 stop sequences"), "stop"),
        (400, error("This response_format type is unavailable now"), "response_format"),
        (400, error("'response_format.type' must be 'json_schema' or 'text'"), "response_format"),
        (400, error("This model does not support response format `json_schema`."), "response_format"),
        (400, error("Invalid 'top_logprobs': integer above maximum value. Expected a value <= 5"), "top_logprobs"),
        (400, error("messages must not be empty"), None),
    ],
)
def test_a_refused_parameter_is_named(status: int, body: dict[str, Any], name: str | None) -> None:
    assert refused(answered(status, body), SENT) == (None if name is None else (name, None))


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (422, {"error": "Input validation error: `temperature` must be strictly positive"}),  # TGI
        (422, {"status": 422, "message": "Invalid params: temperature must be in range (0, +inf)"}),  # GigaChat
        (500, error("[pid=3] `temperature` (=0.0) has to be a strictly positive float, otherwise")),  # xinference
        (400, error("temperature参数非法。请检查文档。", code="1214")),  # GLM
        (400, error("0.0 is less than the minimum of 0.01 - 'temperature'")),  # FastChat
        (400, error("Temperature should be in (0.0, 2.0)")),
        (400, error("the range of temperature is (0, 1.0]")),
        (400, error("out of bounds", param="temperature")),
        (400, error("Invalid 'temperature': decimal below minimum value. Expected a value >= 0.1")),
        (422, {"detail": [{"loc": ["body", "temperature"], "msg": "Input should be greater than 0"}]}),
        (422, {"detail": [{"loc": ["body", "temperature"], "msg": "ensure this value is greater than 0"}]}),
        (400, error("temperature cannot be 0")),
        (400, error("temperature is too low")),
        (400, error("temperature不能为0")),
        (400, error("Expected temperature > 0")),
    ],
)
def test_a_temperature_of_0_is_refused_by_its_value(status: int, body: dict[str, Any]) -> None:
    assert refused(answered(status, body), SENT) == ("temperature", 0.01)
    chosen = {**SENT, "temperature": ("temperature", 3.0)}
    assert refused(answered(status, body), chosen) is None, "its user's own value"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_a_cap_that_is_too_low_is_raised_to_the_least_that_is_stated(name: str) -> None:
    result = error(
        f"Invalid '{name}': integer below minimum value. Expected a value >= 16, but got 8 instead.", param=name
    )
    assert refused(answered(400, result), SENT) == ("max_tokens", 16)
    assert refused(answered(400, error(f"{name} must be at least 100000")), SENT) is None, "that is another price"


@pytest.mark.parametrize(
    "body",
    [
        {"detail": [{"loc": ["body", "max_tokens"], "msg": "ensure this value is greater than or equal to 64"}]},
        error("max_tokens is too small: minimum is 64"),
        error("Range of max_tokens should be [64, 8192]"),
    ],
)
def test_a_least_cap_is_read_in_every_wording(body: dict[str, Any]) -> None:
    assert refused(answered(400, body), SENT) == ("max_tokens", 64)
    assert refused(answered(400, body), {"max_tokens": ("max_tokens", 64)}) is None


def test_a_setting_is_refused_through_dspys_client_as_it_is_by_ours() -> None:
    sent = {"temperature": ("temperature", 0.0), "reasoning_effort": ("reasoning", "low")}
    fault = lm15.ServerError("`temperature` (=0.0) has to be a strictly positive float", status=500)
    assert refused(fault, sent) == ("temperature", 0.01)
    fault = lm15.InvalidRequestError("reasoning_effort is not supported", status=400)
    assert refused(fault, sent) == ("reasoning", None)
    assert refused(lm15.ServerError("temperature is not supported"), sent) is None


def test_what_is_known_to_be_refused_is_not_forgotten_for_a_call_that_was_on_its_way() -> None:
    known = Refusals("m")
    for trial in ({"temperature": 0.01}, {"temperature": None}, {"temperature": 0.01}):
        known._learn(trial)
    assert known == {"temperature": None}


def test_an_error_sent_with_status_200() -> None:
    assert type(faults.in_reply({"error": {"message": "slow", "code": 429}})) is lm15.RateLimitError
    assert type(faults.in_reply({"error": "broken"})) is lm15.ServerError
    assert type(faults.in_reply({"choices": []})) is lm15.TransportError


def ends(reason: Any, **more: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": "Jon"}, "finish_reason": reason, **more}]}


@pytest.mark.parametrize(
    ("body", "ended"),
    [
        (ends("stop"), "stop"),
        (ends(None), "stop"),  # old servers leave it out
        (ends("STOP"), "stop"),
        (ends("eos_token"), "stop"),
        (ends("model_length"), "length"),
        (ends("tool_calls"), "tool_call"),
        (ends("stop", error=None) | {"error": None}, "stop"),
        (ends("stop", provider_specific_fields={"native_finish_reason": "MAX_TOKENS"}), "length"),  # by litellm
        ({"stop_reason": "end_turn", "content": []}, "stop"),
        ({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}}, "length"),
        ({"candidates": [{"finishReason": "STOP"}]}, "stop"),
        (ends("error"), lm15.TransportError),
        (ends("abort"), lm15.TransportError),
        (ends("a word of tomorrow"), lm15.TransportError),
        (ends(7), lm15.TransportError),
        (ends("stop", provider_specific_fields={"native_finish_reason": "abort"}), lm15.TransportError),
        ({"candidates": [{"finishReason": "OTHER"}]}, lm15.TransportError),
        (ends("error", error={"code": 502, "message": "provider died"}), lm15.ServerError),
        (ends("stop", error={"code": 429, "message": "slow"}), lm15.RateLimitError),
        (ends("stop") | {"error": "broken"}, lm15.ServerError),
        (ends("stop", provider_specific_fields={"error": {"message": "died"}}), lm15.ServerError),
        (ends("content_filter"), lm15.InvalidRequestError),
        (ends("SAFETY"), lm15.InvalidRequestError),
        ({"stop_reason": "refusal"}, lm15.InvalidRequestError),
    ],
)
def test_a_reply_ends_by_its_servers_own_word_and_no_unknown_word_is_an_ending(body: Any, ended: Any) -> None:
    if isinstance(ended, str):
        assert ending(body) == ended
        return
    with pytest.raises(lm15.LM15Error) as caught:
        ending(body)
    assert type(caught.value) is ended
    assert faults.retryable(caught.value) == (ended is not lm15.InvalidRequestError)


def test_what_a_client_made_of_an_ending_counts_where_the_body_does_not_say() -> None:
    assert ending({}, "length") == "length"
    with pytest.raises(lm15.TransportError, match="the reply broke off: its server ended it by 'error'"):
        ending({}, "error")
    with pytest.raises(lm15.InvalidRequestError, match="the server's content filter stopped the reply"):
        ending({}, "content_filter")
