"""Paraphrases of questions by rule, for the benchmarks of trimming: the same question in other words.

In: a question. Out: another that asks the same: with an opening, with an ending, in another order of its words, without
articles. The words are this file's own.
"""

from __future__ import annotations

import re

ORDERS = (
    (r"In what city was (.+) born\?", r"\1 was born in what city?"),
    (r"(Who|What|Where) (is|was|are|were) (.+)\?", r"\3 \2 \1?"),
    (r"(?:In )?(what|which) (\w+) (is|was|did|does) (.+)\?", r"\4, in \1 \2?"),
    (r"Who (\w+ed|wrote|sang|won|made|began|had) (.+)\?", r"\2: who \1 it?"),
)
"""Another order of the same words, or nearly; the first that fits."""


def opened(question: str) -> str:
    """With an opening.

    >>> opened("Who kept Skerry Light?")
    'Please say, who kept Skerry Light?'
    """
    return f"Please say, {question[0].lower()}{question[1:]}"


def polite(question: str) -> str:
    """In a polite frame.

    >>> polite("Who kept Skerry Light?")
    'Could you tell me who kept Skerry Light?'
    """
    return f"Could you tell me {question[0].lower()}{question[1:]}"


def ended(question: str) -> str:
    """With an ending.

    >>> ended("Who kept Skerry Light?")
    'Who kept Skerry Light, do you know?'
    """
    return f"{question.rstrip(' ?')}, do you know?"


def moved(question: str) -> str:
    """In another order, where a rule fits; else with an opening of its own.

    >>> moved("In what city was Ada Brennock born?"), moved("Name the pier.")
    ('Ada Brennock was born in what city?', 'Tell me: Name the pier.')
    """
    for pattern, other in ORDERS:
        if re.fullmatch(pattern, question, re.IGNORECASE):
            return re.sub(pattern, other, question, flags=re.IGNORECASE)
    return f"Tell me: {question}"


def bare(question: str) -> str:
    """Without articles, and with an opening.

    >>> bare("Who built the pier?")
    'So, who built pier?'
    """
    without = _ARTICLE.sub("", question)
    return f"So, {without[0].lower()}{without[1:]}"


_ARTICLE = re.compile(r"\b(?:the|a|an) (?=\w)", re.IGNORECASE)
RULES = (opened, ended, moved, bare)
