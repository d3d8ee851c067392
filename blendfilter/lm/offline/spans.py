"""Picking an answer span: candidates from the chosen sentences, judged by the kind of question and by nearness.

Input: a question and its `Reading`. Output: a span that stands in the passages, or "" where nothing fits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from blendfilter.lm.offline.reading import STOP_WORDS, WORD, Reading, Sentence, bare_title, stem, stems

_MONTH = (
    "(?:January|February|March|April|May|June|July|August|September|October|November|December"
    "|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)"
)
DATE = re.compile(
    rf"\b(?:\d{{1,2}} {_MONTH},? \d{{3,4}}"
    rf"|{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?, ?\d{{3,4}}|{_MONTH},? \d{{4}}|1\d{{3}}|20\d{{2}})\b"
)
_COUNT_WORDS = (
    "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen"
    "|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred"
)
_SCALE = "(?: (?:hundred|thousand|million|billion|percent))"
NUMBER = re.compile(rf"\b(?:\d[\d,]*(?:\.\d+)?{_SCALE}?|(?:{_COUNT_WORDS})(?:-(?:{_COUNT_WORDS}))?{_SCALE}?)\b", re.I)
_CAPITAL = r"[^\W\d_a-zß-öø-ÿ][\w’'&.-]*"
NAME = re.compile(
    rf"{_CAPITAL}(?:(?:(?: (?:of|the|de|la|le|van|von|der|da|di|du|and|for|in|on|at|&)){{1,2}})? {_CAPITAL}){{0,9}}"
)
QUOTED = re.compile(r"[\"“]([^\"“”]{2,80})[\"”]")
_AUXILIARY = re.compile(
    r"(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should|may|might|must)\b", re.IGNORECASE
)
_CHOICE = re.compile(r"\w,? or (?:in |the |an? )?[A-Z\"“]")
_TIME = re.compile(
    r"\b(?:when|(?:what|which|in what|in which) (?:year|date|month|day|decade))\b|\bdate of\b|\bbirthday\b",
    re.IGNORECASE,
)
_COUNT = re.compile(
    r"\bhow (?:many|much|old|long|tall|far|large|big|high)\b|\b(?:population|number) of\b|\bwhat number\b",
    re.IGNORECASE,
)
_PLACE_NOUN = (
    "(?:city|town|country|state|county|place|village|island|region|province|borough|continent|river|nation|district"
    "|neighbou?rhood|location|area|street|municipality)"
)
_PERSON_NOUN = (
    "(?:person|man|woman|king|queen|actor|actress|president|poet|director|author|writer|singer|player|composer|painter"
    "|producer|founder|explorer|ruler|emperor|leader|performer|designer|engineer|inventor|\\w{3,20}(?:ist|ian))"
)
_PLACE = re.compile(
    rf"\bwhere\b|\b(?:what|which)(?: \w+){{0,2}} {_PLACE_NOUN}\b|\bplace of \w+|\b(?:birth|burial) ?place\b", re.I
)
_PERSON = re.compile(rf"\b(?:who|whom|whose)\b|\b(?:what|which)(?: \w+){{0,2}} {_PERSON_NOUN}\b", re.I)
_PEOPLE_WORD = re.compile(r"\bnationality\b|\bethnicity\b", re.IGNORECASE)
_AFTER_IS = re.compile(rf"\b(?:is|was|are|were) (?:an?|the) (?:[a-z-]+ ){{0,3}}({_CAPITAL})")
_PLACE_BEFORE = frozenset(["in", "at", "from", "near", "to", "of", "into", "through", "outside"])
_EDGE = " .,;:'’&-"
_RELATIONS = frozenset(map(stem, ("born", "died", "spouse", "parent", "located", "graduated", "buried")))
_RELATION, _AFTER = 3.0, 0.8
"""Weight near a span of a word that names a relation; of any word that stands after the span instead of before it."""
_ALONE, _LATER, _STEP, _OWN, _REACH = 1.0, 0.1, 0.5, 0.3, 12
"""A span's worth with nothing near; the gain by hop; for a mere step of the chain; for title words; letters to half."""
_MOST = 60
"""Candidates looked at in one sentence: keeps a sentence of any length at linear cost."""


class Kind(Enum):
    """What a question asks for."""

    YES_NO = "yes_no"
    PERSON = "person"
    TIME = "time"
    COUNT = "count"
    PLACE = "place"
    PEOPLE = "nationality"
    THING = "thing"


class Span(NamedTuple):
    """A candidate answer: its text, where it starts in its sentence, and what it looks like."""

    text: str
    start: int
    kind: str


