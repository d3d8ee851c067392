"""An HTTP server on a thread: `answering(answer)` gives its address, and `answer` says what each request comes to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Request(NamedTuple):
    """What was asked; header names in lower case. `handler`: for an answer that writes itself."""

    method: str
    path: str
    headers: Mapping[str, str]
    content: bytes
    handler: BaseHTTPRequestHandler

    @property
    def body(self) -> dict[str, Any]:
        return dict(json.loads(self.content or b"{}"))


class Answer(NamedTuple):
    """`body`: bytes, or what is sent as JSON; `torn`: half of it, then the connection is closed."""

    status: int
    body: Any
    headers: Mapping[str, str] = {}
    torn: bool = False


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone."""


@contextmanager
def answering(answer: Callable[[Request], Answer | None]) -> Iterator[str]:
    """The address of such a server inside the block; where `answer` gives None, it has written by itself."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            if (found := answer(Request(self.command, self.path, headers, content, self))) is None:
                return
            data = found.body if isinstance(found.body, bytes) else json.dumps(found.body).encode()
            self.send_response(found.status)
            for name, value in {
                "content-type": "application/json",
                "content-length": str(len(data)),
                **found.headers,
            }.items():
                self.send_header(name, value)
            self.end_headers()
            if found.torn:
                data, self.close_connection = data[: len(data) // 2], True
            with suppress(OSError):
                self.wfile.write(data)

        do_GET = do_POST  # noqa: N815 - the library's names

        def log_message(self, *_: Any) -> None:
            """Nothing: a test's output is its own."""

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
