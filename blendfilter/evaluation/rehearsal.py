"""A rehearsal: a method over a few questions with the offline reader in the model's place, to see what it would ask.

In: a method, questions, a model, and journals that may hold some of its calls. Out: the calls that would have to be
made, each with its prompt as the model would read it, the reader's reply and the cap of the model's. Calls that a
journal holds answer for themselves, with what the model really said, for the stand-in asks under the model's own name.
No model is asked (an index behind an address is searched), and what the rehearsal writes lies in its caller's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import dspy
from dspy import lm15

from blendfilter.context import QUESTION, REPEAT, STAGE
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.runner import evaluate
from blendfilter.lm.journaled import prompt_of
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.lm.module_lms import lms_of, with_lms_connected
from blendfilter.lm.offline.engine import OfflineEngine
from blendfilter.lm.tokenisers import text_of
from blendfilter.tasks.base import Questions


class Rehearsed(NamedTuple):
    """A call that would have to be made; `cap`: tokens of its reply at the most, None where nothing bounds it."""

    turn: tuple[int, str]
    stage: str
    prompt: str
    reply: str
    cap: int | None
    lm: ConnectedLM


@dataclass(frozen=True)
class Rehearsal:
    """What came of it: the run in its folder, and the calls that no journal held."""

    run: Run
    calls: tuple[Rehearsed, ...]


class StandIn:
    """The offline reader as the engine of another model; what it is asked goes into `made`."""

    def __init__(self, lm: ConnectedLM, made: list[Rehearsed]) -> None:
        self._lm, self._made = lm, made
        self._reader = OfflineEngine()
        self._cap: Callable[[lm15.Request], int | None] = getattr(lm.inner, "reply_cap", _asked_for)

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The reader's reply; never fails."""
        response = await self._reader.complete(request)
        reply = "".join(part.text for part in response.message.parts if isinstance(part, lm15.TextPart))
        turn, prompt = (REPEAT.get(), QUESTION.get()), text_of(prompt_of(request))
        self._made.append(Rehearsed(turn, STAGE.get(), prompt, reply, self._cap(request), self._lm))
        return response


def stand_in(lm: ConnectedLM, made: list[Rehearsed]) -> ConnectedLM:
    """`lm` as far as keys and prompts go; the offline reader answers."""
    settings = {name: value for name, value in lm.kwargs.items() if value is not None}
    return ConnectedLM(lm.name, StandIn(lm, made), profile=lm.profile, identity=lm.identity, **settings)


def rehearse(
    method: dspy.Module,
    questions: Questions,
    lm: ConnectedLM,
    folder: Path,
    *,
    reuse: Iterable[str | Path] = (),
    repeats: int = 1,
    name: str | None = None,
) -> Rehearsal:
    """Answer `questions` with stand-ins, in `folder`. Raises: as `evaluate`, but for what only a server says."""
    made: list[Rehearsed] = []
    run = evaluate(
        _with_stand_ins(method, made), questions, lm=stand_in(lm, made), run=folder, reuse=reuse, repeats=repeats,
        progress=False, name=name,
    )  # fmt: skip
    return Rehearsal(run, tuple(made))


def _with_stand_ins(method: dspy.Module, made: list[Rehearsed]) -> dspy.Module:
    """`method`, or a copy where it brings models of its own: one that is asked here would be paid for."""
    copied = with_lms_connected(method)
    for held in lms_of(copied):
        held.put(stand_in(connect(held.lm), made))
    return copied


def _asked_for(request: lm15.Request) -> int | None:
    cap: Any = request.config.max_tokens
    return None if cap is None else int(cap)
