"""Encoders: a text becomes one vector, and near vectors mean near texts. Run by sentence-transformers.

A checkpoint's own settings decide how it is used, where it has them:

- A folder (or hub name) laid out for sentence-transformers states its pooling, its prompts and its similarity; where a
  `Router` leads queries and passages to modules of their own, each has its own tokenizer and length.
- DPR's question and context encoders (Karpukhin et al. 2020, https://arxiv.org/abs/2004.04906, section 3.1) give the
  first token's last layer, projected where the checkpoint has a projection, compared by dot product. A passage is read
  as `[CLS] title [SEP] text [SEP]`.
- Any other Hugging Face folder is read Contriever's way (Izacard et al. 2022, https://arxiv.org/abs/2112.09118, section
  3.1) unless `pooling` is cls: the mean over its last layer's unmasked tokens (a decoder-only model's last token), not
  normalised, compared by dot product.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from blendfilter.errors import BadArgument, BadData, MissingFile, UnknownName
from blendfilter.extras import NOT_FETCHED, needed, quiet_transformers
from blendfilter.files import AnyPath, sha256_of
from blendfilter.records import Passage, one_line, whole_characters

Vectors = np.typing.NDArray[np.float32]
Similarity = Literal["cosine", "dot", "l2"]
Pooling = Literal["mean", "cls"]
SIMILARITIES = get_args(Similarity)
POOLINGS = get_args(Pooling)
WHY = "a dense index"
MARKS = ("config.json", "modules.json")  # a folder with neither is no encoder
LAYOUT = "config_sentence_transformers.json"
_STATED = {"cosine": "cosine", "dot": "dot", "euclidean": "l2"}
"""sentence-transformers' names of similarities, and ours."""
_SAY = f"similarity={', '.join(SIMILARITIES[:-1])} or {SIMILARITIES[-1]}"
_PROMPTS = {"query": ("query",), "document": ("document", "passage", "corpus")}
_TEXTS = {"query": "queries", "document": "passages"}
_DPR = {"DPRQuestionEncoder": "query", "DPRContextEncoder": "document"}
RERANKER = "reranker"
SPARSE = "sparse encoder"
LATE = "late interaction"
ENCODER = "encoder"
LANGUAGE_MODEL = "language model"
_WITH_LABELS = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "DPRReader",
)
_NO_ENCODERS = {
    RERANKER: "a reranker: it gives scores for a query and a passage that it reads together",
    SPARSE: "a sparse encoder",
    LATE: "a checkpoint of late interaction: it gives a vector a token, for the engine colbert",
}
_MINIMUM = 8  # tokens; below, little is left of a text beside the two marks around it
_ENDLESS = 10**9
_OTHER_BUILDS = ("onnx", "openvino")
_SETTINGS_FILES = """
config.json modules.json config_sentence_transformers.json sentence_bert_config.json tokenizer.json
tokenizer_config.json special_tokens_map.json added_tokens.json vocab.txt vocab.json merges.txt spiece.model
sentencepiece.bpe.model tokenizer.model
"""


class Encoded(NamedTuple):
    """One vector a text; `cut` says of each text whether it was longer than the encoder reads."""

    vectors: Vectors
    cut: list[bool]


class EncodingOptions(NamedTuple):
    """How an encoder is used: what stands before a text, how vectors are compared, how many tokens are read.

    `pooling` is None where the checkpoint's own is used, `query_max_length` where queries are cut as passages are.
    """

    query_prefix: str
    passage_prefix: str
    similarity: Similarity
    max_length: int | None  # None where there is no limit
    pooling: Pooling | None = None
    query_max_length: int | None = None

    def settings(self) -> dict[str, Any]:
        """The options by name, without those that are not in use, as in manifests written before there were any."""
        own = {"pooling", "query_max_length"}
        return {
            name: value
            for name, value in self._asdict().items()
            if name not in own or value is not None
        }


