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
from blendfilter.tasks import layouts
from blendfilter.tasks.base import Hub, Task
from blendfilter.tasks.generic import is_own, own
from blendfilter.tasks.layouts import Outside, RetrievedPassage, checked, is_kilt, is_normalised, kilt, mapping


class Eli5Answers(Outside):
    """Answers and their votes as two columns."""

    text: list[str]
    score: list[int] | None = None


class Eli5Record(Outside):
    """A row as the authors' scripts write it."""

    q_id: str | None = None
    title: str
    answers: Eli5Answers


class AlceRecord(Outside):
    """A row of ALCE (Gao et al. 2023): one answer, its claims, passages that were retrieved."""

    id: str | None = Field(None, validation_alias=AliasChoices("id", "q_id", "sample_id"))
    question: str
    answer: str
    docs: tuple[RetrievedPassage, ...] = ()


def parse(row: JsonRow) -> Question:
    """A row in the official layout, KILT's, ALCE's, the normalised one or anyone's own. Raises `BadData`."""
    if is_kilt(row):
        return kilt(row)
    if is_normalised(row):
        return own(row)
    if "title" in mapping(row):
        return _official(row)
    if is_own(row) and "docs" not in mapping(row):
        return own(row)
    read = checked(AlceRecord, row)
    context = (one.paragraph for one in read.docs)
    return layouts.question(row, read.id, read.question, [read.answer.strip()], context=context, metadata=read.rest)


def _official(row: JsonRow) -> Question:
    read = checked(Eli5Record, row)
    texts, votes = read.answers.text, read.answers.score
    if votes is not None and len(votes) != len(texts):
        raise BadData(
            f"{row.where}: field 'answers' is wrong: {len(texts)} texts and {len(votes)} scores; "
            "each text has one: fetch the file again"
        )
    ranked = sorted(zip(texts, votes or [0] * len(texts), strict=True), key=lambda pair: -pair[1])
    return layouts.question(row, read.q_id, read.title, (text.strip() for text, _ in ranked), metadata=read.rest)


TASK = Task(
    "eli5",
    metrics=("f1",),
    wording="eli5",
    parse=parse,
    hub=Hub("facebook/kilt_tasks", "eli5", "validation"),
    sample="long.jsonl",
)
