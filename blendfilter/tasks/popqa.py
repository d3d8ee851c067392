"""PopQA (Mallen et al. 2023): questions about one fact of an entity, most of them of entities that few people look up.

Data: https://github.com/AlexTMallen/adaptive-retrieval (`data/popQA.tsv`), or `akariasai/PopQA` on the Hugging Face
hub; with passages from Self-RAG (`popqa_longtail_w_gs.jsonl`). A row of the table (made up, some columns left out)::

    id    subj           prop        obj        s_pop  o_pop   question                               possible_answers
    417   Ada Brennock   occupation  beekeeper  142    25692   What is Ada Brennock's occupation?     ["beekeeper"]

`possible_answers` and `o_aliases` are JSON lists inside a text; the object is the first answer. The pages of subject
and object (`s_wiki_title`, `o_wiki_title`) are where the fact was taken from, not where an answer was found: no gold.
Questions of namesakes may be the same words.

Scored by inclusion first, as its authors do and CDIT (Ma et al. 2024) after them.
"""

from __future__ import annotations

from blendfilter.files import JsonRow
from blendfilter.metrics import VERDICTS
from blendfilter.records import Question, cell
from blendfilter.tasks.base import Hub, Task
from blendfilter.tasks.layouts import mapping, question, table_rows
from blendfilter.text import normalize_answer


def parse(row: JsonRow) -> Question:
    """A row in the official layout, with or without passages, or any other. Raises `BadData`."""
    value = mapping(row)
    if "possible_answers" in value:
        # text in the table, else numbers
        views = {name: str(cell(value.get(name))) for name in ("s_pop", "o_pop")}
        value = {
            **value,
            **{name: int(number) for name, number in views.items() if number.isdecimal()},
            "golden_answers": [value.get("golden_answers"), value.get("obj")],
        }
    return question(row, value, names={"prop": "type", "docs": "ctxs"})


def of_sample(row: JsonRow) -> bool:
    """Whether a row of the sample world asks for a name: yes and no are included in too many words."""
    return not any(normalize_answer(one) in VERDICTS for one in question(row).golden_answers)


TASK = Task(
    "popqa",
    metrics=("inclusion", "inclusion_raw", "em", "f1"),  # the leading one is CDIT's
    wording="popqa",
    parse=parse,
    hub=Hub("akariasai/PopQA", None, "test"),
    rows=table_rows,
    of_sample=of_sample,
)
