"""`blendfilter index` and `blendfilter search`: make an index, look into one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from blendfilter.cli.app import app
from blendfilter.cli.console import Bars, say, show
from blendfilter.cli.making import passages_to_index, queries_of
from blendfilter.cli.options import AllowHost, K
from blendfilter.errors import BadArgument

_BM25 = {"k1": "--k1", "b": "--b"}
OPTIONS = {
    "bm25": _BM25,
    "rank-bm25": _BM25,
    "colbert": {
        "checkpoint": "--checkpoint",
        "nbits": "--nbits",
        "doc_maxlen": "--doc-maxlen",
        "gpus": "--gpus",
        "partitions": "--partitions",
    },
    "dense": {
        "encoder": "--encoder",
        "index": "--index-type",
        "query_prefix": "--query-prefix",
        "passage_prefix": "--passage-prefix",
        "nlist": "--nlist",
        "nprobe": "--nprobe",
    },
}
"""The settings of each engine that `index` passes on, and the options that name them."""


@app.command()
def index(
    corpus: Annotated[
        str,
        typer.Argument(
            help="Passages: JSON Lines (id, title, text), TSV (id, text, title), BEIR, FlashRAG or DSPy's abstracts; "
            "with --chunk also a folder of texts (.txt, .md, .rst). 'sample' is the sample corpus."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The index folder to make.")],
    engine: Annotated[
        str, typer.Option(help="bm25, rank-bm25 (the reference, for small corpora), colbert (ColBERTv2) or dense.")
    ] = "bm25",
    chunk: Annotated[
        str | None, typer.Option(help="Cut texts into passages of at most so many words, by paragraphs: 100w.")
    ] = None,
    k1: Annotated[float | None, typer.Option("--k1", help="bm25: term frequency saturation (0.9).")] = None,
    b: Annotated[float | None, typer.Option("--b", help="bm25: length normalisation (0.4).")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="colbert: a name on the hub or a folder (colbert-ir/colbertv2.0).")
    ] = None,
    nbits: Annotated[
        int | None,
        typer.Option(help="colbert: bits kept of each dimension, 1, 2, 4 or 8 (4; beyond 100,000 passages 2)."),
    ] = None,
    doc_maxlen: Annotated[int | None, typer.Option(help="colbert: tokens read of a passage (220).")] = None,
    gpus: Annotated[int | None, typer.Option(help="colbert: how many GPUs; 0 is the CPU (all there are).")] = None,
    partitions: Annotated[
        int | None, typer.Option(help="colbert: how many centroids (by the size of the corpus).")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="dense: what encodes, a sentence-transformers name or a Hugging Face folder.")
    ] = None,
    index_type: Annotated[str | None, typer.Option(help="dense: flat (exact), hnsw or ivf (flat).")] = None,
    query_prefix: Annotated[str | None, typer.Option(help="dense: put before queries, such as 'query: '.")] = None,
    passage_prefix: Annotated[str | None, typer.Option(help="dense: put before passages, such as 'passage: '.")] = None,
    nlist: Annotated[int | None, typer.Option(help="dense: cells of an ivf index (50).")] = None,
    nprobe: Annotated[int | None, typer.Option(help="dense: cells of them that a query looks into (5).")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an index that is there.")] = False,
) -> None:
    """Make an index of a corpus: a folder with a manifest and a fingerprint.

    Example: blendfilter index wiki.abstracts.2017.jsonl --out indexes/wiki17
    """
    from blendfilter.retrieval.indexes import build

    given: dict[str, Any] = {
        "k1": k1, "b": b, "checkpoint": checkpoint, "nbits": nbits, "doc_maxlen": doc_maxlen, "gpus": gpus,
        "partitions": partitions, "encoder": encoder, "index": index_type, "query_prefix": query_prefix,
        "passage_prefix": passage_prefix, "nlist": nlist, "nprobe": nprobe,
    }  # fmt: skip
    settings = settings_for(engine, {name: value for name, value in given.items() if value is not None})
    passages = passages_to_index(corpus, chunk)
    with Bars() as progress:
        made = build(engine, passages, out, **settings, overwrite=overwrite, progress=progress)
    info = made.info()
    show(f"{out}: {info['kind']}, {info['passages']:,} passages, fingerprint {info['fingerprint']}")


def settings_for(engine: str, given: dict[str, Any]) -> dict[str, Any]:
    """`given`, if they are settings of that engine and those that it wants are among them. Raises `BadArgument`."""
    if engine not in OPTIONS:
        return given  # `build` says which engines there are
    for name in given:
        if name not in OPTIONS[engine]:
            owners = [owner for owner, options in OPTIONS.items() if name in options]
            option = next(options[name] for options in OPTIONS.values() if name in options)
            whose = f"the engine {owners[0]}" if len(owners) == 1 else f"the engines {' and '.join(owners)}"
            raise BadArgument(f"{option} is an option of {whose}, not of {engine}")
    if engine == "dense" and "encoder" not in given:
        raise BadArgument("the engine dense wants --encoder: a sentence-transformers name or a Hugging Face folder")
    return given


@app.command()
def search(
    index: Annotated[
        str, typer.Argument(help="An index folder or a server's URL (its token in BLENDFILTER_INDEX_TOKEN).")
    ],
    query: Annotated[str | None, typer.Argument(help="What to search for, in quotes.")] = None,
    k: K = 5,
    queries: Annotated[
        str | None,
        typer.Option(
            help="Instead of QUERY, a file of them: JSON Lines with question or query, any question file, or a query "
            "a line; 'sample' for the sample questions."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="With --queries: the file of hits to write, for eval --retrieved.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="With --out: replace a file that is there.")] = False,
    allow_host: AllowHost = None,
) -> None:
    """Search an index: rank, score, id, title and text, a line a passage; or many queries, their hits into a file.

    Of a trimmed index it says besides, on stderr, what was dropped and why.

    Example: blendfilter search indexes/wiki17 "lighthouse designer" -k 10
    """
    if (query is None) == (queries is None):
        raise BadArgument("search for what? Give a QUERY in quotes, or a file of them with --queries, and not both")
    if (queries is None) != (out is None):
        raise BadArgument("--queries FILE and --out FILE go together: the hits of many queries are written to a file")
    if query is not None:
        _show_hits(index, query, k, allow_host or [])
    elif queries is not None and out is not None:
        _write_hits(index, queries, out, k, overwrite, allow_host or [])


def _show_hits(index: str, query: str, k: int, allow_hosts: list[str]) -> None:
    from blendfilter.retrieval.base import check_search, cut_of
    from blendfilter.retrieval.indexes import open_index

    check_search([query], k)  # before an index is opened, which may take a while
    opened = open_index(index, allow_hosts=allow_hosts)
    explain = getattr(opened, "explain", None)  # a trimmed index says what it dropped
    told = None if explain is None else explain(query, k)
    found = opened.search([query], k)[0] if told is None else told.passages
    if cut_of(found):
        say("the query is longer than this index reads: it was cut")
    if not found:
        say("no passage shares a word with this query")
    for rank, passage in enumerate(found, 1):
        score = "" if passage.score is None else f"{passage.score:.4f}"
        show(f"{rank}\t{score}\t{passage.id}\t{passage.line}")
    for line in () if told is None else told.lines():
        say(line)


def _write_hits(index: str, queries: str, out: Path, k: int, overwrite: bool, allow_hosts: list[str]) -> None:
    from blendfilter.retrieval.indexes import open_index
    from blendfilter.retrieval.precomputed import write_hits

    asked = queries_of(queries)
    searched = open_index(index, allow_hosts=allow_hosts)
    with Bars() as progress:
        written = write_hits(searched, asked, out, k, overwrite=overwrite, progress=progress)
    show(f"{out}: the hits of {written.queries:,} queries, index {searched.fingerprint}")
    if written.cut:
        say(f"{written.cut:,} queries are longer than this index reads and were cut (query_cut in {out})")
