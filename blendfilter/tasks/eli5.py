"""ELI5 (Fan et al. 2019): questions of a forum that explains things simply, answered in whole paragraphs.

Data: built by the authors' scripts (https://github.com/facebookresearch/ELI5); ready made in KILT's copy
(`eli5-dev-kilt.jsonl`, or `facebook/kilt_tasks` on the Hugging Face hub) and in ALCE's (`eli5_eval_bm25_top100.json`,
with claims and passages). A row (made up, in the official layout)::

    {"q_id": "4c71ab", "title": "Why do lighthouses flash?", "selftext": "They could just stay on.",
     "answers": {"a_id": ["d1", "d2"], "score": [3, 12],
                 "text": ["To stand out.", "Each one flashes in its own rhythm. By that a ship knows which it is."]}}

The title is the question, as in KILT and ALCE; what else was written stays beside it (`metadata["selftext"]`). Answers
stand in the order of their votes, so that the first is the one people liked best; KILT's stand in its own order. Scored
by unigram F1, one of KILT's two measures; the best answer counts.
"""

from __future__ import annotations

from pydantic import AliasChoices, Field

from blendfilter.errors import BadData
from blendfilter.files import JsonRow
from blendfilter.records import Question
from blendfilter.tasks.base import Hub, Task
from blendfilter.tasks.generic import is_own, own
from blendfilter.tasks.kilt import is_kilt, kilt
from blendfilter.tasks.layouts import Paragraph, is_normalised, paragraphs
from blendfilter.tasks.reading import Outside, answers_of, checked, mapping, row_id


class Answers(Outside):
    """Answers and their votes as two columns."""

    text: list[str]
    score: list[int] | None = None


class Official(Outside):
    """A row as the authors' scripts write it."""

    q_id: str | None = None
    title: str
    answers: Answers


class AlcePassage(Outside):
    id: str | None = None
    title: str = ""
    text: str


class Alce(Outside):
    """A row of ALCE (Gao et al. 2023): one answer, its claims, passages that were retrieved."""

    id: str | None = Field(None, validation_alias=AliasChoices("id", "q_id", "sample_id"))
    question: str
    answer: str
    docs: tuple[AlcePassage, ...] = ()


def parse(row: JsonRow) -> Question:
    """A row in the official layout, KILT's, ALCE's, the normalised one or anyone's own. Raises `BadData`."""
    if is_kilt(row):
        return kilt(row)
    if is_normalised(row):
        return own(row)
    if "title" in mapping(row):
        return _official(row)
    return own(row) if is_own(row) and "docs" not in mapping(row) else _alce(row)


def _official(row: JsonRow) -> Question:
    read = checked(Official, row)
    texts, votes = read.answers.text, read.answers.score
    if votes is not None and len(votes) != len(texts):
        raise BadData(
            f"{row.where}: field 'answers' is wrong: {len(texts)} texts and {len(votes)} scores; "
            "each text has one: fetch the file again"
        )
    ranked = sorted(zip(texts, votes or [0] * len(texts), strict=True), key=lambda pair: -pair[1])
    return Question(
        id=row_id(row, read.q_id),
        question=read.title.strip(),
        golden_answers=answers_of(row, (text.strip() for text, _ in ranked)),
        metadata=read.rest,
    )


def _alce(row: JsonRow) -> Question:
    read = checked(Alce, row)
    name = row_id(row, read.id)
    found = (Paragraph(one.title, [one.text], one.id, one.rest) for one in read.docs)
    return Question(
        id=name,
        question=read.question.strip(),
        golden_answers=answers_of(row, [read.answer.strip()]),
        context=paragraphs(name, found, ""),
        metadata=read.rest,
    )


TASK = Task(
    "eli5",
    metrics=("f1",),
    wording="eli5",
    parse=parse,
    hub=Hub("facebook/kilt_tasks", "eli5", "validation"),
    sample="long.jsonl",
)
