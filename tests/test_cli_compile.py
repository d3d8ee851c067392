"""`blendfilter compile`, and `--program` of ask and eval: what they print, and what is refused in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from refusing import refused, untouched
from small_world import Command, tree

from blendfilter.compiling.optimisers import OPTIMIZERS
from blendfilter.compiling.programs import question_digest

FILCO: dict[str, object] = {
    "--task": "nq", "--data": "sample", "--lm": "offline", "--limit": 20, "-k": 2, "--train": 8, "--valid": 4,
    "--max-demos": 2, "--run": "run", "--out": "out/filco.json",
}  # fmt: skip


def words(what: str = "filco", **other: object) -> list[object]:
    """The words of a small compile with options changed, added, or left out (None)."""
    options = dict(FILCO)
    options |= {("-k" if name == "k" else f"--{name.replace('_', '-')}"): value for name, value in other.items()}
    return ["compile", what, *(word for pair in options.items() if pair[1] is not None for word in pair)]


def state(path: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return told


def recipe(path: str) -> dict[str, Any]:
    told: dict[str, Any] = state(path)["metadata"]["recipe"]
    return told


class TestCompile:
    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_a_filter(self, blendfilter: Command, optimizer: str) -> None:
        search = {"mipro": {"candidates": 2, "trials": 2}, "gepa": {"metric_calls": 12}}
        how: dict[str, Any] = {"optimizer": optimizer, **search.get(optimizer, {})}
        told = blendfilter(*words(**how))
        assert told.code == 0, told
        assert f"FilCoFilter by {optimizer}, nq strinc" in told.out
        assert re.search(r"score on 4 held back +│ +\d\.\d{3} │ +\d\.\d{3}", told.out)
        assert re.search(r"demonstrations: \d over 2 predictors; ", told.out)
        assert re.search(r"the journal holds \d+ calls, [\d,]+ tokens in", told.out)
        assert told.out.rstrip().endswith("program: out/filco.json")
        made = recipe("out/filco.json")
        assert (made["task"], made["measure"], made["lm"]) == ("nq", "strinc", "offline")
        assert made["note"] == "compiled on the sample world: shows the form, not a gain"
        first = Path("out/filco.json").read_bytes()
        assert blendfilter(*words(**how)).out == told.out
        assert Path("out/filco.json").read_bytes() == first

    def test_of_a_silver_file_with_others_held_back(self, blendfilter: Command) -> None:
        for name, first in (("a", 20), ("b", 30)):
            made = blendfilter("silver", "nq", "--data", "sample", "--limit", first, "-k", 2, "--out", f"{name}.jsonl")
            assert made.code == 0, made
        rows = Path("b.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        Path("held.jsonl").write_text("".join(rows[20:]), encoding="utf-8")
        given: dict[str, Any] = {"data": None, "limit": None, "k": None}
        told = blendfilter(*words("filco-passage", **given, silver="a.jsonl", valid_data="held.jsonl"))
        assert told.code == 0, told
        made = recipe("out/filco.json")
        assert made["measure"] == "strinc"
        assert made["templates"]["helpful"].startswith("filco/passages ")
        assert not Path("run/silver.jsonl").exists()
        refused(blendfilter(*words(**given, silver="b.jsonl", valid_data="b.jsonl", train=25, valid=25)),
                "is in the training set and in the set held back")  # fmt: skip
        assert made["note"] == "compiled on the sample world: shows the form, not a gain"
        # Nothing says what chose in a file without its recipe.
        refused(blendfilter(*words(**given, silver="held.jsonl")), "held.recipe.json is missing", "name it (--measure)")
        named: dict[str, Any] = {"measure": "strinc", "train": 6, "run": "named", "out": "named.json"}
        assert blendfilter(*words(**given, silver="held.jsonl", **named)).code == 0
        # What the file says of itself goes before what is asked.
        refused(
            blendfilter(*words(**given, silver="a.jsonl", measure="lexical")), "made with measure strinc, not lexical"
        )
        refused(
            blendfilter(*words(**given, silver="a.jsonl", task="fever")), "made with task nq, not fever: give --task nq"
        )

    def test_answers_that_are_articles_alone(self, blendfilter: Command) -> None:
        rows = [{"id": str(n), "question": f"Who kept light {n}?", "answer": "the" if n else "Ada"} for n in range(4)]
        Path("q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        given: dict[str, Any] = {"task": "qa", "data": "q.jsonl", "corpus": "sample", "measure": "strinc"}
        small: dict[str, Any] = {**given, "limit": None, "train": 2, "valid": 2}
        refused(blendfilter(*words(**small)), "--allow-empty-answers")
        told = blendfilter(*words(**small), "--allow-empty-answers")
        assert told.code == 0, told
        refused(
            blendfilter(*words("direct", **(small | {"measure": None})), "--allow-empty-answers"),
            "--allow-empty-answers is for filco and filco-passage",
        )

    def test_a_method(self, blendfilter: Command) -> None:
        told = blendfilter(*words("blendfilter", task="hotpotqa", train=3, valid=2))
        assert told.code == 0, told
        assert "BlendFilter by bootstrap, hotpotqa em" in told.out
        assert recipe("out/filco.json")["fields"]["blending.internal"] == ["question", "passage"]

    def test_weights_are_arguments(self, blendfilter: Command) -> None:
        assert blendfilter(*words(weight_answer=0, weight_tokens=0.3)).code == 0
        assert recipe("out/filco.json")["settings"]["metric"] == {
            "agreement": 1.0, "answer": 0.0, "tokens": 0.3, "threshold": 0.55
        }  # fmt: skip
        assert '"stage":"direct"' not in Path("run/journal.jsonl").read_text(encoding="utf-8")

    def test_the_threshold_is_an_argument(self, blendfilter: Command) -> None:
        """Where answers are scored by F1, none is ever right; from 0 on every one is a demonstration."""
        chats: dict[str, Any] = {"task": "wow", "limit": None, "train": 3, "valid": 2, "max_demos": 1}
        plain = blendfilter(*words("direct-retrieval", **chats))
        assert plain.code == 0, plain
        assert "the compiled program is the plain one: the optimiser found nothing that" in plain.err
        assert not any(demo.get("augmented") for demo in state("out/filco.json")["direct"]["demos"])
        told = blendfilter(*words("direct-retrieval", **chats, threshold=0, run="zero", out="zero.json"))
        assert "the plain one" not in told.err
        assert [demo["augmented"] for demo in state("zero.json")["direct"]["demos"]] == [True]
        assert recipe("zero.json")["settings"]["metric"] == {"threshold": 0.0}
        assert blendfilter(*words(threshold=0.4, run="some", out="some.json")).code == 0
        assert recipe("some.json")["settings"]["metric"]["threshold"] == 0.4

    def test_a_folder_and_a_file_are_one_programs(self, blendfilter: Command, here: Path) -> None:
        """Another program takes the place of none, and pays into no other's journal; a cap may change."""
        assert blendfilter(*words(weight_answer=0)).code == 0
        before = tree(here)
        refused(blendfilter(*words(weight_answer=0, seed=1, run="other")), "out/filco.json holds a program that was "
                "compiled otherwise: seed was 0, now 1; ", "Name another file (--out), or delete it")  # fmt: skip
        refused(blendfilter(*words(weight_answer=0, max_demos=1, out="other.json")),
                "run was begun with other settings: settings.max_demos was 2, now 1. Name another folder")  # fmt: skip
        assert {name: held for name, held in tree(here).items() if not name.startswith("other")} == before
        told = blendfilter(*words(weight_answer=0, concurrency=1, max_calls=1000))
        assert told.code == 0, told
        assert tree(here)["out/filco.json"] == before["out/filco.json"]
        Path("notes.json").write_text("{}", encoding="utf-8")
        refused(blendfilter(*words(weight_answer=0, out="notes.json")), "notes.json is there, and is no program")

    def test_a_spent_budget_is_exit_code_3_and_more_goes_on(self, blendfilter: Command) -> None:
        refused(blendfilter(*words(max_calls=5)), code=3)
        assert not Path("out").exists()
        assert blendfilter(*words(max_calls=500)).code == 0


