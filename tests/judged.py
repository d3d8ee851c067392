"""A village of few words for the tests of trimming: passages that look alike, and a judge that goes by a table.

`Village` answers the judge's prompts through the real template: it reads the passage and the question out of what was
sent, and says True where the table accepts the passage for the question, False elsewhere. Only the model is made up.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from scripted import ScriptedLM

from blendfilter.records import Passage
from blendfilter.retrieval.bm25 import BM25

RADIO = [
    Passage("on", "Evening in Tolm", "Jack turned on the radio in the kitchen."),
    Passage("off", "Morning in Tolm", "Mary turned off the radio in the kitchen."),
    Passage("sold", "Market in Tolm", "Hal sold the radio of the kitchen to Ida."),
    Passage("pier", "Orm Pier", "Lise Harrow built the pier of Tavenby in 1871."),
    Passage("fair", "Tavenby Fair", "The fair of Tavenby is held on the pier."),
]
WHO_ON, WHO_OFF = "Who turned on the radio in the kitchen?", "Who turned off the radio in the kitchen?"
AGAIN = "Who turned the radio in the kitchen on?"
"""`WHO_ON` in other order: the same words, so as near as can be."""
PIER = "Who built the pier of Tavenby?"
ACCEPTED: Mapping[str, frozenset[str]] = {
    WHO_ON: frozenset({"on"}), WHO_OFF: frozenset({"off"}), PIER: frozenset({"pier"}),
}  # fmt: skip


def village() -> BM25:
    """The index."""
    return BM25.build(RADIO)


def read(prompt: str) -> tuple[str, str]:
    """The passage and the question of a judge's prompt, as they were sent."""
    passage, question = re.findall(r"^Passage: (.*)\nQuestion: (.*)$", prompt, re.MULTILINE)[-1]
    return passage, question


class Village:
    """Judges by `accepted`; `silent` questions get a reply that is no verdict, `failing` ones raise.

    `wait` is how long a reply takes, by the prompt: questions overtake each other.
    """

    def __init__(
        self,
        accepted: Mapping[str, Collection[str]] = ACCEPTED,
        *,
        silent: Collection[str] = (),
        failing: Mapping[str, BaseException] | None = None,
        wait: Callable[[str], float] = lambda prompt: 0.0,
    ) -> None:
        self.ids = {passage.line: passage.id for passage in RADIO}
        self.accepted, self.silent, self.failing, self.wait = accepted, silent, dict(failing or {}), wait
        self.searches: list[tuple[str, str]] = []
        """Question and passage id of every call that reached the model, in order."""
        self.in_flight = self.most_in_flight = 0

    def reply(self, _stage: str, prompt: str) -> Any:
        """What the model says."""
        line, question = read(prompt)
        passage = self.ids[line]
        self.searches.append((question, passage))
        if question in self.failing:
            return self.failing[question]
        if question in self.silent:
            return "It depends."
        return str(passage in self.accepted.get(question, ()))

    def lm(self) -> ScriptedLM:
        """A connected model that says it."""
        made = ScriptedLM(self.reply)
        engine = made.inner
        result = engine.complete

        async def complete(request: Any) -> Any:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            try:
                await asyncio.sleep(self.wait(str(request)))
                return await result(request)
            finally:
                self.in_flight -= 1

        engine.complete = complete  # type: ignore[method-assign]
        return made

    @property
    def calls(self) -> int:
        return len(self.searches)
