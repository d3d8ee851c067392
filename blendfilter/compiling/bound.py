"""What a compile's folder and its program's file are bound to: the settings that made them.

In: the settings as JSON, a folder with a journal, a file that a program is to be saved in. Out: nothing, or one line
that says what differs. How many calls are out at once and what they may cost shape no program and may change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from blendfilter.compiling.programs import read_program
from blendfilter.errors import BadData, RunMismatch
from blendfilter.files import write_whole

FILE = "compile.json"
_OF_RESULT = ("demos", "demos_dropped")
"""What a recipe's settings say of how it came out."""


def bind(run: str | Path, asked: Mapping[str, Any]) -> None:
    """Note in the folder what is compiled there. Raises: RunMismatch where something else was begun in it."""
    path, told = Path(run) / FILE, _as_json(asked)
    try:
        known = json.loads(path.read_bytes())
    except FileNotFoundError:
        write_whole(path, [json.dumps(told, ensure_ascii=True, indent=2).encode(), b"\n"])
        return
    except ValueError as error:
        raise BadData(f"{path}: cannot be read ({error}): name another folder (--run)") from None
    if differing := _told(known, told):
        raise RunMismatch(f"{run} was begun with other settings: {differing}. Name another folder (--run)")


def check_replaced(out: str | Path | None, asked: Mapping[str, Any]) -> None:
    """Raise `RunMismatch` where a file is there that the same settings did not make."""
    if out is None or not Path(out).exists():
        return
    try:
        recipe = read_program(out)[1].to_json()
    except BadData:
        raise RunMismatch(f"{out} is there, and is no program of this version: name another file (--out)") from None
    settings = {name: value for name, value in recipe["settings"].items() if name not in _OF_RESULT}
    known = {name: value for name, value in recipe.items() if name in asked} | {"settings": settings}
    if differing := _told(_as_json(known), _as_json(asked)):
        raise RunMismatch(
            f"{out} holds a program that was compiled otherwise: {differing}. Name another file (--out), or delete it"
        )


def _as_json(told: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(told))


def _told(known: Any, asked: Any) -> str:
    """The first few settings that differ, with both values."""
    found = list(_differing(known, asked))
    return "; ".join(found[:3]) + (f"; and {len(found) - 3} more" if len(found) > 3 else "")


def _differing(known: Any, asked: Any, path: str = "") -> Iterator[str]:
    if isinstance(known, Mapping) and isinstance(asked, Mapping):
        for key in dict.fromkeys([*known, *asked]):
            yield from _differing(known.get(key), asked.get(key), f"{path}.{key}" if path else key)
    elif known != asked:
        yield f"{path} was {json.dumps(known):.60}, now {json.dumps(asked):.60}"
