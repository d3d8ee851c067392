"""Each optimiser over a filter and a method: journaled, stopped and resumed, scored on what it never saw."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import dspy
import pytest
from compiled import (
    CAN,
    OPTIMIZERS,
    PROPOSED,
    SMALL,
    anything,
    compile_small,
    exact,
    sample_index,
    sample_questions,
    saved,
    silver_rows,
    student,
    written,
)
from dspy import lm15
from model_server import serve
from optimised import OPTIMIZERS as SEARCHED
from optimised import Hops, optimised
from optimised import written as by_prompt
from scripted import ScriptedLM
from small_world import CountingEngine, journaled

from blendfilter.compiling.compile import AFTER, BEFORE, compile_program
from blendfilter.compiling.silver import silver_examples, silver_metric
from blendfilter.errors import (
    BadArgument,
    BudgetSpent,
    CodeFailed,
    CompilationStopped,
    EmptyData,
    IndexChanged,
    Leak,
    MissingExtra,
    ModelError,
    UnknownName,
)
from blendfilter.filters.filco import FilCoFilter
from blendfilter.journal import Journal
from blendfilter.lm.budget import Budget
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.cdit import CDIT
from blendfilter.modules.direct import Direct
from blendfilter.text import question_digest


class Killed(KeyboardInterrupt):
    """What no optimiser catches, and ends the work whoever raises it."""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "optimizer"), CAN)
class TestToTheEnd:
    def test_with_a_scripted_model(self, kind: str, optimizer: str, tmp_path: Path) -> None:
        lm = ScriptedLM(written)
        done = compile_small(kind, optimizer, lm, tmp_path / "run")
        records = journaled(tmp_path / "run")
        # Whoever asks (student, teacher, answerer, proposer) is in the one journal, once.
        assert len({record["key"] for record in records}) == len(records) == lm.calls == done.spent.calls
        assert done.recipe.optimizer == optimizer
        assert (done.recipe.before.n, done.recipe.after.n) == (2, 2)
        if optimizer in ("mipro", "gepa"):
            assert any(PROPOSED in prompt for _, prompt in lm.prompts)
        else:
            assert any(predictor.demos for _, predictor in done.program.named_predictors())

    def test_stopped_and_begun_again_it_repeats_nothing(self, kind: str, optimizer: str, tmp_path: Path) -> None:
        whole = CountingEngine()
        expected = saved(compile_small(kind, optimizer, whole.lm(), tmp_path / "whole"), tmp_path / "whole.json")
        assert str(tmp_path).encode() not in expected
        at, engine = whole.calls // 2, CountingEngine()

        async def kill(_stage: str, _prompt: str) -> None:
            if engine.calls == at:
                raise Killed

        engine.before = kill
        with pytest.raises(Killed):
            compile_small(kind, optimizer, engine.lm(), tmp_path / "run", concurrency=1)
        kept = len(journaled(tmp_path / "run"))
        assert 0 < kept < whole.calls
        rest = CountingEngine()
        done = compile_small(kind, optimizer, rest.lm(), tmp_path / "run", concurrency=3)
        assert rest.calls == whole.calls - kept
        assert saved(done, tmp_path / "run.json") == expected


def test_a_users_own_module_and_its_own_model_go_through_the_journal(tmp_path: Path) -> None:
    engine, own = CountingEngine(), CountingEngine()

    class Mine(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.reply = dspy.Predict("question -> answer")
            self.big = own.lm("big")

        def forward(self, question: str) -> dspy.Prediction:
            with dspy.context(lm=self.big):
                hint = dspy.Predict("question -> hint")(question=question).hint
            return dspy.Prediction(answer=self.reply(question=f"{question} {hint}").answer)

    rows = sample_questions()
    mine, how = Mine(), {"metric": exact, "optimizer": "labeled", "max_demos": 2}
    done = compile_program(mine, rows[:4], valset=rows[4:], lm=engine.lm(), run=tmp_path, **how)
    models = {record["model"] for record in journaled(tmp_path)}
    assert models == {"counting", "big"}
    assert len(journaled(tmp_path)) == engine.calls + own.calls
    assert [set(demo.keys()) for demo in done.program.reply.demos] == [{"question", "answer"}] * 2
    assert done.program.big.journal is None
    assert mine.reply.demos == []


@pytest.mark.parametrize(("optimizer", "kind"), [("mipro", "MIPROv2"), ("gepa", "GEPA")])
def test_searches_are_seeded_and_choose_by_what_they_do_not_learn_from(
    optimizer: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, Any] = {}

    class Watched(getattr(dspy, kind)):  # type: ignore[misc]
        def __init__(self, **how: Any) -> None:
            found.update(how)
            super().__init__(**how)

        def compile(self, student: dspy.Module, **sets: Any) -> dspy.Module:
            found.update(sets)
            return super().compile(student, **sets)

    monkeypatch.setattr(dspy, kind, Watched)
    compile_small("filco", optimizer, "offline", tmp_path, seed=7)
    assert found["seed"] == 7
    if optimizer == "gepa":  # greedy, the same failures would bring the same instructions
        assert found["reflection_lm"].kwargs["temperature"] == 1.0
    sent = [[each.question for each in found[name]] for name in ("trainset", "valset")]
    assert [len(each) for each in sent] == [2, 2]
    assert not set(sent[0]) & set(sent[1])


class TestLabeled:
    def test_each_predictor_shows_its_own_fields(self, tmp_path: Path) -> None:
        lm = ScriptedLM(written)
        done = compile_small("filco", "labeled", lm, tmp_path, max_demos=2)
        demos = done.program.helpful.demos
        assert [set(demo.keys()) for demo in demos] == [{"knowledge", "question", "ids"}] * 2
        last = lm.prompts_of("helpful")[-1]
        shown = [f"Question: {demo['question']}\nIds (numbers only):\n{demo['ids']}\n" for demo in demos]
        assert all(each in last for each in shown)


def test_the_limit_of_demonstrations_is_each_predictors(tmp_path: Path) -> None:
    free = compile_small("filco", "labeled", "offline", tmp_path, max_demos=3)
    less = compile_small("filco", "labeled", "offline", tmp_path / "less", max_demos=3, max_demo_tokens=100)
    kept = {len(each.demos) for _, each in less.program.named_predictors()}
    assert kept == {len(free.program.helpful.demos) - less.recipe.settings["demos_dropped"] // 2} != {3}
    assert less.recipe.settings["tokeniser"].startswith("words")


class TestRefused:
    """Before any call, and before anything is written."""

    @pytest.fixture(autouse=True)
    def _nothing_happened(self, tmp_path: Path) -> Any:
        self.rows, engine = sample_questions(), CountingEngine(reply=lambda prompt: pytest.fail("a call was made"))
        self.how: dict[str, Any] = {"lm": engine.lm(), "run": tmp_path / "run"}
        yield
        assert not (tmp_path / "run").exists()

    def small(self, optimizer: str = "bootstrap", **how: Any) -> None:
        compile_small("filco", optimizer, **self.how, **how)

    def compile(self, student: Any, train: list[Any], valid: list[Any]) -> None:
        compile_program(student, train, valset=valid, metric=exact, **self.how)

    def test_an_optimiser_that_does_not_exist_or_lacks_its_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(UnknownName, match=r"no optimiser 'bootstrp'\. Did you mean 'bootstrap'"):
            self.small("bootstrp")
        monkeypatch.setitem(sys.modules, "optuna", None)
        with pytest.raises(MissingExtra, match=r"mipro needs 'optuna': pip install 'blendfilter\[compile\]'"):
            self.small("mipro")

    @pytest.mark.parametrize(
        ("name", "value"),
        [("trials", 0), ("candidates", 1), ("max_demo_tokens", -1)],
    )
    def test_numbers_out_of_range(self, name: str, value: int) -> None:
        with pytest.raises(BadArgument, match=f"{name} is {value}"):
            self.small(**{name: value})

    def test_a_question_in_both_sets(self) -> None:
        twin = dspy.Example(question=f"  {self.rows[0].question.upper()}", answer="x").with_inputs("question")
        with pytest.raises(Leak, match=r"question '  [A-Z ]+.* is held back, and it is in the training set"):
            self.compile(Direct(), self.rows[:3], [twin])

    def test_no_examples_no_inputs_no_module_no_predictor(self) -> None:
        with pytest.raises(EmptyData, match="training set is empty"):
            self.compile(Direct(), [], self.rows)
        with pytest.raises(ValueError, match="with_inputs"):
            self.compile(Direct(), self.rows, [dspy.Example(question="x")])
        with pytest.raises(BadArgument, match=r"is no dspy.Module"):
            self.compile("direct", self.rows[:3], self.rows[3:])
        with pytest.raises(BadArgument, match="has no predictor"):
            self.compile(dspy.Module(), self.rows[:3], self.rows[3:])


def test_the_recipe_says_how_it_was_reached(tmp_path: Path) -> None:
    done = compile_small("filco", "mipro", "offline", tmp_path, task="nq", measure="strinc", note="made up")
    found = json.loads(saved(done, tmp_path / "p.json"))["metadata"]["recipe"]
    assert found["module"] == "FilCoFilter"
    names = ("task", "measure", "optimizer", "lm", "seed")
    assert [found[name] for name in names] == ["nq", "strinc", "mipro", "offline", 1]
    assert found["settings"]["metric"] == {"agreement": 1.0, "answer": 0.5, "tokens": 0.1, "threshold": 0.55}
    assert found["settings"] | {"candidates": 2, "trials": 2, "max_demos": 1} == found["settings"]
    assert (found["data"]["n_train"], found["data"]["n_valid"], len(found["trained_on"])) == (4, 2, 6)
    assert found["fields"]["helpful"] == ["offer_none", "knowledge", "question", "ids"]
    assert found["templates"]["helpful"].startswith("filco/sentences ")
    assert set(found["versions"]) == {"blendfilter", "dspy"}
    assert found["note"] == "made up"


def test_a_program_compiled_further_knows_all_that_it_was_compiled_on(tmp_path: Path) -> None:
    rows = silver_examples(silver_rows(10))
    first = compile_small("filco", "bootstrap", "offline", tmp_path / "first")
    how: dict[str, Any] = {"metric": silver_metric(answer=0), "lm": "offline", **SMALL}
    done = compile_program(first.program, rows[6:8], valset=rows[8:], run=tmp_path / "again", **how)
    sent = [question_digest(each.question) for each in rows]
    assert done.recipe.trained_on == (*sent[6:], *first.recipe.trained_on)
    with pytest.raises(Leak, match=r"is held back, .* or the module was compiled on it before"):
        compile_program(first.program, rows[6:8], valset=rows[:1], run=tmp_path / "leak", **how)
    assert not (tmp_path / "leak").exists()


@pytest.mark.parametrize(("kind", "optimizer"), CAN)
def test_what_is_kept_for_scores_teaches_nothing(kind: str, optimizer: str, tmp_path: Path) -> None:
    """Its gold is in no prompt, and its questions are in those that score alone."""
    rows = silver_examples(silver_rows()) if kind == "filco" else sample_questions()
    valid = [
        each.copy(golden_answers=["GOLD"], answer="GOLD", ids="GOLD", chosen=[0], id="GOLD").with_inputs(*each.inputs())
        for each in rows[4:6]
    ]
    phase = [""]
    found: list[tuple[str, str]] = []

    def reply(stage: str, prompt: str) -> str:
        found.append((phase[0], prompt))
        return written(stage, prompt)

    metric = silver_metric() if kind == "filco" else exact if optimizer == "gepa" else anything
    done = compile_program(
        student(kind), rows[:4], valset=valid, metric=metric, lm=ScriptedLM(reply), run=tmp_path, optimizer=optimizer,
        progress=lambda name, *_: phase.__setitem__(0, name), **SMALL,
    )  # fmt: skip
    assert not [prompt for _, prompt in found if "GOLD" in prompt]
    sent = [each.question for each in valid]
    # After, only a program that says something else asks again.
    assert {name for name, prompt in found if any(each in prompt for each in sent)} - {AFTER} == {BEFORE}
    text = saved(done, tmp_path / "p.json").decode()
    assert "GOLD" not in text
    assert not [each for each in sent if each in text]


def test_the_same_bytes_whatever_the_order_of_sets(tmp_path: Path) -> None:
    """In a process of its own, whose hashes are seeded otherwise."""
    here = saved(compile_small("blendfilter", "bootstrap", "offline", tmp_path / "here"), tmp_path / "here.json")
    code = (
        "import pathlib; from compiled import compile_small, saved\n"
        "saved(compile_small('blendfilter', 'bootstrap', 'offline', pathlib.Path('run'), concurrency=1),"
        " pathlib.Path('there.json'))\n"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    paths = os.pathsep.join(map(os.path.abspath, sys.path))
    other = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": seed}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=other, check=True, timeout=600)
    assert (tmp_path / "there.json").read_bytes() == here


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("ended_by", [ModelError, BudgetSpent])
def test_what_may_pass_ends_it_and_the_same_again_goes_on(
    optimizer: str, ended_by: type[Exception], tmp_path: Path
) -> None:
    whole, first, rest = CountingEngine(), CountingEngine(), CountingEngine()
    expected = saved(compile_small("filco", optimizer, whole.lm(), tmp_path / "whole"), tmp_path / "a.json")

    async def fail(_stage: str, _prompt: str) -> None:
        if first.calls >= whole.calls - 1:
            raise lm15.ServerError("gone")

    kept, fault = whole.calls - 2, ended_by is ModelError
    how: dict[str, Any] = {"concurrency": 1} if fault else {"budget": Budget(calls=kept)}
    if fault:
        first.before = fail
    with pytest.raises(ended_by):
        compile_small("filco", optimizer, first.lm(), tmp_path / "run", **how)
    assert first.calls == kept + fault  # no call after it
    more = None if fault else Budget(calls=500)
    done = compile_small("filco", optimizer, rest.lm(), tmp_path / "run", budget=more)
    assert saved(done, tmp_path / "b.json") == expected
    assert kept + rest.calls == whole.calls


@pytest.mark.parametrize("optimizer", ["mipro", "gepa"])
def test_a_proposer_that_fails_ends_it_and_the_same_again_goes_on(optimizer: str, tmp_path: Path) -> None:
    """MIPROv2 would go on without what it wanted to know, and find another program than the next session."""
    whole, first, rest = CountingEngine(), CountingEngine(), CountingEngine()
    expected = saved(compile_small("filco", optimizer, whole.lm(), tmp_path / "whole"), tmp_path / "a.json")

    async def fail(_stage: str, prompt: str) -> None:
        if "Respond with" in prompt:
            raise lm15.ServerError("gone")

    first.before = fail
    with pytest.raises(ModelError, match="gone"):
        compile_small("filco", optimizer, first.lm(), tmp_path / "run", concurrency=1)
    done = compile_small("filco", optimizer, rest.lm(), tmp_path / "run")
    assert saved(done, tmp_path / "b.json") == expected
    assert first.calls - 1 + rest.calls == whole.calls  # the call that failed is the only one repeated


def test_bootstrapping_reports_the_tokens_that_the_server_counts_and_the_journal_repeats(tmp_path: Path) -> None:
    with serve(reply="offline") as server:
        used = []
        for _ in range(2):  # the second time from the journal, where DSPy's own cache would count nothing
            with Journal(tmp_path) as journal:
                lm = connect("test-model", api_base=server.url, journal=journal)
                with dspy.context(lm=lm), dspy.track_usage() as tracker:
                    optimiser = dspy.BootstrapFewShot(metric=exact, max_bootstrapped_demos=2)
                    optimiser.compile(BlendFilter(sample_index(), k=3), trainset=sample_questions(3))
            (total,) = tracker.get_total_tokens().values()
            used.append((total["prompt_tokens"], total["completion_tokens"]))
            assert used[-1][0] == sum(entry["usage"]["prompt_tokens"] for entry in lm.history)
        stats = server.stats()
    paid = tuple(sum(record[name] for record in journaled(tmp_path)) for name in ("tokens_in", "tokens_out"))
    assert paid == (stats["tokens_in"], stats["tokens_out"])
    assert used[0] == used[1] >= paid  # a call that comes twice is used twice and paid for once


def test_a_prompt_too_long_for_the_model_scores_nothing_and_the_rest_goes_on(tmp_path: Path) -> None:
    rows = silver_examples(silver_rows())
    long = rows[4].question

    def reply(stage: str, prompt: str) -> Any:
        return lm15.ContextLengthError("too long") if long in prompt and stage == "helpful" else "0"

    done = compile_program(
        FilCoFilter(), rows[:4], valset=rows[4:6], metric=lambda example, prediction, trace=None: True,
        lm=ScriptedLM(reply), run=tmp_path,
    )  # fmt: skip
    assert (done.recipe.before.value, done.recipe.before.failed) == (0.5, 1)


class Broken(dspy.Module):
    """A user's module whose code, or whose index, fails."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.reply = dspy.Predict("question -> answer")
        self.error = error

    def forward(self, question: str) -> dspy.Prediction:
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (IndexChanged("the index is another one"), IndexChanged, "the index is another one"),
        (ConnectionResetError("gone"), ConnectionResetError, "gone"),
        (KeyError("title"), BadArgument, r"Broken fails on every question \(KeyError: 'title'\): mend it first"),
    ],
)
def test_a_module_that_fails(error: Exception, kind: type[Exception], message: str, tmp_path: Path) -> None:
    rows, engine = sample_questions(), CountingEngine()
    with pytest.raises(kind, match=message):
        compile_program(Broken(error), rows[:3], valset=rows[3:], metric=anything, lm=engine.lm(), run=tmp_path)
    assert engine.calls == 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("raised", [SystemExit("no town"), asyncio.CancelledError("no town")])
