"""Why two questions that look alike must not share verdicts: they differ in the one word that turns the answer round.

A vector index calls "he turned on the radio" and "he turned off the radio" neighbours, and the two questions about them
no less. What CDIT trims in an index (Ma et al. 2024, section 1) must not come back by way of its stored questions.

Only rules: no model, no index. They go by what is written: a name in small letters is a word like any other, and two
names of one thing are two names. In doubt two questions are unlike: that costs a judge's call where verdicts are
gathered, and leaves both passages where one searches.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from blendfilter.retrieval.analyser import snowball

OPPOSITES: tuple[tuple[str, str], ...] = (
    ("on", "off"), ("in", "out"), ("up", "down"), ("over", "under"), ("above", "below"), ("before", "after"),
    ("with", "without"), ("for", "against"), ("from", "to"), ("since", "until"), ("first", "last"), ("more", "less"),
    ("more", "fewer"), ("most", "least"), ("many", "few"), ("all", "none"), ("always", "never"), ("high", "low"),
    ("highest", "lowest"), ("large", "small"), ("largest", "smallest"), ("biggest", "smallest"), ("long", "short"),
    ("longest", "shortest"), ("tallest", "shortest"), ("old", "young"), ("old", "new"), ("older", "younger"),
    ("oldest", "youngest"), ("oldest", "newest"), ("early", "late"), ("earliest", "latest"), ("fast", "slow"),
    ("best", "worst"), ("better", "worse"), ("good", "bad"), ("rich", "poor"), ("near", "far"), ("left", "right"),
    ("north", "south"), ("east", "west"), ("northern", "southern"), ("eastern", "western"), ("male", "female"),
    ("man", "woman"), ("men", "women"), ("boy", "girl"), ("father", "mother"), ("son", "daughter"),
    ("brother", "sister"), ("husband", "wife"), ("king", "queen"), ("actor", "actress"), ("born", "died"),
    ("birth", "death"), ("begin", "end"), ("start", "end"), ("start", "stop"), ("start", "finish"), ("open", "close"),
    ("win", "lose"), ("won", "lost"), ("winner", "loser"), ("buy", "sell"), ("bought", "sold"), ("give", "take"),
    ("gave", "took"), ("love", "hate"), ("accept", "reject"), ("allow", "forbid"), ("build", "destroy"),
    ("built", "destroyed"), ("join", "leave"), ("joined", "left"), ("enter", "leave"), ("arrive", "leave"),
    ("rise", "fall"), ("rose", "fell"), ("increase", "decrease"), ("import", "export"), ("same", "different"),
    ("true", "false"), ("alive", "dead"), ("black", "white"), ("include", "exclude"), ("attack", "defend"),
    ("teacher", "student"), ("parent", "child"), ("predecessor", "successor"), ("protagonist", "antagonist"),
    ("most", "fewest"), ("inside", "outside"), ("prior", "after"), ("minimum", "maximum"), ("upper", "lower"),
    ("top", "bottom"), ("front", "back"), ("upstream", "downstream"), ("entrance", "exit"), ("hot", "cold"),
    ("heavier", "lighter"), ("wide", "narrow"), ("deep", "shallow"), ("strong", "weak"), ("easy", "difficult"),
    ("full", "empty"), ("day", "night"), ("positive", "negative"), ("cause", "effect"), ("pass", "fail"),
    ("lend", "borrow"), ("lent", "borrowed"), ("arrive", "depart"), ("add", "remove"), ("hired", "fired"),
    ("victory", "defeat"), ("victor", "loser"), ("prequel", "sequel"), ("ancestor", "descendant"), ("host", "guest"),
    ("employer", "employee"), ("friend", "enemy"), ("uncle", "aunt"), ("nephew", "niece"), ("prince", "princess"),
    ("grandfather", "grandmother"), ("grandson", "granddaughter"), ("bride", "groom"), ("emperor", "empress"),
    ("summer", "winter"), ("spring", "autumn"), ("morning", "evening"), ("noon", "midnight"), ("sunrise", "sunset"),
    ("until", "after"), ("precede", "follow"), ("admit", "expel"), ("hire", "dismiss"), ("praise", "condemn"),
    ("arrest", "release"), ("increase", "reduce"), ("expand", "shrink"), ("shut", "open"), ("lock", "open"),
    ("guilty", "innocent"), ("thick", "thin"), ("sour", "sweet"), ("tiny", "huge"), ("wet", "dry"), ("loud", "quiet"),
    ("heavy", "light"), ("rough", "smooth"), ("public", "private"), ("urban", "rural"), ("ancient", "modern"),
    ("domestic", "foreign"), ("major", "minor"), ("majority", "minority"), ("maternal", "paternal"),
    ("horizontal", "vertical"), ("permanent", "temporary"), ("profit", "loss"), ("ally", "enemy"),
    ("turn down", "accept"), ("turn off", "start"), ("turn on", "stop"), ("shut down", "open"), ("shut down", "start"),
    ("close down", "open"), ("tear down", "build"), ("knock down", "build"), ("pull down", "build"),
    ("take off", "land"), ("give up", "keep"), ("drop out", "join"), ("drop out", "graduate"), ("break up", "form"),
    ("break up", "marry"), ("set off", "arrive"), ("put out", "light"), ("call off", "hold"), ("lay off", "hire"),
    ("throw out", "keep"), ("go up", "fall"), ("go down", "rise"),
)  # fmt: skip
"""Words that turn a question round. English, in whatever form: they are compared by their stems.

