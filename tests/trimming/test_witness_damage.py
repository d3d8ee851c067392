"""A witnesses file that a kill, a full disk, another version or a hand has damaged: what is lost, and what is said."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blendfilter.errors import BadArgument, BadData, BlendFilterError, CannotWrite, MissingFile
from blendfilter.trimming.witnesses import JudgedBy, Witnesses, WitnessWriter, question_id

BY = JudgedBy("9f3a", "word", ("phi1",), "some-model", "")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """One closed question, one that was begun: eight lines."""
    path = tmp_path / "witnesses.jsonl"
    with WitnessWriter(path) as writer:
        for question in ("Who?", "When?"):
            for passage in ("a", "b"):
                writer.verdict(question, passage, passage == "a", BY)
            if question == "Who?":
                writer.close(question, ["a", "b"])
    return path


def test_a_torn_last_line_is_dropped_and_then_cut_off(path: Path) -> None:
    """At whichever byte: what a reader sees are the whole lines, and a writer goes on behind them."""
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        kept = whole[: end + 1].count(b"\n")  # a line that lacks only its line feed is whole
        state = Witnesses.read(path)
        assert state.separations() == (1 if kept >= 5 else 0)
        assert path.read_bytes() == whole[:end]  # a reader changes nothing
        if end % 23 == 0:
            with WitnessWriter(path) as writer:
                assert path.read_bytes() == b"".join(lines[:kept])
                writer.verdict("Where?", "c", None, BY)
            assert Witnesses.read(path).separations() == state.separations()


def test_an_empty_file_has_no_witnesses(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    assert Witnesses.read(tmp_path / "empty.jsonl").digest(1) == ""


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"no witnesses at .*gone\.jsonl: gather some"):
        Witnesses.read(tmp_path / "gone.jsonl")
    with pytest.raises(BadData, match=r"cannot be read: Is a directory; the bare index opens as before"):
        Witnesses.read(tmp_path)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "zeros": lambda line: b"\0" * (len(line) - 1) + b"\n",
    "cut short": lambda line: line[: len(line) // 2] + b"\n",
    "empty": lambda line: b"\n",
    "a list": lambda line: b"[1]\n",
    "no object's kind": lambda line: b'{"question":"a"}\n',
    "a strange kind": lambda line: b'{"kind":[]}\n',
    "not UTF-8": lambda line: b'{"kind":"\xff"}\n',
    "nested": lambda line: b"[" * 100_000 + b"\n",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("number", [1, 3, 5])
def test_a_damaged_line_is_named_with_the_way_on(path: Path, number: int, damage: Callable[[bytes], bytes]) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number - 1] = damage(lines[number - 1])
    path.write_bytes(b"".join(lines))
    told = rf"witnesses\.jsonl, line {number}: not a line of a witnesses file; cut the file before it and trim again"
    for use in (Witnesses.read, WitnessWriter):
        with pytest.raises(BadData, match=told) as refusal:
            use(path)
    assert path.read_bytes() == b"".join(lines)  # a writer that refuses leaves it as it was
    path.write_bytes(b"".join(lines[: number - 1]))
    WitnessWriter(path).close_file()  # and locks nobody out, though its traceback is still held
    assert refusal.value.exit_code == 2


ID = "a" * 12
WRONG = {
    "a verdict for a question that nobody took up": {
        "kind": "verdict",
        "question": ID,
        "passage": "a",
        "verdict": True,
    },
    "a question closed that nobody took up": {"kind": "closed", "question": ID, "passages": [], "at": "now"},
    "an id that is not the text's": {"kind": "question", "id": ID, "text": "Who?", "by": {}},
    "a closed question taken up again": {"kind": "question", "id": question_id("Who?"), "text": "Who?", "by": {
        "judge": "j", "mode": "word", "rules": ["phi1"], "model": "m", "program": ""}},
    "an undone question that nobody judged": {"kind": "undone", "question": ID},
    "an undone pair that nobody separated": {"kind": "undone", "pair": ["a", "z"]},
    "an undone pair of one passage": {"kind": "undone", "pair": ["a", "a"]},
    "nothing undone": {"kind": "undone"},
    "another first line": {"kind": "witnesses", "format": 1},
}  # fmt: skip


@pytest.mark.parametrize("record", WRONG.values(), ids=WRONG)
def test_a_line_that_cannot_follow_is_damage(path: Path, record: dict[str, object]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    with pytest.raises(BadData, match="line 9: not a line of a witnesses file"):
        Witnesses.read(path)


@pytest.mark.parametrize(
    ("number", "field", "value"),
    [(3, "verdict", "true"), (3, "verdict", 1), (3, "passage", 7), (5, "passages", ["a", "z"]),
     (5, "passages", ["a", "a"]), (2, "text", 7), (2, "by", None), (2, "by", {"judge": "x"}), (5, "at", None)],
)  # fmt: skip
def test_a_field_of_another_type_is_damage(path: Path, number: int, field: str, value: object) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[number - 1] = json.dumps(json.loads(lines[number - 1]) | {field: value})
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(BadData, match=f"line {number}: not a line"):
        Witnesses.read(path)


def test_a_newer_format_and_an_unknown_kind_are_named(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b'{"kind":"witnesses","format":2}\n' + b"".join(lines[1:]))
    with pytest.raises(BadData, match=r"has format 2, and this version reads format 1: upgrade blendfilter"):
        Witnesses.read(path)
    path.write_bytes(b"".join(lines) + b'{"kind":"mer\\nged","with":"x"}\n')
    with pytest.raises(BadData, match=r"line 9: a line of the kind 'mer\\nged', which this version does not know"):
        WitnessWriter(path)


@given(st.binary(max_size=60), st.integers(0, 9), st.data())
@settings(max_examples=80)
def test_no_damage_passes_for_something_else(piece: bytes, number: int, data: st.DataObject) -> None:
    """Bytes put anywhere into a line: an error of ours, or a state."""
    lines = [json.dumps(each).encode() + b"\n" for each in RECORDS]
    at = data.draw(st.integers(0, len(lines[number % len(lines)])))
    line = lines[number % len(lines)]
    lines[number % len(lines)] = line[:at] + piece + line[at:]
    said = ""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "witnesses.jsonl"
        place.write_bytes(b"".join(lines))
        try:
            Witnesses.read(place)
        except BlendFilterError as error:
            said = str(error)
    assert "\n" not in said


BY_TOLD = {"judge": "j", "mode": "word", "rules": ["phi1"], "model": "m", "program": ""}
RECORDS: list[dict[str, object]] = [
    {"kind": "witnesses", "format": 1},
    {"kind": "question", "id": question_id("Who?"), "text": "Who?", "by": BY_TOLD, "at": "now"},
    {"kind": "verdict", "question": question_id("Who?"), "passage": "a", "verdict": True, "at": "now"},
    {"kind": "closed", "question": question_id("Who?"), "passages": ["a"], "at": "now"},
]


# --- the disk -------------------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_no_half_line(path: Path) -> None:
    """A file size limit stands in for the disk's end: `write` takes a part of the line and then nothing."""
    before = path.read_bytes()
    script = f"""
import resource, signal, sys
from blendfilter.errors import CannotWrite
from blendfilter.trimming.witnesses import JudgedBy, WitnessWriter
by = JudgedBy("9f3a", "word", ("phi1",), "some-model", "")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with WitnessWriter({str(path)!r}) as writer:
    resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before)} + 40, resource.RLIM_INFINITY))
    try:
        writer.verdict("When?", "c", True, by)
    except CannotWrite as error:
        print(error)
    assert "c" not in writer.witnesses.half({question_id("When?")!r})
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    writer.verdict("When?", "d", True, by)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "takes no more verdicts (File too large): make room, then go on" in done.stdout
    lines = path.read_bytes()
    assert lines.startswith(before)
    assert json.loads(lines[len(before) :])["passage"] == "d"


def test_a_sync_that_fails_takes_the_line_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with WitnessWriter(path) as writer:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(CannotWrite, match="No space left on device"):
            writer.undo_all()
        assert writer.witnesses.separations() == 1
        assert path.read_bytes() == before
        writer.verdict("When?", "c", True, BY)
        with pytest.raises(CannotWrite, match="may not be whole on the disk"):
            writer.close_file()
    WitnessWriter(path)  # it holds no lock


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match=r"cannot be written \(Is a directory\): trim into a folder of your own"):
        WitnessWriter(tmp_path)


# --- kills ----------------------------------------------------------------------------------------------------------

ENDLESS = """
import sys
from blendfilter.trimming.witnesses import JudgedBy, WitnessWriter
by = JudgedBy("9f3a", "word", ("phi1",), "some-model", "")
with WitnessWriter(sys.argv[1]) as writer:
    print("ready", flush=True)
    for number in range(1_000_000):
        question = f"Question {number}, which is about the mill and nothing else?"
        for passage in range(4):
            writer.verdict(question, f"p{number + passage}", passage % 2 == 0, by)
        writer.close(question, [f"p{number + passage}" for passage in range(4)])
