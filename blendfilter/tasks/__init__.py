"""Question sets: one file a data set, `generic` for anyone's own, and `load` in front of them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blendfilter.tasks.base import Hub, Questions, Task
    from blendfilter.tasks.loading import TASKS, load

__all__ = ["TASKS", "Hub", "Questions", "Task", "load", "names"]

_NAMES = (
    "hotpotqa", "twowiki", "strategyqa", "nq", "triviaqa", "fever", "eli5", "wow", "popqa", "arc", "pubhealth", "qa",
)  # fmt: skip


def names() -> tuple[str, ...]:
    """The tasks by name; imports nothing, so that a help text can list them.

    >>> names()[0], names()[-1]
    ('hotpotqa', 'qa')
    """
    return _NAMES


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "loading" if name in ("TASKS", "load") else "base"
    return getattr(import_module(f"{__name__}.{module}"), name)
