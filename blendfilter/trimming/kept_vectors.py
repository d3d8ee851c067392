"""Judged questions' vectors on disk, so that a trimmed index opens without encoding them all again.

In: an encoder and questions. Out: their vectors, from the file where it has them; what it lacks is encoded and added.
The file is a copy and nothing more: where it is gone, damaged, another encoder's or cannot be written, it is done
without.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from blendfilter.retrieval.encoders import Encoder, Vectors

FILE = "vectors.npz"


def vectors_of(questions: Sequence[str], encoder: Encoder, path: Path) -> Vectors:
    """A row a question, in their order."""
    known = _read(path, encoder)
    names = [_name(question) for question in questions]
    missing = {name: question for name, question in zip(names, questions, strict=True) if name not in known}
    if missing:
        encoded = encoder.encode_queries(list(missing.values())).vectors
        known |= dict(zip(missing, encoded, strict=True))
        with suppress(OSError):
            _write(path, encoder, known)
    rows: Vectors = np.stack([known[name] for name in names])
    return rows


def _name(question: str) -> str:
    return hashlib.sha256(question.encode("utf-8", "replace")).hexdigest()[:24]


def _read(path: Path, encoder: Encoder) -> dict[str, Vectors]:
    try:
        with np.load(path, allow_pickle=False) as kept:
            identity, names, vectors = str(kept["identity"]), kept["names"].tolist(), kept["vectors"]
    except Exception:  # noqa: BLE001  # a flipped bit says another compression, a password, a size beyond memory
        return {}
    fits = identity == encoder.identity and vectors.shape == (len(names), encoder.dimension)
    if not fits or vectors.dtype != np.float32 or not np.isfinite(vectors).all():
        return {}
    return dict(zip(names, vectors, strict=True))


def _write(path: Path, encoder: Encoder, known: dict[str, Vectors]) -> None:
    """By a temporary file and a rename: another process may be reading."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        with open(temporary, "xb") as file:
            names, vectors = np.array(list(known)), np.stack(list(known.values()))
            np.savez(file, identity=np.array(encoder.identity), names=names, vectors=vectors)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
