"""What is used again and replayed, and which folders a run refuses."""

from __future__ import annotations

import json
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from small_world import CountingEngine, done_by, stable
from stored import write_rows

from blendfilter import BM25, BlendFilter, ChainOfThought, Direct, Prompts, Run, evaluate, plan
from blendfilter.errors import MissingFile, ReplayMiss, RunMismatch
from blendfilter.evaluation.recorded import RecordedIndex
from blendfilter.evaluation.run_folder import read_rows
from blendfilter.lm.offline import read
from blendfilter.tasks import Questions

# reuse and replay


def test_reuse_copies_calls(index: BM25, questions: Questions, tmp_path: Path) -> None:
    """External is the very prompt of cot-retrieval's answer: what that run asked is not asked again."""
    cot, wanted = done_by(ChainOfThought(index), questions, tmp_path / "cot")
    alone, full = done_by(BlendFilter(index), questions, tmp_path / "alone")
    run, engine = done_by(BlendFilter(index), questions, tmp_path / "run", reuse=[cot.folder])
    assert engine.stages["external"] == 0
    assert engine.calls <= full.calls - len(questions)
    assert Counter(engine.prompts) == Counter(full.prompts) - Counter(wanted.prompts)
    assert stable(run.folder) == stable(alone.folder), "what was reused counts as this run's own"
    for path in cot.folder.iterdir():
        path.unlink()
    replayed, silent = done_by(BlendFilter(index), questions, tmp_path / "run", replay=True)
    assert silent.calls == 0, "the run is whole by itself"
    assert stable(replayed.folder) == stable(alone.folder)


@pytest.mark.parametrize("kind", [str, Path, Run, lambda folder: [Run(folder)]])
def test_one_run_to_reuse_needs_no_list(kind: Any, index: BM25, questions: Questions, tmp_path: Path) -> None:
    """Its folder does, and so does the run itself."""
    old, _ = done_by(Direct(index), questions[:1], tmp_path / "old")
    assert plan(Direct(index), questions[:1], CountingEngine().lm(), reuse=kind(old.folder)).total.calls == 0
    _, engine = done_by(Direct(index), questions[:1], tmp_path / "new", reuse=kind(old.folder))
    assert engine.calls == 0


def test_a_replay_does_not_replace_rows_by_what_a_shorter_journal_gives(
    index: BM25, questions: Questions, tmp_path: Path
) -> None:
    """37 bytes are gone: the last record, a search that one row's figures were made of."""
    run, _ = done_by(BlendFilter(index), questions, tmp_path / "run")
    before, path = stable(run.folder), run.folder / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-37])
    known = RecordedIndex("bm25", index.fingerprint, MissingFile("no index there"))
    with (
        pytest.warns(UserWarning, match="question alone that failed: 1"),
        pytest.raises(RunMismatch, match=r"a replay does not give the rows of .*, so nothing was replaced"),
    ):
        done_by(BlendFilter(known), questions, tmp_path / "run", replay=True)
    assert stable(run.folder) == before
    again, _ = done_by(BlendFilter(index), questions, tmp_path / "run")
    assert stable(again.folder) == before


def test_a_replay_takes_no_row_for_a_better_one(index: BM25, questions: Questions, tmp_path: Path) -> None:
    run, _ = done_by(BlendFilter(index), questions, tmp_path / "run")
    path = run.folder / "predictions.jsonl"
    rows = read_rows(path)
    rows[1]["retrieval"]["q"]["recall"] = 0.123
    write_rows(path, rows)
    before = stable(run.folder)
    with pytest.raises(RunMismatch, match=rf"1 differ, first '{rows[1]['id']}'\), so nothing was replaced"):
        done_by(BlendFilter(index), questions, tmp_path / "run", replay=True)
    assert stable(run.folder) == before


