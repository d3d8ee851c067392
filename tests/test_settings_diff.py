"""What differs between the settings that made a folder and those that are asked for."""

from __future__ import annotations

from blendfilter.settings_diff import different_settings


def test_differences_are_named_by_their_paths_with_both_values() -> None:
    stored = {"a": {"b": 1, "c": [1]}, "d": "x", "gone": 2}
    assert different_settings(stored, {"gone": 2, "d": "x", "a": {"c": [1], "b": 1}}) == ""
    assert different_settings(stored, {"a": {"b": 2, "c": [1]}, "d": "x", "new": None}) == (
        "a.b was 1, now 2; gone was 2, now None"
    )


def test_ignored_paths_may_differ_and_many_differences_are_counted() -> None:
    assert different_settings({"a": {"b": 1}, "c": 1}, {"a": {"b": 2}, "c": 2}, ignored=("a.b",)) == "c was 1, now 2"
    result = different_settings(dict.fromkeys("abcde", 0), dict.fromkeys("abcde", 1))
    assert result == "a was 0, now 1; b was 0, now 1; c was 0, now 1; and 2 more"
