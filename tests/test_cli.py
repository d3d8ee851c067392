"""The command line as a user meets it: what each command does, what its help teaches, and how it ends.

Most commands run in this process; a few go through the shell, where the entry point, start-up and signals are the same
as a user's.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import unruly
import yaml
from model_server import serve
from refusing import refused
from small_world import FILES, Command, journaled, shell, small_eval, stable

from blendfilter import cli
from blendfilter.errors import MissingFile
from blendfilter.journal import Journal
from blendfilter.lm.profiles import PROVIDERS, Provider
from blendfilter.resources import sample
from blendfilter.retrieval.analyser import Analyser

ROOT = Path(__file__).parents[1]
OFFLINE_NOTICE = "blendfilter: no --lm: the offline reader answers, which shows the pipeline, not its quality"
SAMPLE_NOTICE = "blendfilter: no --corpus and no --index: asking the sample world that comes with blendfilter"
COMMANDS = (
    "ask", "index", "search", "serve", "eval", "report", "compare", "rescore", "silver", "compile", "trim", "doctor",
)  # fmt: skip
QUESTION = "King Corvin had a lighthouse built on a lonely rock. In which town was its designer born?"


# help


@pytest.mark.parametrize("words", [(), ("--help",), ("--help-all",)])
def test_the_first_help_names_every_command(blendfilter: Command, words: tuple[str, ...]) -> None:
    outcome = blendfilter(*words)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("Usage: blendfilter ")
    for name in COMMANDS:
        assert re.search(rf"^  {name}  +\S", outcome.out, re.MULTILINE), name
    assert re.search(r"Exit codes: 0 .*; 1 .*; 2 .*; 3 a budget is spent", " ".join(outcome.out.split()))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_explains_every_option(blendfilter: Command, name: str) -> None:
    params = typer.main.get_command(cli.app).commands[name].params
    outcome = blendfilter(name, "--help-all")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"Usage: blendfilter {name} ")
    text = " ".join(outcome.out.split())
    for option in params:
        assert re.search(rf" {max(option.opts, key=len)}[ ,]", text), option.name
        assert len(option.help or "") > 8, f"{option.name} is not explained"
        # A line may end at a hyphen.
        assert option.help.replace("- ", "-") in text.replace("- ", "-"), option.name
    assert f"Example: blendfilter {name} " in text
    assert max(map(len, outcome.out.splitlines())) <= 110


# ask


def test_ask_prints_the_answer_alone(blendfilter: Command) -> None:
    outcome = blendfilter("ask", QUESTION)
    assert outcome.code == 0
    assert outcome.notices == [SAMPLE_NOTICE, OFFLINE_NOTICE]
    assert len(outcome.out.splitlines()) == 1
    assert blendfilter("ask", QUESTION, "--lm", "offline", "--corpus", "sample") == (0, outcome.out, "")


def test_ask_takes_every_setting_to_the_model(blendfilter: Command, here: Path) -> None:
    (here / "prompts").mkdir()
    (here / "prompts/direct.j2").write_text("{{ instructions }}\nMINE\nQuestion: {{ question }}\nAnswer:")
    with serve(keep=True, reply="Hathermouth") as server:
        outcome = blendfilter(
            "ask", QUESTION, "--method", "direct", "--lm", "Org/model", "--api-base", server.url,
            "--endpoint", "completions", "--temperature", 0.5, "--top-p", 0.9, "--prompts", "prompts", "--label", "b",
            "--wording", "strategyqa",
        )  # fmt: skip
        stats = server.stats()
    assert (outcome.code, outcome.out) == (0, "Hathermouth\n")
    [body] = stats["bodies"]
    assert (body["model"], body["temperature"], body["top_p"]) == ("Org/model", 0.5, 0.9)
    assert "\nMINE\n" in body["prompt"]
    assert QUESTION in body["prompt"]


# eval, report, compare


def test_eval_reports_and_leaves_a_run(blendfilter: Command, here: Path) -> None:
    outcome = blendfilter(*small_eval("blendfilter", "runs/one"))
    assert outcome.code == 0
    assert outcome.notices[-1].startswith("4/4 questions  ")
    assert {path.name for path in (here / "runs/one").iterdir()} == FILES | {"report.html"}
    metrics = json.loads((here / "runs/one/metrics.json").read_text())
    lines = outcome.out.splitlines()
    assert lines[0] == metrics["signature"], "the headline, on one line"
    assert lines[-2:] == ["page: runs/one/report.html", "run: runs/one"]
    for words in ("offline reader answered", "Gold titles", "Where questions are lost", "Ledger"):
        assert words in outcome.out
    assert "\x1b" not in outcome.out, "no colours where nobody looks"
    done = blendfilter("report", "runs/one")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0] == metrics["signature"]
    assert outcome.out.startswith(done.out)


def test_a_run_of_an_earlier_version_goes_on_with_its_analyser(
    blendfilter: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(Analyser.__init__, "__defaults__", (*Analyser.__init__.__defaults__[:-1], None))
        assert blendfilter(*small_eval("cot-retrieval", "run")).code == 0
    before = stable(here / "run")
    for more in ((), ("--replay",)):
        again = blendfilter(*small_eval("cot-retrieval", "run", *more))
        assert (again.code, stable(here / "run")) == (0, before)


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


def test_shards_merge_into_the_run_that_one_command_makes(blendfilter: Command, here: Path) -> None:
    blendfilter(*small_eval("blendfilter", "whole"))
    for number in (1, 2, 3):
        assert blendfilter(*small_eval("blendfilter", f"part-{number}", "--shard", f"{number}/3")).code == 0
    done = blendfilter("merge", "part-3", "part-1", "part-2", "--out", "merged")
    assert (done.code, done.out.splitlines()[-1]) == (0, "run: merged")
    assert stable(here / "merged") == stable(here / "whole")
    assert {path.name for path in (here / "merged").iterdir()} == {*FILES, "report.html"}
    again = blendfilter(*small_eval("blendfilter", "merged", "--like", "merged", "--replay"))
    assert (again.code, stable(here / "merged")) == (0, stable(here / "whole")), "it is no shard any more"


@pytest.mark.parametrize(
    ("shard", "words"),
    [
        ("8/7", "there is no shard 8/7: shards are numbered 1 to 7, and 4 questions make 4 shards at most"),
        ("2", "--shard is '2': give a number and how many there are, 1/4"),
        ("1/9", "there is no shard 1/9: shards are numbered 1 to 9, and 4 questions make 4 shards at most"),
    ],
)
def test_a_shard_that_is_none_asks_nothing(shard: str, words: str, blendfilter: Command, here: Path) -> None:
    outcome = blendfilter(*small_eval("blendfilter", "run", "--shard", shard))
    assert (outcome.code, outcome.error) == (2, f"blendfilter: {words}")
    assert not (here / "run").exists()


def test_without_a_folder_shards_share_a_name(blendfilter: Command, here: Path) -> None:
    for more in ([], ["--shard", "1/2"], ["--shard", "2/2"]):
        words = [*small_eval("direct-retrieval", ""), *more]
        del words[words.index("--run") : words.index("--run") + 2]
        assert blendfilter(*words).code == 0
    whole, *shards = sorted(path.name for path in (here / "runs").iterdir())
    assert shards == [f"{whole}-1of2", f"{whole}-2of2"]


def test_more_room_for_replies_is_a_setting_of_the_run(blendfilter: Command, here: Path) -> None:
    assert not blendfilter(*small_eval("cot", "run", "--reply-tokens", 512)).code
    assert json.loads((here / "run/run.json").read_text())["settings"]["method"]["reply_tokens"] == 512
    caps = {record["stage"]: record["parameters"]["max_tokens"] for record in journaled(here / "run")}
    assert caps == {"answer": 512, "short_answer": 32}
    again = blendfilter(*small_eval("cot", "run"))
    assert again.code == 2
    assert "method.reply_tokens was 512" in again.error
    wrong = blendfilter(*small_eval("cot", "other", "--reply-tokens", 5))
    assert (wrong.code, (here / "other").exists()) == (2, False)
    assert wrong.error == "blendfilter: reply_tokens is 5: give a whole number of tokens from 32 to 65536"


def test_eval_names_its_folder_by_its_settings(blendfilter: Command, here: Path) -> None:
    words = [word for word in small_eval("direct-retrieval", "x") if word not in ("--run", "x")]
    for more, folders in (((), 1), ((), 1), (("--k", 2), 2)):
        assert blendfilter(*words, *more).code == 0
        names = [folder.name for folder in (here / "runs").iterdir()]
        assert len(names) == folders, "the same command finds its run, another one gets its own"
        assert all(re.fullmatch(r"hotpotqa-direct-retrieval-[0-9a-f]{8}", name) for name in names)


def test_eval_reuses_and_leaves_out(blendfilter: Command, here: Path) -> None:
    assert blendfilter(*small_eval("cot-retrieval", "cot")).code == 0
    with Journal(here / "cot", "replay") as journal:
        cot = {record["key"] for record in journal.records() if record["kind"] == "call"}
    outcome = blendfilter(*small_eval("blendfilter", "blend", "--reuse", "cot", "--without", "q,q_in", "--seed", 5))
    assert outcome.code == 0
    settings = json.loads((here / "blend/run.json").read_text())["settings"]
    assert settings["method"]["arguments"]["without"] == "q,q_in"
    assert settings["seed"] == 5
    rows = [json.loads(line) for line in (here / "blend/predictions.jsonl").read_text().splitlines()]
    assert all(list(row["queries"]) == ["q_ex"] for row in rows)
    assert {key for row in rows for stage, key in row["calls"] if stage == "external"} <= cot


def test_eval_drops_the_conclusion_from_q_ex_alone(blendfilter: Command, here: Path) -> None:
    """Every reply is the same, and so are the other queries; what differs is a setting of the run, and in its name."""
    assert blendfilter(*small_eval("blendfilter", "kept")).code == 0
    assert blendfilter(*small_eval("blendfilter", "dropped", "--reuse", "kept", "--drop-conclusion")).code == 0
    arguments, rows = [], []
    for run in ("kept", "dropped"):
        arguments.append(json.loads((here / run / "run.json").read_text())["settings"]["method"]["arguments"])
        rows.append([json.loads(line) for line in (here / run / "predictions.jsonl").read_text().splitlines()])
    assert arguments[1] == arguments[0] | {"drop_conclusion": True}
    assert not arguments[0]["drop_conclusion"]
    for kept, dropped in zip(*rows, strict=True):
        reasoning, conclusion, question = kept["queries"]["q_ex"].partition(" So the answer is ")
        assert conclusion
        assert dropped["queries"]["q_ex"] == f"{reasoning} {kept['question']}"
        assert question.endswith(kept["question"])
        assert {**dropped["queries"], "q_ex": ""} == {**kept["queries"], "q_ex": ""}
    assert "|drop_conclusion:True|" in json.loads((here / "dropped/metrics.json").read_text())["signature"]
    refused(blendfilter(*small_eval("blendfilter", "kept", "--drop-conclusion")), "drop_conclusion was False, now True")

    compared = json.loads(
        blendfilter("compare", "kept", "dropped", "--metric", "q_ex.recall", "--metric", "kept.precision", "--json").out
    )
    for run in ("kept", "dropped"):
        retrieval = json.loads((here / run / "metrics.json").read_text())["retrieval"]
        found = {row["measure"]: row["value"] for row in compared["rows"] if row["run"] == run}
        assert found["q_ex.recall"] == retrieval["q_ex"]["recall"]
        assert found["kept.precision"] == retrieval["kept"]["precision"]


class TestCompare:
    @pytest.fixture(autouse=True)
    def _two(self, blendfilter: Command) -> None:
        for method in ("direct-retrieval", "cot-retrieval"):
            assert blendfilter(*small_eval(method, method)).code == 0

    @pytest.mark.parametrize(
        ("words", "error"),
        [
            (("cot-retrieval", "--against", "cot-retrieva"), "no run 'cot-retrieva'. Did you mean"),
            (("cot-retrieval", "--metric", "cover-em"), "has no 'cover-em' yet: blendfilter"),
            (("cot-retrieval", "--metric", "q_ex.recall"), "run 'direct-retrieval' has no 'q_ex.recall' for every"),
            ((), "compare wants at least two runs, got 1"),
            (("cot-retrieval", "--margin", "-2"), "--margin -2 is none: give points"),
            (("cot-retrieval", "--margin", "2", "--metric", "en"), "no metric 'en'. (known: accuracy, cover-em, em"),
        ],
    )
    def test_a_wrong_command_is_one_line(self, blendfilter: Command, words: tuple[str, ...], error: str) -> None:
        refused(blendfilter("compare", "direct-retrieval", *words), error)

    def test_a_loss_that_a_margin_does_not_allow_ends_with_1(self, blendfilter: Command) -> None:
        words = ("compare", "direct-retrieval", "cot-retrieval", "--metric", "em", "--margin")
        within, beyond = blendfilter(*words, 60), blendfilter(*words, 1)
        assert (within.code, within.notices) == (0, [])
        assert "cot-retrieval, em: non-inferior (margin 60): the difference is above " in within.out
        assert (beyond.code, beyond.error) == (
            1,
            "blendfilter: not shown non-inferior to direct-retrieval: cot-retrieval",
        )
        assert "cot-retrieval, em: not shown non-inferior (margin 1): the difference may be " in beyond.out
        data = blendfilter(*words, 1, "--json")
        assert (data.code, json.loads(data.out)["non_inferior"]) == (1, {"cot-retrieval": False})


class TestDoctor:
    def test_an_unruly_model_ends_with_1_and_goes_on_in_its_folder(self, blendfilter: Command, here: Path) -> None:
        with unruly.serve("mixed") as address:
            words = ("doctor", "--lm", "m", "--api-base", address, "--questions", 3, "--run", "examined")
            outcome = blendfilter(*words)
            again = blendfilter(*words, "--json")
            lenient = blendfilter(*words, "--max-bad-replies", 1)
        assert (outcome.code, again.code, lenient.code) == (1, 1, 0)
        assert outcome.error == "blendfilter: this model does not do what the pipeline asks: see what to change"
        assert "run: examined" in outcome.out
        data = json.loads(again.out)
        assert (data["healthy"], data["findings"][0]["bad"]) == (False, True)
        assert data["server"][0]["name"] == "JSON schema"
        assert (here / "examined" / "journal.jsonl").is_file()


class TestAtLeast:
    @pytest.mark.parametrize(
        ("asked", "error"),
        [
            ("en=0.4", "no score 'en'. (known: em, f1) and figures of retrieval, such as"),
            ("cover-em=0.4", "no score 'cover-em'. (known: em, f1)"),
            ("kept.recal=0.4", "no score 'kept.recal'."),
            ("em=40", "--at-least em is 40: give a share from 0 to 1"),
            ("em=nan", "--at-least em is nan: give a share"),
            ("em", "--at-least is 'em': give a name and a share, em=0.4"),
        ],
    )
    def test_what_no_run_will_have_is_refused_before_any_call(
        self, asked: str, error: str, blendfilter: Command, here: Path
    ) -> None:
        refused(blendfilter(*small_eval("cot-retrieval", "run", "--at-least", "em=0", "--at-least", asked)), error)
        assert not (here / "run").exists()

    def test_a_lower_score_ends_with_1_and_the_run_is_there(self, blendfilter: Command, here: Path) -> None:
        words = small_eval("blendfilter", "run")
        plain = blendfilter(*words)
        low = blendfilter(*words, "--at-least", "em=1", "--at-least", "kept.recall=0", "--at-least", "em=0.1")
        assert (plain.code, low.code) == (0, 1)
        assert low.out == plain.out
        score = json.loads((here / "run/metrics.json").read_text())["metrics"]["em"]
        assert score["value"] > 0
        ends = f"[{100 * score['low']:.1f}, {100 * score['high']:.1f}]"
        assert low.error == f"blendfilter: em is {100 * score['value']:.1f} % {ends}, below 100 %"
        assert blendfilter(*words, "--replay", "--at-least", f"em={score['value']}").code == 0
        assert "at-least" not in (here / "run/run.json").read_text(), "it is no setting of the run"

    def test_a_figure_that_the_method_does_not_have_is_named_after_the_run(self, blendfilter: Command) -> None:
        outcome = blendfilter(*small_eval("cot-retrieval", "run", "--at-least", "q_ex.recall=0.4"))
        assert outcome.code == 2
        assert "no score 'q_ex.recall'. Did you mean 'q.recall'?" in outcome.error


def test_the_workflow_of_the_documents_does_what_they_say(
    blendfilter: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its two commands, as they stand there, over a recorded run: no key, no server, an exit code of 1 where it should
    be. Twelve questions show no loss to be below five points."""
    [text] = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs/deploy.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    workflow = yaml.safe_load(text)
    assert workflow[True] == "pull_request", "YAML 1.1 reads a bare `on` as a truth value, GitHub as a word"
    steps = [shlex.split(step["run"]) for step in workflow["jobs"]["answers"]["steps"] if "run" in step]
    [evaluation, comparison] = [words[1:] for words in steps if words[0] == "blendfilter"]
    questions = sample("questions.jsonl").read_text("utf-8").splitlines(keepends=True)
    (here / "questions.jsonl").write_text("".join(questions[:12]))
    shutil.copy(sample("corpus.jsonl"), here / "passages.jsonl")
    with serve(reply="offline") as server, monkeypatch.context() as keyed:
        keyed.setitem(PROVIDERS, "openai", Provider(server.url, "OPENAI_API_KEY"))
        keyed.setenv("OPENAI_API_KEY", "test")
        recorded = [word for word in evaluation[: evaluation.index("--at-least")] if word != "--replay"]
        assert blendfilter(*recorded).code == 0
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    shutil.copytree(here / "runs/now", here / "runs/baseline")
    replayed, compared = blendfilter(*evaluation), blendfilter(*comparison)
    scores = json.loads((here / "runs/now/metrics.json").read_text())
    low = [scores["metrics"]["em"]["value"] < 0.4, scores["retrieval"]["kept"]["recall"] < 0.8]
    assert replayed.code == any(low)
    assert sum(" %, below " in line or "], below " in line for line in replayed.notices) == sum(low)
    assert (compared.code, compared.error) == (1, "blendfilter: not shown non-inferior to baseline: now")


