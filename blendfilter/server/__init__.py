"""An index over HTTP, in the wire format of `dspy.ColBERTv2` and in batches."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from blendfilter.extras import needed

if TYPE_CHECKING:
    from blendfilter.retrieval.base import Retriever
    from blendfilter.server.exchange import ServerLimits
    from blendfilter.server.running import IndexServer


def index_server(
    index: Retriever,
    *,
    host: str = "127.0.0.1",
    port: int = 8893,
    limits: ServerLimits | None = None,
    token: str | None = None,
) -> IndexServer:
    """A server for `index` that has its address already; its `run()` answers until it is stopped.

    The token is BLENDFILTER_INDEX_TOKEN's where none is given; without one only this machine is answered.
    Raises `MissingExtra`, and `BadArgument` where the address cannot be had or wants a token.
    """
    for package in ("starlette", "uvicorn"):
        needed(package, "server", "serving an index")
    from blendfilter.retrieval.remote import TOKEN
    from blendfilter.server.running import IndexServer

    return IndexServer(index, host=host, port=port, limits=limits, token=token or os.environ.get(TOKEN))
