"""ARC (Clark et al. 2018), its Challenge set: questions of science exams in school, with three to five options.

Data: https://allenai.org/data/arc (`ARC-Challenge-Test.jsonl`), or `allenai/ai2_arc`, `ARC-Challenge`, on the Hugging
Face hub; Self-RAG's copy (`arc_challenge_processed.jsonl`) has the hub's layout, and passages. A row (made up, in the
official layout)::

    {"id": "Isle_417", "answerKey": "B",
     "question": {"stem": "Which of these floats on the sea?",
                  "choices": [{"text": "slate", "label": "A"}, {"text": "ice", "label": "B"}]}}

The options are part of the question, a line each, ``(A) slate``; prompts that hold a question on one line show them in
a row. They are lettered from A whatever the file calls them (some rows have 1 to 4), so that the answer is always a
letter, and what is asked for the same. Golden answers are the letter and, beside it, the text of its option.

Differs from CDIT (Ma et al. 2024), which shows the options as ``A: slate`` and calls right what includes the letter:
here `accuracy`, which reads the letter strictly, leads, and `inclusion` stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import AliasChoices, Field

from blendfilter.errors import BadData
from blendfilter.files import JsonRow
from blendfilter.records import Question, one_line
from blendfilter.tasks.base import Hub, Task
from blendfilter.tasks.dpr import DprPassage
from blendfilter.tasks.layouts import Paragraph, is_normalised, normalised, paragraphs
from blendfilter.tasks.reading import Outside, answers_of, checked, mapping, row_id
from blendfilter.text import LETTERS, choices


class Option(Outside):
    """One option as an object."""

    text: str
    label: str


class Columns(Outside):
    """All options as two columns: the hub's way."""

    text: list[str]
    label: list[str]


class Asked(Outside):
    """The question of an official row."""

    stem: str
    choices: tuple[Option, ...]


class Official(Outside):
    """A row as the authors publish it."""

    id: str | None = None
    question: Asked
    answer: str = Field(validation_alias=AliasChoices("answerKey", "answer"))


class Flat(Outside):
    """A row of the hub, of Self-RAG, with passages, or of somebody's own: the options stand beside the question."""

    id: str | None = None
    question: str
    choices: Columns | tuple[Option, ...]
    answer: str = Field(validation_alias=AliasChoices("answerKey", "answer"))
    ctxs: tuple[DprPassage, ...] = ()


def parse(row: JsonRow) -> Question:
    """A row in the official layout, the hub's, the normalised one or anyone's own. Raises `BadData`."""
    value = mapping(row)
    if is_normalised(row) or ("choices" not in value and isinstance(value.get("question"), str)):
        return _from_normalised(row)
    if isinstance(value.get("question"), Mapping):
        official = checked(Official, row)
        asked = Question(row_id(row, official.id), official.question.stem, (official.answer,), metadata=official.rest)
        return _with_options(asked, official.question.choices, row)
    flat = checked(Flat, row)
    name = row_id(row, flat.id)
    found = (Paragraph(one.title, [one.text], one.id, one.rest) for one in flat.ctxs)
    context = paragraphs(name, found, "")
    asked = Question(name, flat.question, (flat.answer,), context=context, metadata=flat.rest)
    return _with_options(asked, _rows_of(flat.choices, row), row)


def _rows_of(options: Columns | tuple[Option, ...], row: JsonRow) -> tuple[Option, ...]:
    if not isinstance(options, Columns):
        return options
    if len(options.text) != len(options.label):
        raise BadData(
            f"{row.where}: field 'choices' is wrong: {len(options.text)} texts and {len(options.label)} labels; each "
            "text has one: fetch the file again"
        )
    pairs = zip(options.text, options.label, strict=True)
    return tuple(Option(text=text, label=label) for text, label in pairs)


def _from_normalised(row: JsonRow) -> Question:
    """The options stand in the metadata; or, as this package writes a question, behind its words."""
    question = normalised(row, " ")
    listed = question.metadata.get("choices")
    if listed is None:
        stem, found = choices(question.question)
        options = tuple(Option(text=text, label=letter) for letter, text in found)
        return _with_options(replace(question, question=stem), options, row)
    held = checked(Held, JsonRow(row.where, row.position, {"choices": listed}))
    # "answer_text" repeats what is now a golden answer.
    rest = {key: kept for key, kept in question.metadata.items() if key not in ("choices", "answer_text")}
    return _with_options(replace(question, metadata=rest), _rows_of(held.choices, row), row)


class Held(Outside):
    """Where the metadata hold the options."""

    choices: Columns | tuple[Option, ...]


def _with_options(question: Question, options: tuple[Option, ...], row: JsonRow) -> Question:
    """The question with its options behind it, lettered, and the answer as letter and text."""
    if not 2 <= len(options) <= len(LETTERS):
        raise BadData(
            f"{row.where}: a question of arc has 2 to {len(LETTERS)} options, found {len(options)}; without options "
            "it is one of task 'qa'"
        )
    letters = {option.label.strip(): letter for option, letter in zip(options, LETTERS, strict=False)}
    if len(letters) < len(options):
        raise BadData(f"{row.where}: two options have the label of one: each has its own")
    said = question.golden_answers[0].strip()
    if said not in letters:
        raise BadData(
            f"{row.where}: the answer of an arc question is the label of an option ({', '.join(letters)}), "
            f"found {said!r:.60}"
        )
    letter = letters[said]
    texts = dict(zip(LETTERS, (one_line(option.text) for option in options), strict=False))
    lines = [f"({name}) {text}" for name, text in texts.items()]
    kept: dict[str, Any] = dict(question.metadata)
    return replace(
        question,
        question="\n".join([question.question.strip(), *lines]),
        golden_answers=answers_of(row, (letter, texts[letter])),
        metadata={**kept, "choices": texts},
    )


TASK = Task(
    "arc",
    metrics=("accuracy", "inclusion"),
    wording="arc",
    parse=parse,
    hub=Hub("allenai/ai2_arc", "ARC-Challenge", "test"),
    sample="science.jsonl",
)
