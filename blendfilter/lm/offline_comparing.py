"""Questions that set two things side by side: "Which came first, A or B?", "Are A and B both …?".

Input: a question and its passages. Output: one of the two names, "yes" or "no". Years and numbers are read from the
passage of each thing, or, where the question speaks of its director, author and the like, from the passage that the
first one names.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from blendfilter.lm.offline_reading import Reading, bare_title, split_line, stem, stems
from blendfilter.lm.offline_spans import DATE, NAME, NUMBER

_EARLY = re.compile(r"\b(?:first|earlier|older|oldest|earliest|before|eldest)\b", re.IGNORECASE)
_LATE = re.compile(r"\b(?:later|younger|youngest|latest|last|recently|newer|after)\b", re.IGNORECASE)
_MORE = re.compile(
    r"\b(?:more|larger|largest|bigger|taller|tallest|longer|longest|higher|highest|most|greater|larger|wider|deeper)\b",
    re.IGNORECASE,
)
_LESS = re.compile(r"\b(?:fewer|fewest|less|least|smaller|smallest|shorter|shortest|lower|lowest)\b", re.IGNORECASE)
_DIED = re.compile(r"\b(?:died|die|death|deceased)\b", re.IGNORECASE)
_LIVED = re.compile(r"\blived? (?:\w+ )?longer\b", re.IGNORECASE)
_PAIR = re.compile(
    r"(.{0,200}?[,?:]?)\s*([^,?]{1,120}?),?\s+(?:or|and)\s+(?:the\s+)?([^,?]{1,120})\s*\?*\s*$", re.DOTALL
)
_BOTH = re.compile(r"\b(?:same|both|also|share)\b", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"\b(?:nationality|country|city|state|place|profession|occupation|genre|year)\b", re.IGNORECASE)
_NEGATIVE = re.compile(r"\b(?:not|never|no|neither|nor|without|unable|cannot)\b|n't\b", re.IGNORECASE)
_YEAR = re.compile(r"\b[12]\d{3}\b")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_LONGEST = 400


class Side(NamedTuple):
    """One of the two things compared: how the question calls it, and the text that speaks of it."""

    name: str
    text: str


def choose(question: str, lines: tuple[str, ...]) -> str:
    """The one of two named things that a comparing question is after, "" where it is no such question.

    >>> lines = ("Orm Pier | Built in 1890.", "Kerry Pier | Built in 1871.")
    >>> choose("Which pier is older, Orm Pier or Kerry Pier?", lines)
    'Kerry Pier'
    """
    if not re.search(r"\bor\b", question) or not (pair := _PAIR.match(question[-_LONGEST:])):
        return ""
    left, right = (_side(name, question, lines) for name in _names_of(pair))
    if left is None or right is None:
        return ""
    a, b = _measure(question, left.text), _measure(question, right.text)
    if a is None or b is None or a == b:
        return _by_overlap(question, left, right)
    wants_smallest = bool(_LESS.search(question)) or (bool(_EARLY.search(question)) and not _LIVED.search(question))
    if _LATE.search(question) and not _EARLY.search(question):
        wants_smallest = False
    return left.name if (a < b) == wants_smallest else right.name


def _names_of(pair: re.Match[str]) -> tuple[str, str]:
    return pair[2].strip(" \"“”'"), pair[3].strip(" \"“”'.")


def _side(name: str, question: str, lines: tuple[str, ...]) -> Side | None:
    """The passage whose title best agrees with `name`, followed one step where the question asks for that."""
    own = stems(name)
    best, best_share = None, 0.0
    for line in lines:
        title = stems(bare_title(split_line(line)[0]))
        share = len(own & title) / max(1, len(own | title))
        if share > best_share:
            best, best_share = line, share
    if best is None:
        return None
    named, text = split_line(best)
    shown = bare_title(named) if stems(bare_title(named)) <= own else name
    return Side(shown, _followed(named, text, question, lines) or text)


def _followed(title: str, text: str, question: str, lines: tuple[str, ...]) -> str:
    """The passage of the person that `text` names, where the question asks about that person ("whose director …")."""
    role = re.search(r"\b(director|author|writer|composer|performer|producer|founder|creator|singer)s?\b", question)
    if role is None:
        return ""
    words = stems(text)
    for line in lines:
        other, about = split_line(line)
        named = stems(bare_title(other))
        if other != title and named and named <= words and not named <= stems(question):
            return about
    return ""


def _measure(question: str, text: str) -> float | None:
    """The year (with its months as a fraction) or number of `text` that the question's comparison is about."""
    dates = [_as_year(match[0]) for _, match in zip(range(40), DATE.finditer(text), strict=False)]
    if _LIVED.search(question):
        return dates[1] - dates[0] if len(dates) > 1 else None
    if _MORE.search(question) and not _EARLY.search(question) and not _LATE.search(question):
        return _first_number(question, text)
    if _LESS.search(question):
        return _first_number(question, text)
    if not (_EARLY.search(question) or _LATE.search(question)) or not dates:
        return None
    older = re.search(r"\b(?:older|oldest|younger|youngest|born)\b", question)
    if _DIED.search(question) and not older:
        return dates[1] if len(dates) > 1 else dates[0]
    return dates[0]


