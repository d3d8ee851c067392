"""Damaged indexes of every kind: one line that names the folder, or a search that works; never anything raw.

What is done to them, and what counts as an end that is right, is in `damaged.py`. A reader in C ends its process where
it fails, so the kinds that have one are opened in another process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import damaged
import pytest
from damaged import KINDS, LEXICAL

CASES = 250
SECONDS = 5
"""Of the processor, for one case: a hundred times what the slowest needs, and far less than what a hang takes."""


def check(ended: list[damaged.Outcome]) -> None:
    """None ended raw, long, in more than a line, or with a file changed; and some damage was noticed."""
    assert [each for each in ended if each.wrong] == []
    assert max(each.seconds for each in ended) < SECONDS
    assert any(each.error for each in ended)


def test_damaged_folders_are_refused_in_a_line_or_searched(tmp_path: Path) -> None:
    ended = list(damaged.outcomes(tmp_path, range(60), LEXICAL, lambda case: None))
    check(ended)
    assert {each.kind for each in ended} == {*LEXICAL}


@pytest.mark.slow
@pytest.mark.parametrize(("kinds", "cases"), [(KINDS, CASES), (("colbert",), 30)])
def test_250_damaged_indexes(tmp_path: Path, kinds: tuple[str, ...], cases: int) -> None:
    if "colbert" in kinds:
        pytest.importorskip("colbert")
    result = subprocess.run(
        [sys.executable, damaged.__file__, tmp_path / "root", "0", str(cases), *kinds],
        capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    reply = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.returncode == 0, f"case {reply and reply[-1]} ended the process: {result.stderr[-1000:]}"
    ended = [damaged.Outcome(**each) for each in reply if isinstance(each, dict)]
    check(ended)
    assert [each.case for each in ended] == list(range(cases))
    assert set(Counter(each.kind for each in ended)) == {*kinds}
