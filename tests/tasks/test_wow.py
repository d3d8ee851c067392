"""Wizard of Wikipedia: dialogues on one line, from KILT, from the normalised layout and from whole dialogues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.errors import BadData
from blendfilter.records import one_line
from blendfilter.tasks import load
from blendfilter.tasks.wow import BETWEEN, dialogue

TURNS = ["I'd love to live in a lighthouse.", "Would you like the stairs?", "No! Why do they flash?"]
REPLY = "By its rhythm a ship knows which one it is."


def whole(**changed: Any) -> dict[str, Any]:
    def wizard(text: str, **more: Any) -> dict[str, Any]:
        return {"speaker": "1_Wizard", "text": text, "retrieved_passages": [], "retrieved_topics": [], **more}

    def apprentice(text: str, *passages: dict[str, list[str]]) -> dict[str, Any]:
        return {"speaker": "0_Apprentice", "text": text, "retrieved_passages": list(passages), "retrieved_topics": []}

    return {
        "chosen_topic": "Lighthouse",
        "chosen_topic_passage": ["A lighthouse is a tower with a lamp.", "It guides ships."],
        "persona": "x",
        "wizard_eval": 5,
        "dialog": [
            apprentice(TURNS[0], {"Staircase": ["Stairs have steps.", "They may be many."]}),
            wizard(TURNS[1], checked_sentence={"self_Staircase_1": "They may be many."},
                   checked_passage={"self_Staircase_1": "Staircase"}),
            apprentice(TURNS[2], {"Light characteristic": ["Each light has a rhythm."]}, {"Staircase": ["Other."]}),
            wizard(REPLY, checked_sentence={"partner_Light_characteristic_0": "Each light has a rhythm."},
                   checked_passage={}),
            apprentice("Ah."),
            wizard("Goodbye!", checked_sentence={"no_passages_used": "no_passages_used"},
                   checked_passage={"no_passages_used": "no_passages_used"}),
        ],
        **changed,
    }  # fmt: skip


def of_file(tmp_path: Path, *dialogues: dict[str, Any]) -> Any:
    (tmp_path / "valid_random_split.json").write_text(json.dumps(list(dialogues)))
    return load("wow", tmp_path / "valid_random_split.json")


def test_kilts_turns_stand_on_one_line_and_stay_apart() -> None:
    output = [{"answer": REPLY, "provenance": [{"title": "Lighthouse"}]}]
    row = {"id": "w", "input": "\n".join(TURNS), "output": output}
    (question,) = load("wow", [row])
    assert question.question == " // ".join(TURNS) == one_line(question.question)
    assert question.question.split(BETWEEN) == TURNS
    assert (question.golden_answers, question.gold_titles) == ((REPLY,), ("Lighthouse",))


@given(st.lists(st.text(), max_size=5))
def test_turns_come_back(turns: list[str]) -> None:
    line = dialogue(turns)
    assert line == one_line(line)
    kept = [one_line(turn) for turn in turns if one_line(turn)]
    assert len(line.split(BETWEEN)) == max(1, len(kept))
    if not any("//" in turn for turn in kept):
        assert line.split(BETWEEN) == (kept or [""])


def test_a_whole_dialogue_is_a_question_for_each_turn_of_its_wizard(tmp_path: Path) -> None:
    questions = of_file(tmp_path, whole())
    assert [one.id for one in questions] == ["0-1", "0-3", "0-5"]
    assert [one.question.split(BETWEEN) for one in questions] == [TURNS[:1], TURNS, [*TURNS, REPLY, "Ah."]]
    assert [one.golden_answers for one in questions] == [(TURNS[1],), (REPLY,), ("Goodbye!",)]
    assert [one.gold_titles for one in questions] == [("Staircase",), ("Light characteristic",), ()]
    assert questions[1].metadata == {"topic": "Lighthouse", "checked_sentence": "Each light has a rhythm."}


def test_damage_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"item 2: field 'chosen_topic' is missing"):
        of_file(tmp_path, whole(), {"dialog": []})
    problem = whole()
    del problem["dialog"][2]["text"]
    with pytest.raises(BadData, match=r"item 1: field 'dialog\.2\.text' is missing"):
        of_file(tmp_path, problem)
