"""Finding the sentences that bear on a question: word overlap, weighted by rarity, followed from hop to hop.

The weight of a word is its idf over all sentences. After a sentence is taken, the words it covers count little,
and sentences of passages that it names (or that name its title) count more: that is the next hop.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from blendfilter.text import sentences

WORD = re.compile(r"\w+")
_STOP = """
a an and are as at be been being both but by can could did do does for from had has have he her hers him his how if in
into is it its many may might much no nor not of on or other same shall she should so some such than that the their them
then there these they this those to was were what when where which while who whom whose why will with would yes you your
also one name named called known
"""
STOP_WORDS = frozenset(_STOP.split())
_ALIKE = {
    "born": "birth birthplace birthday birthdate",
    "died": "die dies death dead deceased",
    "spouse": "husband wife married marry marries",
    "parent": "father mother son daughter child children grandfather grandmother paternal maternal",
    "direct": "director directs",
    "write": "wrote written writer author",
    "compose": "composer composed",
    "found": "founder founded",
}
_SAME = {other: word for word, others in _ALIKE.items() for other in others.split()}
"""Words that questions and passages use for one relation."""
_ENDING = re.compile(r"(?<=\w{3})(?:s|(?<=\w{4})(?:ed|ing))$(?<!ss)")
_MARKS = re.compile(r"[.!?…]{4,}")
_YEAR = re.compile(r"\b[12]\d{3}\b")
_LIFE = {"born": "(birth", "died": "(death"}
_ASKS_WHERE = re.compile(r"\b(?:where|(?:birth)?place|(?:what|which) (?:city|town|country|state))\b", re.IGNORECASE)
_AFTER_WHICH = re.compile(r"\b(?:what|which) (\w+)", re.IGNORECASE)
HOPS = 3


class ReadSentence(NamedTuple):
    """A sentence with where it stands: its passage's number and title, and the stems of its words and of the title."""

    passage: int
    title: str
    text: str
    stems: frozenset[str]
    title_stems: frozenset[str]

    @property
    def words(self) -> frozenset[str]:
        """The stems of sentence and title."""
        return self.stems | self.title_stems


class PassageReading(NamedTuple):
    """The chosen sentences for a question, each passage's score, the rarity of each word, and the question's stems."""

    chosen: tuple[ReadSentence, ...]
    scores: tuple[float, ...]
    idf: dict[str, float]
    wanted: frozenset[str]

    @property
    def covered(self) -> frozenset[str]:
        """The stems of all chosen sentences."""
        return frozenset().union(*(sentence.words for sentence in self.chosen))

    @property
    def share(self) -> float:
        """The share of the question's words that the chosen sentences have."""
        return len(self.wanted & self.covered) / max(1, len(self.wanted))


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """The form under which words are compared: their first six letters without an ending.

    >>> stem("directed") == stem("Director"), stem("wife") == stem("married")
    (True, True)
    """
    word = word.lower()
    return _ENDING.sub("", _SAME.get(word, word))[:6]


def stems(text: str) -> frozenset[str]:
    """The stems of the content words of `text`.

    >>> sorted(stems("Who directed the two films?"))
    ['direct', 'film', 'two']
    """
    return frozenset(stem(word) for word in WORD.findall(text.lower()) if word not in STOP_WORDS)


def split_line(line: str) -> tuple[str, str]:
    """Title and text of a passage's line; the title is empty where there is none."""
    title, bar, text = line.partition(" | ")
    return (title.strip(), text.strip()) if bar else ("", line.strip())


def bare_title(title: str) -> str:
    """A title without the bracket that tells it from its namesakes.

    >>> bare_title("Brackwater (1951 film)")
    'Brackwater'
    """
    title = title.strip()
    opening = title.rfind("(") if title.endswith(")") else -1
    return title[:opening].strip() or title if opening > 0 else title


@lru_cache(maxsize=4096)
def title_key(title: str) -> frozenset[str]:
    """The stems by which a text names a title: without its bracket, and without what follows a comma."""
    bare = bare_title(title)
    return stems(bare.partition(", ")[0]) or stems(bare)


