"""The journal as a file: keys, records, kills and full disks, modes, reuse, and its one writer."""

from __future__ import annotations

import gc
import os
import threading
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blendfilter.errors import BadArgument, BadData, MissingFile, RunLocked
from blendfilter.journal import Journal, digest


def made(name: Any, **fields: Any) -> dict[str, Any]:
    return {"kind": "call", "key": digest(name), **fields}


def filled(path: Path, *records: dict[str, Any]) -> Path:
    with Journal(path) as journal:
        journal.append(*records)
    return journal.path


# ---- the key


def test_a_key_is_32_hex_digits_of_the_canonical_json() -> None:
    # printf '["search",{"a":2,"b":"é"}]' | sha256sum
    assert digest("search", {"b": "é", "a": 2}) == "078cb56e0dd8b246c3b93008c1fc6f73"


# ---- writing and reading


def test_the_key_stands_first_and_the_kind_second_whatever_order_was_given(tmp_path: Path) -> None:
    path = filled(tmp_path, {"reply": "a", "kind": "call", "key": digest(1), "b": 1, "a": 2})
    line = f'{{"key":"{digest(1)}","kind":"call","reply":"a","b":1,"a":2'
    assert path.read_text() == f'{line},"check":"{zlib.crc32(line.encode()):08x}"}}\n'


def test_new_only_leaves_out_what_is_there_and_what_comes_twice(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append(made(1, text="first"))
        journal.append(made(1, text="second"), made(2, text="x"), made(2, text="x"), new_only=True)
        assert journal.find(digest(1)) == made(1, text="first")
        assert [record["text"] for record in journal.records()] == ["first", "x"]


@pytest.mark.parametrize(
    "text",
    ["Zoë naïve 東京 🏝 \u0000", "a\u2028b\u2029c\x85d\ne\r\n", "\ud800 half a pair \udfff", "é" * 500_000, ""],
    ids=["unicode", "line breaks", "lone surrogates", "1 MB of two-byte letters", "empty"],
)
def test_any_text_comes_back_whole_and_takes_one_line(tmp_path: Path, text: str) -> None:
    path = filled(tmp_path, made("before", reply="b"), made(text, reply=text), made("after", reply="a"))
    assert path.read_bytes().count(b"\n") == 3
    with Journal(tmp_path, "replay") as journal:
        assert journal.find(digest(text)) == made(text, reply=text)
        assert journal.find(digest("after")) == made("after", reply="a")


# ---- kills and damage


def test_a_torn_last_line_is_dropped_and_cut_off_at_the_next_writing(tmp_path: Path) -> None:
    path = filled(tmp_path, made(1, reply="whole"))
    whole = path.read_bytes()
    torn = whole + f'{{"key":"{digest(2)}","kind":"call","reply":"ha'.encode()
    path.write_bytes(torn)
    with Journal(tmp_path, "replay") as reader:
        assert [record["reply"] for record in reader.records()] == ["whole"]
    assert path.read_bytes() == torn  # a replay writes nothing
    with Journal(tmp_path) as journal:
        assert path.read_bytes() == whole
        assert digest(2) not in journal
        journal.append(made(3, reply="next"))
    with Journal(tmp_path) as again:
        assert [record["reply"] for record in again.records()] == ["whole", "next"]


@pytest.mark.parametrize(
    "damage",
    [b"\n", b'{"key":"' + b"z" * 32 + b'","kind":"call"}\n', f'{{"key":"{digest(9)}","kind":"call","re\n'.encode()],
    ids=["empty line", "key not hex", "cut in the middle"],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["auto", "replay"])
def test_a_damaged_line_is_refused_by_its_number(tmp_path: Path, damage: bytes, mode: Any) -> None:
    path = filled(tmp_path, made(1), made(2))
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + damage + second)
    before = path.read_bytes()
    with pytest.raises(BadData, match=r"journal\.jsonl, line 2: not a journal record; cut the file before it"):
        Journal(tmp_path, mode)
    assert path.read_bytes() == before
    path.write_bytes(first)
    Journal(tmp_path).close()  # the refusal kept no lock


