"""Text into the terms that BM25 counts: one analyser for passages and questions alike.

Lower-cased words without English stop words, cut to their stems by Snowball's English stemmer (Porter 2,
https://snowballstem.org/algorithms/english/stemmer.html). Words are compared in Unicode form NFC, and the combining
marks of a word belong to it: vowel signs of Hindi, Tamil or Bengali, tone marks of Thai.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import chain
from typing import Any

import Stemmer

from blendfilter.errors import BadArgument, UnknownName
from blendfilter.text import nfc

_STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
STOP_WORDS = tuple(_STOP_WORDS.split())
"""Lucene's English stop words: few, so that hardly a title vanishes."""

WORD = r"\w+"
"""What a word is by default; beside it, in form NFC, its combining marks."""
BM25S_PATTERN = r"(?u)\b\w\w+\b"
"""What bm25s and scikit-learn take for a word."""
PATTERNS = (WORD, BM25S_PATTERN, r"\S+")
"""The word patterns that an index may bring with it: ours, bm25s', white space between words.

Another one out of a file is not run: a regular expression can be written to take for ever.
"""
FORM = "NFC"
_INVISIBLE = re.compile("[\u00ad\u200c\u200d\u2060\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef]")
"""Soft hyphens, joiners of letters and variants of glyphs: a word is the same with and without them."""
_BEYOND_LATIN = re.compile(
    "[\u00ad\u0300-\u1fff\u200c\u200d\u2060\u20d0-\u20f0\u2c00-\U0010ffff]"
)
"""All marks and invisible characters, and the scripts beyond Latin, but not dashes and quotes: a text without any of
these is quicker to read."""
_MEMO = 2**17
"""Stems kept: English running text uses fewer different words than this, and it costs some 20 MB."""


@dataclass(frozen=True)
class Analyser:
    """Callable: text to terms, in reading order, repeats kept. Safe to share between threads, to pickle and to store.

    `pattern` finds the words, `stop_words` are dropped before stemming, `stemmer` is a Snowball language or None;
    without `lower` capitals stay, as in some folders of other programs. `form` is the Unicode form in which words are
    compared; None takes characters as they come, as other programs do, and as indexes do that were built before there
    was a form.

    >>> Analyser()("The harbours of Ormskerry were built in 1882.")
    ['harbour', 'ormskerri', 'were', 'built', '1882']
    """

    pattern: str = WORD
    stop_words: tuple[str, ...] = STOP_WORDS
    stemmer: str | None = "english"
    lower: bool = True
    form: str | None = FORM
    _words: Callable[[str], list[str]] = field(init=False, repr=False, compare=False)
    _stops: frozenset[str] = field(init=False, repr=False, compare=False)
    _stem: Callable[[str], str] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        stops = self.stop_words if self.form is None else map(nfc, self.stop_words)
        object.__setattr__(self, "_words", re.compile(self.pattern).findall)
        object.__setattr__(self, "_stops", frozenset(stops))
        object.__setattr__(self, "_stem", snowball(self.stemmer) if self.stemmer else None)

    def __call__(self, text: str) -> list[str]:
        """The terms of `text`; an empty list where it has none."""
        text = text.lower() if self.lower else text
        found = (
            self._words(text)
            if self.form is None or text.isascii()
            else self._words_of_any_script(text)
        )
        words = [word for word in found if word not in self._stops]
        return [self._stem(word) for word in words] if self._stem else words

    def _words_of_any_script(self, text: str) -> list[str]:
        text = nfc(text)
        if not _BEYOND_LATIN.search(text):
            return self._words(text)
        if self.lower:
            text = text.replace("i\u0307", "i")  # what lower-casing makes of the İ of İzmir
        text = nfc(_INVISIBLE.sub("", text))
        return words_with_marks()(text) if self.pattern == WORD else self._words(text)

    def settings(self) -> dict[str, Any]:
        """What makes this analyser, as JSON values; `from_settings` reads them back."""
        # left out where they are what they were before there was a choice, so that the fingerprints of old indexes hold
        case = {} if self.lower else {"lower": False}
        form = {} if self.form is None else {"form": self.form}
        words = {
            "pattern": self.pattern,
            "stop_words": list(self.stop_words),
            "stemmer": self.stemmer,
        }
        return {**words, **case, **form}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Analyser:
        """The analyser whose `settings()` these are."""
        names = settings["pattern"], tuple(settings["stop_words"]), settings["stemmer"]
        return cls(*names, settings.get("lower", True), settings.get("form"))

    @classmethod
    def of_index(
        cls, settings: Mapping[str, Any], folder: object, given: Analyser | None = None
    ) -> Analyser:
        """The analyser of the index in `folder`, out of its settings, or `given` where its pattern is not of ours.

        Raises `BadArgument` for a pattern outside `PATTERNS` that was not given, and for another analyser than it was.
        """
        if given is not None:
            given = replace(given, form=settings.get("form"))  # an older index has its own
            if given.settings() != settings:
                raise BadArgument(
                    f"the index at {folder} was built with another analyser than the one given: leave it"
                )
            return given
        if (pattern := settings["pattern"]) not in PATTERNS:
            raise BadArgument(
                f"the index at {folder} finds words by a regular expression of its own, {pattern!r:.60}, and none is "
                "run out of a file: if it is yours, open it with its analyser, open_index(DIR, "
                "analyser=Analyser(pattern=…)); if not, build it again"
            )
        return cls.from_settings(settings)

    def __reduce__(self) -> tuple[Any, ...]:
        return Analyser, (self.pattern, self.stop_words, self.stemmer, self.lower, self.form)


@cache
def words_with_marks() -> Callable[[str], list[str]]:
    """What finds the words of a text in any script: `WORD`, which is letters and digits, and the combining marks
    among and behind them. Made at the first text that is not ASCII: it looks at every character that there is.
    """
    marks = "".join(
        char
        for char in map(chr, chain(range(0x300, 0x1F000), range(0xE0000, 0xE0200)))
        if unicodedata.category(char) in ("Mn", "Mc")
    )
    # no ASCII character is a mark: most words end at one, and need no look into the long class
    return re.compile(rf"\w+(?:(?![\0-\x7f])[{marks}]+\w*)*").findall


def snowball(language: str) -> Callable[[str], str]:
    """A word to its stem, remembered for the words seen last. Raises `UnknownName` for a language Snowball has not."""
    languages = Stemmer.algorithms()
    if language not in languages:
        raise UnknownName.of("stemmer", language, languages)
    stemmer = Stemmer.Stemmer(language, 0)  # 0: no cache of its own, which grows slow when full
    lock = threading.Lock()  # a PyStemmer object holds buffers that two threads must not share

    @lru_cache(maxsize=_MEMO)
    def stem(word: str) -> str:
        with lock:
            return str(stemmer.stemWord(word))

    return stem
