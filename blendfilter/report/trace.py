"""One answer as a trace: each query, what it retrieved, what was kept and why, and the answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from blendfilter.modules.base import QUERY_WORDS, citations_of
from blendfilter.records import Excerpt, Passage, WrittenText
from blendfilter.retrieval.base import trim_of
from blendfilter.retrieval.callables import as_passage
from blendfilter.text import shortened

WIDTH = 100
_VERDICT = re.compile(
    r"\W*(?:knowledge\W{0,3}(\d{1,3})\W+(.*)|(\d{1,3})(?!\.?\d)\W+([^\W\d].*))", re.IGNORECASE
)
"""A line on one passage, by its number; not one that begins with a score (0.9)."""


def trace_text(prediction: Any, width: int | None = WIDTH) -> str:
    """The trace of a method's prediction as plain text; passages marked + were kept, - dropped.

    Texts are cut to `width`; without one they are printed whole.
    """
    return "\n".join(_lines(prediction, width)) + "\n"


def _lines(prediction: Any, width: int | None) -> Iterator[str]:
    queries, branches = prediction.get("queries") or {}, prediction.get("branches") or {}
    if queries:
        yield "each query and what it brings (+ kept, - dropped)"
        yield ""
    for name, query in queries.items():
        yield f"{name:<5}{QUERY_WORDS.get(name, '')}"
        yield _cut(query, width, "     ")
        if name in branches:
            yield from _branch(branches[name], width)
        yield ""
    knowledge = prediction.get("knowledge")
    items = [knowledge] if isinstance(knowledge, str) else knowledge or []
    passages = list(map(as_passage, items))
    if passages or queries:
        untitled = f"{len(passages)} without a title" if passages else "(empty)"
        cited = (str(each) for each in citations_of(passages) if each.title or each.source)
        yield f"knowledge  {', '.join(dict.fromkeys(cited)) or untitled}"
    for passage in passages:
        if isinstance(passage, WrittenText):
            yield _cut(passage.line, width, "     + written, in no passage: ")
        elif not branches:  # else it stands under its query
            yield from _passage(passage, [passage], "", width)
    if prediction.get("reasoning"):
        yield _cut(str(prediction.reasoning), width and width * 3 + 11, "reasoning  ")
    yield f"answer     {prediction.answer}"
    flags = (prediction.get("flags") or {}).items()
    events = ", ".join(f"{name} {count}" for name, count in flags if count)
    calls = f"calls      {len(prediction.get('calls') or [])}"
    yield f"{calls}  ({events})" if events else calls


def _branch(branch: Any, width: int | None) -> Iterator[str]:
    kept = {passage.id for passage in branch.kept}
    reasons = reasons_of(branch.reason, len(branch.retrieved))
    for passage, reason in zip(branch.retrieved, reasons, strict=True):
        pieces = [each for each in branch.kept if each.id == passage.id]
        yield from _passage(passage, pieces, reason, width)
    if (trim := trim_of(branch.retrieved)) is not None:
        yield _cut(trim.line, width, "       ")
    if not branch.retrieved:
        yield "       nothing retrieved"
    elif branch.ids_read in ("suspect", "unparseable"):
        whole = len(kept) == len(branch.retrieved)
        what = "the whole branch" if whole else "what the judgement did not reach"
        yield f"       the filter's reply was {branch.ids_read}: {what} is kept"
    if branch.reason and width is None:
        yield _cut(branch.reason, None, "     the filter said  ")


def _passage(
    passage: Passage, kept: Sequence[Passage], reason: str, width: int | None
) -> Iterator[str]:
    yield _cut(passage.line, width, f"     {'+' if kept else '-'} ")
    if reason:
        yield _cut(reason, width, "         ")
    for piece in (span for each in kept if isinstance(each, Excerpt) for span in each.spans):
        yield _cut(piece.text, width, "         kept: ")


def _cut(text: str, width: int | None, before: str) -> str:
    """A text behind `before`: one line of `width` at most, or all of its lines, set in below each other."""
    if width is not None:
        return before + shortened(text, width - len(before))
    return before + ("\n" + " " * len(before)).join(text.strip().splitlines())


def reasons_of(reason: str, k: int) -> Sequence[str]:
    """What a check's reply says of each of k passages, where it says it in a line of its own; else empty strings.

    >>> reasons_of("knowledge 1: irrelevant, about a ship\\nknowledge 0: relevant", 2)
    ['relevant', 'irrelevant, about a ship']
    """
    reasons = [""] * k
    for line in reason.splitlines():
        match = _VERDICT.match(line)
        number, words = (match[1] or match[3], match[2] or match[4]) if match else ("", "")
        if number and int(number) < k:
            reasons[int(number)] = (words or "").strip()
    return reasons
