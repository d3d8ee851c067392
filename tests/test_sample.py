"""The invented Ondrell Isles that ship with the package: passages and questions agree, and nothing real slips in."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import blendfilter
from blendfilter.text import tokens

SAMPLE = Path(blendfilter.__file__).parent / "sample"
METADATA_KEYS = {"type", "level", "supporting_facts", "gold_titles", "context", "split", "source"}

REAL_PLACES = re.findall(
    r"\w+",
    """
    Africa America Amsterdam Arctic Argentina Asia Atlantic Athens Australia Austria Baltic Beijing
    Belgium Berlin Boston Brazil Britain Brussels Cairo Canada Chicago China Copenhagen Cornwall Denmark
    Dublin Edinburgh Egypt England English Europe Finland France French German Germany Glasgow Greece
    Greek Hebrides Iceland India Ireland Irish Italian Italy Japan Latin Lisbon Liverpool London Madrid
    Mediterranean Mexico Moscow Netherlands Norway Orkney Oslo Pacific Paris Poland Portugal Prague
    Roman Rome Russia Scotland Scottish Shetland Spain Spanish Stockholm Sweden Switzerland Tokyo Turkey
    Ukraine Venice Vienna Vietnam Wales Washington York
    """,
)


def rows(name: str) -> list[dict[str, Any]]:
    lines = (SAMPLE / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?])\s+", text)


OTHERS = ("claims.jsonl", "dialogues.jsonl", "long.jsonl")
CHECKED = ("health.jsonl", "science.jsonl")
CORPUS = rows("corpus.jsonl")
QUESTIONS = rows("questions.jsonl")
TEXTS = {row["title"]: row["text"] for row in CORPUS}
each_question = pytest.mark.parametrize("row", QUESTIONS, ids=lambda row: row["id"])


def supported(row: dict[str, Any], reach: int) -> str:
    """The row's supporting sentences and `reach` neighbours on either side, as one text."""
    found = []
    for title, at in row["metadata"]["supporting_facts"]:
        parts = sentences(TEXTS[title])
        found.extend(parts[max(0, at - reach) : at + reach + 1])
    return "\n".join(found).casefold()


def test_the_corpus_is_large_enough_and_its_ids_and_titles_are_unique() -> None:
    assert len(CORPUS) >= 160
    assert [row["id"] for row in CORPUS] == [f"sw-{i:03d}" for i in range(len(CORPUS))]
    assert len(TEXTS) == len(CORPUS)
    assert len({row["text"] for row in CORPUS}) == len(CORPUS)


def test_a_passage_is_two_to_four_sentences_of_at_most_ninety_words() -> None:
    for row in CORPUS:
        assert set(row) == {"id", "title", "text"}
        assert row["text"] == " ".join(row["text"].split()), row["id"]
        assert 2 <= len(sentences(row["text"])) <= 4, row["id"]
        assert 35 <= len(row["text"].split()) <= 90, row["id"]


def test_a_text_does_not_open_with_its_title_as_a_header() -> None:
    for row in CORPUS:
        assert not re.match(re.escape(row["title"]) + r"\s*[|:\n.]", row["text"]), row["id"]


def test_every_sentence_ends_and_begins_like_one() -> None:
    """No abbreviation or initial that would split a sentence in the middle."""
    for row in CORPUS:
        for sentence in sentences(row["text"]):
            assert sentence[0].isupper(), sentence
            assert sentence.endswith("."), sentence
            assert len(sentence.split()) >= 4, sentence


def test_namesakes_are_there_to_be_confused() -> None:
    plain = Counter(re.sub(r" \(.*\)$", "", title) for title in TEXTS)
    assert sum(n > 1 for n in plain.values()) >= 6
    assert {"Tarn Veil", "Tarn Veil (novel)", "Tarn Veil (ship)", "Tarn Veil (film)"} <= set(TEXTS)


@pytest.mark.parametrize("name", ["corpus.jsonl", "questions.jsonl", "opposites.jsonl", *OTHERS, *CHECKED])
def test_nothing_of_the_wider_world_is_named(name: str) -> None:
    words = set(re.findall(r"\w+", (SAMPLE / name).read_text(encoding="utf-8")))
    assert words.isdisjoint(REAL_PLACES)


