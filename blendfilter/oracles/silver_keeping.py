"""Where a silver file grows: its rows beside it as they come, its recipe, and the step by which it appears whole.

In: the name of a silver file and the settings it is made by. Out, of `nq.jsonl`::

    nq.jsonl.partial    the rows so far, in question order; one process writes (flock), a torn last line is dropped
    nq.recipe.json      the settings, which a later sitting must repeat, and once all is done what the rows come to
    nq.jsonl            the rows, when the last one is there: the partial file under its name
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from blendfilter.append_only import AppendOnly
from blendfilter.errors import BadArgument, BadData, BlendFilterError, RunMismatch
from blendfilter.files import json_rows, write_whole
from blendfilter.oracles.silver_rows import row_of

JSONL, PARTIAL, RECIPE, JOURNAL = ".jsonl", ".partial", ".recipe.json", ".journal"
FORMAT = 1
_OTHER = {"data.fingerprint": "other questions", "passages.fingerprint": "other passages"}
"""What a fingerprint that differs means."""


class Places(NamedTuple):
    """The files of one silver file."""

    out: Path
    partial: Path
    recipe: Path
    journal: Path
    """The folder for the scores of a model, for whoever makes a scorer."""

    @classmethod
    def of(cls, out: str | Path) -> Places:
        """Beside `out`. Raises `BadArgument` where that is a folder, or named as what it cannot be.

        >>> [each.name for each in Places.of("silver/nq.jsonl")]
        ['nq.jsonl', 'nq.jsonl.partial', 'nq.recipe.json', 'nq.journal']
        """
        path = Path(out)
        if path.is_dir():
            raise BadArgument(f"{path} is a folder: name a file for the silver contexts, such as {path / 'nq.jsonl'}")
        if path.suffix == ".gz":
            raise BadArgument(f"{path}: silver files are written unpacked: name it {path.with_suffix('')}")
        stem = path.name.removesuffix(JSONL)
        return cls(
            path, path.with_name(path.name + PARTIAL), path.with_name(stem + RECIPE), path.with_name(stem + JOURNAL)
        )


class Partial:
    """The unfinished file, open for its one writer; `lines` says how many rows are there, `add` appends.

    Raises:
        RunLocked: another process writes to it. RunMismatch: other settings made its rows (what differs).
        BadData: a line that no torn write explains.
    """

    def __init__(self, places: Places, settings: Mapping[str, Any], ids: Sequence[str]) -> None:
        self.places = places
        self._log = AppendOnly(
            places.partial, begins=b'{"id": "', refuse=partial(_not_a_row, places.partial), contents="rows",
            busy="by another process: wait for it, or name another file",
        )  # fmt: skip
        try:
            self.lines = self._counted(ids)
            if self.lines:
                check_settings(places, settings)
            elif not places.out.exists():  # another process may have finished before the lock was ours
                write_recipe(places, settings)
        except BaseException:
            self._log.close()
            raise

    def add(self, line: bytes) -> None:
        """Append one row; it is on file when this returns. Raises `CannotWrite`: a full disk."""
        self._log.append(line)

    def finish(self) -> None:
        """Every row is there: the file gets its name."""
        self._log.append(b"", sync=True)
        self.places.partial.replace(self.places.out)

    def discard(self) -> None:
        """Remove it again: what it was for is there."""
        self.places.partial.unlink(missing_ok=True)

    def __enter__(self) -> Partial:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()

    def _counted(self, ids: Sequence[str]) -> int:
        """How many whole rows there are."""
        count = 0
        for _, line in self._log.lines():
            if count >= len(ids) or _id(line) != ids[count]:
                raise _not_a_row(self.places.partial, count + 1)
            count += 1
        return count


def _not_a_row(path: Path, number: int) -> BadData:
    return BadData(f"{path}, line {number}: not the row that belongs there; delete the file, and all is made again")


def _id(line: bytes) -> str | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row.get("id") if isinstance(row, dict) else None


def check_settings(places: Places, settings: Mapping[str, Any]) -> None:
    """Refuse to take rows that other settings made for these.

    Raises:
        RunMismatch: naming what differs, with both values. BadData: nobody knows what made them.
    """
    made = places.out if places.out.exists() else places.partial
    known = read_recipe(places).get("settings", {})
    # Only the fingerprint of the data counts: the same questions under another name are the same questions.
    differing = [each for each in _differences(known, settings) if not each.startswith("data.source ")]
    if differing:
        more = f"; and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise RunMismatch(
            f"{made} was made with other settings: {'; '.join(differing[:3])}{more}. Name another file, or delete "
            f"{made.name} and {places.recipe.name} to make it anew"
        )


def _is_silver(path: Path) -> bool:
    """Whether its first line is a row of silver contexts."""
    try:
        row_of(next(json_rows(path)))
    except (BlendFilterError, StopIteration):
        return False
    return True


def read_recipe(places: Places) -> dict[str, Any]:
    """What a silver file was made by. Raises `BadData` where that cannot be told."""
    made = places.out if places.out.exists() else places.partial
    if made == places.out and not _is_silver(made):  # it may be anyone's: nobody is told to delete it
        raise BadData(f"{made} is there, and is no silver file: name another file")
    next_move = f"name another file, or delete {made.name} to make it anew"
    try:
        recipe = json.loads(places.recipe.read_bytes())
    except FileNotFoundError:
        raise BadData(f"{made} is there, and nothing says what made it ({places.recipe.name} is missing): "
                      f"{next_move}") from None  # fmt: skip
    except (ValueError, OSError) as error:
        raise BadData(f"{places.recipe} cannot be read ({error}): {next_move}") from None
    if not isinstance(recipe, dict) or recipe.get("format") != FORMAT:
        raise BadData(f"{places.recipe} is no recipe of this version: {next_move}")
    return recipe


def check_recipe_is_free(places: Places) -> None:
    """Raise `BadData` where a file of somebody else's has the name that the recipe is to have."""
    if not places.recipe.exists():
        return
    try:
        known = json.loads(places.recipe.read_bytes())
    except (ValueError, OSError):
        known = None
    if not isinstance(known, dict) or not known.keys() >= {"format", "settings"}:
        raise BadData(f"{places.recipe} is there, and is no recipe of a silver file: name another file")


def write_recipe(places: Places, settings: Mapping[str, Any], summary: Mapping[str, Any] | None = None) -> None:
    """The recipe's file, whole or not at all."""
    recipe = {"format": FORMAT, "settings": settings, **({} if summary is None else {"summary": summary})}
    text = json.dumps(recipe, ensure_ascii=False, indent=2)
    write_whole(places.recipe, [text.encode("utf-8", "backslashreplace"), b"\n"])


def _differences(stored: Any, asked: Any, path: str = "") -> Iterator[str]:
    if isinstance(stored, Mapping) and isinstance(asked, Mapping):
        for key in dict.fromkeys([*stored, *asked]):
            yield from _differences(stored.get(key), asked.get(key), f"{path}.{key}" if path else str(key))
    elif path in _OTHER:
        if stored != asked:
            yield _OTHER[path]
    elif stored != asked:
        yield f"{path} was {stored!r}, now {asked!r}"
