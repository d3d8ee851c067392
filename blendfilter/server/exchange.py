"""Requests and replies as JSON: limits, queries, passages, refusals."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from blendfilter.errors import BadArgument, check_counts
from blendfilter.records import Passage
from blendfilter.retrieval.base import check_search, cut_of, flags_of


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The server's limits; `/info` reports them. The refusal of a request names the limit that it exceeds."""

    max_k: int = 100  # passages a query
    max_query_chars: int = 20_000
    max_body: int = 4 * 1024 * 1024  # bytes
    max_batch: int = 64  # different queries that the index is asked at once
    max_queries: int = 256  # in one request
    max_waiting: int = 1024  # queries; beyond, the server is busy (503)
    max_connections: int = 1000  # beyond, requests are refused (503)
    stop_seconds: int = 30  # for requests in flight to finish once the server stops

    def __post_init__(self) -> None:
        check_counts(self, asdict(self))
        if self.max_waiting < self.max_queries:
            raise BadArgument(
                f"max_waiting ({self.max_waiting}) must be at least max_queries ({self.max_queries}): "
                "a request's queries wait together"
            )


# --- replies ----------------------------------------------------------------------------------------------------------


class Json(Response):
    """JSON in ASCII: escapes carry every character that a corpus may hold, lone surrogates too."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body. Values that JSON does not know are written as text, as in a run's journal."""
        return json.dumps(content, default=str).encode()


def refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> Json:
    """An error: `dspy.ColBERTv2` looks for `error` and `message`."""
    return Json({"error": True, "message": message}, status, headers)


def topk(passages: Sequence[Passage]) -> dict[str, Any]:
    """One query's passages as `dspy.ColBERTv2` reads them. `prob` is the softmax over the scores, if all have one.

    >>> topk([Passage("7", "Fell", "A hill.", 1.0)])["topk"][0]["text"]
    'Fell | A hill.'
    """
    scores = [float(passage.score) for passage in passages if passage.score is not None]
    weights = [math.exp(score - max(scores)) for score in scores]
    rows = []
    for at, passage in enumerate(passages):
        scored = len(scores) == len(passages)
        row: dict[str, Any] = {
            "text": passage.line,
            "long_text": passage.line,  # the client adds it to a GET's rows, but not to a POST's
            "pid": pid_of(passage.id),
            "rank": at + 1,
            "score": scores[at] if scored else None,
            "prob": weights[at] / sum(weights) if scored else None,
        }
        if passage.title:
            row["title"] = passage.title
        rows.append(row)
    return {"topk": rows}


def pid_of(name: str) -> int | str:
    """A passage's id as the number it writes out, else as it is.

    >>> pid_of("17"), pid_of("017"), pid_of("wiki-17")
    (17, '017', 'wiki-17')
    """
    return int(name) if re.fullmatch("0|[1-9][0-9]{0,17}", name) else name


def results(fingerprint: str, found: Sequence[Sequence[Passage]]) -> dict[str, Any]:
    """A batch's passages with all their fields."""
    rows = []
    for hits in found:
        passages = [
            {
                "id": passage.id,
                "title": passage.title,
                "text": passage.text,
                "score": None if passage.score is None else float(passage.score),
                "metadata": dict(passage.metadata),
            }
            for passage in hits
        ]
        rows.append({"query_cut": cut_of(hits), **flags_of(hits), "passages": passages})
    return {"fingerprint": fingerprint, "results": rows}


def without_paths(value: Any) -> Any:
    """An index's description without addresses and folders of this machine.

    >>> without_paths({"kind": "colbert", "path": "indexes/w", "settings": {"checkpoint": "/data/models/colbertv2.0"}})
    {'kind': 'colbert', 'settings': {'checkpoint': 'colbertv2.0'}}
    """
    if isinstance(value, Mapping):
        return {
            name: without_paths(part)
            for name, part in value.items()
            if name not in ("path", "url")
        }
    if isinstance(value, list | tuple):
        return [without_paths(part) for part in value]
    if isinstance(value, os.PathLike) or str(value).startswith(("/", "~", "file:")):
        return os.path.basename(str(value).rstrip("/"))
    return value


# --- requests ---------------------------------------------------------------------------------------------------------


async def one_query(request: Request, limits: ServerLimits) -> tuple[list[str], int]:
    """`dspy.ColBERTv2`'s request: ``GET ?query=…&k=5``, or ``POST {"query": …, "k": 5}``."""
    body = await _body(request, limits)
    fields: dict[str, Any] = dict(request.query_params)
    if request.method == "POST":
        fields = _object(body)
    elif re.fullmatch("[0-9]{1,9}", fields.get("k", "")):
        fields["k"] = int(fields["k"])
    if fields.get("query") is None:
        raise BadArgument('there is no query: GET /?query=…&k=5, or POST {"query": …, "k": 5}')
    return checked([fields["query"]], fields.get("k", 10), limits)


async def many_queries(request: Request, limits: ServerLimits) -> tuple[list[str], int]:
    """A batch: ``POST {"queries": […], "k": 5}``."""
    fields = _object(await _body(request, limits))
    queries = fields.get("queries")
    if not isinstance(queries, list) or not queries:
        raise BadArgument('there are no queries: POST {"queries": ["…", "…"], "k": 5}')
    return checked(queries, fields.get("k", 5), limits)


def checked(queries: list[str], k: int, limits: ServerLimits) -> tuple[list[str], int]:
    """Queries and k, within the limits. Raises `BadArgument` naming the limit."""
    k = check_search(queries, k)
    longest = max(map(len, queries))
    if k > limits.max_k:
        raise BadArgument(
            f"k={k} is more than this server gives: at most {limits.max_k} (--max-k)"
        )
    if len(queries) > limits.max_queries:
        raise BadArgument(
            f"{len(queries)} queries in one request: at most {limits.max_queries}; send them apart"
        )
    if longest > limits.max_query_chars:
        raise BadArgument(
            f"a query of {longest:,} characters: at most {limits.max_query_chars:,} (--max-query-chars)"
        )
    return queries, k


async def _body(request: Request, limits: ServerLimits) -> bytes:
    # Starlette's own limit answers in plain text, which `dspy.ColBERTv2` cannot read
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limits.max_body:
            raise HTTPException(
                413, f"the body is too large: at most {limits.max_body:,} bytes (--max-body)"
            )
    return bytes(body)


def _object(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):  # bytes that are not UTF-8 are a ValueError too
        raise BadArgument("the body is not JSON: send one object in UTF-8") from None
    if not isinstance(fields, dict):
        raise BadArgument(f"the body is JSON, but a {type(fields).__name__}: send an object")
    return fields
