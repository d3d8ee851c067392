"""Packages that come with an extra, imported when first used."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from blendfilter.errors import MissingExtra

NOT_FETCHED = (
    "onnx/*",
    "openvino/*",
    "*.onnx",
    "*.h5",
    "*.msgpack",
    "*.ot",
    "*.gguf",
    "*.tflite",
)
"""Files of a model on the hub whose formats nothing here reads."""


def needed(module: str, extra: str, why: str) -> Any:
    """The module of that name.

    Raises:
        MissingExtra: it is not installed; `why` says who wants it.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        # a broken installation is reported as it is
        if (error.name or "").partition(".")[0] != package:
            raise
        raise MissingExtra(f"{why} needs '{package}': {how_to_install(extra)}") from None


class LazyModule:
    """Stands for a module of an extra, so that what uses it can be imported, listed and documented without it.

    Reading an attribute imports the module, or raises `MissingExtra`.
    """

    def __init__(self, module: str, extra: str, why: str) -> None:
        self._where = (module, extra, why)

    def __getattr__(self, name: str) -> Any:
        return getattr(needed(*self._where), name)


@contextmanager
def quiet_transformers(extra: str, why: str) -> Iterator[None]:
    """Without the bars and reports of transformers and sentence-transformers on stderr; the caller checks what matters.

    Raises:
        MissingExtra: it is not installed.
    """
    reports = needed("transformers.utils.logging", extra, why)
    level = reports.get_verbosity()
    bars = reports.is_progress_bar_enabled()
    reports.set_verbosity_error()
    reports.disable_progress_bar()
    try:
        with quiet_loggers("sentence_transformers"):
            yield
    finally:
        reports.set_verbosity(level)
        if bars:
            reports.enable_progress_bar()


@contextmanager
def quiet_loggers(*names: str, level: int = logging.ERROR) -> Iterator[None]:
    """Without what these loggers report below `level`."""
    before = {logger: logger.level for logger in map(logging.getLogger, names)}
    try:
        for logger in before:
            logger.setLevel(level)
        yield
    finally:
        for logger, old in before.items():
            logger.setLevel(old)


class _InOrder(set[Any]):
    """A set that is gone through in the order of its elements."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__()))

    def __and__(self, other: Any) -> Any:
        return _InOrder(super().__and__(other))


def order_merges() -> None:
    """Have GEPA draw the predictors of a merged program in the order of their names.

    It draws in the order of a set of names, which every process hashes otherwise, whatever its seed.
    """
    try:
        vars(import_module("gepa.proposer.merge"))["set"] = _InOrder
    except ImportError:
        return  # nobody merges


def how_to_install(extra: str) -> str:
    """The command, for a checkout and a wheel alike: pip takes the blendfilter that is installed."""
    return f"pip install 'blendfilter[{extra}]'"
