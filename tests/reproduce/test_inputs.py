"""What rows need besides their method: compiled programs, silver contexts, trimmed indexes; each made once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from compiled import compile_small, judge_program, silver_rows
from reproduce_world import JUDGED_HEAD, JUDGED_ROWS, consistent_for_odd, made, verdicts, wanted, written
from scripted import ScriptedLM
from small_world import CountingEngine

from blendfilter import BM25, Run, connect, load, resources
from blendfilter.compiling.compile import compile_program
from blendfilter.compiling.programs import save_program
from blendfilter.compiling.silver import silver_examples, silver_metric
from blendfilter.errors import BadArgument, Leak, MissingFile, UnknownName
from blendfilter.filters.filco import FilCoFilter
from blendfilter.journal import Journal
from blendfilter.lm.checkpoints import Checkpoint, write_questions
from blendfilter.lm.scoring.base import Done, Score, TextPair
from blendfilter.lm.scoring.kept import KeptScorer
from blendfilter.prompting import Prompts
from blendfilter.records import Passage
from blendfilter.reproduce import printing, runs, tables
from blendfilter.reproduce.inputs import RowInputs, RowOptions
from blendfilter.reproduce.tables import PaperTable
from blendfilter.resources import sample


@pytest.fixture
def judged(tmp_path: Path) -> PaperTable:
    return written(tmp_path, JUDGED_HEAD + JUDGED_ROWS)


# --- compiled programs ---


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Programs for sentences with one demonstration and with three, one for passages, of BlendFilter, of a judge."""
    folder = tmp_path_factory.mktemp("programs")
    done = {
        "one": compile_small("filco", "labeled", "offline", folder / "run-one", max_demos=1),
        "three": compile_small("filco", "labeled", "offline", folder / "run-three", max_demos=3),
        "blend": compile_small("blendfilter", "bootstrap", "offline", folder / "run-blend"),
    }
    examples = silver_examples(silver_rows(), "passage")
    done["passages"] = compile_program(
        FilCoFilter("passage"), examples[:4], valset=examples[4:6], metric=silver_metric(), run=folder / "run-passages",
        optimizer="labeled", lm="offline", task="nq", measure="strinc",
    )  # fmt: skip
    found = {name: save_program(each.program, folder / f"{name}.json", each.recipe) for name, each in done.items()}
    return {**found, "judge": judge_program(folder / "judge.json")}


@pytest.fixture
def fresh(tmp_path: Path) -> dict[str, Any]:
    """Options for questions of the sample world that no program here was compiled on."""
    rows = [{"id": one.id, "question": one.question, "answer": one.golden_answers[0]} for one in load("nq", "sample")]
    (path := tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[10:13]), "utf-8")
    return {"data": [str(path)], "corpus": ["sample"], "tasks": ["nq"], "limit": 3, "measures": ["strinc"]}


def demonstrations(run: Run) -> dict[str, int]:
    """The demonstrations in the prompt of each stage's first call."""
    with Journal(run.folder / "journal.jsonl", "replay") as journal:
        prompts = {stage: str((journal.read(key) or {})["prompt"]) for stage, key in run.rows[0]["calls"]}
    return {stage: prompt.count("Question: ") - 1 for stage, prompt in prompts.items()}


def test_filcos_rows_speak_as_the_program_says_and_no_other(
    files: dict[str, Path], fresh: dict[str, Any], tmp_path: Path
) -> None:
    before = made("filco-table4", tmp_path, **fresh)
    after = made("filco-table4", tmp_path, programs=[str(files["three"])], **fresh)
    for one, other in zip(before.runs, after.runs, strict=True):
        if other.row.label == "FILCO":
            assert demonstrations(after.done[other.folder])["helpful"] == 3
            assert demonstrations(before.done[one.folder])["helpful"] == 0
            assert "-filco-compiled_labeled-bm25-" in other.folder.name
        else:
            assert one.folder == other.folder, "the same run, shared"
    (note,) = [each for each in after.result.notes if "FILCO speaks as compiled by labeled" in each]
    assert re.match(r"nq: .*before.*after", note)
    assert note in printing.text(after.result)
    assert not any("compiled" in each for each in before.result.notes)
    named = wanted("filco-table4", tmp_path, programs=[f"nq={files['three']}"], **fresh)
    assert {one.folder for one in named.runs} == set(after.done)
    another = wanted("filco-table4", tmp_path, programs=[str(files["one"])], **fresh)
    assert len({one.folder for one in another.runs} - set(after.done)) == 2, "FILCO over the top 1 and the top 5"


