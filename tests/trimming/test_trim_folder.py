"""A trimmed index's folder: where it lies, what it remembers, what it refuses."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from index_server import served

from blendfilter.errors import BadArgument, BadData, BlendFilterError, MissingFile, RunLocked
from blendfilter.journal import Journal
from blendfilter.records import Passage
from blendfilter.retrieval.callables import as_retriever
from blendfilter.retrieval.indexes import build, open_index
from blendfilter.retrieval.manifest import read_manifest
from blendfilter.trimming.folder import TrimFolder, default_place, is_trimmed, location_of
from blendfilter.trimming.witnesses import Witnesses, WitnessWriter

PASSAGES = [Passage("1", "Mill", "It grinds rye."), Passage("2", "Fell", "A hill.")]


@pytest.fixture
def wiki(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    build("bm25", PASSAGES, tmp_path / "wiki")
    return tmp_path / "wiki"


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_lies_beside_the_index_which_is_not_touched(wiki: Path) -> None:
    before, fingerprint = bytes_of(wiki), open_index(wiki).fingerprint
    made = TrimFolder.create("wiki", k=7, threshold=3, min_similarity=1, similarity="words")
    assert made == TrimFolder.read("wiki.trimmed")
    assert (made.place, Path(made.base)) == (Path("wiki.trimmed"), wiki)
    assert (made.base_fingerprint, made.k, made.threshold) == (fingerprint, 7, 3)
    assert (made.min_similarity, made.similarity) == (1.0, "words")
    assert Witnesses.read(made.witnesses).separations() == 0
    assert made.journal == Path("wiki.trimmed/journal.jsonl")
    assert bytes_of(wiki) == before
    manifest = read_manifest("wiki.trimmed")  # what `open_index` reads first
    assert (manifest.kind, manifest.fingerprint, manifest.passages) == ("trimmed", fingerprint, 2)


def test_by_itself_it_takes_two_witnesses_of_ten_passages(wiki: Path) -> None:
    made = TrimFolder.create(open_index(wiki))
    assert (made.k, made.threshold, made.min_similarity) == (10, 2, None)
    assert made.place == wiki.with_name("wiki.trimmed")


def test_both_folders_may_be_moved_together(wiki: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TrimFolder.create(wiki)
    (tmp_path / "far").mkdir()
    shutil.move(wiki, tmp_path / "far" / "wiki")
    shutil.move("wiki.trimmed", tmp_path / "far" / "wiki.trimmed")
    monkeypatch.chdir(tmp_path / "far" / "wiki.trimmed")
    for name in (".", "../wiki.trimmed", tmp_path / "far" / "wiki.trimmed"):
        folder = TrimFolder.read(name)
        assert open_index(folder.base).fingerprint == folder.base_fingerprint


def test_a_link_to_it_leads_to_the_same_index(wiki: Path, tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    TrimFolder.create(wiki)
    os.symlink(tmp_path / "wiki.trimmed", tmp_path / "a" / "b" / "link")
    assert Path(TrimFolder.read(tmp_path / "a" / "b" / "link").base) == wiki


def test_settings_are_changed_in_one_stroke(wiki: Path) -> None:
    made = TrimFolder.create(wiki)
    changed = made.set(threshold=1)
    assert (changed.threshold, changed.min_similarity) == (1, None)
    assert changed.set(min_similarity=0.5) == TrimFolder.read(made.place)
    assert (TrimFolder.read(made.place).threshold, TrimFolder.read(made.place).min_similarity) == (1, 0.5)
    assert {path.name for path in made.place.iterdir()} == {"manifest.json", "witnesses.jsonl"}
    assert read_manifest(made.place).kind == "trimmed"


def test_a_folder_from_before_there_was_a_choice_counts_both_ways(wiki: Path) -> None:
    made = TrimFolder.create(wiki, one_way=True)
    assert (made.one_way, TrimFolder.read(made.place).one_way) == (True, True)
    raw = json.loads((made.place / "manifest.json").read_text())
    assert raw["settings"].pop("one_way") is True
    (made.place / "manifest.json").write_text(json.dumps(raw))
    old = TrimFolder.read(made.place)
    assert old.one_way is False
    assert old.set(threshold=1).one_way is TrimFolder.read(made.place).one_way is False
    assert old.set(one_way=True) == TrimFolder.read(made.place)
    assert TrimFolder.read(made.place).set(threshold=3).one_way is True, "what is not named stays"


@pytest.mark.parametrize(
    ("setting", "said"),
    [({"threshold": 0}, "from 1 up"), ({"threshold": True}, "from 1 up"), ({"threshold": 1.5}, "from 1 up"),
     ({"one_way": 1}, "one_way is True or False, got 1"), ({"min_similarity": 1.1}, "between 0 and 1"),
     ({"min_similarity": float("nan")}, "between 0 and 1")],
)  # fmt: skip
def test_a_setting_out_of_range_is_refused_and_the_folder_stays(wiki: Path, setting: Any, said: str) -> None:
    made = TrimFolder.create(wiki)
    before = bytes_of(made.place)
    with pytest.raises(BadArgument, match=said):
        made.set(**setting)
    assert bytes_of(made.place) == before
    with pytest.raises(BadArgument, match=said):
        TrimFolder.create(wiki, wiki.with_name("other"), **setting)
    with pytest.raises(BadArgument, match="k is a whole number from 1 up"):
        TrimFolder.create(wiki, wiki.with_name("other"), k=0)
    assert not wiki.with_name("other").exists()


def test_the_default_place() -> None:
    assert default_place("indexes/wiki") == default_place("indexes/wiki/") == "indexes/wiki.trimmed"
    assert default_place(Path("indexes/wiki.v2")) == "indexes/wiki.v2.trimmed"
    with pytest.raises(BadArgument, match=r"no place beside http://127\.0\.0\.1:8893: name a folder .* \(--out DIR\)"):
        default_place("http://127.0.0.1:8893")


def test_the_folder_one_stands_in_has_its_place_outside(wiki: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(wiki)
    assert default_place(".") == f"{wiki}.trimmed"
    assert Path(TrimFolder.create(".").base) == wiki


def test_where_it_may_not_lie(wiki: Path, tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match=r"lies inside the index at .*wiki, which is never written to"):
        TrimFolder.create(wiki, wiki / "trimmed")
    with pytest.raises(BadArgument, match="inside the index"):
        TrimFolder.create(wiki, wiki)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    with pytest.raises(BadArgument, match="is there already and is not an index"):
        TrimFolder.create(wiki, tmp_path / "notes")
    TrimFolder.create(wiki)
    with pytest.raises(BadArgument, match="holds a trimmed index already: go on in it, or name another folder"):
        TrimFolder.create(wiki)
    with pytest.raises(BadArgument, match="is a trimmed index itself: name the index that it was made of"):
        TrimFolder.create("wiki.trimmed")
    with pytest.raises(MissingFile, match="no index at"):
        TrimFolder.create("nowhere")
    assert not (tmp_path / "nowhere.trimmed").exists()


def test_a_served_index_wants_a_place_of_its_own(wiki: Path, tmp_path: Path) -> None:
    index = open_index(wiki)
    with served(index) as server:
        with pytest.raises(BadArgument, match=r"no place beside http.*: name a folder for its witnesses \(--out DIR\)"):
            TrimFolder.create(server.url)
        made = TrimFolder.create(server.url, tmp_path / "mine")
        assert TrimFolder.create(open_index(server.url), tmp_path / "same").base == server.url
        login = server.url.replace("http://", "http://any:s3cret@")
        secret = TrimFolder.create(login, tmp_path / "login")
        with pytest.raises(BadArgument, match="no place beside") as refused:
            TrimFolder.create(login)
        with pytest.raises(BadArgument, match="no place beside") as named:
            default_place(login)
    assert (made.base, made.base_fingerprint) == (server.url, index.fingerprint)
    assert read_manifest(made.place).passages == 2
    assert secret.base == server.url
    assert b"s3cret" not in b"".join(bytes_of(secret.place).values())
    assert "s3cret" not in f"{refused.value} {named.value}"


def test_an_index_in_memory_or_a_function_has_no_location(tmp_path: Path) -> None:
    def search(query: str, k: int) -> list[str]:
        return ["Mill | It grinds rye."]

    index = as_retriever(search, fingerprint="0123456789abcdef")
    assert location_of(index) == ""
    with pytest.raises(BadArgument, match="in memory has no place beside it"):
        TrimFolder.create(index)
    made = TrimFolder.create(index, tmp_path / "mine")
    assert (made.base, made.base_fingerprint) == ("", "0123456789abcdef")


@pytest.mark.parametrize("told", [{"kind": "trimmed"}, {"kind": "remote", "of": "trimmed"}])
def test_an_open_trimmed_index_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: dict[str, str]
) -> None:
    """Served elsewhere, too: verdicts are given on what nothing was dropped from."""
    index = build("bm25", PASSAGES)
    monkeypatch.setattr(index, "info", lambda: told)
    with pytest.raises(BadArgument, match="the index is trimmed itself: trim the one it was made of"):
        TrimFolder.create(index, tmp_path / "mine")


def test_what_is_a_trimmed_index(wiki: Path, tmp_path: Path) -> None:
    made = TrimFolder.create(wiki)
    assert is_trimmed(made.place)
    assert is_trimmed("wiki.trimmed/")
    assert not any(map(is_trimmed, (wiki, tmp_path, tmp_path / "gone", "http://127.0.0.1:9")))
    (made.place / "manifest.json").write_text("{")
    assert is_trimmed(made.place)


def damage(place: Path, **fields: Any) -> None:
    raw = json.loads((place / "manifest.json").read_text())
    raw["settings"] |= fields
    (place / "manifest.json").write_text(json.dumps(raw))


@pytest.mark.parametrize(
    ("field", "value"),
    [("threshold", 0), ("threshold", "2"), ("k", None), ("base", 3), ("base_fingerprint", "x"), ("min_similarity", 2)],
)
def test_a_damaged_setting_is_named(wiki: Path, field: str, value: Any) -> None:
    place = TrimFolder.create(wiki).place
    damage(place, **{field: value})
    with pytest.raises(BadData, match=rf"manifest\.json does not say how .* \(settings\.{field}: .*: restore it"):
        TrimFolder.read(place)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"kind": "trimmed", "format": 9}', "\0" * 40])
def test_a_damaged_manifest_is_named(wiki: Path, text: str) -> None:
    place = TrimFolder.create(wiki).place
    (place / "manifest.json").write_text(text)
    with pytest.raises(BadData, match=r"manifest\.json does not say how .*move .*wiki\.trimmed away and trim again"):
        TrimFolder.read(place)
    (place / "manifest.json").unlink()
    with pytest.raises(BadData, match="does not say how"):
        TrimFolder.read(place)


def test_what_is_not_a_trimmed_index_is_named(wiki: Path, tmp_path: Path) -> None:
    with pytest.raises(BadData, match="is an index of kind 'bm25', not a trimmed one: trim it first"):
        TrimFolder.read(wiki)
    with pytest.raises(MissingFile, match=r"no trimmed index at .*gone: blendfilter trim INDEX --questions FILE makes"):
        TrimFolder.read(tmp_path / "gone")
    with pytest.raises(BlendFilterError, match="is not an index"):
        TrimFolder.read(tmp_path)


def test_a_folder_that_holds_nothing_yet_may_go(wiki: Path) -> None:
    """What was paid for stays: a verdict, an answered call, and what somebody else put there."""
    made = TrimFolder.create(wiki)
    with Journal(made.journal) as journal:
        journal.append({"key": "0" * 32, "kind": "call", "error": {"kind": "refused", "message": "nobody there"}})
        with pytest.raises(RunLocked):
            made.remove_empty()
    assert made.remove_empty()
    assert not made.place.exists()

    def answered() -> None:
        with Journal(made.journal) as journal:
            journal.append({"key": "0" * 32, "kind": "call", "error": None})

    def judged() -> None:
        with WitnessWriter(made.witnesses) as writer:
            writer.close("Who?", [])

    for fill in (answered, judged, lambda: (made.place / "mine.txt").write_text("mine")):
        TrimFolder.create(wiki)
        fill()
        before = bytes_of(made.place)
        assert not made.remove_empty()
        assert bytes_of(made.place) == before
        shutil.rmtree(made.place)
    TrimFolder.create(wiki)
    with WitnessWriter(made.witnesses), pytest.raises(RunLocked):
        made.remove_empty()
