"""Any OpenAI-compatible server as an engine: one request of text messages in, one response or one lm15 error out.

A response has its text (empty where the model was silent, never an exception), its reasoning apart, finish reason,
usage, and log-probabilities if requested. Retries, journal and budget are engines around this one. What a model family
refuses is its `Profile`'s business; what the profile does not know, the server's refusals teach for the engine's life.
"""

from __future__ import annotations

import base64
import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from blendfilter import http, secrets
from blendfilter.context import asker
from blendfilter.dspy_surface import lm15
from blendfilter.errors import BlendFilterError
from blendfilter.lm import faults
from blendfilter.lm.attempts import another_attempt
from blendfilter.lm.profiles import Profile, cut_at_stop, effort_of, split_thinking
from blendfilter.lm.streamed import ReplyEvents, ReplyListener, text_and_thoughts
from blendfilter.lm.tokens import noted

if TYPE_CHECKING:
    import httpx

E = TypeVar("E", bound="OpenAIEngine")

MAX_ADAPTATIONS = 5
"""Refused parameters that one call may give up before the refusal counts as its error."""

_ESSENTIAL = frozenset({"model", "messages", "prompt"})
_SAMPLING = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")
_SETTINGS = (*_SAMPLING, "seed", "service_tier", "store")
"""What a request's config and the wire call by the same name."""
_CAPS = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}


