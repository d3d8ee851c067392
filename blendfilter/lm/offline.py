"""The `offline` reader: no model, no key, no network, and always the same reply to the same prompt.

It shows the pipeline, not its quality. It reads the rendered prompt (docs/prompts.md shows the shapes): the last line,
the cue, says what is asked, and above it stand the question and its passages. Of the passages it takes the sentences
that share most with the question, and of these one span, by the kind of question. It raises on no text and takes time
linear in the prompt's length.

Only line starts count, and a passage is one line, so "Answer:" inside a passage never looks like a part of the prompt.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, takewhile
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from blendfilter.dspy_surface import lm15
from blendfilter.lm.journaled import prompt_of, text_of
from blendfilter.text import choices, sentences

NOTHING = "(nothing relevant was found)"
UNKNOWN = "unknown"
NEEDED = "Are follow-up questions needed here:"
INTERMEDIATE = "Intermediate answer:"
FINAL = "So the final answer is:"
SUPPORTS, REFUTES, UNDECIDED = "SUPPORTS", "REFUTES", "NOT ENOUGH INFO"


def read(prompt: str) -> str:
    """The reply to a rendered prompt (or to chat messages joined by blank lines).

    >>> read("Knowledge:\\nOrm Pier | Orm Pier opened in 1871.\\nQuestion: When did Orm Pier open?\\nAnswer:")
    '1871'
    >>> read("Question: When did Orm Pier open?\\nTopic:")
    'Orm Pier'
    """
    lines = prompt.rstrip().split("\n")
    if re.match(r"Respond with (?:the corresponding output fields|a JSON object)\b", lines[-1]):
        return _fields(lines)
    sheet = take_apart(lines)
    if sheet.cue in (NEEDED, INTERMEDIATE) or re.fullmatch(r"Thought \d{1,3}:", sheet.cue):
        return _hop(sheet)
    if sheet.cue.endswith("Finish["):
        return f"{_settled(sheet)}]"
    return _REPLIES.get(sheet.cue.partition(":")[0], _answer)(sheet)


class OfflineEngine:
    """The reader as an engine. Tokens are counted as words between white space."""

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The reader's reply; never fails."""
        text = text_of(prompt_of(request))
        reply = read(text)
        return lm15.Response(
            id=None,
            model="offline",
            message=lm15.Message(role="assistant", parts=(lm15.TextPart(text=reply),)),
            finish_reason="stop",
            usage=lm15.Usage(input_tokens=len(text.split()), output_tokens=len(reply.split())),
        )


# ---- prompts

_BLOCK = re.compile(
    r"Question:|Context:|Title:|Knowledge:\s*$|(?:knowledge|sentence|passage) \d+:"
)
_LISTED = re.compile(r"(?:(?:knowledge|sentence|passage) \d{1,6}:|Passage:|\[\d{1,6}\] )(.*)")
_SEARCHED = re.compile(r"(?:Follow-up:|Action \d{1,3}: Search\[)(.*?)\]?\s*$")
_FIRST_TURN = re.compile(rf"{NEEDED}|Thought 1:")
_TURN = re.compile(
    rf"{INTERMEDIATE}|{FINAL}|Follow-up:|Knowledge:|(?:Thought|Action|Observation) \d{{1,3}}:"
)


@dataclass(frozen=True, slots=True)
class PromptSheet:
    """The last block of a prompt. `cue` is its last line, without the reminder of the form in parentheses.

    `instructions` are the lines above the first block and those between the question and the cue. `follow_ups` are
    those of a multi-hop transcript.
    """

    cue: str
    question: str
    passages: tuple[str, ...] = ()
    context: str = ""
    instructions: str = ""
    follow_ups: tuple[str, ...] = ()

    @property
    def reading(self) -> PassageReading:
        """What the passages say to the question."""
        return read_passages(self.question, self.passages)

    @property
    def wants_yes_or_no(self) -> bool:
        return self.states(r"(?i)\b(?:always|only|write)\b[^.\n]*\byes or no\b")

    @property
    def wants_sentences(self) -> bool:
        return self.states(r"\bplain sentences?\b")

    def states(self, pattern: str) -> bool:
        """Whether the instructions hold `pattern`."""
        return re.search(pattern, self.instructions) is not None


