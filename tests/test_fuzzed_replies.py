"""Model output that nobody expected, through every reader and every method: no exception leaves, ids stay in range."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import dspy
import pytest
from dspy import lm15
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from isle import PASSAGES, QUESTION, one_list
from scripted import ScriptedLM, response

from blendfilter.filters.ids import IdsRead, negates, read_ids, restates_range
from blendfilter.filters.knowledge import KnowledgeFilter, OneCallFilter, PointwiseFilter, read_judgement
from blendfilter.lm.clients import ServerReply
from blendfilter.lm.openai import OpenAIEngine
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.iter_retgen import IterRetGen
from blendfilter.modules.multi_hop import (
    ReAct,
    SelfAsk,
)
from blendfilter.modules.ralm import RALM
from blendfilter.modules.self_consistency import SelfConsistency

pytestmark = pytest.mark.slow
CASES = 2000
fuzzed = settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
PIECES = (
    "None.", "0", "1", "4", "5", "-1", "99999", "0-4", "0 to 4", "1,3", "2.", "3)", "#2", "٣", "²", "½", "Ids:",
    "ids", "none", "knowledge 0:", "knowledge 3", "Knowledge:", "irrelevant", "not relevant", "relevant", "all but 2",
    "3 lighthouses", "[0, 3]", "[", "]", "{", "}", '{"ids": [0, 3]}', '{"ids": null}', '{"ids": {"0": true}}', '"',
    "```json", "```", "**", "`", "- ", "| 0 | yes |", "<think>", "</think>", "[THINK]", "[/THINK]", "Follow-up:",
    "Follow-up question 2:", "Intermediate answer:", "So the final answer is:", "So the answer is", "Thought 1:",
    "Action 1: Search[", "Finish[", "Search(", "Observation 1:", "Yes.", "no", "Verdict: yes", "Answer:", "Topic:",
    "I can't help with that.", "\n", "\n\n", "\r\n", "\u2028", "\x00", "\t", " ", ", ", ": ", "…", "’", "\ud800",
    "{{ instructions }}", "{% raw %}",
)  # fmt: skip
"""What readers look for, and what trips them."""

replies = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=14).map("".join),
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=10).map(" ".join),
    st.text(alphabet=st.characters(), max_size=60),
)
ks = st.integers(1, 12)


def in_range(read: IdsRead, k: int) -> None:
    assert all(type(each) is int and 0 <= each < k for each in read.ids)
    assert len(set(read.ids)) == len(read.ids)
    assert read.status in ("ids", "none", "suspect", "unparseable")
    assert bool(read.ids) == (read.status == "ids")


@fuzzed
@given(replies, ks, st.booleans())
def test_ids(reply: str, k: int, cut: bool) -> None:
    in_range(read_ids(reply, k, cut=cut), k)
    in_range(read_judgement(reply, k), k)
    assert isinstance(negates(reply), bool)
    assert isinstance(restates_range(reply, k), bool)


# --- a server's replies ---------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(allow_nan=False), replies),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["text", "type", "x"]), inner)
    ),
    max_leaves=6,
)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={name: st.one_of(value, json_values) for name, value in fields.items()})


tokens = st.lists(
    some(token=replies, logprob=st.floats(-9, 0), top_logprobs=st.lists(json_values, max_size=2)), max_size=3
)
choices = some(
    message=some(content=replies, reasoning_content=replies, refusal=replies),
    text=replies,
    finish_reason=st.sampled_from(["stop", "length", "content_filter", "odd", None]),
    logprobs=some(
        content=tokens, tokens=st.lists(replies, max_size=3), token_logprobs=st.lists(st.floats(-9, 0), max_size=3)
    ),
)
bodies = some(
    id=replies,
    model=replies,
    choices=st.lists(choices, min_size=1, max_size=2),
    usage=some(
        prompt_tokens=st.integers(-5, 50),
        completion_tokens=st.integers(-5, 50),
        prompt_tokens_details=some(cached_tokens=st.integers(0, 9)),
        completion_tokens_details=some(reasoning_tokens=st.integers(0, 9)),
        cost=st.floats(0, 1),
    ),
    error=some(message=replies, code=replies),
)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@fuzzed
@given(st.one_of(bodies, bodies, json_values, st.binary(max_size=12)))
def test_a_servers_body_is_a_response_or_a_fault(endpoint: Any, body: Any) -> None:
    engine = OpenAIEngine("http://127.0.0.1:9/v1", "none", model="m", endpoint=endpoint)
    request = lm15.Request(
        model="m", messages=(lm15.Message.user("q"),), config=lm15.Config(stop=("\nQuestion:",), logprobs=0)
    )
    content = body if isinstance(body, bytes) else json.dumps(body).encode("utf-8", "surrogatepass")
    try:
        answer = engine._answer(request, ServerReply(content))
    except lm15.LM15Error:
        return
    assert all(isinstance(part.text, str) for part in answer.message.parts)  # type: ignore[union-attr]
    assert answer.usage.input_tokens is None or answer.usage.input_tokens >= 0


# --- whole modules --------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _without_a_word_of_each_cut_reply(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "dspy.clients.lm")


METHODS: dict[str, Callable[[], dspy.Module]] = {
    "blendfilter": lambda: BlendFilter(one_list()),
    "one-call": lambda: BlendFilter(one_list(), filter=OneCallFilter(), filter_union=True),
    "pointwise": lambda: BlendFilter(one_list(), filter=PointwiseFilter()),
    "react": lambda: ReAct(one_list(), hops=2, filter=KnowledgeFilter()),
    "thought-action": lambda: ReAct(one_list(), hops=2, style="thought-action"),
    "self-ask": lambda: SelfAsk(one_list(), hops=2),
    "iter-retgen": lambda: IterRetGen(one_list(), filter=KnowledgeFilter(offer_none=True)),
    "self-consistency": lambda: SelfConsistency(one_list(), samples=3),
    "ralm": lambda: RALM(one_list(), filter=KnowledgeFilter(offer_none=True), rewrite=True),
}
expected = st.tuples(replies, st.sampled_from(["stop", "length", "content_filter"]))


@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(expected, min_size=1, max_size=12))
def test_a_method_answers_whatever_is_said(name: str, script: list[tuple[str, str]]) -> None:
    turns = iter(range(10**6))

    def reply(stage: str, prompt: str) -> Any:
        text, finish = script[next(turns) % len(script)]
        return response(text, finish=finish)

    with dspy.context(lm=ScriptedLM(reply)):
        prediction = METHODS[name]()(question=QUESTION)
    assert isinstance(prediction.answer, str)
    ids = {passage.id for passage in PASSAGES}
    assert {passage.id for passage in prediction.knowledge} <= ids
    for branch in prediction.branches.values():
        assert {each.id for each in branch.kept} <= {each.id for each in branch.retrieved}
