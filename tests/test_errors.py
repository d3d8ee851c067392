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
from blendfilter.cli.app import State, in_options
from blendfilter.errors import BadArgument, MissingFile, NoKey, check_count
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
    ("message", "printed"),
    [
        ("start it, or give its address (api_base=URL)", "start it, or give its address (--api-base URL)"),
        ("its limit as requests_per_minute= or tokens_per_minute=", "its limit as --rpm or --tpm"),
        ("run it without replay=True, or", "run it without --replay, or"),
        ("so thinking=False sends nothing", "so --no-thinking sends nothing"),
        ("raw prompts (endpoint='completions')", "raw prompts (--endpoint completions)"),
        ("add rules=FILE.", "add --rules FILE."),
        # what no option says, and what is quoted or code
        ("name another folder (out=)", "name another folder (out=)"),
        ("connect(lm=NAME), or Budget(calls=3)", "connect(lm=NAME), or Budget(calls=3)"),
        ("no file 'lm=b': check", "no file 'lm=b': check"),
    ],
)
def test_the_command_line_prints_its_options_for_parameters(
    message: str, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert str(BadArgument(message)) == message
    monkeypatch.setattr(State, "params", typer.main.get_command(app).commands["eval"].params)
    assert in_options(message) == printed


def test_messages_name_options_that_there_are() -> None:
    def options_of(command: Any) -> set[str]:
        own = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
        return own.union(*map(options_of, getattr(command, "commands", {}).values()))

    package = Path(bf.__file__).parent
    texts = [path.read_text(encoding="utf-8") for path in package.rglob("*.py") if path.parent.name != "cli"]
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z](?![\w-])", "\n".join(texts)))
    others = {
        "--debug",
        "--head",
        "--help",
        "--model",
        "--no-deps",
        "--nproc-per-node",
    }  # of ray, vllm, pip and torchrun
    assert named - others <= options_of(typer.main.get_command(app))


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
