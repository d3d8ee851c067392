"""Plain text: the official answer normalisation, tokens, sentences, overlap, options, replies. Pure functions.

`visible` is what every text passes on its way to a terminal or a page.

Normalisation is the one of the HotPotQA and SQuAD evaluation scripts (Yang et al. 2018; Rajpurkar et al. 2016): lower
case, then punctuation, then articles, then white space, in that order.
"""

from __future__ import annotations

import hashlib
import json
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from itertools import pairwise
from typing import NamedTuple

from blendfilter.quoting import LONGEST_REPLY

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ACTS = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff"
    r"]|(?P<flag>\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f)|[\U000e0000-\U000e007f]|\r(?!\n)"
)
"""Control characters but the tab and line ends, marks of writing direction, halves of characters, invisible tags but
those of a flag."""


def visible(text: str) -> str:
    """`text` with every character that would act on a terminal, or hide in it, written as an escape (as JSON has it,
    so that JSON stays the same JSON).

    >>> print(visible("\\x1b[2JA hill\\u202e"))
    \\x1b[2JA hill\\u202e
    """
    return text if text.isascii() and text.isprintable() else _ACTS.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    if match["flag"]:
        return match[0]
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 32 else json.dumps(match[0])[1:-1]


def html_of(value: object) -> str:
    """Any text as HTML: visible, and no part of it markup.

    >>> html_of("<b>\\u202e")
    '&lt;b&gt;\\\\u202e'
    """
    return escape(visible(str(value)))


@lru_cache(maxsize=65536)
def normalize_answer(text: str) -> str:
    """`text` as EM and F1 compare it, in Unicode form NFC.

    Only ASCII punctuation goes, and it goes before the articles do: ``"A."`` vanishes, ``"U.S.A."`` becomes ``"usa"``.

    >>> normalize_answer("The  Old-Man and a Sea!")
    'oldman and sea'
    """
    return " ".join(
        re.sub(r"\b(a|an|the)\b", " ", nfc(text).lower().translate(_NO_PUNCTUATION)).split()
    )


def question_digest(question: str) -> str:
    """16 hex digits of a question's words: another spelling of it is the same question.

    >>> question_digest("Who keeps the light?") == question_digest("who keeps THE light")
    True
    """
    return hashlib.sha256(
        normalize_answer(question).encode("utf-8", "surrogatepass")
    ).hexdigest()[:16]


def tokens(text: str) -> list[str]:
    """The words of the normalised text: what F1 counts.

    >>> tokens("The harbour, at dusk.")
    ['harbour', 'at', 'dusk']
    """
    return normalize_answer(text).split()


def nfc(text: str) -> str:
    """`text` in Unicode form NFC: the one in which words, titles and queries are compared.

    >>> nfc("Cafe\\u0301") == "Caf\\u00e9"
    True
    """
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def folded(text: str) -> str:
    """`text` in Unicode form NFC with every run of white space as one space: how titles are compared; case counts.

    >>> folded("Cafe\\u0301  Noir ") == "Caf\\u00e9 Noir"
    True
    """
    return " ".join(nfc(text).split())


class Overlap(NamedTuple):
    """Unigrams that two texts share, each counted as often as both hold it."""

    shared: int
    precision: float
    recall: float
    f1: float


def overlap(candidate: Sequence[str], reference: Sequence[str]) -> Overlap:
    """Unigram overlap of two token lists; precision is over `candidate`, recall over `reference`; 0 where none.

    >>> overlap(["red", "red", "boat"], ["red", "boat", "house", "key"])
    Overlap(shared=2, precision=0.6666666666666666, recall=0.5, f1=0.5714285714285715)
    """
    shared = (Counter(candidate) & Counter(reference)).total()
    if not shared:
        return Overlap(0, 0.0, 0.0, 0.0)
    precision, recall = shared / len(candidate), shared / len(reference)
    # In the official script's own steps: 2s / (|c| + |r|) is rounded once, and would differ from it in the last digit.
    return Overlap(shared, precision, recall, 2 * precision * recall / (precision + recall))


class Sentence(NamedTuple):
    """A sentence and where it lies: ``text == whole[start:end]``."""

    text: str
    start: int
    end: int


# Possessive, and only from a run's first mark: a megabyte of dots is read once.
_BREAK = re.compile(r"""(?<![.!?…])(?P<mark>[.!?…]++)["'”’)\]]*+(?=\s)|\n\s*\n""")
_NEXT = re.compile(r"""\s*[("'“‘\[]*(?P<word>\w+)?(?P<dot>\.)?""")
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘–—/-]*$")
_GOES_ON = re.compile(r"[^\S\n]+(?:[,;:)]|[.–—-](?!\S))")
"""A mark that begins no sentence, behind white space on the same line."""


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


_BEFORE_NAME = _words(
    "mr mrs ms mx dr drs prof st ste mt ft gen brig col maj capt cpt cmdr lt sgt cpl pvt adm det insp supt rev fr hon"
    " gov sen rep pres messrs mme mlle vs cf e.g i.e viz lit approx ca née al"
)
"""A full stop after one of these ends no sentence."""
_BEFORE_NUMBER = _words("no nos vol vols p pp fig figs ch sec art op eq")
"""The same where a number follows."""
_MAY_END = _words(
    "inc ltd co corp llc bros jr sr esq etc dept univ assn ave blvd rd a.m p.m est"
    " jan feb mar apr jun jul aug sep sept oct nov dec ph.d m.d b.a m.a"
)
"""After one of these, an initial or an acronym, a sentence ends only before a word that opens sentences."""
_OPENERS = _words(
    "the a an he she it they we you i in on at by as for from with after before during since until when while although"
    " because however this that these those there his her its their our my but and or if so both one some many most"
    " who what which where why how is was are were did does do has have had"
)


