"""The options of the command line as a whole: panels, files of options, earlier runs as options, and wrong names."""

from __future__ import annotations

import json
import re
import select
import socket
from pathlib import Path
from typing import Any

import pytest
import typer
from model_server import serve
from refusing import refused
from small_world import Command, small_eval

import blendfilter as bf
from blendfilter import cli
from blendfilter.cli.options import PANELS
from blendfilter.resources import sample


def commands_in(group: Any, *words: str) -> dict[str, Any]:
    """Every command by its words (`train filco`), without the groups themselves."""
    found = {}
    for name, command in group.commands.items():
        inner = hasattr(command, "commands")
        found |= commands_in(command, *words, name) if inner else {" ".join([*words, name]): command}
    return found


COMMANDS = commands_in(typer.main.get_command(cli.app))


def shown_in(text: str) -> list[str]:
    """The options in the panels of a help."""
    _, panels = re.split(r"^\w+:$", text, maxsplit=1, flags=re.MULTILINE)
    return re.findall(r"^  (?:-\w, )?(--[\w-]+)", panels, re.MULTILINE)


# panels


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_at_most_25_options_in_panels_and_the_rest_one_flag_away(blendfilter: Command, name: str) -> None:
    options = {max(param.opts, key=len) for param in COMMANDS[name].params if param.param_type_name == "option"}
    first = blendfilter(*name.split(), "--help").out
    shown = set(shown_in(first))
    assert len(shown) <= 25
    assert set(re.findall(r"^(\w+):$", first, re.MULTILINE)) <= {"Arguments", *PANELS, "Options"}
    if "--help-all" in shown:
        assert set(shown_in(blendfilter(*name.split(), "--help-all").out)) == {*options, "--help"}
    else:
        assert shown == {*options, "--help"}
        assert blendfilter(*name.split(), "--help-all").out == first


def test_what_most_runs_name_stands_in_the_first_help_of_eval(blendfilter: Command) -> None:
    shown = shown_in(blendfilter("eval", "--help").out)
    common = ["--data", "--limit", "--corpus", "--method", "--filter", "--lm", "--api-base", "--max-cost", "--run"]
    assert [option for option in shown if option in common] == common
    assert "--weight-tokens" not in blendfilter("compile", "--help").out
    assert "--weight-tokens" in blendfilter("compile", "--help-all").out


def test_the_version(blendfilter: Command) -> None:
    assert blendfilter("--version") == (0, f"blendfilter {bf.__version__}\n", "")


# --config


def test_every_option_can_stand_in_a_file_and_the_command_line_goes_before(blendfilter: Command, here: Path) -> None:
    (here / "run.toml").write_text(
        'task = "qa"\ndata = "sample"\ncorpus = "sample"\nlimit = 3\nmethod = "direct-retrieval"\nlm = "offline"\n'
        'html = false\nmetric = ["em"]\nmax-calls = 100\nrun = "from-file"\n'
    )
    done = blendfilter("eval", "--config", "run.toml", "--limit", 2)
    assert done.code == 0
    assert not (here / "from-file/report.html").exists()
    record = json.loads((here / "from-file/run.json").read_text())
    assert (record["settings"]["data"]["n"], record["settings"]["metrics"]) == (2, ["em"])
    assert record["notes"]["budget"] == {"calls": 100}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("limt = 3", "run.toml: blendfilter eval has no option 'limt'. Did you mean 'limit'?"),
        ('limit = "three"', "run.toml: limit = 'three': .*valid integer"),
        ('html = "no"', "run.toml: html = 'no': expected true or false"),
        ('method = ["cot", "direct"]', "run.toml: method = .*: expected a text or a number$"),
        ("[method]\nk = 3", "run.toml: method = .*: expected a text or a number$"),
        ("limit =", r"run.toml: cannot be read as TOML \(Invalid value"),
        ('config = "other.toml"', "run.toml: blendfilter eval has no option 'config'"),
    ],
)
def test_what_a_file_says_wrongly_is_one_line(blendfilter: Command, here: Path, text: str, error: str) -> None:
    (here / "run.toml").write_text(text)
    outcome = blendfilter("eval", "qa", "--data", "sample", "--config", "run.toml")
    refused(outcome)
    assert re.search(error, outcome.error)


