"""MLflow over our methods: a question's trace as one tree, and `mlflow.dspy.log_model`.

MLflow's own requirements exclude versions that `constraints.txt` pins, so it is in no extra. To run these, put it
behind the environment's packages (passed with mlflow-skinny 3.17.2)::

    pip install --target build/mlflow mlflow-skinny sqlalchemy alembic
    python -c "import sys, pytest; sys.path.append('build/mlflow'); sys.exit(pytest.main(['tests/test_mlflow.py']))"
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import compiled
import dspy
import pytest
from isle import QUESTION, replies, three_lists
from scripted import ScriptedLM

from blendfilter.lm.model import connect
from blendfilter.modules.blendfilter import BlendFilter

mlflow: Any = pytest.importorskip("mlflow", reason="needs MLflow, which is no part of any extra: pip install mlflow")
STAGES = {"external", "internal", "topic", "check", "ids", "answer", "short_answer"}


@pytest.fixture
def tracking(tmp_path: Path) -> Any:
    """MLflow with a database of its own, tracing DSPy."""
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.create_experiment("blendfilter", artifact_location=(tmp_path / "artifacts").as_uri())
    mlflow.set_experiment("blendfilter")
    mlflow.dspy.autolog()
    yield mlflow
    mlflow.dspy.autolog(disable=True)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("awaited", [True, False])
def test_a_question_is_one_tree_with_its_stages_and_searches(tracking: Any, awaited: bool) -> None:
    method = BlendFilter(three_lists())
    with dspy.context(lm=ScriptedLM(replies()), callbacks=dspy.settings.callbacks):
        if awaited:
            asyncio.run(method.acall(question=QUESTION))
        else:
            method(question=QUESTION)
    tracking.flush_trace_async_logging()
    trace = tracking.get_trace(tracking.get_last_active_trace_id())
    spans = {span.span_id: span for span in trace.data.spans}
    (root,) = (span for span in spans.values() if span.parent_id is None)
    assert root.name == "BlendFilter.forward"
    assert all(span.parent_id in spans for span in spans.values() if span is not root)
    names = [span.name for span in spans.values()]
    assert {f"{stage}.forward" for stage in STAGES} <= {*names}
    assert names.count("ScriptedLM.__call__") == 11
    searches = [span for span in spans.values() if span.name == "Tool.search"]
    assert [QUESTION in span.inputs["query"] for span in searches] == [True, True, True]
    assert all("Ada Brennock" in str(span.outputs) for span in searches)


@pytest.mark.timeout(300)
def test_a_method_is_logged_as_a_model_and_loaded(tracking: Any, tmp_path: Path) -> None:
    method = BlendFilter(compiled.sample_index(), k=2)
    with dspy.context(lm=connect("offline")):
        expected = method(question=QUESTION).answer
        with tracking.start_run():
            info = tracking.dspy.log_model(method, name="method")
        again = tracking.dspy.load_model(info.model_uri)
        assert again(question=QUESTION).answer == expected
