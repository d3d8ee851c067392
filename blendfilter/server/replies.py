"""What goes back: passages in `dspy.ColBERTv2`'s format and in ours, what is served, and refusals, all as JSON.

In: passages. Out: JSON values and responses.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from blendfilter.records import Passage
from blendfilter.retrieval.hits import cut_of

_DIGITS_OF_AN_INT = 18


class Json(Response):
    """JSON in ASCII: escapes carry every character that a corpus may hold, half ones too."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body. What JSON does not know is written as text, as a run's journal does."""
        return json.dumps(content, default=str).encode()


def refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> Json:
    """An error: `dspy.ColBERTv2` looks for `error` and `message`."""
    return Json({"error": True, "message": message}, status, headers)


def topk(passages: Sequence[Passage]) -> dict[str, Any]:
    """One query's passages as `dspy.ColBERTv2` reads them.

    `prob` is the softmax over the scores shown here; where there are no scores, neither is there a `prob`.

    >>> topk([Passage("7", "Fell", "A hill.", 1.0)])["topk"][0]["text"]
    'Fell | A hill.'
    """
    scores = [_score(passage) for passage in passages]
    rows = zip(passages, scores, softmax(scores), strict=True)
    return {"topk": [_row(rank, *row) for rank, row in enumerate(rows, 1)]}


def _row(rank: int, passage: Passage, score: float | None, prob: float | None) -> dict[str, Any]:
    line = passage.line
    title = {"title": passage.title} if passage.title else {}
    # a POST's rows are handed on as they are, without the long_text that a GET's are given
    return {
        "text": line, "long_text": line, "pid": pid_of(passage.id), "rank": rank, "score": score, "prob": prob, **title
    }  # fmt: skip


def pid_of(name: str) -> int | str:
    """A passage's id as the number it writes out, or as it is.

    >>> pid_of("17"), pid_of("017"), pid_of("wiki-17")
    (17, '017', 'wiki-17')
    """
    plain = name.isascii() and name.isdigit() and len(name) <= _DIGITS_OF_AN_INT and (name == "0" or name[0] != "0")
    return int(name) if plain else name


def softmax(scores: Sequence[float | None]) -> list[float | None]:
    """exp(s) over the sum of exp(s), None throughout where a score is missing.

    >>> softmax([0.0, 0.0]), softmax([1.0, None])
    ([0.5, 0.5], [None, None])
    """
    known = [score for score in scores if score is not None]
    if len(known) < len(scores) or not known:
        return [None] * len(scores)
    top = max(known)
    weights = [math.exp(score - top) for score in known]
    total = sum(weights)
    return [weight / total for weight in weights]


def _score(passage: Passage) -> float | None:
    score = None if passage.score is None else float(passage.score)
    return score if score is None or math.isfinite(score) else None


def results(fingerprint: str, found: Sequence[Sequence[Passage]]) -> dict[str, Any]:
    """A batch's passages, whole: titles, texts and metadata as the index keeps them."""
    rows = [{"query_cut": cut_of(hits), "passages": [_whole(passage) for passage in hits]} for hits in found]
    return {"fingerprint": fingerprint, "results": rows}


def _whole(passage: Passage) -> dict[str, Any]:
    return {
        "id": passage.id,
        "title": passage.title,
        "text": passage.text,
        "score": None if passage.score is None else float(passage.score),
        "metadata": dict(passage.metadata),
    }


def shown(value: Any) -> Any:
    """What an index says of itself, without where it lies: on this machine, or behind it.

    >>> shown({"kind": "colbert", "path": "indexes/w", "settings": {"checkpoint": "/data/models/colbertv2.0"}})
    {'kind': 'colbert', 'settings': {'checkpoint': 'colbertv2.0'}}
    """
    if isinstance(value, Mapping):
        return {name: shown(each) for name, each in value.items() if name not in ("path", "url")}
    if isinstance(value, list | tuple):
        return [shown(each) for each in value]
    if isinstance(value, os.PathLike) or (isinstance(value, str) and value.startswith(("/", "~", "file:"))):
        return os.path.basename(os.fspath(value).rstrip("/"))
    return value
