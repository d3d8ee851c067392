"""Faults of real `openai` exceptions (raised by the real client over canned replies): translated, told, journaled."""

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
from blendfilter.errors import ModelError, ServerRefused
from blendfilter.lm import faults

ADDRESS = "http://127.0.0.1:9/v1"
KEY = "sk-proj-abcdef0123456789"


def raised(reply: httpx.Response | Exception) -> openai.OpenAIError:
    """What the client raises for this reply."""

    def handler(request: httpx.Request) -> httpx.Response:
        if isinstance(reply, Exception):
            raise reply
        return reply

    http = httpx.Client(transport=httpx.MockTransport(handler))
    client = openai.OpenAI(api_key=KEY, base_url=ADDRESS, max_retries=0, http_client=http)
    with pytest.raises(openai.OpenAIError) as caught:
        client.post("/chat/completions", body={}, cast_to=httpx.Response)
    return caught.value


def refused(status: int, body: Any, **headers: str) -> openai.APIStatusError:
    content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    error = raised(
        httpx.Response(status, content=content, headers={k.replace("_", "-"): v for k, v in headers.items()})
    )
    assert isinstance(error, openai.APIStatusError)
    return error


def said(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None, **more}}


@pytest.mark.parametrize(
    ("status", "kind", "again"),
    [
        (400, lm15.InvalidRequestError, False),
        (401, lm15.AuthError, False),
        (402, lm15.BillingError, False),
        (403, lm15.AuthError, False),
        (404, lm15.InvalidRequestError, False),
        (408, lm15.TimeoutError, True),
        (409, lm15.ServerError, True),
        (422, lm15.InvalidRequestError, False),
        (429, lm15.RateLimitError, True),
        (500, lm15.ServerError, True),
        (503, lm15.ServerError, True),
        (504, lm15.TimeoutError, True),
    ],
)
def test_each_status_has_its_class(status: int, kind: type[lm15.LM15Error], again: bool) -> None:
    fault = faults.translate(refused(status, said("something")))
    assert type(fault) is kind
    assert fault.status == status
    assert faults.retryable(fault) is again


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, said("too long", code="context_length_exceeded")),
        (400, said("This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.")),
        (
            400,
            {
                "object": "error",
                "message": "The prompt (total length 25938) is too long to fit into the model",
                "code": 400,
            },
        ),
        (
            400,
            said("request (4390 tokens) exceeds the available context size (4096 tokens), try increasing it", code=400),
        ),
        (500, {"error": {"code": 500, "message": "it does not fit", "type": "exceed_context_size_error"}}),
        (400, said("Requested tokens (2285) exceed context window of 2048")),
        (500, said("Requested tokens (2285) exceed context window of 2048")),
        (400, said("The input (5000 tokens) is longer than the model's context length (4096 tokens).")),
        (422, {"error": "`inputs` tokens + `max_new_tokens` must be <= 4096", "error_type": "validation"}),
        (400, said("prompt is too long: 210000 tokens > 200000 maximum")),
        (400, said("max_tokens must be at least 1, got -186.")),
    ],
)
def test_a_context_that_is_too_long_is_known_in_every_wording(status: int, body: dict[str, Any]) -> None:
    error = refused(status, body)
    fault = faults.translate(error)
    assert type(fault) is lm15.ContextLengthError
    assert not faults.retryable(fault)
    assert faults.refused_parameter(error, {"max_tokens", "temperature"}) is None
    told = faults.final(fault, address=ADDRESS, stage="check")
    assert isinstance(told, ModelError)
    assert (told.kind, told.stage) == ("context_too_long", "check")


def test_retry_after_as_seconds_and_as_a_date() -> None:
    fault = faults.translate(refused(429, said("slow down"), retry_after="7"))
    assert fault.retry_after == 7.0
    date = email.utils.formatdate(time.time() + 60, usegmt=True)
    assert faults.translate(refused(503, said("later"), retry_after=date)).retry_after == pytest.approx(60, abs=3)
    assert http.seconds_to_wait({"retry-after": email.utils.formatdate(0)}) == 0.0
    assert http.seconds_to_wait({"retry-after": "-3"}) is None


