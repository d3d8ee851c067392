"""Passages added to an index in its folder and deleted from it: what is found then, by readers of before and after."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from checkpoints import tiny_bert, tiny_colbert

from blendfilter.errors import BadArgument, BadData, EmptyData, IndexChanged, MissingFile
from blendfilter.records import Passage
from blendfilter.resources import sample
from blendfilter.retrieval import bm25, manifest
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.bm25 import BM25, FREQUENCIES
from blendfilter.retrieval.corpus import read_corpus
from blendfilter.retrieval.hybrid import Hybrid
from blendfilter.retrieval.indexes import build, open_index
from blendfilter.retrieval.manifest import read_manifest, updating
from blendfilter.retrieval.stored import Stored

PASSAGES = list(islice(read_corpus(sample("corpus.jsonl")), 90))
OLD, NEW = PASSAGES[:60], PASSAGES[60:]
GONE = [OLD[at].id for at in (0, 7, 8, 59)]
LEFT = [passage for passage in PASSAGES if passage.id not in GONE]
QUERIES = ["Which town has a harbour?", "the king of the island", "old ship", *(passage.text for passage in NEW[:5])]
TOWN = Passage("t", "Ormskerry", "A harbour town.")
HILL = Passage("h", "Fell", "A hill.")
PIER = Passage("p", "Tane", "A pier by the harbour.")

KINDS: dict[str, dict[str, Any]] = {
    "bm25": {"engine": "bm25", "k1": 1.2, "b": 0.75},
    "bm25-b0": {"engine": "bm25", "b": 0.0},
    "bm25-b1": {"engine": "bm25", "b": 1.0},
    "rank-bm25": {"engine": "rank-bm25"},
    "flat": {"engine": "dense", "encoder": tiny_bert},
    "hnsw": {"engine": "dense", "encoder": tiny_bert, "index": "hnsw"},
    "ivf": {"engine": "dense", "encoder": tiny_bert, "index": "ivf", "nlist": 4, "nprobe": 2},
    "colbert": {"engine": "colbert", "checkpoint": tiny_colbert},
}
EXACT = [name for name in KINDS if name not in ("hnsw", "ivf", "colbert")]


def made(name: str, passages: list[Passage], out: Path) -> Stored:
    settings = {key: value() if callable(value) else value for key, value in KINDS[name].items()}
    index = build(settings.pop("engine"), passages, out, **settings)
    assert isinstance(index, Stored)
    return index


def found(index: Retriever, k: int = 10) -> list[list[tuple[str, float]]]:
    return [[(p.id, p.score or 0.0) for p in hits] for hits in index.search(QUERIES, k)]


def ids(index: Retriever, k: int = 10) -> list[list[str]]:
    return [[name for name, _ in hits] for hits in found(index, k)]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def index(tmp_path: Path) -> BM25:
    return BM25.build([TOWN, HILL], tmp_path / "index")


@pytest.mark.parametrize("name", KINDS)
def test_it_finds_what_is_there_by_now_and_the_old_one_what_was(name: str, tmp_path: Path) -> None:
    old = made(name, OLD, tmp_path / "index")
    before = found(old)
    new = old.update(NEW, GONE)
    assert (len(new), [p.id for p in new.passages]) == (len(LEFT), [p.id for p in LEFT])
    assert found(old) == before, "its files are gone, and it has them open"
    assert not {name for hits in ids(new, len(LEFT)) for name in hits} & set(GONE)
    hits = new.search([passage.line for passage in NEW], len(LEFT))
    assert all(passage.id in {p.id for p in near} for passage, near in zip(NEW, hits, strict=True))
    assert new.fingerprint != old.fingerprint
    again = open_index(tmp_path / "index")
    assert (again.fingerprint, found(again)) == (new.fingerprint, found(new))
    assert names(tmp_path) == ["index"]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(("add", "delete"), [(NEW, []), ([], GONE), (NEW, GONE)], ids=["add", "delete", "both"])
def test_it_is_the_one_built_from_scratch(name: str, add: list[Passage], delete: list[str], tmp_path: Path) -> None:
    """Scores of BM25 to the last bit; vectors, which are encoded beside others, to what counts as equal."""
    updated = made(name, OLD, tmp_path / "index").update(add or None, delete)
    scratch = made(name, [p for p in [*OLD, *add] if p.id not in delete], tmp_path / "scratch")
    assert updated.fingerprint == scratch.fingerprint
    assert ids(updated) == ids(scratch)
    for ours, theirs in zip(found(updated), found(scratch), strict=True):
        scores = [score for _, score in theirs]
        assert [score for _, score in ours] == (scores if "bm25" in name else pytest.approx(scores, abs=1e-4))


@pytest.mark.parametrize("name", ["hnsw", "ivf", "colbert"])
def test_an_approximate_one_finds_about_what_one_from_scratch_finds(name: str, tmp_path: Path) -> None:
    updated, scratch = ids(made(name, OLD, tmp_path / "a").update(NEW, GONE)), ids(made(name, LEFT, tmp_path / "b"))
    same = sum(len({*ours} & {*theirs}) for ours, theirs in zip(updated, scratch, strict=True))
    assert same >= 0.7 * sum(map(len, scratch))


@pytest.mark.parametrize("name", ["ivf", "colbert"])
def test_centroids_of_far_fewer_passages_are_pointed_out(name: str, tmp_path: Path) -> None:
    index = made(name, OLD[:40], tmp_path / "index")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        index = index.update(OLD[40:])
    with pytest.warns(UserWarning, match="holds 90 passages, and its centroids were trained for 40"):
        index.update(NEW)


def test_an_ivf_index_whose_cells_are_of_another_corpus_is_another_one(tmp_path: Path) -> None:
    assert made("ivf", OLD, tmp_path / "a").update(NEW).fingerprint != made("ivf", PASSAGES, tmp_path / "b").fingerprint


@pytest.mark.parametrize("b", [0.4, 1.0])
def test_an_index_of_before_there_were_frequencies_is_analysed_again(b: float, tmp_path: Path) -> None:
    """It opens and searches as it did; an update makes of it what an update makes of a new one."""
    new, old = (BM25.build(OLD, tmp_path / name, b=b) for name in ("new", "old"))
    stated = json.loads((tmp_path / "old" / "manifest.json").read_text())
    for listed in ("files", "hashes"):
        del stated[listed][FREQUENCIES]
    (tmp_path / "old" / "manifest.json").write_text(json.dumps(stated))
    (tmp_path / "old" / FREQUENCIES).unlink()
    old = BM25.open(tmp_path / "old")
    assert (old.fingerprint, found(old)) == (new.fingerprint, found(new))
    updated = old.update(NEW, GONE)
    assert (updated.fingerprint, found(updated)) == (new.update(NEW, GONE).fingerprint, found(new.fresh()))
    assert FREQUENCIES in updated.manifest.files


# --- what is refused, and leaves the index as it is -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("add", "delete", "error", "stated"),
    [
        (
            None,
            ["t", "x", "y", "z", "u"],
            BadArgument,
            r"no passage 'x', 'y', 'z' and 1 more in the index at .*index: ",
        ),
        (None, ["t", "h"], BadArgument, r"that would delete all 2 passages of .*index: remove the folder instead"),
        (None, "t", BadArgument, "delete takes a list of ids, got one string"),
        ([PIER, Passage("t", "Ormskerry", "A port.")], [], BadData, r"id 't' is in the index at .* with another title"),
        ([PIER, PIER], [], BadData, "passage id 'p' occurs twice among the passages to add"),
        ([], [], EmptyData, "there are no passages to add"),
        ("gone.jsonl", [], MissingFile, "no file or folder 'gone.jsonl'"),
        ([Passage("p", "", "the of")], ["t", "h"], EmptyData, "not one word would be left"),
    ],
)
def test_what_cannot_be_is_one_line_and_changes_nothing(
    index: BM25, tmp_path: Path, add: Any, delete: Any, error: type[Exception], stated: str
) -> None:
    with pytest.raises(error, match=stated) as refused:
        index.update(add, delete)
    assert "\n" not in str(refused.value)
    assert open_index(tmp_path / "index").fingerprint == index.fingerprint
    assert names(tmp_path) == ["index"]


def test_an_index_in_memory_or_of_another_program_is_not_updated() -> None:
    with pytest.raises(BadArgument, match="cannot be updated: passages are added to indexes that lie in a folder"):
        BM25.build([TOWN]).update([HILL])


def test_a_passage_that_is_there_already_stays_and_another_content_takes_its_id(index: BM25) -> None:
    with pytest.warns(UserWarning, match="1 passages are in the index already and stay as they are"):
        assert index.update([TOWN]) is index
    other = Passage("t", "Ormskerry", "A port.")
    with pytest.warns(UserWarning, match="1 passages are in the index already"):
        replaced = index.update([other, HILL], replace=True)
    assert [(p.id, p.text) for p in replaced.passages] == [("h", "A hill."), ("t", "A port.")]
    assert replaced.fingerprint == BM25.build([HILL, other]).fingerprint
    back = replaced.update([TOWN], ["t"])
    assert [p.text for p in back.passages] == ["A hill.", "A harbour town."], "deleted first, then added"


def test_a_cached_index_that_was_updated_is_not_its_file_s_any_more(tmp_path: Path) -> None:
    file = tmp_path / "corpus.txt"
    file.write_text("A harbour town.")
    cached = BM25.for_corpus(file)
    cached.update([HILL])
    with pytest.warns(UserWarning, match=r"was updated and is not that of .*corpus\.txt any more"):
        assert BM25.for_corpus(file).fingerprint == cached.fingerprint


# --- readers and writers at once --------------------------------------------------------------------------------------


@pytest.mark.parametrize("exchanges", [True, False], ids=["at once", "in two steps"])
def test_the_new_index_takes_the_old_one_s_place(
    index: BM25, tmp_path: Path, exchanges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one step where the system can; with two, there is a moment without an index."""
    seen = list[bool]()
    rename = Path.rename

    def watched(path: Path, target: Any) -> Path:
        moved = rename(path, target)
        seen.append((tmp_path / "index" / "manifest.json").exists())
        return moved

    monkeypatch.setattr(Path, "rename", watched)
    if not exchanges:
        monkeypatch.setattr(manifest, "_exchanged", lambda *_: False)
    new = index.update([PIER])
    assert all(seen) is exchanges
    assert open_index(tmp_path / "index").fingerprint == new.fingerprint != index.fingerprint
    assert names(tmp_path) == ["index"]


