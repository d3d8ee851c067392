"""Witnesses: verdicts, closed questions, what is undone; one writer; Theorem 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blendfilter.errors import BadArgument, RunLocked, UnknownName
from blendfilter.trimming.witnesses import JudgedBy, Separation, Witnesses, WitnessWriter, pair_named, question_id

BY = JudgedBy("9f3a", "word", ("phi1",), "some-model", "shipped")
OTHER = JudgedBy("1c77", "components", ("phi1", "phi2"), "another-model", "")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "witnesses.jsonl"


def judged(writer: WitnessWriter, question: str, by: JudgedBy = BY, **verdicts: bool | None) -> str:
    """Judge and close a question; its id."""
    for passage, verdict in verdicts.items():
        writer.verdict(question, passage, verdict, by)
    writer.close(question, list(verdicts))
    return question_id(question)


def test_theorem_1(path: Path) -> None:
    """The paper's Figure 4, where A is "He turned on the radio" and B is "He turned off the radio".

    q1 and q2 agree with A and not with B, q3 with B and not with A: the verdicts on A and B differ each time, so each
    of the three is a witness to their separation, whichever side it took. q4 agrees with both and is none; C, which
    nobody rejected along with an accepted one, is separated from nothing but what q3 rejected beside it.
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


def test_no_verdict_witnesses_nothing_and_rank_order_is_kept(path: Path) -> None:
    with WitnessWriter(path) as writer:
        for passage, verdict in (("d", None), ("b", True), ("c", None), ("a", True)):
            writer.verdict("Who?", passage, verdict, BY)
        writer.close(" Who?\n", ["a", "b", "c", "d"])
    (only,) = Witnesses.read(path).judged.values()
    assert (only.question, only.accepted, only.rejected, only.silent) == ("Who?", ("a", "b"), (), ("c", "d"))
    assert Witnesses.read(path).separations() == 0
    assert Witnesses.read(path).digest(1) == ""


def test_a_question_counts_once_it_is_closed(path: Path) -> None:
    with WitnessWriter(path) as writer:
        writer.verdict("Who?", "a", True, BY)
        writer.verdict("Who?", "b", False, BY)
    half = Witnesses.read(path)
    assert (half.half(question_id("Who?")), half.half("0" * 12)) == ({"a": True, "b": False}, {})
    assert (half.separations(), dict(half.judged), dict(half.halves)) == (0, {}, {question_id("Who?"): "Who?"})
    with WitnessWriter(path) as writer:  # the next sitting
        with pytest.raises(BadArgument, match=r"passage 'c' has no verdict for 'Who\?': judge"):
            writer.close("Who?", ["a", "b", "c"])
        with pytest.raises(BadArgument, match="passage 'b' was retrieved twice"):
            writer.close("Who?", ["a", "b", "b"])
        writer.verdict("Who?", "c", False, BY)
        writer.close("Who?", ["a", "b", "c"])
        assert writer.witnesses.half(question_id("Who?")) == {}
        with pytest.raises(BadArgument, match=r"judged already .*: undo it first"):
            writer.verdict("Who?", "d", True, BY)
        with pytest.raises(BadArgument, match="judged already"):
            writer.close("Who?", [])
    assert Witnesses.read(path).partners("a", 1) == ("b", "c")


def test_one_question_has_one_judge(path: Path) -> None:
    """Where another judge goes on with what one had begun, it begins anew: no entry names the wrong one."""
    name = question_id("Who?")
    with WitnessWriter(path) as writer:
        writer.verdict("Who?", "a", True, BY)
        writer.verdict("Who?", "b", False, OTHER)
        assert writer.witnesses.half(name) == writer.witnesses.half(name, OTHER) == {"b": False}
        assert writer.witnesses.half(name, BY) == {}
        writer.verdict("Who?", "a", False, OTHER)
        writer.close("Who?", ["a", "b"])
    only = Witnesses.read(path).judged[name]
    assert (only.by, only.accepted, only.rejected) == (OTHER, (), ("a", "b"))


def test_a_question_that_retrieved_nothing_is_judged_all_the_same(path: Path) -> None:
    with WitnessWriter(path) as writer:
        writer.close("Who?", [], BY)
    assert Witnesses.read(path).judged[question_id("Who?")].by == BY


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
        writer.verdict("Who?", passage, verdict, BY)
    with WitnessWriter(path) as writer, pytest.raises(BadArgument, match="the question is empty"):
        writer.verdict(" \n", "a", True, BY)
    assert path.read_bytes() == b""


DIFFERENT: dict[str, dict[str, dict[str, bool | None]]] = {
    "as it is": {"Who?": {"a": True, "b": False}},
    "the other side won": {"Who?": {"a": False, "b": True}},
    "the nearest question may be one that witnesses nothing": {"Who?": {"a": True, "b": False}, "When?": {}},
    "and may accept": {"Who?": {"a": True, "b": False}, "When?": {"a": True}},
    "another witness": {"When?": {"a": True, "b": False}, "Who?": {"a": True}},
    "another passage": {"Who?": {"a": True, "c": False}},
}


def test_what_a_search_can_tell_apart_has_another_digest(tmp_path: Path) -> None:
    digests = {}
    for name, questions in DIFFERENT.items():
        with WitnessWriter(tmp_path / f"{name}.jsonl") as writer:
            for question, verdicts in questions.items():
                judged(writer, question, **verdicts)
            writer.verdict("begun only", "a", True, BY)
            digests[name] = writer.witnesses.digest(1)
    assert len(set(digests.values())) == len(DIFFERENT)
    with WitnessWriter(
        tmp_path / "as it is.jsonl"
    ) as writer:  # neither who judged nor what was rejected or silent besides
        writer.undo_question("Who?")
        judged(writer, "Who?", OTHER, a=True, b=False, c=None)
        assert writer.witnesses.digest(1) == digests["as it is"]


