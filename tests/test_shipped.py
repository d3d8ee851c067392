"""Programs that ship: which model is asked by which, how a run names them, and how one takes another or none."""

from __future__ import annotations

import dataclasses
import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest
from refusing import refused
from scripted import ScriptedLM
from small_world import Command

import blendfilter as bf
from blendfilter import resources, shipped
from blendfilter.asking import TaskWording
from blendfilter.compiling.compile import compile_program
from blendfilter.compiling.pool import FilCoRow
from blendfilter.compiling.programs import load_program, save_program
from blendfilter.compiling.silver import silver_metric
from blendfilter.errors import BadArgument, BlendFilterError, Leak, UnknownName
from blendfilter.filters.base import unship
from blendfilter.filters.cdit import CDITFilter
from blendfilter.filters.filco import FilCoFilter
from blendfilter.lm.profiles import Profile
from blendfilter.records import Passage
from blendfilter.retrieval.callables import as_retriever

PASSAGES = [Passage("1", "Ormskerry", "A town. It has a pier."), Passage("2", "Oddle", "A village. It has none.")]
QUESTION = "Has Oddle a pier?"
SHOWN = "when did the skerry light go out"
ROW = FilCoRow(
    question=SHOWN,
    knowledge=["Skerry Light | It was lit in 1850. It went out in 1931.", "Skerry | A rock in the sea."],
    keep=["It went out in 1931."],
    golden_answers=["1931"],
)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package's programs, none of which is compiled but nq/filco.small, made here."""
    folder = tmp_path / "programs"
    shutil.copytree(resources.programs(), folder, ignore=shutil.ignore_patterns("*.small.json", "*.base.json"))
    monkeypatch.setattr(shipped.resources, "programs", lambda: folder)
    examples = [
        dspy.Example(question=f"{name}?", passages=PASSAGES, knowledge=["a"], chosen=[0], golden_answers=["a"])
        for name in ("trained on", "held back")
    ]
    done = compile_program(
        FilCoFilter(wording=TaskWording.of("nq")),
        [examples[0].with_inputs("question", "passages")],
        valset=[examples[1].with_inputs("question", "passages")],
        pool=[ROW.example()],
        optimizer="labeled",
        metric=silver_metric(answer=0),
        lm="offline",
        run=tmp_path / "run",
        task="nq",
    )
    save_program(done.program, folder / "nq/filco.small.json", done.recipe)
    shipped.ShippedProgram.at.cache_clear()
    yield folder
    shipped.ShippedProgram.at.cache_clear()


def asked(select: dspy.Module, **profile: Any) -> str:
    """What a model of that profile is sent in its first call."""
    lm = ScriptedLM(["1"])
    lm.profile = Profile(**profile)
    with dspy.context(lm=lm):
        select(question=QUESTION, passages=PASSAGES)
    return lm.prompts[0][1]


@pytest.mark.usefixtures("programs")
class TestWhichIsAsked:
    def test_a_model_of_that_kind_by_the_program_and_others_by_the_prompt(self) -> None:
        assert SHOWN in asked(FilCoFilter(), small=True)
        assert SHOWN not in asked(FilCoFilter())

    def test_only_the_task_that_it_was_compiled_for(self) -> None:
        assert SHOWN in asked(FilCoFilter(wording=TaskWording.of("nq")), small=True)
        assert SHOWN not in asked(FilCoFilter(wording=TaskWording.of("hotpotqa")), small=True)

    def test_another_or_none_by_name(self) -> None:
        assert SHOWN not in asked(FilCoFilter(program="none"), small=True)
        assert SHOWN in asked(FilCoFilter(wording=TaskWording.of("hotpotqa"), program="nq/filco.small"))
        with pytest.raises(UnknownName, match=r"no program 'nq/filco.smal'. Did you mean"):
            FilCoFilter(program="nq/filco.smal")

    def test_one_that_fits_no_prompt_of_the_filter_is_refused(self) -> None:
        with pytest.raises(BadArgument, match=r"nq/filco.small was compiled for another filter than filco-passage"):
            FilCoFilter("passage", program="nq/filco.small")
        with pytest.raises(BadArgument, match=r"for another filter than cdit"):
            CDITFilter(program="nq/filco.small")
        with pytest.raises(BadArgument, match=r"is for the mode word under the rule phi1"):
            CDITFilter("components", program="nq/filco.small")

    def test_other_templates_and_sentences_of_another_unit_are_asked_as_they_are(self, tmp_path: Path) -> None:
        (tmp_path / "own/filco").mkdir(parents=True)
        own = (resources.prompts() / "filco/sentences.j2").read_text(encoding="utf-8").replace("Choose", "Pick")
        (tmp_path / "own/filco/sentences.j2").write_text(own, encoding="utf-8")
        assert SHOWN not in asked(FilCoFilter(prompts=str(tmp_path / "own")), small=True)
        assert SHOWN not in asked(FilCoFilter("passage"), small=True)

    def test_a_program_of_ones_own_comes_first(self) -> None:
        select = FilCoFilter()
        select.helpful.demos = [dspy.Example(knowledge=["a | b"], question="mine?", ids="0")]
        assert "mine?" in asked(select, small=True)
        assert SHOWN not in asked(select, small=True)

    def test_unship_asks_by_the_prompt(self) -> None:
        method = bf.Direct(as_retriever(lambda query, k: PASSAGES), filter=FilCoFilter())
        unship(method)
        assert SHOWN not in asked(method.select, small=True)

    def test_copies_and_saved_states_are_asked_alike(self) -> None:
        select = FilCoFilter()
        copied = FilCoFilter()
        copied.load_state(select.dump_state())
        assert asked(select.deepcopy(), small=True) == asked(copied, small=True) == asked(select, small=True)


