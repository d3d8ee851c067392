"""Runs of shards and the run that they are merged into: the same bytes as one process writes."""

from __future__ import annotations

import json
import resource
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from dspy import lm15
from small_world import FILES, CountingEngine, done_by, journaled, slowly, stable, tree

import blendfilter
from blendfilter import BM25, BlendFilter, Budget, ChainOfThought, Direct, Run, load, merge
from blendfilter.errors import BadArgument, BadData, CannotWrite, MissingFile, RunFailed, RunLocked, RunMismatch
from blendfilter.journal import Journal
from blendfilter.lm.budget import Amount, marked
from blendfilter.tasks import Questions


def sharded(questions: Questions, of: int, folder: Path, method: Any, **options: Any) -> list[Path]:
    """The folders of a run in so many shards."""
    numbers = range(1, of + 1)
    return [
        done_by(method, questions.shard(number, of), folder / f"{number}of{of}", **options)[0].folder
        for number in numbers
    ]


@pytest.fixture
def two(index: BM25, questions: Questions, tmp_path: Path) -> list[Path]:
    """A small run in two shards."""
    return sharded(questions, 2, tmp_path, Direct(index))


# --- the questions of a shard


def test_shards_deal_out_every_question_once(questions: Questions) -> None:
    ids = [question.id for question in questions]
    assert [question.id for question in questions.shard(2, 4)] == [ids[1], ids[5]]
    assert sorted(question.id for number in (1, 2, 3, 4) for question in questions.shard(number, 4)) == sorted(ids)
    assert questions.shard(1, 1).items == questions.items


@pytest.mark.parametrize(
    ("number", "of", "words"),
    [
        (8, 7, "there is no shard 8/7: shards are numbered 1 to 7"),
        (0, 2, "there is no shard 0/2"),
        (1, 7, "6 questions make 6 shards at most"),
    ],
)
def test_a_shard_that_is_none_is_refused(number: int, of: int, words: str, questions: Questions) -> None:
    with pytest.raises(BadArgument, match=words):
        questions.shard(number, of)
    with pytest.raises(BadArgument, match="these are shard 1/2 of other questions"):
        questions.shard(1, 2).shard(1, 2)


# --- merging


@pytest.mark.parametrize("of", [1, 2, 5, 6])
def test_merged_shards_are_the_run_of_one_process(of: int, index: BM25, questions: Questions, tmp_path: Path) -> None:
    whole, _ = done_by(BlendFilter(index), questions, tmp_path / "whole", engine=CountingEngine(slowly()))
    shards = sharded(questions, of, tmp_path, BlendFilter(index))
    merged = merge(*reversed(shards), out=tmp_path / "merged")
    assert stable(merged.folder) == stable(whole.folder)
    assert {path.name for path in merged.folder.iterdir()} == FILES
    assert (merged.settings, merged.record["versions"]) == (whole.settings, whole.record["versions"])
    assert merged.record["notes"]["questions"] == whole.record["notes"]["questions"]
    keys = {kind: {each["key"] for each in journaled(whole.folder, kind)} for kind in ("call", "search", "passage")}
    assert {kind: {each["key"] for each in journaled(merged.folder, kind)} for kind in keys} == keys


def test_answers_that_are_repeated_stand_repeat_by_repeat(index: BM25, questions: Questions, tmp_path: Path) -> None:
    whole, _ = done_by(ChainOfThought(index), questions, tmp_path / "whole", repeats=3)
    merged = merge(*sharded(questions, 4, tmp_path, ChainOfThought(index), repeats=3), out=tmp_path / "merged")
    assert stable(merged.folder) == stable(whole.folder)


def test_a_merged_run_replays_and_goes_on_like_any_other(two: list[Path], index: BM25, questions: Questions) -> None:
    merged = merge(*two, out=two[0].parent / "merged")
    before = stable(merged.folder)
    again, engine = done_by(Direct(index), questions, merged.folder, replay=True)
    assert (engine.calls, stable(again.folder)) == (0, before)
    more, engine = done_by(Direct(index), questions, merged.folder, repeats=2)
    assert (engine.calls, len(more.rows)) == (6, 12)
    assert merged.rescore("cover-em").signature


