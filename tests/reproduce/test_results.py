"""From runs to lines: values, intervals, tests, and every form in which they are printed and drawn."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from reproduce_world import HEAD, JUDGED_HEAD, ROWS, consistent_for_odd, made, written
from small_world import CountingEngine

from blendfilter import Run, compare, load
from blendfilter.errors import RunFailed
from blendfilter.evaluation.run_passages import contexts
from blendfilter.journal import Journal, digest
from blendfilter.lm.offline import read
from blendfilter.reproduce import printing, results, runs, sources, tables
from blendfilter.reproduce.inputs import RowInputs
from blendfilter.reproduce.readers import RowReaders
from blendfilter.reproduce.results import ResultLine
from blendfilter.reproduce.tables import PaperTable
from blendfilter.statistics import holm
from blendfilter.tasks import TASKS, Questions


@pytest.fixture
def small(tmp_path: Path) -> PaperTable:
    return written(tmp_path, HEAD + ROWS)


def wrong_at_first(prompt: str) -> str:
    """The offline reader with another answer where nothing was retrieved, so that methods differ."""
    reply = read(prompt)
    return reply if "Knowledge:" in prompt else f"{reply} of Nowhere"


# --- scores ---


def test_lines_hold_published_measured_and_tests_with_holm_over_the_table(small: PaperTable, tmp_path: Path) -> None:
    done = made(small, tmp_path / "runs", CountingEngine(reply=wrong_at_first).lm(name="counted"), limit=12)
    by_place = {(line.task, line.label, line.measure): line for line in done.result.lines}
    assert len(by_place) == len(done.result.lines) == 4 * 2 + 4
    chain, run, whole = by_place["hotpotqa", "Chain", "em"], done.run("Chain"), done.run("Whole")
    assert (chain.value, chain.published, chain.calls) == (run.metrics["metrics"]["em"]["value"], 0.25, 2.0)
    assert chain.difference == pytest.approx(chain.value - 0.25)
    rows = {row.measure: row for row in compare(whole, run).rows if row.run == run.name}
    for measure, row in rows.items():
        line = by_place["hotpotqa", "Chain", measure]
        assert (line.gain, line.gain_low, line.gain_high, line.p) == (row.difference, row.low, row.high, row.p)
    half, em = (chain.high - chain.low) / 2, rows["em"]
    gain, half_of_gain = 100 * (em.difference or 0), 50 * ((em.high or 0) - (em.low or 0))
    text = printing.text(done.result, 200)
    assert next(line for line in text.splitlines() if line.startswith("Chain")).split()[2:12] == [
        "25.0", f"{100 * chain.value:.1f}", "±", f"{100 * half:.1f}",
        f"{100 * chain.difference:+.1f}", "another", "setting",
        f"{gain:+.1f}", "±", f"{half_of_gain:.1f}",
    ]  # fmt: skip
    assert by_place["hotpotqa", "Whole", "em"].p is None
    families = [[line for line in done.result.lines if (line.measure == "f1") is f1 and line.p] for f1 in (False, True)]
    assert {line.task for line in families[0]} == {"hotpotqa", "strategyqa"}
    for family in families:
        assert len(family) >= 3
        assert [line.p_holm for line in family] == holm([line.p or 0.0 for line in family])
    assert "Holm" in text
    assert "other reader" not in text
    assert "offline" not in text


def test_right_and_wrong_is_tested_by_mcnemar() -> None:
    """Six questions that one alone gets right: twice a half to the sixth. Without a model there is no p, but a gain."""
    line = ResultLine("nq", "", "FILCO", False, "em", 0.75, 0.5, 0.9, 8, 0, 1.0, None, "run")
    before: dict[str, list[float]] = {f"{at}": [0.0] for at in range(8)}
    after = {name: [float(int(name) < 6)] for name in before}
    better = results.with_gain(line, before, after, p_values=True)
    worse = results.with_gain(line, after, before, p_values=False)
    assert (better.p, better.gain) == (2 / 2**6, 0.75)
    assert (worse.p, worse.gain) == (None, -0.75)
    assert results.with_gain(line, {"else": [1.0]}, after, p_values=True) == line


def test_two_rows_that_are_one_run_are_one_test() -> None:
    """Table 5 shows each run beside the figures of two readers: Holm must not count it twice."""
    lines = [
        ResultLine("nq", group, run, False, "em", 0.5, 0.4, 0.6, 9, 0, 1.0, None, run, p=p)
        for group in ("A", "B")
        for run, p in (("one", 0.01), ("two", 0.03))
    ]
    assert [each.p_holm for each in results.corrected(lines)] == [0.02, 0.03, 0.02, 0.03]


def test_samples_have_a_line_for_one_answer_and_for_the_best_of_all(tmp_path: Path) -> None:
    """The second sample is made right where the first is not. Of several repeats the first counts."""
    samples = "samples = [{ temperature = 0.0 }, { temperature = 1.0, top_p = 0.5 }]"
    text = HEAD.replace(', "strategyqa"', "").replace('"scores"', '"samples"') + samples
    figure = written(tmp_path, text + '\n[[rows]]\nlabel = "Whole"\nmethod = "direct-retrieval"\n')
    found = made(figure, tmp_path / "runs", limit=6, repeats=2)
    assert [(one.lm.kwargs["temperature"], one.lm.kwargs.get("top_p")) for one in found.runs] == [(0, None), (1, 0.5)]
    first, second = (found.done[one.folder] for one in found.runs)
    rows = [json.loads(line) for line in (second.folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    wrong = next(row["id"] for row in first.rows if row["em"] == 0)
    for row in rows:
        if row["id"] == wrong:
            row.update({"em": 1.0, "f1": 1.0} if row["repeat"] == 1 else {"em": 0.0, "f1": 0.0})
    (second.folder / "predictions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    second.__dict__.pop("rows", None)
    lines = {(line.point, line.measure): line for line in results.result(figure, found.runs, found.done).lines}
    assert lines["best of 2", "em"].value == pytest.approx(lines["one answer", "em"].value + 1 / 6)
    assert lines["best of 2", "em"].calls == 2 * lines["one answer", "em"].calls


def test_a_figure_of_retrieval_measures_what_was_kept(small: PaperTable, tmp_path: Path) -> None:
    figure = small.model_copy(update={"kind": "retrieval", "tasks": ("hotpotqa",)})
    done = made(figure, tmp_path, methods=["cot-retrieval", "blendfilter"], limit=6)
    for label in ("Chain", "Whole"):
        kept = done.run(label).metrics["retrieval"]["kept"]
        for measure in ("recall", "precision", "s_precision"):
            assert done.line(label, measure).value == pytest.approx(kept[measure], abs=1e-6)
    assert done.line("Whole", "precision").value > done.line("Chain", "precision").value, "the filter drops something"


SWEEP = JUDGED_HEAD.replace('"scores"', '"sweep"') + "sweep = [2, 5]\n"
SERIES = """
[[rows]]
label = "original"
method = "ralm"
at.2.popqa = { inclusion = 0.4 }
at.5.popqa = { inclusion = 0.3 }