def take_apart(lines: Sequence[str]) -> PromptSheet:
    """The parts of the last block of a prompt, given by its lines.

    >>> take_apart(["Knowledge:", "Ormskerry | A harbour town.", "Question: What is Ormskerry?", "Answer:"])
    PromptSheet(cue='Answer:', question='What is Ormskerry?', passages=('Ormskerry | A harbour town.',), ...)
    """
    *above, cue = lines
    cue = re.sub(r" \([^()]{1,80}\):$", ":", cue.strip())
    hops = re.match(rf"{NEEDED}|{INTERMEDIATE}|{FINAL}|(?:Thought|Action) \d{{1,3}}:", cue)
    mark = "### Instruction:" if cue == "### Response:" else "Question:"
    places = [
        at
        for at, line in enumerate(above)
        if line.startswith(mark) and (not hops or _FIRST_TURN.match(lines[at + 1]))
    ]
    if not places:
        question = next((line.strip() for line in reversed(above) if line.strip()), "")
        return PromptSheet(cue, question, instructions="\n".join(above))
    above, question, below = above[: places[-1]], above[places[-1]], above[places[-1] + 1 :]
    instructions = [*takewhile(lambda line: not _BLOCK.match(line), above)]
    if mark != "Question:":  # the question stands below, each of its options on a line
        options = [*takewhile(re.compile(r"\([A-E]\) ").match, below[1:])]
        question, below = " ".join([*below[:1], *options]), below[1 + len(options) :]
        above = above[:-1]
    passages = _listed([*takewhile(str.strip, reversed(above))][::-1])
    follow_ups: list[str] = []
    if hops:
        turns = [[""]]
        for line in below:
            if _TURN.match(line):
                turns.append([])
            turns[-1].append(line)
        for turn in turns:
            if turn[0].startswith(("Knowledge:", "Observation ")):
                passages += _listed(turn)
            elif match := _SEARCHED.match(turn[0]):
                follow_ups.append(match[1].strip())
        passages = [*dict.fromkeys(passages)]
    else:
        passages = passages or _listed(below)
        instructions += [line for line in below if not _LISTED.match(line)]
    _, found, context = "\n".join(["", *above]).rpartition("\nContext:")
    stated = [line for line in context.split("\n") if found and not _LISTED.match(line)]
    return PromptSheet(
        cue,
        question.removeprefix("Question:").strip(),
        tuple(passages),
        "\n".join(stated).strip(),
        "\n".join(instructions),
        tuple(follow_ups),
    )


def _listed(lines: Sequence[str]) -> list[str]:
    """The passages of a block: all lines under ``Knowledge:``, or the numbered ones, with the titles above them.

    >>> _listed(["Title: Orm Pier", "sentence 0: It opened in 1871.", "sentence 1: It burned."])
    ['Orm Pier | It opened in 1871.', 'Orm Pier | It burned.']
    """
    if lines and re.match(r"(?:Knowledge|Observation \d{1,3}):\s*$", lines[0]):
        return [line.strip() for line in lines[1:] if line.strip() not in ("", NOTHING)]
    found: list[str] = []
    title = ""
    for line in lines:
        if line.startswith("Title:"):
            title = line.removeprefix("Title:").replace("(no title)", "").strip()
        elif match := _LISTED.match(line):
            text = match[1].strip()
            found.append(f"{title} | {text}" if title else text)
    return found


# ---- words