class Encoder:
    """An encoder at work. Threads share it: they take turns."""

    def __init__(
        self,
        name: str,
        queries: _Side,
        passages: _Side,
        reading: EncodingOptions,
        identity: str,
    ) -> None:
        self.name = name
        self.reading = reading
        self.dimension: int = passages.model.get_embedding_dimension()
        # equal for a folder that moved, other for one that changed or is used in another way
        self.identity = identity
        self._queries = queries
        self._passages = passages
        # a fast tokenizer that two threads use at once fails ("Already borrowed")
        self._turn = threading.Lock()
        self.on_cpu: bool = passages.model.device.type == "cpu"

    def line(self, passage: Passage) -> str:
        """What is encoded of a passage: `Title | text`, or `title [SEP] text` as DPR was trained."""
        mark = self._passages.title_mark
        if not mark or not passage.title.strip():
            return passage.line
        return f"{one_line(passage.title)} {mark} {one_line(passage.text)}"

    def encode_queries(self, queries: Sequence[str]) -> Encoded:
        """Their vectors, of shape (n, dimension); of length 1 each where the similarity is cosine.

        On a CPU a query's vector is the same to the last bit whichever queries stand beside it.
        """
        # padding changes last bits; a batch of short queries gains nothing on a CPU, and much on a GPU
        return self._encode(self._queries, queries, 1 if self.on_cpu else 64)

    def encode_passages(self, passages: Sequence[str], batch_size: int = 64) -> Encoded:
        """The same for passages. Texts of like length are encoded together, `batch_size` at a time."""
        return self._encode(self._passages, passages, batch_size)

    def _encode(self, side: _Side, texts: Sequence[str], batch_size: int) -> Encoded:
        if not texts:
            return Encoded(np.empty((0, self.dimension), dtype=np.float32), [])
        # half a character has no UTF-8, and tokenizers want UTF-8
        plain, cut = [whole_characters(text) for text in texts], [False] * len(texts)
        with self._turn:
            if side.limit is not None:
                # both sides may share a tokenizer
                setattr(side.reader, side.length, side.limit)
                # the marks at both ends included
                marked, how = [side.prefix + text for text in plain], {"verbose": False}
                tokens = side.reader.tokenizer(marked, truncation=False, padding=False, **how)
                cut = [len(ids) > side.limit for ids in tokens["input_ids"]]
            vectors: Vectors = side.encode(
                plain,
                prompt=side.prefix,
                batch_size=batch_size,
                show_progress_bar=False,
                normalize_embeddings=self.reading.similarity == "cosine",
            )
        if not np.isfinite(vectors).all():
            raise BadData(
                f"the encoder {self.name} answers with numbers that are none (NaN): its weights are damaged"
            )
        return Encoded(np.ascontiguousarray(vectors, dtype=np.float32), cut)


class _Side:
    """What encodes queries, or passages (`task`: query, document): a model, the module in it that reads the text, what
    stands before a text (the prefix, or the prompt that is named, or the model's own for the task), and how many tokens
    are read: those wanted, else what the checkpoint and its positions allow.
    """

    def __init__(
        self,
        model: Any,
        task: str,
        folder: Path,
        prefix: str | None,
        prompt: str | None,
        wanted: int | None,
    ) -> None:
        which = "query" if task == "query" else "passage"
        if prefix is not None and prompt is not None:
            raise BadArgument(
                f"{which}_prefix= and {which}_prompt= both say what stands before {_TEXTS[task]}: give one"
            )
        known = {str(name): str(text) for name, text in model.prompts.items() if text}
        if prompt is not None and prompt not in known:
            where = f"of the encoder in {folder}; {which}_prefix= takes any text"
            raise UnknownName.of("prompt", prompt, known, where)
        names = _PROMPTS[task] if prompt is None else (prompt,)
        own_prefix = next((known[name] for name in names if name in known), "")
        self.model, self.prefix = model, own_prefix if prefix is None else prefix
        self.reader = _routed(model[0], task, folder)
        self.encode = model.encode_query if task == "query" else model.encode_document
        self.title_mark: str = getattr(self.reader, "title_mark", "")
        own = f"{task}_length"
        self.length = own if getattr(self.reader, own, None) is not None else "max_seq_length"
        positions = positions_of(self.reader)
        if wanted is not None and positions is not None and wanted > positions:
            raise BadArgument(
                f"max_length={wanted} is more than the encoder in {folder} can read: {positions} tokens"
            )
        # a tokenizer that knows no limit states a number of thirty digits, or infinity
        limits = (getattr(self.reader, self.length, None), positions)
        least = min(
            (int(limit) for limit in limits if limit and limit < _ENDLESS), default=None
        )
        # a bag of words has no end
        ends = callable(getattr(self.reader, "tokenizer", None))
        self.limit = (wanted or least) if ends else None


