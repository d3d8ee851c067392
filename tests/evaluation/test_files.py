"""Files that appear whole or not at all, and rows that survive a torn end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from stored import ROW, SETTINGS

from blendfilter import files
from blendfilter.errors import BadData, MissingFile
from blendfilter.evaluation.run_folder import appended, read_json, read_rows, write_json
from blendfilter.files import json_line

ROWS = [
    ROW,
    ROW
    | {"id": "two", "calls": [["ids", "a" * 32]], "error": {"kind": "x", "stage": "", "message": ""}, "answer": None}
    | {"loss": "error"},
]


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    path.write_bytes(b"".join(map(json_line, ROWS)))
    assert read_rows(path) == ROWS
    assert path.read_bytes().count(b"\n") == 2, "a line break inside a value is no line"
    assert "Ormskérry" in path.read_text(encoding="utf-8"), "text stays readable"
    assert list(tmp_path.iterdir()) == [path]


def test_json_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    write_json(path, {"settings": SETTINGS})
    assert path.read_bytes().startswith(b'{\n  "settings": {\n')

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_json(path, {"settings": SETTINGS | {"seed": 1}})
    assert read_json(path) == {"settings": SETTINGS}, "the old one stands"
    assert list(tmp_path.iterdir()) == [path], "and no temporary file is left"


def test_a_torn_last_row_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    whole = b"".join(map(json_line, ROWS))
    for cut in range(len(json_line(ROWS[0])), len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert read_rows(path) == ROWS[:1]
    path.write_bytes(whole[:-1])
    assert read_rows(path) == ROWS, "it lacks only its line feed"
    assert read_rows(tmp_path / "absent.jsonl") == []


@pytest.mark.parametrize("line", [b"oops\n", b"[1]\n", b'{"id": "one"}\n', b"\n", b"\xff\n"])
def test_a_damaged_row_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "predictions.jsonl"
    path.write_bytes(json_line(ROWS[0]) + line + json_line(ROWS[1]))
    with pytest.raises(BadData, match=r"predictions\.jsonl, line 2: not a row .* made again"):
        read_rows(path)


def test_a_missing_or_damaged_object(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with pytest.raises(MissingFile, match=r"no run there: .*run\.json is missing"):
        read_json(path)
    path.write_text("{")
    with pytest.raises(BadData, match=r"run\.json: not JSON"):
        read_json(path)
    path.write_text('{"settings": 1}')
    with pytest.raises(BadData, match=r"run\.json: settings: Input should be .*; restore it"):
        read_json(path)
    path.write_text("[" * 100_000)
    with pytest.raises(BadData, match=r"run\.json: not JSON"):
        read_json(path)
    path.write_text("[]")
    with pytest.raises(BadData, match="not a run's"):
        read_json(path)


def test_an_appender_keeps_what_is_to_be_kept_and_adds(tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    path.write_bytes(json_line(ROWS[1]) + b'{"id": "torn')
    file = appended(path, [json_line(ROWS[0])])
    assert read_rows(path) == ROWS[:1]
    file.append(json_line(ROWS[1]))
    assert read_rows(path) == ROWS, "on file as soon as it is added"
    file.close()


def test_half_a_row_does_not_stand_in_front_of_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk takes a part of a row; another question's row comes right after it."""
    file = appended(tmp_path / "rows.jsonl", [])

    def half(fd: int, data: bytes) -> None:
        os.write(fd, data[:10])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_all", half)
        with pytest.raises(OSError, match="No space"):
            file.append(json_line(ROW))
    file.append(json_line(ROWS[1]))
    file.close()
    assert [row["id"] for row in read_rows(tmp_path / "rows.jsonl")] == ["two"]
