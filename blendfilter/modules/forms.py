"""How multi-hop transcripts are written: their cues, the lines around a reply, demonstrations in the same lines.

Two forms: `FollowUps` (Self-Ask, Press et al. 2022; the BlendFilter lineage writes ReAct so too), `ThoughtsAndActions`
(ReAct, Yao et al. 2022). In: a turn and what was said. Out: lines. Pure text; replies are read in `hops`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from blendfilter.asking import Demonstration
from blendfilter.modules.blending import without_conclusion
from blendfilter.modules.multi_hop import (
    FINAL,
    FOLLOW_UP,
    INTERMEDIATE,
    KNOWLEDGE,
    NEEDED,
    Hop,
    read_action,
    read_hop,
    shown,
)


class Form(Protocol):
    """How a style writes its turns: the cue that a reply continues, and the lines around it."""

    def cue(self, turn: int) -> str:
        """The line that the reply of a turn continues."""

    def read(self, reply: str) -> Hop:
        """The reply, taken apart."""

    def asked(self, turn: int, follow_up: str) -> str:
        """The line of a follow-up."""

    def found(self, turn: int) -> str:
        """The line above the passages that it found."""

    def forced(self, turn: int) -> str:
        """The cue after which only the final answer is left to say."""

    def concluded(self, turn: int, answer: str) -> str:
        """The line of the final answer."""


class FollowUps:
    """Follow-up questions and intermediate answers: Self-Ask, and ReAct in the BlendFilter lineage."""

    def cue(self, turn: int) -> str:
        return NEEDED if turn == 1 else INTERMEDIATE

    def read(self, reply: str) -> Hop:
        return read_hop(reply)

    def asked(self, turn: int, follow_up: str) -> str:
        return f"{FOLLOW_UP} {follow_up}"

    def found(self, turn: int) -> str:
        return KNOWLEDGE

    def forced(self, turn: int) -> str:
        return FINAL

    def concluded(self, turn: int, answer: str) -> str:
        return f"{FINAL} {answer}".strip()


class ThoughtsAndActions:
    """Thought, action, observation: ReAct as its authors write it."""

    def cue(self, turn: int) -> str:
        return f"Thought {turn}:"

    def read(self, reply: str) -> Hop:
        return read_action(reply)

    def asked(self, turn: int, follow_up: str) -> str:
        return f"Action {turn}: Search[{follow_up}]"

    def found(self, turn: int) -> str:
        return f"Observation {turn}:"

    def forced(self, turn: int) -> str:
        return f"Action {turn}: Finish["

    def concluded(self, turn: int, answer: str) -> str:
        return f"Action {turn}: Finish[{answer}]"


def forced_answer(form: Form, turn: int, reply: str) -> str:
    """The final answer in a reply to the forced cue, whether or not it says the cue again.

    >>> forced_answer(ThoughtsAndActions(), 6, "Copenhagen]"), forced_answer(FollowUps(), 6, "Copenhagen.")
    ('Copenhagen', 'Copenhagen.')
    """
    again = form.read(reply).final
    return again or form.read(f"{form.forced(turn)}{reply.strip()}").final


def self_asked(demo: Demonstration) -> Mapping[str, Any]:
    """A demonstration as Self-Ask goes through it: its knowledge above the question, the newest first."""
    numbers = dict.fromkeys(number for hop in reversed(demo.hops) for number in hop.knowledge)
    return {**_followed(demo, inside=False), "knowledge": [demo.knowledge[number] for number in numbers]}


def reacted(demo: Demonstration) -> Mapping[str, Any]:
    """The same with the knowledge of each hop right after its follow-up."""
    return _followed(demo, inside=True)


def thought_and_acted(demo: Demonstration) -> Mapping[str, Any]:
    """A demonstration in thoughts, actions and observations."""
    form, lines, turn = ThoughtsAndActions(), list[str](), 0
    for turn, hop in enumerate(demo.hops, 1):
        lines += [f"{form.cue(turn)} {hop.thought}", form.asked(turn, hop.follow_up), form.found(turn)]
        lines += map(shown, demo.found(hop))
    step = f"{without_conclusion(demo.reasoning)}\n{form.concluded(turn + 1, demo.answer)}"
    return {"question": demo.question, "trajectory": [*lines, form.cue(turn + 1)], "step": step}


def _followed(demo: Demonstration, *, inside: bool) -> dict[str, Any]:
    form, lines, said = FollowUps(), list[str](), "Yes."
    for turn, hop in enumerate(demo.hops, 1):
        lines += [f"{form.cue(turn)} {said}", form.asked(turn, hop.follow_up)]
        lines += [form.found(turn), *map(shown, demo.found(hop))] if inside else []
        said = hop.answer
    step = f"{said}\n{form.concluded(len(demo.hops), demo.answer)}"
    return {"question": demo.question, "transcript": [*lines, INTERMEDIATE], "step": step}
