"""Folders that colbert-ai made, by its own indexer: opened as they are, and left as they are."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from blendfilter.errors import BadArgument, BadData, MissingFile
from blendfilter.records import Passage
from blendfilter.retrieval.colbert import ColBERT
from blendfilter.retrieval.colbert.compat import gpus_seen, patch_colbert
from blendfilter.retrieval.colbert.index import SearchEffort, TsvPassages, open_plaid
from blendfilter.retrieval.indexes import open_index

pytest.importorskip("faiss")

QUERIES = ["Which river is of 17?", "the king of the island", "castle 88", "hill 5 5 5"]


class Made(NamedTuple):
    folder: Path
    collection: Path


@pytest.fixture(scope="session")
def made(towns: list[Passage], checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """colbert-ai's index of the towns, two bits."""
    patch_colbert()
    from colbert import Indexer
    from colbert.infra import ColBERTConfig, Run, RunConfig

    root = tmp_path_factory.mktemp("colbert-ai")
    collection = root / "towns.tsv"
    lines = [f"{n}\t{town.text}" + f"\t{town.title}" * bool(town.title) for n, town in enumerate(towns)]
    collection.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    one_process = RunConfig(nranks=1, gpus=0, avoid_fork_if_possible=True, root=str(root), experiment="e")
    with gpus_seen(0), Run().context(one_process), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = ColBERTConfig(nbits=2, doc_maxlen=60, kmeans_niters=4, root=str(root))
        indexer = Indexer(checkpoint=str(checkpoint), config=config, verbose=0)
        indexer.index(name="towns", collection=str(collection), overwrite="force_silent_overwrite")
    return Made(Path(indexer.get_index()), collection)


@pytest.fixture
def copy(made: Made, tmp_path: Path) -> Made:
    folder = Path(shutil.copytree(made.folder, tmp_path / "index"))
    return Made(folder, Path(shutil.copy(made.collection, tmp_path)))


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    told = json.loads((folder / "metadata.json").read_text())
    change(told)
    (folder / "metadata.json").write_text(json.dumps(told))


def tree(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(folder.iterdir())}


def test_it_opens_and_finds_what_colbert_ai_finds(made: Made, checkpoint: Path, towns: list[Passage]) -> None:
    from colbert import Searcher

    before = tree(made.folder)
    index = open_index(made.folder, effort=SearchEffort(1, 0.5, 256))
    assert isinstance(index, ColBERT)
    assert len(index) == len(towns)
    with contextlib.redirect_stdout(io.StringIO()):
        theirs = Searcher(index=made.folder.name, index_root=str(made.folder.parent), verbose=0)
    for query in QUERIES:
        numbers, _, scores = theirs.search(query, k=10)
        ours = index(query, k=10)
        assert [hit.id for hit in ours] == [str(number) for number in numbers]
        assert [hit.score for hit in ours] == pytest.approx(scores, abs=1e-4)
        assert [theirs.collection[number] for number in numbers] == [hit.line for hit in ours]
    assert tree(made.folder) == before, "nothing was written"


def test_passages_have_their_titles(made: Made, towns: list[Passage]) -> None:
    index = open_plaid(made.folder)
    assert [(each.title, each.text) for each in index.passages] == [(town.title, town.text) for town in towns]
    assert [each.id for each in index.passages[:3]] == ["0", "1", "2"]
    told = index.info()
    assert told["kind"] == "colbert"
    assert told["corpus"]["name"] == "towns.tsv"
    assert told["settings"]["nbits"] == 2
    assert told["settings"]["doc_maxlen"] == 60
    assert index.encoder.doc_maxlen == 60


def test_the_fingerprint_follows_what_lies_there(made: Made, copy: Made) -> None:
    first = open_plaid(made.folder).fingerprint
    assert open_plaid(copy.folder, collection=copy.collection).fingerprint == first, "not the place"
    copy.collection.write_text(copy.collection.read_text().replace("river", "brook"))
    assert open_plaid(copy.folder, collection=copy.collection).fingerprint != first


def test_a_collection_that_moved(copy: Made) -> None:
    edit(copy.folder, lambda told: told["config"].update(collection="/nowhere/towns.tsv"))
    with pytest.raises(
        MissingFile, match=r"no collection at /nowhere/towns.tsv, .*: say where it lies \(collection=\)"
    ):
        open_index(copy.folder)
    assert len(open_index(copy.folder, collection=copy.collection)("river", k=3)) == 3