A verb with a particle counts with up to three words between the two ("turned the offer down").
"""


def _words(listed: str) -> tuple[str, ...]:
    return tuple(listed.split())


NEGATIONS = frozenset(
    _words(
        "not never no none nobody nothing nowhere neither nor without cannot except lack lacks lacked"
    )
)
_FAILING = frozenset(_words("fail fails failed"))
"""Before `to` they negate."""
_BASE = dict(
    pair.split("=")
    for pair in _words(
        "tore=tear torn=tear took=take taken=take gave=give given=give broke=break broken=break threw=throw"
        " thrown=throw went=go gone=go rose=rise risen=rise fell=fall fallen=fall held=hold built=build kept=keep"
        " bought=buy sold=sell won=win lost=lose lit=light shrank=shrink"
    )
)
_BETWEEN_PARTS = 3
_DENYING = _words("un in im il ir dis non")
_SHORTEST = 4
"""Letters of a word that such a beginning turns round: `able`, and not the `it` of `unit`."""
_NUMBERS = _words(
    "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen"
    " nineteen twenty"
)
_ORDINALS = _words(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
)
COUNTED = {word: str(number) for number, word in enumerate(_NUMBERS, start=2)} | {
    word: str(number) for number, word in enumerate(_ORDINALS, start=1)
}
"""Numbers in words. 'One' is none: it counts nothing in "which one" and "one of"."""
QUESTION_WORDS = {word: word for word in _words("who when where why how")} | {
    "whom": "who",
    "whose": "who",
}
"""What a question word asks for; what and which ask for anything."""
_OPENERS = frozenset(
    _words(
        "a an the who whom whose what which when where why how is are was were do does did has have had can could will"
        " would should may might must in on at of for from to with by under over during after before since until if and"
        " or but so not no name give tell list it he she they his her its their our my this that these those there i"
        " i'm i've i'll"
    )
)
"""Words that a sentence may open with, and that a title may hold; a capital makes no name of them."""

_WORD = re.compile(r"[^\W_]+(?:['’.&/-][^\W_]+)*")
_POSSESSIVE = re.compile(r"['’]s?$")
_JOINED = re.compile(r"[&/-]")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")
_ENDS = ".!?:"
_BETWEEN = " \t\n\"'“”‘’("
_PARTS_CACHED = 2**15

_ASKS = (  # what a question begins with
    r"(?:(?:about|at|by|during|for|from|in|into|of|on|since|through|to|under|until|with) )?"
    r"(?:who|whom|whose|what|which|when|where|why|how|whether)\b"
)
_ASKS_DIRECTLY = (
    rf"(?:{_ASKS}|(?:am|is|are|was|were|do|does|did|has|have|had|can|could|will|would|shall|should|may|might|must)"
    r"(?:n['’]t)?\b)"
)
_PLEASE = r"(?:please|pls|kindly)"
_SOMEBODY = r"(?:you|any(?:one|body)|some(?:one|body))"
_WOULD_YOU = (
    rf"(?:(?:can|could|will|would|might) {_SOMEBODY} (?:possibly |perhaps )?|{_PLEASE},? |just )*"
)
_TELL_ME = rf"{_WOULD_YOU}(?:tell (?:me|us)|let (?:me|us) know)|would you mind telling (?:me|us)"
_ONE_QUESTION = r"(?: (?:a|one|this|the following|my))?(?: (?:quick|simple))?(?: question)?"
_I_ASK = "|".join(
    (
        rf"{_WOULD_YOU}(?:say|(?:remind|inform) (?:me|us)|answer(?: (?:me|us))?{_ONE_QUESTION})",
        r"(?:do|would) you (?:happen to )?(?:know|remember|recall)",
        r"(?:does )?any(?:one|body) (?:here )?(?:knows?|remembers?|recalls?)",
        r"(?:do you have |have you (?:got )?)?any idea",
        r"(?:i|we)(?: (?:would|should)|['’]d)?(?: (?:also|just|only|really))? (?:like|love|need|want|wish)"
        r" to (?:ask(?: you)?|find out|know|learn)",
        r"(?:i|we)(?: (?:am|are|was|were)|['’](?:m|re))?(?: (?:also|just|only|really))?"
        r" (?:curious|wonder|wondered|wondering)"
        rf"(?: (?:if|whether) {_SOMEBODY} (?:(?:can|could|might|would|happens? to) )?(?:{_PLEASE} )?"
        r"(?:knows?|say|tell (?:me|us)))?",
        r"(?:i|we)(?: (?:am|are)|['’](?:m|re)) trying to (?:find out|learn|recall|remember)",
        rf"(?:may|might|can|could) (?:i|we) (?:{_PLEASE} )?ask(?: you)?{_ONE_QUESTION}",
    )
)
_GREETINGS = (
    r"(?:hi|hello|hey|good (?:morning|afternoon|evening|day))(?: there| all| everyone)?|excuse me|pardon me|sorry"
    r"|if (?:i|we) may ask"
)
_FILLERS = "(?:well|ok|okay),? so|so|well|ok|okay"
_LABELS = r"q|question|(?:a |one )?(?:quick|simple) question|(?:here is |the )?my question(?: is)?|the question is"
_MARK = r" ?[,:;.!?–—-]+ "
_OPENING = re.compile(
    rf"(?:{_TELL_ME})(?:{_MARK}| )(?=[^ ])"
    rf"|(?:{_I_ASK})(?: (?={_ASKS})|{_MARK}(?={_ASKS_DIRECTLY}))"
    rf"|(?:{_GREETINGS}|{_FILLERS}|{_LABELS}){_MARK}(?={_ASKS_DIRECTLY}|{_PLEASE}\b|{_TELL_ME}|{_I_ASK})"
    rf"|(?:{_GREETINGS}|{_FILLERS}) (?={_ASKS})"
    rf"|(?:(?:can|could|will|would) you )?{_PLEASE},? "
    rf"(?={_ASKS_DIRECTLY}|(?:define|describe|explain|find|give|identify|list|name|provide|specify|state)\b)",
    re.IGNORECASE,
)
"""Before a question, a phrase that only asks for its answer."""
_CLOSING = re.compile(
    rf"[,:;.!?–—-] ?(?:{_TELL_ME}|{_PLEASE}|(?:may|might|can|could) (?:i|we) ask"
    r"|(?:many )?(?:thanks|thx|cheers)(?: a lot| so much| in advance)?|thank you(?: so much| very much| in advance)?"
    r"|(?:do|would) you (?:happen to )?(?:know|remember|recall)|(?:do you have |have you (?:got )?)?any ideas?|i wonder"
    r"|i(?: would|['’]d) (?:like|love) to know|i (?:want|need) to know"
    r"|if (?:i|we) may(?: ask)?|if you (?:know|please|happen to know)"
    r"|if you (?:do not|don['’]t) mind(?: my| me)?(?: asking)?)\Z"
    r"| (?<!\bplease )please\Z",
    re.IGNORECASE,
)
"""The same behind a question."""
_LONGEST_CLOSING = 80
_LAST_MARKS = " .?!,;:…。？！"
_STEM = snowball("english")


def _stem(word: str) -> str:
    return _STEM(_BASE.get(word, word))


_STEMMED: dict[str, list[tuple[int, int, str]]] = {}
"""For each stem the pairs that it is one side of, which, and the particle that must follow, if any."""
for _pair, _words_of in enumerate(OPPOSITES):
    for _side, _word in enumerate(_words_of, start=1):
        _verb, _, _particle = _word.partition(" ")
        _STEMMED.setdefault(_stem(_verb), []).append((_pair, _side, _particle))


class _QuestionParts(NamedTuple):
    """The parts of a question that the rules compare."""

    stems: tuple[str, ...]
    """Every word's stem, in order."""
    words: frozenset[str]
    """Every word, folded: small letters, no accents, no full stops, no possessive."""
    numbers: frozenset[str]
    names: tuple[str, ...]
    """Capitalised words in their order, folded; one that opens a sentence alone is none."""
    negated: bool
    asks: frozenset[str]
    sides: dict[int, list[int]]
    """For each pair of opposites that it holds a word of: 1 and 2, in the order of the words."""