@pytest.mark.parametrize(
    "text",
    ["my notes, not ended by a line feed", '{"key": "x", "kind": "call"}', '{"key":"k1","va', "a,b\rc,d\r"],
)
def test_a_file_of_somebody_else_is_refused_by_its_line_and_stays_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(text, newline="")
    for mode in ("auto", "record", "replay"):
        with pytest.raises(BadData, match=r"line 1: not a journal record, so this is no journal: name another file"):
            Journal(path, mode)  # type: ignore[arg-type]
    assert path.read_text() == text.replace("\r", "\n"), "nothing is cut"


@pytest.mark.parametrize("records", [0, 1])
@pytest.mark.parametrize("tail", [b'{"ke', b"\0" * 4096, b'{"key":"00' + b"\0" * 30])
def test_what_a_power_cut_leaves_is_a_torn_line(tmp_path: Path, tail: bytes, records: int) -> None:
    path = filled(tmp_path, *[made(1)] * records)
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    with Journal(tmp_path) as journal:
        assert len(journal) == records
    assert path.read_bytes() == whole


def test_an_edited_record_is_noticed_by_its_check(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = filled(tmp_path, made(1, reply="yes"), made(2, reply="no"))
    path.write_text(path.read_text().replace('"reply":"yes"', '"reply":"nay"'))
    with Journal(tmp_path, "replay") as journal:
        with pytest.raises(BadData, match=r"line 1: a damaged or edited record"):
            journal.find(digest(1))
        assert journal.find(digest(2)) == made(2, reply="no")
    with Journal(tmp_path) as journal:
        assert journal.find(digest(1)) is None
        assert "line 1: a damaged or edited record" in caplog.text
        journal.append(made(1, reply="yes"))
        assert [record["reply"] for record in journal.records()] == ["no", "yes"], "the damaged one is replaced"
    with Journal(tmp_path, "replay") as journal:
        assert journal.find(digest(1)) == made(1, reply="yes")


def test_a_record_that_lost_its_check_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text(f'{{"key":"{digest(1)}","kind":"call","reply":"one"}}\n')
    with Journal(tmp_path, "replay") as journal, pytest.raises(BadData, match="line 1: a damaged or edited record"):
        journal.find(digest(1))


def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "journal.jsonl")
    for mode in ("auto", "replay"):
        with pytest.raises(BadData, match=r"journal\.jsonl is a named pipe"):
            Journal(tmp_path, mode)  # type: ignore[arg-type]