def load_encoder(
    name: AnyPath,
    *,
    query_encoder: AnyPath | None = None,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    query_prompt: str | None = None,
    passage_prompt: str | None = None,
    similarity: Similarity | None = None,
    pooling: Pooling | None = None,
    max_length: int | None = None,
    query_max_length: int | None = None,
    device: str | None = None,
) -> Encoder:
    """The encoder of a folder or of a name on the hub; on a GPU where there is one, unless `device` names another.

    By default the model's own settings count: its prompts as prefixes, its pooling, its similarity (where it states
    none: dot), as many tokens as it reads. Code that comes with a model is never run.

    Args:
        name: what encodes passages, and queries too where there is no `query_encoder`.
        query_encoder: another folder or name for queries, such as DPR's question encoder.
        query_prefix: stands before each query, and `passage_prefix` before each passage; empty for none.
        query_prompt: instead of a prefix, the name of one of the model's own prompts; `passage_prompt` likewise.
        similarity: cosine, dot or l2.
        pooling: mean or cls (the first token's vector), for models that do not say.
        max_length: tokens read of a text, and `query_max_length` those of a query, where they differ.

    Raises:
        MissingFile: there is no such encoder.
        BadData: it cannot be loaded, or not whole, or is no encoder of such texts.
        BadArgument: an option that it cannot do, or that its own settings contradict.
        UnknownName: it has no prompt of that name.
    """
    choices = (("similarity", similarity, SIMILARITIES), ("pooling", pooling, POOLINGS))
    for option, given, known in choices:
        if given not in (None, *known):
            raise BadArgument(f"{option} must be one of {', '.join(known)}, got {given!r}")
    for option, length in (("max_length", max_length), ("query_max_length", query_max_length)):
        if length is not None and (type(length) is not int or length < _MINIMUM):
            raise BadArgument(f"{option} must be at least {_MINIMUM} tokens, got {length!r}")
    folder = encoder_folder(name)
    asker = folder if query_encoder is None else encoder_folder(query_encoder)
    needed("sentence_transformers", "dense", WHY)
    one = asker.samefile(folder)
    with quiet_transformers("dense", WHY):
        answering, pooled = _load(folder, "" if one else "document", pooling, device)
        asking, asks_pooled = answering, pooled
        if not one:
            asking, asks_pooled = _load(asker, "query", pooling, device)
    sizes = [model.get_embedding_dimension() for model in (answering, asking)]
    if sizes[0] != sizes[1]:
        raise BadArgument(
            f"the encoder {name} gives vectors of {sizes[0]} numbers, and the query encoder {query_encoder} of "
            f"{sizes[1]}: they do not belong together"
        )
    stands = passage_prefix, passage_prompt
    passages = _Side(answering, "document", folder, *stands, max_length)
    stands = query_prefix, query_prompt
    queries = _Side(asking, "query", asker, *stands, query_max_length or max_length)
    options = EncodingOptions(
        queries.prefix,
        passages.prefix,
        similarity or _similarity({folder: answering, asker: asking}),
        passages.limit,
        pooling if pooled or asks_pooled else None,
        queries.limit if queries.limit != passages.limit else None,
    )
    # what it is, by its files and how it is used, not by its place
    stated: list[Any] = [files_hash(folder), options[:4]]
    # younger than the rest: an encoder that has none of these keeps the identity that it had
    known = EncodingOptions._fields[:4]
    more = {option: own for option, own in options.settings().items() if option not in known}
    if not one:
        more["query_encoder"] = files_hash(asker)
    places = [folder] if one else [folder, asker]
    routers = [path for place in places for path in sorted(place.rglob("router_config.json"))]
    if routers:
        more["routers"] = [sha256_of(path) for path in routers]
    content = json.dumps([*stated, more] if more else stated)
    identity = hashlib.sha256(content.encode()).hexdigest()
    whole = os.fspath(name) if one else f"{name} (queries: {query_encoder})"
    return Encoder(whole, queries, passages, options, identity)