def plain_question(text: str) -> str:
    """The question itself: without phrases that only ask for an answer, small letters, without its last mark.

    What it asks for stays, and so does a question that is nothing but such a phrase. Equal for equal questions in
    politer words, and nothing more: another order of words is another plain question.

    >>> plain_question("Please tell me who turned on the radio."), plain_question("Who turned on  the radio ?")
    ('who turned on the radio', 'who turned on the radio')
    >>> plain_question("Hello, do you know when the pier was built? Thanks!")
    'when the pier was built'
    >>> plain_question("Who do you know in Orm?"), plain_question("Tell me.")
    ('who do you know in orm', 'tell me')
    """
    plain = " ".join(text.casefold().split())
    start, end = _question_itself(plain)
    return plain[start:end]


def _question_itself(text: str) -> tuple[int, int]:
    """Where the question begins and ends in a text whose white space is single spaces; a word is always left."""
    start, end = 0, len(text)
    while True:
        bare = len(text[:end].rstrip(_LAST_MARKS))
        closing = _CLOSING.search(text, max(start, end - _LONGEST_CLOSING), end)
        for left in (bare, closing.start() if closing else end):
            if left < end and _WORD.search(text, start, left):
                end = left
                break
        else:
            opening = _OPENING.match(text, start, end)
            if opening is None:
                return start, end
            start = opening.end()