@pytest.mark.parametrize("named", [None, ["a list", "of passages"], {"provenance": "list"}])
def test_a_collection_that_is_no_file(named: Any, copy: Made) -> None:
    edit(copy.folder, lambda told: told["config"].update(collection=named))
    with pytest.raises(BadArgument, match="does not say which file its passages are in"):
        open_index(copy.folder)


def test_a_collection_of_another_length(copy: Made) -> None:
    lines = copy.collection.read_text().splitlines(keepends=True)
    copy.collection.write_text("".join(lines[:-1]))
    with pytest.raises(BadData, match=r"holds 150 passages and its collection .* 149: name the collection"):
        open_index(copy.folder, collection=copy.collection)


@pytest.mark.parametrize("named", [None, ""])
def test_a_checkpoint_that_is_not_named(named: Any, copy: Made, checkpoint: Path) -> None:
    edit(copy.folder, lambda told: told["config"].update(checkpoint=named))
    with pytest.raises(BadArgument, match="does not say which checkpoint it was built with"):
        open_index(copy.folder, collection=copy.collection)
    open_index(copy.folder, collection=copy.collection, checkpoint=checkpoint)


def test_a_checkpoint_that_is_gone(copy: Made) -> None:
    edit(copy.folder, lambda told: told["config"].update(checkpoint="/nowhere/checkpoint"))
    with pytest.raises(MissingFile, match="no checkpoint at /nowhere/checkpoint"):
        open_index(copy.folder, collection=copy.collection)


@pytest.mark.parametrize("content", ["{", "[]", "null", "{}", '{"config": []}', '{"config": {"dim": 32, "nbits": 2}}'])
def test_metadata_that_is_damaged(content: str, copy: Made) -> None:
    (copy.folder / "metadata.json").write_text(content)
    with pytest.raises(BadData, match=r"metadata\.json is not what colbert-ai writes"):
        open_index(copy.folder, collection=copy.collection)


@pytest.mark.parametrize("name", ["0.codes.pt", "ivf.pid.pt", "doclens.0.json", "buckets.pt"])
def test_files_that_are_missing(name: str, copy: Made) -> None:
    (copy.folder / name).unlink()
    with pytest.raises(BadData, match=rf"is not whole \({name}\): build it again"):
        open_index(copy.folder, collection=copy.collection)


@pytest.mark.parametrize("name", ["0.codes.pt", "0.residuals.pt", "ivf.pid.pt", "doclens.0.json", "centroids.pt"])
@pytest.mark.parametrize("content", [b"", b"damaged"])
def test_files_that_are_damaged(name: str, content: bytes, copy: Made) -> None:
    (copy.folder / name).write_bytes(content)
    with pytest.raises(BadData, match="damaged"):
        open_index(copy.folder, collection=copy.collection)


def test_files_of_another_size(copy: Made) -> None:
    edit(copy.folder, lambda told: told.update(num_embeddings=told["num_embeddings"] - 1))
    with pytest.raises(BadData, match="damaged"):
        open_index(copy.folder, collection=copy.collection)


# --- the collection -------------------------------------------------------------------------------------------------


def test_lines_of_a_collection(tmp_path: Path) -> None:
    path = tmp_path / "c.tsv"
    path.write_bytes("0\tA river.\n1\tTown | A hill.\r\n2\ttext\tTitle\n3\t é \n".encode())
    passages = TsvPassages(path)
    assert [(each.id, each.title, each.text) for each in passages] == [
        ("0", "", "A river."), ("1", "Town", "A hill."), ("2", "Title", "text"), ("3", "", "é"),
    ]  # fmt: skip
    assert passages[-1] == passages[3]
    assert passages[1:3] == [passages[1], passages[2]]
    with pytest.raises(IndexError):
        passages[4]


@pytest.mark.parametrize(
    ("content", "said"), [(b"0\ta\n1\t\xff\n", "line 2: not UTF-8"), (b"0\ta\n\n", "line 2: expected a number, a tab")]
)
def test_lines_that_are_none(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "c.tsv"
    path.write_bytes(content)
    with pytest.raises(BadData, match=said):
        list(TsvPassages(path))


def test_an_empty_collection(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").touch()
    assert len(TsvPassages(tmp_path / "c.tsv")) == 0
