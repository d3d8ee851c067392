"""`blendfilter silver` as a user meets it: the table, going on, and one line for whatever is wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from likely import Likely
from refusing import ROWS, lines, refused, world
from small_world import Command

from blendfilter import read_silver
from blendfilter.errors import ServerRefused
from blendfilter.journal import Journal
from blendfilter.lm.scoring.kept import KeptScorer
from blendfilter.retrieval.bm25 import BM25


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return world(tmp_path, monkeypatch)


TARGETS = [
    "Ormskerry is an island where an engineer was born.",
    "Orm Pier is a pier in Tavenby.",
    "Lise Harrow designed it in 1871.",
]
SILVER = ("silver", "qa", "--data", "questions.jsonl", "--corpus", "corpus.jsonl", "--out", "out.jsonl")


def silver(**other: object) -> list[object]:
    """`SILVER` with options changed, added, or left out (None); True stands alone; underscores stand for dashes."""
    words: dict[str, object] = dict(zip(SILVER[2::2], SILVER[3::2], strict=True))
    words |= {f"--{name.replace('_', '-')}": value for name, value in other.items() if name != "task"}
    given = [(name,) if value is True else (name, value) for name, value in words.items() if value is not None]
    return ["silver", other.get("task", SILVER[1]), *(word for pair in given for word in pair)]


def test_a_file_and_what_it_comes_to(blendfilter: Command, here: Path) -> None:
    outcome = blendfilter(*silver())
    assert outcome.code == 0, outcome.err
    assert outcome.notices == ["blendfilter: no --measure: strinc, which is the one for qa"]
    assert [row.target for row in read_silver(here / "out.jsonl")] == TARGETS
    assert re.search(r"^ *all \(3\) +FULL +0\.0 ", outcome.out, re.MULTILINE)
    assert re.search(r"^ +SILVER +0\.0 +\d+\.\d .* \d\d %", outcome.out, re.MULTILINE)
    assert "tokens: question and context, mean; tiktoken's cl100k_base" in outcome.out
    assert outcome.out.endswith("silver: out.jsonl, chosen by strinc\n")


def test_finished_it_says_so_and_prints_the_table_again(blendfilter: Command, here: Path) -> None:
    first = blendfilter(*silver(measure="strinc"))
    there = (here / "out.jsonl").read_bytes()
    again = blendfilter(*silver(measure="strinc"))
    assert (again.code, again.out) == (0, first.out)
    assert again.notices == ["blendfilter: out.jsonl was finished before: nothing was asked"]
    assert (here / "out.jsonl").read_bytes() == there
    words = blendfilter(*silver(measure="strinc", tokenizer="words"))
    assert (words.code, "words times 1.4" in words.out) == (0, True)


YES_NO = {"id": "pier", "question": "Is Orm Pier a pier in Tavenby?", "answer": "yes"}


def test_a_yes_or_no_is_left_out_and_said(blendfilter: Command, here: Path) -> None:
    lines(here / "questions.jsonl", [*ROWS, YES_NO])
    outcome = blendfilter(*silver(measure="strinc"))
    assert outcome.code == 0, outcome.err
    assert [row.target for row in read_silver(here / "out.jsonl")] == TARGETS
    said = "1 of 4 questions are left out: strinc cannot label an answer of yes or no, which no passage says"
    assert outcome.notices == [f"blendfilter: {said} (lexical and cxmi can)"]
    assert blendfilter(*silver(measure="lexical", out="all.jsonl")).notices == []
    assert len(list(read_silver(here / "all.jsonl"))) == 4


def test_a_data_set_of_yes_and_no_is_refused_with_the_measure_to_take(blendfilter: Command, here: Path) -> None:
    lines(here / "questions.jsonl", [YES_NO])
    BM25.for_corpus(here / "corpus.jsonl")
    before = sorted(here.rglob("*"))
    refused(blendfilter(*silver(measure="strinc")), "strinc cannot label the questions of", "take the measure lexical")
    refused(
        blendfilter("silver", "strategyqa", "--data", "sample", "--measure", "strinc", "--out", "out.jsonl"),
        "strinc cannot label the questions of sample: each is answered by a verdict", "or cxmi (asks a model)",
    )  # fmt: skip
    assert sorted(here.rglob("*")) == before


# --- one line, exit code 2, nothing made ----------------------------------------------------------------------------

BAD: list[tuple[dict[str, object], str]] = [
    ({"task": "hotpoqa"}, "no task 'hotpoqa'. Did you mean 'hotpotqa'?"),
    ({"measure": "strink", "lm": "local"}, "no measure 'strink'. Did you mean 'strinc'?"),
    ({"threshold": "nan"}, "threshold must be a number"),
    ({"num_sentences": 0}, "num_sentences is 0"),
    ({"batch": 0}, "batch is 0"),
    ({"tokenizer": "llama"}, "no tokeniser 'llama'"),
    ({"measure": "lexical", "api_base": "http://127.0.0.1:9/v1"}, "lexical asks no model: leave --api-base out"),
    ({"measure": "cxmi"}, "cxmi asks a model how likely it finds the answer: name it (--lm"),
    ({"task": "hotpotqa", "measure": None}, "or any name with --api-base); --measure strinc and lexical ask none"),
    ({"out": "questions.jsonl"}, "questions.jsonl is there, and nothing says that it is a silver file"),
    ({"measure": "cxmi", "lm": "offline"}, "the offline reader is no model"),
    ({"corpus": None}, "bring no paragraphs of their own"),
]


@pytest.mark.parametrize(("change", "error"), BAD)
def test_bad_input_is_one_line_and_nothing_is_made(
    change: dict[str, object], error: str, blendfilter: Command, here: Path
) -> None:
    BM25.for_corpus(here / "corpus.jsonl")
    before = sorted(here.rglob("*"))
    refused(blendfilter(*silver(**{"measure": "strinc", **change})), error)
    assert sorted(here.rglob("*")) == before


# --- CXMI through a model -------------------------------------------------------------------------------------------


def scoring(monkeypatch: pytest.MonkeyPatch, model: Likely) -> list[dict[str, Any]]:
    """`--lm m` is that model; the settings it was asked for with."""
    settings: list[dict[str, Any]] = []

    def scorer(name: str, **given: Any) -> KeptScorer:
        settings.append({"model": name, **given})
        return KeptScorer(model)

    monkeypatch.setattr("blendfilter.lm.scoring.scorer", scorer)
    return settings


def test_cxmi_asks_the_model_that_was_named(blendfilter: Command, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Likely()
    settings = scoring(monkeypatch, model)
    outcome = blendfilter(*silver(task="hotpotqa", lm="m", api_base="http://127.0.0.1:9/v1", label="x", threads=2))
    assert outcome.code == 0, outcome.err
    assert outcome.notices == ["blendfilter: no --measure: cxmi, which is the one for hotpotqa"]
    given = {"api_base": ["http://127.0.0.1:9/v1"], "label": "x", "threads": 2}
    assert settings == [{"model": "m", **given}]
    assert [row.target for row in read_silver(here / "out.jsonl")] == TARGETS
    with Journal(here / "out.journal", "replay") as journal:
        assert sum(1 for _ in journal.records("score")) == len(model.scored) == len(set(model.scored))


def test_one_that_was_trained_without_demonstrations_is_asked_without(
    blendfilter: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Likely()
    scoring(monkeypatch, model)
    assert blendfilter(*silver(task="hotpotqa", lm="m", demos="none")).code == 0
    assert {pair.prompt.count("\nQuestion:") for pair in model.scored} == {1}
    refused(blendfilter(*silver(measure="strinc", demos="none")), "strinc asks no model: leave --demos out")


def test_a_model_that_cannot_score_is_refused_and_nothing_is_left(
    blendfilter: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    BM25.for_corpus(here / "corpus.jsonl")
    before = sorted(here.rglob("*"))
    scoring(monkeypatch, Likely(ServerRefused("m gives no log-probabilities of given text; what can: others")))
    refused(blendfilter(*silver(task="hotpotqa", measure="cxmi", lm="m")), "what can: others")
    assert sorted(here.rglob("*")) == before
