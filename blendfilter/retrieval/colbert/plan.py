"""How an index of a given size is divided: how many centroids, from how large a sample, in chunks of how many passages.

In: how many passages, how long, and the device. Out: a `Plan`. PLAID's rule is 16 sqrt(vectors) centroids, rounded
down to a power of two; on a CPU, training them is most of a build, so there a quarter of that is taken
(docs/benchmarks.md says what it costs).
"""

from __future__ import annotations

import math
from typing import NamedTuple

CHUNK = 10_000
"""Passages in one chunk of an index's files."""
PER_CENTROID = 64
"""Sampled vectors a centroid is trained on, at the most."""
FACTOR = {"cuda": 16, "cpu": 4}
SMALL = 100_000
"""Passages up to which an index can afford more bits and a wider search."""
LOOK = 256
"""Passages that are encoded to learn how long passages are."""


class Plan(NamedTuple):
    """The division of one index."""

    partitions: int
    sample: int
    """Passages whose vectors train the centroids."""


def nbits_for(passages: int) -> int:
    """Bits kept of each dimension: ColBERTv2's two for large collections, four where that costs megabytes at the most.

    >>> nbits_for(2_000), nbits_for(5_233_329)
    (4, 2)
    """
    return 4 if passages <= SMALL else 2


def planned(passages: int, length: float, device: str, partitions: int | None = None) -> Plan:
    """The plan for `passages` of about `length` vectors each; `partitions` are taken as given.

    >>> planned(2_000, 100, "cpu"), planned(2_000, 100, "cuda")
    (Plan(partitions=1024, sample=656), Plan(partitions=4096, sample=2000))
    >>> planned(5_233_329, 80, "cuda")
    Plan(partitions=262144, sample=209716)
    """
    rule = 2 ** math.floor(math.log2(max(1.0, FACTOR[device] * math.sqrt(passages * length))))
    count = rule if partitions is None else partitions
    return Plan(count, min(passages, math.ceil(count * PER_CENTROID / length)))
