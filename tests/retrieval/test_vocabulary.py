"""What a vocabulary shows of the analyser that made it, rule by rule."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import Stemmer
from blendfilter.retrieval.vocabulary import PATTERN, Vocabulary, found_analyser
from bm25s.stopwords import STOPWORDS_EN, STOPWORDS_EN_PLUS, STOPWORDS_GERMAN

from blendfilter.retrieval.analyser import Analyser

SNOWBALL = Stemmer.Stemmer("english")
PLAIN = [
    "harbours", "lighthouse", "running", "generalization", "famous", "engineers", "walking", "ferries", "built",
    "towns", "stone", "painted", "quickly", "island", "islands", "designed", "pier", "piers", "railway", "stations",
]  # fmt: skip
WORDS = PLAIN + [f"{word}{ending}" for word in PLAIN for ending in ("ed", "ing")]
STEMS = sorted(
    {SNOWBALL.stemWord(SNOWBALL.stemWord(word)) for word in WORDS}
    | {f"brix{a}{b}" for a in "abcd" for b in "fghjklmnp"}
)


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def vocabulary(shares: Mapping[str, float], passages: int = 1000) -> Vocabulary:
    """Words with the part of the passages that each occurs in."""
    numbers = {word: number for number, word in enumerate(["", *shares])}
    frequencies = np.array([0, *(round(share * passages) for share in shares.values())])
    return Vocabulary(numbers, frequencies, passages)


def analyser(shares: Mapping[str, float], folder: Path, passages: int = 1000, **given: str) -> Analyser:
    options: dict[str, str | None] = {"stopwords": None, "stemmer": None, **given}
    return found_analyser(vocabulary(shares, passages), folder, **options).analyser


COMMON = dict.fromkeys(("from", "which", "has", "his", "were"), 0.1)
STEMMED = {**dict.fromkeys(STEMS, 0.01), **COMMON}


def test_words_or_stems(tmp_path: Path) -> None:
    assert analyser(dict.fromkeys(WORDS, 0.01), tmp_path) == Analyser(PATTERN, (), None)
    assert analyser(STEMMED, tmp_path).stemmer == "english"


def test_stems_that_look_like_stop_words_are_not_taken_for_them(tmp_path: Path) -> None:
    """`its` and `being` are in every fifth passage, and Ares in a few; the rest of the list is not there at all."""
    assert (
        analyser(
            {**STEMMED, "it": 0.2, "be": 0.2, "will": 0.05, "are": 0.001, "or": 0.001, "an": 0.002}, tmp_path
        ).stop_words
        == STOPWORDS_EN
    )
    assert analyser({**STEMMED, "the": 0.9, "of": 0.8}, tmp_path).stop_words == ()
    assert analyser({**STEMMED, "the": 0.5, "of": 0.5}, tmp_path, passages=2).stop_words == ()


def test_the_longer_list_shows_by_what_is_missing(tmp_path: Path) -> None:
    stems = dict.fromkeys(STEMS, 0.01)
    assert analyser(stems, tmp_path).stop_words == STOPWORDS_EN_PLUS
    assert analyser({**stems, "from": 0.1}, tmp_path).stop_words == STOPWORDS_EN
    assert analyser(stems, tmp_path, passages=99).stop_words == STOPWORDS_EN, "so few may well do without"


def test_the_list_goes_with_the_stemmer(tmp_path: Path) -> None:
    assert analyser(STEMMED, tmp_path, stemmer="german").stop_words == STOPWORDS_GERMAN
    kept = dict.fromkeys(STOPWORDS_GERMAN[:40], 0.05)
    assert analyser({**STEMMED, **kept}, tmp_path, stemmer="german").stop_words == ()


def test_patterns(tmp_path: Path) -> None:
    words = dict.fromkeys(WORDS, 0.01)
    assert analyser({**words, "x": 0.1}, tmp_path).pattern == r"\w+"
    assert analyser({**STEMMED, "i": 0.1}, tmp_path, stemmer="porter").pattern == PATTERN
    assert analyser({**STEMMED, "7": 0.1}, tmp_path, stemmer="porter").pattern == r"\w+"
    with pytest.warns(UserWarning, match="parted at white space"):
        assert analyser({**words, "don't": 0.1}, tmp_path).pattern == r"\S+"


def test_capitals(tmp_path: Path) -> None:
    words = dict.fromkeys(WORDS, 0.01)
    assert analyser(words, tmp_path).lower
    assert not analyser({**words, "Orm": 0.1}, tmp_path).lower


def test_between_words_and_stems_it_warns(tmp_path: Path) -> None:
    half = dict.fromkeys([*STEMS, *WORDS[:25]], 0.01)
    with pytest.warns(UserWarning, match="hardly show whether they were stemmed"):
        analyser(half, tmp_path)
    with pytest.warns(UserWarning, match="its 0 words hardly show"):
        assert analyser({}, tmp_path).stemmer is None


def test_numbers() -> None:
    assert vocabulary({"12": 0.1, "7": 0.1}).numbers_only
    assert not vocabulary({"12": 0.1, "pier": 0.1}).numbers_only
    assert not vocabulary({}).numbers_only
