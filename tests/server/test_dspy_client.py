"""DSPy's own client and settings, unmodified, against our server."""

from __future__ import annotations

from collections.abc import Iterator

import dspy
import pytest
import requests
from dspy.clients.cache import Cache
from index_server import sample_index, served

from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.callables import as_retriever
from blendfilter.retrieval.indexes import open_index

TOKEN = "2f6c91d0a4"
TOWN = "Which harbour town keeps a watch-house?"


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """DSPy keeps what it found under address, query and k; each test must really ask."""
    none = Cache(
        enable_disk_cache=False,
        enable_memory_cache=False,
        disk_cache_dir="",
        disk_size_limit_bytes=0,
        memory_max_entries=0,
    )
    monkeypatch.setattr(dspy, "cache", none)


@pytest.fixture(scope="module")
def index() -> BM25:
    return sample_index()


@pytest.fixture(scope="module")
def url(index: BM25) -> Iterator[str]:
    with served(index) as server:
        yield server.url


@pytest.mark.parametrize("post", [False, True])
def test_colbertv2(url: str, index: BM25, post: bool) -> None:
    client = dspy.ColBERTv2(url=url, post_requests=post)
    found = client(TOWN, k=3)
    assert [row["long_text"] for row in found] == [row["text"] for row in found]
    assert [row.text for row in found] == [passage.line for passage in index(TOWN, k=3)]
    assert [str(row.pid) for row in found] == [passage.id for passage in index(TOWN, k=3)]
    assert client(TOWN, k=2, simplify=True) == [passage.line for passage in index(TOWN, k=2)]


@pytest.mark.parametrize("post", [False, True])
def test_colbertv2_by_host_and_port_and_with_the_index_in_the_address(url: str, index: BM25, post: bool) -> None:
    host, _, port = url.rpartition(":")
    assert dspy.ColBERTv2(url=host, port=port, post_requests=post)(TOWN, k=1)
    assert dspy.ColBERTv2(url=f"{url}/?index={index.fingerprint}", post_requests=post)(TOWN, k=1)
    with pytest.raises(requests.HTTPError, match="409"):
        dspy.ColBERTv2(url=f"{url}/?index=0011223344556677", post_requests=post)(TOWN, k=1)


@pytest.mark.parametrize("post", [False, True])
def test_colbertv2_with_a_token(index: BM25, post: bool) -> None:
    with served(index, token=TOKEN) as server:
        with_token = server.url.replace("://", f"://any:{TOKEN}@")
        assert dspy.ColBERTv2(url=f"{with_token}/", post_requests=post)(TOWN, k=1)[0].text == index(TOWN, k=1)[0].line
        with pytest.raises(requests.HTTPError, match="401"):
            dspy.ColBERTv2(url=server.url, post_requests=post)(TOWN, k=1)


def test_retrieve_over_colbertv2_and_over_our_client(url: str, index: BM25, fresh_dspy: None) -> None:
    lines = [passage.line for passage in index(TOWN, k=3)]
    for rm in (dspy.ColBERTv2(url=url), open_index(url)):
        with dspy.context(rm=rm):
            assert dspy.Retrieve(k=3)(TOWN).passages == lines


def test_colbertv2_as_a_retriever_of_ours(url: str, index: BM25) -> None:
    found = as_retriever(dspy.ColBERTv2(url=url))(TOWN, k=3)
    assert [passage.title for passage in found] == [passage.title for passage in index(TOWN, k=3)]
