"""Which settings differ between what a folder or file was made with and what is asked for now."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

SHOWN = 3


def different_settings(stored: Any, asked: Any, *, ignored: Collection[str] = ()) -> str:
    """The first few settings that differ, by their paths and with both values; empty where none does.

    Args:
        stored, asked: settings as JSON, nested as they like; a missing one is None.
        ignored: paths that may differ.

    >>> different_settings({"lm": {"name": "a", "seed": 1}}, {"lm": {"name": "b"}}, ignored=["lm.seed"])
    "lm.name was 'a', now 'b'"
    """
    found = [f"{path} was {was!r}, now {now!r}" for path, was, now in _pairs(stored, asked) if path not in ignored]
    return "; ".join(found[:SHOWN]) + (f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else "")


def _pairs(stored: Any, asked: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(stored, Mapping) and isinstance(asked, Mapping):
        for name in dict.fromkeys([*stored, *asked]):
            yield from _pairs(stored.get(name), asked.get(name), f"{path}.{name}" if path else str(name))
    elif stored != asked:
        yield path, stored, asked
