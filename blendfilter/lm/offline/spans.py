"""Picking an answer: a span of the chosen sentences, one of two things compared, or yes and no.

Candidates are names, dates, numbers and quoted titles, judged by the kind of question and by how near the question's
words stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from blendfilter.lm.offline.reading import (
    STOP_WORDS,
    WORD,
    PassageReading,
    ReadSentence,
    bare_title,
    read_passages,
    split_line,
    stem,
    stems,
    title_key,
)

UNKNOWN = "unknown"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
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
_NUMBER = re.compile(rf"\b(?:\d[\d,]*(?:\.\d+)?{_SCALE}?|(?:{_COUNT_WORDS})(?:-(?:{_COUNT_WORDS}))?{_SCALE}?)\b", re.I)
_CAPITAL = r"[^\W\d_a-zß-öø-ÿ][\w’'&.-]*"
_NAME = re.compile(
    rf"{_CAPITAL}(?:(?:(?: (?:of|the|de|la|le|van|von|der|da|di|du|and|for|in|on|at|&)){{1,2}})? {_CAPITAL}){{0,9}}"
)
_QUOTED = re.compile(r"[\"“]([^\"“”]{2,80})[\"”]")
_EDGE = " .,;:'’&-"
_MOST = 60
"""Matches looked at in one text: keeps a text of any length at linear cost."""

# Kinds of questions
YES_NO, PERSON, TIME, COUNT, PLACE, PEOPLE, THING = "yes_no", "person", "time", "count", "place", "nationality", "thing"
_AUXILIARY = re.compile(
    r"(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should|may|might|must)\b", re.IGNORECASE
)
_OR = re.compile(r"\w,? or (?:in |the |an? )?[A-Z\"“]")
_PLACE_NOUN = (
    "(?:city|town|country|state|county|place|village|island|region|province|borough|continent|river|nation|district"
    "|neighbou?rhood|location|area|street|municipality)"
)
_PERSON_NOUN = (
    "(?:person|man|woman|king|queen|actor|actress|president|poet|director|author|writer|singer|player|composer|painter"
    "|producer|founder|explorer|ruler|emperor|leader|performer|designer|engineer|inventor|\\w{3,20}(?:ist|ian))"
)
_WHICH = r"\b(?:what|which)(?: \w+){0,2} "
_KINDS = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        (PEOPLE, r"\bnationality\b|\bethnicity\b"),
        (
            TIME,
            r"\b(?:when|(?:what|which|in what|in which) (?:year|date|month|day|decade))\b|\bdate of\b|\bbirthday\b",
        ),
        (COUNT, r"\bhow (?:many|much|old|long|tall|far|large|big|high)\b|\b(?:population|number) of\b|\bwhat number\b"),
        (PLACE, rf"\bwhere\b|{_WHICH}{_PLACE_NOUN}\b|\bplace of \w+|\b(?:birth|burial) ?place\b"),
        (PERSON, rf"\b(?:who|whom|whose)\b|{_WHICH}{_PERSON_NOUN}\b"),
    )
)
_FIT: dict[str, dict[str, float]] = {
    TIME: {"date": 1.0, "number": 0.2, "name": 0.05, "title": 0.01, "quoted": 0.01},
    COUNT: {"number": 1.0, "date": 0.3, "name": 0.05, "title": 0.01, "quoted": 0.01},
    PLACE: {"name": 1.0, "title": 0.6, "quoted": 0.2, "date": 0.02, "number": 0.02},
    PERSON: {"name": 1.0, "title": 1.0, "quoted": 0.3, "date": 0.02, "number": 0.02},
    PEOPLE: {"name": 1.0, "title": 0.2, "quoted": 0.1, "date": 0.02, "number": 0.02},
    THING: {"name": 1.0, "title": 1.0, "quoted": 1.0, "date": 0.3, "number": 0.3},
}
_RELATIONS = frozenset(map(stem, ("born", "died", "spouse", "parent", "located", "graduated", "buried")))
_PLACE_BEFORE = frozenset(["in", "at", "from", "near", "to", "of", "into", "through", "outside"])
_OCCUPATION = re.compile(r"['’]s? occupation\?\s*$", re.IGNORECASE)
_IS_A = re.compile(
    r"\b(?:is|was) (?:an?|the) ([^,.;()]{3,80}?)(?=[,.;()]| (?:who|that|which|from|in|of|for|at|born|known)\b|$)"
)
_AFTER_IS = re.compile(rf"\b(?:is|was|are|were) (?:an?|the) (?:[a-z-]+ ){{0,3}}({_CAPITAL})")


class CandidateSpan(NamedTuple):
    """A candidate answer: its text, where it starts in its sentence, and what it looks like."""

    text: str
    start: int
    look: str


def answer_to(question: str, lines: tuple[str, ...], yes_or_no_only: bool = False) -> str:
    """A short answer: yes or no, one of the things compared, a span of the passages, or "unknown".

    >>> answer_to("When did Orm Pier open?", ("Orm Pier | Orm Pier opened in 1871.",))
    '1871'
    """
    if yes_or_no_only or is_yes_no(question):
        return "yes" if yes_or_no(question, lines) else "no"
    return compared(question, lines) or pick(question, read_passages(question, lines)) or UNKNOWN


def kind_of(question: str) -> str:
    """What `question` asks for, by its words.

    >>> kind_of("In which year was the pier built?"), kind_of("Is the pier old?")
    ('time', 'yes_no')
    """
    if is_yes_no(question):
        return YES_NO
    return next((kind for kind, pattern in _KINDS if pattern.search(question)), THING)


def is_yes_no(question: str) -> bool:
    """Whether the question opens like one that wants yes or no, and offers no choice.

    >>> is_yes_no("Are both towns in Wales?"), is_yes_no("Is Orm or Kerry older?")
    (True, False)
    """
    return bool(_AUXILIARY.match(question.lstrip(" \"'“"))) and not _OR.search(question)


# ---- candidates


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    return islice(pattern.finditer(text), _MOST)


def _candidates(sentence: ReadSentence) -> Iterator[CandidateSpan]:
    text = sentence.text
    yield from (CandidateSpan(match[0], match.start(), "date") for match in _matches(DATE, text))
    yield from (CandidateSpan(match[0], match.start(), "number") for match in _matches(_NUMBER, text))
    yield from (CandidateSpan(match[1], match.start(1), "quoted") for match in _matches(_QUOTED, text))
    for match in _matches(_NAME, text):
        yield from _names(match)
    if sentence.title:  # sentences often speak of their passage's subject as "he" or "it"
        yield CandidateSpan(bare_title(sentence.title), -1, "title")


def _names(match: re.Match[str]) -> Iterator[CandidateSpan]:
    """A capitalised run without leading stop words; also its parts around "and", which may join two names."""
    text, start = match[0], match.start()
    while text and (word := text.partition(" ")[0]).lower().strip(_EDGE) in STOP_WORDS:
        text, start = text[len(word) + 1 :], start + len(word) + 1
    clean = text.rstrip(_EDGE)
    if not clean:
        return
    yield CandidateSpan(clean, start, "name")
    left, both, right = clean.partition(" and ")
    if both:
        yield CandidateSpan(left.rstrip(_EDGE), start, "name")
        yield CandidateSpan(right, start + len(left) + 5, "name")


def names_in(text: str) -> list[str]:
    """The names and quoted titles of a text, in its order, without those inside another one.

    >>> names_in("Who directed the film Brackwater Rising?")
    ['Brackwater Rising']
    """
    found = {match.start(1): match[1] for match in _matches(_QUOTED, text)}
    inside = {at for start, quoted in found.items() for at in range(start, start + len(quoted))}
    for match in _matches(_NAME, text):
        if match.start() not in inside and (span := next(_names(match), None)):
            found[span.start] = span.text
    return [found[at] for at in sorted(found)]


# ---- choice


def pick(question: str, reading: PassageReading) -> str:
    """The best answer span for `question` among the chosen sentences, "" where there is none."""
    kind = kind_of(question)
    if found := _stated(question, kind, reading):
        return found
    known, lowered = stems(question), question.lower()
    best, best_score = "", 0.0
    for order, sentence in enumerate(reading.chosen):
        near = _landmarks(sentence, reading.idf)
        for span in _candidates(sentence):
            own = stems(span.text)
            if (own and own <= known) or (not own and span.text.lower() in lowered):
                continue
            score = _fit(kind, span, sentence.text) * (1.0 + _nearness(span, near)) * (1.0 + 0.1 * order)
            if own and any(own == other.title_stems for other in reading.chosen):
                score *= 0.5  # a mere step of the chain
            if score > best_score:
                best, best_score = span.text, score
    return best.removesuffix("'s").removesuffix("’s")


def _stated(question: str, kind: str, reading: PassageReading) -> str:
    """An occupation, a nationality, a day of birth or death, where a sentence states it in one of the usual ways."""
    if _OCCUPATION.search(question):
        return next((match[1].strip() for each in reading.chosen if (match := _IS_A.search(each.text))), "")
    if kind == PEOPLE:
        found = (_AFTER_IS.search(sentence.text) for sentence in reversed(reading.chosen))
        return next((match[1].strip(_EDGE) for match in found if match), "")
    born, died = "born" in reading.wanted, "died" in reading.wanted
    if kind == TIME and born != died:
        for sentence in reversed(reading.chosen):
            life = sentence.text[:160].partition("(")[2].partition(")")[0]
            dates = [match[0] for match in _matches(DATE, life)]
            if dates and (born or len(dates) > 1):
                return dates[0] if born else dates[-1]
    return ""


def _landmarks(sentence: ReadSentence, idf: dict[str, float]) -> list[tuple[int, float]]:
    """Where the question's words stand in a sentence, and their weights: a relation tells most, its own title least."""
    words = ((match.start(), stem(match[0])) for match in WORD.finditer(sentence.text))
    return [
        (at, idf[word] * (3.0 if word in _RELATIONS else 0.3 if word in sentence.title_stems else 1.0))
        for at, word in words
        if word in idf
    ][:_MOST]