class Clients(Protocol):
    """What carries requests to a server."""

    async def send(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        """The raw reply. Raises: the `openai` client's errors."""


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
    ) -> None:
        from blendfilter.lm.clients import HTTPClients

        self.model, self.endpoint = model, endpoint
        self.address, login = split_login(base_url.rstrip("/"))
        self.refused: dict[
            str, float | None
        ] = {}  # by name, the least that it may be; None: it is not sent
        self._chat = endpoint == "chat"
        self.path = "/chat/completions" if self._chat else "/completions"
        # A raw prompt passes no chat template, so there is no thinking to steer and none of its refusals.
        self._profile = (profile or Profile()) if self._chat else Profile()
        self._effort = effort_of(thinking, reasoning)
        self._extra = dict(extra_body or {})
        self._key = api_key
        secrets.know(
            api_key, *login.values(), *(value.partition(" ")[2] for value in login.values())
        )
        self.server = HTTPClients(self.address, api_key, timeout, login)
        self._clients: Clients = self.server

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The model's response, in one attempt. Raises: an lm15 error (`faults.translate`)."""
        body = self._body(request)
        listener = asker().listener
        if listener is not None:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        adapted = 0
        while True:
            refused = None
            try:
                if listener is None:
                    reply = await self._clients.send("POST", self.path, self._fit(body))
                else:
                    reply = await self._streamed(self._fit(body), request.config.stop, listener)
            except BlendFilterError:  # of this end: a batch could not be written
                raise
            except faults.of_a_call() as error:
                fault = faults.translate(error, key=self._key)
                sent = {name: value for name, value in body.items() if name not in _ESSENTIAL}
                refused = faults.refused_parameter(error, sent)
            else:
                return self._answer(request, body, reply)
            # Outside the except block: the caught error's request holds the key, and would ride along as context.
            if refused is None or adapted == MAX_ADAPTATIONS:
                fault.key_hint = getattr(self._key, "hint", "")
                raise fault
            # From now on it is raised, dropped, or renamed where it has another spelling that is still untried.
            faults.learn(self.refused, refused, self.model)
            if refused.name == "logprobs":
                self.refused["top_logprobs"] = None
            adapted += 1
            await another_attempt(fault)

    async def _streamed(
        self, body: dict[str, Any], stop: Sequence[str], listener: ReplyListener
    ) -> httpx.Response:
        """The reply as if it had come in one piece, `listener` being told what comes. Raises: as `_clients.send`."""
        import httpx  # by now the clients have imported it

        events = ReplyEvents()

        async def arriving(content: bytearray) -> None:
            events.take(content)
            await listener.so_far(events.text, stop)

        token = http.ARRIVING.set(arriving)
        try:
            reply = await self._clients.send("POST", self.path, body)
        finally:
            http.ARRIVING.reset(token)
        events.take(reply.content, whole=True)
        if not (
            whole := events.whole()
        ):  # no stream, or one that broke off: whoever reads the reply says so
            return reply
        return httpx.Response(reply.status_code, content=whole, request=reply.request)

    def body_of(self, request: lm15.Request) -> dict[str, Any]:
        """What `request` is sent as, less what the server is known to refuse."""
        return self._fit(self._body(request))

    def reply_cap(self, request: lm15.Request) -> int | None:
        """Tokens that a reply to `request` has at the most, thinking included; None: it is sent without a cap."""
        fields = self._fit(
            {**self._cap(request.config), **(request.config.extensions or {}), **self._extra}
        )
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
        try:
            reply = await self._clients.send("GET" if body is None else "POST", path, body)
        except faults.of_a_call() as error:
            fault = faults.translate(error, key=self._key)
        else:
            return dict(secrets.hidden_in(_json_of(reply)))
        raise fault

    def over(self, clients: Clients) -> OpenAIEngine:
        """This engine, its requests carried by other `clients`; what it learns of refused parameters is shared."""
        other = copy.copy(self)
        other._clients = clients
        return other

    def at_completions(self, kind: type[E]) -> E:
        """An engine of `kind` for `/completions` of the same server, over the same connections."""
        other = kind(
            self.address,
            self._key,
            model=self.model,
            endpoint="completions",
            extra_body=self._extra,
        )
        other._clients = self._clients
        return other

    def __repr__(self) -> str:
        return f"OpenAIEngine({self.address!r}, model={self.model!r}, endpoint={self.endpoint!r})"

    def _body(self, request: lm15.Request) -> dict[str, Any]:
        config, profile = request.config, self._profile
        effort = config.reasoning.effort if config.reasoning else self._effort
        body: dict[str, Any] = {"model": self.model, **self._prompt(request)}
        for name in _SETTINGS:
            value = getattr(config, name)
            if value is not None and (profile.accepts_temperature or name not in _SAMPLING):
                body[name] = value
        body |= self._cap(config)
        if config.stop and profile.accepts_stop and not profile.thinks_at(effort):
            body["stop"] = list(
                config.stop[:4]
            )  # OpenAI takes no more; the reply is cut on this end anyway
        if config.response_format is not None and profile.json_schema is not False:
            body["response_format"] = _response_format(config.response_format)
        if config.logprobs is not None and profile.accepts_temperature:
            body["logprobs"] = True if self._chat else config.logprobs
            if self._chat and config.logprobs:
                body["top_logprobs"] = config.logprobs
        body |= profile.steering(effort)
        for more in (config.extensions or {}, self._extra):
            for (
                name,
                value,
            ) in more.items():  # objects (`chat_template_kwargs`) are joined, not replaced
                old = body.get(name)
                body[name] = (
                    {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
                )
        return body

    def _cap(self, config: lm15.Config) -> dict[str, int]:
        if config.max_tokens is None:
            return {}
        thinks = self._profile.thinks_at(
            config.reasoning.effort if config.reasoning else self._effort
        )
        return {
            self._profile.max_tokens_param: config.max_tokens
            + (self._profile.thinking_tokens if thinks else 0)
        }

    def _fit(self, body: dict[str, Any]) -> dict[str, Any]:
        """`body` itself, without what the server refuses, and with no smaller values than it takes."""
        for name in self.refused.keys() & body.keys():
            least, other = self.refused[name], _CAPS.get(name)
            if least is not None:
                body[name] = max(body[name], least)
                continue
            value = body.pop(name)
            if other is not None and other not in self.refused:
                body.setdefault(other, value)
        return body

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

    def _answer(
        self, request: lm15.Request, body: dict[str, Any], reply: httpx.Response
    ) -> lm15.Response:
        """The reply, read. Raises: an lm15 error where it is none, or not in OpenAI's shape."""
        try:
            data = _json_of(reply)
            choices = data.get("choices")
            if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
                raise faults.in_reply(data, key=self._key)
            response = self._response(request, body, data)
            if how := reply.extensions.get("batch"):
                return replace(response, provider_data={**(response.provider_data or {}), **how})
            return response
        except lm15.LM15Error:
            raise
        except faults.OF_A_REPLY as odd:
            what = f"the reply is not in the shape of OpenAI's ({type(odd).__name__}: {odd})"
        raise lm15.TransportError(what)

    def _response(
        self, request: lm15.Request, body: dict[str, Any], data: dict[str, Any]
    ) -> lm15.Response:
        ended = faults.ending(data, key=self._key)
        choice, usage = data["choices"][0], _object(data.get("usage"))
        if self._chat:
            raw, thought = text_and_thoughts(choice.get("message") or {})
        else:
            raw, thought = str(choice.get("text") or ""), ""
        hidden, reply = split_thinking(raw)
        text = cut_at_stop(reply, request.config.stop)
        cut = len(text) < len(reply)
        thought = thought or hidden
        parts = (
            (lm15.ThinkingPart(thought), lm15.TextPart(text)) if thought else (lm15.TextPart(text),)
        )
        logprobs, complete = scores(choice.get("logprobs"), raw, text)
        stated = {
            "tokens_in": usage.get("prompt_tokens"),
            "tokens_out": usage.get("completion_tokens"),
        }
        wrong = {
            name: noted(value)
            for name, value in stated.items()
            if value is not None and _count(value) is None
        }
        cost, cached = (
            usage.get("cost"),
            _object(usage.get("prompt_tokens_details")).get("cached_tokens"),
        )
        if isinstance(cost, float) and not math.isfinite(cost):  # no JSON
            wrong["cost"], cost = noted(cost), None
        return lm15.Response(
            id=str(data.get("id") or "") or None,
            model=str(data.get("model") or self.model),
            message=lm15.Message("assistant", parts),
            finish_reason="stop" if cut else ended,
            usage=lm15.Usage(  # what is no count is unknown, never 0
                input_tokens=_count(usage.get("prompt_tokens")),
                output_tokens=_count(usage.get("completion_tokens")),
                # DeepSeek has a name of its own for it.
                cache_read_tokens=_count(
                    usage.get("prompt_cache_hit_tokens") if cached is None else cached
                ),
                reasoning_tokens=_count(
                    _object(usage.get("completion_tokens_details")).get("reasoning_tokens")
                ),
            ),
            logprobs=logprobs,
            provider_data={
                "address": self.address,
                **({} if cost is None else {"cost": cost}),
                **({"disbelieved": wrong} if wrong else {}),
                **({"ran_on": True} if cut else {}),
            },
            logprobs_complete=complete,
        )


def split_login(url: str) -> tuple[str, dict[str, str]]:
    """The address without a login, and the login as the header that it stands for: clients would log it in a URL."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url, {}
    name, password = unquote(parts.username or ""), unquote(parts.password or "")
    secrets.know(password)
    header = {"Authorization": f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"}
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(), header


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


def _json_of(reply: httpx.Response) -> dict[str, Any]:
    """The object that a reply's body is. Raises: `TransportError` where it is none."""
    try:
        data = http.json_of(reply.content)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise lm15.TransportError(
            f"the reply is not JSON, or is cut off ({len(reply.content)} bytes)"
        )
    return data


def _response_format(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """lm15's flat response format in the wire's nesting."""
    if wanted.get("type") != "json_schema":
        return dict(wanted)
    inner = {
        "name": "response",
        **{name: value for name, value in wanted.items() if name != "type"},
    }
    return {"type": "json_schema", "json_schema": inner}


def scores(raw: Any, text: str, reply: str) -> tuple[tuple[lm15.TokenLogprob, ...] | None, bool]:
    """The log-probabilities of the tokens that lie wholly in `reply`, and whether they cover all of it."""
    if not isinstance(raw, dict) or not (tokens := _tokens(raw)):
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
    scored: Iterable[tuple[Any, Any, Iterable[tuple[Any, Any]]]]
    if (rows := raw.get("content")) is not None:
        scored = (
            (
                row["token"],
                row["logprob"],
                [(top["token"], top["logprob"]) for top in row.get("top_logprobs") or ()],
            )
            for row in rows
            if row.get("logprob") is not None
        )
    else:  # the completions endpoint: parallel lists, alternatives as {token: score}
        tokens = raw.get("tokens") or []
        tops = ((top or {}).items() for top in raw.get("top_logprobs") or [None] * len(tokens))
        scored = zip(tokens, raw.get("token_logprobs") or [], tops, strict=False)
    return [
        lm15.TokenLogprob(
            token=token, logprob=score, top=tuple(lm15.TopLogprob(*pair) for pair in top)
        )
        for token, score, top in scored
        if score is not None
    ]


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