class TestProgram:
    @pytest.fixture(autouse=True)
    def _made(self, blendfilter: Command) -> None:
        assert blendfilter(*words(optimizer="labeled")).code == 0

    def test_ask_speaks_as_it_says(self, blendfilter: Command) -> None:
        asked = ("ask", "Who built it?", "--lm", "offline", "--method", "direct-retrieval", "--filter", "filco")
        plain = blendfilter(*asked)
        told = blendfilter(*asked, "--program", "out/filco.json")
        assert (plain.code, told.code) == (0, 0)
        refused(blendfilter(*asked[:-2], "--program", "out/filco.json"), "compiled for FilCoFilter, and this is Direct",
                "(--filter)")  # fmt: skip

    def test_eval_is_bound_to_it(self, blendfilter: Command) -> None:
        Path("q.jsonl").write_text('{"id": "x", "question": "Who kept the light of Skerry?", "answer": "Ada"}\n')
        run = ("eval", "qa", "--data", "q.jsonl", "--corpus", "sample", "--lm", "offline", "--run", "evaluated",
               "--method", "direct-retrieval", "--filter", "filco", "--max-bad-replies", 1)  # fmt: skip
        assert blendfilter(*run, "--program", "out/filco.json").code == 0
        refused(blendfilter(*run), "method.program was")
        assert blendfilter(*run, "--program", "out/filco.json").code == 0

    def test_eval_is_refused_on_what_it_was_compiled_on(self, blendfilter: Command) -> None:
        run = ("eval", "nq", "--data", "sample", "--limit", 20, "--lm", "offline", "--run", "evaluated")
        filtered = ("--method", "direct-retrieval", "--filter", "filco")
        refused(
            blendfilter(*run, *filtered, "--program", "out/filco.json"), "the program of FilCoFilter was compiled on"
        )
        assert not Path("evaluated").exists()

    def test_what_it_was_compiled_on_may_be_left_out(self, blendfilter: Command) -> None:
        run = ("eval", "nq", "--data", "sample", "--lm", "offline", "--method", "direct-retrieval", "--filter", "filco",
               "--run", "evaluated", "--leave-out-compiled", "--max-bad-replies", 1)  # fmt: skip
        refused(blendfilter(*run), "--leave-out-compiled goes with a compiled program")
        told = blendfilter(*run, "--program", "out/filco.json", "--limit", 20)
        assert told.code == 0, told
        assert "12 questions that the program was compiled on are left out, 8 are asked" in told.err
        asked = Path("evaluated/predictions.jsonl").read_text(encoding="utf-8").splitlines()
        assert len(asked) == 8
        assert not {question_digest(json.loads(row)["question"]) for row in asked} & {
            *recipe("out/filco.json")["trained_on"]
        }

    def test_of_another_tasks_wording(self, blendfilter: Command) -> None:
        """What DSPy's state leaves out of a wording must be there already: room for answers, a filter's switches."""
        Path("q.jsonl").write_text('{"id": "x", "question": "Who kept the light of Skerry?", "answer": "Ada"}\n')
        made = blendfilter(*words("direct", task="eli5", limit=None, train=3, valid=2, out="long.json", run="long"))
        assert made.code == 0, made
        asked: tuple[object, ...] = ("--lm", "offline", "--method", "direct", "--program", "long.json")
        said = "where 'direct' has 128 tokens, all of it, and here it has 32 tokens, its first line"
        refused(blendfilter("ask", "Who?", *asked), said, "take the wording of eli5")
        refused(blendfilter("eval", "qa", "--data", "q.jsonl", *asked, "--run", "evaluated"), said)
        assert not Path("evaluated").exists()
        assert blendfilter("ask", "Who?", *asked, "--wording", "eli5").code == 0

    def test_of_another_task(self, blendfilter: Command) -> None:
        """It may be meant, so it is done, and said."""
        Path("q.jsonl").write_text('{"id": "x", "question": "Who kept the light of Skerry?", "answer": "Ada"}\n')
        run = ("eval", "qa", "--data", "q.jsonl", "--corpus", "sample", "--lm", "offline", "--max-bad-replies", 1)
        told = blendfilter(*run, "--method", "direct-retrieval", "--filter", "filco", "--program", "out/filco.json")
        assert told.code == 0
        said = "out/filco.json was compiled for nq, and the questions are of qa"
        assert [line for line in told.notices if "compiled for" in line] == [f"blendfilter: {said}"]

    def test_no_such_program(self, blendfilter: Command) -> None:
        refused(blendfilter("ask", "Who?", "--lm", "offline", "--program", "none.json"), "no program at none.json")


