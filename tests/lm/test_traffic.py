"""Which faults of a real server are tried again and which are not, and what is kept of each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dspy
import pytest
from model_server import Server, serve
from small_world import Command

from blendfilter.errors import BadArgument, BlendFilterError, ModelError, ServerRefused
from blendfilter.journal import Journal
from blendfilter.lm.connect import connect
from blendfilter.lm.gate import Gate
from blendfilter.lm.retrying import Allowance, Retry
from blendfilter.lm.terms import Terms, Traffic

QUICK = Retry(wait_first=0.01)
SHORT = 0.5
"""Seconds that an attempt may take where a server hangs, and only there: a busy machine may take long to send one."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(behave="asked", retry_after="0") as running:
        yield running


class Told(NamedTuple):
    """What came of one call: the reply or the error, the server's own count, the journal's record if there is one."""

    reply: str | None
    error: BlendFilterError | None
    requests: int
    record: dict[str, Any] | None


def called(server: Server, folder: Path, prompt: str, retry: Retry = QUICK, **traffic: Any) -> Told:
    server.reset()
    reply = error = None
    with Journal(folder) as journal:
        lm = connect("m", api_base=server.url)
        lm.terms = Terms(retry=retry)
        try:
            (reply,) = lm.with_journal(journal, Traffic(**traffic))(prompt)
        except BlendFilterError as raised:
            error = raised
        records = list(journal.records())
    assert len(records) <= 1
    return Told(reply, error, server.stats()["requests"], records[0] if records else None)


PASSING = (
    "408", "409", "425", "429", "500", "502", "503", "504", "529", "rate-limit", "busy", "error", "drop", "html",
    "truncated", "torn", "hang",
)  # fmt: skip


@pytest.mark.parametrize("fault", PASSING)
def test_a_fault_that_passes_is_tried_again(fault: str, server: Server, tmp_path: Path) -> None:
    retry = Retry(wait_first=0.01, timeout=SHORT) if fault == "hang" else QUICK
    told = called(server, tmp_path, f"[2 x {fault}] How many?", retry)
    assert (told.reply, told.error) == ("So the answer is 42.", None)
    assert told.requests == 3
    assert told.record is not None
    assert (told.record["attempts"], told.record["error"]) == (3, None)
    assert server.stats()["faults"] == ({} if fault == "hang" else {fault: 2})


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("429", "rate_limited"),
        ("500", "server_error"),
        ("408", "timeout"),
        ("hang", "timeout"),
        ("drop", "server_error"),
        ("html", "server_error"),
        ("torn", "server_error"),
    ],
)
def test_a_fault_that_does_not_pass_after_all_is_the_calls_error(
    fault: str, kind: str, server: Server, tmp_path: Path
) -> None:
    timeout = SHORT if fault == "hang" else None
    told = called(server, tmp_path, f"[9 x {fault}] How many?", Retry(attempts=3, wait_first=0.01, timeout=timeout))
    assert told.requests == 3
    assert isinstance(told.error, ModelError)
    assert told.error.kind == kind
    assert told.record is not None
    assert (told.record["attempts"], told.record["error"]["kind"]) == (3, kind)
    assert "reply" not in told.record, "a failed call is no empty answer"


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("400", "bad_request"), ("413", "bad_request"), ("422", "bad_request"), ("context", "context_too_long")],
)
def test_a_prompt_that_is_refused_is_asked_once(fault: str, kind: str, server: Server, tmp_path: Path) -> None:
    told = called(server, tmp_path, f"[9 x {fault}] How many?")
    assert told.requests == 1
    assert isinstance(told.error, ModelError)
    assert told.error.kind == kind
    assert told.record is not None
    assert told.record["attempts"] == 1


@pytest.mark.parametrize("fault", ["401", "402", "403", "404"])
def test_what_refuses_us_altogether_is_asked_once_and_leaves_no_record(
    fault: str, server: Server, tmp_path: Path
) -> None:
    told = called(server, tmp_path, f"[9 x {fault}] How many?")
    assert told.requests == 1
    assert isinstance(told.error, ServerRefused)
    assert told.record is None


def test_a_call_that_failed_is_made_again_on_whatever_terms(server: Server, tmp_path: Path) -> None:
    """Terms are no part of a call's key: the answer takes the place of the error."""
    prompt = "[3 x 500] How many?"
    failed = called(server, tmp_path, prompt, Retry(attempts=3, wait_first=0.01))
    with Journal(tmp_path) as journal:
        lm = connect("m", api_base=server.url, journal=journal, attempts=1, deadline=30)
        assert lm(prompt) == ["So the answer is 42."]
        first, second = journal.records()
        assert journal.find(first["key"]) == second
    assert first == failed.record
    assert first["key"] == second["key"]
    assert (second["attempts"], second["error"]) == (1, None)


def test_retry_after_is_kept_to(tmp_path: Path) -> None:
    with serve(behave="asked", retry_after="0.6") as server:
        began = time.monotonic()
        assert called(server, tmp_path, "[1 x rate-limit] q").requests == 2
    assert 0.6 <= time.monotonic() - began < 5


