"""What the offline reader finds in passages: the sentences that bear on a question, and a short answer.

Sentences are weighed by the question's words that they have, each by its idf over all sentences, and followed from hop
to hop: after one is taken, the words it covers count little, and sentences of passages that it names (or that name its
title) count more. An answer is a span of them (a name, a date or a number, by the kind of question and by how
near the question's words stand), one of two things compared, or yes or no.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from blendfilter.text import sentences

UNKNOWN = "unknown"
WORD = re.compile(r"\w+")
STOP_WORDS = frozenset(
    WORD.findall(
        "a an and are as at be been being both but by can could did do does for from had has have he her hers him his "
        "how if in into is it its many may might much no nor not of on or other same shall she should so some such "
        "than that the their them then there these they this those to was were what when where which while who whom "
        "whose why will with would yes you your also one name named called known"
    )
)
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
_ENDING = re.compile(r"(?<=\w{3})(?:s|(?<=\w{4})(?:ed|ing))$(?<!ss)")
_LIFE = {"born": "(birth", "died": "(death"}
_ASKS_WHERE = re.compile(
    r"\b(?:where|(?:birth)?place|(?:what|which) (?:city|town|country|state))\b", re.IGNORECASE
)
_AFTER_WHICH = re.compile(r"\b(?:what|which) (\w+)", re.IGNORECASE)
_HOPS = 3
_MOST = 60  # matches looked at in one text: keeps a text of any length at linear cost


# ---- words and passages


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
    """A title without the bracket that tells it from its namesakes: "Brackwater (1951 film)"."""
    opening = title.rfind("(") if title.endswith(")") else -1
    return title[:opening].strip() if opening > 0 else title


@lru_cache(maxsize=4096)
def title_stems(title: str) -> frozenset[str]:
    """The stems by which a text names a title: without its bracket, and without what follows a comma."""
    bare = bare_title(title)
    return stems(bare.partition(", ")[0]) or stems(bare)


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


@lru_cache(maxsize=4096)
def _studied(line: str) -> tuple[tuple[str, str, frozenset[str], frozenset[str]], ...]:
    """A passage's sentences with their stems; cached, because a question shows a passage to several prompts."""
    title, text = split_line(line)
    parts = [sentence.text for sentence in sentences(re.sub(r"[.!?…]{4,}", "...", text))]
    words = [stems(part) for part in parts]
    if parts:  # years in a bracket, as in "Orm (1850-1911)", are those of birth and death
        life = parts[0][:160].partition("(")[2].partition(")")[0]
        words[0] |= frozenset([*_LIFE.values()][: len(re.findall(r"\b[12]\d{3}\b", life))])
    return tuple(
        (title, part, own, title_stems(title)) for part, own in zip(parts, words, strict=True)
    )


@lru_cache(maxsize=64)
def read_passages(question: str, lines: tuple[str, ...]) -> PassageReading:
    """The sentences of `lines` that bear on `question`, `_HOPS` at most, and the score of every passage."""
    listed = [
        ReadSentence(number, *studied)
        for number, line in enumerate(lines)
        for studied in _studied(line)
    ]
    wanted = stems(question)
    if not _ASKS_WHERE.search(question):
        wanted |= {mark for word, mark in _LIFE.items() if word in wanted}
    counts = Counter(word for sentence in listed for word in wanted & sentence.words)
    sought = stems(
        " ".join(_AFTER_WHICH.findall(question))
    )  # "which town" says what is sought, not where
    idf = {
        word: math.log(1 + len(listed) / counts[word]) * (0.6 if word in sought else 1.0)
        for word in sorted(counts)
    }
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
    while scale > 0.0 and len(chosen) < _HOPS:
        best = max(range(len(values)), key=lambda i: (values[i], -i))
        if values[best] <= 0.2 * scale:
            break
        chosen.append(listed[best])
        covered = frozenset().union(*(sentence.words for sentence in chosen))
        lighter = {word: value * (0.15 if word in covered else 1.0) for word, value in idf.items()}
        values = [
            -1.0
            if sentence in chosen
            else _worth(sentence, lighter) + 0.9 * scale * _link(chosen, sentence)
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
        title <= sentence.stems or (sentence.title_stems and sentence.title_stems <= other.stems)
        for sentence in chosen
    )
    return 0.25 if named else -0.1