def test_opposites_are_told_of_things_in_the_corpus() -> None:
    """Small facts of their own, under its titles: no question of another file is asked again."""
    pairs = rows("opposites.jsonl")
    assert {row["title"] for row in pairs} <= set(TEXTS)
    asked = {row["question"].casefold() for name in ("questions.jsonl", *OTHERS, *CHECKED) for row in rows(name)}
    assert asked.isdisjoint(row["question"].casefold() for row in pairs)


def test_there_are_enough_questions_of_every_kind() -> None:
    kinds = Counter(row["metadata"]["type"] for row in QUESTIONS)
    assert len(QUESTIONS) >= 66
    assert set(kinds) == {"bridge", "comparison", "yes_no"}
    assert kinds["bridge"] >= 36
    assert kinds["comparison"] >= 16
    assert kinds["yes_no"] >= 16
    three_hops = [
        row for row in QUESTIONS if row["metadata"]["type"] == "bridge" and len(row["metadata"]["gold_titles"]) >= 3
    ]
    assert len(three_hops) >= 6
    assert {row["metadata"]["level"] for row in QUESTIONS} == {"easy", "medium", "hard"}


def test_question_ids_and_wordings_are_unique() -> None:
    assert [row["id"] for row in QUESTIONS] == [f"sw-q-{i:03d}" for i in range(len(QUESTIONS))]
    assert len({row["question"].casefold() for row in QUESTIONS}) == len(QUESTIONS)


def test_yes_and_no_are_balanced() -> None:
    answers = Counter(row["golden_answers"][0] for row in QUESTIONS if row["metadata"]["type"] == "yes_no")
    assert set(answers) == {"yes", "no"}
    assert abs(answers["yes"] - answers["no"]) <= 1


@each_question
def test_a_question_has_the_fields_of_the_schema(row: dict[str, Any]) -> None:
    assert set(row) == {"id", "question", "golden_answers", "metadata"}
    assert set(row["metadata"]) == METADATA_KEYS
    assert row["question"] == row["question"].strip()
    assert row["question"][-1] in "?."
    assert row["golden_answers"]
    assert len(set(row["golden_answers"])) == len(row["golden_answers"])
    assert row["metadata"]["context"] == []
    assert row["metadata"]["split"] == "sample"
    assert row["metadata"]["source"] == "written for this package"


@each_question
def test_the_evidence_is_in_the_corpus(row: dict[str, Any]) -> None:
    gold, facts = row["metadata"]["gold_titles"], row["metadata"]["supporting_facts"]
    assert len(gold) >= 2
    assert gold == list(dict.fromkeys(title for title, _ in facts))
    for title, at in facts:
        assert 0 <= at < len(sentences(TEXTS[title])), title


@each_question
def test_the_answer_stands_where_the_evidence_says(row: dict[str, Any]) -> None:
    if row["metadata"]["type"] == "yes_no":
        assert row["golden_answers"] in (["yes"], ["no"])
        return
    answer = row["golden_answers"][0]
    assert any(answer in TEXTS[title] for title in row["metadata"]["gold_titles"])
    assert answer.casefold() in supported(row, reach=1)
    if row["metadata"]["type"] == "bridge":
        assert answer.casefold() not in row["question"].casefold()


# claims, dialogues and questions that want sentences


each_other = pytest.mark.parametrize(
    ("name", "row"), [(name, row) for name in OTHERS for row in rows(name)], ids=lambda case: str(case)[:20]
)


def test_there_are_enough_of_each() -> None:
    assert [len(rows(name)) for name in OTHERS] == [24, 10, 10]
    labels = Counter(row["golden_answers"][0] for row in rows("claims.jsonl"))
    assert labels == {"SUPPORTS": 12, "REFUTES": 12}
    ids = [row["id"] for name in OTHERS for row in rows(name)]
    assert ids == [f"sw-{kind}-{at:03d}" for kind, many in (("c", 24), ("d", 10), ("l", 10)) for at in range(many)]
    asked = [row["question"].casefold() for name in ("questions.jsonl", *OTHERS) for row in rows(name)]
    assert len(set(asked)) == len(asked)


def test_labels_do_not_follow_a_pattern_that_a_limit_would_cut_through() -> None:
    """The first ten claims hold both labels, evenly."""
    assert Counter(row["golden_answers"][0] for row in rows("claims.jsonl")[:10]) == {"SUPPORTS": 5, "REFUTES": 5}


