"""`blendfilter compile`, and `--program` of ask and eval: what they print, and what is refused in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from refusing import refused, untouched
from small_world import Command, tree

from blendfilter import load, resources
from blendfilter.compiling.optimisers import OPTIMIZERS
from blendfilter.text import question_digest

OPTIONS: dict[str, object] = {
    "--data": "sample", "--lm": "offline", "--limit": 20, "--max-demos": 2, "--run": "run", "--valid": 4,
    "--out": "out/program.json",
}  # fmt: skip
FILCO: dict[str, object] = {**OPTIONS, "--task": "nq", "-k": 2, "--train": 8}
CDIT: dict[str, object] = {**OPTIONS, "--task": "hotpotqa", "--train": 6}
NOTE = "compiled on the sample world: shows the form, not a gain"
QUESTION = '{"id": "x", "question": "Who kept the light of Skerry?", "answer": "Ada"}\n'
MADE = "out/program.json"


def words(what: str = "filco", **other: object) -> list[object]:
    """The words of a small compile with options changed, added, or left out (None)."""
    options = dict(CDIT if what.startswith("cdit") else FILCO)
    options |= {("-k" if name == "k" else f"--{name.replace('_', '-')}"): value for name, value in other.items()}
    return ["compile", what, *(word for pair in options.items() if pair[1] is not None for word in pair)]


def state(path: str = MADE) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return loaded


def recipe(path: str = MADE) -> dict[str, Any]:
    loaded: dict[str, Any] = state(path)["metadata"]["recipe"]
    return loaded


class TestFilters:
    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_a_filter_by_each_optimiser_and_the_same_again(self, blendfilter: Command, optimizer: str) -> None:
        search = {"mipro": {"candidates": 2, "trials": 2}, "gepa": {"metric_calls": 12}}
        how: dict[str, Any] = {"optimizer": optimizer, **search.get(optimizer, {})}
        outcome = blendfilter(*words(**how))
        assert outcome.code == 0, outcome
        assert f"FilCoFilter by {optimizer}, nq strinc" in outcome.out
        assert re.search(r"score on 4 held back +\d\.\d{3} +\d\.\d{3}", outcome.out)
        assert re.search(r"demonstrations: \d over 2 predictors; ", outcome.out)
        assert re.search(r"the journal holds \d+ calls, [\d,]+ tokens in", outcome.out)
        assert outcome.out.rstrip().endswith(f"program: {MADE}")
        made = recipe()
        assert (made["task"], made["measure"], made["lm"], made["note"]) == ("nq", "strinc", "offline", NOTE)
        first = Path(MADE).read_bytes()
        assert blendfilter(*words(**how)).out == outcome.out
        assert Path(MADE).read_bytes() == first

    def test_of_a_silver_file_with_others_held_back(self, blendfilter: Command) -> None:
        for name, first in (("a", 20), ("b", 30)):
            made = blendfilter("silver", "nq", "--data", "sample", "--limit", first, "-k", 2, "--out", f"{name}.jsonl")
            assert made.code == 0, made
        rows = Path("b.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        Path("bare.jsonl").write_text("".join(rows[20:]), encoding="utf-8")
        no_data: dict[str, Any] = {"data": None, "limit": None, "k": None}
        outcome = blendfilter(*words("filco-passage", **no_data, silver="a.jsonl", valid_data="bare.jsonl"))
        assert outcome.code == 0, outcome
        assert (recipe()["measure"], recipe()["note"]) == ("strinc", NOTE)
        assert recipe()["templates"]["helpful"].startswith("filco/passages ")
        assert not Path("run/silver.jsonl").exists()
        for changed, error in (
            (
                {"silver": "b.jsonl", "valid_data": "b.jsonl", "train": 25, "valid": 25},
                "is held back, and it is in the training set",
            ),
            ({"silver": "a.jsonl", "measure": "lexical"}, "made with measure strinc, not lexical"),
            ({"silver": "a.jsonl", "task": "fever"}, "made with task nq, not fever: give --task nq"),
        ):
            refused(blendfilter(*words(**{**no_data, **changed})), error)

    def test_where_nothing_is_gained_it_says_so_and_writes_all_the_same(self, blendfilter: Command) -> None:
        outcome = blendfilter(*words(weight_answer=0))
        assert outcome.code == 0
        said = recipe()["outcome"]
        before, after = (f"{recipe()[name]['value']:.3f}" for name in ("before", "after"))
        assert said.startswith(f"before {before}, after {after}: nothing gained; not better than the prompt as it is (")
        assert said.endswith(f"of 4, {recipe()['paired']['better']} better, {recipe()['paired']['worse']} worse)")
        assert f"blendfilter: {said}; the program is written all the same, and says so" in outcome.notices

    def test_no_demonstration_is_made_of_what_silver_could_not_choose(self, blendfilter: Command) -> None:
        """Of questions with no answer in their passages, and of those answered by a yes or no, for STRINC."""
        found = [*load("hotpotqa", "sample", limit=20), *load("strategyqa", "sample", limit=5)]
        asked = [{"id": each.id, "question": each.question, "answer": each.golden_answers[0]} for each in found]
        Path("mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked), encoding="utf-8")
        how: dict[str, Any] = {"task": "hotpotqa", "measure": "strinc", "data": "mixed.jsonl", "corpus": "sample"}
        how |= {"limit": None, "train": 12, "max_demos": 12}
        for optimizer in ("labeled", "bootstrap"):
            named = {"optimizer": optimizer, "run": optimizer, "out": f"{optimizer}.json"}
            outcome = blendfilter(*words(**how, **named))
            assert outcome.code == 0, outcome
            assert "5 of 25 questions are left out: strinc cannot label an answer of yes or no" in outcome.err
            assert "are left out" not in "".join(outcome.notices[1:]), "no demonstration without a reply is passed on"
            rows = [json.loads(line) for line in Path(optimizer, "silver.jsonl").read_text("utf-8").splitlines()]
            empty = {row["question"] for row in rows if not row["chosen"]}
            assert empty
            demos = [demo for name in ("helpful", "ids_again") for demo in state(f"{optimizer}.json")[name]["demos"]]
            assert demos
            assert not [demo for demo in demos if demo["question"] in empty or demo["ids"] == "none"]

    def test_of_yes_and_no_alone_nothing_is_compiled_by_strinc(self, blendfilter: Command, here: Path) -> None:
        before = tree(here)
        error = "strinc cannot label the questions of sample: each is answered by a verdict"
        refused(blendfilter(*words(task="strategyqa", measure="strinc")), error, "take the measure lexical")
        untouched(here, before)

    def test_nor_of_an_older_file_that_calls_them_none(self, blendfilter: Command) -> None:
        assert blendfilter("silver", "nq", "--data", "sample", "--limit", 20, "-k", 2, "--out", "a.jsonl").code == 0
        rows = [json.loads(line) for line in Path("a.jsonl").read_text("utf-8").splitlines()]
        verdicts = [{**row, "golden_answers": ["yes"], "output": "yes", "chosen": [], "target": ""} for row in rows]
        no_data: dict[str, Any] = {"data": None, "limit": None, "k": None, "silver": "a.jsonl"}
        Path("a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*verdicts[:3], *rows[3:]]), "utf-8")
        outcome = blendfilter(*words(**no_data))
        assert outcome.code == 0, outcome
        assert "3 of 20 questions are left out: strinc cannot label an answer of yes or no" in outcome.err
        Path("a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in verdicts), "utf-8")
        refused(blendfilter(*words(**no_data, run="b", out="b.json")), "a.jsonl: strinc cannot label", "make it again")

    def test_a_folder_and_a_file_are_one_programs(self, blendfilter: Command, here: Path) -> None:
        """Another program takes the place of none, and pays into no other's journal; a limit may change."""
        assert blendfilter(*words(weight_answer=0)).code == 0
        before = tree(here)
        refused(
            blendfilter(*words(weight_answer=0, seed=1, run="other")),
            f"{MADE} holds a program that was compiled otherwise: seed was 0, now 1; ",
            "Name another file (--out), or delete it",
        )
        refused(
            blendfilter(*words(weight_answer=0, max_demos=1, out="other.json")),
            "run was begun with other settings: settings.max_demos was 2, now 1. Name another folder",
        )
        assert {name: data for name, data in tree(here).items() if not name.startswith("other")} == before
        assert blendfilter(*words(weight_answer=0, concurrency=1, max_calls=1000)).code == 0
        assert tree(here)[MADE] == before[MADE]
        Path("notes.json").write_text("{}", encoding="utf-8")
        refused(blendfilter(*words(weight_answer=0, out="notes.json")), "notes.json is there, and is no program")

    def test_a_spent_budget_is_exit_code_3_and_more_goes_on(self, blendfilter: Command) -> None:
        refused(blendfilter(*words(max_calls=5)), code=3)
        assert not Path("out").exists()
        assert blendfilter(*words(max_calls=500)).code == 0