def test_a_module_that_would_end_the_process_ends_the_work_in_one_line(raised: BaseException, tmp_path: Path) -> None:
    rows = sample_questions()
    with pytest.raises(CodeFailed, match=f"the code raised {type(raised).__name__}: no town"):
        compile_program(Broken(raised), rows[:3], valset=rows[3:], metric=anything, lm="offline", run=tmp_path)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("raised", [SystemExit("no town"), ZeroDivisionError("no town")])
def test_whatever_a_metric_raises_ends_the_work_in_one_line(raised: BaseException, tmp_path: Path) -> None:
    def leaving(example: Any, prediction: Any, trace: Any = None) -> float:
        raise raised

    with pytest.raises(BadArgument, match=rf"the metric failed \({type(raised).__name__}: no town\)"):
        compile_small("filco", "bootstrap", CountingEngine().lm(), tmp_path, metric=leaving)


def test_nothing_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for optimizer in OPTIMIZERS:
        compile_small("filco", optimizer, "offline", tmp_path / optimizer)
    found = capsys.readouterr()
    assert (found.out, found.err) == ("", "")
    assert all(journaled(tmp_path / optimizer) for optimizer in OPTIMIZERS)


def test_calls_that_are_out_when_it_ends_are_kept(tmp_path: Path) -> None:
    engine = CountingEngine()

    async def one_fails(_stage: str, _prompt: str) -> None:
        if engine.calls == 2:
            raise lm15.ServerError("gone")
        await asyncio.sleep(0.2)

    engine.before = one_fails
    with pytest.raises(ModelError, match="gone"):
        compile_small("filco", "bootstrap", engine.lm(), tmp_path, concurrency=2)
    assert engine.calls == 2
    assert len([record for record in journaled(tmp_path) if not record["error"]]) == 1