_WORD = re.compile(r"\w+")
_STOP_WORDS = frozenset(
    _WORD.findall(
        "a an and are as at be been being both but by can could did do does for from had has have he her hers him his "
        "how if in into is it its many may might much no nor not of on or other same shall she should so some such "
        "than that the their them then there these they this those to was were what when where which while who whom "
        "whose why will with would yes you your also one name named called known"
    )
)
_ENDING = re.compile(r"(?<=\w{3})(?:s|(?<=\w{4})(?:ed|ing))$(?<!ss)")
_CAPITAL = r"[^\W\d_a-zß-öø-ÿ][\w’'&.-]*"
_NAME = re.compile(
    rf"{_CAPITAL}(?:(?: (?:of|the|de|la|le|van|von|for|in|on|at|&)){{0,2}} {_CAPITAL}){{0,9}}"
)
_MONTH = (
    "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
)
_DATE = re.compile(
    rf"\b(?:\d{{1,2}} {_MONTH},? \d{{3,4}}|{_MONTH} (?:\d{{1,2}}, ?)?\d{{3,4}}|1\d{{3}}|20\d{{2}})\b"
)
_NUMERAL = (
    "(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen"
    "|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred)"
)
_NUMBER = re.compile(
    rf"\b(?:\d[\d,]*(?:\.\d+)?|{_NUMERAL}(?:-{_NUMERAL})?)(?: (?:hundred|thousand|million|billion|percent))?\b",
    re.IGNORECASE,
)
_NEGATION = re.compile(
    r"\b(?:not|never|no|neither|nor|without|unable|cannot)\b|n['’]t\b", re.IGNORECASE
)
_MOST = 60  # matches looked at in one text, so that a text of any length is read at linear cost
_SENTENCES = 3


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """The form under which words are compared: their first six letters without an ending.

    >>> stem("directed") == stem("Director")
    True
    """
    return _ENDING.sub("", word.lower())[:6]


def stems(text: str) -> frozenset[str]:
    """The stems of the content words of `text`.

    >>> sorted(stems("Who directed the two films?"))
    ['direct', 'film', 'two']
    """
    return frozenset(
        stem(word) for word in _WORD.findall(text.lower()) if word not in _STOP_WORDS
    )


def _content_words(text: str) -> list[str]:
    words = (word for word in re.findall(r"[\w’'-]+", text) if stems(word))
    return [*islice(dict.fromkeys(words), 12)]


def _names(text: str) -> Iterator[tuple[str, int]]:
    """The capitalised runs of a text without leading stop words, and where they start."""
    for match in islice(_NAME.finditer(text), _MOST):
        words = match[0].split(" ")
        while words and words[0].lower().strip(".,'’") in _STOP_WORDS:
            words.pop(0)
        name = " ".join(words)
        if clean := name.rstrip(" .,'’&-"):
            yield clean.removesuffix("'s").removesuffix("’s"), match.end() - len(name)


# ---- what the passages say


class ReadSentence(NamedTuple):
    """A sentence, the title of its passage, and the stems of its words and of the title."""

    title: str
    text: str
    own: frozenset[str]
    titled: frozenset[str]

    @property
    def line(self) -> str:
        """The sentence, with the name of its subject."""
        text = " ".join(self.text.split())
        text += "" if text.endswith((".", "!", "?", '."')) else "."
        return f"{self.title}: {text}" if self.title and self.title not in text else text


class PassageReading(NamedTuple):
    """The chosen sentences, the numbers of the passages that bear on the question, and the weights of its words.

    `covered` are the stems of the chosen sentences; `share` is the share of the question's words among them.
    """

    chosen: tuple[ReadSentence, ...]
    relevant: tuple[int, ...]
    weights: dict[str, float]
    covered: frozenset[str]
    share: float


def _title_and_text(line: str) -> tuple[str, str]:
    """A passage's title, without the bracket that tells it from its namesakes, and its text."""
    title, bar, text = line.partition(" | ")
    if not bar:
        return "", line
    bare = title.rpartition(" (")[0] if title.endswith(")") else title
    return bare.strip(), text


@lru_cache(maxsize=4096)
def _sentences(line: str) -> tuple[ReadSentence, ...]:
    title, text = _title_and_text(line)
    titled = stems(title)
    return tuple(
        ReadSentence(title, part.text, stems(part.text), titled) for part in sentences(text)
    )


