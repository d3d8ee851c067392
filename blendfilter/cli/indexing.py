"""`blendfilter index` and `blendfilter search`: make an index, look into one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blendfilter.cli.app import app
from blendfilter.cli.console import Bars, say
from blendfilter.cli.making import corpus_file
from blendfilter.cli.options import K


@app.command()
def index(
    corpus: Annotated[
        str,
        typer.Argument(
            help="Passages: JSON Lines (id, title, text), TSV (id, text, title), BEIR, FlashRAG or DSPy's abstracts."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The index folder to make.")],
    engine: Annotated[str, typer.Option(help="bm25, or rank-bm25 (the reference, for small corpora).")] = "bm25",
    k1: Annotated[float, typer.Option("--k1", help="Term frequency saturation.")] = 0.9,
    b: Annotated[float, typer.Option("--b", help="Length normalisation.")] = 0.4,
    overwrite: Annotated[bool, typer.Option(help="Replace an index that is there.")] = False,
) -> None:
    """Make an index of a corpus: a folder with a manifest and a fingerprint.

    Example: blendfilter index wiki.abstracts.2017.jsonl --out indexes/wiki17
    """
    from blendfilter.retrieval.indexes import build

    with Bars() as progress:
        made = build(engine, corpus_file(corpus), out, k1=k1, b=b, overwrite=overwrite, progress=progress)
    info = made.info()
    print(f"{out}: {info['kind']}, {info['passages']:,} passages, fingerprint {info['fingerprint']}")


@app.command()
def search(
    index: Annotated[str, typer.Argument(help="An index folder or URL.")],
    query: Annotated[str, typer.Argument(help="What to search for, in quotes.")],
    k: K = 5,
) -> None:
    """Search an index: rank, score, id, title and text, a line a passage.

    Example: blendfilter search indexes/wiki17 "lighthouse designer" -k 10
    """
    from blendfilter.retrieval.indexes import open_index

    found = open_index(index).search([query], k)[0]
    if not found:
        say("no passage shares a word with this query")
    for rank, passage in enumerate(found, 1):
        score = "" if passage.score is None else f"{passage.score:.4f}"
        print(f"{rank}\t{score}\t{passage.id}\t{passage.line}")
