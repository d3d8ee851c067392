"""Two small real models examined: whatever they write, the examination ends, and every stage has its figures.

SmolLM2-135M-Instruct is asked as a chat model, Gemma 3 270M as a base model (completions). Nothing here depends on what
they know or on how fast they are; the shares are printed (``pytest -rP``), because they are what a prompt is worth.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import local_model
import pytest
from small_world import Command

from blendfilter.filters.cdit import read_verdict
from blendfilter.filters.ids import read_ids
from blendfilter.journal import FILE, Journal
from blendfilter.report.doctor import CASES, COMPONENTS, SENTENCES, WORD, numbered_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]  # some 25 calls on one thread, however busy the machine is

STAGES = ("external", "internal", "topic", "check", "ids", "answer", "short_answer", WORD, COMPONENTS, SENTENCES)
MODELS: dict[str, tuple[Callable[[], Path], str]] = {
    "SmolLM2-135M-Instruct": (local_model.weights, "chat"),
    "Gemma 3 270M base": (local_model.base_weights, "completions"),
}


@pytest.mark.parametrize("name", MODELS)
def test_an_examination_ends_and_every_stage_has_its_row(name: str, blendfilter: Command) -> None:
    weights, endpoint = MODELS[name]
    words = ("doctor", "--lm", weights(), "--endpoint", endpoint, "--questions", 1, "--run", "run")
    outcome = blendfilter(*words)
    for stage in STAGES:
        assert re.search(rf"^{stage} +\d+ +(?:[\d.]+ %|-) ", outcome.out, re.MULTILINE), stage
    journals = [Path("run", FILE), Path("run", CASES, FILE)]
    written = [path.read_bytes() for path in journals]
    again = blendfilter(*words, "--json")
    assert [path.read_bytes() for path in journals] == written, "what was asked once is not asked again"
    found = json.loads(again.out)
    assert (found["questions"], found["errors"], found["cases"]) == (1, {}, {"count": 11, "errors": {}})
    assert all(found["stages"][stage]["read_at_once"]["of"] > 0 for stage in STAGES)
    assert found["healthy"] is not any(finding["bad"] for finding in found["findings"])
    assert outcome.code == again.code == (0 if found["healthy"] else 1)
    for path in journals:
        with Journal(path.parent, "replay") as journal:
            for record in journal.records("call"):
                assert_read_right(record)
    print(name, outcome.out, sep="\n")  # last, because each command takes what was printed before it


def assert_read_right(record: dict[str, Any]) -> None:
    """What is read of a reply stands in it: an id is one of those shown, a verdict its own word."""
    reply, prompt = record["reply"] or "", record["prompt"]
    text = prompt if isinstance(prompt, str) else "\n".join(part for _, part in prompt)
    if record["stage"] in ("ids", "ids_again", "helpful"):
        read = read_ids(reply, len(numbered_lines(text)))
        assert set(read.ids) <= set(range(len(numbered_lines(text))))
        assert read.status != "ids" or re.search(r"\d|\ball\b", reply, re.IGNORECASE)
    elif record["stage"].startswith("consistent"):
        verdict = read_verdict(reply)
        assert verdict is None or re.search(rf"\b{verdict}\b", reply, re.IGNORECASE)
