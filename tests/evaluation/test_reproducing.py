"""A table from its runs to its lines: runs named and shared, p-values where there may be some."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blendfilter.evaluation.reproducing import doing, plan, printing, results, runs, sources
from blendfilter.evaluation.reproducing.papers import Table
from blendfilter.evaluation.reproducing.runs import Wanted
from small_table import HEAD, ROWS, written
from small_world import CountingEngine

from blendfilter import compare, connect
from blendfilter.errors import BadArgument, UnknownName
from blendfilter.evaluation.statistics import holm
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.offline import read
from blendfilter.resources import sample


@pytest.fixture
def small(tmp_path: Path) -> Table:
    return written(tmp_path, HEAD + ROWS)


def wanted(table: Table, folder: Path, lm: ConnectedLM | None = None, limit: int = 4, **more: Any) -> list[Wanted]:
    found = sources.gather(table, data=["sample"], limit=limit, tasks=more.pop("tasks", None))
    return runs.wanted(table, found, lm or connect("offline"), folder / "runs", **more)


# --- runs -----------------------------------------------------------------------------------------------------------


def test_runs_are_named_by_what_they_are_so_tables_share_them(small: Table, tmp_path: Path) -> None:
    other = written(tmp_path, HEAD.replace("A small", "Another").replace('"hotpotqa", "strategyqa"', '"hotpotqa"') + """
