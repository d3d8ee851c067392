"""DSPy's optimisers over our modules: compiled live and from the journal, the same program."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import dspy
import pytest
from compiled import anything, exact, sample_index, sample_questions
from isle import QUESTION
from scripted import ScriptedLM

from blendfilter.errors import ReplayMiss
from blendfilter.journal import Journal
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.direct import Direct
from blendfilter.retrieval.bm25 import BM25


@pytest.fixture(scope="module")
def index() -> BM25:
    return sample_index()


@pytest.fixture(scope="module")
def trainset() -> list[dspy.Example]:
    return sample_questions()


class Mine(dspy.Module):
    """A user's own method: a plain DSPy predictor over our index, asked twice."""

    def __init__(self, index: Any) -> None:
        super().__init__()
        self.index = index
        self.search = dspy.Predict("question -> query")
        self.reply = dspy.ChainOfThought("passages: list[str], question -> answer")

    async def aforward(self, question: str) -> dspy.Prediction:
        query = (await self.search.acall(question=question)).query
        found = self.index(query or question, k=3)
        said = await self.reply.acall(passages=[passage.line for passage in found], question=question)
        return dspy.Prediction(answer=said.answer, knowledge=found)

    def forward(self, question: str) -> dspy.Prediction:
        query = self.search(question=question).query
        found = self.index(query or question, k=3)
        said = self.reply(passages=[passage.line for passage in found], question=question)
        return dspy.Prediction(answer=said.answer, knowledge=found)


def delayed(lm: ConnectedLM, seed: int) -> ConnectedLM:
    """`lm`, each of whose calls takes a moment of its own."""
    rng, inner = random.Random(seed), lm.inner

    class Slow:
        async def complete(self, request: Any) -> Any:
            await asyncio.sleep(rng.random() / 200)
            return await inner.complete(request)

    slow = lm.with_journal(lm.journal)
    return type(lm)(slow.name, Slow(), profile=lm.profile, identity=lm.identity, journal=lm.journal, temperature=0.0)


class TestCompiling:
    """Compiled live with shuffled delays, and from the journal: the same program, byte for byte."""

    def compiled(
        self, student: dspy.Module, lm: dspy.LM, trainset: list[dspy.Example], path: Path, **how: Any
    ) -> bytes:
        optimiser = dspy.BootstrapFewShot(
            **{"metric": anything, "max_bootstrapped_demos": 3, "max_labeled_demos": 1, **how}
        )
        with dspy.context(lm=lm):
            optimiser.compile(student, trainset=trainset).save(path)
        return path.read_bytes()

    @pytest.mark.parametrize("kind", ["blendfilter", "mine"])
    @pytest.mark.parametrize("rounds", [1, 2])
    def test_live_and_replayed_give_the_same_file(
        self, kind: str, rounds: int, index: BM25, trainset: list[dspy.Example], tmp_path: Path
    ) -> None:
        def student() -> dspy.Module:
            return BlendFilter(index, k=3) if kind == "blendfilter" else Mine(index)

        # Rounds after the first sample anew, with a rollout_id: only a metric that refuses something reaches them.
        metric = anything if rounds == 1 else exact
        how = {"max_rounds": rounds, "metric": metric}
        programs = []
        for seed in (1, 2):
            with Journal(tmp_path / f"live{seed}") as journal:
                lm = delayed(connect("offline", journal=journal), seed)
                programs.append(self.compiled(student(), lm, trainset, tmp_path / f"{seed}.json", **how))
        with Journal(tmp_path / "live1", "replay") as journal:
            lm = connect("offline", journal=journal)
            programs.append(self.compiled(student(), lm, trainset, tmp_path / "replayed.json", **how))
        assert programs[0] == programs[1] == programs[2]
        found = json.loads(programs[0])
        name = "select.check" if kind == "blendfilter" else "search"
        if rounds == 1:
            assert any(demo.get("augmented") for demo in found[name]["demos"])

    def test_a_compiled_program_shows_its_demonstrations(
        self, index: BM25, trainset: list[dspy.Example], tmp_path: Path
    ) -> None:
        path = tmp_path / "program.json"
        self.compiled(BlendFilter(index, k=3), connect("offline"), trainset, path)
        again = BlendFilter(index, k=3)
        again.load(path)
        demos = [demo for demo in again.select.ids.demos if demo.get("augmented")]
        assert demos
        prompt = again.select.ids.render(context="c", knowledge=["T | x"], question=QUESTION, offer_none=False)
        assert all(f"Question: {demo['question']}\nIds:\n{demo['ids']}\n" in prompt for demo in demos)

    def test_labelled_rows_that_lack_fields_do_not_reach_a_prompt(
        self, index: BM25, trainset: list[dspy.Example], tmp_path: Path
    ) -> None:
        path = tmp_path / "program.json"
        self.compiled(BlendFilter(index, k=3), connect("offline"), trainset, path, max_bootstrapped_demos=1)
        again = BlendFilter(index, k=3)
        again.load(path)
        bare = [demo for demo in again.blending.internal.demos if "passage" not in demo]
        prompt = again.blending.internal.render(question=QUESTION)
        assert not any(demo["question"] in prompt for demo in bare)

    def test_a_replay_that_needs_another_call_says_so(
        self, index: BM25, trainset: list[dspy.Example], tmp_path: Path
    ) -> None:
        with Journal(tmp_path) as journal, dspy.context(lm=connect("offline", journal=journal)):
            BlendFilter(index)(question=trainset[0].question)
        with Journal(tmp_path, "replay") as journal, dspy.context(lm=connect("offline", journal=journal)):
            BlendFilter(index)(question=trainset[0].question)
            with pytest.raises(ReplayMiss, match=r"stage '(external|internal)'"):
                BlendFilter(index)(question="Something else?")

    def test_labeled_few_shot_too(self, trainset: list[dspy.Example]) -> None:
        compiled = dspy.LabeledFewShot(k=2).compile(Direct(), trainset=trainset)
        lm = ScriptedLM(["x"])
        with dspy.context(lm=lm):
            compiled(question=QUESTION)
        assert sum(f"Question: {row.question}\nAnswer:\n{row.answer}\n" in lm.prompts[0][1] for row in trainset) == 2
