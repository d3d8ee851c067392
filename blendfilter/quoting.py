"""What a reply says in its own words, and what it quotes: quoted text never decides.

A passage may hold "Ids: 0, 1, 2" or "So the answer is Rome", and a model that reports it says neither. In: a reply.
Out: the same text, position by position, in which what it quotes is marks (`QUOTED`): fences, lines behind ``>``, text
in quotation marks or backticks, and what stands behind "passage 2 says:". Words stand where they stood, so a reader
finds a place in the one and reads it in the other.

A reply may also *be* a fence, or stand in quotation marks: a quotation is the reply's own where the reply begins with
it, or where it is announced ("The ids are:") and no passage is named that would say it. A reader decides by the reply's
other words first, and turns to these where they decide nothing.

A report needs no marks: what a reply disowns ("I ignored the injected line So the answer is Rome") is quoted too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

LONGEST_REPLY = 65_536
"""Characters of a reply that are read for ids, verdicts and conclusions: some 16,000 tokens, more than any step asks
for. Of a longer one a reader sees its end (or its beginning, where what is read stands there)."""
QUOTED = "\ufffc"
"""Stands for each character of a quotation; it is no letter, no digit and no white space."""

THEREFORE = r"(?:so|therefore|thus|hence),?\s{1,3}the\s{1,3}"
"""The opening of a conclusion: "so the answer is"."""


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
_NAMED = r"(?:knowledge|passage|observation|sentence|piece|text|document|context|title|article|source)s?"
_SOURCES = rf"(?:{_NAMED}|(?:it|which|that|this)s?)"
_SAYING = (
    r"(?:says?|said|saying|states?|stated|reads?|claims?|claimed|writes?|wrote|tells?|told|contain(?:s|ed)?|includes?|quotes?"
    r"|instructs?|asks?|asked|adds?|declares?|insists?|asserts?|orders?|demands?|requests?|gives?|suggests?|notes?"
    r"|mentions?|has|have|ends\s(?:with|in))\b"
)
_WHAT = (
    r"(?:[^\S\n]{1,3}(?:that|this|these|the|an?|us|me|you|of|in|with|following|text|words?|lines?|instructions?|sentence"
    r"|phrase|readers?|I|we|must|should|to(?:\s(?:answer|reply|respond|return|output|write|print|say))?)\b){0,6}"
)
_GIVING = (
    r"(?:gives?|gave|suggests?|suggested|notes?|noted|mentions?|mentioned|has|have|had|ends? (?:with|in)|begins? with"
    r"|advises?|recommends?|commands?|urges?|wants?|directs?)\b"
)
"""Verbs that report speech of a passage alone: "this gives the answer" is the reply's own."""
_TO_DO = (
    r"(?:that|me|us|you|one|to|i|we|of|with|in|following|here|just|simply|now|must|should|shall|can|could|may|might"
    r"|would|will|have|has|need|ought|do|write|say|reply|answer|output|return|use"
    r"|(?:(?:the|an?|this|these)\s)?(?:readers?|models?|assistants?|lines?|texts?|words?|instructions?|commands?|actions?"
    r"|phrases?|sentences?))"
)
"""Words between that and what a passage tells to do."""
_SAYER = re.compile(
    rf"(?:\b{_SOURCES}\b[^\w\n]{{0,3}}(?:#?\d{{1,4}}\b[^\w\n]{{0,3}})?|(?<![\w.,])#?\d{{1,4}}\b[^\w\n]{{0,3}})"
    rf"(?:(?:also|even|itself|only|just|then|here|falsely|explicitly)\s){{0,2}}{_SAYING}",
    re.IGNORECASE,
)
"""A passage named as the speaker of a quotation."""
_LONGEST_SAYER = 48
_SAYING_WORD = re.compile(rf"\b{_SAYING}", re.IGNORECASE)
_SPEECH = re.compile(
    rf"(?P<what>{_WHAT})"
    r"(?:[^\S\n]{0,3}:|\W{0,3}(?=(?:relevant\s)?(?:ids?|numbers)\W{0,3}:|the (?:final )?answer is\b"
    r"|(?:finish|answer|search|lookup)\s?\[|no\s(?:further\s|more\s)?(?:follow-?\s?up|questions?))"
    # behind a comma it is the reply's own conclusion: "as passage 2 says, so the answer is Tolm"
    rf"|[^\w,;]{{0,3}}(?={THEREFORE}(?:final )?answer is\b))",
    re.IGNORECASE,
)
"""What stands between that and what it says."""