def test_a_wait_that_is_longer_than_the_deadline_ends_the_call_at_once(tmp_path: Path) -> None:
    with serve(behave="asked", retry_after="3600") as server:
        began = time.monotonic()
        told = called(server, tmp_path, "[1 x rate-limit] q")
    assert time.monotonic() - began < 5
    assert isinstance(told.error, ModelError)
    assert (told.error.kind, told.requests) == ("rate_limited", 1)


def test_a_deadline_cuts_off_the_attempt_that_would_reach_beyond_it(server: Server, tmp_path: Path) -> None:
    began = time.monotonic()
    told = called(server, tmp_path, "[9 x hang] q", Retry(timeout=30, deadline=0.4))
    assert time.monotonic() - began < 5
    assert isinstance(told.error, ModelError)
    assert told.error.kind == "timeout"
    assert "time allowed for this call" in str(told.error)


def test_a_run_without_retries_left_says_so_in_the_calls_error(server: Server, tmp_path: Path) -> None:
    retries = Allowance(1)
    with pytest.warns(UserWarning, match="the 1 retries that this run may make are used up"):
        told = called(server, tmp_path, "[9 x 500] q", retries=retries, gate=Gate(4))
    assert told.requests == 2
    assert "are used up" in str(told.error)
    assert told.record is not None
    assert told.record["error"]["message"] == str(told.error)


# ---- how it is asked for


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"attempts": 0}, "attempts must be a whole number of at least 1, got 0"),
        ({"deadline": 0}, "deadline must be a number of seconds above 0, got 0"),
        ({"timeout": -1.0}, "timeout must be a number of seconds above 0"),
        ({"timeout": "60"}, "timeout must be a number of seconds above 0"),
        ({"requests_per_minute": 0}, "requests_per_minute"),
    ],
)
def test_terms_that_cannot_be_are_refused_before_a_journal_is_opened(
    settings: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(BadArgument, match=told):
        connect("m", api_base="http://127.0.0.1:9/v1", journal=tmp_path / "run", **settings)
    assert list(tmp_path.iterdir()) == []


def test_a_model_in_this_process_has_no_server_to_wait_for() -> None:
    with pytest.raises(BadArgument, match="offline answers in this process: requests_per_minute is for models behind"):
        connect("offline", requests_per_minute=60)


def test_a_users_own_model_is_called_on_our_terms() -> None:
    lm = connect(dspy.LM("openai/x", api_key="sk-test-0123456789"), attempts=2, timeout=9, tokens_per_minute=1000)
    assert lm.terms.retry == Retry(attempts=2, timeout=9)
    assert lm.terms.pace is not None
    assert connect(dspy.LM("openai/x", api_key="sk-test-0123456789")).terms.retry == Retry(timeout=None)


def test_terms_for_a_model_that_is_made_already_are_refused() -> None:
    with pytest.raises(BadArgument, match="is made already"):
        connect(connect("m", api_base="http://127.0.0.1:9/v1"), attempts=2)


@pytest.fixture
def blendfilter(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(monkeypatch, capsys)


def ask(server: Server, question: str, *more: object) -> tuple[object, ...]:
    return ("ask", question, "--method", "cot", "--lm", "m", "--api-base", server.url, *more)


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--attempts", 0, "attempts must be"),
        ("--timeout", 0, "timeout must be"),
        ("--deadline", -2, "deadline must be"),
        ("--rpm", 0, "requests_per_minute (--rpm) must be"),
        ("--tpm", -1, "tokens_per_minute (--tpm) must be"),
        ("--timeout", "nan", "timeout must be"),
        ("--rpm", 1.5, "--rpm"),
    ],
)
def test_a_bad_value_on_the_command_line_is_one_line(
    option: str, value: object, told: str, blendfilter: Command, server: Server
) -> None:
    ended = blendfilter(*ask(server, "How many?", option, value))
    assert ended.code == 2
    assert told in ended.error
    assert len(ended.notices) == 1


def test_the_command_line_sets_the_terms(blendfilter: Command, server: Server) -> None:
    server.reset()
    ended = blendfilter(*ask(server, "[9 x 500] How many?", "--attempts", 1, "--rpm", 100, "--tpm", 100000))
    assert ended.code == 1
    assert "The server had an error" in ended.error or "says 500" in ended.error
    assert server.stats()["requests"] == 1
    server.reset()
    began = time.monotonic()
    assert blendfilter(*ask(server, "[9 x hang] How many?", "--deadline", 0.3)).code == 1
    assert time.monotonic() - began < 10


def test_several_addresses_on_the_command_line_share_a_question(blendfilter: Command, server: Server) -> None:
    server.reset()
    with serve() as other:
        ended = blendfilter(*ask(server, "How many?", "--api-base", other.url))
        assert ended.code == 0, ended
        assert [server.stats()["requests"], other.stats()["requests"]] == [1, 1]
