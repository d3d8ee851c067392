"""A local server with OpenAI's batches: files, batches and their answers, kept in memory.

A thread on loopback: ``with batching(delay=0.1) as server`` gives its `url`. `server.paid` counts the answered lines by
their key, `server.created` has the size of each batch.
"""

from __future__ import annotations

import email.policy
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.parser import BytesParser
from typing import Any
from urllib.parse import urlsplit
from zlib import crc32

from http_server import Answer, Request, answering
from model_server import Model, options, reader_for


@dataclass
class BatchServer:
    """The batches, and how they go.

    Attributes:
        delay: seconds from a batch's creation to its end.
        share: of the lines that fail, drawn from the line's key and how often it came.
        expire: whether the first batch expires with half of its lines answered.
        cancel: whether it is cancelled then.
        limit: lines that may be waiting; a larger batch fails, as OpenAI's limit of tokens makes it.
        silent: paths of the API that are not there.
        faults: HTTP statuses of the first requests.
        twice: whether the first batch is made and its creation answered with a fault all the same.
        broken: files of answers that break off in the middle.
        behave: how the model behaves (`model_server.BEHAVIOURS`).
    """

    delay: float = 0.0
    share: float = 0.0
    expire: bool = False
    cancel: bool = False
    limit: int | None = None
    silent: str = ""
    faults: list[int] = field(default_factory=list)
    twice: bool = False
    broken: int = 0
    behave: str = "plain"

    def __post_init__(self) -> None:
        self.model = Model(options().parse_args(["--behave", self.behave]), reader_for("offline"))
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        self.paid, self.came, self.singly = Counter[str](), Counter[str](), 0
        self.created: list[int] = []
        self.url = ""
        self._lock = threading.Lock()

    def handle(self, method: str, path: str, payload: bytes, headers: Any) -> tuple[int, Any]:
        with self._lock:
            if self.faults:
                return self.faults.pop(0), {"error": {"message": "no luck"}}
            if self.silent and path.startswith(self.silent):
                return 404, {"error": {"message": f"Invalid URL ({method} {path})"}}
            return self.routed(method, path, payload, headers)

    def routed(  # noqa: PLR0911 - one for each path
        self, method: str, path: str, payload: bytes, headers: Any
    ) -> tuple[int, Any]:
        self.end_due()
        match method, path.removeprefix("/v1").strip("/").split("/"):
            case "POST", ["chat", "completions"]:
                self.singly += 1
                return self.replied(path, json.loads(payload))
            case "POST", ["files"]:
                return 200, self.uploaded(payload, headers)
            case "POST", ["batches"]:
                made = self.create(json.loads(payload))
                failed, self.twice = self.twice, False
                return (503, {"error": {"message": "made, but"}}) if failed else (200, made)
            case "GET", ["batches"]:
                return 200, {"object": "list", "data": [*self.batches.values()], "has_more": False}
            case "GET", ["batches", id] if id in self.batches:
                return 200, self.batches[id]
            case "GET", ["files", id, "content"] if id in self.files:
                return 200, self.files[id]
        return 404, {"error": {"message": f"Invalid URL ({method} {path})"}}

    def uploaded(self, payload: bytes, headers: Any) -> dict[str, Any]:
        head = f"Content-Type: {headers['content-type']}\r\n\r\n".encode()
        message = BytesParser(policy=email.policy.default).parsebytes(head + payload)
        parts = {part.get_param("name", header="content-disposition"): part for part in message.iter_parts()}
        assert parts["purpose"].get_content().strip() == "batch"
        return self.keep(parts["file"].get_payload(decode=True))

    def keep(self, content: bytes) -> dict[str, Any]:
        id = f"file-{len(self.files) + 1}"
        self.files[id] = content
        return {"id": id, "object": "file", "bytes": len(content), "created_at": 0, "filename": "f", "purpose": "batch",
                "status": "processed"}  # fmt: skip

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        id = f"batch_{len(self.batches) + 1}"
        lines = self.files[body["input_file_id"]].splitlines()
        self.created.append(len(lines))
        made = {"id": id, "object": "batch", "endpoint": body["endpoint"], "input_file_id": body["input_file_id"],
                "completion_window": body["completion_window"], "created_at": int(time.time()), "status": "in_progress",
                "metadata": body.get("metadata"), "due": time.monotonic() + self.delay}  # fmt: skip
        if self.limit is not None and len(lines) > self.limit:
            error = {"code": "token_limit_exceeded", "message": "Enqueued token limit reached", "param": None}
            made |= {"status": "failed", "errors": {"object": "list", "data": [error]}}
        self.batches[id] = made
        return made

    def end_due(self) -> None:
        for batch in self.batches.values():
            if batch["status"] == "in_progress" and time.monotonic() >= batch["due"]:
                self.end(batch)

    def end(self, batch: dict[str, Any]) -> None:
        lines = [json.loads(line) for line in self.files[batch["input_file_id"]].splitlines()]
        cancelled = self.cancel
        expired = lines[len(lines) // 2 :] if self.expire or cancelled else []
        self.expire = self.cancel = False
        good, bad = [], []
        for line in lines:
            key = line["custom_id"]
            self.came[key] += 1
            if line in expired and cancelled:
                continue
            if line in expired:
                error = {"code": "batch_expired", "message": "This request could not be executed in time."}
                bad.append({"id": "r", "custom_id": key, "response": None, "error": error})
                continue
            status, body = self.answered(line, self.came[key])
            self.paid[key] += status == 200
            answer = {"status_code": status, "request_id": "q", "body": body}
            (good if status == 200 else bad).append({"id": "r", "custom_id": key, "response": answer, "error": None})
        batch["status"] = "cancelled" if cancelled else "expired" if expired else "completed"
        for name, rows in (("output_file_id", good), ("error_file_id", bad)):
            random.Random(0).shuffle(rows)  # answers come in any order
            if rows:
                batch[name] = self.keep("\n".join(map(json.dumps, rows)).encode())["id"]

    def answered(self, line: dict[str, Any], turn: int = 1) -> tuple[int, Any]:
        """A line's status and body, `turn` being how often it came by now."""
        if random.Random(crc32(f"{turn} {line['custom_id']}".encode())).random() < self.share:
            return 500, {"error": {"message": "The server had an error", "type": "server_error"}}
        return self.replied(line["url"], line["body"])

    def replied(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        chat = path == "/v1/chat/completions"
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        reply = self.model.refuse(prompt, body, "") or self.model.complete(prompt, body, chat=chat)
        return reply.status, json.loads(reply.body)


@contextmanager
def batching(**how: Any) -> Iterator[BatchServer]:
    """The server, on a port of its own."""
    server = BatchServer(**how)

    def answer(request: Request) -> Answer:
        path = urlsplit(request.path).path
        status, body = server.handle(request.method, path, request.content, request.headers)
        torn = bool(server.broken) and path.endswith("/content")
        server.broken -= torn
        return Answer(status, body, torn=torn)

    with answering(answer) as url:
        server.url = f"{url}/v1"
        yield server