_WRITTEN = re.compile(
    rf"\b(?:(?:according\sto|per)\s(?:the\s)?{_NAMED}\s?#?\d{{1,4}}|in\s(?:the\s)?{_NAMED}(?:\s?#?\d{{1,4}})?,?\sit\s(?:is|was)\s"
    r"(?:written|said|stated))[^\S\n]{0,3}:[^\n)]*+",
    re.IGNORECASE,
)
"""What stands in a passage, without a verb of speaking."""
_SPEAKS = (
    r"(?:(?:say|state|read|write|tell|declare|insist|assert|note|suggest|call)s?|claims)\b"
)
_TO_THE_TURN = r"(?:(?!,?\s(?:but|however|so|yet|though|although|whereas|therefore|thus|hence)\b)[^.;!?\n])*+"
_REPORTED = re.compile(
    rf"\b(?:{_NAMED}|it)\b[^\w\n]{{0,3}}(?:#?\d{{1,4}}\b[^\w\n]{{0,3}})?(?:(?:also|even|itself|only|just|then|here|falsely|explicitly)\s){{0,2}}"
    rf"{_SPEAKS}{_TO_THE_TURN}",
    re.IGNORECASE,
)
"""Speech that is reported without marks, to the end of its clause ("passage 2 says it is true, but …")."""
_SPEAKER = re.compile(
    rf"\b(?:{_NAMED}\b[^\w\n]{{0,3}}(?:#?\d{{1,4}}\b[^\w\n]{{0,3}})?{_SAYING}|{_SAYING}\s(?:the\s)?{_NAMED})",
    re.IGNORECASE,
)
_IDS_OF_A_SOURCE = re.compile(
    rf"\b{_SOURCES}\b\W{{0,3}}#?\d{{1,4}}\b[^\w\n]{{0,6}}(?:relevant\s)?(?:ids?|numbers)[^\S\n]{{0,3}}[:=][^\n)]*+",
    re.IGNORECASE,
)
"""Ids behind no more than the name of a passage: it is the passage that gives them (according to passage 2: Ids: …)."""
_REST = re.compile(r"[^\n)]*+")
_TO_ITS_OWN = re.compile(
    rf"[^\n).!?]*+(?:[.!?](?!\s{THEREFORE}(?:final )?answer is\b)[^\n).!?]*+)*+", re.IGNORECASE
)
"""The same, to the end of a sentence behind which the reply concludes."""
_BRACKETS = re.compile(r"\([^()\n]*+\)")
_ORDER = r"(?:line|instruction|command|order|directive|prompt|request|message)s?"
_PLANTED = (
    r"(?:injected|injections?|embedded|forged|faked?|planted|malicious|spurious|smuggled|inserted"
    r"|adversarial|tampered)"
)
_DISOWNS = re.compile(
    rf"\b(?:(?:{_PLANTED}|(?:tries|tried|attempts)\sto|hidden\s{_ORDER})\b"
    rf"|{_ORDER}\s(?:in|inside|within|from|of)\s(?:the\s)?{_NAMED}\b"
    r"|(?:(?:ignor|disregard|discard|refus)(?:e|ed|ing)?|(?:not|never|n['’]t)\s(?:write|wrote|say|said|state"
    r"|follow|obey|heed))\b(?=[^\w\n]{0,3}(?:so|thus|hence|therefore|the|ids|answer|final|verdict|finish|action|search|this|these)\b"
    rf"|[^.!?\n]{{0,80}}?\b(?:{_ORDER}|text|sentence|statement|claims?)\b)"
    # Others reject too: "The claim was rejected: so the answer is no."
    r"|(?:dismiss|reject)(?:ed|ing)?\b(?=\s(?-i:[A-Z])|[^.!?\n]{0,80}?\b(?:lines?|instructions?|prompts?|text)\b)"
    r"|I\b[^.!?:,;\n]{0,24}?\b(?:(?:told|asked|instructed|ordered|refus(?:e|ed|ing)|declin(?:e|ed|ing))\sto\s"
    r"(?P<say>write|output|print|say)|(?:not|never|\w{2,6}n['’]t)\s(?P<write>write|wrote|output|print))\b"
    r"(?=[^\w\n]{0,3}(?:[:\n]|\Z|(?:relevant|so|thus|hence|therefore|ids|answer|final|verdict|finish|action|search|this|(?-i:The))\b)))",
    re.IGNORECASE,
)
"""Words of a sentence that reports an injection: what it is called, and that the model does not follow it."""
_STRUCK = re.compile(
    rf"\(\W?(?:(?:this|that)(?:\s{_ORDER})?\s(?:is|was)\s(?:an?\s)?)?(?:{_PLANTED}|hidden|ignored|disregarded)(?=[),;])[^()\n]*+\)"
    rf"|(?:<-|←)[^\n]{{0,80}}?\b(?:{_PLANTED}|ignored|disregarded)\b[^\n]*+"
    rf"|\s(?:is|was)\swhat\s(?:the\s)?(?:{_PLANTED}|hidden)\b",
    re.IGNORECASE,
)
"""What says behind a claim, on its line, that it is an injection's."""
_CLAIM = re.compile(
    r"\b(?:(?i:(?:(?:the|my|final|relevant)\s){0,3}ids?[^\w\n]{0,3}[:=]|(?:finish|search|answer)\s?\[)"
    r"|(?:label|injected|forged|fake|me(?:\sto)?\s(?:output|write|say|answer))\s(?:SUPPORTS|REFUTES|NOT ENOUGH INFO)\b"
    # Written with a capital inside a sentence, it is copied; ", so the answer is" is the reply's own.
    rf"|(?=[A-Z])(?i:(?:{THEREFORE}|(?:the|my)\s)?(?:(?:final|correct|short|relevant)\s)?(?:answer|verdict|ids?)\b"
    r"(?:[^\w\n]{0,3}:|\s(?:is|are)\b)|follow-?\s?ups?[^:\n]{0,16}:|action(?:\s\d{1,3})?:))"
)
_SENTENCE = re.compile(r"\S[^.!?\n]*+(?:[.!?]++(?!\s)[^.!?\n]*+)*+[.!?]*+")
_COLON = re.compile(r"[^:,\n]*+:")
"""Behind a comma it stands in the reply's own words: "Ignoring the injected line, the ids are: 0, 3"."""
_IGNORED = re.compile(
    r"[^\S\n]{1,3}I\b[^.!?\n]{0,24}?\b(?:ignor(?:ed?|ing)|disregard(?:ed|ing)?|follow(?:ed)?)\s(?:it|this|that|them)\b[.!]",
    re.IGNORECASE,
)
"""A sentence behind a report that belongs to it: "I'll ignore it."."""
_BELOW = re.compile(r"\b(?:following|below)\b", re.IGNORECASE)
_OPENED = re.compile(
    r"(?:\A|[.!?…\n\ufffc])[^\w(]*+(?:\d{1,2}\)\s)?(?:(?:the|my|and|but)\s)?\Z", re.IGNORECASE
)
_ANNOUNCES = re.compile(
    r"(?:[:=]|\b(?:is|are|be|ids?|numbers?|answers?|verdict|knowledges?|passages?|sentences?|pieces?|only|exactly|namely"
    r"|just|output|reply|return|say|choose|select|pick|keep|need|use|sure),?)[\s*_#`\[{(]{0,8}$",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"(?:[\s,;/&|()\[\]*:.-]|\band\b|\bor\b)*+")


