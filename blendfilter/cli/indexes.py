"""Indexes on the command line: `index` makes or updates one, `search` looks into one, `serve` puts one on a port."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blendfilter.cli.app import command
from blendfilter.cli.console import Bars, say, show
from blendfilter.cli.making import corpus_file, reranked
from blendfilter.cli.options import AllowHost, K, RerankOptions, declared, given_values, option
from blendfilter.errors import BadArgument, BadData, EmptyData

if TYPE_CHECKING:
    from blendfilter.files import JsonRow
    from blendfilter.retrieval.base import Retriever
    from blendfilter.retrieval.corpus import Corpus
    from blendfilter.retrieval.on_ray import OnRay
    from blendfilter.retrieval.stored import Stored

ENGINES = {
    "bm25": ("k1", "b"),
    "rank-bm25": ("k1", "b"),
    "colbert": ("checkpoint", "nbits", "doc_maxlen", "gpus", "partitions", "codec"),
    "dense": (
        "encoder", "query_encoder", "index_type", "similarity", "pooling", "query_prefix", "passage_prefix",
        "query_prompt", "passage_prompt", "nlist", "nprobe",
    ),
}  # fmt: skip
"""The options that each engine takes."""


@dataclass(frozen=True)
class EngineOptions:
    """The settings of an index's engine."""

    k1: float | None = option("Method", "bm25: term frequency saturation (0.9).", "--k1", rare=True)
    b: float | None = option("Method", "bm25: length normalisation (0.4).", "--b", rare=True)
    checkpoint: str | None = option(
        "Method",
        "colbert: a late-interaction model, by hub name or folder (colbert-ir/colbertv2.0).",
        rare=True,
    )
    nbits: int | None = option(
        "Method",
        "colbert: bits kept of each dimension, 1, 2, 4 or 8 (4; beyond 100,000 passages 2).",
        rare=True,
    )
    doc_maxlen: int | None = option(
        "Method", "colbert: tokens read of a passage (220, or what a checkpoint states).", rare=True
    )
    gpus: int | None = option(
        "Method", "colbert: how many GPUs; 0 is the CPU (all there are).", rare=True
    )
    partitions: int | None = option(
        "Method", "colbert: how many centroids (by the size of the corpus).", rare=True
    )
    codec: str | None = option(
        "Method",
        "colbert: the folder of another index whose codec is taken, so that both can be joined (own centroids).",
        rare=True,
    )
    encoder: str | None = option(
        "Method",
        "dense: what encodes, a sentence-transformers name or a Hugging Face folder.",
        rare=True,
    )
    query_encoder: str | None = option(
        "Method",
        "dense: what encodes queries, where it is another, such as DPR's question encoder.",
        rare=True,
    )
    index_type: str | None = option("Method", "dense: flat (exact), hnsw or ivf (flat).", rare=True)
    similarity: str | None = option(
        "Method",
        "dense: cosine, dot or l2, which is FAISS's IndexFlatL2 (the encoder's own, else dot).",
        rare=True,
    )
    pooling: str | None = option(
        "Method", "dense: mean or cls, for an encoder that does not say (mean).", rare=True
    )
    query_prefix: str | None = option(
        "Method", "dense: put before queries, such as 'query: ' (the encoder's own).", rare=True
    )
    passage_prefix: str | None = option(
        "Method", "dense: put before passages, such as 'passage: ' (the encoder's own).", rare=True
    )
    query_prompt: str | None = option(
        "Method", "dense: which of the encoder's prompts is put before queries.", rare=True
    )
    passage_prompt: str | None = option(
        "Method", "dense: which of the encoder's prompts is put before passages.", rare=True
    )
    nlist: int | None = option("Method", "dense: cells of an ivf index (50).", rare=True)
    nprobe: int | None = option(
        "Method", "dense: cells of them that a query looks into (5).", rare=True
    )

    def settings(self, engine: str) -> dict[str, Any]:
        """Those that were given. Raises: BadArgument for one that is not `engine`'s, or one that it wants."""
        values = given_values(self)
        for name in values if engine in ENGINES else ():  # `build` says which engines there are
            if name not in ENGINES[engine]:
                owners = [owner for owner, names in ENGINES.items() if name in names]
                whose = f"the engine{'s'[: len(owners) > 1]} {' and '.join(owners)}"
                raise BadArgument(
                    f"--{name.replace('_', '-')} is an option of {whose}, not of {engine}"
                )
        if engine == "dense" and "encoder" not in values:
            raise BadArgument(
                "the engine dense wants --encoder: a sentence-transformers name or a Hugging Face folder"
            )
        return {"index" if name == "index_type" else name: value for name, value in values.items()}


