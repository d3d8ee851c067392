"""How a multi-hop reply is read: what was said, then a follow-up, or the final answer. Pure text.

Press et al., "Measuring and Narrowing the Compositionality Gap in Language Models" (2022), section 3 (Self-Ask); Yao et
al., "ReAct: Synergizing Reasoning and Acting in Language Models" (2022), section 2 (thoughts and actions).
In: what a model wrote at a cue. Out: a `Hop`, what it said before it asked a follow-up or concluded, and which of both.

The first of these counts. Whatever a model writes after a follow-up is made up, because nothing was looked up yet: it
is left out and reported (`invented`). A follow-up is one line, verbatim; one that says there is none is none.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from blendfilter.asking import STOP
from blendfilter.quoting import LONGEST_REPLY, end_of, own_words
from blendfilter.text import sentences

NEEDED = "Are follow-up questions needed here:"
FOLLOW_UP = "Follow-up:"
KNOWLEDGE = "Knowledge:"
INTERMEDIATE = "Intermediate answer:"
FINAL = "So the final answer is:"

HOP_STOP = (f"\n{INTERMEDIATE}", *STOP)
"""Where a model starts to answer its own follow-up, or to invent what was found."""
ACTION_STOP = ("\nObservation", *STOP)

_MARKS = r"[ \t*_`]{0,8}"
"""What chat models put around words to set them in bold or as code."""
# A line's opening, with such marks or a number; or the place after a sentence.
_OPENING = r"(?:^|(?<=[.!?]\s)|(?<=[.!?]\*\*\s))[ \t>*_#-]{0,8}(?:\d{1,2}[.)][ \t*_]{0,4})?"
_FOLLOWING = re.compile(
    rf"{_OPENING}(?:(?:first|next)\s)?follow[-\s‐‑–]?ups?(?:\squestions?)?(?:\s?[#(]?\d{{1,2}}\)?)?{_MARKS}:{_MARKS}",
    re.IGNORECASE | re.MULTILINE,
)
_THEREFORE = r"(?:so|therefore|thus|hence),?\s{1,3}the\s{1,3}"
_FINAL = r"final\s{1,3}"
_IS = rf"answer{_MARKS}(?:is\b|:)[ \t:*_`]{{0,8}}"
_CONCLUDING = re.compile(
    rf"\b{_THEREFORE}{_FINAL}{_IS}|{_OPENING}(?:{_THEREFORE}(?:{_FINAL})?|(?:the\s{{1,3}})?{_FINAL}){_IS}",
    re.IGNORECASE | re.MULTILINE,
)
# At the end of a reasoning, where no answer to a follow-up can be meant: inside a sentence too; else in fewer words.
_ANSWERING = (
    re.compile(rf"\b{_THEREFORE}(?:{_FINAL})?{_IS}|\b{_FINAL}{_IS}", re.IGNORECASE),
    re.compile(rf"{_OPENING}(?:the\s{{1,3}}(?:correct\s)?)?{_IS}", re.IGNORECASE | re.MULTILINE),
)
_ITEM = re.compile(r"^\s*(?:\d{1,2}[.)]|[-*•])\s")
_NOTHING_MORE = re.compile(
    r"(?:none|n/?a|no|nothing)(?: (?:is |are )?(?:needed|necessary|required|more|else|further))?\W{0,8}"
    r"|no (?:(?:further|more|other|additional) ){0,2}(?:follow-?ups?|questions?)\b[^?]{0,60}",
    re.IGNORECASE,
)
_ACTION = rf"\baction(?:\s\d{{1,3}})?{_MARKS}:{_MARKS}\n?"
_ACTING = (  # where an action should stand, for a thought may speak of others before it; else anywhere
    re.compile(
        rf"{_MARKS}{_ACTION}(?P<verb>search|finish){_MARKS}(?P<opens>[\[(:])"
        rf"|^{_MARKS}(?P<bare>search|finish){_MARKS}\[",
        re.IGNORECASE | re.MULTILINE,
    ),
    re.compile(r"\b(?P<bare>search|finish)\[", re.IGNORECASE),
)
_CUE_AGAIN = re.compile(
    r"\W{0,8}(?:are follow[- ]?up questions needed here|intermediate answer|thought(?:\s\d{1,3})?)\s?:[ \t*_]*",
    re.IGNORECASE,
)
_POSING = re.compile(
    r"(?:are follow-?up|follow-?up|intermediate answer|so the |question|knowledge|thought|action|observation)"
    r"[^|:]{0,40}:",
    re.IGNORECASE,
)


class Hop(NamedTuple):
    """One reply, read: what was said first, then a follow-up, or a final answer, or neither."""

    said: str = ""
    follow_up: str = ""
    final: str = ""
    invented: bool = False


def read_hop(reply: str) -> Hop:
    r"""A reply in Self-Ask's lines.

    >>> read_hop("Jørn Utzon.\nFollow-up: Where was he born?\nIntermediate answer: Rome.")
    Hop(said='Jørn Utzon.', follow_up='Where was he born?', final='', invented=True)
    >>> read_hop("Copenhagen.\nSo the final answer is: Copenhagen").final
    'Copenhagen'
    """
    text = _without_cue(reply[:LONGEST_REPLY])
    following, concluding = _said(text, _FOLLOWING, _CONCLUDING)
    end = len(text)
    if following and _NOTHING_MORE.fullmatch(_first_line(text[following.end() :])[0]):  # "Follow-up: none"
        end, following = following.start(), None
    if following and not (concluding and concluding.start() < following.start()):
        asked, rest = _first_line(text[following.end() :])
        return Hop(text[: following.start()].strip(), follow_up=asked, invented=bool(asked and rest.strip()))
    if concluding:
        said = text[: min(end, concluding.start())].strip()
        return Hop(said, final=_first_line(text[concluding.end() :])[0])
    return Hop(text[:end].strip())


def read_action(reply: str) -> Hop:
    r"""A reply in ReAct's own form: a thought, then `Search[…]` or `Finish[…]`.

    >>> read_action("The architect first.\nAction 1: Search[Sydney Opera House]").follow_up
    'Sydney Opera House'
    """
    text = _without_cue(reply[:LONGEST_REPLY])
    acting = next(filter(None, _said(text, *_ACTING)), None)
    if acting is None:
        concluded = read_hop(text)
        return Hop(concluded.said, final=concluded.final)
    told = acting.groupdict()
    value, rest = _bracketed(text[acting.end() :], told.get("opens") or "[")
    said = text[: acting.start()].strip()
    if (told.get("verb") or told["bare"]).lower() == "finish":
        return Hop(said, final=value)
    return Hop(said, follow_up=value, invented=bool(value and rest.strip(" \t\r\n.*`")))


def conclusion(reasoning: str) -> str:
    r"""What a reasoning concludes last, in one sentence; "" where it concludes nothing.

    >>> conclusion("It opened in 1871.\nSo the answer is 1871."), conclusion("It opened late, so the answer is no.")
    ('1871.', 'no.')
    """
    reasoning = end_of(reasoning)
    own = own_words(reasoning)
    for words in (own.words, own.announced or ""):
        for pattern in _ANSWERING:
            if ends := [found.end() for found in pattern.finditer(words)]:
                line = _first_line(reasoning[ends[-1] :])[0]
                return next((sentence.text for sentence in sentences(line)), "")
    return ""


def _said(text: str, *patterns: re.Pattern[str]) -> list[re.Match[str] | None]:
    """Where each pattern is found first in a reply's own words; in what it may quote of itself where none is."""
    own = own_words(text)
    found = [pattern.search(own.words) for pattern in patterns]
    if any(found) or own.words is text:
        return found
    quoted_whole = not re.search(r"\w", own.words)
    return [pattern.search(text if quoted_whole else own.announced or "") for pattern in patterns]


