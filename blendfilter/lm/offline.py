"""The `offline` reader: no model, no key, no network; the same reply to the same prompt, always.

It shows the pipeline, not its quality. It truly reads the rendered prompt (docs/prompts.md has the shapes): the last
line says what is asked (the cue), the block above it has question, knowledge and context, and the reply has the shape
that this kind of prompt asks for. It raises on no text and takes time linear in its length.

Only line starts count, and a passage is one line ``Title | text``, so words like "Answer:" inside a passage never look
like a part of the prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from typing import Any
from xml.sax.saxutils import escape

from blendfilter.dspy_surface import lm15
from blendfilter.lm.journaled import prompt_of
from blendfilter.lm.offline_reading import (
    STOP_WORDS,
    UNKNOWN,
    WORD,
    ReadSentence,
    answer_to,
    bare_title,
    kind_of,
    names_in,
    read_passages,
    split_line,
    stem,
    stems,
    yes_or_no,
)
from blendfilter.text import Choices, choices, sentences

NOTHING = "(nothing relevant was found)"
THINK, RESPONSE = "Let's think step by step.", "### Response:"
NEEDED, INTERMEDIATE, FINAL = (
    "Are follow-up questions needed here:",
    "Intermediate answer:",
    "So the final answer is:",
)
VERDICT, COMPARISON, RELEVANT = "Verdict:", "Comparison:", "Relevant:"
SUPPORTS, REFUTES, UNDECIDED = "SUPPORTS", "REFUTES", "NOT ENOUGH INFO"
_OPENS_A_BLOCK = re.compile(
    r"Question:|Context:|Title:|Knowledge:\s*$|(?:knowledge|sentence|passage) \d+:"
)
_REMINDER = re.compile(r" \([^()]{1,80}\):$")
"""What a cue says of the form of its reply: ``Ids (numbers only):``."""
_NUMBERED = re.compile(r"(?:knowledge|sentence|passage) (\d{1,6}):(.*)")
_TITLE, _NO_TITLE = "Title:", "(no title)"


def read(prompt: str) -> str:
    """The reply to a rendered prompt (or to chat messages joined by blank lines).

    >>> read("Knowledge:\\nOrm Pier | Orm Pier opened in 1871.\\nQuestion: When did Orm Pier open?\\nAnswer:")
    '1871'
    >>> read("Question: When did Orm Pier open?\\nTopic:")
    'Orm Pier'
    """
    lines = prompt.rstrip().split("\n")
    lines[-1] = cue = _REMINDER.sub(":", lines[-1].strip())
    if _RESPOND.match(cue):
        return _fields(lines)
    if cue in (VERDICT, COMPARISON):
        opens = [line.partition(":")[0] for line in lines[-4:-1]]
        if len(opens) > 2 and {"Passage", "Question"} == set(opens[:2]):
            del lines[-2]  # the line that a second request adds
        if {"Passage", "Question"} in (set(opens[:2]), set(opens[-2:])):
            return _consistency(lines)
    if cue == RELEVANT:
        return _relevant_alone(lines)
    if cue in (NEEDED, INTERMEDIATE, FINAL) or _THOUGHT.fullmatch(cue) or _FINISH.fullmatch(cue):
        return _hop(_transcript(lines))
    sheet = _response_sheet(lines) if cue == RESPONSE else take_apart(lines)
    primed = _PRIMED.match(cue)
    return _REPLIES.get(primed[1] if primed else cue, _answer)(sheet)


class OfflineEngine:
    """The reader as an engine. Tokens are counted as words between white space."""

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The reader's reply; never fails."""
        prompt = prompt_of(request)
        text = prompt if isinstance(prompt, str) else "\n\n".join(message for _, message in prompt)
        reply = read(text)
        return lm15.Response(
            id=None,
            model="offline",
            message=lm15.Message(role="assistant", parts=(lm15.TextPart(text=reply),)),
            finish_reason="stop",
            usage=lm15.Usage(input_tokens=len(text.split()), output_tokens=len(reply.split())),
        )


# ---- prompts


