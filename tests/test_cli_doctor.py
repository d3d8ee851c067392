"""`blendfilter doctor`, and how `eval` ends where replies are bad."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import unruly
from small_world import Command, shell, small_eval


@pytest.fixture
def blendfilter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fresh_dspy: None
) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BLENDFILTER_CACHE", str(tmp_path / "cache"))
    return Command(monkeypatch, capsys)


def test_a_model_in_health(blendfilter: Command) -> None:
    told = blendfilter("doctor", "--lm", "offline", "--questions", 3)
    assert told.code == 0
    assert told.out.startswith("offline: 3 questions of the sample world through BlendFilter, ")
    assert "Nothing to change" in told.out
    assert "3/3 questions" in told.err  # progress


def test_without_a_model_it_is_said_which_one_answers(blendfilter: Command) -> None:
    told = blendfilter("doctor", "--questions", 1)
    assert told.code == 0
    assert "no --lm: the offline reader answers" in told.err


def test_an_unruly_model_ends_with_1_and_goes_on_in_its_folder(blendfilter: Command, tmp_path: Path) -> None:
    with unruly.serve("mixed") as address:
        words = ("doctor", "--lm", "m", "--api-base", address, "--questions", 3, "--run", "examined")
        told = blendfilter(*words)
        again = blendfilter(*words, "--json")
        lenient = blendfilter(*words, "--max-bad-replies", 1)
    assert told.code == again.code == 1
    assert told.error == "blendfilter: this model does not do what the pipeline asks: see what to change"
    assert "run: examined" in told.out
    data = json.loads(again.out)
    assert data["healthy"] is False
    assert data["findings"][0]["bad"] is True
    assert data["server"][0]["name"] == "JSON schema"
    assert lenient.code == 0
    assert (tmp_path / "examined" / "journal.jsonl").is_file()


def test_a_limit_holds_for_the_questions_and_the_folder_goes_on(blendfilter: Command, tmp_path: Path) -> None:
    Path("p.toml").write_text('[models]\n"m" = { input = 1, output = 1 }\n')
    with unruly.serve("tame") as address:
        words = (
            "doctor",
            "--lm",
            "m",
            "--api-base",
            address,
            "--questions",
            2,
            "--run",
            "examined",
            "--prices",
            "p.toml",
        )
        told = blendfilter(*words, "--max-calls", 5)
        again = blendfilter(*words, "--max-calls", 500, "--json")
    assert told.code == 3
    assert "5 of 5 calls are gone" in told.error
    assert again.code == 0
    ledger = json.loads(again.out)["ledger"]
    assert ledger["cost"] == pytest.approx((ledger["tokens_in"] + ledger["tokens_out"]) / 1e6, abs=1e-6)


def test_what_is_asked_wrong_is_one_line(blendfilter: Command, tmp_path: Path) -> None:
    for words, said in {
        ("--questions", 0): "questions is 0: the sample has 84, give a number from 1 to that",
        ("--max-calls", 5): "a limit goes with --run DIR",
        ("--max-bad-replies", 2): "--max-bad-replies is 2: give a share from 0 to 1 (0.05 is 5 %)",
        ("--lm", "m"): "'m' names no provider",
        ("--lm", "m", "--api-base", "http://127.0.0.1:9/v1"): "no model server answers at http://127.0.0.1:9/v1",
    }.items():
        told = blendfilter("doctor", "--lm", "offline", *words)
        assert told.code == 2
        assert said in told.error
    assert not list(tmp_path.glob("runs*"))


@pytest.mark.parametrize(
    ("mood", "more", "code"),
    [("tame", (), 0), ("restates", (), 1), ("restates", ("--max-bad-replies", 1), 0), ("cut", (), 1), ("empty", (), 1)],
)
def test_how_eval_ends(mood: str, more: tuple[object, ...], code: int, blendfilter: Command, tmp_path: Path) -> None:
    with unruly.serve(mood) as address:
        told = blendfilter(*small_eval("blendfilter", "run"), "--lm", "m", "--api-base", address, *more)
    assert told.code == code
    assert (tmp_path / "run" / "metrics.json").is_file()
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    for shown in (told.out, told.err.lower(), page):
        assert ("blendfilter doctor says what to change" in shown) == (code == 1)
    if code:
        assert told.out.splitlines()[1].startswith("Warning: ")
        report = blendfilter("report", "run", "--no-html")
        assert report.code == 0
        assert report.out.splitlines()[1].startswith("Warning: ")


@pytest.mark.parametrize("share", ["-0.1", "1.5", "nan", "lots"])
def test_a_share_that_is_none_is_refused_before_anything_is_asked(
    share: str, blendfilter: Command, tmp_path: Path
) -> None:
    told = blendfilter(*small_eval("blendfilter", "run"), "--max-bad-replies", share)
    assert told.code == 2
    assert len(told.notices) == 1
    assert "max-bad-replies" in told.error
    assert not (tmp_path / "run").exists()


def test_offline_runs_stay_below_whatever_the_method(blendfilter: Command) -> None:
    for method in ("blendfilter", "react", "self-ask", "self-consistency", "cot"):
        assert blendfilter(*small_eval(method, method)).code == 0


def test_the_help_says_what_it_does() -> None:
    told = shell("doctor", "--help")
    assert told.code == 0
    for option in ("--lm", "--api-base", "--questions", "--run", "--json", "--max-bad-replies", "--no-thinking"):
        assert option in told.out
