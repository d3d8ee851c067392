"""Shards: one index over several, each in a folder or behind a server, searched one by one and merged by score.

The hits are those of one index over all passages, to the last bit, because scores mean the same in every shard: BM25
counts words over all of them (`join` rescores a shard's postings by the passages that have a term, and by the mean
length, of the whole corpus), and a flat dense index scores each passage by itself. Late-interaction shards share one
codec, so that a passage has the score that it has in one index; each shard seeks candidates of its own, so that
together they look at more of them. Indexes whose scores depend on what else a shard holds (cells, graphs, centroids of
its own) are refused. Equal scores keep the order of the shards, as in one corpus.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, TypeAdapter

from blendfilter.errors import BadArgument, BadData, ServerRefused
from blendfilter.files import AnyPath, path_of
from blendfilter.records import Passage
from blendfilter.retrieval.base import (
    Hits,
    ProgressCallback,
    Retriever,
    coarse,
    fingerprint_of,
    hits_like,
    silent,
)
from blendfilter.retrieval.bm25 import BM25, SHARED, Statistics
from blendfilter.retrieval.corpus import Corpus, IdCheck, passages_of
from blendfilter.retrieval.indexes import build, open_index
from blendfilter.retrieval.manifest import (
    CorpusInfo,
    Manifest,
    Settings,
    building,
    opening,
    read_manifest,
    write_manifest,
)
from blendfilter.retrieval.remote import Remote, address_of, check_host, is_served
from blendfilter.retrieval.stored import Stored, check_fingerprint

KIND = "sharded"
_WHY = "cannot be a shard: its scores depend on what else it holds"
_CAN = "bm25, flat dense indexes, and colbert's with one codec"


class Sharded(Retriever):
    """`open_index("indexes/wiki")` of a sharded folder, or `Sharded([open_index(…), …])`, searched as any index.

    Args:
        partial: where a shard's server does not answer, give the best of the others, flagged (`Hits.missing`, which a
            journal keeps, and the event `partial_search`). Without it that is an error, as where none answers.
        reopen: opens the index that lies at `path` by now.

    Raises:
        BadArgument: no shards; shards whose scores do not mean the same.
    """

    kind = KIND

    def __init__(
        self,
        shards: Sequence[Retriever],
        *,
        path: AnyPath | None = None,
        partial: bool = False,
        reopen: Callable[[], Sharded] | None = None,
    ) -> None:
        if not shards:
            raise BadArgument("a sharded index needs one shard or more")
        self.shards, self.partial, self._reopen = [*shards], partial, reopen
        self.path = None if path is None else path_of(path)
        there = [shard for shard in shards if not isinstance(shard, AbsentShard)]
        scales = [_scale(shard) for shard in there]
        for shard, scale in zip(there, scales, strict=True):
            if scale != scales[0]:
                raise BadArgument(
                    f"{shard!r} and {there[0]!r} score by different measures ({scale}; {scales[0]}): join shards of "
                    "one engine, with the same settings and encoder; BM25's by `blendfilter index --join`"
                )
        self.fingerprint = fingerprint_of(KIND, [shard.fingerprint for shard in shards])
        self._map: Callable[..., Iterable[Any]] = map
        # in this process threads would only take turns
        if any(isinstance(shard, Remote | AbsentShard) for shard in shards):
            self._map = ThreadPoolExecutor(len(shards), "blendfilter-shard").map

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most `k` passages a query, the best of all shards. Cut where any shard cut the query."""

        def searched(shard: Retriever) -> list[list[Passage]] | ServerRefused:
            try:
                # not `search`: a journal keeps one record of a query
                return shard.find(queries, min(k, len(shard)))
            except ServerRefused as error:
                return error

        found, refused = list[Any](), dict[str, ServerRefused]()
        for shard, answer in zip(self.shards, self._map(searched, self.shards), strict=True):
            if isinstance(answer, ServerRefused):
                refused[str(getattr(shard, "url", shard))] = answer
            else:
                found.append(answer)
        if refused and not (self.partial and found):
            raise next(iter(refused.values()))
        return [merged(rankings, k, refused) for rankings in zip(*found, strict=True)]

    def as_cheap(self, k: int) -> int:
        """What all shards give as cheaply."""
        return min(shard.as_cheap(k) for shard in self.shards)

    def parts(self) -> Sequence[Retriever]:
        """The shards."""
        return self.shards

    def over(self, parts: Sequence[Retriever]) -> Sharded:
        """Over the shards that lie in its folder by now. Raises as `open_sharded`: a shard may have changed."""
        return Sharded(parts) if self._reopen is None else self._reopen()

    def info(self) -> Settings:
        """Kind, fingerprint, number of passages, and the description of each shard."""
        return {
            **super().info(),
            "passages": len(self),
            "shards": [shard.info() for shard in self.shards],
            **({"path": str(self.path)} if self.path else {}),
        }

    def __len__(self) -> int:
        return sum(map(len, self.shards))

    def __reduce__(self) -> Any:
        return functools.partial(Sharded, path=self.path, partial=self.partial), (self.shards,)


