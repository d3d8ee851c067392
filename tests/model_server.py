"""A local OpenAI-compatible model server for tests and benchmarks: deterministic, cheap, and badly behaved on request.

As a process: ``python tests/model_server.py --port 0 --delay 0.2`` prints ``listening on 127.0.0.1:PORT``.
From a test::

    with serve(delay=0.2, behave="reasoning", keep=True) as server:
        ... server.url ...
        assert server.stats()["requests"] == 1

It speaks ``POST /v1/chat/completions``, ``POST /v1/completions``, ``GET /v1/models``, ``GET /stats``, ``POST /reset``
over HTTP/1.1 with keep-alive. Tokens are words between white space. Every option is a flag of `options()`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from zlib import crc32

from model_faults import FAULTS, Reply, asked_for, fault, refusal

ROOT = Path(__file__).parents[1]
BEHAVIOURS = (
    "plain",
    "reasoning",  # refuses stop, temperature and max_tokens as OpenAI's reasoning models do; returns reasoning_content
    "think-tags",  # <think>…</think> in front of the reply
    "think-no-open-tag",  # the same without the opening tag (it stood in the chat template)
    "empty-at-cap",  # an empty reply that ends at the cap: everything went into hidden thinking
    "unauthorized",  # 401, with the key echoed in the message
    "no-model",  # 404, as for a model that is not served
    "context",  # 400 where the prompt holds MARKER or is longer than --context-limit characters
    "flaky",  # a share of the calls fails in one of five ways, never more than three times in a row for one prompt
    "no-schema",  # refuses response_format, as OpenAI does for models from before structured outputs
    "schema",  # holds the reply to the schema that is asked for
    "asked",  # fails as the prompt asks it to: see model_faults.py
    "hang",  # takes the request and never answers
)
MARKER = "CONTEXT-TOO-LONG"
THOUGHT = "Let me think about the question first."


def options() -> argparse.ArgumentParser:
    """Every option; `serve(**options)` takes the same names with underscores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each reply")
    parser.add_argument("--jitter", type=int, metavar="SEED", help="a random extra delay of up to --jitter-max seconds")
    parser.add_argument("--jitter-max", type=float, default=0.05)
    parser.add_argument(
        "--reply", default="So the answer is 42.", help="fixed text, or 'offline' for the offline reader"
    )
    parser.add_argument("--behave", choices=BEHAVIOURS, default="plain")
    parser.add_argument("--seed", type=int, default=0, help="of --behave flaky")
    parser.add_argument("--share", type=float, default=0.2, help="share of calls that fail under --behave flaky")
    parser.add_argument("--retry-after", default="0", help="the header's value in a 429")
    parser.add_argument("--context-limit", type=int, help="characters of a prompt, under any behaviour")
    parser.add_argument("--tokenize", choices=["vllm", "llama.cpp"], help="POST /tokenize as this server has it")
    parser.add_argument("--lie", default="{}", metavar="JSON", help="over each reply's usage; null takes a field out")
    parser.add_argument("--keep", action="store_true", help="keep prompts and request bodies for /stats")
    return parser


