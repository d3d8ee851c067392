"""What the offline reader answers CDIT's judge: whether a passage is consistent with a question.

It parses no grammar: words of opposite meaning, negations, and names and numbers that differ are what it sees, and how
many of the question's words a sentence has. A component without a difference is "unsaid".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from blendfilter.lm.offline.reading import STOP_WORDS, WORD, split_line, stem, stems
from blendfilter.text import sentences

WORD_CUE, COMPARISON_CUE = "Verdict:", "Comparison:"
_COMPONENTS = ("subject", "predicate", "object")
_SENTENCES = 40
"""Sentences looked at, of a passage and of a question: each of the one is compared with each of the other."""
_ENOUGH = 0.3
"""Below this share of the question's words, a sentence is about something else."""
_NEGATION = re.compile(r"\b(?:not|never|no longer|cannot|without)\b|n['’]t\b", re.IGNORECASE)
_OPPOSITES = (
    ("predicate", "on", "off"), ("predicate", "open", "close"), ("predicate", "won win", "lost lose"),
    ("predicate", "up", "down"), ("predicate", "bought buy", "sold sell"), ("predicate", "arrive", "left leave depart"),
    ("predicate", "begin began start", "end stop cease"), ("predicate", "born", "died"),
    ("predicate", "rise rose", "fall fell"), ("predicate", "accept", "refuse reject"),
    ("predicate", "build built", "demolish destroy"), ("adverbial", "before", "after"),
    ("adverbial", "always", "never"), ("attributive", "old oldest", "new newest"), ("attributive", "first", "last"),
    ("attributive", "north northern", "south southern"), ("attributive", "east eastern", "west western"),
)  # fmt: skip
_PREPOSITIONS = frozenset(
    ["in", "at", "on", "near", "by", "from", "to", "before", "after", "during", "since", "until", "of"]
)
_ASKING = frozenset(["who", "whom", "whose", "what", "which", "when", "where", "why", "how"])


class Difference(NamedTuple):
    """A component in which question and passage differ, and what each has there."""

    component: str
    question: str
    passage: str


class SentenceComparison(NamedTuple):
    """A sentence against the question: the share of its words that the sentence has, those words, the differences."""

    share: float
    shared: tuple[str, ...]
    differences: tuple[Difference, ...]


def asks_for_consistency(prompt: str) -> bool:
    """Whether a prompt ends as the judge's do: a passage, a question, and one of its two cues."""
    lines = prompt.rstrip().rsplit("\n", 3)
    return (
        len(lines) == 4
        and lines[1].startswith("Passage:")
        and lines[2].startswith("Question:")
        and lines[3].strip() in (WORD_CUE, COMPARISON_CUE)
    )


def consistency_of(prompt: str) -> str:
    """The reply: one word, or the comparison with its verdict.

    >>> prompt = "Passage: Radio | Mary turned off the radio.\\nQuestion: Who turned on the radio?\\n"
    >>> print(consistency_of("Rules:\\n- Be alike. Components: predicate.\\n\\n" + prompt + "Comparison:"))
    predicate | on | off | unlike
    Reason: The predicate is another.
    Verdict: False
    """
    above, passage, question, cue = prompt.rstrip().rsplit("\n", 3)
    components = _components(above)
    found = _nearest(question.partition(":")[2], passage.partition(":")[2], components)
    if cue.strip() == WORD_CUE:
        return str(not found.differences)
    named = [difference.component for difference in found.differences]
    reason = "No difference was found."
    if named:
        several = f"The {', '.join(named[:-1])} and the {named[-1]} are others."
        reason = several if len(named) > 1 else f"The {named[0]} is another."
    return "\n".join([*_rows(found, components), f"Reason: {reason}", f"Verdict: {not named}"])


def _nearest(question: str, passage: str, components: Sequence[str]) -> SentenceComparison:
    """The pair of sentences with the fewest differences in these components, then the most words in common."""
    title, text = split_line(passage)
    theirs, ours = ([part.text for part in sentences(whole)][:_SENTENCES] or [whole] for whole in (text, question))
    compared = [_compared(part, title, sentence, components) for part in ours for sentence in theirs]
    return min(compared, key=lambda found: (len(found.differences), -found.share))