@pytest.mark.filterwarnings("ignore:1 of")
def test_a_question_that_failed_stays_a_failure(index: BM25, questions: Questions, tmp_path: Path) -> None:
    async def fail_one(_stage: str, prompt: str) -> None:
        if questions[3].question in prompt:
            raise ValueError("this one does not work")

    whole, _ = done_by(Direct(index), questions, tmp_path / "whole", engine=CountingEngine(fail_one))
    shards = [
        done_by(Direct(index), questions.shard(n, 3), tmp_path / str(n), engine=CountingEngine(fail_one))[0].folder
        for n in (1, 2, 3)
    ]
    assert stable(merge(*shards, out=tmp_path / "merged").folder) == stable(whole.folder)
    assert whole.errors == 1


def test_what_two_shards_asked_alike_is_journaled_once(index: BM25, tmp_path: Path) -> None:
    rows = [{"id": str(at), "question": "Who won the regatta?", "answer": "Ina Vell"} for at in range(4)]
    questions = load("qa", rows)
    merged = merge(*sharded(questions, 2, tmp_path, Direct(index)), out=tmp_path / "merged")
    whole, engine = done_by(Direct(index), questions, tmp_path / "whole")
    assert (engine.calls, len(journaled(merged.folder))) == (1, 1)
    assert stable(merged.folder) == stable(whole.folder)


def test_a_success_replaces_another_shards_failure_of_the_same_call(index: BM25, tmp_path: Path) -> None:
    rows = [{"id": str(at), "question": "Who won the regatta?", "answer": "Ina Vell"} for at in range(2)]

    async def fail(_stage: str, _prompt: str) -> None:
        raise lm15.ContextLengthError("this one does not fit")

    questions = load("qa", rows)
    with pytest.raises(RunFailed):
        done_by(Direct(index), questions.shard(1, 2), tmp_path / "1", engine=CountingEngine(fail))
    done_by(Direct(index), questions.shard(2, 2), tmp_path / "2")
    merged = merge(tmp_path / "1", tmp_path / "2", out=tmp_path / "merged")
    (failed,) = journaled(tmp_path / "1")
    with merged.journal() as journal:
        known = journal.read_call(failed["key"])
    assert failed["error"]
    assert known is not None
    assert not known.get("error")
    again, engine = done_by(Direct(index), questions, merged.folder)
    assert (engine.calls, again.errors) == (0, 0)


def test_a_merged_run_has_spent_what_its_shards_have(index: BM25, tmp_path: Path) -> None:
    rows = [{"id": str(at), "question": "Who won the regatta?", "answer": "Ina Vell"} for at in range(4)]
    questions = load("qa", rows)
    shards = sharded(questions, 2, tmp_path, Direct(index), budget=Budget(calls=5))
    merged = merge(*shards, out=tmp_path / "merged")  # both paid for the one call, which is journaled once
    with merged.journal() as journal:
        assert marked(journal).calls == 2
    assert "budget" not in merged.record["notes"]  # a shard's is a part of it
    spent = []
    for folder in shards:
        with Run(folder).journal() as journal:
            spent.append(marked(journal))
    with merged.journal() as journal:
        assert marked(journal) == sum(spent, Amount())


def made_with(folder: Path, **versions: str) -> None:
    """Have the run say that other versions made it."""
    record = json.loads((folder / "run.json").read_bytes())
    record["versions"] |= versions
    (folder / "run.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("versions", "signed", "words"),
    [
        ({"dspy": "0.0.1"}, [blendfilter.__version__], r"dspy 0\.0\.1 \(.*2of2\) and dspy \d\S+ \(.*1of2\)$"),
        (
            {"blendfilter": "0.0.1", "python": "3.0"},
            ["0.0.1", blendfilter.__version__],
            r"blendfilter 0\.0\.1 .*; pyth",
        ),
    ],
)
def test_shards_of_several_versions_are_named_and_so_they_are_in_the_recipe(
    versions: dict[str, str], signed: list[str], words: str, two: list[Path]
) -> None:
    before = Run(two[0]).record["versions"]
    made_with(two[1], **versions)
    with pytest.warns(UserWarning, match=rf"^the shards were made by different versions.*{words}"):
        merged = merge(*two, out=two[0].parent / "merged")
    expected = {name: ", ".join(sorted({before[name], versions.get(name, before[name])})) for name in before}
    assert merged.record["versions"] == expected
    assert merged.metrics["signature"].endswith("|" + "+".join(f"v{version}" for version in signed))


