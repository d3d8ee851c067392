"""Any OpenAI-compatible server as an engine: one request in, one response or one lm15 error out.

Input: a `dspy.lm15.Request` of text messages. Output: a `dspy.lm15.Response`: its text (empty where the model said
nothing, never an exception), its reasoning apart, finish reason, usage, log-probabilities if asked. Retries, journal
and budget are engines around this one. What a model family refuses is its `Profile`'s business; what the profile does
not know, the server's refusals teach once for the engine's life.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Literal, TypeVar
from urllib.parse import unquote, urlsplit

import httpx
import openai
from dspy import lm15

from blendfilter import secrets
from blendfilter.lm import faults, wire
from blendfilter.lm.clients import Clients
from blendfilter.lm.metered import another_attempt
from blendfilter.lm.profiles import Learned, Profile, cut_at_stop, effort_of, split_thinking

E = TypeVar("E", bound="OpenAIEngine")

MAX_ADAPTATIONS = 5
"""Refused parameters that one call may give up before the refusal counts as its error."""

_ESSENTIAL = frozenset({"model", "messages", "prompt"})
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
        login = _login(base_url)
        more = (value for value in (headers or {}).values() if len(value) >= secrets.SHORTEST)
        secrets.know(api_key, *login.values(), *(value.partition(" ")[2] for value in login.values()), *more)
        self._clients = Clients(self.address, api_key, timeout, {**login, **(headers or {})})

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The model's response, in one attempt. Raises: an lm15 error (`faults.translate`)."""
        body = self._body(request)
        adapted = 0
        while True:
            refused = None
            try:
                reply = await self._clients.post(self.path, self.learned.fit(body))
            except faults.OF_A_CALL as error:
                fault = faults.translate(error, key=self._key)
                if isinstance(error, openai.APIStatusError):
                    refused = faults.refused_parameter(error, body.keys() - _ESSENTIAL)
            else:
                return self._answer(request, body, reply)
            # Outside the except block: the caught error's request holds the key, and would ride along as context.
            if refused is None or adapted == MAX_ADAPTATIONS:
                fault.key_hint = getattr(self._key, "hint", "")
                raise fault
            self.learned.learn(refused)
            adapted += 1
            await another_attempt(fault)

    @property
    def path(self) -> str:
        """Where its requests go, below the address."""
        return "/chat/completions" if self._chat else "/completions"

    @property
    def unsent(self) -> frozenset[str]:
        """Parameters that are left out because the server refuses them: what its prompts hold depends on it."""
        return frozenset(self.learned.refused)

    def body_of(self, request: lm15.Request) -> dict[str, Any]:
        """What `request` is sent as, less what the server is known to refuse."""
        return self.learned.fit(self._body(request))

    def reply_cap(self, request: lm15.Request) -> int | None:
        """Tokens that a reply to `request` has at the most, thinking included; None: it is sent without a cap."""
        body = self.body_of(request)
        caps = [cap for name in ("max_tokens", "max_completion_tokens") if isinstance(cap := body.get(name), int)]
        # Servers that draw several replies to one request bill for each.
        replies = max(n if isinstance(n := body.get(name), int) else 1 for name in ("n", "best_of"))
        return max(caps) * replies if caps else None

    async def raw(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """What the server says at `path`, as it stands, in one attempt; without a body it is a GET.

        For questions about the server itself. Raises: an lm15 error.
        """
        try:
            reply = await (self._clients.get(path) if body is None else self._clients.post(path, body))
        except faults.OF_A_CALL as error:
            fault = faults.translate(error, key=self._key)
        else:
            return wire.json_of(reply)
        raise fault

    def at_completions(self, kind: type[E]) -> E:
        """An engine of `kind` for `/completions`: the same server, key, model, extra fields and connections."""
        other = kind(self.address, self._key, model=self.model, endpoint="completions", extra_body=self._extra)
        other._clients = self._clients
        return other

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
        for name in wire.SETTINGS:
            value = getattr(config, name)
            if value is not None and (profile.accepts_temperature or name not in wire.SAMPLING):
                body[name] = value
        if config.max_tokens is not None:
            body[profile.max_tokens_param] = config.max_tokens + (profile.thinking_tokens if thinks else 0)
        if config.stop and profile.accepts_stop and not thinks:
            body["stop"] = list(config.stop[:4])  # OpenAI takes no more; the reply is cut on this end anyway
        if config.response_format is not None and profile.json_schema is not False:
            body["response_format"] = wire.response_format(config.response_format)
        if config.logprobs is not None and profile.accepts_temperature:
            body.update(self._scores_wanted(config.logprobs))
        body.update(profile.steering(effort))
        return wire.merged(wire.merged(body, config.extensions or {}), self._extra)

    def _prompt(self, request: lm15.Request) -> dict[str, Any]:
        if request.tools:
            raise lm15.UnsupportedFeatureError("this engine sends text only: no tools", feature="tools")
        rows = [("system", wire.text_of(request.system))] if request.system else []
        rows += [("system" if m.role == "developer" else m.role, wire.text_of(m.parts)) for m in request.messages]
        if not self._chat:
            return {"prompt": "\n\n".join(text for _, text in rows)}
        return {"messages": [{"role": role, "content": text} for role, text in rows]}

    def _scores_wanted(self, alternatives: int) -> dict[str, Any]:
        if not self._chat:
            return {"logprobs": alternatives}
        return {"logprobs": True, **({"top_logprobs": alternatives} if alternatives else {})}

    # ---- response

    def _answer(self, request: lm15.Request, body: dict[str, Any], reply: httpx.Response) -> lm15.Response:
        """The reply, read. Raises: an lm15 error where it is none, or not in OpenAI's shape."""
        try:
            return self._response(request, body, self._read(reply))
        except lm15.LM15Error:
            raise
        except faults.OF_A_REPLY as odd:
            told = f"the reply is not in the shape of OpenAI's ({type(odd).__name__}: {odd})"
        raise lm15.TransportError(told)

    def _read(self, reply: httpx.Response) -> dict[str, Any]:
        data = wire.json_of(reply)
        choices = data.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise faults.in_reply(data, key=self._key)
        return data

    def _response(self, request: lm15.Request, body: dict[str, Any], data: dict[str, Any]) -> lm15.Response:
        choice, usage = data["choices"][0], wire.object_of(data.get("usage"))
        raw, thought = self._said(choice)
        hidden, said = split_thinking(raw)
        text = cut_at_stop(said, request.config.stop)
        cut = len(text) < len(said)
        thought = thought or hidden
        parts = (lm15.ThinkingPart(thought), lm15.TextPart(text)) if thought else (lm15.TextPart(text),)
        scores, complete = wire.scores(choice.get("logprobs"), raw, text)
        provider_data: dict[str, Any] = {"address": self.address}
        if (cost := usage.get("cost")) is not None:
            provider_data["cost"] = cost
        if wrong := wire.no_counts(usage):
            provider_data["disbelieved"] = wrong
        if cut:
            provider_data["ran_on"] = True
        return lm15.Response(
            id=str(data.get("id") or "") or None,
            model=str(data.get("model") or self.model),
            message=lm15.Message("assistant", parts),
            finish_reason="stop" if cut else _FINISH.get(str(choice.get("finish_reason")), "stop"),
            usage=wire.usage_of(usage),
            logprobs=scores,
            provider_data=provider_data,
            adaptations=wire.adaptations(request.config, body),
            logprobs_complete=complete,
        )

    def _said(self, choice: dict[str, Any]) -> tuple[str, str]:
        """The reply's raw text, and the reasoning that came beside it."""
        if not self._chat:
            return str(choice.get("text") or ""), ""
        message = choice.get("message") or {}
        content, thought = message.get("content"), message.get("reasoning_content") or message.get("reasoning")
        if isinstance(content, list):  # Mistral: blocks of text and of thinking
            thought = thought or "".join(wire.flat(b.get("thinking")) for b in content if b.get("type") == "thinking")
            content = "".join(wire.flat(b.get("text")) for b in content if b.get("type") == "text")
        return str(content or message.get("refusal") or ""), str(thought or "")


def _login(url: str) -> dict[str, str]:
    """The login before the host as the header that it stands for: in an address, HTTP clients would log it."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return {}
    name, password = unquote(parts.username or ""), unquote(parts.password or "")
    secrets.know(password)
    return {"Authorization": f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"}


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    return url if "@" not in parts.netloc else parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
