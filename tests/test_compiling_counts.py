"""Optimisers over our engines: what they call is journaled, counted by stage, and made once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import dspy
import pytest
from compiled import PROPOSED, exact, proposing, sample_index, sample_questions
from model_server import serve
from small_world import CountingEngine

from blendfilter.journal import Journal
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.retrieval.bm25 import BM25

OURS = {"external", "internal", "topic", "check", "ids", "ids_again", "answer", "short_answer"}
PROPOSER = {"describe_program", "describe_module", "generate_module_instruction", "predict"}


@pytest.fixture(scope="module")
def index() -> BM25:
    return sample_index()


@pytest.fixture(scope="module")
def trainset() -> list[dspy.Example]:
    return sample_questions()


def calls(journal: Journal) -> list[dict[str, Any]]:
    return [record for record in journal.records() if record["kind"] == "call"]


def spent(tracker: Any) -> tuple[int, int]:
    (total,) = tracker.get_total_tokens().values()
    return total["prompt_tokens"], total["completion_tokens"]


class TestMIPRO:
    """MIPROv2 over BlendFilter, small: two candidates, three trials, two threads."""

    def compiled(self, lm: ConnectedLM, index: BM25, trainset: list[dspy.Example], path: Path) -> bytes:
        how: dict[str, Any] = {"num_trials": 3, "minibatch": False}
        with dspy.context(lm=lm):
            optimiser = dspy.MIPROv2(
                metric=exact, auto=None, num_candidates=2, max_bootstrapped_demos=1, max_labeled_demos=0, num_threads=2
            )
            student = BlendFilter(index, k=3)
            optimiser.compile(student, trainset=trainset[:2], valset=trainset[2:4], **how).save(path)
        return path.read_bytes()

    def test_live_and_replayed_are_the_same_program_and_every_call_is_one_record(
        self, index: BM25, trainset: list[dspy.Example], tmp_path: Path
    ) -> None:
        pytest.importorskip("optuna")
        engine = CountingEngine(reply=proposing)
        with Journal(tmp_path / "run") as journal:
            live = self.compiled(engine.lm().with_journal(journal), index, trainset, tmp_path / "live.json")
            records = calls(journal)
        assert Counter(record["stage"] for record in records) == engine.stages
        assert engine.stages.keys() == (OURS - {"ids_again"}) | PROPOSER
        assert len({record["key"] for record in records}) == len(records) == engine.calls
        assert sum(record["tokens_in"] for record in records) == sum(len(prompt.split()) for prompt in engine.prompts)
        silent = CountingEngine(reply=lambda prompt: pytest.fail("a replay asks nobody"))
        with Journal(tmp_path / "run", "replay") as journal:
            replayed = self.compiled(silent.lm().with_journal(journal), index, trainset, tmp_path / "replayed.json")
        assert live == replayed

    def test_its_instructions_are_heard(self, index: BM25, trainset: list[dspy.Example], tmp_path: Path) -> None:
        pytest.importorskip("optuna")
        engine = CountingEngine(reply=proposing)
        self.compiled(engine.lm(), index, trainset, tmp_path / "program.json")
        ours = [prompt for prompt in engine.prompts if "[[ ##" not in prompt]
        assert any(prompt.startswith(f"{PROPOSED}\n") and prompt.endswith("\nRelevance:") for prompt in ours)

    def test_without_optuna_the_error_names_it(
        self, index: BM25, trainset: list[dspy.Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(__import__("sys").modules, "optuna", None)
        with pytest.raises(ImportError, match="optuna"):
            self.compiled(CountingEngine(reply=proposing).lm(), index, trainset, tmp_path / "program.json")


class TestUsage:
    def test_bootstrapping_counts_what_the_server_counts_and_hits_too(
        self, index: BM25, trainset: list[dspy.Example], tmp_path: Path
    ) -> None:
        told, asked = [], []
        with serve(reply="offline") as server:
            for _ in range(2):  # the second time from the journal, where DSPy's own cache would count nothing
                lm = connect("test-model", api_base=server.url, journal=tmp_path / "run")
                with dspy.context(lm=lm), dspy.track_usage() as tracker:
                    dspy.BootstrapFewShot(metric=exact, max_bootstrapped_demos=2).compile(
                        BlendFilter(index, k=3), trainset=trainset[:3]
                    )
                told.append(spent(tracker))
                asked.append(sum(entry["usage"]["prompt_tokens"] for entry in lm.history))
                assert lm.journal is not None
                records = calls(lm.journal)
                lm.journal.close()
            stats = server.stats()
        assert sum(record["tokens_in"] for record in records) == stats["tokens_in"]
        assert sum(record["tokens_out"] for record in records) == stats["tokens_out"]
        # DSPy is told of a call that the journal answers as of any other: what the program takes, paid for or not.
        assert told[0] == told[1]
        assert [tokens_in for tokens_in, _ in told] == asked
        assert told[0] >= (stats["tokens_in"], stats["tokens_out"])

    @pytest.mark.parametrize("threads", [1, 3])
    def test_each_prediction_of_an_evaluation_knows_what_it_cost(
        self, threads: int, index: BM25, trainset: list[dspy.Example]
    ) -> None:
        engine = CountingEngine()
        with dspy.context(lm=engine.lm(), track_usage=True):
            result = dspy.Evaluate(devset=trainset, metric=exact, num_threads=threads)(BlendFilter(index, k=3))
        usages = [prediction.get_lm_usage()["blendfilter/counting"] for _, prediction, _ in result.results]
        assert sum(usage["prompt_tokens"] for usage in usages) == sum(len(p.split()) for p in engine.prompts)

    def test_a_reply_that_does_not_fit_costs_no_second_call(self, index: BM25) -> None:
        engine = CountingEngine(reply=lambda prompt: "")
        with dspy.context(lm=engine.lm()):
            BlendFilter(index, k=3)(question="Where is it?")
        once = ("external", "internal", "topic", "answer", "short_answer")
        assert [engine.stages[stage] for stage in once] == [1] * 5
        # The ids alone are asked for again, by a prompt of their own: once for each list that was filtered.
        assert engine.stages["ids_again"] == engine.stages["ids"] == engine.stages["check"]