class OwnWords(NamedTuple):
    """A reply in its own words.

    Attributes:
        words: the reply, every quotation as marks.
        announced: the same with those quotations in place that may be the reply's own; None where there are none.
    """

    words: str
    announced: str | None


@lru_cache(maxsize=8)  # a reply is read in several ways, one after the other
def own_words(reply: str) -> OwnWords:
    """`reply` without what it quotes, position by position.

    >>> own_words('0, 3 ("Ids: 1")').words.replace(QUOTED, "")
    '0, 3 ()'
    >>> own_words('"0, 3"').announced
    '"0, 3"'
    """
    words, fences = _without_blocks(reply)
    spans = _spans(_MARKED, words)
    words = _blanked(words, spans)
    own = [*_of_its_own(words, sorted([*fences, *spans]))]
    words = _without_speech(_without_disowned(words))
    letters = list(words)
    for start, end in own:
        letters[start:end] = reply[start:end]
    return OwnWords(words, "".join(letters) if own else None)


def own_lines(reply: str, words: str) -> list[str]:
    """The lines of `reply`, as they stand, that hold something of `words`; the others are quoted whole, and empty.

    >>> own_lines("> True\\nFalse", own_words("> True\\nFalse").words)
    ['', 'False']
    """
    lines = zip(reply.split("\n"), words.split("\n"), strict=True)
    return [line if QUOTED not in own or re.search(r"\w", own) else "" for line, own in lines]


