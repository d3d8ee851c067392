"""`open_index("INDEX.trimmed")`: settings, what is refused, and that a damaged overlay never takes the index down."""

from __future__ import annotations

import json
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from checkpoints import tiny_bert
from judged import AGAIN, RADIO, WHO_OFF, WHO_ON
from small_world import Command
from witnessed import BY, ids

from blendfilter import Hybrid, open_index
from blendfilter.errors import BadArgument, BadData, MissingFile
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.hybrid import open_indexes
from blendfilter.retrieval.indexes import build
from blendfilter.trimming.folder import TrimFolder
from blendfilter.trimming.overlay import Trimmed
from blendfilter.trimming.witnesses import WitnessWriter


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A trimmed index: one question is judged, at threshold 1."""
    BM25.build(RADIO, tmp_path / "village")
    return trimmed(tmp_path / "village", "words")


def trimmed(base: Path, similarity: str) -> Path:
    folder = TrimFolder.create(base, threshold=1, similarity=similarity)
    with WitnessWriter(folder.witnesses) as writer:
        writer.verdict(WHO_ON, "on", True, BY)
        writer.verdict(WHO_ON, "off", False, BY)
        writer.close(WHO_ON, ["on", "off"])
    return folder.place


def test_a_trimmed_folder_opens_as_an_index(place: Path) -> None:
    index, bare = open_index(place), open_index(place.with_suffix(""))
    assert isinstance(index, Trimmed)
    assert (index.threshold, index.similar.name, index.guard) == (1, "words", True)
    assert {"on", "off"} <= set(ids(bare(AGAIN, k=3)))
    assert ids(index(AGAIN, k=3)) == [each for each in ids(bare(AGAIN, k=3)) if each != "off"]
    assert index.fingerprint != bare.fingerprint


def test_settings_may_be_others(place: Path) -> None:
    bare = open_index(place.with_suffix(""))
    assert open_index(place, threshold=2).fingerprint == bare.fingerprint
    loose = open_index(place, min_similarity=0.5, guard=False)
    assert "off" not in ids(loose(WHO_OFF, k=3))
    assert loose.fingerprint != open_index(place).fingerprint
    for wrong in ({"threshold": 0}, {"min_similarity": 2.0}):
        with pytest.raises(BadArgument):
            open_index(place, **wrong)


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
    "manifest": (lambda place: (place / "manifest.json").write_text("{"), "manifest.json"),
    "no manifest": (lambda place: (place / "manifest.json").unlink(), "manifest.json"),
    "settings": (lambda place: (place / "manifest.json").write_text(
        (place / "manifest.json").read_text().replace('"threshold": 1', '"threshold": "one"')), "threshold"),
    "deep": (lambda place: (place / "manifest.json").write_text("[" * 100_000), "manifest.json"),
    "kind": (lambda place: (place / "manifest.json").write_text(
        (place / "manifest.json").read_text().replace('"trimmed"', '"trimmeb"')), "of kind 'trimmeb'"),
    "measure": (lambda place: (place / "manifest.json").write_text(
        (place / "manifest.json").read_text().replace('"words"', '"feelings"')), "the similarity 'feelings'"),
}  # fmt: skip


def test_one_that_may_not_be_read_leaves_the_index(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_bytes

    def refused(path: Path) -> bytes:
        if path.parent == place:
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.warns(
        UserWarning, match=r"nothing is trimmed, and .*village is searched as it is: .*Permission denied"
    ):
        index = open_index(place)
    assert not isinstance(index, Trimmed)


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_overlay_leaves_the_index(place: Path, how: str) -> None:
    damage, said = DAMAGE[how]
    damage(place)
    bare = open_index(place.with_suffix(""))
    with pytest.warns(UserWarning, match=f"nothing is trimmed, and .*village is searched as it is: .*{said}") as told:
        index = open_index(place)
    assert len(told) == 1
    assert "\n" not in str(told[0].message)
    assert index.fingerprint == bare.fingerprint
    assert index.search([WHO_ON], 3) == bare.search([WHO_ON], 3)


def test_a_torn_last_line_is_no_damage(place: Path) -> None:
    before = open_index(place).fingerprint
    with open(place / "witnesses.jsonl", "ab") as file:
        file.write(b'{"kind":"verd')
    assert open_index(place).fingerprint == before


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


def test_an_overlay_over_an_index_in_memory_is_not_opened_by_its_folder(tmp_path: Path) -> None:
    TrimFolder.create(BM25.build(RADIO), tmp_path / "memory.trimmed", threshold=1)
    with pytest.raises(BadData, match=re.escape("for an index in memory")):
        open_index(tmp_path / "memory.trimmed")


def test_search_says_what_was_dropped(place: Path, blendfilter: Command) -> None:
    bare = blendfilter("search", place.with_suffix(""), AGAIN, "-k", 3)
    done = blendfilter("search", place, AGAIN, "-k", 3)
    assert done.code == bare.code == 0
    ranked = [line.split("\t")[2] for line in done.out.splitlines()]
    assert ranked == [line.split("\t")[2] for line in bare.out.splitlines() if "\toff\t" not in line]
    assert bare.err == ""
    assert done.err.splitlines() == [
        "blendfilter: dropped off (rank 2): Morning in Tolm | Mary turned off the radio in the kitchen.",
        f"blendfilter:   the judged question {WHO_ON!r} (1.00 near) accepted on",
        f"blendfilter:   1 witness: {WHO_ON!r}",
    ]
    other = blendfilter("search", place, WHO_OFF, "-k", 3)
    assert [line.split("\t")[2] for line in other.out.splitlines()] == ["off", "on", "sold"]
    assert other.err.splitlines()[0] == "blendfilter: both stay: off and on"
    assert "not near enough" in other.err


def test_a_damaged_overlay_is_one_line_of_the_command(place: Path, blendfilter: Command) -> None:
    raw = json.loads((place / "manifest.json").read_text())
    (place / "manifest.json").write_text(json.dumps({**raw, "settings": {}}))
    done = blendfilter("search", place, AGAIN, "-k", 3)
    assert done.code == 0
    assert len(done.err.splitlines()) == 1
    assert "nothing is trimmed" in done.err


# --- an address out of a file ---------------------------------------------------------------------------------------


class Listener(BaseHTTPRequestHandler):
    """Says that it serves the index `fingerprint`, and remembers what every request brought with it."""

    fingerprint = ""
    brought: list[str | None]

    def do_GET(self) -> None:
        type(self).brought.append(self.headers.get("Authorization"))
        body = json.dumps({"server": "blendfilter", "version": "0", "fingerprint": self.fingerprint}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Received:
    """A trimmed index as somebody sends it: its manifest names an address, where `brought` is what reached it."""

    def __init__(self, place: Path, listener: type[Listener], port: int) -> None:
        self.place, self.brought, self.host = place, listener.brought, f"127.0.0.1:{port}"
        self.name(f"http://{self.host}")

    def name(self, address: str) -> None:
        raw = json.loads((self.place / "manifest.json").read_text())
        raw["settings"]["base"] = address
        (self.place / "manifest.json").write_text(json.dumps(raw))


@pytest.fixture
def received(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    base = place.with_suffix("")
    known = {"fingerprint": open_index(base).fingerprint, "brought": list[str | None]()}
    listener = type("Mine", (Listener,), known)
    monkeypatch.setenv("BLENDFILTER_INDEX_TOKEN", "s3cret")
    with HTTPServer(("127.0.0.1", 0), listener) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield Received(place, listener, server.server_port)
        server.shutdown()


def test_an_address_out_of_a_file_is_not_called(received: Received) -> None:
    said = re.escape(f"village.trimmed lies over an index at {received.host}")
    for allowed in ([], ["127.0.0.2"], ["127.0.0.1:1"], "index.example", ["127.0.0.1.example"]):
        with pytest.raises(BadArgument, match=rf"{said}, .* add --allow-host {received.host} \(in Python") as told:
            open_index(received.place, allow_hosts=allowed)
        assert "\n" not in str(told.value)
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
    received.name(f"HTTP://{received.host}")
    with pytest.raises(BadArgument, match="add --allow-host"):
        open_index(received.place)
    open_index(received.place, allow_hosts=["127.0.0.1"])
    assert received.brought == [None]
    received.name(f"http://127.0.0.1@{received.host.replace('127.0.0.1', '127.0.0.2')}")
    with pytest.raises(BadArgument, match=r"lies over an index at 127\.0\.0\.2"):
        open_index(received.place, allow_hosts=["127.0.0.1"])


def test_no_way_of_opening_calls_an_address_that_nobody_named(received: Received, tmp_path: Path) -> None:
    """As one of several, under another overlay, or where its own witnesses are damaged."""
    with pytest.raises(BadArgument, match="--allow-host"):
        open_indexes([received.place.with_suffix(""), received.place])
    outer = tmp_path / "outer.trimmed"
    outer.mkdir()
    for file in received.place.iterdir():
        (outer / file.name).write_bytes(file.read_bytes())
    raw = json.loads((outer / "manifest.json").read_text())
    raw["settings"]["base"] = "../village.trimmed"
    (outer / "manifest.json").write_text(json.dumps(raw))
    with pytest.raises(BadArgument, match=r"village\.trimmed lies over an index at .*--allow-host"):
        open_index(outer)
    (received.place / "witnesses.jsonl").unlink()
    with pytest.raises(BadArgument, match="--allow-host"):
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


# --- overlays that come to no end -----------------------------------------------------------------------------------


def over(place: Path, base: str) -> Path:
    """A trimmed index at `place` whose manifest names `base`."""
    if not place.exists():
        place.mkdir()
        for file in place.with_name("village.trimmed").iterdir():
            (place / file.name).write_bytes(file.read_bytes())
    raw = json.loads((place / "manifest.json").read_text())
    raw["settings"]["base"] = base
    (place / "manifest.json").write_text(json.dumps(raw))
    return place


def test_an_overlay_over_itself_is_refused(place: Path) -> None:
    for base in (".", "../village.trimmed", str(place), "../link"):
        if base == "../link" and not place.with_name("link").exists():
            place.with_name("link").symlink_to("village.trimmed")
        with pytest.raises(BadData, match="is a trimmed index that lies over itself: move it away, and trim") as told:
            open_index(over(place, base))
        assert "\n" not in str(told.value)


def test_two_overlays_over_each_other_are_refused(place: Path) -> None:
    other = over(place.with_name("other.trimmed"), "../village.trimmed")
    over(place, "../other.trimmed")
    for each in (place, other):
        with pytest.raises(BadData, match="lies over itself"):
            open_index(each)
    (other / "manifest.json").write_text("{")
    place.with_suffix("").rename(place.with_name("away"))
    over(place, "../other.trimmed")
    with pytest.raises((BadData, MissingFile)):
        open_index(place)


def test_overlays_that_go_on_for_ever_are_refused(place: Path) -> None:
    for depth in range(12):
        over(place.with_name(f"o{depth}.trimmed"), f"../o{depth + 1}.trimmed" if depth < 11 else "../village")
    with pytest.raises(BadData, match=r"o0\.trimmed is a trimmed index that lies over more than 8 others"):
        open_index(place.with_name("o0.trimmed"))
    assert open_index(place.with_name("o11.trimmed"))


def test_a_manifest_of_two_fingerprints_leaves_the_index(place: Path) -> None:
    raw = json.loads((place / "manifest.json").read_text())
    (place / "manifest.json").write_text(json.dumps({**raw, "fingerprint": "0" * 16}))
    with pytest.warns(UserWarning, match="nothing is trimmed, .*two fingerprints, 0000000000000000 and"):
        assert not isinstance(open_index(place), Trimmed)