[[rows]]
label = "CDIT"
method = "ralm"
arguments = { filter = "cdit" }
at.5.popqa = { inclusion = 0.35 }

[[rows]]
label = "trimmed"
method = "ralm"
arguments = { trimmed = "refilled" }
"""


def test_a_series_has_its_printed_figures_and_its_tests_at_each_k(tmp_path: Path) -> None:
    done = made(written(tmp_path, SWEEP + SERIES), tmp_path, CountingEngine(reply=consistent_for_odd).lm(), limit=8)
    lines = {(each.label, each.point): each for each in done.result.lines if each.measure == "inclusion"}
    assert {place: each.published for place, each in lines.items()} == {
        ("original", "K=2"): 0.4, ("original", "K=5"): 0.3, ("CDIT", "K=2"): None, ("CDIT", "K=5"): 0.35,
        ("trimmed", "K=2"): None, ("trimmed", "K=5"): None,
    }  # fmt: skip
    for point in ("K=2", "K=5"):
        assert lines["original", point].p is None
        for label in ("CDIT", "trimmed"):
            line = lines[label, point]
            assert line.gain == pytest.approx(line.value - lines["original", point].value)
            assert line.p is not None
            assert line.p_holm is not None
    assert len(done.inputs.notes) == 1, "judged once, on the most passages of any point"
    assert len(list(tmp_path.glob("trimmed/popqa-phi1-k5-*"))) == 1
    assert "30.0" in printing.text(done.result)


IMPROVED = """
[[rows]]
label = "Alone"
method = "direct"
published.hotpotqa = { em = 0.3, f1 = 0.4, imp = 67.1 }

