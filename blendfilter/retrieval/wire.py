"""The way to an index server: addresses, the token, and requests that are tried again on faults that pass.

In: a path, and a body to post there. Out: the JSON that came back, or one line that says why none did.
The token is in no message, and in nothing that an error holds on to.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import httpx
import tenacity

from blendfilter import http, secrets
from blendfilter.errors import BadArgument, BadData, ServerRefused

TOKEN = "BLENDFILTER_INDEX_TOKEN"
"""The variable that holds the token, for servers and clients. Never an option: anyone may see a command's words."""
WAIT_FIRST = 0.25
WAIT_MAX = 8.0
PATIENCE = 60.0
"""A server that asks for more seconds than these is told as it is, not waited for."""
KEEP_ALIVE = 30.0
CONNECTIONS = 64
_LONGEST = 300


class Address(NamedTuple):
    """Where a server is, and the token that stood in its address."""

    url: str
    token: str


class Again(Exception):
    """A fault that may pass. `wait` is what the server asked for, in seconds; `hint` is what helps if it stays."""

    def __init__(self, said: str, wait: float = 0.0, hint: str = "") -> None:
        super().__init__(said)
        self.wait, self.hint = wait, hint


class Wire:
    """Requests to one address. Each process has a client of its own: connections do not survive a fork."""

    def __init__(
        self, url: str, token: str | None, timeout: float, attempts: int, how_to_give: str = f"set {TOKEN}"
    ) -> None:
        self.url = url
        self._how_to_give = how_to_give
        self._token, self._timeout, self._attempts = token, timeout, attempts
        secrets.know(token)
        self._clients: dict[int, httpx.Client] = {}

    def ask(self, path: str, body: bytes | None = None, *, foreign: str = "", limit: int = http.LARGEST) -> Any:
        """The JSON at `path`, at most `limit` bytes of it.

        `foreign` is what to say of a server that has no such path, or answers in no JSON.

        Raises:
            ServerRefused, BadArgument, BadData: as the server's answer, or silence, means.
        """
        tried = 0

        def attempt() -> Any:
            nonlocal tried
            tried += 1
            return self._ask(path, body, foreign, limit)

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, Again) and error.wait <= PATIENCE),
            wait=_wait,
            stop=tenacity.stop_after_attempt(self._attempts),
            reraise=True,
        )
        try:
            return retrying(attempt)
        except Again as again:
            said, hint = str(again), again.hint
        # outside the except block: what was caught leads to the request, which holds the token
        times = "1 attempt" if tried == 1 else f"{tried} attempts"
        raise ServerRefused(f"the index server at {self.url} {said} ({times}){hint}")

    @property
    def has_token(self) -> bool:
        """Whether requests carry a token."""
        return bool(self._token)

    def close(self) -> None:
        """Close the connections of this process."""
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()

    def _ask(self, path: str, body: bytes | None, foreign: str, limit: int) -> Any:
        method, where = "GET" if body is None else "POST", self.url + path
        try:
            with self._client().stream(method, where, content=body) as reply:
                return self._read(reply, http.bounded(reply, limit, self._timeout), foreign)
        except http.TooLarge as error:
            fault: Exception = BadData(f"{self.url}{path}: {error}; look what runs there")
        except httpx.RequestError as error:
            fault = self._fault(error)
        except (httpx.InvalidURL, UnicodeError) as error:  # a redirect, or a header, that is none
            fault = Again(f"answered what is no HTTP ({said_by(str(error), self._token)})")
        # outside the except block, as in `ask`
        raise fault

    def _client(self) -> httpx.Client:
        process = os.getpid()
        client = self._clients.get(process)
        if client is None:
            authorization = {"Authorization": f"Bearer {self._token}"} if self._token else {}
            made = httpx.Client(
                timeout=httpx.Timeout(self._timeout, connect=min(self._timeout, 10.0)),
                headers={"Accept-Encoding": http.PACKINGS, **authorization},
                limits=httpx.Limits(
                    max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS, keepalive_expiry=KEEP_ALIVE
                ),
                trust_env=not is_here(self.url),  # a proxy cannot see what is on this machine
            )
            client = self._clients.setdefault(process, made)
            if client is not made:  # another thread was faster
                made.close()
        return client

    def _fault(self, error: httpx.RequestError) -> Again:
        why = said_by(str(error) or type(error).__name__, self._token)
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.UnsupportedProtocol):
            return Again(f"cannot be reached ({why})", hint=": `blendfilter serve INDEX` starts one")
        if isinstance(error, httpx.TimeoutException):
            hint = ": wait longer for it (timeout=…), or ask for fewer queries at once (batch_size=…)"
            return Again(f"did not answer within {self._timeout:g} seconds", hint=hint)
        return Again(f"broke off ({why})")

    def _read(self, reply: httpx.Response, content: bytes, foreign: str) -> Any:
        status = reply.status_code
        try:
            told = http.json_of(content)
        except ValueError:
            told = reply  # no JSON value is that
        if status == 200 and told is not reply:
            return told
        if foreign and status in (200, 404, 405):
            raise BadData(foreign)
        if status == 200:
            raise Again("answered in something else than JSON")
        message = told.get("message") if isinstance(told, Mapping) else None
        said = said_by(str(message or reply.reason_phrase or "no reason given"), self._token)
        if status in (408, 429) or status >= 500:
            raise Again(f"failed with {status}: {said}", http.seconds_to_wait(reply.headers) or 0.0)
        if status in (400, 413, 422):
            raise BadArgument(f"{self.url} refuses it: {said}")
        if status == 401:
            wrong = (
                f"does not know the token it was given ({TOKEN})"
                if self._token
                else f"wants a token: {self._how_to_give}"
            )
            raise ServerRefused(f"the index server at {self.url} {wrong}")
        raise ServerRefused(f"the index server at {self.url} refuses with {status}: {said}")


