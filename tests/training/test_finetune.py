"""DSPy's BootstrapFinetune over a model of Hugging Face in this process: a tiny one is truly trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dspy
import pytest
import scoring_models as made
from dspy.utils import DummyLM

from blendfilter.errors import BadArgument, EmptyData, UnknownName
from blendfilter.lm.checkpoints import open_tokenizer, prompt_ids
from blendfilter.lm.model import connect
from blendfilter.training.examples import tokenised
from blendfilter.training.finetune import examples_of, finetunable
from blendfilter.training.settings import TrainingSettings

pytest.importorskip("accelerate", reason="needs the extra [train]")

QUESTIONS = [dspy.Example(question=f"What follows {word}?", answer=after).with_inputs("question")
             for word, after in (("one", "two"), ("two", "three"), ("Monday", "Tuesday"), ("A", "B"))]  # fmt: skip
SMALL: dict[str, Any] = {"epochs": 1, "batch_size": 2, "max_input_tokens": 2000, "method": "full", "device": "cpu",
                         "learning_rate": 1e-3}  # fmt: skip


def right(example: dspy.Example, prediction: dspy.Prediction, trace: object = None) -> bool:
    """Whether the answer is the one that is known."""
    return bool(example.answer == prediction.answer)


@pytest.mark.slow
def test_a_program_is_compiled_and_uses_the_trained_model(tmp_path: Path) -> None:
    """What the teacher answered is learned, in the words that the chat adapter sends; wrong answers are left out."""
    lm = finetunable(connect(f"hf/{made.gpt2(2048)}?device=cpu", cache=False), tmp_path / "learned", **SMALL)
    student, teacher = dspy.Predict("question -> answer"), dspy.Predict("question -> answer")
    student.set_lm(lm)
    answers = [{"answer": "two"}, {"answer": "three"}, {"answer": "Sunday"}, {"answer": "B"}]
    teacher.set_lm(DummyLM(answers * 2))
    optimiser = dspy.BootstrapFinetune(metric=right, num_threads=1)
    compiled = optimiser.compile(student, trainset=QUESTIONS, teacher=teacher)

    assert compiled.lm.name == "learned"
    assert compiled.lm.state["name"] == f"hf/{tmp_path / 'learned'}?device=cpu"
    recipe = json.loads((tmp_path / "learned" / "recipe.json").read_text())
    assert (recipe["examples"]["n"], recipe["settings"]["epochs"]) == (3, 1)
    assert recipe["base"]["name"] == str(made.gpt2(2048))
    assert compiled.lm.identity["options"]["weights"] != lm.identity["options"]["weights"]
    assert isinstance(compiled.lm("One, two,", max_tokens=3)[0], str)
    # once more: it is there already
    student.set_lm(lm)
    assert optimiser.compile(student, trainset=QUESTIONS, teacher=teacher).lm.identity == compiled.lm.identity


def test_a_conversation_is_read_in_training_as_when_it_is_asked() -> None:
    (example,) = examples_of([
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"},
                      {"role": "assistant", "content": "The king."}]}
    ])  # fmt: skip
    words = open_tokenizer(made.llama())
    read = tokenised(words, example, TrainingSettings())
    assert list(read.prompt) == prompt_ids(words, [["system", "Be brief."], ["user", "Who?"]])
    assert words.decode([*read.prompt, *read.target]).endswith("Who? The king.</s>")


def test_what_cannot_be_trained_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(EmptyData, match="no call of the program passed the metric"):
        examples_of([])
    with pytest.raises(BadArgument, match="offline cannot be trained in this process"):
        finetunable(connect("offline"), tmp_path)
    with pytest.raises(UnknownName, match="Did you mean 'epochs'"):
        finetunable(connect(f"hf/{made.gpt2()}", cache=False), tmp_path, epoch=3)


def test_each_set_of_data_has_its_folder(tmp_path: Path) -> None:
    provider = finetunable(connect(f"hf/{made.gpt2()}", cache=False), tmp_path / "m").provider
    same = {"model": "hf/m", "train_data": [1], "train_kwargs": {}}
    folders = [provider.TrainingJob(**what).folder.name for what in (same, {**same, "train_data": [2]}, same)]
    assert folders == ["m", "m-2", "m"]


def test_a_copy_is_another_model_where_one_is_named(tmp_path: Path) -> None:
    lm = finetunable(connect(f"hf/{made.gpt2()}", cache=False, max_tokens=7), tmp_path / "m")
    other = lm.copy(model=f"hf/{made.llama()}", temperature=0.5)
    assert other.identity != lm.identity
    assert (other.kwargs["max_tokens"], other.kwargs["temperature"]) == (7, 0.5)
    assert other.provider is lm.provider
    assert lm.copy().inner is lm.inner
