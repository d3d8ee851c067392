"""Witnesses: verdicts, closed questions, undoing, one writer, Theorem 1; logs at random; damage, disks and kills."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blendfilter.errors import BadArgument, BadData, CannotWrite, RunLocked, UnknownName
from blendfilter.records import one_line
from blendfilter.trimming.witnesses import (
    JudgedBy,
    Separation,
    Witnesses,
    WitnessWriter,
    judged_lines,
    pair_named,
    question_id,
)

BY = JudgedBy("9f3a", "word", ("phi1",), "some-model", "shipped")
OTHER = JudgedBy("1c77", "components", ("phi1", "phi2"), "another-model", "")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "witnesses.jsonl"


def judged(writer: WitnessWriter, question: str, by: JudgedBy = BY, **verdicts: bool | None) -> str:
    """Judge and close a question; its id."""
    writer.judge(question, verdicts, by)
    return question_id(question)


def test_theorem_1(path: Path) -> None:
    """The paper's Figure 4, where A is "He turned on the radio" and B is "He turned off the radio".

    q1 and q2 agree with A and not with B, q3 with B and not with A: the verdicts on A and B differ each time, so each
    of the three is a witness to their separation, whichever side it took. q4 agrees with both and is none; C, which
    no question rejected along with an accepted one, is separated from nothing but what q3 rejected beside it.
    """
    with WitnessWriter(path) as writer:
        q1 = judged(writer, "Who turned on the radio?", A=True, B=False)
        q2 = judged(writer, "Please tell me who turned on the radio.", A=True, B=False)
        q3 = judged(writer, "Who turned off the radio?", B=True, A=False, C=True)
        judged(writer, "Is there a radio?", A=True, B=True, C=None)
    witnesses = Witnesses.read(path)
    assert witnesses.witnesses_of("A", "B") == witnesses.witnesses_of("B", "A") == tuple(sorted((q1, q2, q3)))
    assert witnesses.witnesses_of("A", "C") == (q3,)
    assert witnesses.witnesses_of("B", "C") == witnesses.witnesses_of("A", "A") == ()
    assert witnesses.separations() == 2
    assert list(witnesses.separated(2)) == [Separation(("A", "B"), tuple(sorted((q1, q2, q3))))]
    assert (witnesses.partners("A", 1), witnesses.partners("A", 2)) == (("B", "C"), ("B",))
    assert (witnesses.partners("A", 4), witnesses.partners("nobody's", 1)) == ((), ())
    assert witnesses.judged[q3].accepted == ("B", "C")
    assert (witnesses.judged[q3].rejected, witnesses.judged[q3].by) == (("A",), BY)


def test_a_question_counts_once_it_is_closed() -> None:
    """Files of earlier versions have questions that stopped halfway; another judge's verdicts begin them anew."""
    state, name = Witnesses(), question_id("Who?")
    for line in judged_lines("Who?", {"a": True, "b": False}, BY)[:-1]:
        state.apply(line)
    assert (state.separations(), dict(state.judged)) == (0, {})
    begins, verdict, closed = judged_lines("Who?", {"a": False}, OTHER)
    state.apply(begins)
    with pytest.raises(LookupError):
        state.apply(closed)
    state.apply(verdict)
    state.apply(closed)
    assert (state.judged[name].by, state.judged[name].rejected) == (OTHER, ("a",))


def test_a_question_is_judged_once(path: Path) -> None:
    with WitnessWriter(path) as writer:
        judged(writer, "Who?", a=True, b=False, c=False)
        with pytest.raises(BadArgument, match=r"is judged already .*: undo it first"):
            judged(writer, "Who?", d=True)
    assert Witnesses.read(path).partners("a", 1) == ("b", "c")


def test_a_question_that_was_undone_and_judged_again_rejects_anew(path: Path) -> None:
    """Its pair was undone first, so that it rejected nothing; that went with the question."""
    with WitnessWriter(path) as writer:
        q = judged(writer, "Who turned on the radio?", A=True, B=False)
        writer.undo_pair("A", "B")
        assert writer.witnesses.rejected_by(q) == frozenset()
        writer.undo_question(q)
        judged(writer, "Who turned on the radio?", A=True, B=False)
    assert Witnesses.read(path).rejected_by(q) == {"B"}