def test_thousandths_go_before_seconds_and_a_date_is_read_by_the_servers_own_clock() -> None:
    fault = faults.translate(refused(429, said("slow down"), retry_after="2", retry_after_ms="1500"))
    assert fault.retry_after == 1.5
    skewed = time.time() + 3600
    headers = {name: email.utils.formatdate(at, usegmt=True) for name, at in
               (("date", skewed), ("retry_after", skewed + 20))}  # fmt: skip
    assert faults.translate(refused(429, said("slow down"), **headers)).retry_after == 20.0


@pytest.mark.parametrize(
    "said_so",
    [
        "soon", "", "1e3", "-1", "nan", "9" * 400, "Wed, 99 Foo 2026",
        "Wed, 01 Jan 99999999999 00:00:00 GMT", "Wed, 01 Jan 2026 00:00:00 +9999999999",
    ],
)  # fmt: skip
def test_a_retry_after_that_cannot_be_read_says_nothing(said_so: str) -> None:
    assert http.seconds_to_wait({"retry-after": said_so}) is None


@given(st.text())
def test_no_header_breaks_its_reading(value: str) -> None:
    assert (http.seconds_to_wait({"retry-after": value, "date": value}) or 0.0) >= 0


def test_what_openai_tells_of_its_limits_is_no_retry_after() -> None:
    """It stands in every reply, for requests and for tokens, and does not say which of them ran out."""
    fault = faults.translate(refused(429, said("slow down"), **{"x-ratelimit-reset-requests": "6m0s"}))
    assert fault.retry_after is None


@pytest.mark.parametrize(
    ("status", "headers", "throttles"),
    [(429, {}, True), (503, {"retry_after": "3"}, True), (503, {}, False), (500, {"retry_after": "3"}, False)],
)
def test_which_faults_say_that_the_server_has_too_much_to_do(
    status: int, headers: dict[str, str], throttles: bool
) -> None:
    assert faults.throttled(faults.translate(refused(status, said("busy"), **headers))) is throttles


def test_a_quota_that_is_used_up_is_not_waited_for() -> None:
    fault = faults.translate(refused(429, said("You exceeded your current quota", code="insufficient_quota")))
    assert type(fault) is lm15.BillingError
    assert not faults.retryable(fault)
    assert isinstance(faults.final(fault, address=ADDRESS), ServerRefused)


def test_lost_and_missing_connections_are_told_apart() -> None:
    lost = faults.translate(raised(httpx.RemoteProtocolError("Server disconnected")))
    missing = faults.translate(raised(httpx.ConnectError("All connection attempts failed")))
    late = faults.translate(raised(httpx.ReadTimeout("")))
    assert all(faults.retryable(fault) for fault in (lost, missing, late))
    told = [faults.final(fault, address=ADDRESS) for fault in (lost, missing, late)]
    assert [getattr(error, "kind", "refused") for error in told] == ["server_error", "refused", "timeout"]
    assert ADDRESS in str(told[1])
    assert "--api-base" in str(told[1])
    assert isinstance(faults.translate(raised(httpx.ConnectTimeout("slow"))), lm15.TransportError)


@pytest.mark.parametrize(
    ("status", "body", "move"),
    [
        (401, said("no such key"), "key"),
        (403, said("not yours"), "key"),
        (404, said("The model `m` does not exist", code="model_not_found"), "--lm"),
        (400, said("foo/bar is not a valid model ID"), "--lm"),
        (404, '{"detail":"Not Found"}', "/v1"),
        (402, said("pay first"), "account"),
    ],
)
def test_what_cannot_be_helped_from_here_names_the_next_move_on_one_line(status: int, body: Any, move: str) -> None:
    told = faults.final(faults.translate(refused(status, body)), address=ADDRESS, stage="topic")
    assert isinstance(told, ServerRefused)
    assert move in str(told)
    assert ADDRESS in str(told)
    assert "\n" not in str(told)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "bad_request"), (422, "bad_request"), (429, "rate_limited"), (500, "server_error"), (504, "timeout")],
)
def test_a_final_error_survives_the_journal(status: int, kind: str) -> None:
    fault = faults.translate(refused(status, said("the cause")))
    told = faults.final(fault, address=ADDRESS, stage="answer")
    assert isinstance(told, ModelError)
    assert told.kind == kind
    assert "the cause" in str(told)
    for record in (faults.describe(fault, address=ADDRESS), faults.describe(told)):
        again = faults.restore(json.loads(json.dumps(record)), stage="answer")
        assert (type(again), str(again), vars(again)) == (type(told), str(told), vars(told))


