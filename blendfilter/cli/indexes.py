"""Indexes on the command line: `index` makes or updates one, `search` looks into one, `serve` puts one on a port."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from blendfilter.cli.app import command
from blendfilter.cli.console import Bars, say, show
from blendfilter.cli.making import corpus_file, reranked
from blendfilter.cli.options import ENGINES, AllowHosts, InMethod, InOutput, K, Reranking
from blendfilter.errors import BadArgument, BadData, EmptyData
from blendfilter.settings import Argument, Option, Rare, Settings

if TYPE_CHECKING:
    from blendfilter.files import JsonRow
    from blendfilter.retrieval.base import Retriever
    from blendfilter.retrieval.corpus import Corpus
    from blendfilter.retrieval.on_ray import OnRay
    from blendfilter.retrieval.stored import Stored


class BM25Options(Settings, panel="Method", of=("bm25", "rank-bm25")):
    """The settings of BM25."""

    k1: Rare[float | None] = None
    """bm25: term frequency saturation (0.9)."""
    b: Rare[float | None] = None
    """bm25: length normalisation (0.4)."""


class ColBERTOptions(Settings, panel="Method", of=("colbert",)):
    """The settings of ColBERT."""

    checkpoint: Rare[str | None] = None
    """colbert: a late-interaction model, by hub name or folder (colbert-ir/colbertv2.0)."""
    nbits: Rare[int | None] = None
    """colbert: bits kept of each dimension, 1, 2, 4 or 8 (4; beyond 100,000 passages 2)."""
    doc_maxlen: Rare[int | None] = None
    """colbert: tokens read of a passage (220, or what a checkpoint states)."""
    gpus: Rare[int | None] = None
    """colbert: how many GPUs; 0 is the CPU (all there are)."""
    partitions: Rare[int | None] = None
    """colbert: how many centroids (by the size of the corpus)."""
    codec: Rare[str | None] = None
    """colbert: the folder of another index whose codec is taken, so that both can be joined (own centroids)."""


class DenseOptions(Settings, panel="Method", of=("dense",)):
    """The settings of dense indexes."""

    encoder: Rare[str | None] = None
    """dense: what encodes, a sentence-transformers name or a Hugging Face folder."""
    query_encoder: Rare[str | None] = None
    """dense: what encodes queries, where it is another, such as DPR's question encoder."""
    index_type: Rare[str | None] = None
    """dense: flat (exact), hnsw or ivf (flat)."""
    similarity: Rare[str | None] = None
    """dense: cosine, dot or l2, which is FAISS's IndexFlatL2 (the encoder's own, else dot)."""
    pooling: Rare[str | None] = None
    """dense: mean or cls, for an encoder that does not say (mean)."""
    query_prefix: Rare[str | None] = None
    """dense: put before queries, such as 'query: ' (the encoder's own)."""
    passage_prefix: Rare[str | None] = None
    """dense: put before passages, such as 'passage: ' (the encoder's own)."""
    query_prompt: Rare[str | None] = None
    """dense: which of the encoder's prompts is put before queries."""
    passage_prompt: Rare[str | None] = None
    """dense: which of the encoder's prompts is put before passages."""
    nlist: Rare[int | None] = None
    """dense: cells of an ivf index (50)."""
    nprobe: Rare[int | None] = None
    """dense: cells of them that a query looks into (5)."""


ENGINE_OPTIONS = (BM25Options, ColBERTOptions, DenseOptions)


