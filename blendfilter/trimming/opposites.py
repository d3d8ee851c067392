"""Why two questions that look alike must not share verdicts: they differ in the one word that turns the answer round.

A vector index calls "he turned on the radio" and "he turned off the radio" neighbours, and the two questions about them
no less. What CDIT trims in an index (Ma et al. 2024, section 1) must not come back by way of its stored questions.

The rules read what is written: a name in small letters is a word like any other, and two names of one thing are two
names. In doubt two questions are unlike: that costs a judge's call where verdicts are gathered, and leaves both
passages where one searches. A model of pairs (`guard.PairModel`) knows more.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from blendfilter.retrieval.analyser import snowball

_PAIRS = """
on/off in/out up/down over/under above/below before/after with/without for/against from/to since/until until/after
prior/after first/last more/less more/fewer most/least most/fewest many/few all/none always/never high/low
highest/lowest large/small largest/smallest biggest/smallest long/short longest/shortest tallest/shortest old/young
old/new older/younger oldest/youngest oldest/newest early/late earliest/latest fast/slow best/worst better/worse
good/bad rich/poor near/far left/right north/south east/west northern/southern eastern/western male/female man/woman
men/women boy/girl father/mother son/daughter brother/sister husband/wife king/queen prince/princess uncle/aunt
nephew/niece grandfather/grandmother grandson/granddaughter bride/groom emperor/empress actor/actress born/died
birth/death begin/end start/end start/stop start/finish open/close shut/open lock/open win/lose won/lost winner/loser
victor/loser victory/defeat buy/sell bought/sold give/take gave/took lend/borrow lent/borrowed love/hate accept/reject
admit/expel allow/forbid build/destroy built/destroyed join/leave joined/left enter/leave arrive/leave arrive/depart
rise/fall rose/fell increase/decrease increase/reduce expand/shrink import/export include/exclude add/remove
attack/defend hire/dismiss hired/fired praise/condemn arrest/release pass/fail precede/follow same/different true/false
guilty/innocent alive/dead black/white inside/outside minimum/maximum upper/lower top/bottom front/back
upstream/downstream entrance/exit hot/cold wet/dry heavy/light heavier/lighter wide/narrow deep/shallow thick/thin
strong/weak easy/difficult full/empty sour/sweet tiny/huge loud/quiet rough/smooth day/night summer/winter
spring/autumn morning/evening noon/midnight sunrise/sunset positive/negative cause/effect public/private urban/rural
ancient/modern domestic/foreign major/minor majority/minority maternal/paternal horizontal/vertical
permanent/temporary profit/loss teacher/student parent/child predecessor/successor protagonist/antagonist
prequel/sequel ancestor/descendant host/guest employer/employee friend/enemy ally/enemy
"""
OPPOSITES = tuple(tuple(pair.split("/")) for pair in _PAIRS.split())
"""Words that turn a question round. English, in whatever form: they are compared by their stems."""


_NEGATIVE = """
not never no none nobody nothing nowhere neither nor without cannot except lack lacks lacked fail fails failed
"""
_NEGATIONS = frozenset(_NEGATIVE.split())
QUESTION_WORDS = {
    **{word: word for word in ("who", "when", "where", "why", "how")},
    **dict.fromkeys(("whom", "whose"), "who"),
}
"""What a question word asks for; what and which ask for anything."""
_DENYING = ("un", "in", "im", "il", "ir", "dis", "non")
_NUMBERS = """
two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen
twenty
"""
_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
# 'One' is none: it counts nothing in "which one" and "one of".
_COUNTED = {word: str(number) for number, word in enumerate(_NUMBERS.split(), start=2)} | {
    word: str(number) for number, word in enumerate(_ORDINALS.split(), start=1)
}
_OPENING = """
a an the who whom whose what which when where why how is are was were do does did has have had can could will would
should may might must in on at of for from to with by under over during after before since until if and or but so not
no name give tell list it he she they his its her their our my this that these those there i
"""
_OPENERS = frozenset(_OPENING.split())
"""Words that a sentence may open with, and that a title may hold; a capital makes no name of them."""

_WORD = re.compile(r"[^\W_]+(?:['’.&/-][^\W_]+)*")
_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")
_SENTENCE_ENDS = ".!?:"

_QUESTION_OPENS = (
    r"(?:(?:about|at|by|during|for|from|in|into|of|on|since|through|to|under|until|with) )?"
    r"(?:who|whom|whose|what|which|when|where|why|how|is|are|was|were|do|does|did|has|have|had)\b"
)
_POLITE_OPENING = re.compile(
    r"\A(?:(?:(?:hi|hello|hey)(?: there)?|well|ok|okay|so|please"
    r"|(?:(?:can|could|will|would) you )?(?:please )?(?:tell (?:me|us)|let (?:me|us) know|say)"
    r"|would you mind telling (?:me|us)|(?:do you|does any(?:one|body)) know|any idea|q|question"
    r"|i(?: am|['’]m| was)? wonder(?:ing)?(?: if you (?:can|could) tell me)?"
    r"|i(?: would|['’]d) like to know|may i ask(?: you)?(?: a question)?)\b[ ,:;.!?–—-]++)++"
    rf"(?={_QUESTION_OPENS})",
    re.IGNORECASE,
)
"""Before a question, phrases that only ask for its answer."""
_POLITE_CLOSING = re.compile(
    r"(?<=\w)(?:(?= ?[,:;.!?–—-])[ ,:;.!?–—-]++"
    r"(?:please|(?:many )?thanks(?: a lot| in advance)?|thank you(?: in advance)?|do you know|any ideas?|tell me"
    r"|i(?: would|['’]d) like to know))++\Z",
    re.IGNORECASE,
)
_LAST_MARKS = " .?!,;:…。？！"
_STEM = snowball("english")

_SIDES: dict[str, list[tuple[int, int]]] = {}
"""For each stem the pairs of opposites that it belongs to, and which side of them it is."""
for _number, _pair in enumerate(OPPOSITES):
    for _side, _word in enumerate(_pair):
        _SIDES.setdefault(_STEM(_word), []).append((_number, _side))


def plain_question(text: str) -> str:
    """A question in small letters without the phrases around it that only ask for its answer.

    Equal for equal questions in politer words, and nothing more: another order of words is another plain question.

    >>> plain_question("Please tell me who turned on the radio."), plain_question("Who turned on  the radio ?")
    ('who turned on the radio', 'who turned on the radio')
    >>> plain_question("Who do you know in Orm?"), plain_question("Tell me.")
    ('who do you know in orm', 'tell me')
    """
    return _without_polite_words(text.casefold())


def _without_polite_words(text: str) -> str:
    whole = " ".join(text.split())
    bare = _POLITE_CLOSING.sub("", whole.rstrip(_LAST_MARKS))
    return _POLITE_OPENING.sub("", bare) or whole


class _QuestionParts(NamedTuple):
    """The parts of a question that the rules compare."""

    words: frozenset[str]
    """Small letters, no accents, no full stops, no possessive."""
    numbers: frozenset[str]
    names: tuple[str, ...]
    """Capitalised words in their order; one that opens a sentence alone is none."""
    negated: bool
    asks: frozenset[str]
    sides: dict[int, list[int]]
    """For each pair of opposites that it holds a word of, the sides in the order of the words."""


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
    return next(_reasons(one, other), "")


def _reasons(one: _QuestionParts, other: _QuestionParts) -> Iterator[str]:
    if lone := one.numbers ^ other.numbers:
        yield f"only one of them has the number '{min(lone)}'"
    for mine, theirs in ((one, other), (other, one)):
        for name in mine.names:
            if name not in theirs.words:
                yield f"only one of them names '{name}'"
    # who did it to whom is in the order alone
    shared = set(one.names) & set(other.names)
    orders = [[name for name in parts.names if name in shared] for parts in (one, other)]
    if orders[0] != orders[1]:
        yield "they name the same in another order"
    if one.negated != other.negated:
        yield "one of them is negated"
    for pair in sorted(one.sides.keys() & other.sides.keys()):
        words, sides = OPPOSITES[pair], (one.sides[pair], other.sides[pair])
        if set(sides[0]) != set(sides[1]):
            first, second = (
                " and ".join(f"'{words[side]}'" for side in sorted(set(own))) for own in sides
            )
            yield f"one says {first}, the other {second}"
        if sides[0] != sides[1]:
            yield f"they say '{words[0]}' and '{words[1]}' in another order"
    # `legal` against `illegal`: a word that the other has with a beginning that denies it
    alone = one.words ^ other.words
    for word, beginning in product(sorted(alone), _DENYING):
        # `able`, and not the `it` of `unit`
        if len(word) > 3 and beginning + word in alone:
            yield f"one says '{word}', the other '{beginning + word}'"
    if one.asks and other.asks and not one.asks & other.asks:
        yield f"one asks {min(one.asks)}, the other {min(other.asks)}"


@lru_cache(maxsize=2**15)
def _parts(text: str) -> _QuestionParts:
    folded = "".join(
        c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)
    )
    plain = _without_polite_words(folded)
    found = list(_WORD.finditer(plain))
    words = [_folded(word[0]) for word in found]
    sides: dict[int, list[int]] = {}
    for word in words:
        for pair, side in _SIDES.get(_STEM(word), ()):
            sides.setdefault(pair, []).append(side)
    pieces = {piece for word in words for piece in re.split("[&/-]", word)}
    numbers = {re.sub(r",(?=\d{3}\b)", "", number) for number in _NUMBER.findall(plain)}
    return _QuestionParts(
        words=frozenset(words) | pieces,
        numbers=frozenset(numbers | {_COUNTED[word] for word in words if word in _COUNTED}),
        names=tuple(_names(plain, found, words)),
        negated=any(word in _NEGATIONS or word.endswith("n't") for word in words),
        asks=frozenset(QUESTION_WORDS[word] for word in words if word in QUESTION_WORDS),
        sides=sides,
    )


def _folded(word: str) -> str:
    """`U.S.` and `US`, `Mayne's` and `Mayne` are one word each."""
    return re.sub("'s?$", "", word.casefold().replace("’", "'")).replace(".", "")


def _names(text: str, found: list[re.Match[str]], words: list[str]) -> list[str]:
    names, end, opened = [], 0, False
    for at, (match, word) in enumerate(zip(found, words, strict=True)):
        opens = at == 0 or any(mark in text[end : match.start()] for mark in _SENTENCE_ENDS)
        capital = match[0][0].isupper() and not word.endswith("n't")
        capital = capital and word.split("'")[0] not in _OPENERS
        if opened and capital and not opens:
            names.append(words[at - 1])  # "Ada Holt was …": the first of two opens the sentence
        if capital and not opens:
            names.append(word)
        opened, end = opens and capital, match.end()
    return names
