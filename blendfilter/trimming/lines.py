"""One line of a witnesses file: what it says, and how it is written.

In: a fact (a question taken up, a verdict, a question closed, something undone). Out: its line, JSON with its `kind`
first; and the words of the state that such lines build: `By`, `Judged`, `Separation`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from blendfilter.errors import BadArgument
from blendfilter.records import one_line, whole_characters

FORMAT = 1
KINDS = ("witnesses", "question", "verdict", "closed", "undone")
_ID_DIGITS = 12


@dataclass(frozen=True, slots=True)
class By:
    """Who judged: the digest of the judge's identity, its mode and rules by name, the model, the program."""

    judge: str
    mode: str
    rules: tuple[str, ...]
    model: str
    program: str


NOBODY = By("", "", (), "", "")
"""Who judged a question that retrieved nothing."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One closed question: what was retrieved for it, by verdict, each group in rank order.

    `silent` are passages that the judge gave no verdict on: they are kept and witness nothing. `at` is UTC.
    """

    id: str
    question: str
    accepted: tuple[str, ...]
    rejected: tuple[str, ...]
    silent: tuple[str, ...]
    by: By
    at: str


@dataclass(frozen=True, slots=True)
class Separation:
    """Two passages that some judged questions told apart: the pair in sorted order, the questions' ids too."""

    pair: tuple[str, str]
    witnesses: tuple[str, ...]


def text_of(question: str) -> str:
    """A question as it is kept: on one line, and of whole characters. Raises `BadArgument` where nothing is left."""
    text = whole_characters(one_line(question))
    if not text:
        raise BadArgument(f"the question is empty ({question!r}): there is nothing to judge for it")
    return text


def question_id(question: str) -> str:
    """12 hex digits of a question's text.

    >>> question_id("Who turned on the radio?") == question_id(" Who turned on the radio?\\n")
    True
    """
    return hashlib.sha256(text_of(question).encode()).hexdigest()[:_ID_DIGITS]


def check_threshold(threshold: int) -> int:
    """`threshold` itself. Raises `BadArgument` unless it is a whole number from 1 up."""
    if isinstance(threshold, bool) or not isinstance(threshold, int) or threshold < 1:
        raise BadArgument(f"a threshold is a whole number of witnesses from 1 up, got {threshold!r}")
    return threshold


def first_line() -> dict[str, Any]:
    """What every witnesses file begins with."""
    return {"kind": "witnesses", "format": FORMAT}


def taken_up(question: str, by: By) -> dict[str, Any]:
    """`by` begins with a question: verdicts of another judge that had begun before no longer count."""
    return {"kind": "question", "id": question_id(question), "text": text_of(question), "by": asdict(by), "at": now()}


def verdict_on(question: str, passage: str, verdict: bool | None) -> dict[str, Any]:
    """One verdict; `question` is an id."""
    return {"kind": "verdict", "question": question, "passage": passage, "verdict": verdict, "at": now()}


def closed(question: str, passages: Sequence[str]) -> dict[str, Any]:
    """All that was retrieved has its verdict: `passages` in rank order; `question` is an id."""
    return {"kind": "closed", "question": question, "passages": list(passages), "at": now()}


def undone_question(question: str) -> dict[str, Any]:
    """A question's verdicts no longer count."""
    return {"kind": "undone", "question": question, "at": now()}


def undone_pair(a: str, b: str) -> dict[str, Any]:
    """A pair's witnesses so far no longer count."""
    return {"kind": "undone", "pair": sorted((a, b)), "at": now()}


def undone_all() -> dict[str, Any]:
    """Nothing above this line counts any more."""
    return {"kind": "undone", "all": True, "at": now()}


def line_of(record: Mapping[str, Any]) -> bytes:
    """A record as a line. JSON escapes line breaks, so an id may hold anything."""
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace") + b"\n"


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