@lru_cache(maxsize=64)
def read_passages(question: str, lines: tuple[str, ...]) -> PassageReading:
    """Choose the sentence that shares most with the question, then those that go on from there.

    A word weighs the more, the fewer sentences have it. After a sentence is chosen, its words weigh little, and
    sentences about a title that it names weigh more. Relevant are the passages with a chosen sentence, and those with
    one that is worth nearly as much as the best.
    """
    listed = [(at, one) for at, line in enumerate(lines) for one in _sentences(line)]
    wanted = stems(question)
    counts = Counter(word for _, one in listed for word in wanted & (one.own | one.titled))
    weights = {
        word: math.log(1 + len(listed) / count) for word, count in sorted(counts.items())
    }
    covered: frozenset[str] = frozenset()

    def worth(sentence: ReadSentence) -> float:
        words = wanted & (sentence.own | sentence.titled)
        # the exact sum, which does not depend on the order of a set
        return math.fsum(weights[word] * (0.15 if word in covered else 1.0) for word in words)

    values = [worth(one) for _, one in listed]
    scores = [0.0] * len(lines)
    for (at, _), value in zip(listed, values, strict=True):
        scores[at] = max(scores[at], value)
    best = max(values, default=0.0)
    chosen: list[tuple[int, ReadSentence]] = []
    while best > 0.0 and len(chosen) < _SENTENCES:
        at = max(range(len(values)), key=values.__getitem__)
        if values[at] <= 0.45 * best:
            break
        chosen.append(listed[at])
        last = listed[at][1]
        covered |= last.own | last.titled
        for place, (number, other) in enumerate(listed):
            values[place] = worth(other)
            if other.titled and other.titled <= last.own and other.titled != last.titled:
                values[place] += 0.3 * best
            if (number, other) in chosen:
                values[place] = -1.0
    having = {at for at, _ in chosen}
    floor = 0.75 * max(scores, default=0.0)
    relevant = (at for at, value in enumerate(scores) if at in having or 0.0 < floor <= value)
    return PassageReading(
        tuple(one for _, one in chosen),
        tuple(relevant),
        weights,
        covered,
        len(wanted & covered) / max(1, len(wanted)),
    )


# ---- answers

_KINDS = {
    r"(?i)\bwhen\b|\b(?:what|which) (?:year|date|month|day|decade)\b|\bdate of\b": _DATE,
    r"(?i)\bhow (?:many|much|old|long|tall|far|large|big|high|heavy)\b|\b(?:population|number) of\b": _NUMBER,
}
"""Questions for a date or a number, and what such an answer looks like."""
_AUXILIARY = re.compile(
    r"[ \"'“]*(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should|may|might|must)\b",
    re.IGNORECASE,
)
_EITHER = re.compile(r"\w,? or (?:in |the |an? )?[A-Z\"“]")
_COMPARES = re.compile(
    r"\b(?:(first|earlier|earliest|older|oldest|before|already)|(later|latest|younger|youngest|last|after|newer)"
    r"|(less|fewer|smaller|smallest|shorter|shortest|lower|lowest)"
    r"|(more|most|(?:larg|bigg|tall|long|high|great|farth|deep|heavi)(?:er|est)))\b",
    re.IGNORECASE,
)
"""Words that ask for the earlier, the later, the smaller or the larger one."""
_YEAR = re.compile(r"\b[12]\d{3}\b")
_SIZE = re.compile(r"\b(?![12]\d{3}\b)\d[\d,]{0,12}")


def _answer_to(sheet: PromptSheet) -> str:
    """A short answer: yes or no, one of two things compared, a span of the passages, or "unknown"."""
    question = sheet.question
    verdict = _AUXILIARY.match(question) and not _EITHER.search(question)
    if sheet.wants_yes_or_no or verdict:
        return "yes" if _holds(sheet) else "no"
    titles, first = _compared(sheet)
    if first is not None:
        return titles[0 if first else 1]
    return _span(sheet) or UNKNOWN


def _holds(sheet: PromptSheet) -> bool:
    """Whether the comparison that the question makes holds, or most of its words are found."""
    _, first = _compared(sheet)
    return sheet.reading.share >= 0.6 if first is None else first


