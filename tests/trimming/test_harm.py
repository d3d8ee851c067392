"""The benchmarks of trimming on a little data: a judge that never errs loses nothing, a threshold does what it says.

A judge that errs turns its verdicts over by a seed, so that all of this is the same each time.
"""

from __future__ import annotations

import doctest
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from blendfilter.retrieval.bm25 import BM25
from blendfilter.trimming.overlay import Trimmed

BENCH = Path(__file__).parents[2] / "eval" / "bench"


def bench(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    return importlib.import_module(name)


def test_paraphrases_are_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctest.testmod(bench("paraphrases", monkeypatch)) == (0, 5)


def test_what_an_erring_judge_loses(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harm: Any = bench("harm", monkeypatch)
    popqa, _ = harm.worlds(shared_data, 40)
    assert isinstance(popqa.index.index, BM25)
    found = sum(len(popqa.index(question.question, 10)) for question in popqa.questions)
    lost: dict[tuple[float, int], float] = {}
    left: dict[tuple[float, int], float] = {}
    for rate in (0.0, 0.2):
        state = harm.gathered(popqa, harm.GATHERED["thrice"], rate, seed=1)
        assert state.digest(1) == harm.gathered(popqa, harm.GATHERED["thrice"], rate, seed=1).digest(1)
        for threshold in (1, 2, 3):
            trimmed = Trimmed(popqa.index, state, threshold=threshold)
            own, other = (harm.measured(popqa, trimmed, query) for query in (str, harm.moved))
            assert (own.asked, own.right + own.wrong) == (40, found)
            assert own.beside == 0, "what a question loses is what its own verdicts say"
            if rate == 0:
                assert (own.left, own.lost, other.lost) == (0, 0, 0), "a judge that never errs loses nothing"
            else:
                assert own.lost > 0
            lost[rate, threshold], left[rate, threshold], *_ = other.shares()
    assert lost[0.2, 1] > lost[0.2, 3]
    assert left[0.0, 1] < left[0.0, 2] < left[0.0, 3]
