"""Files as streams: packing and layout are seen from the bytes; an error names the place."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pwd
import resource
import tarfile
import threading
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter import files
from blendfilter.errors import BadData, MissingFile
from blendfilter.evaluation import run_folder as run_files
from blendfilter.files import json_rows, lines, path_of, read_whole, writing
from blendfilter.report import plots as canvas
from blendfilter.retrieval.corpus import read_corpus

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3),
)
OBJECTS = st.lists(st.dictionaries(st.text(max_size=4), JSON, max_size=3), max_size=6)


def write(path: Path, data: str | bytes) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def test_lines_know_their_numbers_and_skip_blank_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "\ufeffone\r\n\n  \ntwo\u2028still two")
    assert [(line.number, line.text) for line in lines(path)] == [(1, "one"), (4, "two\u2028still two")]
    assert next(lines(path)).where == f"{path}, line 1"


def test_json_lines_and_lists_give_the_same_rows_plain_or_packed(tmp_path: Path) -> None:
    values = [{"a": 1}, {"b": "ü\n"}, {"c": [[]]}]
    as_lines = "\n".join(json.dumps(value) for value in values).encode()
    as_list = ("\ufeff \n" + json.dumps(values, indent=2, ensure_ascii=False)).encode()
    for name, data in [("1", as_lines), ("2", as_list), ("3", gzip.compress(as_lines)), ("4", gzip.compress(as_list))]:
        assert [row.value for row in json_rows(write(tmp_path / name, data))] == values
    assert [row.position for row in json_rows(tmp_path / "2")] == [0, 1, 2]
    assert [row.where for row in json_rows(tmp_path / "2")][2].endswith("2, item 3")
    assert list(json_rows(write(tmp_path / "5", ""))) == list(json_rows(write(tmp_path / "6", " [ ] \n"))) == []


@given(OBJECTS, st.sampled_from([None, 1, 4]))
def test_a_list_is_read_as_json_reads_it(values: list[object], indent: int | None) -> None:
    data = json.dumps(values, indent=indent, ensure_ascii=False).encode("utf-8", "replace")
    assert list(files.list_values(io.BytesIO(data), "x")) == json.loads(data)


@given(OBJECTS.filter(bool), st.data())
def test_a_list_cut_anywhere_is_refused(values: list[object], data: st.DataObject) -> None:
    whole = json.dumps(values, ensure_ascii=True)
    cut = whole[: data.draw(st.integers(1, len(whole) - 1))].encode()
    with pytest.raises(BadData, match=r"cut off|does not parse"):
        list(files.list_values(io.BytesIO(cut), "x"))


@given(st.binary(max_size=60))
def test_any_bytes_are_values_or_one_clear_error(data: bytes) -> None:
    message = ""
    try:
        list(files.list_values(io.BytesIO(b"[" + data), "x"))
    except BadData as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ('{"a": 1}\n\n{"a": }\n', r"line 3: does not parse as JSON \(Expecting value at character 7\)"),
        ("question\tanswer\n", "line 1: does not parse as JSON .* one JSON object a line"),
        ('[{"a": 1}, {"a": x}]', "item 2: does not parse as JSON .*invalid char"),
        ('[{"a": 1}] []', "trailing garbage"),
        ('[{"a": 1}, {"a": "half', "ends in item 2, cut off"),
        (b'{"a": "\xff"}', "line 1: not UTF-8"),
        (b'["\xff"]', "item 1: does not parse as JSON .*UTF8"),
        ('{"a": "\\ud83d"}', "line 1: holds half a character"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "1" * 5000 + "}", "line 1: does not parse as JSON"),
        (gzip.compress(b'{"a": 1}\n' * 9999, mtime=0)[:-20], "damaged gzip"),
        (b"\x1f\x8b nothing of the kind", "damaged gzip|cannot be read"),
    ],
)
def test_an_error_names_its_place(tmp_path: Path, data: str | bytes, message: str) -> None:
    path = write(tmp_path / "bad.json", data)
    with pytest.raises(BadData, match=message) as caught:
        list(json_rows(path))
    assert "bad.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def packed(data: bytes, kind: str) -> bytes:
    stream = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("data.jsonl", data)
    else:
        with tarfile.open(fileobj=stream, mode="w:gz") as archive:
            archive.addfile(tarfile.TarInfo("data.jsonl"))
    return stream.getvalue()


ROW = b'{"a": 1}\n'


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.parquet", b"PAR1\x15\x04\x15", "a Parquet file.*pd.read_parquet.*to_json"),
        ("a.feather", b"ARROW1\0\0", "an Arrow file.*pd.read_feather"),
        ("a.arrow", b"\xff\xff\xff\xff\x10\0", "a data set of Arrow.*Dataset.from_file"),
        ("a.db", b"SQLite format 3\0", "an SQLite database.*sqlite3 -json"),
        ("a.xlsx", packed(ROW, "zip"), "an Excel file.*pd.read_excel"),
        ("a.zip", packed(ROW, "zip"), "a zip archive.*unzip 'a.zip'"),
        ("a.tar.gz", packed(ROW, "tar"), "a tar archive.*tar xf 'a.tar.gz'"),
        ("a.xz", lzma.compress(ROW), "packed by xz.*unxz -k 'a.xz'"),
        ("a.bz2", bz2.compress(ROW), "packed by bzip2.*bunzip2 -k"),
        ("a.zst", b"\x28\xb5\x2f\xfd\x04", "packed by Zstandard.*unzstd"),
        ("a.pdf", b"%PDF-1.7\n", "a PDF.*pdftotext"),
    ],
    ids=lambda value: "data" if isinstance(value, bytes) else None,  # an archive holds the second it was made in
)
def test_a_file_of_another_kind_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / name, data)
    for read in (json_rows, read_corpus):
        with pytest.raises(BadData, match=words) as caught:
            list(read(name))
        assert "\n" not in str(caught.value)


def test_a_text_that_begins_like_another_kind_is_a_text(tmp_path: Path) -> None:
    path = write(tmp_path / "data.tsv", "PAR1\tA mill.\nBZh9\tA quay.\n")
    assert [passage.id for passage in read_corpus(path)] == ["PAR1", "BZh9"]


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="nowhere"):
        list(json_rows(tmp_path / "nowhere.json"))
    with pytest.raises(BadData, match="is a folder"):
        list(json_rows(tmp_path))


def test_a_long_list_is_never_whole_in_memory(tmp_path: Path) -> None:
    """24 MB in one line; the first item costs little, and so do all of them."""
    row = json.dumps({"text": "x" * 6000})
    path = write(tmp_path / "long.json", "[" + ", ".join([row] * 4000) + "]")
    tracemalloc.start()
    try:
        assert len(list(islice(json_rows(path), 1))) == 1
        assert sum(1 for _ in json_rows(path)) == 4000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < path.stat().st_size / 3


# ---- a full disk


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process may grow beyond a few bytes: writes fail as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


LONG = "a row that is longer than what is left of the disk"


def plotted(path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra [plots]")
    canvas.draw([lambda axes: None], path, size=(2.0, 2.0))


WRITES: dict[str, Callable[[Path], object]] = {
    "run.json": lambda path: run_files.write_json(path, {"settings": LONG}),
    "plot.svg": plotted,
}


@pytest.mark.parametrize("name", WRITES)
def test_a_full_disk_names_the_file_that_did_not_fit(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with pytest.raises(OSError, match="File too large") as raised, full_disk():
        WRITES[name](path)
    assert str(path) in (raised.value.filename or str(raised.value))
    assert not list(tmp_path.glob(".*")), "nothing half written is left"


def a_tensor_in(path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"weights": torch.zeros(10_000)}, path)


def safetensors_in(path: Path) -> None:
    pytest.importorskip("torch")
    from safetensors.torch import save_file
    from torch import zeros

    save_file({"weights": zeros(10_000)}, path)


def an_array_in(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(10_000))


def faiss_in(path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexFlatL2(16)
    index.add(np.zeros((1_000, 16), dtype=np.float32))
    faiss.write_index(index, str(path))


@pytest.mark.parametrize("write", [a_tensor_in, safetensors_in, an_array_in, faiss_in])
def test_a_full_disk_is_called_that_whoever_writes(write: Callable[[Path], None], tmp_path: Path) -> None:
    """torch: "unexpected pos", NumPy: "requested and written", safetensors and FAISS: errors that are no OSError."""
    with (
        pytest.raises(OSError, match=r"(File too large|No space left on device); make room") as raised,
        full_disk(),
        writing(tmp_path / "weights", "make room"),
    ):
        write(tmp_path / "weights")
    assert raised.value.filename == str(tmp_path / "weights")


def test_an_error_of_ours_inside_is_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="said: File too large"), writing(tmp_path / "weights"):
        raise BadData("the server said: File too large")


# ---- the home folder


@pytest.mark.parametrize(("given", "path"), [("~/a", "/me/a"), (Path("~"), "/me"), ("b/~/a", "b/~/a")])
def test_a_tilde_is_the_home_folder(given: Any, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/me")
    assert path_of(given) == Path(path)


def test_where_nobody_has_a_home_a_tilde_names_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(MissingFile, match="no home folder for '~/a'"):
        path_of("~/a")


# ---- pipes


def piped(data: bytes) -> tuple[Path, threading.Thread]:
    """What a shell makes of `<(…)`: the reading end of a pipe by its number, and who writes into the other."""
    reading, writing_end = os.pipe()

    def fill() -> None:
        with os.fdopen(writing_end, "wb") as end:
            end.write(data)

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    return Path(f"/dev/fd/{reading}"), thread


def test_what_comes_through_a_pipe_is_read_as_often_as_a_file() -> None:
    """More than a pipe holds; packed, and in another layout than the second one."""
    rows = [{"text": "x" * 500, "n": at} for at in range(400)]
    one, filling = piped(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode(), 0))
    other, filling_other = piped(b'["a", "b"]')
    for _ in range(2):
        assert [row.value for row in json_rows(one)] == rows
        assert [row.value for row in json_rows(other)] == ["a", "b"]
    assert read_whole(other) == b'["a", "b"]'
    filling.join()
    filling_other.join()


def test_a_named_pipe_is_refused_before_it_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p")
    with pytest.raises(BadData, match=r"p' is a named pipe, and data is read more than once"):
        next(json_rows(tmp_path / "p"))


def test_standard_input_has_a_name() -> None:
    with pytest.raises(MissingFile, match="no file '-': standard input is /dev/stdin"):
        next(json_rows("-"))