def _compared(sheet: PromptSheet) -> tuple[list[str], bool | None]:
    """The titles that the question names, in its order, and whether the first has the year or size that is asked for.

    None where they cannot be compared.
    """
    question = sheet.question.lower()
    named = [
        part
        for part in map(_title_and_text, sheet.passages)
        if part[0] and part[0].lower() in question
    ]
    named.sort(key=lambda part: question.find(part[0].lower()))
    titles = [title for title, _ in named]
    if (compares := _COMPARES.search(question)) is None:
        return titles, None
    earlier, later, smaller, _ = compares.groups()
    pattern = _YEAR if earlier or later else _SIZE
    found = [match for _, text in named[:2] if (match := pattern.search(text))]
    if len(found) < 2:
        return titles, None
    one, other = (int(match[0].replace(",", "")) for match in found)
    return titles, None if one == other else (one < other) == bool(earlier or smaller)


def _span(sheet: PromptSheet) -> str:
    """The date, number or name of the chosen sentences that stands nearest to the question's words."""
    reading, known = sheet.reading, stems(sheet.question)
    pattern = next(
        (like for asks, like in _KINDS.items() if re.search(asks, sheet.question)), None
    )
    values = {"": 0.0}
    for sentence in reading.chosen:
        telling = reading.weights.keys() - sentence.titled
        places = [
            (match.start(), reading.weights[stem(match[0])])
            for match in _WORD.finditer(sentence.text)
            if stem(match[0]) in telling
        ][:_MOST]
        spans = _names(sentence.text)
        if pattern:
            matches = islice(pattern.finditer(sentence.text), _MOST)
            spans = ((match[0], match.start()) for match in matches)
        for text, start in spans:
            own = stems(text)
            if own <= known:
                continue
            value = 1.0
            for at, weight in places:
                value += weight * (1.0 if at < start else 0.8) / (1 + abs(start - at) / 12)
            # a title that was read about is probably a step of the chain
            if any(own == other.titled for other in reading.chosen):
                value *= 0.5
            values[text] = max(values.get(text, 0.0), value)
    return max(values, key=values.__getitem__)


# ---- replies


def _settled(sheet: PromptSheet) -> str:
    """The answer in the shape that the prompt wants: a letter, a label, sentences, yes or no, or a span."""
    choice, reading = choices(sheet.question), sheet.reading
    if choice.options:
        found = read_passages(choice.stem, sheet.passages).covered
        return max(choice.options, key=lambda option: len(stems(option[1]) & found))[0]
    if sheet.states(r"(?s)claim.*\btrue\b.{1,60}\bfalse\b"):
        return str(_supported(sheet)).lower()
    if sheet.states(rf"(?s)\b{SUPPORTS}\b.{{1,60}}\b{REFUTES}\b"):
        if sheet.states(UNDECIDED) and reading.share < 0.4:
            return UNDECIDED
        return SUPPORTS if _supported(sheet) else REFUTES
    if sheet.wants_sentences:
        return (
            reading.chosen[0].line if reading.chosen else "Nothing given here tells about this."
        )
    return _answer_to(sheet)


def _supported(sheet: PromptSheet) -> bool:
    """Whether the sentences have most words of the claim, its names and numbers all, and deny nothing."""
    words = _WORD.findall(sheet.question)[1:]
    telling = stems(" ".join(word for word in words if word[0].isupper() or word[0].isdigit()))
    return telling <= sheet.reading.covered and _holds(sheet)


def _reasoning(sheet: PromptSheet) -> str:
    lines = " ".join(sentence.line for sentence in sheet.reading.chosen)
    return lines or f"Nothing given here tells about this: {sheet.question}"


def _think(sheet: PromptSheet) -> str:
    return f"{_reasoning(sheet)}\nSo the answer is {_settled(sheet).removesuffix('.')}."


