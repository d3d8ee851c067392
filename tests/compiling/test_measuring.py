"""Metrics as DSPy's optimisers call them, the one that compares a filter with silver; demonstrations."""

from __future__ import annotations

import dataclasses
from typing import Any

import dspy
import pytest
from scripted import ScriptedLM

from blendfilter.compiling.measuring import (
    AcceptingMetric,
    CompilationWatch,
    CountedMetric,
)
from blendfilter.compiling.optimisers import DemoCount, complete, hold_to, keep_own_fields, reduced
from blendfilter.compiling.silver import overlap, silver_examples, silver_metric
from blendfilter.errors import BadArgument, BadData, CompilationStopped, ModelError
from blendfilter.filters.filco import FilCoFilter, Unit
from blendfilter.lm.tokenisers import TokenCounter
from blendfilter.oracles.candidates import sentences_of
from blendfilter.oracles.silver_rows import SilverRow, SilverSentence
from blendfilter.records import Excerpt, Passage
from blendfilter.tasks.loading import load

QUESTION = dspy.Example(question="Who?", golden_answers=["Ada", "A. B."]).with_inputs("question")
ANSWERED = dspy.Prediction(answer="Ada Brennock")


def measured(metric: Any) -> CountedMetric:
    made = CountedMetric(metric, CompilationWatch(dspy.Module), lambda *_: None)
    made.begin("here", None)
    return made


def test_a_tasks_metric_is_read_in_three_ways() -> None:
    metric = measured(load("wow", "sample", limit=1).metric)
    assert metric(QUESTION, ANSWERED) == pytest.approx(2 / 3)
    assert metric(QUESTION, ANSWERED, []) is False
    result = metric(QUESTION, ANSWERED, [], "answer", [])
    assert result.score == pytest.approx(2 / 3)
    assert result.feedback == (
        "The answer was 'Ada Brennock'. It scores 0.67 of 1. The right answer is 'Ada' or 'A. B.'."
    )
    assert metric.done == 3


@pytest.mark.parametrize("value", [None, "0.5", float("nan"), {"score": None}])
def test_what_is_no_number_is_reported(value: Any) -> None:
    metric = measured(lambda example, prediction, trace=None: value)
    with pytest.raises(CompilationStopped, match="for a score: have it return a number"):
        metric(QUESTION, ANSWERED)


def test_a_threshold_says_what_is_accepted() -> None:
    metric = measured(AcceptingMetric(load("wow", "sample", limit=1).metric, 0.6))
    assert metric(QUESTION, ANSWERED) == pytest.approx(2 / 3)
    assert metric(QUESTION, ANSWERED, []) is True
    assert measured(AcceptingMetric(metric.metric.metric, 0.7))(QUESTION, ANSWERED, []) is False


def test_an_answerer_whose_prompt_is_too_long_scores_nothing() -> None:
    def asking(example: Any, prediction: Any, trace: Any = None) -> float:
        raise ModelError("too long", kind="context_too_long")

    assert measured(asking)(QUESTION, ANSWERED) == 0.0


PASSAGES = (
    Passage("p0", "Tolm", "Tolm is a port. Ada kept the light."),
    Passage("p1", "Honey", "Honey is sold in two villages here."),
)


def row(*chosen: int) -> SilverRow:
    """Three sentences of 6, 6 and 9 words with their titles ("Tolm | Tolm is a port.")."""
    sentences = tuple(SilverSentence(each.position, each.start, each.end, 0.0) for each in sentences_of(PASSAGES))
    return SilverRow("1", "Who kept it?", ("Ada", "A. B."), "Ada", PASSAGES, sentences, chosen, "", True)


def kept(*positions: int) -> dspy.Prediction:
    candidates = sentences_of(PASSAGES)
    pieces = [Excerpt.of(PASSAGES[candidates[at].position], [candidates[at][1:3]]) for at in positions]
    return dspy.Prediction(kept=pieces, chosen=list(positions), status="ids")


def example(*chosen: int) -> dspy.Example:
    (made,) = silver_examples([row(*chosen)])
    return made


