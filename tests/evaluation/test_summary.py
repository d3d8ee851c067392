"""`metrics.json` from rows made by hand: means, flags, losses and the signature line."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import blendfilter
from blendfilter.evaluation.ledger import LedgerEntry
from blendfilter.evaluation.rows import LOSSES, signature, summarise
from blendfilter.modules.base import FLAGS
from blendfilter.statistics import bootstrap_interval, wilson_interval

SETTINGS: dict[str, Any] = {
    "task": "hotpotqa",
    "metrics": ["em", "f1"],
    "data": {"source": "dev.jsonl", "fingerprint": "0123456789abcdef", "n": 4},
    "method": {"name": "blendfilter", "arguments": {"k": 5, "without": "", "filter": "X"}, "program": "cafe"},
    "lm": {"name": "m"},
    "retrievers": [{"kind": "bm25", "fingerprint": "feed"}],
    "seed": 3,
}


COUNT = itertools.count()


def measured(recall: float, precision: float, s_precision: float = 0.0) -> dict[str, float]:
    return {"recall": recall, "precision": precision, "s_precision": s_precision}


def row(em: float, loss: str, *, retrieval: dict[str, Any], gold: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "id": f"q{next(COUNT)}",
        "em": em,
        "f1": em,
        "loss": loss,
        "retrieval": retrieval,
        "gold_titles": ["A"] if gold else [],
        "flags": {},
        "error": None,
        **more,
    }


ROWS = [
    row(1.0, "right", retrieval={"q": measured(1, 0.2), "kept": measured(1, 1, 1)}, flags={"explicit_none": 2}),
    row(0.0, "filtered_away", retrieval={"q": measured(0.5, 0.2), "kept": measured(0, 0)}, flags={"query_cut": 1}),
    row(0.0, "error", retrieval={}, error={"kind": "timeout"}, flags={"explicit_none": 1}),
    row(1.0, "right", retrieval={}, gold=False),
]


def summary(rows: list[dict[str, Any]] = ROWS, **settings: Any) -> dict[str, Any]:
    entries = {"ids": LedgerEntry(2, 10, 4), "total": LedgerEntry(2, 10, 4, 0.5)}
    return summarise(rows, {**SETTINGS, **settings}, {stage: entry.stored() for stage, entry in entries.items()})


def test_scores_are_means_with_intervals() -> None:
    em = summary()["metrics"]["em"]
    result = wilson_interval(2, 4)
    assert em == {"value": 0.5, "low": round(result.low, 6), "high": round(result.high, 6)}
    fractions = [each | {"f1": score} for each, score in zip(ROWS, (1.0, 0.25, 0.0, 0.5), strict=True)]
    result = bootstrap_interval([1.0, 0.25, 0.0, 0.5], seed=3)
    assert summary(fractions)["metrics"]["f1"] == {
        "value": 0.4375,
        "low": round(result.low, 6),
        "high": round(result.high, 6),
    }
    assert summary() == summary()


def test_the_interval_is_drawn_with_the_runs_own_seed() -> None:
    scores = [0.91, 0.07, 0.33, 0.58, 0.12, 0.77, 0.45]
    rows = [row(score, "right", retrieval={}) | {"id": f"q{place}"} for place, score in enumerate(scores)]
    ends = {seed: summary(rows, seed=seed)["metrics"]["em"] for seed in (0, 7)}
    result = bootstrap_interval(scores, seed=7)
    assert (ends[7]["low"], ends[7]["high"]) == (round(result.low, 6), round(result.high, 6))
    assert ends[7] != ends[0]


def repeated(scores: list[list[float]]) -> list[dict[str, Any]]:
    """Rows repeat by repeat; `scores` has a list for each repeat."""
    return [
        row(score, "right" if score else "not_retrieved", retrieval={}) | {"id": f"q{place}", "repeat": repeat}
        for repeat, answers in enumerate(scores, 1)
        for place, score in enumerate(answers)
    ]


def test_repeats_are_means_of_means_with_the_spread_between_them() -> None:
    """Means of the three repeats: 3/4, 2/4, 1/4; their standard deviation is 1/4; n counts questions, losses do not."""
    rows = repeated([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]])
    result = summary(rows, repeats=3)
    by_question = [[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]]
    _, low, high = bootstrap_interval(by_question, seed=3)
    assert result["metrics"]["em"] == {
        "value": 0.5, "low": round(low, 6), "high": round(high, 6), "between_repeats": 0.25
    }  # fmt: skip
    assert list(result)[:5] == ["task", "method", "n", "repeats", "metrics"]
    assert (result["n"], result["repeats"]) == (4, 3)
    assert result["losses"]["right"] == 6
    assert " n:4|repeats:3|" in result["signature"]


def test_a_figure_that_rows_of_an_earlier_version_lack_is_left_out() -> None:
    """So a finished run's `metrics.json` stays the same bytes, and one that was resumed shows no mean over a part."""
    ranked = measured(1, 0.2) | {"ndcg": 0.5, "mrr": 0.25}
    old, resumed, new = (
        [row(1.0, "right", retrieval={"q": figures}) for figures in both]
        for both in ([measured(1, 0.2)] * 2, [measured(0, 0.2), ranked], [ranked] * 2)
    )
    assert summary(old)["retrieval"]["q"] == measured(1, 0.2)
    assert summary(resumed)["retrieval"]["q"] == measured(0.5, 0.2)
    assert summary(new)["retrieval"]["q"] == ranked


