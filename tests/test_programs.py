"""The committed programs (`programs/<task>/default.json`) and the names that saved programs are keyed by.

Names are a file format: renaming a predictor or a field breaks every program that anybody has saved.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from isle import TASKS, nothing

from blendfilter import resources
from blendfilter.asking import ANSWERING, Demonstration, TaskWording
from blendfilter.filters.cdit import CDITFilter
from blendfilter.filters.filco import FilCoFilter
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.direct import ChainOfThought, Direct
from blendfilter.modules.iter_retgen import IterRetGen
from blendfilter.modules.multi_hop import ReAct, SelfAsk
from blendfilter.modules.ralm import RALM
from blendfilter.modules.self_consistency import SelfConsistency
from blendfilter.prompting import own_prompts
from blendfilter.replies import LABELS
from blendfilter.tasks.loading import TASKS as KNOWN
from blendfilter.text import normalize_answer, overlap, tokens

PROGRAMS = sorted(path.parent.name for path in resources.programs().glob("*/default.json"))
DEMOS = [(task, demo) for task in PROGRAMS for demo in TaskWording.of(task).demos]

CLAIMS = {"fever": {"SUPPORTS", "REFUTES"}, "fever-nei": {"SUPPORTS", "REFUTES", "NOT ENOUGH INFO"}}
"""The labels of the programs whose questions are claims."""
CHOICES = {"arc": {"A", "B", "C"}, "pubhealth": {"true", "false"}}
"""What the demonstrations of choices and of claims that are true or false answer."""
LONG = {"eli5", "wow"}
"""Those whose answers are sentences."""

BLENDFILTER = {
    "blending.external": ["knowledge", "question", "reasoning"],
    "blending.internal": ["question", "passage"],
    "select.topic": ["question", "topic"],
    "select.check": ["topic", "offer_none", "knowledge", "question", "relevance"],
    "select.ids": ["context", "offer_none", "knowledge", "question", "ids"],
    "select.ids_again": ["context", "offer_none", "knowledge", "question", "ids"],
    "answering.answer": ["knowledge", "question", "reasoning"],
    "answering.short_answer": ["context", "question", "answer"],
}


def is_word_of_the_knowledge(task: str, demo: Demonstration) -> bool:
    """Whether the answer is copied out: not a verdict, a label or sentences."""
    return task not in {*CLAIMS, *CHOICES, *LONG} and demo.answer.lower() not in ("yes", "no")


def by_id(case: object) -> str:
    return case.question[:40] if isinstance(case, Demonstration) else str(case)


def test_the_programs_are_those_of_the_tasks() -> None:
    assert sorted(TASKS) == PROGRAMS
    assert {*(task.wording for task in KNOWN.values()), "fever-nei"} == set(PROGRAMS)


def test_switches_are_the_papers() -> None:
    """Tasks of no paper are as HotPotQA; a claim or a chat that may find nothing is allowed to keep nothing."""
    nothing_found = ("fever", "fever-nei", "eli5", "wow", "pubhealth")
    assert {task: (TaskWording.of(task).offer_none, TaskWording.of(task).ask_topic) for task in PROGRAMS} == {
        **dict.fromkeys(PROGRAMS, (False, True)),
        **dict.fromkeys(nothing_found, (True, True)),
        "strategyqa": (True, False),
    }


@pytest.mark.parametrize("task", sorted(CLAIMS))
def test_a_claims_labels_are_named_wherever_an_answer_is_asked_for(task: str) -> None:
    wording = TaskWording.of(task)
    for label in LABELS:
        told = [label in wording.instructions_for(own_prompts()[name]) for name in sorted(ANSWERING)]
        assert told == [label in CLAIMS[task]] * len(ANSWERING)
        assert (label in wording.answer_form) is (label in CLAIMS[task])
    assert {demo.answer for demo in TaskWording.of(task).demos} == CLAIMS[task]


@pytest.mark.parametrize(("task", "demo"), DEMOS, ids=by_id)
class TestDemonstration:
    def test_the_reasoning_ends_with_the_answer(self, task: str, demo: Demonstration) -> None:
        *before, last = demo.reasoning.split("\n")
        if task in LONG:  # what it comes down to; the answer tells it
            assert re.fullmatch(r"So the answer is that .+\.", last)
        else:
            assert last == f"So the answer is {demo.answer}."
        assert before
        assert all(before)

    def test_the_answer_follows_from_the_knowledge(self, task: str, demo: Demonstration) -> None:
        # A demonstration that answered from memory would teach the model to.
        if is_word_of_the_knowledge(task, demo):
            assert any(demo.answer in line for line in demo.knowledge)
        if task in LONG:
            assert overlap(tokens(demo.answer), tokens(" ".join([*demo.knowledge, demo.reasoning]))).precision > 0.5


def questions_in(folder: Path) -> Iterator[tuple[str, str]]:
    """(file, question) of every row of every question set there."""
    for path in sorted(folder.glob("*/*.jsonl.gz")):
        if path.parent.name == "corpus":
            continue
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                yield path.name, json.loads(line).get("question") or ""


def test_no_demonstration_is_a_question_of_the_data(shared_data: Path) -> None:
    """Nor the same words in another spelling."""
    ours = {normalize_answer(demo.question) for _, demo in DEMOS}
    read = 0
    for name, question in questions_in(shared_data):
        read += 1
        assert normalize_answer(question) not in ours, f"{name}: {question}"
    assert read > 5_000


class TestNames:
    @pytest.mark.parametrize("task", PROGRAMS)
    def test_blendfilters_state_is_keyed_by_these_names(self, task: str) -> None:
        module = BlendFilter(nothing, task=task)
        assert {name: list(each.signature.fields) for name, each in module.named_predictors()} == BLENDFILTER
        assert set(module.dump_state()) == set(BLENDFILTER)

    def test_baselines_too(self) -> None:
        modules = {
            "direct": Direct(),
            "direct-retrieval": Direct(nothing),
            "cot": ChainOfThought(),
            "cot-retrieval": ChainOfThought(nothing),
            "iter-retgen": IterRetGen(nothing),
            "self-consistency": SelfConsistency(nothing),
            "self-ask": SelfAsk(nothing),
            "react": ReAct(nothing),
            "react, thought-action": ReAct(nothing, style="thought-action"),
            "ralm": RALM(nothing),
            "ralm, rewrite": RALM(nothing, rewrite=True),
            "filco": FilCoFilter(),
            "cdit": CDITFilter("word"),
            "cdit-components": CDITFilter("components"),
        }
        names = {
            kind: {name: list(each.signature.fields) for name, each in module.named_predictors()}
            for kind, module in modules.items()
        }
        short = {"answering.short_answer": ["context", "question", "answer"]}
        over_knowledge = {"answering.answer": ["knowledge", "question", "reasoning"], **short}
        last = {"short_answer": ["context", "question", "answer"]}
        assert names == {
            "direct": {"direct": ["question", "answer"]},
            "direct-retrieval": {"direct": ["knowledge", "question", "answer"]},
            "cot": {"answering.answer": ["question", "reasoning"], **short},
            "cot-retrieval": over_knowledge,
            "iter-retgen": over_knowledge,
            "self-consistency": over_knowledge,
            "self-ask": {"step": ["knowledge", "question", "transcript", "step"], **last},
            "react": {"step": ["question", "transcript", "step"], **last},
            "react, thought-action": {"step": ["question", "trajectory", "step"], **last},
            "ralm": {"respond": ["knowledge", "question", "answer"]},
            "ralm, rewrite": {"respond": ["knowledge", "question", "passage", "answer"]},
            "filco": {name: ["offer_none", "knowledge", "question", "ids"] for name in ("helpful", "ids_again")},
            "cdit": {"judge.consistent": ["rules", "passage", "question", "verdict"]},
            "cdit-components": {"judge.consistent": ["rules", "passage", "question", "comparison"]},
        }

    def test_stages_of_the_journal_are_the_last_part_of_the_path(self) -> None:
        for make in (BlendFilter, Direct, ChainOfThought, SelfAsk, ReAct, RALM):
            module = make(nothing)
            assert all(each.name == path.rpartition(".")[2] for path, each in module.named_predictors())