def sentences(text: str) -> list[Sentence]:
    """The sentences of English `text`, by rules: abbreviations, initials, acronyms and decimals do not end one.

    What lies between two sentences is white space only, so offsets and gaps give the text back. A blank line ends a
    sentence as well.

    >>> [s.text for s in sentences("Dr. J. K. Lund paid 2.5 crowns. She left.")]
    ['Dr. J. K. Lund paid 2.5 crowns.', 'She left.']
    """
    found: list[Sentence] = []
    start = 0
    ends = [match.end() for match in _BREAK.finditer(text) if _ends(text, match)]
    for end in (*ends, len(text)):
        piece = text[start:end]
        if inner := piece.strip():
            first = end - len(piece.lstrip())
            found.append(Sentence(inner, first, first + len(inner)))
        start = end
    return found


def _ends(text: str, match: re.Match[str]) -> bool:
    """Whether the mark, or blank line, at `match` ends a sentence, by the words on both sides of it."""
    if match["mark"] is None:
        return True
    following = _NEXT.match(text, match.end())
    after = (following["word"] if following else None) or ""
    if after[:1].islower() or _GOES_ON.match(text, match.end()):
        return False
    if match["mark"] != ".":
        return True
    before = _LAST_WORD.search(text, max(0, match.start() - 40), match.start())
    word = before.group().lower() if before else ""
    if word in _BEFORE_NAME or (word in _BEFORE_NUMBER and after[:1].isdigit()):
        return False
    initial = (len(word) == 1 and word.isalpha()) or bool(re.fullmatch(r"(?:\w\.)+\w", word))
    if not (initial or word in _MAY_END) or not after:
        return True
    # "A." and "I." are initials too
    return after.lower() in _OPENERS and not (
        len(after) == 1 and following is not None and following["dot"]
    )


def counted(n: int, one: str, several: str = "") -> str:
    """`n` of something, in words.

    >>> counted(1, "pair"), counted(1200, "witness", "witnesses")
    ('1 pair', '1,200 witnesses')
    """
    return f"{n:,} {one if n == 1 else several or one + 's'}"


def shortened(text: str, width: int) -> str:
    """The beginning of a text on one line: whole words where there are any, else characters (Chinese, an address).

    >>> shortened("a few words", 8), shortened("words " * 9, 13), shortened("字" * 9, 5)
    ('a few …', 'words words …', '字字字 …')
    """
    line = " ".join(text.split())
    if len(line) <= width:
        return line
    room = line[: width - 1]
    whole = room.rpartition(" ")[0]
    return f"{whole if len(whole) > width // 2 else room[:-1]} …"


class Choices(NamedTuple):
    """A question of choice, taken apart: its stem, and the options by letter; none where it has none."""

    stem: str
    options: tuple[tuple[str, str], ...] = ()

    @property
    def lines(self) -> list[str]:
        """The options, a line each.

        >>> choices("Which floats? (A) ice (B) slate").lines
        ['(A) ice', '(B) slate']
        """
        return [f"({letter}) {text}" for letter, text in self.options]


def choices(question: str) -> Choices:
    """What stands before ``(A) … (B) …`` in a question, and what stands behind each letter.

    The letters follow each other from A on, on one line or on several, each with a text; one alone is no choice. An
    option may speak of others ("both (A) and (B)"): the longest row of letters is taken, the last among equals. A text
    that is longer than any question is (`LONGEST_REPLY`) offers no choice.

    >>> choices("Which floats? (A) ice (B) slate")
    Choices(stem='Which floats?', options=(('A', 'ice'), ('B', 'slate')))
    """
    if len(question) > LONGEST_REPLY:
        return Choices(question.strip())
    # From behind, so that each mark meets the row of the next letter: a text of nothing but marks is read once.
    rows: dict[str, list[re.Match[str]]] = {}
    best: list[tuple[re.Match[str], int]] = []
    for mark in reversed(list(_OPTION.finditer(question))):
        row = rows[mark[1]] = [mark, *rows.get(_FOLLOWING.get(mark[1], ""), [])]
        ends = [*(following.start() for following in row[1:]), len(question)]
        has_texts = all(option.end() < end for option, end in zip(row, ends, strict=True))
        if mark[1] == LETTERS[0] and len(row) > max(1, len(best)) and has_texts:
            best = [*zip(row, ends, strict=True)]
    if not best:
        return Choices(question.strip())
    texts = [question[mark.end() : end].strip() for mark, end in best]
    stem = question[: best[0][0].start()].strip()
    return Choices(stem, tuple(zip(LETTERS, texts, strict=False)))


LETTERS = "ABCDE"
"""What options are called."""
_FOLLOWING = dict(pairwise(LETTERS))
_OPTION = re.compile(rf"(?:(?<=\s)|^)\(([{LETTERS}])\)(?:\s++|$)")
