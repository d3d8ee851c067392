"""What a generator is trained to read: silver contexts, the passages that hold them, all passages, or these in turn."""

from __future__ import annotations

import pytest

from blendfilter.errors import UnknownName
from blendfilter.oracles.silver_rows import SilverRow, SilverSentence
from blendfilter.records import Passage
from blendfilter.training.settings import TrainingSettings
from blendfilter.training.silver import generator_examples, silver_set

MILL = Passage("m", "Tide Mill", "It grinds rye. Ane Lindqvist runs it.")
PIER = Passage("p", "Pier", "It is long.")
ROW = SilverRow(
    "q1", "Who runs the mill?", ("Ane Lindqvist",), "Ane Lindqvist", (PIER, MILL),
    (SilverSentence(0, 0, 11, 0.0), SilverSentence(1, 0, 14, 0.0), SilverSentence(1, 15, 37, 1.0)),
    (2,), "Ane Lindqvist runs it.", True,
)  # fmt: skip


def knowledge(prompt: str) -> list[str]:
    return prompt.partition("\nKnowledge:\n")[2].partition("\nQuestion:")[0].splitlines()


@pytest.mark.parametrize(
    ("reads", "lines"),
    [
        ("silver", ["Tide Mill | Ane Lindqvist runs it."]),
        ("psg", [MILL.line]),
        ("full", [PIER.line, MILL.line]),
    ],
)
def test_a_generator_reads_what_it_is_to_read_later(reads: str, lines: list[str]) -> None:
    (example,), recipe = generator_examples([ROW], "nq", reads=reads)
    assert knowledge(example.prompt) == lines
    assert (example.target, recipe["reads"]) == ("Ane Lindqvist", reads)


def test_several_kinds_of_context_come_in_turn() -> None:
    examples, _ = generator_examples([ROW, ROW, ROW], "nq", reads="silver,full")
    assert [len(knowledge(example.prompt)) for example in examples] == [1, 2, 1]


def test_an_unknown_kind_of_context_is_refused() -> None:
    with pytest.raises(UnknownName, match="no reads 'gold'"):
        silver_set("nq.jsonl", "generator", "base", TrainingSettings(), reads="silver,gold")