@dataclass(frozen=True, slots=True)
class PromptSheet:
    """The last block of a prompt. `cue` is its last line; `instructions` stand above the first block and above the cue.

    `follow_ups` are those of a multi-hop transcript.
    """

    cue: str
    question: str
    passages: tuple[str, ...] = ()
    context: str = ""
    instructions: str = ""
    follow_ups: tuple[str, ...] = ()

    @property
    def offers_none(self) -> bool:
        return bool(re.search(r"\bnone\b", self.instructions, re.IGNORECASE))

    @property
    def wants_yes_or_no(self) -> bool:
        """Whether a sentence of the instructions allows nothing else."""
        parts = re.split(r"\n|(?<=[.!?]) ", self.instructions.lower())
        only = [
            part
            for part in parts
            if re.search(r"\b(?:only|just|nothing else|either|always|must)\b", part)
        ]
        one = [part for part in only if re.search(r"\byes\W{1,3}(?:or\W{1,3})?no\b", part)]
        return any(
            not re.search(r"\b(?:names?|phrases?|dates?|numbers?|words)\b", part) for part in one
        )

    @property
    def wants_truth(self) -> bool:
        """Whether the question is a claim, true or false."""
        return "claim" in self.instructions and bool(
            re.search(r"(?s)\btrue\b.{1,60}\bfalse\b", self.instructions)
        )

    @property
    def wants_sentences(self) -> bool:
        return bool(re.search(r"\bplain sentences?\b", self.instructions))


def take_apart(lines: Sequence[str]) -> PromptSheet:
    """The parts of the last block of a prompt, given by its lines.

    >>> take_apart(["Knowledge:", "Ormskerry | A harbour town.", "Question: What is Ormskerry?", "Answer:"])
    PromptSheet(cue='Answer:', question='What is Ormskerry?', passages=('Ormskerry | A harbour town.',), ...)
    """
    *above, cue = lines
    cue = _REMINDER.sub(":", cue.strip())
    at = _last(above, "Question:")
    if at < 0:
        question = next((line.strip() for line in reversed(above) if line.strip()), "")
        return PromptSheet(cue, question, instructions="\n".join(above))
    passages = _knowledge(above, at) or _numbered(above[:at])
    first = at - len(passages)
    below = above[at + 1 :]
    if not passages:  # the papers' order: the question before what is numbered
        passages = [match[2] for match in map(_NUMBERED.match, below) if match]
        below = [line for line in below if not _NUMBERED.match(line)]
    begin = _last(above[:first], "Context:")
    context = "\n".join(above[begin:first]).removeprefix("Context:").strip() if begin >= 0 else ""
    instructions = "\n".join([_opening(above), *below])
    question = above[at].removeprefix("Question:").strip()
    return PromptSheet(
        cue, question, tuple(line.strip() for line in passages), context, instructions
    )


def _last(lines: Sequence[str], opening: str) -> int:
    return next((i for i in range(len(lines) - 1, -1, -1) if lines[i].startswith(opening)), -1)


def _knowledge(lines: Sequence[str], end: int) -> list[str]:
    """The lines under ``Knowledge:`` above `end`."""
    block = list(takewhile(str.strip, reversed(lines[:end])))[::-1]
    found = block[1:] if block and block[0].rstrip() == "Knowledge:" else []
    return [] if found == [NOTHING] else found


def _opening(lines: Sequence[str]) -> str:
    return "\n".join(takewhile(lambda line: not _OPENS_A_BLOCK.match(line), lines))


def _numbered(lines: Sequence[str]) -> list[str]:
    """The lines ``knowledge N: …`` at the end, up to the one with the number 0; a title stands once, above its lines.

    >>> _numbered(["Title: Orm Pier", "sentence 0: It opened in 1871.", "sentence 1: It burned."])
    ['Orm Pier | It opened in 1871.', 'Orm Pier | It burned.']
    """
    found: list[str] = []
    title = ""
    for line in [
        *takewhile(lambda line: line.startswith(_TITLE) or _NUMBERED.match(line), reversed(lines))
    ][::-1]:
        if (match := _NUMBERED.match(line)) is None:
            named = line.removeprefix(_TITLE).strip()
            title = "" if named == _NO_TITLE else f"{named} | "
            continue
        if int(match[1]) == 0:
            found = []
        found.append(f"{title}{match[2].strip()}")
    return found