def kind_of(question: str) -> Kind:
    """What `question` asks for, by its words.

    >>> kind_of("In which year was the pier built?").value, kind_of("Is the pier old?").value
    ('time', 'yes_no')
    """
    if is_yes_no(question):
        return Kind.YES_NO
    rules = (
        (_PEOPLE_WORD, Kind.PEOPLE),
        (_TIME, Kind.TIME),
        (_COUNT, Kind.COUNT),
        (_PLACE, Kind.PLACE),
        (_PERSON, Kind.PERSON),
    )
    return next((kind for pattern, kind in rules if pattern.search(question)), Kind.THING)


def is_yes_no(question: str) -> bool:
    """Whether the question opens like one that wants yes or no, and offers no choice.

    >>> is_yes_no("Are both towns in Wales?"), is_yes_no("Is Orm or Kerry older?")
    (True, False)
    """
    return bool(_AUXILIARY.match(question.lstrip(" \"'“"))) and not re.search(
        r"\w,? or (?:in |the |an? )?[A-Z\"“]", question
    )


def spans(sentence: str) -> list[Span]:
    """All candidate answers in a sentence, from left to right within each kind."""
    found = [Span(match[0], match.start(), "date") for match in _some(DATE, sentence)]
    found += [Span(match[0], match.start(), "number") for match in _some(NUMBER, sentence)]
    found += [Span(match[1], match.start(1), "quoted") for match in _some(QUOTED, sentence)]
    for match in _some(NAME, sentence):
        found += _names(match[0], match.start())
    return found


