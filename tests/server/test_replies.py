"""What goes back, and what an index keeps to itself."""

from __future__ import annotations

import json
import math

from blendfilter.records import Passage
from blendfilter.retrieval.base import Hits
from blendfilter.server.exchange import Json, pid_of, results, softmax, topk, without_paths


def test_topk_is_what_colberts_server_sends() -> None:
    found = topk([Passage("7", "Fell", "A\nhill.", 2.0), Passage("x-1", "", "No title.", 2.0 - math.log(3))])["topk"]
    assert [row.pop("prob") for row in found] == [0.75, 0.25]  # e^0 : e^-ln 3 = 3 : 1
    assert found == [
        {"text": "Fell | A hill.", "long_text": "Fell | A hill.", "pid": 7, "rank": 1, "score": 2.0, "title": "Fell"},
        {"text": "No title.", "long_text": "No title.", "pid": "x-1", "rank": 2, "score": 2.0 - math.log(3)},
    ]
    assert topk([]) == {"topk": []}


def test_no_score_and_no_number_are_null() -> None:
    rows = topk([Passage("1", "", "a"), Passage("2", "", "b", 1.0), Passage("3", "", "c", math.nan)])["topk"]
    assert [(row["score"], row["prob"]) for row in rows] == [(None, None), (1.0, None), (None, None)]


def test_softmax_of_large_scores() -> None:
    assert softmax([1e6, 1e6]) == [0.5, 0.5]
    assert softmax([0.0, -1e9]) == [1.0, 0.0]


def test_ids_that_are_numbers_and_those_that_only_look_so() -> None:
    assert [pid_of(name) for name in ("0", "12", "012", "00", "-1", "1.5", "٣", "²", "9" * 18, "9" * 19)] == [
        0, 12, "012", "00", "-1", "1.5", "٣", "²", int("9" * 18), "9" * 19,
    ]  # fmt: skip


def test_results_are_whole() -> None:
    odd = Passage("1", "T", "half \ud83d and 東京\n", 0.1 + 0.2, {"start": 3})
    sent = json.loads(Json(results("00ff", [Hits([odd], cut=True), []])).body)
    assert sent == {
        "fingerprint": "00ff",
        "results": [
            {
                "query_cut": True,
                "passages": [
                    {
                        "id": "1",
                        "title": "T",
                        "text": odd.text,
                        "score": 0.30000000000000004,
                        "metadata": {"start": 3},
                    }
                ],
            },
            {"query_cut": False, "passages": []},
        ],
    }


def test_no_path_and_no_address_behind_this_machine_is_told() -> None:
    home = "/" + "home/ann/models"
    told = {
        "path": f"{home}/a",
        "of": [{"path": "b", "url": "http://inside:8893", "checkpoint": f"{home}/mini/"}],
        "at": f"file://{home}/c",
        "k1": 1,
    }
    assert without_paths(told) == {"of": [{"checkpoint": "mini"}], "at": "c", "k1": 1}
