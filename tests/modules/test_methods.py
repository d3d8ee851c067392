"""The methods by name, and a class of one's own in their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest
from isle import nothing

from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.cdit import CDIT
from blendfilter.modules.direct import ChainOfThought, Direct
from blendfilter.modules.iter_retgen import IterRetGen
from blendfilter.modules.methods import METHODS, make_method
from blendfilter.modules.multi_hop import ReAct, SelfAsk
from blendfilter.modules.ralm import RALM
from blendfilter.modules.self_consistency import SelfConsistency
from blendfilter.retrieval.callables import as_retriever

INDEX = as_retriever(nothing)

OWN = """
import dspy

class Whole(dspy.Module):
    def __init__(self, retriever, k=5):
        super().__init__()
        self.given = (retriever, k)

class Bare(dspy.Module):
    def __init__(self):
        super().__init__()
        self.given = ()
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_methods_of_a_test.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_methods_of_a_test"


KINDS = {
    "direct": Direct, "cot": ChainOfThought, "direct-retrieval": Direct, "cot-retrieval": ChainOfThought,
    "blendfilter": BlendFilter, "react": ReAct, "self-ask": SelfAsk, "iter-retgen": IterRetGen,
    "self-consistency": SelfConsistency, "ralm": RALM, "cdit": CDIT,
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_methods_by_name(name: str) -> None:
    method = make_method(name, INDEX, k=3, task="strategyqa")
    assert type(method) is KINDS[name]
    assert method.method_name == name
    assert ("k" in method.arguments()) is METHODS[name].retrieves is (name not in ("direct", "cot"))


@pytest.mark.parametrize(("name", "k"), [("cot-retrieval", 5), ("blendfilter", 5), ("ralm", 10), ("cdit", 10)])
def test_without_k_it_is_the_methods_own(name: str, k: int) -> None:
    assert make_method(name, INDEX).arguments()["k"] == k
    assert make_method(name, INDEX, k=3).arguments()["k"] == 3


@pytest.mark.parametrize(
    ("attribute", "given"),
    [("Whole", (INDEX, 3)), ("Bare", ())],
)
def test_a_class_of_ones_own_gets_as_much_as_it_takes(own: str, attribute: str, given: Any) -> None:
    method = make_method(f"{own}:{attribute}", INDEX, k=3)
    assert isinstance(method, dspy.Module)
    assert method.given == given
