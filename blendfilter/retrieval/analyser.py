"""Text into the terms that BM25 counts: one analyser for passages and questions alike.

Lower-cased words without English stop words, cut to their stems by Snowball's English stemmer (Porter 2,
https://snowballstem.org/algorithms/english/stemmer.html).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import Stemmer

from blendfilter.errors import BadArgument, UnknownName

STOP_WORDS = (
    *("a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not"),
    *("of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was"),
    *("will", "with"),
)
"""Lucene's English stop words: few, so that hardly a title vanishes."""

BM25S_PATTERN = r"(?u)\b\w\w+\b"
"""What bm25s and scikit-learn take for a word."""
PATTERNS = (r"\w+", BM25S_PATTERN, r"\S+")
"""The word patterns that an index may bring with it: ours, bm25s', white space between words.

Another one out of a file is not run: a regular expression can be written to take for ever.
"""
_MEMO = 2**17  # stems kept: English running text uses fewer different words than this, and it costs some 20 MB


@dataclass(frozen=True)
class Analyser:
    """Callable: text to terms, in reading order, repeats kept. Safe to share between threads, to pickle and to store.

    `pattern` finds the words, `stop_words` are dropped before stemming, `stemmer` is a Snowball language or None;
    without `lower` capitals stay, as in some folders of other programs.

    >>> Analyser()("The harbours of Ormskerry were built in 1882.")
    ['harbour', 'ormskerri', 'were', 'built', '1882']
    """

    pattern: str = r"\w+"
    stop_words: tuple[str, ...] = STOP_WORDS
    stemmer: str | None = "english"
    lower: bool = True
    _words: Callable[[str], list[str]] = field(init=False, repr=False, compare=False)
    _stops: frozenset[str] = field(init=False, repr=False, compare=False)
    _stem: Callable[[str], str] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            words = re.compile(self.pattern).findall
        except re.error as error:
            raise BadArgument(
                f"the analyser's word pattern {self.pattern!r} is no regular expression: {error}"
            ) from None
        object.__setattr__(self, "_words", words)
        object.__setattr__(self, "_stops", frozenset(self.stop_words))
        object.__setattr__(self, "_stem", snowball(self.stemmer) if self.stemmer else None)

    def __call__(self, text: str) -> list[str]:
        """The terms of `text`; an empty list where it has none."""
        text = text.lower() if self.lower else text
        words = [word for word in self._words(text) if word not in self._stops]
        return [self._stem(word) for word in words] if self._stem else words

    def settings(self) -> dict[str, Any]:
        """What makes this analyser, as JSON values; `from_settings` reads them back."""
        # named only where it is unusual, so that the fingerprints of indexes built before there was a choice still hold
        case = {} if self.lower else {"lower": False}
        return {"pattern": self.pattern, "stop_words": list(self.stop_words), "stemmer": self.stemmer, **case}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Analyser:
        """The analyser whose `settings()` these are."""
        return cls(settings["pattern"], tuple(settings["stop_words"]), settings["stemmer"], settings.get("lower", True))

    @classmethod
    def of_index(cls, settings: Mapping[str, Any], folder: object, given: Analyser | None = None) -> Analyser:
        """The analyser of the index in `folder`, out of its settings, or `given` where its pattern is not of ours.

        Raises `BadArgument` for a pattern outside `PATTERNS` that was not given, and for another analyser than it was.
        """
        if given is not None:
            if given.settings() != settings:
                raise BadArgument(f"the index at {folder} was built with another analyser than the one given: leave it")
            return given
        if (pattern := settings["pattern"]) not in PATTERNS:
            raise BadArgument(
                f"the index at {folder} finds words by a regular expression of its own, {pattern!r:.60}, and none is "
                "run out of a file: if it is yours, open it with its analyser, open_index(DIR, "
                "analyser=Analyser(pattern=…)); if not, build it again"
            )
        return cls.from_settings(settings)

    def __reduce__(self) -> tuple[Any, ...]:
        return Analyser, (self.pattern, self.stop_words, self.stemmer, self.lower)


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
