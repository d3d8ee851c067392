"""Reading a judgement of passages one by one: its ids at the end, its verdicts, how far it came. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from blendfilter.filters.ids import IdsRead, in_own_words, read_ids, read_plain, unfenced
from blendfilter.lm.profiles import split_thinking
from blendfilter.quoting import end_of

UNPARSEABLE = IdsRead((), "unparseable")
_NUMBERS_ALONE = re.compile(r"(?:[\W\d_]|\band\b|\bnone\b)+", re.IGNORECASE)
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
    openings = [*_IDS.finditer(text)]
    own = lambda found: not _inside_a_judgement(text, found.start())  # noqa: E731
    first = next(filter(own, openings), None)
    if first and (end := _NEXT_PROMPT.search(text, first.end())):
        text = text[: end.start()]
        openings = [found for found in openings if found.end() <= len(text)]
    if first and (last := next(filter(own, reversed(openings)), None)):
        at = last.start()
        if -1 < (begin := text.find("{")) < at and text[at - 1] == '"':
            return _read_json(unfenced(text[begin:]), k)
        numbers = {
            int(item["id"]) for line in _ITEMS.split(text[:at]) if (item := _ITEM.match(line))
        }
        if k in numbers and 0 not in numbers:  # it counts from 1
            return IdsRead((), "suspect")
        return _compared(read_plain(text[at:], k), _verdicts(text[:at], k))
    return read_plain(text, k) if _NUMBERS_ALONE.fullmatch(text) else _by_verdicts(text, k)


def _by_verdicts(text: str, k: int) -> IdsRead:
    """The ids that a judgement without a line of ids calls relevant, where it is one plain verdict on each passage.

    Behind the verdicts may stand a sentence that names the same ids. All of them irrelevant is no "none" yet: that is
    asked for.
    """
    lines = [line for line in _ITEMS.split(text) if line.strip()]
    judged = [
        (int(item["id"]), _verdict(line)) for line in lines[:k] if (item := _ITEM.match(line))
    ]
    if sorted(number for number, _ in judged) != [*range(k)] or any(
        verdict is None for _, verdict in judged
    ):
        return UNPARSEABLE
    relevant = tuple(number for number, verdict in judged if verdict)
    if not (below := "\n".join(lines[k:])):
        return IdsRead(relevant, "ids") if relevant else UNPARSEABLE
    read = read_plain(below, k)
    return (
        read if read.status in ("ids", "none") and {*read.ids} == {*relevant} else UNPARSEABLE
    )


def _inside_a_judgement(text: str, at: int) -> bool:
    """Whether ids that open no line belong to a passage's judgement, whose verdict has yet to come: a title, quoted."""
    line = text[max(text.rfind("\n", 0, at) + 1, at - _LONGEST_JUDGEMENT) : at]
    last = _ITEMS.split(line)[-1]
    return bool(line.strip(' \t*_`#>-"') and _ITEM.match(last)) and _verdict(last) is None


_LONGEST_JUDGEMENT = 1_000
"""Letters of one passage's judgement in which ids may be quoted."""


def _verdicts(text: str, k: int) -> dict[int, bool]:
    """Which of `k` passages a judgement calls relevant or irrelevant in so many words, the last word on each.

    >>> _verdicts("0: gives the year - relevant\\n1: a hill - not relevant\\n2: may be relevant\\n3: irrelevant", 5)
    {0: True, 1: False, 3: False}
    """
    found = dict[int, bool]()
    for line in _ITEMS.split(text):
        if (
            (item := _ITEM.match(line))
            and int(item["id"]) < k
            and (verdict := _verdict(line)) is not None
        ):
            found[int(item["id"])] = verdict
    return found


def _verdict(line: str) -> bool | None:
    """What the judgement of a passage calls it; None where that is not plain."""
    item = _ITEM.match(line)
    if item is None:
        return None
    about = line[item.end() :]
    found = list(_VERDICT_APART.finditer(about))
    if item["mark"] and (first := _VERDICT_FIRST.match(about)):
        found.append(first)
    verdicts = {not (verdict["not"] or verdict["ir"]) for verdict in found}
    return verdicts.pop() if len(verdicts) == 1 else None


def _compared(read: IdsRead, verdicts: Mapping[int, bool]) -> IdsRead:
    """`read`; suspect where its ids are not those that were called relevant."""
    if read.status not in ("ids", "none"):
        return read
    agrees = all((number in read.ids) is relevant for number, relevant in verdicts.items())
    return read if agrees else IdsRead((), "suspect")


def _read_json(text: str, k: int) -> IdsRead:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return UNPARSEABLE
    if not isinstance(value, dict) or not isinstance(value.get("ids"), list):
        return UNPARSEABLE
    judged = value.get("judgements")
    judgements = (
        [each for each in judged if isinstance(each, dict)] if isinstance(judged, list) else []
    )
    verdicts = {
        each["id"]: each["relevant"]
        for each in judgements
        if type(each.get("id")) is int
        and 0 <= each["id"] < k
        and isinstance(each.get("relevant"), bool)
    }
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
