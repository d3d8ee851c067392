"""A GGUF model in this process, as an engine: one request in, one response or one lm15 error out.

In: a `dspy.lm15.Request` of text messages. Out: a `dspy.lm15.Response`: text, thinking apart, finish reason, usage with
the prompt tokens that were not read again, log-probabilities if asked. The weights are opened by the first call, so
that a replay opens none. The same request gets the same reply, whatever was asked before and in whatever order.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from dspy import lm15

from blendfilter import aio
from blendfilter.lm.journaled import prompt_of
from blendfilter.lm.local.decoding import decoding_of
from blendfilter.lm.local.loading import check_threads, check_writes, context_of, fingerprint, open_llama
from blendfilter.lm.local.prefixes import KEPT_BYTES, Prefixes
from blendfilter.lm.local.replying import Late, Model, Reply, Scored, Stopped, Task
from blendfilter.lm.local.turns import Turns, closed
from blendfilter.lm.local.wording import Wording
from blendfilter.lm.profiles import Profile, cut_at_stop, effort_of, split_thinking


class LocalEngine:
    """The model of a GGUF file. Two engines of one file share the file's mapped pages, and nothing else.

    Args:
        path: the file.
        context: tokens that prompt and reply may have together; by default what the model was trained on, up to 8,192.
        threads: of the processor, for reading and writing.
        endpoint: `chat`, or `completions`, where the prompt is the messages' text as it stands.
        profile: what the model's family is like (`profile_for`).
        thinking, reasoning: see `profiles.effort_of`; a request's own `config.reasoning` goes before them.
        keep: bytes for copies of the beginnings that prompts share.
        deadline: seconds that a call may take from when its turn comes; None: as long as it takes.

    Raises:
        MissingExtra, MissingFile, BadData, BadArgument: as `loading.open_llama`, as far as the file's start tells.
    """

    def __init__(
        self,
        path: Path,
        *,
        context: int | None = None,
        threads: int = 1,
        endpoint: Literal["chat", "completions"] = "chat",
        profile: Profile | None = None,
        thinking: bool | None = None,
        reasoning: str | None = None,
        keep: int = KEPT_BYTES,
        deadline: float | None = None,
    ) -> None:
        self.path, self.model, self.address = path, path.stem, "this process"
        self.context, self.threads = context_of(path, context), threads
        check_threads(threads)
        check_writes(path)
        self.fingerprint = fingerprint(path)
        self._chat = endpoint == "chat"
        self._profile = (profile or Profile()) if self._chat else Profile()
        self._effort = effort_of(thinking, reasoning)
        self._deadline = deadline
        self._opened = _Opened(path, self.context, threads, keep, deadline)
        self.turns: Turns[Task, Reply] = Turns(self._opened.reply, self._opened.saving)
        self.close = weakref.finalize(self, _close, self.turns, self._opened)
        """Ends the thread and frees the memory; happens by itself where nobody holds the engine, and at the end."""

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The model's response.

        Raises:
            lm15.ContextLengthError: before anything is computed. lm15.InvalidRequestError: a prompt of nothing.
            lm15.UnsupportedFeatureError: tools, pictures, a schema that no grammar can hold. WorkFailed: it was closed
            meanwhile. lm15.TimeoutError: its deadline came. lm15.ServerError: llama.cpp failed.
            BadData: it does not load the file.
        """
        self.turns.check_process()
        task = await aio.in_thread(self._task, request)  # the first call opens the weights here
        try:
            reply = await self.turns.take(task)
        except Stopped:  # whoever cancels a call is no longer here
            raise closed() from None
        except Late:
            raise lm15.TimeoutError(
                f"no whole reply within the deadline of {self._deadline:g} s (--deadline): give it more, ask for fewer "
                "tokens, or take a smaller model"
            ) from None
        except (RuntimeError, OSError) as error:
            raise lm15.ServerError(f"llama.cpp could not compute this reply: {error}") from None
        return self._response(request, task, reply)

    def reply_cap(self, request: lm15.Request) -> int | None:
        """How many tokens a reply can have at the most; None: as many as the context leaves."""
        asked = request.config.max_tokens
        return None if asked is None else asked + (self._profile.thinking_tokens if self._thinks(request) else 0)

    def count_tokens(self, text: str) -> int:
        """How many tokens a prompt of this text has, the chat template's own among them; opens the weights."""
        wording = self._opened.model().wording
        return len(wording.chat([["user", text]]) if self._chat else wording.raw(text))

    def __repr__(self) -> str:
        return f"LocalEngine({self.model!r}, context={self.context})"

    # ---- request

    def _task(self, request: lm15.Request) -> Task:
        config = request.config
        _refuse_what_is_no_text(request)
        effort = config.reasoning.effort if config.reasoning else self._effort
        thinks = self._thinks(request)
        prompt = prompt_of(request)
        rows = [["user", prompt]] if isinstance(prompt, str) else prompt
        how = decoding_of(config, repr(rows))
        wording = self._opened.model().wording
        if self._chat:
            told = self._profile.steering(effort).get("chat_template_kwargs", {})
            tokens = wording.chat([["system" if role == "developer" else role, text] for role, text in rows], told)
        else:
            tokens = wording.raw("\n\n".join(text for _, text in rows))
        if not tokens:  # llama.cpp would end the process
            raise lm15.InvalidRequestError("the prompt is empty, and nothing of the model's own stands before it")
        room = self.context - len(tokens)
        if room < 1:
            raise lm15.ContextLengthError(
                f"{len(tokens):,} tokens, and {self.model} was opened with a context of {self.context:,} (--context)"
            )
        cap = self.reply_cap(request)
        return Task(tokens, how, room if cap is None else min(cap, room), config.stop, config.logprobs, thinks)

    def _thinks(self, request: lm15.Request) -> bool:
        effort = request.config.reasoning.effort if request.config.reasoning else self._effort
        return self._profile.thinks_at(effort) and request.config.response_format is None

    # ---- response

    def _response(self, request: lm15.Request, task: Task, reply: Reply) -> lm15.Response:
        thought, said = split_thinking(reply.text)
        text = cut_at_stop(said, request.config.stop)
        parts = (lm15.ThinkingPart(thought), lm15.TextPart(text)) if thought else (lm15.TextPart(text),)
        kept = _within(reply.scores, reply.text, text)
        return lm15.Response(
            id=None,
            model=self.model,
            message=lm15.Message("assistant", parts),
            finish_reason="stop" if len(text) < len(said) else reply.finish,
            usage=lm15.Usage(
                input_tokens=len(task.tokens), output_tokens=reply.tokens_out, cache_read_tokens=reply.reused
            ),
            logprobs=kept if task.alternatives is not None else None,
            logprobs_complete=task.alternatives is None or "".join(score.token for score in kept) == text,
        )


