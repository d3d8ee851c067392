"""An index behind an address: the client of `blendfilter serve`.

It gives the passages, scores and fingerprint that the served index gives in process, so that a journal made with the
one is replayed with the other. Queries go in batches; faults that may pass are tried again; an index that was rebuilt
behind the address is noticed with the first reply. The token is in no message, and in nothing that an error refers to.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import httpx
import tenacity
from pydantic import BaseModel, Field, ValidationError

from blendfilter import http, secrets
from blendfilter.errors import BadArgument, BadData, IndexChanged, ServerRefused, check_count
from blendfilter.files import AnyPath
from blendfilter.records import Passage
from blendfilter.retrieval.base import Hits, Retriever, Trim, first_fault

SERVER = "blendfilter"
"""How `/info` states that a server is ours."""
TOKEN = "BLENDFILTER_INDEX_TOKEN"
"""The variable that holds the token, for servers and clients. Never an option: anyone may see a command's words."""
A_PASSAGE = 16 << 10
"""Bytes that a reply may have for each passage of a request, beyond what any reply may."""
WAIT_FIRST, WAIT_MAX = 0.25, 8.0
PATIENCE = 60.0  # seconds: where a server wants a longer wait, that is an error at once
CONNECTIONS = 64
_LONGEST = 300
_GIVE_IT = "the environment's goes to no address out of a file, so give it in Python, open_index(…, token=…)"


class _RemoteHits(BaseModel):
    query_cut: bool = False
    trim: Trim | None = None
    missing_shards: list[str] = []
    passages: list[Passage]


class _BatchLimits(BaseModel):
    max_queries: Annotated[int, Field(ge=1)] = 64
    max_body: Annotated[int, Field(ge=1)] = 1024 * 1024
    max_k: Annotated[int, Field(ge=1)] | None = None


class _Reply(BaseModel):
    fingerprint: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]


class _SearchReply(_Reply):
    results: list[_RemoteHits]


class _InfoReply(_Reply):
    version: str
    passages: Annotated[int, Field(ge=1)] | None = None
    index: dict[str, Any] = {}
    limits: _BatchLimits = _BatchLimits()


class Remote(Retriever):
    """The index that `blendfilter serve` answers for at `url`; threads share it, forked processes too.

    Args:
        url: ``http://host:port``; a login in it (``http://any:TOKEN@host``) is taken as the token.
        token: the server's, by default what BLENDFILTER_INDEX_TOKEN holds. It is sent to this address alone.
        timeout: seconds that one attempt may take.
        attempts: how often a request is tried on faults that pass.
        batch_size: queries a request, at most; the server's own limit goes before it.
        ambient: whether BLENDFILTER_INDEX_TOKEN counts. Not for an address that comes out of a file.

    Raises:
        ServerRefused: no server is there, or the token is wrong. BadData: there is another kind of server.
        BadArgument: no such address.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = 30.0,
        attempts: int = 4,
        batch_size: int = 64,
        ambient: bool = True,
    ) -> None:
        batch_size = check_count("batch_size", batch_size)
        address = address_of(url)
        found = token or address.token or (os.environ.get(TOKEN) if ambient else None)
        sent = found and secrets.checked(found, f"the token ({TOKEN})")
        how = f"set {TOKEN}" if ambient else _GIVE_IT
        self.url = address.url
        self._connection = ServerConnection(self.url, sent, timeout, attempts, how)
        self._reopened = partial(
            Remote, timeout=timeout, attempts=attempts, batch_size=batch_size, ambient=ambient
        )
        foreign = (
            f"{self.url} is not a server of `blendfilter serve`: another one in dspy.ColBERTv2's format "
            f"is a retriever as dspy.ColBERTv2(url='{self.url}')"
        )
        reply = self._connection.request("/info", foreign=foreign)
        if not isinstance(reply, dict) or reply.get("server") != SERVER:
            raise BadData(foreign)
        self._about: _InfoReply = self._checked(_InfoReply, reply)
        self.fingerprint = self._about.fingerprint
        self._batch = min(batch_size, self._about.limits.max_queries)

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """The served index's passages, in batches.

        Raises:
            IndexChanged: another index is served by now. BadArgument: the server's limits forbid it.
            ServerRefused: it cannot be reached any more. BadData: its reply makes no sense.
        """
        found = list[list[Passage]]()
        for batch in self._batches(queries):
            body = f'{{"k":{k},"queries":[{",".join(batch)}]}}'.encode()
            limit = http.LARGEST + A_PASSAGE * k * len(batch)
            sent = self._connection.request("/search", body, limit=limit)
            reply: _SearchReply = self._checked(_SearchReply, sent)
            if reply.fingerprint != self.fingerprint:
                raise IndexChanged(
                    f"the index behind {self.url} was changed ({self.fingerprint} → {reply.fingerprint}): open it again"
                )
            too_many = any(len(result.passages) > k for result in reply.results)
            if too_many or len(reply.results) != len(batch):
                raise BadData(
                    f"{self.url} answered {len(batch)} queries with something else: look what runs there"
                )
            found += (
                Hits(own.passages, cut=own.query_cut, trim=own.trim, missing=own.missing_shards)
                for own in reply.results
            )
        return found

    def info(self) -> dict[str, Any]:
        """The server's description of its index (`of` is that index's kind), and its address."""
        about = self._about
        return {
            **about.index,
            "kind": "remote",
            "of": about.index.get("kind", "unknown"),
            "fingerprint": self.fingerprint,
            "url": self.url,
            "passages": about.passages,
            "server": about.version,
        }

    @property
    def max_k(self) -> int | None:
        """How many passages a query its server gives at most, where it states that."""
        return self._about.limits.max_k

    def __len__(self) -> int:
        return super().__len__() if self._about.passages is None else self._about.passages

    def __repr__(self) -> str:
        return f"Remote({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # a pickle is a file like any other: the token stays out, and whoever loads it has their own
        return self._reopened, (self.url,)

    def _batches(self, queries: Sequence[str]) -> Iterator[list[str]]:
        """Queries as JSON, no more together than the server takes, by number and by bytes."""
        batch, size = list[str](), 0
        most = self._about.limits.max_body - 64  # for what stands around them
        for written in map(json.dumps, queries):
            if batch and (len(batch) == self._batch or size + len(written) + 1 > most):
                yield batch
                batch, size = [], 0
            batch.append(written)
            size += len(written) + 1
        if batch:
            yield batch

    def _checked(self, kind: type[_Reply], reply: Any) -> Any:
        """The server's reply, of that kind. Raises: BadData."""
        try:
            return kind.model_validate(reply)
        except ValidationError as error:
            why = first_fault(error)
        raise BadData(f"{self.url} answered what cannot be read: {quoted(why)}")


