"""Plots and the frontier: who is on the front, labels that keep clear of each other, the same bytes each time."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from small_world import CountingEngine
from stored import edited

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
    load,
    make_silver,
    plot,
)
from blendfilter.errors import BadArgument, RunMismatch, UnknownName
from blendfilter.evaluation import run_passages
from blendfilter.filters.registry import make_filter
from blendfilter.filters.silver import SilverFilter
from blendfilter.journal import Journal
from blendfilter.records import Excerpt
from blendfilter.report import plots
from blendfilter.report.plots import FRONTIER_COSTS, Frontier, RunPoint, front
from blendfilter.tasks import Questions

pytest.importorskip("matplotlib")


def dots(*pairs: tuple[float, float]) -> list[RunPoint]:
    return [RunPoint(f"method {i}", value, value, value, cost, cost, cost) for i, (cost, value) in enumerate(pairs)]


@pytest.fixture
def runs(index: BM25, questions: Questions, tmp_path: Path) -> list[Run]:
    methods = {"direct": Direct(), "cot": ChainOfThought(index, k=3), "blend": BlendFilter(index, k=3)}
    return [
        evaluate(method, questions, lm="offline", run=tmp_path / name, progress=False)
        for name, method in methods.items()
    ]


# --- the headline ---------------------------------------------------------------------------------------------------


def test_the_front_leaves_out_what_costs_more_for_no_more() -> None:
    """By hand: (1, .4) leads; (2, .4) and (3, .3) bring nothing; (4, .5) does; (4, .45) is beaten at its own cost."""
    every = dots((4, 0.45), (3, 0.3), (1, 0.4), (2, 0.4), (4, 0.5))
    assert [(each.calls, each.value) for each in front(every, "calls")] == [(1, 0.4), (4, 0.5)]


def text_of(path: Path) -> str:
    """What an SVG says: matplotlib writes each text as a comment above its outlines."""
    return "\n".join(re.findall(r"<!-- (.*?) -->", path.read_text(encoding="utf-8")))


def test_the_headline_names_every_run_and_stamps_the_offline_reader(runs: list[Run], tmp_path: Path) -> None:
    path = plot({"alone": runs[0], "chain": runs[1].folder, "whole": runs[2]}, tmp_path / "plots" / "headline.svg")
    result = text_of(path)
    assert plots.OFFLINE in result
    assert "hotpotqa, 6 questions, offline" in result
    assert result.index("chain  ") < result.index("alone  "), "the best stands first"
    of_a_model = evaluate(Direct(), load("hotpotqa", "sample", limit=1), lm=CountingEngine().lm(), run=tmp_path / "run")
    assert plots.OFFLINE not in text_of(plot([of_a_model], tmp_path / "model.svg"))
    for words in (
        "alone",
        "chain",
        "whole",
        "model calls a question",
        "tokens a question",
        "median seconds a question",
    ):
        assert words in result


@pytest.mark.parametrize(("kind", "suffix"), [("headline", "svg"), ("losses", "png")])
def test_the_same_runs_give_the_same_bytes_whatever_a_user_has_set(
    runs: list[Run], tmp_path: Path, kind: str, suffix: str
) -> None:
    import matplotlib

    first = plot(runs, tmp_path / f"a.{suffix}", kind).read_bytes()
    with matplotlib.rc_context({"font.size": 20, "text.color": "red", "xtick.direction": "in"}):
        assert plot(runs, tmp_path / f"b.{suffix}", kind).read_bytes() == first
        assert matplotlib.rcParams["font.size"] == 20
    assert first.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    assert b"<dc:date>" not in first
    assert b"Matplotlib v" not in first


@pytest.mark.filterwarnings("error", "ignore:Glyph")
def test_a_label_is_text_whatever_stands_in_it(runs: list[Run], tmp_path: Path) -> None:
    for kind in ("headline", "losses"):
        for label in (r"a $\frac$ b", "", "x" * 200, "\u65b9 <b>"):
            assert plot({label: runs[0], "$x_1$": runs[1]}, tmp_path / "plot.svg", kind).stat().st_size > 1000


# --- labels, losses, what is wrong ----------------------------------------------------------------------------------


def test_what_cannot_be_plotted_is_one_line(runs: list[Run], index: BM25, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"no plot 'headlin'\. Did you mean 'headline'"):
        plot(runs, tmp_path / "a.svg", "headlin")
    with pytest.raises(BadArgument, match=r"end its name in \.svg or \.png"):
        plot(runs, tmp_path / "a.pdf")
    with pytest.raises(BadArgument, match="no runs to plot"):
        plot([], tmp_path / "a.svg")
    other = evaluate(Direct(), load("qa", "sample", limit=1), lm="offline", run=tmp_path / "qa", progress=False)
    with pytest.raises(RunMismatch, match="'direct' and 'qa' are over different questions"):
        plot({"direct": runs[0], "qa": other}, tmp_path / "a.svg")
    assert not list(tmp_path.glob("a.*"))


# --- frontier --------------------------------------------------------------------------------------------------------


@pytest.fixture
def runs_frontier(index: BM25, questions: Questions, tmp_path: Path) -> dict[str, Run]:
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


def test_a_context_is_what_the_prompt_shows(runs_frontier: dict[str, Run]) -> None:
    """The lines of knowledge in the prompt that answers, to the letter; a filter's pieces in their places."""
    for name, run in runs_frontier.items():
        for found in run_passages.contexts(run):
            called = dict(map(reversed, found.row["calls"]))
            stages = [called[record["key"]] for record in records(run, found.row)]
            answering = max(at for at, stage in enumerate(stages) if stage != "short_answer")
            prompt = str(records(run, found.row)[answering]["prompt"])
            view = prompt.rpartition("Knowledge:")[2].partition("Question:")[0].strip()
            assert [line for line in view.splitlines() if line] == [each.line for each in found.kept], name
            assert {each.id for each in found.kept} <= {each.id for each in found.retrieved}
            if name in ("short", "chain"):
                assert all(isinstance(each, Excerpt) and each.text in each.source.text for each in found.kept if
                           len(getattr(each, "spans", ())) == 1)  # fmt: skip


