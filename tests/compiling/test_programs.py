"""Compiled programs as files: whole or not at all, the same bytes, and refused where they do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dspy
import pytest
from compiled import anything, compile_small, sample_index, sample_questions, saved
from isle import PASSAGES, QUESTION
from scripted import ScriptedLM

from blendfilter import resources
from blendfilter.compiling.compile import Compiled, compile_program
from blendfilter.compiling.programs import (
    HeldOutScore,
    PairedScores,
    load_program,
    outcome_of,
    read_program,
    save_program,
)
from blendfilter.errors import BadData, MissingFile
from blendfilter.filters.filco import FilCoFilter
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.direct import Direct
from blendfilter.prompting import Prompts

GONE: Any = object()
"""A field that is taken out."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """FilCo's filter with two demonstrations."""
    return compile_small("filco", "labeled", "offline", tmp_path_factory.mktemp("run"), max_demos=2)


@pytest.fixture
def path(done: Compiled, tmp_path: Path) -> Path:
    return save_program(done.program, tmp_path / "programs" / "filco.json", done.recipe)


class TestSaved:
    def test_it_comes_back_and_is_shown(self, done: Compiled, path: Path) -> None:
        again = FilCoFilter()
        recipe = load_program(again, path)
        assert recipe == done.recipe
        lm = ScriptedLM(["0"])
        with dspy.context(lm=lm):
            again(question=QUESTION, passages=PASSAGES)
        demos = done.program.helpful.demos
        assert len(demos) == 2
        assert all(
            f"Question: {demo['question']}\nIds (numbers only):\n{demo['ids']}\n" in lm.prompts[0][1] for demo in demos
        )

    def test_the_same_bytes_and_no_model(self, done: Compiled, path: Path, tmp_path: Path) -> None:
        assert saved(done, tmp_path / "again.json") == path.read_bytes()
        found = json.loads(path.read_text(encoding="utf-8"))
        assert found["helpful"]["lm"] is None
        assert list(found) == ["helpful", "ids_again", "metadata"]

    def test_a_model_of_a_predictors_own_stays_behind(self, done: Compiled, tmp_path: Path) -> None:
        program = done.program.deepcopy()
        program.helpful.lm = dspy.LM("openai/gpt-4o-mini", api_key="sk-do-not-show", api_base="http://elsewhere")
        text = save_program(program, tmp_path / "p.json", done.recipe).read_text(encoding="utf-8")
        assert not [each for each in ("sk-do-not-show", "elsewhere", "gpt-4o") if each in text]

    def test_dspys_own_load_reads_it(self, done: Compiled, path: Path) -> None:
        again = FilCoFilter()
        again.load(path)
        assert [dict(demo) for demo in again.helpful.demos] == [dict(demo) for demo in done.program.helpful.demos]

    def test_half_a_file_is_never_seen(self, done: Compiled, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        before = path.read_bytes()

        def full(_fd: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            save_program(done.program, path, done.recipe)
        assert [each.name for each in path.parent.iterdir()] == ["filco.json"]
        assert path.read_bytes() == before


class TestRefused:
    def refused(self, path: Path, message: str, module: dspy.Module | None = None) -> None:
        module = module or FilCoFilter()
        before = module.dump_state()
        with pytest.raises(BadData, match=message) as error:
            load_program(module, path)
        assert "\n" not in str(error.value)
        assert module.dump_state() == before

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(MissingFile, match=r"no program at .*nowhere.json"):
            load_program(FilCoFilter(), tmp_path / "nowhere.json")

    @pytest.mark.parametrize("text", ["[1]", "{", '{"metadata": {"recipe": 3}}', "\xff"])
    def test_what_is_no_program(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "p.json").write_bytes(text.encode("latin-1"))
        self.refused(tmp_path / "p.json", "cannot be read as a program|holds no recipe")

    def test_another_kind_of_module(self, path: Path) -> None:
        self.refused(path, r"compiled for FilCoFilter, and this is Direct: name the method, or the filter", Direct())

    @pytest.mark.parametrize(
        ("place", "change", "message"),
        [
            ("recipe", {"format": 2}, "a program of format 2, this version reads 1"),
            ("recipe", {"before": GONE}, "its recipe is not whole"),
            (
                "fields",
                {"helpful": ["question"]},
                "'helpful' was compiled with 'the fields question', and here it has 'the fields offer_none ",
            ),
            (
                "fields",
                {"check": ["question"]},
                "'check' was compiled with 'the fields question', and here it has 'none'",
            ),
            (
                "state",
                {"ids_again": GONE},
                r"not a program's state \('ids_again' is missing, or holds other entries",
            ),
            ("state", {"judge": {}}, r"not a program's state \('judge' is no part of FilCoFilter\)"),
            ("helpful", {"config": {"temperature": 2.0}}, "'helpful' is missing, or holds other entries"),
            (
                "helpful",
                {"lm": {"model": "openai/gpt-4o", "api_base": "http://elsewhere"}},
                "'helpful' names a model",
            ),
        ],
    )
    def test_a_file_that_was_edited(self, place: str, change: dict[str, Any], message: str, path: Path) -> None:
        saved = json.loads(path.read_text(encoding="utf-8"))
        recipe, helpful = saved["metadata"]["recipe"], saved["helpful"]
        places = {"state": saved, "recipe": recipe, "fields": recipe["fields"], "helpful": helpful}
        edited = places[place]
        edited.update(change)
        for name in [name for name, value in change.items() if value is GONE]:
            del edited[name]
        path.write_text(json.dumps(saved), encoding="utf-8")
        self.refused(path, message)

    def test_another_unit_or_template(self, path: Path, tmp_path: Path) -> None:
        other = r"'helpful' was compiled with 'the template filco/sentences \w+', and here it has 'the template filco/"
        self.refused(path, rf"{other}passages \w+': leave out what changed it \(prompts=", FilCoFilter("passage"))
        (tmp_path / "own" / "filco").mkdir(parents=True)
        text = "{{ instructions }} {{ knowledge }} {{ question }}\nIds:"
        (tmp_path / "own" / "filco" / "sentences.j2").write_text(text)
        self.refused(path, f"{other}sentences", FilCoFilter(prompts=Prompts(tmp_path / "own")))

    def test_another_wording(self, path: Path) -> None:
        """What DSPy's state leaves out of a task's wording must be there already."""
        self.refused(
            path,
            "compiled with 'may keep nothing', and here it has 'keeps something'",
            FilCoFilter(offer_none=False),
        )
        how: dict[str, Any] = {"metric": anything, "lm": "offline", "max_demos": 1, "task": "strategyqa"}
        rows = sample_questions()
        method = BlendFilter(sample_index(), task="strategyqa")
        done = compile_program(method, rows[:2], valset=rows[2:4], run=path.parent / "run", **how)
        save_program(done.program, path, done.recipe)
        result = "'select' was compiled with 'may keep nothing, asks no topic', and .*: take the wording of strategyqa"
        self.refused(path, result, BlendFilter(sample_index()))
        load_program(BlendFilter(sample_index(), task="strategyqa"), path)


class TestMissing:
    """A program that is not there, and a file beside it that is none."""

    def test_the_next_move_is_said(self) -> None:
        with pytest.raises(MissingFile, match=r"no program at .*gone\.json: check the path, make one .*") as error:
            read_program(resources.programs() / "nq" / "gone.json")
        assert "\n" not in str(error.value)

    def test_a_tasks_wording_is_no_program(self) -> None:
        with pytest.raises(BadData, match=r"default\.json: a task's wording, which is used without being named"):
            load_program(FilCoFilter(), resources.programs() / "nq" / "default.json")


class TestOutcome:
    """What the scores before and after come to stands in the file."""

    @pytest.mark.parametrize(
        ("before", "after", "words"),
        [
            ([0, 1, 0.5], [0, 1, 0.5], "before 0.500, after 0.500: nothing gained; not better than the prompt as it is "
             "(+0.000 a question; of 3, 0 better, 0 worse)"),
            ([1, 1, 0], [1, 0, 0.5], "before 0.667, after 0.500: nothing gained; not better than the prompt as it is "
             "(-0.167 a question; of 3, 1 better, 1 worse)"),
            ([0, 0, 1], [1, 0, 1], "before 0.333, after 0.667: no sure gain (+0.333 a question; of 3, 1 better, 0 "
             "worse; chance may do as much)"),
            ([0, 0, 0, 0, 0, 0, 1], [1] * 7, "before 0.143, after 1.000: gained +0.857 a question; of 7, 6 better, "
             "0 worse"),
        ],
    )  # fmt: skip
    def test_in_words(self, before: list[float], after: list[float], words: str) -> None:
        scores = [HeldOutScore(sum(each) / len(each), len(each)) for each in (before, after)]
        assert outcome_of(*scores, PairedScores.of(before, after)) == words

    def test_it_is_saved_and_read_and_older_files_have_none(self, done: Compiled, path: Path) -> None:
        recipe = read_program(path)[1]
        assert recipe.paired == PairedScores(0.0, 0, 0)
        assert recipe.outcome == outcome_of(recipe.before, recipe.after, recipe.paired)
        assert "nothing gained; not better than the prompt as it is" in recipe.outcome
        assert repr(done) == f"<{recipe.module} compiled by {recipe.optimizer}: {recipe.outcome}>"
        saved = json.loads(path.read_text(encoding="utf-8"))
        for name in ("paired", "outcome"):
            del saved["metadata"]["recipe"][name]
        path.write_text(json.dumps(saved), encoding="utf-8")
        assert (read_program(path)[1].paired, read_program(path)[1].outcome) == (None, "")