def _answer(sheet: PromptSheet) -> str:
    """What the context concludes, else an answer from the passages or the context's own lines."""
    lines = sheet.passages or tuple(filter(None, map(str.strip, sheet.context.split("\n"))))
    answer = _concluded(sheet.context) or _settled(replace(sheet, passages=lines))
    if sheet.wants_sentences:
        return answer if answer.endswith((".", "!", "?")) else f"{answer}."
    verdict = re.match(r"(?:yes|no)\b", answer, re.IGNORECASE)
    if verdict or sheet.wants_yes_or_no:
        return verdict[0].capitalize() if verdict else "No"
    return answer[:1] if choices(sheet.question).options else answer


def _concluded(reasoning: str) -> str:
    """What follows the last "So the answer is" of a chain of reasoning, "" if it concludes nothing."""
    shape = r"(?m)^(?:So the (?:final )?answer is:? ?|Action \d{1,3}: Finish\[)(.*)$"
    found = re.findall(shape, reasoning)
    return found[-1].strip().rstrip(".]") if found else ""


def _passage(sheet: PromptSheet) -> str:
    """A passage of the question's own words: it names the subject and claims nothing of it."""
    return f"This passage is about {_topic(sheet)}. It brings together {', '.join(_content_words(sheet.question))}."


def _topic(sheet: PromptSheet) -> str:
    """The question's names, at most two, else its first content words."""
    names = [*dict.fromkeys(name[:120] for name, _ in _names(sheet.question))][:2]
    return " and ".join(names) or " ".join(_content_words(sheet.question)[:4]) or UNKNOWN


def _relevance(sheet: PromptSheet) -> str:
    """A line for each passage: relevant or not, and by which words."""
    rows = []
    for number, line in enumerate(sheet.passages):
        own = stems(line)
        shared = [word for word in _content_words(sheet.question) if stems(word) & own]
        verdict = "relevant" if number in sheet.reading.relevant else "irrelevant"
        why = f"shares {', '.join(shared) or 'no word'} with the question"
        rows.append(f"{number}: {verdict} - {why}")
    return "\n".join(rows) or "There is no passage to judge."


def _ids(sheet: PromptSheet) -> str:
    """The numbers that the check's reply calls relevant, or by overlap if it names none."""
    offers_none = sheet.states(r"(?i)\bnone\b")
    judged = re.findall(
        r"(?im)^\W{0,8}(?:knowledge|passage)?\W{0,3}(\d{1,6})\b(.{0,60})", sheet.context
    )
    denied = re.compile(r"(?i)\b(?:not|irrelevant|unrelated|no)\b")
    chosen = {
        int(number)
        for number, verdict in judged
        if not denied.search(verdict.partition(" - ")[0])
    }
    kept: Sequence[int] = [at for at in range(len(sheet.passages)) if at in chosen]
    if not kept and not (judged and offers_none):
        kept = sheet.reading.relevant
    return ", ".join(map(str, kept)) or ("none" if offers_none or not sheet.passages else "0")


def _judgement(sheet: PromptSheet) -> str:
    check = _relevance(sheet)
    return f"{check}\nIds: {_ids(replace(sheet, context=check))}"


def _context(sheet: PromptSheet) -> str:
    """The sentences that bear on the question, word for word."""
    return " ".join(sentence.text for sentence in sheet.reading.chosen) or UNKNOWN


# ---- multi-hop transcripts: Self-Ask and ReAct

_HOPS = 4  # follow-ups after which it answers: one less than a method allows by default


def _hop(sheet: PromptSheet) -> str:
    """What goes on after a cue: what was found, and the next follow-up or the answer."""
    number = re.match(r"Thought (\d+):", sheet.cue)
    follow_up = _follow_up(sheet)
    answer = "" if follow_up else _settled(sheet)
    if number:
        act = f"Search[{follow_up}]" if follow_up else f"Finish[{answer}]"
        step = f"Action {number[1]}: {act}"
    else:
        step = f"Follow-up: {follow_up}" if follow_up else f"{FINAL} {answer}"
    if sheet.follow_ups:
        return f"{_reasoning(replace(sheet, question=sheet.follow_ups[-1]))}\n{step}"
    return f"{'Nothing has been looked up yet.' if number else 'Yes.'}\n{step}"


