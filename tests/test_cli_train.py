"""`blendfilter train` as a user meets it: what it says, going on, and one line for whatever is wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import scoring_models
from refusing import ROWS, lines, refused, world
from small_world import Command

from blendfilter.lm.checkpoints import trained_on
from blendfilter.training.recipes import read_recipe

pytest.importorskip("peft", reason="training needs the extra [train]")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return world(tmp_path, monkeypatch)


def base() -> Path:
    return scoring_models.llama(positions=2048)


def words(**other: object) -> list[object]:
    """A training with options changed, added, or left out (None); True stands alone; underscores stand for dashes."""
    given: dict[str, object] = {
        "part": "context", "base": base(), "silver": "silver.jsonl", "out": "model", "epochs": 1, "batch_size": 2,
        "device": "cpu", **other,
    }  # fmt: skip
    named = [(f"--{name.replace('_', '-')}", value) for name, value in given.items() if value is not None]
    return ["train", other.get("command", "filco"), *(w for o, v in named if o != "--command" for w in (o, v))]


@pytest.fixture
def silver(blendfilter: Command, here: Path) -> Path:
    made = blendfilter("silver", "qa", "--data", "questions.jsonl", "--corpus", "corpus.jsonl", "--measure", "strinc",
                       "--out", "silver.jsonl")  # fmt: skip
    assert made.code == 0, made.err
    return here / "silver.jsonl"


def test_trains_and_says_what_it_takes_and_where_the_model_is(blendfilter: Command, silver: Path) -> None:
    first = blendfilter(*words())
    assert first.code == 0, first.err
    assert "trained (lora) on 3 of 3 examples: 2 steps, " in first.out
    assert "model: model (hf/model)" in first.out
    assert first.out.startswith("loss: ")
    recipe = read_recipe("model")
    assert (recipe["part"], recipe["silver"]["task"], recipe["silver"]["measure"]) == ("context", "qa", "strinc")
    assert len(trained_on("model")) == 3
    again = blendfilter(*words())
    assert (again.code, again.notices) == (0, ["blendfilter: model was finished before: nothing was trained"])
    refused(
        blendfilter(*words(epochs=2)), "model holds a model that was trained otherwise: settings.epochs was 1, now 2"
    )
    refused(blendfilter(*words(part="generator")), "part was 'context', now 'generator'")


def test_settings_of_a_file_and_the_papers_by_default(blendfilter: Command, silver: Path) -> None:
    """A dry look at the recipe: 128 tokens for a generator's target; --config gives the rest."""
    Path("train.toml").write_text('part = "generator"\nlearning-rate = 0.001\nlora-rank = 4\n')
    outcome = blendfilter(*words(part=None, config="train.toml"))
    assert outcome.code == 0, outcome.err
    settings = read_recipe("model")["settings"]
    assert settings["max_target_tokens"] == 128
    assert (settings["learning_rate"], settings["lora_rank"], settings["max_input_tokens"]) == (0.001, 4, 1024)


def test_questions_to_evaluate_on_are_refused_or_left_out(blendfilter: Command, silver: Path) -> None:
    lines(Path("test.jsonl"), ROWS[1:2])
    refused(blendfilter(*words(exclude="test.jsonl")), "question 'two'", "among those to evaluate on", "--leave-out")
    outcome = blendfilter(*[*words(exclude="test.jsonl"), "--leave-out"])
    assert outcome.code == 0, outcome.err
    assert "1 questions of silver.jsonl are left out: they are to be evaluated on" in outcome.err
    assert len(trained_on("model")) == 2


class TestRefused:
    def test_what_is_no_silver_file(self, blendfilter: Command, here: Path) -> None:
        refused(blendfilter(*words(silver="questions.jsonl")), "questions.jsonl, line 1")
        refused(blendfilter(*words(silver="gone.jsonl")), "gone.jsonl")

    def test_an_empty_silver_file(self, blendfilter: Command, here: Path) -> None:
        Path("empty.jsonl").write_text("")
        refused(blendfilter(*words(silver="empty.jsonl", task="qa")), "empty.jsonl has no row")

    def test_silver_of_another_task_or_measure(self, blendfilter: Command, silver: Path) -> None:
        refused(blendfilter(*words(task="nq")), "was made for qa, not for nq: give --task qa")
        refused(blendfilter(*words(command="bider", part=None)), "was made by the measure strinc", "BIDER's synthesis")

    def test_another_part(self, blendfilter: Command, here: Path) -> None:
        refused(blendfilter(*words(part="reader")), "'reader' is not one of 'context', 'passages', 'generator'")

    def test_a_base_that_is_not_there_or_has_no_tokeniser(self, blendfilter: Command, silver: Path) -> None:
        refused(blendfilter(*words(base="models/gone")), "no model 'models/gone'")
        shutil.copytree(base(), "bare")
        for file in Path("bare").glob("tokenizer*"):
            file.unlink()
        refused(blendfilter(*words(base="bare")), "no tokeniser in bare")

    def test_an_adapter_of_another_base(self, blendfilter: Command, silver: Path) -> None:
        """What its recipe says of its base, and what lies there now."""
        shutil.copytree(base(), "base")
        assert blendfilter(*words(base="base")).code == 0
        shutil.rmtree("base")
        shutil.copytree(scoring_models.llama(positions=2048, width=64), "base")
        refused(blendfilter(*words(base="model", out="other")), "was trained on another model than the one in base")

    def test_a_folder_of_something_else(self, blendfilter: Command, silver: Path) -> None:
        Path("model").mkdir()
        Path("model/notes.txt").write_text("mine")
        refused(blendfilter(*words()), "model is there, and holds no trained model of ours")
