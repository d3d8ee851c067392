"""CDIT online: which question is judged and which goes by another's verdicts, and that nothing depends on timing."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy import lm15
from judged import AGAIN, PIER, RADIO, WHO_OFF, WHO_ON
from scripted import ScriptedLM
from small_world import CountingEngine, done_by, slowly, stable
from witnessed import witnesses_of

from blendfilter import BM25, evaluate, load
from blendfilter.errors import BadArgument, BudgetSpent, ModelError, RunLocked, RunMismatch
from blendfilter.evaluation.plan import plan
from blendfilter.filters.cdit import CDITFilter
from blendfilter.filters.extractive import PassageFilter
from blendfilter.lm.budget import Budget
from blendfilter.modules.cdit import CDIT
from blendfilter.records import Passage
from blendfilter.retrieval.base import Retriever
from blendfilter.tasks import Questions
from blendfilter.trimming.folder import TrimFolder
from blendfilter.trimming.overlay import Trimmed
from blendfilter.trimming.witnesses import FILE, Witnesses, WitnessWriter

WHO = "Who turned on the radio?"
PLEASE = "Please tell me who turned on the radio."
OFF = "Who turned off the radio?"
FIGURE_8 = [Passage("s1", "", "Mary turned off the radio."), Passage("s2", "", "Jack turned on the radio.")]
STREAM = [WHO_ON, AGAIN, WHO_OFF, PIER, f"Please tell me: {WHO_ON}", f"Could you tell me {PIER[0].lower()}{PIER[1:]}"]
STREAM += [WHO_ON, "Who held the fair of Tavenby?"]
REUSED = [False, True, False, False, True, True, True, False]
JUDGED = 10
"""Passages of the four questions that are judged; of two of them the index finds two."""


@pytest.fixture(scope="module")
def kitchen() -> BM25:
    return BM25.build(RADIO)


def stream(texts: Sequence[str] = STREAM) -> Questions:
    return load("qa", [{"question": text, "answer": "Jack"} for text in texts])


def judge(_stage: str, prompt: str) -> str:
    """Literal agreement on `on` and `off`; the answer is the first word of the background."""
    if "Verdict" in prompt:
        passage, _, question = prompt.rpartition("Passage: ")[2].partition("\nQuestion: ")
        return str((" off " in f" {passage} ") == (" off " in question.partition("\n")[0]))
    return prompt.partition("[1] ")[2].partition(" ")[0]


def state(run: Path) -> dict[str, tuple[tuple[str, ...], ...]]:
    """What a run's witnesses say, but for the time."""
    judged = Witnesses.read(run / FILE).judged.values()
    return {each.question: (each.accepted, each.rejected, each.silent) for each in judged}


class TestFigureThree:
    def test_a_question_is_judged_and_one_like_it_goes_by_its_verdicts(self) -> None:
        """Figure 8: q and q1 get s_2 alone, and q1 costs no judging; the opposite question is judged anew."""
        method = CDIT(BM25.build(FIGURE_8), k=2)
        with dspy.context(lm=ScriptedLM(judge)):
            first, like_it, opposite = (method(question=text) for text in (WHO, PLEASE, OFF))
        assert [[passage.id for passage in each.knowledge] for each in (first, like_it, opposite)] == [
            ["s2"], ["s2"], ["s1"],
        ]  # fmt: skip
        assert [each.answer for each in (first, like_it, opposite)] == ["Jack", "Jack", "Mary"]
        assert [[stage for stage, _ in each.calls] for each in (first, like_it, opposite)] == [
            ["consistent", "consistent", "respond"], ["respond"], ["consistent", "consistent", "respond"],
        ]  # fmt: skip
        assert [each.flags.get("verdicts_reused", 0) for each in (first, like_it, opposite)] == [0, 1, 0]

    def test_the_very_same_question_is_judged_once(self) -> None:
        method, lm = CDIT(BM25.build(FIGURE_8), k=2), ScriptedLM(judge)

        async def both() -> list[dspy.Prediction]:
            return await asyncio.gather(*(method.acall(question=WHO) for _ in range(2)))

        with dspy.context(lm=lm):
            answers = asyncio.run(both())
        assert [stage for stage, _ in lm.prompts].count("consistent") == 2
        assert [answer.answer for answer in answers] == ["Jack", "Jack"]

    def test_a_failed_judgement_is_made_again_by_the_next_who_asks(self) -> None:
        failing = [ModelError("no"), ModelError("no")]
        method = CDIT(BM25.build(FIGURE_8), k=2)
        with dspy.context(lm=ScriptedLM(lambda *call: failing.pop() if failing else judge(*call))):
            with pytest.raises(ModelError):
                method(question=WHO)
            assert method(question=PLEASE).answer == "Jack"


