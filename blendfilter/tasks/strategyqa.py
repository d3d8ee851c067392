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

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pydantic import AliasChoices, Field

from blendfilter.errors import BadData
from blendfilter.files import JsonRow
from blendfilter.metrics import VERDICTS
from blendfilter.records import Question
from blendfilter.tasks import layouts
from blendfilter.tasks.base import Hub, Task
from blendfilter.tasks.layouts import Outside, checked, distinct, is_normalised, normalised
from blendfilter.text import normalize_answer

JOINER = " "
_NO_TEXT = frozenset({"operation", "no_evidence"})


class StrategyQARecord(Outside):
    """A row as the authors publish it; the hub's copy has no evidence."""

    qid: str | None = Field(None, validation_alias=AliasChoices("qid", "id"))
    question: str
    answer: bool
    evidence: Any = ()


def paragraph_ids(entry: Any) -> Iterator[str]:
    """Every paragraph id in a piece of evidence, however deeply it is nested.

    >>> list(paragraph_ids([[["Ulla-3"], "no_evidence"], ["operation"]]))
    ['Ulla-3']
    """
    if isinstance(entry, str):
        if entry not in _NO_TEXT:
            yield entry
    elif isinstance(entry, list | tuple):
        for part in entry:
            yield from paragraph_ids(part)


def title_of(paragraph_id: str) -> str:
    """The title in a paragraph id.

    >>> title_of("Jean-Luc Ponty-12")
    'Jean-Luc Ponty'
    """
    title, dash, number = paragraph_id.rpartition("-")
    return title if dash and number.isdigit() else paragraph_id


def evidence_of(annotators: Any, where: str) -> tuple[tuple[str, ...], ...]:
    """Titles per annotator, without the annotators who found none. Raises `BadData` where it is no list of lists."""
    if not isinstance(annotators, list | tuple) or not all(isinstance(steps, list | tuple) for steps in annotators):
        raise BadData(f"{where}: field 'evidence' is wrong: expected one list per annotator")
    found = (distinct(title_of(name) for name in paragraph_ids(steps)) for steps in annotators)
    return tuple(titles for titles in found if titles)


def parse(row: JsonRow) -> Question:
    """A row in the official layout, the hub's or the normalised one. Raises `BadData`."""
    if is_normalised(row):
        return _from_normalised(row)
    read = checked(StrategyQARecord, row)
    evidence = evidence_of(read.evidence or (), row.where)
    kept: dict[str, Any] = {"evidence": read.evidence} if read.evidence else {}
    return layouts.question(
        row, read.qid, read.question, ["yes" if read.answer else "no"],
        titles=(title for titles in evidence for title in titles), evidence=evidence, type="boolean",
        metadata={**read.rest, **kept},
    )  # fmt: skip


def _from_normalised(row: JsonRow) -> Question:
    question = normalised(row, JOINER)
    found = _other_than_verdicts(question)
    if found is not None:
        raise BadData(f"{row.where}: the answer of a strategyqa question is yes or no, found '{found}'; try task 'qa'")
    evidence = evidence_of(question.metadata.get("evidence") or (), row.where)
    return replace(question, evidence=evidence) if evidence else question


def _other_than_verdicts(question: Question) -> str | None:
    """The first answer that is neither yes nor no."""
    return next((one for one in question.golden_answers if normalize_answer(one) not in VERDICTS), None)


def of_sample(row: JsonRow) -> bool:
    """Whether a row of the sample world, whose questions are of all kinds, asks for yes or no."""
    return _other_than_verdicts(normalised(row, JOINER)) is None


TASK = Task(
    "strategyqa",
    metrics=("accuracy",),
    wording="strategyqa",
    parse=parse,
    hub=Hub("tasksource/strategy-qa", None, "train"),
    of_sample=of_sample,
)
