"""Finding the sentences that bear on a question: word overlap, weighted by rarity, followed from hop to hop.

Input: a question and passages as lines ``Title | text``. Output: `Reading`, the two or three sentences most to the
point, in the order in which they were found. The weight of a word is its idf over the sentences shown. After a sentence
is taken, the words it covers count little, and passages that it names (or that name its title) count more: that is the
next hop.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from blendfilter.text import sentences

_MARKS = re.compile(r"[.!?…]{4,}")
_YEAR = re.compile(r"\b[12]\d{3}\b")
WORD = re.compile(r"\w+", re.UNICODE)
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
_STEM = 6
"""Words agree when their first six letters do: the simplest stemmer that joins "directed" and "director"."""
_BIRTH, _DEATH = "(birth", "(death"
_ASKS_WHERE = re.compile(
    r"\bwhere\b|\bplace\b|\bbirthplace\b|\b(?:what|which) (?:city|town|country|state)\b", re.IGNORECASE
)
_AFTER_WHICH = re.compile(r"\b(?:what|which) (\w+)", re.IGNORECASE)
_SOUGHT = 0.6
_COVERED = 0.15
_BRIDGE = 0.9
_SAME_PASSAGE, _APART = 0.0, -0.1


class Sentence(NamedTuple):
    """One sentence with where it stands: the passage's number, its title, and the stems of its words."""

    passage: int
    title: str
    text: str
    stems: frozenset[str]
    title_stems: frozenset[str]


class Reading(NamedTuple):
    """What was found for a question: the chosen sentences, each passage's score, and how rare each word is."""

    chosen: tuple[Sentence, ...]
    scores: tuple[float, ...]
    idf: dict[str, float]
    wanted: frozenset[str]


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """The form under which words are compared.

    >>> stem("directed") == stem("Director"), stem("wife") == stem("married")
    (True, True)
    """
    word = word.lower()
    return _ENDING.sub("", _SAME.get(word, word))[:_STEM]


def stems(text: str) -> frozenset[str]:
    """The stems of the content words of `text`.

    >>> sorted(stems("Who directed the two films?"))
    ['direct', 'film', 'two']
    """
    return frozenset(stem(word) for word in WORD.findall(text.lower()) if word not in STOP_WORDS)


def bare_title(title: str) -> str:
    """A title without the bracket that tells it from its namesakes.

    >>> bare_title("Brackwater (1951 film)")
    'Brackwater'
    """
    title = title.strip()
    opening = title.rfind("(") if title.endswith(")") else -1
    return title[:opening].strip() or title if opening > 0 else title


@lru_cache(maxsize=4096)
def key_of(title: str) -> frozenset[str]:
    """The stems by which a text names a title: without its bracket, and without what follows a comma."""
    bare = bare_title(title)
    return stems(bare.partition(", ")[0]) or stems(bare)


def split_line(line: str) -> tuple[str, str]:
    """Title and text of a passage's line; the title is empty where there is none."""
    title, bar, text = line.partition(" | ")
    return (title.strip(), text.strip()) if bar else ("", line.strip())


@lru_cache(maxsize=4096)
def _studied(line: str) -> tuple[tuple[str, str, frozenset[str], frozenset[str]], ...]:
    """A passage's sentences with their stems; kept, because one question shows the same passage to several prompts."""
    title, text = split_line(line)
    named = key_of(title)
    parts = [sentence.text for sentence in sentences(_MARKS.sub("...", text))]
    words = [stems(part) for part in parts]
    if parts:
        words[0] |= _life(parts[0])
    return tuple((title, part, own, named) for part, own in zip(parts, words, strict=True))


@lru_cache(maxsize=4096)
def words_of(line: str) -> frozenset[str]:
    """The stems of all that a passage's line says, its title included."""
    return frozenset().union(stems(split_line(line)[0]), *(own for _, _, own, _ in _studied(line)))


