"""colbert-ai 0.2.22, of which the compression, the scorer and their kernels are used, kept from changing the process.

What is patched, and when it can go:

- `colbert.infra.launcher` sets the start method of all of `multiprocessing` to spawn: set back. Goes when it stops.
- Its kernels are compiled at first use into one folder for all environments, and wait for ever behind the lock of a
  process that was killed: they get a folder for this torch, and a lock that ends with its holder.
- Its CUDA kernels want a CUDA compiler that few machines with a GPU have: two functions of torch do the same.
- It prints as it goes: that goes to Python's logging instead, at level DEBUG.
"""

from __future__ import annotations

import fcntl
import functools
import importlib
import io
import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from blendfilter import resources
from blendfilter.errors import MissingExtra, MissingFile
from blendfilter.extras import LazyModule, needed

logger = logging.getLogger(__name__)
# the class and its documentation are there without it
torch: Any = LazyModule("torch", "colbert", "a ColBERT index")
_loading = threading.RLock()

KERNELS = (
    "segmented_maxsim_cpp",
    "segmented_lookup_cpp",
    "filter_pids_cpp",
    "decompress_residuals_cpp",
)
"""The folders that they are compiled in; others beside them, in a user's own TORCH_EXTENSIONS_DIR, are not ours."""
PRINTING = (
    "colbert.modeling.colbert",
    "colbert.search.index_storage",
    "colbert.search.index_loader",
    "colbert.search.strided_tensor",
    "colbert.indexing.codecs.residual",
    "colbert.indexing.codecs.residual_embeddings",
)


class ColBERTParts(NamedTuple):
    """What is used of colbert-ai."""

    config: Any  # `ColBERTConfig`
    codec: Any  # `ResidualCodec`
    scorer: Any  # `IndexScorer`
    model: Any  # `ColBERT`, for its kernel alone
    strided: Any  # `StridedTensor`, for its kernel alone


@functools.cache
def parts() -> ColBERTParts:
    """colbert-ai, imported and patched once. Raises `MissingExtra` where it is not installed."""
    tokenizers = os.environ.get("TOKENIZERS_PARALLELISM", "")
    method = multiprocessing.get_start_method(allow_none=True)
    # it imports GitPython, which raises where git is not installed; and without faiss it prints that on stdout
    quiet = _environment(GIT_PYTHON_REFRESH="quiet", TOKENIZERS_PARALLELISM=tokenizers)
    with _loading, quiet, redirect_stdout(io.StringIO()):
        modules = {name: needed(name, "colbert", "a ColBERT index") for name in PRINTING}
        for module in modules.values():
            module.print_message = lambda *parts, **_: logger.debug(
                "%s", " ".join(map(str, parts))
            )
            if hasattr(module, "tqdm"):
                module.tqdm = SimpleNamespace(tqdm=lambda things, *_, **__: things)
        multiprocessing.set_start_method(method, force=True)
        storage = modules["colbert.search.index_storage"]
        codecs = modules["colbert.indexing.codecs.residual"]
        codecs.ResidualCodec.decompress_residuals = staticmethod(decompress)
        codecs.ResidualCodec.packbits = staticmethod(packbits)
        codecs.ResidualCodec.loaded_extensions = True
        return ColBERTParts(
            config=importlib.import_module("colbert.infra.config").ColBERTConfig,
            codec=codecs.ResidualCodec,
            scorer=storage.IndexScorer,
            model=modules["colbert.modeling.colbert"].ColBERT,
            strided=modules["colbert.search.strided_tensor"].StridedTensor,
        )


# --- kernels --------------------------------------------------------------------------------------------------------


def load_kernels() -> None:
    """Compile colbert-ai's four C++ kernels, or load them from an earlier time. Searching on the CPU wants them.

    Raises:
        MissingExtra: there is no C++ compiler, and they have not been compiled before.
    """
    used = parts()
    place = os.environ.get("TORCH_EXTENSIONS_DIR")
    try:
        folder = Path(
            place
            or resources.cache("kernels")
            / f"torch-{torch.__version__}-{sys.implementation.cache_tag}"
        )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".building").touch()
    except (OSError, MissingFile) as error:
        folder = Path(tempfile.mkdtemp(prefix="blendfilter-kernels-"))
        logger.warning(
            "ColBERT's kernels are not kept (%s): name a folder in BLENDFILTER_CACHE", error
        )
    # torch looks for ninja on the PATH, where the script of an environment that is not activated is not
    path = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    with (
        _loading,
        _environment(TORCH_EXTENSIONS_DIR=str(folder), PATH=path),
        open(folder / ".building", "w", encoding="utf-8") as lock,
    ):
        # one process at a time, and the lock does not outlive its holder
        fcntl.flock(lock, fcntl.LOCK_EX)
        for kernel in KERNELS:  # we hold the lock, so the process that wrote these has died
            (folder / kernel / "lock").unlink(missing_ok=True)
        if len(list(folder.glob("*/*.so"))) < len(KERNELS):
            if not shutil.which(os.environ.get("CXX", "c++")):
                raise MissingExtra(
                    "searching a ColBERT index on the CPU compiles four small kernels once, and there is no C++ "
                    "compiler: install one (g++)"
                )
            logger.warning("compiling ColBERT's kernels into %s: once, a minute or two", folder)
        for part in (used.model, used.scorer, used.strided):
            part.try_load_torch_extensions(False)


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Inside the block, variables of the environment have these values; afterwards, what they had before."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def packbits(bits: Any) -> Any:
    """Bits (uint8 of 0 and 1, a multiple of eight) as bytes, the first bit highest; what colbert-ai's kernel does.

    >>> packbits(torch.tensor([1, 0, 0, 0, 0, 0, 1, 1], dtype=torch.uint8)).tolist()
    [131]
    """
    weights = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.int32, device=bits.device)
    return (bits.view(-1, 8).to(torch.int32) * weights).sum(1).to(torch.uint8)


def decompress(
    residuals: Any,
    weights: Any,
    reversed_bits: Any,
    table: Any,
    codes: Any,
    centroids: Any,
    dim: int,
    nbits: int,
) -> Any:
    """Centroid plus residual of each embedding, not yet normalised: (n, dim). What colbert-ai's CUDA kernel does."""
    buckets = table[reversed_bits[residuals.long()].long()].reshape(residuals.size(0), dim)
    return centroids[codes.long()] + weights[buckets.long()].to(centroids.dtype)


# --- a quiet guest --------------------------------------------------------------------------------------------------


@contextmanager
def gpus_seen(count: int) -> Iterator[None]:
    """colbert-ai takes a GPU wherever it sees one; inside the block it sees `count`."""
    settings = importlib.import_module("colbert.infra.config.settings").RunSettings
    with _loading:
        seen, settings.total_visible_gpus = settings.total_visible_gpus, count
        try:
            yield
        finally:
            settings.total_visible_gpus = seen
