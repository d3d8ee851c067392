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

from pydantic import AliasChoices, Field

from blendfilter.errors import BadData
from blendfilter.files import JsonRow
from blendfilter.records import Question, one_line
from blendfilter.tasks import layouts
from blendfilter.tasks.base import Hub, Task
from blendfilter.tasks.layouts import Outside, RetrievedPassage, checked, is_normalised, mapping
from blendfilter.text import LETTERS, choices


class ArcOption(Outside):
    """One option as an object."""

    text: str
    label: str


class ArcColumns(Outside):
    """All options as two columns: the hub's way."""

    text: list[str]
    label: list[str]


class ArcStem(Outside):
    """The question of an official row."""

    stem: str
    choices: tuple[ArcOption, ...]


class ArcRecord(Outside):
    """A row as the authors publish it."""

    id: str | None = None
    question: ArcStem
    answer: str = Field(validation_alias=AliasChoices("answerKey", "answer"))


class FlatArcRecord(Outside):
    """A row of the hub, of Self-RAG, with passages, or of anyone's own: the options stand beside the question."""

    id: str | None = None
    question: str
    choices: ArcColumns | tuple[ArcOption, ...]
    answer: str = Field(validation_alias=AliasChoices("answerKey", "answer"))
    ctxs: tuple[RetrievedPassage, ...] = ()


class ArcMetadata(Outside):
    """Options in the metadata of a normalised row."""

    choices: ArcColumns | tuple[ArcOption, ...]


def parse(row: JsonRow) -> Question:
    """A row in the official layout, the hub's, the normalised one or anyone's own. Raises `BadData`."""
    value = mapping(row)
    if is_normalised(row) or ("choices" not in value and isinstance(value.get("question"), str)):
        return _from_normalised(row)
    if isinstance(value.get("question"), Mapping):
        official = checked(ArcRecord, row)
        stem = official.question
        bare = layouts.question(row, official.id, stem.stem, [official.answer], metadata=official.rest)
        return _with_options(bare, stem.choices, row)
    flat = checked(FlatArcRecord, row)
    context = (one.paragraph for one in flat.ctxs)
    bare = layouts.question(row, flat.id, flat.question, [flat.answer], context=context, metadata=flat.rest)
    return _with_options(bare, flat.choices, row)


def _from_normalised(row: JsonRow) -> Question:
    """The options stand in the metadata; or, as this package writes a question, behind its words."""
    question = layouts.normalised(row, " ")
    listed = question.metadata.get("choices")
    if listed is None:
        stem, found = choices(question.question)
        options = tuple(ArcOption(text=text, label=letter) for letter, text in found)
        return _with_options(replace(question, question=stem), options, row)
    # "answer_text" repeats what is now a golden answer.
    rest = {key: kept for key, kept in question.metadata.items() if key not in ("choices", "answer_text")}
    options_of = checked(ArcMetadata, JsonRow(row.where, row.position, {"choices": listed}))
    return _with_options(replace(question, metadata=rest), options_of.choices, row)


def _with_options(question: Question, options: ArcColumns | tuple[ArcOption, ...], row: JsonRow) -> Question:
    """The question with its options behind it, lettered, and the answer as letter and text."""
    columns = options
    if not isinstance(columns, ArcColumns):
        columns = ArcColumns(text=[one.text for one in columns], label=[one.label for one in columns])
    if len(columns.text) != len(columns.label):
        raise BadData(
            f"{row.where}: field 'choices' is wrong: {len(columns.text)} texts and {len(columns.label)} labels; each "
            "text has one: fetch the file again"
        )
    if not 2 <= len(columns.text) <= len(LETTERS):
        raise BadData(
            f"{row.where}: a question of arc has 2 to {len(LETTERS)} options, found {len(columns.text)}; without "
            "options it is one of task 'qa'"
        )
    letters = {label.strip(): letter for label, letter in zip(columns.label, LETTERS, strict=False)}
    if len(letters) < len(columns.label):
        raise BadData(f"{row.where}: two options have the label of one: each has its own")
    answer = question.golden_answers[0].strip()
    if answer not in letters:
        raise BadData(
            f"{row.where}: the answer of an arc question is the label of an option ({', '.join(letters)}), "
            f"found {answer!r:.60}"
        )
    letter = letters[answer]
    texts = dict(zip(LETTERS, map(one_line, columns.text), strict=False))
    return replace(
        question,
        question="\n".join([question.question.strip(), *(f"({name}) {text}" for name, text in texts.items())]),
        golden_answers=layouts.answers_of(row, (letter, texts[letter])),
        metadata={**question.metadata, "choices": texts},
    )


TASK = Task(
    "arc",
    metrics=("accuracy", "inclusion"),
    wording="arc",
    parse=parse,
    hub=Hub("allenai/ai2_arc", "ARC-Challenge", "test"),
    sample="science.jsonl",
)