class TestExamples:
    def test_numbers_are_those_of_the_prompt(self) -> None:
        made = example(1)
        assert made.knowledge == ["Tolm | Tolm is a port.", "Tolm | Ada kept the light.", "Honey | " + PASSAGES[1].text]
        assert (made.ids, made.chosen, made.golden_answers) == ("1", [1], ["Ada", "A. B."])
        assert set(made.inputs().keys()) == {"question", "passages"}
        assert made.passages == list(PASSAGES)

    def test_where_silver_chose_nothing_there_is_no_reply_to_demonstrate(self) -> None:
        made = example()
        assert (made.ids, made.chosen) == (None, [])
        assert not complete(made, FilCoFilter().helpful)
        assert complete(example(1), FilCoFilter().helpful)

    def test_a_passage_is_chosen_with_any_of_its_sentences(self) -> None:
        made = silver_examples([row(0, 1)], "passage")[0]
        assert (made.ids, made.chosen, len(made.knowledge)) == ("0", [0], 2)

    @pytest.mark.parametrize("unit", ["sentence", "passage"])
    def test_a_choice_that_is_no_candidate_is_reported(self, unit: Unit) -> None:
        """A file cut by other rules: silently, its right reply would be none."""
        old = dataclasses.replace(row(1), sentences=(SilverSentence(0, 0, 3, 0.0), SilverSentence(9, 1, 4, 0.0)))
        with pytest.raises(
            BadData, match=rf"question '1' chooses what is no {unit} of its passages as they are cut now"
        ):
            silver_examples([old], unit)


class TestReward:
    @pytest.mark.parametrize(
        ("got", "wanted", "value"),
        [((1,), (1,), 1.0), ((0, 1), (1,), 2 / 3), ((0,), (1,), 0.0), ((), (), 1.0), ((0,), (), 0.0), ((), (1,), 0.0)],
    )
    def test_agreement_is_f1_and_two_empty_sets_agree(
        self, got: tuple[int, ...], wanted: tuple[int, ...], value: float
    ) -> None:
        assert overlap(set(got), set(wanted)) == pytest.approx(value)
        assert silver_metric(answer=0, tokens=0)(example(*wanted), kept(*got)) == pytest.approx(value)

    def test_the_answer_is_asked_over_what_was_kept(self) -> None:
        lm = ScriptedLM(["Ada Brennock"])
        with dspy.context(lm=lm):
            value = silver_metric(tokens=0)(example(1), kept(1))
        assert value == pytest.approx((1 + 0.5 * 2 / 3) / 1.5)  # F1 of "Ada Brennock" and "Ada": 2/3
        ((stage, prompt),) = lm.prompts
        assert stage == "direct"
        assert "Knowledge:\nTolm | Ada kept the light.\nQuestion: Who kept it?\nAnswer:" in prompt
        assert "Honey" not in prompt.rpartition("Knowledge:")[2]

    def test_another_model_than_the_teacher_answers_and_leaves_no_trace(self) -> None:
        own = ScriptedLM(["Ada"])
        with dspy.context(lm=ScriptedLM([]), trace=[]):
            dataclasses.replace(silver_metric(), lm=own)(example(1), kept(1))
            assert dspy.settings.trace == []
        assert own.calls == 1