def unlike(a: str, b: str) -> str:
    """What keeps the two questions apart, as the end of a sentence; empty where nothing does.

    >>> unlike("Who turned on the radio?", "Who turned the radio off?")
    "one says 'on', the other 'off'"
    >>> unlike("What is John Mayne's occupation?", "What is Kathy Saltzman's occupation?")
    "only one of them names 'john'"
    >>> unlike("Who turned on the radio?", "Who was it that turned the radio on?")
    ''
    """
    if a == b:
        return ""
    one, other = _parts(a), _parts(b)
    return (
        (
            f"only one of them has the number '{min(lone)}'"
            if (lone := one.numbers ^ other.numbers)
            else ""
        )
        or _other_names(one, other)
        or ("one of them is negated" if one.negated != other.negated else "")
        or _turned_round(one, other)
        or _denied(one, other)
        or _denied(other, one)
        or _other_question_word(one, other)
    )


def _other_names(one: _QuestionParts, other: _QuestionParts) -> str:
    for mine, theirs in ((one, other), (other, one)):
        for name in mine.names:
            if name not in theirs.words:
                return f"only one of them names '{name}'"
    # who did it to whom is in the order alone
    shared = set(one.names) & set(other.names)
    if [name for name in one.names if name in shared] != [
        name for name in other.names if name in shared
    ]:
        return "they name the same in another order"
    return ""