def test_a_method_and_its_threshold(blendfilter: Command) -> None:
    """Where answers are scored by F1, none is ever right; from 0 on every one is a demonstration."""
    chats: dict[str, Any] = {"task": "wow", "limit": None, "train": 3, "valid": 2, "max_demos": 1}
    plain = blendfilter(*words("direct-retrieval", **chats))
    assert plain.code == 0, plain
    assert "the compiled program is the plain one: the optimiser found nothing that" in plain.err
    assert not any(demo.get("augmented") for demo in state()["direct"]["demos"])
    outcome = blendfilter(*words("direct-retrieval", **chats, threshold=0, run="zero", out="zero.json"))
    assert "the plain one" not in outcome.err
    assert [demo["augmented"] for demo in state("zero.json")["direct"]["demos"]] == [True]
    assert recipe("zero.json")["settings"]["metric"] == {"threshold": 0.0}


class TestCdit:
    def test_the_judge(self, blendfilter: Command) -> None:
        outcome = blendfilter(*words("cdit"))
        assert outcome.code == 0, outcome
        assert "CDITFilter by bootstrap, hotpotqa consistency phi1" in " ".join(outcome.out.split())
        assert "balanced accuracy, 8 pairs held back" in outcome.out
        made = recipe()
        assert (made["measure"], made["before"]["n"], made["data"]["n_train"]) == ("consistency phi1", 8, 12)
        assert made["fields"] == {"judge.consistent": ["rules", "passage", "question", "verdict"]}
        assert (made["note"], len(made["trained_on"])) == (NOTE, 10)

    def test_rules_mode_and_negatives(self, blendfilter: Command) -> None:
        outcome = blendfilter(*words("cdit", mode="components", negatives=2), "--rule", "phi1", "--rule", "phi2")
        assert outcome.code == 0, outcome
        made = recipe()
        assert made["measure"] == "consistency phi1+phi2"
        assert made["templates"]["judge.consistent"].startswith("cdit/components ")
        assert made["data"]["n_train"] > 12  # two of either where a question has two gold passages
        demos = state()["judge.consistent"]["demos"]
        assert all(len(demo["rules"]) == 2 and "Verdict: " in demo["comparison"] for demo in demos)


