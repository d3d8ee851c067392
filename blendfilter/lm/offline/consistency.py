"""Whether a passage is consistent with a question: what the offline reader answers CDIT's judge.

Input: a prompt with rules, a passage and a question. Output: one word, or a line for each component, the reason and the
verdict. It parses no grammar: words of opposite meaning, negations, names and numbers that differ are what it sees, and
how many of the question's words a sentence holds. A component in which it sees no difference it calls unsaid.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from blendfilter.lm.offline.reading import STOP_WORDS, WORD, split_line, stem, stems
from blendfilter.text import sentences

WORD_CUE, COMPARISON_CUE = "Verdict:", "Comparison:"
_PASSAGE, _QUESTION, _RULES = "Passage:", "Question:", "Rules:"
_COMPONENTS = ("subject", "predicate", "object")
_SENTENCES = 40
"""Sentences that are looked at, of a passage and of a question: each of the one is compared with each of the other."""
_ENOUGH = 0.3
"""Below this share of the question's words, a sentence says something else."""
_NAMED = re.compile(r"Components:(.*)")
_BRACKET = re.compile(r"\([^()]*\)")
_NEGATION = re.compile(r"\b(?:not|never|no longer|cannot|without)\b|n['’]t\b", re.IGNORECASE)
_OPPOSITES = (
    ("predicate", "on", "off"), ("predicate", "open", "close"), ("predicate", "won win", "lost lose"),
    ("predicate", "up", "down"), ("predicate", "bought buy", "sold sell"), ("predicate", "arrive", "left leave depart"),
    ("predicate", "begin began start", "end stop cease"), ("predicate", "born", "died"),
    ("predicate", "rise rose", "fall fell"), ("predicate", "joined join", "quit left"),
    ("predicate", "accept", "refuse reject"), ("predicate", "build built", "demolish destroy"),
    ("adverbial", "before", "after"), ("adverbial", "always", "never"), ("adverbial", "early", "late"),
    ("attributive", "old oldest", "new newest"), ("attributive", "first", "last"),
    ("attributive", "north northern", "south southern"), ("attributive", "east eastern", "west western"),
)  # fmt: skip
_WHEN_OR_WHERE = frozenset(
    ["in", "at", "on", "near", "by", "from", "to", "before", "after", "during", "since", "until", "of"]
)
_ASKING = frozenset(["who", "whom", "whose", "what", "which", "when", "where", "why", "how"])


class Unlike(NamedTuple):
    """A difference: in which component, and what each side has there."""

    component: str
    question: str
    passage: str


class Told(NamedTuple):
    """A sentence held against the question: the share of its words that it holds, those words, and the differences."""

    share: float
    shared: tuple[str, ...]
    unlike: tuple[Unlike, ...]


def asks_for_consistency(prompt: str) -> bool:
    """Whether a prompt ends as the judge's do: a passage, a question, and one of its two cues."""
    lines = prompt.rstrip().rsplit("\n", 3)
    return (
        len(lines) == 4
        and lines[3].strip() in (WORD_CUE, COMPARISON_CUE)
        and lines[2].startswith(_QUESTION)
        and lines[1].startswith(_PASSAGE)
    )


def consistency_of(prompt: str) -> str:
    """The reply: one word, or the comparison with its verdict.

    >>> asked = "Passage: Radio | Mary turned off the radio.\\nQuestion: Who turned on the radio?\\n"
    >>> consistency_of("Rules:\\n- Be alike.\\n\\n" + asked + "Verdict:")
    'False'
    >>> print(consistency_of("Rules:\\n- Be alike. Components: predicate.\\n\\n" + asked + "Comparison:"))
    predicate | on | off | unlike
    Reason: The predicate is another.
    Verdict: False
    """
    above, passage, question, cue = prompt.rstrip().rsplit("\n", 3)
    components = _components(above)
    told = nearest(question.removeprefix(_QUESTION), passage.removeprefix(_PASSAGE), components)
    consistent = not told.unlike
    if cue.strip() == WORD_CUE:
        return str(consistent)
    return "\n".join([*_rows(told, components), f"Reason: {_reason(told)}", f"Verdict: {consistent}"])


