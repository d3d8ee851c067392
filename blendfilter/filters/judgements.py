"""Reading a judgement of passages one by one: its ids at the end, its verdicts, how far it came. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from blendfilter.filters.ids import (
    SUSPECT,
    UNPARSEABLE,
    IdsRead,
    in_own_words,
    read_ids,
    read_plain,
    unfenced,
)
from blendfilter.lm.profiles import split_thinking
from blendfilter.quoting import end_of

_IDS = re.compile(
    r"(?:^[^\w\n]{0,12}(?:(?:so|thus|therefore|hence|and),?\s)?|(?<=[.;]\s)[^\w\n]{0,4}|(?<=\"))"
    r"(?:(?:the|my|final|relevant)\s){0,3}"
    r"(?:\bids?\b(?:\s(?:is|are)\b(?=\s\d)|(?:\s(?:is|are))?(?:[^\w\n]{0,8}[:=]|\s[-\u2013\u2014]\s|[^\w\n]{0,8}$))"
    r"|(?<!\")\brelevant(?:\s(?:passages?|numbers?|knowledge|ones))?[^\w\n]{0,4}:(?=[^\w\n]{0,4}(?:\d|none\b)))",
    re.IGNORECASE | re.MULTILINE,
)
"""The opening of the last line, or of a sentence; inside one, a judgement may quote it of a passage."""
_NEXT_PROMPT = re.compile(
    r"^(?:Context|Question|Knowledge|Judgement)(?: \([^()\n]{1,60}\))?\s?:|(?<=\n\n)knowledge 0:",
    re.MULTILINE,
)
"""Where a base model goes on with a next example."""
_ITEM = re.compile(
    r"[^\w\n]{0,8}(?:\d{1,3}[.)]\s{1,3}(?=[^\d\s]))?"
    r"(?:(?P<noun>knowledge|passage|sentence)[^\w\n]{0,4})?(?P<id>\d{1,4})(?!\w|[.,/]\d)"
    r"(?!\s?(?:,|and|or|to|&|-|\u2013)\s?#?\d)(?P<mark>[^\w\n]{0,3}?[:.)\]|\u2013\u2014-]|\s(?:is|are)\b)?",
    re.IGNORECASE,
)
"""The number that opens a passage's judgement."""
_ITEMS = re.compile(
    r"\n|(?<=[.;])[^\S\n]{1,3}(?=(?:(?:knowledge|passage|sentence) )?\d{1,4}\s?[:)])",
    re.IGNORECASE,
)
_VERDICT = (
    r"(?P<not>(?:\bnot|n['\u2019]t)\s(?:directly\s|very\s|really\s)?)?\b(?P<ir>ir)?relevant"
)
_VERDICT_FIRST = re.compile(rf"[^\w\n]{{0,6}}{_VERDICT}\b", re.IGNORECASE)
_VERDICT_APART = re.compile(
    rf"[:,;|\u2013\u2014-][^\w\n]{{0,4}}(?:so\s|thus\s)?(?:it is\s)?{_VERDICT}\b", re.IGNORECASE
)


def read_judgement(reply: str, k: int) -> IdsRead:
    """The ids at the end of a judgement of `k` passages: what stands from its last "Ids:" on, or in its JSON.

    Without them it is read where it is a plain verdict on every passage, and nothing else. What ends before, or in the
    middle of its JSON, is `unparseable`: what it named so far need not be all. Where its ids are not those of the
    passages that it calls relevant it is `suspect`.

    >>> read_judgement("0 names the town: relevant.\\n1 is about a hill: irrelevant.\\nIds: 0", 2)
    IdsRead(ids=(0,), status='ids')
    >>> read_judgement("0 names the town: relevant.\\n1 is about a hill: irrelevant.\\nIds: 1", 2).status
    'suspect'
    """
    own = split_thinking(reply)[1].strip()
    if (json_text := unfenced(own)).startswith("{"):
        return _read_json(json_text, k)
    return in_own_words(end_of(own), lambda text: _read_text(text.strip(), k))


def _read_text(text: str, k: int) -> IdsRead:
    openings = [
        found for found in _IDS.finditer(text) if not _inside_a_judgement(text, found.start())
    ]
    if not openings:
        return (
            read_plain(text, k)
            if re.fullmatch(r"(?:[\W\d_]|\band\b|\bnone\b)+", text, re.IGNORECASE)
            else _by_verdicts(text, k)
        )
    if end := _NEXT_PROMPT.search(text, openings[0].end()):
        text = text[: end.start()]
        openings = [found for found in openings if found.end() <= len(text)]
    at = openings[-1].start()
    if -1 < (begin := text.find("{")) < at and text[at - 1] == '"':
        return _read_json(unfenced(text[begin:]), k)
    judged = _judged(_ITEMS.split(text[:at]))
    numbers = {number for number, _ in judged}
    if k in numbers and 0 not in numbers:  # it counts from 1
        return SUSPECT
    verdicts = {number: says for number, says in judged if number < k and says is not None}
    return _compared(read_plain(text[at:], k), verdicts)