class AbsentShard(Retriever):
    """A shard whose server did not answer when its index was opened, and is tried again with each search.

    What is known of it stands in the manifest. Raises: ServerRefused as long as it does not answer; BadData where
    another index answers.
    """

    def __init__(
        self, url: str, fingerprint: str, passages: int, again: Callable[[], Retriever]
    ) -> None:
        self.url = url
        self.fingerprint = fingerprint
        self._passages = passages
        self._again = again
        self._found: Retriever | None = None

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        if self._found is None:
            self._found = _same(self._again(), self.fingerprint, self.url)
        return self._found.find(queries, k)

    def __len__(self) -> int:
        return self._passages


def merged(rankings: Iterable[Sequence[Passage]], k: int, missing: Iterable[str] = ()) -> Hits:
    """The `k` best of several rankings by score; equal scores in the order of the rankings.

    >>> a, b, c = (Passage(name, "", name, score) for name, score in [("a", 2.0), ("b", 1.0), ("c", 2.0)])
    >>> [passage.id for passage in merged([[a, b], [c]], 2)]
    ['a', 'c']
    """
    rankings = [*rankings]
    hits = [*chain.from_iterable(rankings)]
    order = np.argsort(-coarse([passage.score or 0.0 for passage in hits]), kind="stable")[:k]
    return hits_like([hits[at] for at in order], *rankings, missing=missing)


def _scale(shard: Retriever) -> Settings:
    """What a shard's scores depend on beside a passage and the query. Raises: BadArgument."""
    info = shard.info()
    kind, settings = info.get("of", info["kind"]), info.get("settings") or {}
    scale = {"kind": kind}
    if kind == BM25.kind:
        if SHARED not in settings:
            raise BadArgument(
                f"{shard!r} {_WHY} (how many passages have a word): join it with the others, "
                "`blendfilter index --join DIR --join DIR --out DIR`"
            )
        names = ["k1", "b", "analyser", SHARED]
    elif kind == "dense" and settings.get("index") == "flat":
        names = ["identity", "similarity"]
    elif kind == "colbert" and "codec" in info:
        names = ["checkpoint_sha256", "nbits", "doc_maxlen", "query_maxlen"]
        scale["codec"] = info["codec"]
    else:
        raise BadArgument(f"{shard!r} {_WHY}; {_CAN} can be")
    return scale | {name: settings.get(name) for name in names}


# --- making and opening one ------------------------------------------------------------------------------------------


class _Shard(BaseModel):
    """A shard in a manifest: the folder or address where it lies, and what lies there."""

    at: str
    fingerprint: str
    passages: int


