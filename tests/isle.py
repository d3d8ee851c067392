"""A few invented passages, a retriever that knows which query asks, and every predictor of a task: what tests share.

The passages are about the island of Quillmere, which does not exist. Golden prompts are made of them too, so a change
here changes `tests/golden`.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dspy
import openai
from scripted import ScriptedLM

from blendfilter.asking import Ask, TaskWording
from blendfilter.filters.cdit import PHI1, PHI2, Judge
from blendfilter.filters.filco import FilCoFilter
from blendfilter.filters.knowledge import OneCallFilter, PointwiseFilter
from blendfilter.filters.written import BIDERFilter, SummaryFilter, TrainedFilCoFilter, TrainedPSGFilter
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.direct import ChainOfThought, Direct
from blendfilter.modules.multi_hop import ReAct, SelfAsk
from blendfilter.records import Passage

TASKS = ("hotpotqa", "twowiki", "strategyqa", "nq", "triviaqa", "fever", "fever-nei", "eli5", "wow", "popqa", "arc",
         "pubhealth")  # fmt: skip

QUESTION = "Who kept the lighthouse that stands beside Tolm Harbour?"
PASSAGES = (
    Passage("p0", "Tolm Harbour", "Tolm Harbour is the only port of Quillmere. Skerry Light stands beside it."),
    Passage("p1", "Skerry Light", "Skerry Light is a lighthouse of 1884. Ada Brennock kept it for thirty years."),
    Passage("p2", "Quillmere", "Quillmere is an island of two villages."),
    Passage("p3", "Ada Brennock", "Ada Brennock was a lighthouse keeper and beekeeper."),
    Passage("p4", "Honey of Quillmere", "Heather honey is sold in both villages."),
)
LINES = [passage.line for passage in PASSAGES]

EXTERNAL = "Skerry Light stands beside Tolm Harbour.\nSo the answer is the keeper of Skerry Light."
INTERNAL = "Lighthouses of small islands were often kept by one family."
CHECK = "0 names the lighthouse and is relevant. 2 is irrelevant."
JUDGEMENT = "0 names the lighthouse: relevant.\n1 is about honey: irrelevant.\nIds: 0"
REASONING = "Skerry Light stands beside Tolm Harbour. Ada Brennock kept it.\nSo the answer is Ada Brennock."
REPLIES = {
    "external": EXTERNAL,
    "internal": INTERNAL,
    "topic": "lighthouses",
    "check": CHECK,
    "ids": "0",
    "ids_again": "0",
    "judge": JUDGEMENT,
    "relevant": "Yes",
    "helpful": "0",
    "write": "Skerry Light stands beside it.",
    "consistent": "True",
    "consistent_again": "True",
    "answer": REASONING,
    "short_answer": "Ada Brennock",
    "direct": "Ada Brennock",
    "respond": "Ada Brennock",
    "step": "Ada Brennock kept it.\nSo the final answer is: Ada Brennock",
}
"""One plausible reply for each stage."""

FOLLOW_UP = "Which lighthouse stands beside Tolm Harbour?"
TRANSCRIPT = ["Are follow-up questions needed here: Yes.", f"Follow-up: {FOLLOW_UP}"]
TRAJECTORY = ["Thought 1: I need the lighthouse first.", f"Action 1: Search[{FOLLOW_UP}]", "Observation 1:"]

Q_EX = "Skerry Light stands beside Tolm Harbour. So the answer is the keeper of Skerry Light. " + QUESTION
Q_IN = INTERNAL + " " + QUESTION


def replies(**changed: str | Callable[[str], str]) -> Callable[[str, str], str]:
    """A script that answers each stage as `REPLIES` says, or as `changed` does."""

    def reply(stage: str, prompt: str) -> str:
        result = changed.get(stage, REPLIES[stage])
        return result(prompt) if callable(result) else result

    return reply


class Shelf:
    """A retriever (query, k) that tells the three queries of `QUESTION` apart, and remembers what was searched."""

    def __init__(
        self, q: Sequence[Passage], q_ex: Sequence[Passage], q_in: Sequence[Passage], question: str = QUESTION
    ) -> None:
        self.lists = {"q": q, "q_ex": q_ex, "q_in": q_in}
        self.question = question
        self.searches: list[tuple[str, int]] = []
        self._lock = threading.Lock()

    def __call__(self, query: str, k: int) -> list[Passage]:
        with self._lock:
            self.searches.append((query, k))
        if query == self.question:
            return list(self.lists["q"])[:k]
        return list(self.lists["q_in" if query.startswith(INTERNAL) else "q_ex"])[:k]


def three_lists() -> Shelf:
    """A shelf on which each query finds passages of its own."""
    return Shelf(PASSAGES[:2], PASSAGES[1:3], PASSAGES[3:5])


def one_list() -> Shelf:
    """A shelf on which every query finds the same."""
    return Shelf(PASSAGES, PASSAGES, PASSAGES)


def nothing(query: str, k: int) -> list[Passage]:
    """A retriever that finds nothing."""
    return []


def predictors(task: str, **settings: Any) -> dict[str, Ask]:
    """Every predictor that the methods use on `task`, by a name that says which prompt it is."""
    whole = BlendFilter(nothing, task=task, **settings)
    wording = TaskWording.of(task) if isinstance(task, str) else task
    sentences, passages = (FilCoFilter(unit, wording=wording, **settings) for unit in ("sentence", "passage"))
    word, components = (Judge(mode, wording=wording, **settings) for mode in ("word", "components"))
    return {
        "external": whole.blending.external,
        "internal": whole.blending.internal,
        "topic": whole.select.topic,
        "check": whole.select.check,
        "ids": whole.select.ids,
        "ids_again": whole.select.ids_again,
        "judge": OneCallFilter(wording=wording, **settings).judge,
        "relevant": PointwiseFilter(wording=wording, **settings).relevant,
        "helpful_sentences": sentences.helpful,
        "helpful_sentences_again": sentences.ids_again,
        "helpful_passages": passages.helpful,
        "helpful_passages_again": passages.ids_again,
        "written_filco": TrainedFilCoFilter(**settings).write,
        "written_passages": TrainedPSGFilter(**settings).write,
        "written_bider": BIDERFilter(**settings).write,
        "written_summary": SummaryFilter(**settings).write,
        "consistent_word": word.consistent,
        "consistent_word_again": word.second_request(),
        "consistent_components": components.consistent,
        "consistent_components_again": components.second_request(),
        "answer": whole.answering.answer,
        "short_answer": whole.answering.short_answer,
        "direct": Direct(task=task, **settings).direct,
        "direct_retrieval": Direct(nothing, task=task, **settings).direct,
        "cot": ChainOfThought(task=task, **settings).answering.answer,
        "cot_retrieval": ChainOfThought(nothing, task=task, **settings).answering.answer,
        "self_ask": SelfAsk(nothing, task=task, **settings).step,
        "react": ReAct(nothing, task=task, **settings).step,
        "react_thought_action": ReAct(nothing, style="thought-action", task=task, **settings).step,
    }


NAMES = tuple(predictors("hotpotqa"))

CUES = {
    "external": "Let's think step by step.",
    "internal": "Passage:",
    "topic": "Topic:",
    "check": "Relevance:",
    "ids": "Ids:",
    "ids_again": "Ids:",
    "judge": "Judgement:",
    "relevant": "Relevant:",
    "helpful_sentences": "Ids:",
    "helpful_sentences_again": "Ids:",
    "helpful_passages": "Ids:",
    "helpful_passages_again": "Ids:",
    "written_filco": "Context:",
    "written_passages": "Ids:",
    "written_bider": "Context:",
    "written_summary": "Context:",
    "consistent_word": "Verdict:",
    "consistent_word_again": "Verdict:",
    "consistent_components": "Comparison:",
    "consistent_components_again": "Comparison:",
    "answer": "Let's think step by step.",
    "short_answer": "Answer:",
    "direct": "Answer:",
    "direct_retrieval": "Answer:",
    "cot": "Let's think step by step.",
    "cot_retrieval": "Let's think step by step.",
    "self_ask": "Intermediate answer:",
    "react": "Intermediate answer:",
    "react_thought_action": "Thought 2:",
}
"""What the last line of each prompt begins with, and all of it but for a reminder in parentheses."""
PRIMED = {"topic": "Topic: the question belongs to"}
"""The cue that the reply goes on with in the papers' shape."""


