"""A trimmed index's folder: its place, its settings, what is refused; damage never takes the index down."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import tiny_bert
from http_server import Answer, Request, answering
from index_server import served
from judged import AGAIN, RADIO, WHO_ON
from small_world import Command
from witnessed import BY, ids

from blendfilter import Hybrid
from blendfilter.errors import BadArgument, BadData, MissingFile
from blendfilter.records import Passage
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.hybrid import open_indexes
from blendfilter.retrieval.indexes import build, open_index
from blendfilter.retrieval.manifest import read_manifest
from blendfilter.trimming.folder import TrimFolder, default_place
from blendfilter.trimming.overlay import Trimmed
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


def test_both_folders_may_be_moved_together(wiki: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TrimFolder.create(wiki)
    (tmp_path / "far").mkdir()
    shutil.move(wiki, tmp_path / "far" / "wiki")
    shutil.move("wiki.trimmed", tmp_path / "far" / "wiki.trimmed")
    monkeypatch.chdir(tmp_path / "far" / "wiki.trimmed")
    for name in (".", "../wiki.trimmed", tmp_path / "far" / "wiki.trimmed"):
        folder = TrimFolder.read(name)
        assert open_index(folder.base).fingerprint == folder.base_fingerprint


def test_settings_are_changed_in_one_stroke(wiki: Path) -> None:
    made = TrimFolder.create(wiki)
    changed = made.set(threshold=1)
    assert (changed.threshold, changed.min_similarity) == (1, None)
    assert changed.set(min_similarity=0.5) == TrimFolder.read(made.place)
    assert (TrimFolder.read(made.place).threshold, TrimFolder.read(made.place).min_similarity) == (1, 0.5)
    assert {path.name for path in made.place.iterdir()} == {"manifest.json", "witnesses.jsonl"}
    assert read_manifest(made.place).kind == "trimmed"


@pytest.mark.parametrize(
    ("setting", "message"),
    [({"threshold": 0}, "threshold: .*, got 0"), ({"one_way": 1}, "one_way: .*, got 1"),
     ({"min_similarity": 1.1}, "min_similarity: .* 1, got 1.1"), ({"min_similarity": float("nan")}, "min_similarity:")],
)  # fmt: skip
def test_a_setting_out_of_range_is_refused_and_the_folder_stays(wiki: Path, setting: Any, message: str) -> None:
    made = TrimFolder.create(wiki)
    before = bytes_of(made.place)
    with pytest.raises(BadArgument, match=message):
        made.set(**setting)
    assert bytes_of(made.place) == before
    with pytest.raises(BadArgument, match=message):
        TrimFolder.create(wiki, wiki.with_name("other"), **setting)
    with pytest.raises(BadArgument, match=r"k: .*, got 0"):
        TrimFolder.create(wiki, wiki.with_name("other"), k=0)
    assert not wiki.with_name("other").exists()


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
        with pytest.raises(BadArgument, match=r"no place beside http.*: name a folder for its witnesses \(out=DIR\)"):
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


@pytest.mark.parametrize("info", [{"kind": "trimmed"}, {"kind": "remote", "of": "trimmed"}])
def test_an_open_trimmed_index_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, info: dict[str, str]
) -> None:
    """Served elsewhere, too: verdicts are given on what nothing was dropped from."""
    index = build("bm25", PASSAGES)
    monkeypatch.setattr(index, "info", lambda: info)
    with pytest.raises(BadArgument, match="the index is a trimmed index itself: name the index"):
        TrimFolder.create(index, tmp_path / "mine")


def rewrite(place: Path, **fields: Any) -> None:
    raw = json.loads((place / "manifest.json").read_text())
    raw["settings"] |= fields
    (place / "manifest.json").write_text(json.dumps(raw))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A trimmed index: one question is judged, at threshold 1."""
    BM25.build(RADIO, tmp_path / "village")
    return trimmed(tmp_path / "village", "words")


def trimmed(base: Path, similarity: str) -> Path:
    folder = TrimFolder.create(base, threshold=1, similarity=similarity)
    with WitnessWriter(folder.witnesses) as writer:
        writer.judge(WHO_ON, {"on": True, "off": False}, BY)
    return folder.place


