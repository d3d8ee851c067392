"""Answer generation: a reasoning over the knowledge kept, then the short answer it arrives at."""

from __future__ import annotations

import asyncio
from typing import Any

import dspy
from isle import LINES, PASSAGES, QUESTION, REASONING
from scripted import ScriptedLM, scripted

from blendfilter.modules.answering import Answering

REPLIES = {"answer": [REASONING], "short_answer": ["Ada Brennock\nbecause she kept it."]}


def answered(knowledge: Any = PASSAGES, **settings: Any) -> tuple[dspy.Prediction, ScriptedLM]:
    with scripted(REPLIES) as lm, dspy.context(lm=lm):
        return asyncio.run(Answering(**settings).acall(question=QUESTION, knowledge=knowledge)), lm


def test_the_short_answer_reads_the_whole_reasoning() -> None:
    """a = M(a | Prompt_CoT(q, K_r)) (section 3.4), then the answer alone (appendix F)."""
    result, lm = answered()
    assert [stage for stage, _ in lm.prompts] == ["answer", "short_answer"]
    own = "\n".join(["Knowledge:", *LINES, f"Question: {QUESTION}", "Let's think step by step."])
    assert lm.asked("answer")[0].endswith("\n" + own)
    assert lm.asked("short_answer")[0].endswith(f"\nContext:\n{REASONING}\nQuestion: {QUESTION}\nAnswer:")
    assert (result.answer, result.reasoning) == ("Ada Brennock", REASONING)


def test_without_retrieval_there_is_no_block_at_all() -> None:
    _, lm = answered(knowledge=PASSAGES, template="cot")
    assert "Knowledge:" not in lm.asked("answer")[0]
    assert lm.asked("answer")[0].endswith(f"\n\nQuestion: {QUESTION}\nLet's think step by step.")


def test_an_empty_reasoning_still_asks_for_the_answer() -> None:
    with scripted({"answer": [""], "short_answer": [""]}) as lm, dspy.context(lm=lm):
        prediction = Answering()(question=QUESTION, knowledge=PASSAGES)
    assert (prediction.answer, prediction.reasoning) == ("", "")
