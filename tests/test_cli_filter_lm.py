"""Two models on the command line: `--filter-lm` (or `--judge-lm`) beside `--lm`, at the same place or at another."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from model_server import Server, serve
from refusing import NOBODY, refused
from small_world import Command, journaled, small_eval, stable

from blendfilter import Run, connect
from blendfilter.errors import MissingFile
from blendfilter.filters.written import BIDERFilter, TrainedFilCoFilter, TrainedPSGFilter
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.offline import OfflineEngine

QUESTION = "King Corvin had a lighthouse built on a lonely rock. In which town was its designer born?"
JUDGING = ("--method", "direct-retrieval", "--filter", "cdit", "-k", 2, "--limit", 2, "--no-html")
BOTH = "direct-retrieval"


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    """One that answers, and one that judges."""
    with ExitStack() as stack:
        yield (
            stack.enter_context(serve(reply="offline", keep=True)),
            stack.enter_context(serve(reply="offline", keep=True)),
        )


def names(server: Server) -> set[str]:
    return {body["model"] for body in server.stats()["bodies"]}


# --- where they are -------------------------------------------------------------------------------------------------


def test_each_model_is_asked_at_its_own_server(
    blendfilter: Command, here: Path, servers: tuple[Server, Server]
) -> None:
    answers, judges = servers
    words = ("--lm", "big", "--api-base", answers.url, "--judge-lm", "small", "--filter-api-base", judges.url)
    outcome = blendfilter(*small_eval(BOTH, "run"), *JUDGING, *words)
    assert outcome.code == 0, outcome.err
    assert (names(answers), names(judges)) == ({"big"}, {"small"})
    assert {record["stage"]: record["address"] for record in journaled(here / "run")} == {
        "direct": answers.url, "consistent": judges.url
    }  # fmt: skip
    assert "|lm:big|filter-lm:small|" in outcome.out.splitlines()[0]
    before = stable(here / "run")
    again = blendfilter(*small_eval(BOTH, "run"), *JUDGING, *words, "--replay")
    assert again.code == 0
    assert stable(here / "run") == before


def test_a_base_model_answers_and_a_chat_model_judges(
    blendfilter: Command, here: Path, servers: tuple[Server, Server]
) -> None:
    answers, judges = servers
    place = ("--api-base", answers.url, "--endpoint", "completions", "--filter-api-base", judges.url)
    words = (*small_eval(BOTH, "run"), *JUDGING, "--lm", "base", "--filter-lm", "chat", *place)
    assert blendfilter(*words, "--json-schema", "--temperature", 0.5).code == 0
    [prompts, messages] = ([body.keys() for body in server.stats()["bodies"]] for server in servers)
    assert all("prompt" in body for body in prompts)
    assert all("messages" in body for body in messages)
    assert {body["temperature"] for server in servers for body in server.stats()["bodies"]} == {0.5}
    assert blendfilter(*words, "--filter-endpoint", "completions", "--run", "two").code == 0
    assert "prompt" in judges.stats()["bodies"][-1]


def test_limits_of_servers_are_the_servers_models_and_not_the_readers(
    blendfilter: Command, here: Path, servers: tuple[Server, Server]
) -> None:
    _, judges = servers
    words = (*small_eval(BOTH, "run"), *JUDGING, "--filter-lm", "small", "--filter-api-base", judges.url)
    assert blendfilter(*words, "--rpm", 600, "--attempts", 2).code == 0, "offline takes no such limit, the judge does"
    refused(blendfilter(*small_eval(BOTH, "two"), *JUDGING, "--filter-lm", "offline", "--rpm", 600), "offline answers")


def test_a_file_has_either_name_and_a_run_gives_the_model_back(
    blendfilter: Command, here: Path, servers: tuple[Server, Server]
) -> None:
    _, judges = servers
    (here / "run.toml").write_text(f'judge-lm = "small"\nfilter-api-base = ["{judges.url}"]\n')
    assert blendfilter(*small_eval(BOTH, "one"), *JUDGING, "--config", "run.toml").code == 0
    options = json.loads((here / "one/run.json").read_text())["notes"]["options"]
    assert options["filter-lm"] == "small"
    assert "filter-api-base" not in options, "an address is no setting"
    again = blendfilter("eval", "--like", "one", "--run", "two", "--filter-api-base", judges.url, "--no-html")
    assert again.code == 0, again.err
    one, two = (json.loads((here / name / "run.json").read_text())["settings"] for name in ("one", "two"))
    assert one == two


# --- a plan, another model, one question ----------------------------------------------------------------------------


def test_a_plan_names_both_and_needs_no_key(blendfilter: Command, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    words = ("--lm", "openai/gpt-4o", "--filter-lm", "openai/gpt-4o-mini", "--plan", "--max-cost", 1)
    made = blendfilter(*small_eval("blendfilter", "run"), *words)
    assert made.code == 0, made.err
    assert re.search(r"^check .* gpt-4o-mini$", made.out, re.MULTILINE)
    assert re.search(r"^of gpt-4o +4 +16 ", made.out, re.MULTILINE)
    assert re.search(r"^of gpt-4o-mini +\d to \d|^of gpt-4o-mini +7 ", made.out, re.MULTILINE)
    assert "cost of gpt-4o: $2.5 in and $10 out" in made.out
    assert "cost of gpt-4o-mini: $0.15 in and $0.6 out" in made.out
    assert "--max-cost $1: enough" in made.out
    assert not (here / "run").exists()


def test_another_filter_model_in_the_same_folder_is_refused_in_one_line(blendfilter: Command, here: Path) -> None:
    assert blendfilter(*small_eval(BOTH, "run"), *JUDGING, "--filter-lm", "offline").code == 0
    outcome = blendfilter(*small_eval(BOTH, "run"), *JUDGING)
    refused(outcome, "the filter's model (--filter-lm) was offline, now none of its own. Give this run another folder")
    default = blendfilter("eval", "hotpotqa", "--data", "sample", *JUDGING, "--lm", "offline")
    other = blendfilter("eval", "hotpotqa", "--data", "sample", *JUDGING, "--lm", "offline", "--filter-lm", "offline")
    assert default.out.splitlines()[-1] != other.out.splitlines()[-1], "a folder of its own by default"


def test_ask_has_the_second_model_judge_and_says_where_it_failed(
    blendfilter: Command, servers: tuple[Server, Server]
) -> None:
    _, judges = servers
    words = ("ask", QUESTION, "--corpus", "sample", "--lm", "offline", "--filter", "cdit", "--method", BOTH)
    assert blendfilter(*words, "--filter-lm", "small", "--filter-api-base", judges.url).code == 0
    assert names(judges) == {"small"}
    with serve(behave="context", context_limit=10) as narrow:
        outcome = blendfilter(*words, "--filter-lm", "small", "--filter-api-base", narrow.url)
    assert outcome.code == 1
    assert outcome.error.startswith(f"blendfilter: {narrow.url}, stage 'consistent': ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--filter-api-base", NOBODY), "--filter-api-base is for a model of the filter's own: name it with"),
        (("--filter", "cdit", "--filter-lm", "small"), "--filter-lm: 'small' names no provider"),
        (("--filter", "cdit", "--filter-lm", "small"), "say where it is served (--filter-api-base URL)"),
        (("--filter", "cdit", "--filter-lm", "ofline"), "Did you mean 'offline'?"),
        (("--filter-lm", "offline"), "no filter of Direct asks a model"),
        (("--filter", "passage", "--filter-lm", "offline"), "no filter of Direct asks a model"),
    ],
)
def test_what_is_wrong_is_one_line(words: tuple[object, ...], said: str, blendfilter: Command, here: Path) -> None:
    for command in (small_eval(BOTH, "run"), ("ask", QUESTION, "--method", BOTH, "--corpus", "sample")):
        refused(blendfilter(*command, *words), said)
    assert not (here / "run").exists()


# --- compile, trim --------------------------------------------------------------------------------------------------


def test_a_method_is_compiled_with_another_model_in_its_filter(
    blendfilter: Command, here: Path, servers: tuple[Server, Server]
) -> None:
    _, judges = servers
    options: dict[str, Any] = {
        "--task": "hotpotqa", "--data": "sample", "--limit": 8, "-k": 2, "--train": 3, "--valid": 2, "--run": "made",
        "--out": "program.json", "--lm": "offline", "--filter": "cdit", "--optimizer": "bootstrap",
    }  # fmt: skip
    words = ["compile", BOTH, *(word for pair in options.items() for word in pair)]
    second = ("--filter-lm", "small", "--filter-api-base", judges.url)
    outcome = blendfilter(*words, *second)
    assert outcome.code == 0, outcome.err
    assert {record["stage"] for record in journaled(here / "made") if record["model"] == "small"} == {"consistent"}
    program = json.loads((here / "program.json").read_text())
    assert program["metadata"]["recipe"]["settings"]["filter_lm"] == "small"
    assert {each["lm"] for name, each in program.items() if name != "metadata"} == {None}
    refused(blendfilter(*words), "settings.filter_lm was 'small', now None")


def test_a_filter_that_is_compiled_itself_has_one_model(blendfilter: Command) -> None:
    words = ("compile", "cdit", "--task", "hotpotqa", "--data", "sample", "--out", "p.json", "--run", "made")
    refused(blendfilter(*words, "--judge-lm", "offline"), "cdit is a filter itself")


def test_trim_has_one_model_which_is_the_judge_by_either_name(
    blendfilter: Command, here: Path, servers: tuple[Server, Server]
) -> None:
    _, judges = servers
    (here / "corpus.jsonl").write_text('{"id": "a", "title": "T", "text": "Jack turned on the radio."}\n')
    (here / "asked.txt").write_text("Who turned on the radio?\n")
    assert blendfilter("index", "corpus.jsonl", "--out", "radio").code == 0
    words = ("trim", "radio", "--questions", "asked.txt", "--judge-lm", "small", "--api-base", judges.url)
    assert blendfilter(*words).code == 0
    assert names(judges) == {"small"}
    refused(blendfilter(*words, "--lm", "offline"), "--lm and --judge-lm name the same model")


def test_a_run_of_python_is_the_same_run(blendfilter: Command, here: Path) -> None:
    from blendfilter import BM25, Direct, evaluate, load
    from blendfilter.filters.registry import make_filter
    from blendfilter.resources import sample

    assert blendfilter(*small_eval(BOTH, "run"), *JUDGING, "--filter-lm", "offline").code == 0
    method = Direct(BM25.for_corpus(sample("corpus.jsonl")), k=2, filter=make_filter("cdit"))
    questions = load("hotpotqa", "sample", limit=2)
    done = evaluate(
        method, questions, lm="offline", filter_lm="offline", run=here / "run", name=BOTH, progress=False, replay=True
    )
    assert done.metrics == Run(here / "run").metrics


# --- a trained model that writes the context ------------------------------------------------------------------------


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Models of Hugging Face are the offline reader under their own names here; which were opened."""
    opened: list[str] = []

    @functools.wraps(connect)
    def connected(name: Any = "offline", **settings: Any) -> ConnectedLM:
        if not str(name).startswith("hf/"):
            return connect(name, **settings)
        opened.append(name)
        if not Path(name.removeprefix("hf/")).is_dir():
            raise MissingFile(f"no model '{name}'")
        engine, identity = (
            OfflineEngine(),
            {"options": {"weights": "0123456789abcdef"}, "endpoint": settings.get("endpoint", "chat")},
        )
        return ConnectedLM(Path(name).name, engine, identity=identity, temperature=0.0)

    monkeypatch.setattr("blendfilter.lm.model.connect", connected)
    return opened