[[rows]]
label = "Whole"
method = "blendfilter"
[[rows]]
label = "Less"
method = "blendfilter"
arguments = { without = ["q"] }
""", "other")  # fmt: skip
    first = {each.row.label: each.folder for each in wanted(small, tmp_path, tasks=["hotpotqa"])}
    second = {each.row.label: each.folder for each in wanted(other, tmp_path)}
    assert first["Whole"] == second["Whole"] != second["Less"]
    assert first["Whole"].name.startswith("hotpotqa-blendfilter-k5-bm25-offline-4-")
    assert "without_q" in second["Less"].name
    assert len({each.folder for limit in (3, 4) for each in wanted(small, tmp_path, limit=limit)}) == 16
    hotter = {each.folder for each in wanted(small, tmp_path, connect("offline", temperature=0.5))}
    assert not hotter & {each.folder for each in wanted(small, tmp_path)}


def test_the_same_questions_under_another_files_name_are_the_same_run(small: Table, tmp_path: Path) -> None:
    text = sample("questions.jsonl").read_text(encoding="utf-8")
    names = set()
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        found = sources.gather(small, data=[str(tmp_path / name)], corpus=["sample"], tasks=["hotpotqa"], limit=3)
        names |= {each.folder.name for each in runs.wanted(small, found, connect("offline"), tmp_path / "runs")}
    assert len(names) == len(small.rows)


def test_only_the_named_methods_are_run(small: Table, tmp_path: Path) -> None:
    assert {each.row.label for each in wanted(small, tmp_path, methods=["direct", "blendfilter"])} == {"Alone", "Whole"}
    with pytest.raises(UnknownName, match="no method 'react'"):
        wanted(small, tmp_path, methods=["react"])


def test_a_finished_run_is_not_repeated_and_a_stopped_table_goes_on(small: Table, tmp_path: Path) -> None:
    engine = CountingEngine()
    asked = wanted(small, tmp_path, engine.lm(), tasks=["hotpotqa"])
    doing.do(asked[:2], progress=False)
    before, said = len(engine.prompts), []
    done = doing.do(asked, progress=False, say=said.append)
    assert [line.endswith("(finished before)") for line in said] == [True, True, False, False]
    assert said[2].startswith("run 3 of 4: hotpotqa-iter-retgen-")
    assert len(engine.prompts) == results.spent(done).different > before
    doing.do(asked, progress=False)
    assert len(engine.prompts) == results.spent(done).different


def test_a_folder_that_is_no_run_of_ours_is_not_taken_over(small: Table, tmp_path: Path) -> None:
    (folder := tmp_path / "runs" / "hotpotqa-other").mkdir(parents=True)
    (folder / "run.json").write_text('{"settings": {"theirs": 1}}', encoding="utf-8")
    (folder / "journal.jsonl").touch()
    asked = wanted(small, tmp_path, tasks=["hotpotqa"], methods=["direct"], limit=1)
    assert [run.finished for run in doing.do(asked, progress=False).values()] == [True]


def test_only_runs_of_the_same_task_and_model_are_taken_over(small: Table, tmp_path: Path) -> None:
    for name in ("one", "two"):
        doing.do(wanted(small, tmp_path, CountingEngine().lm(name=name), methods=["direct"], limit=1), progress=False)
    (one,) = (each.folder for each in wanted(small, tmp_path, CountingEngine().lm(name="one"), tasks=["hotpotqa"],
              methods=["direct"], limit=1))  # fmt: skip
    others = doing.reusable(one.parent / "hotpotqa-new", "hotpotqa", "one")
    assert others == [one]
    assert doing.reusable(one, "hotpotqa", "one") == []


def test_a_question_that_failed_is_asked_again_by_the_same_call(small: Table, tmp_path: Path) -> None:
    broken = [True]

    async def before(stage: str, prompt: str) -> None:
        if broken[0] and stage == "direct":
            raise RuntimeError("out of luck")

    asked = wanted(small, tmp_path, CountingEngine(before).lm(), tasks=["hotpotqa"], methods=["direct"])
    said: list[str] = []
    (run,) = doing.do(asked, progress=False, say=said.append).values()
    assert run.errors == 4
    assert said[-1].endswith("4 of 4 questions ended in an error")
    broken[0] = False
    (run,) = doing.do(asked, progress=False, say=said.append).values()
    assert run.errors == 0


# --- lines ----------------------------------------------------------------------------------------------------------


def wrong_at_first(prompt: str) -> str:
    """The offline reader with another answer where nothing was retrieved, so that methods differ."""
    said = read(prompt)
    return said if "Knowledge:" in prompt else f"{said} of Nowhere"


def test_lines_hold_published_measured_and_tests_with_holm_over_the_table(small: Table, tmp_path: Path) -> None:
    asked = wanted(small, tmp_path, CountingEngine(reply=wrong_at_first).lm(name="counted"), limit=12)
    done = doing.do(asked, progress=False)
    result = results.result(small, asked, done)
    by_place = {(line.task, line.label, line.measure): line for line in result.lines}
    assert len(by_place) == len(result.lines) == 4 * 2 + 4
    chain = by_place["hotpotqa", "Chain", "em"]
    run = next(done[one.folder] for one in asked if (one.task, one.row.label) == ("hotpotqa", "Chain"))
    assert (chain.value, chain.published) == (run.metrics["metrics"]["em"]["value"], 0.25)
    assert chain.difference == pytest.approx(chain.value - 0.25)
    half = (chain.high - chain.low) / 2
    told = next(line for line in printing.text(result).splitlines() if line.startswith("Chain"))
    figures = ["25.0", f"{100 * chain.value:.1f}", "±", f"{100 * half:.1f}", f"{100 * chain.difference:+.1f}"]
    assert told.split()[2:7] == figures
    assert chain.calls == 2.0
    whole = next(done[one.folder] for one in asked if (one.task, one.row.label) == ("hotpotqa", "Whole"))
    rows = {row.measure: row for row in compare(whole, run).rows if row.run == run.name}
    for measure, row in rows.items():
        line = by_place["hotpotqa", "Chain", measure]
        assert (line.gain, line.gain_low, line.gain_high, line.p) == (row.difference, row.low, row.high, row.p)
    against = rows["em"]
    gain, half = 100 * (against.difference or 0), 50 * ((against.high or 0) - (against.low or 0))
    assert told.split()[7:10] == [f"{gain:+.1f}", "±", f"{half:.1f}"], "what p tests stands beside it"
    assert by_place["hotpotqa", "Whole", "em"].p is None
    families = [[line for line in result.lines if (line.measure == "f1") is f1 and line.p] for f1 in (False, True)]
    assert {line.task for line in families[0]} == {"hotpotqa", "strategyqa"}
    for family in families:
        assert len(family) >= 3
        assert [line.p_holm for line in family] == holm([line.p or 0.0 for line in family])
    text = printing.text(result)
    assert "Holm" in text
    assert "other reader" not in text
    assert "offline" not in text


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_cell_is_cut_or_folded_where_there_is_no_room(small: Table, tmp_path: Path, width: int) -> None:
    asked = wanted(small, tmp_path, CountingEngine(reply=wrong_at_first).lm(name="counted"), limit=12)
    result = results.result(small, asked, doing.do(asked, progress=False))
    result = replace(result, lines=tuple(replace(line, label=f"{line.label} over the whole union, one filter")
                                         for line in result.lines))  # fmt: skip
    whole, shown = printing.text(result), printing.text(result, width)
    assert max(map(len, whole.splitlines())) > 100
    assert max(map(len, shown.splitlines())) <= width
    assert "table.md has all" in shown
    cells = {f"{100 * line.value:.1f} ± {50 * (line.high - line.low):.1f}" for line in result.lines}
    assert all(cell in shown for cell in cells)
    for word in ("over", "the", "whole", "union,", "one", "filter"):
        assert word in shown.split()


def test_the_offline_reader_gets_no_p_and_every_form_says_so(small: Table, tmp_path: Path) -> None:
    asked = wanted(small, tmp_path)
    result = results.result(small, asked, doing.do(asked, progress=False), notes=["a note of the sources"])
    assert all(line.p is None for line in result.lines)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "table.md").write_text("# My own table")
    with pytest.raises(BadArgument, match="is there, and is no table of this kind"):
        printing.write(result, tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["table.md"]
    printing.write(result, tmp_path / "out")
    paths = printing.write(result, tmp_path / "out")
    forms = [printing.text(result), *(path.read_text(encoding="utf-8") for path in paths)]
    for form in forms:
        assert "no p-value" in form
        assert "other reader: the published figures are counted's, the measured ones the offline reader's" in form
        assert "a note of the sources" in form
        assert "published: of 500 questions, so uncertain too (up to ± 4.4 points)" in form
    plain = json.loads(forms[2])
    assert plain["lines"][0]["published"] == 0.3
    assert next(line for line in forms[1].splitlines() if line.startswith("|")).count("|") == 8


@pytest.mark.parametrize("sweep", [True, False])
def test_a_sweep_and_samples_have_a_line_for_each_point(tmp_path: Path, sweep: bool) -> None:
    """Figure 3's K, and Figure 4's answers: the second sample is right where the first is not."""
    head = HEAD.replace('["hotpotqa", "strategyqa"]', '["hotpotqa"]').replace("strategyqa", "")
    kind, more = ("sweep", "sweep = [3, 4]") if sweep else (
        "samples", "samples = [{ temperature = 0.0 }, { temperature = 1.0, top_p = 0.5 }]")  # fmt: skip
    figure = written(tmp_path, head.replace('"scores"', f'"{kind}"') + more + """
