"""The `offline` reader: no model, no key, no network; the same reply to the same prompt, always.

It shows the pipeline, not its quality. It truly reads the rendered prompt (docs/prompts.md has the shapes): the last
line says what is asked (the cue), the block above it has question, knowledge and context, and the reply has the shape
that this kind of prompt asks for. It raises on no text and takes time linear in its length.

Only line starts count, and a passage is one line ``Title | text``, so words like "Answer:" inside a passage never look
like a part of the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain, takewhile

from dspy import lm15

from blendfilter.lm.journaled import prompt_of
from blendfilter.lm.offline.chat import asks_for_fields, fill_fields, reasoning_about, relevant_to, with_subject
from blendfilter.lm.offline.judging import asks_for_consistency, consistency_of
from blendfilter.lm.offline.reading import (
    STOP_WORDS,
    WORD,
    bare_title,
    read_passages,
    split_line,
    stem,
    stems,
    words_of,
)
from blendfilter.lm.offline.spans import UNKNOWN, answer_to, kind_of, names_in, yes_or_no
from blendfilter.text import Choices, choices

THINK = "Let's think step by step."
RESPONSE = "### Response:"
NEEDED, INTERMEDIATE, FINAL = "Are follow-up questions needed here:", "Intermediate answer:", "So the final answer is:"
SUPPORTS, REFUTES, UNDECIDED = "SUPPORTS", "REFUTES", "NOT ENOUGH INFO"
NOTHING = "Nothing given here tells about this."
_SOUGHT = {
    "person": "the person", "place": "the place", "time": "the date", "count": "the number",
    "nationality": "the nationality", "yes_no": "whether this holds", "thing": "the name",
}  # fmt: skip
_OPENS_A_BLOCK = re.compile(r"Question:|Context:|Knowledge:\s*$|(?:knowledge|sentence|passage) \d+:")
_NUMBERED = re.compile(r"(?:knowledge|sentence|passage) (\d{1,6}):(.*)", re.IGNORECASE | re.DOTALL)
_VERDICT = re.compile(r"^\W{0,8}knowledge\W{0,3}(\d{1,6})\b(.{0,60})", re.IGNORECASE | re.MULTILINE)
_DENIED = re.compile(r"\b(?:not|irrelevant|unrelated|no)\b", re.IGNORECASE)
_CONCLUDES = re.compile(r"so the (?:final )?answer is:?|\bfinish\[", re.IGNORECASE)
_YES_NO = re.compile(r"\byes\W{1,3}(?:or\W{1,3})?no\b", re.IGNORECASE)
_ONLY = re.compile(r"\b(?:only|just|nothing else|either|always|must)\b", re.IGNORECASE)
_OTHER = re.compile(r"\b(?:names?|phrases?|dates?|numbers?|words)\b", re.IGNORECASE)
_THOUGHT, _FINISH = re.compile(r"Thought (\d{1,3}):"), re.compile(r"Action \d{1,3}: Finish\[")
_BEGINS = re.compile(rf"{NEEDED}|Thought 1:")
_FOUND = re.compile(r"(?:Knowledge|Observation \d{1,3}):\s*$")
_FOLLOW_UP = re.compile(r"(?:Follow-up:|Action \d{1,3}: Search\[)(.*?)\]?\s*$")
_TURN = re.compile(rf"{NEEDED}|{INTERMEDIATE}|{FINAL}|Thought \d{{1,3}}:|Action \d{{1,3}}:")
_HOPS = 4
"""Follow-ups after which it answers: one less than a method allows by default, so that it ends by itself."""


def read(prompt: str) -> str:
    """The reply to a rendered prompt (or to chat messages joined by blank lines).

    >>> read("Knowledge:\\nOrm Pier | Orm Pier opened in 1871.\\nQuestion: When did Orm Pier open?\\nAnswer:")
    '1871'
    >>> read("Question: When did Orm Pier open?\\nTopic:")
    'Orm Pier'
    """
    if asks_for_fields(prompt):
        return fill_fields(prompt)
    if asks_for_consistency(prompt):
        return consistency_of(prompt)
    lines = prompt.rstrip().split("\n")
    cue = lines[-1].strip()
    if cue in (NEEDED, INTERMEDIATE, FINAL) or _THOUGHT.fullmatch(cue) or _FINISH.fullmatch(cue):
        return _hop(prompt)
    sheet = _response_sheet(lines) if cue == RESPONSE else take_apart(prompt)
    return _REPLIES.get(cue, _answer)(sheet)


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
        """Whether the instructions allow the reply "none"."""
        return bool(re.search(r"\bnone\b", self.instructions, re.IGNORECASE))

    @property
    def wants_yes_or_no(self) -> bool:
        """Whether the instructions allow nothing but yes or no."""
        parts = re.split(r"\n|(?<=[.!?]) ", self.instructions)
        return any(_YES_NO.search(part) and _ONLY.search(part) and not _OTHER.search(part) for part in parts)

    @property
    def wants_label(self) -> bool:
        """Whether the instructions call the question a claim and offer labels for it."""
        return bool(re.search(r"\bSUPPORTS\b.{1,60}\bREFUTES\b", self.instructions, re.DOTALL))

    @property
    def wants_truth(self) -> bool:
        """Whether the instructions call the question a claim, and offer true and false for it."""
        return "claim" in self.instructions and bool(re.search(r"(?s)\btrue\b.{1,60}\bfalse\b", self.instructions))

    @property
    def wants_sentences(self) -> bool:
        """Whether the instructions want plain sentences for an answer."""
        return bool(re.search(r"\bplain sentences?\b", self.instructions))


def take_apart(prompt: str) -> PromptSheet:
    """The parts of the prompt's last block.

    >>> sheet = take_apart("Knowledge:\\nOrmskerry | A harbour town.\\nQuestion: What is Ormskerry?\\nAnswer:")
    >>> sheet.cue, sheet.question, sheet.passages
    ('Answer:', 'What is Ormskerry?', ('Ormskerry | A harbour town.',))
    """
    *above, cue = prompt.rstrip().split("\n")
    cue, at = cue.strip(), _last(above, "Question:")
    if at < 0:  # the last line that ends in a question mark, else the last one
        kept = [line.strip() for line in above if line.strip()]
        question = next((line for line in reversed(kept) if line.endswith("?")), kept[-1] if kept else "")
        return PromptSheet(cue, question, instructions="\n".join(above))
    first, numbered = _numbered(above, at) if cue in ("Relevance:", "Ids:", "Judgement:") else (at, [])
    begin = _last(above[:first], "Context:")
    context = "\n".join([above[begin].removeprefix("Context:"), *above[begin + 1 : first]]) if begin >= 0 else ""
    return PromptSheet(
        cue,
        above[at].removeprefix("Question:").strip(),
        tuple(numbered or _listed(above, at)),
        context.strip(),
        "\n".join([_opening(above), *above[at + 1 :]]),
    )


def _opening(lines: list[str]) -> str:
    """What stands above the first block."""
    return "\n".join(takewhile(lambda line: not _OPENS_A_BLOCK.match(line), lines))


def _last(lines: list[str], opening: str) -> int:
    """Index of the last line that starts with `opening`, else -1."""
    return next((i for i in range(len(lines) - 1, -1, -1) if lines[i].startswith(opening)), -1)


def _numbered(lines: list[str], end: int) -> tuple[int, list[str]]:
    """The lines ``knowledge N: …`` nearest above `end`, counted down to 0, with the index of the first."""
    found: list[str] = []
    first, wanted = end, -1
    for i in range(end - 1, -1, -1):
        match = _NUMBERED.match(lines[i])
        if match is None or (found and int(match[1]) != wanted):
            if found and lines[i].strip():
                break
            continue
        found.append(match[2].strip())
        first, wanted = i, int(match[1]) - 1
        if wanted < 0:
            break
    return first, found[::-1]


def _listed(lines: list[str], end: int) -> list[str]:
    """The lines under the nearest ``Knowledge:`` above `end`; none where a demonstration's cue comes between."""
    for i in range(end - 1, -1, -1):
        if lines[i].rstrip() == "Knowledge:":
            return [text.strip() for text in lines[i + 1 : end] if text.strip()]
        if lines[i].startswith((THINK, "Answer:")) and i and lines[i - 1].startswith("Question:"):
            break
    return []