def _as_year(date: str) -> float:
    """A date as a number that orders dates: 4 May 1901 -> 1901.35…"""
    year = re.search(r"\d{3,4}", date)
    month = next((i for i, name in enumerate(_MONTHS) if name in date.lower()), 0)
    day = re.search(r"\b\d{1,2}\b", date)
    return float(year[0] if year else 0) + month / 12 + (int(day[0]) if day else 0) / 400


def _first_number(question: str, text: str) -> float | None:
    """The number in `text` nearest to a word of the question, else the first that is no year."""
    asked = stems(question)
    values = [m for _, m in zip(range(40), NUMBER.finditer(text), strict=False) if m[0][0].isdigit()]
    plain = [m for m in values if not _YEAR.fullmatch(m[0])]
    beside = [m for m in plain if stems(text[max(0, m.start() - 40) : m.end() + 30]) & asked]
    found = next(iter(beside or plain), None)
    return float(re.sub(r"[^\d.]", "", found[0]).rstrip(".") or 0) if found else None


def _by_overlap(question: str, left: Side, right: Side) -> str:
    """Where nothing can be measured: the side whose passage holds more of the question's other words."""
    rest = stems(question) - stems(left.name) - stems(right.name)
    return right.name if len(rest & stems(right.text)) > len(rest & stems(left.text)) else left.name


def yes_or_no(question: str, lines: tuple[str, ...], reading: Reading) -> bool:
    """A simple check of a yes/no question: compare attributes for "both" and "same", else see what is covered.

    >>> lines = ("Orm | Orm is a Welsh painter.", "Kerry | Kerry is an Irish painter.")
    >>> from blendfilter.lm.offline_reading import read_passages
    >>> q = "Are Orm and Kerry of the same nationality?"
    >>> yes_or_no(q, lines, read_passages(q, lines))
    False
    """
    pair = _named_in(question, lines)
    if len(pair) > 1 and _BOTH.search(question):
        first, second = (_followed(*split_line(line), question, lines) or line for line in pair[:2])
        return _agree(question, first, second)
    shown = frozenset(word for each in reading.chosen for word in each.stems | each.title_stems)
    share = len(reading.wanted & shown) / max(1, len(reading.wanted))
    denied = any(_NEGATIVE.search(each.text) for each in reading.chosen[:2])
    return share >= 0.6 and not denied


def _named_in(question: str, lines: tuple[str, ...]) -> list[str]:
    """The passages whose titles stand in the question, in the order of the prompt, one for each title."""
    asked = stems(question)
    seen: set[frozenset[str]] = set()
    found: list[str] = []
    for line in lines:
        named = stems(bare_title(split_line(line)[0]))
        if named and named <= asked and named not in seen:
            seen.add(named)
            found.append(line)
    return found


def _agree(question: str, first: str, second: str) -> bool:
    """Whether two passages agree in what the question asks about."""
    if re.search(r"\bsame\b", question, re.IGNORECASE) and _ATTRIBUTE.search(question):
        return bool(_proper(question, first) & _proper(question, second))
    named = stems(split_line(first)[0]) | stems(split_line(second)[0])
    asked = {word for word in stems(question) - named if word not in (stem("same"), stem("share"))}
    shared = asked & stems(first) & stems(second)
    return len(shared) >= max(1, (len(asked) + 1) // 2)


def _proper(question: str, line: str) -> frozenset[str]:
    """The capitalised words of a passage's first 300 characters that neither title nor question holds."""
    title, text = split_line(line)
    words = [m[0] for m in NAME.finditer(text[:300])]
    dates = stems(" ".join(m[0] for m in DATE.finditer(text[:300])))
    return stems(" ".join(words)) - stems(title) - stems(question) - dates