# ---- kinds of questions

_PLACE_NOUN = "(?:city|town|country|state|county|place|village|island|region|province|continent|river|nation|district)"
_PERSON_NOUN = (
    "(?:person|man|woman|king|queen|actor|actress|president|poet|director|author|writer|singer|player|composer|painter"
    "|producer|founder|explorer|ruler|emperor|leader|performer|designer|engineer|inventor|\\w{3,20}(?:ist|ian))"
)
_WHICH = r"\b(?:what|which)(?: \w+){0,2} "
_KINDS = {
    "time": r"\b(?:when|(?:what|which|in what|in which) (?:year|date|month|day|decade))\b|\bdate of\b|\bbirthday\b",
    "count": r"\bhow (?:many|much|old|long|tall|far|large|big|high)\b|\b(?:population|number) of\b|\bwhat number\b",
    "place": rf"\bwhere\b|{_WHICH}{_PLACE_NOUN}\b|\bplace of \w+|\b(?:birth|burial) ?place\b",
    "person": rf"\b(?:who|whom|whose)\b|{_WHICH}{_PERSON_NOUN}\b",
}
_AUXILIARY = re.compile(
    r"(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should|may|might|must)\b",
    re.IGNORECASE,
)
_OR = re.compile(r"\w,? or (?:in |the |an? )?[A-Z\"“]")


def kind_of(question: str) -> str:
    """What `question` asks for, by its words.

    >>> kind_of("In which year was the pier built?"), kind_of("Is the pier old?"), kind_of("What is the pier made of?")
    ('time', 'yes_no', 'thing')
    """
    if is_yes_no(question):
        return "yes_no"
    return next(
        (kind for kind, pattern in _KINDS.items() if re.search(pattern, question, re.IGNORECASE)),
        "thing",
    )


def is_yes_no(question: str) -> bool:
    """Whether the question opens like one that wants yes or no, and offers no choice.

    >>> is_yes_no("Are both towns in Wales?"), is_yes_no("Is Orm or Kerry older?")
    (True, False)
    """
    return bool(_AUXILIARY.match(question.lstrip(" \"'“"))) and not _OR.search(question)


def answer_to(question: str, lines: tuple[str, ...], yes_or_no_only: bool = False) -> str:
    """A short answer: yes or no, one of the things compared, a span of the passages, or "unknown".

    >>> answer_to("When did Orm Pier open?", ("Orm Pier | Orm Pier opened in 1871.",))
    '1871'
    """
    if yes_or_no_only or is_yes_no(question):
        return "yes" if yes_or_no(question, lines) else "no"
    return (
        _compared(question, lines) or _picked(question, read_passages(question, lines)) or UNKNOWN
    )


# ---- spans

