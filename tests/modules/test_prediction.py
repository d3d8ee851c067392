"""Predictions in a notebook: the trace as HTML, every text escaped; and for DSPy a prediction like any other."""

from __future__ import annotations

import copy
import pickle
import re

import dspy
import pytest
from isle import PASSAGES
from report_page import FIERCE

from blendfilter import BlendFilter, connect
from blendfilter.modules.base import Branch, MethodPrediction
from blendfilter.records import Excerpt, Passage

QUESTION = "Which isle does Ormskerry lie on?"


@pytest.fixture
def answered(fresh_dspy: None) -> dspy.Prediction:
    with dspy.context(lm=connect("offline")):
        return BlendFilter(lambda query, k: PASSAGES[:k], k=2)(question=QUESTION)


def test_a_notebook_shows_the_trace(answered: dspy.Prediction) -> None:
    html = answered._repr_html_()
    for words in (answered.answer, "q_ex", "external reasoning + question", f"{len(answered.calls)} calls"):
        assert words in html
    retrieved = sum(len(branch.retrieved) for branch in answered.branches.values())
    kept = sum(len(branch.kept) for branch in answered.branches.values())
    assert (html.count("+ kept"), html.count("- dropped")) == (kept, retrieved - kept)


def test_what_was_retrieved_and_answered_is_text() -> None:
    passage = Passage("1", FIERCE, FIERCE)
    prediction = MethodPrediction(
        answer=FIERCE,
        reasoning=FIERCE,
        queries={FIERCE: FIERCE, "q": "a"},
        branches={FIERCE: Branch([passage], [Excerpt.of(passage, [(0, len(FIERCE) - 1)])]), "q": Branch([], [])},
        flags={FIERCE: 1},
    )
    html = prediction._repr_html_()
    assert set(re.findall(r"<(\w+)", html)) == {"div", "b", "bdi", "br", "code", "small"}
    assert set(re.findall(r"<\w+([^>]*)>", html)) == {""}, "no attribute"
    assert "document.title" in html


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
