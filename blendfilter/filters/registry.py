"""Filters by the names that the command line knows, and a user's own methods and filters, named `package:Class`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import dspy

from blendfilter.asking import PromptSettings, TaskWording
from blendfilter.errors import BadArgument, BlendFilterError, UnknownName, words_of
from blendfilter.filters.base import Filter, check_call
from blendfilter.filters.cdit import CDITFilter
from blendfilter.filters.compressed import LongLLMLinguaFilter, SelectiveContextFilter
from blendfilter.filters.extractive import FullFilter, PassageFilter, SentenceFilter
from blendfilter.filters.filco import FilCoFilter, Unit
from blendfilter.filters.knowledge import KnowledgeFilter, OneCallFilter, PointwiseFilter
from blendfilter.filters.written import (
    BIDERFilter,
    SummaryFilter,
    TrainedFilCoFilter,
    TrainedPSGFilter,
    Unmatched,
)
from blendfilter.prompting import Prompts


class ModuleKind(NamedTuple):
    """A kind of module: its name, and what makes one."""

    name: str
    meaning: str


FILTER = ModuleKind(
    "filter",
    "a filter is a module that takes a question and passages and returns a Prediction with kept",
)
MEND = "mend it (blendfilter --debug eval … shows where)"


def _filco(
    *,
    wording: TaskWording,
    prompts: Prompts | str | None,
    adapter: dspy.Adapter | None,
    model: str | None = None,
    lm: dspy.BaseLM | None = None,
    unmatched: Unmatched | None = None,
    max_input_tokens: int | None = None,
) -> Filter:
    """FilCo's filter: M_ctx where a trained `model` is named, else the prompt for any model."""
    given: dict[str, Any] = {"unmatched": unmatched, "max_input_tokens": max_input_tokens}
    if model is None:
        return _prompted("sentence", given, wording=wording, prompts=prompts, adapter=adapter)
    given = _not_none(given)
    return TrainedFilCoFilter(model, lm=lm, prompts=prompts, adapter=adapter, **given)


def _filco_passage(
    *,
    wording: TaskWording,
    prompts: Prompts | str | None,
    adapter: dspy.Adapter | None,
    model: str | None = None,
    lm: dspy.BaseLM | None = None,
    max_input_tokens: int | None = None,
) -> Filter:
    """FilCo's PSG: by a trained `model` where one is named, else by the prompt for any model."""
    given: dict[str, Any] = {"max_input_tokens": max_input_tokens}
    if model is None:
        return _prompted("passage", given, wording=wording, prompts=prompts, adapter=adapter)
    given = _not_none(given)
    return TrainedPSGFilter(model, lm=lm, prompts=prompts, adapter=adapter, **given)


def _prompted(unit: Unit, given: Mapping[str, Any], **shared: Any) -> Filter:
    """FilCo's prompt. Raises: BadArgument for what is `given` and goes with a trained model."""
    for name in _not_none(given):
        raise BadArgument(f"{name} is for a trained model of FilCo's: name it as model=")
    return FilCoFilter(unit, **shared)