def _response_sheet(lines: list[str]) -> PromptSheet:
    """The parts of a prompt with background and instruction; options belong to the question."""
    at = max(_last(lines, "### Instruction:"), 0)
    background = max(_last(lines[:at], "### Background:"), 0)
    marks = ((line, re.match(r"\[\d{1,6}\] ", line)) for line in lines[background:at])
    passages = tuple(line[mark.end() :].strip() for line, mark in marks if mark)
    own = [line.strip() for line in lines[at + 1 : -1]]
    options = next((i for i, line in enumerate(own) if i and not re.match(r"\([A-E]\) ", line)), len(own))
    return PromptSheet(RESPONSE, " ".join(own[:options]).strip(), passages, "", "\n".join(own[options:]))


# ---- answers


def _settled(sheet: PromptSheet, lines: tuple[str, ...]) -> str:
    """The answer in the shape that the prompt wants: a letter, a label, sentences, yes or no, or a span."""
    if (choice := choices(sheet.question)).options:
        return _option(choice, lines)
    if sheet.wants_truth:
        return "true" if _label(sheet.question, lines, False) == SUPPORTS else "false"
    if sheet.wants_label:
        return _label(sheet.question, lines, UNDECIDED in sheet.instructions)
    if sheet.wants_sentences:
        chosen = read_passages(sheet.question, lines).chosen
        own = [sentence for sentence in chosen if sentence.passage == chosen[0].passage]
        return " ".join(with_subject(sentence) for sentence in own[:2]) or NOTHING
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
        return max(((share * len(stems(choice.stem) & words), share) for share, words in shares), default=(0.0, 0.0))

    return max(choice.options, key=lambda option: support(option[1]))[0]


