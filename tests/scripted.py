"""A language model that says what a test wrote for it, and remembers what it was asked.

    with scripted({"external": ["So the answer is 4."], "check": [...]}) as lm, dspy.context(lm=lm):
        ...
    assert "Ormskerry" in lm.prompts[0][1]

An engine-level fake under a real `ConnectedLM`: journals, samples, stages and errors are the package's own. It raises
when its answers run out, and `check()` (which `scripted` calls at the end) fails where some were left unused.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from dspy import lm15

from blendfilter.context import asker
from blendfilter.journal import Journal
from blendfilter.lm.attempts import FREE, Traffic
from blendfilter.lm.journaled import prompt_of
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.profiles import Profile

Reply: TypeAlias = str | lm15.Response | BaseException | Callable[[str], Any]
"""What is said, what is raised, or a function of the prompt that gives one of these."""
Replies: TypeAlias = Mapping[str, Sequence[Reply]] | Sequence[Reply] | Callable[[str, str], Any]
"""Answers by stage, answers in the order of asking, or a function of (stage, prompt)."""


class ScriptEnded(AssertionError):
    """More was asked than the test wrote answers for."""


def response(
    text: str,
    *,
    reasoning: str = "",
    finish: str = "stop",
    usage: tuple[int, int] | None = None,
    **more: Any,
) -> lm15.Response:
    """A model's response that says `text`; `usage` is tokens (in, out), words between white space by default."""
    thought = (lm15.ThinkingPart(text=reasoning),) if reasoning else ()
    tokens_in, tokens_out = usage or (None, len(text.split()))
    return lm15.Response(
        id=None,
        model="scripted",
        message=lm15.Message(role="assistant", parts=(*thought, lm15.TextPart(text=text))),
        finish_reason=finish,
        usage=lm15.Usage(input_tokens=tokens_in, output_tokens=tokens_out),
        **more,
    )


class ScriptedEngine:
    """Gives the written answers, one a call, and keeps what was asked."""

    def __init__(self, replies: Replies) -> None:
        self.prompts: list[tuple[str, str]] = []
        self.requests: list[lm15.Request] = []
        self.unanswered: list[str] = []
        self._lock = threading.Lock()
        self._function = replies if callable(replies) else None
        self._left: dict[str | None, list[Reply]] = {}
        if isinstance(replies, Mapping):
            self._left = {stage: list(answers) for stage, answers in replies.items()}
        elif not callable(replies):
            self._left = {None: list(replies)}

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The next answer. Raises: `ScriptEnded`, or the exception that was written for this call."""
        result = prompt_of(request)
        prompt = result if isinstance(result, str) else "\n\n".join(text for _, text in result)
        stage = asker().stage
        with self._lock:
            self.prompts.append((stage, prompt))
            self.requests.append(request)
            reply = self._function(stage, prompt) if self._function else self._next(stage)
        while callable(reply) and not isinstance(reply, BaseException):
            reply = reply(prompt)
        if isinstance(reply, BaseException):
            raise reply
        answer = response(reply) if isinstance(reply, str) else reply
        if answer.usage.input_tokens is not None:
            return answer
        usage = dataclasses.replace(answer.usage, input_tokens=len(prompt.split()))
        return dataclasses.replace(answer, usage=usage)

    def unused(self) -> dict[str | None, int]:
        """How many answers are left, by stage (None: a plain list)."""
        return {stage: len(left) for stage, left in self._left.items() if left}

    def _next(self, stage: str) -> Reply:
        left = self._left.get(None if None in self._left else stage)
        if not left:
            self.unanswered.append(stage)
            raise ScriptEnded(f"no answer is written for call {len(self.prompts)} (stage {stage!r})")
        return left.pop(0)


class ScriptedLM(ConnectedLM):
    """`ScriptedLM({"external": ["…"], "check": […]})`, or a plain list, or a function of (stage, prompt)."""

    inner: ScriptedEngine

    def __init__(
        self, replies: Replies, *, journal: Journal | None = None, traffic: Traffic = FREE, **defaults: Any
    ) -> None:
        defaults = {"temperature": 0.0, **defaults}
        super().__init__(
            "scripted", ScriptedEngine(replies), profile=Profile(), journal=journal, traffic=traffic, **defaults
        )

    @property
    def prompts(self) -> list[tuple[str, str]]:
        """(stage, rendered prompt) of every call that reached the engine, in order."""
        return self.inner.prompts

    @property
    def calls(self) -> int:
        """How many calls reached the engine."""
        return len(self.inner.prompts)

    def prompts_of(self, stage: str) -> list[str]:
        """The prompts of one stage."""
        return [prompt for name, prompt in self.prompts if name == stage]

    def check(self) -> None:
        """Fail where answers are left over, or where some were missing (whoever swallowed that error)."""
        assert not self.inner.unanswered, f"answers were missing for stages {self.inner.unanswered}"
        assert not self.inner.unused(), f"answers were never asked for: {self.inner.unused()}"

    def with_journal(self, journal: Journal | None, traffic: Traffic = FREE) -> ConnectedLM:
        """A `ConnectedLM` over the same script."""
        defaults = {"callbacks": self.callbacks, **self.kwargs}
        return ConnectedLM(self.name, self.inner, profile=self.profile, journal=journal, traffic=traffic, **defaults)


@contextmanager
def scripted(replies: Replies, **options: Any) -> Iterator[ScriptedLM]:
    """A `ScriptedLM` whose `check()` runs at the end of the block (unless the block itself failed)."""
    lm = ScriptedLM(replies, **options)
    yield lm
    lm.check()