def _nearness(span: CandidateSpan, landmarks: list[tuple[int, float]]) -> float:
    """How close the question's words stand to the span; a title stands beside everything in its passage."""
    if span.look == "title":
        return sum(weight for _, weight in landmarks[:8]) / 16
    middle = span.start + len(span.text) / 2
    return sum(weight * (1.0 if at < span.start else 0.8) / (1.0 + abs(middle - at) / 12) for at, weight in landmarks)


def _fit(kind: str, span: CandidateSpan, sentence: str) -> float:
    """How well a span's look, and what stands before it, suit the kind of question."""
    fit = _FIT[kind][span.look]
    if kind == COUNT and span.look == "number" and DATE.fullmatch(span.text):
        return fit * 0.2
    words = span.text.count(" ") + 1
    if kind == PERSON and span.look in ("name", "title") and not 2 <= words <= 4:
        fit *= 0.5
    if span.look != "name":
        return fit
    before = sentence[max(0, span.start - 16) : span.start].lower().split()[-1:]
    last, end = before[0] if before else "", span.start + len(span.text)
    adjective = last in ("a", "an") and sentence[end : end + 1] == " " and sentence[end + 1 : end + 2].islower()
    if adjective or (words == 1 and span.start == 0):
        return fit * 0.2
    if kind == PLACE:
        return fit * (1.5 if last in _PLACE_BEFORE else 0.5)
    if kind == PERSON:
        return fit * (0.5 if last in _PLACE_BEFORE - {"to", "of", "from"} else 1.3 if last == "by" else 1.0)
    return fit


