"""`blendfilter trim` asked wrong, or stopped: one line, an exit code, nothing written, and that it goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from judged import WHO_ON
from model_server import serve
from radio import TRIM
from refusing import NOBODY
from small_world import Command, tree

from blendfilter.journal import Journal
from blendfilter.trimming.witnesses import WitnessWriter

# --- one line, exit code 2 ------------------------------------------------------------------------------------------

BAD: dict[str, tuple[list[object], str]] = {
    "threshold": (["--threshold", 0], "a threshold is a whole number of witnesses from 1 up, got 0"),
    "similarity": (["--min-similarity", 1.5], "min_similarity lies between 0 and 1, got 1.5"),
    "two actions": (["--show", "on", "--undo", "ALL"], "--show and --undo are two things"),
    "judging and looking": (["--questions", "sample", "--export", "-"], "--questions and --export are two things"),
    "a setting beside a look": (["--undo", "ALL", "--threshold", 2], "--undo and --threshold are two things"),
    "a model for nothing": (["--lm", "offline"], "--lm is for judging: add --questions FILE"),
    "a depth for nothing": (["-k", 5, "--show", "on"], "-k is for judging"),
    "a rehearsal of nothing": (["--dry-run"], "--dry-run is for judging"),
    "a budget for nothing": (["--max-calls", 5], "--max-calls is for judging"),
    "a rehearsal that sets": (["--questions", "sample", "--dry-run", "--threshold", 2], "--dry-run changes nothing"),
    "another k": (["--questions", "questions.jsonl", "-k", 7], "was made with k=5, not 7"),
    "no questions": (["--questions", "none.jsonl"], "none.jsonl"),
    "task": (["--questions", "sample", "--task", "popqaa"], "no task 'popqaa'"),
    "mode": (["--questions", "sample", "--mode", "words"], "no mode 'words'. Did you mean 'word'?"),
    "rule": (["--questions", "sample", "--rule", "phi3"], "no rule 'phi3'"),
    "rules without components": (["--questions", "sample", "--rules", "bad.toml"], "the rule 'mine' has no components"),
    "program": (["--questions", "sample", "--program", "none.json"], "no program at none.json"),
    "limit": (["--questions", "sample", "--limit", 0], "limit is 0"),
    "a folder in the index": (["--questions", "sample", "--out", "radio/inside"], "lies inside the index"),
    "no overlay": (["--show", "on", "--out", "elsewhere"], "no trimmed index at elsewhere"),
    "a budget without a price": (["--questions", "sample", "--max-cost", 1], "no price is known"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_one_line_and_nothing_is_written(case: str, trimmed: Command, here: Path) -> None:
    (here / "bad.toml").write_text('[[rule]]\nname = "mine"\ncomponents = []\nsentence = "None."\n')
    before = tree(here)
    words, said = BAD[case]
    told = trimmed("trim", "radio", *words)
    assert (told.code, told.out) == (2, ""), told
    assert said in told.error
    assert "Traceback" not in told.err
    assert tree(here) == before


@pytest.mark.parametrize("words", [["--max-cost", 1], ["--max-retries", -1], ["-k", 0], ["--threshold", 0]])
def test_what_is_wrong_leaves_no_empty_overlay(words: list[object], radio: Command, here: Path) -> None:
    told = radio("trim", "radio", "--questions", "questions.jsonl", "--lm", "offline", *words)
    assert (told.code, told.out) == (2, "")
    assert not (here / "radio.trimmed").exists()


def test_an_overlay_of_another_index_is_refused(trimmed: Command, here: Path) -> None:
    trimmed("index", "corpus.jsonl", "--out", "radio", "--overwrite", "--k1", 2)
    before = tree(here)
    told = trimmed(*TRIM)
    assert told.code == 2
    assert "was made for the index" in told.error
    assert tree(here) == before


def test_a_server_wants_a_folder(radio: Command) -> None:
    told = radio("trim", "http://127.0.0.1:9", "--questions", "questions.jsonl")
    assert told.code == 2
    assert "--out DIR" in told.error
    told = radio("trim", "http://127.0.0.1:9")
    assert (told.code, "--out DIR" in told.error) == (2, True)


def test_two_at_once(trimmed: Command, here: Path) -> None:
    with WitnessWriter(here / "radio.trimmed" / "witnesses.jsonl"):
        for words in (TRIM, ("trim", "radio", "--undo", "ALL")):
            told = trimmed(*words)
            assert told.code == 2
            assert "another trim" in told.error
        before = tree(here)
        assert trimmed(*TRIM[:-1], 3).code == 2
        assert tree(here) == before, "a trim that is refused leaves the threshold as it was"
        assert trimmed("trim", "radio").code == 0, "one may look meanwhile"


def test_a_damaged_overlay_is_refused_and_the_index_is_there(trimmed: Command, here: Path) -> None:
    path = here / "radio.trimmed" / "witnesses.jsonl"
    path.write_bytes(b"{}\n" + path.read_bytes())
    for words in (TRIM, ("trim", "radio"), ("trim", "radio", "--undo", "ALL"), ("trim", "radio", "--show", "on")):
        told = trimmed(*words)
        assert (told.code, told.out) == (2, "")
        assert "witnesses.jsonl, line 1" in told.error
    assert trimmed("search", "radio", WHO_ON).code == 0
    assert trimmed("search", "radio.trimmed", WHO_ON).out.startswith("1\t")


def test_no_server_and_no_budget(radio: Command, here: Path) -> None:
    words = ("trim", "radio", "--questions", "questions.jsonl", "-k", 5, "--lm", "m")
    told = radio(*words, "--api-base", NOBODY, "--attempts", 1)
    assert told.code == 2
    assert "127.0.0.1:9" in told.error
    assert not (here / "radio.trimmed").exists(), "nothing was gathered"
    with serve(reply="offline") as server:
        told = radio(*words, "--api-base", server.url, "--max-calls", 3)
        assert told.code == 3
        assert "the budget is spent: 3 of 3 calls are gone" in told.error
        assert server.stats()["requests"] == 3
        assert radio(*words, "--api-base", server.url, "--max-calls", 100).code == 0
        made = server.stats()["requests"]
        assert radio(*words[:-2], "--lm", "m", "--api-base", server.url).code == 0
        assert server.stats()["requests"] == made


def test_failed_questions_are_told_and_asked_again(radio: Command) -> None:
    words = ("trim", "radio", "--questions", "questions.jsonl", "-k", 5, "--lm", "m", "--attempts", 1)
    with serve(reply="offline", context_limit=10) as server:
        told = radio(*words, "--api-base", server.url)
    assert told.code == 1
    assert "failed 3" in told.out
    assert "still open, and asked again by the same command: 3 questions" in told.out


def test_ctrl_c_says_that_it_goes_on(radio: Command, here: Path) -> None:
    with serve(reply="offline", delay=0.3) as server:
        words = ("trim", "radio", "--questions", "questions.jsonl", "-k", "5", "--lm", "m", "--concurrency", "1")
        command = [sys.executable, "-m", "blendfilter.cli", *words, "--api-base", server.url]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        deadline = time.monotonic() + 30
        while server.stats()["requests"] < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "blendfilter: stopped; the same command goes on where it was"
    with Journal(here / "radio.trimmed", "replay") as journal:
        assert sum(1 for _ in journal.records("call")) >= 1


def test_an_empty_folder_may_be_named(radio: Command, here: Path) -> None:
    (here / "mine").mkdir()
    assert radio(*TRIM, "--out", "mine").code == 0
    (here / "notes").mkdir()
    (here / "notes" / "mine.txt").write_text("mine")
    before = tree(here)
    assert radio(*TRIM, "--out", "notes").code == 2
    assert tree(here) == before
