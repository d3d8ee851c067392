"""What is known of providers and of model families: address and key, what is accepted on the wire, how one thinks.

Families are known by name; what a name does not tell, the server's own refusals teach (`OpenAIEngine.refused`). Keys
are read from the environment here, and nowhere else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import httpx

from blendfilter import http
from blendfilter.errors import BadArgument, NoKey, UnknownName
from blendfilter.secrets import Key, checked

EFFORTS = ("off", "minimal", "low", "medium", "high")
"""Levels of thinking; `off` is `thinking=False`."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What one model family accepts. The default accepts everything and does not think.

    Attributes:
        accepts_stop: `stop` may be sent, while it does not think: a stop string inside the thinking would end the call
            before the reply. The reply is cut at the stop strings on this end in any case.
        accepts_temperature: the sampling settings (temperature, top_p, penalties, log-probabilities) may be sent.
        max_tokens_param: the name of the cap on the reply's tokens.
        thinks: thinks before it replies unless that is switched off.
        thinking_tokens: added to the cap where it thinks, since thinking counts against it.
        switch: how thinking is steered: `reasoning_effort`, or a flag of the chat template
            (`enable_thinking`, `thinking`) in `chat_template_kwargs`; None where it cannot be.
        off: the word of `reasoning_effort` that comes nearest to no thinking.
        can_stop_thinking: the switch really turns it off (else `off` only makes it short).
        json_schema: the server holds a reply to a JSON schema (`holds_schema`, or the user's word); None: unknown.
    """

    accepts_stop: bool = True
    accepts_temperature: bool = True
    max_tokens_param: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    thinks: bool = False
    thinking_tokens: int = 0
    switch: Literal["reasoning_effort", "enable_thinking", "thinking"] | None = None
    off: str = "none"
    can_stop_thinking: bool = False
    json_schema: bool | None = None

    def thinks_at(self, effort: str | None) -> bool:
        """Whether a reply comes with thinking at this effort (None: as the model likes)."""
        if effort is None:
            return self.thinks
        if effort == "off":
            return self.thinks and not self.can_stop_thinking
        return self.thinks or self.switch is not None

    def steering(self, effort: str | None) -> dict[str, Any]:
        """The request fields that ask for `effort`; none where the family has no switch.

        >>> profile_for("Qwen/Qwen3-8B").steering("off")
        {'chat_template_kwargs': {'enable_thinking': False}}
        >>> profile_for("gpt-5-mini").steering("low")
        {'reasoning_effort': 'low'}
        """
        if effort is None or self.switch is None:
            return {}
        if self.switch == "reasoning_effort":
            return {"reasoning_effort": self.off if effort == "off" else effort}
        return {"chat_template_kwargs": {self.switch: effort != "off"}}


_OPENAI = Profile(max_tokens_param="max_completion_tokens")
_REASONING = replace(
    _OPENAI, accepts_stop=False, accepts_temperature=False, thinks=True, thinking_tokens=8192,
    switch="reasoning_effort", off="low",
)  # fmt: skip
_OPEN = Profile(thinks=True, thinking_tokens=4096)

_FAMILIES: tuple[tuple[str, Profile], ...] = (
    (r"gpt-5[\w.-]*-chat", _OPENAI),
    (r"gpt-5\.\d", replace(_REASONING, off="none", can_stop_thinking=True)),
    (r"gpt-5", replace(_REASONING, off="minimal")),
    (r"o[134](?:-|$)", _REASONING),
    (r"gpt-oss", replace(_OPEN, switch="reasoning_effort", off="low")),
    (r"qwen-?3[\w.-]*(?:instruct|coder)", Profile()),
    (r"qwen-?3[\w.-]*thinking", _OPEN),
    (r"qwen-?3", replace(_OPEN, switch="enable_thinking", can_stop_thinking=True)),
    (r"deepseek-v3\.[1-9]", replace(_OPEN, thinks=False, switch="thinking", can_stop_thinking=True)),
    (r"deepseek-(?:r\d|reasoner)|qwq|magistral", _OPEN),
)
_COMPILED = tuple((re.compile(rf"(?:^|[^a-z0-9])(?:{pattern})"), profile) for pattern, profile in _FAMILIES)


def profile_for(model: str) -> Profile:
    """The profile of the family that `model` belongs to, by its name with or without an owner; else the default.

    >>> profile_for("openai/o3-mini").accepts_stop, profile_for("gpt-4o-mini").accepts_stop
    (False, True)
    """
    name = model.lower()
    return next((profile for pattern, profile in _COMPILED if pattern.search(name)), Profile())


_SCHEMA_SERVERS = frozenset({"vllm", "llamacpp", "ollama"})
"""Servers whose chat endpoint constrains the sampling itself, whichever model they serve."""
_HOLDS_SCHEMA = re.compile(
    # Structured outputs came with gpt-4o-mini and gpt-4o-2024-08-06, and to reasoning models with o1 itself.
    r"gpt-4o(?:-mini)?(?:-search-preview)?(?:-(?!2024-05-13)\d{4}-\d\d-\d\d)?|gpt-4\.[15][\w.-]*|gpt-5[\w.-]*"
    r"|o1(?:-\d{4}-\d\d-\d\d)?|o[34](?:-mini)?(?:-\d{4}-\d\d-\d\d)?"
)


def holds_schema(provider: str, model: str) -> bool | None:
    """Whether `provider` documents that it holds replies of `model` to a JSON schema; None: not known.

    OpenAI's list is by model; Mistral excepts one model. At Groq, Together and behind OpenRouter it depends on the
    model or its host, DeepSeek has JSON without a schema, and a server at the user's address may be anything:
    those get a schema only where the user says so.

    >>> holds_schema("openai", "gpt-4o-mini"), holds_schema("openai", "gpt-4-turbo"), holds_schema("groq", "llama3")
    (True, None, None)
    """
    name = model.lower()
    if provider == "openrouter" and name.startswith("openai/"):
        provider, name = "openai", name.removeprefix("openai/")
    if provider == "openai":
        return True if _HOLDS_SCHEMA.fullmatch(name) else None
    if provider == "mistral":
        return None if "mamba" in name else True
    return True if provider in _SCHEMA_SERVERS else None


def effort_of(thinking: bool | None, reasoning: str | None) -> str | None:
    """The one dial behind `thinking=` and `reasoning=`; None leaves it to the model.

    Raises:
        BadArgument: no such effort, or the two contradict each other.

    >>> effort_of(False, None), effort_of(None, "low"), effort_of(True, None)
    ('off', 'low', 'medium')
    """
    if reasoning is not None and reasoning not in EFFORTS:
        raise BadArgument(f"no reasoning effort '{reasoning}' (known: {', '.join(EFFORTS)})")
    if thinking is None:
        return reasoning
    if reasoning is not None and thinking == (reasoning == "off"):
        raise BadArgument(f"thinking={thinking} and reasoning='{reasoning}' contradict each other: give one of them")
    return reasoning or ("medium" if thinking else "off")


_THINK = re.compile(
    r"<(?P<ends>/?)(?:\w+:)?(?:think|thinking|thoughts?)>|\[(?P<ends2>/?)THINK\]|◁(?P<ends3>/?)think▷"
    r"|<\|channel\|>(?:analysis|(?P<final>final))<\|message\|>",
    re.IGNORECASE,
)


def split_thinking(text: str) -> tuple[str, str]:
    """A reply's text as (reasoning, reply); text without tags comes back unchanged, as the reply.

    Blocks are ``<think>…</think>`` in either case, any number of them; other families write ``<thinking>``,
    ``<seed:think>``, ``[THINK]``, ``◁think▷`` or an analysis channel. Where the opening tag stood in the chat template,
    all before the closing tag is reasoning; where the thinking was cut off, all after the opening tag is, and the reply
    is empty.

    >>> split_thinking("<think>a or b?</think>b")
    ('a or b?', 'b')
    >>> split_thinking("a or b?</think>\\n\\nb"), split_thinking("<think>a or")
    (('a or b?', 'b'), ('a or', ''))
    """
    tags = list(_THINK.finditer(text))
    if not tags:
        return "", text
    thoughts, spoken = list[str](), list[str]()
    start, thinking = 0, False
    for tag in tags:
        closes = any(tag.groups())
        if closes:  # a closing tag makes thinking of what stands before it, opened or not
            thoughts.append(text[start : tag.start()])
        elif thinking:
            continue  # an opening tag inside thinking is part of it
        else:
            spoken.append(text[start : tag.start()])
        start, thinking = tag.end(), not closes
    (thoughts if thinking else spoken).append(text[start:])
    reasoning = "\n".join(thought.strip() for thought in thoughts if thought.strip())
    return reasoning, "".join(spoken).strip()


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """`text` up to the first of the stop strings; cutting twice changes nothing.

    >>> cut_at_stop("Paris.\\n\\nQuestion: next", ["\\nQuestion:", "\\n\\n"])
    'Paris.'
    """
    ends = [at for string in stop if string and (at := text.find(string)) >= 0]
    return text[: min(ends)] if ends else text


class Provider(NamedTuple):
    """An OpenAI-compatible provider."""

    base_url: str
    key_variable: str = ""  # empty: it wants no key


PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "openrouter": Provider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "together": Provider("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "groq": Provider("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "deepseek": Provider("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "mistral": Provider("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "vllm": Provider("http://localhost:8000/v1"),
    "llamacpp": Provider("http://localhost:8080/v1"),
    "ollama": Provider("http://localhost:11434/v1"),
}
"""Providers by the first part of a model's name."""


def place_of(name: str, api_base: str | None, api_key: str | None) -> tuple[str, str, Key]:
    """The address (`addresses_of` checked it), the name that the server knows, and the key, of `name`."""
    prefix, _, rest = name.partition("/")
    known = PROVIDERS.get(prefix)
    if api_base is not None:
        # A name may hold slashes of its own (Qwen/Qwen2.5-7B-Instruct): only a provider's prefix comes off. And a
        # provider's key goes to an address of the user's only where the name says that provider.
        model = rest if known and rest else name
        variable = known.key_variable if known and known.key_variable else "BLENDFILTER_API_KEY"
        return api_base, model, _key(api_key, variable)
    if not rest:
        where = "or say where it is served (--api-base URL)"
        raise BadArgument(f"'{name}' names no provider: write provider/model (openai/{name}), {where}")
    if known is None:
        raise UnknownName.of("provider", prefix, PROVIDERS, f"- or say where '{name}' is served (--api-base URL)")
    key = _key(api_key, known.key_variable)
    if known.key_variable and key == _NO_KEY and not api_key:
        raise NoKey(f"{name} wants a key: set {known.key_variable}, or point --api-base at a server of your own")
    return known.base_url, rest, key


_NO_KEY = "none"  # sent to servers that want no key


def _key(given: str | None, variable: str) -> Key:
    """The key that was given, else that of the environment variable; its hint says where it is from."""
    found = given or os.environ.get(variable)
    if not found:
        return Key(_NO_KEY, f"none was given: set {variable}" if variable else "none was given (api_key=)")
    what = "the key that was given (api_key=)" if given else f"the key in the variable {variable}"
    checked(key := Key(found, f"check {what}"), what)
    return key


def addresses_of(api_base: str | Sequence[str] | None) -> tuple[str | None, ...]:
    """The addresses that a user named, each checked: several serve one model; (None,): the provider's own.

    >>> addresses_of(["http://a:8000/v1/", "http://b:8000/v1"])
    ('http://a:8000/v1', 'http://b:8000/v1')
    """
    if api_base is None:
        return (None,)
    given = [api_base] if isinstance(api_base, str) else list(api_base)
    if not given:
        raise BadArgument("api_base is an empty list: name at least one address, or leave it out")
    for address in given:
        check_address(address)
    addresses = tuple(address.rstrip("/") for address in given)
    if twice := sorted({address for address in addresses if addresses.count(address) > 1}):
        raise BadArgument(f"the address {http.without_login(twice[0])} is given twice: name each server once")
    return addresses


def check_address(api_base: str) -> None:
    """Raise `BadArgument`, without a login, where it is none, or holds a query."""
    try:
        url, parts = httpx.URL(api_base), urlsplit(api_base)
        good = url.scheme in ("http", "https") and bool(parts.hostname) and (80 if url.port is None else url.port) > 0
        good = good and (parts.port or 80) < 65536 and "@" not in parts.path and not re.search(r"[\s\0]", api_base)
    except (httpx.InvalidURL, ValueError, TypeError):  # the two read brackets and ports with different care
        good = False
    if not good:
        raise BadArgument(f"'{http.without_login(str(api_base))}' is no address: write it as http://host:port/v1")
    if parts.query or parts.fragment:  # it would be recorded with the address (a login is not)
        raise BadArgument("the address must hold no query, such as a key: put the key into BLENDFILTER_API_KEY")