def test_a_write_that_fails_halfway_spoils_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: half of the record is written, then the system refuses."""
    written = os.write

    def full(fd: int, data: bytes) -> int:
        written(fd, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    with Journal(tmp_path) as journal:
        journal.append(made(1, reply="one"))
        with monkeypatch.context() as patch:
            patch.setattr("blendfilter.journal.os.write", full)
            with pytest.raises(OSError, match="No space"):
                journal.append(made(2, reply="two"))
        assert digest(2) not in journal
        journal.append(made(3, reply="three"))
        assert journal.find(digest(3)) == made(3, reply="three")
    with Journal(tmp_path) as again:
        assert [record["reply"] for record in again.records()] == ["one", "three"]


# Lone surrogates too; two halves that stand side by side are one character, in JSON as in UTF-16.
TEXT = st.text(st.characters(codec=None), max_size=20).map(
    lambda text: text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.dictionaries(st.sampled_from(["reply", "a", "ü"]), JSON)), max_size=8),
    st.floats(0, 1),
)
def test_every_record_is_read_back_whatever_was_cut_off_the_last_line(
    written: list[tuple[int, dict[str, Any]]], share: float
) -> None:
    records = [made(name, **fields) | {"kind": "a user's own"} for name, fields in written]
    with TemporaryDirectory() as folder:
        path = filled(Path(folder), *records)
        lines = path.read_bytes().split(b"\n")[:-1]
        assert len(lines) == len(records)
        if records:
            cut = 1 + int(share * len(lines[-1]))  # at least the line's end, at most all of it
            with path.open("rb+") as file:
                file.truncate(path.stat().st_size - cut)
            if cut > 1:  # a record that lacks only its line feed is whole
                records.pop()
        with Journal(folder) as journal:
            assert list(journal.records()) == records
            for record in {each["key"]: each for each in records}.values():
                assert journal.find(record["key"]) == record
            journal.append(made("after", reply="still writes"))
            assert [*journal.records()] == [*records, made("after", reply="still writes")]


# ---- modes


def test_record_serves_nothing_and_writes_anew(tmp_path: Path) -> None:
    filled(tmp_path, made(1, reply="old"))
    with Journal(tmp_path, "record") as journal:
        assert journal.find(digest(1)) is None
        journal.append(made(1, reply="new"))
        assert journal.find(digest(1)) is None
        assert journal.read(digest(1)) == made(1, reply="new")
    with Journal(tmp_path) as again:
        assert again.find(digest(1)) == made(1, reply="new")


def test_record_mode_replaces_a_damaged_record(tmp_path: Path) -> None:
    path = filled(tmp_path, made(1, reply="yes"))
    path.write_text(path.read_text().replace('"reply":"yes"', '"reply":"nay"'))
    with Journal(tmp_path, "record") as journal:
        assert [line for line, _ in journal.damages()]
        journal.append(made(1, reply="new"))
        assert [*journal.damages()] == []
        assert [*journal.records()] == [made(1, reply="new")]
    with Journal(tmp_path, "replay") as journal:
        assert journal.find(digest(1)) == made(1, reply="new")


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


def test_of_reuse_and_our_own_a_success_is_taken_and_our_own_first(tmp_path: Path) -> None:
    failure = {"kind": "timeout", "message": "slow"}
    filled(tmp_path / "old", made(1, error=failure), made(2, reply="fine", error=None), made(3, reply="old"))
    filled(tmp_path / "new", made(2, error=failure), made(3, reply="own"))
    with Journal(tmp_path / "new", reuse=[tmp_path / "old"]) as journal:
        assert journal.find(digest(1)) is None
        assert digest(1) not in journal
        assert journal.find(digest(3)) == made(3, reply="own")
        assert journal.find(digest(2)) == made(2, reply="fine", error=None, reused=True)
        assert journal.read(digest(2)) == made(2, reply="fine", error=None, reused=True)


def test_a_missing_run_to_reuse_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=f"no journal at {tmp_path}/old"):
        Journal(tmp_path / "new", reuse=[tmp_path / "old"])
    assert not list(tmp_path.iterdir())


# ---- one writer


def test_a_second_writer_in_the_same_process_is_refused_until_the_first_closes(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    with pytest.raises(RunLocked):
        Journal(tmp_path)
    first.append(made(1))  # the refusal took nothing from it
    first.close()
    first.close()  # closing twice is closing
    with pytest.raises(BadArgument, match=r"journal\.jsonl is closed"):
        first.append(made(2))
    with Journal(tmp_path) as second:
        assert digest(1) in second


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
        keys = [record["key"] for record in again.records()]
    expected = [(digest([t, n]), digest([t, n, "b"])) for t in range(8) for n in range(50)]
    assert sorted(zip(keys[::2], keys[1::2], strict=True)) == sorted(expected), "one append stands together"


# ---- who holds the file


def test_a_journal_that_is_dropped_lets_go_of_its_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(made(1))
    gc.disable()  # it must not take a collection: the next cell of a notebook comes at once
    try:
        del journal
        Journal(tmp_path).close()
    finally:
        gc.enable()
    with Journal(tmp_path) as again:
        assert len(again) == 1


def test_a_forked_process_may_not_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes would not see each other's records, and the child has its parent's lock as well."""
    with Journal(tmp_path) as journal:
        monkeypatch.setattr("blendfilter.journal.os.getpid", lambda: -1)
        with pytest.raises(RunLocked, match="opened by the process that this one was forked from: open it anew"):
            journal.append(made("child"))
        monkeypatch.undo()
        assert len(journal) == 0