@pytest.mark.timeout(120)
def test_ctrl_c_waits_for_no_reply(tmp_path: Path) -> None:
    """Threads of DSPy's wait for the model, and the process would wait for them."""
    engine, cancelled = CountingEngine(), threading.Event()

    async def never(_stage: str, _prompt: str) -> None:
        if engine.calls == 2:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    engine.before = never
    before = {*threading.enumerate()}
    with pytest.raises(KeyboardInterrupt):
        compile_small("filco", "bootstrap", engine.lm(), tmp_path, concurrency=2)
    assert cancelled.wait(60)
    for thread in {*threading.enumerate()} - before:
        if not thread.daemon:
            thread.join(60)
            assert not thread.is_alive()


class Mine(dspy.Module):
    """A user's own method: a plain DSPy predictor over our index, called twice."""

    def __init__(self, index: Any, k: int) -> None:
        super().__init__()
        self.index, self.k = index, k
        self.search = dspy.Predict("question -> query")
        self.reply = dspy.ChainOfThought("passages: list[str], question -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        query = self.search(question=question).query
        found = self.index(query or question, k=self.k)
        result = self.reply(passages=[passage.line for passage in found], question=question)
        return dspy.Prediction(answer=result.answer, knowledge=found)


def delayed(lm: ConnectedLM, seed: int) -> ConnectedLM:
    """`lm`, each of whose calls takes a moment of its own."""
    rng, inner = random.Random(seed), lm.inner

    class Slow:
        async def complete(self, request: Any) -> Any:
            await asyncio.sleep(rng.random() / 200)
            return await inner.complete(request)

    return type(lm)(lm.name, Slow(), profile=lm.profile, identity=lm.identity, journal=lm.journal, temperature=0.0)


@pytest.mark.parametrize("kind", ["blendfilter", "cdit", "mine"])
@pytest.mark.parametrize("rounds", [1, 2])
def test_dspys_own_optimiser_live_and_replayed_gives_the_same_file(kind: str, rounds: int, tmp_path: Path) -> None:
    """Live with shuffled delays, and from the journal: the same program, byte for byte.

    CDIT's judge is asked about each passage, and its replies are equal texts: live one object, out of a file several.
    """
    # Rounds after the first sample anew, with a rollout_id: only a metric that refuses something reaches them.
    metric = anything if rounds == 1 else exact
    programs = []
    for seed, mode in ((1, "auto"), (2, "auto"), (1, "replay")):
        student = {"blendfilter": BlendFilter, "cdit": CDIT, "mine": Mine}[kind](sample_index(), k=3)
        optimiser = dspy.BootstrapFewShot(
            metric=metric, max_bootstrapped_demos=6, max_labeled_demos=1, max_rounds=rounds
        )
        with Journal(tmp_path / f"live{seed}", mode) as journal:  # type: ignore[arg-type]
            lm = CountingEngine().lm().with_journal(journal)
            with dspy.context(lm=lm if mode == "replay" else delayed(lm, seed)):
                optimiser.compile(student, trainset=sample_questions()).save(tmp_path / "program.json")
        programs.append((tmp_path / "program.json").read_bytes())
    assert programs[0] == programs[1] == programs[2]
    if rounds == 1:
        name = {"blendfilter": "select.check", "cdit": "select.judge.consistent", "mine": "search"}[kind]
        assert any(demo.get("augmented") for demo in json.loads(programs[0])[name]["demos"])


def compiled_by_dspy(optimizer: str, engine: CountingEngine, run: Path, *, keep: bool = True) -> bytes:
    """The program of a user's own call; DSPy's threads, which outlive one that is stopped, are waited for."""
    before = {*threading.enumerate()}
    with Journal(run) as journal:
        try:
            program = optimised(optimizer, Hops(sample_index()), engine.lm().with_journal(journal if keep else None))
        finally:
            for thread in {*threading.enumerate()} - before:
                if not thread.daemon:
                    thread.join(60)
    program.save(run / "program.json")
    return (run / "program.json").read_bytes()


@pytest.mark.parametrize("optimizer", SEARCHED)
def test_a_fault_ends_a_users_own_optimiser_and_the_same_again_goes_on(optimizer: str, tmp_path: Path) -> None:
    """DSPy would score it 0, and find another program than the next session."""
    whole, first, rest = (CountingEngine(reply=by_prompt) for _ in range(3))
    expected = compiled_by_dspy(optimizer, whole, tmp_path / "whole")

    async def fail(_stage: str, _prompt: str) -> None:
        if first.calls == whole.calls // 2:
            raise lm15.ServerError("gone")

    first.before = fail
    with pytest.raises(CompilationStopped, match=r"^gone; compile again: what was answered is in the journal$"):
        compiled_by_dspy(optimizer, first, tmp_path / "run")
    assert compiled_by_dspy(optimizer, rest, tmp_path / "run") == expected
    assert first.calls - 1 + rest.calls == whole.calls


@pytest.mark.parametrize("optimizer", ["mipro", "gepa"])
def test_a_users_own_optimiser_without_a_seed_is_refused(optimizer: str, tmp_path: Path) -> None:
    """Begun again it would draw otherwise, and find another program."""
    lm = CountingEngine(reply=by_prompt).lm()
    with Journal(tmp_path) as journal, pytest.raises(CompilationStopped, match=r"^(MIPROv2|GEPA) has seed=None, and "):
        optimised(optimizer, Hops(sample_index()), lm.with_journal(journal), seed=None)


def test_what_other_branches_asked_when_a_fault_ends_it_is_kept(tmp_path: Path) -> None:
    engine = CountingEngine()

    async def fail(stage: str, _prompt: str) -> None:
        if stage == "external":
            raise lm15.ServerError("gone")
        await asyncio.sleep(0.5 * (stage == "internal"))

    engine.before = fail
    with Journal(tmp_path) as journal, pytest.raises(CompilationStopped):
        optimised("bootstrap", BlendFilter(sample_index(), k=2), engine.lm().with_journal(journal))
    assert len([record for record in journaled(tmp_path) if not record["error"]]) == engine.calls - 1 > 1


@pytest.mark.parametrize(("journal", "fault"), [(True, lm15.ContextLengthError), (False, lm15.ServerError)])
def test_what_stays_refused_and_what_no_journal_keeps_is_scored_as_dspy_does(
    journal: bool, fault: type[Exception], tmp_path: Path
) -> None:
    engine = CountingEngine(reply=by_prompt)

    async def fail(_stage: str, _prompt: str) -> None:
        if engine.calls == 3:
            raise fault("no")

    engine.before = fail
    assert b'"augmented"' in compiled_by_dspy("bootstrap", engine, tmp_path, keep=journal)
    assert engine.calls > 3
