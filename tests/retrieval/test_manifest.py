"""An index folder is whole or not there: what reading one refuses, and how one is put in its place."""

from __future__ import annotations

import contextlib
import errno
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blendfilter.errors import BadArgument, BadData, MissingFile
from blendfilter.retrieval.manifest import (
    HASHED_WHOLE,
    CorpusInfo,
    Manifest,
    building,
    check_content,
    file_hash,
    opening,
    read_manifest,
    sweep,
    write_manifest,
)

PLAIN = Manifest(
    kind="bm25", fingerprint="0123456789abcdef", passages=2, corpus=CorpusInfo(name="c.jsonl", sha256="ab"), settings={}
)


def fill(folder: Path, text: str = "abc") -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "data.bin").write_text(text)
    write_manifest(folder, PLAIN)


def build(target: Path, text: str = "abc", **how: bool) -> None:
    with building(target, **how) as folder:
        fill(folder, text)


def size(index: Path) -> int:
    return read_manifest(index).files["sub/data.bin"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def edit(index: Path, **changes: Any) -> None:
    raw = json.loads((index / "manifest.json").read_text())
    (index / "manifest.json").write_text(json.dumps(raw | changes))


@pytest.fixture
def index(tmp_path: Path) -> Path:
    build(tmp_path / "index")
    return tmp_path / "index"


# --- reading --------------------------------------------------------------------------------------------------------


def test_round_trip_with_its_files(index: Path) -> None:
    sha256 = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2's, of "abc"
    listed = {"files": {"sub/data.bin": 3}, "hashes": {"sub/data.bin": sha256}}
    assert read_manifest(index) == PLAIN.model_copy(update=listed)


def test_what_is_no_index(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"no index at .*gone: build one with `blendfilter index CORPUS --out DIR`"):
        read_manifest(tmp_path / "gone")
    with pytest.raises(BadData, match=r"is not an index \(it has no manifest.json\): build one with"):
        read_manifest(tmp_path)
    (tmp_path / "corpus.jsonl").write_text("{}")
    with pytest.raises(BadData, match="it is a file, and an index is a folder"):
        read_manifest(tmp_path / "corpus.jsonl")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2, "kind": ["new"]}, "has format 2, and this version reads up to 1: upgrade blendfilter"),
        ({"corpus": {"name": "c"}}, "corpus.sha256: Field required"),
        ({"hashes": {"other.bin": "sha256:" + "0" * 64}}, "files and hashes do not list the same files"),
    ],
)
def test_a_manifest_that_is_not_one(index: Path, changes: dict[str, Any], message: str) -> None:
    edit(index, **changes)
    with pytest.raises(BadData, match=message):
        read_manifest(index)


def test_files_that_do_not_match(index: Path) -> None:
    (index / "sub" / "data.bin").write_text("ab")
    with pytest.raises(BadData, match=re.escape("sub/data.bin has 2 bytes where 3 were written; build it again")):
        read_manifest(index)
    (index / "sub" / "data.bin").unlink()
    with pytest.raises(BadData, match=r"sub/data.bin is missing; build it again"):
        read_manifest(index)


@pytest.mark.parametrize(
    "name", ["../secret.txt", "/etc/hostname", "sub/../sub/data.bin", "sub//data.bin", ".", "a\\b"]
)
def test_a_manifest_names_files_of_its_folder_alone(index: Path, name: str) -> None:
    (index.parent / "secret.txt").write_text("abc")
    edit(index, files={name: 3}, hashes={})
    with pytest.raises(BadData, match=r"is not an index's manifest: files\..* is not the name of a file in the folder"):
        read_manifest(index)


def test_a_link_that_leaves_the_folder_is_refused(index: Path) -> None:
    (index / "sub" / "data.bin").rename(index.parent / "data.bin")
    (index / "sub" / "data.bin").symlink_to(index.parent / "data.bin")
    with pytest.raises(BadData, match=r"is refused: sub/data\.bin is a link out of it; put the file itself there"):
        read_manifest(index)
    (index.parent / "linked").symlink_to("index")
    (index / "sub" / "data.bin").unlink()
    (index.parent / "data.bin").rename(index / "sub" / "data.bin")
    assert read_manifest(index.parent / "linked"), "the folder itself may be one"


