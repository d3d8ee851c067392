"""Who may ask: holders of the token, or, on this machine without one, whoever came by this machine's name.

In: a request's headers. Out: the request goes on, or is refused before anything of it is read.
A page on the web can make a browser ask a server on the same machine under a name of its own (DNS rebinding); the Host
header tells.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from blendfilter.server.connections import head_too_large
from blendfilter.server.limits import Limits
from blendfilter.server.replies import refusal

OPEN = "/health"
"""The one route that wants no token."""


class Guard:
    """The application, behind its check: `token` is wanted where there is one, a local Host header elsewhere."""

    def __init__(self, app: ASGIApp, token: str | None, limits: Limits) -> None:
        self._app, self._token, self._limits = app, token, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            # one that came in a single read was whole before its size was looked at
            if size_of_head(scope) > self._limits.max_head:
                return await head_too_large(self._limits)(scope, receive, send)
            if self._token is None and not is_local(headers.get("host", "")):
                refused = refusal(403, "without a token, this server answers to localhost and 127.0.0.1 only")
                return await refused(scope, receive, send)
            if self._token is not None and scope["path"] != OPEN and not knows(headers, self._token):
                refused = refusal(
                    401,
                    "this server wants a token: 'Authorization: Bearer TOKEN', or http://any:TOKEN@host:port/",
                    {"WWW-Authenticate": "Bearer"},
                )
                return await refused(scope, receive, send)
        return await self._app(scope, receive, send)


def size_of_head(scope: Scope) -> int:
    """Bytes of a request's address and headers."""
    fields = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    return len(scope["raw_path"]) + len(scope["query_string"]) + fields


def is_local(host: str) -> bool:
    """Whether a Host header names this machine to itself.

    >>> is_local("localhost:8893"), is_local("127.0.0.1"), is_local("[::1]:8893"), is_local("evil.example:8893")
    (True, True, True, False)
    """
    name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def knows(headers: Mapping[str, str], token: str) -> bool:
    """Whether a request carries the token: as a bearer, or as the password of HTTP's basic login, any user.

    >>> knows({"authorization": "Bearer s3cret"}, "s3cret"), knows({}, "s3cret")
    (True, False)
    """
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    shown = rest.strip().encode("latin-1", "replace")
    if scheme.lower() == "basic":
        try:
            shown = base64.b64decode(shown, validate=True).partition(b":")[2]
        except binascii.Error:
            return False
    elif scheme.lower() != "bearer":
        return False
    # in constant time: how long a comparison takes must not tell how much of the guess was right
    return hmac.compare_digest(shown, token.encode())