_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_MONTH = f"(?:{_MONTHS})"
DATE = re.compile(
    rf"\b(?:\d{{1,2}} {_MONTH},? \d{{3,4}}|{_MONTH} \d{{1,2}}, ?\d{{3,4}}|{_MONTH},? \d{{4}}|1\d{{3}}|20\d{{2}})\b"
)
_COUNT_WORDS = (
    "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen"
    "|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred"
)
_SCALE = "(?: (?:hundred|thousand|million|billion|percent))"
_NUMBER = re.compile(
    rf"\b(?:\d[\d,]*(?:\.\d+)?{_SCALE}?|(?:{_COUNT_WORDS})(?:-(?:{_COUNT_WORDS}))?{_SCALE}?)\b",
    re.I,
)
_CAPITAL = r"[^\W\d_a-zß-öø-ÿ][\w’'&.-]*"
_NAME = re.compile(
    rf"{_CAPITAL}(?:(?:(?: (?:of|the|de|la|le|van|von|der|da|di|du|and|for|in|on|at|&)){{1,2}})? {_CAPITAL}){{0,9}}"
)
_EDGE = " .,;:'’&-"
_FIT: dict[str, dict[str, float]] = {
    "time": {"date": 1.0, "number": 0.2, "name": 0.05, "title": 0.01},
    "count": {"number": 1.0, "date": 0.3, "name": 0.05, "title": 0.01},
    "place": {"name": 1.0, "title": 0.6, "date": 0.02, "number": 0.02},
    "person": {"name": 1.0, "title": 1.0, "date": 0.02, "number": 0.02},
    "thing": {"name": 1.0, "title": 1.0, "date": 0.3, "number": 0.3},
}
"""How well a span's look suits a kind of question."""
_RELATIONS = frozenset(
    map(stem, ("born", "died", "spouse", "parent", "located", "graduated", "buried"))
)
_PLACE_BEFORE = frozenset(["in", "at", "from", "near", "to", "of", "into", "through", "outside"])


class CandidateSpan(NamedTuple):
    """A candidate answer: its text, where it starts in its sentence, and what it looks like."""

    text: str
    start: int
    look: str


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    return islice(pattern.finditer(text), _MOST)


def _candidates(sentence: ReadSentence) -> Iterator[CandidateSpan]:
    for look, pattern in (("date", DATE), ("number", _NUMBER)):
        yield from (
            CandidateSpan(match[0], match.start(), look)
            for match in _matches(pattern, sentence.text)
        )
    for match in _matches(_NAME, sentence.text):
        yield from _names(match)
    if sentence.title:  # sentences often speak of their passage's subject as "he" or "it"
        yield CandidateSpan(bare_title(sentence.title), -1, "title")


def _names(match: re.Match[str]) -> Iterator[CandidateSpan]:
    """A capitalised run without leading stop words; also its parts around "and", which may join two names."""
    text, start = match[0], match.start()
    while text and (word := text.partition(" ")[0]).lower().strip(_EDGE) in STOP_WORDS:
        text, start = text[len(word) + 1 :], start + len(word) + 1
    if clean := text.rstrip(_EDGE):
        yield CandidateSpan(clean, start, "name")
        left, both, right = clean.partition(" and ")
        if both:
            yield CandidateSpan(left.rstrip(_EDGE), start, "name")
            yield CandidateSpan(right, start + len(left) + 5, "name")


def names_in(text: str) -> list[str]:
    """The names of a text, in its order.

    >>> names_in("Who directed the film Brackwater Rising?")
    ['Brackwater Rising']
    """
    return [span.text for match in _matches(_NAME, text) if (span := next(_names(match), None))]


def _picked(question: str, reading: PassageReading) -> str:
    """The best answer span for `question` among the chosen sentences, "" where there is none."""
    kind = kind_of(question)
    known, lowered = stems(question), question.lower()
    best, best_score = "", 0.0
    for order, sentence in enumerate(reading.chosen):
        near = _landmarks(sentence, reading.idf)
        for span in _candidates(sentence):
            own = stems(span.text)
            if (own and own <= known) or (not own and span.text.lower() in lowered):
                continue
            score = (
                _fit(kind, span, sentence.text)
                * (1.0 + _nearness(span, near))
                * (1.0 + 0.1 * order)
            )
            if own and any(own == other.title_stems for other in reading.chosen):
                score *= 0.5  # a mere step of the chain
            if score > best_score:
                best, best_score = span.text, score
    return best.removesuffix("'s").removesuffix("’s")