# --- the front ------------------------------------------------------------------------------------------------------


def test_points_are_scores_with_what_they_cost(runs_frontier: dict[str, Run]) -> None:
    found = frontier(runs_frontier)
    assert [each.value for each in found.dots] == sorted((each.value for each in found.dots), reverse=True)
    place = {each.label: each for each in found.dots}
    for name, run in runs_frontier.items():
        total, n = run.metrics["ledger"]["total"], len(run.rows)
        assert place[name].tokens_in == pytest.approx(total["tokens_in"] / n, abs=1), "calls two questions share apart"
        score = run.metrics["metrics"]["em"]
        assert place[name][1:4] == (score["value"], score["low"], score["high"])
    assert place["short"].prompt_tokens < place["full"].prompt_tokens
    assert place["chain"].prompt_tokens < place["chain"].tokens_in
    assert [name for name in runs_frontier if place[name].bound] == ["silver"]


def test_the_front_is_of_runs_that_none_beats_for_less() -> None:
    def at(label: str, value: float, tokens: float, bound: bool = False) -> RunPoint:
        return RunPoint(label, value, 0, 1, 1, tokens, 0, tokens, tokens / 2, bound)

    dots = (at("dear", 0.6, 900), at("cheap", 0.4, 100), at("beaten", 0.4, 200), at("gold", 0.9, 50, True))
    found = Frontier(dots, "em", "T", offline=False)
    for cost in FRONTIER_COSTS:
        assert [each.label for each in found.front(cost)] == ["cheap", "dear"], "what reads the answer beats nobody"
    stars = {line.split()[0]: line.count(" *") for line in found.text().splitlines()[4:8]}
    assert stars == {"dear": 2, "cheap": 2, "beaten": 0, "gold": 0}
    assert "gold †" in found.text()
    assert "† reads the answer: an upper bound" in found.text()
    assert "offline" not in found.text()


@pytest.mark.parametrize("calls", [1, 0], ids=["of one call", "of none"])
def test_where_a_server_told_no_tokens_there_is_no_front(
    runs_frontier: dict[str, Run], tmp_path: Path, calls: int
) -> None:
    path = runs_frontier["full"].folder / "journal.jsonl"
    assert '"tokens_in":' in path.read_text("utf-8")
    edited(path, r'"tokens_in":\d+', '"tokens_in":null', count=calls)
    found = frontier(runs_frontier)
    assert math.isnan(next(each for each in found.dots if each.label == "full").tokens_in)
    assert found.front() == []
    assert next(line for line in found.text().splitlines() if line.startswith("full")).split()[-2:] == ["-", "-"]


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


def test_it_is_drawn_with_every_run_and_the_same_bytes(runs_frontier: dict[str, Run], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = frontier(runs_frontier).draw(tmp_path / "a.svg", tmp_path / "a.png")
    again = frontier(runs_frontier).draw(tmp_path / "b.svg", tmp_path / "b.png")
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
    result = re.findall(r"<!-- (.*?) -->", paths[0].read_text("utf-8"))
    text = "\n".join(result)
    for words in (*runs_frontier, "input tokens a question, all calls", "tokens of the prompt that answers",
                  "diamond: reads the answer, a bound", "offline reader: shows the pipeline, not quality"):  # fmt: skip
        assert words in text
    assert "median" not in text, "no panel for what it does not tell"
    inline = frontier(runs_frontier)._repr_svg_() or ""
    assert inline.startswith("<svg"), "a notebook shows it"
    assert paths[0].read_text("utf-8").endswith(inline)


def test_one_run_needs_no_list(runs: list[Run], tmp_path: Path) -> None:
    for one in (runs[0], runs[0].folder, str(runs[0].folder), [runs[0]]):
        assert [point.label for point in frontier(one).dots] == ["direct"]
        assert plot(one, tmp_path / "one.svg").is_file()


def test_a_notebook_shows_the_table_of_what_cannot_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    point = RunPoint("direct", 0.5, 0.4, 0.6, 1, 1, 1, tokens_in=9, prompt_tokens=9)
    unpriced = Frontier((point._replace(tokens_in=math.nan, prompt_tokens=math.nan),), "em", "some runs", offline=False)
    assert unpriced._repr_svg_() is None, "the server stated no tokens"
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    without = Frontier((point,), "em", "some runs", offline=False)
    assert without._repr_svg_() is None
    assert repr(without).startswith("some runs\n")


def test_a_run_that_reads_the_answer_says_so_wherever_it_is_shown(runs_frontier: dict[str, Run]) -> None:
    text = "reads the answer: an upper bound"
    assert [name for name, run in runs_frontier.items() if run.reads_gold] == ["silver"]
    for name, run in runs_frontier.items():
        assert (text in run.report()) == (name == "silver")
        assert (text in page(run)) == (name == "silver")
    assert f"silver: its filter {text}" in str(compare(runs_frontier["full"], runs_frontier["silver"]))
    assert text not in str(compare(runs_frontier["full"], runs_frontier["short"]))


def page(run: Run) -> str:
    return run.html().read_text("utf-8")
