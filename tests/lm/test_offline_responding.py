"""The offline reader on prompts with a background, on options and on claims that are true or false."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.lm.offline import read
from blendfilter.metrics import LABELS, accuracy, choice
from blendfilter.modules.direct import ChainOfThought, Direct
from blendfilter.modules.ralm import RALM
from blendfilter.modules.react import ReAct

PIER = "Orm Pier | Orm Pier is an iron pier in Ormskerry, designed by Hanna Vell. It opened in 1890."
LIGHT = "Orm Light | Orm Light flashes twice, so that ships know it."
FLOATS = "What is Orm Pier made of? (A) slate (B) glass (C) iron (D) pine"


def nothing(query: str, k: int) -> list[str]:
    return []


def responding(task: str, question: str, *lines: str, beside: str | None = None) -> str:
    ask = RALM(nothing, task=task, rewrite=beside is not None).respond
    return ask.render(knowledge=list(lines), question=question, **({} if beside is None else {"passage": beside}))


@pytest.mark.parametrize("beside", [None, PIER])
def test_a_background_is_read_and_answered_from(beside: str | None) -> None:
    assert read(responding("popqa", "When did Orm Pier open?", LIGHT, PIER, beside=beside)) == "1890"
    assert read(responding("strategyqa", "Did Orm Pier open in 1890?", PIER, LIGHT)) == "Yes"
    assert read(responding("popqa", "When did Orm Pier open?")) == "unknown"


def test_of_several_blocks_the_last_one_counts() -> None:
    ask = RALM(nothing, task="popqa").respond
    ask.demos = [{"knowledge": [LIGHT], "question": "How often does Orm Light flash?", "answer": "twice"}]
    assert read(ask.render(knowledge=[PIER], question="Who designed Orm Pier?")) == "Hanna Vell"


def test_an_option_is_chosen_by_its_letter_in_every_kind_of_prompt() -> None:
    direct = Direct(nothing, task="arc").direct.render(knowledge=[LIGHT, PIER], question=FLOATS)
    thinking = ChainOfThought(nothing, task="arc").answering
    step = ReAct(nothing, task="arc").step.render(
        question=FLOATS, transcript=["Are follow-up questions needed here: Yes.", "Follow-up: What is it made of?",
                                     "Knowledge:", PIER, "So the final answer is:"],
    )  # fmt: skip
    assert read(responding("arc", FLOATS, LIGHT, PIER)) == read(direct) == read(step) == "C"
    reasoned = read(thinking.answer.render(knowledge=[LIGHT, PIER], question=FLOATS))
    assert reasoned.endswith("So the answer is C.")
    assert read(thinking.short_answer.render(context=reasoned, question=FLOATS)) == "C"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["Ada Orm | Ada Orm was an island beekeeper and pilot, born at Tolm."], "island beekeeper and pilot"),
        (["Ada Orm | Ada Orm (1850-1911) is the keeper of a light. She was a pilot."], "keeper"),
        (["Ada Orm | She lived at Tolm."], "Tolm"),
        ([], "unknown"),
    ],
)
def test_an_occupation_is_what_somebody_is_said_to_be(lines: list[str], said: str) -> None:
    assert read(responding("popqa", "What is Ada Orm's occupation?", *lines)) == said


@pytest.mark.parametrize(
    ("claim", "said"),
    [("Orm Pier opened in 1890.", "true"), ("Orm Pier opened in 1871.", "false")],
)
def test_a_claim_is_true_or_false(claim: str, said: str) -> None:
    assert read(responding("pubhealth", claim, LIGHT, PIER)) == said
    thinking = ChainOfThought(nothing, task="pubhealth").answering
    reasoned = read(thinking.answer.render(knowledge=[LIGHT, PIER], question=claim))
    assert reasoned.endswith(f"So the answer is {said}.")
    assert read(thinking.short_answer.render(context=reasoned, question=claim)) == said


@pytest.mark.parametrize("task", ["fever", "fever-nei"])
def test_other_claims_keep_their_labels(task: str) -> None:
    assert read(responding(task, "Orm Pier opened in 1890.", PIER)) == LABELS[0]
    assert read(responding(task, "Orm Pier opened in 1871.", PIER)) == LABELS[1]


@pytest.mark.parametrize("task", ["eli5", "wow"])
def test_sentences_are_answered_where_they_are_wanted(task: str) -> None:
    assert read(responding(task, "Why does Orm Light flash twice?", PIER, LIGHT)) == LIGHT.partition(" | ")[2]


@given(st.lists(st.text(max_size=30), max_size=4), st.text(max_size=40))
def test_whatever_stands_there_it_replies_in_the_tasks_shape(lines: list[str], question: str) -> None:
    assert choice(read(responding("arc", f"{question} (A) x (B) y", *lines))) in ("A", "B")
    said = read(responding("pubhealth", question, *lines))
    assert accuracy(said, ["true"]) + accuracy(said, ["false"]) == 1.0


@given(st.text())
def test_any_text_above_the_cue_is_read(text: str) -> None:
    assert read(f"{text}\n### Response:")
