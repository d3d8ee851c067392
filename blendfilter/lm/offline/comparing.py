"""Questions that set two things side by side: "Which came first, A or B?", "Are A and B both …?".

Input: a question and its passages. Output: one of the two names, "yes" or "no". Years and numbers are read from the
passage of each thing, or, where the question speaks of its director, author and the like, from the passage that the
first one names.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from blendfilter.lm.offline.reading import WORD, Reading, bare_title, key_of, split_line, stem, stems
from blendfilter.lm.offline.spans import DATE, NAME, NUMBER

_EARLY = re.compile(r"\b(?:first|earlier|older|oldest|earliest|before|eldest)\b", re.IGNORECASE)
_LATE = re.compile(r"\b(?:later|younger|youngest|latest|last|recent|recently|newer|newest|after)\b", re.IGNORECASE)
_MORE = re.compile(
    r"\b(?:more|larger|largest|bigger|taller|tallest|longer|longest|higher|highest|most|greater|greatest|wider|deeper"
    r"|farther|further|heavier)\b",
    re.IGNORECASE,
)
_LESS = re.compile(r"\b(?:fewer|fewest|less|least|smaller|smallest|shorter|shortest|lower|lowest)\b", re.IGNORECASE)
_DIED = re.compile(r"\b(?:died|die|death|deceased)\b", re.IGNORECASE)
_OLDER = re.compile(r"\b(?:older|oldest|younger|youngest|born)\b", re.IGNORECASE)
_LIVED = re.compile(r"\blived? (?:\w+ ){0,3}(?:longer|greater age)\b", re.IGNORECASE)
_CHOICE = re.compile(r"\bor\b|\b(?:between|out of|of the)\b.{1,200}\band\b", re.IGNORECASE | re.DOTALL)
_BEFORE_NAME = re.compile(
    r".*(?:[,:?]|\b(?:is|are|was|were|between|among|of|does|do|did|has|have))\s", re.I | re.DOTALL
)
_BOTH = re.compile(r"\b(?:same|both|also|share|each)\b", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"\b(?:nationality|country|city|state|place|profession|genre|year)\b", re.IGNORECASE)
_NEGATIVE = re.compile(r"\b(?:not|never|no|neither|nor|without|unable|cannot)\b|n't\b", re.IGNORECASE)
_ROLE = re.compile(r"\b(?:director|author|writer|composer|performer|producer|founder|creator|singer|artist)s?\b")
_YEAR = re.compile(r"\b[12]\d{3}\b")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_SOME = 40
_NEAR_END = 400


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
    sides = _sides(question, lines) if _CHOICE.search(question) else []
    if len(sides) < 2:
        return ""
    left, right = sides[:2]
    first = _comes_first(question, left, right)
    if first is None:
        return _by_overlap(question, left, right)
    return left.name if first else right.name


def _comes_first(question: str, left: Side, right: Side) -> bool | None:
    """Whether the left side is the one the comparing word is after; None where nothing can be compared."""
    a, b = _measure(question, left.text), _measure(question, right.text)
    if a is None or b is None or a == b:
        return None
    smallest = bool(_LESS.search(question) or _EARLY.search(question)) and not _LIVED.search(question)
    if _LATE.search(question) and not _EARLY.search(question):
        smallest = False
    return (a < b) == smallest


def _sides(question: str, lines: tuple[str, ...]) -> list[Side]:
    """The things that the question names by title; else those on both sides of its last "or"."""
    named = _named_in(question, lines)
    if len(named) >= 2:
        return [_side(bare_title(split_line(line)[0]), line, question, lines) for line in named]
    left, _, right = question[-_NEAR_END:].rstrip(" ?.").rpartition(" or ")
    names = [_BEFORE_NAME.sub("", part.strip(" ,\"“”'")).strip(" ,\"“”'") for part in (left, right)]
    best = [_best_line(name, lines) for name in names]
    if best[0] is None or best[1] is None or best[0] == best[1]:
        return []
    return [_side(name, line, question, lines) for name, line in zip(names, best, strict=True) if line]


def _side(name: str, line: str, question: str, lines: tuple[str, ...]) -> Side:
    """A side with its passage's text, followed one step where the question asks for that ("whose director …")."""
    title, text = split_line(line)
    return Side(name, _followed(title, text, question, lines) or text)


def _best_line(name: str, lines: tuple[str, ...]) -> str | None:
    """The passage whose title best agrees with `name`, None where none shares a word."""
    own = stems(name)
    titles = [stems(bare_title(split_line(line)[0])) for line in lines]
    shares = [len(own & title) / max(1, len(own | title)) for title in titles]
    best = max(range(len(lines)), key=lambda i: (shares[i], -i), default=-1)
    return lines[best] if best >= 0 and shares[best] > 0 else None


def _followed(title: str, text: str, question: str, lines: tuple[str, ...]) -> str:
    """The passage of the person that `text` names, where the question asks about that person."""
    if not _ROLE.search(question):
        return ""
    words, asked = stems(text), stems(question)
    for line in lines:
        other, about = split_line(line)
        named = key_of(other)
        if other != title and named and named <= words and not named <= asked:
            return about
    return ""