def trained(folder: Path, **recipe: Any) -> Path:
    folder.mkdir()
    (folder / "recipe.json").write_text(json.dumps({"format": 1, **recipe}))
    return folder


@pytest.mark.parametrize("select", ["filco", "filco-passage", "bider"])
@pytest.mark.parametrize("method", ["direct-retrieval", "blendfilter", "iter-retgen"])
def test_a_trained_filter_is_a_model_of_the_run(
    method: str, select: str, blendfilter: Command, here: Path, in_process: list[str]
) -> None:
    kind = {"filco": TrainedFilCoFilter, "filco-passage": TrainedPSGFilter, "bider": BIDERFilter}[select]
    trained(here / "m_ctx", **kind().recipe)
    words = (*small_eval(method, "run"), "--method", method, "--limit", 2, "--no-html", "--filter", select,
             "--filter-model", "m_ctx")  # fmt: skip
    outcome = blendfilter(*words)
    assert outcome.code == 0, outcome.err
    assert "|filter-lm:m_ctx|" in outcome.out.splitlines()[0]
    calls = journaled(here / "run")
    assert {call["stage"] for call in calls if call["model"] == "m_ctx"} == {"write"}
    assert all(call["model"] == "offline" for call in calls if call["stage"] != "write")
    run = Run(here / "run")
    assert run.settings["lm"]["filter"]["options"] == {"weights": "0123456789abcdef"}
    assert run.settings["method"]["arguments"]["filter_max_input_tokens"] == 1024
    assert run.metrics["ledger"]["write"]["models"].keys() == {"m_ctx"}
    before = stable(here / "run")
    assert blendfilter(*words, "--replay").code == 0
    (here / "m_ctx" / "recipe.json").unlink()
    (here / "m_ctx").rmdir()
    gone = blendfilter(*words, "--replay")
    assert gone.code == 0, gone.err
    assert "the filter's model cannot be had" in gone.err
    assert stable(here / "run") == before
    assert set(in_process) == {"hf/m_ctx"}