def _landmarks(sentence: ReadSentence, idf: dict[str, float]) -> list[tuple[int, float]]:
    """Where the question's words stand in a sentence, and their weights: a relation tells most, its own title least."""
    words = ((match.start(), stem(match[0])) for match in WORD.finditer(sentence.text))
    return [
        (
            at,
            idf[word]
            * (3.0 if word in _RELATIONS else 0.3 if word in sentence.title_stems else 1.0),
        )
        for at, word in words
        if word in idf
    ][:_MOST]


def _nearness(span: CandidateSpan, landmarks: list[tuple[int, float]]) -> float:
    """How close the question's words stand to the span; a title stands beside everything in its passage."""
    if span.look == "title":
        return sum(weight for _, weight in landmarks[:8]) / 16
    middle = span.start + len(span.text) / 2
    return sum(
        weight * (1.0 if at < span.start else 0.8) / (1.0 + abs(middle - at) / 12)
        for at, weight in landmarks
    )


def _fit(kind: str, span: CandidateSpan, sentence: str) -> float:
    """How well a span's look, and what stands before it, suit the kind of question."""
    fit = _FIT[kind][span.look]
    if kind == "count" and span.look == "number" and DATE.fullmatch(span.text):
        return fit * 0.2
    words = span.text.count(" ") + 1
    if kind == "person" and span.look in ("name", "title") and not 2 <= words <= 4:
        fit *= 0.5
    if span.look != "name":
        return fit
    before = sentence[max(0, span.start - 16) : span.start].lower().split()[-1:]
    last, end = before[0] if before else "", span.start + len(span.text)
    adjective = (
        last in ("a", "an")
        and sentence[end : end + 1] == " "
        and sentence[end + 1 : end + 2].islower()
    )
    if adjective or (words == 1 and span.start == 0):
        return fit * 0.2
    if kind == "place":
        return fit * (1.5 if last in _PLACE_BEFORE else 0.5)
    if kind == "person":
        return fit * (
            0.5 if last in _PLACE_BEFORE - {"to", "of", "from"} else 1.3 if last == "by" else 1.0
        )
    return fit


# ---- comparisons

_EARLY = re.compile(r"\b(?:first|earlier|older|oldest|earliest|before|eldest)\b", re.IGNORECASE)
_LATE = re.compile(
    r"\b(?:later|younger|youngest|latest|last|recent|recently|newer|newest|after)\b", re.IGNORECASE
)
_MORE = re.compile(
    r"\b(?:more|most|greater|(?:larg|bigg|tall|long|high|great|wid|deep|heavi)(?:er|est))\b",
    re.IGNORECASE,
)
_LIVED = re.compile(r"\blived? (?:\w+ ){0,3}(?:longer|greater age)\b", re.IGNORECASE)
_CHOICE = re.compile(
    r"\bor\b|\b(?:between|out of|of the)\b.{1,200}\band\b", re.IGNORECASE | re.DOTALL
)
_BOTH = re.compile(r"\b(?:same|both|also|share|each)\b", re.IGNORECASE)
_ATTRIBUTE = re.compile(
    r"\b(?:nationality|country|city|state|place|profession|genre|year)\b", re.IGNORECASE
)
_NEGATIVE = re.compile(
    r"\b(?:not|never|no|neither|nor|without|unable|cannot)\b|n't\b", re.IGNORECASE
)
_ROLE = re.compile(
    r"\b(?:director|author|writer|composer|performer|producer|founder|creator|singer|artist)s?\b"
)


def _compared(question: str, lines: tuple[str, ...]) -> str:
    """The one of two things, named by their passages' titles, that a comparing question is after; else ""."""
    named = _named_in(question, lines)[:2] if _CHOICE.search(question) else []
    if len(named) < 2:
        return ""
    one, other = (_spoken_of(line, question, lines) for line in named)
    titles = [bare_title(split_line(line)[0]) for line in named]
    first = _first_of(question, one, other)
    if first is None:  # the one whose passage has more of the question's other words
        rest = stems(question) - stems(" ".join(titles))
        first = len(rest & stems(other)) <= len(rest & stems(one))
    return titles[0 if first else 1]


