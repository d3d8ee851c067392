"""What journal, retries, gate, budget and account cost a call, against the engine alone.

    python eval/bench/overhead.py [--calls 3000] [--prompt 2500]

The engine answers at once and does nothing. Around it lie, as in a run: the meters (the gate, the purse with a limit of
calls and of tokens), the retries, the journal on disk. Each call asks a prompt of its own, so that none is a hit. Told
are the median and the 99th percentile of a call's time when one is made after the other, and with 32 in flight the
whole time divided by the calls: there a call's own time is mostly its waiting for the other 31.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

import blendfilter as bf
from blendfilter.dspy_surface import lm15
from blendfilter.lm.attempts import FREE, CallPolicy, Gate, ModelEngine, Retry, Traffic, on_terms
from blendfilter.lm.budget import Budget, BudgetAccount
from blendfilter.lm.journaled import JournaledEngine

REPLY = lm15.Response(
    id=None,
    model="m",
    message=lm15.Message(role="assistant", parts=(lm15.TextPart(text="So the answer is 42. " * 10),)),
    finish_reason="stop",
    usage=lm15.Usage(input_tokens=600, output_tokens=50),
)


class Nothing:
    """Answers at once, the same to everything."""

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The reply."""
        return REPLY


class Cost(NamedTuple):
    """Milliseconds a call: one by one at the median and the 99th percentile, and with 32 in flight on the whole."""

    median: float
    late: float
    at_once: float


def journaled(journal: bf.Journal | None, traffic: Traffic) -> ModelEngine:
    """The no-op engine as a connected model has it."""
    inner = on_terms(Nothing(), CallPolicy(retry=Retry()), traffic)
    return JournaledEngine(inner, model="m", address="http://127.0.0.1:1/v1", journal=journal)


def bare(_: bf.Journal) -> ModelEngine:
    """The engine alone."""
    return Nothing()


def connected(_: bf.Journal) -> ModelEngine:
    """`connect(…)`: retries, no journal."""
    return journaled(None, FREE)


def kept(journal: bf.Journal) -> ModelEngine:
    """`connect(…, journal=…)`: retries and journal."""
    return journaled(journal, FREE)


def in_a_run(journal: bf.Journal) -> ModelEngine:
    """`evaluate(…)`: gate, retries, journal."""
    return journaled(journal, Traffic(gate=Gate(32)))


def with_a_budget(journal: bf.Journal) -> ModelEngine:
    """`evaluate(…, budget=…)`: gate, purse, retries, journal."""
    return journaled(journal, Traffic(gate=Gate(32), purse=BudgetAccount(Budget(10**9, 10**12), journal)))


def requests(calls: int, size: int, name: str) -> list[lm15.Request]:
    """Requests of `size` characters, each with a prompt of its own."""
    config = lm15.Config(temperature=0.0, max_tokens=256, stop=("\nKnowledge:", "\nQuestion:"))
    texts = (f"{name} {number} {'word ' * (size // 5)}" for number in range(calls))
    return [lm15.Request(model="m", messages=(lm15.Message.user(text),), config=config) for text in texts]


async def one_by_one(engine: ModelEngine, asked: list[lm15.Request]) -> list[float]:
    """Seconds of each call."""
    took = []
    for request in asked:
        start = time.perf_counter()
        await engine.complete(request)
        took.append(time.perf_counter() - start)
    return took


async def at_once(engine: ModelEngine, asked: list[lm15.Request], in_flight: int = 32) -> float:
    """Seconds a call of all of them, so many in flight."""
    left = iter(asked)

    async def worker() -> None:
        for request in left:
            await engine.complete(request)

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return (time.perf_counter() - start) / len(asked)


def cost(make: Callable[[bf.Journal], ModelEngine], calls: int, size: int) -> Cost:
    """Measure one way of calling, over a journal of its own."""
    with tempfile.TemporaryDirectory() as folder, bf.Journal(folder) as journal:
        engine = make(journal)
        asyncio.run(one_by_one(engine, requests(200, size, "warm")))
        took = asyncio.run(one_by_one(engine, requests(calls, size, "single")))
        together = asyncio.run(at_once(engine, requests(calls, size, "many")))
    late = statistics.quantiles(took, n=100)[98]
    return Cost(*(1000 * value for value in (statistics.median(took), late, together)))


def main() -> None:
    """Measure each way and print it beside the engine alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--prompt", type=int, default=2500, help="characters")
    args = parser.parse_args()
    print(f"{args.calls} calls of {args.prompt} characters; milliseconds a call")
    for make in (bare, connected, kept, in_a_run, with_a_budget):
        told = cost(make, args.calls, args.prompt)
        print(f"  {make.__name__:14} median {told.median:.3f}, 99th percentile {told.late:.3f}; "
              f"32 in flight {told.at_once:.3f}  ({str(make.__doc__).rstrip('.')})", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
