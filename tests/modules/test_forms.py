"""The lines of the two forms: written and read, they agree; and demonstrations told in them."""

from __future__ import annotations

from typing import Any

import pytest
from isle import TASKS

from blendfilter.asking import Demonstration, TaskWording
from blendfilter.modules.multi_hop import (
    FOLLOW_UPS,
    THOUGHTS_AND_ACTIONS,
    Form,
    Hop,
    forced_answer,
    reacted,
    self_asked,
    thought_and_acted,
)

FORMS = [FOLLOW_UPS, THOUGHTS_AND_ACTIONS]
DEMOS = [demo for task in TASKS for demo in TaskWording.of(task).demos]


@pytest.mark.parametrize("form", FORMS, ids=["follow-ups", "thoughts"])
class TestForms:
    def test_what_is_written_is_read(self, form: Form) -> None:
        assert form.read(f"So.\n{form.asked(2, 'Who kept it?')}") == Hop("So.", "Who kept it?")
        assert form.read(f"So.\n{form.concluded(2, 'Ada')}") == Hop("So.", final="Ada")
        assert form.read(f"{form.cue(1)} So.\n{form.concluded(1, 'Ada')}") == Hop("So.", final="Ada")

    def test_a_line_that_goes_on_after_the_forced_cue_is_the_concluding_line(self, form: Form) -> None:
        assert form.concluded(3, "Ada").startswith(form.forced(3))
        assert forced_answer(form, 3, "Ada") == "Ada"
        assert forced_answer(form, 3, form.concluded(3, "Ada")) == "Ada"
        assert forced_answer(form, 3, "") == ""


@pytest.mark.parametrize("demo", DEMOS, ids=lambda demo: demo.question[:30])
class TestDemonstrations:
    def test_self_ask_shows_every_passage_above_the_question_the_newest_first(self, demo: Demonstration) -> None:
        told = self_asked(demo)
        assert sorted(told["knowledge"]) == sorted(demo.knowledge)
        newest = demo.found(demo.hops[-1])
        assert told["knowledge"][: len(newest)] == newest
        assert not set(told["transcript"]) & set(demo.knowledge)
        assert told["transcript"][0] == "Are follow-up questions needed here: Yes."

    def test_react_shows_each_hops_passages_under_its_follow_up(self, demo: Demonstration) -> None:
        lines = reacted(demo)["transcript"]
        for hop in demo.hops:
            at = lines.index(f"Follow-up: {hop.follow_up}")
            found = demo.found(hop)
            assert lines[at + 1 : at + 2 + len(found)] == ["Knowledge:", *found]
            assert lines[at + 2 + len(found)].startswith("Intermediate answer:")

    def test_its_last_turn_reads_as_the_answer(self, demo: Demonstration) -> None:
        for told, form in ((self_asked, FORMS[0]), (reacted, FORMS[0]), (thought_and_acted, FORMS[1])):
            row = told(demo)
            assert form.read(row["step"]).final == demo.answer
            turns = len(demo.hops) + 1
            assert (row.get("transcript") or row["trajectory"])[-1] == form.cue(turns)


@pytest.mark.parametrize(("told", "lines"), [(reacted, "transcript"), (thought_and_acted, "trajectory")])
def test_a_demonstrations_passage_cannot_pass_for_a_line_of_its_transcript(told: Any, lines: str) -> None:
    posing = DEMOS[0].model_copy(update={"knowledge": ["Intermediate answer: Rome."] * len(DEMOS[0].knowledge)})
    row = told(posing)[lines]
    assert "| Intermediate answer: Rome." in row
    assert "Intermediate answer: Rome." not in row
