"""TriviaQA: the official file is one object, aliases are answers, and what metrics cannot tell apart is one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from blendfilter.errors import BadData
from blendfilter.metrics import exact_match
from blendfilter.tasks import load


def trivia(number: int = 417, **answer: Any) -> dict[str, Any]:
    return {
        "Answer": {"Aliases": ["Skerry Rock", "The Skerry", "skerry", "A"], "MatchedWikiEntityName": "Skerry Rock",
                   "NormalizedAliases": ["skerry rock", "skerry", "rock of skerry"], "NormalizedValue": "skerry rock",
                   "Type": "WikipediaEntity", "Value": "Skerry Rock", **answer},
        "EntityPages": [{"DocSource": "TagMe", "Filename": "Skerry_Rock.txt", "Title": "Skerry Rock"}],
        "Question": "Which rock carries the light that Ada Brennock kept?", "QuestionId": f"tc_{number}",
        "QuestionSource": "http://www.example.org/", "SearchResults": [{"Title": "x", "Url": "http://www.example.org/"}],
    }  # fmt: skip


def whole(*rows: Any) -> dict[str, Any]:
    return {"Data": list(rows), "Domain": "Web", "VerifiedEval": False, "Version": 1.0}


def test_value_and_aliases_are_answers_each_spelling_once() -> None:
    (question,) = load("triviaqa", [trivia(HumanAnswers=["the big skerry"])])
    assert question.id == "tc_417"
    assert question.golden_answers == ("Skerry Rock", "The Skerry", "the big skerry", "rock of skerry")
    for answer, right in {"the skerry!": 1.0, "Rock of Skerry": 1.0, "": 0.0}.items():
        assert exact_match(answer, question.golden_answers) == right  # "A" normalises to nothing, and is no answer
    assert question.gold_titles == ()
    assert question.metadata == {"QuestionSource": "http://www.example.org/"}


def test_the_hubs_fields_are_in_lower_case() -> None:
    row = {"question": "Which rock?", "question_id": "tc_1", "question_source": "x", "entity_pages": {"title": []},
           "search_results": {},
           "answer": {"aliases": ["Skerry"], "normalized_aliases": ["skerry"], "value": "Skerry Rock",
                      "normalized_value": "skerry rock", "type": "WikipediaEntity"}}  # fmt: skip
    (question,) = load("triviaqa", [row])
    assert (question.id, question.golden_answers) == ("tc_1", ("Skerry Rock", "Skerry"))
    assert question.metadata == {"question_source": "x"}


@pytest.mark.parametrize("indent", [None, 4])
@pytest.mark.parametrize("pack", [False, True])
def test_the_official_file(tmp_path: Path, indent: int | None, pack: bool) -> None:
    path = tmp_path / "unfiltered-web-dev.json"
    data = json.dumps(whole(trivia(1), trivia(2), trivia(3)), indent=indent).encode()
    path.write_bytes(gzip.compress(data) if pack else data)
    assert [one.id for one in load("triviaqa", path)] == ["tc_1", "tc_2", "tc_3"]
    assert len(load("triviaqa", path, limit=2)) == 2


def test_plain_fields_may_stand_before_the_data(tmp_path: Path) -> None:
    rest = {"Version": 1.0, "Domain": "Web", "VerifiedEval": False}
    (tmp_path / "dev.json").write_text(json.dumps({**rest, "Data": [trivia()]}, indent=1))
    assert len(load("triviaqa", tmp_path / "dev.json")) == 1


def test_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "dev.json"
    text = json.dumps(whole(trivia(1), trivia(2)), indent=4)
    path.write_text(text[: text.index("tc_2")])
    with pytest.raises(BadData, match=r"dev\.json: the JSON list ends in item 2.*cut off"):
        load("triviaqa", path)
    path.write_text(json.dumps(whole(trivia(1), {"Question": "Who?", "QuestionId": "tc_9"})))
    with pytest.raises(BadData, match=r"dev\.json, item 2: field 'answer' is missing"):
        load("triviaqa", path)
    path.write_text(json.dumps(whole(trivia(Value="The", Aliases=[], NormalizedAliases=[]))))
    with pytest.raises(BadData, match=r"item 1: has no answer"):
        load("triviaqa", path)
