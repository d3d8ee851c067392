"""An index behind an address: the client of `blendfilter serve`.

In: queries. Out: the passages, scores and fingerprint that the served index gives in process, so that a journal made
with the one is replayed with the other. Queries go in batches; what may pass is tried again; an index that was rebuilt
behind the address is noticed with the first reply.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from blendfilter import http, secrets
from blendfilter.errors import BadArgument, BadData, IndexChanged
from blendfilter.records import Passage
from blendfilter.retrieval.base import Retriever, ShortCorpus
from blendfilter.retrieval.hits import Hits
from blendfilter.retrieval.wire import TOKEN, Wire, address_of, said_by

SERVER = "blendfilter"
A_PASSAGE = 16 << 10
"""Bytes that a reply may have for each passage that was asked for, beyond what any reply may."""
_GIVE_IT = "the environment's goes to no address out of a file, so give it in Python, open_index(…, token=…)"

Model = TypeVar("Model", bound=BaseModel)


class _Passage(BaseModel):
    id: str
    title: str
    text: str
    score: float | None = None
    metadata: dict[str, Any] = {}


class _Result(BaseModel):
    query_cut: bool = False
    passages: list[_Passage]


class _Found(BaseModel):
    fingerprint: str
    results: list[_Result]


class _Limits(BaseModel):
    """Those that shape a batch; the rest is the server's to enforce."""

    max_queries: Annotated[int, Field(ge=1)] = 64
    max_body: Annotated[int, Field(ge=1)] = 1024 * 1024
    max_k: Annotated[int, Field(ge=1)] | None = None


class _Info(BaseModel):
    model_config = ConfigDict(extra="ignore")
    server: str
    version: str
    fingerprint: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    passages: Annotated[int, Field(ge=1)] | None = None
    index: dict[str, Any] = {}
    limits: _Limits = _Limits()


class Remote(Retriever):
    """The index that `blendfilter serve` answers for at `url`; threads share it, forked processes too.

    Args:
        url: ``http://host:port``; a login in it (``http://any:TOKEN@host``) is taken as the token, and shown nowhere.
        token: the server's, by default what BLENDFILTER_INDEX_TOKEN holds. It is sent to this address alone.
        timeout: seconds that one attempt may take.
        attempts: how often a request is tried on faults that pass.
        batch_size: queries a request, at most; the server's own limit goes before it.
        ambient: whether BLENDFILTER_INDEX_TOKEN counts. Not for an address that comes out of a file.

    Raises:
        ServerRefused: nobody is there, or the token is wrong. BadData: there is another kind of server.
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
        if attempts < 1 or batch_size < 1 or not 0 < timeout < float("inf"):
            raise BadArgument(
                "attempts and batch_size must be 1 or more and timeout above 0, "
                f"got {attempts}, {batch_size} and {timeout}"
            )
        address = address_of(url)
        found = token or address.token or (os.environ.get(TOKEN) if ambient else None)
        self.url = address.url
        hint = () if ambient else (_GIVE_IT,)
        sent = found and secrets.checked(found, f"the token ({TOKEN})")
        self._wire = Wire(self.url, sent, timeout, attempts, *hint)
        self._options = {"timeout": timeout, "attempts": attempts, "batch_size": batch_size, "ambient": ambient}
        self._about = self._ask_about()
        self.fingerprint = self._about.fingerprint
        self._batch = min(batch_size, self._about.limits.max_queries)
        self._short = None if self._about.passages is None else ShortCorpus(self._about.passages)

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """The served index's passages, in batches.

        Raises:
            IndexChanged: another index is served by now. BadArgument: the server's limits forbid it.
            ServerRefused: it cannot be reached any more. BadData: its reply makes no sense.
        """
        if self._short:
            self._short.check(k)
        return [hits for batch in self._batches(queries) for hits in self._find(batch, k)]

    def info(self) -> dict[str, Any]:
        """What the server says of its index (`of` is that index's kind), and its address."""
        served = self._about.index
        own = {"kind": "remote", "of": served.get("kind", "unknown"), "fingerprint": self.fingerprint, "url": self.url}
        return {**served, **own, "passages": self._about.passages, "server": self._about.version}

    @property
    def max_k(self) -> int | None:
        """How many passages a query its server gives at most, where it says so."""
        return self._about.limits.max_k

    def close(self) -> None:
        """Close this process's connections; a later search opens new ones."""
        self._wire.close()

    def __len__(self) -> int:
        return super().__len__() if self._about.passages is None else self._about.passages

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Remote({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # a pickle is a file like any other: the token stays out, and whoever loads it has their own
        return _reopened, (self.url, self._options)

    def _ask_about(self) -> _Info:
        foreign = (
            f"{self.url} is not a server of `blendfilter serve`: another one in dspy.ColBERTv2's format "
            f"is a retriever as dspy.ColBERTv2(url='{self.url}')"
        )
        reply = self._wire.ask("/info", foreign=foreign)
        if not isinstance(reply, dict) or reply.get("server") != SERVER:
            raise BadData(foreign)
        return self._checked(_Info, reply)

    def _batches(self, queries: Sequence[str]) -> Iterator[list[str]]:
        """Queries as JSON, no more together than the server takes, by number and by bytes."""
        batch, size, room = list[str](), 0, self._about.limits.max_body - 64  # for what stands around them
        for query in queries:
            written = json.dumps(query)
            if batch and (len(batch) == self._batch or size + len(written) + 1 > room):
                yield batch
                batch, size = [], 0
            batch.append(written)
            size += len(written) + 1
        if batch:
            yield batch

    def _find(self, batch: Sequence[str], k: int) -> list[Hits]:
        most = http.LARGEST + A_PASSAGE * k * len(batch)
        reply = self._wire.ask("/search", f'{{"k":{k},"queries":[{",".join(batch)}]}}'.encode(), limit=most)
        if self._wire.has_token:  # what a server echoes of it would stand in journals, and in prompts for a model
            reply = secrets.hidden_in(reply)
        found = self._checked(_Found, reply)
        if found.fingerprint != self.fingerprint:
            raise IndexChanged(
                f"the index behind {self.url} was rebuilt ({self.fingerprint} → {said_by(found.fingerprint)}): "
                "open it again"
            )
        if len(found.results) != len(batch) or any(len(result.passages) > k for result in found.results):
            raise BadData(f"{self.url} answered {len(batch)} queries with something else: look what runs there")
        return [
            Hits((Passage(p.id, p.title, p.text, p.score, p.metadata) for p in result.passages), cut=result.query_cut)
            for result in found.results
        ]

    def _checked(self, model: type[Model], reply: Any) -> Model:
        try:
            return model.model_validate(reply)
        except ValidationError as error:
            first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole reply"
        raise BadData(f"{self.url} answered what cannot be read: {said_by(where)}: {first['msg']}")


def _reopened(url: str, options: dict[str, Any]) -> Remote:
    return Remote(url, **options)