class TestThreeReadings:
    """A number, yes or no, a score with words: as DSPy's evaluation, bootstrapping and GEPA want it."""

    metric = staticmethod(silver_metric(answer=0, tokens=0, threshold=0.6))

    @pytest.mark.parametrize(("got", "accepted"), [((0, 1), True), ((0, 1, 2), False), ((), False)])
    def test_yes_or_no_where_there_is_a_trace(self, got: tuple[int, ...], accepted: bool) -> None:
        assert self.metric(example(1), kept(*got), []) is accepted

    @pytest.mark.parametrize(
        ("got", "wanted", "score"),
        [((), (), 1.0), ((0,), (0, 1), 2 / 3), ((2,), (0, 1), 0.0), ((), (0, 1), 0.0)],
    )
    def test_what_contradicts_silver_is_no_demonstration(
        self, got: tuple[int, ...], wanted: tuple[int, ...], score: float
    ) -> None:
        """Whatever it scores: a sentence that silver chose is missing, or silver has nothing to say."""
        status = "ids" if got else "none"
        said = dspy.Prediction(**{**kept(*got), "status": status})
        lenient = silver_metric(answer=0, tokens=0, threshold=0)
        assert lenient(example(*wanted), said) == pytest.approx(score)
        assert lenient(example(*wanted), said, []) is False

    def test_a_reply_that_was_not_read_is_no_demonstration(self) -> None:
        """Everything was kept, which may be right by chance; a second reply does not mend what the first one shows."""
        all_right = dspy.Prediction(kept=[], chosen=[1], status="unparseable")
        assert self.metric(example(1), all_right) == 1.0
        assert self.metric(example(1), all_right, []) is False
        sent = FilCoFilter()
        for steps, accepted in (([sent.helpful], True), ([sent.helpful, sent.ids_again], False)):
            trace = [(each, {}, dspy.Prediction(ids="1")) for each in steps]
            assert self.metric(example(1), kept(1), trace) is accepted

    def test_words_for_gepa(self) -> None:
        result = self.metric(example(1), kept(0, 2), [], "helpful", [])
        assert result.score == 0.0
        assert "Missed: 1 ('Tolm | Ada kept the light.')" in result.feedback
        assert "Superfluous: 0 ('Tolm | Tolm is a port.'); 2 ('Honey" in result.feedback
        assert "71% of the words" in result.feedback
        assert "the right reply is none" in self.metric(example(), kept(0), None, "helpful", None).feedback
        with dspy.context(lm=ScriptedLM(["Tolm"])):
            result = silver_metric()(example(1), kept(1), None, "helpful", None)
        assert "the answer given was 'Tolm', the right one is: Ada; A. B." in result.feedback


def test_weights_that_are_none() -> None:
    with pytest.raises(BadArgument, match=r"the weight tokens is inf"):
        silver_metric(tokens=float("inf"))
    with pytest.raises(BadArgument, match="nothing would be rewarded"):
        silver_metric(agreement=0.0, answer=0.0)


WORDS = TokenCounter("words", lambda text: len(text.split()))


def asking(*questions: str) -> dspy.Predict:
    """A predictor with a demonstration of each question, whose answer is one word."""
    predictor = dspy.Predict("question -> answer")
    predictor.demos = [dspy.Example(question=each, answer="x") for each in questions]
    return predictor


@pytest.mark.parametrize(
    ("limit", "kept"),
    [
        (None, ["a b", "c", "d e", "f g"]),
        (11, ["a b", "c", "d e", "f g"]),
        (10, ["a b", "c", "d e"]),  # of equals the last one goes
        (4, ["c"]),
        (1, []),
    ],
)
def test_the_longest_goes_first_and_of_equals_the_last(limit: int | None, kept: list[str]) -> None:
    predictor = asking("a b", "c", "d e", "f g")
    assert hold_to(predictor, limit, WORDS) == DemoCount(4 - len(kept), len(kept))
    assert [demo.question for demo in predictor.demos] == kept


@pytest.mark.parametrize(
    ("reply", "shown"),
    [
        ('{"ids": [2, 0]}', "0, 2"),
        ("Ids: 1 and 2", "1, 2"),
        ("2: Honey is sold in two villages here.", "2"),
        ("none", "none"),
        ("I cannot say.", None),
        ("not 1", None),
    ],
)
def test_ids_are_demonstrated_as_the_prompt_asks_for_them(reply: str, shown: str | None) -> None:
    """One that could not be read, and had to be asked for again, not at all."""
    sent = FilCoFilter()
    sent.helpful.demos = [dspy.Example(knowledge=example(1).knowledge, question="Who?", ids=reply)]
    keep_own_fields(sent)
    assert [demo.ids for demo in sent.helpful.demos] == ([] if shown is None else [shown])


def test_what_a_model_filled_stays_marked_and_marks_cost_nothing() -> None:
    (filled,) = asking("a b").demos
    kept = reduced({**filled, "augmented": True, "gold": "y"}, asking())
    assert dict(kept) == {"augmented": True, "question": "a b", "answer": "x"}
    predictor = asking()
    predictor.demos = [kept]
    assert hold_to(predictor, 3, WORDS).dropped == 0