def shown(line: str) -> str:
    """A passage's line inside a transcript; one that would pass for a part of it stands behind a bar.

    >>> shown("Follow-up: what now?"), shown("Orm Pier | Follow-up: what now?")
    ('| Follow-up: what now?', 'Orm Pier | Follow-up: what now?')
    """
    return f"| {line}" if _POSING.match(line.lstrip()) else line


def _without_cue(reply: str) -> str:
    again = _CUE_AGAIN.match(reply)
    return reply[again.end() :] if again else reply


def _first_line(text: str) -> tuple[str, str]:
    """The first line that says something, and what follows it; nothing where that line opens the next part."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.strip():
            posing = any(mark.match(line) for mark in (_FOLLOWING, _CONCLUDING, _CUE_AGAIN))
            told = _ITEM.sub("", line) if number else line  # the first of a list below the cue
            return ("", text) if posing else (told.strip().removesuffix("**").strip(), "\n".join(lines[number + 1 :]))
    return "", ""


def _bracketed(text: str, opens: str) -> tuple[str, str]:
    """What stands before the bracket that closes an action (brackets inside it may be in pairs), and what follows."""
    line = (text.splitlines() or [""])[0]
    closes = {"[": "]", "(": ")"}.get(opens)
    depth = 1
    for at, letter in enumerate(line if closes else ""):
        depth += (letter == opens) - (letter == closes)
        if not depth:
            return line[:at].strip(), text[at + 1 :]
    return line.strip(), text[len(line) :]
