"""How the texts of an index were analysed, read off the words that it knows.

In: a vocabulary with document frequencies. Out: the analyser that made it, as far as it shows.

- A capital letter anywhere: capitals were kept.
- Single characters: words are `\\w+`; none: bm25s' own pattern, words from two characters up; other signs than those of
  words: white space alone separates them.
- Stems: of running English words Snowball's English stemmer changes two in five, of its own stems 3 in 100.
- Stop words only matter with a stemmer: elsewhere a word that was dropped is not in the vocabulary, and counts nothing
  in a query either. A stem may look like one (`its` gives `it`), so some must be frequent to have been kept.
- Where bm25s' `Tokenizer` left its files in the folder, stop words and stems are taken from there.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import Stemmer
from bm25s import stopwords as lists
from numpy.typing import NDArray

from blendfilter.errors import BadData, UnknownName
from blendfilter.retrieval.analyser import Analyser, snowball

PATTERN = r"(?u)\b\w\w+\b"
"""bm25s' own, and scikit-learn's."""
_SPACES = r"\S+"
NONE = "none"
STOPWORDS_FILE, TOKENIZER_FILE = "stopwords.tokenizer.json", "vocab.tokenizer.json"

_SAMPLE = 20_000
_STEMMED_BELOW = 0.15
_ENOUGH = 50
_OFTEN = 0.003
_STEMS_OF_OTHERS = {"be", "it", "will"}
"""Stop words that are stems of frequent words too (being, its, wills)."""
_PLUS_MARKS = ("from", "which", "has", "his", "were", "been", "had", "who")
"""Words that hardly a hundred English passages are without, and that only the longer list drops."""


class Found(NamedTuple):
    """An analyser, and in words how it came to be known."""

    analyser: Analyser
    how: str


class Vocabulary:
    """The words of an index; `frequencies[number]` is in how many of its passages a word occurs."""

    def __init__(self, numbers: Mapping[str, int], frequencies: NDArray[Any], passages: int) -> None:
        self.words = [word for word in numbers if word]  # bm25s adds an empty one for texts without any
        self._numbers, self._frequencies, self._passages = numbers, frequencies, passages

    def share(self, word: str) -> float:
        """In which part of the passages `word` occurs."""
        number = self._numbers.get(word)
        known = number is not None and number < len(self._frequencies)
        return float(self._frequencies[number]) / max(self._passages, 1) if known else 0.0

    def frequent(self, words: Iterable[str]) -> int:
        """How many of `words` occur too often to be there by accident."""
        return sum(self.share(word) >= _OFTEN for word in words)

    @property
    def large(self) -> bool:
        """Whether common words must be expected in it."""
        return self._passages >= 100

    @property
    def numbers_only(self) -> bool:
        """Whether the words are token numbers."""
        return bool(self.words) and all(word.isdecimal() for word in self.words)

    @cached_property
    def longer(self) -> list[str]:
        """A sample of the words that a stemmer might have something to do with."""
        longer = [word for word in self.words if len(word) > 3 and word.isascii() and word.isalpha()]
        return longer[:: len(longer) // _SAMPLE + 1]

    def changed(self) -> float:
        """Which part of the longer words the English stemmer would change."""
        stems = Stemmer.Stemmer("english", 0).stemWords(self.longer)
        changed = sum(bool(new != old) for new, old in zip(stems, self.longer, strict=True))
        return changed / max(len(self.longer), 1)


def found_analyser(
    vocabulary: Vocabulary, folder: Path, *, stopwords: str | Iterable[str] | None, stemmer: str | None
) -> Found:
    """The analyser of `vocabulary`; what is given is taken, the rest found in `folder` or by the module's rules.

    Warns where the vocabulary does not show it. Raises `UnknownName` for a list or stemmer of an unknown name.
    """
    how = set[str]()
    stem = _stemmer(vocabulary, folder, stemmer, how)
    stops = _stop_words(vocabulary, folder, stopwords, stem, how)
    pattern = _pattern(vocabulary.words, stem)
    if pattern == _SPACES:
        warnings.warn(
            f"{folder}: its words hold other signs than letters and digits, so queries are parted at white space; "
            "index its texts again where that misses hits",
            stacklevel=5,
        )
    lower = all(word == word.lower() for word in vocabulary.words)
    return Found(Analyser(pattern, stops, stem, lower), ", ".join(sorted(how)))


def _pattern(words: list[str], stemmer: str | None) -> str:
    if not all(re.fullmatch(r"\w+", word) for word in words):
        return _SPACES
    # other stemmers than the English one make stems of one letter (Porter's first: `is` gives `i`)
    sure = stemmer in (None, "english")
    return r"\w+" if any(len(word) == 1 and (sure or word.isdecimal()) for word in words) else PATTERN


def _stemmer(vocabulary: Vocabulary, folder: Path, given: str | None, how: set[str]) -> str | None:
    if given is not None:
        how.add("as given")
        return None if given == NONE else given
    stems = _stems(folder)
    if stems is not None:
        how.add("from the tokenizer's files")
        if not stems:
            return None
        fitting = (name for name in ("english", *Stemmer.algorithms()) if _makes(name, stems))
        language: str | None = next(fitting, None)
        if language:
            return language
        _unsure(folder, f"no stemmer of Snowball's makes the stems of {TOKENIZER_FILE}")
    how.add("from the vocabulary")
    changed = vocabulary.changed()
    if stems is None and (len(vocabulary.longer) < _ENOUGH or _STEMMED_BELOW / 2 < changed < _STEMMED_BELOW * 2):
        _unsure(folder, f"its {len(vocabulary.words):,} words hardly show whether they were stemmed")
    return "english" if vocabulary.longer and changed < _STEMMED_BELOW else None


def _stems(folder: Path) -> dict[str, str] | None:
    """A few words with their stems, of what bm25s' `Tokenizer` left in the folder; None where it left nothing."""
    if not (folder / TOKENIZER_FILE).is_file():
        return None
    try:
        pairs = json.loads((folder / TOKENIZER_FILE).read_bytes())["word_to_stem"]
        return {str(word): str(pairs[word]) for word in list(pairs)[:: len(pairs) // 2000 + 1]}
    except (ValueError, TypeError, LookupError) as error:
        raise BadData(f"{folder / TOKENIZER_FILE} is no vocabulary of a Tokenizer ({error}): save it again") from None


def _makes(language: str, stems: Mapping[str, str]) -> bool:
    stem = Stemmer.Stemmer(language, 0)
    return all(stem.stemWord(word) == stems[word] for word in stems)


def _stop_words(
    vocabulary: Vocabulary, folder: Path, given: str | Iterable[str] | None, stemmer: str | None, how: set[str]
) -> tuple[str, ...]:
    if given is not None:
        how.add("as given")
        return _named(given) if isinstance(given, str) else tuple(given)
    if (folder / STOPWORDS_FILE).is_file():
        how.add("from the tokenizer's files")
        return _listed(folder / STOPWORDS_FILE)
    how.add("from the vocabulary")
    if stemmer is None:
        return ()
    usual = _LISTS.get(stemmer, lists.STOPWORDS_EN)
    stem = snowball(stemmer)
    stems = {stem(word) for word in usual} - _STEMS_OF_OTHERS
    if vocabulary.frequent(stems) >= max(2, len(usual) // 15):
        return ()
    if stemmer == "english" and vocabulary.large and not vocabulary.frequent(_PLUS_MARKS):
        return tuple(lists.STOPWORDS_EN_PLUS)
    return tuple(usual)


def _listed(file: Path) -> tuple[str, ...]:
    try:
        words = json.loads(file.read_bytes()) or []
    except ValueError as error:
        raise BadData(f"{file} is not JSON ({error}): save the tokenizer's stop words again") from None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise BadData(f"{file} is no list of words: save the tokenizer's stop words again")
    return tuple(words)


_LISTS: dict[str, tuple[str, ...]] = {
    "english": lists.STOPWORDS_EN,
    "english_plus": lists.STOPWORDS_EN_PLUS,
    **{
        name.removeprefix("STOPWORDS_").lower(): words
        for name, words in vars(lists).items()
        if name.startswith("STOPWORDS_") and name not in ("STOPWORDS_EN", "STOPWORDS_EN_PLUS")
    },
}
"""bm25s' lists of stop words, by the names that it takes."""


def _named(name: str) -> tuple[str, ...]:
    if name == NONE:
        return ()
    if name not in _LISTS:
        raise UnknownName.of("list of stop words", name, [*_LISTS, NONE])
    return tuple(_LISTS[name])


def _unsure(folder: Path, why: str) -> None:
    warnings.warn(
        f"{folder}: {why}; say it, open_index(DIR, stemmer='english' or 'none', stopwords='english' or 'none'), "
        "or hits may be missed",
        stacklevel=6,
    )
