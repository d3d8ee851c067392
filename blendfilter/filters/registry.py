"""The filters by the names that the command line knows, and how one is made for a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dspy

from blendfilter.asking import Wording
from blendfilter.errors import BadArgument, UnknownName
from blendfilter.filters.cdit.filter import CDITFilter
from blendfilter.filters.cdit.rules import Rule
from blendfilter.filters.extractive import FullFilter, PassageFilter, SentenceFilter
from blendfilter.filters.filco import FilCoFilter
from blendfilter.filters.knowledge import KnowledgeFilter
from blendfilter.filters.one_call import OneCallFilter
from blendfilter.filters.own import Kind, make_own, parameters_of
from blendfilter.filters.scorers import By
from blendfilter.prompting import Prompts

OWN = Kind("filter", "a filter is a module that takes a question and passages and returns a Prediction with kept")


def _knowledge(wording: Wording, prompts: Prompts | None) -> KnowledgeFilter:
    return KnowledgeFilter(offer_none=wording.offer_none, ask_topic=wording.ask_topic, wording=wording, prompts=prompts)


def _one_call(wording: Wording, prompts: Prompts | None) -> OneCallFilter:
    return OneCallFilter(offer_none=wording.offer_none, wording=wording, prompts=prompts)


def _filco(wording: Wording, prompts: Prompts | None) -> FilCoFilter:
    return FilCoFilter(wording=wording, prompts=prompts)


def _filco_passage(wording: Wording, prompts: Prompts | None) -> FilCoFilter:
    return FilCoFilter("passage", wording=wording, prompts=prompts)


def _cdit(wording: Wording, prompts: Prompts | None, rules: Sequence[str | Rule] = ("phi1",)) -> CDITFilter:
    return CDITFilter("word", rules, wording=wording, prompts=prompts)


def _cdit_components(wording: Wording, prompts: Prompts | None, rules: Sequence[str | Rule] = ("phi1",)) -> CDITFilter:
    return CDITFilter("components", rules, wording=wording, prompts=prompts)


FILTERS: Mapping[str, Callable[..., dspy.Module]] = {
    "knowledge": _knowledge,
    "one-call": _one_call,
    "full": FullFilter,
    "passage": PassageFilter,
    "sentence": SentenceFilter,
    "filco": _filco,
    "filco-passage": _filco_passage,
    "cdit": _cdit,
    "cdit-components": _cdit_components,
}


def make_filter(
    name: str,
    *,
    wording: Wording | str = "hotpotqa",
    prompts: Prompts | None = None,
    n: int | None = None,
    by: By | None = None,
    model: str | None = None,
    rules: Sequence[str | Rule] | None = None,
) -> dspy.Module:
    """The filter called `name`, or a `package:Class` of the user's own.

    `n`, `by`, `model` and `rules` are for those that take them; a class of one's own is given them, `wording` and
    `prompts` by name where its arguments are called so.

    >>> make_filter("sentence", n=2).arguments()
    {'n': 2, 'by': 'bm25', 'model': None}

    Raises:
        UnknownName: nobody by that name. BadArgument: an argument that it does not take, or a value out of its range.
    """
    given = {"n": n, "by": by, "model": model, "rules": rules}
    asked = {key: value for key, value in given.items() if value is not None}
    worded = Wording.of(wording) if isinstance(wording, str) else wording
    offered: dict[str, Any] = {"wording": worded, "prompts": prompts}
    if ":" in name:
        return make_own(name, OWN, offered=offered, asked=asked)
    if name not in FILTERS:
        raise UnknownName.of("filter", name, FILTERS, "- or package:Class for one of your own")
    taken = parameters_of(FILTERS[name])
    for argument in asked:
        if argument not in taken:
            takers = ", ".join(filters_taking(argument))
            raise BadArgument(f"the filter {name} takes no {argument}: {takers} do")
    return FILTERS[name](**{key: value for key, value in offered.items() if key in taken}, **asked)


def filters_taking(argument: str) -> list[str]:
    """The filters that take an argument of that name."""
    return [name for name, make in FILTERS.items() if argument in parameters_of(make)]
