"""ARC (Clark et al. 2018), its Challenge set: questions of science exams in school, with three to five options.

Data: https://allenai.org/data/arc (`ARC-Challenge-Test.jsonl`), or `allenai/ai2_arc`, `ARC-Challenge`, on the Hugging
Face hub; Self-RAG's copy (`arc_challenge_processed.jsonl`) has the hub's layout, and passages. A row (made up, in the
official layout)::

    {"id": "Isle_417", "answerKey": "B",
     "question": {"stem": "Which of these floats on the sea?",
                  "choices": [{"text": "slate", "label": "A"}, {"text": "ice", "label": "B"}]}}

The options are part of the question, a line each, ``(A) slate``; prompts that hold a question on one line show them in
a row. They are lettered from A whatever the file calls them (some rows have 1 to 4), so that the answer is always a
letter, and the prompt the same. Golden answers are the letter and, beside it, the text of its option.

Differs from CDIT (Ma et al. 2024), which shows the options as ``A: slate`` and calls right what includes the letter:
here `accuracy`, which reads the letter strictly, leads, and `inclusion` stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BeforeValidator

from blendfilter.errors import BadData
from blendfilter.files import JsonRow
from blendfilter.records import Question, one_line
from blendfilter.tasks.base import Hub, Task
from blendfilter.tasks.layouts import Outside, checked, mapping, question
from blendfilter.text import LETTERS, choices


def _lettered(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row in FlashRAG's layout, whose options have no labels and whose answers count them from 0, with letters."""
    texts = value.get("choices")
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        return value
    letters = dict(enumerate(LETTERS[: len(texts)]))
    changed: dict[str, Any] = {"choices": {"text": list(texts), "label": list(letters.values())}}
    for name in ("golden_answers", "answer"):
        if (given := value.get(name)) is not None:
            answers = given if isinstance(given, list | tuple) else [given]
            changed[name] = [letters.get(one, one) if type(one) is int else one for one in answers]
    return {**value, **changed}


def _columns(value: Any) -> Any:
    """Options as objects, or as (label, text), in the hub's two columns."""
    if not isinstance(value, list | tuple):
        return value
    if any(isinstance(one, str) for one in value):
        raise ValueError("expected options with labels")
    options = [
        one if isinstance(one, Mapping) else dict(zip(("label", "text"), one, strict=True))
        for one in value
    ]
    return {name: [one.get(name) for one in options] for name in ("label", "text")}


class ArcColumns(Outside):
    """The options of a question."""

    text: list[str]
    label: list[str]


class ArcRecord(Outside):
    """The options in a row."""

    choices: Annotated[ArcColumns, BeforeValidator(_columns)]


def parse(row: JsonRow) -> Question:
    """A row in the official layout, the hub's, or any other whose options are in it. Raises `BadData`."""
    value = _lettered(mapping(row))
    if isinstance(stem := value.get("question"), Mapping):
        value = {**value, **stem, "question": stem.get("stem")}
    read = question(row, value, names={"answerKey": "answer"})
    found = choices(read.question)
    options = checked(
        ArcRecord, row._replace(value={"choices": found.options, **read.metadata})
    ).choices
    if (
        "choices" not in read.metadata
    ):  # as this package writes a question: its options stand behind it
        read = replace(read, question=found.stem)
    if len(options.text) != len(options.label) or not 2 <= len(options.text) <= len(LETTERS):
        raise BadData(
            f"{row.where}: a question of arc has 2 to {len(LETTERS)} options, each with a label, found "
            f"{len(options.text)}; without options it is one of task 'qa'"
        )
    letters = {label.strip(): letter for label, letter in zip(options.label, LETTERS, strict=False)}
    texts = dict(zip(LETTERS, map(one_line, options.text), strict=False))
    answers = [answer.strip() for answer in read.golden_answers]
    letter = next((letters[answer] for answer in answers if answer in letters), "")
    # Beside the label, its option's text may stand, as this package writes it.
    others = [
        answer
        for answer in answers
        if letter not in (letters.get(answer), "") and answer != texts[letter]
    ]
    if not letter or others or len(letters) < len(options.label):
        raise BadData(
            f"{row.where}: the answer of an arc question is the label of one option ({', '.join(options.label)}), "
            f"found {', '.join(map(repr, answers)):.60}"
        )
    return replace(
        read,
        question="\n".join([read.question, *(f"({name}) {text}" for name, text in texts.items())]),
        golden_answers=(letter, texts[letter]),
        metadata={**read.metadata, "choices": texts},
    )


TASK = Task(
    "arc",
    metrics=("accuracy", "inclusion"),
    wording="arc",
    parse=parse,
    hub=Hub("allenai/ai2_arc", "ARC-Challenge", "test"),
    sample="science.jsonl",
)
