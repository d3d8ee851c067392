"""A server in a thread that answers every request with the same hostile bytes, and counts the requests."""

from __future__ import annotations

import json
import socket
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

MANY = 1 << 30
"""Bytes of a body that has no end: no client is to read so many."""


class Hostile:
    """What the server is at, and what has been asked of it."""

    def __init__(self, port: int) -> None:
        self.url, self.requests = f"http://127.0.0.1:{port}", 0
        self.sent = 0


@contextmanager
def hostile(head: str, body: Iterable[bytes] = (), *, status: str = "200 OK") -> Iterator[Hostile]:
    """Answers with `status`, these header lines and `body` (pieces; a tuple, for every request gets them all)."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=64)
    server = Hostile(listening.getsockname()[1])
    lines = "".join(f"{line}\r\n" for line in head.replace("URL", server.url).splitlines() if line)

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            _read(connection)
            server.requests += 1
            connection.sendall(f"HTTP/1.1 {status}\r\nConnection: close\r\n{lines}\r\n".encode("latin-1", "replace"))
            for piece in body:
                connection.sendall(piece)
                server.sent += len(piece)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield server
    finally:
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def _read(connection: socket.socket) -> None:
    data = b""
    while b"\r\n\r\n" not in data and (piece := connection.recv(65536)):
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    sizes = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    left = int(sizes[0]) - len(body) if sizes else 0
    while left > 0 and (piece := connection.recv(65536)):
        left -= len(piece)


class Endless:
    """A body of `MANY` bytes, none of which end it."""

    def __iter__(self) -> Iterator[bytes]:
        piece = b" " * (1 << 16)
        yield b'{"choices": ['
        for _ in range(MANY >> 16):
            yield piece


def packed(size: int = MANY) -> bytes:
    """So many spaces as gzip: about a thousandth of them."""
    packer, block = zlib.compressobj(9, zlib.DEFLATED, 31), b" " * (1 << 20)
    return b"".join(packer.compress(block) for _ in range(size >> 20)) + packer.flush()


def said(**more: object) -> bytes:
    """A reply in OpenAI's shape."""
    return json.dumps({"choices": [{"message": {"content": "42"}, "finish_reason": "stop"}], **more}).encode()