def _follow_up(sheet: PromptSheet) -> str:
    """A question about a name, of the question or of the best sentences, that has no passage yet; "" without one."""
    if len(sheet.follow_ups) >= _HOPS:
        return ""
    titles = [_title_and_text(line)[0] for line in sheet.passages]
    known = stems(" ".join([*titles, *sheet.follow_ups]))
    chosen = [sentence.text for sentence in sheet.reading.chosen[:2]]
    for name, _ in _names(" | ".join([sheet.question, *chosen])):
        if not stems(name) <= known:
            words = [word for word in _content_words(sheet.question) if word.islower()][:6]
            regarding = f" regarding {' '.join(words)}" if words else ""
            return f"What is known about {name[:120]}{regarding}?"
    return "" if sheet.follow_ups else sheet.question or "What is asked?"


# ---- CDIT's judge: is a passage consistent with a question?

_OPPOSITES = (
    "on/off, open/close, won win/lost lose, up/down, bought buy/sold sell, arrive/left leave depart, "
    "begin began start/end stop, born/died, rise rose/fall fell, accept/refuse reject, build built/destroy, "
    "before/after, always/never, old/new, first/last, north/south, east/west"
)


def _opposed(question: str, sentence: str) -> tuple[str, str] | None:
    """Words of question and sentence that say opposite things, None if there are none."""
    wanted, given = (set(map(stem, _WORD.findall(text))) for text in (question, sentence))
    for pair in _OPPOSITES.split(", "):
        sides = [side.split() for side in pair.split("/")]
        for left, right in (sides, sides[::-1]):
            mine = [word for word in left if stem(word) in wanted - given]
            its = [word for word in right if stem(word) in given]
            if mine and its:
                return mine[0], its[0]
    denied = [bool(_NEGATION.search(text)) for text in (question, sentence)]
    if denied[0] == denied[1]:
        return None
    return ("not", "-") if denied[0] else ("-", "not")


def _consistency(sheet: PromptSheet) -> str:
    """One word, or a line a component, a reason and a verdict. It sees opposites, negations and another subject.

    >>> print(read("Passage: Radio | Mary turned off the radio.\\nQuestion: Who turned on the radio?\\nComparison:"))
    subject | - | - | unsaid
    predicate | on | off | unlike
    object | - | - | unsaid
    Reason: Another predicate.
    Verdict: False
    """
    if not sheet.passages:  # the judge of answers has the same cue
        return _answer(sheet)
    title, text = _title_and_text(sheet.passages[-1])
    parts = [part.text for part in sentences(text)][:_MOST] or [text]
    wanted = stems(sheet.question)
    nearest = max(parts, key=lambda part: len(stems(part) & wanted))
    opposed = _opposed(sheet.question, nearest)
    if len(wanted & stems(f"{title} {nearest}")) < 0.3 * len(wanted):
        opposed = opposed or ("-", "something else")
    if sheet.cue == "Verdict:":
        return str(opposed is None)
    rules = re.findall(r"(?m)^- .*Components: (.*)$", sheet.instructions)
    listed = re.sub(r"\([^()]*\)", "", ",".join(rules)) or "subject, predicate, object"
    names = dict.fromkeys(re.findall(r"[\w-]+", listed))
    compared = dict.fromkeys(names, "- | - | unsaid")
    if opposed and "predicate" in compared:
        compared["predicate"] = f"{' | '.join(opposed)} | unlike"
    rows = [f"{name} | {row}" for name, row in compared.items()]
    reason = "Another predicate." if opposed else "No difference was found."
    return "\n".join([*rows, f"Reason: {reason}", f"Verdict: {opposed is None}"])


_REPLIES: dict[str, Callable[[PromptSheet], str]] = {
    "Let's think step by step.": _think, "Passage": _passage, "Topic": _topic, "Relevance": _relevance, "Ids": _ids,
    "Judgement": _judgement, "Context": _context,
    "Relevant": lambda sheet: "Yes" if sheet.reading.share >= 0.3 else "No", "Verdict": _consistency,
    "Comparison": _consistency,
}  # fmt: skip
"""How a prompt is answered, by its cue."""