def test_another_content_of_the_same_size_is_noticed(index: Path) -> None:
    (index / "sub" / "data.bin").write_text("abd")
    with pytest.raises(BadData, match=r"damaged: sub/data\.bin is not as it was written; build it again"):
        check_content(index, read_manifest(index))
    edit(index, hashes={})
    check_content(index, read_manifest(index))  # manifests of before there were hashes are checked by sizes alone


@pytest.mark.parametrize(("at", "noticed"), [(0, True), (-1, True), (20_000, False)])
def test_a_large_file_is_hashed_at_sixteen_places(tmp_path: Path, at: int, noticed: bool) -> None:
    """Its two ends are among them; between them nothing is read."""
    data = bytearray(HASHED_WHOLE + 2**20)
    (tmp_path / "large").write_bytes(data)
    before = file_hash(tmp_path / "large")
    assert before.startswith("sha256-sampled:")
    data[at] = 1
    (tmp_path / "large").write_bytes(data)
    assert (file_hash(tmp_path / "large") != before) is noticed


def test_what_a_reader_cannot_make_sense_of_is_damage() -> None:
    with (
        pytest.raises(BadData, match=r"the index at there is damaged \(KeyError: 'k1'\); build it again"),
        opening("there"),
    ):
        _ = {}["k1"]  # type: ignore[var-annotated]
    with pytest.raises(BadArgument, match="as it is"), opening("there"):
        raise BadArgument("as it is")


# --- building -------------------------------------------------------------------------------------------------------


def test_an_index_that_is_there_is_refused_before_any_work(index: Path) -> None:
    with pytest.raises(BadArgument, match=r"there is an index at .* already: name another folder"), building(index):
        pytest.fail("the block must not run")
    assert size(index) == 3


def test_overwriting_also_where_the_old_index_is_damaged(index: Path) -> None:
    with building(index, overwrite=True) as folder:
        fill(folder, "other")
        assert size(index) == 3, "the old one stands until the new one is whole"
    assert size(index) == 5
    assert names(index.parent) == ["index"]
    (index / "sub" / "data.bin").unlink()
    build(index, overwrite=True)
    assert size(index) == 3


def put_linked_file(index: Path) -> None:
    (index / "sub" / "data.bin").rename(index.parent / "data.bin")
    (index / "sub" / "data.bin").symlink_to(index.parent / "data.bin")


