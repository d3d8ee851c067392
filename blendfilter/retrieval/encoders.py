"""Encoders: a text becomes one vector, and near vectors mean near texts. Run by sentence-transformers.

A folder (or hub name) laid out for sentence-transformers states how its tokens are pooled. Any other Hugging Face
folder is read Contriever's way (Izacard et al. 2022, https://arxiv.org/abs/2112.09118, section 3.1): the mean over its
last layer's unmasked tokens, not normalised, compared by dot product.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from blendfilter.errors import BadArgument, BadData, MissingFile
from blendfilter.extras import needed, quiet_transformers
from blendfilter.records import whole_characters

Vectors = np.typing.NDArray[np.float32]
Similarity = Literal["cosine", "dot"]
SIMILARITIES = ("cosine", "dot")
WHY = "a dense index"
MARKS = ("config.json", "modules.json")  # a folder with neither is no encoder
_PASSAGE_PROMPTS = ("document", "passage", "corpus")
_MINIMUM = 8  # tokens; below, little is left of a text beside the two marks around it
_ENDLESS = 10**9
_ON_THE_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_OTHER_BUILDS = ("onnx", "openvino")
_NOT_WANTED = [*(f"{name}/*" for name in _OTHER_BUILDS), "*.onnx", "*.h5", "*.msgpack", "*.ot", "*.gguf", "*.tflite"]
_SETTINGS_FILES = {
    *MARKS, "sentence_bert_config.json", "config_sentence_transformers.json", "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json", "merges.txt",
    "spiece.model", "sentencepiece.bpe.model", "tokenizer.model",
}  # fmt: skip


class Encoded(NamedTuple):
    """One vector a text; `cut` says of each text whether it was longer than the encoder reads."""

    vectors: Vectors
    cut: list[bool]


class EncodingOptions(NamedTuple):
    """How an encoder is used: what stands before a text, how vectors are compared, how many tokens are read."""

    query_prefix: str
    passage_prefix: str
    similarity: Similarity
    max_length: int | None  # None where there is no limit


class Encoder:
    """An encoder at work. Threads share it: they take turns."""

    def __init__(self, name: str, model: Any, reading: EncodingOptions, files: str) -> None:
        self.name = name
        self.reading = reading
        self.dimension: int = model.get_embedding_dimension()
        # equal for a folder that moved, other for one that changed or is used in another way
        self.identity = hashlib.sha256(json.dumps([files, reading]).encode()).hexdigest()
        self._model = model
        # a fast tokenizer that two threads use at once fails ("Already borrowed")
        self._turn = threading.Lock()

    def encode_queries(self, queries: Sequence[str]) -> Encoded:
        """Their vectors, of shape (n, dimension); of length 1 each where the similarity is cosine.

        On a CPU a query's vector is the same to the last bit whichever queries stand beside it.
        """
        # padding changes last bits; a batch of short queries gains nothing on a CPU, and much on a GPU
        batch_size = 1 if self._model.device.type == "cpu" else 64
        return self._encode(self._model.encode_query, queries, self.reading.query_prefix, batch_size)

    def encode_passages(self, passages: Sequence[str], batch_size: int = 64) -> Encoded:
        """The same for passages. Texts of like length are encoded together, `batch_size` at a time."""
        return self._encode(self._model.encode_document, passages, self.reading.passage_prefix, batch_size)

    def _encode(self, encode: Any, texts: Sequence[str], prefix: str, batch_size: int) -> Encoded:
        if not texts:
            return Encoded(np.empty((0, self.dimension), dtype=np.float32), [])
        # half a character has no UTF-8, and tokenizers want UTF-8
        plain = [whole_characters(text) for text in texts]
        with self._turn:
            cut, limit, unit = [False] * len(plain), self.reading.max_length, self.reading.similarity == "cosine"
            if limit is not None:  # the marks at both ends included
                marked = [prefix + text for text in plain]
                tokens = self._model.tokenizer(marked, truncation=False, padding=False, verbose=False)["input_ids"]
                cut = [len(ids) > limit for ids in tokens]
            vectors: Vectors = encode(
                plain, prompt=prefix, batch_size=batch_size, show_progress_bar=False, normalize_embeddings=unit
            )
        if not np.isfinite(vectors).all():
            raise BadData(f"the encoder {self.name} answers with numbers that are none (NaN): its weights are damaged")
        return Encoded(np.ascontiguousarray(vectors, dtype=np.float32), cut)


def load_encoder(
    name: str,
    *,
    query_prefix: str = "",
    passage_prefix: str = "",
    similarity: Similarity | None = None,
    max_length: int | None = None,
    device: str | None = None,
) -> Encoder:
    """The encoder of a folder or of a name on the hub; on a GPU where there is one, unless `device` names another.

    By default the model's own settings count: its prompts as prefixes, its similarity (for a plain Hugging
    Face folder: dot), as many tokens as it reads. Code that comes with a model is never run.

    Raises:
        MissingFile: there is no such encoder.
        BadData: it cannot be loaded, or not whole.
        BadArgument: a similarity or a length that it cannot do.
    """
    if similarity not in (None, *SIMILARITIES):
        raise BadArgument(f"similarity must be one of {', '.join(SIMILARITIES)}, got {similarity!r}")
    if max_length is not None and (isinstance(max_length, bool) or max_length < _MINIMUM):
        raise BadArgument(f"max_length must be at least {_MINIMUM} tokens, got {max_length!r}")
    folder = encoder_folder(name)
    library = needed("sentence_transformers", "dense", WHY)
    with quiet_transformers("dense", WHY):
        model = _load(library, folder, device)
        _check_whole(model, folder)
    stated = str(model.similarity_fn_name) if (folder / MARKS[1]).is_file() else "dot"
    if similarity is None and stated not in SIMILARITIES:
        raise BadArgument(f"the encoder in {folder} wants the similarity '{stated}': say similarity='cosine' or 'dot'")
    positions = _positions(model)
    if max_length is not None and positions is not None and max_length > positions:
        raise BadArgument(f"max_length={max_length} is more than the encoder {name} can read: {positions} tokens")
    # a tokenizer that knows no limit states a number of thirty digits, or infinity
    limits = [int(limit) for limit in (model.max_seq_length, positions) if limit is not None and limit < _ENDLESS]
    prompts = {name: prompt for name, prompt in model.prompts.items() if prompt}
    options = EncodingOptions(
        query_prefix or prompts.get("query", ""),
        passage_prefix or next((prompts[name] for name in _PASSAGE_PROMPTS if name in prompts), ""),
        similarity or ("cosine" if stated == "cosine" else "dot"),
        min(limits, default=None) if max_length is None else max_length,
    )
    if options.max_length is not None:
        model.max_seq_length = options.max_length
    return Encoder(name, model, options, _files_hash(folder))


def _load(library: Any, folder: Path, device: str | None) -> Any:
    try:
        # in 32 bits wherever it runs, so that a GPU and a CPU agree
        return library.SentenceTransformer(str(folder), device=device, local_files_only=True).float().eval()
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # whatever torch, tokenizers and safetensors raise of a file that is not theirs
        why = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise BadData(f"the encoder in {folder} cannot be loaded ({why}): is it whole?") from error


def _check_whole(model: Any, folder: Path) -> None:
    """Raise `BadData` where weights were made up, at random, because the files lack them."""
    place = folder
    if (folder / MARKS[1]).is_file():  # the transformer need not lie in the encoder's own folder, and need not be
        first = json.loads((folder / MARKS[1]).read_bytes())[0]
        if not str(first["type"]).endswith(".Transformer"):
            return
        place = folder / str(first["path"])
    kind = type(model[0].auto_model)
    _, report = kind.from_pretrained(place, output_loading_info=True, local_files_only=True)
    # nothing that pools token vectors looks at BERT's pooler, and many encoders come without it
    missing = sorted(key for key in report["missing_keys"] if "pooler" not in key.split("."))
    if missing:
        raise BadData(
            f"the encoder in {place} is not whole: {len(missing)} of its weights are missing, "
            f"{missing[0]} first; fetch or save it again"
        )


def _positions(model: Any) -> int | None:
    transformer = getattr(model[0], "auto_model", None)
    stated = getattr(getattr(transformer, "config", None), "max_position_embeddings", None)
    if not isinstance(stated, int) or stated <= 0:
        return None
    # RoBERTa counts its positions from behind its padding's
    table = getattr(getattr(transformer, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return stated - (padding + 1 if padding is not None else 0)


# --- an encoder's files ---------------------------------------------------------------------------------------------


def encoder_folder(name: str) -> Path:
    """The folder of an encoder. A name on the hub is downloaded once, and found in the hub's cache after that.

    Raises:
        MissingFile: there is no such folder, and no such name to be had.
        BadData: the folder holds no encoder.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        hub: Any = needed("huggingface_hub", "dense", WHY)
        if not _ON_THE_HUB.fullmatch(name) or Path(name).exists():
            raise MissingFile(f"no encoder '{name}': it is no folder, and names on the hub read owner/name")
        try:
            folder = Path(hub.snapshot_download(name, local_files_only=True))
        except OSError:  # not in the cache
            folder = _downloaded(hub, name)
    if not any((folder / mark).is_file() for mark in MARKS):
        raise BadData(f"no encoder in {folder}: a Hugging Face folder has a {' or '.join(MARKS)}")
    return folder


def _downloaded(hub: Any, name: str) -> Path:
    try:
        return Path(hub.snapshot_download(name, ignore_patterns=_NOT_WANTED))
    except (OSError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise MissingFile(
            f"no encoder '{name}': no folder here, not in the hub's cache, and the hub did not give it ({why}): "
            "check the name, or name a folder"
        ) from None


def _files_hash(folder: Path) -> str:
    """sha256 over whatever makes the encoder what it is; its place, its read-me and its other builds do not count."""
    paths = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    inside = [
        (name, path)
        for name, path in paths.items()
        if name.parts[0] not in _OTHER_BUILDS and not any(part.startswith(".") for part in name.parts)
    ]
    # weights saved twice are read from safetensors, so those count
    weights = ".safetensors" if any(path.suffix == ".safetensors" for _, path in inside) else ".bin"
    whole = hashlib.sha256()
    for name, path in inside:
        if path.suffix == weights or path.name in _SETTINGS_FILES:
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            whole.update(f"{name.as_posix()}\0{digest}\n".encode())
    return whole.hexdigest()
