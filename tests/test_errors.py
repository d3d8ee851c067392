"""Errors as their readers meet them: in the words of the interface at hand, and in one line in a notebook."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import dspy
import numpy as np
import pytest
import typer
from dspy import lm15
from IPython.core.interactiveshell import InteractiveShell
from small_world import Command

import blendfilter as bf
from blendfilter import errors
from blendfilter.cli import app
from blendfilter.errors import BadArgument, MissingFile, NoKey, check_count, on_the_command_line, worded
from blendfilter.lm import faults
from blendfilter.lm.budget import Budget


def test_python_is_told_of_arguments_and_the_command_line_of_options(
    blendfilter: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(NoKey, match=r"or point api_base= at a server of your own$"):
        bf.connect("openai/gpt-4o-mini")
    assert "or point --api-base at a server" in blendfilter("ask", "Who?", "--lm", "openai/gpt-4o-mini").error
    with pytest.raises(BadArgument, match=r"^max_retries is -1: "):
        bf.evaluate(bf.Direct(), [{"question": "Who?", "answer": "Me"}], lm="offline", max_retries=-1)


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ("check the model's name (--lm)", "check the model's name (lm=)"),
        ("its limit as --rpm or --tpm", "its limit as requests_per_minute= or tokens_per_minute="),
        ("dollars (--max-cost): give", "dollars (Budget(dollars=…)): give"),
        ("run it without --replay, or", "run it without replay=True, or"),
        ("so --no-thinking sends nothing", "so thinking=False sends nothing"),
        ("raw prompts (--endpoint completions)", "raw prompts (endpoint='completions')"),
        ("name a file (--out hits.jsonl)", "name a file (out='hits.jsonl')"),
        ("Add --data nq=FILE, or", "Add data='nq=FILE', or"),
        # a command is one in Python too, and what somebody wrote stays as it is
        ("`blendfilter index CORPUS --out DIR`", "`blendfilter index CORPUS --out DIR`"),
        ("blendfilter rescore run --metric em", "blendfilter rescore run --metric em"),
        ("no file 'a --lm b': check", "no file 'a --lm b': check"),
        ("a -- b", "a -- b"),
        ("run `x` or rm -rf --no-preserve-root", "run `x` or rm -rf --no-preserve-root"),
        ("start it with --max-model-len 8192", "start it with --max-model-len 8192"),
        ("--lm-x and --no-corpus, not --lm", "--lm-x and --no-corpus, not lm="),
    ],
)
def test_options_become_arguments(options: str, arguments: str) -> None:
    assert worded(options) == arguments
    assert str(BadArgument(options)) == arguments
    with on_the_command_line():
        assert str(BadArgument(options)) == options


def test_only_options_that_the_command_line_has_are_reworded() -> None:
    def options_of(command: Any) -> set[str]:
        own = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
        return own.union(*map(options_of, getattr(command, "commands", {}).values()))

    options = {name[2:] for name in options_of(typer.main.get_command(app)) if name.startswith("--")}
    names = set(errors._NAMES.split("|"))
    assert names <= options
    package = Path(bf.__file__).parent
    texts = [path.read_text(encoding="utf-8") for path in package.rglob("*.py") if path.parent.name != "cli"]
    named = set(re.findall(r"(?<![\w-])--([a-z][a-z-]*[a-z])(?![\w-])", "\n".join(texts)))
    plain = {name.removeprefix("no-") for name in named & options} - {"debug"}  # which has no argument
    assert plain == names


def test_what_a_server_or_a_users_code_says_of_options_stays_as_it_is() -> None:
    said = "see --help of foo, and use --limit 5 or --lm NAME"

    def strict(example: dspy.Example, prediction: dspy.Prediction, trace: object = None) -> float:
        raise RuntimeError(said)

    with pytest.raises(errors.RunFailed, match=re.escape(said)):
        bf.evaluate(bf.Direct(), [{"question": "Who?", "answer": "Me"}], lm="offline", metrics=[strict])
    assert said in str(faults.final(lm15.InvalidRequestError(said, status=400), address="a"))
    refused = faults.final(lm15.TransportError(said, provider_code="no_connection"), address="http://a")
    assert str(refused) == (
        f"no model server answers at http://a: {said}; start it, or give its address (api_base=URL)"
    )
    assert str(pickle.loads(pickle.dumps(refused))) == str(refused)


def test_a_notebook_shows_a_users_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    shell = InteractiveShell.instance()
    try:
        shell.run_cell("import blendfilter as bf; bf.load('qa', 'gone\u202e.jsonl')")
        shown = capsys.readouterr()
        assert (shown.out + shown.err).splitlines() == ["MissingFile: no file 'gone\\u202e.jsonl': check the path"]
        assert isinstance(shell.user_ns["bf"], type(bf))
        shell.run_cell("1 / 0")
        shown = capsys.readouterr()
        assert "Traceback" in shown.out + shown.err, "of others it shows what it always does"
    finally:
        InteractiveShell.clear_instance()


@pytest.mark.parametrize("name", ["hotpotqa", "twowiki", "strategyqa"])
def test_a_script_says_what_is_wrong_in_one_line(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Path(bf.__file__).parents[1] / f"eval/{name}.py"
    monkeypatch.setattr("sys.argv", [str(script), "--data", "gone.json", "--corpus", "gone.jsonl"])
    with pytest.raises(SystemExit) as stopped:
        exec(compile(script.read_text(encoding="utf-8"), str(script), "exec"), {"__name__": "__main__"})
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"{name}: no file 'gone.json': check the path\n"


@pytest.mark.parametrize("value", [True, np.bool_(True), 1.0, np.float64(1), "1", None, float("nan"), np.int64(0)])
def test_what_is_no_count_is_refused(value: object) -> None:
    with pytest.raises(BadArgument, match=r"k is .*: give a whole number of 1 or more"):
        check_count("k", value)


def test_a_count_of_numpys_becomes_pythons() -> None:
    assert [type(check_count("k", value)) for value in (3, np.int64(3), np.uint8(3))] == [int, int, int]
    budget = Budget(calls=np.int64(3))
    assert json.dumps(budget.given()) == '{"calls": 3}'


def test_an_error_can_be_caught_as_ever() -> None:
    with pytest.raises(MissingFile) as error:
        bf.load("qa", "gone.jsonl")
    assert error.value.args == ("no file 'gone.jsonl': check the path",)
