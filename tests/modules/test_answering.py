"""Answer generation: a reasoning over the knowledge kept, then the short answer it arrives at."""

from __future__ import annotations

import asyncio
from typing import Any

import dspy
import pytest
from isle import LINES, PASSAGES, QUESTION, REASONING, TASKS
from scripted import ScriptedLM, scripted

from blendfilter import aio
from blendfilter.errors import UseAcall
from blendfilter.modules.answering import Answering

REPLIES = {"answer": [REASONING], "short_answer": ["Ada Brennock\nbecause she kept it."]}


def answered(knowledge: Any = PASSAGES, **settings: Any) -> tuple[dspy.Prediction, ScriptedLM]:
    with scripted(REPLIES) as lm, dspy.context(lm=lm):
        return asyncio.run(Answering(**settings).acall(question=QUESTION, knowledge=knowledge)), lm


def test_the_short_answer_reads_the_whole_reasoning() -> None:
    """a = M(a | Prompt_CoT(q, K_r)) (section 3.4), then the answer alone (appendix F)."""
    said, lm = answered()
    assert [stage for stage, _ in lm.prompts] == ["answer", "short_answer"]
    own = "\n".join(["Knowledge:", *LINES, f"Question: {QUESTION}", "Let's think step by step."])
    assert lm.asked("answer")[0].endswith("\n" + own)
    assert lm.asked("short_answer")[0].endswith(f"\nContext:\n{REASONING}\nQuestion: {QUESTION}\nAnswer:")
    assert (said.answer, said.reasoning) == ("Ada Brennock", REASONING)


def test_no_knowledge_is_an_empty_block() -> None:
    _, lm = answered(knowledge=[])
    assert f"\nKnowledge:\nQuestion: {QUESTION}\n" in lm.asked("answer")[0]


def test_without_retrieval_there_is_no_block_at_all() -> None:
    _, lm = answered(knowledge=PASSAGES, template="cot")
    assert "Knowledge:" not in lm.asked("answer")[0]
    assert lm.asked("answer")[0].endswith(f"\n\nQuestion: {QUESTION}\nLet's think step by step.")


@pytest.mark.parametrize("task", TASKS)
def test_a_tasks_wording_reaches_both_steps(task: str) -> None:
    _, lm = answered(wording=task)
    yes_no = task == "strategyqa"
    assert ("The answer is always Yes or No." in lm.asked("answer")[0]) is yes_no
    assert ("Write Yes or No, and nothing else." in lm.asked("short_answer")[0]) is yes_no


def test_an_empty_reasoning_still_asks_for_the_answer() -> None:
    with scripted({"answer": [""], "short_answer": [""]}) as lm, dspy.context(lm=lm):
        said = Answering()(question=QUESTION, knowledge=PASSAGES)
    assert (said.answer, said.reasoning) == ("", "")


def test_the_synchronous_call_on_the_loop_thread() -> None:
    async def inside() -> None:
        Answering()(question=QUESTION)

    with pytest.raises(UseAcall, match=r"await Answering\.acall"):
        aio.run(inside())
