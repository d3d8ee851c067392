"""What a rendered prompt asks: its cue, and the question, knowledge and context of its *last* block.

Input: the text of a prompt in the shapes of docs/prompts.md. Output: a `Sheet`. Only line starts count, and a passage
is one line ``Title | text``, so words like "Answer:" inside a passage never look like a part of the prompt.
Demonstrations stand before the last block; `Sheet.instructions` is what stands above the first of them, and what stands
between the question and the cue.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

THINK = "Let's think step by step."
_SHOW_NUMBERS = ("Relevance:", "Ids:", "Judgement:")
_NUMBERED = re.compile(r"(?:knowledge|sentence|passage) (\d{1,6}):(.*)", re.IGNORECASE | re.DOTALL)
_OPENS_A_BLOCK = re.compile(r"Question:|Context:|Knowledge:\s*$|(?:knowledge|sentence|passage) \d+:")
_YES_NO = re.compile(r"\byes\W{1,3}(?:or\W{1,3})?no\b", re.IGNORECASE)
_ONLY = re.compile(r"\b(?:only|just|nothing else|either|always|must)\b", re.IGNORECASE)
_OTHER = re.compile(r"\b(?:names?|phrases?|dates?|numbers?|words)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\n|(?<=[.!?]) ")
_LABELS = re.compile(r"\bSUPPORTS\b.{1,60}\bREFUTES\b", re.DOTALL)
_TRUTH = re.compile(r"\btrue\b.{1,60}\bfalse\b", re.DOTALL)
_PLAIN = re.compile(r"\bplain sentences?\b")
_NONE = re.compile(r"\bnone\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Sheet:
    """One prompt, taken apart. `cue` is its last line; parts that the prompt lacks are empty."""

    cue: str
    question: str
    passages: tuple[str, ...] = ()
    context: str = ""
    instructions: str = ""

    @property
    def offers_none(self) -> bool:
        """Whether the instructions allow the reply "none"."""
        return bool(_NONE.search(self.instructions))

    @property
    def wants_yes_or_no(self) -> bool:
        """Whether the instructions allow nothing but yes or no."""
        told = _SENTENCE_END.split(self.instructions)
        return any(_YES_NO.search(each) and _ONLY.search(each) and not _OTHER.search(each) for each in told)

    @property
    def wants_label(self) -> bool:
        """Whether the instructions call the question a claim and offer labels for it."""
        return bool(_LABELS.search(self.instructions))

    @property
    def wants_truth(self) -> bool:
        """Whether the instructions call the question a claim, and offer true and false for it."""
        return "claim" in self.instructions and bool(_TRUTH.search(self.instructions))

    @property
    def wants_sentences(self) -> bool:
        """Whether the instructions want plain sentences for an answer."""
        return bool(_PLAIN.search(self.instructions))


def take_apart(prompt: str) -> Sheet:
    """The parts of the prompt's last block.

    >>> sheet = take_apart("Knowledge:\\nOrmskerry | A harbour town.\\nQuestion: What is Ormskerry?\\nAnswer:")
    >>> sheet.cue, sheet.question, sheet.passages
    ('Answer:', 'What is Ormskerry?', ('Ormskerry | A harbour town.',))
    """
    lines = prompt.rstrip().split("\n")
    above = lines[:-1]
    asked = _last(above, "Question:")
    if asked < 0:
        return Sheet(cue=lines[-1].strip(), question=_loose_question(above), instructions="\n".join(above))
    question = above[asked][len("Question:") :].strip()
    cue = lines[-1].strip()
    numbered_at, numbered = _numbered(above, asked) if cue in _SHOW_NUMBERS else (asked, [])
    instructions = opening_of(above) + above[asked + 1 :]
    passages = numbered or _listed(above, asked)
    return Sheet(cue, question, tuple(passages), _context(above, numbered_at), "\n".join(instructions))


def opening_of(lines: list[str]) -> list[str]:
    """What stands above the first block: the instructions."""
    return lines[: next((i for i, line in enumerate(lines) if _OPENS_A_BLOCK.match(line)), len(lines))]


def _last(lines: list[str], opening: str) -> int:
    """Index of the last line that starts with `opening`, else -1."""
    return next((i for i in range(len(lines) - 1, -1, -1) if lines[i].startswith(opening)), -1)


def _loose_question(lines: list[str]) -> str:
    """Where nothing is marked as the question: the last line that ends in a question mark, else the last one."""
    kept = [line.strip() for line in lines if line.strip()]
    return next((line for line in reversed(kept) if line.endswith("?")), kept[-1] if kept else "")


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
        line = lines[i]
        if line.rstrip() == "Knowledge:":
            return [text.strip() for text in lines[i + 1 : end] if text.strip()]
        if line.startswith((THINK, "Answer:")) and i and lines[i - 1].startswith("Question:"):
            break
    return []


def _context(lines: list[str], end: int) -> str:
    """The text of the nearest ``Context:`` above `end`."""
    at = _last(lines[:end], "Context:")
    return "\n".join([lines[at][len("Context:") :], *lines[at + 1 : end]]).strip() if at >= 0 else ""
