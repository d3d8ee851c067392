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
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field

from blendfilter.errors import BadData
from blendfilter.files import JsonRow
from blendfilter.metrics import TRUTHS
from blendfilter.records import Question
from blendfilter.tasks import layouts
from blendfilter.tasks.base import Task
from blendfilter.tasks.generic import is_own, own
from blendfilter.tasks.layouts import Outside, RetrievedPassage, checked, is_normalised, mapping, table_rows

_SAME = {
    "true": "true", "supports": "true", "yes": "true", "2": "true",
    "false": "false", "refutes": "false", "no": "false", "0": "false",
}  # fmt: skip
_OTHERS = {"mixture": "mixture", "1": "mixture", "unproven": "unproven", "3": "unproven"}


def _listed(value: Any) -> Any:
    """Passages; evidence that is a text is what the label was found by, and no passage that was retrieved."""
    return () if value is None or isinstance(value, str) else value


class PubHealthRecord(Outside):
    """A row of the authors' table, or of Self-RAG's file, in which passages stand beside the claim."""

    id: str | None = Field(None, validation_alias=AliasChoices("claim_id", "id"))
    claim: str
    label: Any = Field(validation_alias=AliasChoices("label", "answer", "answers"))
    ctxs: Annotated[tuple[RetrievedPassage, ...], BeforeValidator(_listed)] = Field(
        (), validation_alias=AliasChoices("ctxs", "evidence")
    )


def parse(row: JsonRow) -> Question:
    """A row in the official layout, Self-RAG's, the normalised one or anyone's own. Raises `BadData`."""
    if is_normalised(row) or is_own(row):
        return _decided(own(row), row)
    read = checked(PubHealthRecord, row)
    label = read.label[0] if isinstance(read.label, list) and read.label else read.label
    context = (one.paragraph for one in read.ctxs)
    claim = layouts.question(row, read.id, read.claim, [str(label)], context=context, metadata=read.rest)
    return _decided(claim, row)


def _decided(question: Question, row: JsonRow) -> Question:
    """The question with its one answer, true or false."""
    given = dict.fromkeys(answer.strip().lower() for answer in question.golden_answers)
    found = {_SAME.get(one, one) for one in given}
    if len(found) != 1 or not found <= set(TRUTHS):
        labels = ", ".join(repr(_OTHERS.get(one, one)) for one in given)
        raise BadData(
            f"{row.where}: a claim of pubhealth is true or false, found {labels}: leave claims of another label out "
            "(a file's are left out by themselves)"
        )
    (answer,) = found
    return replace(question, golden_answers=(answer,), type=answer)


def rows(path: Path) -> Iterator[JsonRow]:
    """The rows of a file whose claims are true or false; one warning says how many others there were."""
    others: Counter[str] = Counter()
    kept = 0
    for row in table_rows(path):
        label = _other_label(row)
        if label is None:
            kept += 1
            yield row
        else:
            others[label] += 1
    if others:
        most = ", ".join(f"{count} {label}" for label, count in sorted(others.most_common(6)))
        left = f"{others.total()} of {kept + others.total()}"
        warnings.warn(f"{path}: left out {left} claims, which are neither true nor false ({most})", stacklevel=2)


def _other_label(row: JsonRow) -> str | None:
    """The label of a row that has another one, or none; None where the row is to be read.

    In the table a few rows hold a word of another column where the label should be.
    """
    value = mapping(row)
    if "claim" not in value or is_normalised(row):
        return None
    if "label" not in value and ("answer" in value or "answers" in value):
        return None
    label = str(value.get("label", "")).strip().lower()
    if label in _OTHERS or label in ("", "-1", "none", "nan"):
        return _OTHERS.get(label, "without a label")
    return None if isinstance(value["label"], list) or label in _SAME else f"{label!r:.40}"


TASK = Task(
    "pubhealth",
    metrics=("accuracy",),
    wording="pubhealth",
    parse=parse,
    rows=rows,
    sample="health.jsonl",
)
