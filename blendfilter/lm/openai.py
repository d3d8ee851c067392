"""Any OpenAI-compatible server as an engine: one request of text messages in, one response or one lm15 error out.

A response has its text (empty where the model was silent, never an exception), its reasoning apart, finish reason,
usage, and log-probabilities if requested. Retries, journal and budget are engines around this one. What a model family
refuses is its `Profile`'s business; what the profile does not know, the server's refusals teach (`Refusals`).
"""

from __future__ import annotations

import base64
import copy
import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from blendfilter import http, secrets
from blendfilter.context import asker
from blendfilter.dspy_surface import lm15
from blendfilter.lm import faults
from blendfilter.lm.clients import ServerClient, ServerReply
from blendfilter.lm.outcome import OF_A_REPLY, concluded, parts_of, text_and_thoughts
from blendfilter.lm.profiles import Profile
from blendfilter.lm.refusals import Refusals
from blendfilter.lm.streamed import ReplyEvents
from blendfilter.lm.tokens import noted

_ESSENTIAL = frozenset({"model", "messages", "prompt"})
_SETTINGS = (
    "temperature",
    "top_p",
    "top_k",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "service_tier",
    "store",
)
"""What a request's config and the wire call by the same name."""
_CAPS = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}


class OpenAIEngine:
    """A model behind an OpenAI-compatible server.

    Args:
        base_url: up to and including ``/v1``.
        api_key: sent as a bearer token; in no message, record or repr.
        model: the name that the server knows.
        endpoint: `chat`, or `completions`, where the prompt is the messages' text as it stands.
        profile: what the model accepts (`profile_for(model)`).
        timeout: seconds for one attempt.
        extra_body: fields for the request as they stand, over everything else.
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
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.endpoint = model, endpoint
        self.address, login = split_login(base_url.rstrip("/"))
        self.refused = Refusals(model)
        self._chat = endpoint == "chat"
        self.path = "/chat/completions" if self._chat else "/completions"
        self._profile = profile or Profile()
        # A raw prompt passes no chat template, so there is no thinking to steer and none of its refusals.
        if not self._chat:
            self._profile = Profile(effort=self._profile.effort)
        self._extra = dict(extra_body or {})
        self._key = api_key
        secrets.know(api_key)
        self.server = ServerClient(self.address, api_key, timeout, login)
        self._send: Any = self.server.send

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The model's response, in one attempt. Raises: lm15 errors."""
        body, listener = self._body(request), asker().listener
        if listener is not None:
            body |= {"stream": True, "stream_options": {"include_usage": True}}

        async def ask(fitted: dict[str, Any]) -> lm15.Response:
            if listener is None:
                reply = await self._send("POST", self.path, fitted)
                return self._answer(request, reply)
            events = ReplyEvents()

            async def arriving(content: bytearray) -> None:
                events.take(content)
                await listener.so_far(events.text, request.config.stop)

            reply = await self._send("POST", self.path, fitted, arriving)
            events.take(reply.content, whole=True)
            # A body that is no stream, or one that broke off, is read as it is, and is an error.
            whole = events.whole() or reply.content
            return self._answer(request, reply._replace(content=whole))

        try:
            return await self.refused.around(lambda known: self._fit(body, known), ask, _named)
        except lm15.LM15Error as error:
            error.key_hint = getattr(self._key, "hint", "")
            raise

    @property
    def servers(self) -> tuple[OpenAIEngine, ...]:
        """The servers that answer for the model, one engine each."""
        return (self,)

    def body_of(self, request: lm15.Request) -> dict[str, Any]:
        """What `request` is sent as, less what the server is known to refuse."""
        return self._fit(self._body(request), self.refused)

    def reply_cap(self, request: lm15.Request) -> int | None:
        """Tokens that a reply to `request` has at the most, thinking included; None: it is sent without a cap."""
        config, profile = request.config, self._profile
        cap = profile.cap(config.max_tokens, profile.effort_in(config))
        given = {profile.max_tokens_param: cap, **(config.extensions or {}), **self._extra}
        fields = self._fit(given, self.refused)
        caps = [cap for name in _CAPS if isinstance(cap := fields.get(name), int)]
        # Servers that draw several replies to one request bill for each.
        replies = max(
            n if isinstance(n := fields.get(name), int) else 1 for name in ("n", "best_of")
        )
        return max(caps) * replies if caps else None

    async def raw(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The server's own reply at `path`, without secrets, in one attempt; without a body it is a GET.

        Raises: an lm15 error.
        """
        reply = await self._send("GET" if body is None else "POST", path, body)
        return dict(secrets.hidden_in(_json_of(reply.content)))

    def over(self, send: Any) -> OpenAIEngine:
        """This engine, its requests sent by `send`; what it learns of refused parameters is shared."""
        other = copy.copy(self)
        other._send = send
        return other

    def at_completions(self, kind: type[Any]) -> Any:
        """An engine of `kind` for `/completions` of the same server, over the same connections."""
        how = {"model": self.model, "endpoint": "completions", "extra_body": self._extra}
        other = kind(self.address, self._key, **how)
        other._send = self._send
        return other

    def __repr__(self) -> str:
        return (
            f"OpenAIEngine({self.address!r}, model={self.model!r}, endpoint={self.endpoint!r})"
        )

    def _body(self, request: lm15.Request) -> dict[str, Any]:
        profile = self._profile
        config = profile.fit(request.config)
        body: dict[str, Any] = {"model": self.model, **self._prompt(request)}
        for name in _SETTINGS:
            if (value := getattr(config, name)) is not None:
                body[name] = value
        if config.max_tokens is not None:
            body[profile.max_tokens_param] = config.max_tokens
        if config.stop:
            body["stop"] = list(config.stop)
        wanted = dict(config.response_format or {})
        if wanted.get("type") == "json_schema":  # lm15's is flat, the wire's is not
            del wanted["type"]
            wanted = {"type": "json_schema", "json_schema": {"name": "response", **wanted}}
        if wanted:
            body["response_format"] = wanted
        if config.logprobs is not None:
            body["logprobs"] = True if self._chat else config.logprobs
            if self._chat and config.logprobs:
                body["top_logprobs"] = config.logprobs
        body |= profile.steering(profile.effort_in(config))
        for more in (config.extensions or {}, self._extra):
            # objects (`chat_template_kwargs`) are joined, not replaced
            for name, value in more.items():
                old = body.get(name)
                body[name] = (
                    {**old, **value}
                    if isinstance(old, dict) and isinstance(value, dict)
                    else value
                )
        return body

    def _fit(
        self, body: Mapping[str, Any], known: Mapping[str, float | None]
    ) -> dict[str, Any]:
        """`body` without the settings that are `known` to be refused, and with no smaller values than are taken."""
        fitted = dict(body)
        for name in known.keys() & body.keys():
            least, other, value = known[name], _CAPS.get(name), fitted.pop(name)
            if least is not None and value is not None:
                fitted[name] = max(value, least)
            elif other is not None and other not in known:
                fitted.setdefault(other, value)
        if self._chat and "logprobs" not in fitted:
            fitted.pop("top_logprobs", None)
        return fitted

    def _prompt(self, request: lm15.Request) -> dict[str, Any]:
        if request.tools:
            raise lm15.UnsupportedFeatureError(
                "this engine sends text only: no tools", feature="tools"
            )
        messages = (
            [{"role": "system", "content": _text_of(request.system)}] if request.system else []
        )
        for message in request.messages:
            role = "system" if message.role == "developer" else message.role
            messages.append({"role": role, "content": _text_of(message.parts)})
        return (
            {"messages": messages}
            if self._chat
            else {"prompt": "\n\n".join(m["content"] for m in messages)}
        )

    def _answer(self, request: lm15.Request, reply: ServerReply) -> lm15.Response:
        """The reply, read. Raises: an lm15 error where it is none, or not in OpenAI's shape."""
        try:
            match _json_of(reply.content):
                case {"choices": [{}, *_]} as data:
                    return self._response(request, data, reply.batch)
                case data:
                    raise faults.in_reply(data, key=self._key)
        except lm15.LM15Error:
            raise
        except OF_A_REPLY as odd:
            what = f"the reply is not in the shape of OpenAI's ({type(odd).__name__}: {odd})"
        raise lm15.TransportError(what)

    def _response(
        self, request: lm15.Request, data: dict[str, Any], more: Mapping[str, Any]
    ) -> lm15.Response:
        choice, usage = data["choices"][0], object_of(data.get("usage"))
        text, thoughts = str(choice.get("text") or ""), ""
        if self._chat:
            text, thoughts = text_and_thoughts(choice.get("message") or {})
        stated = {
            "tokens_in": usage.get("prompt_tokens"),
            "tokens_out": usage.get("completion_tokens"),
        }
        counts = {name: _count(value) for name, value in stated.items()}
        # what is no count is unknown, never 0
        wrong = {name: noted(value) for name, value in stated.items() if value != counts[name]}
        cost = usage.get("cost")
        if isinstance(cost, float) and not math.isfinite(cost):  # no JSON
            wrong["cost"], cost = noted(cost), None
        cached = object_of(usage.get("prompt_tokens_details")).get("cached_tokens")
        if cached is None:
            cached = usage.get("prompt_cache_hit_tokens")  # DeepSeek's name for it
        reasoning = object_of(usage.get("completion_tokens_details")).get("reasoning_tokens")
        response = lm15.Response(
            id=str(data.get("id") or "") or None,
            model=str(data.get("model") or self.model),
            message=lm15.Message("assistant", parts_of(text, thoughts)),
            finish_reason="stop",
            usage=lm15.Usage(
                *counts.values(),
                cache_read_tokens=_count(cached),
                reasoning_tokens=_count(reasoning),
            ),
            logprobs=logprobs_of(choice.get("logprobs")),
            provider_data={
                "address": self.address,
                **({} if cost is None else {"cost": cost}),
                **({"disbelieved": wrong} if wrong else {}),
                **more,
            },
        )
        return concluded(request, response, data, key=self._key)


def servers_of(engine: Any) -> tuple[OpenAIEngine, ...]:
    """The OpenAI-compatible servers behind an engine; none behind one of another kind."""
    return tuple(getattr(engine, "servers", ()))


def split_login(url: str) -> tuple[str, dict[str, str]]:
    """The address without a login, and the login as the header that it stands for: clients would log it in a URL."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url, {}
    name, password = unquote(parts.username or ""), unquote(parts.password or "")
    encoded = base64.b64encode(f"{name}:{password}".encode()).decode()
    secrets.know(password, encoded, f"Basic {encoded}")
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return address, {"Authorization": f"Basic {encoded}"}


def _text_of(content: Any) -> str:
    """The text of a message's parts. Raises: UnsupportedFeatureError for an image, a tool's result and the like."""
    if isinstance(content, str):
        return content
    for part in content:
        if not isinstance(part, lm15.TextPart | lm15.ThinkingPart):
            raise lm15.UnsupportedFeatureError(
                f"this engine sends text only: no {part.type}", feature="messages"
            )
    return "\n".join(part.text for part in content if isinstance(part, lm15.TextPart))


def _json_of(content: bytes) -> dict[str, Any]:
    """The object that a reply's body is. Raises: `TransportError` where it is none."""
    try:
        data = http.json_of(content)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise lm15.TransportError(
            f"the reply is not JSON, or is cut off ({len(content)} bytes)"
        )
    return data


def _named(body: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """The settings of a request, as `refusals.refused` has them: here a refusal calls them by their names."""
    return {name: (name, value) for name, value in body.items() if name not in _ESSENTIAL}


def logprobs_of(stated: Any) -> tuple[lm15.TokenLogprob, ...] | None:
    """The tokens that a choice states log-probabilities of; None where it states none."""
    if not isinstance(stated, dict):
        return None
    scored: Iterable[Any]
    if (rows := stated.get("content")) is not None:
        scored = (
            (
                row["token"],
                row.get("logprob"),
                [(top["token"], top["logprob"]) for top in row.get("top_logprobs") or ()],
            )
            for row in rows
        )
    else:  # the completions endpoint: parallel lists, alternatives as {token: score}
        tokens = stated.get("tokens") or []
        tops = (
            (top or {}).items() for top in stated.get("top_logprobs") or [None] * len(tokens)
        )
        scored = zip(tokens, stated.get("token_logprobs") or [], tops, strict=False)
    found = [
        lm15.TokenLogprob(
            token=token, logprob=score, top=tuple(lm15.TopLogprob(*pair) for pair in top)
        )
        for token, score, top in scored
        if score is not None
    ]
    return tuple(found) or None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def object_of(value: Any) -> Mapping[str, Any]:
    """A field of a reply that should be an object; an empty one where it is none."""
    return value if isinstance(value, Mapping) else {}
