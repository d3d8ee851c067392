"""PopQA (Mallen et al. 2023): questions about one fact of an entity, most of them of entities that few people look up.

Data: https://github.com/AlexTMallen/adaptive-retrieval (`data/popQA.tsv`), or `akariasai/PopQA` on the Hugging Face
hub; with passages from Self-RAG (`popqa_longtail_w_gs.jsonl`). A row of the table (made up, some columns left out)::

    id    subj           prop        obj        s_pop  o_pop   question                               possible_answers
    417   Ada Brennock   occupation  beekeeper  142    25692   What is Ada Brennock's occupation?     ["beekeeper"]

`possible_answers` is a JSON list inside a text; the object is the first answer. The pages of subject and object
(`s_wiki_title`, `o_wiki_title`) are where the fact was taken from, not where an answer was found: no gold. Questions of
namesakes may be the same words.

Scored by inclusion first, as its authors do and CDIT (Ma et al. 2024) after them.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BeforeValidator

from blendfilter.files import JsonRow
from blendfilter.metrics import VERDICTS
from blendfilter.records import Question
from blendfilter.tasks import generic, layouts
from blendfilter.tasks.base import Hub, Task
from blendfilter.tasks.layouts import Names, Outside, RetrievedPassage, checked, mapping, table_rows
from blendfilter.text import normalize_answer


def _unpacked(value: Any) -> Any:
    """A JSON list that stands in a text; what is none is refused by the field's own check."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError('expected a JSON list, ["…", "…"]') from None


class PopQARecord(Outside):
    """A row of the authors' table or of the hub; Self-RAG's and ALCE's copies add `answers` and passages."""

    id: str | None = None
    question: str
    obj: str = ""
    prop: str | None = None
    possible_answers: Annotated[list[str], BeforeValidator(_unpacked)]
    answers: Names = ()
    ctxs: tuple[RetrievedPassage, ...] = ()
    docs: tuple[RetrievedPassage, ...] = ()


def parse(row: JsonRow) -> Question:
    """A row in the official layout, with or without passages, the normalised one or anyone's own. Raises `BadData`."""
    if "possible_answers" not in mapping(row):
        return generic.parse(row)
    read = checked(PopQARecord, row)
    views = {name: str(read.rest.get(name, "")) for name in ("s_pop", "o_pop")}  # text in the table, else numbers
    return layouts.question(
        row, read.id, read.question, [read.obj, *read.possible_answers, *read.answers],
        context=(one.paragraph for one in (*read.ctxs, *read.docs)), type=read.prop,
        metadata={**read.rest, **{name: int(value) for name, value in views.items() if value.isdecimal()}},
    )  # fmt: skip


def of_sample(row: JsonRow) -> bool:
    """Whether a row of the sample world asks for a name: yes and no are included in too many words."""
    return not any(normalize_answer(one) in VERDICTS for one in generic.parse(row).golden_answers)


TASK = Task(
    "popqa",
    metrics=("inclusion", "inclusion_raw", "em", "f1"),  # the leading one is CDIT's
    wording="popqa",
    parse=parse,
    hub=Hub("akariasai/PopQA", None, "test"),
    rows=table_rows,
    of_sample=of_sample,
)
