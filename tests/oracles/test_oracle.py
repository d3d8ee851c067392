"""An oracle over passages: its sentences, its choices, what CXMI asks of a model, and what is refused before any work.

The model is a table of log-probabilities; the prompts that it looks them up in are the package's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dspy
import pytest
from isle import PASSAGES, QUESTION
from scripted import scripted

import blendfilter as bf
from blendfilter.asking import Demonstration, TaskWording, WorkedHop
from blendfilter.errors import BadArgument, BadData, Leak, ModelError, ReplayMiss
from blendfilter.journal import Journal
from blendfilter.lm.scoring import Score, scorer
from blendfilter.lm.scoring.base import Done, TextPair, too_long
from blendfilter.lm.scoring.kept import KeptScorer
from blendfilter.oracles.oracle import Oracle, OracleChoice
from blendfilter.prompting import Prompts
from blendfilter.records import Passage, Question
from blendfilter.tasks import TASKS

KEEPER = Question("k", QUESTION, ("Ada Brennock", "Brennock"))
ISLAND = Question("i", "How many villages has Quillmere?", ("two",))
KEPT = "Skerry Light | Ada Brennock kept it for thirty years."
BARE = TaskWording()
DEMO = Demonstration(
    question="Who built the mill?",
    knowledge=["Mill | Ole Tveit built it."],
    reasoning="Ole did. So the answer is Ole Tveit.",
    hops=[WorkedHop(thought="Who?", follow_up="Who built it?", knowledge=[0], answer="Ole Tveit")],
    answer="Ole Tveit",
)


class Told:
    """A backend that says what a function of the prompt says; it keeps each list that it was asked."""

    name = "told"

    def __init__(self, logprob: Callable[[str], float] = lambda prompt: -1.0) -> None:
        self.logprob = logprob
        self.lists: list[list[TextPair]] = []

    @property
    def identity(self) -> dict[str, Any]:
        return {"kind": "told"}

    async def compute(self, pairs: Sequence[TextPair], done: Done) -> None:
        self.lists.append(list(pairs))
        for at, pair in enumerate(pairs):
            done(at, Score(self.logprob(pair.prompt), 2))


def reported(*lines: str, base: float = -3.0) -> Told:
    """A model to which each of `lines`, as the knowledge in question, is worth 2 nats, and any other sentence -1."""

    def logprob(prompt: str) -> float:
        knowledge = prompt.rpartition("Knowledge:\n")[2].partition("Question:")[0].strip()
        return base + (0 if "Knowledge:" not in prompt else 2 if knowledge in lines else -1)

    return Told(logprob)


def cxmi(backend: Told, journal: Journal | None = None, wording: TaskWording = BARE, **more: Any) -> Oracle:
    return Oracle("cxmi", task="hotpotqa", scorer=KeptScorer(backend, journal), wording=wording, **more)


def chosen(scored: OracleChoice) -> list[str]:
    return [scored.candidates[at].line for at in scored.chosen]


class TestOneBatch:
    BATCH = ((KEEPER, PASSAGES[:3]), (ISLAND, PASSAGES[2:4]))

    def test_the_choice_and_its_scores(self) -> None:
        keeper, island = cxmi(reported(KEPT)).choose(self.BATCH)
        assert chosen(keeper) == [KEPT]
        assert keeper.scores == (-1.0, -1.0, -1.0, 2.0, -1.0)
        assert [each.position for each in keeper.candidates] == [0, 0, 1, 1, 2]
        assert (chosen(island), island.scores) == ([], (-1.0, -1.0))


class TestPrompt:
    ONE = Passage("p", "Skerry Light", "Ada Brennock kept it for thirty years.")

    @pytest.mark.parametrize(
        "wording", [BARE, TaskWording(demos=[DEMO]), *map(TaskWording.of, ("hotpotqa", "fever", "eli5"))]
    )
    def test_it_is_what_the_answerer_reads(self, wording: TaskWording) -> None:
        """Direct prompting without retrieval, then over an index that finds the one sentence."""
        backend = Told()
        cxmi(backend, wording=wording).choose([(KEEPER, [self.ONE])])
        read = []
        for index in (None, lambda query, k: [self.ONE]):
            direct = bf.Direct(index, task=wording)  # type: ignore[arg-type]
            with scripted({"direct": ["x"]}) as lm, dspy.context(lm=lm):
                direct(question=QUESTION)
            read.append(lm.prompts[0][1])
        assert [each.prompt for each in backend.lists[0]] == read

    def test_the_output_is_spelled_as_the_demonstrations_answer(self) -> None:
        """StrategyQA's files say yes, and its prompt wants Yes."""
        for task, answer, output in (("strategyqa", "yes", "Yes"), ("hotpotqa", "NO", "no"), ("hotpotqa", "Up", "Up")):
            backend = Told()
            oracle = Oracle("cxmi", task=task, scorer=KeptScorer(backend))
            oracle.choose([(Question("q", QUESTION, (answer,)), [self.ONE])])
            assert {each.continuation for each in backend.lists[0]} == {f"\n{output}"}


