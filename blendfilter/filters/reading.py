"""Reading the ids that a model says are relevant: pure functions, no model.

BlendFilter, section 3.3 and appendix F, leaves open how a free-text reply becomes a set; the rules are these.

1. A JSON array, or an object with `ids`, is read as it stands.
2. Else the reply's last line that holds ids is read: whole tokens 0..K-1, in order, without repeats; `0-2` is a range.
   Lines that hold one id each and end the reply are read together as a list.
3. What restates the prompt is not an id: the full range of numbers after "knowledge", "ids" or "from", or in brackets.
   Nor is a count ("2 of the 5"), nor the number of a list item that goes on with words, nor what stands before a
   colon that announces nothing but numbers.
4. A line that negates ("1, 3 and 4 are irrelevant", "all but 2") is `suspect`: it is not read as ids.
5. No ids, but a word for nothing ("none"), is an explicit `none`. Anything else is `unparseable`.
"""

from __future__ import annotations

import json
import re
from typing import Literal, NamedTuple

Status = Literal["ids", "none", "suspect", "unparseable"]


class IdsRead(NamedTuple):
    """Positions 0..K-1 in the order the reply gives them, and how it was read."""

    ids: tuple[int, ...]
    status: Status


_NEGATION = re.compile(
    r"\b(?:ir+elevant|unrelated|unhelpful|useless|not|isn't|aren't|doesn't|don't|cannot|no|none|neither|nor|without"
    r"|except(?:ing)?|exclud\w+|remov\w+|discard\w+|drop\w*|omit\w*|ignor\w+|unnecessary|all but|other than|apart from)\b",
    re.IGNORECASE,
)
_NOTHING = re.compile(
    r"\b(?:none|nothing|no ids?|no numbers?|not any|empty|n/a|null"
    r"|no (?:\w+ ){0,3}(?:relevant|related|knowledge|passages?|pieces?|ones?)"
    r"|(?:nothing|not|isn't|aren't) (?:\w+ ){0,3}relevant)\b|^\W*\[\s*\]\W*$",
    re.IGNORECASE,
)
_RANGE = re.compile(r"(?<![\w.-])(\d{1,4})\s*(?:-|–|—|to|through)\s*(\d{1,4})(?![\w-]|\.\d)", re.IGNORECASE)
_ID = re.compile(r"(?<![\w.,/-])(?:(?<=[a-z]_)|#)?(\d{1,4})(?![\w%/-]|[.,]\d)", re.IGNORECASE)
_ANNOUNCED = re.compile(r":\s*((?:[\W_]|\d|\band\b)*\d(?:[\W_]|\d|\band\b)*)$")  # "three of them: 0, 1 and 2"
_AFTER_COMMA = re.compile(r",(?=\d)")
_COUNT = re.compile(r"\b\d+\s+(?:out\s+)?of\s+(?:the\s+)?\d+\b|\bof\s+(?:the|these|those)\s+\d+\b", re.IGNORECASE)
_ITEM = re.compile(r"^\s*\d+[.)]\s+(?=\S)")
_BARE = re.compile(
    r"^\W*(?:(?:knowledge|passage|id|number|piece)s?\W*)?#?(\d{1,4})\W*$", re.IGNORECASE
)  # one id and nothing else


def read_ids(reply: str, k: int) -> IdsRead:
    """The ids in `reply`, of `k` numbered passages.

    >>> read_ids("The relevant ones are 0 and 3.", 5)
    IdsRead(ids=(0, 3), status='ids')
    >>> read_ids("1, 3 and 4 are irrelevant", 5).status
    'suspect'
    >>> read_ids("None of them.", 5).status
    'none'
    """
    from_json = _read_json(reply, k)
    if from_json is not None:
        return from_json
    lines = [line for line in reply.splitlines() if line.strip()]
    listed = _trailing_list(lines, k)
    if listed:
        return IdsRead(listed, "ids")
    for line in reversed(lines):
        ids = _ids_in(line, k)
        if ids:
            return IdsRead((), "suspect") if _NEGATION.search(line) else IdsRead(ids, "ids")
    return IdsRead((), "none" if any(_NOTHING.search(line) for line in lines) else "unparseable")


def _read_json(reply: str, k: int) -> IdsRead | None:
    text = reply.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    if not text.startswith(("[", "{")):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    items = value.get("ids") if isinstance(value, dict) else value
    if not isinstance(items, list):
        return None
    ids = _within((int(item) for item in items if _is_integer(item)), k)
    if ids:
        return IdsRead(ids, "ids")
    return IdsRead((), "unparseable" if items else "none")


def _is_integer(item: object) -> bool:
    return (isinstance(item, int) and not isinstance(item, bool)) or (
        isinstance(item, str) and item.isascii() and item.isdigit() and len(item) < 5
    )


def _trailing_list(lines: list[str], k: int) -> tuple[int, ...]:
    """Ids of the lines at the end that hold one id each, where there are at least two."""
    found: list[int] = []
    for line in reversed(lines):
        match = _BARE.match(line)
        if match is None:
            break
        found.append(int(match.group(1)))
    return _within(reversed(found), k) if len(found) > 1 else ()


def _ids_in(line: str, k: int) -> tuple[int, ...]:
    if announced := _ANNOUNCED.search(line):
        line = announced.group(1)
    line = _COUNT.sub(" ", _full_range_pattern(k).sub(" ", line))
    if _ITEM.match(line) and re.search(r"\d", _ITEM.sub("", line)):
        line = _ITEM.sub("", line)
    line = _RANGE.sub(lambda match: _spelled_out(match, k), line)
    return _within((int(number) for number in _ID.findall(_AFTER_COMMA.sub(", ", line))), k)


def _full_range_pattern(k: int) -> re.Pattern[str]:
    """The prompt's own range: "knowledge 0-4", "numbered from 0 to 4", "(0-4)"."""
    span = rf"0\s*(?:-|–|—|to|through)\s*{k - 1}"
    return re.compile(
        rf"(?:\b(?:knowledges?|ids?|numbers?|numbered|from)\s+{span}\b|[(\[]\s*{span}\s*[)\]])", re.IGNORECASE
    )


def _spelled_out(match: re.Match[str], k: int) -> str:
    first, last = int(match.group(1)), int(match.group(2))
    if first <= last < k:
        return " " + ", ".join(str(number) for number in range(first, last + 1)) + " "
    return " "


def _within(numbers: object, k: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(number for number in numbers if 0 <= number < k))  # type: ignore[attr-defined]
