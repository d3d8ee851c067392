"""A model for each row: FilCo's comparison reads each context by a generator that was trained on it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reproduce_world import HEAD, Made, made, wanted, written
from scoring_models import llama
from small_world import journaled

from blendfilter import connect
from blendfilter.asking import TaskWording
from blendfilter.errors import BadArgument, BadData, UnknownName
from blendfilter.filters.written import TrainedFilCoFilter, TrainedPSGFilter
from blendfilter.modules.direct import Direct
from blendfilter.reproduce import printing
from blendfilter.reproduce.readers import with_models

pytest.importorskip("transformers")

Toy = Callable[..., str]
FILCO: dict[str, Any] = {"tasks": ["nq"], "limit": 1, "measures": ["strinc"]}


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    """Makes a tiny model with the recipe of a trained one; its name is that of its folder."""
    prompt = Direct(lambda query, k: [], task=TaskWording.of("nq").with_demos("none")).direct.prompt_digest

    def model(name: str, **recipe: Any) -> str:
        folder = tmp_path / name
        shutil.copytree(llama(positions=2048), folder)
        own = {"part": "generator", "prompt": prompt} if "part" not in recipe else {}
        (folder / "recipe.json").write_text(json.dumps({"format": 1, **own, **recipe}))
        return f"hf/{folder}"

    return model


def answered_by(done: Made) -> dict[str, dict[str, set[str]]]:
    """The models in each row's journal, by stage."""
    found: dict[str, dict[str, set[str]]] = {}
    for one in done.runs:
        stages = found.setdefault(one.row.name, {})
        for call in journaled(one.folder, "call"):
            stages.setdefault(call["stage"], set()).add(call["model"])
    return found


def reasons(left_out: Any) -> dict[str, str]:
    return {one.row.name: one.reason for one in left_out}


def test_each_row_of_filcos_table_is_read_by_its_own_generator(toy: Toy, tmp_path: Path) -> None:
    """PSG and FILCO with trained filters of their own."""
    of_the_papers = {"base": {"name": "google/flan-t5-xl"}}
    names = [f"FULL.lm={toy('full', reads='full', **of_the_papers)}", f"PSG.lm={toy('psg', reads='psg')}"]
    silver = f"nq={toy('on-silver', reads='silver')}"
    names += [f"FILCO.lm={silver}", f"SILVER.lm={silver}"]
    for label, kind in (("PSG", TrainedPSGFilter), ("FILCO", TrainedFilCoFilter)):
        trained = toy(f"filter-{label}".lower(), settings={"max_input_tokens": 300}, **kind().recipe)
        names.append(f"{label}.filter-model={trained.removeprefix('hf/')}")
    done = made("filco-table4", tmp_path / "runs", rows=names, **FILCO)
    silver_row = {"direct": {"on-silver"}}
    assert answered_by(done) == {
        "FilCo, top 1, FILCO": {"write": {"filter-filco"}, **silver_row},
        "FilCo, top 5, FULL": {"direct": {"full"}},
        "FilCo, top 5, PSG": {"write": {"filter-psg"}, "direct": {"psg"}},
        "FilCo, top 5, FILCO": {"write": {"filter-filco"}, **silver_row},
        "FilCo, top 5, SILVER": silver_row,
    }
    assert "FilCo, top 5, PSG: read by psg, filtered by filter-psg" in done.result.notes
    assert not any(note.startswith("ONE READER") for note in done.result.notes)
    unread = "nq: FilCo, top 5, PSG: replies of its filter that could not be read: 1"
    assert unread in done.result.notes, "it has learned nothing, and all was kept"
    lines = {(line["group"], line["label"]): line for line in printing.plain(done.result)["lines"]}
    psg, full = (lines["FilCo, top 5", label] for label in ("PSG", "FULL"))
    assert [(line["reader"], line["filter"]) for line in (psg, full)] == [("psg", "filter-psg"), ("full", "")]
    assert len({one.folder for one in done.runs}) == 5
    differs = {label: done.line(label, "em").verdict.differs for label in ("FULL", "PSG")}  # type: ignore[union-attr]
    assert "reader: psg, not the fine-tuned FLAN-T5-XL" in differs["PSG"]
    assert not any(words.startswith("reader") for words in differs["FULL"]), "fine-tuned from the paper's base"


def test_a_row_may_prompt_a_model_of_its_own_as_its_filter(toy: Toy, tmp_path: Path) -> None:
    names = [f"PSG.lm={toy('psg', reads='psg')}", "PSG.filter-lm=offline", "PSG"]
    done = made("filco-table4", tmp_path / "runs", rows=names, **FILCO)
    assert answered_by(done) == {"FilCo, top 5, PSG": {"helpful": {"offline"}, "direct": {"psg"}}}


def test_a_row_without_its_model_is_not_run(toy: Toy, tmp_path: Path) -> None:
    """A generator as --lm reads what it was trained to read; of filters, those that are named."""
    names = [f"PSG.lm={toy('psg', reads='psg')}"]
    done = made("filco-table4", tmp_path / "runs", connect(toy("on-silver")), rows=names, **FILCO)
    assert answered_by(done) == {"FilCo, top 5, SILVER": {"direct": {"on-silver"}}}
    found = wanted("filco-table4", tmp_path / "runs", connect(f"hf/{tmp_path}/on-silver"), rows=names, **FILCO)
    filco = "no filter is named that was trained for it (--row FILCO.filter-model=[TASK=]DIR; docs/training.md)"
    reader = "no reader is named that was trained for it (--row FULL.lm=[TASK=]MODEL; docs/training.md)"
    assert reasons(found.left_out) == {
        "FilCo, top 1, FILCO": filco,
        "FilCo, top 5, FULL": reader,
        "FilCo, top 5, PSG": filco.replace("FILCO", "PSG"),
        "FilCo, top 5, FILCO": filco,
    }
    text = printing.text(done.result, 200)
    assert any(line.split()[:2] == ["FULL", "EM"] and "not run" in line for line in text.splitlines())
    assert "nq: FilCo, top 5, FULL: not run: no reader is named" in text


