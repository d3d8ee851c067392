"""PubHealth (Kotonya and Toni 2020): claims about health that journalists checked; here those found true or false.

Data: https://github.com/neemakot/Health-Fact-Checking (`test.tsv`, 1,235 claims); Self-RAG's and SAIL's part of it
(`health_claims_processed.jsonl`, 987 claims, true and false alone). A row of the table (made up, some columns left
out)::

    claim_id  claim                                   explanation                       label   subjects
    417       Sea plums keep brine fever from ships.  A ship's surgeon tried it ...     true    Nutrition

The claim is the question, ``true`` or ``false`` its answer. The full set has two labels more, `mixture` and `unproven`,
and rows without any or with another word: those of a file are left out, counted and named, so that what remains is
what Self-RAG, SAIL and CDIT (Ma et al. 2024) score; among rows in memory such a label is an error. Labels may be
SUPPORTS and REFUTES, or the numbers under which the Hugging Face hub keeps them. The hub has the data behind a loading
script only: give a file.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from blendfilter.files import JsonRow
from blendfilter.records import Question, cell
from blendfilter.tasks.base import Task
from blendfilter.tasks.layouts import RIGHT, label_of, mapping, question, table_rows

_SAME = {
    "true": "true", "supports": "true", "yes": "true", "2": "true",
    "false": "false", "refutes": "false", "no": "false", "0": "false",
}  # fmt: skip
_NAMES = {"claim_id": "id", "claim": "question", "label": "answer"}


def parse(row: JsonRow) -> Question:
    """A claim that is true or false. Raises `BadData`."""
    value = mapping(row)
    # Evidence in words is what the label was found by; as a list, passages that were retrieved.
    names = (
        {**_NAMES, "evidence": "ctxs"} if isinstance(value.get("evidence"), list) else _NAMES
    )
    claim = question(row, value, names=names)
    expected = (
        "a claim of pubhealth is true or false (a file's others are left out by themselves)"
    )
    answer = label_of(claim, row.where, _SAME, expected)
    return replace(claim, golden_answers=(answer,), type=answer)


def rows(path: Path) -> Iterator[JsonRow]:
    """The rows of a file whose claims are true or false; one warning says how many others there were.

    In the authors' table a few rows hold a word of another column where the label should be.
    """
    others: Counter[str] = Counter()
    kept = 0
    for row in table_rows(path):
        value = mapping(row)
        given = cell(value.get("label")) if "claim" in value else "true"
        label = str("" if given is None else given).strip().lower()
        if isinstance(given, list) or label in _SAME or not value.keys().isdisjoint(RIGHT):
            kept += 1
            yield row
        else:
            others[label[:40] or "without a label"] += 1
    if others:
        most = ", ".join(f"{count} {label}" for label, count in sorted(others.most_common(6)))
        left = f"{others.total()} of {kept + others.total()}"
        warnings.warn(
            f"{path}: left out {left} claims, which are neither true nor false ({most})",
            stacklevel=2,
        )


TASK = Task(
    "pubhealth",
    metrics=("accuracy",),
    wording="pubhealth",
    parse=parse,
    rows=rows,
    sample="health.jsonl",
)
