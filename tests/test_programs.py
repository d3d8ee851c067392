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
from blendfilter.asking import Demonstration, Wording
from blendfilter.metrics import metric
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.direct import ChainOfThought, Direct
from blendfilter.modules.hops import read_hop
from blendfilter.modules.iter_retgen import IterRetGen
from blendfilter.modules.react import ReAct
from blendfilter.modules.self_ask import SelfAsk
from blendfilter.modules.self_consistency import SelfConsistency
from blendfilter.prompting import SHARED, own_prompts
from blendfilter.tasks.loading import TASKS as KNOWN
from blendfilter.text import normalize_answer

PROGRAMS = sorted(path.parent.name for path in resources.programs().glob("*/default.json"))
DEMOS = [(task, demo) for task in PROGRAMS for demo in Wording.of(task).demos]

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


def named_in(text: str) -> list[str]:
    """Names and numbers, without the words that open a sentence."""
    openers = {"About", "Do", "From", "How", "In", "Many", "The", "What", "When", "Where", "Which", "Who"}
    return [word for word in re.findall(r"\b[A-Z]\w+|\d+", text) if word not in openers]


def by_id(case: object) -> str:
    return case.question[:40] if isinstance(case, Demonstration) else str(case)


def test_the_programs_are_those_of_the_tasks() -> None:
    assert sorted(TASKS) == PROGRAMS
    assert {task.wording for task in KNOWN.values()} <= set(PROGRAMS)


@pytest.mark.parametrize("task", PROGRAMS)
def test_three_demonstrations_each(task: str) -> None:
    wording = Wording.of(task)
    assert len(wording.demos) == 3
    assert len({demo.question for demo in wording.demos}) == 3


@pytest.mark.parametrize("task", PROGRAMS)
def test_instructions_are_of_templates_that_exist(task: str) -> None:
    wording = Wording.of(task)
    assert set(wording.instructions) <= {*own_prompts().names, *SHARED}
    assert all(words.strip() == words and words for words in wording.instructions.values())


def test_switches_are_the_papers() -> None:
    assert {task: (Wording.of(task).offer_none, Wording.of(task).ask_topic) for task in PROGRAMS} == {
        "hotpotqa": (False, True),
        "twowiki": (False, True),
        "strategyqa": (True, False),
    }


@pytest.mark.parametrize(("task", "demo"), DEMOS, ids=by_id)
class TestDemonstration:
    def test_the_reasoning_ends_with_the_answer(self, task: str, demo: Demonstration) -> None:
        *before, last = demo.reasoning.split("\n")
        assert last == f"So the answer is {demo.answer}."
        assert before
        assert all(before)

    def test_every_slot_is_filled_on_lines_of_its_own(self, task: str, demo: Demonstration) -> None:
        assert all(slot.strip() == slot for slot in (demo.question, demo.reasoning, demo.answer, *demo.knowledge))
        assert "\n" not in demo.question
        assert len(demo.knowledge) >= 2
        for line in demo.knowledge:
            assert re.fullmatch(r"[^|\n]+ \| [^|\n]+", line)

    def test_the_answer_is_of_the_tasks_kind(self, task: str, demo: Demonstration) -> None:
        if task == "strategyqa":
            assert demo.answer in ("Yes", "No")
        else:
            assert len(demo.answer.split()) <= 5

    def test_the_answer_follows_from_the_knowledge(self, task: str, demo: Demonstration) -> None:
        # A demonstration that answered from memory would teach the model to.
        if demo.answer.lower() not in ("yes", "no"):
            assert any(demo.answer in line for line in demo.knowledge)
        named = set(re.findall(r"\b[A-Z]\w+ [A-Z]\w+\b", demo.reasoning))
        shown = " ".join([*demo.knowledge, demo.question])
        assert all(name in shown for name in named), named

    def test_its_hops_lead_to_the_answer_over_the_same_knowledge(self, task: str, demo: Demonstration) -> None:
        found = [number for hop in demo.hops for number in hop.knowledge]
        assert sorted(found) == list(range(len(demo.knowledge)))
        for hop in demo.hops:
            assert hop.follow_up.endswith("?")
            assert read_hop(f"x\nFollow-up: {hop.follow_up}").follow_up == hop.follow_up
            # Answerable: what follow-up and answer name is in what is found (Norway as Norwegian).
            shown = " ".join(demo.found(hop))
            assert all(name[:4] in shown for text in (hop.follow_up, hop.answer) for name in named_in(text)), hop

    def test_no_follow_up_is_the_question_itself(self, task: str, demo: Demonstration) -> None:
        assert all(normalize_answer(hop.follow_up) != normalize_answer(demo.question) for hop in demo.hops)
        if demo.answer.lower() not in ("yes", "no"):
            told = " ".join([demo.question, *(hop.answer for hop in demo.hops)])
            assert demo.answer in told

    def test_it_scores_as_right(self, task: str, demo: Demonstration) -> None:
        assert metric("em")(demo.answer, (demo.answer,)) == 1.0


@pytest.mark.parametrize("task", PROGRAMS)
def test_one_demonstration_at_least_has_two_hops(task: str) -> None:
    assert max(len(demo.hops) for demo in Wording.of(task).demos) >= 2


def test_demonstrations_of_a_task_do_not_all_answer_alike() -> None:
    for task in PROGRAMS:
        assert len({demo.answer for demo in Wording.of(task).demos}) >= 2


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
        }

    def test_stages_of_the_journal_are_the_last_part_of_the_path(self) -> None:
        for module in (BlendFilter(nothing), Direct(), ChainOfThought(nothing), SelfAsk(nothing), ReAct(nothing)):
            assert all(each.name == path.rpartition(".")[2] for path, each in module.named_predictors())
