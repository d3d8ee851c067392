"""What one sitting leaves for the next: metrics that no longer fit, temporary files; and replays beside a writer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import dspy
import pytest
from small_world import FILES, CountingEngine, Watching, done_by, stable, tree

from blendfilter import BM25, Direct, Run, append_only, evaluate
from blendfilter.errors import BadArgument, BudgetSpent, CannotWrite, MissingFile, RunLocked, ServerRefused
from blendfilter.journal import FILE, Journal
from blendfilter.tasks import Questions


class Moody(dspy.Module):
    """Fails one question by whatever is in `error`; answers the others."""

    def __init__(self, bad: str) -> None:
        super().__init__()
        self.bad = bad
        self.raising: list[Exception] = []  # what it raises, the newest last

    async def aforward(self, question: str) -> dspy.Prediction:
        if question == self.bad and self.raising:
            raise self.raising[-1]
        return dspy.Prediction(answer="yes")


def test_metrics_of_an_earlier_sitting_are_gone_until_the_run_is_finished(questions: Questions, tmp_path: Path) -> None:
    method = Moody(questions[1].question)
    method.raising = [RuntimeError("no luck")]
    run, _ = done_by(method, questions, tmp_path / "run")
    assert (run.finished, run.errors) == (True, 1)
    method.raising = [ServerRefused("the server is gone")]
    with pytest.raises(ServerRefused):
        done_by(method, questions, tmp_path / "run")
    half = Run(run.folder)
    assert not half.finished
    with pytest.raises(MissingFile, match="is not finished: 5 of 6 questions are answered, 1 missing; run the same"):
        _ = half.metrics
    method.raising = []
    again, _ = done_by(method, questions, tmp_path / "run")
    assert (again.finished, again.errors, again.metrics["n"]) == (True, 0, 6)


def test_a_finished_run_keeps_its_metrics_while_it_is_read_again(questions: Questions, tmp_path: Path) -> None:
    run, _ = done_by(Moody(""), questions, tmp_path / "run")
    before = stable(run.folder)

    class Looking:
        def start(self, total: int, done: int) -> None:
            assert stable(run.folder) == before

        def advance(self, row: Any, tokens: int) -> None:
            pytest.fail("nothing is left to ask")

        def stop(self) -> None:
            pass

    evaluate(Moody(""), questions, lm=CountingEngine().lm(), run=run.folder, progress=Looking())
    assert stable(run.folder) == before


@pytest.mark.parametrize("name", [".run.json.123.tmp", ".metrics.json.9.tmp", ".predictions.jsonl.77.tmp"])
def test_a_temporary_file_of_a_killed_sitting_is_removed(name: str, questions: Questions, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / FILE).touch()
    (folder / name).write_text('{"settin')
    run, _ = done_by(Direct(), questions, folder)
    assert run.errors == 0
    assert {path.name for path in folder.iterdir()} == FILES


def test_a_file_of_somebody_elses_is_not(questions: Questions, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.notes.tmp").write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(BadArgument, match="is not empty and holds no run"):
        done_by(Direct(), questions, tmp_path / "run")
    assert tree(tmp_path) == before


def test_a_replay_beside_a_writer_is_refused(questions: Questions, tmp_path: Path) -> None:
    """It would put its own files into the place of those that the writer appends to."""
    run, _ = done_by(Direct(), questions, tmp_path / "run")
    before = tree(run.folder)
    with Journal(run.folder), pytest.raises(RunLocked, match="is being written to"):
        done_by(Direct(), questions, tmp_path / "run", replay=True)
    assert tree(run.folder) == before
    again, engine = done_by(Direct(), questions, tmp_path / "run", replay=True)
    assert (engine.calls, again.rows) == (0, run.rows)
    with Journal(run.folder, "replay"), Journal(run.folder):
        pass  # who only reads is in nobody's way


def test_a_replay_of_no_run_makes_nothing(questions: Questions, tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"run\.json"):
        done_by(Direct(), questions, tmp_path / "gone", replay=True)
    assert list(tmp_path.iterdir()) == []
    run, _ = done_by(Direct(), questions, tmp_path / "run")
    for name in FILES - {FILE}:
        (run.folder / name).unlink()
    before = tree(tmp_path)
    with pytest.raises(MissingFile, match=r"run\.json"):
        done_by(Direct(), questions, tmp_path / "run", replay=True)
    assert tree(tmp_path) == before


def test_a_full_disk_stops_the_run_before_more_is_paid_for(
    index: BM25, questions: Questions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that cannot be kept is no question's own error: each further one would be paid for in vain."""
    whole, _ = done_by(Direct(index), questions, tmp_path / "whole")
    write, wrote = append_only.write_all, []

    def full(fd: int, data: bytes) -> None:
        if b'"kind":"call"' in data:
            wrote.append(data)
            if len(wrote) > 2:
                raise OSError(28, "No space left on device")
        write(fd, data)

    engine = CountingEngine()
    with monkeypatch.context() as patch:
        patch.setattr(append_only, "write_all", full)
        with pytest.raises(CannotWrite, match=r"journal\.jsonl takes no more.*No space"):
            done_by(Direct(index), questions, tmp_path / "run", engine=engine, concurrency=1)
    assert engine.calls < len(questions)
    again, _ = done_by(Direct(index), questions, tmp_path / "run")
    assert stable(again.folder) == stable(whole.folder)


class Failing(dspy.Module):
    """Fails some questions; the one that ends the run comes last."""

    def __init__(self, errors: dict[str, Exception], last: str) -> None:
        super().__init__()
        self.errors, self.last = errors, last
        self.others_over = asyncio.Event()

    async def aforward(self, question: str) -> dspy.Prediction:
        if question == self.last:
            await self.others_over.wait()
        if question in self.errors:
            raise self.errors[question]
        return dspy.Prediction(answer="yes")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("end", [ServerRefused("the server is gone"), BudgetSpent("the budget is spent")])
def test_a_question_that_ended_in_an_error_is_not_counted_as_answered(
    end: Exception, questions: Questions, tmp_path: Path
) -> None:
    texts = [each.question for each in questions[:4]]
    method = Failing({texts[0]: RuntimeError(), texts[1]: RuntimeError(), texts[3]: end}, last=texts[3])
    watching = Watching(lambda count: method.others_over.set() if count == 3 else None)
    with pytest.raises(type(end), match="1 of 4 questions are answered, 2 ended in an error"):
        evaluate(method, questions[:4], lm="offline", run=tmp_path / "run", progress=watching)
    half = Run(tmp_path / "run")
    with pytest.raises(MissingFile, match="1 of 4 questions are answered, 2 ended in an error, 1 missing"):
        _ = half.metrics
    assert "1 of 4 questions are answered, 2 ended in an error" in half.report()
