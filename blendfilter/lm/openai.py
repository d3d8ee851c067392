"""Any OpenAI-compatible server as an engine: one request in, one response or one lm15 error out.

Input: a `dspy.lm15.Request` of text messages. Output: a `dspy.lm15.Response`: its text (empty where the model said
nothing, never an exception), its reasoning apart, finish reason, usage, log-probabilities if asked. Retries, journal
and budget are engines around this one. What a model family refuses is its `Profile`'s business; what the profile does
not know, the server's refusals teach once for the engine's life.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import weakref
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
import openai
from dspy import lm15

from blendfilter.lm import faults
from blendfilter.lm.profiles import Learned, Profile, cut_at_stop, effort_of, split_thinking

MAX_ADAPTATIONS = 5
"""Refused parameters that one call may give up before the refusal counts as its error."""

_ESSENTIAL = frozenset({"model", "messages", "prompt"})
_SAMPLING = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")
_SETTINGS = (*_SAMPLING, "seed", "service_tier", "store")
_FINISH: Mapping[str, Literal["length", "content_filter", "tool_call"]] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "tool_calls": "tool_call",
    "function_call": "tool_call",
}


class OpenAIEngine:
    """A model behind an OpenAI-compatible server.

    Args:
        base_url: up to and including ``/v1``.
        api_key: sent as a bearer token; in no message, record or repr.
        model: the name that the server knows.
        endpoint: `chat`, or `completions`, where the prompt is the messages' text as it stands.
        profile: what the model accepts (`profile_for(model)`).
        timeout: seconds for one attempt.
        thinking, reasoning: see `profiles.effort_of`; a request's own `config.reasoning` goes before them.
        extra_body: fields for the request as they stand, over everything else.
        headers: more HTTP headers.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        model: str,
        endpoint: Literal["chat", "completions"] = "chat",
        profile: Profile | None = None,
        timeout: float = 120.0,
        thinking: bool | None = None,
        reasoning: str | None = None,
        extra_body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.model, self.endpoint = model, endpoint
        self.address = _without_login(base_url.rstrip("/"))
        self.learned = Learned()
        self._chat = endpoint == "chat"
        # A raw prompt passes no chat template, so there is no thinking to steer and none of its refusals.
        self._profile = (profile or Profile()) if self._chat else Profile()
        self._effort = effort_of(thinking, reasoning)
        self._extra = dict(extra_body or {})
        self._key = api_key
        self._clients = _Clients(base_url, api_key, timeout, headers)

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The model's response, in one attempt. Raises: an lm15 error (`faults.translate`)."""
        body = self._body(request)
        path = "/chat/completions" if self._chat else "/completions"
        adapted = 0
        while True:
            refused = None
            try:
                reply = await self._clients.post(path, self.learned.fit(body))
            except (openai.OpenAIError, httpx.HTTPError) as error:
                fault = faults.translate(error, key=self._key)
                if isinstance(error, openai.APIStatusError):
                    refused = faults.refused_parameter(error, body.keys() - _ESSENTIAL)
            else:
                return self._response(request, body, self._read(reply))
            # Outside the except block: the caught error's request holds the key, and would ride along as context.
            if refused is None or adapted == MAX_ADAPTATIONS:
                raise fault
            self.learned.learn(refused)
            adapted += 1

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._clients.aclose()

    def __repr__(self) -> str:
        return f"OpenAIEngine({self.address!r}, model={self.model!r}, endpoint={self.endpoint!r})"

    # ---- request

    def _body(self, request: lm15.Request) -> dict[str, Any]:
        config, profile = request.config, self._profile
        effort = config.reasoning.effort if config.reasoning else self._effort
        thinks = profile.thinks_at(effort)
        body: dict[str, Any] = {"model": self.model, **self._prompt(request)}
        for name in _SETTINGS:
            value = getattr(config, name)
            if value is not None and (profile.accepts_temperature or name not in _SAMPLING):
                body[name] = value
        if config.max_tokens is not None:
            body[profile.max_tokens_param] = config.max_tokens + (profile.thinking_tokens if thinks else 0)
        if config.stop and profile.accepts_stop and not thinks:
            body["stop"] = list(config.stop[:4])  # OpenAI takes no more; the reply is cut on this end anyway
        if config.response_format is not None and profile.json_schema is not False:
            body["response_format"] = _format(config.response_format)
        if config.logprobs is not None and profile.accepts_temperature:
            body.update(self._scores_wanted(config.logprobs))
        body.update(profile.steering(effort))
        return _merged(_merged(body, config.extensions or {}), self._extra)

    def _prompt(self, request: lm15.Request) -> dict[str, Any]:
        if request.tools:
            raise lm15.UnsupportedFeatureError("this engine sends text only: no tools", feature="tools")
        rows = [("system", _text(request.system))] if request.system else []
        rows += [("system" if m.role == "developer" else m.role, _text(m.parts)) for m in request.messages]
        if not self._chat:
            return {"prompt": "\n\n".join(text for _, text in rows)}
        return {"messages": [{"role": role, "content": text} for role, text in rows]}

    def _scores_wanted(self, alternatives: int) -> dict[str, Any]:
        if not self._chat:
            return {"logprobs": alternatives}
        return {"logprobs": True, **({"top_logprobs": alternatives} if alternatives else {})}

    # ---- response

    def _read(self, reply: httpx.Response) -> dict[str, Any]:
        try:
            data = json.loads(reply.content)
        except ValueError:
            data = None
        if not isinstance(data, dict):
            raise lm15.TransportError(f"the reply is not JSON, or is cut off ({len(reply.content)} bytes)")
        choices = data.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise faults.in_reply(data, key=self._key)
        return data

    def _response(self, request: lm15.Request, body: dict[str, Any], data: dict[str, Any]) -> lm15.Response:
        choice, usage = data["choices"][0], data.get("usage") or {}
        raw, thought = self._said(choice)
        hidden, said = split_thinking(raw)
        text = cut_at_stop(said, request.config.stop)
        cut = len(text) < len(said)
        thought = thought or hidden
        parts = (lm15.ThinkingPart(thought), lm15.TextPart(text)) if thought else (lm15.TextPart(text),)
        scores, complete = _scores(choice.get("logprobs"), raw, text)
        cost = usage.get("cost")
        provider_data: dict[str, Any] = {"address": self.address}
        if isinstance(cost, int | float):
            provider_data["cost"] = cost
        return lm15.Response(
            id=str(data.get("id") or "") or None,
            model=str(data.get("model") or self.model),
            message=lm15.Message("assistant", parts),
            finish_reason="stop" if cut else _FINISH.get(str(choice.get("finish_reason")), "stop"),
            usage=_usage(usage),
            logprobs=scores,
            provider_data=provider_data,
            adaptations=_adaptations(request.config, body),
            logprobs_complete=complete,
        )

    def _said(self, choice: dict[str, Any]) -> tuple[str, str]:
        """The reply's raw text, and the reasoning that came beside it."""
        if not self._chat:
            return str(choice.get("text") or ""), ""
        message = choice.get("message") or {}
        content, thought = message.get("content"), message.get("reasoning_content") or message.get("reasoning")
        if isinstance(content, list):  # Mistral: blocks of text and of thinking
            thought = thought or "".join(_flat(b.get("thinking")) for b in content if b.get("type") == "thinking")
            content = "".join(_flat(b.get("text")) for b in content if b.get("type") == "text")
        return str(content or message.get("refusal") or ""), str(thought or "")