def test_a_query_that_some_questions_have_is_the_mean_over_those() -> None:
    """Two of four questions made a third hop; q@15 stands beside the union; an error counts in none of them."""
    rows = [
        row(1.0, "right", retrieval={"q": measured(1, 1), "q@15": measured(1, 0.2), "hop_3": measured(1, 0.5)}),
        row(1.0, "right", retrieval={"q": measured(0, 0), "union": measured(1, 1), "hop_3": measured(0, 0.1)}),
        row(1.0, "right", retrieval={"q": measured(1, 1), "q@15": measured(0, 0.1)}),
        row(0.0, "error", retrieval={}, error={"kind": "timeout"}),
    ]
    result = summary(rows)["retrieval"]
    assert list(result) == ["q", "union", "q@15", "hop_3"]
    assert result["hop_3"] == measured(0.5, 0.3) | {"n": 2}
    assert result["q@15"] == measured(0.5, 0.15) | {"n": 2}
    assert result["q"] == measured(0.666667, 0.666667)
    assert result["union"] == measured(0.333333, 0.333333)


def test_kept_is_the_mean_over_answers_of_which_it_is_known_what_they_read() -> None:
    rows = [
        row(1.0, "right", retrieval={"union": measured(1, 1), "kept": measured(1, 1)}),
        row(0.0, "answered_wrong", retrieval={"union": measured(1, 1)}),
    ]
    assert summary(rows)["retrieval"] == {"union": measured(1, 1), "kept": measured(1, 1) | {"n": 1}}


def test_retrieval_is_the_mean_over_questions_whose_gold_is_known() -> None:
    """Two such questions, for one failed and of one no gold is known: recall of q = (1 + .5) / 2."""
    assert summary()["retrieval"] == {"q": measured(0.75, 0.2), "kept": measured(0.5, 0.5, 0.5)}


def test_events_and_losses_are_counted_and_all_named() -> None:
    result = summary()
    assert result["flags"] == dict.fromkeys(FLAGS, 0) | {"explicit_none": 3, "query_cut": 1, "errors": 1}
    assert list(result["flags"])[-1] == "errors"
    named = [name for name in LOSSES if name != "unknown"]
    assert list(result["losses"]) == named
    assert result["losses"] == dict.fromkeys(named, 0) | {"right": 2, "filtered_away": 1, "error": 1}


def test_errors_stand_in_the_headline_and_only_where_there_are_any() -> None:
    assert " | n:4|errors:1|data:" in summary()["signature"]
    assert "errors" not in summary([ROWS[0], ROWS[3]])["signature"]


def test_the_signature_is_the_headline_with_its_recipe() -> None:
    metrics = {"em": {"value": 0.462, "low": 0.42, "high": 0.504}, "f1": {}}
    assert signature(SETTINGS, metrics, 500) == (
        "hotpotqa EM 46.2 ± 4.2 | n:500|data:dev.jsonl/0123456789abcdef|method:blendfilter|lm:m|retriever:bm25/feed"
        f"|k:5|filter:X|program:cafe|resampling-seed:3|v{blendfilter.__version__}"
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"retrievers": []}, "|retriever:none|"),
        ({"searched": [{"corpus": "pooled", "passages": 1402}]}, "|retriever:bm25/feed|corpus:pooled, 1,402 passages|"),
        ({"searched": [{"passages": 24, "type": "flat"}]}, "|retriever:bm25/feed|corpus:24 passages|"),
        ({"seeds": {"lm": 0, "program": "3"}}, "|lm-training-seed:0|program-training-seed:3|resampling-seed:3|"),
        ({"lm": {"name": "m", "parameters": {"seed": 0}}}, "|program:cafe|lm-seed:0|resampling-seed:3|"),
        ({"retrievers": [{"kind": "a", "fingerprint": "1"}, {"kind": "b", "fingerprint": "2"}]}, "|retriever:a/1+b/2|"),
        ({"method": {"name": "x", "arguments": {"k": 2, "without": "q_in"}, "program": "p"}}, "|k:2|without:q_in|"),
        (
            {"method": {"name": "s", "arguments": {"samples": 9, "temperature": 0.7}, "program": "p"}},
            "|samples:9|temperature:0.7|program:p|",
        ),
        (
            {"method": {"name": "x", "arguments": {"drop_conclusion": True, "fallback": False}, "program": "p"}},
            "|drop_conclusion:True|program:p|",
        ),
        ({"method": {"name": "mine:M", "arguments": {}, "program": "p"}}, "|retriever:bm25/feed|program:p|"),
        (
            {
                "method": {
                    "name": "x",
                    "arguments": {"k": 2, "filter": "F", "n": 3, "by": "b", "model": "/a/b", "filter_union": True},
                    "program": "p",
                }
            },
            "|k:2|filter:F|filter_n:3|filter_by:b|filter_union:True|program:p|",
        ),
    ],
)
def test_the_signature_names_what_changes_results(change: dict[str, Any], expected: str) -> None:
    assert expected in summary(**change)["signature"]
    assert "accuracy" not in summary()["signature"].lower()
    assert summary(metrics=["f1"])["signature"].startswith("hotpotqa F1 50.0 ± ")
