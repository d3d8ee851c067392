"""Multi-hop prompts: the next follow-up, thought and action, or the final answer, from what stands in the transcript.

Input: a prompt that ends in a cue of Self-Ask or ReAct. Output: the lines that a model would go on with. The first
follow-up is about a name in the question; the next ones about names of the question, then of the best sentences, that
have no passage yet; where there is none left, or enough was asked, the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from blendfilter.lm.offline.answers import reading_of, told
from blendfilter.lm.offline.claims import settled
from blendfilter.lm.offline.prompt import Sheet, opening_of, take_apart
from blendfilter.lm.offline.reading import bare_title, split_line, stems
from blendfilter.lm.offline.spans import names_in

NEEDED = "Are follow-up questions needed here:"
INTERMEDIATE = "Intermediate answer:"
FINAL = "So the final answer is:"
_THOUGHT = re.compile(r"Thought (\d{1,3}):")
_FINISH = re.compile(r"Action \d{1,3}: Finish\[")
_BEGINS = re.compile(rf"{NEEDED}|Thought 1:")
_FOUND = re.compile(r"(?:Knowledge|Observation \d{1,3}):\s*$")
_ASKED = re.compile(r"(?:Follow-up:|Action \d{1,3}: Search\[)(.*?)\]?\s*$")
_SAID = re.compile(rf"{NEEDED}|{INTERMEDIATE}|{FINAL}|Thought \d{{1,3}}:|Action \d{{1,3}}:")
_MOST = 4
"""Follow-ups after which it answers: one less than a method allows by default, so that it ends by itself."""
_WORDS = 6
_CHAIN = 2
"""Sentences whose names are followed."""


class Trail(NamedTuple):
    """A prompt's last block: the sheet with every passage in it, and the follow-ups asked so far."""

    sheet: Sheet
    asked: tuple[str, ...]


def asks_for_hop(prompt: str) -> bool:
    """Whether the prompt's last line is a cue of a multi-hop transcript.

    >>> asks_for_hop("Question: Who?\\nThought 1:"), asks_for_hop("Question: Who?\\nAnswer:")
    (True, False)
    """
    cue = prompt.rstrip().rpartition("\n")[2].strip()
    return cue in (NEEDED, INTERMEDIATE, FINAL) or bool(_THOUGHT.fullmatch(cue) or _FINISH.fullmatch(cue))


def next_hop(prompt: str) -> str:
    """What goes on after the cue.

    >>> print(next_hop("Question: When did Orm Pier open?\\nAre follow-up questions needed here:"))
    Yes.
    Follow-up: What is known about Orm Pier regarding open?
    """
    trail = _read(prompt)
    sheet = trail.sheet
    thought = _THOUGHT.fullmatch(sheet.cue)
    if sheet.cue == FINAL or not (thought or sheet.cue in (NEEDED, INTERMEDIATE)):
        return _answer(sheet) + ("" if sheet.cue == FINAL else "]")
    said, follow_up = _found(trail), _follow_up(trail)
    if thought:
        action = f"Search[{follow_up}]" if follow_up else f"Finish[{_answer(sheet)}]"
        return f"{said}\nAction {thought[1]}: {action}"
    return f"{said}\n" + (f"Follow-up: {follow_up}" if follow_up else f"{FINAL} {_answer(sheet)}")


def _read(prompt: str) -> Trail:
    lines = prompt.rstrip().split("\n")
    places = (i for i in range(len(lines) - 2, -1, -1) if lines[i].startswith("Question:"))
    at = next((i for i in places if _BEGINS.match(lines[i + 1])), -1)
    if at < 0:
        return Trail(take_apart(prompt), ())
    found, asked = _above(lines, at), list[str]()
    inside = False
    for line in lines[at + 1 : -1]:
        if _FOUND.match(line):
            inside = True
        elif follow_up := _ASKED.match(line):
            inside = False
            asked.append(follow_up[1].strip())
        elif _SAID.match(line):
            inside = False
        elif inside and line.strip():
            found.append(line.strip())
    question = lines[at].removeprefix("Question:").strip()
    instructions = "\n".join(opening_of(lines[:at]))
    return Trail(Sheet(lines[-1].strip(), question, tuple(dict.fromkeys(found)), "", instructions), tuple(asked))


def _above(lines: list[str], at: int) -> list[str]:
    """The passages right above the question, where its block opens with them."""
    start = next((i + 1 for i in range(at - 1, -1, -1) if not lines[i].strip()), 0)
    return [line.strip() for line in lines[start + 1 : at]] if lines[start].rstrip() == "Knowledge:" else []


def _answer(sheet: Sheet) -> str:
    return settled(sheet, sheet.passages)


def _found(trail: Trail) -> str:
    """What the passages tell about the newest follow-up; before the first one, that there is one."""
    if not trail.asked:
        return "Yes." if trail.sheet.cue == NEEDED else "Nothing has been looked up yet."
    about = stems(trail.asked[-1])
    chosen = reading_of(trail.asked[-1], trail.sheet.passages).chosen
    # Another passage may name the same thing in more of the follow-up's words.
    own = [sentence for sentence in chosen if sentence.title_stems and sentence.title_stems <= about]
    return told((own or chosen)[0]) if chosen else "Nothing that was found tells about it."


def _follow_up(trail: Trail) -> str:
    """The next follow-up, "" where nothing is left to ask."""
    if len(trail.asked) >= _MOST:
        return ""
    known = [stems(bare_title(split_line(line)[0])) for line in trail.sheet.passages]
    known += [stems(follow_up) for follow_up in trail.asked]
    for name in _names(trail.sheet):
        own = stems(name)
        if own and not any(own <= each or (each and each <= own) for each in known):
            return f"What is known about {name[:120]}{_regarding(trail.sheet.question)}?"
    return "" if trail.asked else " ".join(trail.sheet.question.split()) or "What is asked?"


def _regarding(question: str) -> str:
    """What else the question speaks of, so that the search knows it."""
    words = [word for word in re.findall(r"\b[a-z]\w+", question) if stems(word)][:_WORDS]
    return f" regarding {' '.join(dict.fromkeys(words))}" if words else ""


def _names(sheet: Sheet) -> Iterator[str]:
    yield from names_in(sheet.question)
    for sentence in reading_of(sheet.question, sheet.passages).chosen[:_CHAIN]:
        yield from names_in(sentence.text)