def _response_sheet(lines: Sequence[str]) -> PromptSheet:
    """The parts of a prompt with background and instruction; options belong to the question."""
    at = max(_last(lines, "### Instruction:"), 0)
    background = max(_last(lines[:at], "### Background:"), 0)
    marks = ((line, re.match(r"\[\d{1,6}\] ", line)) for line in lines[background:at])
    passages = tuple(line[mark.end() :].strip() for line, mark in marks if mark)
    own = [line.strip() for line in lines[at + 1 : -1]]
    options = next(
        (i for i, line in enumerate(own) if i and not re.match(r"\([A-E]\) ", line)), len(own)
    )
    return PromptSheet(
        RESPONSE, " ".join(own[:options]).strip(), passages, "", "\n".join(own[options:])
    )


# ---- what the passages tell


def _reasoning(question: str, lines: tuple[str, ...]) -> str:
    """The chosen sentences in one line, each with the name of its subject."""
    chosen = read_passages(question, lines).chosen
    if not chosen:
        return (
            f"Nothing given here tells about this: {question}"
            if question
            else "There is no question to answer."
        )
    return " ".join(map(_with_subject, chosen))


def _with_subject(sentence: ReadSentence) -> str:
    text = " ".join(sentence.text.split())
    text = text if text.endswith((".", "!", "?", '."')) else text + "."
    name = bare_title(sentence.title)
    return f"{name}: {text}" if name and name not in text else text


def _relevant(question: str, lines: tuple[str, ...]) -> tuple[int, ...]:
    """The numbers of the passages in the chain of reasoning, and of those whose overlap comes close to the best."""
    reading = read_passages(question, lines)
    steps = {sentence.passage for sentence in reading.chosen}
    floor = 0.75 * max(reading.scores, default=0.0)
    return tuple(
        i
        for i, score in enumerate(reading.scores)
        if i in steps or (score > 0.0 and score >= floor)
    )


def _settled(sheet: PromptSheet, lines: tuple[str, ...]) -> str:
    """The answer in the shape that the prompt wants: a letter, a label, sentences, yes or no, or a span."""
    if (choice := choices(sheet.question)).options:
        return _option(choice, lines)
    if sheet.wants_truth:
        return "true" if _label(sheet.question, lines, False) == SUPPORTS else "false"
    if re.search(rf"(?s)\b{SUPPORTS}\b.{{1,60}}\b{REFUTES}\b", sheet.instructions):
        return _label(sheet.question, lines, UNDECIDED in sheet.instructions)
    if sheet.wants_sentences:
        chosen = read_passages(sheet.question, lines).chosen
        own = [sentence for sentence in chosen if sentence.passage == chosen[0].passage]
        return " ".join(map(_with_subject, own[:2])) or "Nothing given here tells about this."
    return answer_to(sheet.question, lines, sheet.wants_yes_or_no)


def _label(claim: str, lines: tuple[str, ...], undecided: bool) -> str:
    """SUPPORTS where the sentences have most words of the claim, its names and numbers all, and deny nothing."""
    reading = read_passages(claim, lines)
    if undecided and reading.share < 0.4:
        return UNDECIDED
    telling = (word for word in WORD.findall(claim)[1:] if word[0].isupper() or word[0].isdigit())
    named = {stem(word) for word in telling if word.lower() not in STOP_WORDS}
    return SUPPORTS if named <= reading.covered and yes_or_no(claim, lines) else REFUTES


def _option(choice: Choices, lines: tuple[str, ...]) -> str:
    """The letter of the option whose own words, and the question's, the best sentence has."""

    def support(option: str) -> tuple[float, float]:
        own = stems(option) - stems(choice.stem) or stems(option)
        shares = (
            (len(own & sentence.words) / max(1, len(own)), sentence.words)
            for sentence in read_passages(f"{choice.stem} {option}", lines).chosen
        )
        return max(
            ((share * len(stems(choice.stem) & words), share) for share, words in shares),
            default=(0.0, 0.0),
        )

    return max(choice.options, key=lambda option: support(option[1]))[0]


# ---- replies

