"""One answer as a trace: each query, what it retrieved, what was kept and why, and the answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from textwrap import shorten
from typing import Any

from blendfilter.records import Excerpt, Passage

_NAMES = {"q": "the question", "q_ex": "external reasoning + question", "q_in": "internal knowledge + question"}
_WIDTH = 100


def trace_text(prediction: Any, width: int = _WIDTH) -> str:
    """The trace of a method's prediction as plain text; passages marked + were kept, - dropped."""
    return "\n".join(_lines(prediction, width)) + "\n"


def _lines(prediction: Any, width: int) -> Iterator[str]:
    if prediction.get("queries"):
        yield "each query and what it brings (+ kept, - dropped)"
        yield ""
    for name, query in (prediction.get("queries") or {}).items():
        yield f"{name:<5}{_NAMES.get(name, '')}"
        yield f"     {shorten(query, width - 5)}"
        branch = prediction.branches[name]
        kept = {passage.id: passage for passage in branch.kept}
        reasons = reasons_of(branch.reason, len(branch.retrieved))
        for position, passage in enumerate(branch.retrieved):
            yield from _passage(passage, kept.get(passage.id), reasons[position], width)
        if not branch.retrieved:
            yield "       nothing retrieved"
        elif branch.ids_read in ("suspect", "unparseable"):
            yield f"       the filter's reply was {branch.ids_read}: the whole branch is kept"
        yield ""
    knowledge = prediction.get("knowledge") or []
    if prediction.get("queries"):
        yield f"knowledge  {', '.join(passage.title for passage in knowledge) or '(empty)'}"
    if prediction.get("reasoning"):
        yield f"reasoning  {shorten(prediction.reasoning, width * 3)}"
    yield f"answer     {prediction.answer}"
    events = ", ".join(f"{name} {count}" for name, count in (prediction.get("flags") or {}).items() if count)
    yield f"calls      {len(prediction.get('calls') or [])}" + (f"  ({events})" if events else "")


def _passage(passage: Passage, kept: Passage | None, reason: str, width: int) -> Iterator[str]:
    yield f"     {'+' if kept else '-'} {shorten(passage.line, width - 7, placeholder=' …')}"
    if reason:
        yield f"         {shorten(reason, width - 9, placeholder=' …')}"
    for piece in kept.spans if isinstance(kept, Excerpt) else ():
        yield f"         kept: {shorten(piece.text, width - 15, placeholder=' …')}"


def reasons_of(reason: str, k: int) -> Sequence[str]:
    """What a check's reply says of each of k passages, where it says it in a line of its own; else empty strings.

    >>> reasons_of("knowledge 1: irrelevant, about a ship\\nknowledge 0: relevant", 2)
    ['relevant', 'irrelevant, about a ship']
    """
    told = [""] * k
    for line in reason.splitlines():
        match = re.match(r"\W*knowledge\W{0,3}(\d{1,3})\W+(.*)", line, re.IGNORECASE)
        if match and int(match.group(1)) < k:
            told[int(match.group(1))] = match.group(2).strip()
    return told
