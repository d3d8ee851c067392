"""What every HTTP client of the package does with what a server sends: replies of a bounded size, JSON, headers.

A server is not trusted: its body may have no end, unpack to a thousand times its size or nest without bound, and its
headers may hold any text. What cannot be read is a fault of that one request, raised as an error that says so.

httpx is imported where a server is asked: it takes a tenth of a second, which an offline question need not wait for.
"""

from __future__ import annotations

import datetime
import email.utils
import json
import math
import re
import time
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

LARGEST = 32 << 20
"""Bytes that a reply may have once it is unpacked. The longest replies that models give, with log-probabilities of
every token, have a few megabytes."""
PACKINGS = "gzip, deflate"
"""The packings that requests accept; no other is unpacked."""


class TooLarge(Exception):
    """A reply that goes on beyond its bound; what came of it was thrown away."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the reply is larger than {limit >> 20} MiB, and was not read to its end"
        )


def bounded(reply: httpx.Response, limit: int = LARGEST, seconds: float | None = None) -> bytes:
    """The unpacked body of a streamed reply, read within so many bytes, packed and unpacked, and `seconds`.

    Raises:
        TooLarge: as soon as the bound is passed.
        httpx.ReadTimeout, httpx.DecodingError: it is not whole in time, or not packed as it claims.
    """
    import httpx

    packing = reply.headers.get("content-encoding", "").strip().lower()
    if packing not in ("", "identity", "gzip", "deflate"):
        raise httpx.DecodingError(
            f"the reply is packed as {packing[:20]!r}, which the request does not accept"
        )
    # 47: zlib finds out which of the two headers there is
    unpacker = zlib.decompressobj(47) if packing in ("gzip", "deflate") else None
    over = math.inf if seconds is None else time.monotonic() + seconds
    content, came = bytearray(), 0
    for piece in reply.iter_raw():
        came += len(piece)
        if unpacker is None:
            content += piece
        elif not unpacker.eof:
            try:
                content += unpacker.decompress(piece, limit - len(content) + 1)
            except zlib.error as error:
                raise httpx.DecodingError(f"the reply is damaged ({error})") from None
        # what comes may unpack to nothing, and yet have no end
        if max(len(content), came) > limit:
            raise TooLarge(limit)
        if time.monotonic() > over:
            raise httpx.ReadTimeout("the reply did not end in time", request=reply.request)
    return bytes(content)


def json_of(content: bytes | str) -> Any:
    """`content` as JSON. Raises `ValueError`, for depth too."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def seconds_to_wait(headers: Mapping[str, str]) -> float | None:
    """What ``Retry-After`` asks for: seconds, or the seconds until its date; None where it says nothing readable.

    ``retry-after-ms`` goes before it. OpenAI's ``x-ratelimit-reset-…`` are not read: they stand in every reply, one for
    requests and one for tokens, and do not say which of the two ran out; its refusals carry ``Retry-After`` too.

    >>> seconds_to_wait({"retry-after": "2.5"}), seconds_to_wait({"retry-after": "soon"}), seconds_to_wait({})
    (2.5, None, None)
    """
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        if re.fullmatch(
            r"[0-9]{1,12}(?:\.[0-9]{1,12})?", value := headers.get(name, "").strip()
        ):
            return float(value) / unit
    until = _moment(headers.get("retry-after", ""))
    # By the server's own clock, where it tells it: this one may be minutes off.
    return (
        None
        if until is None
        else max(0.0, until - (_moment(headers.get("date", "")) or time.time()))
    )


def _moment(value: str) -> float | None:
    """The time of an HTTP date, in the clock's seconds; one without a zone is in GMT."""
    try:
        date = email.utils.parsedate_to_datetime(value.strip())
        return (date if date.tzinfo else date.replace(tzinfo=datetime.UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def without_login(address: str) -> str:
    """`address`, or what was meant for one, without login and query: fit to print.

    What is malformed has no parts to go by, so all that stands before the last @ goes, however it is written.

    >>> without_login("http://me:s3c?ret@host:port/v1?key=1"), without_login("htp://me:a@b%40host")
    ('host:port/v1', 'host')
    >>> without_login("http://host:port/v1")
    'http://host:port/v1'
    """
    at = "@|%40|\N{FULLWIDTH COMMERCIAL AT}|\N{SMALL COMMERCIAL AT}"
    return re.split("[?#]", re.split(at, address)[-1], maxsplit=1)[0]
