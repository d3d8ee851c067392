"""What modules take and refuse: k, questions, and knowledge in any shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dspy
import pytest
from isle import nothing
from scripted import scripted

from blendfilter.errors import BadArgument
from blendfilter.filters.extractive import SentenceFilter
from blendfilter.filters.registry import FILTERS, PLUG_INS, make_filter
from blendfilter.modules.base import Answering
from blendfilter.modules.blendfilter import BlendFilter, Blending
from blendfilter.modules.direct import Direct
from blendfilter.modules.iter_retgen import IterRetGen
from blendfilter.modules.methods import METHODS, make_method
from blendfilter.modules.multi_hop import ReAct, SelfAsk
from blendfilter.modules.ralm import RALM
from blendfilter.modules.self_consistency import SelfConsistency


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((kind, "k") for kind in (BlendFilter, Blending, Direct, RALM)),
        (lambda index, k: Direct(None, k=k), "k"),
        (ReAct, "hops"),
        (SelfAsk, "hops"),
        (IterRetGen, "iterations"),
        (SelfConsistency, "samples"),
    ],
)
@pytest.mark.parametrize("count", [0, "5", True])
def test_a_count_is_a_whole_number_of_one_or_more(kind: Callable[..., Any], name: str, count: Any) -> None:
    with pytest.raises(BadArgument, match=f"^{name} .*{count!r}"):
        kind(nothing, **{name: count})


@pytest.mark.parametrize("question", [None, " \n "])
@pytest.mark.parametrize("module", [BlendFilter(nothing), Blending(nothing), Answering(), Direct()])
def test_a_question_is_needed(module: dspy.Module, question: Any) -> None:
    with scripted([]) as lm, dspy.context(lm=lm), pytest.raises(BadArgument) as error:
        module(question=question)
    assert str(error.value) == f"{type(module).__name__} needs a question, got {question!r}"


MADE = [
    *(make_method(name, nothing) for name in METHODS),
    *(make_filter(name) for name in FILTERS if name not in ("bider", *PLUG_INS)),
]


@pytest.mark.parametrize("module", MADE, ids=lambda module: type(module).__name__)
def test_a_module_and_each_of_its_parts_print_as_one_line(module: dspy.Module) -> None:
    parts = [part for _, part in module.named_sub_modules()]
    assert len(parts) > len(module.predictors()), "the module itself is among them"
    for part in parts:
        assert str(part).startswith(f"{type(part).__name__}(")
        assert len(str(part).splitlines()) == 1


def test_what_is_printed_are_the_settings_that_are_set() -> None:
    assert repr(IterRetGen(nothing, 3, filter=SentenceFilter(2))) == (
        "IterRetGen(k=3, iterations=2, filter='SentenceFilter', n=2, by='bm25')"
    )
    assert repr(Blending(nothing, without="q_in")) == "Blending(k=5, without='q_in', drop_conclusion=False)"
    assert repr(Direct(nothing).direct) == "direct('knowledge, question -> answer', template='direct', demos=4)"
