"""An index folder is whole or not there: what reading one refuses, and how one is put in its place."""

from __future__ import annotations

import contextlib
import errno
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blendfilter.errors import BadArgument, BadData, MissingFile
from blendfilter.retrieval.manifest import (
    CorpusInfo,
    Manifest,
    building,
    opening,
    read_manifest,
    sweep,
    versions_of,
    write_manifest,
)

PLAIN = Manifest(
    kind="bm25", fingerprint="0123456789abcdef", passages=2, corpus=CorpusInfo(name="c.jsonl", sha256="ab"), settings={}
)


def fill(folder: Path, text: str = "abc") -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "data.bin").write_text(text)
    write_manifest(folder, PLAIN)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    with building(tmp_path / "index") as folder:
        fill(folder)
    return tmp_path / "index"


def test_round_trip_with_its_files(index: Path) -> None:
    manifest = read_manifest(index)
    assert manifest == PLAIN.model_copy(update={"files": {"sub/data.bin": 3}})
    assert versions_of("numpy")["numpy"].startswith("2")


def edit(index: Path, **changes: Any) -> None:
    raw = json.loads((index / "manifest.json").read_text())
    (index / "manifest.json").write_text(json.dumps(raw | changes))


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"no index at .*gone: build one with `blendfilter index CORPUS --out DIR`"):
        read_manifest(tmp_path / "gone")


def test_a_folder_that_is_no_index(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"is not an index \(it has no manifest.json\): build one with"):
        read_manifest(tmp_path)
    (tmp_path / "corpus.jsonl").write_text("{}")
    with pytest.raises(BadData, match="it is a file, and an index is a folder"):
        read_manifest(tmp_path / "corpus.jsonl")


def test_a_newer_format(index: Path) -> None:
    edit(index, format=2, kind=["something", "new"])
    with pytest.raises(BadData, match="has format 2, and this version reads up to 1: upgrade blendfilter"):
        read_manifest(index)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fingerprint": "xyz"}, "fingerprint: String should match pattern"),
        ({"passages": 0}, "passages: Input should be greater than"),
        ({"kind": None}, "kind: Input should be a valid string"),
        ({"corpus": {"name": "c"}}, "corpus.sha256: Field required"),
    ],
)
def test_a_manifest_that_is_not_one(index: Path, changes: dict[str, Any], message: str) -> None:
    edit(index, **changes)
    with pytest.raises(BadData, match=message):
        read_manifest(index)


@pytest.mark.parametrize("content", ["{", "[]", "3", "\udcff"])
def test_a_manifest_that_does_not_parse(index: Path, content: str) -> None:
    (index / "manifest.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadData, match=r"manifest\.json is not"):
        read_manifest(index)


def test_files_that_do_not_match(index: Path) -> None:
    (index / "sub" / "data.bin").write_text("ab")
    with pytest.raises(BadData, match=re.escape("sub/data.bin has 2 bytes where 3 were written; build it again")):
        read_manifest(index)
    (index / "sub" / "data.bin").unlink()
    with pytest.raises(BadData, match=r"sub/data.bin is missing; build it again"):
        read_manifest(index)


def test_an_index_that_is_there_is_refused_before_any_work(index: Path) -> None:
    with pytest.raises(BadArgument, match=r"there is an index at .* already: name another folder"), building(index):
        pytest.fail("the block must not run")
    assert read_manifest(index)


def test_overwriting(index: Path) -> None:
    with building(index, overwrite=True) as folder:
        fill(folder, "other")
        assert read_manifest(index).files == {"sub/data.bin": 3}, "the old one stands until the new one is whole"
    assert read_manifest(index).files == {"sub/data.bin": 5}
    assert [path.name for path in index.parent.iterdir()] == ["index"]


def test_a_folder_of_something_else_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("x")
    for overwrite in (False, True):
        with pytest.raises(BadArgument, match="is there already and is not an index"):
            building(tmp_path / "thesis", overwrite=overwrite).__enter__()
    assert (tmp_path / "thesis" / "chapter.tex").exists()


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    with building(tmp_path / "index") as folder:
        fill(folder)
    assert read_manifest(tmp_path / "index")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_fails_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def broken() -> None:
        with building(tmp_path / "deep" / "index") as folder:
            fill(folder)
            raise error

    with pytest.raises(error):
        broken()
    assert list((tmp_path / "deep").iterdir()) == []


def test_a_full_disk_is_told_with_the_index_that_did_not_fit(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="No space left; nothing of it is left") as told,
        building(tmp_path / "i"),
    ):
        raise OSError(errno.ENOSPC, "No space left")
    assert (told.value.errno, told.value.filename) == (errno.ENOSPC, str(tmp_path / "i"))
    with pytest.raises(PermissionError) as other, building(tmp_path / "i"):
        raise PermissionError(errno.EACCES, "Permission denied", "elsewhere")
    assert other.value.filename == "elsewhere"
    assert list(tmp_path.iterdir()) == []


