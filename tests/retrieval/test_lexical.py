"""BM25 folders that do not hold together: one line that says so, whichever file it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blendfilter.errors import BadArgument, BadData
from blendfilter.records import Passage
from blendfilter.retrieval.analyser import PATTERNS, Analyser
from blendfilter.retrieval.bm25 import BM25, Lexical, RankBM25
from blendfilter.retrieval.indexes import open_index
from blendfilter.retrieval.stored import StoredPassages

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


@pytest.mark.parametrize("engine", [BM25, RankBM25])
def test_a_manifest_that_was_edited_does_not_fit_its_fingerprint(engine: type[Lexical], tmp_path: Path) -> None:
    """Before there were hashes of files, too: the fingerprint is computed from what the manifest itself says."""
    settings = engine.build(TOWNS, tmp_path / "index").manifest.settings
    for change in ({"settings": settings | {"k1": 1.2}}, {"corpus": {"name": "c", "sha256": "0" * 64}}):
        before = (tmp_path / "index" / "manifest.json").read_bytes()
        edit(tmp_path / "index", hashes={}, **change)
        with pytest.raises(BadData, match=r"damaged or was edited: it states the fingerprint .*; build it again$"):
            engine.open(tmp_path / "index")
        (tmp_path / "index" / "manifest.json").write_bytes(before)
    assert engine.open(tmp_path / "index")


@pytest.mark.parametrize("engine", [BM25, RankBM25])
def test_passages_that_were_edited_do_not_fit_the_hash_of_their_corpus(engine: type[Lexical], tmp_path: Path) -> None:
    """Of every manifest that there has been: the corpus' hash is that of passages.jsonl, byte by byte."""
    engine.build(TOWNS, tmp_path / "index")
    edit(tmp_path / "index", hashes={})
    assert engine.open(tmp_path / "index"), "as it was before there were hashes of files"
    passages = tmp_path / "index" / "passages.jsonl"
    passages.write_bytes(passages.read_bytes().replace(b"12 boats", b"13 boats"))
    with pytest.raises(BadData, match=r"damaged: passages\.jsonl is not as it was written"):
        engine.open(tmp_path / "index")


@pytest.mark.parametrize("engine", [BM25, RankBM25])
def test_no_regular_expression_is_run_out_of_a_file(engine: type[Lexical], tmp_path: Path) -> None:
    """`(\\w+)+\\b!` takes longer than anybody lives over a word of forty letters; its own builder may open it."""
    endless = Analyser(pattern=r"(\w+)+!")
    built = engine.build([Passage("1", "Mill!", "It turns!")], tmp_path / "index", analyser=endless)
    assert len(built) == 1
    with pytest.raises(BadArgument, match=r"by a regular expression .*none is run out of a file") as told:
        open_index(tmp_path / "index")
    assert "\n" not in str(told.value)
    assert open_index(tmp_path / "index", analyser=endless)("turns!", k=1)[0].id == "1"
    with pytest.raises(BadArgument, match="built with another analyser than the one given"):
        open_index(tmp_path / "index", analyser=Analyser())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_usual_patterns_open_by_themselves(tmp_path: Path, pattern: str) -> None:
    BM25.build(TOWNS, tmp_path / "index", analyser=Analyser(pattern=pattern, stemmer=None))
    assert BM25.open(tmp_path / "index").analyser.pattern == pattern


def test_postings_that_name_no_passage_are_told_by_the_search(tmp_path: Path) -> None:
    """What nothing noticed at opening: a number out of range in a file too large to be hashed whole."""
    index = BM25.build(TOWNS, tmp_path / "index")
    numbers = np.array(index._scorer._engine.scores["indices"])  # type: ignore[attr-defined]
    numbers[:] = len(TOWNS)
    index._scorer._engine.scores["indices"] = numbers  # type: ignore[attr-defined]
    with pytest.raises(BadData, match=r"the index at .*index is damaged \(.*\): build it again$"):
        index("harbour", k=1)


def test_passages_that_were_spoilt_are_told_when_one_is_read(tmp_path: Path) -> None:
    BM25.build(TOWNS, tmp_path / "index")
    damage(tmp_path / "index", "passages.jsonl")
    with pytest.raises(BadData, match=r"is damaged: passage 1 of passages.jsonl is none; build it again"):
        StoredPassages(tmp_path / "index")[0]
    with pytest.raises(BadData, match=r"is damaged: passages.jsonl is not as it was written; build it again"):
        BM25.open(tmp_path / "index")
