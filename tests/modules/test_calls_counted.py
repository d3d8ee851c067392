"""Calls a question, counted by a server: each baseline makes as many as its page says."""

from __future__ import annotations

from collections.abc import Callable

import dspy
import pytest
from isle import QUESTION, one_list
from model_server import serve

from blendfilter.lm.model import connect
from blendfilter.modules.base import Method
from blendfilter.modules.iter_retgen import IterRetGen
from blendfilter.modules.multi_hop import ReAct, SelfAsk
from blendfilter.modules.self_consistency import SelfConsistency

ENDLESS = "Yes.\nFollow-up: What about Tolm?\nIntermediate answer: invented.\nFollow-up: And then?"
ACTING = "I wonder.\nAction 1: Search[Tolm]\nObservation 1:\nTolm | invented"


@pytest.mark.parametrize(
    ("make", "calls"),
    [
        (lambda: IterRetGen(one_list()), 3),
        (lambda: IterRetGen(one_list(), iterations=4), 5),
        (lambda: SelfConsistency(one_list()), 11),
        (lambda: SelfConsistency(one_list(), samples=9), 10),
    ],
)
def test_calls_of_a_fixed_number(make: Callable[[], Method], calls: int) -> None:
    with serve() as server, dspy.context(lm=connect("m", api_base=server.url)):
        prediction = make()(question=QUESTION)
        assert server.stats()["requests"] == len(prediction.calls) == calls


@pytest.mark.parametrize("behave", ["plain", "reasoning"])
@pytest.mark.parametrize(
    ("make", "reply"),
    [
        (lambda: SelfAsk(one_list(), hops=3), ENDLESS),
        (lambda: ReAct(one_list(), hops=3), ENDLESS),
        (lambda: ReAct(one_list(), hops=3, style="thought-action"), ACTING),
    ],
    ids=["self-ask", "react", "thought-action"],
)
def test_a_model_that_never_ends_costs_its_hops_and_three(make: Callable[[], Method], reply: str, behave: str) -> None:
    """Also one that refuses stop strings: nothing that it invented is in any prompt."""
    with serve(reply=reply, behave=behave, keep=True) as server, dspy.context(lm=connect("m", api_base=server.url)):
        prediction = make()(question=QUESTION)
        stats = server.stats()
    assert stats["statuses"]["200"] == len(prediction.calls) == 3 + 1 + 1 + 1
    assert prediction.flags["hops_exhausted"] == 1
    assert not any("invented" in prompt for prompt in stats["prompts"])
    sent = [body.get("stop") for body in stats["bodies"]]
    assert all(stop is None or len(stop) <= 4 for stop in sent)
