"""A server that tells no usage: every place that shows tokens says that they are unknown, and none says 0."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from dspy import lm15
from small_world import CountingEngine, done_by

from blendfilter import BM25, Direct, Run
from blendfilter.evaluation.page.head import head_of
from blendfilter.evaluation.reproducing.results import a_question
from blendfilter.evaluation.run_status import RunStatus
from blendfilter.report.plots import headline, point_of
from blendfilter.tasks import Questions


class Silent(CountingEngine):
    """The counting reader behind a server that tells no usage."""

    async def complete(self, request: lm15.Request) -> lm15.Response:
        return dataclasses.replace(await super().complete(request), usage=lm15.Usage())


@pytest.fixture
def silent(index: BM25, questions: Questions, tmp_path: Path) -> Run:
    return done_by(Direct(index), questions, tmp_path / "silent", engine=Silent())[0]


def test_it_is_unknown_wherever_tokens_are_shown(
    silent: Run, index: BM25, questions: Questions, tmp_path: Path
) -> None:  # fmt: skip
    told, _ = done_by(Direct(index), questions, tmp_path / "told")
    total = silent.metrics["ledger"]["total"]
    assert (total["calls"], total["tokens_in"], total["tokens_out"]) == (len(questions), None, None)
    assert f"no tokens told: {len(questions)} of {len(questions)} calls" in " ".join(silent.report().split())
    assert a_question(silent) == (1.0, None)
    head = head_of(RunStatus(silent), [RunStatus(told)])
    assert head.sides[0].tokens == "-" != head.sides[1].tokens
    assert head.ledger[-1][4] == head.ledger[-1][6] == "-"
    assert "tokens told" in silent.html(told).read_text(encoding="utf-8")


def test_the_headline_plot_leaves_out_what_is_not_known_of_all(
    silent: Run, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    told, _ = done_by(Direct(index), questions, tmp_path / "told")
    assert point_of("silent", silent).tokens != point_of("silent", silent).tokens, "nan"
    drawn = headline([silent, told], tmp_path / "plot.svg")[0].read_text(encoding="utf-8")
    assert "model calls a question" in drawn
    assert "tokens a question" not in drawn
    assert "tokens a question" in headline([told], tmp_path / "whole.svg")[0].read_text(encoding="utf-8")