@command()
def index(
    options: EngineOptions,
    out: Annotated[Path, declared("Output", help="The index folder to make, or to update.")],
    corpus: Annotated[
        str | None,
        typer.Argument(
            help="Passages: JSON Lines (id, title, text), TSV (id, text, title), BEIR, FlashRAG or DSPy's abstracts; "
            "a text (.txt, .md, .rst) or a folder of them. 'sample' is the sample corpus."
        ),
    ] = None,
    add: Annotated[
        str | None,
        declared(
            "Data",
            help="Instead of CORPUS, passages to add to the index that is there, in any such file.",
        ),
    ] = None,
    delete: Annotated[
        str | None,
        declared(
            "Data",
            help="Instead of CORPUS, ids to delete from it, with commas between; or a file, an id a line.",
        ),
    ] = None,
    replace: Annotated[
        bool,
        declared(
            "Data",
            help="With --add: a passage whose id is there already takes the old one's place.",
        ),
    ] = False,
    engine: Annotated[
        str | None,
        declared(
            "Method",
            help="bm25 (default), rank-bm25 (the reference, for small corpora), colbert or dense.",
        ),
    ] = None,
    chunk: Annotated[
        str | None,
        declared(
            "Data",
            help="Cut texts into passages of at most so many words, by paragraphs (folders: 100w).",
        ),
    ] = None,
    shards: Annotated[
        int | None,
        declared(
            "Method",
            min=1,
            rare=True,
            help="So many shards, searched as one index (bm25, flat dense, colbert).",
        ),
    ] = None,
    join: Annotated[
        list[str] | None,
        declared(
            "Data",
            rare=True,
            help="Instead of CORPUS, an index's folder or address that becomes a shard, in this order; repeated.",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        declared(
            "Limits",
            metavar="ADDRESS",
            rare=True,
            help="colbert, dense: encode by Ray: local, auto, or the address of a cluster that shares the folder, "
            "ray://HOST:10001. Stopped, the same command goes on with the chunks that are missing.",
        ),
    ] = None,
    ray_workers: Annotated[
        int | None,
        declared(
            "Limits", min=1, rare=True, help="How many encode at a time (the cluster's processors)."
        ),
    ] = None,
    ray_gpus: Annotated[
        float, declared("Limits", rare=True, help="GPUs of each of them (0).")
    ] = 0.0,
    overwrite: Annotated[bool, declared("Output", help="Replace an index that is there.")] = False,
) -> None:
    """Make an index of a corpus, a folder with a manifest and a fingerprint; or add passages to one, or delete some:
    blendfilter index --add new.jsonl --delete 17,42 --out indexes/wiki17

    Example: blendfilter index wiki.abstracts.2017.jsonl --out indexes/wiki17
    """
    from blendfilter.retrieval.indexes import build
    from blendfilter.retrieval.sharded import build_sharded
    from blendfilter.retrieval.sharded import join as joined

    made: Retriever
    if join:
        if any((corpus, add, delete, engine, shards, chunk, replace, ray, given_values(options))):
            raise BadArgument(
                "--join makes an index of indexes as they are: leave out the corpus and other settings"
            )
        made, before = joined(join, out, overwrite=overwrite), ""
    elif add is None and delete is None:
        if corpus is None:
            raise BadArgument(
                "index what? Name a CORPUS, or update the index at --out with --add FILE or --delete IDS"
            )
        if replace:
            raise BadArgument(
                "--replace goes with --add FILE; an index is replaced with --overwrite"
            )
        engine = engine or "bm25"
        settings = options.settings(engine) | {"overwrite": overwrite}
        if (cluster := _cluster(ray, ray_workers, ray_gpus, engine, shards)) is not None:
            settings["on"] = cluster
        with Bars() as progress:
            if shards is None:
                made = build(engine, _passages(corpus, chunk), out, **settings, progress=progress)
            else:
                again = partial(_passages, corpus, chunk)
                made = build_sharded(
                    again, out, shards, engine=engine, **settings, progress=progress
                )
        before = ""
    else:
        others = {"engine": engine, "shards": shards, "overwrite": overwrite}
        fixed = [*given_values(options), *(name for name, value in others.items() if value)]
        if corpus is not None or fixed:
            what = f"--{fixed[0].replace('_', '-')}" if fixed else f"the corpus {corpus}"
            raise BadArgument(
                f"{what} makes an index anew; --add and --delete change one, which keeps its settings"
            )
        if replace and add is None:
            raise BadArgument("--replace goes with --add FILE")
        old = _updatable(out)
        with Bars() as progress:
            made = old.update(
                None if add is None else _passages(add, chunk),
                () if delete is None else _ids(delete),
                replace=replace,
                progress=progress,
            )
        before = f" ({len(old):,} before)" if made is not old else " as before"
    info = made.info()
    show(
        f"{out}: {info['kind']}, {info['passages']:,} passages{before}, fingerprint {info['fingerprint']}"
    )


def _cluster(
    ray: str | None, workers: int | None, gpus: float, engine: str, shards: int | None
) -> OnRay | None:
    """What encodes, where it is a cluster."""
    from blendfilter.retrieval.on_ray import OnRay

    if ray is None:
        if workers is not None or gpus:
            raise BadArgument("--ray-workers and --ray-gpus go with --ray ADDRESS (--ray local)")
        return None
    if engine not in ("colbert", "dense") or shards is not None:
        raise BadArgument("--ray encodes the passages of one colbert or dense index: leave it out")
    return OnRay(ray, workers, gpus)


def _passages(corpus: str, chunk: str | None) -> Corpus:
    from blendfilter.retrieval.corpus import passages_of
    from blendfilter.retrieval.documents import chunk_size

    path, words = corpus_file(corpus), None if chunk is None else chunk_size(chunk)
    return path if words is None else passages_of(path, words)


def _updatable(out: Path) -> Stored:
    from blendfilter.retrieval.indexes import open_index
    from blendfilter.retrieval.stored import Stored

    opened = open_index(out)
    if not isinstance(opened, Stored):
        raise BadArgument(
            f"the index at {out} is made of another one ({opened.info()['kind']}): update that one"
        )
    return opened


def _ids(given: str) -> list[str]:
    """The ids of --delete. Raises `EmptyData` where there are none."""
    from blendfilter.files import lines, path_of

    if os.path.isfile(
        path_of(given)
    ):  # and False for what is too long for a name; a `Path` would raise
        ids = [line.text.strip() for line in lines(given)]
    else:
        ids = [name.strip() for name in given.split(",")]
    if not (found := [name for name in ids if name]):
        raise EmptyData(
            f"--delete {given}: there are no ids, neither with commas between nor in a file of that name"
        )
    return found


@command()
def search(
    index: Annotated[
        str,
        typer.Argument(
            help="An index folder or a server's URL (its token in BLENDFILTER_INDEX_TOKEN)."
        ),
    ],
    query: Annotated[str | None, typer.Argument(help="What to search for, in quotes.")] = None,
    *,
    order: RerankOptions,
    k: K = 5,
    queries: Annotated[
        str | None,
        declared(
            "Data",
            help="Instead of QUERY, a file of them: JSON Lines with question or query, any question file, or a query "
            "a line; 'sample' for the sample questions.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        declared("Output", help="With --queries: the file of hits to write, for eval --retrieved."),
    ] = None,
    overwrite: Annotated[
        bool, declared("Output", help="With --out: replace a file that is there.")
    ] = False,
    allow_host: AllowHost = None,
) -> None:
    """Search an index: rank, score, id, title and text, a line a passage; or many queries, their hits into a file.

    Of a trimmed index it says besides, on stderr, what was dropped and why.

    Example: blendfilter search indexes/wiki17 "lighthouse designer" -k 10
    """
    if (query is None) == (queries is None):
        raise BadArgument(
            "search for what? Give a QUERY in quotes, or a file of them with --queries, and not both"
        )
    if (queries is None) != (out is None):
        raise BadArgument(
            "--queries FILE and --out FILE go together: the hits of many queries are written to a file"
        )
    from blendfilter.retrieval.indexes import open_index

    def opened() -> Any:
        return reranked(order, lambda: open_index(index, allow_hosts=allow_host or ()), k)

    if query is not None:
        _show_hits(opened, query, k)
    elif queries is not None and out is not None:
        _write_hits(opened, queries, out, k, overwrite)


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
    if (
        explained is None and (trim := trim_of(found)) is not None
    ):  # of a trimmed index that is reranked
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
        fields[name] for name in ("id", "_id", "qid", "question_id") if fields.get(name) is not None
    ]
    return {**({"id": ids[0]} if ids else {}), "question": text.strip()}


@command()
def serve(
    index: Annotated[
        list[str], typer.Argument(help="An index folder; several are searched as one hybrid.")
    ],
    *,
    order: RerankOptions,
    allow_host: AllowHost = None,
    host: Annotated[
        str,
        declared(
            "Output",
            help="Where to listen. Others can reach any but 127.0.0.1: set BLENDFILTER_INDEX_TOKEN for them.",
        ),
    ] = "127.0.0.1",
    port: Annotated[int, declared("Output", help="0 is any free one.")] = 8893,
    max_k: Annotated[int, declared("Limits", rare=True, help="Passages a query, at most.")] = 100,
    max_query_chars: Annotated[
        int, declared("Limits", rare=True, help="Characters of a query, at most.")
    ] = 20_000,
    max_body: Annotated[
        int, declared("Limits", rare=True, help="Bytes of a request's body, at most.")
    ] = 4 * 1024 * 1024,
    max_batch: Annotated[
        int, declared("Limits", rare=True, help="Queries that the index is asked at once, at most.")
    ] = 64,
    max_connections: Annotated[
        int,
        declared("Limits", rare=True, help="Open connections, at most."),
    ] = 1000,
) -> None:
    """Serve an index over HTTP: to dspy.ColBERTv2(url=…) as it is, and to --index URL.

    An index that is updated, or built again in the same folder, is served a second later.

    With BLENDFILTER_INDEX_TOKEN set, clients must know it. Ctrl-C or SIGTERM: what is in flight is finished within
    30 seconds, exit 0.

    Example: blendfilter serve indexes/wiki17 --port 8893
    """
    from blendfilter.retrieval.hybrid import open_indexes
    from blendfilter.server import index_server
    from blendfilter.server.exchange import ServerLimits

    limits = ServerLimits(
        max_k=max_k,
        max_query_chars=max_query_chars,
        max_body=max_body,
        max_batch=max_batch,
        max_connections=max_connections,
    )
    # no name for the index: it goes when another one takes its place
    server = index_server(
        reranked(order, lambda: open_indexes(index, allow_hosts=allow_host or ())),
        host=host,
        port=port,
        limits=limits,
    )
    server.run(ready=lambda: show(server.line(" + ".join(index))))
    say("stopped")
