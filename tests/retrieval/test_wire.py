"""Addresses, tokens, and what is tried again, against a server that does what it is told."""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.errors import AskedWrong, BadArgument, BadData, BlendFilterError, ServerRefused
from blendfilter.retrieval import remote
from blendfilter.retrieval.remote import TOKEN as VARIABLE
from blendfilter.retrieval.remote import ServerConnection, address_of, quoted
from blendfilter.secrets import checked

TOKEN = "2f6c91d0a4"
OK = (200, '{"fine": 1}', {})
Reply = tuple[int, str, dict[str, str]] | str


class Told:
    """A server that gives these replies in turn (`drop`: hangs up; `hang`: says nothing), then OK."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.requests: list[tuple[str, str, bytes]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.url = ""


@contextmanager
def telling(*replies: Reply) -> Iterator[Told]:
    told = Told(*replies)
    release = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            told.requests.append((self.command, self.path, body))
            told.headers.append({name.lower(): value for name, value in self.headers.items()})
            told.times.append(time.monotonic())
            reply = told.replies.pop(0) if told.replies else OK
            if isinstance(reply, str):
                if reply == "hang":
                    release.wait(20)
                self.close_connection = True
                return
            status, text, headers = reply
            sent = text.encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(sent)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_POST = answer  # noqa: N815 - the base class looks for these names

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    told.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield told
    finally:
        release.set()
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "WAIT_FIRST", 0.01)


def line(told: Told, *, token: str | None = None, timeout: float = 5.0, attempts: int = 4) -> ServerConnection:
    return ServerConnection(told.url, token, timeout, attempts)


@pytest.mark.parametrize(
    "fault",
    [
        "drop",
        (408, "", {}),
        (429, '{"message": "slowly"}', {"Retry-After": "0"}),
        (500, '{"error": true, "message": "the search failed"}', {}),
        (502, "<html>Bad Gateway</html>", {}),
        (503, "", {}),
        (200, "<html>a proxy's page</html>", {}),
        (200, '{"fine": ', {}),
        (200, "[" * 100_000, {}),
        (200, '{"fine": 1', {"Content-Length": "500", "Connection": "close"}),
    ],
)
def test_what_passes_is_tried_again(fault: Reply) -> None:
    with telling(fault, fault, fault) as told:
        assert line(told).ask("/search", b"{}") == {"fine": 1}
        assert told.requests == [("POST", "/search", b"{}")] * 4
    with telling(*[fault] * 9) as told:
        with pytest.raises(ServerRefused, match=rf"the index server at {told.url} .*\(2 attempts\)"):
            line(told, attempts=2).ask("/search", b"{}")
        assert len(told.requests) == 2


def test_a_server_that_says_nothing() -> None:
    said = r"did not answer within 0.2 seconds \(2 attempts\): wait longer"
    with telling("hang", "hang") as told, pytest.raises(ServerRefused, match=said):
        line(told, timeout=0.2, attempts=2).ask("/info")


@pytest.mark.parametrize(
    ("reply", "error", "said"),
    [
        ((400, '{"error": true, "message": "k=500 is more"}', {}), BadArgument, "refuses it: k=500 is more"),
        ((413, '{"error": true, "message": "too large"}', {}), BadArgument, "too large"),
        ((400, "<html>", {}), BadArgument, "refuses it: Bad Request"),
        ((400, '["list"]', {}), BadArgument, "refuses it: Bad Request"),
        ((401, "{}", {}), ServerRefused, "wants a token: set BLENDFILTER_INDEX_TOKEN"),
        ((403, '{"message": "not\\nyou\\u001b[31m"}', {}), ServerRefused, "refuses with 403: not you [31m"),
        ((301, "", {"Location": "http://elsewhere.example"}), ServerRefused, "refuses with 301: Moved Permanently"),
        ((404, "{}", {}), ServerRefused, "refuses with 404"),
    ],
)
def test_what_does_not_pass_is_told_at_once(reply: Reply, error: type[AskedWrong], said: str) -> None:
    with telling(reply) as told:
        with pytest.raises(error) as caught:
            line(told).ask("/search", b"{}")
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)
        assert len(told.requests) == 1


@pytest.mark.parametrize("reply", [(404, "not here", {}), (200, "<html>", {}), (405, "{}", {})])
def test_a_server_of_another_kind_is_told_at_once(reply: Reply) -> None:
    with telling(reply) as told:
        with pytest.raises(BadData, match=r"^another kind$"):
            line(told).ask("/info", foreign="another kind")
        assert len(told.requests) == 1


def test_a_servers_wait_is_kept_to() -> None:
    with telling((503, "", {"Retry-After": "0.4"})) as told:
        line(told).ask("/info")
        assert told.times[1] - told.times[0] >= 0.4
    with telling((503, "", {"Retry-After": "3600"})) as told:
        started = time.monotonic()
        with pytest.raises(ServerRefused, match=r"failed with 503: .*\(1 attempt\)"):
            line(told).ask("/info")
        assert time.monotonic() - started < 5


def test_nobody_there() -> None:
    with telling() as told:
        pass
    with pytest.raises(ServerRefused, match=r"cannot be reached \(.*refused.*\(2 attempts\): `blendfilter"):
        line(told, attempts=2).ask("/info")


@pytest.mark.parametrize("fault", ["drop", (401, "", {}), (500, f'{{"message": "token {TOKEN}?"}}', {})])
def test_the_token_is_sent_and_never_told(fault: Reply) -> None:
    with telling(fault, fault) as told:
        sender = line(told, token=TOKEN, attempts=2)
        with pytest.raises(BlendFilterError) as caught:
            sender.ask("/info")
        assert all(headers["authorization"] == f"Bearer {TOKEN}" for headers in told.headers)
    error: BaseException | None = caught.value
    shown = "".join(traceback.format_exception(caught.value))
    while error is not None:
        # a request holds its headers, and the token with them
        assert not hasattr(error, "request")
        error = error.__context__
    assert TOKEN not in shown


def test_each_process_has_connections_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with telling() as told:
        sender = line(told)
        sender.ask("/info")
        own = sender._client()
        monkeypatch.setattr("os.getpid", lambda: -1)
        assert sender._client() is not own
        sender.close()
        monkeypatch.undo()
        assert sender._client() is own
        sender.close()
        assert own.is_closed
        assert sender.ask("/info") == {"fine": 1}


def test_addresses() -> None:
    assert address_of("HTTP://Index.example") == ("http://index.example", "")
    assert address_of("https://index.example:8893/wiki//") == ("https://index.example:8893/wiki", "")
    assert address_of("http://token@127.0.0.1:1/") == ("http://127.0.0.1:1", "token")
    assert address_of("http://any:a%2Fb%40c@[::1]:1") == ("http://[::1]:1", "a/b@c")


@pytest.mark.parametrize(
    "url",
    [
        "", "index.example", "ftp://h", "http://", "http://:80", "http://h:0", "http://h:99999", "http://h:x",
        "http://[::1", "http://h/?query=secret", "http://h/#x", "http://any:secret/1@h", "http://any:12/secret@h",
        "http://any:secret@h/a@b", "http://any:secret@h:port",
    ],
)  # fmt: skip
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(BadArgument, match="is no index server's address: write it as http://host:port") as caught:
        address_of(url)
    assert "secret" not in "".join(traceback.format_exception(caught.value)).replace(f"{url!r}", "")


def test_the_address_that_a_server_prints_for_dspy_is_told_what_to_leave_out() -> None:
    with pytest.raises(BadArgument, match=r"write it as http://host:port, without what follows the '\?'$"):
        address_of("http://127.0.0.1:8893/?index=0123456789abcdef")


@given(st.text())
def test_any_text_is_an_address_or_told_as_none(text: str) -> None:
    for url in (text, f"http://{text}", f"http://any:{text}@h"):
        try:
            found = address_of(url)
        except BadArgument:
            continue
        assert found.url.startswith("http")
        assert "@" not in found.url


@pytest.mark.parametrize("token", ["two words", "wörd", "line\nfeed", ""])
def test_tokens_that_cannot_be_sent(token: str) -> None:
    with pytest.raises(BadArgument, match="BLENDFILTER_INDEX_TOKEN") as caught:
        checked(token, f"the token ({VARIABLE})")
    assert not token or token not in str(caught.value)


def test_what_a_server_says_is_made_harmless() -> None:
    assert quoted("a\n\x1b[2Jb\u2028c") == "a [2Jb c"
    assert len(quoted("x" * 5000)) == 301
    assert quoted(json.dumps({"token": TOKEN}), TOKEN) == '{"token": "[key]"}'
