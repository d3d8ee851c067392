"""What a request asks, read from its address or its body and held against the limits.

In: a request. Out: `Asked(queries, k)`, or a refusal that says what is wrong: an `HTTPException`, or `BadArgument`.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request

from blendfilter.errors import BadArgument
from blendfilter.retrieval.base import check_search
from blendfilter.server.limits import Limits

K_OF_COLBERT = 10
K_OF_SEARCH = 5
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")


class Asked(NamedTuple):
    """Queries to search for, and how many passages each."""

    queries: list[str]
    k: int


async def one_query(request: Request, limits: Limits) -> Asked:
    """`dspy.ColBERTv2`'s question: ``GET ?query=…&k=5``, or ``POST {"query": …, "k": 5}``."""
    if request.method == "POST":
        fields = await _object(request, limits)
    else:
        fields = dict(request.query_params)
        if _NUMBER.fullmatch(fields.get("k", "")):
            fields["k"] = int(fields["k"])
    if fields.get("query") is None:
        raise BadArgument('there is no query: GET /?query=…&k=5, or POST {"query": …, "k": 5}')
    return checked(Asked([fields["query"]], fields.get("k", K_OF_COLBERT)), limits)


async def many_queries(request: Request, limits: Limits) -> Asked:
    """Ours: ``POST {"queries": […], "k": 5}``."""
    fields = await _object(request, limits)
    queries = fields.get("queries")
    if not isinstance(queries, list) or not queries:
        raise BadArgument('there are no queries: POST {"queries": ["…", "…"], "k": 5}')
    return checked(Asked(queries, fields.get("k", K_OF_SEARCH)), limits)


def checked(asked: Asked, limits: Limits) -> Asked:
    """`asked`, within the limits. Raises `BadArgument` naming the limit."""
    check_search(asked.queries, asked.k)
    if asked.k > limits.max_k:
        raise BadArgument(f"k={asked.k} is more than this server gives: at most {limits.max_k} (--max-k)")
    if len(asked.queries) > limits.max_queries:
        raise BadArgument(f"{len(asked.queries)} queries in one request: at most {limits.max_queries}; send them apart")
    longest = max(map(len, asked.queries))
    if longest > limits.max_query_chars:
        raise BadArgument(f"a query of {longest:,} characters: at most {limits.max_query_chars:,} (--max-query-chars)")
    return asked


async def _object(request: Request, limits: Limits) -> dict[str, Any]:
    body = await read_body(request, limits)
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):  # not UTF-8 is a ValueError too
        raise BadArgument("the body is not JSON: send one object in UTF-8") from None
    if not isinstance(fields, dict):
        raise BadArgument(f"the body is JSON, but a {type(fields).__name__}: send an object")
    return fields


async def read_body(request: Request, limits: Limits) -> bytes:
    """The request's body. Raises `HTTPException`: 413 where it is too large, 408 where it takes too long to arrive."""
    parts, size = list[bytes](), 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                size += len(part)
                if size > limits.max_body:  # the rest is read and thrown away below us, so that its sender sees why
                    raise HTTPException(413, f"the body is too large: at most {limits.max_body:,} bytes (--max-body)")
                parts.append(part)
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {limits.body_seconds} seconds") from None
    return b"".join(parts)