class _Clients:
    """`openai` clients, kept for each event loop: a client's connections belong to the loop that opened them.

    Each client carries one call at a time. A pool looks over all its connections for every call, so one client with 32
    in flight costs about twice the processor time of 32 clients with one connection each.
    """

    def __init__(self, base_url: str, key: str, timeout: float, headers: Mapping[str, str] | None) -> None:
        self._settings: dict[str, Any] = {
            "base_url": base_url,
            "api_key": key or "none",  # never None: the client would look for one in the environment
            "timeout": httpx.Timeout(timeout, connect=min(timeout, 10.0)),
            "max_retries": 0,
            "default_headers": dict(headers or {}),
        }
        self._lock = threading.Lock()  # loops of several threads may come at once
        self._trust: ssl.SSLContext | None = None
        self._idle: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[openai.AsyncOpenAI]] = (
            weakref.WeakKeyDictionary()
        )

    async def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """The raw reply: nothing of it is parsed but what we read."""
        loop = asyncio.get_running_loop()
        idle = self._idle.get(loop)
        if idle is None:
            with self._lock:
                for dead in [known for known in self._idle if known.is_closed()]:
                    del self._idle[dead]
                idle = self._idle[loop] = []
        client = idle.pop() if idle else self._new()
        try:
            return await client.post(path, body=body, cast_to=httpx.Response)
        finally:
            idle.append(client)

    def _new(self) -> openai.AsyncOpenAI:
        if self._trust is None:
            self._trust = httpx.create_ssl_context()  # some 20 ms: once for all clients
        http = openai.DefaultAsyncHttpxClient(verify=self._trust, timeout=self._settings["timeout"])
        return openai.AsyncOpenAI(http_client=http, **self._settings)

    async def aclose(self) -> None:
        for client in self._idle.pop(asyncio.get_running_loop(), []):
            await client.close()


