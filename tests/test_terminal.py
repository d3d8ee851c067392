"""What a terminal, a log or nothing at all takes of what is printed: output never ends work that is done."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import blendfilter as bf
from blendfilter import cli
from blendfilter.terminal import console, guarded, note, shown_on

TEXT = "Ångström – \U0001f600 … ±"
QUESTIONS = [{"id": "a", "question": "Who built Oddle – Mill?", "answer": "Jon Brask"}]


def stream(encoding: str) -> io.TextIOWrapper:
    """A terminal or a log of that encoding, as strict as Python's own streams."""
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding)


def bytes_of(written: io.TextIOWrapper) -> bytes:
    written.flush()
    return written.buffer.getvalue()  # type: ignore[attr-defined,no-any-return]


class Full(io.StringIO):
    """A log on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("utf-8", TEXT),
        ("latin-1", r"Ångström \u2013 \ud83d\ude00 \u2026 ±"),
        ("ascii", r"\u00c5ngstr\u00f6m \u2013 \ud83d\ude00 \u2026 \u00b1"),
        (None, TEXT),
    ],
)
def test_what_an_encoding_lacks_is_an_escape_and_json_stays_the_same_json(encoding: str | None, shown: str) -> None:
    class Named:
        pass

    Named.encoding = encoding  # type: ignore[attr-defined]
    assert shown_on(Named(), TEXT) == shown
    assert json.loads(shown_on(Named(), json.dumps(TEXT, ensure_ascii=False))) == TEXT


def test_a_table_and_a_line_come_through_a_stream_that_is_not_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.table import Table

    out = stream("latin-1")
    table = Table("name", "±")
    table.add_row(TEXT, "1")
    monkeypatch.setattr(sys, "stdout", out)
    with guarded():
        print(TEXT)
        console(sys.stdout, width=80).print(table)
    words = bytes_of(out).decode("latin-1")
    assert words.count(r"Ångström \u2013 \ud83d\ude00 \u2026 ±") == 2


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
@pytest.mark.parametrize("words", ["eval --help", "ask Who? --corpus sample --lm offline --show-trace"])
def test_a_command_ends_well_whatever_its_terminals_encoding(
    encoding: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = stream(encoding)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", stream(encoding))
    monkeypatch.setattr(sys, "argv", ["blendfilter", *words.split()])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert len(bytes_of(out)) > 50


def test_a_notice_that_nobody_can_take_stops_nothing_and_is_no_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for nowhere in (None, Full()):
        monkeypatch.setattr(sys, "stderr", nowhere)
        note("1 of 2")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("stderr", [stream("ascii"), stream("latin-1"), None, Full()])
def test_a_run_of_a_script_is_done_whatever_its_stderr_is(
    stderr: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a bar or lines of progress, and what it says of an earlier session."""
    index = bf.BM25.build(["Oddle Mill – | Oddle Mill was built by Jon Brask in 1790."])
    monkeypatch.setattr(sys, "stderr", stderr)
    for _ in range(2):
        run = bf.evaluate(bf.Direct(index, k=1), bf.load(QUESTIONS), lm="offline", run=tmp_path / "run")
    assert run.metrics["n"] == 1


def test_closed_streams_take_no_place_of_a_file(tmp_path: Path) -> None:
    """Python gives a new file the lowest free number: what a library prints on 1 or 2 would go into it."""
    script = """
import os, sys
from blendfilter.terminal import guarded
with guarded():
    print("a line")
    print("another", file=sys.stderr)
    with open(sys.argv[1], "w") as file:
        os.write(2, b"of a library") and os.write(1, b"of another")
        file.write(f"{file.fileno() > 2}")
"""
    command = 'exec "$0" -c "$1" "$2" <&- >&- 2>&-'
    ended = subprocess.run(["bash", "-c", command, sys.executable, script, tmp_path / "file"], check=False)
    assert (ended.returncode, (tmp_path / "file").read_text()) == (0, "True")