_SOUGHT = {
    "person": "the person", "place": "the place", "time": "the date", "count": "the number",
    "yes_no": "whether this holds", "thing": "the name",
}  # fmt: skip
_JUDGED = re.compile(
    r"^\W{0,8}(?:knowledge|passage)?\W{0,3}(\d{1,6})\b(.*)$", re.IGNORECASE | re.MULTILINE
)
_VERDICT = re.compile(r"\W{0,4}(ir)?relevant -", re.IGNORECASE)
_DENIED = re.compile(r"\b(?:not|irrelevant|unrelated|no)\b", re.IGNORECASE)
_CONCLUDES = re.compile(r"so the (?:final )?answer is:?|\bfinish\[", re.IGNORECASE)


def _think(sheet: PromptSheet) -> str:
    answer = _settled(sheet, sheet.passages)
    answer = answer.removesuffix(".") if sheet.wants_sentences else answer
    return f"{_reasoning(sheet.question, sheet.passages)}\nSo the answer is {answer}."


def _passage(sheet: PromptSheet) -> str:
    """A passage from the question's own words: it names what is asked about and claims nothing of it."""
    words = _content_words(sheet.question)
    if not words:
        return "This passage has no subject."
    subject = _topic(sheet)
    return (
        f"This passage is about {subject}. It brings together {_enumerated(words)}. "
        f"Who knows {subject} can tell {_SOUGHT[kind_of(sheet.question)]} that is asked for."
    )


def _topic(sheet: PromptSheet) -> str:
    """The question's names, at most two; else its first content words."""
    names = list(dict.fromkeys(names_in(sheet.question)))[:2]
    return (
        " and ".join(name[:120] for name in names)
        or " ".join(_content_words(sheet.question)[:4])
        or UNKNOWN
    )


def _content_words(question: str) -> list[str]:
    return list(dict.fromkeys(word for word in re.findall(r"[\w’'-]+", question) if stems(word)))[
        :12
    ]


def _enumerated(words: list[str]) -> str:
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else words[0]


def _relevance(sheet: PromptSheet) -> str:
    """One line for each numbered passage: relevant or not, and by which words."""
    kept = _relevant(sheet.question, sheet.passages)
    steps = {sentence.passage for sentence in read_passages(sheet.question, sheet.passages).chosen}
    wanted = [
        word
        for word in dict.fromkeys(WORD.findall(sheet.question))
        if word.lower() not in STOP_WORDS
    ]
    lines = []
    for number, line in enumerate(sheet.passages):
        words = [word for word in wanted if stem(word) in stems(line)][:8]
        why = f"shares {_enumerated(words) if words else 'no word'} with the question"
        step = ", a step towards the answer" if number in steps else ""
        lines.append(f"{number}: {'relevant' if number in kept else 'irrelevant'} - {why}{step}")
    return "\n".join(lines) or "There is no passage to judge."


def _found_relevant(judged: str) -> bool:
    """The verdict of a line of a judgement: it opens it (``relevant - …``), else it is among its first words."""
    if opened := _VERDICT.match(judged):
        return not opened[1]
    return not _DENIED.search(judged[:60].lstrip(" :").partition(":")[0])


def _ids(sheet: PromptSheet) -> str:
    """The numbers that the check's reply calls relevant; by overlap where it names none."""
    count = len(sheet.passages)
    verdicts = {
        int(match[1]): _found_relevant(match[2])
        for match in _JUDGED.finditer(sheet.context)
        if int(match[1]) < count
    }
    chosen = [number for number in sorted(verdicts) if verdicts[number]]
    if not chosen and not (verdicts and sheet.offers_none):
        reading = read_passages(sheet.question, sheet.passages)
        # without a check, few lines are to be kept: none where the chain covers too little of the question
        if (reading.chosen and reading.share >= 0.3) or sheet.context or not sheet.offers_none:
            chosen = list(_relevant(sheet.question, sheet.passages))
    return ", ".join(map(str, chosen)) or ("none" if sheet.offers_none or not count else "0")


