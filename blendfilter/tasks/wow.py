"""Wizard of Wikipedia (Dinan et al. 2019): dialogues in which one side looks things up; what does it say next?

Data: https://parl.ai/projects/wizard_of_wikipedia (`train.json`, `valid_random_split.json`, `test_topic_split.json`);
KILT's copy is `wow-dev-kilt.jsonl`, or `facebook/kilt_tasks` on the Hugging Face hub. Part of a row (made up, in the
layout of the authors)::

    {"chosen_topic": "Lighthouse", "chosen_topic_passage": ["A lighthouse is a tower with a lamp.", "It guides ships."],
     "dialog": [{"speaker": "0_Apprentice", "text": "I'd love to live in one.", "retrieved_passages": []},
                {"speaker": "1_Wizard", "text": "They were built to guide ships!", "retrieved_passages": [],
                 "checked_sentence": {"chosen_Lighthouse_0": "It guides ships."},
                 "checked_passage": {"chosen_Lighthouse_0": "Lighthouse"}}]}

A question is the dialogue up to a turn of the wizard, the answer is that turn. A question is one line: the
turns (KILT: one a line) stand one after the other with " // " between them, the oldest first. Where the wizard opens
the dialogue, the question is its topic. Gold is the page of the sentence that the wizard ticked, `context` the passages
it saw. Scored by unigram F1 and ROUGE-L, KILT's two measures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from blendfilter.files import JsonRow, json_rows
from blendfilter.records import Question, one_line
from blendfilter.tasks.base import Hub, Task
from blendfilter.tasks.layouts import Outside, checked, question

BETWEEN = " // "
"""What stands between two turns of a dialogue on one line."""


class WizardTurn(Outside):
    """One turn; only the wizard's have a checked sentence, under a key made of its page and number."""

    speaker: str
    text: str
    retrieved_passages: tuple[dict[str, list[str]], ...] = ()
    checked_sentence: dict[str, str] | None = None
    checked_passage: dict[str, str] | None = None


class WizardDialogue(Outside):
    """A whole dialogue as the authors publish it."""

    chosen_topic: str
    chosen_topic_passage: tuple[str, ...] = ()
    dialog: tuple[WizardTurn, ...]


def dialogue(turns: Iterable[str]) -> str:
    """The turns on one line, `BETWEEN` between them; a turn that holds the mark has it without its spaces.

    >>> dialogue(["I like lamps.", "Why? // Me too."])
    'I like lamps. // Why?//Me too.'
    """
    return BETWEEN.join(
        turn.replace(BETWEEN, BETWEEN.strip()) for turn in map(one_line, turns) if turn
    )


def parse(row: JsonRow) -> Question:
    """A row whose question has a turn a line. Raises `BadData`."""
    read = question(row)
    turns = read.question.splitlines()
    return replace(read, question=dialogue(turns)) if len(turns) > 1 else read


def rows(path: Path) -> Iterator[JsonRow]:
    """The rows of a file; a whole dialogue gives one for each turn of its wizard."""
    for row in json_rows(path):
        if not isinstance(row.value, Mapping) or "dialog" not in row.value:
            yield row
            continue
        whole = checked(WizardDialogue, row)
        for at, turn in enumerate(whole.dialog):
            if "wizard" in turn.speaker.lower():
                value = _asked(whole, whole.dialog[:at], turn)
                yield JsonRow(
                    f"{row.where}, turn {at + 1}",
                    row.position,
                    {"id": f"{row.position}-{at}", **value},
                )


def _asked(
    whole: WizardDialogue, before: Sequence[WizardTurn], turn: WizardTurn
) -> dict[str, Any]:
    """The dialogue up to a turn, which is the answer, and the passages that the wizard saw.

    These are the topic's, and what the last two turns retrieved, the newest first.
    """
    passages: dict[str, Sequence[str]] = {whole.chosen_topic: whole.chosen_topic_passage}
    for earlier in reversed(before[-2:]):
        for title, texts in (
            pair for retrieved in earlier.retrieved_passages for pair in retrieved.items()
        ):
            passages.setdefault(title, texts)
    sentence = next(iter((turn.checked_sentence or {}).values()), "")
    pages = (title for title, texts in passages.items() if sentence in texts)
    return {
        "question": dialogue([one.text for one in before] or [whole.chosen_topic]),
        "answer": turn.text.strip(),
        "gold_titles": [*pages, *(turn.checked_passage or {}).values()][:1]
        if sentence != "no_passages_used"
        else [],
        "context": [(title, texts) for title, texts in passages.items() if texts],
        "topic": whole.chosen_topic,
        "checked_sentence": sentence,
    }


TASK = Task(
    "wow",
    metrics=("f1", "rouge-l"),
    wording="wow",
    parse=parse,
    hub=Hub("facebook/kilt_tasks", "wow", "validation"),
    sample="dialogues.jsonl",
    rows=rows,
)