# ---- comparisons

_EARLY = re.compile(r"\b(?:first|earlier|older|oldest|earliest|before|eldest)\b", re.IGNORECASE)
_LATE = re.compile(r"\b(?:later|younger|youngest|latest|last|recent|recently|newer|newest|after)\b", re.IGNORECASE)
_MORE = re.compile(
    r"\b(?:more|larger|largest|bigger|taller|tallest|longer|longest|higher|highest|most|greater|greatest|wider|deeper"
    r"|farther|further|heavier)\b",
    re.IGNORECASE,
)
_LESS = re.compile(r"\b(?:fewer|fewest|less|least|smaller|smallest|shorter|shortest|lower|lowest)\b", re.IGNORECASE)
_BY_DEATH = re.compile(r"\b(?:died|die|death|deceased)\b", re.IGNORECASE)
_BY_BIRTH = re.compile(r"\b(?:older|oldest|younger|youngest|born)\b", re.IGNORECASE)
_LIVED = re.compile(r"\blived? (?:\w+ ){0,3}(?:longer|greater age)\b", re.IGNORECASE)
_CHOICE = re.compile(r"\bor\b|\b(?:between|out of|of the)\b.{1,200}\band\b", re.IGNORECASE | re.DOTALL)
_BOTH = re.compile(r"\b(?:same|both|also|share|each)\b", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"\b(?:nationality|country|city|state|place|profession|genre|year)\b", re.IGNORECASE)
_NEGATIVE = re.compile(r"\b(?:not|never|no|neither|nor|without|unable|cannot)\b|n't\b", re.IGNORECASE)
_ROLE = re.compile(r"\b(?:director|author|writer|composer|performer|producer|founder|creator|singer|artist)s?\b")
_YEAR = re.compile(r"\b[12]\d{3}\b")
_NEAR_END = 400


