"""Keys and logins that must show up nowhere: known to this process, and taken out of whatever it passes on.

In: a text that a server or a client library wrote. Out: the text without any secret that `know` was given, whether it
stands there as it is, percent-encoded, as JSON or HTML write it, or in base64 (a server may echo the header that it was
sent). Where a library logs, its records pass the same way.

A secret of `SHORTEST` characters or more is hidden wherever it stands, also inside a word. A shorter one is hidden
where it stands alone, between characters that are no letters or digits. One of fewer than `LEAST` characters could not
be told from the words of a reply, so it stays in replies and is hidden in errors.
"""

from __future__ import annotations

import base64
import html
import json
import logging
import math
import os
import re
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

from blendfilter.errors import BadArgument

SHORTEST = 8
"""Characters below which a secret is hidden only where it stands alone."""
LEAST = 4
"""Characters below which a secret is not hidden in replies, which hold such words of their own accord."""
PLACEHOLDERS = frozenset(
    {"none", "null", "empty", "dummy", "fake", "test", "local", "token", "ollama", "vllm"}
)
"""What stands for a key at servers that want none, in any case: words that a reply may hold."""
_WORD = 20
"""Characters below which letters alone, or digits alone, in the environment are a word or a number that a reply may
hold of its own accord (`POSTGRES_PASSWORD=postgres`): hiding it would make results depend on the environment."""
_HIDDEN = "[key]"
_IN_ENVIRONMENT = re.compile(r"(?:^|_)(?:API_?KEY|TOKEN|SECRET(?:_ACCESS_KEY)?|PASSWORD)$")
_LOGGERS = (
    "aiohttp.client",
    "httpx",
    "httpcore.connection",
    "httpcore.http11",
    "httpcore.http2",
    "httpcore.proxy",
    "openai._base_client",
    "LiteLLM",
)
_lock = threading.Lock()
_known: frozenset[str] = frozenset()


class Key(str):
    """A key that its representation does not show: tracebacks with local variables print them by it.

    `hint` says what to do where it is refused: which variable it came from, or would have.
    """

    __slots__ = ("hint",)
    hint: str

    def __new__(cls, key: str, hint: str = "") -> Key:
        """The key, with its hint."""
        made = super().__new__(cls, key)
        made.hint = hint or str(getattr(key, "hint", ""))
        return made

    def __repr__(self) -> str:
        return repr(_HIDDEN)


def know(*secrets: str | None) -> None:
    """From now on these are hidden, as are those that the environment holds by now."""
    global _known  # noqa: PLW0603 - what this process knows is the point
    environment = {value for name, value in os.environ.items() if _IN_ENVIRONMENT.search(name)}
    named = (
        value
        for value in environment
        if len(value) >= _WORD or not (value.isalpha() or value.isdigit())
    )
    new = {
        str(secret)
        for secret in (*secrets, *named)
        if secret and len(secret) >= LEAST and not is_placeholder(secret)
    }
    with _lock:
        if not new <= _known:
            _known |= new
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if _hide_in not in logger.filters:
            logger.addFilter(_hide_in)


def hidden(text: str, key: str = "") -> str:
    """`text` without the secrets that are known, and without `key`, of whatever length, where it stands alone.

    >>> know("k3y-of-the-house"); hidden("Bearer k3y-of-the-house is wrong"), hidden("wrong key: ab", key="ab")
    ('Bearer [key] is wrong', 'wrong key: [key]')
    """
    known = _known
    if key and key not in known and not is_placeholder(key):
        text = re.sub(_alone(re.escape(key)), _HIDDEN, text)
    if not known:
        return text
    forms, pattern = _written(known)
    return pattern.sub(_HIDDEN, text) if any(form in text for form in forms) else text


def hidden_in(value: Any) -> Any:
    """A JSON value with all its texts `hidden`."""
    if isinstance(value, str):
        return hidden(value)
    if isinstance(value, Mapping):
        return {hidden_in(name): hidden_in(inner) for name, inner in value.items()}
    return [hidden_in(inner) for inner in value] if isinstance(value, list | tuple) else value


def hidden_so_far(text: str) -> str:
    """`hidden` for a text of which more is to come: an end of `LEAST` characters that may become a secret is left out.

    >>> know("k3y-of-the-house"); hidden_so_far("The key is k3y-of"), hidden_so_far("The key is k3y-off")
    ('The key is ', 'The key is k3y-off')
    """
    safe, known = hidden(text), _known
    if not known:
        return safe
    longest, beginnings = _beginnings(known)
    for at in range(max(0, len(safe) - longest), len(safe) - LEAST + 1):
        if any(
            form.startswith(safe[at:]) for form in beginnings.get(safe[at : at + LEAST], ())
        ):
            return safe[:at]
    return safe