def test_a_program_goes_by_filter_and_by_task(files: dict[str, Path], fresh: dict[str, Any], tmp_path: Path) -> None:
    """Passages have programs of their own; inside BlendFilter it speaks too; one named for a task goes first."""

    def demos(found: Sequence[runs.TableRun]) -> dict[tuple[str, str, str], int]:
        helpful = {(one.task, one.row.method, one.row.label): dict(one.method.named_predictors()) for one in found}
        return {place: len(each["select.helpful"].demos) for place, each in helpful.items() if "select.helpful" in each}

    both = wanted("filco-figure4", tmp_path, programs=[str(files["passages"]), str(files["one"])], **fresh)
    assert demos(both.runs) == {("nq", "direct-retrieval", "PSG"): 4, ("nq", "direct-retrieval", "FILCO"): 1}
    inside = wanted("filco-frontier", tmp_path, programs=[str(files["three"])], **fresh)
    compiled = [(one.row.method, one.row.label) for one in inside.runs if "compiled_labeled" in one.folder.name]
    assert compiled == [("direct-retrieval", "FILCO"), ("blendfilter", "FILCO")]
    fresh["tasks"] = ["nq", "triviaqa"]
    named = [f"nq={files['one']}", str(files["three"])]
    found = demos(wanted("filco-figure4", tmp_path, programs=named, **fresh).runs)
    assert [found[task, "direct-retrieval", "FILCO"] for task in ("nq", "triviaqa")] == [1, 3]


