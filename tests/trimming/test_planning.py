"""What is judged and what is reused, planned by vector: each question is encoded once, with others beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blendfilter.retrieval.encoders import Encoded, Encoder
from blendfilter.trimming import gathering
from blendfilter.trimming.gathering import COMPARING, ENCODING, plan_questions
from blendfilter.trimming.similar import ByVector, ByWords
from blendfilter.trimming.witnesses import NO_JUDGE, JudgedQuestion, question_id


class Letters(Encoder):
    """A text's vector counts its letters. Remembers what it was given."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.dimension, self.identity = 26, "letters"

    def encode_queries(self, queries: Sequence[str]) -> Encoded:
        self.asked.append(list(queries))
        rows = [[text.lower().count(chr(97 + at)) for at in range(26)] for text in queries]
        return Encoded(np.array(rows, dtype=np.float32), [False] * len(rows))


QUESTIONS = ["Who ran the mill?", "The mill, who ran?", "Who saw a fox?", "Who ran the mill?", "Which king slept here?"]


def test_each_question_is_encoded_once_and_many_at_once(monkeypatch: Any) -> None:
    monkeypatch.setattr(gathering, "_ENCODED_TOGETHER", 3)
    encoder, told = Letters(), []
    known = "Mill: who ran the?"
    judged = {question_id(known): JudgedQuestion(question_id(known), known, (), (), (), NO_JUDGE, "")}
    turns = plan_questions(QUESTIONS, judged, ByVector(encoder), 0.99, progress=lambda *step: told.append(step))
    assert encoder.asked == [[QUESTIONS[0], QUESTIONS[1], QUESTIONS[2]], [QUESTIONS[4]], [known]]
    assert [turn.kind for turn in turns] == ["reuse", "reuse", "judge", "reuse", "judge"]
    assert {turn.source for turn in turns if turn.kind == "reuse"} == {question_id(known)}
    assert told[:2] == [(ENCODING, 3, 4), (ENCODING, 4, 4)]
    assert told[-1] == (COMPARING, 5, 5)


def test_the_plan_is_that_of_one_question_at_a_time(monkeypatch: Any) -> None:
    plans = []
    for at_once in (1, 256):
        monkeypatch.setattr(gathering, "_ENCODED_TOGETHER", at_once)
        plans.append(plan_questions(QUESTIONS, {}, ByVector(Letters()), 0.99))
    assert plans[0] == plans[1]
    assert [turn.kind for turn in plans[0]] == ["judge", "reuse", "judge", "reuse", "judge"]
    assert plans[0][1].source == plans[0][3].source == question_id(QUESTIONS[0])


def test_the_least_similarity_is_near_enough_itself() -> None:
    """1 takes a question of the same words in another order."""
    turns = plan_questions(["Who turned on the radio?", "Who turned the radio on?"], {}, ByWords(), 1.0)
    assert [turn.kind for turn in turns] == ["judge", "reuse"]
