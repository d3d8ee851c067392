"""A failed run never looks like a low score: wherever a score is shown, its errors stand beside it."""

from __future__ import annotations

import asyncio
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy import lm15
from model_server import MARKER, serve
from report_page import read_page
from small_world import Command, CountingEngine, done_by, stable

from blendfilter import BM25, BlendFilter, Direct, Run, aevaluate, compare, evaluate, frontier, plan, plot
from blendfilter.errors import BadArgument, EmptyData, RunFailed
from blendfilter.evaluation.run_folder import METRICS, PREDICTIONS, read_rows
from blendfilter.report import plots
from blendfilter.tasks import Questions

BANNER = 'role="alert"'
TOO_LONG = "the prompt is longer than the model's context: 4097 tokens are too many"


def failing(*questions: str) -> CountingEngine:
    """A model that refuses the checks of these questions; of every one where none is named."""

    async def refuse(stage: str, prompt: str) -> None:
        if stage == "check" and (not questions or any(question in prompt for question in questions)):
            raise lm15.ContextLengthError("4097 tokens are too many", status=400)

    return CountingEngine(refuse)


@pytest.fixture
def some(index: BM25, questions: Questions, tmp_path: Path) -> Run:
    """A run in which the first two of six questions failed."""
    bad = failing(*(question.question for question in questions[:2]))
    with pytest.warns(UserWarning, match="ended in an error"):
        return done_by(BlendFilter(index), questions, tmp_path / "some", engine=bad)[0]


@pytest.fixture
def others(index: BM25, questions: Questions, tmp_path: Path) -> Run:
    """The other four questions alone, answered by the same model."""
    return done_by(BlendFilter(index), questions[2:], tmp_path / "others")[0]


@pytest.fixture
def none(index: BM25, questions: Questions, tmp_path: Path) -> Run:
    """A run in which every question failed."""
    with pytest.raises(RunFailed):
        done_by(BlendFilter(index), questions, tmp_path / "none", engine=failing())
    return Run(tmp_path / "none")


@pytest.fixture
def healthy(index: BM25, questions: Questions, tmp_path: Path) -> Run:
    return done_by(BlendFilter(index), questions, tmp_path / "healthy")[0]


# --- some questions failed ------------------------------------------------------------------------------------------


def test_evaluate_warns_once_at_its_end(index: BM25, questions: Questions, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="ended in an error") as warned:
        done_by(BlendFilter(index), questions, tmp_path / "run", engine=failing(questions[1].question))
    # others may warn too, such as Python of a socket that an earlier test left to the collector
    (warning,) = [each for each in warned if each.category is UserWarning]
    assert str(warning.message) == (
        f"1 of 6 questions ended in an error and counts as 0: 1 context_too_long (first '{questions[1].id}', at check: "
        f"{TOO_LONG}); kept in {tmp_path / 'run'}, where the same evaluation asks them again"
    )
    assert warning.filename == done_by.__code__.co_filename, "where evaluate was called"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done_by(BlendFilter(index), questions, tmp_path / "run")


def test_an_awaited_evaluation_warns_too(index: BM25, questions: Questions) -> None:
    lm = failing(questions[0].question).lm()
    with pytest.warns(UserWarning, match="1 of 6 questions ended in an error"):
        asyncio.run(aevaluate(BlendFilter(index), questions, lm=lm, progress=False))
    with pytest.raises(RunFailed, match="all 6 questions failed the same way"):
        asyncio.run(aevaluate(BlendFilter(index), questions, lm=failing().lm(), progress=False))


def test_errors_are_a_loss_of_their_own_and_no_figure_of_retrieval(some: Run, others: Run) -> None:
    """Losses and retrieval of the questions that were answered are those of a run over these alone."""
    assert some.losses() == others.losses() | {"error": 2}
    stored = json.loads((some.folder / METRICS).read_text())
    assert stored["losses"] == some.losses()
    assert stored["retrieval"] == others.metrics["retrieval"]
    assert {row["loss"] for row in some.rows if row["error"]} == {"error"}
    assert set(some.frame()["loss"][:2]) == {"error"}