def test_filco_is_the_trained_filter_where_one_is_named(
    fresh: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one it is the prompt; one named for a task is that task's alone; the folder's name tells them apart."""
    opened: list[str] = []

    def connect(name: str, **_: str) -> ScriptedLM:
        opened.append(name)
        return ScriptedLM([])

    monkeypatch.setattr("blendfilter.filters.written.connect", connect)
    fresh["tasks"] = ["nq", "triviaqa"]
    prompted = wanted("filco-table3", tmp_path, **fresh)
    trained = wanted("filco-table3", tmp_path, models=["filco:nq=models/m_ctx"], **fresh)
    kinds = {
        (one.task, type(one.method.select).__name__, one.folder == other.folder)
        for one, other in zip(trained.runs, prompted.runs, strict=True)
        if one.row.label == "FILCO"
    }
    assert kinds == {("nq", "TrainedFilCoFilter", False), ("triviaqa", "FilCoFilter", True)}
    assert set(opened) == {"hf/models/m_ctx"}


def test_a_question_that_a_program_was_compiled_on_is_refused_before_any_call(
    files: dict[str, Path], judged: PaperTable, tmp_path: Path
) -> None:
    engine = CountingEngine()
    with pytest.raises(Leak, match="compiled on"):
        wanted("filco-figure4", tmp_path / "runs", engine.lm(), tasks=["nq"], programs=[str(files["one"])])
    with pytest.raises(Leak, match="the program of CDITFilter was compiled on: ask others"):
        wanted(judged, tmp_path / "runs", engine.lm(), rows=["trimmed"], programs=[str(files["judge"])])
    assert engine.calls == 0
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("trained", ["reader", "filter"])
def test_a_question_that_a_model_was_trained_on_is_refused_before_any_call(
    trained: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the reader, and of a row's filter, whichever row it is; the move is one that the command has."""
    write_questions(tmp_path, [load("nq", "sample")[2].question])
    monkeypatch.setattr("blendfilter.filters.written.connect", lambda name, **_: ScriptedLM([]))
    engine = CountingEngine()
    models = [f"filco:{tmp_path}"] if trained == "filter" else []
    if trained == "reader":
        engine.checkpoint = Checkpoint(tmp_path)  # type: ignore[attr-defined]  # as that of `hf/…`
    options: dict[str, Any] = {"tasks": ["nq"], "measures": ["strinc"], "models": models}
    with pytest.raises(Leak, match=r"trained on: ask others .*, or take another model or program") as error:
        wanted("filco-table3", tmp_path / "runs", engine.lm(), **options)
    assert "\n" not in str(error.value)
    assert engine.calls == 0


def test_programs_that_no_row_takes_are_refused(files: dict[str, Path], judged: PaperTable, tmp_path: Path) -> None:
    frontier = tables.read("filco-frontier")

    def inputs(program: object, table: PaperTable = frontier) -> RowInputs:
        return RowInputs(table, connect("offline"), tmp_path, RowOptions(programs=[str(program)]))

    with pytest.raises(BadArgument, match=r"one\.json was compiled for filco, which no row of table4 has"):
        inputs(files["one"], tables.read("table4"))
    with pytest.raises(BadArgument, match="compiled for cdit, which no row of small has"):
        inputs(files["judge"], judged.cut(labels=["original"]))
    with pytest.raises(BadArgument, match=r"blend\.json was compiled for BlendFilter"):
        inputs(files["blend"])
    with pytest.raises(UnknownName, match="no task 'strategyqa'"):
        inputs(f"strategyqa={files['one']}")
    with pytest.raises(MissingFile, match="no program at nowhere"):
        inputs("nowhere.json")
    with pytest.raises(BadArgument, match="names no value"):
        inputs("nq=")


# --- silver contexts ---


def test_silver_is_made_once_by_the_papers_measure_or_the_one_named(tmp_path: Path) -> None:
    """It is chosen from what every other row was given: the same index, the same K."""
    first = made("filco-table4", tmp_path, limit=3, tasks=["nq", "hotpotqa"], measures=["hotpotqa=strinc"])
    (of_nq,) = (tmp_path / "silver").glob("nq-strinc-k5-3-*.jsonl")
    assert len(list((tmp_path / "silver").glob("hotpotqa-strinc-k5-3-*.jsonl"))) == 1
    index, questions = BM25.build(sample("corpus.jsonl")), load("nq", "sample", limit=3)
    for row, question in zip(map(json.loads, of_nq.read_text("utf-8").splitlines()), questions, strict=True):
        assert [each["id"] for each in row["passages"]] == [each.id for each in index(question.question, 5)]
    note = "hotpotqa: SILVER by strinc, as asked; the paper's measure for it is cxmi"
    assert [each for each in first.result.notes if "SILVER by" in each] == [note]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jsonl")}
    made("filco-table4", tmp_path, limit=3, tasks=["nq", "hotpotqa"], measures=["strinc"])
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jsonl")} == before


def test_what_no_model_here_can_score_is_shown_as_not_run(tmp_path: Path) -> None:
    tries: list[object] = []

    def refused(journal: object) -> KeptScorer:
        tries.append(journal)
        raise BadArgument("m gives no log-probabilities of given text")

    found = wanted("filco-table5", tmp_path, limit=1, tasks=["fever"], make_scorer=refused)
    assert [each.row.label for each in found.left_out] == ["CXMI", "CXMI"]
    assert "CXMI" not in {each.row.label for each in found.runs}
    (note,) = runs.not_run(found.left_out)
    assert note.startswith("fever: FLAN-T5, CXMI; Llama 2, CXMI: not run: cxmi: m gives no log-probabilities")
    assert "--scorer" in note
    assert len(tries) == 1, "one try for both readers"
    with pytest.raises(BadArgument, match="m gives no log-probabilities"):
        wanted("filco-figure4", tmp_path, limit=1, tasks=["fever"], make_scorer=refused, scorer="named")


def test_strinc_and_a_yes_or_no(tmp_path: Path) -> None:
    """All is kept where it has no silver; where it has none at all, what was asked is refused."""
    rows = [
        {"id": one.id, "question": one.question, "answer": one.golden_answers[0]}
        for one in [*load("hotpotqa", "sample", limit=3), *load("strategyqa", "sample", limit=2)]
    ]
    (path := tmp_path / "mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    how: dict[str, Any] = {"data": [str(path)], "corpus": ["sample"], "tasks": ["hotpotqa"], "measures": ["strinc"]}
    found = wanted("filco-table4", tmp_path / "runs", limit=5, **how)
    note = (
        "hotpotqa: SILVER by strinc keeps everything for 2 of 5 questions, which are answered by a verdict (yes or no)"
    )
    assert note in found.inputs.notes
    (silver,) = {one.method.select for one in found.runs if one.row.label == "SILVER"}
    passages = [Passage("1", "Tolm", "A port.")]
    assert silver(question=rows[-1]["question"], passages=passages).kept == passages
    with pytest.raises(BadArgument, match="strinc cannot label the questions of"):
        wanted("filco-figure4", tmp_path / "four", limit=1, tasks=["fever"], measures=["fever=strinc"])


def test_a_row_of_strincs_own_keeps_nothing_for_a_verdict(tmp_path: Path) -> None:
    """Table 5 shows STRINC on FEVER, from empty contexts; a yes or no of HotPotQA's has one, too."""
    rows = [
        {"id": one.id, "question": one.question, "answer": one.golden_answers[0]}
        for one in [*load("hotpotqa", "sample", limit=3), *load("strategyqa", "sample", limit=2)]
    ]
    (path := tmp_path / "mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    data = ["fever=sample", f"hotpotqa={path}"]
    done = made(
        "filco-table5", tmp_path, limit=5, data=data, corpus=["sample"], tasks=["fever", "hotpotqa"], rows=["STRINC"]
    )
    nothing = "questions, which are answered by a verdict (yes or no): as in the paper, the context is empty"
    assert done.inputs.notes == [
        f"fever: strinc keeps nothing for 5 of 5 {nothing}", f"hotpotqa: strinc keeps nothing for 2 of 5 {nothing}"
    ]  # fmt: skip
    fever, hotpotqa = ([row["knowledge"] for row in run.rows] for run in done.done.values())
    assert fever == [[]] * 5
    assert [bool(kept) for kept in hotpotqa[3:]] == [False, False]
    assert any(hotpotqa[:3])
    assert done.line("STRINC", "accuracy", "FLAN-T5").published == 0.809


def fake_scorer(pairs: list[TextPair]) -> Callable[[Any], KeptScorer]:
    """Finds an output the likelier the more stands before it."""

    class Likely:
        name = "likely"
        identity: Mapping[str, Any] = {"name": "likely"}

        async def compute(self, batch: Sequence[TextPair], done: Done) -> None:
            for at, pair in enumerate(batch):
                pairs.append(pair)
                done(at, Score(-100.0 + len(pair.prompt) / 100, 1))

    return lambda journal: KeptScorer(Likely(), Journal(journal))


def test_cxmi_calls_the_scorer_and_keeps_its_scores(tmp_path: Path) -> None:
    pairs: list[TextPair] = []
    lines: list[str] = []
    options: dict[str, Any] = {"limit": 2, "tasks": ["hotpotqa"], "make_scorer": fake_scorer(pairs)}
    found = wanted("filco-figure4", tmp_path, say=lines.append, **options)
    assert lines[-1] == "silver contexts of hotpotqa: 2 of 2 questions"
    assert "hotpotqa: SILVER's cxmi is what likely finds likely" in found.inputs.notes
    assert [each.row.label for each in found.runs] == 2 * ["FULL", "PSG", "FILCO", "SILVER"], "two panels"
    assert (tmp_path / "silver" / "hotpotqa-cxmi.journal").exists()
    assert (number := len(pairs)) > 0
    del found  # and with it the journal of the scores, which is locked
    wanted("filco-figure6", tmp_path, **options)
    assert len(pairs) == number, "another table shares them"


def test_a_plan_makes_no_silver_and_leaves_cxmi_out(tmp_path: Path) -> None:
    found = wanted("filco-table4", tmp_path / "runs", tasks=["nq", "fever"], scratch=tmp_path / "scratch")
    planned = runs.plan(found.runs)
    assert not (tmp_path / "runs").exists()
    assert runs.not_run(found.left_out) == [
        "fever: FilCo, top 5, SILVER: not run: no plan does it: cxmi scores every sentence of the passages"
    ]  # fmt: skip
    calls = {(each.task, each.label.rpartition(", ")[2]): each.a_question for each in planned.runs}
    assert calls["nq", "SILVER"] == calls["nq", "FULL"] == 1
    assert calls["nq", "FILCO"] == 2


# --- trimmed indexes ---


def test_an_overlay_is_judged_once_and_shares_its_calls_with_the_filter(judged: PaperTable, tmp_path: Path) -> None:
    engine = CountingEngine(reply=consistent_for_odd)
    lines: list[str] = []
    done = made(judged, tmp_path / "runs", engine.lm(), say=lines.append)
    calls = {label: done.run(label).metrics["ledger"] for label in ("CDIT", "trimmed")}
    assert engine.stages["consistent"] == len(set(verdicts(engine.prompts))) > 0
    assert calls["CDIT"]["consistent"]["calls"] == engine.stages["consistent"], "the overlay's, taken over"
    assert "consistent" not in calls["trimmed"], "no judge at answer time"
    assert len(lines) == 1
    folders = {one.row.label: one.folder.name for one in done.runs}
    assert len(set(folders.values())) == 4, "what is left and what is filled up are runs of their own"
    assert folders["trimmed"].startswith("popqa-ralm-k5-trimmed-")
    (note,) = done.inputs.notes
    counted = re.search(r"(\d+) judged, .* pairs separated: ([\d,]+)$", note)
    assert counted
    assert int(counted[1]) == 4
    assert int(counted[2].replace(",", "")) > 0
    before = len(engine.prompts)
    made(judged, tmp_path / "runs", engine.lm())
    assert len(engine.prompts) == before, "the same command again asks nothing"


def test_what_a_run_had_judged_is_not_judged_again_for_an_overlay(judged: PaperTable, tmp_path: Path) -> None:
    engine = CountingEngine(reply=consistent_for_odd)
    made(judged, tmp_path / "runs", engine.lm(), rows=["CDIT"])
    before = engine.stages["consistent"]
    made(judged, tmp_path / "runs", engine.lm())
    assert engine.stages["consistent"] == before


def test_a_trimmed_row_reads_what_the_judge_left_and_another_is_filled_up_to_k(
    judged: PaperTable, tmp_path: Path
) -> None:
    done = made(judged, tmp_path / "runs", CountingEngine(reply=consistent_for_odd).lm(), limit=8)
    rows = {label: {row["id"]: row["branches"]["q"] for row in done.run(label).rows}
            for label in ("original", "CDIT", "trimmed", "trimmed, refilled")}  # fmt: skip
    gone = []
    for name, bare in rows["original"].items():
        kept, left, filled = (
            rows["CDIT"][name]["kept"], rows["trimmed"][name]["retrieved"], rows["trimmed, refilled"][name]["retrieved"]
        )  # fmt: skip
        assert left == kept
        assert len(filled) == judged.k
        assert [each for each in filled if each in bare["retrieved"]] == kept
        gone.append(len(set(bare["retrieved"]) - set(left)))
    assert 0 < sum(gone) / len(gone) != judged.k / 2, "else what stayed would look the same"
    (note, _) = [each for each in done.result.notes if "Trimmed index" in each]
    assert f"{sum(map(bool, gone))} of 8 searches changed; dropped {sum(gone)} passages" in note


def test_the_judge_sees_every_question_and_each_index_and_set_of_questions_apart(
    judged: PaperTable, tmp_path: Path
) -> None:
    """As the table's notes say. `trim` itself would let the second question take over the first one's verdicts."""
    words = ["Who painted The Provident off Ormskerry?", "Who painted The Provident, off Ormskerry?"]
    questions = load("popqa", [{"question": each, "answer": "Lio Dunsarrow"} for each in words])
    others = load("popqa", [{"question": each, "answer": "Tolm"} for each in ("Where is Tolm?", "What is Tolm?")])
    lines = sample("corpus.jsonl").read_text(encoding="utf-8").splitlines()[:150]
    (tmp_path / "fewer.jsonl").write_text("\n".join(lines), encoding="utf-8")
    whole, fewer = BM25.build(sample("corpus.jsonl")), BM25.build(tmp_path / "fewer.jsonl")
    engine = CountingEngine(reply=consistent_for_odd)
    row = judged.rows[2]
    inputs, again = (RowInputs(judged, engine.lm(), tmp_path / "runs") for _ in range(2))
    inputs.trimmed(row, questions, whole, 3)
    assert engine.stages["consistent"] == 6
    inputs.trimmed(row, questions, fewer, 3)
    again.trimmed(row, others, whole, 3)
    assert all("2 judged, " in note for note in [*inputs.notes, *again.notes])
    assert len(list((tmp_path / "runs" / "trimmed").iterdir())) == 3


def test_a_question_that_could_not_be_judged_is_noted_and_asked_again(judged: PaperTable, tmp_path: Path) -> None:
    broken = [True]

    async def before(stage: str, prompt: str) -> None:
        if broken[0] and stage == "consistent":
            raise RuntimeError("out of luck")

    engine = CountingEngine(before, consistent_for_odd)
    inputs = wanted(judged, tmp_path / "runs", engine.lm(), rows=["trimmed"]).inputs
    assert inputs.errors == 4
    assert "4 could not be judged" in inputs.notes[-1]
    broken[0] = False
    assert wanted(judged, tmp_path / "runs", engine.lm(), rows=["trimmed"]).inputs.errors == 0


def test_a_plan_of_an_overlay_calls_no_model_and_leaves_nothing(judged: PaperTable, tmp_path: Path) -> None:
    engine = CountingEngine(reply=consistent_for_odd)
    found = wanted(judged, tmp_path / "runs", engine.lm(), limit=6, scratch=tmp_path / "scratch")
    cost = {each.label: each for each in runs.plan(found.runs).runs}
    assert not engine.prompts
    assert not (tmp_path / "runs").exists()
    assert (cost["CDIT"].calls, cost["trimmed"].calls) == (6 * 6, 6)
    (note,) = found.inputs.notes
    assert (
        note
        == "popqa: bm25 trimmed by 6 questions under phi1: 30 calls of the judge at most; rows that judge share them"
    )
    made(judged, tmp_path / "runs", engine.lm(), limit=6)
    before = len(engine.prompts)
    again = wanted(judged, tmp_path / "runs", engine.lm(), limit=6, scratch=tmp_path / "scratch")
    assert [each.finished for each in runs.plan(again.runs).runs] == [True] * 4
    assert len(engine.prompts) == before


def test_templates_of_ones_own_are_used_by_judges_and_methods(judged: PaperTable, tmp_path: Path) -> None:
    for name in ("cdit/word.j2", "cdit/answer.j2"):
        text = (resources.prompts() / name).read_text("utf-8")
        (copy := tmp_path / "prompts" / name).parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text.replace("{% endmacro %}", "Mind the tides.\n{% endmacro %}", 1), "utf-8")
    engine, prompts = CountingEngine(reply=consistent_for_odd), Prompts(tmp_path / "prompts")
    plain = {each.folder for each in wanted(judged, tmp_path / "plain", engine.lm(), limit=1).runs}
    engine.prompts.clear()
    done = made(judged, tmp_path / "runs", engine.lm(), limit=1, prompts=prompts)
    assert len(verdicts(engine.prompts)) == judged.k
    assert len(engine.prompts) > judged.k
    assert all("Mind the tides." in prompt for prompt in engine.prompts)
    assert not {each.name for each in plain} & {each.name for each in done.done}, "runs of other prompts lie apart"


def test_no_demonstrations_may_be_asked_for_by_task(tmp_path: Path) -> None:
    """For models that were trained without any: `none` is not the lack of a file."""
    table = tables.read("filco-table4")
    for given, shown in (("none", (0, 0)), ("nq=none", (0, 3))):
        inputs = RowInputs(table, connect("offline"), tmp_path, RowOptions(demos=[given]))
        assert tuple(len(inputs.wording(task, task).demos) for task in ("nq", "triviaqa")) == shown