@pytest.mark.parametrize(
    ("put", "name"),
    [
        (lambda index: (index / "notes.txt").write_text("mine"), "notes.txt"),
        (lambda index: (index / "drafts").mkdir(), "drafts"),
        (put_linked_file, "sub/data.bin"),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_an_index_that_holds_something_else_is_refused_by_its_name(
    index: Path, put: Callable[[Path], object], name: str, overwrite: bool
) -> None:
    put(index)
    before = sorted(index.parent.rglob("*"))
    with pytest.raises(BadArgument, match=rf"is not an index \({re.escape(name)} in it is not part of one\)"):
        building(index, overwrite=overwrite).__enter__()
    assert sorted(index.parent.rglob("*")) == before


def test_what_is_put_into_an_index_while_its_successor_is_built_stays(index: Path) -> None:
    """The new one is not thrown away either: it may have taken hours."""

    def interrupted() -> None:
        with building(index, overwrite=True) as folder:
            fill(folder, "other")
            (index / "notes.txt").write_text("mine")

    with pytest.raises(BadArgument, match=r"notes.txt in it .* and stays: the new one is at ") as refused:
        interrupted()
    assert (index / "notes.txt").read_text() == "mine"
    assert (index / "sub" / "data.bin").read_text() == "abc"
    kept = Path(str(refused.value).rpartition(" ")[2])
    assert size(kept) == 5
    assert sorted(index.parent.iterdir()) == sorted([index, kept])


def test_a_link_to_an_index_stays_one_and_leads_to_the_new_index(index: Path) -> None:
    (index.parent / "current").symlink_to("index")
    build(index.parent / "current", "other", overwrite=True)
    assert (index.parent / "current").is_symlink()
    assert size(index) == 5
    assert names(index.parent) == ["current", "index"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_fails_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def broken() -> None:
        with building(tmp_path / "deep" / "index") as folder:
            fill(folder)
            raise error

    with pytest.raises(error):
        broken()
    assert names(tmp_path / "deep") == []


def test_a_full_disk_is_an_error_that_names_the_index(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left; nothing of it is left") as full, building(tmp_path / "i"):
        raise OSError(errno.ENOSPC, "No space left")
    assert (full.value.errno, full.value.filename) == (errno.ENOSPC, str(tmp_path / "i"))
    with pytest.raises(PermissionError) as other, building(tmp_path / "i"):
        raise PermissionError(errno.EACCES, "Permission denied", "elsewhere")
    assert other.value.filename == "elsewhere"
    assert names(tmp_path) == []


def test_the_slower_of_two_builders(tmp_path: Path) -> None:

    def race() -> None:
        with building(tmp_path / "a") as slow:
            fill(slow)
            build(tmp_path / "a", "fast!")

    with pytest.raises(BadArgument, match="another builder put an index at"):
        race()
    assert names(tmp_path) == ["a"]
    assert size(tmp_path / "a") == 5


# --- builders that are killed, and builders that are not ------------------------------------------------------------

BUILDER = """
import sys, time
from blendfilter.retrieval.manifest import building
with building(sys.argv[1]) as folder:
    (folder / "half.bin").write_bytes(b"x" * 1000)
    print(folder.name, flush=True)
    time.sleep(60)
"""


@contextlib.contextmanager
def builder(target: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process in the midst of building `target`, and the folder it builds in."""
    process = subprocess.Popen([sys.executable, "-c", BUILDER, target], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, target.parent / process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def left_behind(target: Path, what: str) -> Path:
    """What a builder of `target` left when it was killed: an old index put aside, or one it had not finished."""
    left = target.with_name(f".{target.name}.{what}-0123456789ab")
    left.mkdir(parents=True)
    if what == "old":
        fill(left)
    else:
        (left / "half.bin").write_bytes(b"x")
    return left


def test_what_a_killed_builder_left_goes_with_the_next_build(tmp_path: Path) -> None:
    target = tmp_path / "index"
    with builder(target) as (process, left):
        assert (left / "half.bin").is_file()
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert left.is_dir()
    with building(target) as folder:
        assert names(tmp_path) == [folder.name]
        fill(folder)
    assert names(tmp_path) == ["index"]


def test_what_a_living_builder_makes_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "index"
    with builder(target) as (process, made):
        sweep(target)
        assert (made / "half.bin").is_file()
        with building(target) as folder:
            fill(folder)
            sweep(target)  # nor does a sweep take what this very process builds
        assert made.is_dir()
        process.send_signal(signal.SIGINT)  # it ends by an error, and cleans up behind itself
        process.wait()
        assert not made.exists()
    assert read_manifest(target)


def test_an_old_index_comes_back_where_its_successor_never_came_and_goes_elsewhere(tmp_path: Path) -> None:
    """Overwriting puts the old index aside first: a kill then leaves it, or a part of it."""
    for name in ("came", "partly"):
        (tmp_path / name).mkdir()
    gone = [left_behind(tmp_path / name, "old") for name in ("came", "partly", "never")]
    (gone[1] / "sub" / "data.bin").unlink()
    for name in ("came", "partly", "never"):
        sweep(tmp_path / name)
    assert size(tmp_path / "never") == 3, "killed between two renames: whole, and there is no other"
    assert names(tmp_path) == ["came", "never", "partly"]