# --- requests -------------------------------------------------------------------------------------------------------


class ServerAddress(NamedTuple):
    url: str
    token: str


class _PassingFault(Exception):
    """A fault that may pass. `wait` is what the server wants, in seconds; `stated` is its own words."""

    def __init__(self, message: str, wait: float = 0.0, stated: str = "") -> None:
        super().__init__(message)
        self.wait, self.stated = wait, stated


def _wait(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    backoff = min(WAIT_MAX, WAIT_FIRST * 2.0 ** (state.attempt_number - 1))
    return max(getattr(error, "wait", 0.0), backoff) * random.uniform(1.0, 1.25)


class ServerConnection:
    """Requests to one address. Each process has a client of its own: connections do not survive a fork.

    Errors are raised outside of except blocks: what was caught leads to the request, which holds the token.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        timeout: float,
        attempts: int,
        how_to_give: str = f"set {TOKEN}",
    ) -> None:
        self.url, self.token = url, token
        self._timeout, self._how_to_give = timeout, how_to_give
        self._attempts = check_count("attempts", attempts)
        secrets.know(token)
        self._clients: dict[int, httpx.Client] = {}

    def request(
        self,
        path: str,
        body: bytes | None = None,
        *,
        foreign: str = "",
        limit: int = http.LARGEST,
    ) -> Any:
        """The JSON at `path`, at most `limit` bytes of it.

        `foreign` is the message for a server that has no such path, or answers in no JSON.

        Raises:
            ServerRefused, BadArgument, BadData: as the server's answer, or silence, means.
        """
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(
                lambda error: isinstance(error, _PassingFault) and error.wait <= PATIENCE
            ),
            wait=_wait,
            stop=tenacity.stop_after_attempt(self._attempts),
            reraise=True,
        )
        try:
            return retrying(self._once, path, body, foreign, limit)
        except _PassingFault as fault:
            why, stated = str(fault), fault.stated
        tried = retrying.statistics["attempt_number"]
        raise ServerRefused(
            f"the index server at {self.url} {why} (attempts: {tried})"
        ).quoting(stated)

    def _once(self, path: str, body: bytes | None, foreign: str, limit: int) -> Any:
        method, where = "GET" if body is None else "POST", self.url + path
        fault: Exception
        try:
            with self._client().stream(method, where, content=body) as reply:
                return self._read(reply, http.bounded(reply, limit, self._timeout), foreign)
        except http.TooLarge as error:
            fault = BadData(f"{self.url}{path}: {error}; look what runs there")
        except httpx.TimeoutException:
            fault = _PassingFault(
                f"did not answer within {self._timeout:g} seconds: wait longer for it (timeout=…)"
            )
        except (httpx.RequestError, httpx.InvalidURL, UnicodeError) as error:
            why = quoted(str(error) or type(error).__name__, self.token)
            unreachable = isinstance(error, httpx.ConnectError | httpx.UnsupportedProtocol)
            start = f"cannot be reached ({why}): `blendfilter serve INDEX` starts one"
            fault = _PassingFault(start if unreachable else f"broke off ({why})")
        raise fault

    def _client(self) -> httpx.Client:
        if os.getpid() not in self._clients:
            authorization = {"Authorization": f"Bearer {self.token}"} if self.token else {}
            host = urlsplit(self.url).hostname or ""
            here = host in ("localhost", "::1") or re.fullmatch(r"127(?:\.[0-9]{1,3}){3}", host)
            self._clients[os.getpid()] = httpx.Client(
                timeout=httpx.Timeout(self._timeout, connect=min(self._timeout, 10.0)),
                headers={"Accept-Encoding": http.PACKINGS, **authorization},
                limits=httpx.Limits(max_connections=CONNECTIONS, keepalive_expiry=30),
                trust_env=not here,  # a proxy cannot see what is on this machine
            )
        return self._clients[os.getpid()]

    def _read(self, reply: httpx.Response, content: bytes, foreign: str) -> Any:
        status, value = reply.status_code, None
        with suppress(ValueError):
            value = http.json_of(content)
            if status == 200:
                # What a server echoes of its token would stand in run.json, in journals, and in prompts for a model.
                return secrets.hidden_in(value) if self.token else value
        if foreign and status in (200, 404, 405):
            raise BadData(foreign)
        if status == 200:
            raise _PassingFault("answered in something else than JSON")
        message = value.get("message") if isinstance(value, Mapping) else None
        stated = quoted(str(message or reply.reason_phrase or "no reason given"), self.token)
        if status in (408, 429) or status >= 500:
            wait = http.seconds_to_wait(reply.headers) or 0.0
            raise _PassingFault(f"failed with {status}: {stated}", wait, stated)
        if status in (400, 413, 422):
            raise BadArgument(f"{self.url} refuses it: {stated}").quoting(stated)
        why = f"refuses with {status}: {stated}"
        if status == 401:
            why = f"wants a token: {self._how_to_give}"
            why = f"does not know the token it was given ({TOKEN})" if self.token else why
        raise ServerRefused(f"the index server at {self.url} {why}").quoting(stated)


def quoted(text: str, token: str | None = None) -> str:
    """What a server sent, for a message: on one line, printable, not too long, and without the token."""
    text = secrets.hidden(text, token or "")
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def address_of(url: str) -> ServerAddress:
    """A server's address as http(s)://host:port/path, and the token out of its login.

    Raises `BadArgument`, without the login, where it is no such address.

    >>> address_of("http://any:s3cret@index.example:8893/wiki/")
    ServerAddress(url='http://index.example:8893/wiki', token='s3cret')
    """
    plain = ""
    with suppress(ValueError, httpx.InvalidURL):
        parts = urlsplit(url)
        login, at, place = parts.netloc.rpartition("@")
        beyond = "@" in parts.path or parts.query or parts.fragment
        if (
            parts.scheme in ("http", "https")
            and parts.hostname
            and parts.port != 0
            and not beyond
        ):
            address = f"{parts.scheme}://{place}{parts.path}".rstrip("/")
            plain = str(httpx.URL(address)).rstrip("/")
    if not plain:
        where = quoted(http.without_login(url))
        raise BadArgument(
            f"'{where}' is no index server's address: write it as http://host:port, nothing behind it"
        )
    user, _, password = login.partition(":")
    return ServerAddress(plain, unquote(password or user) if at else "")


def is_served(location: AnyPath) -> bool:
    """Whether an index is named by an address of `blendfilter serve`."""
    return os.fspath(location).partition("://")[0].lower() in ("http", "https")


def check_host(url: str, allow_hosts: Sequence[str], whose: str) -> None:
    """Raise `BadArgument` for an address out of a file, unless `allow_hosts` name its host (HOST or HOST:PORT).

    Whoever wrote the file chose the address: any call reveals to them who opens the file, when, and what is searched
    for.

    >>> check_host("http://index.example:8893", ["index.example"], "wiki.trimmed")
    """
    parts = urlsplit(address_of(url).url if is_served(url) else url)
    host, port = parts.hostname or "", parts.port
    named = [allow_hosts] if isinstance(allow_hosts, str) else allow_hosts
    if any(host == allowed and only in (None, port) for allowed, only in map(_host, named)):
        return
    name = quoted(f"[{host}]" if ":" in host else host) + ("" if port is None else f":{port}")
    raise BadArgument(
        f"{whose} lies over an index at {name}, and an address out of a file is called only where its host is named: "
        f"if you trust it, add allow_hosts={name}"
    )


def _host(name: str) -> tuple[str, int | None]:
    """HOST or HOST:PORT, taken apart; the scheme and the path of an address play no part."""
    place = name.partition("://")[2] or name
    if place.count(":") > 1 and "[" not in place:
        place = f"[{place}]"
    with suppress(ValueError):
        parts = urlsplit(f"//{place}")
        if parts.hostname:
            return parts.hostname, parts.port
    raise BadArgument(f"'{quoted(name)}' is no host to allow: write it as HOST or HOST:PORT")
