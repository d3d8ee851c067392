"""FEVER (Thorne et al. 2018): claims that Wikipedia supports or refutes, with the sentences that decide.

Data: https://fever.ai (`train.jsonl`, `paper_dev.jsonl`), three labels; KILT's copy (`fever-dev-kilt.jsonl`, or
`facebook/kilt_tasks` on the Hugging Face hub) leaves out the claims that nothing decides and has two. A row (made up,
in the official layout)::

    {"id": 90417, "verifiable": "VERIFIABLE", "label": "REFUTES", "claim": "Skerry Light was built of slate.",
     "evidence": [[[101, 201, "Skerry_Light_-LRB-lighthouse-RRB-", 1]],
                  [[102, 202, "Skerry_Light_-LRB-lighthouse-RRB-", 4], [102, 202, "Quillmere", 0]]]}

The claim is the question and its label the answer. Evidence is a list of sets: each decides by itself, its sentences
together. A row of the label NOT ENOUGH INFO has none. Where one of the questions has that label the prompts offer it
(wording `fever-nei`); else they offer two, as KILT and the papers that use it do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from blendfilter.errors import BadData
from blendfilter.files import JsonRow
from blendfilter.records import Question
from blendfilter.replies import LABELS
from blendfilter.tasks.base import Hub, Task
from blendfilter.tasks.layouts import distinct, label_of, question

_MARKS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-COLON-": ":", "_": " "}
"""What FEVER writes for signs in a page's name."""


def facts_of(evidence: Any, where: str) -> list[tuple[tuple[str, int], ...]]:
    """The sentences of each set of evidence, as title and line; sets that name no page are left out.

    An entry ends in title and line, whatever stands before these. Raises `BadData` where it does not.
    """
    try:
        sets = [[(entry[-2], entry[-1]) for entry in one] for one in evidence]
        named = [one for one in sets if all(title is not None for title, _ in one)]
        return [
            tuple(
                (re.sub("|".join(_MARKS), lambda mark: _MARKS[mark[0]], title), int(line))
                for title, line in one
            )
            for one in named
            if one
        ]
    except (TypeError, ValueError, IndexError, KeyError):
        raise BadData(
            f"{where}: field 'evidence' is wrong: expected sets of entries that end in title and line, "
            f"found {evidence!r:.60}"
        ) from None


def parse(row: JsonRow) -> Question:
    """A claim, its label and its evidence. Raises `BadData`."""
    claim = question(row, names={"claim": "question", "label": "answer"})
    expected = f"a claim of fever has one label, {', '.join(LABELS[:-1])} or {LABELS[-1]}"
    label = label_of(claim, row.where, {label.lower(): label for label in LABELS}, expected)
    claim = replace(claim, golden_answers=(label,), type=label)
    sets = facts_of(claim.metadata.get("evidence") or (), row.where)
    if not sets:
        return claim
    return replace(
        claim,
        gold_titles=distinct(title for one in sets for title, _ in one),
        evidence=distinct(distinct(title for title, _ in one) for one in sets),
        supporting_facts=distinct(fact for one in sets for fact in one),
    )


def wording_for(questions: Sequence[Question]) -> str:
    """Three labels where one of the questions has the third, else two."""
    return (
        "fever-nei" if any(LABELS[-1] in one.golden_answers for one in questions) else "fever"
    )


TASK = Task(
    "fever",
    metrics=("accuracy",),
    wording="fever",
    parse=parse,
    hub=Hub("facebook/kilt_tasks", "fever", "validation"),
    sample="claims.jsonl",
    wording_for=wording_for,
)