def is_placeholder(secret: str) -> bool:
    """Whether this is no secret but a word for none."""
    return secret.casefold() in PLACEHOLDERS


def checked(secret: str, what: str) -> str:
    """`secret`, if an HTTP header can carry it. Raises `BadArgument`, which names it as `what` and does not show it.

    >>> checked("2f6c-91d0", "the key")
    '2f6c-91d0'
    """
    if not re.fullmatch(r"[!-~]+", secret):
        raise BadArgument(
            f"{what} holds what HTTP cannot carry: use ASCII without spaces or line breaks"
        )
    return secret


@lru_cache(maxsize=1)
def _written(known: frozenset[str]) -> tuple[frozenset[str], re.Pattern[str]]:
    """All that the secrets may be written as, and the pattern that finds it where it is to be hidden."""
    patterns: dict[str, str] = {}
    for secret in sorted(known, key=len):
        long = len(secret) >= SHORTEST
        for form in _forms(secret, long):
            patterns[form] = re.escape(form) if long else _alone(re.escape(form))
    longest_first = sorted(patterns, key=len, reverse=True)
    return frozenset(patterns), re.compile("|".join(patterns[form] for form in longest_first))


@lru_cache(maxsize=1)
def _beginnings(known: frozenset[str]) -> tuple[int, dict[str, list[str]]]:
    """The length of the longest form that the secrets may be written in, and all forms by how they begin."""
    forms, _ = _written(known)
    found: dict[str, list[str]] = {}
    for form in forms:
        found.setdefault(form[:LEAST], []).append(form)
    return max(map(len, forms)), found


def _alone(pattern: str) -> str:
    return rf"(?<![^\W_]){pattern}(?![^\W_])"


def _forms(secret: str, long: bool) -> set[str]:
    """How a secret may be written: as it is, escaped, and in base64 (inside a longer text, or as the header it is)."""
    if long:
        encoded = {_inside_base64(secret.encode(), before) for before in range(3)}
    else:  # too short to be found inside
        whole = (
            base64.b64encode(text.encode()).decode() for text in (secret, f"Bearer {secret}")
        )
        encoded = {form.rstrip("=") for form in whole}
    return _escaped(secret) | encoded | {form.translate(_FOR_ADDRESSES) for form in encoded}


def _escaped(secret: str) -> set[str]:
    quoted = {quote(secret), quote(secret, safe=""), quote_plus(secret)}
    small = {re.sub("%..", lambda code: code[0].lower(), form) for form in quoted}
    in_json = {json.dumps(secret, ensure_ascii=way)[1:-1] for way in (True, False)}
    for character in "/<>&'":
        code = "\\/" if character == "/" else f"\\u{ord(character):04x}"
        in_json |= {form.replace(character, code) for form in in_json}
    again = {json.dumps(form)[1:-1] for form in in_json}  # JSON in a text of JSON
    return {secret, html.escape(secret), repr(secret)[1:-1]} | quoted | small | in_json | again


_FOR_ADDRESSES = str.maketrans("+/", "-_")


def _inside_base64(secret: bytes, before: int) -> str:
    """The characters that base64 has for `secret` alone where so many bytes (modulo 3) stand before it."""
    whole = base64.b64encode(b"\0" * before + secret).decode()
    return whole[math.ceil(before * 8 / 6) : (before + len(secret)) * 8 // 6]


def _hide_in(record: logging.LogRecord) -> bool:
    """A filter that lets every record pass, without secrets."""
    message = record.getMessage()
    safe = hidden(message)
    if safe != message:
        record.msg, record.args = safe, ()
    return True


def refuse_keys(fields: Mapping[str, Any], where: str) -> None:
    """Raise `BadArgument` where a field, at any depth, is named as keys are: what a request holds is journaled."""
    for name, value in fields.items():
        if names_key(str(name)):
            raise BadArgument(
                f"{where} must hold no key, and '{name}' looks like one: they are recorded with every call; give it as "
                "api_key=, or in the environment"
            )
        for inner in value if isinstance(value, list | tuple) else (value,):
            if isinstance(inner, Mapping):
                refuse_keys(inner, where)


def names_key(name: str) -> bool:
    """Whether a field is named as keys are."""
    return bool(_KEY_NAME.search(name))


_KEY_NAME = re.compile(
    r"authori[sz]ation|(?:api|access|secret|private|subscription)[-_ ]?key|secret|passw(?:or)?d|credential|cookie"
    r"|(?:auth|access|bearer|api|id|session|security|hf)[-_ ]?token|^token$|headers$",
    re.IGNORECASE,
)
