"""Equal model calls in flight: one request, whoever is cancelled, on whichever loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

from calls import Live, ask, journaled, request, text_of
from dspy import lm15
from scripted import response

from blendfilter.context import NOTES, setting
from blendfilter.errors import ServerRefused
from blendfilter.journal import Journal
from blendfilter.lm.journaled import JournaledEngine


def test_equal_calls_in_flight_share_one_request_and_are_each_noted(tmp_path: Path) -> None:
    async def slow(_: lm15.Request, number: int) -> lm15.Response:
        await asyncio.sleep(0.02)
        return response(f"reply {number}")

    live = Live(slow)

    async def five(engine: JournaledEngine) -> list[str]:
        answers = await asyncio.gather(*(engine.complete(request()) for _ in range(5)))
        return [text_of(answer) for answer in answers]

    with Journal(tmp_path) as journal:
        engine = journaled(live, journal)
        with setting(NOTES, []) as notes:
            assert asyncio.run(five(engine)) == ["reply 1"] * 5
        assert live.calls == 1
        assert len(list(journal.records())) == 1
        assert len(notes) == 5


def test_equal_calls_from_several_loops_share_one_request(tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    async def held(_: lm15.Request, number: int) -> lm15.Response:
        entered.set()
        await asyncio.to_thread(leave.wait, 5)
        return response(f"reply {number}")

    live = Live(held)
    got: list[str] = []
    with Journal(tmp_path) as journal:
        engine = journaled(live, journal)
        threads = [threading.Thread(target=lambda: got.append(ask(engine))) for _ in range(6)]
        threads[0].start()
        assert entered.wait(5)
        for thread in threads[1:]:
            thread.start()
        threading.Timer(0.1, leave.set).start()
        for thread in threads:
            thread.join(5)
        assert got == ["reply 1"] * 6
        assert live.calls == 1
        assert len(list(journal.records())) == 1


def test_a_call_that_was_answered_between_looking_and_asking_is_not_made_again(tmp_path: Path) -> None:
    """Two loops: the second looks into the journal just before the first one's reply is on file."""
    live = Live()
    with Journal(tmp_path) as journal:
        engine = journaled(live, journal)
        find, looks = journal.find, []

        def look(key: str, *needs: str) -> Any:
            looks.append(key)
            if len(looks) > 1:
                return find(key)
            thread = threading.Thread(target=ask, args=(engine,))
            missed = find(key)
            thread.start()
            thread.join(5)
            return missed

        journal.find = look  # type: ignore[method-assign]
        assert ask(engine) == "reply 1"
        assert live.calls == 1
        assert len(list(journal.records())) == 1


def test_where_the_leader_is_cancelled_a_follower_takes_over(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def first_never(_: lm15.Request, number: int) -> lm15.Response:
        asked.set()
        await asyncio.sleep(60 if number == 1 else 0)
        return response(f"reply {number}")

    live = Live(first_never)

    async def main(engine: JournaledEngine) -> list[str]:
        leader, *followers = (asyncio.create_task(engine.complete(request())) for _ in range(4))
        await asked.wait()
        await asyncio.sleep(0.01)  # the others come too
        leader.cancel()
        answers = await asyncio.wait_for(asyncio.gather(*followers), 5)
        assert leader.cancelled()
        return [text_of(answer) for answer in answers]

    with Journal(tmp_path) as journal:
        assert asyncio.run(main(journaled(live, journal))) == ["reply 2"] * 3
        assert len(list(journal.records())) == 1
    assert live.calls == 2


def test_a_cancelled_follower_leaves_the_call_to_the_others() -> None:
    asked, told = asyncio.Event(), asyncio.Event()

    async def held(_: lm15.Request, number: int) -> lm15.Response:
        asked.set()
        await told.wait()
        return response(f"reply {number}")

    live = Live(held)

    async def main(engine: JournaledEngine) -> list[str]:
        leader, doomed, follower = (asyncio.create_task(engine.complete(request())) for _ in range(3))
        await asked.wait()
        await asyncio.sleep(0.01)  # the others come too
        doomed.cancel()
        told.set()
        answers = await asyncio.gather(leader, follower)
        assert doomed.cancelled()
        return [text_of(answer) for answer in answers]

    assert asyncio.run(main(journaled(live))) == ["reply 1"] * 2
    assert live.calls == 1


def test_a_refusal_reaches_every_follower_and_the_next_call_is_made() -> None:
    async def refused(_: lm15.Request, number: int) -> lm15.Response:
        await asyncio.sleep(0.01)
        if number == 1:
            raise lm15.AuthError("bad key", status=401)
        return response("let in")

    live = Live(refused)
    engine = journaled(live)

    async def three() -> list[Any]:
        return await asyncio.gather(*(engine.complete(request()) for _ in range(3)), return_exceptions=True)

    told = asyncio.run(three())
    assert [type(each) for each in told] == [ServerRefused] * 3
    assert len({id(each) for each in told}) == 3, "one object raised in three places would gather their tracebacks"
    assert len({str(each) for each in told}) == 1
    assert ask(engine) == "let in"
