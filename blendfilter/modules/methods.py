"""The methods by the names that the command line knows, and how one is made for a task."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import dspy

from blendfilter.errors import BadArgument, BlendFilterError, UnknownName
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.direct import ChainOfThought, Direct
from blendfilter.retrieval.base import Retriever

MEND = "mend it (blendfilter --debug eval … shows where)"


class Named(NamedTuple):
    """How a method is made, and whether it searches."""

    make: Callable[..., dspy.Module]
    retrieves: bool


METHODS: Mapping[str, Named] = {
    "direct": Named(lambda retriever, k, **rest: Direct(None, **rest), False),
    "cot": Named(lambda retriever, k, **rest: ChainOfThought(None, **rest), False),
    "direct-retrieval": Named(Direct, True),
    "cot-retrieval": Named(ChainOfThought, True),
    "blendfilter": Named(BlendFilter, True),
}


def make_method(name: str, retriever: Retriever | None, *, k: int = 5, **arguments: Any) -> dspy.Module:
    """The method called `name`, or a `package:Class` of the user's own.

    A class of one's own is called with as much of (retriever, k) as it takes: `Mine(retriever, k=5)`, `Mine(retriever)`
    or `Mine()`. `arguments` (task, without, prompts …) go to the package's own methods.

    Raises:
        UnknownName: nobody by that name. BadArgument: it needs an index, or a class that is no `dspy.Module`.
    """
    if ":" in name:
        return _own(name, retriever, k)
    if name not in METHODS:
        raise UnknownName.of("method", name, METHODS, "- or package:Class for one of your own")
    if METHODS[name].retrieves and retriever is None:
        raise BadArgument(f"{name} retrieves: give it passages (--corpus FILE, --corpus pooled or --index DIR)")
    return METHODS[name].make(retriever, k, **arguments)


def _own(name: str, retriever: Retriever | None, k: int) -> dspy.Module:
    made = _imported(name)
    if isinstance(made, dspy.Module):
        return made
    if not callable(made) or (inspect.isclass(made) and not issubclass(made, dspy.Module)):
        raise BadArgument(f"{name} is no dspy.Module: a method is a module that returns a Prediction with an answer")
    # The class itself shows (*args, **kwargs), its metaclass' arguments; one without an __init__ of its own takes none.
    makes = made.__init__ if inspect.isclass(made) else made
    taken = {} if makes is dspy.Module.__init__ else dict(inspect.signature(makes).parameters)
    taken.pop("self", None)
    positional = [p for p in taken.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    first = [retriever] if positional and positional[0].name != "k" else []
    try:
        method = made(*first, **({"k": k} if "k" in taken else {}))
    except BlendFilterError:
        raise
    except Exception as error:  # whatever a user's own code raises
        raise BadArgument(f"{name} cannot be made ({_told(error)}): {MEND}") from error
    if not isinstance(method, dspy.Module):
        raise BadArgument(f"{name} makes no dspy.Module: a method is a module that returns a Prediction with an answer")
    return method


def _imported(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UnknownName(
            f"no module '{error.name}' for method '{name}': is it on the path? (run from its folder, or install it)"
        ) from error
    except Exception as error:  # whatever a user's own code raises
        raise BadArgument(f"module '{module_name}' cannot be imported ({_told(error)}): {MEND}") from error
    if not hasattr(module, attribute):
        raise UnknownName.of("class", attribute, [each for each in vars(module) if each[0] != "_"], f"in {module_name}")
    return getattr(module, attribute)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
