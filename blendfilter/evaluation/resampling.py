"""Resampled means: questions drawn with replacement, and within them their answers where there are several.

In: scores, one a question or questions x answers. Out: as many means as resamples.

The same scores and seed give the same figures in every run: positions are read off the raw words of PCG64, whose stream
NumPy guarantees across versions (that of `Generator.integers` it does not). The same seed draws the same questions for
every measure and run of that size; answers are drawn from streams of their own. Only the order in which a processor
adds fractions may move the last bits, so round (6 decimals) wherever a figure is stored.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from blendfilter.errors import BadArgument

RESAMPLES = 10_000
_WORDS_AT_ONCE = 1 << 20
"""Positions drawn in one go: bounds the memory (about 25 MB) and never changes a result."""

Array = NDArray[np.float64]
Places = NDArray[np.int64]


def resampled_means(scores: Array, seed: int, resamples: int) -> Array:
    """`resamples` means of as many scores, drawn with replacement."""
    return paired_means(np.zeros(len(scores)), scores, seed, resamples)


def paired_means(a: Array, b: Array, seed: int, resamples: int) -> Array:
    """`resamples` means of b - a over the same drawn questions, each side's answers drawn apart.

    Raises `BadArgument` for `resamples` < 1 and a negative seed.
    """
    if resamples < 1:
        raise BadArgument(f"resamples is {resamples}: give at least 1 ({RESAMPLES} is usual)")
    if seed < 0:
        raise BadArgument(f"seed is {seed}: give 0 or a positive whole number")
    if a.ndim == b.ndim == 1:
        differences = b - a
        return np.concatenate([differences[places].mean(axis=1) for places in drawn_places(b.size, seed, resamples)])
    before, after = _Drawn(a, seed, 1), _Drawn(b, seed, a.ndim)  # one stream each; the same whichever side is drawn
    wide = max(a[0].size, b[0].size)
    blocks = drawn_places(len(b), seed, resamples, wide=wide)
    return np.concatenate([after.means(places) - before.means(places) for places in blocks])


class _Drawn:
    """One side's answers within the questions drawn, from a stream of its own."""

    def __init__(self, scores: Array, seed: int, stream: int) -> None:
        self.scores = scores
        self.bits = np.random.PCG64(seed).jumped(stream)

    def means(self, questions: Places) -> Array:
        """A mean for each row of places."""
        if self.scores.ndim == 1:
            return np.asarray(self.scores[questions].mean(axis=1))
        answers = self.scores.shape[1]
        drawn = _scaled(self.bits.random_raw(questions.size * answers), answers).reshape(*questions.shape, answers)
        return np.asarray(self.scores[questions[..., None], drawn].mean(axis=(1, 2)))


def drawn_places(n: int, seed: int, resamples: int, *, wide: int = 1) -> Iterator[Places]:
    """Positions 0..n-1 in blocks of rows, a row a resample; blocks are smaller where a position stands for `wide`."""
    bits = np.random.PCG64(seed)
    at_once = max(1, _WORDS_AT_ONCE // (n * wide))
    for done in range(0, resamples, at_once):
        rows = min(at_once, resamples - done)
        yield _scaled(bits.random_raw(rows * n), n).reshape(rows, n)


def _scaled(words: NDArray[np.uint64], n: int) -> Places:
    """The high 32 bits of each word, scaled to 0..n-1."""
    return ((words >> np.uint64(32)) * np.uint64(n) >> np.uint64(32)).astype(np.int64)
