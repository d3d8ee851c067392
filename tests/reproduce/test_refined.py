"""Tables of what refiners leave: tokens, where the answer stands, seconds; and rows that cannot be run here."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from checkpoints import tiny_cross_encoder, tiny_sentence_encoder
from reproduce_world import made, wanted, written
from scoring_models import llama
from scripted import ScriptedLM
from small_world import CountingEngine

from blendfilter import BM25, Direct, load
from blendfilter.errors import BadArgument, BadData, MissingFile, UnknownName
from blendfilter.evaluation.run_passages import contexts
from blendfilter.filters.written import BIDERFilter
from blendfilter.journal import Journal
from blendfilter.oracles.candidates import sentences_of
from blendfilter.oracles.silver_rows import SilverRow, SilverSentence, Stages, line_of
from blendfilter.prompting import Prompts
from blendfilter.records import Excerpt, Passage
from blendfilter.reproduce import printing
from blendfilter.reproduce.results import first_gold, gold_in
from blendfilter.reproduce.runs import notes_of
from blendfilter.reproduce.tables import PaperTable
from blendfilter.resources import sample

HEAD = """
title = "Refined"
paper = "P, Table 9"
kind = "refined"
reader = "counted"
retriever = "bm25"
n = 500
k = 3
tasks = ["nq", "hotpotqa"]
against = "All"

[models]
near = ""
far = "nobody/has-this"
"""
ROWS = """
[[rows]]
label = "All"
method = "direct-retrieval"
arguments = { filter = "full" }
published.nq = { em = 0.3, refined_tokens = 725 }

[[rows]]
label = "None"
method = "direct"
published.nq = { em = 0.2, refined_tokens = 0 }

[[rows]]
label = "Near"
method = "direct-retrieval"
arguments = { filter = "sentence", filter_by = "embedding", filter_model = "near" }
on.nq = { filter_tokens = 40 }
on.hotpotqa = { filter_n = 1 }
published.nq = { em = 0.4, refined_tokens = 77 }

