"""BM25 folders that do not hold together: one line that says so, whichever file it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from blendfilter.errors import BadData
from blendfilter.records import Passage
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.passages import StoredPassages

TOWNS = [Passage(str(n), f"Town {n}", f"A harbour with {n} boats and a mill.") for n in range(40)]


def damage(index: Path, name: str) -> None:
    """Other bytes in the file, as many as before."""
    (index / name).write_bytes(b"x" * (index / name).stat().st_size)


def edit(index: Path, **changes: Any) -> None:
    raw = json.loads((index / "manifest.json").read_text())
    (index / "manifest.json").write_text(json.dumps(raw | changes))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda index: edit(index, settings={}),
        lambda index: edit(index, settings={"analyser": 3}),
        lambda index: edit(index, passages=5),
        *(partial(damage, name=name) for name in (
            "offsets.npy", "data.csc.index.npy", "indptr.csc.index.npy", "params.index.json", "vocab.index.json",
        )),
    ],
)  # fmt: skip
def test_manifests_and_files_that_were_spoilt(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    BM25.build(TOWNS, tmp_path / "index")
    spoil(tmp_path / "index")
    with pytest.raises(BadData, match=r"index.* (is damaged|does not fit)[^\n]*build (it|the index) again$"):
        BM25.open(tmp_path / "index")


def test_passages_that_were_spoilt_are_told_when_one_is_read(tmp_path: Path) -> None:
    BM25.build(TOWNS, tmp_path / "index")
    damage(tmp_path / "index", "passages.jsonl")
    with pytest.raises(BadData, match=r"is damaged: passage 1 of passages.jsonl is none; build it again"):
        StoredPassages(tmp_path / "index")[0]
    with pytest.raises(BadData, match=r"is damaged: passages.jsonl is not as it was written; build it again"):
        BM25.open(tmp_path / "index")
