"""What a witnesses file says, in memory: judged questions, and the pairs of passages that they separate.

CDIT (Ma et al. 2024), section 4, Theorem 1: a question that agrees with one sentence and not with another is a witness
to the separation of the two. In: the lines of the file, in order. Out: the state after them.

A passage's id is held once and is a number from there on; a pair is one number made of two. A pair whose witnesses
were all undone keeps its place, empty: memory is bounded by the pairs ever seen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from blendfilter.append_only import check_regular, whole_lines
from blendfilter.errors import BadData, MissingFile
from blendfilter.trimming.lines import By, Judged, Separation, check_threshold, question_id
from blendfilter.trimming.replaying import BEGINS, FIRST, not_a_line, replay

_SHIFT = 32
_MASK = (1 << _SHIFT) - 1


@dataclass(slots=True)
class _Half:
    """A question that is not closed yet."""

    text: str
    by: By
    verdicts: dict[str, bool | None] = field(default_factory=dict)


class Witnesses:
    """The state that a witnesses file describes; a new one is empty."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._judged: dict[str, Judged] = {}
        self._in_order: Mapping[str, Judged] | None = None
        self._halves: dict[str, _Half] = {}
        self._pairs: dict[int, tuple[str, ...]] = {}
        self._beside: dict[int, list[int]] = {}
        self._judges: dict[By, By] = {}

    @classmethod
    def read(cls, path: str | Path) -> Witnesses:
        """The state of the file at `path`; a last line that a kill tore is left out.

        Raises:
            MissingFile: there is none. BadData: a line that no torn write explains, or that a newer version wrote.
        """
        state = cls()
        try:
            check_regular(Path(path))
            with open(path, "rb") as file:
                found = whole_lines(file.fileno(), BEGINS, lambda at: not_a_line(Path(path), at), FIRST)
                replay((line for _, line in found), Path(path), state.apply)
        except FileNotFoundError:
            raise MissingFile(
                f"no witnesses at {path}: gather some (blendfilter trim), or open the bare index"
            ) from None
        except OSError as error:
            raise BadData(f"{path} cannot be read: {error.strerror or error}; the bare index opens as before") from None
        return state

    # --- what it knows ----------------------------------------------------------------------------------------------

    @property
    def judged(self) -> Mapping[str, Judged]:
        """The questions that are closed and not undone, by id.

        In the order of their ids, not of the file: what a search makes of equally near ones must not hang on history.
        """
        if self._in_order is None:
            self._in_order = MappingProxyType(dict(sorted(self._judged.items())))
        return self._in_order

    def is_judged(self, question_id: str) -> bool:
        """Whether a question is closed and not undone, at no cost while questions keep closing."""
        return question_id in self._judged

    def half(self, question_id: str, by: By | None = None) -> Mapping[str, bool | None]:
        """The verdicts so far on a question that is not closed, by passage; only those of `by`, where it is named."""
        half = self._halves.get(question_id)
        if half is None or (by is not None and half.by != by):
            return MappingProxyType({})
        return MappingProxyType(half.verdicts)

    def judge_of(self, question_id: str) -> By | None:
        """Who began with a question that is not closed; None where nobody did."""
        half = self._halves.get(question_id)
        return None if half is None else half.by

    @property
    def halves(self) -> Mapping[str, str]:
        """The questions that were taken up and not closed, id to text."""
        return {name: half.text for name, half in self._halves.items()}

    def witnesses_of(self, a: str, b: str) -> tuple[str, ...]:
        """The ids of the questions that separate two passages, sorted; in either order, none for ids nobody saw."""
        if a not in self._numbers or b not in self._numbers:
            return ()
        return tuple(sorted(self._pairs.get(_key(self._numbers[a], self._numbers[b]), ())))

    def witnesses_for(self, a: str, b: str) -> tuple[str, ...]:
        """Those of `witnesses_of` that accepted `a`, and rejected `b`."""
        return tuple(name for name in self.witnesses_of(a, b) if a in self._judged[name].accepted)

    def separated(self, threshold: int, *, one_way: bool = False) -> Iterator[Separation]:
        """The pairs with at least `threshold` witnesses, sorted; `one_way`: so many that accepted the same one."""
        check_threshold(threshold)
        reached = [(self._pair(key), names) for key, names in self._pairs.items() if len(names) >= threshold]
        for pair, names in sorted(reached):
            separation = Separation(pair, tuple(sorted(names)))
            if not one_way or max(self.sides(separation)) >= threshold:
                yield separation

    def sides(self, separation: Separation) -> tuple[int, int]:
        """How many of its witnesses accepted the first of the pair, and how many the second."""
        first, names = separation.pair[0], separation.witnesses
        count = sum(first in self._judged[name].accepted for name in names)
        return count, len(names) - count

    def separations(self) -> int:
        """How many pairs have any witness."""
        return sum(1 for names in self._pairs.values() if names)

    def partners(self, passage: str, threshold: int) -> tuple[str, ...]:
        """The passages that at least `threshold` witnesses separate from this one, sorted."""
        check_threshold(threshold)
        at = self._numbers.get(passage, -1)
        found = (other for other in self._beside.get(at, ()) if len(self._pairs[_key(at, other)]) >= threshold)
        return tuple(sorted(self._names[other] for other in found))

    def digest(self, threshold: int, *, one_way: bool = False) -> str:
        """16 hex digits over what a search can see of this state, however it came about.

        That is: the pairs that reach `threshold` as `separated` has it, with their witnesses, and every judged
        question's text and accepted passages, since any of them may be the nearest one to a query. Empty where no pair
        reaches it.
        """
        hashed, pairs = hashlib.sha256(), 0
        for separation in self.separated(threshold, one_way=one_way):
            _feed(hashed, [separation.pair, separation.witnesses])
            pairs += 1
        if not pairs:
            return ""
        for each in self.judged.values():
            _feed(hashed, [each.question, sorted(each.accepted)])
        return hashed.hexdigest()[:16]

    # --- lines ------------------------------------------------------------------------------------------------------

    def apply(self, record: Mapping[str, Any]) -> None:
        """The state after one more line. Raises ValueError, TypeError, LookupError: it cannot follow those before."""
        match record["kind"]:
            case "verdict":
                self._verdict(record)
            case "question":
                self._take_up(record)
            case "closed":
                self._close(record)
            case "undone":
                self._undo(record)
            case kind:
                raise ValueError(f"no kind of line '{kind}'")

    def _take_up(self, record: Mapping[str, Any]) -> None:
        name, text = record["id"], _text(record["text"])
        if name != question_id(text) or name in self._judged:
            raise ValueError("another question's id, or one that is closed")
        self._halves[name] = _Half(text, self._judge(record["by"]))

    def _verdict(self, record: Mapping[str, Any]) -> None:
        verdict = record["verdict"]
        if verdict is not None and not isinstance(verdict, bool):
            raise ValueError("no verdict")
        self._halves[record["question"]].verdicts[_text(record["passage"])] = verdict

    def _close(self, record: Mapping[str, Any]) -> None:
        name, passages = record["question"], [self._names[self._number(each)] for each in record["passages"]]
        if len(set(passages)) != len(passages):
            raise ValueError("a passage twice")
        half = self._halves[name]
        groups: dict[bool | None, list[str]] = {True: [], False: [], None: []}
        for passage in passages:
            groups[half.verdicts[passage]].append(passage)
        accepted, rejected, silent = (tuple(group) for group in groups.values())
        del self._halves[name]
        self._judged[name] = Judged(name, half.text, accepted, rejected, silent, half.by, _text(record["at"]))
        self._in_order = None
        self._witness(name, [self._numbers[each] for each in accepted], [self._numbers[each] for each in rejected])

    def _witness(self, name: str, accepted: Iterable[int], rejected: Sequence[int]) -> None:
        alone, pairs = (name,), self._pairs  # pairs that one question separates share their tuple
        for a in accepted:
            for b in rejected:
                key = a << _SHIFT | b if a < b else b << _SHIFT | a
                known = pairs.get(key)
                pairs[key] = known + alone if known else alone
                if known is None:
                    self._beside.setdefault(a, []).append(b)
                    self._beside.setdefault(b, []).append(a)

    def _undo(self, record: Mapping[str, Any]) -> None:
        if record.get("all") is True:
            vars(self).update(vars(Witnesses()))
        elif "pair" in record:
            a, b = record["pair"]
            key = _key(self._numbers[a], self._numbers[b])
            if not self._pairs[key]:
                raise ValueError("a pair without witnesses")
            self._pairs[key] = ()
        elif record["question"] in self._halves:
            del self._halves[record["question"]]
        else:
            gone = self._judged.pop(record["question"])
            self._in_order = None
            for a, b in product(gone.accepted, gone.rejected):
                key = _key(self._numbers[a], self._numbers[b])
                self._pairs[key] = tuple(name for name in self._pairs[key] if name != gone.id)

    # --- numbers ----------------------------------------------------------------------------------------------------

    def _number(self, passage: str) -> int:
        number = self._numbers.get(passage)
        if number is None:
            number = self._numbers[_text(passage)] = len(self._names)
            self._names.append(passage)
        return number

    def _pair(self, key: int) -> tuple[str, str]:
        a, b = self._names[key >> _SHIFT], self._names[key & _MASK]
        return (a, b) if a < b else (b, a)

    def _judge(self, told: Mapping[str, Any]) -> By:
        rules = tuple(map(_text, told["rules"]))
        by = By(_text(told["judge"]), _text(told["mode"]), rules, _text(told["model"]), _text(told["program"]))
        return self._judges.setdefault(by, by)


def _key(a: int, b: int) -> int:
    return a << _SHIFT | b if a < b else b << _SHIFT | a


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _feed(hashed: Any, value: Any) -> None:
    hashed.update(json.dumps(value, separators=(",", ":")).encode() + b"\n")
