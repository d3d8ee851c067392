"""Filters of one's own in any method: asynchronous or not, a Prediction or a plain list, and what is no answer."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy35 import OF_34
from isle import PASSAGES, QUESTION, REPLIES, Echo, one_list, replies
from scripted import ScriptedLM

from blendfilter.errors import BadArgument
from blendfilter.filters.base import Filter, ask_filter
from blendfilter.journal import Journal
from blendfilter.modules.direct import Direct
from blendfilter.modules.methods import METHODS, make_method

RETRIEVING = sorted(name for name, method in METHODS.items() if method.retrieves and name != "cdit")
"""All but `cdit`, whose filter is its judge."""


class Synchronous(dspy.Module):
    """What anybody who knows DSPy writes first."""

    def forward(self, question: str, passages: Any) -> dspy.Prediction:
        return dspy.Prediction(kept=passages[1:2])


class Listing(Filter):
    """Returns the passages themselves."""

    async def aforward(self, question: str, passages: Any) -> Any:
        return passages[1:2]


class Reading(dspy.Module):
    """Returns what a prompt shows."""

    def forward(self, question: str, passages: Any) -> Any:
        return (passage.line for passage in passages[1:2])


@pytest.mark.parametrize("kind", [Synchronous, Listing, Reading])
@pytest.mark.parametrize("name", [*RETRIEVING, "union"])
def test_in_every_method(name: str, kind: type[dspy.Module]) -> None:
    def step(prompt: str) -> str:
        return REPLIES["step"] if "Follow-up: Which light?" in prompt else "Yes.\nFollow-up: Which light?"

    lm = ScriptedLM(replies(step=step))
    more = {"filter_union": True} if name == "union" else {}
    with dspy.context(lm=lm):
        method = make_method("blendfilter" if more else name, one_list(), filter=kind(), **more)
        prediction = method(question=QUESTION)
    assert [passage.line for passage in prediction.knowledge] == [PASSAGES[1].line]
    assert all(len(branch.kept) == 1 for branch in prediction.branches.values())
    wanted = [prompt for stage, prompt in lm.prompts if stage in ("direct", "answer", "step", "respond")][-1]
    last = wanted if name == "ralm" else wanted.rpartition("\n\n")[2]  # the last block; one of ralm has empty lines
    assert PASSAGES[1].line in last
    assert PASSAGES[0].line not in last


class Asking(dspy.Module):
    """Asks a model, synchronously."""

    def __init__(self) -> None:
        super().__init__()
        self.choose = dspy.Predict("question, passages: list[str] -> number: int")

    def forward(self, question: str, passages: Any) -> dspy.Prediction:
        prediction = self.choose(question=question, passages=[passage.line for passage in passages])
        return dspy.Prediction(kept=[passages[prediction.number]])


CHOICE = "[[ ## number ## ]]\n3\n\n[[ ## completed ## ]]"


def test_its_calls_are_the_questions(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        lm = ScriptedLM({"select.choose": [CHOICE], "direct": ["Ada"]}, journal=journal)
        with dspy.context(lm=lm, trace=[], adapter=dspy.ChatAdapter()):
            prediction = Direct(one_list(), filter=Asking())(question=QUESTION)
            assert len(dspy.settings.trace) == 2
    assert prediction.knowledge == [PASSAGES[3]]
    assert [stage for stage, _ in prediction.calls] == ["select.choose", "direct"]


@OF_34
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_many_that_wait_for_a_model_that_needs_a_thread_too() -> None:
    """More questions at once than there are shared threads: none waits for another's."""

    class Waiting(Filter):
        together = threading.Barrier(60, timeout=20)

        def forward(self, question: str, passages: Any, **more: Any) -> Any:
            self.together.wait()
            dspy.settings.lm("Ids:")
            return passages[:1]

    async def ask() -> list[Any]:
        method = Direct(one_list(), filter=Waiting())
        return await asyncio.gather(*(method.acall(question=f"{QUESTION} {i}") for i in range(60)))

    with dspy.context(lm=Echo("echo")):
        assert all(len(result.knowledge) == 1 for result in asyncio.run(ask()))


class OtherNames(Filter):
    def forward(self, passages: Any, query: str) -> Any:
        return passages


class OneMore(dspy.Module):  # type: ignore[misc]
    async def aforward(self, question: str, passages: Any, limit: int) -> Any:
        return passages[:limit]


@pytest.mark.parametrize(
    ("select", "has"),
    [
        (OtherNames(), r"forward\(.*, query: .str.\).*missing a required argument: .query."),
        (OneMore(), r"aforward\(.*, limit: 'int'\).*missing a required argument: 'limit'"),
    ],
)
def test_what_a_filter_is_called_with_is_told_where_a_method_takes_it(select: Any, has: str) -> None:
    with pytest.raises(BadArgument, match=rf"{type(select).__name__} is called with question=… and passages=….*{has}"):
        Direct(one_list(), filter=select)


class Saying(Filter):
    """Says what it was given."""

    def __init__(self, expected: Any) -> None:
        super().__init__()
        self.said = expected

    async def aforward(self, question: str, passages: Any) -> Any:
        return self.said


@pytest.mark.parametrize(
    ("expected", "reported"),
    [
        (None, "it gave None"),
        ("all", "it gave 'all'"),
        (dspy.Prediction(chosen=[]), r"it gave Prediction\("),
        (dspy.Prediction(kept=[], flags=["odd"]), "counts by name as flags"),
        ([3.5], "cannot read a float as a passage"),
        ([{"title": "Elsewhere", "text": "x"}], "kept a passage that it was not given .'Elsewhere | x'.: return some"),
    ],
)
def test_what_is_no_answer_is_told_as_such(expected: Any, reported: str) -> None:
    with pytest.raises(BadArgument, match=reported):
        asyncio.run(ask_filter(Saying(expected), QUESTION, PASSAGES))