def _load(
    folder: Path, task: str, pooling: Pooling | None, device: str | None
) -> tuple[Any, bool]:
    """The model in `folder`, whole, and whether `pooling` changed how it pools.

    `task` says what it is to encode; empty: queries and passages. Raises `BadData` for a model that is no encoder, and
    `BadArgument` for DPR's other encoder.
    """
    library: Any = needed("sentence_transformers", "dense", WHY)
    kind = kind_of(folder)
    if kind in _NO_ENCODERS:
        raise BadData(f"{folder} is no encoder but {_NO_ENCODERS[kind]}; name an encoder")
    if kind in _DPR and _DPR[kind] != task:
        both = "name DPR's context encoder with encoder= and its question encoder with query_encoder="
        raise BadArgument(
            f"{folder} is a {kind}, which encodes {_TEXTS[_DPR[kind]]} alone: {both}"
        )
    try:
        if kind in _DPR:
            model = library.SentenceTransformer(modules=[_dpr(folder, kind)], device=device)
        else:
            model = library.SentenceTransformer(
                str(folder), device=device, local_files_only=True
            )
        # in 32 bits wherever it runs, so that a GPU and a CPU agree
        model = model.float().eval()
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # whatever torch, tokenizers and safetensors raise
        raise cannot_load(f"the encoder in {folder}", error) from error
    check_whole(model)
    return model, _pool(model, folder, pooling, "cls" if kind in _DPR else "")


def cannot_load(what: str, error: Exception) -> BadData:
    """The error for a model whose files a library cannot read."""
    why = str(error).strip().partition("\n")[0][:200] or type(error).__name__
    return BadData(f"{what} cannot be loaded ({why}): is it whole?")


def kind_of(folder: Path) -> str:
    """What a checkpoint is by its own word, or the class of its transformer, or nothing where it does not say."""
    modules = module_kinds(folder)
    stated = settings_in(folder / LAYOUT, {}).get("model_type")
    names = settings_in(folder / MARKS[0], {}).get("architectures") or [""]
    name = str(names[0])
    by_token = "Dense" in modules and "Pooling" not in modules and stated != "CrossEncoder"
    if name == "HF_ColBERT" or stated in ("ColBERT", "MultiVectorEncoder") or by_token:
        return LATE
    if stated == "CrossEncoder" or (not modules and name.endswith(_WITH_LABELS)):
        return RERANKER
    if stated or modules:
        return SPARSE if stated == "SparseEncoder" else ENCODER
    return LANGUAGE_MODEL if name.endswith("ForCausalLM") else name


def settings_in(path: Path, nothing: Any) -> Any:
    """What a file of JSON holds, of the type of `nothing`, which stands for a file that is missing."""
    try:
        return type(nothing)(json.loads(path.read_bytes())) if path.is_file() else nothing
    except (ValueError, TypeError) as error:
        raise BadData(
            f"{path} holds no settings in JSON ({error}): fetch the model again"
        ) from None


def module_kinds(folder: Path) -> list[str]:
    """The kinds of a model's modules, if it is laid out for sentence-transformers."""
    rows = settings_in(folder / MARKS[1], [])
    return [str(row.get("type")).rpartition(".")[2] for row in rows if isinstance(row, dict)]


def lasting(name: AnyPath) -> str:
    """A folder by its whole path, so that it is found from elsewhere; a name on the hub as it is."""
    place = Path(name).expanduser()
    return str(place.resolve()) if place.is_dir() else os.fspath(name)


