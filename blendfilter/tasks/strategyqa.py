"""StrategyQA (Geva et al. 2021): yes/no questions whose steps are implicit, with the evidence of three annotators.

Data: https://github.com/eladsegal/strategyqa (`data/strategyqa/train.json`, `dev.json`; the authors' 2,290 public
questions split in two), or `tasksource/strategy-qa` on the Hugging Face hub (all 2,290, without evidence). A row (made
up, in the official layout)::

    {"qid": "c91e0b7735aa", "term": "Ulla", "description": "Island", "answer": false,
     "question": "Could a ferry from Ulla reach Bremsund in an hour?",
     "facts": ["The crossing is sixty miles.", ...], "decomposition": ["How far is Ulla from Bremsund?", ...],
     "evidence": [[[["Ulla-3", "Bremsund-1"]], ["operation"]], [[["Ulla-3"], "no_evidence"], ["operation"]], ...]}

Evidence is one list per annotator, with one entry per step: paragraph ids (``Title-number``), ``operation`` for a step
that needs no text, ``no_evidence``. Only titles count here, each once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from blendfilter.errors import BadData
from blendfilter.files import JsonRow
from blendfilter.metrics import VERDICTS
from blendfilter.records import Question
from blendfilter.tasks.base import Hub, Task
from blendfilter.tasks.layouts import distinct, label_of, question
from blendfilter.text import normalize_answer


def paragraph_ids(entry: Any) -> Iterator[str]:
    """Every paragraph id in a piece of evidence, however deeply it is nested.

    >>> list(paragraph_ids([[["Ulla-3"], "no_evidence"], ["operation"]]))
    ['Ulla-3']
    """
    if isinstance(entry, str) and entry not in ("operation", "no_evidence"):
        yield entry
    elif isinstance(entry, list | tuple):
        for part in entry:
            yield from paragraph_ids(part)


def evidence_of(annotators: Any, where: str) -> tuple[tuple[str, ...], ...]:
    """Titles per annotator, without the annotators who found none. Raises `BadData` where it is no list of lists."""
    if not isinstance(annotators, list | tuple) or not all(
        isinstance(steps, list | tuple) for steps in annotators
    ):
        raise BadData(f"{where}: field 'evidence' is wrong: expected one list per annotator")
    # A paragraph's id is its title, a dash and its number.
    found = (
        distinct(re.sub(r"-\d+\Z", "", name) for name in paragraph_ids(steps))
        for steps in annotators
    )
    return tuple(titles for titles in found if titles)


def parse(row: JsonRow) -> Question:
    """A row whose answer is yes or no. Raises `BadData`."""
    read = question(row)
    label_of(read, row.where, VERDICTS, "the answer of a strategyqa question is yes or no")
    read = replace(read, type=read.type or "boolean")
    evidence = evidence_of(read.metadata.get("evidence") or (), row.where)
    if not evidence:
        return read
    gold = read.gold_titles or distinct(title for titles in evidence for title in titles)
    return replace(read, gold_titles=gold, evidence=evidence)


def of_sample(row: JsonRow) -> bool:
    """Whether a row of the sample world, whose questions are of all kinds, asks for yes or no."""
    return all(normalize_answer(one) in VERDICTS for one in question(row).golden_answers)


TASK = Task(
    "strategyqa",
    metrics=("accuracy",),
    wording="strategyqa",
    parse=parse,
    hub=Hub("tasksource/strategy-qa", None, "train"),
    of_sample=of_sample,
)