def test_a_refusal_and_a_surprise_survive_it_too() -> None:
    told = faults.final(faults.translate(refused(401, said("no"))), address=ADDRESS)
    again = faults.restore(faults.describe(told))
    assert (type(again), str(again)) == (ServerRefused, str(told))
    odd = faults.final(RuntimeError("odd"), address=ADDRESS, stage="ids")
    assert isinstance(odd, ModelError)
    assert (odd.kind, odd.stage, str(odd)) == (
        "unexpected",
        "ids",
        "odd",
    )  # stored with the question, so without address


def test_no_key_comes_back_from_a_server_that_echoes_it() -> None:
    body = said(f"Incorrect API key provided: {KEY}. Authorization was Bearer {KEY}; masked: sk-proj-****6789.")
    fault = faults.translate(refused(401, body), key=KEY)
    assert "sk-proj" not in str(fault)
    assert "sk-proj" not in str(faults.final(fault, address=ADDRESS))
    assert "[key]" in fault.message
    odd = faults.translate(refused(400, said("your token hunter2-hunter2 is odd")), key="hunter2-hunter2")
    assert "hunter2" not in str(odd)


def test_a_page_in_place_of_json_is_cut_to_one_line() -> None:
    fault = faults.translate(refused(502, "<html>\n" + "x" * 5000))
    assert len(fault.message) < 500
    assert "\n" not in fault.message


@pytest.mark.parametrize(
    ("status", "body", "name"),
    [
        (400, said("Unsupported parameter", param="max_tokens", code="unsupported_parameter"), "max_tokens"),
        (
            400,
            said("Unsupported value: 'temperature' does not support 0", param="temperature", code="unsupported_value"),
            "temperature",
        ),
        (400, said("Unrecognized request argument supplied: chat_template_kwargs"), "chat_template_kwargs"),
        (
            400,
            said("Unknown parameter: 'x.y'", param="chat_template_kwargs.x", code="unknown_parameter"),
            "chat_template_kwargs",
        ),
        (400, said("Argument not supported on this model: stop"), "stop"),
        (
            422,
            {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]},
            "seed",
        ),
        (400, said("temperature must be at most 2"), None),
        (400, said("Unsupported parameter: 'logit_bias'", param="logit_bias", code="unsupported_parameter"), None),
        (500, said("temperature is not supported"), None),
    ],
)
def test_a_refused_parameter_is_named(status: int, body: dict[str, Any], name: str | None) -> None:
    sent = {"max_tokens", "temperature", "stop", "seed", "chat_template_kwargs"}
    assert faults.refused_parameter(refused(status, body), sent) == name


def test_an_error_sent_with_status_200() -> None:
    assert type(faults.in_reply({"error": {"message": "slow", "code": 429}})) is lm15.RateLimitError
    assert type(faults.in_reply({"error": "broken"})) is lm15.ServerError
    assert type(faults.in_reply({"choices": []})) is lm15.TransportError


@pytest.mark.parametrize(
    "body",
    [
        said("Your input was flagged by our moderation"),
        said("not allowed", code="content_policy_violation"),
        said("refused by the content filter"),
        said("This prompt is against the safety rules"),
    ],
)
def test_a_prompt_that_is_moderated_is_that_calls_error(body: dict[str, Any]) -> None:
    """Other questions may well be answered; a key that is refused stops the run."""
    told = faults.final(faults.translate(refused(403, body)), address=ADDRESS, stage="internal")
    assert isinstance(told, ModelError)
    assert (told.kind, told.stage) == ("bad_request", "internal")
    other = faults.final(faults.translate(refused(403, said("this key may not use the model"))), address=ADDRESS)
    assert isinstance(other, ServerRefused)


@pytest.mark.parametrize("status", [400, 408, 422, 429, 500, 503, 504])
def test_what_becomes_a_questions_error_names_no_address(status: int) -> None:
    """It is stored, and a run taken up at another address must be the same run."""
    told = faults.final(faults.translate(refused(status, said("the cause"))), address=ADDRESS, stage="answer")
    assert isinstance(told, ModelError)
    assert "127.0.0.1" not in str(told)
    lost = faults.final(faults.translate(raised(httpx.RemoteProtocolError("gone"))), address=ADDRESS)
    assert isinstance(lost, ModelError)
    assert "127.0.0.1" not in str(lost)