[[rows]]
label = "Read"
method = "direct-retrieval"
published.hotpotqa = { em = 0.4, f1 = 0.5, imp = 17.1 }

[[rows]]
label = "Whole"
method = "blendfilter"
published.hotpotqa = { em = 0.5, f1 = 0.6 }
"""


def test_the_printed_improvement_has_the_measured_one_beside_it(tmp_path: Path) -> None:
    """By what leads, in percent of the row's; where the row scored 0 there is none."""
    lm = CountingEngine(reply=wrong_at_first).lm(name="counted")
    done = made(written(tmp_path, HEAD + IMPROVED), tmp_path, lm, limit=12, tasks=["hotpotqa"])
    alone, found, whole = (done.line(label, "em") for label in ("Alone", "Read", "Whole"))
    assert found.imp == pytest.approx(100 * (whole.value / found.value - 1))
    assert (alone.value, alone.imp) == (0, None)
    assert (found.published_imp, done.line("Read", "f1").published_imp, whole.imp) == (17.1, None, None)
    markdown = printing.markdown(done.result)
    assert f"| 17.1 | {found.imp:.1f} |" in markdown
    assert "| 67.1 | undefined |" in markdown


def test_the_rows_of_all_models_are_the_same_runs(tmp_path: Path) -> None:
    """Each beside its model's figures: no run more, no test more, and the measured average beside each."""
    lm = CountingEngine(reply=consistent_for_odd).lm(name="counted")
    two = tables.read("cdit-table2")
    one, every = (made(each, tmp_path, lm, limit=2) for each in (two, two.with_all_blocks()))
    assert set(every.done) == set(one.done)
    assert {line.p_holm for line in every.result.lines} == {line.p_holm for line in one.result.lines}
    falcon = every.result.averages[-1]
    assert (falcon.group, falcon.published, falcon.over, falcon.of) == ("Falcon-7b, IndexIVFFlat", 0.0371, 4, 4)
    gains = [
        line.gain or 0
        for line in one.result.lines
        if (line.group, line.label) == ("IndexIVFFlat", "CDIT")
        and line.measure == ("inclusion" if line.task in ("popqa", "triviaqa") else "accuracy")
    ]
    assert falcon.measured == pytest.approx(sum(gains) / 4)
    assert "Falcon-7b, IndexIVFFlat, CDIT" in printing.text(every.result)


def test_a_data_sets_questions_in_print_stand_beside_the_files(tmp_path: Path) -> None:
    done = made("filco-table2", tmp_path, limit=2, tasks=["hotpotqa"])
    assert (
        "hotpotqa: the paper's data set has train 88,900, dev 5,600, test 5,600 (it reports on dev); "
        "here 2 were run, of the 84 rows of sample"
    ) in done.result.notes


# --- what filters leave ---


