"""A run read back: rows, metrics, losses, frame; and `compare` over runs as they lie in their folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_world import CountingEngine
from stored import SETTINGS

from blendfilter import BM25, BlendFilter, ChainOfThought, Direct, Run, compare, evaluate, load
from blendfilter.errors import BadArgument, MissingFile, RunMismatch, UnknownName
from blendfilter.evaluation.comparison import NO_P_VALUE
from blendfilter.evaluation.run import named_runs
from blendfilter.resources import sample


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Three methods over the same eight questions, one of them with a model that is not the offline reader."""
    folder, index = tmp_path_factory.mktemp("runs"), BM25.build(sample("corpus.jsonl"))
    questions = load("hotpotqa", "sample", limit=8)

    def run(name: str, method: Any, lm: Any, wanted: Any = questions) -> Run:
        return evaluate(method, wanted, lm=lm, run=folder / name, progress=False)

    return {
        "direct": run("direct", Direct(index), "offline"),
        "blend": run("blend", BlendFilter(index), "offline"),
        "cot": run("cot", ChainOfThought(index), CountingEngine().lm()),
        "silly": run("silly", Direct(index), CountingEngine(reply=lambda _: "no idea").lm()),
        "fewer": run("fewer", Direct(index), "offline", questions[:5]),
        "other": run("other", Direct(index), "offline", load("qa", "sample", limit=8)),
    }


def test_a_run_reads_its_folder(runs: dict[str, Run]) -> None:
    run = Run(runs["blend"].folder)
    assert run.name == "blend"
    assert run.finished
    assert run.offline
    assert not runs["cot"].offline
    assert run.errors == 0
    assert len(run.rows) == run.metrics["n"] == 8
    assert run.scores == {name: run.metrics["metrics"][name]["value"] for name in ("em", "f1")}
    assert run.settings == json.loads((run.folder / "run.json").read_text())["settings"]
    assert repr(run) == f"<run blend: {run.metrics['signature']}>"
    assert run.metrics["signature"] in run._repr_html_().replace("&#x27;", "'")


def test_a_frame_has_a_row_a_question(runs: dict[str, Run]) -> None:
    frame = runs["blend"].frame()
    assert list(frame.index) == [row["id"] for row in runs["blend"].rows]
    assert frame["em"].mean() == pytest.approx(runs["blend"].metrics["metrics"]["em"]["value"])
    assert {"question", "answer", "queries", "knowledge", "loss"} <= set(frame.columns)


def test_a_run_that_is_not_there_or_not_finished(runs: dict[str, Run], tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"no run folder at .*gone"):
        Run(tmp_path / "gone")
    with pytest.raises(MissingFile, match="no run there"):
        Run(tmp_path)
    for name in ("run.json", "predictions.jsonl"):
        (tmp_path / name).write_bytes((runs["blend"].folder / name).read_bytes())
    half = Run(tmp_path)
    assert not half.finished
    assert repr(half).endswith(": not finished>")
    for ask in (lambda: half.rows, lambda: half.metrics, half.losses, lambda: half.errors):
        with pytest.raises(MissingFile, match="8 of 8 questions are answered, 0 missing; run the same command again"):
            ask()


def test_runs_are_compared_with_the_first(runs: dict[str, Run]) -> None:
    compared = compare(runs["silly"], runs["cot"])
    assert (compared.baseline, compared.n) == ("silly", 8)
    assert [(row.run, row.measure) for row in compared.rows] == [
        (run, measure) for run in ("silly", "cot") for measure in ("em", "f1")
    ]
    em = compared.rows[-2]
    right = [row["correct"] for row in runs["cot"].rows]
    assert (em.won, em.lost) == (sum(right), 0)
    assert em.p is not None
    assert compare(runs["silly"].folder, str(runs["cot"].folder)).as_dict() == compared.as_dict()
    assert {row.measure for row in compare(runs["silly"], runs["cot"], metrics=["f1"]).rows} == {"f1", "correct"}


def test_runs_are_compared_one_by_one_as_a_list_or_under_names(runs: dict[str, Run]) -> None:
    """As `frontier` and `plot` take them."""
    compared = compare(runs["silly"], runs["cot"])
    assert compare([runs["silly"], runs["cot"].folder]) == compared
    named = compare({"no thought": runs["silly"], "thought": runs["cot"]}, against="thought")
    assert named.baseline == "thought"
    assert {row.run for row in named.rows} == {"no thought", "thought"}


@pytest.mark.parametrize("names", [("direct", "blend"), ("cot", "direct"), ("cot", "silly", "blend")])
def test_no_p_value_where_the_offline_reader_took_part(runs: dict[str, Run], names: tuple[str, ...]) -> None:
    compared = compare(*(runs[name] for name in names))
    assert not compared.p_values
    assert all(row.p is None and row.p_holm is None and row.smallest is None for row in compared.rows)
    assert all(row.difference is not None for row in compared.rows if row.run != names[0])
    assert NO_P_VALUE in str(compared)
    assert "p:" not in str(compared).replace(NO_P_VALUE, "")


