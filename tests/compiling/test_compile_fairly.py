"""What a compilation may not depend on, what may not teach, and what a program remembers of its questions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dspy
import pytest
from compiled import (
    CAN,
    OPTIMIZERS,
    SMALL,
    anything,
    compile_small,
    exact,
    sample_index,
    sample_questions,
    saved,
    silver_rows,
    student,
    written,
)
from scripted import ScriptedLM

from blendfilter.compiling.compile import AFTER, BEFORE, compile_program
from blendfilter.compiling.programs import question_digest
from blendfilter.compiling.silver import silver_examples, silver_metric
from blendfilter.errors import Leak
from blendfilter.modules.direct import Direct


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
class TestAgain:
    """A program that was compiled before is compiled further."""

    def test_it_knows_all_that_it_was_compiled_on(self, optimizer: str, tmp_path: Path) -> None:
        rows = silver_examples(silver_rows(10))
        first = compile_small("filco", "bootstrap", "offline", tmp_path / "first")
        how: dict[str, Any] = {"metric": silver_metric(answer=0), "lm": "offline", "optimizer": optimizer, **SMALL}
        done = compile_program(first.program, rows[6:8], valset=rows[8:], run=tmp_path / "again", **how)
        asked = [question_digest(each.question) for each in rows]
        assert done.recipe.trained_on == (*asked[6:], *first.recipe.trained_on)
        with pytest.raises(Leak, match="is held back, and the program that the module speaks as was compiled on it"):
            compile_program(first.program, rows[6:8], valset=rows[:1], run=tmp_path / "leak", **how)
        assert not (tmp_path / "leak").exists()

    def test_its_parts_are_seen_by_whoever_holds_it(self, optimizer: str, tmp_path: Path) -> None:
        done = compile_small("filco", optimizer, "offline", tmp_path)
        method = Direct(sample_index(), filter=done.program)
        assert {name for name, _ in method.named_predictors()} == {"direct", "select.helpful", "select.ids_again"}


@pytest.mark.parametrize(("kind", "optimizer"), CAN)
def test_what_is_held_back_teaches_nobody(kind: str, optimizer: str, tmp_path: Path) -> None:
    """Its gold is in no prompt, and its questions are in those that score alone."""
    rows = silver_examples(silver_rows()) if kind == "filco" else sample_questions()
    held = [
        each.copy(golden_answers=["GOLD"], answer="GOLD", ids="GOLD", chosen=[0], id="GOLD").with_inputs(*each.inputs())
        for each in rows[4:6]
    ]
    phase = [""]
    told: list[tuple[str, str]] = []

    def reply(stage: str, prompt: str) -> str:
        told.append((phase[0], prompt))
        return written(stage, prompt)

    metric = silver_metric() if kind == "filco" else exact if optimizer == "gepa" else anything
    done = compile_program(
        student(kind), rows[:4], valset=held, metric=metric, lm=ScriptedLM(reply), run=tmp_path, optimizer=optimizer,
        progress=lambda name, *_: phase.__setitem__(0, name), **SMALL,
    )  # fmt: skip
    assert not [prompt for _, prompt in told if "GOLD" in prompt]
    asked = [each.question for each in held]
    # After, only a program that says something else asks again.
    assert {name for name, prompt in told if any(each in prompt for each in asked)} - {AFTER} == {BEFORE}
    text = saved(done, tmp_path / "p.json").decode()
    assert "GOLD" not in text
    assert not [each for each in asked if each in text]


def test_the_adapter_that_is_configured_is_the_one_compiled_for(tmp_path: Path) -> None:
    class Mine(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.reply = dspy.Predict("question -> answer")

        def forward(self, question: str) -> dspy.Prediction:
            return self.reply(question=question)

    rows, lm = sample_questions(), ScriptedLM(lambda stage, prompt: '{"answer": "x"}')
    how: dict[str, Any] = {"metric": exact, "optimizer": "labeled", "max_demos": 1}
    with dspy.context(adapter=dspy.JSONAdapter()):
        compile_program(Mine(), rows[:3], valset=rows[3:], lm=lm, run=tmp_path, **how)
    assert all("Respond with a JSON object" in prompt for _, prompt in lm.prompts)


def test_the_same_bytes_whatever_the_order_of_sets(tmp_path: Path) -> None:
    """In a process of its own, whose hashes are seeded otherwise."""
    here = saved(compile_small("blendfilter", "bootstrap", "offline", tmp_path / "here"), tmp_path / "here.json")
    code = (
        "import pathlib; from compiled import compile_small, saved\n"
        "saved(compile_small('blendfilter', 'bootstrap', 'offline', pathlib.Path('run'), concurrency=1),"
        " pathlib.Path('there.json'))\n"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    paths = os.pathsep.join(map(os.path.abspath, sys.path))
    other = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": seed}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=other, check=True, timeout=120)
    assert (tmp_path / "there.json").read_bytes() == here