def words(text: str) -> list[str]:
    """The official normalisation, written again."""
    kept = "".join(each for each in text.lower() if each not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def last_prompts(run: Run) -> dict[str, dict[str, Any]]:
    """The record of the call that answered, by question."""
    with Journal(run.folder / "journal.jsonl", "replay") as journal:
        return {row["id"]: journal.read(row["calls"][-1][1]) or {} for row in run.rows}


def test_output_precision_is_that_of_what_the_prompts_hold(tmp_path: Path) -> None:
    """Table 3, by hand: the words of each prompt's knowledge, without titles, that are words of the first answer."""
    done = made("filco-table3", tmp_path, limit=6, tasks=["nq"])
    for each in done.runs:
        run, shares, empty = done.done[each.folder], [], 0
        prompts = last_prompts(run)
        for row in run.rows:
            block = str(prompts[row["id"]]["prompt"]).rpartition("Knowledge:")[2].partition("Question:")[0]
            context = words(" ".join(one.partition(" | ")[2] for one in block.strip().splitlines()))
            shared = (Counter(context) & Counter(words(row["golden_answers"][0]))).total()
            shares.append(shared / len(context) if context else 0.0)
            empty += not context
        place = {"label": each.row.label, "group": each.row.group}
        assert done.line(measure="output_precision", **place).value == pytest.approx(sum(shares) / len(shares))
        assert done.line(measure="empty", **place).value == pytest.approx(empty / len(shares))
        if empty < len(shares):
            left = done.line(measure="where_kept", **place)
            assert left.value == pytest.approx(sum(shares) / (len(shares) - empty))
    for group in ("Top 1", "Top 5"):
        full, silver = (done.line(label, "output_precision", group) for label in ("FULL", "SILVER"))
        assert (full.bound, full.gain, silver.bound) == (False, None, True)
        assert silver.value > full.value
        assert silver.gain == pytest.approx(silver.value - full.value)
        assert done.line("SILVER", "where_kept", group).gain is None, "what is left elsewhere is of other questions"
    assert all(line.p is None for line in done.result.lines)
    assert done.line("FULL", "output_precision", "Top 1").published == 0.025
    empty = round(6 * done.line("SILVER", "empty", "Top 1").value)
    note = f"nq: Top 1, SILVER: empty for {empty} of 6 answers: no upper bound there, for nothing was read"
    text = printing.text(done.result)
    for part in ("† upper bound: reads the answer", "SILVER* †", "no p-value", note):
        assert part in text


def test_input_tokens_are_counted_of_the_context_and_read_of_the_prompt(tmp_path: Path) -> None:
    done = made("filco-figure5", tmp_path, limit=6, tasks=["nq"])
    for each in done.runs:
        sent = [record["tokens_in"] for record in last_prompts(done.done[each.folder]).values()]
        line = done.line(each.row.label, "answer_prompt", each.row.group)
        assert line.value == pytest.approx(sum(sent) / len(sent))
    assert all(line.low <= line.value <= line.high for line in done.result.lines)
    gains = [line for line in done.result.lines if line.gain is not None]
    assert gains
    assert all(line.gain_low <= line.gain <= line.gain_high for line in gains)  # type: ignore[operator]
    for group in ("Top 1", "Top 5"):
        full, silver = (done.line(label, "context_tokens", group) for label in ("FULL", "SILVER"))
        assert silver.of_reference == pytest.approx(silver.value / full.value)
        assert silver.value < full.value
        assert (full.of_reference, full.gain) == (None, None)
    (note,) = [each for each in done.result.notes if each.startswith("context: ")]
    assert "tiktoken" in note or "words times" in note, "whose tokens these are"
    text = printing.text(done.result)
    assert f"{done.line('SILVER', 'context_tokens', 'Top 5').value:,.1f} ±" in text
    assert "of FULL" in text


def test_recall_and_precision_on_positives_are_those_of_what_was_found(tmp_path: Path) -> None:
    """Table 2, by hand: a passage supports a question whose answer stands in it; the precision is its words'."""
    done = made("filco-table2", tmp_path, limit=12, tasks=["nq"])
    for each in done.runs:
        run = done.done[each.folder]
        answers = {one.id: one.golden_answers for one in each.questions}
        with Journal(run.folder / "journal.jsonl", "replay") as journal:
            texts = {record["id"]: words(record["text"]) for record in journal.records("passage")}
        found, precise = [], []
        for row in run.rows:
            retrieved = [texts[name] for name in row["branches"]["q"]["retrieved"]]
            assert len(retrieved) == each.point.k
            wanted = [" ".join(words(answer)) for answer in answers[row["id"]]]
            holding = [text for text in retrieved if any(f" {one} " in f" {' '.join(text)} " for one in wanted)]
            found.append(bool(holding))
            output = Counter(words(answers[row["id"]][0]))
            shares = [(Counter(text) & output).total() / len(text) for text in holding]
            precise += [sum(shares) / len(shares)] if shares else []
        place = {"label": "FULL", "group": each.row.group}
        assert done.line(measure="supported", **place).value == pytest.approx(sum(found) / 12)
        assert done.line(measure="positive_precision", **place).value == pytest.approx(sum(precise) / len(precise))
    assert done.line("FULL", "supported", "Top 5").published == 0.741
    assert "recall" in printing.text(done.result)


def test_figure_4_has_a_panel_a_reader_and_what_each_gained_in_print(tmp_path: Path) -> None:
    done = made("filco-figure4", tmp_path, limit=2, tasks=["nq"])
    lines = [line for line in done.result.lines if line.published_gain is not None]
    assert [(line.group, line.published, line.published_gain) for line in lines] == [
        ("FLAN-T5-XL", 0.447, 0.043), ("Llama 2 7B", None, 0.086),
    ]  # fmt: skip
    text = printing.text(done.result)
    assert "published vs FULL" in text
    assert all(part in text for part in ("+4.3", "+8.6"))


def test_positive_and_negative_passages_apart_are_all_questions(tmp_path: Path) -> None:
    """Figure 6: a side's questions are those whose one passage holds an answer; both together give the run's score."""
    done = made("filco-figure6", tmp_path, limit=12, tasks=["nq"])
    for each in done.runs:
        run = done.done[each.folder]
        sides = {side: done.line(each.row.label, "em", point=side) for side in ("positive", "negative")}
        counts = {side: int(line.point.partition("(")[2][:-1]) for side, line in sides.items()}
        em = run.metrics["metrics"]["em"]["value"]
        assert sum(counts.values()) == 12
        assert sum(counts[side] * sides[side].value for side in sides) / 12 == pytest.approx(em)
        assert all(line.gain is None for line in sides.values()), "what the offline reader answers is no gain"
        answers = {one.id: one.golden_answers for one in each.questions}
        with Journal(run.folder / "journal.jsonl", "replay") as journal:
            texts = {record["id"]: record["text"] for record in journal.records("passage")}
        holding = 0
        for row in run.rows:
            (passage,) = row["branches"]["q"]["retrieved"]
            text = f" {' '.join(words(texts[passage]))} "
            holding += any(f" {' '.join(words(answer))} " in text for answer in answers[row["id"]])
        assert counts["positive"] == holding


def failing(*questions: str) -> CountingEngine:
    """A model that has no answer to some questions."""

    async def refuse(stage: str, prompt: str) -> None:
        if stage == "direct" and any(each in prompt.rpartition("Question:")[2] for each in questions):
            raise RuntimeError("the prompt is too long")

    return CountingEngine(before=refuse)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["filco-figure5", "filco-table3"])
