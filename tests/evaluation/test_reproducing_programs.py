"""Tables with compiled programs: FilCo's rows speak as they say, and nothing else does; runs apart; refused in time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from compiled import compile_small, silver_rows
from small_world import CountingEngine

from blendfilter import Run, connect, load
from blendfilter.compiling.compile import compile_program
from blendfilter.compiling.programs import save_program
from blendfilter.compiling.silver import silver_examples, silver_metric
from blendfilter.errors import BadArgument, BadData, Leak, MissingFile, UnknownName
from blendfilter.evaluation.reproducing import doing, papers, printing, results, runs, sources
from blendfilter.evaluation.reproducing.programs import Programs
from blendfilter.evaluation.reproducing.results import Result
from blendfilter.evaluation.reproducing.runs import Wanted
from blendfilter.evaluation.reproducing.silver import Silver
from blendfilter.filters.filco import FilCoFilter
from blendfilter.journal import Journal

PAPERS = Path(__file__).parents[2] / "eval" / "papers"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Programs for sentences with one demonstration and with three, one for passages, one of BlendFilter."""
    folder = tmp_path_factory.mktemp("programs")
    made = {
        "one": compile_small("filco", "labeled", "offline", folder / "run-one", max_demos=1),
        "three": compile_small("filco", "labeled", "offline", folder / "run-three", max_demos=3),
        "blend": compile_small("blendfilter", "bootstrap", "offline", folder / "run-blend"),
    }
    examples = silver_examples(silver_rows(), "passage")
    made["passages"] = compile_program(
        FilCoFilter("passage"), examples[:4], valset=examples[4:6], metric=silver_metric(), run=folder / "run-passages",
        optimizer="labeled", lm="offline", task="nq", measure="strinc",
    )  # fmt: skip
    return {name: save_program(done.program, folder / f"{name}.json", done.recipe) for name, done in made.items()}


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Questions of the sample world that no program here has seen."""
    rows = [{"id": one.id, "question": one.question, "answer": one.golden_answers[0]} for one in load("nq", "sample")]
    (path := tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[10:13]), "utf-8")
    return str(path)


def wanted(
    name: str, data: str, folder: Path, *programs: str, tasks: tuple[str, ...] = ("nq",)
) -> tuple[list[Wanted], list[str]]:  # fmt: skip
    table = papers.read(PAPERS, name)
    found = sources.gather(table, data=[data], corpus=["sample"] if data != "sample" else [], tasks=tasks, limit=3)
    told = Programs(programs, table)
    silver = Silver(folder, None, {"": "strinc"})
    return runs.wanted(table, found, connect("offline"), folder, silver=silver, programs=told), told.notes


def made(name: str, data: str, folder: Path, *programs: str) -> tuple[Result, list[Wanted], dict[Path, Run]]:
    asked, notes = wanted(name, data, folder, *programs)
    done = doing.do(asked, progress=False)
    return results.result(papers.read(PAPERS, name), asked, done, notes=notes), asked, done


def demonstrations(run: Run) -> dict[str, int]:
    """Of each stage's first call, the demonstrations in its prompt."""
    found: dict[str, int] = {}
    with Journal(run.folder / "journal.jsonl", "replay") as journal:
        for stage, key in run.rows[0]["calls"]:
            found[stage] = str((journal.read(key) or {})["prompt"]).count("Question: ") - 1
    return found


def test_filcos_rows_speak_as_the_program_says_and_no_other(files: dict[str, Path], data: str, tmp_path: Path) -> None:
    plain, asked, before = made("filco-table4", data, tmp_path)
    result, compiled, done = made("filco-table4", data, tmp_path, str(files["three"]))
    for one, other in zip(asked, compiled, strict=True):
        run = done[other.folder]
        if other.row.label == "FILCO":
            assert demonstrations(run)["helpful"] == 3
            assert demonstrations(before[one.folder])["helpful"] == 0
            assert "-filco-compiled_labeled-bm25-" in other.folder.name
            assert run.settings["method"]["program"] != before[one.folder].settings["method"]["program"]
        else:
            assert demonstrations(run) == demonstrations(before[one.folder])
            assert one.folder == other.folder, "the same run, shared"
    (note,) = [each for each in result.notes if "FILCO speaks as compiled by labeled" in each]
    assert note.startswith("nq: ")
    assert "before" in note
    assert note in printing.text(result)
    assert not any("compiled" in each for each in plain.notes)
    assert {one.folder for one in wanted("filco-table4", data, tmp_path, f"nq={files['three']}")[0]} == set(done)
    another = {one.folder for one in wanted("filco-table4", data, tmp_path, str(files["one"]))[0]}
    assert len(another - set(done)) == 2, "FILCO over the top 1 and over the top 5, of another program"