def compared(question: str, lines: tuple[str, ...]) -> str:
    """The one of two things, named by their passages' titles, that a comparing question is after; else "".

    >>> lines = ("Orm Pier | Built in 1890.", "Kerry Pier | Built in 1871.")
    >>> compared("Which pier is older, Orm Pier or Kerry Pier?", lines)
    'Kerry Pier'
    """
    named = _named_in(question, lines) if _CHOICE.search(question) else []
    if len(named) < 2:
        return ""
    texts = [_spoken_of(line, question, lines) for line in named[:2]]
    first = _first_of(question, *texts)
    left, right = (bare_title(split_line(line)[0]) for line in named[:2])
    if first is None:  # the one whose passage has more of the question's other words
        rest = stems(question) - stems(left) - stems(right)
        first = len(rest & stems(texts[1])) <= len(rest & stems(texts[0]))
    return left if first else right


def yes_or_no(question: str, lines: tuple[str, ...]) -> bool:
    """A simple check of a yes/no question: compare attributes for "both" and "same", else see what is covered.

    >>> lines = ("Orm | Orm is a Welsh painter.", "Kerry | Kerry is an Irish painter.")
    >>> yes_or_no("Are Orm and Kerry of the same nationality?", lines)
    False
    """
    pair = _named_in(question, lines)[:2]
    if len(pair) == 2:
        texts = [_spoken_of(line, question, lines) for line in pair]
        comparing = any(word.search(question) for word in (_EARLY, _LATE, _MORE))
        if comparing and (first := _first_of(question, *texts)) is not None:
            return first
        if _BOTH.search(question):  # the text of the passage that another leads to stands without a title
            return _agree(
                question,
                *(line if split_line(line)[1] == text else text for line, text in zip(pair, texts, strict=True)),
            )
    reading = read_passages(question, lines)
    return reading.share >= 0.6 and not any(_NEGATIVE.search(sentence.text) for sentence in reading.chosen[:2])