def _wait(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    backoff = min(WAIT_MAX, WAIT_FIRST * 2.0 ** (state.attempt_number - 1))
    asked = error.wait if isinstance(error, Again) else 0.0
    return max(asked, backoff) * random.uniform(1.0, 1.25)


def said_by(text: str, token: str | None = None) -> str:
    """What a server said, for a message: on one line, printable, not too long, and without the token."""
    text = secrets.hidden(text, token or "")
    text = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def address_of(url: str) -> Address:
    """A server's address as http(s)://host:port/path, and the token out of its login.

    Raises `BadArgument`, without the login, where it is no such address.

    >>> address_of("http://any:s3cret@index.example:8893/wiki/")
    Address(url='http://index.example:8893/wiki', token='s3cret')
    """
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        good = good and "@" not in parts.path and not parts.query and not parts.fragment
        login, at, place = parts.netloc.rpartition("@")
        plain = str(httpx.URL(f"{parts.scheme}://{place}{parts.path}".rstrip("/"))).rstrip("/") if good else ""
    except (ValueError, httpx.InvalidURL):
        plain = ""
    if not plain:
        more = ", without what follows the '?'" if "?" in url else ""
        raise BadArgument(
            f"'{said_by(http.without_login(url))}' is no index server's address: write it as http://host:port{more}"
        )
    user, _, password = login.partition(":")
    return Address(plain, unquote(password or user) if at else "")


def check_host(url: str, allow_hosts: Sequence[str], whose: str) -> None:
    """Raise `BadArgument` for an address out of a file, unless `allow_hosts` name its host (HOST or HOST:PORT).

    Whoever wrote the file chose the address: to call it at all tells them who opens the file, when, and what is
    searched for.

    >>> check_host("http://index.example:8893", ["index.example"], "wiki.trimmed")
    """
    ours = url.partition("://")[0].lower() in ("http", "https")
    parts = urlsplit(address_of(url).url if ours else url)
    host = (parts.hostname or "", parts.port)
    named = [allow_hosts] if isinstance(allow_hosts, str) else allow_hosts
    if any(name == host[0] and port in (None, host[1]) for name, port in map(_host, named)):
        return
    shown = said_by(f"[{host[0]}]" if ":" in host[0] else host[0]) + ("" if host[1] is None else f":{host[1]}")
    raise BadArgument(
        f"{whose} lies over an index at {shown}, and an address out of a file is called only where its host is named: "
        f"if you trust it, add --allow-host {shown} (in Python allow_hosts=['{shown}'])"
    )


def _host(name: str) -> tuple[str, int | None]:
    """HOST or HOST:PORT, taken apart; the scheme and the path of an address play no part."""
    place = name.partition("://")[2] or name
    try:
        parts = urlsplit(f"//[{place}]" if place.count(":") > 1 and "[" not in place else f"//{place}")
        found = (parts.hostname or "", parts.port)
    except ValueError:
        found = ("", None)
    if not found[0]:
        raise BadArgument(f"'{said_by(name)}' is no host to allow: write it as HOST or HOST:PORT")
    return found


def is_here(url: str) -> bool:
    """Whether an address is on this machine by its looks: localhost, 127.…, ::1.

    >>> is_here("http://127.0.0.1:8893"), is_here("http://index.example")
    (True, False)
    """
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or re.fullmatch(r"127(?:\.[0-9]{1,3}){3}", host) is not None
