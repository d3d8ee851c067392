"""An unruly chat model: what is asked of it, it does in some way that nobody asked for; one mood a habit, or all mixed.

It is a pure function of the prompt: what it truly named as relevant can be looked up afterwards. As a process:
``python tests/unruly.py --mood mixed --port 8123``. From a test: ``with serve("negates") as url: …``.

The right reply beneath every mood is the offline reader's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

sys.path.insert(0, str(Path(__file__).parents[1]))

import model_server

from blendfilter.lm.offline import read

REFUSAL = "I'm sorry, but I can't help with that."
PROSE = (
    "That is a good question, and there is a lot to be said about it. In 1884 there were 3 harbours and 2 keepers, as "
    "far as anybody recalls, and each of the passages touches on the matter in its own way, some more and some less."
)
SHORT_CUES = ("Ids:", "Topic:", "Answer:", "Verdict:")


class Said(NamedTuple):
    """A reply: its text, whether it was cut at the cap, and which ids it truly named (None: it named none)."""

    text: str
    cut: bool = False
    named: frozenset[int] | None = None


class Asked(NamedTuple):
    """A prompt: its cue, the right reply, and for ids how many passages there are."""

    cue: str
    right: str
    k: int

    @property
    def ids(self) -> frozenset[int]:
        """The right ids."""
        return frozenset(int(each) for each in self.right.split(",") if each.strip().isdigit())

    @property
    def others(self) -> list[int]:
        return [number for number in range(self.k) if number not in self.ids]


def tame(asked: Asked) -> Said:
    return Said(asked.right, named=asked.ids)


def rambles(asked: Asked) -> Said:
    if asked.cue == "Ids:":
        return Said(PROSE)
    return Said(f"{asked.right} {PROSE}" if asked.cue in SHORT_CUES else f"{PROSE}\n{asked.right}")


def marks_down(asked: Asked) -> Said:
    if asked.cue == "Ids:":
        return Said("**Relevant ids:** " + ", ".join(f"`{each}`" for each in sorted(asked.ids)), named=asked.ids)
    if asked.cue in SHORT_CUES:
        return Said(f"**{asked.right}**")
    return Said("## My view\n\n" + "\n".join(f"- {line}" for line in asked.right.splitlines()))


def thinks(asked: Asked) -> Said:
    return Said(f"<think>\nIs it 0, or 1? There is much to weigh.\n</think>\n\n{asked.right}", named=asked.ids)


def thinks_aloud(asked: Asked) -> Said:
    return Said(f"Okay, let me think. There are many passages here.\nWait, I see it.\n{asked.right}", named=asked.ids)


def negates(asked: Asked) -> Said:
    if asked.cue != "Ids:":
        return Said(asked.right)
    listed = ", ".join(map(str, asked.others or range(asked.k)))
    return Said(f"{listed} are irrelevant." if asked.others else "None of 0 to 4 is irrelevant, none.")


def restates(asked: Asked) -> Said:
    if asked.cue != "Ids:":
        return Said(asked.right)
    return Said(f"The knowledge is numbered from 0 to {asked.k - 1}.")


def refuses(asked: Asked) -> Said:
    return Said(REFUSAL)


def is_cut(asked: Asked) -> Said:
    if asked.cue == "Ids:":
        return Said("Knowledge 0 names the place that is asked about, and knowledge 1", cut=True)
    return Said(asked.right[: max(1, len(asked.right) // 2)], cut=True)


def is_empty(asked: Asked) -> Said:
    return Said("")


MOODS: dict[str, Callable[[Asked], Said]] = {
    "tame": tame, "rambles": rambles, "markdown": marks_down, "thinks": thinks, "thinks_aloud": thinks_aloud,
    "negates": negates, "restates": restates, "refuses": refuses, "cut": is_cut, "empty": is_empty,
}  # fmt: skip
MIXED = "mixed"


def said(prompt: str, mood: str) -> Said:
    """What the model says to `prompt`; in the mood `mixed` the prompt decides which mood it is."""
    if mood == MIXED:
        mood = list(MOODS)[crc32(prompt.encode()) % len(MOODS)]
    cue = re.sub(r" \([^()]+\):$", ":", prompt.strip().splitlines()[-1].strip())  # without its reminder
    return MOODS[mood](Asked(cue, read(prompt), len(shown(prompt))))


def shown(prompt: str) -> list[str]:
    """The numbered passages that a prompt ends with."""
    lines: list[str] = []
    for line in prompt.splitlines():
        noun, _, rest = line.partition(" ")
        number, colon, text = rest.partition(": ")
        if noun in ("knowledge", "sentence") and colon and number.isdigit():
            lines = [*lines, text] if int(number) else [text]
    return lines


class Unruly(model_server.Model):
    """The model behind a server: it heeds `stop`, and no cap."""

    mood = MIXED

    def complete(self, prompt: str, body: dict[str, Any], *, chat: bool) -> model_server.Reply:
        reply = super().complete(prompt, {**body, "max_tokens": None, "max_completion_tokens": None}, chat=chat)
        data = json.loads(reply.body)
        if said(prompt, self.mood).cut:
            data["choices"][0]["finish_reason"] = "length"
        return model_server.Reply(200, json.dumps(data).encode())


def model(mood: str) -> Unruly:
    made = Unruly(model_server.options().parse_args([]), lambda prompt: said(prompt, mood).text)
    made.mood = mood
    return made


@contextmanager
def serving(served: model_server.Model) -> Iterator[str]:
    """A model behind an address of its own, in a thread of this process."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(
        asyncio.start_server(lambda r, w: model_server.handle(served, r, w), "127.0.0.1", 0, backlog=512)
    )
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.set_exception_handler(lambda loop, context: None)  # connections that are cut short, which is how they end
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def serve(mood: str) -> AbstractContextManager[str]:
    """The unruly model, served."""
    return serving(model(mood))


async def _run(mood: str, port: int) -> None:
    unruly = model(mood)
    server = await asyncio.start_server(lambda r, w: model_server.handle(unruly, r, w), "127.0.0.1", port)
    print(f"listening on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mood", choices=[*MOODS, MIXED], default=MIXED)
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    asyncio.run(_run(given.mood, given.port))
