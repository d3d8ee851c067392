"""ELI5 (Fan et al. 2019): questions of a forum that explains things simply, answered in whole paragraphs.

Data: built by the authors' scripts (https://github.com/facebookresearch/ELI5); ready made in KILT's copy
(`eli5-dev-kilt.jsonl`, or `facebook/kilt_tasks` on the Hugging Face hub) and in ALCE's (`eli5_eval_bm25_top100.json`,
with claims and passages). A row (made up, in the official layout)::

    {"q_id": "4c71ab", "title": "Why do lighthouses flash?", "selftext": "They could just stay on.",
     "answers": {"a_id": ["d1", "d2"], "score": [3, 12],
                 "text": ["To stand out.", "Each one flashes in its own rhythm. By that a ship knows which it is."]}}

The title is the question, as in KILT and ALCE; what else was written stays beside it (`metadata["selftext"]`). Answers
stand in the order of their votes, so that the first is the one people liked best; KILT's stand in its own order. Scored
by unigram F1 and ROUGE-L, KILT's two measures; the best answer counts.
"""

from __future__ import annotations

from dataclasses import replace

from blendfilter.errors import BadData
from blendfilter.files import JsonRow
from blendfilter.records import Question
from blendfilter.tasks.base import Hub, Task
from blendfilter.tasks.layouts import Outside, checked, mapping, question


class Eli5Answers(Outside):
    """Answers and their votes as two columns."""

    text: list[str]
    score: list[int] | None = None


class Eli5Record(Outside):
    """A row as the authors' scripts write it."""

    title: str
    answers: Eli5Answers


def parse(row: JsonRow) -> Question:
    """A row in the official layout, ALCE's (Gao et al. 2023), or any other. Raises `BadData`."""
    value = mapping(row)
    if "title" in value:
        read = checked(Eli5Record, row)
        texts = read.answers.text
        votes = read.answers.score or [0] * len(read.answers.text)
        if len(votes) != len(texts):
            raise BadData(
                f"{row.where}: field 'answers' is wrong: {len(texts)} texts and {len(votes)} scores"
            )
        ranked = sorted(zip(texts, votes, strict=True), key=lambda pair: -pair[1])
        value = {**value, "question": read.title, "answers": [text for text, _ in ranked]}
    found = question(row, value, names={"docs": "ctxs", "sample_id": "id"})
    return replace(
        found, golden_answers=tuple(answer.strip() for answer in found.golden_answers)
    )


TASK = Task(
    "eli5",
    metrics=("f1", "rouge-l"),
    wording="eli5",
    parse=parse,
    hub=Hub("facebook/kilt_tasks", "eli5", "validation"),
    sample="long.jsonl",
)
