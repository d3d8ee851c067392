"""The command line as a user meets it: what each command does, what its help teaches, and how it ends.

Most commands run in this process; a few go through the shell, where the entry point, start-up and signals are the same
as a user's.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from model_server import serve
from small_world import FILES, Command, shell, small_eval, stable

from blendfilter import cli
from blendfilter.journal import Journal

COMMANDS = ("ask", "index", "search", "eval", "report", "compare")
OFFLINE_NOTICE = "blendfilter: no --lm: the offline reader answers, which shows the pipeline, not its quality"
SAMPLE_NOTICE = "blendfilter: no --corpus and no --index: asking the sample world that comes with blendfilter"
QUESTION = "King Corvin had a lighthouse built on a lonely rock. In which town was its designer born?"


# help


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_the_first_help_names_every_command(blendfilter: Command, words: tuple[str, ...]) -> None:
    told = blendfilter(*words)
    assert (told.code, told.err) == (0, "")
    assert told.out.startswith("Usage: blendfilter ")
    for name in COMMANDS:
        assert re.search(rf"^  {name}  +\S", told.out, re.MULTILINE), name
    said = " ".join(told.out.split())
    for code in ("Exit codes: 0 done; 1 the work failed", "or too many replies were bad; 2 ", "; 3 a budget is spent"):
        assert code in said


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_explains_every_option(blendfilter: Command, name: str) -> None:
    told = blendfilter(name, "--help")
    assert (told.code, told.err) == (0, "")
    assert told.out.startswith(f"Usage: blendfilter {name} ")
    said = " ".join(told.out.split())
    parameters = typer.main.get_command(cli.app).commands[name].params
    assert len(parameters) >= 1
    for each in parameters:
        assert f" {max(each.opts, key=len)} " in said, each.name
        assert len(each.help or "") > 8, f"{each.name} is not explained"
        # A line may end at a hyphen.
        assert each.help.replace("- ", "-") in said.replace("- ", "-"), each.name
    assert max(map(len, told.out.splitlines())) <= 110


@pytest.mark.parametrize("name", ["ask", "index", "search", "eval", "report", "compare"])
def test_the_help_of_a_command_shows_an_example(blendfilter: Command, name: str) -> None:
    said = " ".join(blendfilter(name, "--help").out.split())
    assert f"Example: blendfilter {name} " in said


def test_help_imports_neither_dspy_nor_torch() -> None:
    heavy = ("dspy", "torch", "openai", "numpy", "pandas")
    code = (
        "import sys\nsys.argv = ['blendfilter', *sys.argv[1:]]\n"
        "from blendfilter import cli\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    for words in (["--help"], ["eval", "--help"]):
        ended = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
        assert ended.stderr == "[]\n"
        assert "Usage: blendfilter" in ended.stdout


# ask


def test_ask_prints_the_answer_alone(blendfilter: Command) -> None:
    told = blendfilter("ask", QUESTION)
    assert told.code == 0
    assert told.notices == [SAMPLE_NOTICE, OFFLINE_NOTICE]
    assert len(told.out.splitlines()) == 1
    assert blendfilter("ask", QUESTION, "--lm", "offline", "--corpus", "sample") == (0, told.out, "")


def test_ask_shows_its_trace(blendfilter: Command) -> None:
    told = blendfilter("ask", QUESTION, "--lm", "offline", "--corpus", "sample", "--show-trace", "--k", 3)
    lines = told.out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("q")] == ["q", "q_ex", "q_in"]
    assert f"     {QUESTION}" in lines
    marked = [line for line in lines if re.match(r"     [+-] \S", line)]
    assert len(marked) == 9, "three queries, three passages each"
    assert any(line.startswith("     +") for line in marked)
    assert any("Corvin" in line for line in marked)
    assert lines[-2].startswith("answer     ")
    assert re.match(r"calls +\d+", lines[-1])


@pytest.mark.parametrize("method", ["direct", "cot"])
def test_ask_without_passages_searches_nothing(blendfilter: Command, method: str) -> None:
    told = blendfilter("ask", QUESTION, "--lm", "offline", "--method", method)
    assert (told.code, told.err) == (0, "")


def test_ask_refuses_a_question_that_is_no_text(blendfilter: Command) -> None:
    refused = blendfilter("ask", "Who \udcff kept the light?")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == "blendfilter: the question holds bytes that are no UTF-8: write it in UTF-8\n"


def test_ask_takes_every_setting_to_the_model(blendfilter: Command, here: Path) -> None:
    (here / "prompts").mkdir()
    (here / "prompts/direct.j2").write_text("{{ instructions }}\nMINE\nQuestion: {{ question }}\nAnswer:")
    with serve(keep=True, reply="Hathermouth") as server:
        told = blendfilter(
            "ask", QUESTION, "--method", "direct", "--lm", "Org/model", "--api-base", server.url,
            "--endpoint", "completions", "--temperature", 0.5, "--top-p", 0.9, "--prompts", "prompts", "--label", "b",
            "--wording", "strategyqa",
        )  # fmt: skip
        stats = server.stats()
    assert (told.code, told.out) == (0, "Hathermouth\n")
    [body] = stats["bodies"]
    assert (body["model"], body["temperature"], body["top_p"]) == ("Org/model", 0.5, 0.9)
    assert "\nMINE\n" in body["prompt"]
    assert QUESTION in body["prompt"]


def test_ask_leaves_queries_out(blendfilter: Command) -> None:
    told = blendfilter("ask", QUESTION, "--lm", "offline", "--corpus", "sample", "--show-trace", "--without", "q, q_in")
    assert [line.split()[0] for line in told.out.splitlines() if line.startswith("q")] == ["q_ex"]


# index and search


def test_index_and_search(blendfilter: Command, here: Path) -> None:
    rows = [
        {"id": "a", "title": "Orm Pier", "text": "A pier in Tavenby."},
        {"id": "b", "title": "Fell", "text": "A hill."},
    ]
    (here / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = blendfilter("index", "mine.jsonl", "--out", "made")
    assert (told.code, told.err) == (0, "")
    match = re.fullmatch(r"made: bm25, 2 passages, fingerprint ([0-9a-f]{16})\n", told.out)
    assert match
    assert json.loads((here / "made/manifest.json").read_text())["fingerprint"] == match[1]
    told = blendfilter("search", "made", "which pier?", "-k", 1)
    assert (told.code, told.err) == (0, "")
    assert re.fullmatch(r"1\t\d\.\d{4}\ta\tOrm Pier \| A pier in Tavenby\.\n", told.out)
    assert blendfilter("search", "made", "zebra", "--k", 2) == (
        0,
        "",
        "blendfilter: no passage shares a word with this query\n",
    )
    again = blendfilter("index", "mine.jsonl", "--out", "made", "--overwrite", "--k1", 1.2, "--b", 0.75)
    assert again.code == 0
    assert match[1] not in again.out, "other settings, another fingerprint"
    other = blendfilter("index", "mine.jsonl", "--out", "other", "--engine", "rank-bm25")
    assert other.out.startswith("other: rank-bm25, 2 passages")
    asked = blendfilter(
        "ask", "Where is Orm Pier?", "--lm", "offline", "--index", "made", "--method", "direct-retrieval"
    )
    assert asked.code == 0


def test_the_sample_corpus_by_its_name(blendfilter: Command) -> None:
    told = blendfilter("index", "sample", "--out", "made")
    assert re.match(r"made: bm25, 1\d\d passages", told.out)


# eval, report, compare


def test_eval_reports_and_leaves_a_run(blendfilter: Command, here: Path) -> None:
    told = blendfilter(*small_eval("blendfilter", "runs/one"))
    assert told.code == 0
    assert told.notices[-1].startswith("4/4 questions  ")
    assert {path.name for path in (here / "runs/one").iterdir()} == FILES | {"report.html"}
    metrics = json.loads((here / "runs/one/metrics.json").read_text())
    lines = told.out.splitlines()
    assert lines[0] == metrics["signature"], "the headline, on one line"
    assert lines[-2:] == ["page: runs/one/report.html", "run: runs/one"]
    for words in ("offline reader answered", "Gold titles", "Where questions are lost", "Ledger"):
        assert words in told.out
    assert "\x1b" not in told.out, "no colours where nobody looks"
    shown = blendfilter("report", "runs/one")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.splitlines()[0] == metrics["signature"]
    assert told.out.startswith(shown.out)


def test_pages_where_they_are_wanted(blendfilter: Command, here: Path) -> None:
    assert "page: " not in blendfilter(*small_eval("direct", "direct", "--no-html")).out
    assert {path.name for path in (here / "direct").iterdir()} == FILES
    blendfilter(*small_eval("cot-retrieval", "cot", "--no-html"))
    told = blendfilter("report", "direct", "cot")
    assert (told.code, told.out.splitlines()[-1]) == (0, "page: direct/report.html")
    page = (here / "direct/report.html").read_text()
    assert "Methods side by side" in page
    assert "cot-retrieval" in page
    (here / "direct/report.html").unlink()
    (here / "direct/report.html").mkdir()
    told = blendfilter("report", "direct")
    assert told.code == 0, "the text was shown"
    assert told.error.startswith("blendfilter: no page was written: ")


def test_eval_again_goes_on_there(blendfilter: Command, here: Path) -> None:
    first = blendfilter(*small_eval("cot-retrieval", "run"))
    before = stable(here / "run")
    again = blendfilter(*small_eval("cot-retrieval", "run", "--concurrency", 2))
    assert (again.code, again.err) == (0, "4/4 questions were answered in an earlier session\n")
    assert again.out == first.out
    assert stable(here / "run") == before
    replayed = blendfilter(*small_eval("cot-retrieval", "run", "--replay"))
    assert replayed.code == 0
    assert stable(here / "run") == before


def test_eval_names_its_folder_by_what_is_asked(blendfilter: Command, here: Path) -> None:
    words = [word for word in small_eval("direct-retrieval", "x") if word not in ("--run", "x")]
    told = blendfilter(*words)
    assert told.code == 0
    [folder] = (here / "runs").iterdir()
    assert re.fullmatch(r"hotpotqa-direct-retrieval-[0-9a-f]{8}", folder.name)
    assert told.out.splitlines()[-1] == f"run: runs/{folder.name}"
    assert blendfilter(*words).code == 0
    assert blendfilter(*words, "--k", 2).code == 0
    assert len(list((here / "runs").iterdir())) == 2, "the same command finds its run, another one gets its own"


def test_eval_of_the_sample_needs_no_corpus(blendfilter: Command, here: Path) -> None:
    told = blendfilter("eval", "qa", "--data", "sample", "--limit", 2, "--method", "direct-retrieval", "--run", "run")
    assert told.code == 0
    assert told.notices[0] == OFFLINE_NOTICE
    assert json.loads((here / "run/run.json").read_text())["settings"]["retrievers"][0]["kind"] == "bm25"


def test_eval_of_ones_own_questions_pooled(blendfilter: Command, here: Path) -> None:
    context = [{"title": "Orm Pier", "text": "Orm Pier stands in Tavenby."}, {"title": "Fell", "text": "A hill."}]
    row = {"question": "Where does Orm Pier stand?", "answer": "Tavenby", "context": context}
    (here / "mine.jsonl").write_text(json.dumps(row))
    words = ("--corpus", "pooled", "--method", "direct-retrieval", "--lm", "offline", "--run", "run", "-k", 2)
    told = blendfilter("eval", "qa", "--data", "mine.jsonl", *words, "--metric", "f1", "--metric", "accuracy")
    assert told.code == 0
    metrics = json.loads((here / "run/metrics.json").read_text())
    assert list(metrics["metrics"]) == ["f1", "accuracy"]
    assert metrics["signature"].startswith("qa F1 ")


def test_eval_of_a_class_of_ones_own(blendfilter: Command, here: Path) -> None:
    (here / "own_methods.py").write_text(
        "import dspy\n"
        "class Mine(dspy.Module):\n"
        "    def __init__(self, index, k):\n"
        "        super().__init__()\n"
        "        self.index, self.k = index, k\n"
        "    def forward(self, question):\n"
        "        found = self.index(question, k=self.k)\n"
        "        return dspy.Prediction(answer=found[0].title, knowledge=found)\n"
        "class Bare(dspy.Module):\n"
        "    def forward(self, question):\n"
        "        return dspy.Prediction(answer='x')\n"
        "class Wrong(Bare):\n"
        "    def forward(self, question):\n"
        "        raise ValueError('a mistake of mine')\n"
    )
    sys.modules.pop("own_methods", None)
    assert blendfilter(*small_eval("own_methods:Mine", "mine", "--k", 2)).code == 0
    rows = [json.loads(line) for line in (here / "mine/predictions.jsonl").read_text().splitlines()]
    assert [len(row["knowledge"]) for row in rows] == [2] * 4
    assert json.loads((here / "mine/metrics.json").read_text())["method"] == "own_methods:Mine"
    assert blendfilter(*small_eval("own_methods:Bare", "bare")).code == 0
    told = blendfilter(*small_eval("own_methods:Wrong", "wrong"))
    assert told.code == 1
    assert told.error == "blendfilter: 4 of 4 questions ended in an error; the same command asks them again"
    assert "ValueError: a mistake of mine" in told.out
    assert "Traceback" not in told.err
    told = blendfilter(
        "eval", "hotpotqa", "--data", "sample", "--lm", "offline", "--method", "own_methods:Bare", "--limit", 1
    )
    assert told.out.splitlines()[-1].startswith("run: runs/hotpotqa-own_methods.Bare-")


def test_eval_reuses_and_leaves_out(blendfilter: Command, here: Path) -> None:
    assert blendfilter(*small_eval("cot-retrieval", "cot")).code == 0
    with Journal(here / "cot", "replay") as journal:
        cot = {record["key"] for record in journal.records() if record["kind"] == "call"}
    told = blendfilter(*small_eval("blendfilter", "blend", "--reuse", "cot", "--without", "q,q_in", "--seed", 5))
    assert told.code == 0
    settings = json.loads((here / "blend/run.json").read_text())["settings"]
    assert settings["method"]["arguments"]["without"] == "q,q_in"
    assert settings["seed"] == 5
    rows = [json.loads(line) for line in (here / "blend/predictions.jsonl").read_text().splitlines()]
    assert all(list(row["queries"]) == ["q_ex"] for row in rows)
    assert {key for row in rows for stage, key in row["calls"] if stage == "external"} <= cot


def test_compare_shows_a_table_without_p_values_for_the_offline_reader(blendfilter: Command) -> None:
    for method in ("direct-retrieval", "blendfilter"):
        assert blendfilter(*small_eval(method, method)).code == 0
    told = blendfilter("compare", "direct-retrieval", "blendfilter")
    assert (told.code, told.err) == (0, "")
    assert "against direct-retrieval, the same 4 questions" in told.out
    assert "no p-value: the offline reader shows the pipeline, not its quality" in told.out
    assert not re.search(r"p < |p: exact", told.out)
    f1 = blendfilter("compare", "direct-retrieval", "blendfilter", "--metric", "f1", "--seed", 3)
    assert "seed 3" in f1.out
    assert " em " not in f1.out


# endings


def test_a_traceback_only_where_it_is_asked_for(blendfilter: Command) -> None:
    from blendfilter.errors import MissingFile

    assert blendfilter("report", "gone").code == 2
    with pytest.raises(MissingFile):
        blendfilter("--debug", "report", "gone")
    assert blendfilter("report", "gone").code == 2, "asked for once"


def test_what_the_system_refuses_is_one_line(blendfilter: Command, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "runs/one/run.json")

    monkeypatch.setattr("blendfilter.files.os.fsync", full)
    told = blendfilter(*small_eval("direct-retrieval", "runs/one"))
    assert (told.code, told.err) == (1, "blendfilter: runs/one/run.json: No space left on device\n")


def test_through_the_shell(here: Path) -> None:
    """The entry point itself: the same words, the same ends, nothing else on either stream."""
    told = shell(*small_eval("direct-retrieval", "run"))
    assert told.code == 0
    assert [line.split()[0] for line in told.notices] == ["1/4", "2/4", "3/4", "4/4"]
    assert shell("ask", QUESTION).notices == [SAMPLE_NOTICE, OFFLINE_NOTICE]
    ended = subprocess.run(
        [Path(sys.executable).parent / "blendfilter", "report", "run"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("hotpotqa EM ")


def test_a_reader_that_goes_away(here: Path, blendfilter: Command) -> None:
    assert blendfilter(*small_eval("direct-retrieval", "run")).code == 0
    ended = subprocess.run(
        f"{sys.executable} -m blendfilter.cli report run | true",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in ended.stderr
    assert "Error" not in ended.stderr