def _by_verdicts(text: str, k: int) -> IdsRead:
    """The ids that a judgement without a line of ids calls relevant, where it is one plain verdict on each passage.

    Behind the verdicts may stand a sentence that names the same ids. All of them irrelevant is no "none" yet: that is
    asked for.
    """
    lines = [line for line in _ITEMS.split(text) if line.strip()]
    judged = _judged(lines[:k])
    relevant = tuple(number for number, verdict in judged if verdict)
    numbers = sorted(number for number, verdict in judged if verdict is not None)
    if numbers != [*range(k)]:
        return UNPARSEABLE
    if not (below := "\n".join(lines[k:])):
        return IdsRead(relevant, "ids") if relevant else UNPARSEABLE
    read = read_plain(below, k)
    return (
        read if read.status in ("ids", "none") and {*read.ids} == {*relevant} else UNPARSEABLE
    )


def _inside_a_judgement(text: str, at: int) -> bool:
    """Whether ids that open no line belong to a passage's judgement, whose verdict has yet to come: a title, quoted."""
    line = text[max(text.rfind("\n", 0, at) + 1, at - _LONGEST_JUDGEMENT) : at]
    judged = _judged(_ITEMS.split(line)[-1:])
    return bool(line.strip(' \t*_`#>-"')) and any(verdict is None for _, verdict in judged)


_LONGEST_JUDGEMENT = 1_000
"""Letters of one passage's judgement in which ids may be quoted."""


def _judged(lines: Sequence[str]) -> list[tuple[int, bool | None]]:
    """The passages that lines judge, and what each is called; None where that is not plain.

    >>> _judged(["0: gives the year - relevant", "1: a hill - not relevant", "2: may be relevant", "A note."])
    [(0, True), (1, False), (2, None)]
    """
    found = list[tuple[int, bool | None]]()
    for line in lines:
        if item := _ITEM.match(line):
            about = line[item.end() :]
            words = [*_VERDICT_APART.finditer(about)]
            if item["mark"] and (first := _VERDICT_FIRST.match(about)):
                words.append(first)
            verdicts = {not (word["not"] or word["ir"]) for word in words}
            found.append((int(item["id"]), verdicts.pop() if len(verdicts) == 1 else None))
    return found


def _compared(read: IdsRead, verdicts: Mapping[int, bool]) -> IdsRead:
    """`read`; suspect where its ids are not those that were called relevant."""
    if read.status not in ("ids", "none"):
        return read
    agrees = all((number in read.ids) is relevant for number, relevant in verdicts.items())
    return read if agrees else SUSPECT


def _read_json(text: str, k: int) -> IdsRead:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return UNPARSEABLE
    if not isinstance(value, dict) or not isinstance(value.get("ids"), list):
        return UNPARSEABLE
    judged, verdicts = value.get("judgements"), dict[Any, bool]()
    for each in judged if isinstance(judged, list) else ():
        if not isinstance(each, dict):
            continue
        number, relevant = each.get("id"), each.get("relevant")
        if type(number) is int and number in range(k) and isinstance(relevant, bool):
            verdicts[number] = relevant
    return _compared(read_ids(text, k), verdicts)


def unreached(judgement: str, k: int) -> list[int]:
    """The ids, of `k`, that a judgement that was cut off says nothing whole about.

    Judged is what opens a line, or an object of JSON, that another such opening follows: the last is cut itself.

    >>> unreached("0: names the town - relevant\\n1: a hill - irrelevant\\n2: about the", 4)
    [2, 3]
    """
    *judged, _ = [
        int(next(filter(None, match.groups()))) for match in _JUDGED.finditer(judgement)
    ] or [-1]
    return [number for number in range(k) if number not in judged]


_JUDGED = re.compile(
    r"^[^\w\n]{0,8}(?:knowledge|passage|sentence)[^\w\n]{0,4}(\d{1,4})\b"
    r"|^[^\w\n]{0,8}(\d{1,4})[^\w\n]{0,3}?[:.)\]|\u2013\u2014-]"
    r"|\"id\"\s{0,2}:\s{0,2}(\d{1,4})\b",
    re.IGNORECASE | re.MULTILINE,
)
"""What opens the judgement of a passage."""