@lru_cache(maxsize=4096)
def _studied(line: str) -> tuple[tuple[str, str, frozenset[str], frozenset[str]], ...]:
    """A passage's sentences with their stems; kept, because one question shows a passage to several prompts."""
    title, text = split_line(line)
    parts = [sentence.text for sentence in sentences(_MARKS.sub("...", text))]
    words = [stems(part) for part in parts]
    if parts:  # years in a bracket, as in "Orm (1850-1911)", are those of birth and death
        years = _YEAR.findall(parts[0][:160].partition("(")[2].partition(")")[0])
        words[0] |= frozenset([*_LIFE.values()][: len(years)])
    return tuple((title, part, own, title_key(title)) for part, own in zip(parts, words, strict=True))


@lru_cache(maxsize=4096)
def words_of(line: str) -> frozenset[str]:
    """The stems of a passage's line, its title included."""
    return frozenset().union(stems(split_line(line)[0]), *(own for _, _, own, _ in _studied(line)))


@lru_cache(maxsize=64)
def read_passages(question: str, lines: tuple[str, ...]) -> PassageReading:
    """The sentences of `lines` that bear on `question`, `HOPS` at most, and the score of every passage."""
    listed = [ReadSentence(number, *studied) for number, line in enumerate(lines) for studied in _studied(line)]
    wanted = stems(question)
    if not _ASKS_WHERE.search(question):
        wanted |= {mark for word, mark in _LIFE.items() if word in wanted}
    counts = Counter(word for sentence in listed for word in wanted & sentence.words)
    sought = stems(" ".join(_AFTER_WHICH.findall(question)))  # "which town" says what is sought, not where
    idf = {word: math.log(1 + len(listed) / counts[word]) * (0.6 if word in sought else 1.0) for word in sorted(counts)}
    worth = [_worth(sentence, idf) for sentence in listed]
    scores = [0.0] * len(lines)
    for sentence, value in zip(listed, worth, strict=True):
        scores[sentence.passage] = max(scores[sentence.passage], value)
    return PassageReading(_followed(listed, worth, idf), tuple(scores), idf, wanted)


def _worth(sentence: ReadSentence, idf: Mapping[str, float]) -> float:
    """Overlap with the question; a title's words count in each of its sentences, a little less."""
    own = idf.keys() & sentence.stems
    title = (idf.keys() & sentence.title_stems) - own
    # sorted, so that the last digit never depends on the order of a set
    return sum(idf[word] for word in sorted(own)) + 0.8 * sum(idf[word] for word in sorted(title))


def _followed(
    listed: Sequence[ReadSentence], worth: Sequence[float], idf: Mapping[str, float]
) -> tuple[ReadSentence, ...]:
    """The best sentence, then the best that goes on from there, until nothing new is found."""
    chosen: list[ReadSentence] = []
    values, scale = list(worth), max(worth, default=0.0)
    while scale > 0.0 and len(chosen) < HOPS:
        best = max(range(len(values)), key=lambda i: (values[i], -i))
        if values[best] <= 0.2 * scale:
            break
        chosen.append(listed[best])
        covered = frozenset().union(*(sentence.words for sentence in chosen))
        lighter = {word: value * (0.15 if word in covered else 1.0) for word, value in idf.items()}
        values = [
            -1.0 if sentence in chosen else _worth(sentence, lighter) + 0.9 * scale * _link(chosen, sentence)
            for sentence in listed
        ]
    return tuple(chosen)


def _link(chosen: Sequence[ReadSentence], other: ReadSentence) -> float:
    """How strongly `other` goes on from the chosen ones: most where the last names its passage."""
    title = other.title_stems
    if not title or any(title == sentence.title_stems for sentence in chosen):
        return 0.0
    if title <= chosen[-1].stems:
        return 0.5
    named = any(
        title <= sentence.stems or (sentence.title_stems and sentence.title_stems <= other.stems) for sentence in chosen
    )
    return 0.25 if named else -0.1
