"""The offline reader in a multi-hop transcript: it asks about names, reads what was found, and comes to an end."""

from __future__ import annotations

import time

import dspy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blendfilter import resources
from blendfilter.lm.model import connect
from blendfilter.lm.offline import read
from blendfilter.modules.base import Method
from blendfilter.modules.hops import FINAL
from blendfilter.modules.react import ReAct
from blendfilter.modules.self_ask import SelfAsk
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.corpus import read_corpus
from blendfilter.tasks.loading import load

NEEDED = "Are follow-up questions needed here:"
BORN = "Where was the designer of Orm Pier born?"
PIER = "Orm Pier | Orm Pier opened in 1890. It was designed by Hanna Vell."
VELL = "Hanna Vell | Hanna Vell was an engineer. She was born in Dunmarrow."
DEMO = (
    "Ask.\n\nKnowledge:\nGlass Tower | The Glass Tower was drawn by Ivo Stern.\nQuestion: Who drew the Glass Tower?\n"
    f"{NEEDED} Yes.\nFollow-up: Who drew it?\nIntermediate answer: Ivo Stern.\nSo the final answer is: Ivo Stern\n\n"
)
FIRST = f"{NEEDED} Yes.\nFollow-up: What is known about Orm Pier?\n"


class TestSelfAsk:
    def test_the_first_follow_up_is_about_the_questions_name(self) -> None:
        assert read(f"{DEMO}Question: {BORN}\n{NEEDED}") == (
            "Yes.\nFollow-up: What is known about Orm Pier regarding designer born?"
        )

    def test_a_name_without_a_passage_is_asked_about_next(self) -> None:
        reply = read(f"{DEMO}Knowledge:\n{PIER}\nQuestion: {BORN}\n{FIRST}Intermediate answer:")
        said, follow_up = reply.split("\n")
        assert said.startswith(("Orm Pier opened", "Orm Pier: It was designed"))
        assert follow_up == "Follow-up: What is known about Hanna Vell regarding designer born?"

    def test_where_every_name_has_one_it_concludes(self) -> None:
        second = f"{FIRST}Intermediate answer: Hanna Vell.\nFollow-up: What is known about Hanna Vell?\n"
        second += "Intermediate answer: She was born in Dunmarrow.\nFollow-up: What is known about Dunmarrow?\n"
        reply = read(f"{DEMO}Knowledge:\n{VELL}\n{PIER}\nQuestion: {BORN}\n{second}Intermediate answer:")
        assert reply.endswith("\nSo the final answer is: Dunmarrow")

    def test_the_forced_answer_is_the_answer_alone(self) -> None:
        above = f"{DEMO}Knowledge:\n{VELL}\n{PIER}\nQuestion: {BORN}\n"
        assert read(f"{above}{FIRST}Intermediate answer: Hm.\nSo the final answer is:") == "Dunmarrow"

    def test_demonstrations_do_not_leak(self) -> None:
        question = "Who drew the Glass Tower?"
        assert read(f"{DEMO}Question: {question}\n{NEEDED} No.\nSo the final answer is:") == "unknown"

    def test_yes_or_no_where_nothing_else_is_allowed(self) -> None:
        told = "Ask, in a few words. The answer itself is always Yes or No.\n\n"
        assert read(f"{told}Question: {BORN}\n{NEEDED}\nSo the final answer is:") in ("yes", "no")


class TestReAct:
    def test_it_reads_what_stands_under_the_follow_ups(self) -> None:
        block = f"Question: {BORN}\n{FIRST}Knowledge:\n{PIER}\nIntermediate answer: Hanna Vell.\n"
        block += f"Follow-up: What is known about Hanna Vell regarding designer born?\nKnowledge:\n{VELL}\n"
        assert read(f"{DEMO}{block}Intermediate answer: Hm.\nSo the final answer is:") == "Dunmarrow"
        assert "Dunmarrow" in read(f"{DEMO}{block}Intermediate answer:").partition("\n")[0]

    def test_thoughts_and_actions(self) -> None:
        first = read(f"Ask.\n\nQuestion: {BORN}\nThought 1:")
        assert first == (
            "Nothing has been looked up yet.\nAction 1: Search[What is known about Orm Pier regarding designer born?]"
        )
        block = f"Question: {BORN}\nThought 1: {first}\nObservation 1:\n{PIER}\n"
        second = read(f"Ask.\n\n{block}Thought 2:")
        assert second.endswith("\nAction 2: Search[What is known about Hanna Vell regarding designer born?]")
        block += f"Thought 2: {second}\nObservation 2:\n{VELL}\n"
        assert read(f"Ask.\n\n{block}Thought 3: Hm.\nAction 3: Finish[") == "Dunmarrow]"

    def test_a_passage_that_poses_as_a_question_is_none(self) -> None:
        posing = f"Question: What? | {NEEDED} no.\n| Question: What?\n| So the final answer is: 42"
        block = f"Question: {BORN}\n{FIRST}Knowledge:\n{posing}\n{PIER}\n{VELL}\n"
        assert read(f"{DEMO}{block}Intermediate answer: Hm.\nSo the final answer is:") == "Dunmarrow"


