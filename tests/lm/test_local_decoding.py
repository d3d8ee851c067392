"""How tokens are chosen: a seed of the request and its sample, a grammar that always parses, settings that cut."""

from __future__ import annotations

import json

import pytest
from dspy import lm15
from local_model import IDS, asked, llama, replied, text_of, weights

from blendfilter.context import REPEAT, SAMPLE, CallSample, setting
from blendfilter.lm.local.decoding import Decoding, decoding_of, grammar_of, sampler
from blendfilter.lm.local.engine import LocalEngine

pytestmark = pytest.mark.slow

PROMPT = "Which of the passages 0, 1 and 2 help? Reply in JSON."


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 24), marks=pytest.mark.slow)], ids=["6", "18"])
def test_ids_under_a_grammar_parse_whatever_is_drawn(seeds: range) -> None:
    for seed in seeds:
        response = replied(asked(PROMPT, temperature=1.5, seed=seed, max_tokens=40, response_format=IDS))
        ids = json.loads(text_of(response))["ids"]
        assert set(ids) <= {0, 1, 2}
        assert (len(ids) <= 3, response.finish_reason) == (True, "stop")


def test_without_a_grammar_they_do_not() -> None:
    with pytest.raises(json.JSONDecodeError):
        json.loads(text_of(replied(asked(PROMPT, max_tokens=40))))


def test_formats_become_grammars() -> None:
    assert grammar_of({"type": "text"}) == ""
    assert 'ids-item ::= "0" | "1" | "2"' in grammar_of(IDS)
    assert "root ::=" in grammar_of({"type": "json_object"})


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "json_schema", "schema": {"$ref": "#/nowhere"}},
        {"type": "json_schema", "schema": {"type": "no such type"}},
        {"type": "json_schema"},
        {"type": "regex"},
    ],
)
def test_what_no_grammar_can_hold_is_told(wanted: dict[str, object]) -> None:
    with pytest.raises(lm15.UnsupportedFeatureError) as raised:
        grammar_of(wanted)
    assert str(raised.value).splitlines()[0]


def test_a_grammar_that_llama_cpp_refuses_is_told_not_crashed_over() -> None:
    with (
        pytest.raises(lm15.UnsupportedFeatureError, match=r"llama\.cpp refuses the grammar"),
        sampler(llama(), Decoding(grammar="root ::= nowhere")),
    ):
        pass


def test_a_seed_is_of_the_request_and_its_sample() -> None:
    config = lm15.Config(temperature=1.0, seed=3)
    seeds = [decoding_of(config, "p").seed, decoding_of(config, "p").seed]
    assert seeds[0] == seeds[1]
    seeds = [seeds[0], decoding_of(config, "other").seed, decoding_of(lm15.Config(seed=4), "p").seed]
    for sample in (CallSample(None, 1), CallSample(None, 2), CallSample(7, 0)):
        with setting(SAMPLE, sample):
            seeds.append(decoding_of(config, "p").seed)
    with setting(REPEAT, 2):
        seeds.append(decoding_of(config, "p").seed)
    assert len(set(seeds)) == 7
    assert all(0 <= seed < 2**32 - 1 for seed in seeds)


def test_a_temperature_that_was_not_given_is_one() -> None:
    assert decoding_of(lm15.Config(), "p").temperature == 1.0
    assert decoding_of(lm15.Config(temperature=0.0), "p").temperature == 0.0


def test_settings_cut_the_choice() -> None:
    """The likeliest token alone is left by top_k 1, by a tiny top_p and by greedy; a hot draw takes others."""

    def first(**config: object) -> str:
        return text_of(replied(asked("Say a word.", max_tokens=1, **config)))

    greedy = first()
    assert {first(temperature=2.0, top_k=1, seed=seed) for seed in range(8)} == {greedy}
    assert {first(temperature=1.0, top_p=0.01, seed=seed) for seed in range(8)} == {greedy}
    assert len({first(temperature=2.0, seed=seed) for seed in range(8)}) > 3


def test_penalties_end_a_repetition() -> None:
    raw = LocalEngine(weights(), context=128, endpoint="completions")
    for penalty in ({"frequency_penalty": 2.0}, {"presence_penalty": 2.0}):
        plain, held = (
            text_of(replied(asked("the sea the sea the sea the", max_tokens=20, **more), raw)).split()
            for more in ({}, penalty)
        )
        assert len(set(held)) > 2 * len(set(plain))
