"""The frontier: scores against input tokens, counted from the journal; who is on the front, and how it is shown."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from small_world import CountingEngine
from stored import unchecked

from blendfilter import (
    BM25,
    BlendFilter,
    ChainOfThought,
    Direct,
    Oracle,
    Run,
    compare,
    evaluate,
    frontier,
    make_silver,
)
from blendfilter.errors import BadArgument, RunMismatch
from blendfilter.evaluation import contexts
from blendfilter.evaluation.frontier import COSTS, Frontier
from blendfilter.evaluation.plots import Dot
from blendfilter.filters.registry import make_filter
from blendfilter.filters.silver import SilverFilter
from blendfilter.journal import Journal
from blendfilter.records import Excerpt
from blendfilter.tasks import Questions


@pytest.fixture
def runs(index: BM25, questions: Questions, tmp_path: Path) -> dict[str, Run]:
    make_silver(questions, Oracle("strinc", task="hotpotqa"), tmp_path / "silver.jsonl", retriever=index)
    methods = {
        "full": Direct(index),
        "short": Direct(index, filter=make_filter("sentence", n=2)),
        "chain": ChainOfThought(index, filter=make_filter("filco")),
        "whole": BlendFilter(index),
        "silver": Direct(index, filter=SilverFilter(tmp_path / "silver.jsonl")),
    }
    return {
        name: evaluate(method, questions, lm="offline", run=tmp_path / name, progress=False)
        for name, method in methods.items()
    }


def records(run: Run, row: dict[str, Any]) -> list[dict[str, Any]]:
    with Journal(run.folder / "journal.jsonl", "replay") as journal:
        return [journal.read(key) or {} for _, key in row["calls"]]


# --- what was read, from rows and journal ---------------------------------------------------------------------------


def test_a_context_is_what_the_prompt_shows(runs: dict[str, Run]) -> None:
    """The lines of knowledge in the prompt that answers, to the letter; a filter's pieces in their places."""
    for name, run in runs.items():
        for found in contexts.contexts(run):
            called = dict(map(reversed, found.row["calls"]))
            stages = [called[record["key"]] for record in records(run, found.row)]
            answering = max(at for at, stage in enumerate(stages) if stage != "short_answer")
            prompt = str(records(run, found.row)[answering]["prompt"])
            shown = prompt.rpartition("Knowledge:")[2].partition("Question:")[0].strip()
            assert [line for line in shown.splitlines() if line] == [each.line for each in found.kept], name
            assert {each.id for each in found.kept} <= {each.id for each in found.retrieved}
            if name in ("short", "chain"):
                assert all(isinstance(each, Excerpt) and each.text in each.source.text for each in found.kept if
                           len(getattr(each, "spans", ())) == 1)  # fmt: skip


def test_tokens_are_those_that_the_server_told(runs: dict[str, Run]) -> None:
    for name, run in runs.items():
        for row, read in zip(run.rows, contexts.read_tokens(run), strict=True):
            told = {record["key"]: record["tokens_in"] for record in records(run, row)}
            stage = {"chain": "answer", "whole": "answer"}.get(name, "direct")
            answering = next(key for called, key in row["calls"] if called == stage)
            assert read == (told[answering], sum(told.values()))


# --- the front ------------------------------------------------------------------------------------------------------


def test_points_are_scores_with_what_they_cost(runs: dict[str, Run]) -> None:
    found = frontier(runs)
    assert [each.value for each in found.dots] == sorted((each.value for each in found.dots), reverse=True)
    place = {each.label: each for each in found.dots}
    for name, run in runs.items():
        total, n = run.metrics["ledger"]["total"], len(run.rows)
        assert place[name].tokens_in == pytest.approx(total["tokens_in"] / n, abs=1), "calls two questions share apart"
        score = run.metrics["metrics"]["em"]
        assert place[name][1:4] == (score["value"], score["low"], score["high"])
    assert place["short"].prompt_tokens < place["full"].prompt_tokens
    assert place["chain"].prompt_tokens < place["chain"].tokens_in
    assert [name for name in runs if place[name].bound] == ["silver"]


def test_the_front_is_of_runs_that_none_beats_for_less() -> None:
    def at(label: str, value: float, tokens: float, bound: bool = False) -> Dot:
        return Dot(label, value, 0, 1, 1, tokens, 0, tokens, tokens / 2, bound)

    dots = (at("dear", 0.6, 900), at("cheap", 0.4, 100), at("beaten", 0.4, 200), at("gold", 0.9, 50, True))
    found = Frontier(dots, "em", "T", offline=False)
    for cost in COSTS:
        assert [each.label for each in found.front(cost)] == ["cheap", "dear"], "what reads the answer beats nobody"
    stars = {line.split()[0]: line.count(" *") for line in found.text().splitlines()[4:8]}
    assert stars == {"dear": 2, "cheap": 2, "beaten": 0, "gold": 0}
    assert "gold †" in found.text()
    assert "† reads the answer: an upper bound" in found.text()
    assert "offline" not in found.text()


