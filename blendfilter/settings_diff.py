"""Which settings differ between what a folder or file was made with and what is asked for now."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any

FIRST = 3


def different_settings(
    stored: Any,
    wanted: Any,
    *,
    ignored: Collection[str] = (),
    words: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The first few settings that differ, by their paths and with both values; empty where none does.

    Args:
        stored, wanted: settings as JSON, nested as they like; a missing one is None.
        ignored: paths that may differ.
        words: what to say of a path instead of its values.

    >>> different_settings({"lm": {"name": "a", "seed": 1}}, {"lm": {"name": "b"}}, ignored=["lm.seed"])
    "lm.name was 'a', now 'b'"
    """
    differing = [pair for pair in _pairs(stored, wanted) if pair[0] not in ignored]
    found = [
        words.get(path, f"{path} was {was!r}, now {now!r}") for path, was, now in differing
    ]
    return "; ".join(found[:FIRST]) + (
        f"; and {len(found) - FIRST} more" if len(found) > FIRST else ""
    )


def _pairs(stored: Any, wanted: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(stored, Mapping) and isinstance(wanted, Mapping):
        for name in dict.fromkeys([*stored, *wanted]):
            yield from _pairs(
                stored.get(name), wanted.get(name), f"{path}.{name}" if path else str(name)
            )
    elif stored != wanted:
        yield path, stored, wanted
