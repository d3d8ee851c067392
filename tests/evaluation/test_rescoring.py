"""A finished run by other metrics: what is scored, what is kept, what is called again, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dspy import lm15
from model_server import serve
from scripted import ScriptedLM
from small_world import Command, CountingEngine, done_by, journaled, stable, tree

from blendfilter import BM25, Direct, Run, compare
from blendfilter.context import asker
from blendfilter.errors import (
    BadArgument,
    BadData,
    BudgetSpent,
    EmptyData,
    MissingFile,
    ModelError,
    RunFailed,
    RunMismatch,
    ServerRefused,
    UnknownName,
)
from blendfilter.evaluation.rescoring import rescored
from blendfilter.lm.budget import Budget
from blendfilter.records import Question
from blendfilter.statistics import bootstrap_interval, wilson_interval
from blendfilter.tasks import TASKS, Questions


@pytest.fixture
def run(index: BM25, questions: Questions, tmp_path: Path) -> Run:
    """Right in a whole sentence for the first four of six questions, and something else for the others."""
    right = {question.question: question.golden_answers[0] for question in questions[:4]}

    def reply(prompt: str) -> str:
        wanted = next((question for question in right if question in prompt), None)
        return f"I think that {right[wanted]} it is" if wanted else "The tide"

    return done_by(Direct(index), questions, tmp_path / "run", engine=CountingEngine(reply=reply))[0]


def judge() -> ScriptedLM:
    """Says yes to sentences with "I think", no to others."""
    return ScriptedLM(lambda stage, prompt: "yes" if "I think" in prompt.splitlines()[-2] else "no")


def kept(run: Run, name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((run.folder / "rescore" / f"{name}.json").read_text())
    return result


def test_cover_em_finds_the_answer_in_a_sentence(run: Run) -> None:
    before = stable(run.folder)
    assert run.metrics["metrics"]["em"]["value"] == 0
    done = run.rescore("cover-em")
    result = wilson_interval(4, 6)
    assert (done.value, done.low, done.high) == pytest.approx(result, abs=1e-6)
    assert done.rows == {row["id"]: float(place < 4) for place, row in enumerate(run.rows)}
    assert (done.n, done.unreadable, done.errors, done.judge, done.ledger) == (6, 0, 0, None, None)
    assert done.signature.startswith("hotpotqa COVER-EM 66.7 ± ")
    assert kept(run, "cover-em") == done.as_dict()
    assert rescored(run, "cover-em") == done
    assert stable(run.folder) == before
    assert {path.name for path in (run.folder / "rescore").iterdir()} == {"cover-em.json"}


def test_a_model_judges_every_answer_once(run: Run) -> None:
    lm = judge()
    done = run.rescore("llm-judge", lm=lm)
    assert (done.value, lm.calls) == (pytest.approx(4 / 6, abs=1e-6), 6)
    assert done.judge is not None
    assert done.judge["lm"] == "scripted"
    assert done.ledger is not None
    assert done.ledger["calls"] == 6
    assert done.signature.endswith(f"|judge:scripted/{done.judge['prompt']}")
    before = tree(run.folder)
    again = judge()
    assert run.rescore("llm-judge", lm=again) == done
    assert again.calls == 0
    assert tree(run.folder) == before


def test_stopped_it_goes_on_where_it_was(run: Run) -> None:
    result: list[str] = []

    def reply(_stage: str, prompt: str) -> Any:
        result.append(prompt)
        return lm15.AuthError("no", status=401) if len(result) > 3 else "yes"

    with pytest.raises(ServerRefused):
        run.rescore("llm-judge", lm=ScriptedLM(reply), concurrency=1)
    assert not (run.folder / "rescore" / "llm-judge.json").exists()
    lm = judge()
    run.rescore("llm-judge", lm=lm)
    assert lm.calls == 3


def test_a_judge_that_is_not_there_leaves_nothing(run: Run) -> None:
    before = tree(run.folder)
    with pytest.raises(ServerRefused):
        run.rescore("llm-judge", lm=ScriptedLM(lambda _stage, _prompt: lm15.AuthError("no", status=401)))
    assert tree(run.folder) == before


def test_problems_are_counted_apart_and_asked_again(run: Run) -> None:
    ids = [row["id"] for row in run.rows]
    wanted = [row["question"] for row in run.rows]

    def reply(_stage: str, prompt: str) -> Any:
        if wanted[0] in prompt:
            return "Hard to say."
        return lm15.ServerError("broken", status=500) if wanted[1] in prompt else "yes"

    done = run.rescore("llm-judge", lm=ScriptedLM(reply))
    assert (done.unreadable, done.errors) == (1, 1)
    assert done.problems == {ids[0]: "unreadable", ids[1]: "server_error"}
    assert (done.rows[ids[0]], done.rows[ids[1]], done.value) == (0.0, 0.0, pytest.approx(4 / 6, abs=1e-6))
    lm = judge()
    again = run.rescore("llm-judge", lm=lm)
    assert lm.calls == 1, "a failed call is made again, an unreadable verdict is not"
    assert (again.unreadable, again.errors) == (1, 0)


def test_repeats_are_scored_one_by_one(index: BM25, questions: Questions, tmp_path: Path) -> None:
    golden = questions[0].golden_answers[0]
    engine = CountingEngine(reply=lambda prompt: f"it is {golden}" if asker().repeat == 2 else "no idea")
    run, _ = done_by(Direct(index), questions[:3], tmp_path / "run", engine=engine, repeats=2)
    done = run.rescore("cover-em")
    ids = [question.id for question in questions[:3]]
    assert list(done.rows) == [f"{id}#{repeat}" for repeat in (1, 2) for id in ids]
    scores = [[done.rows[f"{id}#1"], done.rows[f"{id}#2"]] for id in ids]
    assert scores[0] == [0.0, 1.0]
    result = bootstrap_interval(scores, seed=0)
    assert (done.value, done.low, done.high) == pytest.approx(result, abs=1e-6)
    assert done.n == 3
    assert done.between_repeats == kept(run, "cover-em")["between_repeats"] > 0
    assert rescored(run, "cover-em") == done


def test_an_error_counts_as_zero_without_a_judge(index: BM25, questions: Questions, tmp_path: Path) -> None:
    async def refuse(_stage: str, prompt: str) -> None:
        if questions[0].question in prompt:
            raise lm15.ContextLengthError("too many", status=400)

    run, _ = done_by(Direct(index), questions, tmp_path / "run", engine=CountingEngine(refuse))
    lm = ScriptedLM(lambda stage, prompt: "yes")
    assert run.rescore("llm-judge", lm=lm).rows[questions[0].id] == 0.0
    assert lm.calls == 5
    assert run.rescore("cover-em").rows[questions[0].id] == 0.0


# comparing


def test_rescored_runs_are_compared(run: Run, index: BM25, questions: Questions, tmp_path: Path) -> None:
    other, _ = done_by(Direct(index), questions, tmp_path / "other", engine=CountingEngine(reply=lambda _: "no idea"))
    with pytest.raises(
        MissingFile, match=r"run 'other' has no 'cover-em' yet: blendfilter rescore .*other --metric cover-em"
    ):
        compare(other, run, metrics=["cover-em"])
    for each in (run, other):
        each.rescore("cover-em")
    compared = compare(other, run, metrics=["cover-em"])
    assert [(row.run, row.measure) for row in compared.rows][:1] == [("other", "cover-em")]
    assert compared.rows[1].difference == pytest.approx(4 / 6)
    run.rescore("llm-judge", lm=judge())
    other.rescore("llm-judge", lm=ScriptedLM(lambda stage, prompt: "no"))
    notes = compare(other, run, metrics=["llm-judge"]).notes
    assert not any("judged by" in note for note in notes), "one name, one prompt"


def test_answers_that_changed_are_not_compared_by_an_old_figure(run: Run) -> None:
    run.rescore("cover-em")
    path = run.folder / "predictions.jsonl"
    path.write_text(path.read_text().replace("The tide", "The ebb"))
    with pytest.raises(RunMismatch, match="got other answers since its 'cover-em' was made: blendfilter rescore"):
        rescored(Run(run.folder), "cover-em")


# what is refused


def test_what_cannot_be_rescored(run: Run, index: BM25, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="no metric 'f2'"):
        compare(run, run, metrics=["f2"])
    with pytest.raises(BadArgument, match="the offline reader cannot judge"):
        run.rescore("llm-judge")
    assert not (run.folder / "rescore").exists()
    blind, _ = done_by(Direct(index), Questions((Question("1", "Who?"),), TASKS["qa"]), tmp_path / "blind")
    with pytest.raises(EmptyData, match="has no golden answers"):
        blind.rescore("cover-em")
    (run.folder / "metrics.json").unlink()
    with pytest.raises(MissingFile, match="is not finished: 6 of 6 questions are answered, 0 missing"):
        Run(run.folder).rescore("cover-em")


@pytest.mark.parametrize("text", ["{", "[]", '{"metric": "cover-em", "value": 1, "rows": {}, "answers": "x"}'])
def test_a_file_that_is_none_says_how_to_make_it_again(text: str, run: Run) -> None:
    run.rescore("cover-em")
    (run.folder / "rescore" / "cover-em.json").write_text(text)
    with pytest.raises(BadData, match=r"cover-em\.json.*make it again") as caught:
        rescored(run, "cover-em")
    assert "\n" not in str(caught.value)


# the command


@pytest.fixture
def blendfilter(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def test_the_command_judges_through_a_server(run: Run, blendfilter: Command) -> None:
    with serve(reply="yes") as server:
        words = ("rescore", run.folder, "--metric", "llm-judge", "--lm", "judge", "--api-base", server.url)
        result = blendfilter(*words)
        assert result.code == 0
        assert server.stats()["requests"] == 6
        again = blendfilter(*words)
        assert server.stats()["requests"] == 6
    assert result.out == again.out
    assert "hotpotqa LLM-JUDGE 100.0 ± " in result.out
    assert "judged by judge: calls 6, tokens_in " in result.out


def refused(prompt: str) -> bool:
    return "tide" in prompt.splitlines()[-2]


def test_judgements_that_fail_are_warned_of_and_named_in_the_signature(run: Run) -> None:
    def reply(stage: str, prompt: str) -> Any:
        return ModelError("late", kind="timeout", stage=stage) if refused(prompt) else "yes"

    with pytest.warns(UserWarning, match=r"2 judgements ended in an error and count as 0 \(first timeout: late\)"):
        done = run.rescore("llm-judge", lm=ScriptedLM(reply))
    assert (done.value, done.errors) == (pytest.approx(4 / 6, abs=1e-6), 2)
    assert done.signature.endswith("|judge_errors:2")
    assert "llm-judge (judge errors: 2)" in " ".join(run.report().split())
    assert "rescored, 2 judgements ended in an error" in run.html().read_text(encoding="utf-8")


def test_where_every_judgement_fails_the_same_way_there_is_no_score(run: Run) -> None:
    def reply(stage: str, prompt: str) -> Any:
        return ModelError("late", kind="timeout", stage=stage)

    with pytest.raises(RunFailed, match="all 6 judgements failed the same way: timeout: late; nothing is scored"):
        run.rescore("llm-judge", lm=ScriptedLM(reply))
    assert not (run.folder / "rescore" / "llm-judge.json").exists()


@pytest.mark.parametrize(
    ("served", "code", "line"),
    [
        ({"reply": "Hard to say."}, 0, "6 of 6 verdicts are unreadable and count as 0"),
        ({"context_limit": 10}, 1, "all 6 judgements failed the same way: context_too_long"),
    ],
)
def test_the_command_counts_verdicts_that_are_none(
    served: dict[str, Any], code: int, line: str, run: Run, blendfilter: Command
) -> None:
    with serve(**served) as server:
        done = blendfilter("rescore", run.folder, "--metric", "llm-judge", "--lm", "judge", "--api-base", server.url)
    assert (done.code, line in done.error) == (code, True), done


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--metric", "cover-me"), "no metric 'cover-me'. Did you mean 'cover-em'?"),
        (("--metric", "f1", "--metric", "f2"), "no metric 'f2'"),
        (("--metric", "f1", "--lm", "openai/gpt-4o-mini"), "only --metric llm-judge asks a model"),
        (("--metric", "cover-em", "--max-calls", 5), "only --metric llm-judge asks a model"),
    ],
)
def test_a_wrong_command_is_one_line(words: tuple[object, ...], expected: str, run: Run, blendfilter: Command) -> None:
    result = blendfilter("rescore", run.folder, *words)
    assert (result.code, result.out) == (2, "")
    assert len(result.notices) == 1
    assert expected in result.error


def test_a_judge_keeps_to_a_limit_of_its_own_and_goes_on_with_more(run: Run) -> None:
    lm = judge()
    for limit in (2, 3):
        with pytest.raises(BudgetSpent, match=f"{limit} of {limit} calls are gone; what was judged is kept"):
            run.rescore("llm-judge", lm=lm, budget=Budget(calls=limit), concurrency=2)
        assert len(journaled(run.folder / "rescore")) == limit
    assert run.rescore("llm-judge", lm=lm, budget=Budget(calls=6)).value == pytest.approx(4 / 6, abs=1e-6)
    assert journaled(run.folder / "rescore", "budget")[-1]["calls"] == 6
    assert not journaled(run.folder, "budget"), "the run's own account is another"