# --- undoing --------------------------------------------------------------------------------------------------------


def test_an_undone_question_may_be_judged_again(path: Path) -> None:
    with WitnessWriter(path) as writer:
        before = judged(writer, "Who?", a=True, b=False) and writer.witnesses.digest(1)
        writer.undo_question(question_id("Who?"))
        assert (writer.witnesses.separations(), writer.witnesses.digest(1)) == (0, "")
        assert dict(writer.witnesses.judged) == {}
        judged(writer, "Who?", a=True, b=False)
    assert Witnesses.read(path).digest(1) == before != ""


def test_an_undone_pair_is_witnessed_anew_by_later_questions_only(path: Path) -> None:
    with WitnessWriter(path) as writer:
        first = judged(writer, "Who?", a=True, b=False, c=False)
        judged(writer, "When?", a=True, b=False)
        writer.undo_pair("b", "a")
        assert writer.witnesses.witnesses_of("a", "b") == ()
        assert writer.witnesses.witnesses_of("a", "c") == (first,)
        assert len(writer.witnesses.judged) == 2
        third = judged(writer, "Where?", a=False, b=True)
        assert writer.witnesses.partners("a", 1) == ("b", "c")
        writer.undo_question("Who?")
    assert list(Witnesses.read(path).separated(1)) == [Separation(("a", "b"), (third,))]


def test_a_question_that_was_begun_can_be_undone(path: Path) -> None:
    with WitnessWriter(path) as writer:
        writer.verdict("Who?", "a", True, BY)
        writer.undo_question(" Who?\n")
        writer.verdict("Who?", "b", True, BY)
    assert Witnesses.read(path).half(question_id("Who?")) == {"b": True}


def test_undoing_everything_leaves_nothing(path: Path) -> None:
    with WitnessWriter(path) as writer:
        judged(writer, "Who?", a=True, b=False)
        judged(writer, "When?", a=True, b=False)
        writer.verdict("Where?", "a", True, BY)
        assert writer.undo_all() == 3
        written = path.read_bytes()
        assert writer.undo_all() == 0
    assert path.read_bytes() == written
    state = Witnesses.read(path)
    assert (state.digest(1), state.separations(), dict(state.judged), dict(state.halves)) == ("", 0, {}, {})
    assert (state.partners("a", 1), list(state.separated(1))) == ((), [])


def test_what_cannot_be_undone_is_named_with_what_is_near(path: Path) -> None:
    with WitnessWriter(path) as writer:
        name = judged(writer, "Who runs the mill?", p41=True, p42=False)
        written = path.read_bytes()
        with pytest.raises(UnknownName, match=r"no judged question 'Who run the mill'. Did you mean 'Who runs"):
            writer.undo_question("Who run the mill")
        with pytest.raises(UnknownName, match=f"Did you mean '{name}'"):
            writer.undo_question(name[:-1])
        with pytest.raises(UnknownName, match=r"no question separates 'p41' and 'p43'. Did you mean 'p41,p42'"):
            writer.undo_pair("p41", "p43")
        assert path.read_bytes() == written
        writer.undo_pair("p41", "p42")
        with pytest.raises(UnknownName, match=r"separates 'p41' and 'p42'. \(0 pairs are separated"):
            writer.undo_pair("p41", "p42")
        writer.undo_question(name)
        with pytest.raises(UnknownName, match=r"\(0 questions are judged"):
            writer.undo_question(name)


def test_a_pair_is_named_by_two_ids_that_may_hold_commas(path: Path) -> None:
    with WitnessWriter(path) as writer:
        judged(writer, "Who?", **{"a,b": True, "c": False, "d": False})
        assert pair_named(writer.witnesses, "c,a,b") == pair_named(writer.witnesses, "a,b, c") == ("a,b", "c")
        with pytest.raises(BadArgument, match="'c' is no pair: write two passage ids"):
            pair_named(writer.witnesses, "c")
        with pytest.raises(UnknownName, match=r"Did you mean 'c,a,b'"):
            pair_named(writer.witnesses, "c,a")
        judged(writer, "When?", **{"a": True, "b,c": False})
        with pytest.raises(BadArgument, match="names more than one pair"):
            pair_named(writer.witnesses, "a,b,c")


@pytest.mark.parametrize("threshold", [0, -1, True, 1.5, "2"])
def test_a_threshold_is_a_whole_number_from_one_up(threshold: Any) -> None:
    state = Witnesses()
    for ask in (lambda: list(state.separated(threshold)), lambda: state.partners("a", threshold)):
        with pytest.raises(BadArgument, match="whole number of witnesses from 1 up"):
            ask()
    with pytest.raises(BadArgument, match="from 1 up"):
        state.digest(threshold)


# --- one writer -----------------------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_and_readers_are_not(path: Path) -> None:
    with WitnessWriter(path) as writer:
        judged(writer, "Who?", a=True, b=False)
        with pytest.raises(RunLocked, match=r"by another trim or by a writer still open .*wait for it"):
            WitnessWriter(path)
        assert Witnesses.read(path).separations() == 1
    with pytest.raises(BadArgument, match="is closed and takes no verdicts"):
        writer.undo_all()
    WitnessWriter(path).close_file()


def test_half_a_character_does_no_harm(path: Path) -> None:
    with WitnessWriter(path) as writer:
        judged(writer, "Who \ud800?", **{"a\udcff": True, "b": False})
        live = writer.witnesses
    assert Witnesses.read(path).judged == live.judged
    assert Witnesses.read(path).partners("b", 1) == ("a\udcff",)
