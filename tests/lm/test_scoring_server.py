"""Scores over HTTP, against the same model in this process: every way that servers tell them, or fail to."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from pathlib import Path

import pytest
import scoring_models as made
from dspy import lm15
from scoring_server import BEHAVIOURS, serving

from blendfilter.errors import BadArgument, BudgetSpent, ModelError, ServerRefused
from blendfilter.lm.budget import Budget, BudgetAccount
from blendfilter.lm.call_policy import Traffic
from blendfilter.lm.model import connect
from blendfilter.lm.scoring import Score, scorer
from blendfilter.lm.scoring.echoes import ECHO, GENERATION, Way
from blendfilter.lm.scoring.probing import _OFF, PROBES, Manner, _chosen, manner_of

PAIRS = [
    ("The capital of France is", " Paris, and"),
    ("Answer: ", "Paris"),  # the seam lies inside a token
    ("Answer:", " Paris."),
    ("One, two,", " three, four"),
    ("Café: the", " king—of the north"),
]
REFUSED = {
    "always-shifted": "belong to other tokens",
    "late": "belong to other tokens",
    "last-right": "belong to other tokens",
    "silent": "it gives none, or not those of the prompt's tokens",
    "no-logprobs": "could not be checked",
    "chat-only": "it answers: Not Found",
    "refuses": "it answers: Only no echo is supported",
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
def test_a_server_tells_what_its_model_computes(folder: Path, behave: str) -> None:
    with serving(folder, behave) as server:
        assert same(scorer("tiny", api_base=server.url).score(PAIRS), scorer(folder).score(PAIRS))


def test_a_server_that_is_off_by_one_is_given_the_mark_that_puts_it_right(folder: Path) -> None:
    with serving(folder, "shifted") as server:
        found = scorer("tiny", api_base=server.url).score(PAIRS)
        sent = [body["prompt"] for body in server.bodies[-len(PAIRS) :]]
    assert same(found, scorer(folder, bos=True).score(PAIRS))
    assert not same(found, scorer(folder).score(PAIRS))
    assert sorted(sent) == sorted(f"<s>{prompt}{text}" for prompt, text in PAIRS)


@pytest.mark.parametrize("behave", REFUSED)
def test_a_server_that_cannot_is_refused_with_what_can(folder: Path, behave: str) -> None:
    with serving(folder, behave) as server:
        ask = scorer("tiny", api_base=server.url)
        with pytest.raises(ServerRefused) as caught:
            ask.score(PAIRS)
        spent = server.requests
    said = str(caught.value)
    assert REFUSED[behave] in said
    assert "what can: vLLM, llama-cpp-python's server" in said
    assert "\n" not in said
    assert spent <= 80


def test_every_behaviour_has_its_test() -> None:
    assert set(BEHAVIOURS) == {"echo", "prompt-logprobs", "shifted", *REFUSED}


def test_the_test_is_made_once_and_few_requests_long(folder: Path) -> None:
    with serving(folder) as server:
        ask = scorer("tiny", api_base=server.url)
        ask.score(PAIRS[:1])
        before = server.requests
        assert before <= 14
        ask.score(PAIRS[1:])
        assert server.requests - before == len(PAIRS) - 1


def test_words_that_prove_nothing_are_not_sent() -> None:
    """Numbers that lie near each other may belong to each other's tokens; halves of characters cannot be sent."""
    assert _chosen({" a": -1.0, " b": -1.5, " c": -1.9}) == {}
    assert _chosen({" a": -0.1, "\ufffd": -4.0, " ": -5.0, "": -9.0}) == {}
    assert _chosen({" a": -0.1, " b": -1.0, " c": -2.0, " d": -4.0}) == {" a": -0.1, " c": -2.0, " d": -4.0}


@pytest.mark.parametrize(
    ("off", "last", "stands"), [(0.05, 0.0, True), (0.05, 0.2, True), (0.12, 0.0, False), (0.0, 0.4, False)]
)
def test_how_near_a_number_must_be(off: float, last: float, stands: bool) -> None:
    """On average to a tenth of a nat, each to three; `last` is by how much the first prompt's last word is off."""
    words = {" a": -0.5, " b": -2.0, " c": -4.0}

    async def ask(text: str, way: Way, tokens: int) -> lm15.Response:
        told, numbers = [" a"], [-0.5]
        if way is not GENERATION:
            probe = next(each for each in PROBES if each in text)
            said = re.findall(" [abc]", text.partition(probe)[2])
            wrong = last if said == [" c"] and probe == PROBES[0] else 0.0
            told, numbers = [probe, *said, " a"], [-9.0, *(words[word] - off - wrong for word in said), -0.5]
        choice = {"logprobs": {"tokens": told, "token_logprobs": numbers, "top_logprobs": [words]}}
        message = lm15.Message("assistant", (lm15.TextPart(""),))
        return lm15.Response(id=None, model="m", message=message, finish_reason="stop", usage=lm15.Usage(),
                             provider_data={"choice": choice})  # fmt: skip

    assert asyncio.run(manner_of(ask)) == (Manner(ECHO) if stands else _OFF)


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
    with pytest.raises(BadArgument, match="concurrency must be at least 1"):
        scorer("tiny", api_base="http://127.0.0.1:9/v1", concurrency=0)


def test_an_error_of_the_whole_call_ends_its_other_requests(folder: Path) -> None:
    with serving(folder) as server:
        ask = scorer("tiny", api_base=server.url, concurrency=2)
        ask.score(PAIRS[:1])
        with pytest.raises(BadArgument, match="nothing stands before"):
            ask.score([("", "Paris"), *((f"The number is {i}", " yes") for i in range(400))])
        spent = server.requests
        time.sleep(0.5)
        assert server.requests <= spent + 1  # the one that was on its way


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


def test_a_seam_that_a_server_hides_is_an_error_and_no_guess(folder: Path) -> None:
    with serving(folder) as server:
        ask = scorer("tiny", api_base=server.url)
        with pytest.raises(ModelError, match="no score for '本' after '日': the tokens that the server tells do not"):
            ask.score([*PAIRS, ("日", "本")])


@pytest.mark.parametrize("number", [-math.inf, math.nan, None])
def test_a_number_that_is_none_is_an_error_and_asked_for_once(
    folder: Path, number: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(folder) as server:
        ask = scorer("tiny", api_base=server.url)
        ask.score(PAIRS[:1])
        before, told = server.requests, server._logprobs
        monkeypatch.setattr(server, "_logprobs", lambda ids: [*told(ids)[:-2], number, 0.0])  # the text's last token
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


def test_an_empty_prompt_has_nothing_before_it_on_a_server(folder: Path) -> None:
    with serving(folder) as server, pytest.raises(BadArgument, match="nothing stands before the continuation 'Paris'"):
        scorer("tiny", api_base=server.url).score([("", "Paris")])
