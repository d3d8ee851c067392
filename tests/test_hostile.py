"""Whatever a server answers is a fault of that one call: bounded in memory, journaled with its stage, one line."""

from __future__ import annotations

import dataclasses
import gzip
import subprocess
import sys
import zlib
from pathlib import Path

import httpx
import pytest
from hostile_server import Endless, hostile, packed, said

from blendfilter import http
from blendfilter.errors import BadArgument, BadData, ModelError, ServerRefused
from blendfilter.journal import Journal
from blendfilter.lm.attempts import Retry
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.retrieval.remote import Remote

DEEP = b"[" * 200_000
JSON = "Content-Type: application/json"


def lm_at(url: str, **more: object) -> ConnectedLM:
    """A model at `url` that tries twice, at once."""
    lm = connect("m", api_base=f"{url}/v1", **more)  # type: ignore[arg-type]
    lm.terms = dataclasses.replace(lm.terms, retry=Retry(attempts=2, wait_first=0.001, wait_max=0.001))
    return lm.with_journal(lm.journal)


@pytest.mark.parametrize(
    ("status", "head", "body", "again"),
    [
        ("200 OK", JSON, DEEP, True),
        ("200 OK", JSON, said()[:-1] + b', "usage": {"cost": ' + b"9" * 5000 + b"}}", True),
        ("200 OK", f"{JSON}\nContent-Encoding: gzip", b"this is no gzip", True),
        ("200 OK", f"{JSON}\nContent-Encoding: br", b"\x0b\x02\x80{}", True),
        ("200 OK", JSON, b'{"choices": [{"message": {"content": ' + b"[" * 400 + b"]" * 400 + b"}}]}", True),
        ("200 OK", JSON, b'{"choices": [{"message": {}, "logprobs": {"content": [{"logprob": "x"}]}}]}', True),
        ("500 Oh", JSON, b'{"error": {"message": ' + b"[" * 900 + b"]" * 900 + b', "type": [], "code": {}}}', True),
        ("429 No", f"{JSON}\nRetry-After: Wed, 01 Jan 2026 00:00:00 +9999999999", b"{}", True),
        ("400 No", "Content-Type: application/json; charset=hex", b'{"error": {"message": "no"}}', False),
        ("307 Go", "Location: URL/v1/chat/completions", b"", False),
    ],
)  # fmt: skip
def test_what_a_model_server_answers_is_a_fault_of_that_call(
    status: str, head: str, body: bytes, again: bool, tmp_path: Path
) -> None:
    with hostile(head, (body,), status=status) as server, Journal(tmp_path / "run") as journal:
        lm = lm_at(server.url, journal=journal)
        with pytest.raises(ModelError) as failed:
            lm("hello")
        (record,) = journal.records("call")
    assert len(str(failed.value)) < 600
    assert record["error"]["message"] == str(failed.value)
    assert record["attempts"] == (2 if again else 1)


def test_a_reply_that_is_too_large_is_told_and_not_asked_for_again(tmp_path: Path) -> None:
    with hostile(JSON, Endless()) as server, pytest.raises(ModelError, match="the reply is larger than 32 MiB"):
        lm_at(server.url)("hello")
    assert server.requests == 1


@pytest.mark.parametrize("key", ["ключ-0123456", "sk-0123 456", "sk-0123456\n"])
def test_a_key_that_http_cannot_carry_is_refused_at_once_and_not_shown(key: str) -> None:
    with pytest.raises(
        BadArgument, match=r"the key that was given \(api_key=\) holds what HTTP cannot carry"
    ) as raised:
        connect("m", api_base="http://127.0.0.1:9/v1", api_key=key)
    assert key.strip() not in str(raised.value)


MEASURED = """
import re, sys
def peak(): return int(re.search("VmHWM:\\s+([0-9]+)", open("/proc/self/status").read())[1]) // 1024
{setup}
before = peak()
try:
    {asked}
except Exception as error:
    print(peak() - before, type(error).__name__, error)
"""
MODEL = (
    "import blendfilter as bf\nlm = bf.connect('m', api_base=sys.argv[1] + '/v1', attempts=1)\n"
    "try: bf.connect('m', api_base='http://127.0.0.1:9/v1', attempts=1)('x')\nexcept Exception: pass"
)
INDEX = "from blendfilter.retrieval.remote import Remote"
CORPUS = "from blendfilter.retrieval.corpus import read_corpus"
QUESTIONS = "from blendfilter.tasks.loading import load"