class TestJournal:
    def test_what_was_scored_is_not_asked_again(self, tmp_path: Path) -> None:
        with Journal(tmp_path / "journal.jsonl") as journal:
            first = cxmi(reported(KEPT), journal).choose(TestOneBatch.BATCH)
        silent = Told()
        with Journal(tmp_path / "journal.jsonl", "replay") as journal:
            oracle = cxmi(silent, journal)
            oracle.check(one for one, _ in TestOneBatch.BATCH)
            assert oracle.choose(TestOneBatch.BATCH) == first
            with pytest.raises(ReplayMiss, match=r"asks for score"):
                oracle.choose([(ISLAND, PASSAGES[4:])])
        assert silent.lists == []
        records = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
        assert {each["stage"] for each in records if each.get("kind") == "score"} == {"cxmi"}


class TestTooLong:
    """A model whose context holds some of the prompts only."""

    @staticmethod
    def narrow(*words: str) -> Told:
        """Prompts with one of `words` do not fit."""

        class Narrow(Told):
            async def compute(self, pairs: Sequence[TextPair], done: Done) -> None:
                self.lists.append(list(pairs))
                for at, pair in enumerate(pairs):
                    long = any(word in pair.prompt for word in words)
                    done(at, too_long(pair, 600, 512) if long else Score(self.logprob(pair.prompt), 2))

        return Narrow(reported(KEPT).logprob)

    def test_a_sentence_has_no_score_and_is_not_chosen(self, tmp_path: Path) -> None:
        with Journal(tmp_path / "journal.jsonl") as journal:
            keeper, island = cxmi(self.narrow("1884"), journal).choose(TestOneBatch.BATCH)
        assert keeper.scores == (-1.0, -1.0, None, 2.0, -1.0)
        assert (chosen(keeper), island.scores) == ([KEPT], (-1.0, -1.0))
        with Journal(tmp_path / "journal.jsonl", "replay") as journal:
            assert cxmi(Told(), journal).choose(TestOneBatch.BATCH) == [keeper, island]

    def test_a_question_that_is_too_long_by_itself_is_named(self) -> None:
        text = r"question 'i' cannot be scored, even without a sentence: .*600 tokens.*; drop the row, or take a model"
        with pytest.raises(ModelError, match=text) as error:
            cxmi(self.narrow("How many")).choose(TestOneBatch.BATCH)
        assert (error.value.kind, error.value.stage) == ("context_too_long", "cxmi")
        with pytest.raises(ModelError, match=text):
            cxmi(self.narrow("How many")).check([ISLAND])
        nothing = cxmi(self.narrow("How many")).choose([(ISLAND, [])])
        assert nothing == [OracleChoice((), (), ())]

    def test_what_may_pass_is_an_error(self) -> None:
        """A server that is busy says nothing about the sentence."""

        class Busy(Told):
            async def compute(self, pairs: Sequence[TextPair], done: Done) -> None:
                for at, _ in enumerate(pairs):
                    done(at, ModelError("busy", kind="rate_limited") if at == 2 else Score(-1.0, 1))

        with pytest.raises(ModelError, match="busy"):
            cxmi(Busy()).choose(TestOneBatch.BATCH)


class TestWording:
    """The prompt's words where a set of questions chooses them: claims of two labels, or of three."""

    CLAIM = Question("c", "Quillmere is an island of five villages.", ("REFUTES",))
    OPEN = Question("o", "Quillmere has a school.", ("NOT ENOUGH INFO",))

    def prompt(self, oracle: Oracle, backend: Told) -> str:
        oracle.choose([(self.CLAIM, PASSAGES[2:3])])
        return backend.lists[-1][0].prompt

    def test_the_questions_choose(self) -> None:
        backend = Told()
        oracle = Oracle("cxmi", task="fever", scorer=KeptScorer(backend))
        assert "NOT ENOUGH INFO" not in self.prompt(oracle, backend)
        two, three = (TASKS["fever"].asking(each) for each in ([self.CLAIM], [self.CLAIM, self.OPEN]))
        wanted = oracle.asking(three)
        assert "NOT ENOUGH INFO" in self.prompt(wanted, backend)
        assert wanted.identity()["prompt"] != oracle.identity()["prompt"]
        assert "NOT ENOUGH INFO" not in self.prompt(oracle, backend), "the first one is as it was"
        assert wanted.asking(two).identity() == oracle.identity()


