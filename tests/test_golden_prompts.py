"""Golden renders: every template once, for each other task the prompts that it rewords, and the papers' shape.

`tests/golden/templates/NAME.txt` has a template's cases in HotPotQA's wording; `tests/golden/tasks/TASK.txt` one render
of every prompt that differs from HotPotQA's; `tests/golden/paper/METHOD.txt` those of `--prompts paper`. A prompt that
changes shows up here as a difference of text files. Write them anew with::

    BLENDFILTER_UPDATE_GOLDEN=1 python -m pytest tests/test_golden_prompts.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from isle import CHECK, LINES, NAMES, QUESTION, REASONING, TASKS, inputs, nothing, predictors

from blendfilter.asking import Ask, TaskWording, demonstrations
from blendfilter.filters.cdit import PHI1, PHI2
from blendfilter.modules.ralm import RALM

GOLDEN = Path(__file__).parent / "golden"
UPDATE = bool(os.environ.get("BLENDFILTER_UPDATE_GOLDEN"))
TEMPLATES = [*(name for name in NAMES if name not in ("answer", "cot_retrieval")), "respond", "respond_rewritten"]
"""One name a template; `answer` and `cot_retrieval` are the template of `external`."""

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
    "relevant": {
        "question": "Where is Fenwick Mill?",
        "passage": "Fenwick Mill | A mill in Oddle.",
        "relevant": "Yes",
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
    **{
        name: {
            "question": "Where is Fenwick Mill?",
            "knowledge": ["Fenwick Mill | A mill in Oddle. It grinds oats.", "Oddle | A village."],
            "context": "A mill in Oddle.",
        }
        for name in ("written_filco", "written_bider", "written_summary")
    },
    "written_passages": {
        "question": "Where is Fenwick Mill?",
        "knowledge": ["Fenwick Mill | A mill in Oddle. It grinds oats.", "Oddle | A village."],
        "context": "0",
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
    "respond": {
        "knowledge": ["Fenwick Mill | A mill in Oddle."],
        "question": "Where is Fenwick Mill?",
        "answer": "Oddle",
    },
    "short_answer": {"context": "The mill stands in Oddle.", "question": "Where is Fenwick Mill?", "answer": "Oddle"},
}
"""Demonstrations that an optimiser might find for the zero-shot steps."""


def all_predictors(task: str) -> dict[str, Ask]:
    rewritten = RALM(nothing, task=task, rewrite=True).respond
    return {**predictors(task), "respond": RALM(nothing, task=task).respond, "respond_rewritten": rewritten}


def values_of(task: str, predictor: Ask, **changed: Any) -> dict[str, Any]:
    wording = TaskWording.of(task)
    switches = {"offer_none": wording.offer_none, "topic": "lighthouses" if wording.ask_topic else ""}
    return inputs(predictor, **{**switches, **changed})


def demos_of(name: str, predictor: Ask) -> list[Any]:
    optimised = OPTIMISED.get(name.removesuffix("_again"))
    return predictor.demos or (demonstrations(predictor, [optimised]) if optimised else [])


def cases(name: str, predictor: Ask) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """(title, demonstrations, inputs) of each render in a template's golden file."""
    yield "with demonstrations", demos_of(name, predictor), values_of("hotpotqa", predictor)
    yield "without demonstrations", [], values_of("hotpotqa", predictor)
    if "knowledge" in predictor.signature.input_fields:
        yield "one passage", [], values_of("hotpotqa", predictor, knowledge=LINES[:1])
    if "offer_none" in predictor.signature.input_fields:
        yield "none is offered, no topic", [], values_of("hotpotqa", predictor, offer_none=True, topic="")
    elif "knowledge" in predictor.signature.input_fields:
        yield "no passages", [], values_of("hotpotqa", predictor, knowledge=[], passage="")


def render(predictor: Ask, demos: list[Any], values: dict[str, Any]) -> str:
    predictor.demos = demos
    return predictor.render(**values)


def check(path: Path, parts: list[tuple[str, str]]) -> None:
    text = "\n".join(f"######## {title}\n{prompt}\n" for title, prompt in parts)
    if UPDATE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"no golden render {path.name}: BLENDFILTER_UPDATE_GOLDEN=1 writes it"
    assert text == path.read_text(encoding="utf-8"), f"{path.name} differs: read the change, then write it anew"


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_renders_as_its_golden_file(name: str) -> None:
    predictor = all_predictors("hotpotqa")[name]
    parts = [(title, render(predictor, demos, values)) for title, demos, values in cases(name, predictor)]
    check(GOLDEN / "templates" / f"{name}.txt", parts)
    for title, prompt in parts:  # a golden file alone would freeze a template that forgot its slots
        assert prompt.count(QUESTION) == 1
        if "demonstrations" in title and "knowledge" in predictor.signature.input_fields:
            whole = not name.startswith("helpful_sentences")  # these stand below their titles
            assert all(part in prompt for line in LINES for part in ([line] if whole else line.split(" | ")))
        assert not name.startswith("ids") or CHECK in prompt
        assert name != "short_answer" or REASONING in prompt
        if name.startswith("consistent"):
            assert all(prompt.count(line) == 1 for line in (PHI1.line, PHI2.line, LINES[1]))


@pytest.mark.parametrize("task", TASKS[1:])
def test_a_tasks_rewording_renders_as_its_golden_file(task: str) -> None:
    plain, own = all_predictors("hotpotqa"), all_predictors(task)
    reworded: dict[str, list[str]] = {}
    for name, predictor in own.items():
        prompt = render(predictor, demos_of(name, predictor), values_of(task, predictor))
        if prompt != render(plain[name], demos_of(name, plain[name]), values_of("hotpotqa", plain[name])):
            reworded.setdefault(prompt, []).append(name)
    check(GOLDEN / "tasks" / f"{task}.txt", [(", ".join(names), prompt) for prompt, names in reworded.items()])


@pytest.mark.parametrize("method", ["bider", "blendfilter", "cdit", "filco"])
def test_the_papers_shape_renders_as_its_golden_file(method: str) -> None:
    """With a demonstration each; on StrategyQA what differs there."""
    rendered: dict[str, str] = {}
    for task in ("hotpotqa", "strategyqa"):
        every = predictors(task, prompts="paper") | {"respond": RALM(nothing, task="popqa", prompts="paper").respond}
        for name, ask in every.items():
            if ask.template.of_set and ask.template.name.startswith(method) and name not in ("answer", "cot_retrieval"):
                prompt = render(ask, demos_of(name, ask)[:1], values_of(task, ask))
                rendered.setdefault(prompt, f"{name}, {task}")
    check(GOLDEN / "paper" / f"{method}.txt", [(title, prompt) for prompt, title in rendered.items()])


def test_no_golden_file_is_left_over() -> None:
    files = {path.relative_to(GOLDEN).as_posix() for path in GOLDEN.rglob("*.txt")}
    papers = {f"paper/{method}.txt" for method in ("bider", "blendfilter", "cdit", "filco")}
    tasks = {f"tasks/{task}.txt" for task in TASKS[1:]}
    assert files == {f"templates/{name}.txt" for name in TEMPLATES} | tasks | papers