@pytest.mark.parametrize("calls", [1, 0], ids=["of one call", "of none"])
def test_where_a_server_told_no_tokens_there_is_no_front(runs: dict[str, Run], tmp_path: Path, calls: int) -> None:
    path = runs["full"].folder / "journal.jsonl"
    told = unchecked(path)
    assert '"tokens_in":' in told
    path.write_text(re.sub(r'"tokens_in":\d+', '"tokens_in":null', told, count=calls), "utf-8")
    found = frontier(runs)
    assert math.isnan(next(each for each in found.dots if each.label == "full").tokens_in)
    assert found.front() == []
    assert next(line for line in found.text().splitlines() if line.startswith("full")).split()[-2:] == ["-", "-"]


def test_where_no_run_knows_its_tokens_nothing_can_be_drawn(runs: dict[str, Run], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = runs["full"].folder / "journal.jsonl"
    path.write_text(re.sub(r'"tokens_in":\d+', '"tokens_in":null', unchecked(path)), "utf-8")
    with pytest.raises(BadArgument, match="nothing to draw scores by"):
        frontier(runs).draw(tmp_path / "a.svg")
    assert not (tmp_path / "a.svg").exists()
    assert frontier(runs).text()


def test_an_answer_that_failed_is_not_cheap(index: BM25, questions: Questions, tmp_path: Path) -> None:
    async def refuse(stage: str, prompt: str) -> None:
        if questions[0].question in prompt.rpartition("Question:")[2]:
            raise RuntimeError("the prompt is too long")

    failed = evaluate(
        Direct(index), questions, lm=CountingEngine(before=refuse).lm(), run=tmp_path / "a", progress=False
    )
    fewer = evaluate(Direct(index), questions[1:], lm=CountingEngine().lm(), run=tmp_path / "b", progress=False)
    assert failed.errors == 1
    (one,), (other,) = frontier({"a": failed}).dots, frontier({"b": fewer}).dots
    assert (one.prompt_tokens, one.tokens_in) == (other.prompt_tokens, other.tokens_in)
    assert one.value == pytest.approx(other.value * len(fewer.rows) / len(failed.rows), abs=1e-6)


# --- shown ----------------------------------------------------------------------------------------------------------


def test_it_is_drawn_with_every_run_and_the_same_bytes(runs: dict[str, Run], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = frontier(runs).draw(tmp_path / "a.svg", tmp_path / "a.png")
    again = frontier(runs).draw(tmp_path / "b.svg", tmp_path / "b.png")
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
    said = re.findall(r"<!-- (.*?) -->", paths[0].read_text("utf-8"))
    text = "\n".join(said)
    for words in (*runs, "input tokens a question, all calls", "tokens of the prompt that answers",
                  "diamond: reads the answer, a bound", "offline reader: shows the pipeline, not quality"):  # fmt: skip
        assert words in text
    assert "median" not in text, "no panel for what it does not tell"


def test_shown_it_is_its_table(runs: dict[str, Run]) -> None:
    found = frontier(runs)
    assert repr(found) == str(found) == found.text()
    assert found.text().startswith("hotpotqa, 6 questions, offline\n")
    assert "the offline reader answered: this shows the pipeline, not its quality" in found.text()
    for name, run in runs.items():
        line = next(each for each in found.text().splitlines() if each.startswith(name))
        assert f"{100 * run.metrics['metrics']['em']['value']:.1f} ±" in line


def test_runs_over_other_questions_share_no_frontier(
    runs: dict[str, Run], index: BM25, questions: Questions, tmp_path: Path
) -> None:
    fewer = evaluate(Direct(index), questions[:2], lm=CountingEngine().lm(), run=tmp_path / "few", progress=False)
    with pytest.raises(RunMismatch, match="'full' and 'few' are over different questions"):
        frontier({"full": runs["full"], "few": fewer})


def test_a_run_that_reads_the_answer_says_so_wherever_it_is_shown(runs: dict[str, Run]) -> None:
    said = "reads the answer: an upper bound"
    assert [name for name, run in runs.items() if run.reads_gold] == ["silver"]
    for name, run in runs.items():
        assert (said in run.report()) == (name == "silver")
        assert (said in page(run)) == (name == "silver")
    assert f"silver: its filter {said}" in str(compare(runs["full"], runs["silver"]))
    assert said not in str(compare(runs["full"], runs["short"]))


def page(run: Run) -> str:
    return run.html().read_text("utf-8")