[[rows]]
label = "Far"
method = "direct-retrieval"
ours = true
arguments = { filter = "passage", filter_by = "cross-encoder", filter_model = "far" }
"""


@pytest.fixture
def table(tmp_path: Path) -> PaperTable:
    return written(tmp_path, HEAD + ROWS)


def test_rows_have_their_scores_and_the_tokens_of_what_is_left(table: PaperTable, tmp_path: Path) -> None:
    models = [f"near:{tiny_sentence_encoder()}", f"far:nq={tiny_cross_encoder()}"]
    done = made(table, tmp_path, CountingEngine().lm(), models=models, limit=6, tasks=["nq"])
    measured = {(line.label, line.measure): line for line in done.result.lines}
    for label in ("All", "None", "Near", "Far"):
        lengths = []
        for context in contexts(done.run(label)):
            lengths.append(sum(len(passage.line.split()) for passage in context.kept) * 1.4)
        line = measured[label, "refined_tokens"]
        assert line.value == pytest.approx(sum(lengths) / len(lengths)), "1.4 tokens a word, the rule of thumb"
        em = done.run(label).metrics["metrics"]["em"]["value"]
        assert measured[label, "em"].value == pytest.approx(em, abs=1e-6)
    assert measured["None", "refined_tokens"].value == 0
    near = measured["Near", "refined_tokens"]
    assert near.value < measured["All", "refined_tokens"].value
    assert near.of_reference == pytest.approx(near.value / measured["All", "refined_tokens"].value)
    assert (near.published, near.difference) == (77, None)
    text = printing.text(done.result, 200)
    assert "# tok" in text
    assert "725" in text
    assert "725.0" not in text
    assert any(note.startswith("# tok: of what is left of the passages") for note in done.result.notes)


def test_a_row_that_cannot_be_run_keeps_its_place_and_says_why(table: PaperTable, tmp_path: Path) -> None:
    done = made(table, tmp_path, limit=2)
    lines = [line for line in done.result.lines if line.task == "nq"]
    assert list(dict.fromkeys(line.label for line in lines)) == ["All", "None", "Near", "Far"]
    near = {line.measure: line for line in lines if line.label == "Near"}
    assert set(near) == {"em", "f1", "refined_tokens"}
    assert all(line.missing and line.n == 2 for line in near.values())
    assert (near["em"].published, near["refined_tokens"].published, near["f1"].published) == (0.4, 77, None)
    notes = "\n".join(done.result.notes)
    assert (
        "nq, hotpotqa: Near: not run: no near model is named (--filter-model near:[TASK=]FOLDER; docs/training.md)"
        in notes
    )
    assert "nq, hotpotqa: Far: not run: no cross-encoder 'nobody/has-this'" in notes
    assert "(name one that is here: --filter-model far:NAME)" in notes
    text = printing.text(done.result, 200)
    (row,) = [line.split() for line in text.splitlines() if line.split()[:1] == ["Near"] and "40.0" in line]
    assert row == ["Near", "EM", "40.0", "not", "run"]
    assert "| Near | EM | 40.0 | not run |" in printing.markdown(done.result)
    assert {path.suffix for path in printing.draw(done.result, done.runs, done.done, tmp_path / "drawn")} == {
        ".svg", ".png",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("model", "error", "words"),
    [
        ("near:nowhere", MissingFile, "no encoder 'nowhere'"),
        ("nobody:models/x", UnknownName, r"no model .nobody.. .known: far, near. in small"),
        ("near:wow=models/x", UnknownName, r"no task .wow.. .known: hotpotqa, nq. in 'near:wow="),
        ("near:nq=", BadArgument, r"\[NAME:\]\[TASK=\]VALUE, and 'near:nq=' names no value"),
        ("models/x", BadArgument, "which model of small is models/x. Write near:models/x, or far"),
    ],
)
def test_a_model_that_was_named_must_be_there(
    table: PaperTable, tmp_path: Path, model: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        wanted(table, tmp_path, models=[model])


def test_a_table_without_models_takes_none_and_one_that_is_not_listed_is_an_error(tmp_path: Path) -> None:
    plain = written(tmp_path, HEAD.partition("[models]")[0] + '[[rows]]\nlabel = "All"\nmethod = "direct"\n')
    with pytest.raises(BadArgument, match=r"no filter of small has a model of its own: leave models='x' out"):
        wanted(plain, tmp_path, models=["x"])
    with pytest.raises(BadData, match=r"no model 'neer'\. Did you mean 'near'\?.* in models"):
        written(tmp_path, (HEAD + ROWS).replace('filter_model = "near"', 'filter_model = "neer"'))


# --- the shipped tables ---


@pytest.mark.slow
def test_a_trained_refiner_fills_biders_rows(tmp_path: Path) -> None:
    """A tiny model of random weights in the place of both: what it writes stands in no passage, and is counted."""
    refiner = llama(positions=2048)
    models = [f"distilled:{refiner}", f"aligned:nq={refiner}"]
    done = made("bider-table4", tmp_path, CountingEngine().lm(), models=models, tasks=["nq"], limit=1)
    assert not done.result.errors
    assert {line.label for line in done.result.lines if not line.missing} == {"distilled", "aligned", "Original Prompt"}
    assert done.run("aligned").folder == done.run("distilled").folder, "one model, one run"
    (row,) = done.run("aligned").rows
    assert [stage for stage, _ in row["calls"]] == ["write", "direct"]
    assert done.line("aligned", "gold_in_output").published == 0.511
    found = done.line("aligned", "em").verdict
    assert found
    differs = [each.partition(":")[0] for each in found.differs]
    assert differs == ["reader", "index", "corpus", "prompts", "1 of 1,000 questions"], "a trained filter is its row's"
    named = wanted("bider-table4", tmp_path, CountingEngine().lm(), models=models[1:], tasks=["nq"], limit=1)
    assert [one.row.label for one in named.left_out] == ["distilled"]


# --- stages of the synthesis ---


def synthesis(path: Path, limit: int) -> Path:
    """A file as `blendfilter silver nq --measure bider -k 5` writes it: of the first sentences three, two and one."""
    index = BM25.build(sample("corpus.jsonl"))
    with path.open("wb") as file:
        for one in load("nq", "sample", limit=limit):
            passages = tuple(index(one.question, k=5))
            found = [SilverSentence(each.position, each.start, each.end, 0.5) for each in sentences_of(passages)]
            stages = Stages((2, 0, 1), (2, 0), (0.2, 0.6), "supported", (None, 1.0), by_target=(0, 1, 3))
            row = SilverRow(
                one.id, one.question, one.golden_answers, one.golden_answers[0], passages, tuple(found), (2,), "", None,
                stages,
            )  # fmt: skip
            file.write(line_of(row))
    return path


def test_figure_3_reads_each_stage_of_a_synthesis(tmp_path: Path) -> None:
    file = synthesis(tmp_path / "nq.jsonl", 4)
    done = made("bider-figure3", tmp_path / "runs", CountingEngine().lm(), silver=[f"nq={file}"], tasks=["nq"], limit=4)
    sentences = {
        line.label: {len(sentences_of(each.kept)) for each in contexts(done.run(line.label))}
        for line in done.result.lines
        if line.bound
    }
    assert sentences == {"Extract by evidence": {3}, "Nugget extraction": {3}, "Nugget refinement": {2},
                         "Nugget cleaning": {1}}  # fmt: skip
    assert {done.line(label, "em").bound for label in sentences} == {True}
    tokens = [done.line(label, "refined_tokens").value for label in list(sentences)[1:]]
    assert tokens == sorted(tokens, reverse=True)
    without = wanted("bider-figure3", tmp_path / "none", tasks=["nq"], limit=2)
    assert [one.row.label for one in without.runs] == ["Original Prompt"]
    assert {one.reason for one in without.left_out} == {
        "no synthesis of it is named (--silver [TASK=]FILE; blendfilter silver --measure bider)"
    }
    with pytest.raises(BadArgument, match="no row of bider-table4 reads a stage of BIDER's synthesis"):
        wanted("bider-table4", tmp_path / "none", silver=[str(file)], tasks=["nq"], limit=2)


# --- where the answer stands ---


def test_the_first_sentence_with_an_answer_is_counted_from_1() -> None:
    source = Passage("1", "Ada Pier", "It is long. Ada built it. Ada sold it.")
    assert first_gold([source], ["Eve", "ada"]) == 2
    assert first_gold([Excerpt.of(source, [(26, 38)])], ["Ada"]) == 1
    assert first_gold([Passage("2", "", "Nothing. Here."), source], ["Ada"]) == 4
    assert first_gold([source], ["Ad"]) is None, "words, not letters; and a title is no sentence"
    assert first_gold([], ["Ada"]) is None


def test_an_answer_with_a_full_stop_in_it_stands_in_the_text_though_in_no_sentence() -> None:
    kept = [Passage("1", "Pier", "It is long."), Passage("2", "", "It went to Yahoo! Holdings in May.")]
    assert (gold_in(kept, ["Yahoo! Holdings"]), first_gold(kept, ["Yahoo! Holdings"])) == (1.0, None)
    assert (gold_in(kept, ["long"]), gold_in(kept, ["Pier"]), gold_in([], ["Pier"])) == (1.0, 0.0, 0.0)


def test_alignment_measures_whether_and_where_the_answer_stands(table: PaperTable, tmp_path: Path) -> None:
    rows = ROWS.split("[[rows]]")
    only = HEAD.replace('"refined"', '"alignment"') + "[[rows]]".join([rows[0], rows[1], rows[3]])
    only = only.replace("em = 0.4, refined_tokens = 77", "em = 0.4, gold_in_output = 0.5, gold_position = 1.2")
    only = only.replace("em = 0.3, refined_tokens = 725", "em = 0.3")
    made_by = [f"near:{tiny_sentence_encoder()}"]
    done = made(written(tmp_path, only), tmp_path, CountingEngine().lm(), models=made_by, limit=8, tasks=["nq"])
    for label in ("All", "Near"):
        golden = {question.id: question.golden_answers for question in done.runs[0].questions}
        places = [first_gold(each.kept, golden[each.row["id"]]) for each in contexts(done.run(label))]
        there = [place for place in places if place is not None]
        assert done.line(label, "gold_in_output").value == pytest.approx(len(there) / len(places))
        assert done.line(label, "gold_position").value == pytest.approx(sum(there) / len(there))
    position = done.line("Near", "gold_position")
    assert (position.published, position.difference, position.of_reference) == (1.2, None, None)
    assert position.gain is not None, "over the questions that have one in both"
    assert "gold position" in printing.text(done.result, 200)


# --- seconds ---


def test_latency_is_that_of_the_calls_before_the_answer_and_of_the_answer(tmp_path: Path) -> None:
    text = HEAD.replace('"refined"', '"latency"').partition("[models]")[0] + """