def test_an_answer_that_failed_is_no_short_prompt_and_no_empty_context(name: str, tmp_path: Path) -> None:
    """A prompt that is too long fails: FULL, whose prompts they are, must not look short for it; nor a filter's own
    prompt pass for that of the answer."""

    def figures(of: results.TableResult) -> list[tuple[Any, ...]]:
        return [(f"{x.group} {x.label}", x.measure, x.value, x.gain or 0.0, x.of_reference or 1.0) for x in of.lines]

    questions = list(load("nq", "sample", limit=6))
    some = made(name, tmp_path / "some", failing(*(one.question for one in questions[:2])).lm(name="counted"), limit=6,
                tasks=["nq"])  # fmt: skip
    for one in some.runs:
        found = list(contexts(some.done[one.folder]))
        assert [each.failed for each in found] == [True, True, *[False] * 4]
        assert all(len(each.retrieved) == one.point.k for each in found)
    table, lm = tables.read(name), CountingEngine().lm(name="counted")
    rest = Questions(tuple(questions[2:]), TASKS["nq"], "sample")
    known = replace(sources.gather(table, data=["sample"], tasks=["nq"]), questions={"nq": rest})
    inputs = RowInputs(table, lm, tmp_path / "fewer")
    fewer, _ = runs.runs_of(table, known, RowReaders(table, lm), tmp_path / "fewer", inputs)
    whole = results.result(table, fewer, runs.do(fewer, progress=False))
    for one, other in zip(figures(some.result), figures(whole), strict=True):
        assert one[:2] == other[:2]
        assert one[2:] == pytest.approx(other[2:])
    assert "16 questions ended in an error and are left out" in printing.text(some.result)


REFUSING = '[[rows]]\nlabel = "Refused"\nmethod = "direct-retrieval"\npublished.hotpotqa = { em = 0.3, f1 = 0.4 }\n'


def refusing(*stages: str) -> CountingEngine:
    """A model that has no answer at some stages; at any, where none is named."""

    async def refuse(stage: str, prompt: str) -> None:
        if not stages or stage in stages:
            raise RuntimeError("the prompt is too long")

    return CountingEngine(before=refuse)


def test_a_question_that_failed_counts_zero_in_the_score() -> None:
    """Two of three right and one error are 2 / 3, not 2 / 2."""
    rows = [{"id": f"q{n}", "em": 1.0, "error": None} for n in range(2)] + [{"id": "q2", "error": {"kind": "timeout"}}]
    run = SimpleNamespace(rows=rows, metrics={"metrics": {"em": {}}})
    (values,) = results.values_of(results._scores(run)).values()  # type: ignore[arg-type]
    assert values == {"q0": [1.0], "q1": [1.0], "q2": [0.0]}


