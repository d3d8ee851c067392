"""Replies of FilCo's filter, counted as the filter reads them."""

from __future__ import annotations

from pathlib import Path

from isle import PASSAGES, QUESTION
from small_world import CountingEngine, done_by

from blendfilter.evaluation.examining.seen import seen
from blendfilter.evaluation.known import Known
from blendfilter.evaluation.replies import Share
from blendfilter.filters.filco import FilCoFilter
from blendfilter.lm.offline import read
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.records import Passage, Question
from blendfilter.tasks import Questions
from blendfilter.tasks.loading import TASKS

MANY = " ".join(f"Light {n} stood there, 4 and 5 by night." for n in range(9))


def replied(helpful: str, again: str, run: Path) -> dict[str, Share]:
    """The shares of a run whose queries all bring the same passages."""

    def reply(prompt: str) -> str:
        if not prompt.endswith("Ids:"):
            return read(prompt)
        return again if "Write only the number" in prompt else helpful

    passages = [Passage("1", "Lights", MANY), *PASSAGES]
    questions = Questions((Question("q", QUESTION, ("Ada Brennock",)),), TASKS["qa"])
    method = BlendFilter(lambda query, k: passages[:k], k=2, filter=FilCoFilter())
    done, _ = done_by(method, questions, run, engine=CountingEngine(reply=reply))
    return dict(seen(Known(done)).shares)


def test_what_a_reply_writes_out_is_no_number(tmp_path: Path) -> None:
    told = replied("2: Lights | Light 2 stood there, 4 and 5 by night.", "", tmp_path / "run")
    assert (told["read_ids"].count, told["suspect_ids"].count) == (told["read_ids"].of, 0)
    assert told["rambling"] == Share(0, told["rambling"].of)


def test_a_second_try_is_read_alike_and_long_ones_are_rambling(tmp_path: Path) -> None:
    long = "I would say that this is hard to tell from what little is given here"
    told = replied(long, "Light 2 stood there, 4 and 5 by night. (2)", tmp_path / "run")
    assert told["unparseable_ids"].count == told["read_again"].count == told["read_again"].of > 0
    assert told["rambling"].count == told["unparseable_ids"].count