def _compared(question: str, title: str, sentence: str, components: Sequence[str]) -> SentenceComparison:
    in_question, given = stems(question), stems(sentence) | stems(title)
    words = [word for word in dict.fromkeys(WORD.findall(question)) if stem(word) in in_question & given]
    share = len(in_question & given) / len(in_question) if in_question else 0.0
    differences = [*_opposites(question, sentence), *_others(question, f"{title} {sentence}")]
    if share < _ENOUGH:
        differences.append(Difference("predicate", " ".join(sorted(in_question - given)), "something else"))
    first = {difference.component: difference for difference in reversed(differences)}
    return SentenceComparison(share, tuple(words), tuple(d for d in first.values() if d.component in components))


def _opposites(question: str, sentence: str) -> Iterator[Difference]:
    in_question, given = _forms(question), _forms(sentence)
    for component, left, right in _OPPOSITES:
        for ours, theirs in ((_forms(left), _forms(right)), (_forms(right), _forms(left))):
            mine, other = (next((text[form] for form in forms if form in text), "")
                           for forms, text in ((ours, in_question), (theirs, given)))  # fmt: skip
            if mine and other and not ours.keys() & given.keys():
                yield Difference(component, mine, other)
    denied = [_NEGATION.search(text) for text in (question, sentence)]
    if bool(denied[0]) != bool(denied[1]):
        yield Difference("predicate", *(found[0] if found else "said" for found in denied))


def _forms(text: str) -> dict[str, str]:
    """The words of a text by their stems, stop words among them: on and off are such."""
    return {stem(word): word for word in reversed(WORD.findall(text))}


def _others(question: str, sentence: str) -> Iterator[Difference]:
    """Names and numbers of the question in whose place the sentence has others, and none of the same."""
    in_question, given = _names_and_numbers(question), _names_and_numbers(sentence)
    have = {stem(word) for words in given.values() for word in words}
    for kind, words in in_question.items():
        if kind in given and not any(stem(word) in have for word in words):
            yield Difference(kind[0], " ".join(words), " ".join(given[kind]))


def _names_and_numbers(text: str) -> dict[tuple[str, bool], list[str]]:
    """Names and numbers by (component, whether it is a number).

    Behind a preposition they are adverbial; names are the subject up to the first other content word, then the object;
    numbers attributive.
    """
    words = WORD.findall(text)
    found: dict[tuple[str, bool], list[str]] = {}
    acted = False
    for before, word in zip(["", *words], words, strict=False):
        number, content = word[0].isdigit(), word.lower() not in STOP_WORDS
        if number or (word[0].isupper() and content and word.lower() not in _ASKING):
            place = "attributive" if number else "object" if acted else "subject"
            place = "adverbial" if before.lower() in _PREPOSITIONS else place
            found.setdefault((place, number), []).append(word)
        elif content:
            acted = True
    return found


def _components(above: str) -> tuple[str, ...]:
    """The components that the prompt's rules name; phi1's where they name none."""
    named: list[str] = []
    for line in f"\n{above}\n".rpartition("\nRules:\n")[2].split("\n"):
        if not line.startswith("- "):
            break
        for part in re.findall(r"Components:(.*)", re.sub(r"\([^()]*\)", "", line)):
            named += (component.strip(" .") for component in part.split(","))
    return tuple(dict.fromkeys(filter(None, named))) or _COMPONENTS


def _rows(found: SentenceComparison, components: Sequence[str]) -> Iterator[str]:
    differences = {difference.component: difference for difference in found.differences}
    for component in components:
        if component in differences:
            _, ours, theirs = differences[component]
            yield f"{component} | {ours} | {theirs} | unlike"
        elif component == "predicate" and found.shared:
            yield f"{component} | {' '.join(found.shared)} | {' '.join(found.shared)} | alike"
        else:
            yield f"{component} | - | - | unsaid"
