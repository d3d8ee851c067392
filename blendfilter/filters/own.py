"""Methods and filters of one's own, named `package:Class`: found, given what they take, held to what they should be.

In: the name and what may be given. Out: the module, or one line that says what is wrong with it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import dspy

from blendfilter.errors import BadArgument, BlendFilterError, UnknownName, words_of

MEND = "mend it (blendfilter --debug eval … shows where)"


class Kind(NamedTuple):
    """What is asked for: its name, and what makes one."""

    name: str
    meaning: str


def make_own(
    name: str, kind: Kind, *first: Any, offered: Mapping[str, Any], asked: Mapping[str, Any] | None = None
) -> dspy.Module:
    """The module that `name` is or makes.

    `first` goes to its first parameter, unless that is one of those `offered`, which it is given where it takes them;
    what is `asked` it must take.

    Raises:
        UnknownName: no such package or class. BadArgument: it cannot be made so, or is no `dspy.Module`.
    """
    made, asked = _imported(name, kind), asked or {}
    taken = {} if isinstance(made, dspy.Module) else parameters_of(made) if callable(made) else {}
    for argument in asked:
        if argument not in taken and not _takes_all(taken):
            raise BadArgument(f"{name} takes no argument '{argument}': give it one, or leave that out")
    if isinstance(made, dspy.Module):
        return made
    if not callable(made) or (inspect.isclass(made) and not issubclass(made, dspy.Module)):
        raise BadArgument(f"{name} is no dspy.Module: {kind.meaning}")
    positional = [p for p in taken.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    leading = first if positional and positional[0].name not in offered else ()
    given = {argument: value for argument, value in offered.items() if argument in taken}
    try:
        module = made(*leading, **given, **asked)
    except BlendFilterError:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's own code raises
        raise BadArgument(f"{name} cannot be made ({_told(error)}): {MEND}") from error
    if not isinstance(module, dspy.Module):
        raise BadArgument(f"{name} makes no dspy.Module: {kind.meaning}")
    return module


def parameters_of(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What a class or function takes, by name.

    >>> list(parameters_of(lambda retriever, k=5: None))
    ['retriever', 'k']
    """
    # The class itself shows (*args, **kwargs), its metaclass' arguments; one without an __init__ of its own takes none.
    makes = make.__init__ if inspect.isclass(make) else make
    taken = {} if makes is dspy.Module.__init__ else dict(inspect.signature(makes).parameters)
    taken.pop("self", None)
    return taken


def takes(name: str, kind: Kind, argument: str) -> bool:
    """Whether what `name` makes is given an argument of that name."""
    made = _imported(name, kind)
    return not isinstance(made, dspy.Module) and argument in parameters_of(made)


def _takes_all(taken: Mapping[str, inspect.Parameter]) -> bool:
    return any(each.kind == each.VAR_KEYWORD for each in taken.values())


def _imported(name: str, kind: Kind) -> Any:
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UnknownName(
            f"no module '{error.name}' for {kind.name} '{name}': is it on the path? "
            "(run from its folder, or install it)"
        ) from error
    except (Exception, SystemExit) as error:  # whatever a user's own code raises
        raise BadArgument(f"module '{module_name}' cannot be imported ({_told(error)}): {MEND}") from error
    if not hasattr(module, attribute):
        raise UnknownName.of("class", attribute, _modules_in(module), f"in {module_name}")
    return getattr(module, attribute)


def _modules_in(module: ModuleType) -> list[str]:
    """The names in a Python module that are, or could make, a `dspy.Module` of its own: not what it imports."""
    return [name for name, value in vars(module).items() if name[0] != "_" and _is_one(value, module.__name__)]


def _is_one(value: Any, home: str) -> bool:
    if inspect.isclass(value):
        return issubclass(value, dspy.Module) and value.__module__ == home
    return isinstance(value, dspy.Module)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {words_of(error)}"
