"""Who is asking: the question, its repeat, the stage and sample that a model call or search belongs to.

One context variable, because one question's branches run side by side and cross from threads to the loop and back; DSPy
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


class Asker(NamedTuple):
    """Everything that a model call or a search knows of whoever asks.

    Attributes:
        question: id of the question under work, for messages.
        repeat: which of several answers to it this is; a call of a later one is another sample, a search is the same.
        order: the question's place in the run: the oldest question's calls go first.
        stage: name of the predictor that asks.
        sample: which of several equal requests a call is.
        anew: the call is to be made though the cache has it.
        branch: the branch of the method that asks, where the call can be no other branch's.
        judged: ids of the passages that the calls at hand judge, in the order in which the model reads them.
        notes: where the calls of the step at hand are noted; None outside a method.
        found: where a run keeps what each search of the question found, by (query, k, fingerprint); None
            outside one.
        journal: the journal that searches go through; None outside a run.
        questions: all questions of the run (`Question`), in its order; none outside a run.
        options: the options of the command that makes a run, as `run.json` notes them; None in Python.
        listener: what is sent a reply while it is written; without one no stream is requested.
        tally: the account of the model call under way; None outside one.
    """

    question: str = ""
    repeat: int = 1
    order: int = 0
    stage: str = ""
    sample: CallSample = CallSample()
    anew: bool = False
    branch: str | None = None
    judged: tuple[str, ...] = ()
    notes: list[CallNote] | None = None
    found: dict[tuple[str, int, str], Sequence[Any]] | None = None
    journal: Any = None
    questions: Sequence[Any] = ()
    options: dict[str, Any] | None = None
    listener: Any = None
    tally: Any = None


_NO_ASKER = Asker()
_ASKER: ContextVar[Asker] = ContextVar("blendfilter_asker", default=_NO_ASKER)


def asker() -> Asker:
    """Who is asking here and now."""
    return _ASKER.get()


@contextmanager
def setting(**changes: Any) -> Iterator[Asker]:
    """Inside the block these attributes of the asker have other values."""
    token = _ASKER.set(_ASKER.get()._replace(**changes))
    try:
        yield _ASKER.get()
    finally:
        _ASKER.reset(token)


@contextmanager
def noting() -> Iterator[list[CallNote]]:
    """Inside the block model calls are noted in the list that it gives."""
    notes: list[CallNote] = []
    with setting(notes=notes):
        yield notes


CARRIED = "blendfilter_asker"
"""The asker's name among DSPy's settings: `dspy.Parallel` starts threads that copy those and no context variables."""
_OF_THE_RUN = ("question", "repeat", "order", "notes", "found", "journal", "questions")
"""What such a thread takes over; the stage and the like it has set by itself."""


@contextmanager
def rejoined() -> Iterator[None]:
    """Inside the block, who asks is known again in a thread that `dspy.Parallel` started."""
    dspy = sys.modules.get("dspy")
    carried = dspy.settings.get(CARRIED) if dspy and asker().notes is None else None
    if carried is None:
        yield
        return
    with setting(**{name: getattr(carried, name) for name in _OF_THE_RUN}):
        yield


def note(key: str, event: str = "", stage: str | None = None) -> None:
    """Record one call of the step at hand (no-op outside a method)."""
    here = asker()
    if here.notes is not None:
        here.notes.append(CallNote(here.stage if stage is None else stage, key, event))


def calls_of(notes: Iterable[CallNote]) -> list[CallNote]:
    """The notes that are model calls which came to an end: no mere events, no errors."""
    return [note for note in notes if note.key and note.event != "error"]


def who() -> str:
    """The asker in words, for an error: ``question 'q7', stage 'ids'``."""
    named = {"question": asker().question, "stage": asker().stage}
    parts = [f"{what} '{name}'" for what, name in named.items() if name]
    return ", ".join(parts) or "a call outside any question"
