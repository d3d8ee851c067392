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
it saw. Scored by unigram F1, one of KILT's two measures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from blendfilter.errors import BadData
from blendfilter.files import JsonRow, json_rows
from blendfilter.records import Question, one_line
from blendfilter.tasks import layouts
from blendfilter.tasks.base import Hub, Task
from blendfilter.tasks.generic import is_own, own
from blendfilter.tasks.layouts import Outside, Paragraph, checked, is_kilt, kilt, mapping, normalised

JOINER = " "
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


class _CutDialogue(NamedTuple):
    """A dialogue and the number of the turn that answers."""

    whole: WizardDialogue
    at: int


def dialogue(turns: Iterable[str]) -> str:
    """The turns on one line, `BETWEEN` between them; a turn that holds the mark has it without its spaces.

    >>> dialogue(["I like lamps.", "Why? // Me too."])
    'I like lamps. // Why?//Me too.'
    """
    return BETWEEN.join(turn.replace(BETWEEN, BETWEEN.strip()) for turn in map(one_line, turns) if turn)


def turns_of(question: str) -> list[str]:
    """The turns of a dialogue on one line."""
    return question.split(BETWEEN)


def parse(row: JsonRow) -> Question:
    """A row in KILT's layout, the normalised one or anyone's own (a turn a line), or a dialogue cut at a turn.

    Raises: BadData.
    """
    if isinstance(row.value, _CutDialogue):
        return _question(row, row.value)
    if isinstance(mapping(row).get("dialog"), Sequence):
        raise BadData(f"{row.where}: a whole dialogue holds several questions: give the file itself, not its rows")
    question = kilt(row) if is_kilt(row) else own(row) if is_own(row) else normalised(row, JOINER)
    turns = question.question.splitlines()
    return replace(question, question=dialogue(turns)) if len(turns) > 1 else question


def rows(path: Path) -> Iterator[JsonRow]:
    """The rows of any file of this task; a whole dialogue gives a row for each turn of its wizard."""
    for row in json_rows(path):
        if not isinstance(row.value, Mapping) or "dialog" not in row.value:
            yield row
            continue
        found = checked(WizardDialogue, row)
        for number, turn in enumerate(found.dialog):
            if "wizard" in turn.speaker.lower():
                yield JsonRow(f"{row.where}, turn {number + 1}", row.position, _CutDialogue(found, number))


def _question(row: JsonRow, cut: _CutDialogue) -> Question:
    """The dialogue up to a turn, which is the answer."""
    whole, at = cut
    before, turn = whole.dialog[:at], whole.dialog[at]
    passages = _passages(whole, before[-2:])
    title = _checked_title(turn, passages)
    return layouts.question(
        row, f"{row.position}-{at}", dialogue([one.text for one in before] or [whole.chosen_topic]),
        [turn.text.strip()], titles=[title] if title else [],
        context=(Paragraph(title, texts) for title, texts in passages.items()), joiner=JOINER,
        metadata={"topic": whole.chosen_topic, "checked_sentence": next(_values(turn.checked_sentence), "")},
    )  # fmt: skip


def _passages(whole: WizardDialogue, last: Sequence[WizardTurn]) -> dict[str, Sequence[str]]:
    """The passages that the wizard saw: of the topic, and what the last two turns retrieved, the newest first."""
    passages: dict[str, Sequence[str]] = {whole.chosen_topic: whole.chosen_topic_passage}
    for turn in reversed(last):
        for passage in turn.retrieved_passages:
            for title, texts in passage.items():
                passages.setdefault(title, texts)
    return {title: texts for title, texts in passages.items() if texts}


def _checked_title(turn: WizardTurn, passages: Mapping[str, Sequence[str]]) -> str:
    """The page of the sentence that the wizard ticked, "" where it ticked none."""
    sentence = next(_values(turn.checked_sentence), "no_passages_used")
    if sentence == "no_passages_used":
        return ""
    named = [*_values(turn.checked_passage), *(" ".join(key.split("_")[1:-1]) for key in turn.checked_sentence or {})]
    return next((title for title in (*named, *passages) if sentence in passages.get(title, ())), named[0])


def _values(column: Mapping[str, str] | None) -> Iterator[str]:
    return iter((column or {}).values())


TASK = Task(
    "wow",
    metrics=("f1",),
    wording="wow",
    parse=parse,
    hub=Hub("facebook/kilt_tasks", "wow", "validation"),
    sample="dialogues.jsonl",
    rows=rows,
)
