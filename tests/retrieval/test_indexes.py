"""By name: engines that build, kinds that open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from blendfilter.errors import BadData, MissingFile, UnknownName
from blendfilter.records import Passage
from blendfilter.retrieval import indexes
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.bm25 import BM25, RankBM25
from blendfilter.retrieval.callables import as_retriever
from blendfilter.retrieval.indexes import ENGINES, build, open_index, register_kind

CORPUS = [Passage("1", "Fell", "A hill."), Passage("2", "Ormskerry", "A harbour town.")]


@pytest.fixture(autouse=True)
def kinds() -> Iterator[None]:
    before = dict(indexes.KINDS)
    yield
    indexes.KINDS.clear()
    indexes.KINDS.update(before)


@pytest.mark.parametrize(("engine", "kind"), [("bm25", BM25), ("rank-bm25", RankBM25)])
def test_each_engine_builds_what_open_index_opens(tmp_path: Path, engine: str, kind: type[Retriever]) -> None:
    built = build(engine, CORPUS, tmp_path / "index", k1=1.2)
    opened = open_index(tmp_path / "index")
    assert type(built) is type(opened) is kind
    assert opened("town", k=2) == built("town", k=2)
    assert opened.fingerprint == built.fingerprint == build(engine, CORPUS, k1=1.2).fingerprint
    assert opened.info()["kind"] == engine


def test_an_unknown_engine() -> None:
    with pytest.raises(
        UnknownName, match=r"no engine 'bm52'. Did you mean 'bm25'\? \(known: bm25, colbert, dense, rank-bm25\)"
    ):
        build("bm52", CORPUS)
    assert set(ENGINES) >= {"bm25", "rank-bm25"}


def test_an_unknown_kind(tmp_path: Path) -> None:
    BM25.build(CORPUS, tmp_path / "index")
    manifest = tmp_path / "index" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"bm25"', '"bm25+"', 1))
    with pytest.raises(UnknownName, match=r"no kind of index 'bm25\+'. Did you mean 'bm25'.*: register_kind adds one"):
        open_index(tmp_path / "index")


def test_a_registered_kind_opens(tmp_path: Path) -> None:
    BM25.build(CORPUS, tmp_path / "index")
    manifest = tmp_path / "index" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"bm25"', '"mine"', 1))
    register_kind("mine", lambda where: as_retriever(lambda query, k: [f"{where} | {query}"]))
    assert open_index(tmp_path / "index")("q")[0].title == str(tmp_path / "index")


def test_addresses_go_by_scheme() -> None:
    with pytest.raises(UnknownName, match=r"no kind of address 'ftp'.*at ftp://localhost:9/wiki"):
        open_index("ftp://localhost:9/wiki")
    register_kind("ftp", lambda where: as_retriever(lambda query, k: [where]))
    assert open_index("ftp://localhost:9/wiki")("q")[0].text == "ftp://localhost:9/wiki"


def test_what_is_no_index(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="no index at"):
        open_index(tmp_path / "gone")
    with pytest.raises(MissingFile, match=r"if a server is meant, write http://localhost:8893$"):
        open_index("localhost:8893")
    with pytest.raises(BadData, match="is not an index"):
        open_index(tmp_path)