class TestProgram:
    @pytest.fixture(autouse=True)
    def _made(self, blendfilter: Command) -> None:
        assert blendfilter(*words(optimizer="labeled")).code == 0
        Path("q.jsonl").write_text(QUESTION)

    def test_eval_is_bound_to_it_and_says_that_it_is_of_another_task(self, blendfilter: Command) -> None:
        run = (
            "eval", "qa", "--data", "q.jsonl", "--corpus", "sample", "--lm", "offline", "--run", "evaluated",
            "--method", "direct-retrieval", "--filter", "filco", "--max-bad-replies", 1,
        )  # fmt: skip
        outcome = blendfilter(*run, "--program", MADE)
        assert outcome.code == 0
        notice = f"blendfilter: {MADE} was compiled for nq, and the questions are of qa"
        assert [line for line in outcome.notices if "compiled for" in line] == [notice]
        refused(blendfilter(*run), "method.program was")
        assert blendfilter(*run, "--program", MADE).code == 0

    def test_the_questions_that_it_was_compiled_on_are_refused_or_left_out(self, blendfilter: Command) -> None:
        run = (
            "eval", "nq", "--data", "sample", "--lm", "offline", "--method", "direct-retrieval", "--filter", "filco",
            "--run", "evaluated", "--limit", 20, "--max-bad-replies", 1,
        )  # fmt: skip
        refused(blendfilter(*run, "--program", MADE), "the program of FilCoFilter was compiled on")
        assert not Path("evaluated").exists()
        refused(blendfilter(*run, "--leave-out-compiled"), "--leave-out-compiled goes with a compiled program")
        outcome = blendfilter(*run, "--leave-out-compiled", "--program", MADE)
        assert outcome.code == 0, outcome
        assert "12 questions that the program was compiled on are left out, 8 are asked" in outcome.err
        rows = map(json.loads, Path("evaluated/predictions.jsonl").read_text(encoding="utf-8").splitlines())
        wanted = {question_digest(row["question"]) for row in rows}
        assert len(wanted) == 8
        assert not wanted & {*recipe()["trained_on"]}

    def test_one_that_does_not_ship_is_one_line(self, blendfilter: Command) -> None:
        for path, error in (
            ("programs/nq/filco.json", "no program at programs/nq/filco.json: check the path, make one"),
            (resources.programs() / "nq" / "default.json", "a task's wording, which is used without being named"),
        ):
            run = ("ask", "Who?", "--lm", "offline", "--method", "direct-retrieval", "--filter", "filco")
            refused(blendfilter(*run, "--program", path), error)

    def test_of_another_tasks_wording(self, blendfilter: Command) -> None:
        """What DSPy's state leaves out of a wording must be there already: room for answers, a filter's switches."""
        made = blendfilter(*words("direct", task="eli5", limit=None, train=3, valid=2, out="long.json", run="long"))
        assert made.code == 0, made
        wanted: tuple[object, ...] = ("--lm", "offline", "--method", "direct", "--program", "long.json")
        error = "'direct' was compiled with '128 tokens, all of it', and here it has '32 tokens, its first line'"
        refused(blendfilter("ask", "Who?", *wanted), error, "take the wording of eli5")
        refused(blendfilter("eval", "qa", "--data", "q.jsonl", *wanted, "--run", "evaluated"), error)
        assert not Path("evaluated").exists()
        assert blendfilter("ask", "Who?", *wanted, "--wording", "eli5").code == 0