class TestRuns:
    def run(self, tmp_path: Path, rows: list[dict[str, str]], **profile: Any) -> bf.Run:
        lm = ScriptedLM(lambda stage, prompt: "1" if stage == "helpful" else "Ada")
        lm.profile = Profile(**profile)
        method = bf.Direct(as_retriever(lambda query, k: PASSAGES), filter=FilCoFilter(wording=TaskWording.of("nq")))
        return bf.evaluate(method, bf.load(rows), lm=lm, run=tmp_path / "eval", progress=False)

    def test_the_headline_and_the_settings_name_it(self, programs: Path, tmp_path: Path) -> None:
        run = self.run(tmp_path, [{"question": "Who?", "answer": "Ada"}], small=True)
        assert "|shipped:nq/filco.small|" in run.metrics["signature"]
        assert list(run.settings["method"]["shipped"]) == ["nq/filco.small"]

    def test_a_model_of_another_kind_leaves_no_trace_of_it(self, programs: Path, tmp_path: Path) -> None:
        run = self.run(tmp_path, [{"question": "Who?", "answer": "Ada"}])
        assert "shipped" not in run.metrics["signature"]
        assert "shipped" not in run.settings["method"]

    def test_questions_that_it_was_compiled_on_are_refused(self, programs: Path, tmp_path: Path) -> None:
        rows = [{"question": "held back?", "answer": "Ada"}]
        with pytest.raises(Leak, match=r"the program nq/filco.small, which ships with the package, was compiled on"):
            self.run(tmp_path, rows, small=True)
        assert self.run(tmp_path, rows).metrics["n"] == 1


def test_one_that_ships_is_loaded_by_its_name(programs: Path) -> None:
    select = FilCoFilter(wording=TaskWording.of("nq"))
    assert load_program(select, "nq/filco.small").task == "nq"
    assert SHOWN in asked(select)
    with pytest.raises(BlendFilterError, match=r"make one .blendfilter compile., or name one that ships"):
        load_program(select, "nq/filco.none")


@pytest.mark.usefixtures("programs")
def test_one_of_another_kind_of_model_is_warned_of(tmp_path: Path) -> None:
    select = FilCoFilter(wording=TaskWording.of("nq"))
    load_program(select, "nq/filco.small")
    recipe = select.compiled_by
    lm = ScriptedLM(lambda stage, prompt: "1")
    method = bf.Direct(as_retriever(lambda query, k: PASSAGES), filter=select)
    rows = [{"question": "Who?", "answer": "Ada"}]
    for kind, lines in (("small", 1), ("chat", 0)):
        select.compiled_by = dataclasses.replace(recipe, kind=kind)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            bf.evaluate(method, bf.load(rows), lm=lm, run=tmp_path / kind, progress=False)
        said = [str(each.message) for each in caught if "was compiled for a small model" in str(each.message)]
        assert len(said) == lines


def test_program_of_the_command_line(programs: Path, blendfilter: Command) -> None:
    words = ("eval", "nq", "--data", "sample", "--limit", 1, "--lm", "offline", "--method", "direct-retrieval")
    for name, there in (("nq/filco.small", True), ("none", False)):
        run = name.replace("/", "-")
        done = blendfilter(*words, "--filter", "filco", "--program", name, "--run", run)
        assert done.code == 0, done
        assert (SHOWN in Path(run, "journal.jsonl").read_text(encoding="utf-8")) is there
    refused(
        blendfilter(*words, "--filter", "filco", "--program", "nq/cdit.small", "--run", "other"),
        "no program at nq/cdit.small: check the path, make one (blendfilter compile), or name one that ships",
    )


SHIPS = shipped.shipped_names()


@pytest.mark.parametrize("name", SHIPS)
class TestEach:
    """What every program that ships must be."""

    def test_it_fits_its_filter_and_gained(self, name: str) -> None:
        from blendfilter.filters.registry import make_filter

        task, _, rest = name.partition("/")
        select = make_filter(rest.partition(".")[0], wording=task)
        recipe = load_program(select, name)
        assert recipe.gain is not None
        assert recipe.gain.ships
        assert recipe.data["n_pool"]

    def test_its_demonstrations_are_the_pools(self, name: str) -> None:
        from blendfilter.compiling.pool import read_pool

        filter = name.partition("/")[2].partition(".")[0]
        questions = {row.question for row in read_pool(filter)}
        saved = json.loads(shipped.shipped_path(name).read_bytes())
        saved.pop("metadata")
        assert {demo["question"] for step in saved.values() for demo in step["demos"]} <= questions
