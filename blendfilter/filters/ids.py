"""Reading the ids that a model says are relevant: pure functions, no model.

BlendFilter, section 3.3 and appendix F, leaves open how a free-text reply becomes a set; the rules are these.

1. A JSON array, an object with `ids`, or one with a verdict for each id, is read as it stands; thinking in tags is not.
2. Else the reply's last line that holds ids is read: whole tokens 0..K-1, in order, without repeats; `0-2` is a range.
3. Where that line is one of several that speak of one id each ("0", "knowledge 3: relevant"), they are read together,
   and one that is judged irrelevant is left out; one that has words without a verdict, beside others that
   have one, makes the reply `suspect`. A list numbered 1, 2, 3 is read by what stands behind its numbers.
4. What restates the prompt is not an id: the full range of numbers after "knowledge", "ids" or "from", or in brackets.
   Nor is a count ("2 of the 5", "3 passages"), nor the number of a step ("Step 2"), nor that of a list item that goes
   on with numbers, nor what stands before a colon that announces nothing but numbers.
   Words that follow a line of nothing but ids (or "none") and speak of other ids make the reply `suspect`, unless they
   reject these.
5. Any other line that negates ("1, 3 and 4 are irrelevant", "all but 2") is `suspect`: it is not read as ids. So is
   one whose number may count what follows it ("3 lighthouses", "2 are relevant").
6. Of a reply that was cut off only a whole line of nothing but ids is read.
7. What a reply quotes never decides (`blendfilter.quoting`): not "passage 2 says: Ids: 0, 1", nor a fence or a text in
   quotation marks, unless it is the reply itself. Where nothing else could be read, the reply is `suspect`.
8. No ids, but a word for nothing ("none"), is an explicit `none`. Anything else is `unparseable`.

In doubt a reading is `suspect` or `unparseable`, which costs one more call; a wrong one would cost the knowledge.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from blendfilter.lm.profiles import split_thinking
from blendfilter.quoting import attributions, end_of, own_words, unattributed

Status = Literal["ids", "none", "suspect", "unparseable"]


class IdsRead(NamedTuple):
    """Positions 0..K-1 in the order the reply gives them, and how it was read."""

    ids: tuple[int, ...]
    status: Status


_SUSPECT = IdsRead((), "suspect")
_NOUN = r"(?:knowledge|passage|sentence|id|number|piece)s?"

_NEGATION = re.compile(
    r"\b(?:ir+elevant|unrelated|unhelpful|unnecessary|useless|not|\w+n't|cannot|no|none|neither|nor|without"
    r"|except(?:ing)?|exclud\w+|remov\w+|discard\w+|drop\w*|omit\w*|ignor\w+|all but|other than|apart from)\b",
    re.IGNORECASE,
)
_VERDICT = re.compile(
    r"\b(?:ir+elevant|unrelated|(?:not|\w+n't) (?:\w+ )?(?:relevant|related|helpful|useful)|off[- ]topic)\b",
    re.IGNORECASE,
)
_RELEVANT = re.compile(r"\b(?:relevant|not ir+elevant)\b", re.IGNORECASE)
_FAVOURABLE = re.compile(
    r"\b(?:relevant|helpful|useful|related|pertinent|necessary|needed|yes|keep|kept|answers)\b", re.IGNORECASE
)
_NOTHING = re.compile(
    r"\b(?:none|nothing (?:\w+ ){0,6}(?:relevant|related|useful|helpful|helps)|no ids?|no numbers?|not any"
    r"|no (?:\w+ )?(?:relevant|related|knowledge|passages?|pieces?|ones?|sentences?(?!,)))\b"
    r"|^(?:\W*ids?\b)?\W*(?:nothing|empty|null|n/a)\W*$|^\W*\[\s*\]\W*$",
    re.IGNORECASE,
)
_REMOVED = re.compile(
    r"\b(?:ir+elevant|unrelated|unhelpful|unnecessary|useless|exclud\w+|remov\w+|discard\w+|drop\w*|omit\w*|ignor\w+)\b",
    re.IGNORECASE,
)

_NUMBERS = re.compile(r"\d+")
_NONE = re.compile(r"^\W*(?:ids?\W+)?none\W*$", re.IGNORECASE)

_RANGE = re.compile(r"(?<![\w.-])(\d{1,4})\s*(?:-|–|—|to|through)\s*(\d{1,4})(?![\w-]|\.\d)", re.IGNORECASE)
_ID = re.compile(r"(?<![\w.,/-])(\d{1,4})(?![\w%/-]|[.,]\d)")
_GLUED = re.compile(rf"\b(?:{_NOUN}|k)_?(?=\d)", re.IGNORECASE)  # "knowledge0"
_WORD = re.compile(r"\b(?!and\b)[^\W\d_]+", re.IGNORECASE)
_AFTER_COMMA = re.compile(r",(?=\d)(?!\d{3}\b)")  # "0,3", but not "1,000"
_AFTER_ANY_COMMA = re.compile(r",(?=[1-9]|0\b)")  # "12,150" of hundreds, in a line of nothing but ids
_COUNT = re.compile(
    r"\b\d+\s+(?:out\s+)?of\s+(?:(?:the\s+)?\d+|the|these|those|them|all)\b|\bof\s+(?:the|these|those)\s+\d+\b"
    r"|\b\d+\s+(?:(?:(?:ir)?relevant|useful|helpful|related|more|other|different|key|main)\s+){0,2}"
    r"(?:passage|piece|id|number|item|document|text|source|entr(?:y|ie)|result|part|step|point|question|paragraph"
    r"|sentence|thing|fact|candidate|option|one|other)s?\b"
    r"|\b(?:step|part|point|stage|phase|rule|criterion|example|page|section|chapter|figure|hop|question|line|top)"
    r"\s+#?\d+\b",
    re.IGNORECASE,
)
# What may follow an id in a sentence. After any other word in small letters the number may be a count ("3 harbours").
_AFTER_ID = (
    r"(?:and|or|is|are|was|were|to|through|as|for|because|since|but|also|both|only|directly|clearly|in|on|at|by|from"
    r"|with|which|who|that|where|when|while|if|so|then|than|it|they|the|an?|of|about|all|alone|together|here|above"
    r"|below|plus|not|relevant|helpful|useful|irrelevant|has|have|had|can|could|may|might|will|would|does|do|did"
    r"|(?:seem|appear|name|mention|state|say|tell|give|describe|contain|provide|explain|confirm|answer|show|help|relate"
    r"|concern|talk|refer|include|support|link|point|hold|cover|bear|speak|establish|identif(?:y|ie)|discuss(?:e)?"
    r"|address(?:e)?|match(?:e)?)(?:s|ed|ing)?)"
)
_COUNTS = re.compile(rf"(?<![\w.,/#-])(?P<id>\d{{1,4}})\s+(?:(?P<are>are|were)\b|(?!{_AFTER_ID}\b)[a-z]{{2,}})")
_NAMED = re.compile(rf"\b(?:{_NOUN}|k)\W*$|#\s*$", re.IGNORECASE)
_ITEM = re.compile(r"^\s*[1-9]\d*[.)]\s+(?!and\b|or\b)(?=\w|\[)")
_BARE = re.compile(  # one id and nothing else, but not "Ids: 1", which is about all
    r"^\W*(?:(?:knowledges?|passages?|sentences?|pieces?|id|number)\W*)?#?(?P<id>\d{1,4})\W*$", re.IGNORECASE
)
_LABELLED = re.compile(  # "knowledge 3: …", "0 is …": one id, then words about it
    rf"^\W*(?P<noun>{_NOUN}\W*)?#?(?P<id>\d{{1,4}})"
    r"(?:[\s*_`\"]*(?P<mark>[:|)]|\.(?!\d)|[(\]](?=\W*[^\W\d_])|[-–—](?!\s*\d))"
    r"|\s+(?!(?:and|or|to|through|of|out)\b)(?=[^\W\d_]))\W*(?P<rest>.*)$",
    re.IGNORECASE,
)


def read_ids(reply: str, k: int, *, cut: bool = False) -> IdsRead:
    """The ids in `reply`, of `k` numbered passages; of one that was `cut` off, those that it had stated before.

    >>> read_ids("The relevant ones are 0 and 3.", 5)
    IdsRead(ids=(0, 3), status='ids')
    >>> read_ids("1, 3 and 4 are irrelevant", 5).status
    'suspect'
    >>> read_ids("None of them.", 5).status
    'none'
    """
    reply = split_thinking(reply)[1]
    return in_own_words(end_of(reply), lambda text: _read(text, k, cut), _read_json(reply, k))


def in_own_words(reply: str, read: Callable[[str], IdsRead], whole: IdsRead | None = None) -> IdsRead:
    """How `read` reads what `reply` says itself, never what it quotes; `whole` where all of it is a form that is known.

    What may be its own although it stands in quotation marks or a fence decides where nothing else does. Where it goes
    against the rest, or all that could be read was quoted, the reply is suspect.
    """
    if whole is not None:
        return whole
    own = own_words(reply)
    if own.words is reply:
        return read(reply)
    stated = read(own.words)
    quotes_ids = own.announced is not None and _NUMBERS.findall(own.announced) != _NUMBERS.findall(own.words)
    announced = read(own.announced) if own.announced is not None and (quotes_ids or stated.status != "ids") else stated
    if stated.status in ("ids", "none"):
        return stated if announced == stated else _SUSPECT
    if announced.status != "unparseable":
        return announced
    quotes = own.words != reply and re.search(r"\d", reply) and not re.search(r"\d", own.words)
    return _SUSPECT if stated.status == "suspect" or quotes else stated


def _read(text: str, k: int, cut: bool) -> IdsRead:
    plain = text.replace("’", "'")
    lines = [line for line in plain.splitlines() if re.search(r"\w", line) and not line.lstrip().startswith("```")]
    if cut:  # the last line is not whole, and what others named one by one need not be all
        lines = [line for line in lines[:-1] if _is_statement(line) and not _BARE.match(line)]
    for end in range(len(lines), 0, -1):
        line = lines[end - 1]
        block = _block(lines, end)
        before = end - len(block)
        if block and not _is_bare(block[0]) and (stated := _stated(lines, before, k)) is not None:
            return _read_about(stated, block, k)
        if block and _is_bare(block[0]) and not _agrees(block, _block(lines, before), k):
            return _SUSPECT
        if len(block) > 1:
            read = _read_block(block, k)
            return read if _is_bare(block[0]) else _unless_stated(lines[:before], read, k)
        ids = _ids_in(line, k)
        if ids and (
            _NEGATION.search(line) or _may_count(line, ids, k) or _reports(line, k) or _goes_on_about_another(line, k)
        ):
            return _SUSPECT
        if ids:
            read = IdsRead(ids, "ids")
            return read if _is_statement(line) else _unless_stated(lines[: end - 1], read, k)
    return _read_nothing(lines)


def _read_nothing(lines: Sequence[str]) -> IdsRead:
    nothing = [line for line in lines if _NOTHING.search(line)]
    if any(_REMOVED.search(line) for line in nothing):  # "none of them is irrelevant"
        return _SUSPECT
    return IdsRead((), "none" if nothing else "unparseable")


def _goes_on_about_another(line: str, k: int) -> bool:
    """Whether a line states ids, and then has a sentence about a passage that is not among them, without a verdict."""
    first, *rest = _SENTENCE_ENDS.split(line)
    if not rest or not _is_statement(first):
        return False
    stated = set(_ids_in(first, k))
    return any(
        len(_WORDS.findall(sentence)) > 2 and set(_ids_in(sentence, k)) - stated and not _FAVOURABLE.search(sentence)
        for sentence in rest
    )


_SENTENCE_ENDS = re.compile(r"(?<=[.!?;])\s+")
_WORDS = re.compile(r"[^\W\d_]{2,}")


def _reports(line: str, k: int) -> bool:
    """Whether a line names a passage only as the one that says what is quoted, and gives no verdict on it."""
    sources = {int(number) for source in attributions(line) for number in re.findall(r"\d{1,4}", source)}
    if not sources:
        return False
    rest = unattributed(line)
    others = set(_ids_in(rest, k))
    return not (sources <= others or (not others and _FAVOURABLE.search(rest)))


def negates(reply: str) -> bool:
    """Whether a line of `reply` speaks of ids and negates: why most `suspect` replies are that.

    >>> negates("1, 3 and 4 are irrelevant"), negates("0\\nOn reflection it is 2.")
    (True, False)
    """
    lines = reply.replace("’", "'").splitlines()
    return any(re.search(r"\d", line) and _NEGATION.search(line) for line in lines)


def restates_range(reply: str, k: int) -> bool:
    """Whether `reply` says the prompt's own range of numbers again, which names none of them.

    >>> restates_range("Of knowledge 0-4, only 2 is relevant.", 5), restates_range("0-2", 5)
    (True, False)
    """
    return _full_range_pattern(k).search(reply) is not None


def _unless_stated(before: Sequence[str], read: IdsRead, k: int) -> IdsRead:
    """`read`, unless an earlier line of nothing but ids (or "none") says otherwise: words about it came afterwards."""
    for line in reversed(before):
        if _is_statement(line):
            return read if set(_ids_in(line, k)) == set(read.ids) else _SUSPECT
    return read


def _is_statement(line: str) -> bool:
    numbers = _announced(line)
    return bool(re.search(r"\d", numbers) and not _WORD.search(numbers)) or bool(_NONE.match(line))


def unfenced(reply: str) -> str:
    """What stands inside a fence around the whole reply, or the reply."""
    return reply.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()


def _read_json(reply: str, k: int) -> IdsRead | None:
    text = unfenced(reply)
    if not text.startswith(("[", "{")):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    items = value.get("ids", value) if isinstance(value, dict) else value
    if isinstance(items, dict) and any(isinstance(each, bool) for each in items.values()):
        items = [name for name, relevant in items.items() if relevant is True]  # {"0": true, "1": false}
    if not isinstance(items, list):
        return None
    ids = _within((int(item) for item in items if _is_integer(item)), k)
    if ids:
        return IdsRead(ids, "ids")
    return IdsRead((), "unparseable" if items else "none")


def _is_integer(item: object) -> bool:
    return (isinstance(item, int) and not isinstance(item, bool)) or (
        isinstance(item, str) and item.isascii() and item.isdigit() and len(item) < 5
    )


def _block(lines: Sequence[str], end: int) -> list[re.Match[str]]:
    """The lines up to `end` that speak of one id each, in their order: all of them bare, or all with words about it."""
    block: list[re.Match[str]] = []
    for at in range(end - 1, -1, -1):
        line = lines[at]
        match = _BARE.match(line) or (None if _COUNT.match(line.lstrip()) else _LABELLED.match(line))
        if match is None or (block and _is_bare(match) is not _is_bare(block[0])):
            break
        block.append(match)
    return block[::-1]


def _is_bare(line: re.Match[str]) -> bool:
    return line.re is _BARE


def _stated(lines: Sequence[str], end: int, k: int) -> IdsRead | None:
    """What the lines up to `end` state, where the last of them is nothing but ids, or "none"."""
    if not end or not _is_statement(lines[end - 1]):
        return None
    if _NONE.match(lines[end - 1]):
        return IdsRead((), "none")
    if _NEGATION.search(lines[end - 1]):  # "Irrelevant: 1, 2"
        return _SUSPECT
    bare = [int(each["id"]) for each in _block(lines, end) if _is_bare(each)]
    ids = _within(bare, k) if bare else _ids_in(lines[end - 1], k)
    return IdsRead(ids, "ids") if ids else None


def _read_about(stated: IdsRead, block: Sequence[re.Match[str]], k: int) -> IdsRead:
    """A statement of ids, and behind it words about passages one by one: they may only bear it out."""
    for match in block:
        verdict = _verdict_in(match["rest"])
        borne_out = (int(match["id"]) in stated.ids) is (verdict is not False)
        if stated.status == "suspect" or (int(match["id"]) < k and not borne_out):
            return _SUSPECT
    return stated


def _read_block(block: Sequence[re.Match[str]], k: int) -> IdsRead:
    if _is_numbered(block):
        return _read_numbered([match["rest"] for match in block], k)
    kept, unjudged = [], 0
    for match in block:
        words = match.groupdict().get("rest") or ""
        verdict = _verdict_in(words)
        if verdict is False:
            continue
        if _NEGATION.search(words) or _COUNTS.match(match.string.lstrip()) or _reports(match.string, k):
            return _SUSPECT
        unjudged += verdict is None
        kept.append(int(match["id"]))
    if not kept or 0 < unjudged < len(block):  # words about a passage without a verdict, which the others have
        return _SUSPECT
    ids = _within(kept, k)
    return IdsRead(ids, "ids") if ids else IdsRead((), "unparseable")


def _agrees(bare: Sequence[re.Match[str]], judged: Sequence[re.Match[str]], k: int) -> bool:
    """Whether a list of bare ids goes with the verdicts right above it: it leaves out none that these call relevant."""
    ids = {int(each["id"]) for each in bare}
    called = {int(each["id"]) for each in judged if not _is_bare(each) and _verdict_in(each["rest"])}
    return {each for each in called if each < k} <= ids


def _verdict_in(words: str) -> bool | None:
    """Whether words about a passage call it relevant; None where they do neither, or both."""
    judged, rest = _VERDICT.search(words), _VERDICT.sub("", words)
    if judged:
        return None if _RELEVANT.search(rest) or re.search(r"\bnot ir", words, re.I) else False
    return True if _FAVOURABLE.search(rest) else None


def _is_numbered(block: Sequence[re.Match[str]]) -> bool:
    """Whether the lines count "1. …", "2. …": then their numbers are the list's, not the passages'."""
    groups = [match.groupdict() for match in block]
    marked = all(each.get("mark") in (".", ")") and not each.get("noun") for each in groups)
    return marked and [int(each["id"]) for each in groups] == list(range(1, len(groups) + 1))


def _read_numbered(items: Sequence[str], k: int) -> IdsRead:
    each = [_ids_in(item, k) for item in items]
    if not all(each) or any(_NEGATION.search(item) for item in items):
        return _SUSPECT
    return IdsRead(_within((number for ids in each for number in ids), k), "ids")


def _ids_in(line: str, k: int) -> tuple[int, ...]:
    comma = _AFTER_ANY_COMMA if k > 100 and _is_statement(line) else _AFTER_COMMA
    numbers = _ID.findall(comma.sub(", ", _numbers_in(line, k)))
    return _within((int(number) for number in numbers), k)


def _may_count(line: str, ids: Sequence[int], k: int) -> bool:
    """Whether one of a line's numbers may be how many there are of what follows it, in place of an id."""
    text = _numbers_in(line, k)
    for match in _COUNTS.finditer(text):
        number, named = int(match["id"]), _NAMED.search(text[: match.start()])
        alone = len(ids) == 1 and number > 1  # "2 are relevant"
        if number in ids and not named and (alone or not match["are"]):
            return True
    return False