def test_what_cannot_be_compared(runs: dict[str, Run]) -> None:
    for one in (runs["cot"], [runs["cot"]], {"one": runs["cot"]}):
        with pytest.raises(BadArgument, match="at least two runs, got 1"):
            compare(one)
    with pytest.raises(RunMismatch, match=r"different questions: 'sw-q-005' and 2 more are in one"):
        compare(runs["direct"], runs["fewer"])
    with pytest.raises(RunMismatch, match="'direct' is hotpotqa, 'other' is qa"):
        compare(runs["direct"], runs["other"])


def test_any_of_the_runs_may_be_the_baseline(runs: dict[str, Run]) -> None:
    compared = compare(runs["silly"], runs["cot"], against="cot")
    assert compared.baseline == "cot"
    assert compared.rows[-1].difference == -compare(runs["silly"], runs["cot"]).rows[-1].difference
    assert compare(runs["silly"], runs["cot"], against=runs["cot"].folder) == compared
    assert compare(runs["silly"], runs["cot"], against=runs["cot"]) == compared
    again = {"cot": runs["cot"], "silly": runs["silly"], "cot again": runs["cot"]}
    assert compare(again, against=runs["cot"].folder).baseline == "cot", "of a folder given twice, the first name"
    with pytest.raises(UnknownName, match=r"no run 'kot'\. Did you mean 'cot'"):
        compare(runs["silly"], runs["cot"], against="kot")


def test_what_else_differs_is_told(runs: dict[str, Run]) -> None:
    notes = compare(runs["direct"], runs["cot"]).notes
    assert notes[0] == "also differs: lm offline (direct) / counting (cot)"
    assert not any(note.startswith("also") for note in compare(runs["direct"], runs["blend"]).notes)


def test_a_margin_wants_one_index(runs: dict[str, Run]) -> None:
    """The offline reader gets no p-value, but its verdict: what it decides is whether the pipeline still works."""
    compared = compare(runs["direct"], runs["silly"], runs["direct"], metrics=["em"], margin=30)
    assert compared.non_inferior == {"silly": False, "direct (3)": True}
    assert NO_P_VALUE in compared.notes
    questions = load("hotpotqa", "sample", limit=8)
    folder = runs["direct"].folder.with_name("one passage less")
    passages = [json.loads(line) for line in sample("corpus.jsonl").read_text("utf-8").splitlines()]
    evaluate(Direct(BM25.build(passages[:-1])), questions, lm="offline", run=folder, progress=False)
    with pytest.raises(RunMismatch, match=r"^margin=30 wants runs over one index: index bm25/\S+ \(direct\) / bm25/"):
        compare(runs["direct"], folder, margin=30)
    assert compare(runs["direct"], folder).n == 8, "without a margin it is a line below the table"


def test_scores_that_are_lower_than_asked_are_named(runs: dict[str, Run]) -> None:
    run, name = runs["blend"], "kept.recall"
    em, recall = run.metrics["metrics"]["em"], run.metrics["retrieval"]["kept"]["recall"]
    assert run.at_least(em=em["value"], **{name: recall}) == run.at_least() == []
    assert run.at_least(em=1, f1=0, **{name: 0.999}) == [
        f"em is {100 * em['value']:.1f} % [{100 * em['low']:.1f}, {100 * em['high']:.1f}], below 100 %",
        f"kept.recall is {100 * recall:.1f} %, below 99.9 %",
    ]
    with pytest.raises(MissingFile, match="run 'blend' has no 'cover-em' yet: blendfilter rescore"):
        run.at_least(**{"cover-em": 1})
    run.rescore("cover-em")
    assert run.at_least(**{"cover-em": 0}) == []
    with pytest.raises(UnknownName, match=r"^no score 'en'\. .*known: em, f1, kept\.mrr, .* in .*blend"):
        run.at_least(en=0.5)
    with pytest.raises(BadArgument, match=r"^em is 40: give a share from 0 to 1"):
        run.at_least(em=40)
    with pytest.raises(BadArgument, match=r"^em is '0\.4': give a share from 0 to 1"):
        run.at_least(em="0.4")  # type: ignore[arg-type]


def test_every_run_keeps_a_label_of_its_own(tmp_path: Path) -> None:
    """A folder may be called as a repeated name would be: no run takes another's place."""
    folders = [tmp_path / name for name in ("a", "a (3)", "other/a", "a")]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text(json.dumps({"settings": SETTINGS}))
    assert [run.folder for run in named_runs(folders).values()] == folders
