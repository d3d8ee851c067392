"""Who is asking: the question, its repeat, the stage and sample that a model call or search belongs to.

Context variables, because one question's branches run side by side and cross from threads to the loop and back; DSPy
carries its own settings the same way. Nothing here knows models, indexes or journals.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple


class CallNote(NamedTuple):
    """One model call as a method's record keeps it: which stage, under which journal key, and how the reply ended."""

    stage: str
    key: str
    """Empty where it is an event alone, and no model was called (a search that cut its query)."""
    event: str = ""
    """`empty_reply`, `cut_reply`, `refused_reply`, `prompt_cut`, `query_cut`, or empty where all is well."""


class CallSample(NamedTuple):
    """Which of several equal requests this is: DSPy's `rollout_id` and i of n; never the order of arrival."""

    rollout_id: int | None = None
    i: int = 0


QUESTION: ContextVar[str] = ContextVar("blendfilter_question", default="")
"""Id of the question under work, for messages."""
REPEAT: ContextVar[int] = ContextVar("blendfilter_repeat", default=1)
"""Which of several answers to it this is; a call of a later one is another sample, a search is the same search."""
ORDER: ContextVar[int] = ContextVar("blendfilter_order", default=0)
"""Its place in the run: the oldest question's calls go first."""
STAGE: ContextVar[str] = ContextVar("blendfilter_stage", default="")
"""Name of the predictor that asks."""
_ONLY = CallSample()
SAMPLE: ContextVar[CallSample] = ContextVar("blendfilter_sample", default=_ONLY)
ANEW: ContextVar[bool] = ContextVar("blendfilter_anew", default=False)
"""Whether the call is to be made though the cache has it."""
NOTES: ContextVar[list[CallNote] | None] = ContextVar("blendfilter_notes", default=None)
"""Where the calls of the step at hand are noted; None outside a method."""
BRANCH: ContextVar[str | None] = ContextVar("blendfilter_branch", default=None)
"""The branch of the method that asks, where the call can be no other branch's."""
JUDGED: ContextVar[tuple[str, ...]] = ContextVar("blendfilter_judged", default=())
"""Ids of the passages that the calls at hand judge, in the order in which the model reads them."""
JOURNAL: ContextVar[Any] = ContextVar("blendfilter_search_journal", default=None)
"""The journal that searches go through; None outside a run."""
RUN_QUESTIONS: ContextVar[Sequence[Any]] = ContextVar("blendfilter_run_questions", default=())
"""All questions of the run (`Question`), in its order; none outside a run."""
GIVEN: ContextVar[dict[str, Any] | None] = ContextVar("blendfilter_given", default=None)
"""The options of the command that makes a run, as `run.json` notes them; None in Python."""


@contextmanager
def setting(variable: ContextVar[Any], value: Any) -> Iterator[Any]:
    """`variable` holds `value` inside the block, and its old value after it."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


class Asker(NamedTuple):
    """All of the above in one piece, for threads that take DSPy's settings along and nothing else."""

    question: str
    order: int
    notes: list[CallNote]
    journal: Any
    repeat: int = 1
    questions: Sequence[Any] = ()


CARRIED = "blendfilter_asker"
"""Its name among DSPy's settings: `dspy.Parallel` starts threads that copy those and no context variables."""


@contextmanager
def rejoined() -> Iterator[None]:
    """Inside the block, who asks is known again in a thread that `dspy.Parallel` started."""
    dspy = sys.modules.get("dspy")
    asker: Asker | None = (
        dspy.settings.get(CARRIED) if dspy is not None and NOTES.get() is None else None
    )
    if asker is None:
        yield
        return
    with (
        setting(QUESTION, asker.question),
        setting(ORDER, asker.order),
        setting(NOTES, asker.notes),
        setting(JOURNAL, asker.journal),
        setting(REPEAT, asker.repeat),
        setting(RUN_QUESTIONS, asker.questions),
    ):
        yield


def note(key: str, event: str = "", stage: str | None = None) -> None:
    """Record one call of the step at hand (no-op outside a method)."""
    notes = NOTES.get()
    if notes is not None:
        notes.append(CallNote(STAGE.get() if stage is None else stage, key, event))


def calls_of(notes: Iterable[CallNote]) -> list[CallNote]:
    """The notes that are model calls which came to an end: no mere events, no errors."""
    return [note for note in notes if note.key and note.event != "error"]


def who() -> str:
    """The asker in words, for an error: ``question 'q7', stage 'ids'``."""
    parts = [
        f"question '{QUESTION.get()}'" if QUESTION.get() else "",
        f"stage '{STAGE.get()}'" if STAGE.get() else "",
    ]
    return ", ".join(part for part in parts if part) or "a call outside any question"