class IndexOptions(BM25Options, ColBERTOptions, DenseOptions, panel="Data"):
    """The settings of `blendfilter index`."""

    corpus: Argument[str | None] = None
    """Passages: JSON Lines (id, title, text), TSV (id, text, title), BEIR, FlashRAG or DSPy's abstracts; a text (.txt,
    .md, .rst) or a folder of them. 'sample' is the sample corpus."""
    out: InOutput[Path]
    """The index folder to make, or to update."""
    add: str | None = None
    """Instead of CORPUS, passages to add to the index that is there, in any such file."""
    delete: str | None = None
    """Instead of CORPUS, ids to delete from it, with commas between; or a file, an id a line."""
    replace: Annotated[bool, Option(goes_with="add")] = False
    """With --add: a passage whose id is there already takes the old one's place."""
    engine: InMethod[str | None] = None
    """bm25 (default), rank-bm25 (the reference, for small corpora), colbert or dense."""
    chunk: str | None = None
    """Cut texts into passages of at most so many words, by paragraphs (folders: 100w)."""
    shards: Rare[InMethod[int | None]] = Field(None, ge=1)
    """So many shards, searched as one index (bm25, flat dense, colbert)."""
    join: Rare[list[str] | None] = None
    """Instead of CORPUS, an index's folder or address that becomes a shard, in this order; repeated."""
    address: Annotated[
        str | None, Option("--ray", panel="Limits", metavar="ADDRESS", rare=True)
    ] = None
    """colbert, dense: encode by Ray: local, auto, or the address of a cluster that shares the folder, ray://HOST:10001.
    Stopped, the same command goes on with the chunks that are missing."""
    workers: Annotated[
        int | None, Option("--ray-workers", panel="Limits", rare=True, goes_with="address")
    ] = Field(None, ge=1)
    """How many encode at a time (the cluster's processors)."""
    gpus_each: Annotated[
        float, Option("--ray-gpus", panel="Limits", rare=True, goes_with="address")
    ] = Field(0.0, ge=0)
    """GPUs of each of them (0)."""
    overwrite: InOutput[bool] = False
    """Replace an index that is there."""

    def settings(self, engine: str) -> dict[str, Any]:
        """The engine's settings. Raises: BadArgument for one that is not `engine`'s, or one that it wants."""
        if engine in ENGINES:  # `build` says which engines there are
            self.check_given(engine)
        settings = self.given(*ENGINE_OPTIONS) | {"overwrite": self.overwrite}
        if engine == "dense" and self.encoder is None:
            raise BadArgument(
                "the engine dense wants --encoder: a sentence-transformers name or a Hugging Face folder"
            )
        if "index_type" in settings:
            settings["index"] = settings.pop("index_type")
        return settings

    def cluster(self, engine: str) -> OnRay | None:
        """What encodes, where it is a cluster. Raises: BadArgument."""
        from blendfilter.retrieval.on_ray import OnRay

        if self.address is None:
            return None
        if engine not in ("colbert", "dense") or self.shards is not None:
            raise BadArgument(
                "--ray encodes the passages of one colbert or dense index: leave it out"
            )
        return OnRay(self.address, self.workers, self.gpus_each)


@command()
def index(options: IndexOptions) -> None:
    """Make an index of a corpus, a folder with a manifest and a fingerprint; or add passages to one, or delete some:
    blendfilter index --add new.jsonl --delete 17,42 --out indexes/wiki17

    Example: blendfilter index wiki.abstracts.2017.jsonl --out indexes/wiki17
    """
    from blendfilter.retrieval.indexes import build
    from blendfilter.retrieval.sharded import build_sharded
    from blendfilter.retrieval.sharded import join as joined

    out, corpus, before = options.out, options.corpus, ""
    made: Retriever
    if options.join:
        if options.given().keys() - {"join", "out", "overwrite"}:
            raise BadArgument(
                "--join makes an index of indexes as they are: leave out the corpus and other settings"
            )
        made = joined(options.join, out, overwrite=options.overwrite)
    elif options.given("add", "delete"):
        old, made = _updated(options)
        before = " as before" if made is old else f" ({len(old):,} before)"
    else:
        if corpus is None:
            raise BadArgument(
                "index what? Name a CORPUS, or update the index at --out with --add FILE or --delete IDS"
            )
        engine = options.engine or "bm25"
        settings = options.settings(engine)
        if (cluster := options.cluster(engine)) is not None:
            settings["on"] = cluster
        passages = partial(_passages, corpus, options.chunk)
        with Bars() as progress:
            if options.shards is None:
                made = build(engine, passages(), out, **settings, progress=progress)
            else:
                made = build_sharded(
                    passages, out, options.shards, engine=engine, **settings, progress=progress
                )
    info = made.info()
    show(
        f"{out}: {info['kind']}, {info['passages']:,} passages{before}, fingerprint {info['fingerprint']}"
    )


