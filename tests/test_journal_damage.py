"""A journal that something has damaged: every command names the line, says how to go on, and spends nothing on top."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from small_world import Command, journaled, small_eval, stable

from blendfilter.errors import BadData
from blendfilter.journal import Journal
from blendfilter.lm.budget import MARK

Damage = Callable[[bytes], bytes]


def cut_short(line: bytes) -> bytes:
    """Its key and its end still look like a record's."""
    return line[: len(line) // 2] + b"}\n"


def damaged(run: Path, damage: Damage, kind: bytes = b"call") -> int:
    """Damage the last record of a kind; the number of its line."""
    path = run / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    number = max(at for at, line in enumerate(lines) if b'"kind":"' + kind + b'"' in line)
    lines[number] = damage(lines[number])
    path.write_bytes(b"".join(lines))
    return number + 1


def damaged_record(line: int) -> str:
    return f"journal.jsonl, line {line}: a damaged or edited record; restore the file, or run the command"


def test_a_damaged_record_is_named_and_asked_again_and_never_replayed(
    blendfilter: Command, here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, other = here / "run", here / "other"
    assert blendfilter(*small_eval("blendfilter", str(run), "--no-html")).code == 0
    before = stable(run)
    line = damaged(run, cut_short)
    refused = blendfilter(*small_eval("blendfilter", str(run), "--no-html", "--replay"))
    assert (refused.code, damaged_record(line) in refused.error) == (2, True), refused.err
    assert stable(run) == before, "nothing is replaced by what cannot be replayed"
    reported = blendfilter("report", run)
    assert (reported.code, damaged_record(line) in reported.error) == (2, True), reported.err
    copied = blendfilter(*small_eval("blendfilter", str(other), "--no-html", "--reuse", run))
    assert (copied.code, damaged_record(line) in caplog.text) == (0, True), copied.err
    caplog.clear()
    (run / "predictions.jsonl").unlink()  # so that every record is read again
    again = blendfilter(*small_eval("blendfilter", str(run), "--no-html"))
    assert (again.code, damaged_record(line) in caplog.text) == (0, True), again.err
    assert stable(run) == stable(other) == before
    assert blendfilter(*small_eval("blendfilter", str(run), "--no-html", "--replay")).code == 0, "it is whole again"


def edited(at: int) -> Damage:
    """A hexadecimal digit of the line changed: at 8 it is its key's, at 90 something of its content."""

    def change(line: bytes) -> bytes:
        return line[:at] + (b"0" if line[at : at + 1] != b"0" else b"1") + line[at + 1 :]

    return change


@pytest.mark.parametrize(("kind", "at"), [(b"call", 8), (b"search", 90), (b"passage", 90)])
def test_whatever_record_is_damaged_the_same_command_mends_the_run(
    blendfilter: Command, here: Path, kind: bytes, at: int
) -> None:
    run = here / "run"
    assert blendfilter(*small_eval("blendfilter", str(run))).code == 0
    before = stable(run)
    damaged(run, edited(at), kind)
    # A search beside the run is made again where the index is there; all else a replay refuses.
    assert blendfilter(*small_eval("blendfilter", str(run), "--replay")).code in (0, 2)
    assert stable(run) == before
    assert blendfilter(*small_eval("blendfilter", str(run))).code == 0
    assert stable(run) == before
    again = small_eval("blendfilter", str(run))
    for words in ((*again, "--replay"), ("report", run), again):
        outcome = blendfilter(*words)
        assert (outcome.code, stable(run)) == (0, before), outcome.err


def test_a_damaged_mark_is_named_and_not_taken_for_nothing_spent(blendfilter: Command, here: Path) -> None:
    run = here / "run"
    assert blendfilter(*small_eval("blendfilter", str(run), "--max-calls", 10)).code == 3
    line = damaged(run, cut_short, b"budget")
    outcome = blendfilter(*small_eval("blendfilter", str(run), "--max-calls", 11))
    assert (outcome.code, damaged_record(line) in outcome.error) == (2, True), outcome.err


def test_a_budget_reads_every_record_before_it_spends(blendfilter: Command, here: Path) -> None:
    run = here / "run"
    assert blendfilter(*small_eval("blendfilter", str(run), "--no-html")).code == 0
    calls = len(journaled(run))
    line = damaged(run, cut_short)
    size = (run / "journal.jsonl").stat().st_size
    outcome = blendfilter(*small_eval("blendfilter", str(run), "--repeats", 2, "--max-calls", 2 * calls))
    assert (outcome.code, damaged_record(line) in outcome.error) == (2, True), outcome.err
    assert (run / "journal.jsonl").stat().st_size == size


def test_a_torn_last_line_is_asked_again_and_counted_by_the_mark(blendfilter: Command, here: Path) -> None:
    run = here / "run"
    assert blendfilter(*small_eval("blendfilter", str(run), "--max-calls", 12)).code == 3
    path = run / "journal.jsonl"
    path.write_bytes(path.read_bytes() + b'{"key":"' + b"0" * 32 + b'","kind":"call","pro')
    assert blendfilter(*small_eval("blendfilter", str(run), "--max-calls", 15)).code == 3
    assert len(journaled(run)) == 15
    with Journal(run, "replay") as journal:
        mark = journal.read(MARK)
    assert mark is not None
    assert mark["calls"] == 15
    assert all(json.loads(line) for line in path.read_bytes().splitlines())


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A journal's bytes with one thing wrong, of the kinds that editors, disks and transfers bring about."""
    at = rng.randrange(len(data))
    length = rng.choice([1, 1, 7, 37, 400])
    lines = data.splitlines(keepends=True)
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    kinds: list[Callable[[], bytes]] = [
        lambda: data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :],
        lambda: data[:at] + rng.randbytes(length) + data[at + length :],
        lambda: data[:at] + b"\0" * length + data[at + length :],
        lambda: data[:at] + data[at + length :],
        lambda: data[:at] + rng.choice([b"\n", b"\r", b"}", b'"', b"[" * 2_000]) + data[at:],
        lambda: data[:at],
        lambda: data + rng.choice([b"\0" * 512, b"more", b"{", lines[first][: length + 1], lines[first][:-1]]),
        lambda: data.replace(b"\n", rng.choice([b"\r\n", b"\r", b""])),
        lambda: b"".join([*lines[:first], lines[second], *lines[first:]]),
        lambda: b"".join(rng.sample(lines, len(lines))),
    ]
    return rng.choice(kinds)()


def test_no_mutation_of_a_journal_brings_it_down_or_is_cut_away(blendfilter: Command, here: Path) -> None:
    """1,000 of them: opened and read it works, or says the line; all but a torn last line stays, byte by byte."""
    assert blendfilter(*small_eval("blendfilter", str(here / "run"), "--limit", 1, "--no-html")).code == 0
    whole = (here / "run/journal.jsonl").read_bytes()
    with Journal(here / "run", "replay") as journal:
        right = {record["key"]: record for record in journal.records()}
    path, rng, refused = here / "journal.jsonl", random.Random(0), list[str]()
    for _ in range(1_000):
        before = mutated(whole, rng)
        for mode in ("replay", "auto"):
            path.write_bytes(before)
            try:
                with Journal(path, mode) as journal:  # type: ignore[arg-type]
                    found = {key: journal.find(key) for key in right}
            except BadData as error:
                refused.append(str(error))
                assert path.read_bytes() == before
                continue
            assert all(not record or record.items() >= right[key].items() for key, record in found.items())
            kept = path.read_bytes()
            assert kept == before[: before.rfind(b"\n") + 1] or kept in (before, before + b"\n")
    assert len(refused) > 100
    assert all("journal.jsonl, line " in line for line in refused)