class TestRefused:
    """One line that says what, where and the next move; nothing is written, nobody is asked."""

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"what": "filoc"}, "no filter or method 'filoc'. Did you mean 'filco'?"),
            ({"optimizer": "bootstap"}, "no optimiser 'bootstap'. Did you mean 'bootstrap'?"),
            ({"task": "nqq"}, "no task 'nqq'. Did you mean 'nq'?"),
            ({"measure": "strink"}, "no measure 'strink'. Did you mean 'strinc'?"),
            ({"measure": "cxmi"}, "cxmi asks a model that can score: make the file first (blendfilter silver nq"),
            ({"task": "fever"}, "cxmi, the measure of fever, asks a model that can score"),
            ({"data": None}, "what is it compiled on? Give --silver FILE, or --data FILE"),
            ({"filter": "full"}, "--filter is for methods; filco is a filter itself"),
            ({"weight_agreement": -1}, "the weight agreement is -1.0"),
            ({"what": "cot-retrieval", "measure": "strinc"}, "--measure is for filco and filco-passage; cot-retrieval"),
            ({"what": "cot-retrieval", "weight_tokens": 1}, "--weight-tokens is for filco and filco-passage"),
            ({"what": "direct", "data": None}, "where are the questions of 'nq'?"),
            ({"max_calls": 0}, "a budget of 0 calls"),
            ({"silver": "none.jsonl", "data": None, "limit": None, "k": None}, "no file 'none.jsonl'"),
            ({"silver": "none.jsonl"}, "--data is for a silver file to be made; none.jsonl holds its passages"),
            ({"silver": "none.jsonl", "data": None, "limit": None}, "-k is for a silver file to be made"),
            ({"out": "."}, ". is a folder: name a file for the program, such as program.json"),
            ({"trials": 3}, "--trials is for mipro; bootstrap does not take it"),
            ({"metric_calls": 9, "optimizer": "mipro"}, "--metric-calls is for gepa; mipro does not take it"),
            ({"concurrency": 0}, "'--concurrency'"),
            ({"max_demos": -1}, "'--max-demos'"),
            ({"threshold": -1}, "the weight threshold is -1.0"),
        ],
    )
    def test_what_is_asked_wrong(self, blendfilter: Command, here: Path, changed: dict[str, Any], said: str) -> None:
        changed = dict(changed)
        before = tree(here)
        refused(blendfilter(*words(changed.pop("what", "filco"), **changed)), said)
        untouched(here, before)

    def test_data_too_small(self, blendfilter: Command) -> None:
        refused(
            blendfilter(*words(train=18)), "there are 20 different questions, too few to train on 18 and hold 4 back"
        )

    def test_an_override_that_is_deaf(self, blendfilter: Command) -> None:
        Path("own/filco").mkdir(parents=True)
        Path("own/filco/sentences.j2").write_text("{{ knowledge }} {{ question }}\nIds:")
        refused(blendfilter(*words(prompts="own")), "sentences.j2 does not render {{ instructions }}")
        assert not Path("run/journal.jsonl").exists()

    def test_labeled_over_a_method_whose_fields_no_row_fills(self, blendfilter: Command) -> None:
        refused(blendfilter(*words("cot-retrieval", optimizer="labeled")), "labeled can do nothing", "use bootstrap")


def test_the_help_teaches(blendfilter: Command) -> None:
    told = " ".join(blendfilter("compile", "--help").out.split())
    assert all(name in told for name in OPTIMIZERS)
    assert "against silver contexts, a method against its task's metric" in told
    assert "Example: blendfilter compile filco" in told
