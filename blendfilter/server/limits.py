"""What one request may ask for, and how much may wait.

In: numbers, each 1 or more. Out: the limits that every request is held against, told by `/info`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from blendfilter.errors import BadArgument


@dataclass(frozen=True, slots=True)
class Limits:
    """The server's limits. A request beyond one of them is refused with a line that names it.

    Attributes:
        max_k: passages a query.
        max_query_chars: characters of one query.
        max_body: bytes of a request's body, and of its head.
        max_batch: different queries that go to the index at once.
        max_queries: queries of one request.
        max_waiting: queries that may wait; beyond, the server says that it is busy.

    >>> Limits(max_k=0)
    Traceback (most recent call last):
        ...
    blendfilter.errors.BadArgument: max_k must be a whole number from 1 up, got 0
    """

    max_k: int = 100
    max_query_chars: int = 20_000
    max_body: int = 4 * 1024 * 1024
    max_batch: int = 64
    max_queries: int = 256
    max_waiting: int = 1024

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadArgument(f"{name} must be a whole number from 1 up, got {value!r}")
        if self.max_waiting < self.max_queries:
            raise BadArgument(
                f"max_waiting ({self.max_waiting}) must be at least max_queries ({self.max_queries}): "
                "a request's queries wait together"
            )