class TestChecking:
    def test_one_score_is_asked_before_any_work_and_is_kept(self, tmp_path: Path) -> None:
        backend = reported(KEPT)
        with Journal(tmp_path / "journal.jsonl") as journal:
            oracle = cxmi(backend, journal)
            oracle.check([KEEPER, ISLAND])
            oracle.choose([(KEEPER, PASSAGES[:2])])
        assert [len(each) for each in backend.lists] == [1, 4]
        assert backend.lists[0][0] not in backend.lists[1]

    @pytest.mark.parametrize("measure", ["strinc", "lexical", "cxmi"])
    @pytest.mark.parametrize(
        ("answers", "error"),
        [
            ((), "question 'q7' has no golden answers: .* drop the row"),
            (("the", " \n"), "question 'q7': .* cannot look for 'the'"),
        ],
    )
    def test_answers_that_nothing_can_be_compared_with(
        self, measure: Any, answers: tuple[str, ...], error: str
    ) -> None:
        backend = Told()
        oracle = cxmi(backend) if measure == "cxmi" else Oracle(measure, task="hotpotqa")
        wrong = Question("q7", "Who?", answers)
        with pytest.raises(BadData, match=error):
            oracle.check([ISLAND, wrong])
        with pytest.raises(BadData, match=error):
            oracle.choose([(ISLAND, PASSAGES), (wrong, PASSAGES)])
        assert backend.lists == []

    def test_a_model_that_cannot_score(self) -> None:
        with pytest.raises(BadArgument, match=r"cxmi asks a model .*scorer=.*vLLM.*Hugging Face"):
            Oracle("cxmi", task="hotpotqa")
        with pytest.raises(BadArgument, match=r"the offline reader .* gives no log-probabilities; what can: "):
            Oracle("cxmi", task="hotpotqa", scorer=scorer("offline"))

    def test_a_question_that_is_a_demonstration(self) -> None:
        oracle = cxmi(Told(), wording=TaskWording(demos=[DEMO]))
        with pytest.raises(Leak, match="question 'd' is also a demonstration"):
            oracle.check([Question("d", " who built  the Mill?", ("Ole",))])
        cxmi(Told()).check([Question("d", "Who built the mill?", ("Ole",))])


@pytest.mark.parametrize("measure", ["strinc", "lexical", "cxmi"])
def test_passages_without_sentences(measure: Any) -> None:
    backend = Told()
    oracle = cxmi(backend) if measure == "cxmi" else Oracle(measure, task="hotpotqa")
    nothing = OracleChoice((), (), ())
    assert oracle.choose([(KEEPER, []), (ISLAND, [Passage("e", "A title.", " \n")])]) == [nothing, nothing]
    assert oracle.choose([]) == []
    assert backend.lists == []


def test_measures_that_ask_no_model() -> None:
    """STRINC takes the first sentence with any alias; LEXICAL the one that is most alike, above one half."""
    (first,) = Oracle("strinc", task="nq").choose([(KEEPER, PASSAGES[1:])])
    assert chosen(first) == [KEPT]
    assert first.scores == (0.0, 1.0, 0.0, 1.0, 0.0)
    claim = Question("c", "Quillmere is an island of five villages.", ("REFUTES",))
    (alike,) = Oracle("lexical", task="fever").choose([(claim, PASSAGES)])
    assert chosen(alike) == ["Quillmere | Quillmere is an island of two villages."]
    assert alike.scores[alike.chosen[0]] == pytest.approx(5 / 6)  # 6 words each, all but the number shared
    told = Question("c", claim.question, ("Five villages lie on it.",))
    (reported,) = Oracle("lexical", task="hotpotqa").choose([(told, PASSAGES)])
    assert reported.chosen == ()


@pytest.mark.parametrize("verdict", ["yes", "No.", "true", "REFUTES"])
def test_a_verdict_stands_in_no_passage(verdict: str) -> None:
    """STRINC refuses to look for one, LEXICAL takes the sentence that is most like the question."""
    asked = Question("c", "Is Quillmere an island of five villages?", (verdict,))
    with pytest.raises(BadData, match=r"question 'c': strinc cannot look for .*: take the measure lexical .* or cxmi"):
        Oracle("strinc", task="hotpotqa").choose([(asked, PASSAGES)])
    (alike,) = Oracle("lexical", task="hotpotqa").choose([(asked, PASSAGES)])
    assert chosen(alike) == ["Quillmere | Quillmere is an island of two villages."]


class TestIdentity:
    def test_of_cxmi_it_tells_models_and_prompts_apart(self, tmp_path: Path) -> None:
        (tmp_path / "direct.j2").write_text("{{ (knowledge | default([])) | join }}? {{ question }}")
        identities = [
            cxmi(Told()).identity(),
            cxmi(Told(), wording=TaskWording(demos=[DEMO])).identity(),
            cxmi(Told(), wording=TaskWording(instructions={"direct": "Say it."})).identity(),
            cxmi(Told(), prompts=Prompts(tmp_path)).identity(),
        ]
        assert identities[0]["scorer"] == {"kind": "told"}
        assert len({each["prompt"] for each in identities}) == 4
        assert cxmi(reported(KEPT)).identity() == identities[0] == json.loads(json.dumps(identities[0]))
        assert str(tmp_path) not in json.dumps(identities)
