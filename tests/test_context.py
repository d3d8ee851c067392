"""Who is asking, and how it crosses tasks and threads."""

from __future__ import annotations

import asyncio

from blendfilter.context import NOTES, QUESTION, STAGE, CallNote, calls_of, note, setting, who


def test_setting_holds_inside_the_block_and_restores_after_it() -> None:
    with setting(STAGE, "outer"):
        with setting(STAGE, "inner") as value:
            assert (value, STAGE.get()) == ("inner", "inner")
        assert STAGE.get() == "outer"
    assert STAGE.get() == ""


def test_tasks_side_by_side_and_worker_threads_each_see_their_own() -> None:
    async def branch(name: str) -> tuple[str, str]:
        with setting(STAGE, name):
            await asyncio.sleep(0.001)
            return STAGE.get(), await asyncio.to_thread(STAGE.get)

    async def both() -> list[tuple[str, str]]:
        return await asyncio.gather(branch("external"), branch("internal"))

    assert asyncio.run(both()) == [("external", "external"), ("internal", "internal")]
    assert STAGE.get() == ""


def test_notes_are_kept_where_somebody_keeps_them() -> None:
    note("k0")  # nobody does: nothing happens
    with setting(NOTES, []) as notes, setting(STAGE, "ids"):
        note("k1")
        note("k2", "cut_reply")
        note("k3", "", stage="check")
        with setting(NOTES, []) as inner:
            note("k4")
    assert notes == [CallNote("ids", "k1"), CallNote("ids", "k2", "cut_reply"), CallNote("check", "k3")]
    assert inner == [CallNote("ids", "k4", "")]
    assert NOTES.get() is None


def test_the_asker_in_words() -> None:
    assert who() == "a call outside any question"
    with setting(STAGE, "ids"):
        assert who() == "stage 'ids'"
        with setting(QUESTION, "q7"):
            assert who() == "question 'q7', stage 'ids'"


def test_calls_are_notes_of_calls_that_came_to_an_end() -> None:
    answered, cut = CallNote("ids", "a" * 32), CallNote("answer", "b" * 32, "cut_reply")
    others = [CallNote("external", "", "query_cut"), CallNote("answer", "c" * 32, "error")]
    assert calls_of([answered, *others, cut]) == [answered, cut]
