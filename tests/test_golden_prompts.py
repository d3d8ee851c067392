"""Golden renders: every template in every task's wording, as a model reads it, in `tests/golden/prompts`.

A prompt that changes shows up here as a difference of text files. Write them anew with::

    BLENDFILTER_UPDATE_GOLDEN=1 python -m pytest tests/test_golden_prompts.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from isle import CHECK, LINES, NAMES, QUESTION, REASONING, TASKS, inputs, predictors

from blendfilter.asking import Ask, TaskWording, demonstrations
from blendfilter.filters.cdit.rules import PHI1, PHI2

GOLDEN = Path(__file__).parent / "golden" / "prompts"
UPDATE = bool(os.environ.get("BLENDFILTER_UPDATE_GOLDEN"))

OPTIMISED: dict[str, dict[str, Any]] = {
    "internal": {"question": "Where is Fenwick Mill?", "passage": "Fenwick Mill stands in Oddle.\nIt grinds oats."},
    "topic": {"question": "Where is Fenwick Mill?", "topic": "mills"},
    "check": {
        "question": "Where is Fenwick Mill?",
        "knowledge": ["Fenwick Mill | A mill in Oddle.", "Oddle | A village."],
        "relevance": "0 says where it is: relevant.\n1 does not speak of the mill: irrelevant.",
    },
    "ids": {
        "context": "0 is relevant.",
        "question": "Where is Fenwick Mill?",
        "knowledge": ["Fenwick Mill | A mill in Oddle.", "Oddle | A village."],
        "ids": "0",
    },
    "judge": {
        "question": "Where is Fenwick Mill?",
        "knowledge": ["Fenwick Mill | A mill in Oddle.", "Oddle | A village."],
        "judgement": "0 says where it is: relevant.\n1 does not speak of the mill: irrelevant.\nIds: 0",
    },
    "helpful_sentences": {
        "question": "Where is Fenwick Mill?",
        "knowledge": ["Fenwick Mill | A mill in Oddle.", "Fenwick Mill | It grinds oats.", "Oddle | A village."],
        "ids": "0",
    },
    "helpful_passages": {
        "question": "Where is Fenwick Mill?",
        "knowledge": ["Fenwick Mill | A mill in Oddle. It grinds oats.", "Oddle | A village."],
        "ids": "0",
    },
    "consistent_word": {
        "passage": "Fenwick Mill | Fenwick Mill was shut by Edda Oddle.",
        "question": "Who opened Fenwick Mill?",
        "verdict": "False",
    },
    "consistent_components": {
        "passage": "Fenwick Mill | Fenwick Mill was shut by Edda Oddle.",
        "question": "Who opened Fenwick Mill?",
        "comparison": "subject | open | Edda Oddle | alike\npredicate | opened | shut | unlike\n"
        "object | Fenwick Mill | Fenwick Mill | alike\nReason: To shut is not to open.\nVerdict: False",
    },
    "short_answer": {"context": "The mill stands in Oddle.", "question": "Where is Fenwick Mill?", "answer": "Oddle"},
}
"""Demonstrations that an optimiser might find for the zero-shot steps."""


def cases(task: str, name: str, predictor: Ask) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """(title, demonstrations, inputs) of each render in a golden file."""
    wording = TaskWording.of(task)
    told = {"offer_none": wording.offer_none, "topic": "lighthouses" if wording.ask_topic else ""}
    demos = predictor.demos or demonstrations(predictor, [OPTIMISED[name.removesuffix("_again")]])
    fields = predictor.signature.input_fields
    if "knowledge" not in fields:
        yield "with demonstrations", demos, inputs(predictor)
        yield "without demonstrations", [], inputs(predictor)
        return
    yield "five passages, with demonstrations", demos, inputs(predictor, **told)
    yield "five passages, without demonstrations", [], inputs(predictor, **told)
    yield "one passage", [], inputs(predictor, knowledge=LINES[:1], **told)
    if "offer_none" in fields:
        other = {"offer_none": not wording.offer_none, "topic": "" if wording.ask_topic else "lighthouses"}
        yield "the other task's way", [], inputs(predictor, **other)
    else:
        yield "no passages", [], inputs(predictor, knowledge=[])


def rendered(task: str, name: str) -> str:
    predictor = predictors(task)[name]
    parts = []
    for title, demos, values in cases(task, name, predictor):
        predictor.demos = demos
        parts.append(f"######## {title}\n{predictor.render(**values)}\n")
    return "\n".join(parts)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", NAMES)
def test_prompt_is_the_golden_one(task: str, name: str) -> None:
    path = GOLDEN / f"{task}-{name}.txt"
    text = rendered(task, name)
    if UPDATE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"no golden render {path.name}: BLENDFILTER_UPDATE_GOLDEN=1 writes it"
    assert text == path.read_text(encoding="utf-8"), f"{path.name} differs: read the change, then write it anew"


def test_no_golden_file_is_left_over() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {f"{task}-{name}.txt" for task in TASKS for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_golden_files_hold_what_they_were_given(name: str) -> None:
    # A golden file alone would freeze a template that forgot its slots.
    for task in TASKS:
        text = (GOLDEN / f"{task}-{name}.txt").read_text(encoding="utf-8")
        for prompt in text.split("######## ")[1:]:
            assert prompt.count(f"Question: {QUESTION}\n") == 1
            if "five passages" in prompt or name.startswith("react"):
                assert all(prompt.count(line) == 1 for line in LINES)
            if name.startswith("ids"):
                assert CHECK in prompt
            if name == "short_answer":
                assert REASONING in prompt
            if name.startswith("consistent"):
                assert all(prompt.count(line) == 1 for line in (PHI1.line, PHI2.line, LINES[1]))