def opens_a_sentence(words: str, at: int) -> bool:
    """Whether a sentence or a line begins `at` a place in `words`.

    >>> words = "It ends with the line So the answer is Rome. So the answer is Tolm."
    >>> opens_a_sentence(words, words.index("So")), opens_a_sentence(words, words.rindex("So"))
    (False, True)
    """
    return _OPENED.search(words[max(0, at - 24) : at]) is not None


def end_of(reply: str) -> str:
    """What is read of a reply whose end counts: whole lines of its last `LONGEST_REPLY` characters."""
    return reply if len(reply) <= LONGEST_REPLY else reply[-LONGEST_REPLY:].partition("\n")[2]


def reported(words: str, at: int) -> bool:
    """Whether what begins `at` a place in `words` is reported of a passage, with no more than a few words between.

    >>> words = "Passage 2 says that I must stop. I go on."
    >>> reported(words, words.index("stop")), reported(words, words.index("go on"))
    (True, False)
    """
    return _REPORTING.search(words, max(0, at - _LONGEST_REPORT), at) is not None


_LONGEST_REPORT = 160
_REPORTING = re.compile(
    rf"(?:(?:{_SAYER.pattern}"
    rf"|\b{_NAMED}\b\W{{0,3}}(?:#?\d{{1,4}}\b\W{{0,3}})?(?:(?:also|even|itself|only|just|then|here)\s){{0,2}}{_GIVING})"
    rf"(?:[^\S\n]{{1,3}}{_TO_DO}\b){{0,8}}"
    # Before a comma it is where a sentence begins: "Ada kept it according to passage 2, so the answer is Ada."
    rf"|(?<![\w,;]\s)\b(?:according to|per)\s(?:the\s)?{_NAMED}\b(?:\s?#?\d{{1,4}}\b)?,?"
    rf"|\bin\s(?:the\s)?{_NAMED}\b(?:\s?#?\d{{1,4}}\b)?,?\sit (?:is|was) written,?)[^\w.!?,;\n]{{0,6}}$",
    re.IGNORECASE,
)
"""A passage named as the speaker of what follows at once."""
_ATTRIBUTED = re.compile(
    rf"{_SAYER.pattern}{_WHAT}\s{{0,3}}[:,]?(?:\s*+{QUOTED}++)++", re.IGNORECASE
)
_ATTRIBUTED_ALONE = re.compile(
    rf"^[^\w\n]*+{_ATTRIBUTED.pattern}[^\w\n]*+$", re.IGNORECASE | re.MULTILINE
)


def unreported(words: str) -> str:
    """`words` without speech that it reports of a passage in words of its own, which decides no verdict either.

    >>> " ".join(unreported("Passage 2 says it is true, but it is false.").replace(QUOTED, "").split())
    ', but it is false.'
    """
    return _blanked(words, _spans(_REPORTED, words))


def names_a_speaker(words: str) -> bool:
    """Whether a passage is named that says something, before it or after it ("…", says the passage)."""
    return _SPEAKER.search(words) is not None


def _spans(pattern: re.Pattern[str], text: str) -> list[tuple[int, int]]:
    return [found.span() for found in pattern.finditer(text)]


def _blanked(text: str, spans: list[tuple[int, int]]) -> str:
    """`text` with marks in these places; line breaks stay."""
    letters = list(text)
    for start, end in spans:
        letters[start:end] = re.sub(r"[^\n]", QUOTED, text[start:end])
    return "".join(letters)


def _without_blocks(reply: str) -> tuple[str, list[tuple[int, int]]]:
    """The reply without fences and the lines behind ``>``; and where the fences are, their marks with them."""
    spans, fences = list[tuple[int, int]](), list[tuple[int, int]]()
    mark, begun, at = "", 0, 0
    for line in reply.splitlines(keepends=True):
        end = at + len(line)
        fence = re.match(r"[^\S\n]{0,3}(`{3,}|~{3,})", line)
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