@each_other
def test_their_rows_have_the_fields_of_the_schema(name: str, row: dict[str, Any]) -> None:
    assert set(row) == {"id", "question", "golden_answers", "metadata"}
    assert set(row["metadata"]) == METADATA_KEYS
    assert len(row["golden_answers"]) == 1
    assert row["metadata"]["type"] == {"claims": row["golden_answers"][0], "long": "long_form"}.get(
        name[:-6], "dialogue"
    )
    assert row["metadata"]["gold_titles"] == list(
        dict.fromkeys(title for title, _ in row["metadata"]["supporting_facts"])
    )
    for turn in row["question"].split("\n"):
        assert turn == turn.strip()
        assert turn[-1] in "?.!"
    assert row["question"][-1] in {"claims.jsonl": ".", "long.jsonl": "?"}.get(name, "?.!")


@each_other
def test_their_evidence_is_in_the_corpus_and_speaks_of_them(name: str, row: dict[str, Any]) -> None:
    """Sentences that are there; what an answer says is in them and their neighbours, in other words at the most."""
    for title, at in row["metadata"]["supporting_facts"]:
        assert 0 <= at < len(sentences(TEXTS[title])), title
    shown = set(tokens(" ".join([*row["metadata"]["gold_titles"], supported(row, reach=1)])))
    if name == "claims.jsonl":
        assert set(tokens(row["question"])) & shown
        return
    said = [word for word in tokens(row["golden_answers"][0]) if len(word) > 3]
    assert sum(word in shown for word in said) / len(said) > 0.6


@each_other
def test_numbers_and_names_of_an_answer_are_those_of_the_corpus(name: str, row: dict[str, Any]) -> None:
    if name == "claims.jsonl":
        return
    shown = supported(row, reach=2) + " ".join(row["metadata"]["gold_titles"] + [row["question"]]).casefold()
    told = re.findall(r"(?<=[a-z,] )[A-Z]\w+|\d+", row["golden_answers"][0])
    assert all(each.casefold() in shown for each in told), told


# claims about health, and questions of choice


def test_there_are_enough_of_these_too_and_their_answers_are_evenly_spread() -> None:
    health, science = (rows(name) for name in CHECKED)
    for kind, found in (("h", health), ("s", science)):
        assert [row["id"] for row in found] == [f"sw-{kind}-{at:03d}" for at in range(12)]
    assert Counter(row["golden_answers"][0] for row in health) == {"true": 6, "false": 6}
    letters = Counter(row["golden_answers"][0] for row in science)
    assert set(letters) == set("ABCD")
    assert max(letters.values()) <= 4
    assert {len(row["metadata"]["choices"]) for row in science} == {3, 4, 5}
    asked = [row["question"].casefold() for name in ("claims.jsonl", *CHECKED) for row in rows(name)]
    assert len(set(asked)) == len(asked)


@pytest.mark.parametrize("row", [row for name in CHECKED for row in rows(name)], ids=lambda row: row["id"])
def test_their_evidence_decides_them(row: dict[str, Any]) -> None:
    """A claim speaks of its evidence; of the options the right one alone stands in it, in other words at the most."""
    meta = row["metadata"]
    assert set(meta) - {"choices", "answer_text"} == METADATA_KEYS
    assert meta["gold_titles"] == list(dict.fromkeys(title for title, _ in meta["supporting_facts"]))
    assert row["question"][-1] == ("?" if "choices" in meta else ".")
    assert (meta["context"], meta["split"], meta["source"]) == ([], "sample", "written for this package")
    for title, at in meta["supporting_facts"]:
        assert 0 <= at < len(sentences(TEXTS[title])), title
    shown = set(tokens(" ".join([*meta["gold_titles"], supported(row, reach=0)])))
    if "choices" not in meta:
        assert len(set(tokens(row["question"])) & shown) >= 2
        return
    asked = set(tokens(row["question"]))
    held = {one["label"]: len(set(tokens(one["text"])) & shown - asked) for one in meta["choices"]}
    (answer,) = row["golden_answers"]
    assert [one["text"] for one in meta["choices"] if one["label"] == answer] == [meta["answer_text"]]
    assert held[answer] == max(held.values())