def _turned_round(one: _QuestionParts, other: _QuestionParts) -> str:
    for pair in sorted(one.sides.keys() & other.sides.keys()):
        mine, theirs = one.sides[pair], other.sides[pair]
        first, second = OPPOSITES[pair]
        if set(mine) != set(theirs):
            words = {1: f"'{first}'", 2: f"'{second}'", 3: f"both '{first}' and '{second}'"}
            return f"one says {words[sum(set(mine))]}, the other {words[sum(set(theirs))]}"
        if mine != theirs and _without(one, pair) == _without(other, pair):
            return f"they say '{first}' and '{second}' in another order"
    return ""


def _without(parts: _QuestionParts, pair: int) -> list[str]:
    return [stem for stem in parts.stems if all(pair != at for at, *_ in _STEMMED.get(stem, ()))]


def _denied(one: _QuestionParts, other: _QuestionParts) -> str:
    """`legal` against `illegal`: a word that the other has with a beginning that denies it."""
    for word in sorted(one.words - other.words):
        for beginning in _DENYING if len(word) >= _SHORTEST else ():
            if beginning + word in other.words - one.words:
                return f"one says '{word}', the other '{beginning + word}'"
    return ""


def _other_question_word(one: _QuestionParts, other: _QuestionParts) -> str:
    if one.asks and other.asks and not one.asks & other.asks:
        return f"one asks {min(one.asks)}, the other {min(other.asks)}"
    return ""


@lru_cache(maxsize=_PARTS_CACHED)
def _parts(text: str) -> _QuestionParts:
    plain = text
    if not text.isascii():
        plain = "".join(
            c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)
        )
    plain = " ".join(plain.split())
    start, end = _question_itself(plain)
    found = [
        (match.group(), _opens(plain, match.start())) for match in _WORD.finditer(plain, start, end)
    ]
    words = [_folded(word) for word, _ in found]
    numbers = {_THOUSANDS.sub("", match.group()) for match in _NUMBER.finditer(plain, start, end)}
    stems = tuple(map(_stem, words))
    sides: dict[int, list[int]] = {}
    for at, stem in enumerate(stems):
        for pair, side, particle in _STEMMED.get(stem, ()):
            if not particle or particle in words[at + 1 : at + 2 + _BETWEEN_PARTS]:
                sides.setdefault(pair, []).append(side)
    return _QuestionParts(
        stems=stems,
        words=frozenset(words).union(
            *(_JOINED.split(word) for word in words if not word.isalnum())
        ),
        numbers=frozenset(numbers | {COUNTED[word] for word in words if word in COUNTED}),
        names=tuple(_names(found, words)),
        negated=not NEGATIONS.isdisjoint(words)
        or any(word.endswith(("n't", "n’t")) for word in words)
        or any(word in _FAILING and after == "to" for word, after in pairwise(words)),
        asks=frozenset(QUESTION_WORDS[word] for word in words if word in QUESTION_WORDS),
        sides=sides,
    )


def _folded(word: str) -> str:
    """`U.S.` and `US`, `Mayne's` and `Mayne` are one word each."""
    word = word.casefold()
    return word if word.isalnum() else _POSSESSIVE.sub("", word).replace(".", "").replace("’", "'")


def _opens(text: str, start: int) -> bool:
    """Whether a word that begins there is the first of a sentence, or of what is quoted."""
    while start and text[start - 1] in _BETWEEN:
        start -= 1
    return not start or text[start - 1] in _ENDS


def _names(found: list[tuple[str, bool]], words: list[str]) -> list[str]:
    names = []
    for at, ((word, opens), folded) in enumerate(zip(found, words, strict=True)):
        if not word[0].isupper() or folded in _OPENERS or folded.endswith("n't"):
            continue
        if opens and not (
            at + 1 < len(found) and found[at + 1][0][0].isupper() and not found[at + 1][1]
        ):
            continue
        names.append(folded)
    return names
