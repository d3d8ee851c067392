"""Keys and logins that must show up nowhere: known to this process, and taken out of whatever it passes on.

In: a text that a server or a client library wrote. Out: the text without any secret that `know` was told of, whether it
stands there as it is, percent-encoded or in base64 (a server may echo the header that it was sent). Where a library
logs, its records pass the same way.
"""

from __future__ import annotations

import base64
import logging
import math
import os
import re
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from blendfilter.errors import BadArgument

SHORTEST = 8
"""Characters below which a secret is taken for a placeholder ("none"), which would be found in any text."""
_WORD = 20
"""Characters below which letters alone, or digits alone, in the environment are a word or a number that a reply may
hold of its own accord (`POSTGRES_PASSWORD=postgres`): hiding it would make results depend on the environment."""
_HIDDEN = "[key]"
_IN_ENVIRONMENT = re.compile(r"(?:^|_)(?:API_?KEY|TOKEN|SECRET(?:_ACCESS_KEY)?|PASSWORD)$")
_LOGGERS = (
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
    named = (value for name, value in os.environ.items() if _IN_ENVIRONMENT.search(name) and not _is_word(value))
    new = {str(secret) for secret in (*secrets, *named) if secret and len(secret) >= SHORTEST}
    with _lock:
        if not new <= _known:
            _known |= new
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if _hide_in not in logger.filters:
            logger.addFilter(_hide_in)


def hidden(text: str) -> str:
    """`text` without the secrets that are known.

    >>> know("k3y-of-the-house"); hidden("Bearer k3y-of-the-house is wrong")
    'Bearer [key] is wrong'
    """
    known = _known
    return _pattern(known).sub(_HIDDEN, text) if known else text


def _is_word(value: str) -> bool:
    return len(value) < _WORD and (value.isalpha() or value.isdigit())


@lru_cache(maxsize=1)
def _pattern(known: frozenset[str]) -> re.Pattern[str]:
    forms = {form for secret in known for form in _forms(secret)}
    return re.compile("|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)))


def _forms(secret: str) -> set[str]:
    """How a secret may be written: as it is, quoted for an address or in JSON, and in base64 inside a longer text."""
    plain = {secret, quote(secret), quote(secret, safe=""), secret.replace("/", r"\/").replace('"', r"\"")}
    inside = {_inside_base64(secret.encode(), before) for before in range(3)}
    return plain | inside | {form.translate(_FOR_ADDRESSES) for form in inside}


_FOR_ADDRESSES = str.maketrans("+/", "-_")


def _inside_base64(secret: bytes, before: int) -> str:
    """The characters that base64 has for `secret` alone where so many bytes (modulo 3) stand before it."""
    whole = base64.b64encode(b"\0" * before + secret).decode()
    return whole[math.ceil(before * 8 / 6) : (before + len(secret)) * 8 // 6]


def _hide_in(record: logging.LogRecord) -> bool:
    """A filter that lets every record pass, without secrets."""
    told = record.getMessage()
    safe = hidden(told)
    if safe != told:
        record.msg, record.args = safe, ()
    return True


def refuse_keys(fields: Mapping[str, Any], where: str) -> None:
    """Raise `BadArgument` where a field, at any depth, is named as keys are: what a request holds is journaled."""
    for name, value in fields.items():
        if _KEY_NAME.search(str(name)):
            raise BadArgument(
                f"{where} must hold no key, and '{name}' looks like one: they are recorded with every call; give it as "
                "api_key=, or in the environment"
            )
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, Mapping):
                refuse_keys(each, where)


_KEY_NAME = re.compile(
    r"authori[sz]ation|(?:api|access|secret|private|subscription)[-_ ]?key|secret|passw(?:or)?d|credential|cookie"
    r"|(?:auth|access|bearer|api|id|session|security|hf)[-_ ]?token|^token$|headers$",
    re.IGNORECASE,
)