"""


def test_a_killed_writer_leaves_a_prefix_of_what_it_wrote(tmp_path: Path) -> None:
    draw, reached = random.Random(7), set()
    for attempt in range(8):
        path = tmp_path / f"{attempt}.jsonl"
        child = subprocess.Popen([sys.executable, "-c", ENDLESS, str(path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(draw.uniform(0.0, 0.15))
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        child.stdout.close()
        written = prefix_of(path.read_bytes())
        state = Witnesses.read(path)
        assert len(state.judged) == written // 6
        with WitnessWriter(path) as writer:  # the lock went with the process
            assert writer.witnesses.judged == state.judged
        reached.add(written)
    assert len(reached) > 3


def prefix_of(data: bytes) -> int:
    """How many lines there are after the first; each is the next one that the writer had to write."""
    rows = [json.loads(line) for line in data.splitlines(keepends=True) if line.endswith(b"\n")]
    for at, row in enumerate(rows[1:]):
        number, step = divmod(at, 6)
        expected = {0: ("question", None), 5: ("closed", None)}.get(step, ("verdict", f"p{number + step - 1}"))
        assert (row["kind"], row.get("passage")) == expected
        if step in (1, 2, 3, 4):
            assert row["verdict"] is (step % 2 == 1)
    return max(len(rows) - 1, 0)
