"""FilCo's tables and figures: the printed figures, what is measured beside them, and the silver contexts they want."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_table import written
from small_world import CountingEngine

from blendfilter import BM25, Run, connect, load
from blendfilter.errors import BadArgument, BadData, EmptyData, UnknownName
from blendfilter.evaluation.contexts import contexts
from blendfilter.evaluation.reproducing import doing, drawing, filtered, papers, plan, printing, results, runs, sources
from blendfilter.evaluation.reproducing.lines import Line
from blendfilter.evaluation.reproducing.own import OwnParagraphs
from blendfilter.evaluation.reproducing.papers import Table
from blendfilter.evaluation.reproducing.results import Result
from blendfilter.evaluation.reproducing.runs import Wanted
from blendfilter.evaluation.reproducing.silver import Silver, measures_of
from blendfilter.journal import Journal
from blendfilter.lm.scoring.base import Done, Pair, Score
from blendfilter.lm.scoring.kept import KeptScorer
from blendfilter.oracles.silver_making import supported
from blendfilter.records import Passage, Question
from blendfilter.resources import sample
from blendfilter.tasks import TASKS, Questions

pytestmark = pytest.mark.slow

PAPERS = Path(__file__).parents[2] / "eval" / "papers"
NAMES = [name for name in papers.names(PAPERS) if name.startswith("filco-")]
ORDER = ("nq", "triviaqa", "hotpotqa", "eli5", "fever", "wow")

# --- the printed figures, once more from the paper ------------------------------------------------------------------

TABLE_3 = """
NQ 2.5 1.3 5.1 7.3
TQA 4.5 3.0 8.4 4.6
HotpotQA 2.6 2.6 10.8 17.1
ELI5 92.9 92.5 98.8 98.8
FEVER 1.2 1.2 5.1 4.4
WoW 10.8 35.5 62.9 71.5
"""
TABLE_4 = """
FILCO-1 44.7 59.0 60.0 73.8 94.2 68.3
FULL 47.6 67.3 61.5 72.7 88.0 64.8
PSG 52.9 69.1 62.3 73.7 90.7 64.6
FILCO 61.8 71.1 65.0 73.9 91.4 66.0
SILVER 62.0 71.1 65.2 73.9 92.2 66.1
"""
TABLE_5 = """
FLAN-T5 44.7 30.0 39.9 59.2 39.0 45.3 59.2 57.4 60.0 73.6 73.9 74.2 80.9 86.4 95.8 63.4 69.3 66.6
Llama-2 43.3 35.2 41.8 60.7 57.1 60.7 59.5 61.1 61.3 78.6 78.8 72.8 86.6 88.4 92.3 65.5 66.0 65.4
"""


def printed(text: str) -> dict[str, list[float]]:
    return {name: [float(each) for each in rest] for name, *rest in map(str.split, text.strip().splitlines())}


def published(table: Table, group: str, label: str) -> list[float]:
    (row,) = [row for row in table.rows if (row.group, row.label) == (group, label)]
    figures = [row.published[task].model_dump(exclude_none=True) for task in ORDER]
    assert {len(each) for each in figures} == {1}
    return [round(100 * next(iter(each.values())), 1) for each in figures]


def test_every_figure_is_as_printed() -> None:
    three, four, five = (papers.read(PAPERS, f"filco-table{number}") for number in (3, 4, 5))
    by_task = printed(TABLE_3)
    for place, label in enumerate(("FULL", "PSG", "FILCO", "SILVER")):
        assert published(three, "Top 1", label) == [row[place] for row in by_task.values()]
        assert published(four, "FilCo, top 5", label) == printed(TABLE_4)[label]
    assert published(four, "FilCo, top 1", "FILCO") == printed(TABLE_4)["FILCO-1"]
    for group, figures in zip(("FLAN-T5", "Llama 2"), printed(TABLE_5).values(), strict=True):
        for place, label in enumerate(("STRINC", "LEXICAL", "CXMI")):
            assert published(five, group, label) == figures[place::3]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_whole(name: str) -> None:
    table = papers.read(PAPERS, name)
    assert set(ORDER) < set(table.tasks)
    filters = {row.settings("nq")["filter"] for row in table.rows}
    assert "silver" in filters
    notes = " ".join(table.notes)
    assert "upper bound" in notes or "reads the answer" in notes
    if name != "filco-frontier":
        assert "fine-tuned" in table.reader, "the paper's readers are none that anybody can ask"
        assert any(command.startswith("vllm serve meta-llama/Llama-2-7b-chat-hf") for command in table.serve)
        assert {row.method for row in table.rows} == {"direct-retrieval"}, "M_gen answers at once"


def test_there_is_a_table_for_each_of_the_papers_and_names_do_not_hide_each_other(tmp_path: Path) -> None:
    figures = [f"filco-figure{number}" for number in (4, 5, 6)]
    assert [*figures, "filco-frontier", *(f"filco-table{number}" for number in (3, 4, 5))] == NAMES
    assert {"table3", "filco-table3"} <= set(papers.names(PAPERS))
    for paper in ("one", "two"):
        (tmp_path / paper).mkdir()
        (tmp_path / paper / "table3.toml").touch()
    with pytest.raises(BadData, match=r"two tables are called 'table3': one/table3\.toml and two/table3\.toml"):
        papers.names(tmp_path)


# --- what is measured -----------------------------------------------------------------------------------------------


def made(
    name: str, folder: Path, limit: int = 6, tasks: Sequence[str] = ("nq",), measure: Sequence[str] = (), **more: Any
) -> tuple[Result, list[Wanted], dict[Path, Run]]:
    """A table over the sample world, answered by the offline reader."""
    table = name if isinstance(name, Table) else papers.read(PAPERS, name)
    found = sources.gather(table, data=["sample"], limit=limit, tasks=tasks)
    scorer, say, named = more.pop("scorer", None), more.pop("say", print), more.pop("named", False)
    silver = Silver(folder, scorer, measures_of(measure), say, named=named)
    wanted = runs.wanted(table, found, more.pop("lm", connect("offline")), folder, silver=silver, **more)
    done = doing.do(wanted, progress=False)
    return results.result(table, wanted, done, notes=[*found.notes, *silver.notes]), wanted, done


def line(result: Result, label: str, measure: str, group: str = "", point: str = "") -> Line:
    (found,) = [
        each
        for each in result.lines
        if (each.label, each.measure) == (label, measure) and group in each.group and each.point.startswith(point)
    ]
    return found


def prompts(run: Run) -> dict[str, str]:
    """Each question's prompt that answered, from the journal."""
    with Journal(run.folder / "journal.jsonl", "replay") as journal:
        return {
            row["id"]: str((journal.read(row["calls"][-1][1]) or {})["prompt"]).rpartition("Knowledge:")[2]
            for row in run.rows
        }