[[rows]]
label = "All"
method = "direct-retrieval"
published.nq = { answering_seconds = 1.33, total_seconds = 1.33 }

[[rows]]
label = "Filtered"
method = "direct-retrieval"
arguments = { filter = "filco" }
published.nq = { refining_seconds = 0.1, answering_seconds = 1.08, total_seconds = 1.18 }
"""  # fmt: skip

    async def wait(stage: str, prompt: str) -> None:
        await asyncio.sleep(0.002)

    done = made(written(tmp_path, text), tmp_path, CountingEngine(before=wait).lm(), limit=3, tasks=["nq"])
    run = done.run("Filtered")
    with Journal(run.folder / "journal.jsonl", "replay") as journal:
        seconds = [[(journal.read_call(key) or {})["seconds"] for _, key in row["calls"]] for row in run.rows]
    assert all(len(each) == 2 and min(each) > 0 for each in seconds)
    for measure, value in (
        ("refining_seconds", sum(first for first, _ in seconds) / 3),
        ("answering_seconds", sum(last for _, last in seconds) / 3),
        ("total_seconds", sum(map(sum, seconds)) / 3),
    ):
        assert done.line("Filtered", measure).value == pytest.approx(value)
    assert done.line("All", "refining_seconds").value == 0
    assert done.line("Filtered", "total_seconds").published == 1.18
    assert "seconds a question" in printing.text(done.result, 160)


def test_notes_say_which_prompt_a_refiner_keeps_and_which_reader_it_was_aligned_with(tmp_path: Path) -> None:
    """Distilled on our prompt and aligned with a base model, in a table that is asked in the papers' shape."""
    reader = {"name": "hf/meta-llama/Llama-2-7b-hf", "endpoint": "completions"}
    recipe = {**BIDERFilter().recipe, "reader": reader}
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    select = BIDERFilter(tmp_path, lm=ScriptedLM([]), prompts="paper")
    method = Direct(BM25.build([Passage("1", "Tolm", "A town.")]), filter=select, task="hotpotqa", prompts="paper")
    row = SimpleNamespace(label="BIDER", name="BIDER")
    run = SimpleNamespace(task="hotpotqa", row=row, method=method, lm=ScriptedLM([]))
    lines = notes_of(SimpleNamespace(shots=None), Prompts.of("paper"), [run])  # type: ignore[arg-type, list-item]
    assert lines[0].endswith("ours where a paper prints none (direct)")
    assert lines[1] == "demonstrations, ours: 3; the paper does not say how many it shows"
    assert lines[2] == "BIDER: bider/refine is ours, as its model was trained"
    assert lines[3].startswith(
        f"hotpotqa: BIDER: another reader: {tmp_path} was aligned with Llama-2-7b-hf (completions)"
    )
    assert len(lines) == 4
