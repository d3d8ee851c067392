"""Which calls of a question judged which query's passages, and what they said of each.

In: the calls with their prompts and replies, and each query's passages as a model reads them. Out: a reason a passage,
and for each call the queries that it was made for. A check is known by the passages in its prompt, never by its place:
queries that bring the same passages share one, and over a union one serves all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from blendfilter.evaluation.trace import reasons_of

_CHECKS = ("check", "judge")
_NUMBERED = re.compile(r"^knowledge (\d{1,4}): (.*)$", re.MULTILINE)


class Asked(NamedTuple):
    """One call: its stage, prompt and reply."""

    stage: str
    prompt: str
    reply: str

    @classmethod
    def of(cls, stage: str, record: Mapping[str, Any] | None) -> Asked:
        """A call as its record in the journal has it; an empty one where that is gone."""
        prompt = (record or {}).get("prompt") or ""
        text = prompt if isinstance(prompt, str) else "\n".join(text for _, text in prompt)
        return cls(stage.rpartition(".")[2], text, (record or {}).get("reply") or "")


class Judged(NamedTuple):
    """Reasons by query, one a passage (empty where none is known); the queries of each call, in the calls' order."""

    reasons: Mapping[str, Sequence[str]]
    queries: Sequence[Sequence[str]]


def judged(calls: Sequence[Asked], brought: Mapping[str, Sequence[str]]) -> Judged:
    """What the checks among `calls` said of the passages that each query `brought`."""
    shown = {place: shown_in(call.prompt) for place, call in enumerate(calls) if call.stage in _CHECKS}
    checks = {name: place for name, lines in brought.items() if (place := _check(lines, shown)) is not None}
    reasons = {}
    for name, place in checks.items():
        told = reasons_of(calls[place].reply, len(shown[place]))
        numbers = {line: number for number, line in reversed(list(enumerate(shown[place])))}
        reasons[name] = [told[numbers[line]] for line in brought[name]]
    return Judged(reasons, [_queries(call, place, calls, checks) for place, call in enumerate(calls)])


def shown_in(prompt: str) -> list[str]:
    """The last list of numbered knowledge in a prompt: those above it are demonstrations."""
    lines: list[str] = []
    for match in _NUMBERED.finditer(prompt):
        if int(match[1]) == 0:
            lines = []
        lines.append(match[2])
    return lines


def _check(lines: Sequence[str], shown: Mapping[int, Sequence[str]]) -> int | None:
    """The check of just these passages, else one that saw them among others."""
    if not lines:
        return None
    exact = (place for place, seen in shown.items() if list(seen) == list(lines))
    among = (place for place, seen in shown.items() if set(lines) <= set(seen))
    return next(exact, next(among, None))


def _queries(call: Asked, place: int, calls: Sequence[Asked], checks: Mapping[str, int]) -> list[str]:
    """The queries whose check it is, or whose check's reply it reads the ids of."""
    if call.stage in _CHECKS:
        return [name for name, check in checks.items() if check == place]
    if not call.stage.startswith("ids"):
        return []
    return [name for name, check in checks.items() if _reads(call.prompt, calls[check].reply)]


def _reads(prompt: str, reply: str) -> bool:
    return bool(reply.strip()) and reply.strip() in prompt