def yes_or_no(question: str, lines: tuple[str, ...]) -> bool:
    """A simple check of a yes/no question: compare attributes for "both" and "same", else see what is covered.

    >>> lines = ("Orm | Orm is a Welsh painter.", "Kerry | Kerry is an Irish painter.")
    >>> yes_or_no("Are Orm and Kerry of the same nationality?", lines)
    False
    """
    pair = _named_in(question, lines)[:2]
    if len(pair) == 2:
        texts = [_spoken_of(line, question, lines) for line in pair]
        if (first := _first_of(question, *texts)) is not None:
            return first
        if _BOTH.search(question):
            return _agree(question, pair, texts)
    reading = read_passages(question, lines)
    return reading.share >= 0.6 and not any(
        _NEGATIVE.search(sentence.text) for sentence in reading.chosen[:2]
    )


def _first_of(question: str, left: str, right: str) -> bool | None:
    """Whether the left text is the one the comparing word is after; None where nothing can be compared."""
    a, b = _measure(question, left), _measure(question, right)
    return None if a is None or b is None or a == b else (a < b) == bool(_EARLY.search(question))


def _measure(question: str, text: str) -> float | None:
    """The date or number of `text` that the question's comparison is about."""
    years = [_as_year(date) for date in DATE.findall(text)]
    if _LIVED.search(question):
        return years[1] - years[0] if len(years) > 1 else None
    if _EARLY.search(question) or _LATE.search(question):
        return years[1 if len(years) > 1 and "died" in stems(question) else 0] if years else None
    numbers = (
        re.findall(r"\b(?![12]\d{3}\b)\d[\d,]*(?:\.\d+)?\b", text) if _MORE.search(question) else []
    )
    return float(numbers[0].replace(",", "")) if numbers else None


def _as_year(date: str) -> float:
    """A date as a number that orders dates: 4 May 1901 -> 1901.34…"""
    year, day = re.search(r"\d{3,4}", date), re.search(r"\b\d{1,2}\b", date)
    month = next((i for i, name in enumerate(_MONTHS.split("|")) if name in date), 0)
    return float(year[0] if year else 0) + month / 12 + (int(day[0]) if day else 0) / 400


def _spoken_of(line: str, question: str, lines: tuple[str, ...]) -> str:
    """A passage's text; that of the person whom it names where the question asks for one ("whose director …")."""
    title, text = split_line(line)
    if _ROLE.search(question):
        words, wanted = stems(text), stems(question)
        for other, about in map(split_line, lines):
            named = title_stems(other)
            if other != title and named and named <= words and not named <= wanted:
                return about
    return text


def _named_in(question: str, lines: tuple[str, ...]) -> list[str]:
    """The passages whose titles the question names, in its order; a title inside a longer one ("Orm") is none."""
    words = " ".join(WORD.findall(question.lower()))
    found: dict[str, str] = {}
    for line in lines:
        title = " ".join(WORD.findall(bare_title(split_line(line)[0]).lower()))
        if title and title in words:
            found.setdefault(title, line)
    whole = [
        title for title in found if not any(title in other and title != other for other in found)
    ]
    return [found[title] for title in sorted(whole, key=words.find)]


def _agree(question: str, pair: Sequence[str], texts: Sequence[str]) -> bool:
    """Whether two passages agree in what the question asks about."""
    titles = stems(" ".join(split_line(line)[0] for line in pair))
    if re.search(r"\bsame\b", question, re.IGNORECASE) and _ATTRIBUTE.search(
        question
    ):  # names in common
        left, right = (stems(" ".join(names_in(text))) - titles for text in texts)
        return bool((left & right) - stems(question))
    wanted = stems(question) - titles - {stem("share")}
    return 2 * len(wanted & stems(texts[0]) & stems(texts[1])) >= len(wanted)