def grown(setup: str, asked: str, place: str) -> tuple[int, str]:
    """Mebibytes by which the memory of a process that does `asked` grows at most, and the error that ends it."""
    words = [sys.executable, "-c", MEASURED.format(setup=setup, asked=asked), place]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    size, _, error = done.stdout.partition(" ")
    assert size.isdigit(), done.stdout + done.stderr
    return int(size), error


@pytest.mark.parametrize(
    ("setup", "asked", "kind"),
    [(MODEL, "lm('hello')", "ModelError"), (INDEX, "Remote(sys.argv[1], attempts=1)", "BadData")],
    ids=["model", "index"],
)
@pytest.mark.parametrize("way", ["endless", "gzip"])
def test_a_body_without_end_takes_no_memory(setup: str, asked: str, kind: str, way: str) -> None:
    head, body = (JSON, Endless()) if way == "endless" else (f"{JSON}\nContent-Encoding: gzip", (packed(),))
    with hostile(head, body) as server:
        size, error = grown(setup, asked, server.url)
    assert error.startswith(kind)
    assert "larger than 32 MiB" in error
    assert size < 200, size


@pytest.mark.parametrize(
    ("reader", "before"), [("corpus", b""), ("corpus", b'["'), ("questions", b"[ "), ("retrieved", b""), ("table", b"")]
)
def test_a_small_file_that_unpacks_to_one_line_without_end_takes_no_memory(
    tmp_path: Path, reader: str, before: bytes
) -> None:
    packer, block = zlib.compressobj(9, zlib.DEFLATED, 31), b"x" * (1 << 20)
    data = packer.compress(before) + b"".join(packer.compress(block) for _ in range(1024)) + packer.flush()
    (tmp_path / "big.gz").write_bytes(data)
    assert len(data) < 2 << 20
    setup, wanted = {
        "corpus": (CORPUS, "list(read_corpus(sys.argv[1]))"),
        "questions": (QUESTIONS, "load('hotpotqa', sys.argv[1])"),
        "retrieved": ("from blendfilter.retrieval.precomputed import Precomputed", "Precomputed(sys.argv[1])"),
        "table": (QUESTIONS, "load('popqa', sys.argv[1])"),
    }[reader]
    size, error = grown(setup, wanted, str(tmp_path / "big.gz"))
    assert error.startswith("BadData"), error
    assert size < 200, size


@pytest.mark.parametrize(
    ("status", "head", "body"),
    [
        ("200 OK", JSON, DEEP),
        ("200 OK", f"{JSON}\nContent-Encoding: gzip", b"this is no gzip"),
        ("307 Go", "Location: http://[::1", b""),
    ],
)
def test_what_an_index_server_answers_is_one_line(status: str, head: str, body: bytes) -> None:
    with hostile(head, (body,), status=status) as server, pytest.raises((ServerRefused, BadData)) as raised:
        Remote(server.url, attempts=1)
    assert "\n" not in str(raised.value)


def test_junk_behind_a_packed_body_is_bounded_too() -> None:
    def reply(junk: int) -> httpx.Response:
        pieces = iter([packed(0), *[b"x" * 100] * junk])
        return httpx.Response(200, headers={"content-encoding": "gzip"}, content=pieces)

    http.bounded(reply(9), limit=1000)
    with pytest.raises(http.TooLarge):
        http.bounded(reply(10), limit=1000)


@pytest.mark.parametrize("packing", ["deflate", "gzip", ""])
def test_an_honest_body_is_unpacked_in_whatever_pieces(packing: str) -> None:
    text = said()
    packers = {"gzip": gzip.compress, "deflate": zlib.compress, "": bytes}
    data = packers[packing](text)
    pieces = (data[at : at + 7] for at in range(0, len(data), 7))
    assert http.bounded(httpx.Response(200, headers={"content-encoding": packing}, content=pieces)) == text
