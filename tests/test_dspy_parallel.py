"""`dspy.Parallel` over our modules and models: right answers, one record a call, each prediction's own usage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
from isle import QUESTION, one_list, replies
from scripted import ScriptedLM

from blendfilter.journal import Journal
from blendfilter.modules.blendfilter import BlendFilter

QUESTIONS = tuple(f"What of {i}?" for i in range(6))


def script(prompt: str) -> str:
    return prompt.rsplit("Question: ", maxsplit=1)[-1].split("?", maxsplit=1)[0]


def answers(journal: Journal | None = None, **how: Any) -> tuple[list[dspy.Prediction], ScriptedLM]:
    """The predictions of `QUESTIONS`, three at a time, and the model that was asked."""
    method, lm = BlendFilter(one_list()), ScriptedLM(replies(short_answer=script), journal=journal)
    with dspy.context(lm=lm, **how):
        pairs = [(method, {"question": question}) for question in QUESTIONS]
        return dspy.Parallel(num_threads=3, disable_progress_bar=True)(pairs), lm


def test_each_prediction_knows_its_usage() -> None:
    result, lm = answers(track_usage=True)
    usages = [each.get_lm_usage()["blendfilter/scripted"] for each in result]
    assert sum(usage["prompt_tokens"] for usage in usages) == sum(len(prompt.split()) for _, prompt in lm.prompts)
    assert all(usage["prompt_tokens"] > 0 for usage in usages)


def test_every_call_is_one_record(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        result, lm = answers(journal)
        records = [record for record in journal.records() if record["kind"] == "call"]
    assert len(records) == lm.calls
    assert {key for each in result for _, key in each.calls} == {record["key"] for record in records}


def test_a_failing_question_is_none_and_the_others_are_there() -> None:
    def reply(stage: str, prompt: str) -> Any:
        return RuntimeError("gone") if "What of 3?" in prompt else replies()(stage, prompt)

    method = BlendFilter(one_list())
    with dspy.context(lm=ScriptedLM(reply)):
        parallel = dspy.Parallel(num_threads=2, max_errors=5, return_failed_examples=True, disable_progress_bar=True)
        result, failed, errors = parallel([(method, {"question": question}) for question in (*QUESTIONS, QUESTION)])
    assert [each is None for each in result] == [False, False, False, True, False, False, False]
    assert (len(failed), len(errors)) == (1, 1)
    assert "gone" in str(errors[0])