def test_a_replay_mends_what_is_worse_than_what_it_gives(index: BM25, questions: Questions, tmp_path: Path) -> None:
    """Rows that are missing, ended in an error, or whose scores are not their answers'."""
    run, _ = done_by(BlendFilter(index), questions, tmp_path / "run")
    before, path = stable(run.folder), run.folder / "predictions.jsonl"
    rows = read_rows(path)
    rows[0] |= {"answer": None, "em": 0.0, "f1": 0.0, "error": {"kind": "timeout", "stage": "ids", "message": ""}}
    rows[1] |= {"em": 0.5}
    write_rows(path, rows[:-1])
    done_by(BlendFilter(index), questions, tmp_path / "run", replay=True)
    assert stable(run.folder) == before


def test_an_edited_answer_template_costs_two_calls_a_question(
    index: BM25, questions: Questions, tmp_path: Path
) -> None:
    old, _ = done_by(BlendFilter(index), questions, tmp_path / "old")
    mine = tmp_path / "prompts/blendfilter"
    mine.mkdir(parents=True)
    text = Prompts()["blendfilter/external"].path.read_text()
    (mine / "answer.j2").write_text(text.replace("{{ instructions }}", "{{ instructions }} Be brief."))
    method = BlendFilter(index, prompts=Prompts(tmp_path / "prompts"))
    # A model that heeds the edit reasons otherwise, so its short answer is asked for anew as well.
    brief = CountingEngine(reply=lambda prompt: ("In short: " if "Be brief." in prompt else "") + read(prompt))
    run = evaluate(method, questions, lm=brief.lm(), run=tmp_path / "new", reuse=[old.folder], progress=False)
    assert brief.stages == {"answer": len(questions), "short_answer": len(questions)}
    assert run.metrics["ledger"]["total"]["calls"] > 2 * len(questions), "what was reused is accounted for too"


def test_a_replay_asks_nobody(
    index: BM25, questions: Questions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = done_by(BlendFilter(index), questions, tmp_path / "run")
    before = stable(run.folder)
    attempts: list[Any] = []

    def no_connection(*address: Any) -> None:
        attempts.append(address)
        raise OSError("the network is gone")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, no_connection)
    monkeypatch.setattr(BM25, "find", lambda *_: pytest.fail("the index was searched"))
    for name in ("predictions.jsonl", "metrics.json"):
        (run.folder / name).unlink()
    again, engine = done_by(BlendFilter(index), questions, tmp_path / "run", replay=True)
    assert stable(again.folder) == before
    assert engine.calls == 0
    assert attempts == []


def test_a_replay_miss_names_question_and_stage(index: BM25, questions: Questions, tmp_path: Path) -> None:
    done_by(BlendFilter(index), questions[:5], tmp_path / "run")
    record = json.loads((tmp_path / "run/run.json").read_text())
    record["settings"]["data"] = {"source": "sample", "fingerprint": questions.fingerprint, "n": 6}
    (tmp_path / "run/run.json").write_text(json.dumps(record))
    before = stable(tmp_path / "run")
    with pytest.raises(ReplayMiss, match=rf"question '{questions[5].id}'.*searches index {index.fingerprint}"):
        done_by(BlendFilter(index), questions, tmp_path / "run", replay=True)
    assert stable(tmp_path / "run") == before
    with pytest.raises(MissingFile, match="no run there"):
        evaluate(BlendFilter(index), questions, lm="offline", replay=True, progress=False)


# what is refused


def test_other_demonstrations_are_refused_and_another_address_is_not(
    index: BM25, questions: Questions, tmp_path: Path
) -> None:
    run, engine = done_by(BlendFilter(index), questions, tmp_path / "run")
    changed = BlendFilter(index)
    changed.answering.answer.demos = changed.answering.answer.demos[:1]
    with pytest.raises(RunMismatch, match=r"method\.program"):
        done_by(changed, questions, run.folder)
    moved = engine.lm()
    moved.address = "http://127.0.0.1:77/v1"
    evaluate(BlendFilter(index), questions, lm=moved, run=run.folder, concurrency=2, progress=False)
    notes = json.loads((run.folder / "run.json").read_text())["notes"]
    assert (notes["address"], notes["concurrency"]) == ("http://127.0.0.1:77/v1", 2), (
        "these may change between sittings"
    )
