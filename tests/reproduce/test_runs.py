"""Runs of a table: named by what they are, shared between tables, resumed; and what they will cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reproduce_world import HEAD, ROWS, made, wanted, written
from small_world import CountingEngine

from blendfilter import connect
from blendfilter.reproduce import runs
from blendfilter.reproduce.tables import PaperTable
from blendfilter.resources import sample


@pytest.fixture
def small(tmp_path: Path) -> PaperTable:
    return written(tmp_path, HEAD + ROWS)


def test_runs_are_named_by_what_they_are_so_tables_share_them(small: PaperTable, tmp_path: Path) -> None:
    other = written(tmp_path, HEAD.replace("A small", "Another").replace(', "strategyqa"', "") + """
[[rows]]
label = "Whole"
method = "blendfilter"
[[rows]]
label = "Less"
method = "blendfilter"
arguments = { without = ["q"] }
[[rows]]
label = "Unconcluded"
method = "blendfilter"
arguments = { drop_conclusion = true }
""", "other")  # fmt: skip

    def folders(table: PaperTable, **more: Any) -> dict[str, Path]:
        return {each.row.label: each.folder for each in wanted(table, tmp_path, tasks=["hotpotqa"], **more).runs}

    first, second = folders(small), folders(other)
    assert first["Whole"] == second["Whole"] != second["Less"]
    assert first["Whole"].name.startswith("hotpotqa-blendfilter-k5-bm25-offline-4-")
    assert "without_q" in second["Less"].name
    assert second["Unconcluded"].name.startswith("hotpotqa-blendfilter-k5-unconcluded-bm25-offline-4-")
    filters = {
        each.row.label: each.folder.name for each in wanted("filco-table4", tmp_path, limit=1, tasks=["nq"]).runs
    }
    assert "-filco-" in filters["FILCO"]
    assert "-filco_passage-" in filters["PSG"]
    for changed in (
        folders(small, limit=3),
        folders(small, repeats=2),
        folders(small, lm=connect("offline", temperature=0.5)),
    ):
        assert not set(changed.values()) & set(first.values())


def test_the_same_questions_under_another_files_name_are_the_same_run(small: PaperTable, tmp_path: Path) -> None:
    names = set()
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(sample("questions.jsonl").read_text(encoding="utf-8"), encoding="utf-8")
        found = wanted(small, tmp_path, data=[str(tmp_path / name)], corpus=["sample"], tasks=["hotpotqa"], limit=3)
        names |= {each.folder.name for each in found.runs}
    assert len(names) == len(small.rows)


def test_a_finished_run_is_not_repeated_and_a_stopped_table_goes_on(small: PaperTable, tmp_path: Path) -> None:
    engine = CountingEngine()
    every = wanted(small, tmp_path / "runs", engine.lm(), tasks=["hotpotqa"]).runs
    runs.do(every[:2], progress=False)
    before, lines = len(engine.prompts), list[str]()
    done = runs.do(every, progress=False, say=lines.append)
    assert [line.endswith("(finished before)") for line in lines] == [True, True, False, False]
    assert lines[2].startswith("run 3 of 4: hotpotqa-iter-retgen-")
    different = {key for run in done.values() for row in run.rows for _, key in row["calls"]}
    assert len(engine.prompts) == len(different) > before
    runs.do(every, progress=False)
    assert len(engine.prompts) == len(different)


def test_a_question_that_failed_is_asked_again_by_the_same_call_and_a_plan_counts_it(
    small: PaperTable, tmp_path: Path
) -> None:
    broken = [True]

    async def before(stage: str, prompt: str) -> None:
        if broken[0] and "designer" in prompt.rpartition("Question:")[2]:
            raise RuntimeError("out of luck")

    lines: list[str] = []
    every = wanted(small, tmp_path / "runs", CountingEngine(before).lm(), tasks=["hotpotqa"], methods=["direct"]).runs
    with pytest.warns(UserWarning, match="of 4 questions ended in an error") as warned:
        (run,) = runs.do(every, progress=False, say=lines.append).values()
    assert 0 < (errors := run.errors) < 4
    assert str(warned[0].message).startswith(f"{errors} of 4 questions ended in an error")
    planned = runs.plan(every)
    assert planned.total("new_calls") == errors
    assert f"finished, {errors} failed" in planned.text()
    broken[0] = False
    (run,) = runs.do(every, progress=False, say=lines.append).values()
    assert run.errors == 0


# --- the plan ---


def test_a_plan_of_all_questions_is_what_then_happens(small: PaperTable, tmp_path: Path) -> None:
    engine = CountingEngine()
    every = wanted(small, tmp_path / "runs", engine.lm(), limit=5).runs
    planned = runs.plan(every, pilot=5)
    assert not (tmp_path / "runs").exists()
    assert engine.prompts == []
    assert planned.total("new_cost") is None
    assert "cost: no price is known (prices=FILE)" in planned.text()
    result = made(small, tmp_path / "runs", engine.lm(), limit=5).result
    assert planned.total("calls") == result.calls_used
    assert planned.total("new_calls") == result.calls_different < result.calls_used
    again = runs.plan(every)
    assert (again.total("calls"), again.total("new_calls"), again.total("new_tokens_in")) == (result.calls_used, 0, 0)
    assert all(each.finished for each in again.runs)
    assert "nothing was spent" in again.text()


def test_a_plan_scales_with_questions_and_repeats_and_has_the_models_prices(small: PaperTable, tmp_path: Path) -> None:
    lm = connect("openai/gpt-4o-mini", api_key="k")
    every = wanted(small, tmp_path, lm, limit=20, methods=["direct"], tasks=["hotpotqa"]).runs
    once, thrice = runs.plan(every), runs.plan(every, repeats=3)
    assert (once.total("calls"), thrice.total("calls")) == (20, 60)
    tokens_in, tokens_out = once.total("new_tokens_in"), once.total("new_tokens_out")
    assert thrice.total("new_tokens_in") == pytest.approx(3 * tokens_in, abs=3)
    assert once.total("new_cost") == pytest.approx((0.15 * tokens_in + 0.6 * tokens_out) / 1e6, abs=1e-4)
    (name,) = once.tokenisers.values()
    assert f"tokens: {name}" in once.text()
    assert "cost: $0.15 in and $0.6 out a million tokens" in once.text()
