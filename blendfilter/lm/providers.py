"""Where models are served: from a model's name to an address, the name that its server knows, and a key.

The one place that reads keys from the environment.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx

from blendfilter import http
from blendfilter.errors import BadArgument, NoKey, UnknownName
from blendfilter.secrets import LEAST, Key, checked, is_placeholder


class Provider(NamedTuple):
    """An OpenAI-compatible provider: where it is, and which variable holds its key (empty: it wants none)."""

    base_url: str
    key_variable: str = ""


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
    """The address, the name that the server knows, and the key, of `name`; see `connect` for what they may be."""
    prefix, _, rest = name.partition("/")
    known = PROVIDERS.get(prefix)
    if api_base is not None:
        check_address(api_base)
        # A name may hold slashes of its own (Qwen/Qwen2.5-7B-Instruct): only a provider's prefix comes off. And a
        # provider's key goes to an address of the user's only where the name says that provider.
        model = rest if known and rest else name
        variable = known.key_variable if known and known.key_variable else "BLENDFILTER_API_KEY"
        return api_base.rstrip("/"), model, _key(api_key, variable)
    if known is None or not rest:
        if not rest:
            raise BadArgument(
                f"'{name}' names no provider: write provider/model (openai/{name}), "
                "or say where it is served (--api-base URL)"
            )
        raise UnknownName.of("provider", prefix, PROVIDERS, f"- or say where '{name}' is served (--api-base URL)")
    key = _key(api_key, known.key_variable)
    if known.key_variable and key == _NO_KEY and not api_key:
        raise NoKey(f"{name} wants a key: set {known.key_variable}, or point --api-base at a server of your own")
    return known.base_url, rest, key


_NO_KEY = "none"
"""Sent to servers that want no key."""


def _key(given: str | None, variable: str) -> Key:
    """The key that was given, else that of the environment variable; its hint says where it is from.

    One that cannot be sent is refused; one that is too short to be kept out of replies is warned of.
    """
    found = given or os.environ.get(variable)
    if not found:
        return Key(_NO_KEY, f"none was given: set {variable}" if variable else "none was given (api_key=)")
    what = "the key that was given (api_key=)" if given else f"the key in the variable {variable}"
    key = Key(found, f"check {what}")
    checked(key, what)
    if len(key) < LEAST and not is_placeholder(key):
        warnings.warn(
            f"{what} has fewer than {LEAST} characters: it is taken out of error messages, but not out of replies, "
            "where it could not be told from a word",
            stacklevel=2,
        )
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
