"""What one request may bring and what goes back, all as JSON: limits, requests, passages, refusals."""

from __future__ import annotations

import asyncio
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

_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The server's limits; `/info` reports them. A request beyond one of them is refused with a line that names it."""

    max_k: int = 100  # passages a query
    max_query_chars: int = 20_000
    max_head: int = 64 * 1024  # bytes of a request's address and headers
    max_body: int = 4 * 1024 * 1024  # bytes
    max_batch: int = 64  # different queries that go to the index at once
    max_queries: int = 256  # of one request
    max_waiting: int = 1024  # queries; beyond, the server is busy (503)
    max_connections: int = 1000  # the server lowers it to what ``ulimit -n`` leaves room for
    max_unread: int = (
        128 * 1024 * 1024
    )  # bytes of replies that clients have not read yet, all together
    head_seconds: int = 10  # for a head to arrive whole
    body_seconds: int = 30  # for a body to arrive whole
    write_seconds: int = 20  # for a client to read 64 KiB of its reply, or what is left of it
    stop_seconds: int = 30  # for requests in flight to be finished once the server is to stop

    def __post_init__(self) -> None:
        check_counts(self, asdict(self))
        if self.max_waiting < self.max_queries:
            raise BadArgument(
                f"max_waiting ({self.max_waiting}) must be at least max_queries ({self.max_queries}): "
                "a request's queries wait together"
            )


# --- replies ----------------------------------------------------------------------------------------------------------


class Json(Response):
    """JSON in ASCII: escapes carry every character that a corpus may hold, half ones too."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body. Values that JSON does not know are written as text, as a run's journal does."""
        return json.dumps(content, default=str).encode()


def refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> Json:
    """An error: `dspy.ColBERTv2` looks for `error` and `message`."""
    return Json({"error": True, "message": message}, status, headers)


def head_too_large(limits: ServerLimits) -> Json:
    """The refusal of a head (address and headers) above its limit."""
    return refusal(
        431, f"the head is too large: at most {limits.max_head:,} bytes; send a long query by POST"
    )


def topk(passages: Sequence[Passage]) -> dict[str, Any]:
    """One query's passages as `dspy.ColBERTv2` reads them.

    `prob` is the softmax over these scores; where there are no scores, neither is there a `prob`.

    >>> topk([Passage("7", "Fell", "A hill.", 1.0)])["topk"][0]["text"]
    'Fell | A hill.'
    """
    scores = [None if passage.score is None else float(passage.score) for passage in passages]
    scores = [None if score is None or not math.isfinite(score) else score for score in scores]
    known = [score for score in scores if score is not None]
    weights = [math.exp(score - max(known)) for score in known] if len(known) == len(scores) else []
    rows = []
    for at, (passage, score) in enumerate(zip(passages, scores, strict=True)):
        # the client hands on a POST's rows as they are, without the long_text that it adds to a GET's
        texts = {"text": passage.line, "long_text": passage.line}
        prob = weights[at] / sum(weights) if weights else None
        title = {"title": passage.title} if passage.title else {}
        rows.append(
            {
                **texts,
                "pid": pid_of(passage.id),
                "rank": at + 1,
                "score": score,
                "prob": prob,
                **title,
            }
        )
    return {"topk": rows}


def pid_of(name: str) -> int | str:
    """A passage's id as the number it writes out, or as it is.

    >>> pid_of("17"), pid_of("017"), pid_of("wiki-17")
    (17, '017', 'wiki-17')
    """
    return int(name) if re.fullmatch("0|[1-9][0-9]{0,17}", name) else name


def results(fingerprint: str, found: Sequence[Sequence[Passage]]) -> dict[str, Any]:
    """A batch's passages, whole: titles, texts and metadata as the index has them."""
    rows = [
        {
            "query_cut": cut_of(hits),
            **flags_of(hits),
            "passages": [
                {
                    "id": passage.id,
                    "title": passage.title,
                    "text": passage.text,
                    "score": None if passage.score is None else float(passage.score),
                    "metadata": dict(passage.metadata),
                }
                for passage in hits
            ],
        }
        for hits in found
    ]
    return {"fingerprint": fingerprint, "results": rows}


def without_paths(value: Any) -> Any:
    """An index's description without where it lies, on this machine or behind it.

    >>> without_paths({"kind": "colbert", "path": "indexes/w", "settings": {"checkpoint": "/data/models/colbertv2.0"}})
    {'kind': 'colbert', 'settings': {'checkpoint': 'colbertv2.0'}}
    """
    if isinstance(value, Mapping):
        return {
            name: without_paths(part) for name, part in value.items() if name not in ("path", "url")
        }
    if isinstance(value, list | tuple):
        return [without_paths(part) for part in value]
    if isinstance(value, os.PathLike) or (
        isinstance(value, str) and value.startswith(("/", "~", "file:"))
    ):
        return os.path.basename(os.fspath(value).rstrip("/"))
    return value


# --- requests ---------------------------------------------------------------------------------------------------------


async def one_query(request: Request, limits: ServerLimits) -> tuple[list[str], int]:
    """`dspy.ColBERTv2`'s request: ``GET ?query=…&k=5``, or ``POST {"query": …, "k": 5}``."""
    if request.method == "POST":
        fields = await _object(request, limits)
    else:
        fields = dict(request.query_params)
        if _NUMBER.fullmatch(fields.get("k", "")):
            fields["k"] = int(fields["k"])
    if fields.get("query") is None:
        raise BadArgument('there is no query: GET /?query=…&k=5, or POST {"query": …, "k": 5}')
    return checked([fields["query"]], fields.get("k", 10), limits)


async def many_queries(request: Request, limits: ServerLimits) -> tuple[list[str], int]:
    """A batch: ``POST {"queries": […], "k": 5}``."""
    fields = await _object(request, limits)
    queries = fields.get("queries")
    if not isinstance(queries, list) or not queries:
        raise BadArgument('there are no queries: POST {"queries": ["…", "…"], "k": 5}')
    return checked(queries, fields.get("k", 5), limits)


def checked(queries: list[str], k: int, limits: ServerLimits) -> tuple[list[str], int]:
    """Queries and k, within the limits. Raises `BadArgument` naming the limit."""
    k = check_search(queries, k)
    if k > limits.max_k:
        raise BadArgument(f"k={k} is more than this server gives: at most {limits.max_k} (--max-k)")
    if len(queries) > limits.max_queries:
        raise BadArgument(
            f"{len(queries)} queries in one request: at most {limits.max_queries}; send them apart"
        )
    longest = max(map(len, queries))
    if longest > limits.max_query_chars:
        raise BadArgument(
            f"a query of {longest:,} characters: at most {limits.max_query_chars:,} (--max-query-chars)"
        )
    return queries, k


async def _object(request: Request, limits: ServerLimits) -> dict[str, Any]:
    """The request's body. Raises `HTTPException`: 413 where it is too large, 408 where it takes too long to arrive."""
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                body += part
                if (
                    len(body) > limits.max_body
                ):  # the rest is read and thrown away below us, so its sender sees why
                    raise HTTPException(
                        413,
                        f"the body is too large: at most {limits.max_body:,} bytes (--max-body)",
                    )
    except TimeoutError:
        raise HTTPException(
            408, f"the body did not arrive within {limits.body_seconds} seconds"
        ) from None
    try:
        fields = json.loads(bytes(body))
    except (ValueError, RecursionError):  # not UTF-8 is a ValueError too
        raise BadArgument("the body is not JSON: send one object in UTF-8") from None
    if not isinstance(fields, dict):
        raise BadArgument(f"the body is JSON, but a {type(fields).__name__}: send an object")
    return fields
