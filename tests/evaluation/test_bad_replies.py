"""Replies that a method could not use: their shares, the warnings they earn, and where these are shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import unruly
from chatty import chat
from scripted import ScriptedLM, response
from stored import write_rows

from blendfilter import BM25, BlendFilter, Run, evaluate, load
from blendfilter.errors import BadArgument
from blendfilter.evaluation.run_folder import METRICS, PREDICTIONS, read_rows
from blendfilter.evaluation.run_status import Share, bad_shares, check_share
from blendfilter.filters.cdit import CDITFilter
from blendfilter.lm.offline import read
from blendfilter.modules.direct import Direct
from blendfilter.tasks import Questions
from blendfilter.text import normalize_answer


def row(*stages: str, error: Any = None) -> dict[str, Any]:
    return {"calls": [[stage, f"{number:032x}"] for number, stage in enumerate(stages)], "error": error}


def test_ids_are_a_share_of_first_readings_the_others_of_all_uses() -> None:
    rows = [row("external", "check", "ids", "ids_again", "answer"), row("select.judge", "answer"), row("direct")]
    shares = bad_shares({"unparseable_ids": 1, "empty_reply": 2, "cut_reply": 3}, rows)
    assert shares == {
        "unparseable_ids": Share(1, 2),
        "empty_reply": Share(2, 8),
        "cut_reply": Share(3, 8),
        "no_verdict": Share(0, 0),
    }


def test_how_ids_were_read_is_unknown_where_a_question_failed() -> None:
    shares = bad_shares({"cut_reply": 1}, [row("ids", error={"kind": "timeout"}), row("ids")])
    assert shares["unparseable_ids"] == Share(0, 1)
    assert shares["cut_reply"] == Share(1, 2)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf])
def test_a_share_is_from_0_to_1(value: float) -> None:
    with pytest.raises(BadArgument, match=r"^max_bad_replies is .*: give a share from 0 to 1 \(0\.05 is 5 %\)$"):
        check_share(value, "max_bad_replies")


def moody(mood: str) -> ScriptedLM:
    def reply(stage: str, prompt: str) -> Any:
        result = unruly.said(prompt, mood)
        return response(result.text, finish="length" if result.cut else "stop")

    return ScriptedLM(reply)


def run_of(mood: str, index: BM25, questions: Questions, folder: Path, **options: Any) -> Run:
    return evaluate(BlendFilter(index, **options), questions, lm=moody(mood), run=folder, progress=False)


def test_unparseable_ids_are_warned_of_with_their_stage(index: BM25, questions: Questions, tmp_path: Path) -> None:
    run = run_of("restates", index, questions, tmp_path / "run")
    read_in = sum(stage == "ids" for each in run.rows for stage, _ in each["calls"])
    assert run.warnings == [
        f"100.0 % ({read_in} of {read_in}) of id replies could not be read; blendfilter doctor says what to change."
    ]
    assert f"Warning: {run.warnings[0]}" in run.report().splitlines()[1:3]
    run.max_bad_replies = 1.0
    assert run.warnings == []


def test_no_verdicts_are_warned_of_and_doctor_is_not_promised(
    index: BM25, questions: Questions, tmp_path: Path
) -> None:
    def reply(stage: str, prompt: str) -> str:
        return "Hard to tell." if stage.startswith("consistent") else read(prompt)

    method = Direct(index, filter=CDITFilter())
    run = evaluate(method, questions, lm=ScriptedLM(reply), run=tmp_path / "run", progress=False)
    (warning,) = run.warnings
    judged = sum(stage.endswith("consistent") for each in run.rows for stage, _ in each["calls"])
    assert warning.startswith(f"100.0 % ({judged} of {judged}) of judging replies were no verdict")
    assert "doctor" not in warning
    assert run.metrics["flags"]["no_verdict"] == judged


def test_a_model_that_chats_is_understood_at_the_first_word(index: BM25, tmp_path: Path) -> None:
    """Its replies mean what the plain ones of the offline reader do: the same passages kept, the same answers."""
    questions = load("qa", "sample")

    def run(say: Callable[[str], str], name: str) -> Run:
        lm = ScriptedLM(lambda stage, prompt: say(prompt))
        return evaluate(BlendFilter(index, k=5), questions, lm=lm, run=tmp_path / name, progress=False)

    plain, chatty = run(read, "plain"), run(chat, "chat")
    assert [row["knowledge"] for row in chatty.rows] == [row["knowledge"] for row in plain.rows]
    answers = [[normalize_answer(row["answer"]) for row in each.rows] for each in (plain, chatty)]
    assert answers[0] == answers[1]
    assert sum(len(row["calls"]) for row in chatty.rows) / len(questions) <= 11.3
    assert {name: count for name, count in chatty.metrics["flags"].items() if count} == {}


def test_a_replay_and_a_resumed_run_warn_the_same(index: BM25, questions: Questions, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = run_of("mixed", index, questions, folder)
    kept, metrics = first.warnings, (folder / METRICS).read_bytes()
    assert kept
    replayed = evaluate(BlendFilter(index), questions, lm=moody("mixed"), run=folder, replay=True, progress=False)
    assert replayed.warnings == kept
    write_rows(folder / PREDICTIONS, read_rows(folder / PREDICTIONS)[:3])
    (folder / METRICS).unlink()
    assert "Warning: " in Run(folder).report()  # of the questions so far
    assert run_of("mixed", index, questions, folder).warnings == kept
    assert (folder / METRICS).read_bytes() == metrics
