"""What one request may ask for, how much may wait, and for how long. `/info` reports them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from blendfilter.errors import BadArgument


@dataclass(frozen=True, slots=True)
class Limits:
    """The server's limits. A request beyond one of them is refused with a line that names it.

    Attributes:
        max_k: passages a query.
        max_query_chars: characters of one query.
        max_head: bytes of a request's head, which is its address and its headers.
        max_body: bytes of a request's body.
        max_batch: different queries that go to the index at once.
        max_queries: queries of one request.
        max_waiting: queries that may wait; beyond, the server says that it is busy.
        max_connections: open connections; the server lowers it to what ``ulimit -n`` leaves room for.
        max_unread: bytes of replies that clients have not read yet, all together.
        head_seconds: for a head to arrive whole.
        body_seconds: for a body to arrive whole.
        write_seconds: for a client to read 64 KiB of its reply, or what is left of it.
        stop_seconds: for requests in flight to be finished once the server is to stop.

    >>> Limits(max_k=0)
    Traceback (most recent call last):
        ...
    blendfilter.errors.BadArgument: max_k must be a whole number from 1 up, got 0
    """

    max_k: int = 100
    max_query_chars: int = 20_000
    max_head: int = 64 * 1024
    max_body: int = 4 * 1024 * 1024
    max_batch: int = 64
    max_queries: int = 256
    max_waiting: int = 1024
    max_connections: int = 1000
    max_unread: int = 128 * 1024 * 1024
    head_seconds: int = 10
    body_seconds: int = 30
    write_seconds: int = 20
    stop_seconds: int = 30

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadArgument(f"{name} must be a whole number from 1 up, got {value!r}")
        if self.max_waiting < self.max_queries:
            raise BadArgument(
                f"max_waiting ({self.max_waiting}) must be at least max_queries ({self.max_queries}): "
                "a request's queries wait together"
            )