def build_sharded(
    corpus: Callable[[], Corpus],
    out: AnyPath,
    shards: int,
    *,
    engine: str = BM25.kind,
    overwrite: bool = False,
    progress: ProgressCallback = silent,
    **settings: Any,
) -> Sharded:
    """Index what `corpus` gives, twice, in the folder `out`, in so many shards of as many passages each.

    Raises as `build` and `join` do, and `BadArgument` for more shards than passages.
    """
    can_be = (
        engine in (BM25.kind, "dense", "colbert") and settings.get("index", "flat") == "flat"
    )
    if not can_be:  # before all encoding
        raise BadArgument(f"an index of {engine} {_WHY}; {_CAN} can be made in shards")
    total = sum(1 for _ in passages_of(corpus()))
    if not 1 <= shards <= total:
        raise BadArgument(f"{total:,} passages make 1 to {total:,} shards, not {shards}")
    with building(out, overwrite=overwrite) as folder:
        if engine == "colbert" and settings.get("codec") is None:
            from blendfilter.retrieval.colbert.index import ColBERT

            # of a codec that was trained on a sample of the whole corpus
            made = folder / "codec"
            training = {name: settings[name] for name in settings.keys() - {"on", "codec"}}
            ColBERT.train_codec(corpus(), made, **training, progress=progress)
            nbits = json.loads((made / "plan.json").read_bytes())["config"]["nbits"]
            settings = {**settings, "partitions": None, "nbits": nbits, "codec": made}
        passages = iter(passages_of(corpus()))
        edges = [total * number // shards for number in range(shards + 1)]
        built = [
            build(
                engine,
                islice(passages, end - start),
                folder / f"{number}",
                progress=progress,
                **settings,
            )
            for number, (start, end) in enumerate(pairwise(edges), 1)
        ]
        shutil.rmtree(folder / "codec", ignore_errors=True)  # each shard has it
        _finish(folder, built, [f"{number}" for number in range(1, shards + 1)])
    return open_sharded(out)


def join(
    locations: Sequence[AnyPath],
    out: AnyPath,
    *,
    overwrite: bool = False,
) -> Sharded:
    """Make a sharded index in the folder `out` of the indexes in folders or at addresses, in this order.

    BM25 indexes in folders are rescored, and the new ones lie in `out/1`, `out/2`, …; others stay where they are.

    Raises:
        BadArgument: as `Sharded`; `out` is there already. BadData: a passage id that two shards have; a damaged index.
        MissingFile: no index there. ServerRefused: no server there.
    """
    target, places = Path(out).resolve(), list[str]()
    for location in locations:
        # a token in an address is for its server alone, and goes into no file
        address = is_served(location)
        places.append(
            address_of(os.fspath(location)).url if address else str(path_of(location).resolve())
        )
        if not address and Path(places[-1]).is_relative_to(target):
            raise BadArgument(
                f"{location} would be replaced by the index over it: name another folder (out=DIR)"
            )
    opened = [open_index(location) for location in locations]
    with building(out, overwrite=overwrite) as folder:
        shards = _finish(folder, opened, places)
    if shards is not opened:  # BM25's, which moved with the folder
        shards = [open_index(target / str(number)) for number in range(1, len(shards) + 1)]
    hosts = [*filter(is_served, places)]
    reopen = functools.partial(open_sharded, out, allow_hosts=hosts, ambient=True)
    return Sharded(shards, path=out, reopen=reopen)


def _finish(
    folder: Path, shards: Sequence[Retriever], places: Sequence[str]
) -> Sequence[Retriever]:
    """Turn a folder that is being built into a sharded index; returns its shards (BM25's are new, in that folder)."""
    plain = [
        shard
        for shard in shards
        if isinstance(shard, BM25) and SHARED not in shard.manifest.settings
    ]
    if plain and len(plain) == len(shards):
        postings = [shard.postings() for shard in plain]
        whole = Statistics.of(postings)
        places = [f"{number}" for number in range(1, len(plain) + 1)]
        shards = [
            shard.rescored(own, whole, folder / place)
            for shard, own, place in zip(plain, postings, places, strict=True)
        ]
    made = Sharded(shards)
    # which ids servers have is not known
    lists = [shard.passages for shard in shards if isinstance(shard, Stored)]
    check = IdCheck()
    for name in chain.from_iterable(passages.ids() for passages in lists):
        check.add(name)
    if repeated := check.repeated(
        lambda: enumerate(chain.from_iterable(passages.ids() for passages in lists))
    ):
        raise BadData(
            f"passage id '{repeated[2]}' occurs in two shards: join indexes of different passages"
        )
    corpora = [(shard.info().get("corpus") or {}).get("sha256") for shard in shards]
    listed = [
        _Shard(at=at, fingerprint=shard.fingerprint, passages=len(shard))
        for at, shard in zip(places, shards, strict=True)
    ]
    manifest = Manifest(
        kind=KIND,
        fingerprint=made.fingerprint,
        passages=len(made),
        corpus=CorpusInfo(name=f"{len(shards)} shards", sha256=fingerprint_of(corpora)),
        settings={"shards": [shard.model_dump() for shard in listed]},
    )
    write_manifest(folder, manifest)
    return shards


def open_sharded(
    folder: AnyPath,
    *,
    allow_hosts: Sequence[str] = (),
    ambient: bool = False,
    partial: bool = False,
    **options: Any,
) -> Sharded:
    """The sharded index in `folder`; `options` are its shards'. Servers are called whose hosts `allow_hosts` names.

    With `partial` it opens, and is searched, without those that do not answer.

    Raises as `open_index` for each shard, and `BadData` where another index lies there by now.
    """
    place = path_of(folder)
    manifest, shards = read_manifest(place), list[Retriever]()
    with opening(place):
        listed = TypeAdapter(list[_Shard]).validate_python(manifest.settings.get("shards"))
    for own in listed:
        at = own.at
        if is_served(at):
            check_host(at, allow_hosts, str(place))
            again = functools.partial(open_index, at, ambient=ambient, **options)
            try:
                shard = again()
            except ServerRefused:
                if not partial:
                    raise
                shard = AbsentShard(at, own.fingerprint, own.passages, again)
        else:
            shard = open_index(place / at, **options)
        shards.append(_same(shard, own.fingerprint, f"{at} of {place}"))
    reopen = functools.partial(
        open_sharded,
        place,
        allow_hosts=allow_hosts,
        ambient=ambient,
        partial=partial,
        **options,
    )
    index = Sharded(shards, path=place, partial=partial, reopen=reopen)
    check_fingerprint(place, manifest, index.fingerprint)
    return index


def _same(shard: Retriever, fingerprint: str, where: str) -> Retriever:
    """`shard`, where it is the index that was joined. Raises: BadData."""
    if shard.fingerprint != fingerprint:
        raise BadData(
            f"the shard {where} is another index ({shard.fingerprint}) than when they were joined ({fingerprint}): "
            "join them again (`blendfilter index --join DIR …`)"
        )
    return shard
