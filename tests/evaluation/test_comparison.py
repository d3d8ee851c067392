"""Runs side by side: eight questions whose figures are worked out by hand, what else differs, and what is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

import pytest

from blendfilter.errors import AskedWrong, BadArgument, BadData, EmptyData, RunMismatch
from blendfilter.evaluation.comparison import (
    NO_P_VALUE,
    Comparison,
    ComparisonRow,
    compare_predictions,
    recipe_differences,
)
from blendfilter.statistics import (
    detectable_difference,
    holm,
    lower_bound,
    paired_bootstrap,
)

Rows = list[dict[str, Any]]


def run(right: Sequence[int], partial: float = 0.0) -> Rows:
    """A run over q0, q1, …: em as given, F1 of wrong answers `partial`."""
    return [
        {
            "id": f"q{i}",
            "question": f"Which {i}?",
            "em": em,
            "f1": float(em) or partial,
            "correct": bool(em),
            "error": None,
        }
        for i, em in enumerate(right)
    ]


PLAIN = run([0, 0, 0, 0, 0, 0, 1, 1])
BLEND = run([1, 1, 1, 1, 1, 1, 1, 0], partial=0.5)


def row(comparison: Comparison, label: str, measure: str) -> ComparisonRow:
    return next(row for row in comparison.rows if (row.run, row.measure) == (label, measure))


def two() -> Comparison:
    return compare_predictions({"plain": PLAIN, "blend": BLEND}, metrics=["em", "f1"])


def three(**settings: Any) -> Comparison:
    runs = {"plain": PLAIN, "blend": BLEND, "half": run([1, 1, 0, 0, 0, 0, 1, 1])}
    return compare_predictions(runs, metrics=["em", "f1"], **settings)


# the figures


def test_figures_worked_by_hand() -> None:
    """plain has 2 of 8 right, blend 7 of 8: six won, one lost, 2 (1 + 7) / 2^7 = .125. F1: 2/8 against 7.5/8."""
    em, f1 = row(two(), "blend", "em"), row(two(), "blend", "f1")
    assert (em.value, em.difference) == (7 / 8, 5 / 8)
    assert (em.won, em.lost, em.p) == (6, 1, 0.125)
    assert em.smallest == 7 / 8  # seven discordant questions must all go one way: 2 / 2^7 = .016
    assert (f1.value, f1.difference, f1.won) == (7.5 / 8, 5.5 / 8, None)


def test_every_measure_of_right_and_wrong_is_tested_exactly_and_f1_never() -> None:
    """cover_em: won 6, lost 0, 2 / 2^6; F1 keeps the bootstrap even where all its scores are 0 or 1."""
    runs = {
        "plain": [r | {"cover_em": float(r["em"])} for r in run([0, 0, 0, 0, 0, 0, 1, 1])],
        "blend": [r | {"cover_em": 1.0} for r in run([1, 1, 1, 1, 1, 1, 1, 0])],
    }
    compared = compare_predictions(runs, metrics=["em", "f1", "cover_em"])
    em, f1, cover = (row(compared, "blend", measure) for measure in ("em", "f1", "cover_em"))
    assert (em.won, em.lost, em.p) == (6, 1, 0.125)
    assert (cover.won, cover.lost, cover.p) == (6, 0, 2 / 2**6)
    assert f1.won is None
    assert "p: exact McNemar for em, cover_em, the paired bootstrap for f1" in compared.notes
    assert (
        "blend, cover_em: with 6 questions won or lost, 75.0 points is the least that reaches p < .05" in compared.notes
    )


def test_holm_goes_over_the_runs_of_each_measure() -> None:
    for measure in ("em", "f1"):
        tested = [row(three(), label, measure) for label in ("blend", "half")]
        assert [r.p_holm for r in tested] == holm([r.p for r in tested if r.p is not None])
    assert row(two(), "blend", "em").p_holm == row(two(), "blend", "em").p


def test_an_error_counts_as_zero_and_is_shown_as_its_own_number() -> None:
    failed = [BLEND[0] | {"error": "context_too_long at answer", "em": None, "f1": None, "correct": False}, *BLEND[1:]]
    compared = compare_predictions({"plain": PLAIN, "blend": failed}, metrics=["em", "f1"])
    assert row(compared, "blend", "em").value == 6 / 8
    assert {r.errors for r in compared.rows if r.run == "blend"} == {1}
    assert compared.notes[0] == "blend: 1 of 8 questions ended in an error and count as 0, in differences too"
    assert compared.text().splitlines()[7].split() == ["blend", "1"]


# what is shown


def test_text_of_two_runs() -> None:
    """One comparison: no Holm column; the figures as papers print them."""
    lines = two().text().splitlines()
    assert lines[0] == "against plain, the same 8 questions, in %"
    assert lines[2].split() == ["value", "diff", "95", "%", "interval", "won/lost", "p", "errors"]
    assert lines[4].split() == ["plain", "0"]
    assert lines[5].split() == ["em", "25.0"]
    assert lines[8].split()[:3] == ["em", "87.5", "+62.5"]
    assert lines[8].split()[-2:] == ["6/1", ".1250"]
    assert "blend: with 7 questions won or lost, 87.5 points is the least that reaches p < .05" in lines
    assert str(two()) == two().text()


def test_the_offline_reader_gets_no_p_value_anywhere() -> None:
    compared = three(p_values=False)
    assert all(r.p is r.p_holm is r.smallest is None for r in compared.rows)
    assert NO_P_VALUE in compared.text()
    assert "p <" not in compared.text()
    assert compared.text().splitlines()[8].split()[-2:] == ["-", "-"]
    assert row(compared, "blend", "em").won == 6


def test_html_escapes_names() -> None:
    html = compare_predictions({"<script>": PLAIN, "b&w": BLEND}, metrics=["em"])._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "b&amp;w" in html
    assert '<table class="dataframe">' in html, "notebooks and their sites know that class"


def test_as_dict_is_plain_rounded_json_and_the_same_each_time() -> None:
    thirds = [r | {"f1": 1 / 3} for r in BLEND]
    data = compare_predictions({"plain": PLAIN, "blend": thirds}, metrics=["f1"]).as_dict()
    again = compare_predictions({"plain": PLAIN, "blend": thirds}, metrics=["f1"]).as_dict()
    assert json.dumps(data, allow_nan=False) == json.dumps(again)
    f1 = next(r for r in data["rows"] if r["run"] == "blend" and r["measure"] == "f1")
    assert f1["value"] == 0.333333
    assert (data["baseline"], data["n"], data["seed"]) == ("plain", 8, 0)


def test_the_notes_say_what_else_differs_and_what_the_sample_could_show() -> None:
    compared = compare_predictions({"a": PLAIN, "b": BLEND}, metrics=[], also=["lm x (a) / y (b)"])
    assert compared.notes[0] == "also differs: lm x (a) / y (b)"
    assert compared.as_dict()["also"] == ("lm x (a) / y (b)",)
    wide = compare_predictions({"a": run([0, 1] * 250), "b": run([1, 1] * 250)}, metrics=[])
    few, many = (100 * detectable_difference(500, share) for share in (0.1, 0.3))
    result = f"{few:.1f} points if 10 % are won or lost, {many:.1f} points if 30 % are won or lost"
    assert wide.notes[-1] == f"before looking: 500 questions find {result} (power .8)"
    assert "before looking: 8 questions find no difference (power .8)" in two().notes
    assert not any("before looking" in note for note in three(p_values=False).notes)


# several answers a question


def answers(*repeats: Sequence[int]) -> Rows:
    """A run whose repeats are as given."""
    return [row | {"repeat": number} for number, right in enumerate(repeats, 1) for row in run(right)]


def test_answers_of_a_question_are_averaged_and_drawn_within_it() -> None:
    often = answers([1, 1, 0, 1, 0, 1, 1, 0], [1, 0, 0, 1, 1, 1, 1, 0])
    compared = compare_predictions({"plain": PLAIN, "often": often}, metrics=["em"])
    em = row(compared, "often", "em")
    by_question = [[1, 1], [1, 0], [0, 0], [1, 1], [0, 1], [1, 1], [1, 1], [0, 0]]
    test = paired_bootstrap([r["em"] for r in PLAIN], by_question, seed=0)
    assert (em.difference, em.low, em.high, em.p) == test
    assert em.value == 10 / 16
    assert em.won is em.lost is em.smallest is None, "McNemar's test takes one answer a question"
    assert compared.repeats == {"plain": 1, "often": 2}
    assert "answers a question: often 2; the bootstrap draws them too, within each question" in compared.notes
    assert "p: the paired bootstrap for em" in compared.notes
    assert not any("won" in note for note in compared.notes)


# a margin

HALF = run([0, 1] * 100)
WORSE = run([1] * 4 + [0, 1] * 92 + [0] * 12)
"""Of 200 questions it wins two and loses six of them, four of the net."""


def margins(margin: float, metrics: Sequence[str] = ("em",), **runs: Rows) -> Comparison:
    return compare_predictions({"half": HALF, **runs}, metrics=metrics, margin=margin)


def test_a_run_is_non_inferior_where_its_bound_excludes_a_loss_of_the_margin() -> None:
    bound = lower_bound([r["em"] for r in HALF], [r["em"] for r in WORSE])
    points = f"{100 * bound:+.2f} points (97.5 % confidence, Bonett and Price)"
    within, beyond = margins(-100 * bound + 0.01, worse=WORSE), margins(-100 * bound, worse=WORSE)
    assert row(within, "worse", "em").bound == bound
    assert (within.non_inferior, beyond.non_inferior) == ({"worse": True}, {"worse": False})
    assert within.notes[-1].endswith(f"): the difference is above {points}")
    shown = f"not shown non-inferior (margin {-100 * bound:g})"
    assert beyond.notes[-1] == f"worse, em: {shown}: the difference may be {points}"
    assert beyond.as_dict()["non_inferior"] == {"worse": False}
    assert compare_predictions({"half": HALF, "worse": WORSE}, metrics=["em"]).non_inferior == {}


def test_every_run_and_measure_is_tested_and_none_that_was_not_asked_for() -> None:
    worse_f1 = [r | {"f1": r["f1"] / 2} for r in HALF]
    assert margins(5, half_again=HALF, worse_f1=worse_f1).non_inferior == {"half_again": True, "worse_f1": True}
    both = margins(5, ("em", "f1"), half_again=HALF, worse_f1=worse_f1)
    assert both.non_inferior == {"half_again": True, "worse_f1": False}
    assert {r.measure for r in margins(5, ("f1",), worse_f1=worse_f1).rows} == {"f1"}, "no 'correct'"


def test_errors_of_a_run_lower_it_and_those_of_the_baseline_are_refused() -> None:
    broken = [r | {"error": "timeout at answer"} for r in HALF]
    some = [*broken[:40], *HALF[40:]]
    assert margins(5, some=some, all=broken).non_inferior == {"some": False, "all": False}
    assert margins(5, all=broken).notes[-1] == "all, em: not shown non-inferior (margin 5): it failed"
    with pytest.raises(RunMismatch, match=r"^margin=5 wants a baseline without errors, and 'half' has 40, which"):
        compare_predictions({"half": some, "again": HALF}, metrics=["em"], margin=5)
    with pytest.raises(RunMismatch, match="'half' has 200"):
        compare_predictions({"half": broken, "again": HALF}, metrics=["em"], margin=5)


def test_what_errors_leave_out_of_a_figure_of_retrieval_is_no_gain() -> None:
    found = [r | {"kept.recall": 1.0} for r in HALF]
    some = [found[0] | {"error": "timeout at answer"}, *found[1:]]
    compared = compare_predictions({"a": found, "b": some, "c": found}, metrics=["kept.recall"], margin=20)
    assert compared.non_inferior == {"b": False, "c": True}
    assert "questions that it failed on have no such figure" in "\n".join(compared.notes)


def test_several_answers_a_question_count_by_their_mean() -> None:
    twice = [r | {"repeat": number} for r in HALF for number in (1, 2)]
    assert row(margins(5, twice=twice), "twice", "em").bound == row(margins(5, once=HALF), "once", "em").bound
    assert margins(5, twice=twice).non_inferior == {"twice": True}


@pytest.mark.parametrize("margin", [0, -2, 100, float("nan"), "5"])
def test_a_margin_that_is_none_is_refused(margin: float) -> None:
    with pytest.raises(BadArgument, match=r"^margin=\S+ is none: give points, above 0 and"):
        margins(margin, worse=WORSE)


# what is refused


@pytest.mark.parametrize(
    ("other", "error", "message"),
    [
        ([], EmptyData, "run 'b' has no predictions"),
        ([*BLEND, BLEND[2]], BadData, "run 'b' has 2 answers to question 'q2', not one for each of 1"),
        (BLEND[:6], RunMismatch, r"\(8\) and 'b' \(6\).*'q6' and 1 more are in one"),
        ([BLEND[0] | {"question": "Who?"}, *BLEND[1:]], RunMismatch, "'q0' has another question"),
        ([BLEND[0] | {"golden_answers": ["x"]}, *BLEND[1:]], RunMismatch, "'q0' has another golden_answers"),
        (answers([1] * 8, [1] * 8)[:-1], BadData, "run 'b' has 1 answers to question 'q7', not one for each of 2"),
        ([row | {"em": None} for row in BLEND], RunMismatch, "no 'em' for question 'q0'"),
    ],
)
def test_bad_input_gets_one_clear_line(other: Rows, error: type[AskedWrong], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        compare_predictions({"plain": PLAIN, "b": other}, metrics=["em"])
    assert "\n" not in str(caught.value)


# --- recipes ---------------------------------------------------------------------------------------------------------


RUN: dict[str, Any] = {
    "settings": {
        "data": {"source": "dev.jsonl", "fingerprint": "d1"},
        "method": {"name": "blendfilter", "arguments": {"k": 5}, "program": "cafe"},
        "lm": {"name": "m", "endpoint": "chat", "parameters": {"temperature": 0.0}},
        "retrievers": [{"kind": "bm25", "fingerprint": "feed"}],
        "seed": 0,
    },
    "versions": {"blendfilter": "0.1.0", "python": "3.11"},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    other = copy.deepcopy(RUN)
    *way, last = path.split(".")
    place = other
    for name in way:
        place = place[name]
    place[last] = value
    return other


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("settings.lm.name", "n", "lm m (a) / n (b)"),
        ("settings.lm.options", {"thinking": False}, "endpoint chat (a) / chat thinking False (b)"),
        ("settings.lm.parameters", {"temperature": 1.0}, "temperature 0.0 (a) / 1.0 (b)"),
        ("settings.retrievers", [{"kind": "dense", "fingerprint": "f"}], "index bm25/feed (a) / dense/f (b)"),
        ("settings.method.arguments", {"k": 15}, "k 5 (a) / 15 (b)"),
        ("settings.method.program", "f00d", "program cafe (a) / f00d (b)"),
    ],
)
def test_each_is_told(path: str, value: Any, line: str) -> None:
    assert recipe_differences({"a": RUN, "b": changed(path, value)}) == [line]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("settings.method.name", "direct"),
        ("settings.method.arguments", {}),
        ("settings.retrievers", []),
        ("versions.python", "3.12"),
        ("settings.data.source", "moved.jsonl"),
    ],
)
def test_the_method_and_what_changes_nothing_are_not(path: str, value: Any) -> None:
    assert recipe_differences({"a": RUN, "b": changed(path, value)}) == []


def test_a_users_own_code_that_was_edited_is_named() -> None:
    own = {"name": "mine:Method", "arguments": {}, "program": "cafe"}
    one, two = (changed("settings.method", own | {"code": code}) for code in ("aaaa", "bbbb"))
    assert recipe_differences({"a": one, "b": two}) == ["code aaaa (a) / bbbb (b)"]