[[rows]]
label = "Whole"
method = "direct-retrieval"
""")  # fmt: skip
    asked = wanted(figure, tmp_path, limit=6)
    assert len({each.folder for each in asked}) == 2
    if sweep:
        assert [each.point.k for each in asked] == [3, 4]
        assert [type(each.method).__name__ for each in asked] == ["Direct"] * 2
        lines = results.result(figure, asked, doing.do(asked, progress=False)).lines
        assert [(line.point, line.measure) for line in lines] == [
            (point, measure) for point in ("K=3", "K=4") for measure in ("em", "f1")
        ]
        return
    assert [(one.lm.kwargs["temperature"], one.lm.kwargs.get("top_p")) for one in asked] == [(0.0, None), (1.0, 0.5)]
    done = doing.do(asked, progress=False)
    second = done[asked[1].folder]
    rows = [json.loads(line) for line in (second.folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    wrong = next(i for i, row in enumerate(done[asked[0].folder].rows) if row["em"] == 0)
    rows[wrong] |= {"em": 1.0, "f1": 1.0}
    (second.folder / "predictions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    second.__dict__.pop("rows", None)
    lines = {(line.point, line.measure): line for line in results.result(figure, asked, done).lines}
    assert lines["best of 2", "em"].value == pytest.approx(lines["one answer", "em"].value + 1 / 6)
    assert lines["best of 2", "em"].calls == 2 * lines["one answer", "em"].calls


def test_a_figure_of_retrieval_measures_what_was_kept(small: Table, tmp_path: Path) -> None:
    figure = small.model_copy(update={"kind": "retrieval", "tasks": ("hotpotqa",)})
    asked = wanted(figure, tmp_path, methods=["cot-retrieval", "blendfilter"], limit=6)
    done = doing.do(asked, progress=False)
    lines = {(line.label, line.measure): line for line in results.result(figure, asked, done).lines}
    for each in asked:
        kept = done[each.folder].metrics["retrieval"]["kept"]
        for measure in results.RETRIEVAL:
            assert lines[each.row.label, measure].value == pytest.approx(kept[measure], abs=1e-6)
    assert lines["Whole", "precision"].value > lines["Chain", "precision"].value, "the filter drops something"


def test_of_several_repeats_the_best_of_all_answers_takes_the_first(small: Table, tmp_path: Path) -> None:
    asked = wanted(small, tmp_path, tasks=["hotpotqa"], methods=["direct"], limit=2, repeats=2)
    (run,) = doing.do(asked, progress=False, repeats=2).values()
    assert [row["repeat"] for row in results._by_question(run).values()] == [1, 1]


# --- the plan -------------------------------------------------------------------------------------------------------


def test_a_plan_of_all_questions_is_what_then_happens(small: Table, tmp_path: Path) -> None:
    asked = wanted(small, tmp_path, limit=5)
    planned = plan.plan(asked, pilot=5)
    assert not (tmp_path / "runs").exists()
    done = doing.do(asked, progress=False)
    spent = results.spent(done)
    assert planned.total("calls") == spent.used
    assert planned.total("new_calls") == spent.different < spent.used
    again = plan.plan(asked)
    assert (again.total("calls"), again.total("new_calls"), again.total("new_tokens_in")) == (spent.used, 0, 0)
    assert all(each.finished for each in again.runs)
    assert "nothing was spent" in again.text()


def test_a_plan_counts_what_a_finished_run_has_still_to_ask_again(small: Table, tmp_path: Path) -> None:
    async def before(stage: str, prompt: str) -> None:
        if "designer" in prompt.rpartition("Question:")[2]:
            raise RuntimeError("out of luck")

    asked = wanted(small, tmp_path, CountingEngine(before).lm(), tasks=["hotpotqa"], methods=["direct"], limit=4)
    (run,) = doing.do(asked, progress=False).values()
    assert 0 < run.errors < 4
    planned = plan.plan(asked)
    assert planned.total("new_calls") == run.errors
    assert f"finished, {run.errors} failed" in planned.text()


def test_a_plan_scales_with_questions_and_repeats(small: Table, tmp_path: Path) -> None:
    asked = wanted(small, tmp_path, limit=20, methods=["direct"], tasks=["hotpotqa"])
    once, thrice = plan.plan(asked), plan.plan(asked, repeats=3)
    assert (once.total("calls"), thrice.total("calls")) == (20, 60)
    assert thrice.total("new_tokens_in") == pytest.approx(3 * once.total("new_tokens_in"), abs=3)


DESIGNED = """
[[rows]]
label = "{label}"
method = "{method}"
arguments = {{ {arguments} }}
"""


@pytest.mark.parametrize(
    ("method", "arguments", "calls", "on_strategyqa"),
    [
        ("direct", "", 1, 1),
        ("cot", "", 2, 2),
        ("direct-retrieval", "", 1, 1),
        ("cot-retrieval", "k = 15", 2, 2),
        ("cot-retrieval", 'k = 15, filter = "knowledge"', 5, 4),
        ("cot-retrieval", 'filter = "sentence", filter_n = 2', 2, 2),
        ("self-consistency", "samples = 4", 5, 5),
        ("iter-retgen", "iterations = 3", 4, 4),
        ("blendfilter", "", 11, 10),
        ("blendfilter", 'without = ["q_ex"]', 8, 7),
        ("blendfilter", 'filter = "one-call"', 7, 7),
        ("blendfilter", "filter_union = true", 7, 6),
        ("blendfilter", 'filter = "one-call", filter_union = true', 5, 5),
    ],
)
def test_the_calls_by_design_are_the_most_a_question_makes(
    tmp_path: Path, method: str, arguments: str, calls: int, on_strategyqa: int
) -> None:
    table = written(tmp_path, HEAD + DESIGNED.format(label="Whole", method=method, arguments=arguments))
    asked = wanted(table, tmp_path, limit=12)
    told = {each.task: plan.by_design(each) for each in asked}
    assert [int(words.split()[0]) for words in told.values()] == [calls, on_strategyqa]
    done = doing.do(asked, progress=False)
    for each in asked:
        made = [len(row["calls"]) for row in done[each.folder].rows]
        asked_again = sum(
            row["flags"]["unparseable_ids"] + row["flags"]["suspect_ids"] for row in done[each.folder].rows
        )
        assert max(made) <= int(told[each.task].split()[0]) + asked_again
        if "most" not in told[each.task]:
            assert set(made) == {int(told[each.task])}


def test_a_plan_has_tokens_and_dollars_of_the_model_itself(small: Table, tmp_path: Path) -> None:
    asked = wanted(small, tmp_path, connect("openai/gpt-4o-mini", api_key="k"))
    planned = plan.plan(asked)
    assert planned.cost == pytest.approx(
        (0.15 * planned.total("new_tokens_in") + 0.6 * planned.total("new_tokens_out")) / 1e6, abs=1e-4
    )
    (name,) = planned.tokenisers.values()
    assert f"tokens: {name}" in planned.text()
    assert "cost: $0.15 in and $0.6 out a million tokens" in planned.text()
    unpriced = plan.plan(wanted(small, tmp_path, CountingEngine().lm()))
    assert unpriced.cost is None
    assert "cost: no price is known (--prices FILE)" in unpriced.text()


def test_a_plan_takes_real_runs_over_and_knows_how_long_replies_are(small: Table, tmp_path: Path) -> None:
    """CoT was run by a model that says much more than the reader: BlendFilter's plan begins with its calls."""

    def wordy(prompt: str) -> str:
        said = read(prompt)
        return " ".join([said] * (3 if len(said) > 40 else 1))

    engine = CountingEngine(reply=wordy)
    options: dict[str, Any] = {"tasks": ["hotpotqa"], "limit": 5}
    before = plan.plan(wanted(small, tmp_path, engine.lm(), methods=["blendfilter"], **options))
    doing.do(wanted(small, tmp_path, engine.lm(), methods=["cot-retrieval"], **options), progress=False)
    asked = wanted(small, tmp_path, engine.lm(), methods=["blendfilter"], **options)
    made, calls = plan.plan(asked), engine.calls
    doing.do(asked, progress=False)
    assert made.total("new_calls") < before.total("new_calls")
    assert made.total("new_calls") == pytest.approx(engine.calls - calls, abs=3)
    assert made.total("new_calls") <= before.total("new_calls") - 5, "the external calls are CoT's"


def test_a_plan_asks_no_model(small: Table, tmp_path: Path) -> None:
    engine = CountingEngine()
    assert plan.plan(wanted(small, tmp_path, engine.lm())).total("new_calls") > 0
    assert engine.prompts == []
