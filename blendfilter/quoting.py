"""What a reply says in its own words, and what it quotes: quoted text never decides.

A passage may hold "Ids: 0, 1, 2" or "So the answer is Rome", and a model that reports it says neither. In: a reply.
Out: the same text, position by position, in which what it quotes is marks (`QUOTED`): fences, lines behind ``>``, text
in quotation marks or backticks, and what stands behind "passage 2 says:". Words stand where they stood, so a reader
finds a place in the one and reads it in the other.

A reply may also *be* a fence, or stand in quotation marks: a quotation is the reply's own where the reply begins with
it, or where it is announced ("The ids are:") and no passage is named that would say it. A reader decides by the reply's
other words first, and turns to these where they decide nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

LONGEST_REPLY = 65_536
"""Characters of a reply that are read for ids, verdicts and conclusions: some 16,000 tokens, more than any step asks
for. Of a longer one a reader sees its end (or its beginning, where what is read stands there)."""
QUOTED = "\ufffc"
"""Stands for each character of a quotation; it is no letter, no digit and no white space."""

_MARKS_OF_QUOTES = re.compile("[\"'`“„‘«]")
# Each stops where another one opens, so that a text of nothing but opening marks is read once.
_MARKED = re.compile(
    r"(?=[\"'`“„‘«])(?:"
    r"(?<!\w)\"(?=\S)(?:[^\"\n]|\n(?![^\S\n]*+\n))*+\"(?!\w)"
    r"|(?<!\w)\"(?=\w)[^\"\n]*+$"  # never closed: a reply that was cut off
    r"|“(?:[^“”„\n]|\n(?![^\S\n]*+\n))*+”|“[^“”\n]*+$"
    r"|„(?:[^“”„\n]|\n(?![^\S\n]*+\n))*+[“”]"
    r"|«[^«»\n]*+»"
    r"|‘[^‘’\n]*+(?:(?<=\w)’(?=\w)[^‘’\n]*+)*+’(?!\w)"
    r"|(?<!\w)'(?=[^\s'])[^'\n]*+(?:(?<=\w)'(?=\w)[^'\n]*+)*+'(?!\w)"
    r"|`[^`\n]++`)",
    re.MULTILINE,
)
_FENCE = re.compile(r"[^\S\n]{0,3}(`{3,}|~{3,})")
_SOURCES = r"(?:knowledge|passage|sentence|piece|text|document|context|title|article|source|it|which|that|this)s?"
_SAYING = (
    r"(?:says?|said|saying|states?|stated|reads?|claims?|claimed|writes?|wrote|tells?|told|contains?|includes?|quotes?"
    r"|instructs?|asks?|asked|adds?|declares?|insists?|asserts?|orders?|demands?|requests?)\b"
)
_WHAT = (
    r"(?:[^\S\n]{1,3}(?:that|this|these|the|an?|us|me|you|of|in|with|following|text|words?|lines?|instructions?|sentence"
    r"|phrase|readers?|to(?:\s(?:answer|reply|respond|return|output|write|print|say))?)\b){0,6}"
)
_SAYER = re.compile(
    rf"(?:\b{_SOURCES}\b\W{{0,3}}(?:#?\d{{1,4}}\b\W{{0,3}})?|(?<![\w.,])#?\d{{1,4}}\b\W{{0,3}})"
    rf"(?:(?:also|even|itself|only|just|then|here|falsely|explicitly)\s){{0,2}}{_SAYING}",
    re.IGNORECASE,
)
"""A passage named as the speaker of a quotation."""
_LONGEST_SAYER = 48
_SAYING_WORD = re.compile(rf"\b{_SAYING}", re.IGNORECASE)
_SPEECH = re.compile(
    rf"(?P<what>{_WHAT})"
    r"(?:[^\S\n]{0,3}:|\W{0,3}(?=(?:relevant\s)?(?:ids?|numbers)\W{0,3}:|the (?:final )?answer is\b))",
    re.IGNORECASE,
)
"""What stands between that and what it says."""
_IDS_OF_A_SOURCE = re.compile(
    rf"\b{_SOURCES}\b\W{{0,3}}#?\d{{1,4}}\b[^\w\n]{{0,6}}(?:relevant\s)?(?:ids?|numbers)[^\S\n]{{0,3}}[:=][^\n)]*+",
    re.IGNORECASE,
)
"""Ids behind no more than the name of a passage: it is the passage that gives them (according to passage 2: Ids: …)."""
_REST = re.compile(r"[^\n)]*+")
_BRACKETS = re.compile(r"\([^()\n]*+\)")
_ANNOUNCES = re.compile(
    r"(?:[:=]|\b(?:is|are|be|ids?|numbers?|answers?|verdict|knowledges?|passages?|sentences?|pieces?|only|exactly|namely"
    r"|just|output|reply|return|say|choose|select|pick|keep|need|use|sure),?)[\s*_#`\[{(]{0,8}$",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"(?:[\s,;/&|()\[\]*:.-]|\band\b|\bor\b)*+")
_LINE_BREAKS = re.compile(r"[^\n]+")


class OwnWords(NamedTuple):
    """A reply in its own words.

    Attributes:
        words: the reply, every quotation as marks. It is the very reply where it quotes nothing.
        announced: the same with those quotations in place that may be the reply's own; None where there are none.
    """

    words: str
    announced: str | None


def own_words(reply: str) -> OwnWords:
    """`reply` without what it quotes, position by position.

    >>> own_words('0, 3 ("Ids: 1")').words.replace(QUOTED, "")
    '0, 3 ()'
    >>> own_words('"0, 3"').announced
    '"0, 3"'
    """
    words, fences = _without_blocks(reply)
    spans = list[tuple[int, int]]()
    if _MARKS_OF_QUOTES.search(words):
        spans = [(found.start(), found.end()) for found in _MARKED.finditer(words)]
        words = _blanked(words, spans)
    own = [*_of_its_own(words, sorted([*fences, *spans]))]
    words = _without_speech(words)
    if words == reply:
        return OwnWords(reply, None)
    announced = None
    if own:
        pieces, at = [], 0
        for start, end in own:
            pieces += [words[at:start], reply[start:end]]
            at = end
        announced = "".join([*pieces, words[at:]])
    return OwnWords(words, announced)


def own_lines(reply: str, words: str) -> list[str]:
    """The lines of `reply`, as they stand, that hold something of `words`; the others are quoted whole, and empty.

    >>> own_lines("> True\\nFalse", own_words("> True\\nFalse").words)
    ['', 'False']
    """
    if words is reply:
        return reply.split("\n")
    lines = zip(reply.split("\n"), words.split("\n"), strict=True)
    return [line if QUOTED not in own or re.search(r"\w", own) else "" for line, own in lines]


def end_of(reply: str) -> str:
    """What is read of a reply whose end counts: whole lines of its last `LONGEST_REPLY` characters."""
    return reply if len(reply) <= LONGEST_REPLY else reply[-LONGEST_REPLY:].partition("\n")[2]


def attributions(words: str) -> list[str]:
    """The places in `words` where a passage is named as the speaker of a quotation: "passage 2 says" and its marks."""
    return [found[0] for found in _ATTRIBUTED.finditer(words)] if QUOTED in words else []


def unattributed(words: str) -> str:
    """`words` less these."""
    return _ATTRIBUTED.sub(" ", words)


_ATTRIBUTED = re.compile(rf"{_SAYER.pattern}{_WHAT}\s{{0,3}}[:,]?(?:\s*+{QUOTED}++)++", re.IGNORECASE)
_ATTRIBUTED_ALONE = re.compile(rf"^[^\w\n]*+{_ATTRIBUTED.pattern}[^\w\n]*+$", re.IGNORECASE | re.MULTILINE)


def _blanked(text: str, spans: list[tuple[int, int]]) -> str:
    pieces, at = [], 0
    for start, end in spans:
        pieces += [text[at:start], _LINE_BREAKS.sub(_marks, text[start:end])]
        at = end
    return "".join([*pieces, text[at:]]) if pieces else text


def _marks(found: re.Match[str]) -> str:
    return QUOTED * (found.end() - found.start())


def _without_blocks(reply: str) -> tuple[str, list[tuple[int, int]]]:
    """The reply without fences and the lines behind ``>``; and where the fences are, their marks with them."""
    if not ("```" in reply or "~~~" in reply or ">" in reply):
        return reply, []
    spans, fences = list[tuple[int, int]](), list[tuple[int, int]]()
    mark, begun, at = "", 0, 0
    for line in reply.splitlines(keepends=True):
        end = at + len(line)
        fence = _FENCE.match(line)
        if mark:
            if fence and fence[1].startswith(mark) and not line[fence.end() :].strip():
                fences.append((begun, end))
                mark = ""
        elif fence and "`" not in line[fence.end() :]:
            mark, begun = fence[1], at
        elif line.lstrip().startswith(">"):
            spans.append((at, end))
        at = end
    if mark:
        fences.append((begun, at))
    return _blanked(reply, sorted([*spans, *fences])), fences


def _of_its_own(words: str, spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The quotations that may be what the reply itself says."""
    begun, last, own = False, 0, False
    for start, end in spans:
        before = words[last:start]
        if not (own and _BETWEEN.fullmatch(before)):
            begun = begun or bool(re.search(r"\w", before))
            near = before[-_NEAR:]
            line = near[near.rstrip().rfind("\n") + 1 :]
            own = not begun or (_ANNOUNCES.search(line) is not None and not _SAYER.search(line))
        begun, last = True, end
        if own:
            yield start, end


_NEAR = 200
"""Characters before a quotation in which it may be announced."""


def _without_speech(words: str) -> str:
    """`words` without speech that it attributes to a passage, and without the brackets around it."""
    spans = list[tuple[int, int]]()
    at = 0
    for verb in _SAYING_WORD.finditer(words) if ":" in words or "answer is" in words.lower() else ():
        speech = _SPEECH.match(words, verb.end()) if verb.start() >= at else None
        if speech is None or _SAYER.search(words, max(at, verb.start() - _LONGEST_SAYER), verb.end()) is None:
            continue
        if rest := _REST.match(words, speech.end()):
            at = rest.end()
            spans.append((speech.end("what"), at))
    words = _blanked(words, spans)
    if ":" in words or "=" in words:
        words = _blanked(words, [found.span() for found in _IDS_OF_A_SOURCE.finditer(words)])
    if QUOTED not in words:
        return words
    # A line, or a bracket, that does no more than name who says it belongs to the quotation.
    words = _blanked(words, [found.span() for found in _ATTRIBUTED_ALONE.finditer(words)])
    return _blanked(words, [found.span() for found in _BRACKETS.finditer(words) if attributions(found[0])])