def test_what_a_reader_cannot_make_sense_of_is_damage() -> None:
    with (
        pytest.raises(BadData, match=r"the index at there is damaged \(KeyError: 'k1'\); build it again"),
        opening("there"),
    ):
        _ = {}["k1"]  # type: ignore[var-annotated]
    with pytest.raises(BadArgument, match="as it is"), opening("there"):
        raise BadArgument("as it is")


def test_the_slower_of_two_builders(tmp_path: Path) -> None:
    """With `share` the first whole index is kept; without it the slower builder is told."""
    with building(tmp_path / "a", share=True) as slow:
        fill(slow, "slow")
        with building(tmp_path / "a", share=True) as fast:
            fill(fast, "fast!")
    assert read_manifest(tmp_path / "a").files == {"sub/data.bin": 5}

    def race() -> None:
        with building(tmp_path / "b") as slow:
            fill(slow)
            with building(tmp_path / "b") as fast:
                fill(fast)

    with pytest.raises(BadArgument, match="another builder put an index at"):
        race()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


# builders that are killed, and builders that are not

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


def test_what_a_killed_builder_left_goes_with_the_next_build(tmp_path: Path) -> None:
    target = tmp_path / "index"
    with builder(target) as (process, left):
        assert (left / "half.bin").is_file()
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert left.is_dir(), "nobody could clean up"
    with building(target) as folder:
        assert [path.name for path in tmp_path.iterdir()] == [folder.name]
        fill(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_what_a_living_builder_makes_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "index"
    with builder(target) as (process, made):
        sweep(target)
        assert (made / "half.bin").is_file()
        with building(target) as folder:
            assert made.is_dir()
            fill(folder)
        assert made.is_dir()
        process.send_signal(signal.SIGINT)  # it ends by an error, and cleans up behind itself
        process.wait()
        assert not made.exists()
    assert read_manifest(target)


def test_builders_of_one_process_leave_each_other_alone_too(tmp_path: Path) -> None:
    with building(tmp_path / "index", share=True) as first:
        fill(first)
        sweep(tmp_path / "index")
        assert (first / "manifest.json").is_file()
    assert read_manifest(tmp_path / "index")


def test_an_old_index_that_was_not_removed_goes_too(tmp_path: Path) -> None:
    """Overwriting puts the old index aside first; whoever is killed then leaves it."""
    left = tmp_path / ".index.old-0123456789ab"
    left.mkdir()
    (left / "data.bin").write_bytes(b"x")
    (tmp_path / "index").mkdir()
    sweep(tmp_path / "index")
    assert not left.exists()


def test_an_old_index_whose_successor_never_came_comes_back(tmp_path: Path) -> None:
    """Killed between the two renames: the old index is whole, and there is no other."""
    left = tmp_path / ".index.old-0123456789ab"
    left.mkdir()
    (left / "data.bin").write_bytes(b"x")
    sweep(tmp_path / "index")
    assert (tmp_path / "index" / "data.bin").read_bytes() == b"x"
    assert not left.exists()


def test_only_what_builders_of_this_index_left_is_swept(tmp_path: Path) -> None:
    others = [".indexes.building-1", ".index.backup", "index.building-1", ".index2.old-1", "index"]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / ".index.building-1").mkdir()
    sweep(tmp_path / "index")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


@pytest.mark.parametrize("name", ["wiki[17]", "a*", "what?", "[!x]"])
def test_a_name_is_no_pattern(tmp_path: Path, name: str) -> None:
    bystanders = [".wiki1.building-1", ".wiki7.building-1", ".ab.building-1", ".whats.old-1", ".y.building-1"]
    for each in (*bystanders, f".{name}.building-1"):
        (tmp_path / each).mkdir()
    with building(tmp_path / name) as folder:
        fill(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*bystanders, name])
    assert read_manifest(tmp_path / name)