def _updated(options: IndexOptions) -> tuple[Stored, Stored]:
    """The index at `--out` before and after its update."""
    from blendfilter.retrieval.indexes import open_index
    from blendfilter.retrieval.stored import Stored

    changes = ("add", "delete", "replace", "chunk", "out", "address", "workers", "gpus_each")
    if fixed := options.given().keys() - {*changes}:
        first = next(name for name in options.declared() if name in fixed)
        what = f"the corpus {options.corpus}" if first == "corpus" else options.option(first)
        raise BadArgument(
            f"{what} makes an index anew; --add and --delete change one, which keeps its settings"
        )
    old = open_index(options.out)
    if not isinstance(old, Stored):
        raise BadArgument(
            f"the index at {options.out} is made of another one ({old.info()['kind']}): update that one"
        )
    with Bars() as progress:
        made = old.update(
            None if options.add is None else _passages(options.add, options.chunk),
            () if options.delete is None else _ids(options.delete),
            replace=options.replace,
            progress=progress,
        )
    return old, made


def _passages(corpus: str, chunk: str | None) -> Corpus:
    from blendfilter.retrieval.corpus import passages_of
    from blendfilter.retrieval.documents import chunk_size

    path, words = corpus_file(corpus), None if chunk is None else chunk_size(chunk)
    return path if words is None else passages_of(path, words)


def _ids(given: str) -> list[str]:
    """The ids of --delete. Raises `EmptyData` where there are none."""
    from blendfilter.files import lines, path_of

    # and False for what is too long for a name; a `Path` would raise
    if os.path.isfile(path_of(given)):
        ids = [line.text.strip() for line in lines(given)]
    else:
        ids = [name.strip() for name in given.split(",")]
    if not (found := [name for name in ids if name]):
        raise EmptyData(
            f"--delete {given}: there are no ids, neither with commas between nor in a file of that name"
        )
    return found


class SearchOptions(Reranking, panel="Data"):
    """The settings of `blendfilter search`."""

    index: Argument[str]
    """An index folder or a server's URL (its token in BLENDFILTER_INDEX_TOKEN)."""
    query: Argument[str | None] = None
    """What to search for, in quotes."""
    k: K = 5
    queries: str | None = None
    """Instead of QUERY, a file of them: JSON Lines with question or query, any question file, or a query a line;
    'sample' for the sample questions."""
    out: InOutput[Path | None] = None
    """With --queries: the file of hits to write, for eval --retrieved."""
    overwrite: InOutput[bool] = False
    """With --out: replace a file that is there."""
    allow_hosts: AllowHosts = None


@command()
def search(options: SearchOptions) -> None:
    """Search an index: rank, score, id, title and text, a line a passage; or many queries, their hits into a file.

    Of a trimmed index it says besides, on stderr, what was dropped and why.

    Example: blendfilter search indexes/wiki17 "lighthouse designer" -k 10
    """
    if (options.query is None) == (options.queries is None):
        raise BadArgument(
            "search for what? Give a QUERY in quotes, or a file of them with --queries, and not both"
        )
    if (options.queries is None) != (options.out is None):
        raise BadArgument(
            "--queries FILE and --out FILE go together: the hits of many queries are written to a file"
        )
    from blendfilter.retrieval.indexes import open_index

    def opened() -> Any:
        hosts = options.allow_hosts or ()
        return reranked(
            options, lambda: open_index(options.index, allow_hosts=hosts), options.k
        )

    if options.query is not None:
        _show_hits(opened, options.query, options.k)
    elif options.queries is not None and options.out is not None:
        _write_hits(opened, options.queries, options.out, options.k, options.overwrite)


def _show_hits(opening: Callable[[], Any], query: str, k: int) -> None:
    from blendfilter.retrieval.base import check_search, cut_of, trim_of

    check_search([query], k)  # before an index is opened, which may take a while
    opened = opening()
    explain = getattr(opened, "explain", None)  # a trimmed index says what it dropped
    explained = None if explain is None else explain(query, k)
    found = opened.search([query], k)[0] if explained is None else explained.passages
    if cut_of(found):
        say("the query is longer than this index reads: it was cut")
    if not found:
        say("no passage shares a word with this query")
    for rank, passage in enumerate(found, 1):
        score = "" if passage.score is None else f"{passage.score:.4f}"
        show(f"{rank}\t{score}\t{passage.id}\t{passage.line}")
    for line in () if explained is None else explained.lines():
        say(line)
    # of a trimmed index that is reranked
    if explained is None and (trim := trim_of(found)) is not None:
        say(f"trimmed before: {', '.join(trim.dropped)}; without --rerank it says why")