def _some(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    return (match for _, match in zip(range(_MOST), pattern.finditer(text), strict=False))


def names_in(text: str) -> list[str]:
    """The names and quoted titles of a text, in its order, without those inside another one.

    >>> names_in("Who directed the film Brackwater Rising?")
    ['Brackwater Rising']
    """
    quoted = [Span(match[1], match.start(1), "quoted") for match in _some(QUOTED, text)]
    inside = {at for span in quoted for at in range(span.start, span.start + len(span.text))}
    plain = [
        span
        for match in _some(NAME, text)
        if match.start() not in inside and (span := next(_names(match[0], match.start()), None))
    ]
    return [span.text for span in sorted([*quoted, *plain], key=lambda span: span.start)]


def _names(text: str, start: int) -> Iterator[Span]:
    """A capitalised run without leading stop words; also its parts around "and", which may join two names."""
    text, start = _without_opening(text, start)
    clean = text.rstrip(_EDGE)
    if not clean:
        return
    yield Span(clean, start, "name")
    if " and " in clean:
        left, _, right = clean.partition(" and ")
        yield Span(left.rstrip(_EDGE), start, "name")
        yield Span(right, start + len(left) + 5, "name")


def _without_opening(text: str, start: int) -> tuple[str, int]:
    """`text` without the stop words it opens with ("The Ormskerry Pier" -> "Ormskerry Pier")."""
    while True:
        word, space, rest = text.partition(" ")
        if word.lower().strip(_EDGE) not in STOP_WORDS:
            return text, start
        text, start = rest, start + len(word) + len(space)
        if not rest:
            return "", start


def pick(question: str, reading: Reading) -> str:
    """The best answer span for `question` among the chosen sentences, "" where there is none."""
    kind = kind_of(question)
    if _OCCUPATION.search(question) and (found := _occupation(reading)):
        return found
    if kind is Kind.PEOPLE and (found := _nationality(reading)):
        return found
    if kind is Kind.TIME and (found := _life_date(reading)):
        return found
    asked = stems(question)
    lowered = question.lower()
    best, best_score = "", 0.0
    for order, sentence in enumerate(reading.chosen):
        near = _landmarks(sentence, reading.idf)
        for span in [*spans(sentence.text), *_title_span(sentence)]:
            own = stems(span.text)
            if (own and own <= asked) or (not own and span.text.lower() in lowered):
                continue
            score = _fit(kind, span, sentence.text) * (_ALONE + _nearness(span, near)) * (1.0 + _LATER * order)
            if own and any(own == each.title_stems for each in reading.chosen):
                score *= _STEP
            if score > best_score:
                best, best_score = span.text, score
    return best.removesuffix("'s").removesuffix("’s")


_OCCUPATION = re.compile(r"['’]s? occupation\?\s*$", re.IGNORECASE)
_IS_A = re.compile(
    r"\b(?:is|was) (?:an?|the) ([^,.;()]{3,80}?)(?=[,.;()]| (?:who|that|which|from|in|of|for|at|born|known)\b|$)"
)


def _occupation(reading: Reading) -> str:
    """What a sentence says that somebody is or was: "an Australian soldier and politician"."""
    found = (match for sentence in reading.chosen if (match := _IS_A.search(sentence.text)))
    return next((match[1].strip() for match in found), "")


def _life_date(reading: Reading) -> str:
    """The day of birth or death from "Orm (1850-1911)", of the last passage reached, where the question asks for it."""
    born, died = (stem(word) in reading.wanted for word in ("born", "died"))
    if born == died:
        return ""
    for sentence in reversed(reading.chosen):
        dates = [match[0] for match in _some(DATE, sentence.text[:160].partition("(")[2].partition(")")[0])]
        if dates and (born or len(dates) > 1):
            return dates[0] if born else dates[-1]
    return ""


def _title_span(sentence: Sentence) -> list[Span]:
    """The passage's own name is a candidate too: sentences often speak of it as "he" or "it"."""
    return [Span(bare_title(sentence.title), -1, "title")] if sentence.title else []


def _nationality(reading: Reading) -> str:
    """The capitalised word in "was an American painter"."""
    for sentence in reversed(reading.chosen):
        if match := _AFTER_IS.search(sentence.text):
            return match[1].strip(_EDGE)
    return ""


def _landmarks(sentence: Sentence, idf: dict[str, float]) -> list[tuple[int, float]]:
    """Where in a sentence the question's words stand, and how rare they are; its own title's words tell less."""
    words = ((match.start(), stem(match[0])) for match in WORD.finditer(sentence.text))
    hits = [(at, idf[word] * _weight(word, sentence)) for at, word in words if word in idf]
    return hits[:_MOST]


def _weight(word: str, sentence: Sentence) -> float:
    if word in _RELATIONS:
        return _RELATION
    return _OWN if word in sentence.title_stems else 1.0


def _nearness(span: Span, landmarks: list[tuple[int, float]]) -> float:
    """How close the question's words stand to the span; a title stands beside everything said of it."""
    if span.kind == "title":
        return 0.5 * sum(weight for _, weight in landmarks[:8]) / 8
    middle = span.start + len(span.text) / 2
    return sum(
        weight * (1.0 if at < span.start else _AFTER) / (1.0 + abs(middle - at) / _REACH) for at, weight in landmarks
    )


_FIT: dict[Kind, dict[str, float]] = {
    Kind.TIME: {"date": 1.0, "number": 0.2, "name": 0.05, "title": 0.01, "quoted": 0.01},
    Kind.COUNT: {"number": 1.0, "date": 0.3, "name": 0.05, "title": 0.01, "quoted": 0.01},
    Kind.PLACE: {"name": 1.0, "title": 0.6, "quoted": 0.2, "date": 0.02, "number": 0.02},
    Kind.PERSON: {"name": 1.0, "title": 1.0, "quoted": 0.3, "date": 0.02, "number": 0.02},
    Kind.THING: {"name": 1.0, "title": 1.0, "quoted": 1.0, "date": 0.3, "number": 0.3},
    Kind.PEOPLE: {"name": 1.0, "title": 0.2, "quoted": 0.1, "date": 0.02, "number": 0.02},
    Kind.YES_NO: {"name": 1.0, "title": 1.0, "quoted": 1.0, "date": 0.5, "number": 0.5},
}


def _fit(kind: Kind, span: Span, sentence: str) -> float:
    """How well a span's look suits the kind of question."""
    fit = _FIT[kind][span.kind]
    if kind is Kind.COUNT and span.kind == "number" and DATE.fullmatch(span.text):
        return fit * 0.2
    if span.kind not in ("name", "title"):
        return fit
    words = span.text.count(" ") + 1
    if kind is Kind.PERSON and not 2 <= words <= 4:
        fit *= 0.5
    return fit * _fit_of_place(kind, span, sentence, words) if span.kind == "name" else fit


def _fit_of_place(kind: Kind, span: Span, sentence: str, words: int) -> float:
    """What stands before a name tells a place ("in Orm") from a person ("by Orm") and both from "an American"."""
    before = sentence[max(0, span.start - 16) : span.start].lower().split()
    last = before[-1] if before else ""
    end = span.start + len(span.text)
    adjective = last in ("a", "an") and sentence[end : end + 1] == " " and sentence[end + 1 : end + 2].islower()
    if adjective or (words == 1 and span.start == 0):
        return 0.2
    if kind is Kind.PLACE:
        return 1.5 if last in _PLACE_BEFORE else 0.5
    if kind is Kind.PERSON:
        return 0.5 if last in _PLACE_BEFORE - {"to", "of", "from"} else 1.3 if last == "by" else 1.0
    return 1.0
