"""PopQA (Mallen et al. 2023): questions about one fact of an entity, most of them of entities that few people look up.

Data: https://github.com/AlexTMallen/adaptive-retrieval (`data/popQA.tsv`), or `akariasai/PopQA` on the Hugging Face
hub; with passages from Self-RAG (`popqa_longtail_w_gs.jsonl`). A row of the table (made up, some columns left out)::

    id    subj           prop        obj        s_pop  o_pop   question                               possible_answers
    417   Ada Brennock   occupation  beekeeper  142    25692   What is Ada Brennock's occupation?     ["beekeeper"]

`possible_answers` is a JSON list inside a text; the object is the first answer. The pages of subject and object
(`s_wiki_title`, `o_wiki_title`) are where the fact was taken from, not where anybody looked for it: no gold. Questions
of namesakes may be the same words.

Scored by inclusion first, as its authors do and CDIT (Ma et al. 2024) after them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from blendfilter.files import JsonRow
from blendfilter.metrics import VERDICTS
from blendfilter.records import Question
from blendfilter.tasks import generic, tables
from blendfilter.tasks.base import Hub, Task
from blendfilter.tasks.dpr import DprPassage
from blendfilter.tasks.layouts import Names, Paragraph, paragraphs
from blendfilter.tasks.reading import Outside, answers_of, checked, mapping, row_id
from blendfilter.text import normalize_answer

METRICS = ("inclusion", "inclusion_raw", "em", "f1")
"""The leading one is CDIT's; TriviaQA adds the first two to its own."""


def _unpacked(value: Any) -> Any:
    """A JSON list that stands in a text; what is none is refused by the field's own check."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError('expected a JSON list, ["…", "…"]') from None


class Official(Outside):
    """A row of the authors' table or of the hub; Self-RAG's and ALCE's copies add `answers` and passages."""

    id: str | None = None
    question: str
    obj: str = ""
    prop: str | None = None
    possible_answers: Annotated[list[str], BeforeValidator(_unpacked)]
    answers: Names = ()
    ctxs: tuple[DprPassage, ...] = ()
    docs: tuple[DprPassage, ...] = ()


def parse(row: JsonRow) -> Question:
    """A row in the official layout, with or without passages, the normalised one or anyone's own. Raises `BadData`."""
    if "possible_answers" not in mapping(row):
        return generic.parse(row)
    read = checked(Official, row)
    name = row_id(row, read.id)
    found = (Paragraph(one.title, [one.text], one.id, one.rest) for one in (*read.ctxs, *read.docs))
    return Question(
        id=name,
        question=read.question.strip(),
        golden_answers=answers_of(row, [read.obj, *read.possible_answers, *read.answers]),
        context=paragraphs(name, found, ""),
        type=read.prop,
        metadata={**read.rest, **_counts(read.rest)},
    )


def _counts(rest: Mapping[str, Any]) -> dict[str, int]:
    """How often the pages of subject and object are viewed in a month: numbers, where the table has them as text."""
    return {name: int(value) for name in ("s_pop", "o_pop") if (value := str(rest.get(name, ""))).isdecimal()}


def of_sample(row: JsonRow) -> bool:
    """Whether a row of the sample world asks for a name: yes and no are included in too many words."""
    return not any(normalize_answer(one) in VERDICTS for one in generic.parse(row).golden_answers)


TASK = Task(
    "popqa",
    metrics=METRICS,
    wording="popqa",
    parse=parse,
    hub=Hub("akariasai/PopQA", None, "test"),
    rows=tables.rows,
    of_sample=of_sample,
)
