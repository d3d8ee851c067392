"""Which question or pair a user means: by its id, by its text, by two ids with a comma between them.

In: the state and a name. Out: what it names; `UnknownName` with the nearest one that there is.
"""

from __future__ import annotations

import difflib

from blendfilter.errors import BadArgument, UnknownName
from blendfilter.trimming.lines import text_of
from blendfilter.trimming.state import Witnesses

LISTED = 20
"""Questions that an overlay's state lists."""


def question_known(witnesses: Witnesses, name: str) -> str:
    """The id of the question, closed or not, with that id or text."""
    texts = {each.id: each.question for each in witnesses.judged.values()} | dict(witnesses.halves)
    if name.strip() in texts:
        return name.strip()
    wanted = text_of(name)
    for known, text in texts.items():
        if text == wanted:
            return known
    near = difflib.get_close_matches(wanted, [*texts.values(), *texts], n=1)
    which = "" if len(texts) <= LISTED else f"{LISTED} of "
    hint = _guess(near, len(texts), "questions are judged: blendfilter trim INDEX", which)
    raise UnknownName(f"no judged question '{wanted}'.{hint}")


def pair_known(witnesses: Witnesses, a: str, b: str) -> tuple[str, str]:
    """The two passages, in sorted order, if any question separates them."""
    if not witnesses.witnesses_of(a, b):
        near = _nearest(b, a, witnesses) or _nearest(a, b, witnesses)
        hint = _guess(near, witnesses.separations(), "pairs are separated: --export -")
        raise UnknownName(f"no question separates '{a}' and '{b}'.{hint}")
    return (a, b) if a < b else (b, a)


def pair_named(witnesses: Witnesses, name: str) -> tuple[str, str]:
    """The pair that `ID,ID` means; an id may hold commas itself as long as only one reading is a separated pair.

    Raises: UnknownName. BadArgument: no comma, or more than one reading.
    """
    parts = name.split(",")
    if len(parts) < 2:
        raise BadArgument(f"'{name}' is no pair: write two passage ids with a comma between them")
    readings = [(",".join(parts[:at]), ",".join(parts[at:])) for at in range(1, len(parts))]
    readings += [(a.strip(), b.strip()) for a, b in readings if (a, b) != (a.strip(), b.strip())]
    fits = {tuple(sorted(pair)) for pair in readings if witnesses.witnesses_of(*pair)}
    if len(fits) > 1:
        raise BadArgument(f"'{name}' names more than one pair: undo it from Python, Writer.undo_pair(a, b)")
    return pair_known(witnesses, *(fits.pop() if fits else readings[0]))


def _nearest(name: str, of: str, witnesses: Witnesses) -> list[str]:
    """A pair of `of` with the passage whose id is nearest to `name`."""
    partners = witnesses.partners(of, 1)
    return [f"{of},{near}" for near in (difflib.get_close_matches(name, partners, n=1) or partners)[:1]]


def _guess(near: list[str], known: int, what: str, which: str = "") -> str:
    said = f" Did you mean '{near[0]}'?" if near else ""
    return f"{said} ({known:,} {what} lists {which}them)"
