"""A model that chats: it does what is asked, in the words and the dress in which chat models do it.

A pure function of the prompt. What it means is the offline reader's reply; how it says so is one of the styles below,
chosen by the prompt's bytes. Every style is clear to a reader: none is worth a second call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from zlib import crc32

from blendfilter.lm.offline import read

Style = Callable[[Sequence[int], Sequence[int]], str]


def _and(numbers: Sequence[int]) -> str:
    return " and ".join(filter(None, [", ".join(map(str, numbers[:-1])), str(numbers[-1])]))


def _each(ids: Sequence[int], others: Sequence[int], line: Callable[[int, bool], str]) -> str:
    return "\n".join(line(number, number in ids) for number in sorted([*ids, *others]))


IDS: list[Style] = [
    lambda ids, others: ", ".join(map(str, ids)),
    lambda ids, others: f"Ids: {', '.join(map(str, ids))}",
    lambda ids, others: f"**{', '.join(map(str, ids))}**",
    lambda ids, others: f"The relevant passages are {_and(ids)}.",
    lambda ids, others: f"Based on the judgement above, the relevant passages are: {', '.join(map(str, ids))}",
    lambda ids, others: f"{', '.join(map(str, ids))}\n\nThe other passages are not relevant to the question.",
    lambda ids, others: " and ".join(f"knowledge {i}" for i in ids).capitalize() + " are relevant. The others are not.",
    lambda ids, others: _each(ids, others, lambda i, kept: f"{i}: {'yes' if kept else 'no'}"),
    lambda ids, others: _each(ids, others, lambda i, kept: f"{i}: what it says - {'' if kept else 'ir'}relevant"),
    lambda ids, others: _each(ids, others, lambda i, kept: f"{i} {'✓' if kept else '✗'}"),
    lambda ids, others: (
        f"Relevant: {', '.join(map(str, ids))}" + (f"\nNot relevant: {', '.join(map(str, others))}" if others else "")
    ),
    lambda ids, others: f"```json\n[{', '.join(map(str, ids))}]\n```",
    lambda ids, others: "\n".join(f"- {i}" for i in ids),
]
CHECK: list[Callable[[str], str]] = [
    lambda lines: lines,
    lambda lines: f"Here is my assessment of each passage:\n\n{lines}",
    lambda lines: re.sub(r"(?m)^(\d+): (.*) - ((?:ir)?relevant)$", r"**Knowledge \1** (\3): it \2.", lines),
    lambda lines: "\n".join(f"- {line}" for line in lines.splitlines()),
]
SHORT: list[Callable[[str], str]] = [
    lambda answer: answer,
    lambda answer: f"**{answer}**",
    lambda answer: f"The answer is {answer}.",
    lambda answer: f"Answer: {answer}",
    lambda answer: f"Based on the reasoning, the answer is {answer}.",
    lambda answer: f'"{answer}"',
    lambda answer: f"{answer}\n\nThis follows from the context.",
    lambda answer: f"The final answer is:\n{answer}",
]


def chat(prompt: str) -> str:
    """The reply, in the style that the prompt's bytes choose."""
    right, cue = read(prompt), prompt.rstrip().rsplit("\n", 1)[-1]

    def one_of(styles: Sequence[Callable[..., str]], *said: object) -> str:
        return styles[crc32(prompt.encode()) % len(styles)](*said)

    if cue.startswith("Ids"):
        ids = [int(number) for number in re.findall(r"\d+", right)]
        shown = re.findall(r"(?m)^knowledge (\d+):", prompt)
        others = [number for number in range(int(shown[-1]) + 1) if number not in ids]
        return one_of(IDS, ids, others) if ids else "None of the passages is relevant."
    if cue.startswith("Relevance"):
        return one_of(CHECK, right)
    return one_of(SHORT, right) if cue.startswith(("Answer", "Topic")) else right
