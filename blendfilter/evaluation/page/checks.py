"""Which calls of a question judged which query's passages, and what they said of each.

In: the calls with their prompts and replies, and each query's passages as a model reads them. Out: a reason a passage,
and for each call the queries that it was made for. A check is known by the passages in its prompt, or the sentences of
them, never by its place: queries that bring the same passages share one, and over a union one serves all. CDIT's judge
is asked of each passage apart; its call is of all queries that bring that passage.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from blendfilter.report.trace import reasons_of

_NAMES_IDS = "helpful"
_CHECKS = ("check", "judge", _NAMES_IDS)
_JUDGES_ONE = "consistent"
_NUMBERED = re.compile(r"^(?:knowledge|sentence|passage) (\d{1,4}): (.*)$", re.MULTILINE)
_PASSAGE = re.compile(r"^Passage: (.*)$", re.MULTILINE)
_MARK = re.compile(r"^| \| ")


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
    named = {place: seen for place, seen in shown.items() if calls[place].stage == _NAMES_IDS}
    checks = {name: place for name, lines in brought.items() if (place := _check(lines, shown, named)) is not None}
    reasons = {}
    for name, place in checks.items():
        if place in named:  # numbers alone, which give no reason
            continue
        told = reasons_of(calls[place].reply, len(shown[place]))
        numbers = {line: number for number, line in reversed(list(enumerate(shown[place])))}
        reasons[name] = [told[numbers[line]] for line in brought[name]]
    queries = [_queries(call, place, calls, checks, named) for place, call in enumerate(calls)]
    apart = {place: line for place, call in enumerate(calls) if (line := _judged_alone(call)) is not None}
    said = {line: "; ".join(calls[place].reply.split("\n")) for place, line in apart.items()}
    for place, line in apart.items():
        queries[place] = [name for name, lines in brought.items() if line in lines]
    for name in dict.fromkeys(name for place in apart for name in queries[place]):
        reasons.setdefault(name, [said.get(line, "") for line in brought[name]])
    return Judged(reasons, queries)


def _judged_alone(call: Asked) -> str | None:
    """The passage that a call judged apart from the others; those above it are demonstrations'."""
    found = _PASSAGE.findall(call.prompt) if call.stage == _JUDGES_ONE else []
    return found[-1] if found else None


def shown_in(prompt: str) -> list[str]:
    """The last list of numbered knowledge in a prompt: those above it are demonstrations."""
    lines: list[str] = []
    for match in _NUMBERED.finditer(prompt):
        if int(match[1]) == 0:
            lines = []
        lines.append(match[2])
    return lines


def _check(lines: Sequence[str], shown: Mapping[int, Sequence[str]], named: Mapping[int, Sequence[str]]) -> int | None:
    """The check of just these passages, or of their sentences, else one that saw them among others."""
    if not lines:
        return None
    exact = (place for place, seen in shown.items() if list(seen) == list(lines))
    apart = (place for place, seen in named.items() if _holds(seen, lines) and _in_order(seen, lines))
    among = (
        place for place, seen in shown.items() if set(lines) <= set(seen) or (place in named and _holds(seen, lines))
    )
    return next(chain(exact, apart, among), None)


def _holds(seen: Sequence[str], lines: Sequence[str]) -> bool:
    """Whether a sentence of each line was seen; a line without a text has none."""
    return all(any(_is_sentence(each, line) for each in seen) for line in lines if not line.endswith(" | "))


def _in_order(seen: Sequence[str], lines: Sequence[str]) -> bool:
    """Whether all that was seen are sentences of the lines, one line's after another's."""
    rest = list(reversed(lines))
    for sentence in seen:
        while rest and not _is_sentence(sentence, rest[-1]):
            rest.pop()
    return bool(rest)


def _is_sentence(sentence: str, line: str) -> bool:
    """Whether ``Title | sentence`` is of ``Title | text``; a title may hold the mark, or there is none."""
    heads = (sentence[: mark.end()] for mark in _MARK.finditer(sentence))
    return any(line.startswith(head) and sentence[len(head) :] in line[len(head) :] for head in heads)


def _queries(
    call: Asked, place: int, calls: Sequence[Asked], checks: Mapping[str, int], named: Mapping[int, Sequence[str]]
) -> list[str]:
    """The queries whose check it is, or whose check's reply it reads the ids of, or asks for again."""
    if call.stage in _CHECKS:
        return [name for name, check in checks.items() if check == place]
    if not call.stage.startswith("ids"):
        return []
    seen = shown_in(call.prompt)
    return [
        name
        for name, check in checks.items()
        if (named[check] == seen if check in named else _reads(call.prompt, calls[check].reply))
    ]


def _reads(prompt: str, reply: str) -> bool:
    return bool(reply.strip()) and reply.strip() in prompt
