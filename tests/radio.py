"""The village of `judged.py` as files and an index, for the tests of `blendfilter trim`: a plugin with two fixtures."""

from __future__ import annotations

from pathlib import Path

import pytest
from judged import PIER, RADIO, WHO_OFF, WHO_ON
from refusing import lines
from small_world import Command

TRIM = ("trim", "radio", "--questions", "questions.jsonl", "--lm", "offline", "-k", 5, "--threshold", 1)


@pytest.fixture
def radio(blendfilter: Command, here: Path) -> Command:
    """An index `radio` and its questions, and nothing trimmed."""
    lines(here / "corpus.jsonl", [{"id": each.id, "title": each.title, "text": each.text} for each in RADIO])
    wanted = [WHO_ON, WHO_OFF, PIER]
    lines(here / "questions.jsonl", [{"id": f"q{at}", "question": text} for at, text in enumerate(wanted)])
    assert blendfilter("index", "corpus.jsonl", "--out", "radio").code == 0
    return blendfilter


@pytest.fixture
def trimmed(radio: Command) -> Command:
    """An overlay `radio.trimmed` at threshold 1, gathered by the offline reader."""
    result = radio(*TRIM)
    assert result.code == 0, result.err
    return radio
