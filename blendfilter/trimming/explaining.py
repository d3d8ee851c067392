"""What a trimmed search dropped and why, and which separated passages it left side by side and why.

In: a trim and the judged question that it goes by. Out: records for people; texts are shown as data, on one line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType
from typing import NamedTuple

from blendfilter.records import Passage, one_line
from blendfilter.trimming.cutting import Trim
from blendfilter.trimming.witnesses import Judged, Witnesses

_SHOWN = 100
_NAMED = 3


class Needed(NamedTuple):
    """How many witnesses a separation takes; `one_way`: how many that accepted the same passage."""

    threshold: int
    one_way: bool


class Nearest(NamedTuple):
    """The nearest judged question, how near it is, and why it says nothing on this query (empty: it does)."""

    question: str
    similarity: float
    why: str


class Dropped(NamedTuple):
    """A passage that is not shown."""

    passage: Passage
    rank: int
    """Its place in the bare index's ranking, from 1."""
    kept: str
    """The accepted passage beside which it stood."""
    witnesses: tuple[str, ...]
    """The questions that separate the two, by id; counted one way those that accepted the one that is kept."""
    judged: str
    """The judged question that it goes by."""
    similarity: float


class Undecided(NamedTuple):
    """Two separated passages that are both shown, in their order."""

    pair: tuple[str, str]
    why: str


class Explained(NamedTuple):
    """A search's passages, and what the overlay did."""

    passages: Sequence[Passage]
    dropped: tuple[Dropped, ...]
    undecided: tuple[Undecided, ...]
    nearest: Nearest
    questions: Mapping[str, str] = MappingProxyType({})
    """The texts of the witnesses named above, by id."""
    one_way: bool = False
    """Whether only those witnesses count that accepted the one that is kept."""

    def lines(self) -> list[str]:
        """For people: three lines for each passage that was dropped, two for each pair that stayed."""
        lines = []
        for each in self.dropped:
            named = [self.questions[name] for name in each.witnesses if name in self.questions]
            shown = ", ".join(f"{_shown(text)!r}" for text in named[:_NAMED])
            more = f" and {len(each.witnesses) - _NAMED:,} more" if len(named) > _NAMED else ""
            side = f" for {each.kept}" if self.one_way else ""
            lines += [
                f"dropped {each.passage.id} (rank {each.rank}): {_shown(each.passage.line)}",
                f"  the judged question {_shown(each.judged)!r} ({each.similarity:.2f} near) accepted {each.kept}",
                f"  {_witnesses(len(each.witnesses))}{side}: {shown}{more}",
            ]
        for pair in self.undecided:
            lines += [f"both stay: {pair.pair[0]} and {pair.pair[1]}", f"  {pair.why}"]
        return lines


def dropped_by(
    trim: Trim, judged: Judged, nearest: Nearest, named: Callable[[str, str], tuple[str, ...]]
) -> tuple[Dropped, ...]:
    """What a trim dropped, in the bare index's order; `named` gives the witnesses of what stays and what goes."""
    return tuple(
        Dropped(passage, rank, kept, named(kept, passage.id), judged.question, nearest.similarity)
        for passage, rank, kept in trim.gone
    )


def undecided_in(
    passages: Sequence[Passage],
    beside: Mapping[str, Sequence[str]],
    judged: Judged | None,
    nearest: Nearest,
    witnesses: Witnesses,
    needed: Needed,
) -> tuple[Undecided, ...]:
    """The pairs among `passages` that some question separates; `judged` where its verdicts apply."""
    found = []
    for a, b in combinations(dict.fromkeys(passage.id for passage in passages), 2):
        if judged is not None and (a in judged.accepted) != (b in judged.accepted):
            kept, other = (a, b) if a in judged.accepted else (b, a)
            if witnesses.witnesses_of(a, b):
                found.append(Undecided((a, b), _too_few(witnesses, kept, other, needed)))
        elif b in beside.get(a, ()) or a in beside.get(b, ()):
            found.append(Undecided((a, b), nearest.why if judged is None else _no_side(judged, a)))
    return tuple(found)


def _too_few(witnesses: Witnesses, kept: str, other: str, needed: Needed) -> str:
    every, asked = len(witnesses.witnesses_of(kept, other)), f"and {needed.threshold} are asked for"
    if not needed.one_way:
        return f"{_witnesses(every)}, {asked}"
    return f"{_witnesses(every)}, {len(witnesses.witnesses_for(kept, other))} of them for {kept}, {asked}"


def _no_side(judged: Judged, a: str) -> str:
    sides = "both" if a in judged.accepted else "neither of them"
    return f"the nearest judged question, {_shown(judged.question)!r}, accepted {sides}"


def _witnesses(count: int) -> str:
    return "1 witness" if count == 1 else f"{count:,} witnesses"


def _shown(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
