"""Claims, choices and questions that want sentences: what the prompt tells apart from questions that want a few words.

Input: a claim or a question and its passages. Output: one of the labels that the instructions offer, the letter of an
option, or the best sentences, as they stand.
"""

from __future__ import annotations

from blendfilter.lm.offline.answers import answer_to, reading_of, told
from blendfilter.lm.offline.comparing import yes_or_no
from blendfilter.lm.offline.prompt import Sheet
from blendfilter.lm.offline.reading import STOP_WORDS, WORD, Reading, stem
from blendfilter.lm.offline.responding import chosen
from blendfilter.text import choices

SUPPORTS, REFUTES, UNDECIDED = "SUPPORTS", "REFUTES", "NOT ENOUGH INFO"
_UNTOLD = 0.4
"""Below this share of a claim's words in the sentences found, they tell nothing of it."""
_MOST = 2
"""Sentences in a long answer."""


def settled(sheet: Sheet, lines: tuple[str, ...]) -> str:
    """The answer in the shape that the prompt wants: a letter, a label, sentences, yes or no, or a span.

    >>> lines = ("Orm Pier | Orm Pier opened in 1871.",)
    >>> settled(Sheet("Answer:", "Orm Pier opened in 1890.", (), "", "Write SUPPORTS or REFUTES."), lines)
    'REFUTES'
    """
    if (asked := choices(sheet.question)).options:
        return chosen(asked, lines)
    if sheet.wants_truth:
        return "true" if label_of(sheet.question, lines) == SUPPORTS else "false"
    if sheet.wants_label:
        return label_of(sheet.question, lines, offered=UNDECIDED in sheet.instructions)
    if sheet.wants_sentences:
        return sentences_for(sheet.question, lines)
    return answer_to(sheet.question, lines, sheet.wants_yes_or_no)


def label_of(claim: str, lines: tuple[str, ...], *, offered: bool = False) -> str:
    """SUPPORTS where the sentences hold most words of the claim, its names and numbers all, and deny nothing.

    `offered`: whether the third label is; it is given where the sentences hold next to nothing of the claim.

    >>> label_of("Orm Pier opened in 1871.", ("Orm Pier | Orm Pier opened in 1871.",))
    'SUPPORTS'
    """
    reading = reading_of(claim, lines)
    shown = frozenset(word for each in reading.chosen for word in each.stems | each.title_stems)
    if offered and len(reading.wanted & shown) < _UNTOLD * max(1, len(reading.wanted)):
        return UNDECIDED
    holds = _named(claim) <= shown and yes_or_no(claim, lines, reading)
    return SUPPORTS if holds else REFUTES


def _named(claim: str) -> frozenset[str]:
    """The stems of the claim's names and numbers; its first word only says that a sentence begins."""
    words = [match[0] for match in WORD.finditer(claim)]
    telling = [word for word in words[1:] if word[0].isupper() or word[0].isdigit()]
    return frozenset(stem(word) for word in telling if word.lower() not in STOP_WORDS)


def sentences_for(question: str, lines: tuple[str, ...]) -> str:
    """The best sentences of the passages, of one passage, in the order in which they were found.

    >>> sentences_for("Why is it lit?", ("Orm Pier | It is lit for ships.",))
    'Orm Pier: It is lit for ships.'
    """
    reading: Reading = reading_of(question, lines)
    if not reading.chosen:
        return "Nothing given here tells about this."
    first = reading.chosen[0]
    own = [each for each in reading.chosen if each.passage == first.passage]
    return " ".join(told(each) for each in own[:_MOST])