def words(text: str) -> list[str]:
    """The official normalisation, written again."""
    kept = "".join(each for each in text.lower() if each not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def test_output_precision_is_that_of_what_the_prompts_show(tmp_path: Path) -> None:
    """Table 3, by hand: the words of each prompt's knowledge, without titles, that are words of the first answer."""
    result, wanted, done = made("filco-table3", tmp_path)
    for each in wanted:
        run, shares, empty = done[each.folder], [], 0
        for row in run.rows:
            shown = prompts(run)[row["id"]].partition("Question:")[0].strip().splitlines()
            context = words(" ".join(one.partition(" | ")[2] for one in shown))
            shared = (Counter(context) & Counter(words(row["golden_answers"][0]))).total()
            shares.append(shared / len(context) if context else 0.0)
            empty += not context
        told = line(result, each.row.label, "output_precision", each.row.group)
        assert told.value == pytest.approx(sum(shares) / len(shares))
        assert line(result, each.row.label, "empty", each.row.group).value == pytest.approx(empty / len(shares))
        if empty < len(shares):
            left = line(result, each.row.label, "where_kept", each.row.group)
            assert left.value == pytest.approx(sum(shares) / (len(shares) - empty))
    for group in ("Top 1", "Top 5"):
        full, silver = (line(result, label, "output_precision", group) for label in ("FULL", "SILVER"))
        assert silver.value > full.value
        assert silver.gain == pytest.approx(silver.value - full.value)
        assert silver.bound
        assert not full.bound
        assert full.gain is None
        assert line(result, "SILVER", "where_kept", group).gain is None, "what is left elsewhere is of other questions"
    assert all(each.p is None for each in result.lines)
    assert line(result, "FULL", "output_precision", "Top 1").published == 0.025
    text = printing.text(result)
    assert "† upper bound: reads the answer" in text
    assert "SILVER* †" in text
    assert "no p-value" in text


def test_input_tokens_are_counted_of_the_context_and_told_of_the_prompt(tmp_path: Path) -> None:
    result, wanted, done = made("filco-figure5", tmp_path)
    for each in wanted:
        run = done[each.folder]
        with Journal(run.folder / "journal.jsonl", "replay") as journal:
            sent = [(journal.read(row["calls"][-1][1]) or {})["tokens_in"] for row in run.rows]
        told = line(result, each.row.label, "answer_prompt", each.row.group)
        assert told.value == pytest.approx(sum(sent) / len(sent))
    for group in ("Top 1", "Top 5"):
        full, silver = (line(result, label, "context_tokens", group) for label in ("FULL", "SILVER"))
        assert silver.of_reference == pytest.approx(silver.value / full.value)
        assert silver.value < full.value
        assert (full.of_reference, full.gain) == (None, None)
    (note,) = [each for each in result.notes if each.startswith("context: ")]
    assert "tiktoken" in note or "words times" in note, "whose tokens these are"
    shown = printing.text(result)
    assert f"{line(result, 'SILVER', 'context_tokens', 'Top 5').value:,.1f} ±" in shown
    assert "of FULL" in shown


def test_positive_and_negative_passages_apart_are_all_questions(tmp_path: Path) -> None:
    """Figure 6: a side's questions are those whose one passage holds an answer; both together give the run's score."""
    result, wanted, done = made("filco-figure6", tmp_path, limit=12)
    for each in wanted:
        run = done[each.folder]
        sides = {side: line(result, each.row.label, "em", point=side) for side in ("positive", "negative")}
        counts = {side: int(told.point.partition("(")[2][:-1]) for side, told in sides.items()}
        assert sum(counts.values()) == 12
        assert sum(counts[side] * sides[side].value for side in sides) / 12 == pytest.approx(
            run.metrics["metrics"]["em"]["value"]
        )
        assert all(told.gain is None for told in sides.values()), "what the offline reader answers is no gain"
        asked = {one.id: one for one in each.questions}
        with Journal(run.folder / "journal.jsonl", "replay") as journal:
            texts = {record["id"]: record["text"] for record in journal.records("passage")}
        holding = 0
        for row in run.rows:
            (passage,) = row["branches"]["q"]["retrieved"]
            text = f" {' '.join(words(texts[passage]))} "
            holding += any(f" {' '.join(words(answer))} " in text for answer in asked[row["id"]].golden_answers)
        assert counts["positive"] == holding


def failing(*questions: str) -> CountingEngine:
    """A model that has no answer to some questions."""

    async def refuse(stage: str, prompt: str) -> None:
        if stage == "direct" and any(each in prompt.rpartition("Question:")[2] for each in questions):
            raise RuntimeError("the prompt is too long")

    return CountingEngine(before=refuse)


def test_an_answer_that_failed_is_no_short_prompt_and_no_empty_context(tmp_path: Path) -> None:
    """A prompt that is too long fails: FULL, whose prompts they are, must not look short for it; nor a filter's own
    prompt pass for that of the answer."""
    asked = [each.question for each in load("nq", "sample", limit=6)]
    rest = Questions(tuple(load("nq", "sample", limit=6))[2:], TASKS["nq"], "sample")
    for name in ("filco-figure5", "filco-table3"):
        table = papers.read(PAPERS, name)
        told, wanted, done = made(name, tmp_path / name, lm=failing(*asked[:2]).lm(name="counted"))
        assert {run.errors for run in done.values()} == {2}
        for one, run in ((one, done[one.folder]) for one in wanted):
            found = {each.row["id"]: each for each in contexts(run)}
            assert [each.failed for each in found.values()] == [True, True, *[False] * 4]
            assert all(len(each.retrieved) == one.point.k for each in found.values())
        known = sources.gather(table, data=["sample"], tasks=["nq"])
        fewer = runs.wanted(table, replace(known, questions={"nq": rest}), CountingEngine().lm(name="counted"),
                            tmp_path / "fewer" / name, silver=Silver(tmp_path / "fewer"))  # fmt: skip
        whole = results.result(table, fewer, doing.do(fewer, progress=False))
        assert [each[:2] for each in figures(told)] == [each[:2] for each in figures(whole)]
        for one, other in zip(figures(told), figures(whole), strict=True):
            assert one == pytest.approx(other)
        assert "16 questions ended in an error and are left out" in printing.text(told)


def figures(result: Result) -> list[tuple[Any, ...]]:
    return [(f"{x.group} {x.label}", x.measure, x.value, x.gain or 0.0, x.of_reference or 1.0) for x in result.lines]


def test_a_question_that_failed_stays_on_its_side(tmp_path: Path) -> None:
    whole, wanted, done = made("filco-figure6", tmp_path / "whole", limit=12)
    asked = {one.id: one for one in wanted[0].questions}
    shown = {each.row["id"]: each.retrieved for each in contexts(done[wanted[0].folder])}
    positive = next(one for name, one in asked.items() if supported("nq", one, shown[name]))
    told, _, _ = made("filco-figure6", tmp_path / "told", limit=12, lm=failing(positive.question).lm(name="counted"))
    assert [each.point for each in told.lines] == [each.point for each in whole.lines]
    assert told.errors == 4


def test_where_no_gold_is_known_a_note_says_so(tmp_path: Path) -> None:
    table = papers.read(PAPERS, "filco-figure6")
    rows = [{"id": f"{at}", "question": f"Why is Tavenby {at}?", "answer": "So."} for at in range(2)]
    (path := tmp_path / "q.jsonl").write_text("".join(map("{}\n".format, map(json.dumps, rows))), "utf-8")
    found = sources.gather(table, data=[f"eli5={path}"], corpus=["sample"], tasks=["eli5"])
    asked = [each for each in runs.wanted(table, found, connect("offline"), tmp_path) if each.row.label == "FULL"]
    result = results.result(table, asked, doing.do(asked, progress=False))
    assert result.lines == ()
    assert "eli5: of 2 answers nobody knows whether" in " ".join(result.notes)
    assert printing.text(result)
    assert drawing.draw(result, asked, {}, tmp_path / "plots") == []


def test_the_frontier_has_a_point_for_every_filter_in_two_methods(tmp_path: Path) -> None:
    result, wanted, _ = made("filco-frontier", tmp_path, limit=3)
    assert {each.measure for each in result.lines} == {"em"}
    assert len(result.lines) == len(wanted) == 16
    for told in result.lines:
        assert told.tokens_in is not None
        assert told.prompt_tokens is not None
        assert told.prompt_tokens <= told.tokens_in
        assert not (told.bound and told.fronts)
    assert any("tokens_in" in each.fronts for each in result.lines)
    assert "published" not in printing.text(result), "nobody published it"


def test_a_model_that_is_no_rehearsal_is_tested_against_full(tmp_path: Path) -> None:
    for name, family in (("filco-table3", 2 * 3), ("filco-table4", 3)):
        result, _, _ = made(name, tmp_path / name, limit=8, lm=CountingEngine().lm(name="counted"))
        tested = [each for each in result.lines if each.p is not None]
        assert {each.label for each in tested} <= {"PSG", "FILCO", "SILVER"}
        measure = "output_precision" if name.endswith("3") else "f1"
        assert len([each for each in tested if each.measure == measure]) >= family - 1
        assert all((each.p_holm or 0) >= (each.p or 0) for each in tested)
        assert "Holm" in printing.text(result)


def test_right_and_wrong_is_tested_by_mcnemar() -> None:
    """Six questions that one alone gets right: twice a half to the sixth. Without a model there is no p, but a gain."""
    line = Line("nq", "", "FILCO", False, "em", 0.75, 0.5, 0.9, 8, 0, 1.0, None, "run")
    before: dict[str, list[float]] = {f"{at}": [0.0] for at in range(8)}
    after = {name: [float(int(name) < 6)] for name in before}
    told = filtered._held(line, before, after, 0, True)
    assert (told.p, told.gain) == (2 / 2**6, 0.75)
    assert filtered._held(line, after, before, 0, False).p is None
    assert filtered._held(line, after, before, 0, False).gain == -0.75
    assert filtered._held(line, {"else": [1.0]}, after, 0, True) == line


def test_two_rows_that_are_one_run_are_one_test() -> None:
    """Table 5 shows each run beside the figures of two readers: Holm must not count it twice."""

    def told(group: str, run: str, p: float) -> Line:
        return Line("nq", group, run, False, "em", 0.5, 0.4, 0.6, 9, 0, 1.0, None, run, p=p)

    lines = [told(group, run, p) for group in ("A", "B") for run, p in (("one", 0.01), ("two", 0.03))]
    assert [each.p_holm for each in results.corrected(lines)] == [0.02, 0.03, 0.02, 0.03]


# --- silver contexts ------------------------------------------------------------------------------------------------


def test_silver_is_made_once_by_the_papers_measure_or_the_one_asked_for(tmp_path: Path) -> None:
    result, wanted, _ = made("filco-table4", tmp_path, limit=3, tasks=("nq", "hotpotqa"), measure=["hotpotqa=strinc"])
    names = sorted(path.name.rpartition("-")[0] for path in (tmp_path / "silver").glob("*.jsonl"))
    assert names == ["hotpotqa-strinc-k5-3", "nq-strinc-k5-3"]
    assert [each.task for each in wanted if each.row.label == "SILVER"] == ["nq", "hotpotqa"]
    note = "hotpotqa: SILVER by strinc, as asked; the paper's measure for it is cxmi"
    assert [each for each in result.notes if "SILVER by" in each] == [note]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jsonl")}
    made("filco-table4", tmp_path, limit=3, tasks=("nq", "hotpotqa"), measure=["strinc"])
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jsonl")} == before


def test_what_no_model_here_can_score_is_left_out_and_said(tmp_path: Path) -> None:
    asked: list[object] = []

    def refused(journal: object) -> KeptScorer:
        asked.append(journal)
        raise BadArgument("m gives no log-probabilities of given text")

    result, wanted, _ = made("filco-table5", tmp_path, limit=2, tasks=("fever",), scorer=refused)
    assert {each.row.label for each in wanted} == {"STRINC", "LEXICAL"}
    assert len(asked) == 1, "one try for both readers"
    (note,) = [each for each in result.notes if "left out" in each]
    assert note.startswith("fever: SILVER by cxmi is left out: m gives no log-probabilities")
    assert note.endswith("Name a model that does (--scorer)"), "the table wants that very measure"
    result, _, _ = made("filco-figure4", tmp_path, limit=2, tasks=("fever",), scorer=refused)
    (note,) = [each for each in result.notes if "left out" in each]
    assert note.endswith("(--scorer), or another measure (--measure fever=lexical)")
    result, _, _ = made("filco-figure4", tmp_path, limit=2, tasks=("fever", "hotpotqa"), scorer=refused)
    (note,) = [each for each in result.notes if "left out" in each]
    assert note.startswith("fever, hotpotqa: SILVER by cxmi is left out: ")
    assert note.endswith("(--measure fever=lexical --measure hotpotqa=strinc)")
    with pytest.raises(BadArgument, match="m gives no log-probabilities"):
        made("filco-figure4", tmp_path, limit=2, tasks=("fever",), scorer=refused, named=True)


def test_an_empty_bound_is_told(tmp_path: Path) -> None:
    result, _, _ = made("filco-table4", tmp_path, limit=3, tasks=("fever",), measure=["fever=strinc"])
    told = "fever: SILVER (FilCo, top 5): empty for 3 of 3 questions: no upper bound there, for nothing was read"
    assert told in result.notes
    assert told in printing.text(result)
    result, _, _ = made("filco-table3", tmp_path, limit=3)
    empty = {line.group: round(3 * line.value) for line in result.lines if line.bound and line.measure == "empty"}
    named = [f"SILVER ({group}): empty for {number} of 3 questions" for group, number in empty.items() if number]
    (note,) = [each for each in result.notes if "no upper bound" in each]
    assert note == f"nq: {'; '.join(named)}: no upper bound there, for nothing was read"


def test_tokens_of_one_question_lie_inside_their_interval(tmp_path: Path) -> None:
    """Numbers of tokens are no shares: alike, they once had an interval that ended at 1."""
    result, _, _ = made("filco-figure5", tmp_path, limit=1)
    assert all(line.low <= line.value <= line.high for line in result.lines)
    gains = [line for line in result.lines if line.gain is not None]
    assert gains
    assert all(line.gain_low <= line.gain <= line.gain_high for line in gains)  # type: ignore[operator]
    (note,) = [each for each in printing.notes(result) if each.startswith("1 question: intervals are wide on purpose")]
    assert note.endswith("up to 79 % of all")
    counted = next(each for each in result.notes if each.startswith("context: "))
    assert counted.endswith("prompt: words, as the offline reader counts: compare rows, and not these two columns")


def test_runs_are_named_by_their_filter(tmp_path: Path) -> None:
    _, wanted, _ = made("filco-table4", tmp_path, limit=1)
    named = {each.row.label: each.folder.name for each in wanted if each.point.k == 5}
    assert "-k5-filco-" in named["FILCO"]
    assert "-k5-filco_passage-" in named["PSG"]


def test_rows_by_label_bring_what_they_are_tested_against() -> None:
    table = papers.read(PAPERS, "filco-table3")
    assert [(row.group, row.label) for row in table.with_rows(["FILCO"]).rows] == [
        (group, label) for group in dict.fromkeys(row.group for row in table.rows) for label in ("FULL", "FILCO")
    ]
    with pytest.raises(UnknownName, match=r"no row 'FILCOO'.*'FILCO'"):
        table.with_rows(["FILCOO"])


def test_cxmi_asks_the_scorer_and_keeps_its_scores(tmp_path: Path) -> None:
    pairs: list[Pair] = []
    scored = fake_scorer(pairs)
    said: list[str] = []
    result, wanted, _ = made("filco-figure4", tmp_path, limit=2, tasks=("hotpotqa",), scorer=scored, say=said.append)
    assert said[-1] == "silver contexts of hotpotqa: 2 of 2 questions"
    assert "hotpotqa: SILVER's cxmi is what likely finds likely" in result.notes
    assert [each.row.label for each in wanted] == ["FULL", "PSG", "FILCO", "SILVER"]
    assert pairs
    assert (tmp_path / "silver" / "hotpotqa-cxmi.journal").exists()
    number = len(pairs)
    made("filco-figure6", tmp_path, limit=2, tasks=("hotpotqa",), scorer=scored)
    assert len(pairs) == number, "another table shares them"


def fake_scorer(pairs: list[Pair]) -> Callable[[Any], KeptScorer]:
    """Finds an output the likelier the more is shown before it."""

    class Likely:
        name = "likely"
        identity: Mapping[str, Any] = {"name": "likely"}

        async def compute(self, asked: Sequence[Pair], done: Done) -> None:
            for at, pair in enumerate(asked):
                pairs.append(pair)
                done(at, Score(-100.0 + len(pair.prompt) / 100, 1))

    return lambda journal: KeptScorer(Likely(), Journal(journal))


def test_a_plan_makes_nothing_and_leaves_cxmi_out(tmp_path: Path) -> None:
    table = papers.read(PAPERS, "filco-table4")
    found = sources.gather(table, data=["sample"], limit=4, tasks=["nq", "fever"])
    silver = Silver(tmp_path / "silver")
    planned = plan.plan(runs.wanted(table, found, connect("offline"), tmp_path / "runs", silver=silver))
    assert not (tmp_path / "runs").exists()
    assert silver.notes == ["fever: SILVER by cxmi is not in the plan: it scores every sentence of the passages"]
    design = {(each.task, each.label.rpartition(", ")[2]): each.design for each in planned.runs}
    assert design["nq", "SILVER"] == design["nq", "FULL"] == "1"
    assert design["nq", "FILCO"] == design["nq", "PSG"] == "2 at most"


def test_a_measure_belongs_to_silver_alone(tmp_path: Path) -> None:
    text = (PAPERS / "filco" / "filco-table5.toml").read_text("utf-8")
    with pytest.raises(BadData, match="row 'STRINC' has a measure: it belongs to the filter 'silver'"):
        written(tmp_path, text.replace('filter = "silver"', 'filter = "full"', 1), "bad")
    with pytest.raises(BadData, match="measure' is wrong"):
        written(tmp_path, text.replace('measure = "strinc"', 'measure = "string"', 1), "bad")
    with pytest.raises(UnknownName, match="no measure 'string'"):
        measures_of(["nq=string"])
    with pytest.raises(UnknownName, match="no task 'nqq'"):
        measures_of(["nqq=strinc"])


# --- the questions' own paragraphs, and tasks without questions -----------------------------------------------------


def own(task: str, *questions: Question) -> Questions:
    return Questions(questions, TASKS[task], "mine")


def test_the_own_paragraphs_come_in_their_order_and_say_nothing_of_gold() -> None:
    context = tuple(Passage(f"p{at}", "T", f"Text {at}.", 3.0, {"is_supporting": True}) for at in range(3))
    index = OwnParagraphs(own("nq", Question("1", "Who  is\nit?", ("A",), context=context), Question("2", "Why?")))
    (found,) = index.search([" Who  is it? "], 2)
    assert [(each.id, each.score, dict(each.metadata)) for each in found] == [("p0", None, {}), ("p1", None, {})]
    assert index.search(["Why?"], 2) == [[]]
    assert index.info()["kind"] == "own"
    with pytest.raises(BadArgument, match="'Else' is none of the questions"):
        index.search(["Else"], 2)
    changed = OwnParagraphs(own("nq", Question("1", "Who is it?", ("A",), context=context[1:])))
    assert changed.fingerprint != index.fingerprint
    with pytest.raises(BadData, match=r"'2' .* is asked twice, with other paragraphs"):
        OwnParagraphs(own("nq", *(Question(n, "Why?", context=c) for n, c in (("1", context), ("2", context[1:])))))
    with pytest.raises(EmptyData, match="bring no paragraphs"):
        OwnParagraphs(own("nq", Question("1", "Why?")))


def test_questions_without_paragraphs_are_left_out_and_counted(tmp_path: Path) -> None:
    table = papers.read(PAPERS, "filco-table3")
    context = {"metadata": {"context": [{"title": "T", "sentences": ["One.", " Two."]}]}}
    rows = [{"id": f"{at}", "question": f"Q{at}?", "golden_answers": ["One"], **(context if at != 1 else {})}
            for at in range(4)]  # fmt: skip
    (path := tmp_path / "q.jsonl").write_text("".join(map("{}\n".format, map(json.dumps, rows))), "utf-8")
    found = sources.gather(table, data=[f"nq={path}"], corpus=["nq=own"], limit=2)
    assert [one.id for one in found.questions["nq"]] == ["0", "2"]
    assert "nq: left out, for want of paragraphs of their own: 1 of the questions" in found.notes
    assert "nq: the questions' own paragraphs stand in for the paper's dpr" in found.notes
    (missing,) = [note for note in found.notes if "--data TASK=FILE" in note]
    assert missing.endswith("triviaqa, hotpotqa, eli5, fever, wow, twowiki")
    with pytest.raises(BadArgument, match="where are the questions of wow"):
        sources.gather(table, data=[f"nq={path}"], corpus=["own"], tasks=["nq", "wow"])
    path.write_text(json.dumps(rows[1]) + "\n", "utf-8")
    with pytest.raises(EmptyData, match="the questions of nq bring no paragraphs"):
        sources.gather(table, data=[f"nq={path}"], corpus=["own"])


def test_a_task_with_an_index_of_its_own_does_without_own_paragraphs(tmp_path: Path) -> None:
    """What is named for one task goes before what is named for all."""
    table = papers.read(PAPERS, "filco-frontier")
    context = {"metadata": {"context": [{"title": "T", "sentences": ["One."]}]}}
    rows = [{"id": f"{at}", "question": f"Q{at}?", "golden_answers": ["One"], **context} for at in range(2)]
    rows.append({"id": "2", "question": "Q2?", "golden_answers": ["One"]})
    (path := tmp_path / "q.jsonl").write_text("".join(map("{}\n".format, map(json.dumps, rows))), "utf-8")
    data = [f"nq={path}", f"triviaqa={path}"]
    found = sources.gather(table, data=data, corpus=["own", "nq=sample"], tasks=["nq"])
    assert [one.id for one in found.questions["nq"]] == ["0", "1", "2"], "BlendFilter may search there, and all stay"
    both = sources.gather(table, data=data, corpus=["own", "nq=sample"], methods=["direct-retrieval"])
    assert {task: len(asked) for task, asked in both.questions.items()} == {"nq": 3, "triviaqa": 2}
    with pytest.raises(BadArgument, match="questions of triviaqa alone"):
        sources.gather(table, data=data, corpus=["own", "nq=sample"])


def test_own_paragraphs_serve_no_method_that_searches_for_more(tmp_path: Path) -> None:
    table = papers.read(PAPERS, "filco-frontier")
    (path := tmp_path / "q.jsonl").write_text('{"question": "Who?", "golden_answers": ["A"]}\n', "utf-8")
    with pytest.raises(BadArgument, match=r"^blendfilter searches for more .* \(--methods direct-retrieval\)$"):
        sources.gather(table, data=[f"nq={path}"], corpus=["own"])


def test_an_index_is_silver_s_too(tmp_path: Path) -> None:
    """What SILVER chose from is what every other row was given: the same index, the same K."""
    _, wanted, _ = made("filco-table3", tmp_path, limit=2)
    index, asked = BM25.build(sample("corpus.jsonl")), load("nq", "sample", limit=2)
    files = sorted((tmp_path / "silver").glob("*.jsonl"))
    assert [path.name.split("-")[2] for path in files] == ["k1", "k5"]
    for path in files:
        k = 1 if "-k1-" in path.name else 5
        for row, question in zip(map(json.loads, path.read_text("utf-8").splitlines()), asked, strict=True):
            assert [each["id"] for each in row["passages"]] == [each.id for each in index(question.question, k)]
    assert len({each.folder for each in wanted}) == len(wanted)


@pytest.mark.parametrize("name", ["filco-figure4", "filco-figure6", "filco-frontier"])
def test_every_kind_is_drawn(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result, wanted, done = made(name, tmp_path, limit=2)
    paths = drawing.draw(result, wanted, done, tmp_path / "plots")
    stem = "filco-frontier-nq" if name == "filco-frontier" else name
    assert {f"{stem}.svg", f"{stem}.png"} <= {path.name for path in paths}
    said = (tmp_path / "plots" / f"{stem}.svg").read_text("utf-8")
    assert "offline reader: shows the pipeline, not quality" in said
    assert "SILVER" in said
    assert ("<pattern" in said) == (name != "filco-frontier"), "what reads the answer is hatched"