def test_one_prompted_reader_reads_all_and_the_table_says_that_the_paper_has_one_for_each(tmp_path: Path) -> None:
    done = made("filco-table4", tmp_path, **FILCO)
    assert not any(line.missing for line in done.result.lines)
    (note,) = (note for note in done.result.notes if note.startswith("ONE READER"))
    assert "offline reads every row. The paper trains one for each of FILCO, FULL, PSG and SILVER" in note
    assert not any("read by" in note for note in done.result.notes)
    assert {line.reader for line in done.result.lines} == {"offline"}
    bare = made("filco-table3", tmp_path, **FILCO)
    assert not any(note.startswith("ONE READER") for note in bare.result.notes), "no answer is measured there"


def test_a_generator_filters_nothing_where_no_answer_is_measured_either(toy: Toy, tmp_path: Path) -> None:
    found = wanted("filco-table3", tmp_path / "runs", connect(toy("on-silver")), **FILCO)
    assert {one.row.label for one in found.runs} == {"FULL", "SILVER"}
    assert {one.row.label for one in found.left_out} == {"PSG", "FILCO"}


def test_a_measures_silver_contexts_have_a_generator_of_their_own(toy: Toy, tmp_path: Path) -> None:
    lm = connect(toy("by-strinc", silver={"measure": "strinc"}))
    found = wanted("filco-table5", tmp_path / "runs", lm, tasks=["nq"], limit=2)
    assert {one.row.label for one in found.runs} == {"STRINC"}
    assert {one.row.label for one in found.left_out} == {"LEXICAL", "CXMI"}


def test_a_table_of_ones_own_names_models_in_its_rows(tmp_path: Path) -> None:
    """One for all tasks, or one by task; a row's full name tells two of one label apart."""
    text = (
        HEAD.replace('"Whole"', '"A"')
        + """
[[rows]]
group = "One"
label = "A"
method = "direct"
lm = "hf/one"
[[rows]]
group = "Two, v1.5"
label = "A"
method = "direct-retrieval"
lm = { hotpotqa = "hf/two" }
arguments = { filter = "filco" }
filter_model = "hf/filter"
"""
    )
    table = written(tmp_path, text)
    assert [table.rows[0].model("lm", task) for task in table.tasks] == ["hf/one"] * 2
    assert [table.rows[1].model("lm", task) for task in table.tasks] == ["hf/two", None]
    named, labels = with_models(table, ["A.lm=strategyqa=hf/x?dtype=bfloat16", "Two, v1.5, A.lm=hf/y", "A"])
    assert labels == ["A"]
    assert [row.lm for row in named.rows] == [
        {"": "hf/one", "strategyqa": "hf/x?dtype=bfloat16"},
        {"hotpotqa": "hf/two", "strategyqa": "hf/x?dtype=bfloat16", "": "hf/y"},
    ]
    with pytest.raises(BadData, match=r"rows\.1: A has no filter: leave the model of one out"):
        written(tmp_path, text.replace('lm = "hf/one"', 'filter_model = "hf/one"'))


@pytest.mark.parametrize(
    ("row", "error", "words"),
    [
        ("FUL.lm=hf/x", UnknownName, "no row 'FUL'. Did you mean 'FULL'"),
        ("FULL.ml=hf/x", UnknownName, r"no key 'ml'. \(known: filter-lm, filter-model, lm\) in 'FULL.ml=hf/x'"),
        ("FULL.lm=qa=hf/x", UnknownName, "no task 'qa'"),
        ("FULL.lm=", BadArgument, r"--row FULL.lm is written \[TASK=\]VALUE, and '' names no value"),
        ("FULL.lm=hf/nowhere", Exception, "FULL.lm: no model 'nowhere'"),
        ("SILVER.filter-lm=offline", BadArgument, "SILVER has no filter: leave the model of one out"),
        ("FULL.filter-lm=offline", BadArgument, "FULL has no filter that asks a model: leave FULL.filter-lm out"),
        ("FULL.filter-model=x", BadArgument, "the filter full takes no model: "),
    ],
)
def test_what_names_no_model_of_a_row_is_an_error(row: str, error: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=words) as raised:
        wanted("filco-table4", tmp_path / "runs", rows=["FULL", row] if "FUL." in row else [row], **FILCO)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("key", "recipe", "words"),
    [
        (
            "FULL.lm",
            {"part": "context"},
            "FULL.lm: .*toy was trained as FilCo's context filter: it writes what is to be read",
        ),
        (
            "FULL.lm",
            {"reads": "silver"},
            r"FULL.lm: toy was trained on other contexts \(silver\) than FULL has \(full\)",
        ),
        ("PSG.filter-lm", {}, "PSG.filter-lm: toy was trained as FilCo's generator .*: it chooses no passages"),
        ("PSG.filter-lm", {"part": "passages"}, r"PSG.filter-lm: toy was trained as FilCo.s passage filter"),
        ("FILCO.filter-model", {}, "was trained as FilCo's generator .* --part context makes one"),
    ],
)
def test_a_model_of_another_kind_is_refused_before_any_call(
    key: str, recipe: dict[str, Any], words: str, toy: Toy, tmp_path: Path
) -> None:
    model = toy("toy", **recipe)
    with pytest.raises(BadArgument, match=words):
        wanted("filco-table4", tmp_path / "runs", rows=[f"{key}={model}"], **FILCO)
    assert not (tmp_path / "runs").exists()