def _relevant_alone(lines: Sequence[str]) -> str:
    """Yes where the one passage above the question has a sentence with enough of the question's words."""
    passage, question = ("", *lines[:-1])[-2:]
    line = passage.removeprefix("Passage:").strip()
    reading = read_passages(question.removeprefix("Question:").strip(), (line,))
    return "Yes" if reading.chosen and reading.share >= 0.3 else "No"


def _judgement(sheet: PromptSheet) -> str:
    return f"{(check := _relevance(sheet))}\nIds: {_ids(replace(sheet, context=check))}"


def _context(sheet: PromptSheet) -> str:
    """The sentences that bear on the question, word for word."""
    return (
        " ".join(each.text for each in read_passages(sheet.question, sheet.passages).chosen)
        or UNKNOWN
    )


def _answer(sheet: PromptSheet) -> str:
    """What the context concludes; else an answer from the context's or the knowledge's own sentences."""
    lines = sheet.passages or tuple(
        line.strip() for line in sheet.context.split("\n") if line.strip()
    )
    answer = _concluded(sheet.context) or _settled(sheet, lines)
    if choices(sheet.question).options:
        return answer.removesuffix(".")
    if sheet.wants_sentences:
        return answer if answer.endswith((".", "!", "?")) else f"{answer}."
    if sheet.wants_truth:
        return answer
    if verdict := re.match(r"(?:yes|no|true|false)\b", answer, re.IGNORECASE):
        return "Yes" if verdict[0].lower() in ("yes", "true") else "No"
    return answer_to(sheet.question, lines, True).capitalize() if sheet.wants_yes_or_no else answer


def _concluded(reasoning: str) -> str:
    """What follows the last "So the answer is" of a chain of reasoning, "" where it concludes nothing."""
    *_, last = None, *_CONCLUDES.finditer(reasoning)
    if last is None:
        return ""
    line = reasoning[last.end() :].strip().partition("\n")[0].strip()
    if last[0].endswith("["):
        return line.removesuffix("]").strip()
    return (
        line[:-1].rstrip()
        if line.endswith(".") and not re.search(r"\b(?:[A-Z]|Jr|Sr)\.$", line)
        else line
    )


_REPLIES: dict[str, Callable[[PromptSheet], str]] = {
    THINK: _think, "Passage:": _passage, "Topic:": _topic, "Relevance:": _relevance, "Ids:": _ids,
    "Judgement:": _judgement, "Context:": _context,
}  # fmt: skip
_PRIMED = re.compile(r"(Topic:) .")
"""A cue behind which the reply's opening stands already."""


# ---- multi-hop transcripts: Self-Ask and ReAct

_THOUGHT, _FINISH = re.compile(r"Thought (\d{1,3}):"), re.compile(r"Action \d{1,3}: Finish\[")
_BEGINS = re.compile(rf"{NEEDED}|Thought 1:")
_FOUND = re.compile(r"(?:Knowledge|Observation \d{1,3}):\s*$")
_FOLLOW_UP = re.compile(r"(?:Follow-up:|Action \d{1,3}: Search\[)(.*?)\]?\s*$")
_TURN = re.compile(rf"{NEEDED}|{INTERMEDIATE}|{FINAL}|Thought \d{{1,3}}:|Action \d{{1,3}}:")
_HOPS = 4
"""Follow-ups after which it answers: one less than a method allows by default, so that it ends by itself."""


def _hop(sheet: PromptSheet) -> str:
    """What goes on after a cue of Self-Ask or ReAct: the next follow-up, or the answer."""
    thought = _THOUGHT.fullmatch(sheet.cue)
    if not (thought or sheet.cue in (NEEDED, INTERMEDIATE)):
        return _settled(sheet, sheet.passages) + ("" if sheet.cue == FINAL else "]")
    if follow_up := _follow_up(sheet):
        step = f"Action {thought[1]}: Search[{follow_up}]" if thought else f"Follow-up: {follow_up}"
    else:
        answer = _settled(sheet, sheet.passages)
        step = f"Action {thought[1]}: Finish[{answer}]" if thought else f"{FINAL} {answer}"
    return f"{_found(sheet)}\n{step}"


