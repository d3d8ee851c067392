"""What shows a run or scores it anew, by name. The package registers it here, so that a run imports none of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Views = Mapping[str, Callable[..., Any]]
_LOADERS: list[Callable[[], Views]] = []


def register(loader: Callable[[], Views]) -> None:
    """Have `loader` give the views when the first one is asked for."""
    _LOADERS[:] = [loader]


def view(name: str) -> Callable[..., Any]:
    """The view called `name`."""
    return _LOADERS[0]()[name]
