"""Scorers as a user meets them: what can score, what is refused, what the journal keeps and what it spares."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import dspy
import pytest
import scoring_models as made
from scripted import ScriptedLM

from blendfilter.context import setting
from blendfilter.errors import BadArgument, ModelError, ReplayMiss
from blendfilter.journal import Journal
from blendfilter.lm.model import connect
from blendfilter.lm.scoring import Score, scorer
from blendfilter.lm.scoring.base import Result, TextPair
from blendfilter.lm.scoring.huggingface import HuggingFace
from blendfilter.lm.scoring.kept import KeptScorer

PAIRS = [("The capital of France is", " Paris"), ("Answer:", " yes"), ("Answer:", " no")]


class Counting(HuggingFace):
    """A tiny model that keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(made.gpt2())
        self.searches: list[TextPair] = []
        self.given = 0
        self.wait = threading.Event()
        self.wait.set()

    def results(self, pairs: Sequence[TextPair]) -> Iterator[tuple[int, Result]]:
        self.searches += pairs
        for found in super().results(pairs):
            self.given += 1
            yield found
            assert self.wait.wait(10)


@pytest.fixture
def model() -> Counting:
    return Counting()


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (path / "journal.jsonl").read_text().splitlines()]


# --- asking ---------------------------------------------------------------------------------------------------------


def test_the_same_pair_is_computed_once_in_one_call(model: Counting) -> None:
    found = KeptScorer(model).score([PAIRS[0], PAIRS[1], PAIRS[0], list(PAIRS[1])])  # type: ignore[list-item]
    assert model.searches == PAIRS[:2]
    assert found[:2] == found[2:]


def test_an_empty_continuation_is_certain_and_costs_nothing(model: Counting, tmp_path: Path) -> None:
    assert KeptScorer(model, Journal(tmp_path)).score([("a prompt", ""), ("", "")]) == [Score(0.0, 0)] * 2
    assert model.searches == []
    assert lines(tmp_path) == []


def test_a_cancelled_call_stops_computing(model: Counting) -> None:
    model.wait.clear()

    async def cancelled() -> None:
        call = asyncio.create_task(KeptScorer(model).ascore(PAIRS))
        while not model.given:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        model.wait.set()

    asyncio.run(cancelled())
    model._thread.submit(int).result(10)  # what was begun has ended
    assert model.given == 2


def test_half_a_character_is_no_reason_to_fall_over(model: Counting, tmp_path: Path) -> None:
    ask = KeptScorer(model, Journal(tmp_path))
    assert ask.score([("caf\ud800", " \udfff")]) == ask.score([("caf?", " ?")])


# --- the journal ----------------------------------------------------------------------------------------------------


def test_what_is_journaled_is_not_computed_again(model: Counting, tmp_path: Path) -> None:
    with Journal(tmp_path) as journal, setting(stage="cxmi"):
        first = KeptScorer(model, journal).score(PAIRS)
    again = Counting()
    with Journal(tmp_path) as journal:
        assert KeptScorer(again, journal).score([*PAIRS, ("new", " one")])[:3] == first
    assert again.searches == [("new", " one")]
    records = lines(tmp_path)
    assert [(each["kind"], each["stage"]) for each in records] == [("score", "cxmi")] * 3 + [("score", "")]
    assert {each["continuation"]: (each["logprob"], each["n_tokens"]) for each in records[:3]} == {
        pair[1]: tuple(found) for pair, found in zip(PAIRS, first, strict=True)
    }


def test_a_replay_needs_no_model_and_misses_by_name(model: Counting, tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        first = KeptScorer(model, journal).score(PAIRS)
    again = Counting()
    with Journal(tmp_path, "replay") as journal:
        ask = KeptScorer(again, journal)
        assert ask.score(PAIRS) == first
        with pytest.raises(ReplayMiss, match="asks for score"):
            ask.score([("new", " one")])
    assert again.searches == []


def test_other_weights_are_another_scorer(model: Counting, tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        one = KeptScorer(model, journal).score(PAIRS)
        other = KeptScorer(HuggingFace(made.llama()), journal).score(PAIRS)
    assert one != other
    assert len(lines(tmp_path)) == 6


def test_one_bad_pair_loses_none_of_the_others(model: Counting, tmp_path: Path) -> None:
    pairs = [PAIRS[0], ("the " * 300, " end"), PAIRS[1]]
    with Journal(tmp_path) as journal, pytest.raises(ModelError, match="context of 256") as first:
        KeptScorer(model, journal).score(pairs)
    assert first.value.kind == "context_too_long"
    assert len(lines(tmp_path)) == 3
    with Journal(tmp_path, "replay") as journal, pytest.raises(ModelError, match="context of 256") as replayed:
        KeptScorer(model, journal).score(pairs)
    assert (str(replayed.value), replayed.value.kind) == (str(first.value), first.value.kind)
    again = Counting()
    with Journal(tmp_path) as journal, pytest.raises(ModelError):
        KeptScorer(again, journal).score(pairs)
    assert again.searches == [pairs[1]]  # a failure is tried again, successes are not


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_numbers_that_are_none_are_no_score(number: str, tmp_path: Path) -> None:
    class Damaged(Counting):
        def results(self, pairs: Sequence[TextPair]) -> Iterator[tuple[int, Result]]:
            yield from ((at, Score(float(number), 1)) for at in range(len(pairs)))

    with Journal(tmp_path) as journal, pytest.raises(ModelError, match=f"no score for 'Paris' .* gives {number} in"):
        KeptScorer(Damaged(), journal).score(PAIRS)
    assert {each["logprob"] for each in lines(tmp_path)} == {None}


# --- what can score -------------------------------------------------------------------------------------------------

CAN = "a Hugging Face folder, a GGUF file"


def test_what_cannot_score_is_refused_with_what_can(fresh_dspy: None) -> None:
    for model in ("offline", connect("offline"), ScriptedLM([]), connect(ScriptedLM([])), dspy.LM("openai/gpt-4o")):
        with pytest.raises(BadArgument, match=CAN):
            scorer(model)
    with pytest.raises(BadArgument, match="'nonsense' is nothing that gives log-probabilities"):
        scorer("nonsense")
    with pytest.raises(BadArgument, match="is no address"):
        scorer("any", api_base="somewhere")


def test_settings_of_another_kind_of_model_are_refused() -> None:
    for model, wrong in ((made.gpt2(), "label"), ("vllm/x", "context")):
        with pytest.raises(BadArgument, match=f"has no setting '{wrong}'"):
            scorer(model, **{wrong: 1})  # type: ignore[arg-type]


def test_a_mode_that_would_change_nothing_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for given in (None, journal):
            with pytest.raises(BadArgument, match="mode 'replay' is for a journal that is opened here"):
                scorer(made.gpt2(), journal=given, mode="replay")
        with pytest.raises(BadArgument, match="mode 'replay'"):
            scorer(connect("m", api_base="http://127.0.0.1:9/v1", journal=journal), mode="replay")