class TestRefused:
    """One line that says what, where and the next move; nothing is written, no model is called."""

    @pytest.mark.parametrize(
        ("changed", "error"),
        [
            ({"what": "filoc"}, "no filter or method 'filoc'. Did you mean 'filco'?"),
            ({"optimizer": "bootstap"}, "no optimiser 'bootstap'. Did you mean 'bootstrap'?"),
            ({"task": "nqq"}, "no task 'nqq'. Did you mean 'nq'?"),
            ({"measure": "strink"}, "no measure 'strink'. Did you mean 'strinc'?"),
            ({"measure": "cxmi"}, "cxmi asks a model that can score: make the file first (blendfilter silver nq"),
            ({"data": None}, "what is it compiled on? Give --data FILE, 'hub' or 'sample', or --silver FILE"),
            ({"filter": "full"}, "--filter is for methods; filco is a filter itself"),
            ({"weight_agreement": -1}, "the weight agreement is -1.0"),
            ({"what": "cot-retrieval", "weight_tokens": 1}, "--weight-tokens is for filco and filco-passage"),
            ({"silver": "none.jsonl", "data": None, "limit": None, "k": None}, "no file 'none.jsonl'"),
            ({"silver": "none.jsonl", "data": None, "limit": None}, "-k is for a silver file to be made"),
            ({"out": "."}, ". is a folder: name a file for the program, such as program.json"),
            ({"trials": 3}, "--trials is for mipro: take that"),
            ({"metric_calls": 9, "optimizer": "mipro"}, "--metric-calls is for gepa"),
            ({"max_demos": -1}, "'--max-demos'"),
            ({"what": "cdit", "threshold": 0.5}, "--threshold is for scores; a verdict of cdit is right or wrong"),
            ({"what": "cdit", "mode": "words"}, "no mode 'words'. Did you mean 'word'?"),
            ({"what": "cdit", "rule": "phi3"}, "no rule 'phi3'"),
            ({"negatives": 2}, "--negatives is for cdit and cdit-components"),
        ],
    )
    def test_in_one_line(self, blendfilter: Command, here: Path, changed: dict[str, Any], error: str) -> None:
        before, changed = tree(here), dict(changed)
        refused(blendfilter(*words(changed.pop("what", "filco"), **changed)), error)
        untouched(here, before)