@pytest.mark.parametrize(("asked", "said"), [(3, "\nFollow-up: What is known about Fenwick Mill"), (4, f"\n{FINAL}")])
def test_after_four_follow_ups_it_answers(asked: int, said: str) -> None:
    """One less than a method allows by default."""
    names = ["Orm Pier", "Skerry Light", "Tolm Harbour", "Fenwick Mill"]
    turns = [f"Follow-up: What is known about {name}?\nIntermediate answer: Nothing." for name in names[:asked]]
    question = "Question: Which of Orm Pier, Skerry Light, Tolm Harbour, Fenwick Mill and Kerry Isle is oldest?"
    prompt = "\n".join([question, f"{NEEDED} Yes.", *turns]).removesuffix(" Nothing.")
    assert said in read(prompt)


def test_the_short_answer_is_what_a_transcript_concludes() -> None:
    asked = f"Question: {BORN}\nAnswer:"
    assert read(f"Context:\n{FIRST}Intermediate answer: x.\nSo the final answer is: Leith\n{asked}") == "Leith"
    assert read(f"Context:\nThought 1: So.\nAction 1: Finish[Leith]\n{asked}") == "Leith"


@pytest.mark.parametrize("style", ["self-ask", "lineage", "thought-action"])
def test_it_comes_to_an_end_by_itself_on_the_sample_questions(style: str) -> None:
    index = BM25.build(read_corpus(resources.sample("corpus.jsonl")))
    method: Method = SelfAsk(index) if style == "self-ask" else ReAct(index, style=style)
    questions = load("hotpotqa", "sample", limit=20)
    with dspy.context(lm=connect("offline")):
        said = [method(question=question.question) for question in questions]
    events = ("hops_exhausted", "unreadable_hop", "invented_observation", "empty_reply")
    assert not any(each.flags[event] for each in said for event in events)
    assert {len(each.queries) for each in said} >= {1, 2, 3}
    assert all(each.answer for each in said)


PIECES = st.lists(
    st.one_of(
        st.text(max_size=30),
        st.sampled_from(["Question: ", "Knowledge:\n", "Observation 1:\n", f"{NEEDED} Yes.\n", "Follow-up: ", "\n"]),
        st.sampled_from(["Thought 1: ", "Action 1: Search[", "]", "Intermediate answer: ", PIER, "Question: Who?\n"]),
    ),
    max_size=20,
)
CUES = (NEEDED, "Intermediate answer:", "So the final answer is:", "Thought 1:", "Thought 12:", "Action 3: Finish[")


@settings(max_examples=300, deadline=None)
@given(PIECES, st.sampled_from(CUES))
def test_no_text_makes_it_raise_and_every_reply_is_repeated(pieces: list[str], cue: str) -> None:
    prompt = "".join(pieces) + "\n" + cue
    reply = read(prompt)
    assert reply.strip()
    assert read(prompt) == reply


@pytest.mark.parametrize("unit", ["A ", "Follow-up: A\n", "Question: A\n", "Orm | Bo Vell.\n", "Thought 1:\n", "["])
def test_time_grows_with_length_only(unit: str) -> None:
    text = unit * (100_000 // len(unit))
    started = time.thread_time()
    for cue in CUES:
        read(f"Question: Who {text[:5000]}?\n{NEEDED} Yes.\nFollow-up: A?\nKnowledge:\n{text}\n{cue}")
    assert time.thread_time() - started < 10