def concluded(reasoning: str) -> str:
    """What follows the last "So the answer is" of a chain of reasoning, "" where it concludes nothing.

    >>> concluded("It opened in 1871. So the answer is 1871."), concluded("Action 2: Finish[1871]")
    ('1871', '1871')
    """
    *_, last = None, *_CONCLUDES.finditer(reasoning)
    if last is None:
        return ""
    line = reasoning[last.end() :].strip().partition("\n")[0].strip()
    if last[0].endswith("["):
        return line.removesuffix("]").strip()
    return line[:-1].rstrip() if line.endswith(".") and not re.search(r"\b(?:[A-Z]|Jr|Sr)\.$", line) else line


# ---- replies


def _think(sheet: PromptSheet) -> str:
    answer = _settled(sheet, sheet.passages)
    if sheet.wants_sentences:
        answer = answer.removesuffix(".")
    return f"{reasoning_about(sheet.question, sheet.passages)}\nSo the answer is {answer}."


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
    return " and ".join(name[:120] for name in names) or " ".join(_content_words(sheet.question)[:4]) or UNKNOWN


def _content_words(question: str) -> list[str]:
    return list(dict.fromkeys(word for word in re.findall(r"[\w’'-]+", question) if stems(word)))[:12]


def _enumerated(words: list[str]) -> str:
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else words[0]


def _relevance(sheet: PromptSheet) -> str:
    """One line for each numbered passage: relevant or not, and by which words."""
    kept = relevant_to(sheet.question, sheet.passages)
    steps = {sentence.passage for sentence in read_passages(sheet.question, sheet.passages).chosen}
    wanted = [word for word in dict.fromkeys(WORD.findall(sheet.question)) if word.lower() not in STOP_WORDS]
    lines = []
    for number, line in enumerate(sheet.passages):
        verdict = "is relevant" if number in kept else "is not relevant"
        words = [word for word in wanted if stem(word) in words_of(line)][:8]
        why = f"shares {_enumerated(words) if words else 'no word'} with the question"
        step = " and is a step towards the answer" if number in steps else ""
        title = bare_title(split_line(line)[0]) or "this passage"
        lines.append(f"Knowledge {number} {verdict}: {title[:120]} {why}{step}.")
    return "\n".join(lines) or "There is no knowledge to judge."


def _ids(sheet: PromptSheet) -> str:
    """The numbers that the check's reply calls relevant; by overlap where it names none."""
    count = len(sheet.passages)
    verdicts = {
        int(match[1]): not _DENIED.search(match[2].lstrip(" :").partition(":")[0])
        for match in _VERDICT.finditer(sheet.context)
        if int(match[1]) < count
    }
    chosen = [number for number in sorted(verdicts) if verdicts[number]]
    if not chosen and not (verdicts and sheet.offers_none):
        reading = read_passages(sheet.question, sheet.passages)
        # without a check, few lines are to be kept: none where the chain covers too little of the question
        covers = bool(reading.chosen) and reading.share >= 0.3
        if covers or sheet.context or not sheet.offers_none:
            chosen = list(relevant_to(sheet.question, sheet.passages))
    return ", ".join(map(str, chosen)) or ("none" if sheet.offers_none or not count else "0")