def test_a_trimmed_folder_opens_as_an_index(place: Path) -> None:
    index, bare = open_index(place), open_index(place.with_suffix(""))
    assert isinstance(index, Trimmed)
    assert (index.threshold, index.similar.name, index.info()["settings"]["guard"]) == (1, "words", True)
    assert {"on", "off"} <= set(ids(bare(AGAIN, k=3)))
    assert ids(index(AGAIN, k=3)) == [each for each in ids(bare(AGAIN, k=3)) if each != "off"]
    assert index.fingerprint != bare.fingerprint


def test_vectors_are_kept_beside_the_witnesses(tmp_path: Path) -> None:
    build("dense", RADIO, tmp_path / "dense", encoder=tiny_bert())
    place = trimmed(tmp_path / "dense", "vectors")
    index = open_index(place)
    assert isinstance(index, Trimmed)
    assert index.similar.name == "vectors"
    assert (place / "vectors.npz").is_file()
    assert not {"on", "off"} <= set(ids(index(WHO_ON, k=5)))
    again = open_index(place, device="cpu")  # an option of the index itself
    assert again.find([WHO_ON, AGAIN], 3) == index.find([WHO_ON, AGAIN], 3)
    assert again.fingerprint == index.fingerprint


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "witnesses": (lambda place: (place / "witnesses.jsonl").write_text('{"kind":"witnesses","format":1}\n{nonsense}\n'
                                                                        '{"kind":"undone","all":true}\n'), "line 2"),
    "newer": (lambda place: (place / "witnesses.jsonl").write_text('{"kind":"witnesses","format":99}\n'), "format"),
    "no witnesses": (lambda place: (place / "witnesses.jsonl").unlink(), "no witnesses"),
    "no manifest": (lambda place: (place / "manifest.json").unlink(), "manifest.json"),
    "settings": (lambda place: (place / "manifest.json").write_text(
        (place / "manifest.json").read_text().replace('"threshold": 1', '"threshold": "one"')), "threshold"),
    "measure": (lambda place: (place / "manifest.json").write_text(
        (place / "manifest.json").read_text().replace('"words"', '"feelings"')), "the similarity 'feelings'"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "result"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_overlay_leaves_the_index(place: Path, damage: Callable[[Path], object], result: str) -> None:
    damage(place)
    bare = open_index(place.with_suffix(""))
    with pytest.warns(
        UserWarning, match=f"nothing is trimmed, and .*village is searched as it is: .*{result}"
    ) as caught:
        index = open_index(place)
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    assert index.fingerprint == bare.fingerprint
    assert index.search([WHO_ON], 3) == bare.search([WHO_ON], 3)


def test_an_overlay_of_another_index_is_refused(place: Path) -> None:
    base = place.with_suffix("")
    old = open_index(base).fingerprint
    new = BM25.build(RADIO[:3], base, overwrite=True).fingerprint
    with pytest.raises(BadData, match=f"made for another index: .*{old}.*{new}.*open .*village itself") as refused:
        open_index(place)
    assert "\n" not in str(refused.value)


def test_an_index_that_is_gone(place: Path) -> None:
    place.with_suffix("").rename(place.with_name("elsewhere"))
    with pytest.raises(MissingFile, match=r"trims an index that is not there: no index at .*village"):
        open_index(place)
    with pytest.raises(MissingFile, match="no index at"):
        open_index(place.with_name("nowhere.trimmed"))
    (place / "manifest.json").unlink()
    with pytest.raises(BadData):
        open_index(place)


class Received:
    """A trimmed index as somebody sends it: its manifest names an address, where `brought` is what reached it."""

    def __init__(self, place: Path, brought: list[str | None], host: str) -> None:
        self.place, self.brought, self.host = place, brought, host
        rewrite(place, base=f"http://{host}")


@pytest.fixture
def received(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    monkeypatch.setenv("BLENDFILTER_INDEX_TOKEN", "s3cret")
    fingerprint, brought = open_index(place.with_suffix("")).fingerprint, list[str | None]()

    def answer(request: Request) -> Answer:
        brought.append(request.headers.get("authorization"))
        return Answer(200, {"server": "blendfilter", "version": "0", "fingerprint": fingerprint})

    with answering(answer) as url:
        yield Received(place, brought, url.removeprefix("http://"))


def test_an_address_out_of_a_file_is_not_called(received: Received) -> None:
    result = re.escape(f"village.trimmed lies over an index at {received.host}")
    for allowed in ([], ["127.0.0.2"], ["127.0.0.1:1"], "index.example", ["127.0.0.1.example"]):
        with pytest.raises(BadArgument, match=rf"{result}, .* add allow_hosts={received.host}$") as error:
            open_index(received.place, allow_hosts=allowed)
        assert "\n" not in str(error.value)
    assert received.brought == []


@pytest.mark.parametrize("how", ["127.0.0.1", "HOST", "http://HOST/", "127.0.0.1,"])
def test_an_address_whose_host_is_named_is_called_without_the_token_of_the_environment(
    received: Received, how: str
) -> None:
    allowed = how.strip(",").replace("HOST", received.host)
    index = open_index(received.place, allow_hosts=allowed if "," in how else [allowed, "index.example"])
    assert isinstance(index, Trimmed)
    assert received.brought == [None]
    assert pickle.loads(pickle.dumps(index.index)).fingerprint == index.index.fingerprint
    assert received.brought == [None, None], "a copy takes no token out of the environment either"
    open_index(received.place, allow_hosts=["127.0.0.1"], token="given")
    assert received.brought[-1] == "Bearer given"


def test_an_address_in_other_letters_is_no_way_around(received: Received) -> None:
    rewrite(received.place, base=f"HTTP://{received.host}")
    with pytest.raises(BadArgument, match="add allow_hosts="):
        open_index(received.place)
    open_index(received.place, allow_hosts=["127.0.0.1"])
    assert received.brought == [None]
    rewrite(received.place, base=f"http://127.0.0.1@{received.host.replace('127.0.0.1', '127.0.0.2')}")
    with pytest.raises(BadArgument, match=r"lies over an index at 127\.0\.0\.2"):
        open_index(received.place, allow_hosts=["127.0.0.1"])


def test_no_way_of_opening_calls_an_address_without_being_named(received: Received) -> None:
    """As one of several, or where its own witnesses are damaged."""
    with pytest.raises(BadArgument, match="allow_hosts="):
        open_indexes([received.place.with_suffix(""), received.place])
    (received.place / "witnesses.jsonl").unlink()
    with pytest.raises(BadArgument, match="allow_hosts="):
        open_index(received.place)
    assert received.brought == []
    both = open_indexes([received.place.with_suffix(""), received.place], allow_hosts=["127.0.0.1"])
    assert isinstance(both, Hybrid)
    assert received.brought == [None]


COMMANDS: dict[str, tuple[Any, ...]] = {
    "search": ("search", "INDEX", "Who?"),
    "search --queries": ("search", "INDEX", "--queries", "sample", "--out", "hits.jsonl"),
    "ask": ("ask", "Who?", "--index", "INDEX", "--lm", "offline"),
    "eval": ("eval", "qa", "--data", "sample", "--index", "INDEX", "--lm", "offline", "--run", "run", "--limit", 1),
    "silver": ("silver", "hotpotqa", "--data", "sample", "--index", "INDEX", "--out", "s.jsonl", "--measure", "strinc"),
    "compile": ("compile", "direct-retrieval", "--task", "qa", "--data", "sample", "--index", "INDEX",
                "--out", "p.json", "--run", "run", "--lm", "offline"),
    "serve": ("serve", "INDEX"),
    "trim": ("trim", "INDEX", "--questions", "sample", "--limit", 1, "--lm", "offline"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_calls_it_either(received: Received, blendfilter: Command, name: str) -> None:
    """Each takes --allow-host; that a name it does not fit stays unasked for shows that it gets there."""
    words = [received.place if word == "INDEX" else word for word in COMMANDS[name]]
    done = blendfilter(*words, "--allow-host", "index.example")
    assert done.code == 2
    assert f"add --allow-host {received.host}" in done.err
    assert len(done.err.splitlines()) == 1 or name in ("trim", "eval", "silver")
    assert received.brought == []


def test_an_overlay_over_itself_or_another_one_is_refused(place: Path) -> None:
    shutil.copytree(place, place.with_name("other.trimmed"))
    for base in (".", "../village.trimmed", str(place), "../other.trimmed"):
        rewrite(place, base=base)
        with pytest.raises(BadData, match=r"is a trimmed index that lies over another one, .*: move it away") as error:
            open_index(place)
        assert "\n" not in str(error.value)
