"""Reading a judge's verdict: pure functions, no model. True or False and nothing else; in doubt it is no verdict.

CDIT's prompt asks for one word (appendix B.1); what is read of a reply is not told there, and the released code takes
whatever is not True for a rejection. Here a reply that says anything else is None: the passage is kept, and it counts
for no separation.

One word may stand in marks (quotes, Markdown), with a full stop, behind "Verdict:" or "Answer:". A comparison has a
row for each component and ends with its verdict, or is the same as JSON. Thinking in tags is not read, nor is a line
that is quoted whole (``> Verdict: True``), unless the reply is nothing but a fence or a quotation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from blendfilter.lm.profiles import split_thinking
from blendfilter.quoting import LONGEST_REPLY, own_lines, own_words

_MARKS = r"[\s\"'“”„‘’«»`*_#>(){}\[\]]*+"
_ONE_WORD = re.compile(
    rf"{_MARKS}(?:-\s++)?{_MARKS}(?:(?:final\s+)?(?:verdict|answer){_MARKS}:{_MARKS})?(true|false){_MARKS}\.?{_MARKS}",
    re.IGNORECASE,
)
_VERDICT = re.compile(rf"{_MARKS}(?:-\s++)?{_MARKS}(?:final\s+)?verdict{_MARKS}:", re.IGNORECASE)
_REASON = re.compile(rf"{_MARKS}(?:-\s++)?{_MARKS}reason{_MARKS}:{_MARKS}(.*)", re.IGNORECASE)
_FENCE = re.compile(r"\s*```\w*\s*")
_RULER = re.compile(r"[\s|:-]+")
_AROUND = " \t*_`\"'“”-"
_CALLED = {
    **dict.fromkeys(("alike", "similar", "same", "true", "open"), True),
    **dict.fromkeys(("unlike", "not alike", "dissimilar", "different", "opposite", "false"), False),
}
"""What a row may say of its component; anything else, `unsaid` among it, is neither."""
_UNLIKE = re.compile(r"(?:unlike|not alike)\b")


class Compared(NamedTuple):
    """One component: what the question and the passage say there. `alike` is None where it was unsaid."""

    component: str
    question: str
    passage: str
    alike: bool | None


class Comparison(NamedTuple):
    """A whole reply: its verdict, the components of the rules that it compared, and its reason."""

    verdict: bool | None
    compared: list[Compared]
    reason: str


def read_verdict(reply: str) -> bool | None:
    """What a reply of one word says; None where it is anything but True or False.

    >>> read_verdict("**True.**"), read_verdict("Answer: False."), read_verdict("Not true"), read_verdict("True, but")
    (True, False, None, None)
    """
    word = _ONE_WORD.fullmatch(split_thinking(reply)[1])
    return None if word is None else word[1].casefold() == "true"


def read_comparison(reply: str, components: Sequence[str]) -> Comparison:
    """The verdict of a reply that compares `components`; None where it has none, or one that its own rows contradict.

    >>> said = read_comparison("predicate | turned on | turned off | unlike\\nReason: Off is not on.\\nVerdict: False", ["predicate"])
    >>> said.verdict, said.compared[0].passage, said.reason
    (False, 'turned off', 'Off is not on.')
    >>> read_comparison("predicate | turned on | turned off | unlike\\nVerdict: True", ["predicate"]).verdict is None
    True
    """  # noqa: E501 - a reply's lines as they are
    said = stated(reply, components)
    return said._replace(verdict=None) if contradicts(said) else said


def contradicts(said: Comparison) -> bool:
    """Whether a verdict goes against its own comparison: True with a component unlike, False with all of them alike."""
    judged = [each.alike for each in said.compared]
    return (said.verdict is True and False in judged) or (said.verdict is False and bool(judged) and all(judged))


def stated(reply: str, components: Sequence[str]) -> Comparison:
    """The same as the reply says it, its verdict unchecked."""
    plain = split_thinking(reply)[1].strip()
    unfenced = plain.removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    if unfenced.startswith("{"):
        return _of_json(unfenced, components)
    if len(plain) > LONGEST_REPLY:  # its rows are needed as much as its end
        return Comparison(None, [], "")
    own = own_words(plain)
    said = _of_lines(own_lines(plain, own.words), components)
    if said.verdict is not None or own.announced is None:
        return said
    return _of_lines(own_lines(plain, own.announced), components)


def _of_lines(lines: Iterable[str], components: Sequence[str]) -> Comparison:
    compared: list[Compared] = []
    verdicts: list[bool | None] = []
    reason, settled = "", True
    for line in chain.from_iterable(map(str.splitlines, lines)):
        if not line.strip() or _FENCE.fullmatch(line) or _RULER.fullmatch(line):
            continue
        if _VERDICT.match(line) or read_verdict(line) is not None:
            verdicts.append(read_verdict(line))
            settled = True
        elif (row := _row(line, components)) is not None:
            compared.append(row)
        elif told := _REASON.fullmatch(line):
            reason = told[1].strip()
        else:
            settled = False  # words after a verdict may take it back
    agreed = len(set(verdicts)) == 1 and settled
    return Comparison(verdicts[0] if agreed else None, compared, reason)


def _row(line: str, components: Sequence[str]) -> Compared | None:
    cells = [cell.strip(_AROUND) for cell in line.strip().strip("|").split("|")]
    if len(cells) < 4:
        return None
    component = _named(cells[0], components)
    return Compared(component, cells[1], " | ".join(cells[2:-1]), _called(cells[-1])) if component else None


def _called(cell: str) -> bool | None:
    said = cell.strip(_AROUND).rstrip(".").strip(_AROUND).casefold()
    # "unlike (the opposite)" is unlike; "alike in part" is not alike.
    return False if _UNLIKE.match(said) else _CALLED.get(said)


def _named(name: str, components: Iterable[str]) -> str:
    return next((each for each in components if each.casefold() == name.casefold()), "")


def _of_json(text: str, components: Sequence[str]) -> Comparison:
    try:
        told = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return Comparison(None, [], "")
    compared = [row for name, cells in _cells(told.get("comparison")) if (row := _of_cells(name, cells, components))]
    reason, verdict = told.get("reason"), told.get("verdict")
    return Comparison(
        verdict if isinstance(verdict, bool) else read_verdict(verdict) if isinstance(verdict, str) else None,
        compared,
        reason.strip() if isinstance(reason, str) else "",
    )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, less what it says twice and not alike: neither is its word."""
    told: dict[str, Any] = {}
    for name, value in pairs:
        told[name] = value if name not in told or told[name] == value else None
    return told


def _cells(comparison: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(comparison, dict):
        yield from comparison.items()
    elif isinstance(comparison, list):
        yield from ((each.get("component"), each) for each in comparison if isinstance(each, dict))


def _of_cells(name: Any, cells: Any, components: Sequence[str]) -> Compared | None:
    component = _named(name, components) if isinstance(name, str) else ""
    if not component or not isinstance(cells, dict):
        return None
    alike = cells.get("alike")
    if isinstance(alike, str):
        alike = _called(alike)
    question, passage = (str(cells.get(side) or "") for side in ("question", "passage"))
    return Compared(component, question, passage, alike if isinstance(alike, bool) else None)