def _text(content: Any) -> str:
    """The text of a message's parts. Raises: UnsupportedFeatureError for an image, a tool's result and the like."""
    if isinstance(content, str):
        return content
    for part in content:
        if not isinstance(part, lm15.TextPart | lm15.ThinkingPart):
            raise lm15.UnsupportedFeatureError(f"this engine sends text only: no {part.type}", feature="messages")
    return "\n".join(part.text for part in content if isinstance(part, lm15.TextPart))


def _flat(content: Any) -> str:
    if isinstance(content, list):
        return "".join(_flat(block.get("text") if isinstance(block, dict) else block) for block in content)
    return str(content or "")


def _format(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """lm15's flat response format in the wire's nesting."""
    if wanted.get("type") != "json_schema":
        return dict(wanted)
    inner = {"name": "response", **{name: value for name, value in wanted.items() if name != "type"}}
    return {"type": "json_schema", "json_schema": inner}


def _merged(body: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`body` with `more` over it; objects (`chat_template_kwargs`) are joined, not replaced."""
    for name, value in more.items():
        old = body.get(name)
        body[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return body


def _scores(raw: Any, text: str, reply: str) -> tuple[tuple[lm15.TokenLogprob, ...] | None, bool]:
    """The log-probabilities of the tokens that lie wholly in `reply`, and whether they cover all of it."""
    tokens = _tokens(raw) if isinstance(raw, dict) else []
    if not tokens:
        return None, True
    if reply == text or "".join(token.token for token in tokens) != text:
        return tuple(tokens), reply == text
    start, at, kept = text.rfind(reply), 0, []
    for token in tokens:
        if start <= at and at + len(token.token) <= start + len(reply):
            kept.append(token)
        at += len(token.token)
    return tuple(kept), "".join(token.token for token in kept) == reply


def _tokens(raw: dict[str, Any]) -> list[lm15.TokenLogprob]:
    rows = raw.get("content")
    if rows is None:  # the completions endpoint: parallel lists, alternatives as {token: score}
        tops = raw.get("top_logprobs") or [None] * len(raw.get("tokens") or [])
        rows = [
            {
                "token": token,
                "logprob": score,
                "top_logprobs": [{"token": t, "logprob": s} for t, s in (top or {}).items()],
            }
            for token, score, top in zip(raw.get("tokens") or [], raw.get("token_logprobs") or [], tops, strict=False)
        ]
    return [
        lm15.TokenLogprob(
            token=row["token"],
            logprob=row["logprob"],
            top=tuple(lm15.TopLogprob(t["token"], t["logprob"]) for t in row.get("top_logprobs") or ()),
        )
        for row in rows
        if row.get("logprob") is not None
    ]


def _usage(usage: Mapping[str, Any]) -> lm15.Usage:
    return lm15.Usage(
        input_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
        cache_read_tokens=_count((usage.get("prompt_tokens_details") or {}).get("cached_tokens")),
        reasoning_tokens=_count((usage.get("completion_tokens_details") or {}).get("reasoning_tokens")),
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _adaptations(config: lm15.Config, body: Mapping[str, Any]) -> tuple[lm15.Adaptation, ...]:
    """What was asked and not sent, for DSPy's history: a temperature that a reasoning model refuses, say."""
    unsent = [name for name in _SETTINGS if getattr(config, name) is not None and name not in body]
    if config.stop and "stop" not in body:
        unsent.append("stop")
    return tuple(
        lm15.Adaptation(
            field=f"config.{name}",
            action="client_side" if name == "stop" else "dropped",
            reason="the reply is cut on this end" if name == "stop" else "this model or server does not accept it",
        )
        for name in unsent
    )


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    return url if "@" not in parts.netloc else parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