def _dpr(folder: Path, architecture: str) -> Any:
    """DPR's question or context encoder as a module of sentence-transformers'."""
    torch = needed("torch", "dense", WHY)
    transformers = needed("transformers", "dense", WHY)

    class DPR(torch.nn.Module):  # type: ignore[name-defined]  # torch is imported when first used
        def __init__(self) -> None:
            super().__init__()
            kind, own = getattr(transformers, architecture), {"local_files_only": True}
            self.auto_model = kind.from_pretrained(folder, **own)
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **own)
            self.title_mark = self.tokenizer.sep_token

        @property
        def max_seq_length(self) -> int:
            limit: int = self.tokenizer.model_max_length
            return limit

        @max_seq_length.setter
        def max_seq_length(self, limit: int) -> None:
            self.tokenizer.model_max_length = limit

        def get_embedding_dimension(self) -> int:
            config = self.auto_model.config
            return int(config.projection_dim or config.hidden_size)

        def preprocess(self, texts: Sequence[str], prompt: str | None = None, **_: Any) -> Any:
            read = [(prompt or "") + text for text in texts]
            return {**self.tokenizer(read, padding=True, truncation=True, return_tensors="pt")}

        def forward(self, features: Any) -> Any:
            names = ("input_ids", "attention_mask", "token_type_ids")
            given = {name: features[name] for name in names if name in features}
            pooled = self.auto_model(**given, return_dict=True).pooler_output
            return {**features, "sentence_embedding": pooled}

    return DPR()


def _pool(model: Any, folder: Path, pooling: Pooling | None, stated: str) -> bool:
    """Have a model that does not state its pooling pool like that; whether this changed it."""
    if pooling is None or pooling == stated:
        return False
    poolings = [module for module in model.modules() if hasattr(module, "pooling_mode")]
    modes = {str(module.pooling_mode) for module in poolings}
    if (folder / MARKS[1]).is_file() or not poolings:
        stated = stated or " and ".join(sorted(modes)) or "no tokens"
    if stated not in ("", pooling):
        raise BadArgument(
            f"the encoder in {folder} pools {stated} by its own settings, not {pooling}: leave out pooling="
        )
    if stated or modes == {pooling}:
        return False
    model[1] = type(poolings[0])(model.get_embedding_dimension(), pooling)
    return True


def _similarity(models: dict[Path, Any]) -> Any:
    """What the checkpoints laid out for sentence-transformers say; dot where none is."""
    stated = {
        str(model.similarity_fn_name): folder
        for folder, model in models.items()
        if (folder / MARKS[1]).is_file()
    }
    for name, folder in stated.items():
        if name not in _STATED:
            raise BadArgument(
                f"the encoder in {folder} wants the similarity '{name}': say {_SAY}"
            )
    if len(stated) > 1:
        both = " and ".join(f"{folder} {name}" for name, folder in stated.items())
        raise BadArgument(f"the two encoders want another similarity each ({both}): say {_SAY}")
    return _STATED[next(iter(stated), "dot")]


def _routed(module: Any, task: str, folder: Path) -> Any:
    """The module that reads the texts of `task`: the model's first, or where that is a `Router`, its route's first."""
    while hasattr(module, "sub_modules"):
        routes = getattr(module, "route_mappings", None) or {}
        ways = [(task, "text"), (task, None), (None, "text"), (None, None)]
        names = [routes[way] for way in ways if way in routes] or [task, "text"]
        route = next((name for name in names if name in module.sub_modules), None)
        if route is None:
            known = ", ".join(module.sub_modules)
            raise BadData(
                f"the encoder in {folder} has no route for {_TEXTS[task]} ({task}), only for: {known}"
            )
        module = module.sub_modules[route][0]
    return module


def check_whole(model: Any) -> None:
    """Raise `BadData` where weights of a model of sentence-transformers' were made up, because its files lack them."""
    bodies = [module.auto_model for module in model.modules() if hasattr(module, "auto_model")]
    # nothing that pools token vectors looks at BERT's pooler, and many encoders come without it
    missing = [name for name in missing_weights(bodies) if "pooler" not in name.split(".")]
    if missing:
        raise BadData(
            f"the encoder in {bodies[0].name_or_path} is not whole: {len(missing)} of its weights are missing, "
            f"{missing[0]} first; fetch or save it again"
        )


