"""What besides the method differs between runs."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from blendfilter.evaluation.comparison import differing_values, recipe_differences

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
        ("settings.lm.label", "step-800", "lm m (a) / m step-800 (b)"),
        ("settings.lm.endpoint", "completions", "endpoint chat (a) / completions (b)"),
        ("settings.lm.options", {"thinking": False}, "endpoint chat (a) / chat thinking False (b)"),
        ("settings.lm.parameters", {"temperature": 1.0}, "temperature 0.0 (a) / 1.0 (b)"),
        ("settings.lm.parameters", {}, "temperature 0.0 (a) / as served (b)"),
        ("settings.retrievers", [{"kind": "dense", "fingerprint": "f"}], "index bm25/feed (a) / dense/f (b)"),
        ("settings.method.arguments", {"k": 15}, "k 5 (a) / 15 (b)"),
        ("settings.data.fingerprint", "d2", "data d1 (a) / d2 (b)"),
        ("settings.method.program", "f00d", "program cafe (a) / f00d (b)"),
        ("settings.seed", 7, "seed 0 (a) / 7 (b)"),
        ("versions.blendfilter", "0.2.0", "version 0.1.0 (a) / 0.2.0 (b)"),
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


def test_another_method_is_another_program_and_says_so_by_its_name() -> None:
    other = changed("settings.method", {"name": "direct", "arguments": {"k": 5}, "program": "f00d"})
    assert recipe_differences({"a": RUN, "b": other}) == []
    assert recipe_differences({"a": RUN, "b": other, "c": changed("settings.method.program", "beef")}) == [
        "program cafe (a) / beef (c)"
    ]


def test_a_users_own_code_that_was_edited_is_named() -> None:
    own = {"name": "mine:Method", "arguments": {}, "program": "cafe"}
    one, two = (changed("settings.method", own | {"code": code}) for code in ("aaaa", "bbbb"))
    assert recipe_differences({"a": one, "b": two}) == ["code aaaa (a) / bbbb (b)"]


def test_runs_that_agree_stand_together() -> None:
    other = changed("settings.lm.name", "n")
    assert recipe_differences({"a": RUN, "b": other, "c": RUN}) == ["lm m (a, c) / n (b)"]
    assert differing_values("lm", {"a": "m", "b": ""}) == []