def _first_of(question: str, left: str, right: str) -> bool | None:
    """Whether the left text is the one the comparing word is after; None where nothing can be compared."""
    a, b = _measure(question, left), _measure(question, right)
    if a is None or b is None or a == b:
        return None
    early, late = _EARLY.search(question), _LATE.search(question)
    smallest = bool(early or (_LESS.search(question) and not late)) and not _LIVED.search(question)
    return (a < b) == smallest


def _measure(question: str, text: str) -> float | None:
    """The date or number of `text` that the question's comparison is about."""
    dates = [_as_year(match[0]) for match in _matches(DATE, text)]
    if _LIVED.search(question):
        return dates[1] - dates[0] if len(dates) > 1 else None
    if _EARLY.search(question) or _LATE.search(question):
        by_death = len(dates) > 1 and _BY_DEATH.search(question) and not _BY_BIRTH.search(question)
        return (dates[1] if by_death else dates[0]) if dates else None
    if not (_MORE.search(question) or _LESS.search(question)):
        return None
    numbers = [m for m in _matches(_NUMBER, text) if m[0][0].isdigit() and not _YEAR.fullmatch(m[0])]
    beside = [m for m in numbers if stems(text[max(0, m.start() - 40) : m.end() + 30]) & stems(question)]
    found = next(iter(beside or numbers), None)
    digits = re.sub(r"[^0-9.]", "", found[0]).strip(".") if found else ""
    return float(digits) if digits else None


def _as_year(date: str) -> float:
    """A date as a number that orders dates: 4 May 1901 -> 1901.34…"""
    year, day = re.search(r"\d{3,4}", date), re.search(r"\b\d{1,2}\b", date)
    month = next((i for i, name in enumerate(_MONTHS) if name in date.lower()), 0)
    return float(year[0] if year else 0) + month / 12 + (int(day[0]) if day else 0) / 400


def _spoken_of(line: str, question: str, lines: tuple[str, ...]) -> str:
    """A passage's text; that of the person whom it names where the question asks for one ("whose director …")."""
    title, text = split_line(line)
    if _ROLE.search(question):
        words, wanted = stems(text), stems(question)
        for other, about in map(split_line, lines):
            named = title_key(other)
            if other != title and named and named <= words and not named <= wanted:
                return about
    return text


def _named_in(question: str, lines: tuple[str, ...]) -> list[str]:
    """The passages whose titles the question names, in the question's order, one for each title.

    A title inside a longer one that is named too ("Orm" in "Orm Pier") counts only where it stands apart.
    """
    words = " ".join(WORD.findall(question.lower()))
    found: dict[int, tuple[int, str]] = {}
    for line in lines:
        plain = " ".join(WORD.findall(bare_title(split_line(line)[0]).lower()))
        at = words.find(plain) if plain and len(plain) <= _NEAR_END else -1
        if at >= 0 and len(plain) > found.get(at, (0, ""))[0]:
            found[at] = (len(plain), line)
    ends = [(at, at + size, line) for at, (size, line) in sorted(found.items())][:_MOST]
    return [
        line
        for start, end, line in ends
        if not any(a <= start and end <= b and (a, b) != (start, end) for a, b, _ in ends)
    ]


def _agree(question: str, first: str, second: str) -> bool:
    """Whether two passages agree in what the question asks about."""
    if re.search(r"\bsame\b", question, re.IGNORECASE) and _ATTRIBUTE.search(question):
        return bool(_proper_words(question, first) & _proper_words(question, second))
    named = stems(split_line(first)[0]) ^ stems(split_line(second)[0])
    wanted = stems(question) - named - {stem("share")}
    return len(wanted & stems(first) & stems(second)) >= max(1, (len(wanted) + 1) // 2)


def _proper_words(question: str, line: str) -> frozenset[str]:
    """The capitalised words of a passage's first 300 characters that neither title nor question has, but for dates."""
    title, text = split_line(line)
    words = stems(" ".join(match[0] for match in _NAME.finditer(text[:300])))
    return words - stems(title) - stems(question) - stems(" ".join(match[0] for match in DATE.finditer(text[:300])))
