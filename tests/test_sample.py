"""The invented Ondrell Isles that ship with the package: passages and questions agree, and nothing real slips in."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import blendfilter
from blendfilter.text import tokens

SAMPLE = Path(blendfilter.__file__).parent / "sample"
METADATA_KEYS = {"type", "level", "supporting_facts", "gold_titles", "context", "split", "source"}
REAL_PLACES = set(
    re.findall(
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
)
KINDS = {"questions": "q", "claims": "c", "dialogues": "d", "long": "l", "health": "h", "science": "s"}


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (SAMPLE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


CORPUS = rows("corpus")
ASKED = {name: rows(name) for name in KINDS}
TEXTS = {row["title"]: row["text"] for row in CORPUS}


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?])\s+", text)


def supported(row: dict[str, Any], reach: int) -> str:
    """The row's supporting sentences and `reach` neighbours on either side, as one text."""
    found = []
    for title, at in row["metadata"]["supporting_facts"]:
        found += sentences(TEXTS[title])[max(0, at - reach) : at + reach + 1]
    return "\n".join(found).casefold()


def answers(name: str) -> Counter[str]:
    return Counter(row["golden_answers"][0] for row in ASKED[name])


def test_passages_are_numbered_unique_and_of_two_to_four_whole_sentences() -> None:
    """No abbreviation or initial splits a sentence in the middle."""
    assert [row["id"] for row in CORPUS] == [f"sw-{i:03d}" for i in range(len(CORPUS))]
    assert len(CORPUS) >= 160
    assert len(TEXTS) == len(set(TEXTS.values())) == len(CORPUS)
    for row in CORPUS:
        assert set(row) == {"id", "title", "text"}
        parts = sentences(row["text"])
        assert 2 <= len(parts) <= 4, row["id"]
        assert all(part[0].isupper() and part.endswith(".") and len(part.split()) >= 4 for part in parts), row["id"]


def test_namesakes_are_there_to_be_confused() -> None:
    assert {"Tarn Veil", "Tarn Veil (novel)", "Tarn Veil (ship)", "Tarn Veil (film)"} <= set(TEXTS)


def test_nothing_of_the_wider_world_is_named() -> None:
    for path in SAMPLE.glob("*.jsonl"):
        assert REAL_PLACES.isdisjoint(re.findall(r"\w+", path.read_text(encoding="utf-8"))), path.name


def test_every_row_has_the_fields_of_the_schema_and_evidence_in_the_corpus() -> None:
    for name, kind in KINDS.items():
        assert [row["id"] for row in ASKED[name]] == [f"sw-{kind}-{at:03d}" for at in range(len(ASKED[name]))]
        for row in ASKED[name]:
            meta = row["metadata"]
            assert set(row) == {"id", "question", "golden_answers", "metadata"}
            assert set(meta) - {"choices", "answer_text"} == METADATA_KEYS
            assert (meta["context"], meta["split"], meta["source"]) == ([], "sample", "written for this package")
            assert len(set(row["golden_answers"])) == len(row["golden_answers"]) > 0
            assert meta["gold_titles"] == list(dict.fromkeys(title for title, _ in meta["supporting_facts"]))
            for title, at in meta["supporting_facts"]:
                assert 0 <= at < len(sentences(TEXTS[title])), title
    wordings = [row["question"].casefold() for name in KINDS for row in ASKED[name]]
    assert len(set(wordings)) == len(wordings)
    assert set(wordings).isdisjoint(row["question"].casefold() for row in rows("opposites"))
    assert {row["title"] for row in rows("opposites")} <= set(TEXTS)


def test_kinds_and_answers_are_balanced() -> None:
    kinds = Counter(row["metadata"]["type"] for row in ASKED["questions"])
    assert kinds["bridge"] >= 36 and min(kinds["comparison"], kinds["yes_no"]) >= 16  # noqa: PT018
    verdicts = Counter(row["golden_answers"][0] for row in ASKED["questions"] if row["metadata"]["type"] == "yes_no")
    assert abs(verdicts["yes"] - verdicts["no"]) <= 1
    assert answers("claims") == {"SUPPORTS": 12, "REFUTES": 12}
    # a limit cuts through no pattern
    assert Counter(row["golden_answers"][0] for row in ASKED["claims"][:10]) == {"SUPPORTS": 5, "REFUTES": 5}
    assert answers("health") == {"true": 6, "false": 6}
    assert max(answers("science").values()) <= 4


def test_the_answer_stands_where_the_evidence_says() -> None:
    for row in ASKED["questions"]:
        answer, kind = row["golden_answers"][0], row["metadata"]["type"]
        if kind == "yes_no":
            continue
        assert any(answer in TEXTS[title] for title in row["metadata"]["gold_titles"]), row["id"]
        assert answer.casefold() in supported(row, reach=1), row["id"]
        assert kind != "bridge" or answer.casefold() not in row["question"].casefold(), row["id"]


def test_long_answers_say_what_their_evidence_says_in_other_words_at_the_most() -> None:
    for row in (*ASKED["dialogues"], *ASKED["long"]):
        answer = row["golden_answers"][0]
        view = set(tokens(" ".join([*row["metadata"]["gold_titles"], supported(row, reach=1)])))
        words = [word for word in tokens(answer) if len(word) > 3]
        assert sum(word in view for word in words) / len(words) > 0.6, row["id"]
        near = supported(row, reach=2) + " ".join([*row["metadata"]["gold_titles"], row["question"]]).casefold()
        assert all(word.casefold() in near for word in re.findall(r"(?<=[a-z,] )[A-Z]\w+|\d+", answer)), row["id"]


def test_evidence_decides_claims_about_health_and_the_right_option_alone_stands_in_it() -> None:
    for row in (*ASKED["health"], *ASKED["science"]):
        meta, wanted = row["metadata"], set(tokens(row["question"]))
        view = set(tokens(" ".join([*meta["gold_titles"], supported(row, reach=0)])))
        if "choices" not in meta:
            assert len(wanted & view) >= 2, row["id"]
            continue
        support = {option["label"]: len(set(tokens(option["text"])) & view - wanted) for option in meta["choices"]}
        (answer,) = row["golden_answers"]
        assert [option["text"] for option in meta["choices"] if option["label"] == answer] == [meta["answer_text"]]
        assert support[answer] == max(support.values()), row["id"]