def _transcript(lines: Sequence[str]) -> PromptSheet:
    """The last block, with every passage in it and the follow-ups so far."""
    places = (i for i in range(len(lines) - 2, -1, -1) if lines[i].startswith("Question:"))
    at = next((i for i in places if _BEGINS.match(lines[i + 1])), -1)
    if at < 0:
        return take_apart(lines)
    found = _knowledge(lines, at)
    follow_ups: list[str] = []
    inside = False
    for line in lines[at + 1 : -1]:
        if follow_up := _FOLLOW_UP.match(line):
            follow_ups.append(follow_up[1].strip())
        if _FOUND.match(line):
            inside = True
        elif follow_up or _TURN.match(line):
            inside = False
        elif inside and line.strip() not in ("", NOTHING):
            found.append(line)
    question, instructions = lines[at].removeprefix("Question:").strip(), _opening(lines[:at])
    passages = tuple(dict.fromkeys(line.strip() for line in found))
    return PromptSheet(lines[-1].strip(), question, passages, "", instructions, tuple(follow_ups))


def _found(sheet: PromptSheet) -> str:
    """What the passages tell about the newest follow-up; before the first one, that there is one."""
    if not sheet.follow_ups:
        return "Yes." if sheet.cue == NEEDED else "Nothing has been looked up yet."
    about = stems(sheet.follow_ups[-1])
    chosen = read_passages(sheet.follow_ups[-1], sheet.passages).chosen
    own = [
        sentence for sentence in chosen if sentence.title_stems and sentence.title_stems <= about
    ]
    return _with_subject((own or chosen)[0]) if chosen else "Nothing that was found tells about it."


def _follow_up(sheet: PromptSheet) -> str:
    """A question about a name, of the question or of the best sentences, that has no passage yet; "" without one."""
    if len(sheet.follow_ups) >= _HOPS:
        return ""
    known = [stems(bare_title(split_line(line)[0])) for line in sheet.passages]
    known += [stems(follow_up) for follow_up in sheet.follow_ups]
    chosen = read_passages(sheet.question, sheet.passages).chosen[:2]
    for name in chain(names_in(sheet.question), *(names_in(sentence.text) for sentence in chosen)):
        own = stems(name)
        if own and not any(own <= other or (other and other <= own) for other in known):
            words = [word for word in re.findall(r"\b[a-z]\w+", sheet.question) if stems(word)][:6]
            regarding = f" regarding {' '.join(dict.fromkeys(words))}" if words else ""
            return f"What is known about {name[:120]}{regarding}?"
    return "" if sheet.follow_ups else " ".join(sheet.question.split()) or "What is asked?"


# ---- CDIT's judge: is a passage consistent with a question?

_OPPOSITES = (
    ("predicate", "on", "off"), ("predicate", "open", "close"), ("predicate", "won win", "lost lose"),
    ("predicate", "up", "down"), ("predicate", "bought buy", "sold sell"), ("predicate", "arrive", "left leave depart"),
    ("predicate", "begin began start", "end stop cease"), ("predicate", "born", "died"),
    ("predicate", "rise rose", "fall fell"), ("predicate", "accept", "refuse reject"),
    ("predicate", "build built", "demolish destroy"), ("adverbial", "before", "after"),
    ("adverbial", "always", "never"), ("attributive", "old oldest", "new newest"), ("attributive", "first", "last"),
    ("attributive", "north northern", "south southern"), ("attributive", "east eastern", "west western"),
)  # fmt: skip
_NEGATION = re.compile(r"\b(?:not|never|no longer|cannot|without)\b|n['’]t\b", re.IGNORECASE)
_PREPOSITIONS = WORD.findall("in at on near by from to before after during since until of")
_ASKING = WORD.findall("who whom whose what which when where why how")


