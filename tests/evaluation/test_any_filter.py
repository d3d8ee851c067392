"""Any filter in any method: each answers, keeps a part of what it retrieved, and runs, resumes and replays alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest
from small_world import done_by, stable

from blendfilter import BM25, ChainOfThought, SentenceFilter, connect, evaluate, load
from blendfilter.errors import BadArgument, RunMismatch
from blendfilter.evaluation.run_settings import settings_of
from blendfilter.filters.registry import FILTERS, PLUG_INS, make_filter
from blendfilter.modules.methods import make_method


@pytest.fixture(scope="module")
def questions() -> Any:
    return load("qa", "sample", limit=4)


@pytest.mark.parametrize("name", [name for name in FILTERS if name not in PLUG_INS])
@pytest.mark.parametrize("method", ["cot-retrieval", "blendfilter"])
def test_a_run_replays_to_the_same_bytes(method: str, name: str, index: BM25, questions: Any, tmp_path: Path) -> None:
    def made() -> dspy.Module:
        own = {"lm": connect("offline")} if name == "bider" else {}  # in the place of a trained model
        return make_method(method, index, k=4, filter=make_filter(name, **own))

    run, engine = done_by(made(), questions, tmp_path / "run")
    assert run.errors == 0
    before = stable(tmp_path / "run")
    evaluate(made(), questions, lm=engine.lm(), run=tmp_path / "run", replay=True, progress=False)
    assert stable(tmp_path / "run") == before
    spans = [row["branches"]["q"].get("spans") for row in run.rows]
    assert all(spans) if name in ("sentence", "filco", "bider", "summary") else not any(spans)


@pytest.mark.parametrize("name", [name for name in FILTERS if name not in PLUG_INS])
def test_passages_are_a_list_and_no_text(name: str, index: BM25) -> None:
    """A context as one text, or a prediction without `passages`, would be read letter by letter, name by name."""
    lm = connect("offline")
    chosen = make_filter(name, **({"lm": lm} if name == "bider" else {}))
    found = index("Ormskerry", k=2)
    with dspy.context(lm=lm):
        for wrong in ("Fell | A hill.", dspy.Prediction(context=["Fell | A hill."]), None):
            with pytest.raises(BadArgument, match=f"^passages is a {type(wrong).__name__}: give a list of"):
                chosen(question="Where is Ormskerry?", passages=wrong)
        whole = chosen(question="Where is Ormskerry?", passages=dspy.Prediction(passages=found))
        assert whole.kept == chosen(question="Where is Ormskerry?", passages=found).kept


@pytest.mark.parametrize(
    "other", [SentenceFilter(n=3), SentenceFilter(n=2, by=lambda question, texts: [0.0] * len(texts)), None]
)
def test_runs_with_other_filters_do_not_share_a_folder(other: Any, index: BM25, questions: Any, tmp_path: Path) -> None:
    done_by(ChainOfThought(index, filter=SentenceFilter(n=2)), questions, tmp_path / "run")
    with pytest.raises(RunMismatch):
        done_by(ChainOfThought(index, filter=other), questions, tmp_path / "run")


def test_the_filter_named_knowledge_is_blendfilters_own(index: BM25, questions: Any) -> None:
    """So `--filter knowledge` goes on in the run that was begun without it."""
    for task in ("hotpotqa", "strategyqa"):
        own = make_method("blendfilter", index, task=task)
        named = make_method("blendfilter", index, task=task, filter=make_filter("knowledge", wording=task))
        lm = connect("offline")
        assert settings_of(own, questions, lm, seed=0) == settings_of(named, questions, lm, seed=0)