def _write_hits(
    opening: Callable[[], Any], queries: str, out: Path, k: int, overwrite: bool
) -> None:
    from blendfilter.retrieval.precomputed import write_hits

    rows = _queries(queries)
    searched = opening()
    with Bars() as progress:
        written = write_hits(searched, rows, out, k, overwrite=overwrite, progress=progress)
    show(f"{out}: the hits of {written.queries:,} queries, index {searched.fingerprint}")
    if written.cut:
        say(
            f"{written.cut:,} queries are longer than this index reads and were cut (query_cut in {out})"
        )


def _queries(file: str) -> list[dict[str, Any]]:
    """The queries of a file, each with its id where it has one: JSON rows with a question or query, or lines of text.

    Rows without either are read as questions of the task qa. Raises `BadData` and `EmptyData`, as `load` does.
    """
    from blendfilter.files import first_character, json_rows, lines, path_of
    from blendfilter.resources import sample
    from blendfilter.tasks import load

    path = sample("questions.jsonl") if file == "sample" else path_of(file)
    if first_character(path) not in ("[", "{"):
        found = [{"question": line.text.strip()} for line in lines(path)]
    else:
        first = next(json_rows(path), None)
        if (
            first
            and isinstance(first.value, dict)
            and not {"question", "query"} & first.value.keys()
        ):
            found = [{"id": one.id, "question": one.question} for one in load("qa", path)]
        else:
            found = [_query(row) for row in json_rows(path)]
    if not found:
        raise EmptyData(f"{file} has no queries: is it the right file?")
    return found


def _query(row: JsonRow) -> dict[str, Any]:
    fields = row.value if isinstance(row.value, dict) else {"query": row.value}
    text = fields.get("question", fields.get("query"))
    if not isinstance(text, str) or not text.strip():
        raise BadData(
            f"{row.where}: expected an object with a 'question' or 'query', found {row.value!r:.60}"
        )
    ids = [
        fields[name]
        for name in ("id", "_id", "qid", "question_id")
        if fields.get(name) is not None
    ]
    return {**({"id": ids[0]} if ids else {}), "question": text.strip()}


class LimitOptions(Settings, panel="Limits"):
    """What one client may ask of a server."""

    max_k: Rare[int] = 100
    """Passages a query, at most."""
    max_query_chars: Rare[int] = 20_000
    """Characters of a query, at most."""
    max_body: Rare[int] = 4 * 1024 * 1024
    """Bytes of a request's body, at most."""
    max_batch: Rare[int] = 64
    """Queries that the index is asked at once, at most."""
    max_connections: Rare[int] = 1000
    """Open connections, at most."""


class ServeOptions(Reranking, LimitOptions, panel="Output"):
    """The settings of `blendfilter serve`."""

    index: Argument[list[str]]
    """An index folder; several are searched as one hybrid."""
    allow_hosts: AllowHosts = None
    host: str = "127.0.0.1"
    """Where to listen. Others can reach any but 127.0.0.1: set BLENDFILTER_INDEX_TOKEN for them."""
    port: int = 8893
    """0 is any free one."""


@command()
def serve(options: ServeOptions) -> None:
    """Serve an index over HTTP: to dspy.ColBERTv2(url=…) as it is, and to --index URL.

    An index that is updated, or built again in the same folder, is served a second later.

    With BLENDFILTER_INDEX_TOKEN set, clients must know it. Ctrl-C or SIGTERM: what is in flight is finished within
    30 seconds, exit 0.

    Example: blendfilter serve indexes/wiki17 --port 8893
    """
    from blendfilter.retrieval.hybrid import open_indexes
    from blendfilter.server import index_server
    from blendfilter.server.exchange import ServerLimits

    hosts = options.allow_hosts or ()
    # no name for the index: it goes when another one takes its place
    server = index_server(
        reranked(options, lambda: open_indexes(options.index, allow_hosts=hosts)),
        host=options.host,
        port=options.port,
        limits=ServerLimits(**options.given(LimitOptions)),
    )
    server.run(ready=lambda: show(server.line(" + ".join(options.index))))
    say("stopped")
