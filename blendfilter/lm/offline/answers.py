"""What the offline reader makes of a question and its passages: an answer, a chain of reasoning, the relevant ones.

The three things that replies are put together from, whatever the prompt's shape.
"""

from __future__ import annotations

import re
from functools import lru_cache

from blendfilter.lm.offline.comparing import choose, yes_or_no
from blendfilter.lm.offline.reading import (
    STOP_WORDS,
    WORD,
    Reading,
    Sentence,
    bare_title,
    read_passages,
    stem,
    words_of,
)
from blendfilter.lm.offline.spans import is_yes_no, pick

UNKNOWN = "unknown"
_CLOSE = 0.75
"""A passage outside the chain is relevant from this share of the best passage's score on."""
_COVERED = 0.3
"""A chain that holds a smaller share of the question's words does not speak of what is asked."""
_SAID = re.compile(r"so the (?:final )?answer is:?|\bfinish\[", re.IGNORECASE)


@lru_cache(maxsize=64)
def reading_of(question: str, lines: tuple[str, ...]) -> Reading:
    """`read_passages`, remembered: answer, reasoning and relevance of one prompt share it."""
    return read_passages(question, lines)


def answer_to(question: str, lines: tuple[str, ...], yes_or_no_only: bool = False) -> str:
    """A short answer: yes or no, one of the things compared, a span of the passages, or "unknown".

    >>> answer_to("When did Orm Pier open?", ("Orm Pier | Orm Pier opened in 1871.",))
    '1871'
    """
    reading = reading_of(question, lines)
    if yes_or_no_only or is_yes_no(question):
        return "yes" if yes_or_no(question, lines, reading) else "no"
    return choose(question, lines) or pick(question, reading) or UNKNOWN


def reasoning_about(question: str, lines: tuple[str, ...]) -> str:
    """The chosen sentences in one line, each with the name of what it speaks of.

    >>> reasoning_about("When did it open?", ("Orm Pier | It opened in 1871.",))
    'Orm Pier: It opened in 1871.'
    """
    chosen = reading_of(question, lines).chosen
    if not chosen:
        return f"Nothing given here tells about this: {question}" if question else "There is no question to answer."
    return " ".join(told(sentence) for sentence in chosen)


def told(sentence: Sentence) -> str:
    """A sentence that names what it speaks of."""
    text = " ".join(sentence.text.split())
    text = text if text.endswith((".", "!", "?", '."')) else text + "."
    name = bare_title(sentence.title)
    return f"{name}: {text}" if name and name not in text else text


def concluded(reasoning: str) -> str:
    """What follows the last "So the answer is" of a chain of reasoning, "" where it concludes nothing.

    >>> concluded("It opened in 1871. So the answer is 1871."), concluded("Action 2: Finish[1871]")
    ('1871', '1871')
    """
    said = [(match.end(), match[0]) for match in _SAID.finditer(reasoning)]
    if not said:
        return ""
    end, words = said[-1]
    line = reasoning[end:].strip().partition("\n")[0].strip()
    if words.endswith("["):
        return line.removesuffix("]").strip()
    return line[:-1].rstrip() if line.endswith(".") and not re.search(r"\b(?:[A-Z]|Jr|Sr)\.$", line) else line


def relevant_to(question: str, lines: tuple[str, ...]) -> tuple[int, ...]:
    """The numbers of the passages in the chain of reasoning, and of those whose overlap comes close to the best.

    >>> relevant_to("When did Orm Pier open?", ("Orm Pier | Orm Pier opened in 1871.", "Kerry | A town."))
    (0,)
    """
    reading = reading_of(question, lines)
    chain = {sentence.passage for sentence in reading.chosen}
    floor = _CLOSE * max(reading.scores, default=0.0)
    return tuple(i for i, score in enumerate(reading.scores) if i in chain or (score > 0.0 and score >= floor))


def helpful_to(question: str, lines: tuple[str, ...]) -> tuple[int, ...]:
    """The same of lines of which few are to be kept: nothing where the chain covers too little of the question.

    >>> helpful_to("When did Orm Pier open?", ("Orm Pier | It opened in 1871.", "Orm Pier | It is long."))
    (0,)
    >>> helpful_to("Who painted the crooked harbour in Brill?", ("Orm Pier | It opened in 1871.",))
    ()
    """
    reading = reading_of(question, lines)
    held = frozenset(word for sentence in reading.chosen for word in sentence.stems | sentence.title_stems)
    covers = len(reading.wanted & held) >= _COVERED * len(reading.wanted)
    return relevant_to(question, lines) if held and covers else ()


def shared_words(question: str, line: str) -> list[str]:
    """The question's content words that a passage holds, as the question writes them, each once.

    >>> shared_words("When did Orm Pier open?", "Orm Pier | It opened in 1871.")
    ['Orm', 'Pier', 'open']
    """
    held = words_of(line)
    return [word for word, form in _words_asked(question) if form in held]


@lru_cache(maxsize=64)
def _words_asked(question: str) -> tuple[tuple[str, str], ...]:
    """The question's content words, each once, with their stems."""
    words = dict.fromkeys(WORD.findall(question))
    return tuple((word, stem(word)) for word in words if word.lower() not in STOP_WORDS)
