"""What modules take and refuse: k, questions, and knowledge in any shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dspy
import pytest
from isle import nothing
from scripted import scripted

from blendfilter.errors import BadArgument
from blendfilter.modules.base import Answering
from blendfilter.modules.blendfilter import BlendFilter, Blending
from blendfilter.modules.direct import Direct
from blendfilter.modules.iter_retgen import IterRetGen
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
