"""Replies as chat, base and thinking models write them, and what each reader makes of them: none is read wrong."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from blendfilter.filters.cdit import read_verdict
from blendfilter.lm.profiles import split_thinking
from blendfilter.modules.multi_hop import Hop, read_action, read_hop
from blendfilter.replies import choice, label, short_reply, topic, truth, unwrapped, verdict

TABLE = tomllib.loads(Path(__file__).with_name("replies.toml").read_text(encoding="utf-8"))


def hop_in_words(hop: Hop) -> str:
    if hop.follow_up or hop.final:
        return f"follow-up: {hop.follow_up}" if hop.follow_up else f"final: {hop.final}"
    return "enough" if hop.enough else "neither"


READERS: dict[str, Callable[[str], object]] = {
    "short": short_reply,
    "yes_or_no": lambda reply: verdict(short_reply(reply)),
    "true_or_false": read_verdict,
    "label": lambda reply: label(short_reply(reply)),
    "truth": lambda reply: truth(short_reply(reply)),
    "choice": lambda reply: choice(short_reply(reply)),
    "hop": lambda reply: hop_in_words(read_hop(reply)),
    "action": lambda reply: hop_in_words(read_action(reply)),
    "topic": topic,
}


@pytest.mark.parametrize(
    ("reader", "says", "reply"),
    [(reader, says, reply) for reader, rows in TABLE.items() for says, replies in rows.items() for reply in replies],
)
def test_a_reply_is_read_as_what_it_says(reader: str, says: str, reply: str) -> None:
    found = READERS[reader](split_thinking(reply)[1])
    text = "unclear" if found is None else str(found)
    # A full stop at the end of a short answer may stay: scores do not count it.
    assert text in ((says, f"{says}.") if reader == "short" else (says,))


@pytest.mark.parametrize(
    "reply",
    [
        "<answer>Rome</answer>\nNo, that is the ship.\n<answer>Tolm</answer>",
        "\\boxed{Rome}\nThat was the ship.\n\\boxed{Tolm}",
        "<answer>Rome</answer>\n\\boxed{Tolm}",
    ],
)
def test_of_several_marked_answers_the_last_one_counts(reply: str) -> None:
    assert unwrapped(reply) == "Tolm"


def test_every_reader_has_its_rows() -> None:
    assert set(TABLE) == set(READERS)
    assert sum(len(replies) for rows in TABLE.values() for replies in rows.values()) > 350