@pytest.mark.parametrize("moment", ["_sync", "_exchanged", "shutil"])
def test_killed_at_any_moment_there_is_the_old_index_or_the_new_one(
    index: BM25, tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (child := os.fork()):
        if moment == "shutil":
            monkeypatch.setattr(manifest.shutil, "rmtree", lambda *_, **__: os._exit(9))
        else:
            setattr(manifest, moment, lambda *_: os._exit(9))
        index.update([PIER])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    left = open_index(tmp_path / "index")
    assert isinstance(left, BM25)
    assert {p.id for p in left("harbour", k=2)} == ({"t", "p"} if moment == "shutil" else {"t"})
    left.update([Passage("q", "Quay", "A quay.")])
    assert names(tmp_path) == ["index"], "what the kill left is swept"


def test_a_reader_that_opens_meanwhile_gets_one_index_whole(
    index: BM25, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its look at the passages and at their scores another index comes, with as many passages."""
    load, updated = bm25.saved_engine, list[BM25]()

    def between(folder: Path) -> Any:
        if not updated:
            updated.append(index)
            updated.append(index.update([Passage("t", "Ormskerry", "A port.")], replace=True))
        return load(folder)

    monkeypatch.setattr(bm25, "saved_engine", between)
    opened = open_index(tmp_path / "index")
    assert opened.fingerprint == updated[1].fingerprint
    assert [hit.text for hit in opened("port", k=1)] == ["A port."]
    assert opened("harbour", k=1) == []


def test_a_reader_of_the_manifest_alone_gets_one_whole(
    index: BM25, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its look at the manifest and at the files' sizes another index comes."""
    parse, updated = manifest._parse, list[BM25]()

    def between(path: Path) -> Any:
        found = parse(path)
        if not updated:
            updated.append(index)
            updated.append(index.update([PIER]))
        return found

    monkeypatch.setattr(manifest, "_parse", between)
    assert read_manifest(tmp_path / "index").fingerprint == updated[1].fingerprint


def test_one_writer_at_a_time(index: BM25, tmp_path: Path) -> None:
    with (
        pytest.raises(BadArgument, match=r"index is being changed by another command: wait until it is done"),
        updating(tmp_path / "index", index.fingerprint),
    ):
        index.update([PIER])
    first, second = index, open_index(tmp_path / "index")
    assert isinstance(second, BM25)
    first.update([PIER])
    with pytest.raises(
        IndexChanged, match=rf"was changed by someone else \({second.fingerprint} → .*\).*open it again"
    ):
        second.update([Passage("q", "", "A quay.")])
    assert [p.id for p in open_index(tmp_path / "index").passages] == ["t", "h", "p"]  # type: ignore[attr-defined]


def test_an_index_that_is_built_again_meanwhile_is_not_lost(
    index: BM25, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write: Callable[..., Any] = BM25._write_update

    def meanwhile(self: BM25, *arguments: Any) -> Any:
        BM25.build([PIER], tmp_path / "index", overwrite=True)
        return write(self, *arguments)

    monkeypatch.setattr(BM25, "_write_update", meanwhile)
    with pytest.raises(IndexChanged, match="is as they left it"):
        index.update([PIER])
    assert [p.id for p in open_index(tmp_path / "index").passages] == ["p"]  # type: ignore[attr-defined]


def test_the_index_of_now_is_opened_as_the_old_one_was(index: BM25, tmp_path: Path) -> None:
    other = BM25.build([HILL], tmp_path / "other")
    both = Hybrid([index, other], depth=7)
    assert (index.fresh(), both.fresh()) == (index, both)
    assert not both.outdated()
    BM25.build([TOWN, HILL], tmp_path / "index", overwrite=True)
    assert index.fresh() is index, "another folder, and the same index"
    new = index.update([PIER])
    assert index.outdated()
    assert not new.outdated()
    assert index.fresh().fingerprint == new.fingerprint
    assert both.outdated()
    assert both.fresh().fingerprint == Hybrid([new, other], depth=7).fingerprint
