"""`blendfilter compile cdit`: what it prints, what its program is good for, and what is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from refusing import refused, untouched
from small_world import Command, tree

from blendfilter.compiling.programs import question_digest

CDIT: dict[str, object] = {
    "--task": "hotpotqa", "--data": "sample", "--lm": "offline", "--limit": 20, "--train": 6, "--valid": 4,
    "--max-demos": 2, "--run": "run", "--out": "out/cdit.json",
}  # fmt: skip


def words(what: str = "cdit", **other: object) -> list[object]:
    """The words of a small compile with options changed, added, or left out (None)."""
    options = dict(CDIT) | {f"--{name.replace('_', '-')}": value for name, value in other.items()}
    return ["compile", what, *(word for pair in options.items() if pair[1] is not None for word in pair)]


def recipe(path: str = "out/cdit.json") -> dict[str, Any]:
    told: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))["metadata"]["recipe"]
    return told


class TestCompile:
    def test_the_judge(self, blendfilter: Command) -> None:
        told = blendfilter(*words())
        assert told.code == 0, told
        assert "CDITFilter by bootstrap, hotpotqa consistency phi1" in " ".join(told.out.split())
        assert "balanced accuracy, 8 pairs held back" in told.out
        assert told.out.rstrip().endswith("program: out/cdit.json")
        made = recipe()
        assert (made["measure"], made["before"]["n"], made["data"]["n_train"]) == ("consistency phi1", 8, 12)
        assert made["fields"] == {"judge.consistent": ["rules", "passage", "question", "verdict"]}
        assert made["note"] == "compiled on the sample world: shows the form, not a gain"
        assert len(made["trained_on"]) == 10
        first = Path("out/cdit.json").read_bytes()
        assert blendfilter(*words()).out == told.out
        assert Path("out/cdit.json").read_bytes() == first

    def test_rules_mode_and_negatives(self, blendfilter: Command) -> None:
        told = blendfilter(*words(mode="components", negatives=2), "--rule", "phi1", "--rule", "phi2")
        assert told.code == 0, told
        made = recipe()
        assert made["measure"] == "consistency phi1+phi2"
        assert made["templates"]["judge.consistent"].startswith("cdit/components ")
        assert made["data"]["n_train"] > 12  # two of either where a question has two gold passages
        demos = json.loads(Path("out/cdit.json").read_text(encoding="utf-8"))["judge.consistent"]["demos"]
        assert all(len(demo["rules"]) == 2 and "Verdict: " in demo["comparison"] for demo in demos)

    def test_rules_of_ones_own(self, blendfilter: Command) -> None:
        Path("rules.toml").write_text(
            '[[rule]]\nname = "units"\ncomponents = ["unit"]\nsentence = "Both give the same unit."\n', encoding="utf-8"
        )
        assert blendfilter(*words(rules="rules.toml", optimizer="labeled")).code == 0
        assert recipe()["measure"] == "consistency units"
        rule = "Both give the same unit. Components: unit."
        assert rule in Path("run/journal.jsonl").read_text(encoding="utf-8")
        demos = json.loads(Path("out/cdit.json").read_text(encoding="utf-8"))["judge.consistent"]["demos"]
        assert [demo["rules"] for demo in demos] == [[rule]] * 2

    def test_questions_without_a_gold_passage_are_counted(self, blendfilter: Command) -> None:
        told = blendfilter(*words(), "-k", 2)
        assert told.code == 0, told
        assert " of 20 questions are left out: among what is found for them there is no gold passage" in told.err

    def test_others_held_back(self, blendfilter: Command) -> None:
        context = [[title, [f"{title} is a rock in the sea."]] for title in ("Orm", "Skua", "Tolm")]
        for name in ("a", "b"):
            rows = [
                {
                    "_id": f"{name}{at}", "question": f"Who kept the light of {name}{at}?", "answer": "Ada",
                    "supporting_facts": [["Skua", 0]], "context": context, "type": "bridge", "level": "easy",
                }
                for at in range(6)
            ]  # fmt: skip
            Path(f"{name}.json").write_text(json.dumps(rows), encoding="utf-8")
        told = blendfilter(*words(data="a.json", valid_data="b.json", limit=None, train=5, valid=3))
        assert told.code == 0, told
        assert recipe()["note"] == ""
        (held,) = blendfilter(*words(data="a.json", valid_data="a.json", limit=None, out="x", run="x")).notices
        assert "is in the training set and in the set held back" in held


class TestProgram:
    @pytest.fixture(autouse=True)
    def _made(self, blendfilter: Command) -> None:
        assert blendfilter(*words(optimizer="labeled")).code == 0

    def test_ask_judges_as_it_says(self, blendfilter: Command) -> None:
        asked = ("ask", "Who founded the Dovrel Needle?", "--lm", "offline", "--method", "direct-retrieval")
        told = blendfilter(*asked, "--filter", "cdit", "--program", "out/cdit.json")
        assert told.code == 0, told
        refused(blendfilter(*asked, "--filter", "cdit-components", "--program", "out/cdit.json"),
                "'judge.consistent' was compiled for the fields")  # fmt: skip
        refused(blendfilter(*asked, "--program", "out/cdit.json"), "compiled for CDITFilter, and this is Direct")
        refused(blendfilter(*asked, "--filter", "cdit", "--rule", "phi2", "--program", "out/cdit.json"),
                "'judge' was compiled under the rules phi1 (")  # fmt: skip

    def test_eval_shows_the_demonstrations_and_is_refused_on_their_questions(self, blendfilter: Command) -> None:
        run = ("eval", "hotpotqa", "--data", "sample", "--lm", "offline", "--method", "direct-retrieval", "--filter",
               "cdit", "--program", "out/cdit.json", "--run", "evaluated", "--limit", 20)  # fmt: skip
        refused(blendfilter(*run), "the program of CDITFilter was compiled on")
        told = blendfilter(*run, "--leave-out-compiled")
        assert told.code == 0, told
        rows = [json.loads(line) for line in Path("evaluated/predictions.jsonl").read_text("utf-8").splitlines()]
        assert len(rows) == 10
        assert not {question_digest(row["question"]) for row in rows} & {*recipe()["trained_on"]}
        demo = json.loads(Path("out/cdit.json").read_text(encoding="utf-8"))["judge.consistent"]["demos"][0]
        calls = map(json.loads, Path("evaluated/journal.jsonl").read_text("utf-8").splitlines())
        judged = [json.dumps(each, ensure_ascii=False) for each in calls if each.get("stage") == "consistent"]
        assert judged
        assert all(demo["passage"] in each for each in judged)


class TestRefused:
    """One line that says what, where and the next move; nothing is written, nobody is asked."""

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"what": "cditt"}, "no filter or method 'cditt'. Did you mean 'cdit'?"),
            ({"silver": "s.jsonl"}, "--silver is for filco and filco-passage; cdit is compiled against gold passages"),
            ({"measure": "strinc"}, "--measure is for filco and filco-passage; cdit is compiled against gold"),
            ({"weight_tokens": 1}, "--weight-tokens is for filco and filco-passage; cdit is compiled against gold"),
            ({"threshold": 0.5}, "--threshold is for scores; a verdict of cdit is right or wrong"),
            ({"filter": "full"}, "--filter is for methods; cdit is a filter itself"),
            ({"data": None}, "where are the questions of 'hotpotqa'?"),
            ({"task": "hotpotqu"}, "no task 'hotpotqu'. Did you mean 'hotpotqa'?"),
            ({"mode": "words"}, "no mode 'words'. Did you mean 'word'?"),
            (
                {"what": "cdit-components", "mode": "word"},
                "cdit-components is of the mode components, --mode says word",
            ),
            ({"rule": "phi3"}, "no rule 'phi3'"),
            ({"rules": "none.toml"}, "no file of rules at none.toml"),
            ({"negatives": 0}, "'--negatives'"),
            ({"what": "filco", "negatives": 2}, "--negatives is for cdit and cdit-components; filco does not take it"),
            ({"what": "direct", "rule": "phi1"}, "--rule is for cdit and cdit-components; direct does not take it"),
            ({"train": 60}, "too few to train on 60"),
        ],
    )
    def test_in_one_line(self, changed: dict[str, Any], said: str, blendfilter: Command, here: Path) -> None:
        before = tree(here)
        outcome = blendfilter(*words(**changed))
        assert outcome.code == 2, outcome
        refused(outcome, said, notices=len(outcome.notices) - 1)
        untouched(here, before)

    def test_questions_that_name_no_gold(self, blendfilter: Command) -> None:
        Path("q.jsonl").write_text('{"id": "x", "question": "Who kept it?", "answer": "Ada"}\n', encoding="utf-8")
        told = blendfilter(*words(task="qa", data="q.jsonl", corpus="sample"))
        refused(told, "the questions of q.jsonl name no gold passages")
