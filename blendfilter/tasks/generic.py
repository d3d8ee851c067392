"""`qa`: anyone's own questions, as JSON Lines or a JSON list. Least possible row, and everything a row may hold::

    {"question": "Who runs the mill?", "answer": "Ane Lindqvist"}
    {"id": "m-17", "question": "Who runs the mill?", "answers": ["Ane Lindqvist", "A. Lindqvist"], "type": "bridge",
     "gold_titles": ["Lindqvist family", "Tide Mill"], "supporting_facts": [["Tide Mill", 2]],
     "context": [{"title": "Tide Mill", "text": "The mill at Bremsund ..."}, ["Quay", ["One sentence.", "Another."]]]}

Answers may stand under `golden_answers`, `answers` or `answer`, one or several, and may be numbers or true/false (read
as yes/no). The normalised layout of this package, FlashRAG's, NQ-open's, SQuAD-like answers (``{"text": [...]}``),
HotPotQA's and IRCoT's are read as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import AliasChoices, Field

from blendfilter.errors import BadData
from blendfilter.files import JsonRow
from blendfilter.records import Question
from blendfilter.tasks import layouts
from blendfilter.tasks.base import Task
from blendfilter.tasks.layouts import Facts, Names, Outside, Paragraph, TitledSentences, checked, has, mapping

JOINER = " "
ANSWERS = ("golden_answers", "answers", "answer")
"""Fields that may hold the answers; the first one present counts."""


class OwnRecord(Outside):
    """The fields of a free-form row that are not answers or paragraphs."""

    id: str | None = Field(None, validation_alias=AliasChoices("id", "_id", "qid", "question_id"))
    question: str
    type: str | None = None
    gold_titles: Names = ()
    supporting_facts: Facts = ()


class OwnParagraph(Outside):
    """A paragraph given as an object."""

    title: str = ""
    text: str | None = None
    sentences: list[str] | None = None
    id: str | None = Field(None, validation_alias=AliasChoices("id", "paragraph_id"))


class OwnContext(Outside):
    """Paragraphs given as HotPotQA does: pairs of title and sentences, or these two as columns."""

    context: TitledSentences


def parse(row: JsonRow) -> Question:
    """A row of anyone's question file. Raises `BadData` naming the field that is missing or wrong."""
    value = mapping(row)
    if isinstance(value.get("metadata"), Mapping) and "golden_answers" in value:
        return layouts.normalised(row, JOINER)
    if "question_text" in value and "answers_objects" in value:
        return layouts.ircot(row)
    read = checked(OwnRecord, row)
    return layouts.question(
        row, read.id, read.question, _answers(row, value),
        titles=read.gold_titles or (title for title, _ in read.supporting_facts), facts=read.supporting_facts,
        context=_paragraphs(row, value.get("context")), joiner=JOINER, type=read.type,
        metadata={key: kept for key, kept in read.rest.items() if key not in (*ANSWERS, "context")},
    )  # fmt: skip


def is_own(row: JsonRow) -> bool:
    """Whether the row is a question with answers, whatever else it holds: for tasks that read such rows as well."""
    value = mapping(row)
    return "question" in value and any(value.get(field) is not None for field in ANSWERS)


def own(row: JsonRow) -> Question:
    """A row of `is_own`, in the normalised layout or free. Raises `BadData`."""
    return layouts.normalised(row, JOINER) if isinstance(mapping(row).get("metadata"), Mapping) else parse(row)


def _answers(row: JsonRow, value: Mapping[str, Any]) -> Iterator[str]:
    field = next((field for field in ANSWERS if value.get(field) is not None), None)
    if field is None:
        raise BadData(f"{row.where}: field 'answer' (or 'answers', 'golden_answers') is missing ({has(value)})")
    found = value[field]
    if isinstance(found, Mapping) and "text" in found:
        found = found["text"]
    for answer in found if isinstance(found, list | tuple) else [found]:
        if not isinstance(answer, str | int | float):
            raise BadData(
                f"{row.where}: field '{field}' is wrong: expected a text or a list of texts, found {answer!r:.60}"
            )
        yield ("yes" if answer else "no") if isinstance(answer, bool) else str(answer)


def _paragraphs(row: JsonRow, context: Any) -> Iterator[Paragraph]:
    """Paragraphs as objects, pairs, columns or plain texts."""
    if context is None:
        return
    if isinstance(context, Mapping):
        whole = checked(OwnContext, JsonRow(row.where, row.position, {"context": context}))
        yield from (Paragraph(title, texts) for title, texts in whole.context)
        return
    if isinstance(context, str):
        context = [context]
    if not isinstance(context, Iterable):
        raise BadData(f"{row.where}: field 'context' is wrong: expected a list of paragraphs, found {context!r:.60}")
    for number, one in enumerate(context):
        yield _paragraph(JsonRow(f"{row.where}, context {number}", number, one))


def _paragraph(row: JsonRow) -> Paragraph:
    if isinstance(row.value, str):
        return Paragraph("", [row.value])
    if isinstance(row.value, list | tuple):
        pair = checked(OwnContext, JsonRow(row.where, row.position, {"context": [row.value]}))
        return Paragraph(*pair.context[0])
    read = checked(OwnParagraph, row)
    texts = read.sentences if read.sentences is not None else [read.text] if read.text is not None else None
    if texts is None:
        raise BadData(f"{row.where}: field 'text' (or 'sentences') is missing ({has(row.value)})")
    return Paragraph(read.title, texts, read.id, read.rest)


TASK = Task("qa", metrics=("em", "f1"), wording="hotpotqa", parse=parse)
