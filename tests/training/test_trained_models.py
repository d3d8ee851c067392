"""Trained models in use: `--filter-model DIR` and `hf/DIR` read what training showed, and write what it taught."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import dspy
import pytest
import scoring_models
from training.test_silver import CHOSEN, NOTHING, written

import blendfilter as bf
from blendfilter.asking import TaskWording
from blendfilter.errors import Leak
from blendfilter.filters.written import TrainedFilCoFilter
from blendfilter.lm import huggingface
from blendfilter.modules.direct import Direct
from blendfilter.training.examples import tokenised
from blendfilter.training.settings import TrainingSettings
from blendfilter.training.silver import silver_set
from blendfilter.training.trainer import train_model

pytest.importorskip("peft", reason="training needs the extra [train]")

SETTINGS = TrainingSettings(method="full", epochs=40, learning_rate=1e-2, batch_size=2, max_target_tokens=64)
CHAT = (
    "{% for message in messages %}<s>{{ message.role }}: {{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)


def base(folder: Path, *, chat: bool) -> Path:
    """A tiny model, with a chat template or without one."""
    shutil.copytree(scoring_models.llama(positions=2048), folder)
    if chat:
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": CHAT}))
    return folder


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The token ids of every prompt that a model in this process reads."""
    seen, own = list[list[int]](), huggingface.prompt_ids

    def watched(*given: Any, **more: Any) -> list[int]:
        ids = own(*given, **more)
        seen.append(ids)
        return ids

    monkeypatch.setattr(huggingface, "prompt_ids", watched)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("chat", [False, True])
def test_filter_reads_the_tokens_it_was_trained_on_and_writes_the_silver_context(
    chat: bool, read: list[list[int]], tmp_path: Path
) -> None:
    """Two questions, learned by heart; one whose silver context is empty."""
    silver, model = written(tmp_path, [CHOSEN, NOTHING]), base(tmp_path / "base", chat=chat)
    examples, recipe, *_ = silver_set(silver, "context", model, SETTINGS)
    train_model(model, examples, tmp_path / "model", SETTINGS, recipe=recipe, device="cpu")
    select = TrainedFilCoFilter(tmp_path / "model")
    found = [select(question=row.question, passages=list(row.passages)) for row in (CHOSEN, NOTHING)]
    tokenizer = huggingface.open_tokenizer(model)
    for example in examples:
        assert list(tokenised(tokenizer, example, SETTINGS).prompt) in read
    assert [[part.text for part in each.kept] for each in found] == [["Ane Lindqvist runs it."], []]
    assert [each.status for each in found] == ["written", "none"]


@pytest.mark.slow
@pytest.mark.parametrize("chat", [False, True])
def test_generator_answers_over_the_context_it_was_trained_on(
    chat: bool, read: list[list[int]], tmp_path: Path
) -> None:
    """By Direct without demonstrations, through a run's own evaluation; questions of its training are refused there."""
    silver, model = written(tmp_path, [CHOSEN, NOTHING]), base(tmp_path / "base", chat=chat)
    examples, recipe, *_ = silver_set(silver, "generator", model, SETTINGS)
    train_model(model, examples, tmp_path / "model", SETTINGS, recipe=recipe, device="cpu")
    lm = bf.connect(f"hf/{tmp_path / 'model'}")
    method = Direct(bf.as_retriever(lambda query, k: CHOSEN.excerpts()), task=TaskWording.of("nq").with_demos("none"))
    with dspy.context(lm=lm):
        assert method(question=CHOSEN.question).answer == "Ane Lindqvist"
    assert list(tokenised(huggingface.open_tokenizer(model), examples[0], SETTINGS).prompt) in read
    questions = [{"id": "m1", "question": CHOSEN.question, "answer": "Ane Lindqvist"}]
    with pytest.raises(Leak, match=r"question 'm1' .* is one of those that model was trained on"):
        bf.evaluate(method, questions, lm=lm, run=tmp_path / "run")