def _not_none(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


_BLENDFILTERS: Mapping[str, Callable[..., dspy.Module]] = {
    "knowledge": KnowledgeFilter,
    "one-call": OneCallFilter,
    "pointwise": PointwiseFilter,
}
"""Filters whose switches a task's wording sets."""
FILTERS: Mapping[str, Callable[..., dspy.Module]] = {
    **_BLENDFILTERS,
    "full": FullFilter,
    "passage": PassageFilter,
    "sentence": SentenceFilter,
    "filco": _filco,
    "filco-passage": _filco_passage,
    "bider": BIDERFilter,
    "cdit": partial(CDITFilter, "word"),
    "cdit-components": partial(CDITFilter, "components"),
    "summary": SummaryFilter,
    "longllmlingua": LongLLMLinguaFilter,
    "selective-context": SelectiveContextFilter,
}
PLUG_INS = ("longllmlingua", "selective-context")
"""Filters over packages that no extra brings."""


def make_filter(
    name: str,
    *,
    wording: TaskWording | str = "hotpotqa",
    prompts: Prompts | str | None = None,
    adapter: dspy.Adapter | None = None,
    **arguments: Any,
) -> dspy.Module:
    """The filter called `name`, or a `package:Class` of the user's.

    `arguments` (`n`, `by`, `model`, `min_score`, `tokens`, `rules`, `unmatched`, `max_input_tokens`) are for those that
    take them; a user's class is given them, `wording`, `prompts` and `adapter` by name where its arguments are called
    so. `lm` answers in place of a trained `model`.

    >>> make_filter("sentence", n=2).arguments()
    {'n': 2, 'by': 'bm25', 'model': None}

    Raises:
        UnknownName: no such filter. BadArgument: an argument that it does not take, or a value out of its range.
    """
    wanted = _not_none(arguments)
    worded = TaskWording.of(wording) if isinstance(wording, str) else wording
    offered: dict[str, Any] = {"wording": worded, "prompts": prompts, "adapter": adapter}
    if ":" in name:
        return make_own(name, FILTER, offered=offered, wanted=wanted)
    if name not in FILTERS:
        raise UnknownName.of("filter", name, FILTERS, "- or package:Class for one of your own")
    taken = parameters_of(FILTERS[name])
    for argument in wanted:
        if argument not in taken:
            takers = ", ".join(filters_taking(argument))
            raise BadArgument(f"the filter {name} takes no {argument}: {takers} do")
    if name == "bider" and not {"model", "lm"} & wanted.keys():
        raise BadArgument(
            f"the filter bider is a trained model: name it as model=; {BIDERFilter.made_by} makes one"
        )
    if name in _BLENDFILTERS:
        offered |= {"offer_none": worded.offer_none, "ask_topic": worded.ask_topic}
    given = {key: value for key, value in offered.items() if key in taken}
    return FILTERS[name](**{**given, **wanted})


def filter_of(filter: Filter | str | None, settings: PromptSettings) -> Filter | None:
    """`filter` itself, or the one of that name in the words of `settings`. Raises as `make_filter` does,
    and `BadArgument` for one that does not take what filters are called with."""
    if isinstance(filter, type):
        raise BadArgument(
            f"the filter is the class {filter.__name__}: give one of it, {filter.__name__}(…)"
        )
    made: Any = make_filter(filter, **settings._asdict()) if isinstance(filter, str) else filter
    check_call(made)
    return made  # type: ignore[no-any-return]


def filters_taking(argument: str) -> list[str]:
    """The filters that take an argument of that name."""
    return [name for name, make in FILTERS.items() if argument in parameters_of(make)]


def make_own(
    name: str,
    kind: ModuleKind,
    *first: Any,
    offered: Mapping[str, Any],
    wanted: Mapping[str, Any] | None = None,
) -> dspy.Module:
    """The module that `name` is or makes.

    `first` goes to its first parameter, unless that is one of those `offered`, which it is given where it takes them;
    what is `wanted` it must take.

    Raises:
        UnknownName: no such package or class. BadArgument: it cannot be made so, or is no `dspy.Module`.
    """
    made, wanted = _imported(name, kind), wanted or {}
    is_module = isinstance(made, dspy.Module)
    taken = parameters_of(made) if callable(made) and not is_module else {}
    takes_all = any(parameter.kind == parameter.VAR_KEYWORD for parameter in taken.values())
    for argument in wanted:
        if argument not in taken and not takes_all:
            raise BadArgument(
                f"{name} takes no argument '{argument}': give it one, or leave that out"
            )
    if is_module:
        return made
    if not callable(made) or (inspect.isclass(made) and not issubclass(made, dspy.Module)):
        raise BadArgument(f"{name} is no dspy.Module: {kind.meaning}")
    positional = [
        p for p in taken.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    leading = first if positional and positional[0].name not in offered else ()
    given = {argument: value for argument, value in offered.items() if argument in taken}
    try:
        module = made(*leading, **given, **wanted)
    except BlendFilterError:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's code raises
        words = words_of(error)
        raise BadArgument(
            f"{name} cannot be made ({type(error).__name__}: {words}): {MEND}"
        ).quoting(words) from error
    if not isinstance(module, dspy.Module):
        raise BadArgument(f"{name} makes no dspy.Module: {kind.meaning}")
    return module


def parameters_of(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What a class or function takes, by name."""
    # The class itself shows (*args, **kwargs), its metaclass' arguments; one without an __init__ of its own takes none.
    makes = make.__init__ if inspect.isclass(make) else make
    taken = {} if makes is dspy.Module.__init__ else dict(inspect.signature(makes).parameters)
    taken.pop("self", None)
    return taken


def takes(name: str, kind: ModuleKind, argument: str) -> bool:
    """Whether what `name` makes takes an argument of that name."""
    made = _imported(name, kind)
    return not isinstance(made, dspy.Module) and argument in parameters_of(made)


def _imported(name: str, kind: ModuleKind) -> Any:
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UnknownName(
            f"no module '{error.name}' for {kind.name} '{name}': is it on the path? "
            "(run from its folder, or install it)"
        ) from error
    except (Exception, SystemExit) as error:  # whatever a user's code raises
        reason = f"{type(error).__name__}: {words_of(error)}"
        raise BadArgument(
            f"module '{module_name}' cannot be imported ({reason}): {MEND}"
        ).quoting(reason) from error
    if not hasattr(module, attribute):
        own = [
            each
            for each, value in vars(module).items()
            if getattr(value, "__module__", "") == module_name
        ]
        raise UnknownName.of("class", attribute, own, f"in {module_name}")
    return getattr(module, attribute)
