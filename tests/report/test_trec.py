"""A run's rankings and gold as TREC files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import dspy
import pytest
from small_world import Command, done_by, small_eval

from blendfilter import BM25, BlendFilter, Passage, load
from blendfilter.errors import BadArgument, BadData, EmptyData, MissingFile
from blendfilter.evaluation.run import Run
from blendfilter.report.trec import GOLD
from blendfilter.resources import sample

pytestmark = pytest.mark.usefixtures("fresh_dspy")
PASSAGES = [
    Passage("a", "Orm Pier", "The pier was built by Ada."),
    Passage("b", "100 % Ada", "Ada was born in Tolm."),
    Passage("c", "Orm Pier", "It is 300 steps long."),
]
ROWS = [
    {"id": "q 1", "question": "Where is she from?", "answer": "Tolm", "gold_titles": ["100 % Ada", "Tolm"]},
    {"id": "q2", "question": "Who fails?", "answer": "x", "gold_titles": ["Orm Pier"]},
    {"id": "q3", "question": "Without gold?", "answer": "x"},
]  # fmt: skip


class Found(dspy.Module):  # type: ignore[misc]
    """Reads all passages, whatever is asked; one question fails."""

    def __init__(self) -> None:
        super().__init__()
        self.index = BM25.build(PASSAGES)

    def forward(self, question: str) -> dspy.Prediction:
        if "fails" in question:
            raise RuntimeError("no luck")
        self.index.search(["pier Ada"], 3)
        return dspy.Prediction(answer="Tolm", knowledge=PASSAGES)


@pytest.mark.filterwarnings("ignore:1 of 3 questions ended in an error")
def test_documents_are_titles_at_their_first_passage_and_fields_have_no_blanks(tmp_path: Path) -> None:
    """A question that failed, and one without gold, are in no file."""
    run, _ = done_by(Found(), load("qa", ROWS), tmp_path / "run")
    folder = tmp_path / "a new" / "folder"
    rankings, gold = run.trec(folder)
    assert rankings == {name: folder / f"run.{name}.trec" for name in ("search_1", "union", "kept")}
    assert gold == folder / GOLD
    lines = ["q%201 Q0 Orm%20Pier 1 2", "q%201 Q0 100%20%25%20Ada 2 1"]
    for query, file in rankings.items():
        assert file.read_text().splitlines() == [f"{line} {query}" for line in lines]
    assert gold.read_text().splitlines() == ["q%201 0 100%20%25%20Ada 1", "q%201 0 Tolm 1"]


@pytest.mark.filterwarnings("ignore:1 of 3 questions ended in an error")
def test_files_that_are_there_stay_unless_they_are_the_runs_own(tmp_path: Path) -> None:
    run, _ = done_by(Found(), load("qa", ROWS), tmp_path / "run")
    run.trec()
    run.trec()  # the run's own are written anew
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / GOLD).write_text("somebody's own\n")
    with pytest.raises(BadArgument, match=r"qrels\.trec is there already: name another folder, or remove it"):
        run.trec(folder)
    assert [(each.name, each.read_text()) for each in folder.iterdir()] == [(GOLD, "somebody's own\n")]


def test_ir_measures_finds_in_them_what_the_report_says(tmp_path: Path) -> None:
    """Every query of BlendFilter and of each question: recall, nDCG and reciprocal rank; the means too."""
    ir_measures = pytest.importorskip("ir_measures", reason="pip install ir-measures")
    questions = load("hotpotqa", "sample", limit=12)
    run, _ = done_by(BlendFilter(BM25.build(sample("corpus.jsonl")), k=5), questions, tmp_path / "run")
    rankings, gold = run.trec(tmp_path)
    qrels = list(ir_measures.read_trec_qrels(str(gold)))
    measures = {ir_measures.R @ 100: "recall", ir_measures.nDCG: "ndcg", ir_measures.RR: "mrr"}
    for query in ("q", "q_ex", "q_in", "union", "kept"):
        found = list(ir_measures.read_trec_run(str(rankings[query])))
        values = {(each.query_id, measures[each.measure]): each.value
                  for each in ir_measures.iter_calc([*measures], qrels, found)}  # fmt: skip
        for row in run.rows:
            for name in measures.values():
                assert row["retrieval"][query][name] == pytest.approx(values[row["id"], name], abs=1e-6)
        means = ir_measures.calc_aggregate([*measures], qrels, found)
        stored = run.metrics["retrieval"][query]
        assert {name: stored[name] for name in measures.values()} == pytest.approx(
            {measures[measure]: value for measure, value in means.items()}, abs=1e-6
        )


def test_a_query_of_any_name_has_a_file_in_the_folder(tmp_path: Path) -> None:
    class Hops(Found):
        def forward(self, question: str) -> dspy.Prediction:
            branch = SimpleNamespace(retrieved=PASSAGES, kept=PASSAGES, ids_read="ids")
            self.index.search(["pier Ada"], 3)
            return dspy.Prediction(answer="Tolm", knowledge=PASSAGES, branches={"../1st hop": branch})

    run, _ = done_by(Hops(), load("qa", ROWS[:1]), tmp_path / "run")
    rankings, _ = run.trec()
    assert rankings["../1st hop"] == run.folder / "run...%2F1st%20hop.trec"
    assert rankings["../1st hop"].is_file()


def test_all_files_are_there_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = done_by(Found(), load("qa", ROWS[:1]), tmp_path / "run")
    replace = os.replace

    def full(source: Path, target: Path) -> None:
        if target.name == GOLD:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        run.trec()
    assert not [name for name in os.listdir(run.folder) if name.endswith(".trec")]


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    with pytest.raises(EmptyData, match="no gold titles are known"):
        done_by(Found(), load("qa", ROWS[2:]), tmp_path / "none")[0].trec()
    run, _ = done_by(Found(), load("qa", ROWS[:1]), tmp_path / "run")
    row = json.loads((run.folder / "predictions.jsonl").read_text()) | {"knowledge": ["elsewhere"]}
    (run.folder / "predictions.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(BadData, match="holds no passage 'elsewhere'"):
        Run(run.folder).trec()
    (run.folder / "metrics.json").unlink()
    with pytest.raises(MissingFile, match="not finished"):
        Run(run.folder).trec()


def test_the_command_writes_them_into_the_runs_folder(blendfilter: Command, here: Path) -> None:
    assert blendfilter(*small_eval("blendfilter", "run", "--no-html")).code == 0
    shown = blendfilter("report", "run", "--trec", "--no-html")
    queries = ["q", "q_ex", "q_in", "union", "kept"]
    files = [*(f"run/run.{query}.trec" for query in queries), "run/qrels.trec"]
    assert (shown.code, f"TREC: {', '.join(files)}" in shown.out) == (0, True)
    assert all((here / file).is_file() for file in files)
