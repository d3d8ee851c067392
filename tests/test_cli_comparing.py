"""`eval --repeats` and `compare` as commands: what they print, and one line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_world import Command, small_eval


@pytest.fixture
def blendfilter(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.setenv("BLENDFILTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return Command(monkeypatch, capsys)


@pytest.fixture
def two(blendfilter: Command) -> Command:
    for method in ("direct-retrieval", "cot-retrieval"):
        assert blendfilter(*small_eval(method, method)).code == 0
    return blendfilter


def test_a_run_with_repeats_and_its_comparison(two: Command) -> None:
    told = two(*small_eval("direct-retrieval", "direct-retrieval", "--repeats", 3))
    assert told.code == 0
    assert " n:4|repeats:3|" in told.out
    compared = two("compare", "direct-retrieval", "cot-retrieval")
    assert compared.code == 0
    assert "against direct-retrieval, the same 4 questions, in %" in compared.out
    assert "answers a question: direct-retrieval 3" in compared.out


def test_more_repeats_find_the_run_of_the_same_command(blendfilter: Command) -> None:
    words = [word for word in small_eval("direct-retrieval", "x") if word not in ("--run", "x")]
    assert blendfilter(*words).code == blendfilter(*words, "--repeats", 2).code == 0
    (folder,) = Path("runs").iterdir()
    assert len((folder / "predictions.jsonl").read_text().splitlines()) == 8


def test_a_baseline_and_json(two: Command) -> None:
    shown = two("compare", "direct-retrieval", "cot-retrieval", "--against", "cot-retrieval", "--json")
    data = json.loads(shown.out)
    assert (data["baseline"], data["n"], data["rows"][0]["run"]) == ("cot-retrieval", 4, "cot-retrieval")
    assert all(0 <= row["value"] <= 1 for row in data["rows"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("compare", "direct-retrieval", "cot-retrieval", "--against", "cot-retrieva"),
            "no run 'cot-retrieva'. Did you mean",
        ),
        (("compare", "direct-retrieval", "cot-retrieval", "--metric", "emm"), "no metric 'emm'. Did you mean 'em'?"),
        (
            ("compare", "direct-retrieval", "cot-retrieval", "--metric", "cover-em"),
            "has no 'cover-em' yet: blendfilter",
        ),
        (("compare", "direct-retrieval"), "compare wants at least two runs, got 1"),
        (small_eval("direct-retrieval", "direct-retrieval", "--repeats", 0), "Invalid value for '--repeats'"),
    ],
)
def test_a_wrong_command_is_one_line(words: tuple[object, ...], said: str, two: Command) -> None:
    told = two(*words)
    assert (told.code, told.out) == (2, "")
    assert len(told.notices) == 1
    assert said in told.error


def test_runs_that_cannot_be_compared(two: Command) -> None:
    two(*small_eval("direct-retrieval", "fewer", "--limit", 3))
    told = two("compare", "direct-retrieval", "fewer")
    assert (told.code, len(told.notices)) == (2, 1)
    assert "are over different questions" in told.error
    Path("fewer/metrics.json").unlink()
    told = two("compare", "direct-retrieval", "fewer")
    assert (told.code, len(told.notices)) == (2, 1)
    assert "fewer is not finished: 3 of 3 questions are answered, 0 missing; run the same command again" in told.error
    two(*small_eval("direct-retrieval", "often", "--repeats", 2))
    told = two(*small_eval("direct-retrieval", "often"))
    assert (told.code, len(told.notices)) == (2, 1)
    assert "often is a run of 2 answers to every question, not 1: ask for 2 repeats or more" in told.error
