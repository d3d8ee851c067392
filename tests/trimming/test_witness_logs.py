"""Logs of verdicts and undoings, drawn at random: what they mean, held against plain dictionaries; their digests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blendfilter.errors import BadArgument, UnknownName
from blendfilter.records import one_line
from blendfilter.trimming.witnesses import JudgedBy, Witnesses, WitnessWriter, question_id

BY = JudgedBy("9f3a", "word", ("phi1",), "some-model", "shipped")
OTHER = JudgedBy("1c77", "components", ("phi1", "phi2"), "another-model", "")
PASSAGES = ("a,b", "a", "b", "Größe\n2")
QUESTIONS = ("Who runs the mill?", "Who closed the mill?", "mill", "Wer führt\ndie Mühle?")
VERDICTS = st.dictionaries(st.sampled_from(PASSAGES), st.sampled_from([True, True, False, False, None]), max_size=4)
STEPS = st.one_of(
    st.tuples(st.just("judge"), st.sampled_from(QUESTIONS), VERDICTS),
    st.tuples(st.just("begin"), st.sampled_from(QUESTIONS), VERDICTS),
    st.tuples(st.just("undo"), st.sampled_from(QUESTIONS), st.none()),
    st.tuples(st.just("undo pair"), st.sampled_from(PASSAGES), st.sampled_from(PASSAGES)),
    st.tuples(st.just("undo all"), st.none(), st.none()),
)


@pytest.fixture(autouse=True, scope="module")
def no_sync() -> Iterator[None]:
    """A thousand files: what the disk does with each is no part of what is asked here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


class Plain:
    """The same state as dictionaries and sets, the slow way."""

    def __init__(self) -> None:
        self.judged: dict[str, dict[str, bool | None]] = {}
        self.begun: dict[str, dict[str, bool | None]] = {}
        self.witnesses: dict[frozenset[str], set[str]] = {}

    def close(self, question: str) -> None:
        verdicts = self.judged[question] = self.begun.pop(question, {})
        for a in verdicts:
            for b in verdicts:
                if verdicts[a] is True and verdicts[b] is False:
                    self.witnesses.setdefault(frozenset((a, b)), set()).add(question_id(question))

    def undo(self, question: str) -> None:
        self.begun.pop(question, None)
        self.judged.pop(question, None)
        for names in self.witnesses.values():
            names.discard(question_id(question))

    def seen(self, threshold: int) -> object:
        """What a search reads of it."""
        pairs = {pair: names for pair, names in self.witnesses.items() if len(names) >= threshold}
        read = {one_line(question): {p for p in verdicts if verdicts[p]} for question, verdicts in self.judged.items()}
        return (pairs, read) if pairs else None


def step(writer: WitnessWriter, plain: Plain, kind: str, one: Any, two: Any) -> None:
    """One step in both, as far as it is allowed; what is not is refused."""
    if kind in ("judge", "begin"):
        if one in plain.judged:
            with pytest.raises(BadArgument):
                writer.close(one, [])
            return
        for passage, verdict in two.items():
            writer.verdict(one, passage, verdict, BY)
            plain.begun.setdefault(one, {})[passage] = verdict
        if kind == "judge":
            writer.close(one, list(plain.begun.get(one, {})))
            plain.close(one)
    elif kind == "undo all":
        writer.undo_all()
        plain.__init__()  # type: ignore[misc]
    elif kind == "undo":
        known = one in plain.judged or one in plain.begun
        refused(not known, lambda: writer.undo_question(one))
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
        assert [(set(each.pair), set(each.witnesses)) for each in state.separated(threshold)] == [
            (set(pair), pairs[frozenset(pair)]) for pair in sorted(tuple(sorted(pair)) for pair in pairs)
        ]
        for a in PASSAGES:
            assert state.partners(a, threshold) == tuple(sorted(b for b in PASSAGES if frozenset((a, b)) in pairs))
    assert state.separations() == sum(map(bool, plain.witnesses.values()))
    assert {each.question for each in state.judged.values()} == set(map(one_line, plain.judged))
    assert list(state.judged) == sorted(state.judged)
    for question, verdicts in plain.begun.items():
        assert state.half(question_id(question)) == verdicts


def judged(writer: WitnessWriter, question: str, verdicts: dict[str, bool | None], by: JudgedBy) -> None:
    for passage, verdict in verdicts.items():
        writer.verdict(question, passage, verdict, by)
    writer.close(question, list(verdicts))


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


@given(st.dictionaries(st.sampled_from(QUESTIONS), VERDICTS, min_size=1), st.data())
@settings(max_examples=40)
def test_a_digest_knows_no_history(verdicts: dict[str, dict[str, bool | None]], data: st.DataObject) -> None:
    """The same questions in another order, some judged otherwise first and undone, one begun: the same digest."""
    digests = []
    for straight in (True, False):
        with file() as path, WitnessWriter(path) as writer:
            order = list(verdicts) if straight else data.draw(st.permutations(list(verdicts)))
            for question in order:
                if not straight and data.draw(st.booleans()):
                    judged(writer, question, {**dict.fromkeys(verdicts[question], True), "other": False}, OTHER)
                    writer.undo_question(question)
                items = list(verdicts[question].items())
                judged(writer, question, dict(items if straight else data.draw(st.permutations(items))), BY)
            if not straight:
                writer.verdict("begun only", "p1", True, BY)
            digests.append((writer.witnesses.digest(1), Witnesses.read(path).digest(1)))
    assert len({each for pair in digests for each in pair}) == 1


@given(st.text(min_size=1), st.lists(st.text(), min_size=2, max_size=4, unique=True))
@settings(max_examples=40)
def test_ids_and_questions_are_data(question: str, ids: list[str]) -> None:
    if not question.strip():
        return
    with file() as path:
        with WitnessWriter(path) as writer:
            for at, passage in enumerate(ids):
                writer.verdict(question, passage, at == 0, BY)
            writer.close(question, ids)
        (only,) = Witnesses.read(path).judged.values()
        assert (only.question, only.accepted, only.rejected) == (one_line(question), (ids[0],), tuple(ids[1:]))
        assert path.read_bytes().count(b"\n") == 3 + len(ids)
