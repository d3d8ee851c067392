"""`blendfilter reproduce`: tables and figures on the sample world, wrong options, and calls counted by a server."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from model_server import serve
from reproduce_world import JUDGED_HEAD, JUDGED_ROWS, written

from blendfilter import Run
from blendfilter.cli import main
from blendfilter.journal import Journal
from blendfilter.reproduce import tables

pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[2]
ALL = list(tables.names())


class Outcome(NamedTuple):
    """How the command ended."""

    code: int
    out: str
    err: str


Reproduce = Callable[..., Outcome]


@pytest.fixture
def reproduce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Reproduce:
    """The command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BLENDFILTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")  # of the terminal

    def run(*words: object) -> Outcome:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["blendfilter", "reproduce", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Outcome(ended.value.code or 0, *capsys.readouterr())  # type: ignore[arg-type]

    return run


def table_folder(name: str) -> Path:
    """The one folder of a table."""
    (found,) = Path("runs").glob(f"{name}-*")
    return found


def table_lines(name: str) -> list[dict[str, object]]:
    """The lines of its JSON."""
    found: list[dict[str, object]] = json.loads((table_folder(name) / "table.json").read_text("utf-8"))["lines"]
    return found


def documented() -> str:
    return re.sub(r"\s+", " ", (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8").replace("\\\n", " "))


# --- tables and figures ---


@pytest.mark.parametrize("name", [name for name in ALL if not name.startswith(("filco-", "cdit-", "bider-"))])
def test_every_table_and_figure_is_one_command(name: str, reproduce: Reproduce) -> None:
    words = (name, "--data", "sample", "--limit", 2, "--no-plots")
    done, table = reproduce(*words), tables.read(name)
    assert done.code == 0, done.err
    assert done.out.startswith(f"{name}: {table.title}")
    assert "no p-value" in done.out
    assert f"other reader: the published figures are {table.reader}'s" in done.out
    assert {"table.md", "table.json"} == {path.name for path in table_folder(name).iterdir()}
    lines = table_lines(name)
    assert {line["label"] for line in lines} == {row.label for row in table.rows}
    assert {line["task"] for line in lines} == set(table.tasks)
    for row in table.rows:
        for task, figures in row.published.items():
            place = (task, row.group, row.label)
            found = {x["measure"]: x["published"] for x in lines if (x["task"], x["group"], x["label"]) == place}
            assert found == figures.model_dump(exclude={"imp"}, exclude_none=True)
    again = reproduce(*words)
    assert again.err.count("(finished before)") == again.err.count("blendfilter: run ") > 0
    assert again.out == done.out


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALL if name.startswith("bider-")])
def test_biders_tables_show_every_row_whatever_is_here(name: str, reproduce: Reproduce) -> None:
    """No model of a row's filter is here: BM25 and the passages as they are can be measured, the others say why not."""
    done, table = reproduce(name, "--data", "sample", "--limit", 1, "--tasks", "nq", "--no-plots"), tables.read(name)
    assert done.code == 0, done.err
    lines = table_lines(name)
    assert [row.label for row in table.rows if row.label not in {line["label"] for line in lines}] == []
    for row in table.rows:
        missing = {line["missing"] for line in lines if (line["group"], line["label"]) == (row.group, row.label)}
        assert missing == {row.settings("nq").get("filter") not in (None, "full", "sentence") or
                           "filter_model" in row.settings("nq")}  # fmt: skip
        if missing == {True}:
            assert re.search(rf"nq: (.*; )?{re.escape(row.name)}(; .*)?: not run: .{{20}}", done.out)
    aligned = any(row.settings("nq").get("filter_model") == "aligned" for row in table.rows)
    assert done.out.count("not run: no aligned model is named (--filter-model aligned:") == aligned, "a line a reason"


def test_all_models_are_shown_where_asked_for(reproduce: Reproduce) -> None:
    words = ("--data", "sample", "--limit", 1, "--no-plots", "--all-models")
    done = reproduce("cdit-table2", "--tasks", "popqa", *words)
    assert done.code == 0, done.err
    assert {f"{name}, IndexFlatL2" for name in ("Llama2-7b", "Falcon-7b")} <= set(done.out.splitlines())
    wrong = reproduce("table1", *words)
    assert (wrong.code, wrong.out) == (2, "")
    assert "table1 prints one model's figures: leave --all-models out" in wrong.err


@pytest.mark.parametrize("name", ["table4", "figure2", "figure3", "figure4"])
def test_every_kind_is_drawn(name: str, reproduce: Reproduce) -> None:
    done = reproduce(name, "--data", "sample", "--limit", 2, "--methods", "blendfilter,iter-retgen")
    assert done.code == 0, done.err
    stems = ["headline-hotpotqa", "losses-hotpotqa"] if name == "table4" else [name]
    drawn = {f"{stem}.{suffix}" for stem in stems for suffix in ("svg", "png")}
    assert {"table.md", "table.json", *drawn} == {path.name for path in table_folder(name).iterdir()}
    assert {str(table_folder(name) / each) for each in drawn} <= set(done.out.splitlines())
    svg = (table_folder(name) / f"{stems[0]}.svg").read_text(encoding="utf-8")
    assert "offline reader: shows the pipeline, not quality" in svg
    assert "ITER-RETGEN" in svg


def test_a_plan_spends_nothing(reproduce: Reproduce) -> None:
    done = reproduce("table4", "--data", "sample", "--limit", 50, "--plan")
    assert done.code == 0
    assert "11.00" in done.out
    assert "the offline reader: nothing was spent" in done.out
    assert not Path("runs").exists()


@pytest.mark.parametrize(("name", "task"), [("table2", "hotpotqa"), ("table3", "hotpotqa"), ("filco-table4", "nq")])
def test_open_readers_are_served_by_the_commands_of_the_documents(name: str, task: str, reproduce: Reproduce) -> None:
    done, table = reproduce(name, "--data", "sample", "--limit", 1, "--tasks", task, "--plan"), tables.read(name)
    for command in (*table.serve, f"blendfilter reproduce {name} {table.ask}"):
        assert command.replace("{papers}", str(tables.PAPERS)) in done.out
        assert command.replace("{papers}", "blendfilter/reproduce/papers") in documented()
    for template in re.findall(r"--chat-template (\S+)", done.out):
        assert Path(template).is_file()
    assert ("near the paper's reader: Llama 2 7B chat, not fine-tuned" in done.out) is (name == "filco-table4")


def test_the_list_names_all(reproduce: Reproduce) -> None:
    assert [line.split()[0] for line in reproduce("--list").out.splitlines()] == ALL


def test_a_table_of_ones_own_trims_then_runs_and_a_plan_of_it_is_free(reproduce: Reproduce) -> None:
    written(Path(), JUDGED_HEAD + JUDGED_ROWS)
    words = ("small.toml", "--data", "sample", "--limit", 3, "--no-plots")
    assert "15 calls of the judge at most" in reproduce(*words, "--plan").out
    assert not Path("runs").exists()
    done = reproduce(*words)
    assert "blendfilter: trimming: trimmed/popqa-phi1-k5-bm25-3-" in done.err
    assert "3 judged, " in done.out
    assert "pairs separated" in (table_folder("small") / "table.md").read_text(encoding="utf-8")
    again = reproduce(*words)
    assert again.out == done.out
    assert again.err.count("(finished before)") == 4


def test_another_limit_model_or_number_of_repeats_is_another_folder(reproduce: Reproduce) -> None:
    words = ("table4", "--data", "sample", "--methods", "direct", "--no-plots", "--limit")
    with serve(reply="offline") as server:
        for more in ((2,), (3,), (2, "--lm", "a/b:c", "--api-base", server.url), (2, "--repeats", 2)):
            assert reproduce(*words, *more).code == 0
    assert sorted(path.name.rpartition("-")[0] for path in Path("runs").glob("table4-*")) == [
        "table4-b_c-2", "table4-offline-2", "table4-offline-2", "table4-offline-3",
    ]  # fmt: skip
    twice = [Run(path) for path in Path("runs").glob("hotpotqa-*-r2-*")]
    assert [len(run.rows) for run in twice] == [4]
    texts = [path.read_text("utf-8") for path in Path("runs").glob("table4-offline-2-*/table.md")]
    assert sorted("calls, tokens: one answer's" in each for each in texts) == [False, True]


def test_without_matplotlib_the_table_is_there_and_one_line_says_the_rest(
    reproduce: Reproduce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ("table4", "--data", "sample", "--limit", 2, "--methods", "direct")
    done, quiet = reproduce(*words), reproduce(*words, "--no-plots")
    assert (done.code, done.out) == (0, quiet.out)
    assert next(line for line in done.err.splitlines() if "plot" in line).startswith("blendfilter: no plots: ")
    assert "no plots" not in quiet.err


# --- calls, counted by a server ---


def test_reuse_saves_two_calls_a_question_in_table_1(reproduce: Reproduce) -> None:
    """BlendFilter's external call, CoT's over the same passages and ITER-RETGEN's first are one call, made once."""
    questions, tasks = 4, 3
    with serve(reply="offline", keep=True) as server:
        words = ("table1", "--data", "sample", "--limit", questions, "--no-plots", "--lm", "test-model")
        done = reproduce(*words, "--api-base", server.url)
        assert done.code == 0, done.err
        requests = server.stats()["requests"]
        assert not any("response_format" in body for body in server.stats()["bodies"]), "ids are free text, as there"
        assert reproduce(*words, "--api-base", server.url).code == 0
        assert server.stats()["requests"] == requests  # finished: nothing is asked twice
    runs = [Run(path.parent) for path in Path("runs").glob("*/metrics.json")]
    used = sum(run.metrics["ledger"]["total"]["calls"] for run in runs)
    different = {(run.settings["task"], key) for run in runs for row in run.rows for _, key in row["calls"]}
    assert requests == len(different)
    assert used - requests >= 2 * questions * tasks
    assert f"{used} calls used by {len(runs)} runs, {requests} different ones" in done.out
    methods = ("blendfilter", "cot-retrieval", "iter-retgen")
    for named in zip(
        *([Run(path) for path in sorted(Path("runs").glob(f"*-{name}-k5-*"))] for name in methods), strict=True
    ):
        for rows in zip(*(run.rows for run in named), strict=True):
            external, answer, first = (dict(map(reversed, row["calls"])) for row in rows)
            (key,) = (key for key, stage in external.items() if stage == "external")
            assert key in answer
            assert key in first
    assert "Holm" in done.out


def test_one_model_judges_and_another_answers(reproduce: Reproduce) -> None:
    """CDIT's LLM(a) and LLM(b): the judge of the filter and of the trimmed index, and the generator."""
    written(Path(), JUDGED_HEAD + JUDGED_ROWS)
    with serve(reply="offline", keep=True) as answers, serve(reply="offline", keep=True) as judges:
        words = ("small.toml", "--data", "sample", "--limit", 3, "--no-plots", "--lm", "big", "--api-base", answers.url)
        second = ("--judge-lm", "small", "--filter-api-base", judges.url)
        planned = reproduce(*words, *second, "--plan")
        assert planned.code == 0, planned.err
        assert "cost of big: no price is known" in planned.out
        assert answers.stats()["requests"] == judges.stats()["requests"] == 0
        done = reproduce(*words, *second)
        assert done.code == 0, done.err
        asked = [{body["model"] for body in server.stats()["bodies"]} for server in (answers, judges)]
        assert asked == [{"big"}, {"small"}]
        requests = [server.stats()["requests"] for server in (answers, judges)]
        assert reproduce(*words, *second).out == done.out
        assert [server.stats()["requests"] for server in (answers, judges)] == requests, "nothing is asked twice"
        assert reproduce(*words, "--row", "CDIT").code == 0
        assert judges.stats()["requests"] == requests[1], "without the judge it is another run"
    assert "big answers; passages are filtered and judged by small (--filter-lm)" in done.out
    runs = {path.name: Run(path) for path in Path("runs").glob("popqa-*")}
    of_two = [name for name, run in runs.items() if run.settings["lm"].get("filter")]
    (cdit,) = of_two
    assert "-big-small-3-" in cdit
    assert runs[cdit].metrics["ledger"]["consistent"]["models"].keys() == {"small"}
    (overlay,) = Path("runs/trimmed").iterdir()
    with Journal(overlay, "replay") as journal:
        assert {record["model"] for record in journal.records("call")} == {"small"}


def test_a_row_is_read_by_a_model_of_its_own(reproduce: Reproduce) -> None:
    """By another name at the same server, from the command line or a file of settings."""
    words = ("table4", "--data", "sample", "--limit", 2, "--tasks", "hotpotqa", "--no-plots", "--lm", "big")
    with serve(reply="offline", keep=True) as server:
        served = (*words, "--api-base", server.url)
        done = reproduce(*served, "--methods", "direct,cot", "--row", "Direct.lm=hotpotqa=small")
        assert done.code == 0, done.err
        assert {body["model"] for body in server.stats()["bodies"]} == {"big", "small"}
        Path("rows.toml").write_text('row = ["Direct.lm=small"]\n')
        again = reproduce(*served, "--methods", "direct,cot", "--config", "rows.toml")
    assert again.out == done.out, "the same runs"
    assert "Direct: read by small" in done.out
    assert "CoT: read by big" in done.out
    lines = json.loads((table_folder("table4-2_readers") / "table.json").read_text())["lines"]
    assert {(line["label"], line["reader"]) for line in lines} == {("Direct", "small"), ("CoT", "big")}


def test_a_second_model_that_no_row_asks_is_said_to_change_nothing(reproduce: Reproduce) -> None:
    words = ("table4", "--data", "sample", "--limit", 1, "--methods", "direct", "--no-plots", "--filter-lm", "offline")
    assert "--filter-lm changes nothing: no row of table4 has a filter" in reproduce(*words).err


def test_the_papers_own_reader_is_asked_with_what_it_needs(reproduce: Reproduce) -> None:
    words = ("table3", "--data", "sample", "--limit", 1, "--tasks", "hotpotqa", "--methods", "direct", "--no-plots")
    with serve(reply="offline", keep=True) as server:
        own = reproduce(*words, "--lm", "Qwen/Qwen-7B-Chat", "--api-base", server.url)
        other = reproduce(*words, "--lm", "another", "--api-base", server.url)
        bodies = server.stats()["bodies"]
    assert [body.get("stop_token_ids") for body in bodies] == [[151643, 151645], None]
    assert "other reader" not in own.out
    assert "other reader: the published figures are Qwen-7B-Chat's, the measured ones another's" in other.out


def test_a_plan_needs_no_key(reproduce: Reproduce, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    words = ("table4", "--data", "sample", "--limit", 1, "--methods", "direct", "--lm", "openai/gpt-4o-mini")
    assert reproduce(*words, "--plan").code == 0


def test_failed_questions_end_in_1_and_are_asked_again(reproduce: Reproduce) -> None:
    words = ("table4", "--data", "sample", "--limit", 2, "--methods", "direct", "--no-plots", "--lm", "m")
    with serve(behave="context", context_limit=10) as server:
        failed = reproduce(*words, "--api-base", server.url)
    assert (failed.code, failed.out) == (1, ""), "no table of zeros"
    assert "all 2 questions failed the same way: context_too_long" in failed.err.splitlines()[-1]
    with serve(reply="offline") as server:
        assert reproduce(*words, "--api-base", server.url).code == 0


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("tabel1 --data sample", "no table 'tabel1'. Did you mean 'table1'?"),
        ("table1", "where are the questions of hotpotqa? Add --data hotpotqa=FILE"),
        ("table1 --data sample --methods reakt", "no method 'reakt'. Did you mean 'react'?"),
        ("table1 --data sample --prompts nowhere", "no folder of prompts at nowhere"),
        ("filco-table3 --data sample --measure nq=strink", "no measure 'strink'. Did you mean 'strinc'?"),
        ("filco-table3 --data sample --measure qa=strinc", "no task 'qa'"),
        ("filco-figure4 --data sample --tasks fever --row SILVER --scorer offline", "the offline reader"),
        ("filco-table3 --data sample --scorer-api-base http://127.0.0.1:9/v1", "name it with --scorer"),
        ("filco-table3 --data sample --program nowhere.json", "no program at nowhere.json"),
        ("filco-table4 --data sample --row FUL.lm=hf/x", "no row 'FUL'. Did you mean 'FULL'?"),
        ("filco-table4 --data sample --row FULL.model=x", "no key 'model'. (known: filter-lm, filter-model, lm)"),
        ("filco-table4 --data sample --tasks nq --row FULL.lm=hf/gone", "FULL.lm: no model 'gone'"),
        ("filco-table4 --data sample --row SILVER.filter-lm=x", "SILVER has no filter"),
        ("table1 --data sample --repeats 0", "--repeats is 0"),
        ("table1 --data sample --tasks=", "no row of table1 can be run"),
        ("table1 --data sample --api-base http://127.0.0.1:9/v1", "name it with --lm"),
    ],
)
def test_a_wrong_option_is_one_line(words: str, problem: str, reproduce: Reproduce) -> None:
    done = reproduce(*words.split())
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert line.startswith("blendfilter: ")
    assert problem in line
    assert not Path("runs").exists()