def test_every_verdict_is_a_line_with_its_time(path: Path) -> None:
    with WitnessWriter(path) as writer:
        judged(writer, "Who?", a=True, b=None)
        writer.undo_question("Who?")
    first, *rest = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert first == {"kind": "witnesses", "format": 1}
    assert [line["kind"] for line in rest] == ["question", "verdict", "verdict", "closed", "undone"]
    assert [line["verdict"] for line in rest[1:3]] == [True, None]
    assert all(len(line["at"]) == 20 and line["at"].endswith("Z") for line in rest)


@pytest.mark.parametrize(("passage", "verdict"), [("a", "True"), ("a", 1), (7, True)])
def test_what_is_no_verdict_is_never_written(path: Path, passage: Any, verdict: Any) -> None:
    with WitnessWriter(path) as writer, pytest.raises(BadArgument, match="True, False or None"):
        writer.judge("Who?", {passage: verdict}, BY)
    with WitnessWriter(path) as writer, pytest.raises(BadArgument, match="the question is empty"):
        writer.judge(" \n", {"a": True}, BY)
    assert path.read_bytes() == b""


def test_a_pair_is_named_by_two_ids_that_may_hold_commas(path: Path) -> None:
    with WitnessWriter(path) as writer:
        judged(writer, "Who?", **{"a,b": True, "c": False, "d": False})
        assert pair_named(writer.witnesses, "c,a,b") == pair_named(writer.witnesses, "a,b, c") == ("a,b", "c")
        with pytest.raises(UnknownName, match=r"no question separates the pair 'c,a'"):
            pair_named(writer.witnesses, "c,a")


def test_a_second_writer_is_refused_and_readers_are_not(path: Path) -> None:
    with WitnessWriter(path) as writer:
        judged(writer, "Who?", a=True, b=False)
        with pytest.raises(RunLocked, match=r"by another trim or by a writer still open .*wait for it"):
            WitnessWriter(path)
        assert Witnesses.read(path).separations() == 1
    with pytest.raises(BadArgument, match="is closed and takes no verdicts"):
        writer.undo_all()
    WitnessWriter(path).close_file()


PASSAGES = ("a,b", "a", "b", "Größe\n2")
QUESTIONS = ("Who runs the mill?", "Who closed the mill?", "mill", "Wer führt\ndie Mühle?")
VERDICTS = st.dictionaries(st.sampled_from(PASSAGES), st.sampled_from([True, True, False, False, None]), max_size=4)
STEPS = st.one_of(
    st.tuples(st.just("judge"), st.sampled_from(QUESTIONS), VERDICTS),
    st.tuples(st.just("undo"), st.sampled_from(QUESTIONS), st.none()),
    st.tuples(st.just("undo pair"), st.sampled_from(PASSAGES), st.sampled_from(PASSAGES)),
    st.tuples(st.just("undo all"), st.none(), st.none()),
)


