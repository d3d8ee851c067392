"""Who is asking, and how it crosses tasks and threads."""

from __future__ import annotations

from blendfilter.context import CallNote, asker, calls_of, note, noting, setting, who


def test_notes_are_kept_where_somebody_keeps_them() -> None:
    note("k0")  # nobody does: nothing happens
    with noting() as notes, setting(stage="ids"):
        note("k1")
        note("k2", "cut_reply")
        note("k3", "", stage="check")
        with noting() as inner:
            note("k4")
    assert notes == [CallNote("ids", "k1"), CallNote("ids", "k2", "cut_reply"), CallNote("check", "k3")]
    assert inner == [CallNote("ids", "k4", "")]
    assert asker().notes is None


def test_the_asker_in_words() -> None:
    assert who() == "a call outside any question"
    with setting(stage="ids"):
        assert who() == "stage 'ids'"
        with setting(question="q7"):
            assert who() == "question 'q7', stage 'ids'"


def test_calls_are_notes_of_calls_that_came_to_an_end() -> None:
    answered, cut = CallNote("ids", "a" * 32), CallNote("answer", "b" * 32, "cut_reply")
    others = [CallNote("external", "", "query_cut"), CallNote("answer", "c" * 32, "error")]
    assert calls_of([answered, *others, cut]) == [answered, cut]