def test_the_headline_names_them(some: Run, healthy: Run) -> None:
    assert re.search(r"EM \d+\.\d ± \d+\.\d \| n:6\|errors:2\|", repr(some))
    assert "errors:" not in repr(healthy)


def test_the_card_and_the_page_have_a_red_banner(some: Run, healthy: Run) -> None:
    line = "Failed: 2 of 6 questions ended in an error and count as 0: 2 context_too_long"
    view = some._repr_html_()
    assert BANNER in view
    assert "background:#b3261e" in view
    assert line in re.sub("<[^>]*>", "", view)
    assert "ended in an error <b>2</b>" in view
    page = some.html().read_text(encoding="utf-8")
    assert f'<p class="failure" {BANNER}>' in page
    shown = read_page(some.folder / "report.html")
    assert line in shown.text
    assert "ended in an error 2 33.3 %" in shown.text
    assert "without 2 of 6 questions, which ended in an error" in shown.text
    assert [entry["loss"] for entry in shown.data["rows"]][:2] == ["error", "error"]
    for clean in (healthy._repr_html_(), healthy.html().read_text(encoding="utf-8")):
        assert BANNER not in clean


def test_the_text_report_begins_with_them(some: Run, healthy: Run) -> None:
    headline, line, *_ = some.report().splitlines()
    assert "|errors:2|" in headline
    assert line.startswith("FAILED: 2 of 6 questions ended in an error and count as 0: 2 context_too_long (first ")
    assert "without 2 of 6 questions, which ended in an error" in some.report()
    assert "error" not in healthy.report()


def test_without_gold_they_are_no_wrong_answers_either(some: Run) -> None:
    for row in some.rows:
        row["gold_titles"] = []
    some.metrics["losses"].update(not_retrieved=0, filtered_away=0)
    text = read_page(some.html()).text
    assert "No gold titles are known" in text
    assert "ended in an error 2 33.3 %" in text


def test_a_comparison_names_them_and_measures_retrieval_where_no_run_failed(
    some: Run, others: Run, healthy: Run
) -> None:
    compared = compare(healthy, some, metrics=["em", "q_ex.recall"])
    assert "some: 2 of 6 questions ended in an error and count as 0, in differences too" in compared.notes
    assert "q_ex.recall: over 4 of 6 questions, those that no run failed on" in compared.notes
    by_place = {(row.run, row.measure): row for row in compared.rows}
    recall = others.metrics["retrieval"]["q_ex"]["recall"]
    assert by_place["some", "q_ex.recall"].value == pytest.approx(recall, abs=1e-6)
    assert by_place["some", "q_ex.recall"].difference == 0
    assert by_place["some", "em"].errors == 2


def test_beside_other_runs_the_page_names_them(some: Run, healthy: Run) -> None:
    text = healthy.html(some).read_text(encoding="utf-8")
    assert re.search(r"<td>some</td>.*?</td><td class=.number.>[\d.]+ ± [\d.]+</td><td class=.number.>2</td>", text)


def test_a_rescored_figure_names_them(some: Run, blendfilter: Command) -> None:
    assert "|errors:2|" in some.rescore("cover-em").signature
    outcome = blendfilter("rescore", some.folder, "--metric", "cover-em")
    assert outcome.code == 0
    assert "|errors:2|" in outcome.out
    assert "2 of 6 questions ended in an error and count as 0" in outcome.error


def test_a_frontier_names_them(some: Run, healthy: Run) -> None:
    assert "some (errors: 2)" in str(frontier([some, healthy]))


# --- every question failed ------------------------------------------------------------------------------------------