def test_shards_of_one_other_version_are_named_beside_the_one_that_merges(two: list[Path]) -> None:
    for folder in two:
        made_with(folder, blendfilter="0.0.1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merged = merge(*two, out=two[0].parent / "merged")
    assert merged.metrics["signature"].endswith(f"|v0.0.1+v{blendfilter.__version__}")


# --- what is no whole run


def test_shards_must_be_of_one_run_and_all_be_there(
    two: list[Path], index: BM25, questions: Questions, tmp_path: Path
) -> None:
    out = tmp_path / "merged"
    copy = shutil.copytree(two[0], tmp_path / "copy")
    other = done_by(Direct(index, k=3), questions.shard(2, 2), tmp_path / "other")[0].folder
    fewer = done_by(Direct(index), questions[:4].shard(2, 2), tmp_path / "fewer")[0].folder
    whole = done_by(Direct(index), questions, tmp_path / "whole")[0].folder
    for runs, error, words in [
        ([two[0]], BadArgument, "shards are missing: 2/2"),
        ([*two, copy], BadArgument, "are both shard 1/2"),
        ([two[0], other], RunMismatch, r"are not shards of one run: method\.arguments\.k was 5, now 3"),
        ([two[0], fewer], RunMismatch, r"data\.shard\.fingerprint was"),
        ([*two, whole], BadArgument, "is no shard but a whole run"),
        ([two[0], tmp_path / "nowhere"], MissingFile, "no run folder at"),
    ]:
        with pytest.raises(error, match=words):
            merge(runs, out=out)  # as a list, which is what a script has
        assert not out.exists()


def test_a_shard_must_be_finished_and_let_go_of(two: list[Path], tmp_path: Path) -> None:
    with Journal(two[1]), pytest.raises(RunLocked):
        merge(*two, out=tmp_path / "merged")
    (two[1] / "metrics.json").unlink()
    with pytest.raises(MissingFile, match="2of2 is not finished"):
        merge(*two, out=tmp_path / "merged")
    assert not {path.name for path in tmp_path.iterdir()} - {path.name for path in two}


def test_a_damaged_shard_is_named(two: list[Path], tmp_path: Path) -> None:
    journal = two[1] / "journal.jsonl"
    sound = journal.read_bytes()
    journal.write_bytes(sound.replace(b'"seconds":', b'"Seconds":', 1))
    with pytest.raises(BadData, match=r"2of2/journal\.jsonl, line \d+: a damaged or edited record"):
        merge(*two, out=tmp_path / "merged")
    journal.write_bytes(sound)
    lines = (two[1] / "predictions.jsonl").read_bytes().splitlines(keepends=True)
    for rows in (lines[:-1], [*lines, lines[0]]):
        (two[1] / "predictions.jsonl").write_bytes(b"".join(rows))
        with pytest.raises(BadData, match=r"2of2/predictions\.jsonl has not one row for each answer"):
            merge(*two, out=tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize(
    "order", [lambda own, other: other, lambda own, other: own[::-1]], ids=["another shard's", "in another order"]
)
def test_a_shard_with_other_rows_than_its_own_is_named(order: Any, two: list[Path]) -> None:
    lines = [(folder / "predictions.jsonl").read_bytes().splitlines(keepends=True) for folder in two]
    (two[1] / "predictions.jsonl").write_bytes(b"".join(order(lines[1], lines[0])))
    with pytest.raises(BadData, match=r"2of2/predictions\.jsonl has not one row for each answer, in their order"):
        merge(*two, out=two[0].parent / "merged")


def test_a_disk_that_fills_leaves_nothing_half_merged(two: list[Path], tmp_path: Path) -> None:
    before, limits = tree(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, limits[1]))
    try:
        with pytest.raises(CannotWrite, match=r"\.merged\.merging-\w+/merged/"):
            merge(*two, out=tmp_path / "merged")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert tree(tmp_path) == before
    assert merge(*two, out=tmp_path / "merged").finished


def test_what_is_there_is_not_written_over(two: list[Path]) -> None:
    before = tree(two[0])
    with pytest.raises(BadArgument, match="is there already"):
        merge(*two, out=two[0])
    assert tree(two[0]) == before
