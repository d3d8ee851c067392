"""DSPy's, GEPA's and optuna's own chatter off: they print to standard output and draw bars, a library does not."""

from __future__ import annotations

import functools
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

import tqdm  # type: ignore[import-untyped]

_TALKERS = ("dspy", "gepa", "optuna")


@contextmanager
def quiet() -> Iterator[None]:
    """Inside the block they are silent; what failed is counted by us."""
    loggers = [logging.getLogger(name) for name in _TALKERS]
    levels = [logger.level for logger in loggers]
    drawn = tqdm.tqdm.__init__
    tqdm.tqdm.__init__ = functools.partialmethod(drawn, disable=True)
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"(optuna|gepa|dspy)(\.|$)")
            for logger in loggers:
                logger.setLevel(logging.CRITICAL)
            yield
    finally:
        tqdm.tqdm.__init__ = drawn
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
