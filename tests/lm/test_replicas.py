"""Several servers of one model: shared fairly, gone round where one is down, and one model for the journal."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import jumping
import pytest
from dspy import lm15
from model_server import serve

from blendfilter.context import noting
from blendfilter.errors import BadArgument, ServerRefused
from blendfilter.journal import Journal
from blendfilter.lm import faults
from blendfilter.lm.attempts import AttemptingEngine, Retry
from blendfilter.lm.budget import tallied
from blendfilter.lm.model import connect
from blendfilter.lm.replicas import ReplicatedEngine

REQUEST = lm15.Request(model="m", messages=(lm15.Message.user("q"),))


class Server:
    """An engine at an address that answers after `seconds`, or raises what `fault` makes."""

    model = "m"

    def __init__(self, address: str, seconds: float = 1.0) -> None:
        self.address, self.seconds = address, seconds
        self.fault: Any = None
        self.calls = self.inside = self.most = 0

    async def complete(self, request: lm15.Request) -> lm15.Response:
        self.calls += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            if self.fault is not None:
                await asyncio.sleep(0.001)
                raise self.fault()
            await asyncio.sleep(self.seconds)
        finally:
            self.inside -= 1
        return lm15.Response(
            id=None, model="m", message=lm15.Message.assistant(self.address), finish_reason="stop", usage=lm15.Usage(),
            provider_data={"address": self.address},
        )  # fmt: skip


def refused() -> lm15.LM15Error:
    return lm15.TransportError("no connection", provider_code=faults.NO_CONNECTION)


def throttling() -> lm15.LM15Error:
    return lm15.RateLimitError("slow down", status=429, retry_after=20.0)


def broken() -> lm15.LM15Error:
    return lm15.ServerError("500", status=500)


def replicated(*servers: Server) -> ReplicatedEngine:
    return ReplicatedEngine(servers, clock=jumping.now)


async def answered_by(engine: Any, count: int, at_once: int = 8) -> Counter[str]:
    """Who answered, of `count` calls with so many in flight."""
    places = asyncio.Semaphore(at_once)

    async def one() -> str:
        async with places:
            with tallied():
                return str((await engine.complete(REQUEST)).provider_data["address"])

    return Counter(await asyncio.gather(*(one() for _ in range(count))))


# ---- sharing


def test_a_slow_server_is_asked_less() -> None:
    result, seconds = jumping.run(answered_by(replicated(Server("quick", 1.0), Server("slow", 4.0)), 500))
    assert result["quick"] == pytest.approx(4 * result["slow"], rel=0.1)
    assert seconds == pytest.approx(500 / (4 / 1.0 + 4 / 4.0), rel=0.1)


# ---- going round


def test_a_server_that_refuses_is_gone_round_and_comes_back() -> None:
    async def main() -> tuple[Counter[str], Counter[str]]:
        engine = replicated(a, b)
        a.fault = refused
        while_down = await answered_by(engine, 40)
        a.fault = None
        await asyncio.sleep(40)
        return while_down, await answered_by(engine, 40)

    a, b = Server("a"), Server("b")
    (down, back), _ = jumping.run(main())
    assert down == {"b": 40}, "no call is lost, and none took another attempt"
    assert back["a"] == pytest.approx(20, abs=4)


def test_a_server_that_throttles_rests_and_the_others_are_asked() -> None:
    async def main() -> Counter[str]:
        a.fault = throttling
        engine = AttemptingEngine(replicated(a, b), (), Retry(), clock=jumping.now)
        return await answered_by(engine, 40, 4)

    a, b = Server("a"), Server("b")
    result, seconds = jumping.run(main())
    assert result == {"b": 40}
    assert a.calls == 2, "both that were sent there before the first was refused"
    assert seconds < 13, "nobody waits the twenty seconds that one server asked for"


def test_a_retry_goes_to_another_server_first() -> None:
    async def main() -> Counter[str]:
        return await answered_by(AttemptingEngine(replicated(a, b, c), (), Retry(attempts=3), clock=jumping.now), 30)

    a, b, c = Server("a"), Server("b"), Server("c")
    a.fault = b.fault = broken
    result, _ = jumping.run(main())
    assert result == {"c": 30}, "two of three are broken, and three attempts are enough for every call"


# ---- real servers


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def test_servers_share_the_calls_and_the_journal_says_who_answered(tmp_path: Path) -> None:
    with serve() as one, serve() as other, Journal(tmp_path) as journal:
        lm = connect("m", api_base=[one.url, other.url + "/"], journal=journal)
        assert lm.address == f"{one.url}, {other.url}"

        async def main() -> None:
            await asyncio.gather(*(lm.acall(f"q{number}") for number in range(40)))

        asyncio.run(main())
        counts = [server.stats()["requests"] for server in (one, other)]
        answered = Counter(record["address"] for record in journal.records())
    assert sum(counts) == 40
    assert min(counts) >= 18
    assert answered == dict(zip((one.url, other.url), counts, strict=True))


def test_all_servers_down_is_one_line_that_names_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    urls = [f"http://127.0.0.1:{free_port()}/v1" for _ in range(2)]
    lm = connect("m", api_base=urls)
    monkeypatch.setattr(lm, "terms", type(lm.terms)(retry=Retry(wait_first=0.001)))
    with pytest.raises(ServerRefused) as raised:
        lm.with_journal(None)("hello")
    assert f"no model server answers at {urls[0]}, {urls[1]}:" in str(raised.value)
    assert "\n" not in str(raised.value)


# ---- one model


def key_of(lm: Any) -> str:
    lm.inner = connect("offline").inner
    with noting() as notes:
        lm.with_journal(None)("hello")
    return str(notes[0].key)


def test_a_calls_key_does_not_depend_on_how_many_serve_it() -> None:
    here, there = "http://127.0.0.1:9/v1", "http://127.0.0.1:10/v1"
    one, several = connect("m", api_base=here), connect("m", api_base=[here, there])
    assert one.identity == several.identity
    assert key_of(one) == key_of(several)


def test_it_survives_saving_without_a_login() -> None:
    lm = connect("m", api_base=["http://me:SECRET123@127.0.0.1:9/v1", "http://127.0.0.1:10/v1"])
    state = lm.dump_state()
    assert "SECRET123" not in f"{state} {lm.address} {lm.inner!r}"
    again = type(lm).load_state(state)
    assert isinstance(again.inner, ReplicatedEngine)
    assert again.address == lm.address == "http://127.0.0.1:9/v1, http://127.0.0.1:10/v1"


@pytest.mark.parametrize(
    ("addresses", "reported"),
    [
        ([], "empty list"),
        (["http://127.0.0.1:9/v1", "localhost"], "'localhost' is no address"),
        (["http://127.0.0.1:9/v1", "http://127.0.0.1:10/v1?key=SECRET123"], "hold no query"),
    ],
)
def test_addresses_that_cannot_be_are_refused(addresses: list[str], reported: str) -> None:
    with pytest.raises(BadArgument, match=reported) as error:
        connect("m", api_base=addresses)
    assert "SECRET123" not in str(error.value)


def test_what_one_of_the_servers_refuses_bounds_a_call_to_any_of_them() -> None:
    lm = connect("m", api_base=["http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1"])
    assert isinstance(lm.inner, ReplicatedEngine)
    wanted = lm15.Request(model="m", messages=(lm15.Message.user("q"),), config=lm15.Config(max_tokens=32))
    assert lm.inner.reply_cap(wanted) == 32
    second = lm.inner.servers[1]
    for name in ("max_tokens", "max_completion_tokens"):
        second.refused[name] = None
    assert lm.inner.reply_cap(wanted) is None