def test_passages_have_programs_of_their_own(files: dict[str, Path], data: str, tmp_path: Path) -> None:
    both = (str(files["passages"]), str(files["one"]))
    told, notes = wanted("filco-figure4", data, tmp_path, *both)
    shown = {
        one.row.label: [len(each.demos) for name, each in one.method.named_predictors() if name == "select.helpful"]
        for one in told
    }
    assert shown == {"FULL": [], "PSG": [4], "FILCO": [1], "SILVER": []}
    assert len(notes) == 2
    alone, _ = wanted("filco-figure4", data, tmp_path, str(files["passages"]))
    assert [one.folder == other.folder for one, other in zip(told, alone, strict=True)] == [True, True, False, True]


def test_inside_blendfilter_it_speaks_too(files: dict[str, Path], data: str, tmp_path: Path) -> None:
    told, _ = wanted("filco-frontier", data, tmp_path, str(files["three"]))
    compiled = [one for one in told if "compiled_labeled" in one.folder.name]
    assert [(one.row.method, one.row.label) for one in compiled] == [
        ("direct-retrieval", "FILCO"), ("blendfilter", "FILCO"),
    ]  # fmt: skip
    blend = compiled[1]
    run = doing.do([blend], progress=False)[blend.folder]
    assert demonstrations(run)["helpful"] == 3


def test_what_is_named_for_a_task_goes_first(files: dict[str, Path], data: str, tmp_path: Path) -> None:
    tasks = ("nq", "triviaqa")
    named = (f"nq={files['one']}", str(files["three"]))
    told, _ = wanted("filco-figure4", data, tmp_path, *named, tasks=tasks)
    filco = {one.task: one for one in told if one.row.label == "FILCO"}
    demos = {task: len(dict(one.method.named_predictors())["select.helpful"].demos) for task, one in filco.items()}
    assert demos == {"nq": 1, "triviaqa": 3}
    _, notes = wanted("filco-figure4", data, tmp_path, named[0], tasks=tasks)
    assert "triviaqa: FILCO is not compiled, for no --program is named for it" in notes


def test_a_question_that_it_was_compiled_on_is_refused_before_any_call(files: dict[str, Path], tmp_path: Path) -> None:
    engine = CountingEngine()
    table = papers.read(PAPERS, "filco-figure4")
    found = sources.gather(table, data=["sample"], tasks=["nq"], limit=3)
    with pytest.raises(Leak, match="compiled on"):
        runs.wanted(table, found, engine.lm(), tmp_path, programs=Programs([str(files["one"])], table))
    assert engine.calls == 0
    assert not list(tmp_path.glob("nq-*"))


def test_programs_that_no_row_takes_are_refused(files: dict[str, Path], tmp_path: Path) -> None:
    four, frontier = (papers.read(PAPERS, name) for name in ("table4", "filco-frontier"))
    with pytest.raises(BadArgument, match=r"no row of table4 has the filter filco: leave out --program .*one\.json"):
        Programs([str(files["one"])], four)
    with pytest.raises(BadArgument, match=r"blend\.json was compiled for BlendFilter: --program takes those of FilCo"):
        Programs([str(files["blend"])], frontier)
    with pytest.raises(BadArgument, match=r"one\.json and .*three\.json are both programs of filco for nq: name one"):
        Programs([f"nq={files['one']}", f"nq={files['three']}"], frontier)
    with pytest.raises(UnknownName, match="no task 'nqq'"):
        Programs([f"nqq={files['one']}"], frontier)
    with pytest.raises(UnknownName, match="no task 'strategyqa'"):
        Programs([f"strategyqa={files['one']}"], frontier)
    with pytest.raises(MissingFile, match="no program at nowhere"):
        Programs(["nowhere.json"], frontier)
    with pytest.raises(BadArgument, match="names no file"):
        Programs(["nq="], frontier)
    told = json.loads(files["one"].read_text("utf-8"))
    told["metadata"]["recipe"]["templates"]["helpful"] = "filco/sentences 0000000000000000"
    (old := tmp_path / "old.json").write_text(json.dumps(told), "utf-8")
    with pytest.raises(BadData, match="compile it again"):
        wanted("filco-figure4", "sample", tmp_path, str(old))