def test_a_file_that_is_not_there_is_named(blendfilter: Command) -> None:
    outcome = blendfilter("eval", "qa", "--config", "gone.toml")
    refused(outcome)
    assert "no file gone.toml" in outcome.error


# --like


def test_a_run_is_given_back_as_options(blendfilter: Command, here: Path) -> None:
    assert not blendfilter(*small_eval("cot-retrieval", "one", "--k", 2, "--concurrency", 3, "--seed", 4)).code
    assert not blendfilter("eval", "--like", "one", "--run", "two").code
    records = [json.loads((here / name / "run.json").read_text()) for name in ("one", "two")]
    assert records[0]["settings"] == records[1]["settings"]
    assert (records[0]["notes"]["concurrency"], records[1]["notes"]["concurrency"]) == (3, 16), "no setting"
    assert not blendfilter("eval", "--like", "one", "--run", "three", "--method", "direct-retrieval").code
    changed = json.loads((here / "three/run.json").read_text())["settings"]
    assert (changed["method"]["name"], changed["data"]) == ("direct-retrieval", records[0]["settings"]["data"])


def test_a_file_goes_before_the_run(blendfilter: Command, here: Path) -> None:
    assert not blendfilter(*small_eval("cot-retrieval", "one")).code
    (here / "more.toml").write_text("limit = 1\n")
    file = ["--config", "more.toml"]
    for at, words in enumerate((["--like", "one", *file], [*file, "--like", "one"])):
        assert not blendfilter("eval", *words, "--run", f"run{at}").code
        assert json.loads((here / f"run{at}/run.json").read_text())["settings"]["data"]["n"] == 1


def test_a_source_of_passages_on_the_command_line_replaces_that_of_the_file_and_the_run(
    blendfilter: Command, here: Path
) -> None:
    assert not blendfilter("index", sample("corpus.jsonl"), "--out", "ix").code
    assert not blendfilter(*small_eval("direct-retrieval", "one"), "--corpus", "sample").code
    (here / "sample.toml").write_text('task = "qa"\ndata = "sample"\ncorpus = "sample"\nlimit = 1\n')
    (here / "index.toml").write_text('index = ["ix"]\n')
    for at, words in enumerate(
        (
            ["--like", "one", "--index", "ix"],
            ["--config", "sample.toml", "--index", "ix"],
            ["--config", "index.toml", "--like", "one"],
            ["--like", "one", "--config", "index.toml"],
        )
    ):
        assert not blendfilter("eval", *words, "--run", f"run{at}").code
        options = json.loads((here / f"run{at}/run.json").read_text())["notes"]["options"]
        assert (options.get("corpus"), options["index"]) == (None, ["ix"])
    assert not blendfilter("eval", "--like", "run0", "--corpus", "sample", "--run", "back").code
    refused(blendfilter("eval", "--like", "one", "--index", "ix", "--corpus", "sample"), "name 2 sources")


def test_what_a_file_switches_on_the_command_line_switches_off(blendfilter: Command, here: Path) -> None:
    (here / "replay.toml").write_text("replay = true\n")
    words = [*small_eval("direct-retrieval", "one"), "--config", "replay.toml"]
    refused(blendfilter(*words))
    assert not blendfilter(*words, "--no-replay").code
    assert not blendfilter(*words).code, "the journal has it by now"
    assert "--no-plan" not in blendfilter("eval", "--help").out
    assert "--no-plan" in blendfilter("eval", "--help-all").out