def _life(sentence: str) -> frozenset[str]:
    """Marks for a first sentence that gives years in a bracket and no words for them, as in "Orm (1850-1911)"."""
    years = len(_YEAR.findall(sentence[:160].partition("(")[2].partition(")")[0]))
    return frozenset([_BIRTH, _DEATH][:years])


def _asked(question: str) -> frozenset[str]:
    """The stems of the question; days of birth and death also by their marks, unless it asks for the place."""
    words = stems(question)
    if _ASKS_WHERE.search(question):
        return words
    return words | {mark for mark, word in ((_BIRTH, "born"), (_DEATH, "died")) if stem(word) in words}


def read_passages(question: str, lines: Sequence[str], hops: int = 3) -> Reading:
    """The sentences of `lines` that bear on `question`, at most `hops` of them, and the score of every passage."""
    shown = tuple(
        Sentence(number, title, text, words, named)
        for number, line in enumerate(lines)
        for title, text, words, named in _studied(line)
    )
    wanted = _asked(question)
    idf = _idf(shown, wanted, stems(" ".join(_AFTER_WHICH.findall(question))))
    worth = [_worth(sentence, idf) for sentence in shown]
    scores = [0.0] * len(lines)
    for sentence, value in zip(shown, worth, strict=True):
        scores[sentence.passage] = max(scores[sentence.passage], value)
    return Reading(_follow(shown, worth, idf, hops), tuple(scores), idf, wanted)


def _idf(shown: Sequence[Sentence], wanted: frozenset[str], sought: frozenset[str]) -> dict[str, float]:
    """The rarity of each wanted word over the sentences shown; of what is sought ("which town"), a part of it."""
    counts = Counter(word for sentence in shown for word in wanted & (sentence.stems | sentence.title_stems))
    return {
        word: math.log(1 + len(shown) / counts[word]) * (_SOUGHT if word in sought else 1.0) for word in sorted(counts)
    }


def _weigh(words: Iterable[str], idf: dict[str, float]) -> float:
    """Sum of rarities; sorted, so that the last digit never depends on the order of a set."""
    return sum(idf[word] for word in sorted(words))


def _worth(sentence: Sentence, idf: dict[str, float]) -> float:
    """Overlap with the question; a title's words count in each of its sentences, a little less where not repeated."""
    own = idf.keys() & sentence.stems
    return _weigh(own, idf) + 0.8 * _weigh((idf.keys() & sentence.title_stems) - own, idf)


def _follow(
    shown: Sequence[Sentence], worth: Sequence[float], idf: dict[str, float], hops: int
) -> tuple[Sentence, ...]:
    """Take the best sentence, then the best that goes on from there, until nothing new is found."""
    chosen: list[Sentence] = []
    values = list(worth)
    scale = max(values, default=0.0)
    for _ in range(hops):
        best = max(range(len(values)), key=lambda i: (values[i], -i), default=-1)
        if best < 0 or values[best] <= 0.2 * scale or scale <= 0.0:
            break
        taken = shown[best]
        chosen.append(taken)
        covered = frozenset(word for each in chosen for word in each.stems | each.title_stems)
        lighter = {word: value * (_COVERED if word in covered else 1.0) for word, value in idf.items()}
        values = [
            -1.0 if each in chosen else _worth(each, lighter) + _BRIDGE * scale * _linked(chosen, each)
            for each in shown
        ]
    return tuple(chosen)


def _linked(chosen: Sequence[Sentence], other: Sentence) -> float:
    """How strongly `other` goes on from the chosen ones: most where the last names its passage; apart from all: 0."""
    if not other.title_stems or any(other.title_stems == each.title_stems for each in chosen):
        return _SAME_PASSAGE
    if other.title_stems <= chosen[-1].stems:
        return 0.5
    back = any(each.title_stems and each.title_stems <= other.stems for each in chosen)
    return 0.25 if back or any(other.title_stems <= each.stems for each in chosen) else _APART