def _measure(question: str, text: str) -> float | None:
    """The year (with its months as a fraction) or number of `text` that the question's comparison is about."""
    dates = [_as_year(match[0]) for _, match in zip(range(_SOME), DATE.finditer(text), strict=False)]
    if _LIVED.search(question):
        return dates[1] - dates[0] if len(dates) > 1 else None
    in_time = _EARLY.search(question) or _LATE.search(question)
    if not in_time and (_MORE.search(question) or _LESS.search(question)):
        return _first_number(question, text)
    if not in_time or not dates:
        return None
    by_death = _DIED.search(question) and not _OLDER.search(question)
    return dates[1] if by_death and len(dates) > 1 else dates[0]


def _as_year(date: str) -> float:
    """A date as a number that orders dates: 4 May 1901 -> 1901.35…"""
    year = re.search(r"\d{3,4}", date)
    month = next((i for i, name in enumerate(_MONTHS) if name in date.lower()), 0)
    day = re.search(r"\b\d{1,2}\b", date)
    return float(year[0] if year else 0) + month / 12 + (int(day[0]) if day else 0) / 400


def _first_number(question: str, text: str) -> float | None:
    """The number in `text` nearest to a word of the question, else the first that is no year."""
    asked = stems(question)
    values = [m for _, m in zip(range(_SOME), NUMBER.finditer(text), strict=False) if m[0][0].isdigit()]
    plain = [m for m in values if not _YEAR.fullmatch(m[0])]
    beside = [m for m in plain if stems(text[max(0, m.start() - 40) : m.end() + 30]) & asked]
    found = next(iter(beside or plain), None)
    digits = "".join(c for c in found[0] if c.isascii() and c in "0123456789.").strip(".") if found else ""
    return float(digits) if digits else None


def _by_overlap(question: str, left: Side, right: Side) -> str:
    """Where nothing can be measured: the side whose passage holds more of the question's other words."""
    rest = stems(question) - stems(left.name) - stems(right.name)
    return right.name if len(rest & stems(right.text)) > len(rest & stems(left.text)) else left.name


def yes_or_no(question: str, lines: tuple[str, ...], reading: Reading) -> bool:
    """A simple check of a yes/no question: compare attributes for "both" and "same", else see what is covered.

    >>> lines = ("Orm | Orm is a Welsh painter.", "Kerry | Kerry is an Irish painter.")
    >>> from blendfilter.lm.offline.reading import read_passages
    >>> q = "Are Orm and Kerry of the same nationality?"
    >>> yes_or_no(q, lines, read_passages(q, lines))
    False
    """
    pair = _named_in(question, lines)
    if len(pair) > 1 and (_EARLY.search(question) or _LATE.search(question) or _MORE.search(question)):
        left, right = (_side("", line, question, lines) for line in pair[:2])
        if (first := _comes_first(question, left, right)) is not None:
            return first
    if len(pair) > 1 and _BOTH.search(question):
        one, other = (_followed(*split_line(line), question, lines) or line for line in pair[:2])
        return _agree(question, one, other)
    shown = frozenset(word for each in reading.chosen for word in each.stems | each.title_stems)
    share = len(reading.wanted & shown) / max(1, len(reading.wanted))
    denied = any(_NEGATIVE.search(each.text) for each in reading.chosen[:2])
    return share >= 0.6 and not denied


def _named_in(question: str, lines: tuple[str, ...]) -> list[str]:
    """The passages whose titles the question names, in the question's order, one for each title.

    A title inside a longer one that is named too ("Orm" in "Orm Pier") counts only where it stands apart.
    """
    asked, words = stems(question), " ".join(WORD.findall(question.lower()))
    found: dict[int, tuple[int, str]] = {}
    for line in lines:
        title = bare_title(split_line(line)[0])
        plain = " ".join(WORD.findall(title.lower()))
        at = words.find(plain) if plain and len(plain) <= _NEAR_END and stems(title) <= asked else -1
        if at >= 0 and len(plain) > found.get(at, (0, ""))[0]:
            found[at] = (len(plain), line)
    ends = [(at, at + size, line) for at, (size, line) in sorted(found.items())][:_SOME]
    apart = [one for one in ends if not any(o[0] <= one[0] and one[1] <= o[1] and o is not one for o in ends)]
    return [line for _, _, line in apart]


def _agree(question: str, first: str, second: str) -> bool:
    """Whether two passages agree in what the question asks about."""
    if re.search(r"\bsame\b", question, re.IGNORECASE) and _ATTRIBUTE.search(question):
        return bool(_proper(question, first) & _proper(question, second))
    named = stems(split_line(first)[0]) ^ stems(split_line(second)[0])
    asked = {word for word in stems(question) - named if word not in (stem("same"), stem("share"))}
    shared = asked & stems(first) & stems(second)
    return len(shared) >= max(1, (len(asked) + 1) // 2)


def _proper(question: str, line: str) -> frozenset[str]:
    """The capitalised words of a passage's first 300 characters that neither title nor question holds."""
    title, text = split_line(line)
    words = [m[0] for m in NAME.finditer(text[:300])]
    dates = stems(" ".join(m[0] for m in DATE.finditer(text[:300])))
    return stems(" ".join(words)) - stems(title) - stems(question) - dates