@dataclass
class Model:
    """The model behind the server: settings, and what has been counted."""

    settings: argparse.Namespace
    read: Callable[[str], str]
    stats: dict[str, Any] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    random: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        kept: dict[str, Any] = {"prompts": [], "bodies": []} if self.settings.keep else {}
        counts = {"requests": 0, "max_in_flight": 0, "statuses": Counter(), "tokens_in": 0, "tokens_out": 0}
        self.stats = {**counts, "faults": Counter(), "answered": 0, "tokenized": 0, **kept}
        self.seen.clear()
        self.random.seed(self.settings.jitter)

    async def answer(self, path: str, body: dict[str, Any], key: str) -> Reply:
        """One model call, counted, delayed and perhaps failed."""
        chat = path.endswith("/chat/completions")
        prompt = "\n\n".join(text_of(m["content"]) for m in body["messages"]) if chat else str(body["prompt"])
        self.count(prompt, body)
        self.in_flight += 1
        self.stats["max_in_flight"] = max(self.stats["max_in_flight"], self.in_flight)
        try:
            await self.wait(prompt)
            reply = self.refuse(prompt, body, key) or self.fail(prompt) or self.complete(prompt, body, chat=chat)
        finally:
            self.in_flight -= 1
        self.stats["statuses"]["dropped" if reply.drop else str(reply.status)] += 1
        return reply

    def count(self, prompt: str, body: dict[str, Any]) -> None:
        self.stats["requests"] += 1
        self.seen[prompt] += 1
        if self.settings.keep:
            self.stats["prompts"].append(prompt)
            self.stats["bodies"].append(body)

    async def wait(self, prompt: str) -> None:
        hangs = self.settings.behave == "asked" and asked_for(prompt, self.seen[prompt]) == "hang"
        if hangs or self.settings.behave == "hang":
            await asyncio.sleep(3600)
        extra = 0.0 if self.settings.jitter is None else self.random.uniform(0, self.settings.jitter_max)
        if self.settings.delay + extra > 0:
            await asyncio.sleep(self.settings.delay + extra)

    def refuse(self, prompt: str, body: dict[str, Any], key: str) -> Reply | None:
        """A refusal that trying again does not change."""
        behave, limit = self.settings.behave, self.settings.context_limit
        if behave == "unauthorized":
            return refusal(401, f"Incorrect API key provided: {key}.", code="invalid_api_key")
        if behave == "no-model":
            return refusal(404, f"The model `{body.get('model')}` does not exist.", code="model_not_found")
        if (behave == "context" and MARKER in prompt) or (limit is not None and len(prompt) > limit):
            message = (
                f"This model's maximum context length is {limit or 1000} tokens. However, your messages are longer."
            )
            return refusal(400, message, param="messages", code="context_length_exceeded")
        if behave == "no-schema" and "response_format" in body:
            message = "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model."
            return refusal(400, message)
        return refuse_parameter(body) if behave == "reasoning" else None

    def fail(self, prompt: str) -> Reply | None:
        """A fault that passes: drawn from the seed, the prompt and how often it came, never from arrival order."""
        turn = self.seen[prompt]
        if self.settings.behave == "asked":
            wanted = asked_for(prompt, turn)
            return self.faulty(wanted) if wanted else None
        draw = random.Random(crc32(f"{self.settings.seed} {turn} {prompt}".encode()))
        if self.settings.behave != "flaky" or turn % 4 == 0 or draw.random() >= self.settings.share:
            return None
        return self.faulty(draw.choice(FAULTS))

    def faulty(self, name: str) -> Reply:
        self.stats["faults"][name] += 1
        return fault(name, self.settings.retry_after)

    def complete(self, prompt: str, body: dict[str, Any], *, chat: bool) -> Reply:
        """The reply itself, cut at the stop strings and the cap as a server would."""
        behave = self.settings.behave
        text, thought, finish = self.read(prompt), "", "stop"
        for stop in as_list(body.get("stop")):
            text = text.split(stop, 1)[0]
        if behave == "reasoning":
            thought = THOUGHT
        elif behave == "think-tags":
            text = f"<think>\n{THOUGHT}\n</think>\n\n{text}"
        elif behave == "think-no-open-tag":
            text = f"{THOUGHT}\n</think>\n\n{text}"
        elif behave == "empty-at-cap":
            text, finish = "", "length"
        elif behave == "schema" and "response_format" in body:
            text = json.dumps(filled(body["response_format"]["json_schema"]["schema"]))
        text, capped = cap(text, body.get("max_tokens") or body.get("max_completion_tokens"))
        usage = self.usage(prompt, text, thought)
        self.stats["answered"] += 1
        choice = {"index": 0, "finish_reason": "length" if capped else finish, **scores(body, text, chat=chat)}
        if chat:
            message = {"role": "assistant", "content": text}
            choice["message"] = {**message, "reasoning_content": thought} if thought else message
        else:
            choice["text"] = text
        kind, call = ("chat.completion", "chatcmpl") if chat else ("text_completion", "cmpl")
        head = {"id": f"{call}-{crc32(prompt.encode()):08x}", "object": kind, "created": 0, "model": body.get("model")}
        return Reply(200, json.dumps({**head, "choices": [choice], "usage": usage}).encode())

    def usage(self, prompt: str, text: str, thought: str) -> dict[str, Any]:
        tokens_in, hidden = len(prompt.split()), len(thought.split())
        tokens_out = len(text.split()) + hidden
        self.stats["tokens_in"] += tokens_in
        self.stats["tokens_out"] += tokens_out
        usage: dict[str, Any] = {"prompt_tokens": tokens_in, "completion_tokens": tokens_out}
        usage["total_tokens"] = tokens_in + tokens_out
        if hidden:
            usage["completion_tokens_details"] = {"reasoning_tokens": hidden}
        if self.settings.behave == "reasoning":
            usage["prompt_tokens_details"] = {"cached_tokens": tokens_in // 2}
        lie = json.loads(self.settings.lie)
        return {name: value for name, value in {**usage, **lie}.items() if value is not None or name not in lie}


def filled(schema: dict[str, Any]) -> Any:
    """The plainest value that a schema allows."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema["type"] == "object":
        return {name: filled(inner) for name, inner in schema["properties"].items()}
    return [filled(schema["items"])] if schema["type"] == "array" else {"boolean": True, "string": "so"}[schema["type"]]


def refuse_parameter(body: dict[str, Any]) -> Reply | None:
    """One refused parameter at a time, in OpenAI's words."""
    if body.get("max_tokens") is not None:
        message = (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        )
        return refusal(400, message, param="max_tokens", code="unsupported_parameter")
    if body.get("temperature", 1) != 1:
        message = f"Unsupported value: 'temperature' does not support {body['temperature']} with this model."
        return refusal(400, message, param="temperature", code="unsupported_value")
    if "stop" in body:
        message = "Unsupported parameter: 'stop' is not supported with this model."
        return refusal(400, message, param="stop", code="unsupported_parameter")
    return None


def scores(body: dict[str, Any], text: str, *, chat: bool) -> dict[str, Any]:
    """Made-up log-probabilities, one for each word with the white space after it, where they were asked for."""
    if not body.get("logprobs") and body.get("logprobs") != 0:
        return {}
    words = text.replace(" ", " \0").split("\0")
    if not chat:
        return {"logprobs": {"tokens": words, "token_logprobs": [-0.5] * len(words), "top_logprobs": None}}
    return {"logprobs": {"content": [{"token": w, "logprob": -0.5, "bytes": None, "top_logprobs": []} for w in words]}}


def cap(text: str, limit: int | None) -> tuple[str, bool]:
    """`text` cut to `limit` words, and whether it was."""
    words = text.split(" ")
    return (" ".join(words[:limit]), True) if limit is not None and len(words) > limit else (text, False)


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or [])


