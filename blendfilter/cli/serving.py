"""`blendfilter serve`: an index over HTTP, for DSPy and for a team."""

from __future__ import annotations

from typing import Annotated

import typer

from blendfilter.cli.app import app
from blendfilter.cli.console import say, show
from blendfilter.cli.options import AllowHost

MEBIBYTE = 1024 * 1024


@app.command()
def serve(
    index: Annotated[list[str], typer.Argument(help="An index folder; several are searched as one hybrid.")],
    allow_host: AllowHost = None,
    host: Annotated[
        str,
        typer.Option(help="Where to listen. Others can reach any but 127.0.0.1: set BLENDFILTER_INDEX_TOKEN for them."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 is any free one.")] = 8893,
    max_k: Annotated[int, typer.Option(help="Passages a query, at most.")] = 100,
    max_query_chars: Annotated[int, typer.Option(help="Characters of a query, at most.")] = 20_000,
    max_body: Annotated[int, typer.Option(help="Bytes of a request's body, at most.")] = 4 * MEBIBYTE,
    max_batch: Annotated[int, typer.Option(help="Queries that the index is asked at once, at most.")] = 64,
    max_connections: Annotated[
        int, typer.Option(help="Open connections, at most; fewer where 'ulimit -n' is low.")
    ] = 1000,
) -> None:
    """Serve an index over HTTP: to dspy.ColBERTv2(url=…) as it is, and to --index URL.

    With BLENDFILTER_INDEX_TOKEN set, clients must know it. Ctrl-C or SIGTERM: what is in flight is finished within
    30 seconds, exit 0.

    Example: blendfilter serve indexes/wiki17 --port 8893
    """
    from blendfilter.retrieval.hybrid import open_indexes
    from blendfilter.server import index_server
    from blendfilter.server.exchange import ServerLimits

    limits = ServerLimits(
        max_k=max_k, max_query_chars=max_query_chars, max_body=max_body, max_batch=max_batch,
        max_connections=max_connections,
    )  # fmt: skip
    opened = open_indexes(index, allow_hosts=allow_host or ())
    server = index_server(opened, host=host, port=port, limits=limits)
    server.run(ready=lambda: show(server.line(" + ".join(index))))
    say("stopped")