def test_where_every_question_failed_the_same_way_that_one_error_is_raised(
    index: BM25, questions: Questions, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(RunFailed) as failed:
        done_by(BlendFilter(index), questions, folder, engine=failing())
    assert str(failed.value) == (
        f"all 6 questions failed the same way: context_too_long, at check: {TOO_LONG}; "
        f"kept in {folder}, where the same evaluation asks them again"
    )
    assert (failed.value.kind, failed.value.folder, failed.value.exit_code) == ("context_too_long", str(folder), 1)


def test_the_folder_is_kept_and_resumed(none: Run, healthy: Run, index: BM25, questions: Questions) -> None:
    assert (none.errors, none.failed) == (6, True)
    again, _ = done_by(BlendFilter(index), questions, none.folder)
    assert stable(again.folder) == stable(healthy.folder)
    assert (again.errors, again.failed) == (0, False)


class Strict(dspy.Module):
    """A method of one's own that fails on each question in words of its own."""

    def __init__(self, raised: Callable[[str], Exception]) -> None:
        super().__init__()
        self.raised = raised

    def forward(self, question: str) -> dspy.Prediction:
        raise self.raised(question)


def test_a_method_that_always_raises(questions: Questions, tmp_path: Path) -> None:
    """One kind of error is one error, in whatever words; the first question's are shown."""
    with pytest.raises(RunFailed, match="all 6 questions failed the same way: KeyError: ") as failed:
        evaluate(Strict(KeyError), questions, lm="offline", run=tmp_path / "run", progress=False)
    assert questions[0].question in str(failed.value)
    with pytest.raises(RunFailed, match="the only question failed: KeyError: "):
        evaluate(Strict(KeyError), questions[:1], lm="offline", progress=False)


def test_questions_that_all_failed_in_different_ways_are_warned_of(questions: Questions, tmp_path: Path) -> None:
    method = Strict(lambda question: KeyError(question) if question == questions[2].question else ValueError("no"))
    with pytest.warns(UserWarning, match=r"6 of 6 questions .*: 5 ValueError, 1 KeyError \(first '"):
        run = evaluate(method, questions, lm="offline", run=tmp_path / "run", progress=False)
    assert run.failed
    assert run.losses()["error"] == 6


def test_its_displays_show_errors_and_nothing_of_retrieval(none: Run) -> None:
    assert "|errors:6|" in repr(none)
    assert none.losses() == dict.fromkeys(none.losses(), 0) | {"error": 6}
    assert none.metrics["retrieval"] == {}
    for view in (none._repr_html_(), none.html().read_text(encoding="utf-8")):
        assert BANNER in view
        assert "6 of 6 questions ended in an error and count as 0: 6 context_too_long" in view
        assert "<b style=" not in view, "no score stands out"
        assert 'class="score' not in view
    assert "95 % interval" not in none.report()
    for text in (none._repr_html_(), none.report()):
        assert not re.search(r"gold not retrieved\D+[1-9]", text)


def test_it_has_no_score_to_compare(none: Run, healthy: Run) -> None:
    for runs in ((healthy, none), (none, healthy)):
        compared = compare(*runs, metrics=["em"])
        assert all(row.difference is row.p is row.won is None for row in compared.rows)
        assert "none: failed, every question ended in an error; there is no score to compare" in compared.notes
        lines = compared.text().splitlines()
        at = next(place for place, line in enumerate(lines) if line.startswith("none "))
        assert lines[at + 1].split() == ["em", "failed"]
        assert compared.as_dict()["rows"][runs.index(none)]["failed"]
    page = healthy.html(none).read_text(encoding="utf-8")
    assert '<td class="number">failed</td>' in page
    with pytest.raises(EmptyData, match=r"no question was answered by every run: there is no 'q\.recall' to compare"):
        compare(healthy, none, metrics=["q.recall"])


def test_a_run_that_failed_takes_no_part_in_holms_correction(
    none: Run, healthy: Run, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    direct, _ = done_by(Direct(index), questions, tmp_path / "direct")
    corrected = {row.run: row for row in compare(healthy, none, direct, metrics=["em"]).rows}
    assert corrected["direct"].p_holm == corrected["direct"].p is not None
    assert corrected["none"].p_holm is None


def test_it_has_no_answer_to_rescore(none: Run) -> None:
    with pytest.raises(EmptyData, match="every question ended in an error, so no answer can be scored"):
        none.rescore("cover-em")
    assert not (none.folder / "rescore").exists()


def test_it_is_on_no_front_and_hides_nobody_elses_costs(none: Run, healthy: Run) -> None:
    found = frontier([none, healthy])
    assert [dot.label for dot in found.front()] == ["healthy"]
    line = next(line for line in str(found).splitlines() if line.startswith("none (errors: 6)"))
    assert line.split()[3] == "failed"


def test_plots_have_a_part_for_errors_and_no_point_for_a_run_that_failed(
    some: Run, none: Run, healthy: Run, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    assert list(plots._bar_parts([some, healthy]))[-1] == "error"
    assert "error" not in plots._bar_parts([healthy])
    point = plots.point_of("none", none)
    assert (point.failed, point.errors, point.percent) == (True, 6, "failed")
    assert plots.front([point, plots.point_of("healthy", healthy)], "calls") == [plots.point_of("healthy", healthy)]
    assert plot([some, none, healthy], tmp_path / "all.svg").stat().st_size
    with pytest.raises(BadArgument, match="ended in an error: there are no scores to draw"):
        plot([none], tmp_path / "none.svg")


def test_a_plan_counts_what_fails_and_neither_warns_nor_raises(questions: Questions) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        planned = plan(Strict(KeyError), questions, CountingEngine().lm())
    assert planned.failed == 6


# --- on the command line --------------------------------------------------------------------------------------------


def asking(folder: Path, *questions: str) -> tuple[object, ...]:
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps({"question": each, "answer": "x"}) + "\n" for each in questions))
    return ("eval", "qa", "--data", data, "--method", "direct", "--lm", "m", "--run", folder / "run", "--no-html")


def test_the_command_prints_the_warning_once_and_ends_in_1(here: Path, blendfilter: Command) -> None:
    words = asking(here, "Who is one?", f"Who is {MARKER}?")
    with serve(behave="context") as server:
        outcome = blendfilter(*words, "--api-base", server.url)
    assert outcome.code == 1
    assert outcome.err.count("1 of 2 questions ended in an error and counts as 0: 1 context_too_long") == 1
    assert "|errors:1|" in outcome.out


def test_the_command_ends_in_1_with_that_one_error_and_no_table(here: Path, blendfilter: Command) -> None:
    words = asking(here, "Who is one?", "Who is two?")
    with serve(context_limit=10) as server:
        outcome = blendfilter(*words, "--api-base", server.url)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.error.startswith("blendfilter: all 2 questions failed the same way: context_too_long, at direct: ")
    assert Run(here / "run").errors == 2
    with serve() as server:
        assert blendfilter(*words, "--api-base", server.url).code == 0


# --- runs of earlier versions ---------------------------------------------------------------------------------------


def test_a_run_from_before_errors_were_a_loss_opens_with_them_apart(some: Run, others: Run, healthy: Run) -> None:
    """Such a run has its errors as questions whose gold was not retrieved, and counts them in recall as 0."""
    for run in (some, healthy):
        rows = [
            row | {"loss": "not_retrieved" if row["error"] else row["loss"]}
            for row in read_rows(run.folder / PREDICTIONS)
        ]
        (run.folder / PREDICTIONS).write_text("".join(json.dumps(row) + "\n" for row in rows))
        metrics: dict[str, Any] = json.loads((run.folder / METRICS).read_text())
        metrics["losses"]["not_retrieved"] += metrics["losses"].pop("error")
        metrics["signature"] = re.sub(r"errors:\d+\|", "", metrics["signature"])
        if run is some:
            metrics["retrieval"]["q"]["recall"] *= 4 / 6
        (run.folder / METRICS).write_text(json.dumps(metrics))
    before = stable(some.folder)
    old, clean = Run(some.folder), Run(healthy.folder)
    assert old.losses() == others.losses() | {"error": 2}
    assert old.metrics["retrieval"] == others.metrics["retrieval"]
    assert " | n:6|errors:2|data:" in repr(old)
    assert {row["loss"] for row in old.rows if row["error"]} == {"error"}
    assert old.disagreements == clean.disagreements == []
    assert clean.losses()["error"] == 0
    assert stable(some.folder) == before, "reading writes nothing"