def test_a_call_that_a_question_made_twice_took_its_seconds_once(tmp_path: Path) -> None:
    """Two branches with the same passages share a call: 2 s of refining, 1 s of answering."""
    with Journal(tmp_path) as journal:
        journal.append(*({"key": digest(n), "kind": "call", "seconds": float(n)} for n in (1, 2)))
    calls = [["check", digest(2)], ["check", digest(2)], ["direct", digest(1)]]
    rows = [{"id": "q", "error": None, "calls": calls}]
    run = SimpleNamespace(rows=rows, journal=lambda: Journal(tmp_path, "replay"))
    readings = list(results.latency(run))  # type: ignore[arg-type]
    assert [reading[:3] for reading in readings] == [
        ("refining_seconds", "q", 2.0), ("answering_seconds", "q", 1.0), ("total_seconds", "q", 3.0),
    ]  # fmt: skip


def test_a_row_that_failed_is_no_row_of_zeros_and_stops_no_other(tmp_path: Path) -> None:
    paper = written(tmp_path, HEAD + ROWS + REFUSING)
    table = made(
        paper, tmp_path / "runs", refusing("direct").lm(), tasks=["hotpotqa"], rows=["Refused", "Chain", "Whole"]
    )
    assert table.run("Refused").failed
    assert not table.run("Chain").errors
    failed, chain = table.line("Refused", "em"), table.line("Chain", "em")
    assert (failed.failed, failed.errors, failed.difference, failed.gain, failed.p) == (True, 4, None, None, None)
    assert not chain.failed
    assert chain.gain is not None
    assert chain.p_holm == chain.p, "what failed is no test"
    text = printing.text(table.result)
    assert "hotpotqa: Refused: failed, every question ended in an error" in text
    (line,) = (each for each in text.splitlines() if each.strip().startswith("Refused "))
    assert "failed" in line.split()
    assert "0.0 ±" not in line
    assert [each["failed"] for each in printing.plain(table.result)["lines"] if each["label"] == "Refused"] == [
        True
    ] * 2


def test_a_row_that_failed_stands_in_a_table_of_what_is_kept_too(tmp_path: Path) -> None:
    """Nothing of it is known, so it has no value; the other rows say in which measures."""
    figure = written(tmp_path, HEAD + ROWS + REFUSING).model_copy(update={"kind": "retrieval", "tasks": ("hotpotqa",)})
    table = made(figure, tmp_path / "runs", refusing("direct").lm(), rows=["Refused", "Chain"])
    assert {line.measure for line in table.result.lines if line.failed} == {"recall", "precision", "s_precision"}
    assert {line.label for line in table.result.lines if not line.failed} == {"Chain", "Whole"}


def test_a_table_of_which_every_run_failed_is_that_one_error(small: PaperTable, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="all 4 questions failed the same way"):
        made(small, tmp_path / "runs", refusing().lm(), tasks=["hotpotqa"], rows=["Chain"])


# --- what judging takes ---


def test_what_judging_took_is_the_journals(tmp_path: Path) -> None:
    table = written(tmp_path, JUDGED_HEAD.replace('"scores"', '"judging"').replace('"original"', '"CDIT"') + """
[[rows]]
label = "CDIT"
method = "ralm"
arguments = { filter = "cdit" }
published.popqa = { seconds_in_all = 59.94 }

[[rows]]
label = "both"
method = "ralm"
arguments = { filter = "cdit", rules = ["phi1", "phi2"] }
""")  # fmt: skip
    engine = CountingEngine(reply=consistent_for_odd)
    done = made(table, tmp_path / "runs", engine.lm(), limit=6)
    counted = sum(done.line(label, "judging_calls").value for label in ("CDIT", "both"))
    assert engine.stages["consistent"] == pytest.approx(6 * counted), "what reached the model, and nothing else"
    with Journal(done.run("CDIT").folder / "journal.jsonl", "replay") as journal:
        calls = [record for record in journal.records("call") if record["stage"] == "consistent"]
    tokens = sum(record["tokens_in"] + record["tokens_out"] for record in calls)
    seconds = sum(record["seconds"] for record in calls)
    for measure, total in (("judging_calls", len(calls)), ("judging_tokens", tokens), ("judging_seconds", seconds)):
        assert done.line("CDIT", measure).value == pytest.approx(total / 6)
    in_all = done.line("CDIT", results.SECONDS_IN_ALL)
    assert 0 < in_all.value <= seconds + 1e-6
    assert (in_all.published, in_all.difference) == (59.94, None)
    assert not [line for line in done.result.lines if line.measure == "dollars_a_thousand"], "no price is known"
    both = done.line("both", "judging_tokens")
    assert both.gain is not None
    assert both.gain > 0
    assert both.of_reference == pytest.approx(both.value / done.line("CDIT", "judging_tokens").value)
    text = printing.text(done.result)
    assert "59.94" in text
    assert "vs published" not in text
    assert json.loads(json.dumps(printing.plain(done.result)))["kind"] == "judging"


