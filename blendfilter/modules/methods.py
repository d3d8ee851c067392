"""The methods by the names that the command line knows, and how one is made for a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import dspy

from blendfilter.asking import TaskWording
from blendfilter.errors import BadArgument, UnknownName
from blendfilter.filters.base import Filter
from blendfilter.filters.registry import ModuleKind, make_own, parameters_of
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.direct import ChainOfThought, Direct
from blendfilter.modules.iter_retgen import IterRetGen
from blendfilter.modules.multi_hop import ReAct, SelfAsk
from blendfilter.modules.ralm import RALM
from blendfilter.modules.self_consistency import SelfConsistency
from blendfilter.prompting import Prompts
from blendfilter.retrieval.base import Retriever, Searcher

METHOD = ModuleKind("method", "a method is a module that returns a Prediction with an answer")


class MethodEntry(NamedTuple):
    """How a method is made, and whether it searches."""

    make: Callable[..., dspy.Module]
    retrieves: bool = True


def _cdit(
    retriever: Searcher,
    k: int = 10,
    *,
    filter: Filter | str = "cdit",
    rewrite: bool = False,
    task: TaskWording | str = "hotpotqa",
    prompts: Prompts | str | None = None,
    adapter: dspy.Adapter | None = None,
) -> dspy.Module:
    # and with it the rules of trimming: a tenth of a second at every start
    from blendfilter.modules.cdit import CDIT

    return CDIT(
        retriever,
        k,
        filter=filter,
        rewrite=rewrite,
        task=task,
        prompts=prompts,
        adapter=adapter,
    )


METHODS: Mapping[str, MethodEntry] = {
    "direct": MethodEntry(lambda retriever, k, **rest: Direct(None, **rest), False),
    "cot": MethodEntry(lambda retriever, k, **rest: ChainOfThought(None, **rest), False),
    "direct-retrieval": MethodEntry(Direct),
    "cot-retrieval": MethodEntry(ChainOfThought),
    "blendfilter": MethodEntry(BlendFilter),
    "react": MethodEntry(ReAct),
    "self-ask": MethodEntry(SelfAsk),
    "iter-retgen": MethodEntry(IterRetGen),
    "self-consistency": MethodEntry(SelfConsistency),
    "ralm": MethodEntry(RALM),
    "cdit": MethodEntry(_cdit),
}

DEFAULT_K = 5
"""Passages per query, where a method has no number of its own."""


def make_method(
    name: str,
    retriever: Retriever | None,
    *,
    k: int | None = None,
    filter: dspy.Module | None = None,
    **arguments: Any,
) -> dspy.Module:
    """The method called `name`, or a `package:Class` of the user's.

    Without `k` it is the method's own: 5, and 10 of `ralm` and `cdit`. A user's class is called with as much of
    (retriever, k) as it takes: `Mine(retriever, k=5)`, `Mine(retriever)` or `Mine()`; a `filter` it must take by that
    name. `arguments` (task, without, prompts …) go to the package's own methods.

    Raises:
        UnknownName: no such method. BadArgument: it needs an index, does not take a filter, or a class that is no
            `dspy.Module`.
    """
    wanted = {} if filter is None else {"filter": filter}
    if ":" in name:
        return make_own(
            name, METHOD, retriever, offered={"k": DEFAULT_K if k is None else k}, wanted=wanted
        )
    if name not in METHODS:
        raise UnknownName.of("method", name, METHODS, "- or package:Class for one of your own")
    if METHODS[name].retrieves and retriever is None:
        raise BadArgument(
            f"{name} retrieves: give it passages (corpus=FILE, corpus='pooled' or index=DIR)"
        )
    if wanted and not METHODS[name].retrieves:
        raise BadArgument(
            f"{name} retrieves nothing that could be filtered: {', '.join(methods_taking('filter'))} do"
        )
    return METHODS[name].make(retriever, k_of(name) if k is None else k, **wanted, **arguments)


def k_of(name: str) -> int:
    """The passages per query that the method called `name` takes by default."""
    own = parameters_of(METHODS[name].make)["k"].default if name in METHODS else None
    return own if isinstance(own, int) else DEFAULT_K


def methods_taking(argument: str) -> list[str]:
    """The methods that take an argument of that name."""
    return [name for name, method in METHODS.items() if argument in parameters_of(method.make)]
