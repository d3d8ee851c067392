"""A journal's modes, what it takes from other runs, and who may write."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from blendfilter.errors import BadArgument, MissingFile, RunLocked
from blendfilter.journal import Journal, digest


def made(name: Any, **fields: Any) -> dict[str, Any]:
    return {"kind": "call", "key": digest(name), **fields}


def filled(path: Path, *records: dict[str, Any]) -> Path:
    with Journal(path) as journal:
        journal.append(*records)
    return journal.path


# ---- modes


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="no journal mode 'play' \\(known: auto, record, replay\\)"):
        Journal(tmp_path, "play")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_record_serves_nothing_and_writes_anew(tmp_path: Path) -> None:
    filled(tmp_path, made(1, reply="old"))
    with Journal(tmp_path, "record") as journal:
        assert journal.find(digest(1)) is None
        journal.append(made(1, reply="new"))
        assert journal.find(digest(1)) is None
        assert journal.read(digest(1)) == made(1, reply="new")
    with Journal(tmp_path) as again:
        assert again.find(digest(1)) == made(1, reply="new")


def test_replay_serves_and_writes_nothing(tmp_path: Path) -> None:
    path = filled(tmp_path, made(1, reply="one", error={"kind": "timeout"}))
    before = path.read_bytes()
    with Journal(tmp_path, "replay") as journal:
        assert journal.find(digest(1)) == made(1, reply="one", error={"kind": "timeout"})
        assert journal.find(digest(2)) is None
        with pytest.raises(BadArgument, match="is open for replay and takes no records"):
            journal.append(made(2))
    assert path.read_bytes() == before


def test_replay_without_its_file_says_where_it_looked_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=f"no journal at {tmp_path}/gone/journal.jsonl"):
        Journal(tmp_path / "gone", "replay")
    assert not list(tmp_path.iterdir())


# ---- reuse


def test_reuse_copies_hits_in_and_this_journal_then_stands_alone(tmp_path: Path) -> None:
    old = filled(tmp_path / "old", made(1, reply="from old"), made(2, reply="never asked"))
    older = filled(tmp_path / "older", made(1, reply="from older"), made(3, reply="three"))
    before = old.read_bytes(), older.read_bytes()
    with Journal(tmp_path / "new", reuse=[tmp_path / "old", older]) as journal:
        assert journal.find(digest(1)) == made(1, reply="from old", reused=True)
        assert journal.find(digest(3)) == made(3, reply="three", reused=True)
        assert journal.find(digest(4)) is None
        assert journal.find(digest(1)) == made(1, reply="from old", reused=True)
    assert (old.read_bytes(), older.read_bytes()) == before
    with Journal(tmp_path / "new", "replay") as alone:
        assert list(alone.records()) == [made(1, reply="from old", reused=True), made(3, reply="three", reused=True)]


def test_reuse_leaves_failures_where_they_are(tmp_path: Path) -> None:
    failure = made(1, error={"kind": "timeout", "message": "slow"})
    filled(tmp_path / "old", failure)
    with Journal(tmp_path / "new", reuse=[tmp_path / "old"]) as journal:
        assert journal.find(digest(1)) is None
        assert len(journal) == 0


def test_a_failure_of_our_own_gives_way_to_another_runs_success(tmp_path: Path) -> None:
    filled(tmp_path / "good", made(1, reply="fine", error=None))
    filled(tmp_path / "new", made(1, error={"kind": "timeout", "message": "slow"}))
    with Journal(tmp_path / "new", reuse=[tmp_path / "good"]) as journal:
        assert journal.find(digest(1)) == made(1, reply="fine", error=None, reused=True)
        assert journal.read(digest(1)) == made(1, reply="fine", error=None, reused=True)


def test_what_is_our_own_goes_before_reuse(tmp_path: Path) -> None:
    filled(tmp_path / "old", made(1, reply="old"))
    filled(tmp_path / "new", made(1, reply="own"))
    with Journal(tmp_path / "new", reuse=[tmp_path / "old"]) as journal:
        assert journal.find(digest(1)) == made(1, reply="own")


def test_a_missing_run_to_reuse_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=f"no journal at {tmp_path}/old"):
        Journal(tmp_path / "new", reuse=[tmp_path / "old"])
    assert not list(tmp_path.iterdir())


def test_replay_reads_reused_runs_without_copying(tmp_path: Path) -> None:
    filled(tmp_path / "old", made(1, reply="old"))
    path = filled(tmp_path / "new", made(2))
    before = path.read_bytes()
    with Journal(tmp_path / "new", "replay", reuse=[tmp_path / "old"]) as journal:
        assert journal.find(digest(1)) == made(1, reply="old")
    assert path.read_bytes() == before


# ---- one writer

HOLD = """
import sys
from blendfilter.journal import Journal
journal = Journal(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds `folder`'s journal for writing."""
    words = [sys.executable, "-c", HOLD, str(folder)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_second_writer_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    filled(tmp_path, made(1))
    with holder(tmp_path) as process:
        with pytest.raises(RunLocked, match=f"{tmp_path}/journal.jsonl is being written to"):
            Journal(tmp_path)
        with Journal(tmp_path, "replay") as reader:  # reading needs no lock
            assert digest(1) in reader
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        with Journal(tmp_path) as journal:
            assert digest(1) in journal


def test_a_second_writer_in_the_same_process_is_refused_until_the_first_closes(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    with pytest.raises(RunLocked):
        Journal(tmp_path)
    first.append(made(1))  # the refusal took nothing from it
    first.close()
    first.close()  # closing twice is closing
    with Journal(tmp_path) as second:
        assert digest(1) in second


def test_a_closed_journal_says_so(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(made(1))
    journal.close()
    with pytest.raises(BadArgument, match=r"journal\.jsonl is closed"):
        journal.append(made(2))


def test_eight_threads_write_whole_lines(tmp_path: Path) -> None:
    def write(thread: int) -> None:
        for number in range(50):
            journal.append(made([thread, number], reply="x" * (number * 37)), made([thread, number, "b"]))
            assert journal.find(digest([thread, number])) is not None

    with Journal(tmp_path) as journal:
        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(journal) == 800
    with Journal(tmp_path) as again:
        records = list(again.records())
        assert len(records) == 800
        pairs = [(a["key"], b["key"]) for a, b in zip(records[::2], records[1::2], strict=True)]
        expected = {(digest([t, n]), digest([t, n, "b"])) for t in range(8) for n in range(50)}
        assert set(pairs) == expected  # what one append wrote stands together