def test_a_priced_judge_has_its_dollars_and_a_failed_question_is_left_out(tmp_path: Path) -> None:
    async def before(stage: str, prompt: str) -> None:
        if stage == "respond" and not failed:
            failed.append(prompt)
            raise RuntimeError("out of luck")

    failed: list[str] = []
    lm = CountingEngine(before, consistent_for_odd).lm()
    (run,) = made("cdit-table4", tmp_path, lm, limit=4, tasks=["popqa"], rows=["CDIT"]).done.values()
    with Journal(run.folder / "journal.jsonl") as journal:
        calls = [each for each in journal.records("call") if each["stage"] == "consistent"]
        journal.append(*(each | {"cost": 0.001} for each in calls))
    right = [row for row in run.rows if row["error"] is None]
    counts = {row["id"]: [pytest.approx(sum(stage == "consistent" for stage, _ in row["calls"]))] for row in right}
    assert len(counts) == 3
    values = results.values_of(results.judging(run))
    assert values["judging_calls", ""] == values["dollars_a_thousand", ""] == counts


# --- printed and drawn ---


def test_the_offline_reader_gets_no_p_and_every_form_says_so(small: PaperTable, tmp_path: Path) -> None:
    result = made(small, tmp_path / "runs").result
    assert all(line.p is None for line in result.lines)
    forms = [path.read_text(encoding="utf-8") for path in printing.write(result, tmp_path / "out")]
    for form in (printing.text(result), *forms):
        assert "no p-value" in form
        assert "other reader: the published figures are counted's, the measured ones the offline reader's" in form
        assert (
            "the sample world" in form or "published: of 500 questions, so uncertain too (up to ± 4.4 points)" in form
        )
    assert json.loads(forms[1])["lines"][0]["published"] == 0.3
    assert next(line for line in forms[0].splitlines() if line.startswith("|")).count("|") == 9


@pytest.mark.parametrize("name", ["filco-figure4", "filco-figure6", "filco-frontier"])
def test_what_filters_leave_is_drawn(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = made(name, tmp_path, limit=2, tasks=["nq"])
    paths = printing.draw(done.result, done.runs, done.done, tmp_path / "plots")
    stem = "filco-frontier-nq" if name == "filco-frontier" else name
    assert {f"{stem}.svg", f"{stem}.png"} <= {path.name for path in paths}
    svg = (tmp_path / "plots" / f"{stem}.svg").read_text("utf-8")
    assert "offline reader: shows the pipeline, not quality" in svg
    assert "SILVER" in svg
    assert ("<pattern" in svg) == (name != "filco-frontier"), "what reads the answer is hatched"


@pytest.mark.parametrize("name", [name for name in tables.names() if name.startswith("cdit-")])
def test_each_of_cdits_tables_runs_over_the_sample_world(name: str, tmp_path: Path) -> None:
    table = tables.read(name)
    if table.sweep:
        rows = tuple(each.model_copy(update={"at": {}}) for each in table.rows)
        table = table.model_copy(update={"sweep": table.sweep[:2], "rows": rows})
    done = made(table, tmp_path / "runs", limit=2, tasks=["popqa" if "3" in name else table.tasks[-1]])
    assert {(each.group, each.label) for each in done.result.lines} == {(each.group, each.label) for each in table.rows}
    assert not done.result.errors
    assert "other" in printing.text(done.result), "another reader, or another method"
    if name == "cdit-table2":
        assert len(done.done) < len(done.runs), "one index plays all three: a run each is enough"