@pytest.fixture(scope="module")
def whole(kitchen: BM25, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("cdit") / "whole"
    done, engine = done_by(CDIT(kitchen, k=3), stream(), run, concurrency=1)
    assert [bool(row["flags"].get("verdicts_reused")) for row in done.rows] == REUSED
    assert done.metrics["flags"]["verdicts_reused"] == sum(REUSED)
    assert {*state(run)} == {text for text, reused in zip(STREAM, REUSED, strict=True) if not reused}
    assert engine.stages["consistent"] == JUDGED
    return run


class TestRun:
    """The same bytes, and the same witnesses, however the run came about."""

    def same(self, run: Path, whole: Path) -> None:
        assert stable(run) == stable(whole)
        assert state(run) == state(whole)

    def test_whatever_runs_at_once(self, kitchen: BM25, whole: Path, tmp_path: Path) -> None:
        _, engine = done_by(
            CDIT(kitchen, k=3), stream(), tmp_path, concurrency=32, engine=CountingEngine(slowly())
        )  # fmt: skip
        assert engine.stages["consistent"] == JUDGED
        self.same(tmp_path, whole)

    @pytest.mark.parametrize("calls", [1, 4, 9, 14])
    def test_stopped_and_taken_up_again(self, calls: int, kitchen: BM25, whole: Path, tmp_path: Path) -> None:
        with pytest.raises(BudgetSpent):
            done_by(CDIT(kitchen, k=3), stream(), tmp_path, budget=Budget(calls=calls))
        done_by(CDIT(kitchen, k=3), stream(), tmp_path)
        self.same(tmp_path, whole)

    def test_killed_at_any_record(self, kitchen: BM25, whole: Path, tmp_path: Path) -> None:
        """Cut anywhere, the journal leads to the same run, with the witnesses beside it as they are."""
        lines = (whole / "journal.jsonl").read_bytes().splitlines(keepends=True)
        for cut in range(0, len(lines), 5):
            run = tmp_path / str(cut)
            shutil.copytree(whole, run)
            (run / "journal.jsonl").write_bytes(b"".join(lines[:cut]) + lines[cut][:20])
            done_by(CDIT(kitchen, k=3), stream(), run)
            self.same(run, whole)

    def test_witnesses_that_a_kill_tore_come_again_with_their_questions(
        self, kitchen: BM25, whole: Path, tmp_path: Path
    ) -> None:
        """Nothing is answered yet, so every question is asked again; the calls are in the journal."""
        verdicts = (whole / FILE).read_bytes()
        for cut in range(0, len(verdicts), len(verdicts) // 7):
            run = tmp_path / str(cut)
            shutil.copytree(whole, run)
            (run / "predictions.jsonl").unlink()
            (run / "metrics.json").unlink()
            (run / FILE).write_bytes(verdicts[:cut])
            _, engine = done_by(CDIT(kitchen, k=3), stream(), run)
            assert not engine.calls
            self.same(run, whole)

    def test_replayed_without_a_model(self, kitchen: BM25, whole: Path, tmp_path: Path) -> None:
        run = tmp_path / "run"
        shutil.copytree(whole, run)
        before = (run / FILE).read_bytes()
        _, engine = done_by(CDIT(kitchen, k=3), stream(), run, replay=True, concurrency=32)
        assert not engine.calls
        self.same(run, whole)
        assert (run / FILE).read_bytes() == before

    def test_a_replay_decides_as_the_run_did(
        self, kitchen: BM25, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The decisions are on file: no encoder is needed, and a guard that has learnt more changes no old run."""
        run = tmp_path / "run"
        shutil.copytree(whole, run)
        monkeypatch.setattr("blendfilter.modules.cdit.similar_for", lambda *_: pytest.fail("compared again"))
        done_by(CDIT(kitchen, k=3), stream(), run, replay=True)
        self.same(run, whole)

    @pytest.mark.parametrize("concurrency", [1, 32])
    def test_failed_and_asked_again(self, concurrency: int, kitchen: BM25, whole: Path, tmp_path: Path) -> None:
        """Those that go by a question whose judging failed fail with it; asked again, all are as if nothing was."""

        async def fail(stage: str, prompt: str) -> None:
            await asyncio.sleep(0.001 * (len(prompt) % 5))
            if stage == "consistent" and f"Question: {WHO_ON}" in prompt and "Market" in prompt:
                raise lm15.ContextLengthError("4097 tokens are too many", status=400)

        def rows(**options: Any) -> list[dict[str, Any]]:
            with pytest.warns(UserWarning, match="ended in an error"):
                return list(done_by(CDIT(kitchen, k=3), stream(), tmp_path, **options)[0].rows)

        failed = rows(engine=CountingEngine(fail), concurrency=concurrency)
        waiting = [text.casefold().find("turn") >= 0 and " on" in text for text in STREAM]
        assert [row["error"] is not None for row in failed] == waiting
        before = stable(tmp_path)
        rows(replay=True)
        assert stable(tmp_path) == before
        done_by(CDIT(kitchen, k=3), stream(), tmp_path, concurrency=concurrency)
        self.same(tmp_path, whole)

    def test_each_repeat_judges_for_itself(self, kitchen: BM25, tmp_path: Path) -> None:
        done, engine = done_by(CDIT(kitchen, k=3), stream(STREAM[:2]), tmp_path, repeats=2)
        assert engine.stages["consistent"] == 6
        assert [row["flags"].get("verdicts_reused", 0) for row in done.rows] == [0, 1, 0, 1]

    def test_another_model_judges(self, kitchen: BM25, tmp_path: Path) -> None:
        judging, answering = CountingEngine(), CountingEngine()
        evaluate(
            CDIT(kitchen, k=3), stream(STREAM[:2]), lm=answering.lm(), filter_lm=judging.lm("judging"), run=tmp_path,
            progress=False,
        )  # fmt: skip
        assert (judging.stages, answering.stages) == ({"consistent": 3}, {"respond": 2})
        (judged,) = Witnesses.read(tmp_path / FILE).judged.values()
        assert judged.by.model == "judging"

    def test_a_plan_counts_the_judge(self, kitchen: BM25) -> None:
        planned = plan(CDIT(kitchen, k=3), stream(STREAM[:1]), lm="offline")
        assert {stage.stage: stage.calls for stage in planned.stages} == {"consistent": 3, "respond": 1}


class TestWhatIsKnownBefore:
    def test_a_trimmed_index_gives_its_verdicts(self, kitchen: BM25, tmp_path: Path) -> None:
        trimmed = Trimmed(kitchen, witnesses_of({WHO_ON: {"on": True, "off": False, "sold": False}}))
        done, engine = done_by(CDIT(trimmed, k=3), stream([AGAIN]), tmp_path)
        assert (engine.stages, done.rows[0]["knowledge"]) == ({"respond": 1}, ["on"])

    def test_an_overlay_grows_outside_of_runs(self, kitchen: BM25, tmp_path: Path) -> None:
        """What one process judged counts for the next one, and for every search of the overlay."""
        for text, stages in ((WHO_ON, ["consistent"] * 3 + ["respond"]), (AGAIN, ["respond"])):
            lm = ScriptedLM(judge)
            method = CDIT(kitchen, k=3, witnesses=tmp_path / "new")
            with dspy.context(lm=lm):
                method(question=text)
            assert [stage for stage, _ in lm.prompts] == stages
        state = TrimFolder.read(tmp_path / "new").state()
        assert [passage.id for passage in Trimmed(kitchen, state, refill=False).search([AGAIN], 3)[0]] == ["on", "sold"]

    def test_a_second_writer_gets_one_line(self, kitchen: BM25, tmp_path: Path) -> None:
        method = CDIT(kitchen, k=3, witnesses=tmp_path / "new")
        with (
            WitnessWriter(tmp_path / "new" / FILE), dspy.context(lm=ScriptedLM(judge)),
            pytest.raises(RunLocked, match="wait for it"),
        ):  # fmt: skip
            method(question=WHO_ON)


def test_arguments_name_what_decides(kitchen: BM25) -> None:
    assert CDIT(kitchen).arguments() == {
        "k": 10, "filter": "CDITFilter", "mode": "word", "rules": ["phi1"], "json_schema": None, "rewrite": False,
        "threshold": 1, "min_similarity": 0.95, "guard": True, "one_way": True, "similarity": "words",
    }  # fmt: skip
    strict = Trimmed(kitchen, Witnesses(), threshold=3, min_similarity=1, guard=False, one_way=False)
    assert CDIT(strict, 5, filter=CDITFilter("components")).arguments() | {"k": 5, "mode": "components", "threshold": 3,
        "min_similarity": 1.0, "guard": False, "one_way": False,
    } == CDIT(strict, 5, filter="cdit-components").arguments()  # fmt: skip


def test_a_copy_remembers_nothing(kitchen: BM25) -> None:
    method = CDIT(kitchen, k=3)
    with dspy.context(lm=ScriptedLM(judge)):
        method(question=WHO_ON)
    lm = ScriptedLM(judge)
    with dspy.context(lm=lm):
        method.deepcopy()(question=WHO_ON)
    assert len(lm.prompts) == 4


def test_bad_input_is_one_line(kitchen: BM25, tmp_path: Path) -> None:
    trimmed: Retriever = Trimmed(kitchen, Witnesses())
    with pytest.raises(BadArgument, match="CDITFilter"):
        CDIT(kitchen, filter=PassageFilter(1))
    with pytest.raises(BadArgument, match="witnesses="):
        CDIT(trimmed, witnesses=tmp_path / "new")
    method = CDIT(kitchen, k=3, witnesses=tmp_path / "new")
    with pytest.raises(RunMismatch, match="k=3"):
        CDIT(kitchen, k=4, witnesses=tmp_path / "new")
    with pytest.raises(BadArgument, match="leave witnesses= out"):
        done_by(method, stream(), tmp_path / "run")