def _consistency(lines: Sequence[str]) -> str:
    """One word, or a line a component and a verdict; words of opposite meaning and names that differ are all it sees.

    >>> print(read("Passage: Radio | Mary turned off the radio.\\nQuestion: Who turned on the radio?\\nComparison:"))
    subject | - | - | unsaid
    predicate | on | off | unlike
    object | - | - | unsaid
    Reason: Another predicate.
    Verdict: False
    """
    *above, passage, question, cue = lines
    if passage.startswith("Question:"):  # the paper's order
        passage, question = question, passage
    title, text = split_line(passage.removeprefix("Passage:").strip())
    question = question.removeprefix("Question:").strip()
    begin = max(_last(above, "Rules:"), _last(above, "### Rules:"))
    rules = takewhile(lambda line: line.startswith("- "), above[begin + 1 :])
    named = [
        re.sub(r"\([^()]*\)", "", line).partition("Components:")[2].split(",") for line in rules
    ]
    found = dict.fromkeys(component.strip(" .") for part in named for component in part)
    components = list(filter(None, found)) or [
        "subject",
        "predicate",
        "object",
    ]  # of the paper's phi1
    asked, given = (
        [part.text for part in sentences(whole)][:40] or [whole] for whole in (question, text)
    )
    compared = [_compared(one, title, other, components) for one in asked for other in given]
    _, shared, differences = min(compared, key=lambda found: (len(found[2]), -found[0]))
    if cue.strip() == VERDICT:
        return str(not differences)
    rows = []
    for component in components:
        if component in differences:
            rows.append(f"{component} | {' | '.join(differences[component])} | unlike")
        elif component == "predicate" and shared:
            rows.append(f"{component} | {' '.join(shared)} | {' '.join(shared)} | alike")
        else:
            rows.append(f"{component} | - | - | unsaid")
    reason = (
        f"Another {_enumerated(list(differences))}." if differences else "No difference was found."
    )
    return "\n".join([*rows, f"Reason: {reason}", f"Verdict: {not differences}"])


def _compared(
    question: str, title: str, sentence: str, components: Sequence[str]
) -> tuple[float, list[str], dict[str, tuple[str, str]]]:
    """The question's words that a sentence has, as share and list; by component what both have where they differ."""
    wanted, given = stems(question), stems(sentence) | stems(title)
    shared = [
        word for word in dict.fromkeys(WORD.findall(question)) if stem(word) in wanted & given
    ]
    found: dict[str, tuple[str, str]] = {}
    # stop words too: on and off are such
    ours, theirs = (
        {stem(word): word for word in reversed(WORD.findall(text))} for text in (question, sentence)
    )
    for component, *sides in _OPPOSITES:
        one, other = ([stem(form) for form in side.split()] for side in sides)
        for left, right in ((one, other), (other, one)):
            mine, its = (
                [ours[f] for f in left if f in ours],
                [theirs[f] for f in right if f in theirs],
            )
            if mine and its and not theirs.keys() & set(left):
                found.setdefault(component, (mine[0], its[0]))
    denied = [
        match[0] if (match := _NEGATION.search(text)) else "-" for text in (question, sentence)
    ]
    if (denied[0] == "-") != (denied[1] == "-"):
        found.setdefault("predicate", (denied[0], denied[1]))
    named, others = _names_and_numbers(question), _names_and_numbers(f"{title} {sentence}")
    have = {stem(word) for words in others.values() for word in words}
    for kind, words in named.items():
        if kind in others and not any(stem(word) in have for word in words):
            found.setdefault(kind[0], (" ".join(words), " ".join(others[kind])))
    share = len(wanted & given) / max(1, len(wanted))
    if share < 0.3:
        found.setdefault("predicate", (" ".join(sorted(wanted - given)), "something else"))
    return (
        share,
        shared,
        {component: pair for component, pair in found.items() if component in components},
    )


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


# ---- prompts of DSPy's own adapters (chat markers, JSON, XML): a user's own module runs offline too

_RESPOND = re.compile(r"Respond with (?:the corresponding output fields|a JSON object)\b")
_FIELD = re.compile(r"`(?:\[\[ ## (\w{1,80}) ## \]\]|<(\w{1,80})>|(\w{1,80}))`")
_MARKED = re.compile(r"^(?:\[\[ ## (\w{1,80}) ## \]\]|<(\w{1,80})>)[ \t]*$", re.MULTILINE)
_DECLARED = re.compile(r"^\d{1,3}\. `(\w{1,80})` \((.{1,500}?)\):", re.MULTILINE)
_TOOL = re.compile(
    r"^\s*\(\d{1,3}\) ([^\s.,]{1,80})[.,].{0,2000}?It takes arguments \{'(\w{1,80})'", re.MULTILINE
)
_QUESTIONS = ("question", "query", "claim", "prompt", "request", "input", "statement", "text")


