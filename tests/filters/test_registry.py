"""The filters by name, what each takes, and a class of one's own in their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest
from scripted import ScriptedLM

from blendfilter.asking import TaskWording
from blendfilter.errors import BadArgument, UnknownName
from blendfilter.filters.cdit import CDITFilter
from blendfilter.filters.compressed import LongLLMLinguaFilter, SelectiveContextFilter
from blendfilter.filters.extractive import FullFilter, PassageFilter, SentenceFilter
from blendfilter.filters.filco import FilCoFilter
from blendfilter.filters.knowledge import KnowledgeFilter, OneCallFilter, PointwiseFilter
from blendfilter.filters.registry import FILTERS, make_filter
from blendfilter.filters.written import BIDERFilter, SummaryFilter

OWN = """
import dspy
from blendfilter import Filter

class First(Filter):
    def __init__(self, n=1, *, wording=None):
        super().__init__()
        self.given = (n, wording)

class Bare(Filter):
    pass

class Anything(Filter):
    def __init__(self, **given):
        super().__init__()
        self.given = given

ready = Bare()

class Plain:
    pass
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_filters_of_a_test.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_filters_of_a_test"


def test_filters_by_name() -> None:
    lm = ScriptedLM([])  # of the one that is a trained model alone
    made = {name: make_filter(name, **({"lm": lm} if name == "bider" else {})) for name in FILTERS}
    assert {name: type(each) for name, each in made.items()} == {
        "knowledge": KnowledgeFilter, "one-call": OneCallFilter, "pointwise": PointwiseFilter, "full": FullFilter,
        "passage": PassageFilter, "sentence": SentenceFilter, "filco": FilCoFilter, "filco-passage": FilCoFilter,
        "bider": BIDERFilter,
        "cdit": CDITFilter, "cdit-components": CDITFilter, "summary": SummaryFilter,
        "longllmlingua": LongLLMLinguaFilter, "selective-context": SelectiveContextFilter,
    }  # fmt: skip


@pytest.mark.parametrize(("name", "mode"), [("cdit", "word"), ("cdit-components", "components")])
def test_cdit_goes_by_the_rules_that_are_asked_for(name: str, mode: str) -> None:
    assert make_filter(name).arguments() == {"mode": mode, "rules": ["phi1"], "json_schema": None}
    assert make_filter(name, rules=["phi2", "phi1"]).arguments()["rules"] == ["phi2", "phi1"]
    with pytest.raises(BadArgument, match="the filter full takes no rules: cdit, cdit-components do"):
        make_filter("full", rules=["phi1"])


def test_one_of_ones_own_gets_what_it_takes(own: str) -> None:
    wording = TaskWording.of("twowiki")
    assert make_filter(f"{own}:First", wording="twowiki", n=3).given == (3, wording)
    assert make_filter(f"{own}:First").given[0] == 1
    assert isinstance(make_filter(f"{own}:Bare"), dspy.Module)
    assert make_filter(f"{own}:Anything", by="bm25").given == {"by": "bm25"}
    assert make_filter(f"{own}:ready") is make_filter(f"{own}:ready")


@pytest.mark.parametrize(
    ("attribute", "argument", "reported"),
    [
        ("Bare", {"n": 3}, "takes no argument 'n'"),
        ("ready", {"by": "bm25"}, "takes no argument 'by'"),
        ("Plain", {}, "is no dspy.Module: a filter is a module"),
        ("FirstOfAll", {}, "no class 'FirstOfAll'"),
    ],
)
def test_one_of_ones_own_with_a_mistake(own: str, attribute: str, argument: dict[str, Any], reported: str) -> None:
    with pytest.raises((BadArgument, UnknownName), match=reported):
        make_filter(f"{own}:{attribute}", **argument)