class _Opened:
    """The weights, opened when they are first needed. Holds no reference to its engine, which may so be collected."""

    def __init__(self, path: Path, context: int, threads: int, keep: int, deadline: float | None) -> None:
        self._how = path, context, threads, keep
        self._deadline = deadline
        self._model: Model | None = None
        self._closed = False
        self._lock = threading.Lock()

    def model(self) -> Model:
        with self._lock:
            if self._closed:
                raise closed()
            if self._model is None:
                path, context, threads, keep = self._how
                llama = open_llama(path, context=context, threads=threads)
                self._model = Model(llama, Wording(llama), Prefixes(llama, keep))
            return self._model

    def reply(self, task: Task, stopped: Callable[[], bool]) -> Reply:
        return self.model().reply(task, stopped, self._deadline)

    def saving(self, task: Task) -> int:
        return self.model().saving(task)

    def close(self) -> None:
        with self._lock:
            model, self._model = self._model, None
            self._closed = True
        if model is not None:
            model.llama.close()


def _close(turns: Turns[Task, Reply], opened: _Opened) -> None:
    turns.close()
    opened.close()


def _refuse_what_is_no_text(request: lm15.Request) -> None:
    if request.tools:
        raise lm15.UnsupportedFeatureError("a local model is sent text only: no tools", feature="tools")
    for message in request.messages:
        for part in message.parts:
            if not isinstance(part, lm15.TextPart | lm15.ThinkingPart):
                raise lm15.UnsupportedFeatureError(
                    f"a local model is sent text only: no {part.type}", feature="messages"
                )


def _within(scores: tuple[Scored, ...], raw: str, text: str) -> tuple[lm15.TokenLogprob, ...]:
    """The log-probabilities of the tokens that lie wholly in `text`, which stands somewhere in the `raw` reply."""
    start, at, kept = max(raw.rfind(text), 0), 0, []
    for score in scores:
        if start <= at and at + len(score.text) <= start + len(text):
            top = tuple(lm15.TopLogprob(other, value) for other, value in score.top)
            kept.append(lm15.TokenLogprob(token=score.text, logprob=score.logprob, top=top))
        at += len(score.text)
    return tuple(kept)