def test_no_address_and_no_secret_is_given_back(
    blendfilter: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLENDFILTER_API_KEY", "sk-secret-0123456789")
    with serve(reply="Hathermouth") as server:
        login = server.url.replace("://", "://me:pa55word@")
        assert not blendfilter(*small_eval("direct", "one"), "--lm", "m", "--api-base", login).code
    for file in (here / "one").glob("*"):
        assert not re.search("pa55word|sk-secret", file.read_text())
    outcome = blendfilter("eval", "--like", "one", "--run", "two")
    refused(outcome, "'m' names no provider", "--api-base")


def foreign(folder: Path, **options: Any) -> None:
    """A run of somebody else, who wrote these options into it."""
    record = json.loads((folder / "run.json").read_text())
    if {"index", "retrieved"} & options.keys():
        del record["notes"]["options"]["corpus"]
    record["notes"]["options"] |= {name.replace("_", "-"): value for name, value in options.items()}
    (folder / "run.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("options", "told", "repeated"),
    [
        ({"lm": "openai/m", "api_base": ["{url}"]}, "--api-base {url}: an address", []),
        ({"filter_lm": "m", "filter_api_base": ["{url}"]}, "--filter-api-base {url}: an address", []),
        ({"index": ["{url}"]}, "--index {url}: an address", ["--corpus", "sample"]),
        ({"retrieved": "{url}"}, "--retrieved {url}: an address", ["--corpus", "sample"]),
        ({"method": "one.code:Mine"}, "--method one.code:Mine: code", ["--method", "direct"]),
        ({"filter": "one.code:Mine"}, "--filter one.code:Mine: code", ["--filter", "full"]),
        ({"allow_host": ["a.example"]}, "--allow-host a.example: no setting", ["--allow-host", "b.example"]),
        ({"ray": "ray://10.0.0.1:10001"}, "--ray ray://10.0.0.1:10001: an address", []),
        ({"run": "../elsewhere"}, "--run ../elsewhere: no setting", ["--run", "mine"]),
        ({"prices": "free.toml"}, "--prices free.toml: what calls are said to cost", []),
        ({"max_cost": 1e9}, "--max-cost 1000000000.0: no setting", ["--max-cost", "1"]),
    ],
)
def test_a_run_of_somebody_else_names_no_address_and_no_code(
    options: dict[str, Any], told: str, repeated: list[str], blendfilter: Command, here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Whoever wants it repeats the option, or gives another; nothing is called and nothing imported before."""
    for variable in ("OPENAI_API_KEY", "BLENDFILTER_API_KEY", "BLENDFILTER_INDEX_TOKEN"):
        monkeypatch.setenv(variable, "sk-mine-0123456789")
    assert not blendfilter(*small_eval("direct-retrieval", "one")).code
    (here / "one/code.py").write_text("open('imported', 'w')")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        given = json.loads(json.dumps(options).replace("{url}", url))
        foreign(here / "one", **given)
        refused(blendfilter("eval", "--like", "one"), f"one/run.json names {told.format(url=url)}")
        if repeated:
            assert "names" not in blendfilter("eval", "--like", "one", *repeated).error
        assert select.select([server], [], [], 0)[0] == [], "it was called"
    assert not (here / "imported").exists()


def test_what_is_repeated_on_the_command_line_or_in_a_file_is_the_users_own(
    blendfilter: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(here)
    (here / "own_method.py").write_text("from blendfilter import Direct\nclass Mine(Direct): pass\n")
    assert not blendfilter(*small_eval("direct", "one"), "--method", "own_method:Mine").code
    refused(blendfilter("eval", "--like", "one", "--run", "two"), "--method own_method:Mine: code")
    assert not blendfilter("eval", "--like", "one", "--run", "two", "--method", "own_method:Mine").code
    (here / "own.toml").write_text('method = "own_method:Mine"\n')
    assert not blendfilter("eval", "--like", "one", "--run", "three", "--config", "own.toml").code


def test_a_run_of_python_has_no_options(blendfilter: Command, here: Path) -> None:
    questions = bf.load([{"question": "Who?", "answer": "Me"}])
    bf.evaluate(bf.Direct(), questions, lm=bf.connect("offline"), run=here / "mine", progress=False)
    outcome = blendfilter("eval", "--like", "mine")
    refused(outcome)
    assert "only a run that blendfilter eval made" in outcome.error


# wrong names


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--lm", "ofline"], "offline"),
        (["--lm", "opnai/x"], "openai"),
        (["--corpus", "sampel"], "sample"),
        (["--filter", "filcoo"], "filco"),
        (["--method", "blendfiltr"], "blendfilter"),
        (["--prompts", "papr"], "paper"),
        (["--wording", "hotpotq"], "hotpotqa"),
    ],
)
def test_a_name_that_is_near_is_offered(blendfilter: Command, words: list[str], meant: str) -> None:
    outcome = blendfilter("ask", "Who?", *words)
    refused(outcome)
    assert f"Did you mean '{meant}'?" in outcome.error
