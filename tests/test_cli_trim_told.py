"""`blendfilter trim`: how it ends with a judge that says nothing, and what its names may be."""

from __future__ import annotations

from pathlib import Path

import pytest
from judged import WHO_ON
from model_server import serve
from radio import TRIM
from small_world import Command, tree

from blendfilter.trimming.witnesses import Witnesses, question_id


def test_a_judge_without_verdicts_ends_with_1_and_another_one_goes_on(radio: Command, here: Path) -> None:
    with serve(reply="It depends.") as server:
        told = radio(*TRIM[:4], "--lm", "m", "--api-base", server.url, "-k", 5, "--threshold", 1)
    assert told.code == 1
    assert "the judge answered neither True nor False in any of 8 replies: nothing was learned." in told.out
    told = radio(*TRIM)
    assert told.code == 0, told.err
    assert "judged 3, judged before 0" in told.out
    assert Witnesses.read(here / "radio.trimmed" / "witnesses.jsonl").separations() == 3


def test_all_in_small_letters_and_the_same_twice(trimmed: Command) -> None:
    told = trimmed("trim", "radio", "--undo", "off,on", "--undo", "on,off", "--undo", WHO_ON, "--undo", WHO_ON)
    assert told.code == 0, told.err
    assert told.out.count("undone: ") == 2
    told = trimmed("trim", "radio", "--undo", "all")
    assert told.out.startswith("undone: all of it, 2 questions\n")


def test_a_wrong_name_is_told_where_the_right_ones_are(trimmed: Command) -> None:
    told = trimmed("trim", "radio", "--undo", "1")
    assert "(3 questions are judged: blendfilter trim INDEX lists them)" in told.error
    assert f"  {question_id(WHO_ON)} {WHO_ON!r}: " in trimmed("trim", "radio").out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--questions", "questions.jsonl", "--out", "radio"], "--out radio is the index itself, which is never"),
        (["--questions", "questions.jsonl", "--out", "corpus.jsonl"], "--out corpus.jsonl is a file: name another"),
        (["--out", "./radio/"], "is the index itself"),
        (["--out", "other"], "--out other is no overlay: name another folder"),
        (["--export", "x.txt"], "name one that ends in .jsonl or .csv, or -"),
        (["--export", "x"], "--export x is no kind of file"),
    ],
)
def test_names_that_are_refused(words: list[str], said: str, trimmed: Command, here: Path) -> None:
    (here / "other").mkdir()
    (here / "other" / "notes.txt").write_text("mine")
    before = tree(here)
    told = trimmed("trim", "radio", *words)
    assert (told.code, told.out) == (2, "")
    assert said in told.error
    assert tree(here) == before
