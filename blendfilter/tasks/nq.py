"""Natural Questions, open (Kwiatkowski et al. 2019; Lee et al. 2019): web searches with short answers.

Data: https://github.com/google-research-datasets/natural-questions/tree/master/nq_open (`NQ-open.dev.jsonl`, or
`google-research-datasets/nq_open` on the Hugging Face hub); with passages from DPR (`biencoder-nq-dev.json`) or KILT
(`nq-dev-kilt.jsonl`). A row (made up, in the official layout)::

    {"question": "who keeps the light on skerry rock", "answer": ["Ada Brennock", "Brennock"]}

The official rows have no ids: a row's place in its file stands for one. KILT's and DPR's layouts are described in
`layouts.py`; the normalised layout and FlashRAG's are read as well.
"""

from __future__ import annotations

from blendfilter.files import JsonRow
from blendfilter.records import Question
from blendfilter.tasks import generic
from blendfilter.tasks.base import Hub, Task
from blendfilter.tasks.layouts import dpr, is_dpr, is_kilt, kilt


def parse(row: JsonRow) -> Question:
    """A row in the official layout, KILT's, DPR's or the normalised one. Raises `BadData`."""
    if is_kilt(row):
        return kilt(row)
    return dpr(row) if is_dpr(row) else generic.parse(row)


TASK = Task(
    "nq",
    metrics=("em", "f1"),
    wording="nq",
    parse=parse,
    hub=Hub("google-research-datasets/nq_open", None, "validation"),
)