def _fields(lines: Sequence[str]) -> str:
    """The reply that fills every requested field; its value follows from its type, then from its name."""
    text, request = "\n".join(lines[:-1]), lines[-1]
    types = dict(_DECLARED.findall(text))
    outputs = [
        name for groups in _FIELD.findall(request) if (name := "".join(groups)) != "completed"
    ]
    inputs = _inputs(text, types.keys() | {"completed"}, outputs)
    by_name = (
        value for word in _QUESTIONS for name, value in inputs.items() if word in name.lower()
    )
    question = next(by_name, next(reversed(inputs.values()), ""))
    passages = [
        line.strip() for value in inputs.values() if value != question for line in value.split("\n")
    ]
    marked = (re.fullmatch(r"\[\d{1,6}\] «(.*)»", line) for line in passages)
    knowledge = tuple(
        match[1] if match else line for match, line in zip(marked, passages, strict=True) if line
    )
    # of an agent's tools the first, once: it takes one step only
    tool = (
        None
        if re.search(r"^\[\[ ## observation_\d+ ## \]\]", text, re.MULTILINE)
        else _TOOL.search(text)
    )
    values = {
        name: _value(name, types.get(name, "str"), question, knowledge, tool, inputs)
        for name in outputs
    }
    if "JSON object" in request[:40]:
        return json.dumps(values, ensure_ascii=False)
    if "XML tags" in request:
        items = {
            name: "".join(f"<item>{escape(str(item))}</item>" for item in value)
            if isinstance(value, list)
            else escape(_as_text(value))
            for name, value in values.items()
        }
        return "\n".join(f"<{name}>\n{text}\n</{name}>" for name, text in items.items())
    return "\n\n".join(
        [
            *(f"[[ ## {name} ## ]]\n{_as_text(value)}" for name, value in values.items()),
            "[[ ## completed ## ]]",
        ]
    )


def _inputs(text: str, known: set[str], outputs: Sequence[str]) -> dict[str, str]:
    """The last value of each input field: earlier ones are the layout's and the demonstrations'.

    A marker that names no declared field belongs to the value it stands in (an agent's trajectory holds such).
    """
    marks = [mark for mark in _MARKED.finditer(text) if (mark[1] or mark[2]) in known]
    found: dict[str, str] = {}
    for mark, end in zip(marks, [*(mark.start() for mark in marks[1:]), len(text)], strict=False):
        name = mark[1] or mark[2]
        if name not in (*outputs, "completed"):
            found[name] = text[mark.end() : end].partition(f"\n</{name}>")[0].strip()
    return found


def _value(
    name: str,
    kind: str,
    question: str,
    lines: tuple[str, ...],
    tool: re.Match[str] | None,
    inputs: dict[str, str],
) -> Any:
    """A value of the type that a field has: read from the passages where the type allows it."""
    answer = answer_to(question, lines, kind.startswith("bool"))
    digits = re.search(r"\d{1,15}(?:\.\d{1,6})?", answer)
    number = float(digits[0]) if digits else 0.0
    options = re.findall(r"'([^']{0,200})'", kind) if kind.startswith("Literal") else []
    if "finish" in options and len(options) > 1:
        return next(option for option in options if option != "finish") if tool else "finish"
    if options:
        near = stems(f"{question} {answer}")
        return max(
            options,
            key=lambda option: (option.lower() == answer.lower(), len(stems(option) & near)),
        )
    by_type = {
        "bool": answer == "yes",
        "int": int(number),
        "float": number,
        "list[int": list(_relevant(question, lines)),
        "list": [answer],
        "dict": {tool[2]: question} if tool else {},
    }
    by_name = {
        "reason": _reasoning(question, lines),
        "thought": _reasoning(question, lines),
        "query": question,
        "instruction": next(
            (value for key, value in inputs.items() if "instruction" in key), question
        ),
    }
    fitting = [value for opening, value in by_type.items() if kind.startswith(opening)]
    return [*fitting, *(value for word, value in by_name.items() if word in name.lower()), answer][
        0
    ]


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
