"""Prompts that end in ``### Response:``, and questions whose answer is one of their options.

Input: a prompt with its background and its instruction, or a question of choice with passages. Output: what is asked,
as a `Sheet` like any other; the letter of the option that the passages speak for.
"""

from __future__ import annotations

import re

from blendfilter.lm.offline.prompt import Sheet
from blendfilter.lm.offline.reading import read_passages, stems
from blendfilter.text import Choices

RESPONSE = "### Response:"
_BACKGROUND, _INSTRUCTION = "### Background:", "### Instruction:"
_NUMBERED = re.compile(r"\[\d{1,6}\] ")
_OPTION = re.compile(r"\([A-E]\) ")


def asks_for_response(prompt: str) -> bool:
    """Whether the prompt's last line is this cue."""
    return prompt.rstrip().rpartition("\n")[2].strip() == RESPONSE


def take_response_apart(prompt: str) -> Sheet:
    """The parts of the last block: background, question with its options, and what stands below as instructions.

    >>> above = "### Background:\\n[1] Orm | A pier.\\n\\n### Instruction:\\nWhat is Orm?"
    >>> sheet = take_response_apart(f"{above}\\n\\n### Response:")
    >>> sheet.question, sheet.passages
    ('What is Orm?', ('Orm | A pier.',))
    """
    lines = prompt.rstrip().split("\n")[:-1]
    asked = _last(lines, _INSTRUCTION, len(lines))
    shown = _last(lines, _BACKGROUND, asked)
    passages = tuple(line[mark.end() :].strip() for line in lines[shown:asked] if (mark := _NUMBERED.match(line)))
    own = [line.strip() for line in lines[asked + 1 :]]
    options = 1
    while options < len(own) and _OPTION.match(own[options]):
        options += 1
    return Sheet(RESPONSE, " ".join(own[:options]).strip(), passages, "", "\n".join(own[options:]))


def _last(lines: list[str], heading: str, end: int) -> int:
    """Index of the last such heading above `end`, else the first line's."""
    return next((at for at in range(end - 1, -1, -1) if lines[at].strip() == heading), 0)


def chosen(asked: Choices, lines: tuple[str, ...]) -> str:
    """The letter of the option whose own words, and the question's, the best sentence holds; the first among equals.

    >>> options = (("A", "slate"), ("B", "ice"))
    >>> chosen(Choices("Which of these floats?", options), ("Ice | Ice floats on water.", "Slate | Slate sinks."))
    'B'
    """
    return max(asked.options, key=lambda option: _support(asked.stem, option[1], lines))[0]


def _support(stem: str, option: str, lines: tuple[str, ...]) -> tuple[float, float]:
    """How well one sentence, with its title, holds question and option; by the option's share of it, then by all."""
    own = stems(option) - stems(stem) or stems(option)
    best = (0.0, 0.0)
    for sentence in read_passages(f"{stem} {option}", lines).chosen:
        held = sentence.stems | sentence.title_stems
        told = len(own & held) / max(1, len(own))
        best = max(best, (told * len(stems(stem) & held), told))
    return best