def test_a_trained_filter_is_asked_as_it_was_trained(blendfilter: Command, here: Path, in_process: list[str]) -> None:
    trained(here / "m_ctx", part="bider", settings={"chat": False, "max_input_tokens": 150})
    words = (*small_eval("direct-retrieval", "run"), "--method", "direct-retrieval", "--limit", 2, "--no-html",
             "--filter", "bider", "--filter-model", "m_ctx")  # fmt: skip
    outcome = blendfilter(*words)
    assert outcome.code == 0, outcome.err
    settings = Run(here / "run").settings
    assert settings["lm"]["filter"]["endpoint"] == "completions"
    assert settings["method"]["arguments"]["filter_max_input_tokens"] == 150
    refused(blendfilter(*words, "--filter-endpoint", "chat"),
            "m_ctx was trained on raw prompts: ask it so (endpoint completions)")  # fmt: skip


def test_ask_and_a_plan_have_it_too(blendfilter: Command, here: Path, in_process: list[str]) -> None:
    trained(here / "m_ctx", part="bider")
    words = ("--method", "direct-retrieval", "--filter", "bider", "--filter-model", "hf/m_ctx")
    asked = blendfilter("ask", QUESTION, "--corpus", "sample", "--lm", "offline", *words, "--show-trace")
    assert asked.code == 0, asked.err
    assert "calls      2" in asked.out
    planned = blendfilter(*small_eval(BOTH, "run"), *words, "--limit", 2, "--plan")
    assert planned.code == 0, planned.err
    assert "write" in planned.out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--filter", "bider"), "the filter bider is a trained model: name it as --filter-model"),
        (
            ("--filter", "filco", "--filter-unmatched", "drop"),
            "unmatched is for a trained model of FilCo's: name it as --filter-model",
        ),
        (("--filter", "filco", "--filter-model", "m_gen"), "m_gen was trained as FilCo's generator (it answers: --lm)"),
        (("--filter", "filco", "--filter-model", "m_gen", "--filter-lm", "x"), "--filter-lm and --filter-model both"),
        (("--filter", "filco-passage", "--filter-model", "m_ctx"), "was trained as BIDER, and TrainedPSGFilter wants"),
        (("--filter", "bider", "--filter-model", "gone"), "--filter-model: no model 'hf/gone'"),
        (("--filter", "bider", "--filter-model", "m_ctx", "--filter-unmatched", "keeep"), "no unmatched 'keeep'"),
        (("--filter", "bider", "--filter-model", "m_ctx", "--filter-max-input-tokens", "0"), "max_input_tokens is 0"),
    ],
)
def test_what_is_no_trained_filter_is_one_line(
    words: tuple[str, ...], line: str, blendfilter: Command, here: Path, in_process: list[str]
) -> None:
    trained(here / "m_gen", part="generator")
    trained(here / "m_ctx", part="bider")
    refused(blendfilter(*small_eval(BOTH, "run"), "--method", BOTH, *words), line)