def ends_with_its_cue(prompt: str, name: str) -> bool:
    """Whether a prompt's last line is its cue, as in ``Ids:`` or ``Ids (numbers only):``, or primed."""
    last = prompt.rsplit("\n", 1)[-1]
    return re.sub(r" \([^()]+\):$", ":", last) == CUES[name] or last == PRIMED.get(name)


def inputs(predictor: Ask, **changed: Any) -> dict[str, Any]:
    """Values for every input field of `predictor`: those above, less what is `changed`."""
    inside = [] if "knowledge" in predictor.signature.input_fields else ["Knowledge:", *LINES]
    values: Mapping[str, Any] = {
        "transcript": [*TRANSCRIPT, *inside, "Intermediate answer:"],
        "trajectory": [*TRAJECTORY, *LINES, "Thought 2:"],
        "question": QUESTION,
        "knowledge": LINES,
        "rules": [PHI1.line, PHI2.line],
        "passage": LINES[1],
        "context": CHECK if "ids" in predictor.signature.output_fields else REASONING,
        "topic": "lighthouses",
        "offer_none": False,
        **changed,
    }
    return {name: values[name] for name in predictor.signature.input_fields}


def slowed(lm: ScriptedLM, delay: Callable[[], float]) -> ScriptedLM:
    """`lm`, whose engine waits before each answer."""
    quick = lm.inner.complete

    async def complete(request: Any) -> Any:
        await asyncio.sleep(delay())
        return await quick(request)

    lm.inner.complete = complete  # type: ignore[method-assign]
    return lm


class Echo(dspy.BaseLM):
    """A user's own model: synchronous only, in OpenAI's shape."""

    def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        text = messages[-1]["content"] if messages else prompt
        result = "0" if text.rpartition("\n")[2].startswith("Ids") else "So the answer is Tolm."
        message = {"role": "assistant", "content": result}
        return openai.types.chat.ChatCompletion.model_validate(
            {
                "id": "1",
                "created": 0,
                "object": "chat.completion",
                "model": "echo",
                "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
            }
        )