# endings


@pytest.mark.parametrize(
    ("mood", "more", "code"),
    [("tame", (), 0), ("restates", (), 1), ("restates", ("--max-bad-replies", 1), 0), ("cut", (), 1)],
)
def test_eval_ends_with_1_where_replies_are_bad(
    mood: str, more: tuple[object, ...], code: int, blendfilter: Command, here: Path
) -> None:
    with unruly.serve(mood) as address:
        outcome = blendfilter(*small_eval("blendfilter", "run"), "--lm", "m", "--api-base", address, *more)
    assert outcome.code == code
    page = (here / "run" / "report.html").read_text("utf-8")
    for view in (outcome.out, outcome.err.lower(), page):
        assert ("blendfilter doctor says what to change" in view) == (code == 1)
    if code:
        assert outcome.out.splitlines()[1].startswith("Warning: ")
        report = blendfilter("report", "run", "--no-html")
        assert (report.code, report.out.splitlines()[1][:9]) == (0, "Warning: ")


def test_a_spent_budget_ends_with_3_and_a_higher_one_goes_on(blendfilter: Command, here: Path) -> None:
    with serve(reply="offline") as server:
        words = (*small_eval("cot-retrieval", "run"), "--lm", "m", "--api-base", server.url, "--concurrency", 1)
        outcome = blendfilter(*words, "--max-calls", 3)
        assert outcome.code == 3
        assert "3 of 3 calls are gone" in outcome.error
        assert server.stats()["requests"] == 3
        assert blendfilter(*words, "--max-calls", 300).code == 0


