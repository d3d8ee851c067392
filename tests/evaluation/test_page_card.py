"""A run in a notebook: a small card with its headline, its scores and where questions are lost."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from blendfilter import BM25, BlendFilter, Run, evaluate, load
from blendfilter.evaluation.run_folder import METRICS, PREDICTIONS, read_rows, write_rows
from blendfilter.report.run_text import OFFLINE
from blendfilter.resources import sample


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "<b>blend & co"
    index = BM25.build(sample("corpus.jsonl"))
    return evaluate(BlendFilter(index), load("hotpotqa", "sample", limit=6), lm="offline", run=folder, progress=False)


def test_a_card_shows_the_run(made: Run) -> None:
    shown = made._repr_html_()
    assert made.metrics["signature"] in shown
    assert OFFLINE in shown
    assert "&lt;b&gt;blend &amp; co" in shown
    assert "<b>blend" not in shown
    for score in made.metrics["metrics"].values():
        assert f"{100 * score['value']:.1f}" in shown
    assert shown.count("<rect") == 2 * sum(count > 0 for count in made.losses().values()), "a bar and its legend"
    assert "<script" not in shown
    assert "http" not in shown
    assert len(shown) < 6_000


def test_it_says_where_the_whole_report_is(made: Run) -> None:
    assert "run.html() writes" in made._repr_html_()
    made.html()
    assert "the whole report:" in made._repr_html_()


def test_a_run_that_is_not_finished(made: Run, tmp_path: Path) -> None:
    half = Run(shutil.copytree(made.folder, tmp_path / "half"))
    (half.folder / METRICS).unlink()
    write_rows(half.folder / PREDICTIONS, read_rows(half.folder / PREDICTIONS)[:2])
    assert "not finished: 2 of 6 questions are answered" in half._repr_html_()
    (half.folder / PREDICTIONS).unlink()
    assert "0 of 6" in Run(half.folder)._repr_html_()


def test_without_gold_no_losses_are_drawn(made: Run, tmp_path: Path) -> None:
    run = Run(shutil.copytree(made.folder, tmp_path / "run"))
    for row in run.rows:
        row["gold_titles"] = []
    assert not re.search("<svg", run._repr_html_())