# ---- prompts of DSPy's own adapters (chat markers, JSON, XML), so that a user's own module runs offline too


def _fields(lines: Sequence[str]) -> str:
    """The reply that fills every requested field by its type, then by its name."""
    text, request = "\n".join(lines[:-1]), lines[-1]
    types = dict(re.findall(r"(?m)^\d{1,3}\. `(\w{1,80})` \((.{1,500}?)\):", text))
    requested = re.findall(r"`(?:\[\[ ## |<)?(\w{1,80})(?: ## \]\]|>)?`", request)
    parts = re.split(r"(?m)^(?:\[\[ ## |<)(\w{1,80})(?: ## \]\]|>)[ \t]*$", text)
    given: dict[str, str] = {}
    current = ""
    for name, part in zip(parts[1::2], parts[2::2], strict=True):
        # a marker that names no declared field belongs to the value that holds it: an agent's trajectory has such
        if name in types or name == "completed":
            current, given[name] = name, ""
        given[current] = given.get(current, "") + part
    inputs = {
        name: part.partition("\n</")[0].strip()
        for name, part in given.items()
        if name not in ("", "completed", *requested)
    }
    asking = ("question", "query", "claim", "prompt", "request", "input", "statement", "text")
    questions = [inputs[name] for word in asking for name in inputs if word in name.lower()]
    question = [*questions, *reversed(inputs.values()), ""][0]
    passages = "\n".join(part for part in inputs.values() if part != question).split("\n")
    sheet = PromptSheet(
        "",
        question,
        tuple(re.sub(r"^\[\d{1,6}\] «(.*)»$", r"\1", line.strip()) for line in passages),
        [*(value for name, value in inputs.items() if "instruction" in name), question][0],
    )
    # of an agent's tools the first, once: it takes one step only
    takes = (
        r"(?m)^[ \t]*\(\d{1,3}\) [^\s.,]{1,80}[.,].{0,2000}?It takes arguments \{'(\w{1,80})'"
    )
    tool = None if "[[ ## observation_" in text else re.search(takes, text)
    values = {
        name: _value(f"{types.get(name, 'str')} {name}", sheet, tool and tool[1])
        for name in requested
        if name != "completed"
    }
    if "JSON object" in request[:40]:
        return json.dumps(values, ensure_ascii=False)
    if "XML tags" in request:
        return "\n".join(
            f"<{name}>\n{_xml(value)}\n</{name}>" for name, value in values.items()
        )
    filled = [f"[[ ## {name} ## ]]\n{_as_text(value)}" for name, value in values.items()]
    return "\n\n".join([*filled, "[[ ## completed ## ]]"])


def _value(field: str, sheet: PromptSheet, argument: str | None) -> Any:
    """A value for a field, by its type and name, from the passages if the type allows it.

    `argument` is that of the tool to call; the sheet's context is the instruction that there is.
    """
    if field.startswith("bool"):
        return _answer_to(replace(sheet, instructions="only yes or no")) == "yes"
    answer = _answer_to(sheet)
    options = re.findall(r"'([^']{0,200})'", field) if field.startswith("Literal") else []
    if "finish" in options and len(options) > 1:
        return options[0] if argument else "finish"
    if options:
        near = stems(f"{sheet.question} {answer}")
        return max(options, key=lambda option: len(stems(option) & near))
    number = re.search(r"\d{1,15}", answer)
    values = {
        "int|float": int(number[0]) if number else 0,
        r"list\[int": sheet.reading.relevant,
        "list": [answer],
        "dict": {argument: sheet.question} if argument else {},
        ".*(?:reason|thought)": _reasoning(sheet),
        ".*query": sheet.question,
        ".*instruction": sheet.context,
        "": answer,
    }
    return next(value for like, value in values.items() if re.match(like, field.lower()))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _xml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "".join(f"<item>{escape(str(item))}</item>" for item in value)
    return escape(_as_text(value))
