"""Scores over HTTP, against the same model in this process: every way that servers tell them, or fail to."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

import pytest
import scoring_models as made
from scoring_server import serving

from blendfilter.errors import BadArgument, BudgetSpent, ModelError, ServerRefused
from blendfilter.lm.attempts import Traffic
from blendfilter.lm.budget import Budget, BudgetAccount
from blendfilter.lm.model import connect
from blendfilter.lm.scoring import Score, scorer

PAIRS = [
    ("The capital of France is", " Paris, and"),
    ("Answer: ", "Paris"),  # the seam lies inside a token
    ("Answer:", " Paris."),
    ("One, two,", " three, four"),
    ("Café: the", " king—of the north"),
]
REFUSED = {
    "shifted": "belong to other tokens",
    "last-right": "belong to other tokens",
    "silent": "it gives none, or not those of the prompt's tokens",
    "unchecked": "could not be checked",
    "broken": "it answers: logprobs is not supported",
}


@pytest.fixture(scope="module")
def folder() -> Path:
    return made.taught()


def same(found: list[Score], expected: list[Score]) -> bool:
    return [each.n_tokens for each in found] == [each.n_tokens for each in expected] and all(
        abs(one.logprob - other.logprob) < 1e-4 for one, other in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("behave", ["echo", "prompt-logprobs"])
def test_a_server_gives_what_its_model_computes(folder: Path, behave: str) -> None:
    with serving(folder, behave) as server:
        assert same(scorer("tiny", api_base=server.url).score(PAIRS), scorer(folder).score(PAIRS))


@pytest.mark.parametrize("behave", REFUSED)
def test_a_server_that_cannot_is_refused_with_what_can(folder: Path, behave: str) -> None:
    with serving(folder, behave) as server:
        ask = scorer("tiny", api_base=server.url)
        with pytest.raises(ServerRefused) as caught:
            ask.score(PAIRS)
        spent = server.requests
    result = str(caught.value)
    assert REFUSED[behave] in result
    assert "what can: vLLM, or another server whose completions echo" in result
    assert "\n" not in result
    assert spent <= 40


def test_the_test_is_made_once_and_few_requests_long(folder: Path) -> None:
    with serving(folder) as server:
        ask = scorer("tiny", api_base=server.url)
        ask.score(PAIRS[:1])
        before = server.requests
        assert before <= 14
        ask.score(PAIRS[1:])
        assert server.requests - before == len(PAIRS) - 1


def test_what_is_asked_for(folder: Path) -> None:
    """One generated token: with none, llama-cpp-python's server would go on to the end of its context."""
    with serving(folder) as server:
        scorer("tiny", api_base=server.url).score(PAIRS[:1])
        body = server.bodies[-1]
    assert body["prompt"] == "".join(PAIRS[0])
    assert (body["model"], body["max_tokens"], body["echo"], body["temperature"]) == ("tiny", 1, True, 0.0)


def test_a_connected_model_scores_with_its_server_and_its_journal(folder: Path, tmp_path: Path) -> None:
    with serving(folder) as server:
        lm = connect("tiny", api_base=server.url, label="mine", journal=tmp_path)
        first = scorer(lm).score(PAIRS)
        spent = server.requests
        assert scorer(lm).score(PAIRS) == first
        assert server.requests == spent
        address = server.url
    lm.journal.close()
    text = (tmp_path / "journal.jsonl").read_text()
    assert address not in text
    assert {json.dumps(json.loads(line)["scorer"]) for line in text.splitlines()} == {
        '{"kind": "server", "model": "tiny", "label": "mine"}'
    }
    # on a replay the server is gone, and is not missed
    assert scorer("tiny", api_base=address, label="mine", journal=tmp_path, mode="replay").score(PAIRS) == first


def test_requests_in_flight_are_bounded(folder: Path) -> None:
    pairs = [(f"The number is {i}", " yes") for i in range(24)]
    with serving(folder) as server:
        found = asyncio.run(scorer("tiny", api_base=server.url, concurrency=3).ascore(pairs))
        assert server.most <= 3
    assert same(found, scorer(folder).score(pairs))
    with pytest.raises(BadArgument, match="concurrency is 0"):
        scorer("tiny", api_base="http://127.0.0.1:9/v1", concurrency=0)


def test_a_server_that_refuses_later_is_no_score_and_no_record(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(folder) as server:
        ask = scorer("tiny", api_base=server.url, journal=tmp_path)
        ask.score(PAIRS[:1])
        monkeypatch.setattr(server, "answer", lambda *_: (401, {"error": {"message": "no such key"}}))
        with pytest.raises(ServerRefused, match="no such key"):
            ask.score(PAIRS)
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("number", [-math.inf, math.nan, None])
def test_a_number_that_is_none_is_an_error_and_asked_for_once(
    folder: Path, number: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(folder) as server:
        ask = scorer("tiny", api_base=server.url)
        ask.score(PAIRS[:1])
        before, result = server.requests, server._logprobs
        monkeypatch.setattr(server, "_logprobs", lambda ids: [*result(ids)[:-2], number, 0.0])  # the text's last token
        with pytest.raises(ModelError, match=r"no score for 'Paris\.' .* no log-probability of one of its tokens"):
            ask.score([PAIRS[2]])
        assert server.requests == before + 1


def test_several_servers_share_the_pairs(folder: Path) -> None:
    with serving(folder) as one, serving(folder) as other:
        found = scorer(connect("tiny", api_base=[one.url, other.url])).score(PAIRS * 2)
        assert min(one.requests, other.requests) >= 3
        assert same(scorer("tiny", api_base=[one.url, other.url]).score(PAIRS), found[: len(PAIRS)])
    assert same(found, scorer(folder).score(PAIRS) * 2)


def test_a_connected_models_budget_and_pace_hold_its_scores(folder: Path) -> None:
    """What a run allows its calls, it allows its scores; the self-test is paid for too."""
    with serving(folder) as server:
        lm = connect("tiny", api_base=server.url, requests_per_minute=1200)
        assert len(scorer(lm).backend._called.meters) == 2  # type: ignore[attr-defined]
        purse = BudgetAccount(Budget(calls=14))
        ask = scorer(lm.with_journal(None, Traffic(purse=purse)))
        with pytest.raises(BudgetSpent, match="14 of 14 calls are gone"):
            ask.score([(f"The number is {i}", " yes") for i in range(14)])
        assert server.requests == purse.spent.calls == 14
