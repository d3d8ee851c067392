"""A Hugging Face folder that holds a language model: found, told apart from others, loaded.

In: a folder, or a name on the Hugging Face hub. Out: its configuration, its tokeniser, its model. Code that comes with
a model is never run.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from blendfilter.errors import BadArgument, BadData, MissingFile
from blendfilter.extras import needed, quiet_transformers

EXTRA = "scoring"
WHY = "scoring with a model of Hugging Face"
CONFIG = "config.json"
DTYPES = ("float32", "bfloat16", "float16", "float64")
_ON_THE_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_UNWANTED = ["onnx/*", "openvino/*", "*.onnx", "*.h5", "*.msgpack", "*.ot", "*.gguf", "*.tflite"]
_READ_WHOLE = 2**20
_CHUNK, _CHUNKS = 2**16, 64


class Checkpoint(NamedTuple):
    """A model that is loaded."""

    model: Any
    tokenizer: Any
    config: Any
    device: Any


def folder_of(name: str | Path) -> Path:
    """The folder of a model. A name on the hub is downloaded once, and found in the hub's cache after that.

    Raises:
        MissingFile: there is no such folder, and no such name to be had. BadData: the folder holds no model.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        folder = _from_hub(str(name))
    if not (folder / CONFIG).is_file():
        raise BadData(f"no model in {folder}: a Hugging Face folder has a {CONFIG}")
    return folder


def fingerprint(folder: Path) -> str:
    """16 hex digits that tell models apart, wherever the folder lies.

    Of configuration, tokeniser and the like all that is in the folder and small; of each file of weights its size and
    64 pieces of 64 KiB spread over it. Another training shows in every piece; two files that differ in a few bytes
    alone may not be told apart.
    """
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in (".json", ".safetensors", ".bin", ".model", ".txt", ".jinja"):
            whole.update(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_size}\n".encode())
            for piece in _pieces(path):
                whole.update(piece)
    return whole.hexdigest()[:16]


def load(folder: Path, *, device: str | None = None, dtype: str | None = None) -> Checkpoint:
    """The model in `folder`, ready to read.

    Args:
        device: `cpu`, `cuda`, `cuda:1`; by default a GPU where there is one.
        dtype: what it computes in; by default float32 on a CPU, and on a GPU what the weights are stored in.

    Raises:
        BadData: it cannot be loaded, or not whole, or is no model that gives the next token.
        BadArgument: no such device or dtype here.
    """
    torch, transformers = needed("torch", EXTRA, WHY), needed("transformers", EXTRA, WHY)
    place = _device(torch, device)
    auto: Any = "float32" if place.type == "cpu" else "auto"
    with quiet_transformers(EXTRA, WHY):
        try:
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
            kind = "AutoModelForSeq2SeqLM" if config.is_encoder_decoder else "AutoModelForCausalLM"
            model, report = getattr(transformers, kind).from_pretrained(
                folder, dtype=dtype or auto, local_files_only=True, output_loading_info=True
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (ImportError, MemoryError):
            raise
        except Exception as error:  # whatever torch, tokenizers and safetensors raise of a file that is not theirs
            why = str(error).strip().partition("\n")[0][:200] or type(error).__name__
            raise BadData(
                f"the model in {folder} cannot be loaded ({why}): is it a language model, and whole?"
            ) from error
    if missing := sorted(report["missing_keys"]):
        raise BadData(
            f"the model in {folder} is not whole: {len(missing)} of its weights are missing, {missing[0]} first; "
            "is it a language model? Fetch or save it again"
        )
    if not tokenizer.is_fast:
        raise BadData(f"the tokeniser in {folder} does not tell where tokens end: save it as a tokenizer.json")
    return Checkpoint(model.to(place).eval(), tokenizer, config, place)


def checked_dtype(dtype: str | None) -> str | None:
    """`dtype`. Raises: BadArgument where it is none."""
    if dtype is not None and dtype not in DTYPES:
        raise BadArgument(f"no dtype '{dtype}' (known: {', '.join(DTYPES)})")
    return dtype


def _device(torch: Any, asked: str | None) -> Any:
    try:
        place = torch.device(asked or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        why = str(error).partition("\n")[0]
        raise BadArgument(f"no device '{asked}' here ({why}): leave it out, or say 'cpu'") from None
    return place


def _pieces(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _READ_WHOLE or path.suffix not in (".safetensors", ".bin"):
            yield file.read()
            return
        for i in range(_CHUNKS):
            file.seek((size - _CHUNK) * i // (_CHUNKS - 1))
            yield file.read(_CHUNK)


def _from_hub(name: str) -> Path:
    if not _ON_THE_HUB.fullmatch(name):
        raise MissingFile(f"no model '{name}': it is no folder, and names on the hub read owner/name")
    hub: Any = needed("huggingface_hub", EXTRA, WHY)
    try:
        cached = Path(hub.snapshot_download(name, local_files_only=True))
        if _has_weights(cached):
            return cached
    except OSError:  # not in the cache
        pass
    try:
        return Path(hub.snapshot_download(name, ignore_patterns=_UNWANTED))
    except (OSError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise MissingFile(
            f"no model '{name}': no folder here, not in the hub's cache, and the hub did not give it ({why}): "
            "check the name, or name a folder"
        ) from None


def _has_weights(folder: Path) -> bool:
    """Whether all of them are there: the cache may hold a tokeniser alone, or a download that broke off."""
    if indexes := list(folder.glob("*.index.json")):
        shards = [set(json.loads(index.read_text())["weight_map"].values()) for index in indexes]
        return any(all((folder / name).is_file() for name in each) for each in shards)
    return any(any(folder.glob(pattern)) for pattern in ("*.safetensors", "*.bin"))