def nearest(question: str, passage: str, components: Sequence[str]) -> Told:
    """The passage's sentence with the fewest differences in these components, then the most words in common.

    Of a question of several sentences, the one that comes nearest counts.
    """
    title, text = split_line(passage)
    said, asked = ([each.text for each in sentences(whole)][:_SENTENCES] or [whole] for whole in (text, question))
    held = [_held(sentence, title, part) for sentence in asked for part in said]
    counted = [told._replace(unlike=tuple(u for u in told.unlike if u.component in components)) for told in held]
    return min(counted, key=lambda told: (len(told.unlike), -told.share))


def _held(question: str, title: str, sentence: str) -> Told:
    asked, said = stems(question), stems(sentence) | stems(title)
    words = [word for word in dict.fromkeys(WORD.findall(question)) if stem(word) in asked & said]
    share = len(asked & said) / len(asked) if asked else 0.0
    unlike = [*_opposites(question, sentence), *_others(question, f"{title} {sentence}")]
    if share < _ENOUGH:
        unlike.append(Unlike("predicate", " ".join(sorted(asked - said)), "something else"))
    once = {each.component: each for each in reversed(unlike)}
    return Told(share, tuple(words), tuple(once.values()))


def _opposites(question: str, sentence: str) -> Iterator[Unlike]:
    asked, said = _forms(question), _forms(sentence)
    for component, left, right in _OPPOSITES:
        for ours, theirs in ((left, right), (right, left)):
            mine = next((asked[form] for form in _forms(ours) if form in asked), "")
            other = next((said[form] for form in _forms(theirs) if form in said), "")
            if mine and other and not _forms(ours).keys() & said.keys():
                yield Unlike(component, mine, other)
    denied = [_NEGATION.search(each) for each in (question, sentence)]
    if bool(denied[0]) != bool(denied[1]):
        yield Unlike("predicate", *(found[0] if found else "said" for found in denied))


def _forms(text: str) -> dict[str, str]:
    """The words of a text by their stems, stop words among them: on and off are such."""
    return {stem(word): word for word in reversed(WORD.findall(text))}


def _others(question: str, sentence: str) -> Iterator[Unlike]:
    """Names and numbers of the question that the sentence has others in place of, and none of the same kind."""
    asked, said = _marked(question), _marked(sentence)
    have = {stem(word) for words in said.values() for word in words}
    for kind, words in asked.items():
        if kind in said and not any(stem(word) in have for word in words):
            yield Unlike(kind[0], " ".join(words), " ".join(said[kind]))


def _marked(text: str) -> dict[tuple[str, bool], list[str]]:
    """Names and numbers by (component, whether it is a number).

    Behind a preposition they are adverbial; names are the subject up to the first other word that tells something, then
    the object, and numbers attributive.
    """
    words = WORD.findall(text)
    found: dict[tuple[str, bool], list[str]] = {}
    acted = False
    for before, word in zip(["", *words], words, strict=False):
        adverbial = before.lower() in _WHEN_OR_WHERE
        if word[0].isdigit():
            found.setdefault(("adverbial" if adverbial else "attributive", True), []).append(word)
        elif word[0].isupper() and word.lower() not in STOP_WORDS | _ASKING:
            place = "adverbial" if adverbial else "object" if acted else "subject"
            found.setdefault((place, False), []).append(word)
        elif word.lower() not in STOP_WORDS:
            acted = True
    return found


def _components(above: str) -> tuple[str, ...]:
    """The components that the prompt's rules name; phi1's where they name none."""
    lines = above.split("\n")
    start = next((i for i, line in enumerate(lines) if line.strip() == _RULES), len(lines))
    named: list[str] = []
    for line in lines[start + 1 :]:
        if not line.startswith("- "):
            break
        for told in _NAMED.findall(_BRACKET.sub("", line)):
            named += (part.strip(" .") for part in told.split(","))
    return tuple(dict.fromkeys(part for part in named if part)) or _COMPONENTS


def _rows(told: Told, components: Sequence[str]) -> Iterator[str]:
    unlike = {each.component: each for each in told.unlike}
    for component in components:
        if (other := unlike.get(component)) is not None:
            yield f"{component} | {other.question} | {other.passage} | unlike"
        elif component == "predicate" and told.shared:
            words = " ".join(told.shared)
            yield f"{component} | {words} | {words} | alike"
        else:
            yield f"{component} | - | - | unsaid"


def _reason(told: Told) -> str:
    if not told.unlike:
        return "No difference was found."
    named = [each.component for each in told.unlike]
    if len(named) == 1:
        return f"The {named[0]} is another."
    return f"The {', '.join(named[:-1])} and the {named[-1]} are others."
