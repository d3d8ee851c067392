"""An index over HTTP, in the wire format of `dspy.ColBERTv2` and in batches."""

from __future__ import annotations

import os

from blendfilter.extras import needed

for package in ("starlette", "uvicorn"):
    needed(package, "server", "serving an index")

# after the check that says what is missing
from blendfilter.retrieval.base import Retriever  # noqa: E402
from blendfilter.retrieval.remote import TOKEN  # noqa: E402
from blendfilter.server.exchange import ServerLimits  # noqa: E402
from blendfilter.server.running import IndexServer  # noqa: E402


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
    Raises `BadArgument` where the address cannot be had or wants a token.
    """
    return IndexServer(
        index, host=host, port=port, limits=limits, token=token or os.environ.get(TOKEN)
    )
