"""Where an encoder's files lie, and a hash by which it is known wherever they lie.

In: a folder, or a name on the Hugging Face hub (`owner/name`). Out: the folder, from the hub's cache where it is there;
the sha256 of its weights, configuration and tokenizer.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blendfilter.errors import BadData, MissingFile
from blendfilter.extras import needed

WHY = "a dense index"
MARKS = ("config.json", "modules.json")
"""A folder with neither is no encoder."""
_ON_THE_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_OTHER_BUILDS = ("onnx", "openvino")
_NOT_WANTED = [*(f"{name}/*" for name in _OTHER_BUILDS), "*.onnx", "*.h5", "*.msgpack", "*.ot", "*.gguf", "*.tflite"]
_SAID_IN = {
    *MARKS, "sentence_bert_config.json", "config_sentence_transformers.json", "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json", "merges.txt",
    "spiece.model", "sentencepiece.bpe.model", "tokenizer.model",
}  # fmt: skip


def encoder_folder(name: str) -> Path:
    """The folder of an encoder. A name on the hub is downloaded once, and found in the hub's cache after that.

    Raises:
        MissingFile: there is no such folder, and no such name to be had.
        BadData: the folder holds no encoder.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        folder = _from_hub(name)
    if not any((folder / mark).is_file() for mark in MARKS):
        raise BadData(f"no encoder in {folder}: a Hugging Face folder has a {' or '.join(MARKS)}")
    return folder


def files_hash(folder: Path) -> str:
    """sha256 over whatever makes the encoder what it is; its place, its read-me and its other builds do not count."""
    whole = hashlib.sha256()
    for path in _files(folder):
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        whole.update(f"{path.relative_to(folder).as_posix()}\0{digest}\n".encode())
    return whole.hexdigest()


def _from_hub(name: str) -> Path:
    hub: Any = needed("huggingface_hub", "dense", WHY)
    if not _ON_THE_HUB.fullmatch(name) or Path(name).exists():
        raise MissingFile(f"no encoder '{name}': it is no folder, and names on the hub read owner/name")
    try:
        return Path(hub.snapshot_download(name, local_files_only=True))
    except OSError:  # not in the cache
        pass
    try:
        return Path(hub.snapshot_download(name, ignore_patterns=_NOT_WANTED))
    except (OSError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise MissingFile(
            f"no encoder '{name}': no folder here, not in the hub's cache, and the hub did not give it ({why}): "
            "check the name, or name a folder"
        ) from None


def _files(folder: Path) -> Iterator[Path]:
    """In the order of their names. Weights saved twice are read from safetensors, so those count."""
    inside = [path for path in sorted(folder.rglob("*")) if path.is_file() and not _skipped(path, folder)]
    weights = [path for path in inside if path.suffix == ".safetensors"]
    weights = weights or [path for path in inside if path.suffix == ".bin"]
    counting = {*weights, *(path for path in inside if path.name in _SAID_IN)}
    return (path for path in inside if path in counting)


def _skipped(path: Path, folder: Path) -> bool:
    parts = path.relative_to(folder).parts
    return any(part.startswith(".") for part in parts) or parts[0] in _OTHER_BUILDS
