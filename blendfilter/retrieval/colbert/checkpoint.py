"""A ColBERT checkpoint as it lies on disk: found, checked before anything is built with it, and loaded.

In: a folder, or a name on the Hugging Face hub. Out: model and tokenizer. A checkpoint that is not there, or has no
projection of its own, is an error here; colbert-ai takes `bert-base-uncased`, or random weights, instead.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from blendfilter.errors import BadData, MissingFile
from blendfilter.extras import needed, quiet_transformers
from blendfilter.retrieval.colbert.compat import parts

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
SETTINGS = "artifact.metadata"
_WHY = "a ColBERT checkpoint"
READ = ("config.json", SETTINGS, "tokenizer.json", "tokenizer_config.json", "vocab.txt", *WEIGHTS)
"""The files that decide what a checkpoint computes."""


class Settings(BaseModel):
    """What `artifact.metadata` says of how the checkpoint was trained; colbert-ai's defaults where it says nothing."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    dim: int | None = None
    query_maxlen: int = 32
    doc_maxlen: int = 220
    mask_punctuation: bool = True
    attend_to_mask_tokens: bool = False
    similarity: str = "cosine"
    query_token_id: str = "[unused0]"
    doc_token_id: str = "[unused1]"


class Checkpoint:
    """A checkpoint by `name`; its files lie in `folder`.

    Raises:
        MissingFile: neither a folder nor a name that the hub, or its cache on this machine, knows.
        BadData: the folder holds no ColBERT checkpoint.
    """

    def __init__(self, name: str | os.PathLike[str]) -> None:
        self.folder = _found(os.fspath(name))
        self.name = str(self.folder.resolve()) if Path(name).is_dir() else os.fspath(name)
        config = self._config()
        self.settings = self._settings()
        limits = [config.get("max_position_embeddings"), self._tokenizer_limit()]
        self.limit = min(limit for limit in (*limits, 512) if isinstance(limit, int) and limit > 0)
        """The longest text in tokens, markers included, that the model can read."""
        self.dim = self._projection()
        """The length of its vectors."""

    @cached_property
    def sha256(self) -> str:
        """Over the bytes of every file that decides what it computes: the same wherever it lies."""
        digest = hashlib.sha256()
        for name in READ:
            if (self.folder / name).is_file():
                with open(self.folder / name, "rb") as file:
                    digest.update(f"{name}:{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
        return digest.hexdigest()

    def load(self, device: Any) -> tuple[Any, Any]:
        """Model and tokenizer, on `device`, ready to read. Raises `BadData` for files that do not go together."""
        used, transformers = parts(), needed("transformers", "colbert", _WHY)
        load = transformers.PreTrainedModel.from_pretrained.__func__  # its own override hides what was not found
        with quiet_transformers("colbert", _WHY), self._read_errors():
            made, config = used.class_factory(str(self.folder)), used.config(dim=self.dim)
            model, told = load(made, str(self.folder), colbert_config=config, output_loading_info=True)
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(self.folder), trust_remote_code=False)
        missing = sorted(name for name in told["missing_keys"] if ".pooler." not in name)
        if missing:
            raise BadData(f"the checkpoint {self.name} lacks weights ({', '.join(missing[:3])}, …): fetch it again")
        return model.to(device).eval(), tokenizer

    @contextmanager
    def _read_errors(self) -> Iterator[None]:
        """What transformers says of files that it cannot read, in a line; it has an exception of its own for each."""
        try:
            yield
        except (MemoryError, ImportError):
            raise
        except Exception as error:
            said = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
            if "ignore_mismatched_sizes" in said:
                said = "config.json and the weights have other sizes"
            raise BadData(f"the checkpoint {self.name} cannot be read ({said}): fetch it again") from error

    def _settings(self) -> Settings:
        told = self._object(SETTINGS)
        try:
            return Settings.model_validate({name: value for name, value in told.items() if value is not None})
        except ValidationError as error:
            first = error.errors()[0]
            raise BadData(
                f"{self.folder / SETTINGS} is not what ColBERT's training leaves ({first['loc'][0]}: {first['msg']}): "
                "fetch the checkpoint again"
            ) from None

    def _config(self) -> dict[str, Any]:
        if not (self.folder / "config.json").is_file():
            raise BadData(f"{self.folder} is no checkpoint: it has no config.json")
        config = self._object("config.json")
        if config.get("auto_map") is not None:
            raise BadData(f"the checkpoint {self.name} brings Python code of its own (auto_map), which is not run")
        return config

    def _tokenizer_limit(self) -> int | None:
        limit = self._object("tokenizer_config.json").get("model_max_length")
        return int(limit) if isinstance(limit, int | float) and limit < 1e6 else None

    def _object(self, name: str) -> dict[str, Any]:
        """What the JSON file of that name says; nothing where there is none."""
        path = self.folder / name
        try:
            told = json.loads(path.read_bytes()) if path.is_file() else {}
        except ValueError as error:
            raise BadData(f"{path} is not JSON ({error}): fetch the checkpoint again") from None
        if not isinstance(told, dict):
            raise BadData(f"{path} holds no JSON object: fetch the checkpoint again")
        return told

    def _projection(self) -> int:
        shapes = _weights(self.folder)
        if shapes is None:
            raise BadData(f"the checkpoint {self.name} has no weights ({' or '.join(WEIGHTS)}): fetch it again")
        if "linear.weight" not in shapes:
            raise BadData(
                f"{self.name} is no ColBERT checkpoint: it has no projection (linear.weight); "
                "name one that was trained as ColBERT, like colbert-ir/colbertv2.0"
            )
        dim, told = shapes["linear.weight"][0], self.settings.dim
        if told not in (None, dim):
            raise BadData(
                f"the checkpoint {self.name} projects to {dim} numbers, and its {SETTINGS} says {told}: fetch it again"
            )
        return dim


def _found(name: str) -> Path:
    if Path(name).is_dir():
        return Path(name)
    local = name.startswith((".", "/", "~")) or name.count("/") != 1 or Path(name).exists()
    if local:
        raise MissingFile(f"no checkpoint at {name}: name its folder, or a model on the hub (colbert-ir/colbertv2.0)")
    hub = needed("huggingface_hub", "colbert", "a checkpoint from the hub")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=["*.json", "*.txt", SETTINGS, *WEIGHTS]))
    except Exception as error:
        said = " ".join(str(error).split()).partition(". ")[0]
        raise MissingFile(
            f"no checkpoint '{name}': there is no such folder, and the hub did not give it ({said})"
        ) from error


def _weights(folder: Path) -> dict[str, list[int]] | None:
    """Names and shapes of the weights, read without loading them; None where there are none."""
    safe, plain = (folder / name for name in WEIGHTS)
    if safe.is_file():
        with open(safe, "rb") as file:
            head = file.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
            try:
                told = json.loads(file.read(min(length, 100_000_000)))
                return {name: about["shape"] for name, about in told.items() if name != "__metadata__"}
            except (ValueError, AttributeError, KeyError, TypeError):
                raise BadData(f"{safe} is damaged: fetch the checkpoint again") from None
    if plain.is_file():
        torch = needed("torch", "colbert", "a ColBERT checkpoint")
        try:
            kept = torch.load(plain, map_location="meta", weights_only=True)
            return {name: list(weight.shape) for name, weight in kept.items()}
        except (RuntimeError, OSError, ValueError, EOFError, AttributeError, pickle.UnpicklingError):
            raise BadData(f"{plain} is damaged, or holds more than weights: fetch the checkpoint again") from None
    return None