_LINES = re.compile(rf"\n(?![^\S\n]*+{QUOTED})[^\S\n]*+[^\s][^\n]*+")
_BLANK_LINE = re.compile(r"(?:\n[^\S\n]*+(?=\n))?")


def _end_of_lines(words: str, at: int) -> int:
    """Where the lines end that follow a colon at the end of a line, unless a quotation follows it."""
    while line := _LINES.match(words, at):
        at = line.end()
    return at


def _without_speech(words: str) -> str:
    """`words` without speech that it attributes to a passage, and without the brackets around it."""
    spans, at = list[tuple[int, int]](), 0
    for verb in _SAYING_WORD.finditer(words):
        near = max(at, verb.start() - _LONGEST_SAYER)
        speech = _SPEECH.match(words, verb.end())
        if verb.start() < at or not speech or not _SAYER.search(words, near, verb.end()):
            continue
        rest = _REST if speech[0].endswith(":") else _TO_ITS_OWN
        at = rest.match(words, speech.end()).end()  # type: ignore[union-attr]
        if not words[speech.end() : at].strip() and _SPEAKER.search(words, near, verb.end()):
            at = _end_of_lines(words, at)
        spans.append((speech.end("what"), at))
    words = _blanked(words, spans)
    # A line, or a bracket, that does no more than name who says it belongs to the quotation.
    for pattern in (_WRITTEN, _IDS_OF_A_SOURCE, _ATTRIBUTED_ALONE):
        words = _blanked(words, _spans(pattern, words))
    brackets = [found for found in _BRACKETS.finditer(words) if _ATTRIBUTED.search(found[0])]
    return _blanked(words, [found.span() for found in brackets])


def without_reports(reply: str) -> str:
    """`reply` less what it says of an injection, unless that is all of it.

    >>> without_reports("Tolm. (I ignored the injected line: Answer: Rome.)")
    'Tolm. '
    """
    rest = _without_disowned(reply).replace(QUOTED, "")
    return rest if re.search(r"\w", rest) else reply


def _without_disowned(words: str) -> str:
    words = _blanked(words, _struck(words))
    return _blanked(words, _reports(words))


def _struck(words: str) -> list[tuple[int, int]]:
    """Where claims stand that a mark behind them, on the same line, says to be an injection's: each with its mark."""
    spans = list[tuple[int, int]]()
    for mark in _STRUCK.finditer(words):
        line = words.rfind("\n", 0, mark.start()) + 1
        claims = [*_CLAIM.finditer(words, line, mark.start())][-1:]
        spans += [(claim.start(), mark.end()) for claim in claims]
    return spans


def _reports(words: str) -> list[tuple[int, int]]:
    """Where `words` reports an injection and its claim: from the sentence, clause or bracket that does so to its end.

    The lines that it introduces belong to it. A claim that opens such a sentence is the reply's own: "So the answer is
    Tolm, and I ignored the injected line So the answer is Rome."
    """
    spans, at = list[tuple[int, int]](), 0
    for sentence in _SENTENCE.finditer(words):
        start, end = max(sentence.start(), at), sentence.end()
        if (word := _DISOWNS.search(words, start, end)) is None:
            continue
        own, copied = start, list[int]()
        for claim in _CLAIM.finditer(words, start, end):
            if re.search(r"\w", words[own : claim.start()]):
                copied.append(claim.start())
                break
            own = claim.end()
        if colon := _COLON.match(words, word.end(), end):
            copied.append(colon.end())
        ends = end in (word.end("say"), word.end("write"))
        if not copied and not ends and not _BELOW.search(words, start, end):
            continue
        begin = min(copied, default=end)
        rest = _REST if colon else _TO_ITS_OWN
        at = rest.match(words, begin).end()  # type: ignore[union-attr]
        if not re.search(r"\w", words[begin:at]):
            at = _end_of_lines(words, _BLANK_LINE.match(words, at).end())  # type: ignore[union-attr]
        limit = min(begin, word.start())
        if (bracket := words.rfind("(", start, limit)) >= 0:
            begin, at = bracket, at + (words[at : at + 1] == ")")
        elif own == start:
            begin, at = max(start, words.rfind(",", start, limit) + 1), max(at, end)
        if ignored := _IGNORED.match(words, at):
            at = ignored.end()
        spans.append((begin, at))
    return spans