def as_list(stop: Any) -> list[str]:
    return [stop] if isinstance(stop, str) else list(stop or [])


async def handle(model: Model, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection, kept alive until the client or a fault closes it (asyncio sets TCP_NODELAY by itself)."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.split("\r\n")
            method, path, _ = first.split(" ", 2)
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            payload = await reader.readexactly(int(headers.get("content-length", 0)))
            reply = await route(model, method, path, payload, headers)
            if reply.drop:
                break
            writer.write(reply.wire())
            await writer.drain()
            if reply.torn:
                break
    except (asyncio.IncompleteReadError, ConnectionError):
        return  # the client went away, which is how a connection ends
    finally:
        writer.close()


async def route(model: Model, method: str, path: str, payload: bytes, headers: dict[str, str]) -> Reply:
    if method == "POST" and path in ("/v1/chat/completions", "/v1/completions"):
        key = headers.get("authorization", "").removeprefix("Bearer ")
        return await model.answer(path, json.loads(payload), key)
    if (method, path) == ("GET", "/v1/models"):
        return Reply(body=json.dumps({"object": "list", "data": [{"id": "test-model", "object": "model"}]}).encode())
    if (method, path) == ("POST", "/tokenize") and model.settings.tokenize:
        return tokenized(model, json.loads(payload))
    if (method, path) == ("GET", "/stats"):
        return Reply(body=json.dumps(model.stats).encode())
    if (method, path) == ("POST", "/reset"):
        model.reset()
        return Reply()
    return refusal(404, f"Invalid URL ({method} {path})")


def tokenized(model: Model, body: dict[str, Any]) -> Reply:
    """The words of a text as tokens: vLLM counts its `prompt`, llama.cpp gives those of its `content`."""
    model.stats["tokenized"] += 1
    vllm = model.settings.tokenize == "vllm"
    tokens = list(range(len(body["prompt" if vllm else "content"].split())))
    return Reply(body=json.dumps({"tokens": tokens, **({"count": len(tokens)} if vllm else {})}).encode())


def reader_for(reply: str) -> Callable[[str], str]:
    if reply != "offline":
        return lambda prompt: reply
    sys.path.insert(0, str(ROOT))
    from blendfilter.lm.offline import read

    return read


async def run(settings: argparse.Namespace) -> None:
    model = Model(settings, reader_for(settings.reply))
    server = await asyncio.start_server(lambda r, w: handle(model, r, w), "127.0.0.1", settings.port, backlog=512)
    print(f"listening on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await server.serve_forever()


class Server:
    """A running server process: its `url` (with ``/v1``), its counts, and the way to stop it."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port
        self.root, self.url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port}/v1"

    def stats(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.root}/stats", timeout=10) as reply:
            return dict(json.load(reply))

    def reset(self) -> None:
        request = urllib.request.Request(f"{self.root}/reset", data=b"", method="POST")
        urllib.request.urlopen(request, timeout=10).close()

    def stop(self) -> None:
        """End the process; a second call does nothing."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


def serve(**flags: Any) -> Server:
    """Start a server in its own process; `serve(delay=0.2, keep=True)` is ``--delay 0.2 --keep``."""
    words = [sys.executable, str(Path(__file__).resolve())]
    for name, value in flags.items():
        if value is None or value is False:
            continue
        words += [f"--{name.replace('_', '-')}"] if value is True else [f"--{name.replace('_', '-')}={value}"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("listening on "):
        process.kill()
        raise RuntimeError(f"the test server did not start (its first line: {line!r})")
    return Server(process, int(line.rsplit(":", 1)[1]))


if __name__ == "__main__":
    try:
        asyncio.run(run(options().parse_args()))
    except KeyboardInterrupt:
        sys.exit(0)
