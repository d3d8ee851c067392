"""`open_index("INDEX.trimmed")`: settings, what is refused, and that a damaged overlay never takes the index down."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoints import tiny_bert
from judged import AGAIN, RADIO, WHO_OFF, WHO_ON
from small_world import Command
from witnessed import BY, ids

from blendfilter import open_index
from blendfilter.errors import BadArgument, BadData, MissingFile
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.indexes import build
from blendfilter.trimming.folder import TrimFolder
from blendfilter.trimming.overlay import Trimmed
from blendfilter.trimming.witnesses import Writer


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A trimmed index: one question is judged, at threshold 1."""
    BM25.build(RADIO, tmp_path / "village")
    return trimmed(tmp_path / "village", "words")


def trimmed(base: Path, similarity: str) -> Path:
    folder = TrimFolder.create(base, threshold=1, similarity=similarity)
    with Writer(folder.witnesses) as writer:
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
