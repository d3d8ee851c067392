"""DPR's files (Karpukhin et al. 2020): questions with passages that hold the answer and passages that do not.

In: a row of `biencoder-*.json`, or of what DPR's retriever writes (`ctxs`, ranked). Out: a `Question` whose `context`
are these passages, the positive ones first. Rows (made up)::

    {"dataset": "nq_dev_psgs_w100", "question": "who keeps the light on skerry rock", "answers": ["Ada Brennock"],
     "positive_ctxs": [{"title": "Skerry Light", "text": "Skerry Light is ...", "score": 1000, "passage_id": "417"}],
     "negative_ctxs": [], "hard_negative_ctxs": [{"title": "Skerry", "text": "...", "passage_id": "93"}]}
    {"question": "who keeps the light on skerry rock", "answers": ["Ada Brennock"],
     "ctxs": [{"id": "417", "title": "Skerry Light", "text": "...", "score": "81.2", "has_answer": true}]}

A positive passage is gold by itself, so each title is a set of evidence of its own. `has_answer` only says that the
string occurs: what is retrieved is no gold.
"""

from __future__ import annotations

from pydantic import AliasChoices, Field

from blendfilter.files import JsonRow
from blendfilter.records import Question
from blendfilter.tasks.layouts import Names, Paragraph, distinct, paragraphs
from blendfilter.tasks.reading import Outside, answers_of, checked, mapping, row_id

_CONTEXTS = ("positive_ctxs", "ctxs")


class DprPassage(Outside):
    id: str | None = Field(None, validation_alias=AliasChoices("passage_id", "psg_id", "id"))
    title: str = ""
    text: str


class Dpr(Outside):
    """A row of DPR's training files or of its retriever's output."""

    id: str | None = Field(None, validation_alias=AliasChoices("id", "question_id", "q_id"))
    question: str
    answers: Names
    positive_ctxs: tuple[DprPassage, ...] = ()
    hard_negative_ctxs: tuple[DprPassage, ...] = ()
    negative_ctxs: tuple[DprPassage, ...] = ()
    ctxs: tuple[DprPassage, ...] = ()


def is_dpr(row: JsonRow) -> bool:
    """Whether the row is in DPR's layout."""
    return any(name in mapping(row) for name in _CONTEXTS)


def dpr(row: JsonRow) -> Question:
    """``{"question", "answers", "positive_ctxs", "hard_negative_ctxs", "negative_ctxs"}`` or ``ctxs``."""
    read = checked(Dpr, row)
    name = row_id(row, read.id)
    found = (*read.positive_ctxs, *read.hard_negative_ctxs, *read.negative_ctxs, *read.ctxs)
    titles = distinct(one.title for one in read.positive_ctxs if one.title)
    return Question(
        id=name,
        question=read.question.strip(),
        golden_answers=answers_of(row, read.answers),
        gold_titles=titles,
        evidence=tuple((title,) for title in titles),
        context=paragraphs(name, (Paragraph(one.title, [one.text], one.id, one.rest) for one in found), ""),
        metadata=read.rest,
    )