def _numbers_in(line: str, k: int) -> str:
    """The line with its ranges spelled out, less the numbers that are no ids."""
    line = _GLUED.sub(" ", _announced(line))
    line = _COUNT.sub(" ", _full_range_pattern(k).sub(" ", line))
    if _ITEM.match(line) and re.search(r"\d", _ITEM.sub("", line)):
        line = _ITEM.sub("", line)
    return _RANGE.sub(lambda match: _spelled_out(match, k), line)


def _announced(line: str) -> str:
    """The numbers alone, where a colon announces nothing else: "three of them: 0, 1 and 2"."""
    words = list(_WORD.finditer(line))
    numbers = line[words[-1].end() if words else 0 :].partition(":")[2]
    return numbers if re.search(r"\d", numbers) else line


def _full_range_pattern(k: int) -> re.Pattern[str]:
    """The prompt's own range: "knowledge 0-4", "numbered from 0 to 4", "(0-4)"."""
    span = rf"0\s*(?:-|–|—|to|through)\s*{k - 1}"
    return re.compile(rf"(?:\b(?:{_NOUN}|numbered|from)\s+{span}\b|[(\[]\s*{span}\s*[)\]])", re.IGNORECASE)


def _spelled_out(match: re.Match[str], k: int) -> str:
    first, last = int(match.group(1)), int(match.group(2))
    if first <= last < k:
        return " " + ", ".join(str(number) for number in range(first, last + 1)) + " "
    return " "


def _within(numbers: Iterable[int], k: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(number for number in numbers if 0 <= number < k))
