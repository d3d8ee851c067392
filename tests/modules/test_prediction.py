"""Predictions in a notebook: the trace as HTML, every text escaped; and for DSPy a prediction like any other."""

from __future__ import annotations

import copy
import pickle
from html.parser import HTMLParser

import dspy
import pytest
from isle import PASSAGES
from report_page import FIERCE

from blendfilter import BlendFilter, connect
from blendfilter.modules.base import Branch, Method, MethodPrediction
from blendfilter.records import Excerpt, Passage

QUESTION = "Which isle does Ormskerry lie on?"


@pytest.fixture
def answered(fresh_dspy: None) -> dspy.Prediction:
    with dspy.context(lm=connect("offline")):
        return BlendFilter(lambda query, k: PASSAGES[:k], k=2)(question=QUESTION)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.opened.append(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_notebook_shows_the_trace(answered: dspy.Prediction) -> None:
    view = Tags(answered._repr_html_())
    assert view.open == [], "every tag is closed"
    assert answered.answer in view.text
    for name in ("q", "q_ex", "q_in"):
        assert name in view.text
    assert "external reasoning + question" in view.text
    retrieved = sum(len(branch.retrieved) for branch in answered.branches.values())
    kept = sum(len(branch.kept) for branch in answered.branches.values())
    assert view.text.count("+ kept") == kept
    assert view.text.count("- dropped") == retrieved - kept
    assert f"{len(answered.knowledge)} passages kept" in view.text
    assert f"{len(answered.calls)} calls" in view.text


def test_what_was_retrieved_and_answered_is_text() -> None:
    passage, piece = Passage("1", FIERCE, FIERCE), Excerpt.of(Passage("1", FIERCE, FIERCE), [(0, len(FIERCE) - 1)])
    prediction = MethodPrediction(
        answer=FIERCE,
        reasoning=FIERCE,
        queries={FIERCE: FIERCE, "q": "a"},
        branches={FIERCE: Branch([passage], [piece]), "q": Branch([], [])},
        flags={FIERCE: 1},
    )
    view = Tags(prediction._repr_html_())
    assert set(view.opened) <= {"div", "p", "b", "bdi", "br", "code", "small", "table", "tr", "td"}
    assert "document.title" in view.text


def test_for_dspy_it_is_a_prediction_like_any_other(answered: dspy.Prediction) -> None:
    assert type(answered) is MethodPrediction
    assert isinstance(answered, dspy.Prediction)
    plain = dspy.Prediction(**dict(answered.items()))
    assert answered.toDict() == plain.toDict()
    assert repr(answered) == repr(plain)
    for copied in (copy.copy(answered), copy.deepcopy(answered), answered.copy(), pickle.loads(pickle.dumps(answered))):
        assert isinstance(copied, MethodPrediction)
        assert copied.toDict() == answered.toDict()
    assert answered.copy(answer="x").answer == "x"
    assert set(answered.keys()) >= {"answer", "queries", "branches", "flags", "calls"}


def test_completions_are_kept() -> None:
    class Several(Method):
        async def answer(self, question: str) -> dspy.Prediction:
            return dspy.Prediction.from_completions({"answer": ["one", "two"]})

    prediction = Several()(question="why?")
    assert prediction.answer == "one"
    assert list(prediction.completions.answer) == ["one", "two"]