def test_a_traceback_only_where_it_is_asked_for(blendfilter: Command) -> None:
    assert blendfilter("report", "gone").code == 2
    with pytest.raises(MissingFile):
        blendfilter("--debug", "report", "gone")
    assert blendfilter("report", "gone").code == 2, "asked for once"


def test_what_the_system_refuses_is_one_line(blendfilter: Command, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "runs/one/run.json")

    monkeypatch.setattr("blendfilter.files.os.fsync", full)
    outcome = blendfilter(*small_eval("direct-retrieval", "runs/one"))
    assert (outcome.code, outcome.err) == (1, "blendfilter: runs/one/run.json: No space left on device\n")


def test_through_the_shell(here: Path) -> None:
    """The entry point itself: the same words, the same ends, nothing else on either stream."""
    outcome = shell(*small_eval("direct-retrieval", "run"))
    assert outcome.code == 0
    assert {line.split()[1] for line in outcome.notices} == {"questions"}
    assert outcome.notices[-1].startswith("4/4 ")
    assert shell("ask", QUESTION).notices == [SAMPLE_NOTICE, OFFLINE_NOTICE]
    ended = subprocess.run(
        [Path(sys.executable).parent / "blendfilter", "report", "run"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("hotpotqa EM ")


def test_a_tilde_that_no_shell_replaced_is_the_home_folder(
    blendfilter: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind an equals sign, and in a file of options."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "ids.txt").write_text("1\n")
    (tmp_path / "options.toml").write_text('run = "~/runs/a"\nreuse = ["~/runs/b"]\n')
    monkeypatch.setenv("HOME", str(home))
    assert blendfilter(*small_eval("direct-retrieval", "unused")[:-2], "--run=~/runs/b").code == 0
    assert blendfilter(*small_eval("direct-retrieval", "unused")[:-2], "--config=~/../options.toml").code == 0
    assert {path.name for path in (home / "runs").iterdir()} == {"a", "b"}
    assert not (Path.cwd() / "~").exists()