def missing_weights(bodies: Sequence[Any]) -> list[str]:
    """The weights of a model's transformers that its files lack: the library takes random numbers for them.

    Two transformers with the same names, as of a `Router`, want each name twice.
    """
    if not bodies:
        return []
    folder, stored = Path(bodies[0].name_or_path), Counter[str]()
    for path in _weights(folder, ".safetensors"):
        with needed("safetensors", "dense", WHY).safe_open(path, "numpy") as header:
            stored.update(header.keys())
    missing = list[str]()
    for body in bodies:
        # with or without the name of the model under its head
        outer = f"{body.base_model_prefix}."
        for name, _ in body.named_parameters():
            ways = (name, name.removeprefix(outer), outer + name)
            found = next((way for way in ways if stored[way]), name)
            missing += [] if stored[found] else [name]
            stored[found] -= 1
    if missing and len(bodies) == 1:
        # pickles have no header, and some checkpoints other names, which the library alone knows
        rows = settings_in(folder / MARKS[1], [])
        own = [str(row["path"]) for row in rows if str(row["type"]).endswith(".Transformer")]
        place, how = folder.joinpath(*own[:1]), {"output_loading_info": True}
        _, report = type(bodies[0]).from_pretrained(place, local_files_only=True, **how)
        missing = [*report["missing_keys"]]
    return sorted(missing) if stored or len(bodies) == 1 else []


def positions_of(reader: Any) -> int | None:
    """How many tokens a model's first module has positions for; None where it counts none."""
    found = getattr(reader, "auto_model", None)
    transformer = getattr(found, "base_model", found)  # under the head of a cross-encoder
    stated = getattr(getattr(transformer, "config", None), "max_position_embeddings", None)
    if not isinstance(stated, int) or stated <= 0:
        return None
    # RoBERTa counts its positions from behind its padding's
    table = getattr(getattr(transformer, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return stated - (padding + 1 if padding is not None else 0)


# --- an encoder's files ---------------------------------------------------------------------------------------------


def encoder_folder(name: AnyPath, what: str = "encoder") -> Path:
    """The folder of an encoder, which messages call `what`. A name on the hub is downloaded once, and then found in the
    hub's cache.

    Raises:
        MissingFile: there is no such folder, and no such name to be had.
        BadData: the folder holds no encoder.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        hub: Any = needed("huggingface_hub", "dense", WHY)
        name = os.fspath(name)
        if not re.fullmatch(r"\w[\w.-]*/[\w.-]+", name) or Path(name).exists():
            raise MissingFile(
                f"no {what} '{name}': it is no folder, and names on the hub read owner/name"
            )
        try:
            try:
                folder = Path(hub.snapshot_download(name, local_files_only=True))
            except OSError:  # not in the cache
                folder = Path(hub.snapshot_download(name, ignore_patterns=[*NOT_FETCHED]))
        except (OSError, ValueError) as error:
            why = str(error).partition("\n")[0]
            raise MissingFile(
                f"no {what} '{name}': no folder here, not in the hub's cache, and the hub did not give it ({why}): "
                "check the name, or name a folder"
            ) from None
    if not any((folder / mark).is_file() for mark in MARKS):
        raise BadData(
            f"no {what} in {folder}: a Hugging Face folder has a {' or '.join(MARKS)}"
        )
    return folder


def files_hash(folder: Path) -> str:
    """sha256 over whatever makes the encoder what it is; its place, its read-me and its other builds do not count."""
    whole = hashlib.sha256()
    # weights that are saved twice are read from safetensors, so those count
    weights = _weights(folder, ".safetensors") or _weights(folder, ".bin")
    for path in _files(folder):
        if path in weights or path.name in _SETTINGS_FILES.split():
            name = path.relative_to(folder).as_posix()
            whole.update(f"{name}\0{sha256_of(path)}\n".encode())
    return whole.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    """The files of an encoder, without hidden ones and other builds."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") for part in parts)
        if path.is_file() and parts[0] not in _OTHER_BUILDS and not hidden:
            yield path


def _weights(folder: Path, suffix: str) -> list[Path]:
    return [path for path in _files(folder) if path.suffix == suffix]