@pytest.fixture(autouse=True, scope="module")
def no_sync() -> Iterator[None]:
    """A thousand files: what the disk does with each is not tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


class Plain:
    """The same state as dictionaries and sets, the slow way."""

    def __init__(self) -> None:
        self.judged: dict[str, dict[str, bool | None]] = {}
        self.witnesses: dict[frozenset[str], set[str]] = {}

    def judge(self, question: str, verdicts: dict[str, bool | None]) -> None:
        self.judged[question] = verdicts
        for a, b in permutations(verdicts, 2):
            if verdicts[a] is True and verdicts[b] is False:
                self.witnesses.setdefault(frozenset((a, b)), set()).add(question_id(question))

    def undo(self, question: str) -> None:
        self.judged.pop(question, None)
        for names in self.witnesses.values():
            names.discard(question_id(question))

    def seen(self, threshold: int) -> object:
        """What a search reads of it."""
        pairs = {
            pair: names
            for pair, names in self.witnesses.items()
            if any(sum(self.accepts(name, side) for name in names) >= threshold for side in pair)
        }
        read = {
            one_line(question): ({p for p in verdicts if verdicts[p]}, self.rejected(question))
            for question, verdicts in self.judged.items()
        }
        return (pairs, read) if any(rejected for _, rejected in read.values()) else None

    def accepts(self, name: str, passage: str) -> bool:
        (verdicts,) = (each for question, each in self.judged.items() if question_id(question) == name)
        return verdicts[passage] is True

    def rejected(self, question: str) -> set[str]:
        """What it rejected; of what it accepted something beside, as long as one of these pairs is not undone."""
        verdicts, name = self.judged[question], question_id(question)
        accepted = [a for a in verdicts if verdicts[a]]
        return {
            b
            for b in verdicts
            if verdicts[b] is False
            and (not accepted or any(name in self.witnesses.get(frozenset((a, b)), ()) for a in accepted))
        }


def step(writer: WitnessWriter, plain: Plain, kind: str, one: Any, two: Any) -> None:
    """One step in both, as far as it is allowed; what is not is refused."""
    if kind == "judge":
        if one in plain.judged:
            with pytest.raises(BadArgument):
                writer.judge(one, {}, BY)
            return
        writer.judge(one, two, BY)
        plain.judge(one, two)
    elif kind == "undo all":
        writer.undo_all()
        plain.__init__()  # type: ignore[misc]
    elif kind == "undo":
        refused(one not in plain.judged, lambda: writer.undo_question(one))
        plain.undo(one)
    else:
        known = bool(plain.witnesses.pop(frozenset((one, two)), None))
        refused(not known, lambda: writer.undo_pair(one, two))


def refused(unknown: bool, act: Any) -> None:
    if unknown:
        with pytest.raises(UnknownName):
            act()
    else:
        act()


def agree(state: Witnesses, plain: Plain) -> None:
    for a in PASSAGES:
        for b in PASSAGES:
            assert state.witnesses_of(a, b) == tuple(sorted(plain.witnesses.get(frozenset((a, b)), ())))
    for threshold in (1, 2):
        pairs = {pair: names for pair, names in plain.witnesses.items() if len(names) >= threshold}
        assert [(set(each.pair), set(each.witnesses)) for each in state.separated(threshold, one_way=False)] == [
            (set(pair), pairs[frozenset(pair)]) for pair in sorted(tuple(sorted(pair)) for pair in pairs)
        ]
        for a in PASSAGES:
            assert state.partners(a, threshold) == tuple(sorted(b for b in PASSAGES if frozenset((a, b)) in pairs))
    assert state.separations() == sum(map(bool, plain.witnesses.values()))
    assert {each.question for each in state.judged.values()} == set(map(one_line, plain.judged))
    assert list(state.judged) == sorted(state.judged)


@contextmanager
def file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "witnesses.jsonl"


@given(st.lists(STEPS, max_size=14))
@settings(max_examples=60)
def test_any_log_means_what_dictionaries_say(steps: list[tuple[str, Any, Any]]) -> None:
    plain = Plain()
    with file() as path:
        with WitnessWriter(path) as writer:
            for kind, one, two in steps:
                step(writer, plain, kind, one, two)
            agree(writer.witnesses, plain)
        agree(Witnesses.read(path), plain)
        with WitnessWriter(path) as again:
            agree(again.witnesses, plain)


@given(st.lists(STEPS, max_size=6), st.lists(STEPS, max_size=6), st.sampled_from([1, 2]))
@settings(max_examples=60)
def test_digests_are_equal_exactly_where_a_search_sees_the_same(one: list[Any], two: list[Any], threshold: int) -> None:
    found = []
    for steps in (one, two):
        with file() as path, WitnessWriter(path) as writer:
            plain = Plain()
            for kind, first, second in steps:
                step(writer, plain, kind, first, second)
            found.append((writer.witnesses.digest(threshold), plain.seen(threshold)))
    (a, seen_a), (b, seen_b) = found
    assert (a == b) == (seen_a == seen_b)
    assert (a == "") == (seen_a is None)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """One closed question, one that was begun: eight lines."""
    log = tmp_path / "witnesses.jsonl"
    with WitnessWriter(log) as writer:
        judged(writer, "Who?", a=True, b=False)
    begun = judged_lines("When?", {"a": True, "b": False}, BY)[:-1]
    with log.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in begun)
    return log


def test_a_torn_last_line_is_dropped_and_then_cut_off(log: Path) -> None:
    """At whichever byte: what a reader sees are the whole lines, and a writer goes on behind them."""
    whole = log.read_bytes()
    lines = whole.splitlines(keepends=True)
    for end in range(len(whole)):
        log.write_bytes(whole[:end])
        kept = whole[: end + 1].count(b"\n")  # a line that lacks only its line feed is whole
        state = Witnesses.read(log)
        assert state.separations() == (1 if kept >= 5 else 0)
        assert log.read_bytes() == whole[:end]  # a reader changes nothing
        if end % 23 == 0:
            with WitnessWriter(log) as writer:
                assert log.read_bytes() == b"".join(lines[:kept])
                writer.judge("Where?", {"c": None}, BY)
            assert Witnesses.read(log).separations() == state.separations()


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "zeros": lambda line: b"\0" * (len(line) - 1) + b"\n",
    "cut short": lambda line: line[: len(line) // 2] + b"\n",
    "a list": lambda line: b"[1]\n",
    "a strange kind": lambda line: b'{"kind":[]}\n',
    "not UTF-8": lambda line: b'{"kind":"\xff"}\n',
    "nested": lambda line: b"[" * 100_000 + b"\n",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("number", [1, 5])
def test_a_damaged_line_is_named_with_the_way_on(log: Path, number: int, damage: Callable[[bytes], bytes]) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    lines[number - 1] = damage(lines[number - 1])
    log.write_bytes(b"".join(lines))
    found = rf"witnesses\.jsonl, line {number}: not a line of a witnesses file; cut the file before it and trim again"
    for use in (Witnesses.read, WitnessWriter):
        with pytest.raises(BadData, match=found):
            use(log)
    assert log.read_bytes() == b"".join(lines)  # a writer that refuses leaves it as it was
    log.write_bytes(b"".join(lines[: number - 1]))
    WitnessWriter(log).close_file()  # and leaves no lock


ID = "a" * 12
BY_FIELDS = {"judge": "j", "mode": "word", "rules": ["phi1"], "model": "m", "program": ""}
WRONG: dict[str, dict[str, object]] = {
    "a verdict on an unknown question": {"kind": "verdict", "question": ID, "passage": "a", "verdict": True},
    "an id that is not the text's": {"kind": "question", "id": ID, "text": "Who?", "by": {}},
    "a closed question taken up again":
        {"kind": "question", "id": question_id("Who?"), "text": "Who?", "by": BY_FIELDS},
    "an unknown question undone": {"kind": "undone", "question": ID},
    "an undone pair without witnesses": {"kind": "undone", "pair": ["a", "z"]},
    "another first line": {"kind": "witnesses", "format": 1},
}  # fmt: skip


@pytest.mark.parametrize("record", WRONG.values(), ids=WRONG)
def test_a_line_that_cannot_follow_is_damage(log: Path, record: dict[str, object]) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    with pytest.raises(BadData, match="line 9: not a line of a witnesses file"):
        Witnesses.read(log)


@pytest.mark.parametrize(
    ("number", "field", "value"),
    [(3, "verdict", 1), (3, "passage", 7), (5, "passages", ["a", "z"]), (5, "passages", ["a", "a"]), (2, "by", None)],
)  # fmt: skip
def test_a_field_of_another_type_is_damage(log: Path, number: int, field: str, value: object) -> None:
    lines = log.read_text(encoding="utf-8").splitlines()
    lines[number - 1] = json.dumps(json.loads(lines[number - 1]) | {field: value})
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(BadData, match=f"line {number}: not a line"):
        Witnesses.read(log)


def test_a_sync_that_fails_takes_the_line_back(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = log.read_bytes()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with WitnessWriter(log) as writer:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(CannotWrite, match="No space left on device"):
            writer.undo_all()
        assert writer.witnesses.separations() == 1
        assert log.read_bytes() == before
        writer.judge("When?", {"c": True}, BY)
        with pytest.raises(CannotWrite, match="may not be whole on the disk"):
            writer.close_file()
    WitnessWriter(log)  # it holds no lock
