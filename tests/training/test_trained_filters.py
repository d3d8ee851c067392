"""From a silver file to a run: a tiny model is trained as a filter, and asked with the very prompts of its training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import scoring_models
from small_world import journaled

from blendfilter import BM25, Direct, Oracle, connect, evaluate, load, make_silver
from blendfilter.errors import BadArgument, Leak
from blendfilter.filters.written import BIDERFilter, TrainedFilCoFilter
from blendfilter.resources import sample

pytest.importorskip("torch")
pytest.importorskip("peft")
CAP = 230
"""Tokens of a prompt: less than two passages have."""


@pytest.mark.slow
@pytest.mark.parametrize("base", [scoring_models.llama, scoring_models.t5])
def test_a_trained_filter_reads_what_it_was_trained_on(base: Callable[..., Path], tmp_path: Path) -> None:
    from blendfilter.training.settings import TrainingSettings
    from blendfilter.training.silver import silver_set
    from blendfilter.training.trainer import train_model

    index, silver = BM25.build(sample("corpus.jsonl")), tmp_path / "silver.jsonl"
    questions = load("nq", "sample", limit=4)
    make_silver(questions, Oracle("strinc", task="nq"), silver, retriever=index, k=2)
    settings = TrainingSettings(epochs=1, batch_size=4, max_input_tokens=CAP, max_target_tokens=16)
    made = silver_set(silver, "context", base(), settings)
    model = train_model(base(), made.examples, tmp_path / "m_ctx", settings, recipe=made.recipe, device="cpu").folder
    assert made.recipe["prompts_cut"] == 4, "the cap counts"

    select = TrainedFilCoFilter(model)
    assert select.max_input_tokens == CAP, "as it was trained"
    asked = [select.prompt(row.question, row.passages) for row in made.rows]
    assert asked == [example.prompt for example in made.examples]
    rows = [{"question": f"Where is {place}?", "answer": place} for place in ("Obrin Abbey", "Adelisse Bridge")]
    run = evaluate(Direct(index, k=2, filter=select), rows, lm="offline", run=tmp_path / "run", progress=False)
    written = [call for call in journaled(tmp_path / "run") if call["stage"] == "write"]
    assert {call["model"] for call in written} == {"m_ctx"}
    assert all(CAP - 20 < call["tokens_in"] <= CAP for call in written), "counted as the model reads them"
    assert run.settings["lm"]["filter"]["options"]["weights"]
    assert run.metrics["flags"]["input_cut"] == 2
    again = evaluate(Direct(index, k=2, filter=select), rows, lm="offline", run=tmp_path / "run", replay=True,
                     progress=False)  # fmt: skip
    assert again.rows == run.rows
    with pytest.raises(Leak, match="trained on"):
        evaluate(Direct(index, k=2, filter=select), questions, lm="offline", progress=False)
    with pytest.raises(BadArgument, match="was trained as FilCo's context filter, and BIDERFilter wants BIDER"):
        BIDERFilter(model)
    assert connect(f"hf/{model}").name == "m_ctx"