def _judgement(sheet: PromptSheet) -> str:
    relevance = _relevance(sheet)
    return f"{relevance}\nIds: {_ids(replace(sheet, context=relevance))}"


def _answer(sheet: PromptSheet) -> str:
    """What the context concludes; else an answer from the context's or the knowledge's own sentences."""
    lines = sheet.passages or tuple(line.strip() for line in sheet.context.split("\n") if line.strip())
    answer = concluded(sheet.context) or _settled(sheet, lines)
    if choices(sheet.question).options:
        return answer.removesuffix(".")
    if sheet.wants_sentences:
        return answer if answer.endswith((".", "!", "?")) else f"{answer}."
    if sheet.wants_truth:
        return answer
    if verdict := re.match(r"(?:yes|no|true|false)\b", answer, re.IGNORECASE):
        return "Yes" if verdict[0].lower() in ("yes", "true") else "No"
    return answer_to(sheet.question, lines, True).capitalize() if sheet.wants_yes_or_no else answer


_REPLIES: dict[str, Callable[[PromptSheet], str]] = {
    THINK: _think,
    "Passage:": _passage,
    "Topic:": _topic,
    "Relevance:": _relevance,
    "Ids:": _ids,
    "Judgement:": _judgement,
}


# ---- multi-hop transcripts


def _hop(prompt: str) -> str:
    """What goes on after a cue of Self-Ask or ReAct: the next follow-up, or the answer.

    >>> print(_hop("Question: When did Orm Pier open?\\nAre follow-up questions needed here:"))
    Yes.
    Follow-up: What is known about Orm Pier regarding open?
    """
    sheet = _transcript(prompt)
    thought = _THOUGHT.fullmatch(sheet.cue)
    if not (thought or sheet.cue in (NEEDED, INTERMEDIATE)):
        return _settled(sheet, sheet.passages) + ("" if sheet.cue == FINAL else "]")
    if follow_up := _follow_up(sheet):
        step = f"Action {thought[1]}: Search[{follow_up}]" if thought else f"Follow-up: {follow_up}"
    else:
        answer = _settled(sheet, sheet.passages)
        step = f"Action {thought[1]}: Finish[{answer}]" if thought else f"{FINAL} {answer}"
    return f"{_found(sheet)}\n{step}"


def _transcript(prompt: str) -> PromptSheet:
    """The last block, with every passage in it and the follow-ups so far."""
    lines = prompt.rstrip().split("\n")
    places = (i for i in range(len(lines) - 2, -1, -1) if lines[i].startswith("Question:"))
    at = next((i for i in places if _BEGINS.match(lines[i + 1])), -1)
    if at < 0:
        return take_apart(prompt)
    start = next((i + 1 for i in range(at - 1, -1, -1) if not lines[i].strip()), 0)
    found = [line.strip() for line in lines[start + 1 : at]] if lines[start].rstrip() == "Knowledge:" else []
    follow_ups: list[str] = []
    inside = False
    for line in lines[at + 1 : -1]:
        if _FOUND.match(line):
            inside = True
        elif follow_up := _FOLLOW_UP.match(line):
            inside = False
            follow_ups.append(follow_up[1].strip())
        elif _TURN.match(line):
            inside = False
        elif inside and line.strip():
            found.append(line.strip())
    question, instructions = lines[at].removeprefix("Question:").strip(), _opening(lines[:at])
    passages = tuple(dict.fromkeys(found))
    return PromptSheet(lines[-1].strip(), question, passages, "", instructions, tuple(follow_ups))


def _found(sheet: PromptSheet) -> str:
    """What the passages tell about the newest follow-up; before the first one, that there is one."""
    if not sheet.follow_ups:
        return "Yes." if sheet.cue == NEEDED else "Nothing has been looked up yet."
    about = stems(sheet.follow_ups[-1])
    chosen = read_passages(sheet.follow_ups[-1], sheet.passages).chosen
    own = [sentence for sentence in chosen if sentence.title_stems and sentence.title_stems <= about]
    return with_subject((own or chosen)[0]) if chosen else "Nothing that was found tells about it."


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
