"""The metric that holds a filter against silver: worked by hand, and what it asks of a model."""

from __future__ import annotations

import dataclasses
from typing import Any

import dspy
import pytest
from compiled import silver_rows
from scripted import ScriptedLM

from blendfilter.compiling.silver import overlap, silver_examples, silver_metric
from blendfilter.errors import BadArgument, BadData
from blendfilter.filters.filco import FilCoFilter, Unit
from blendfilter.oracles.candidates import sentences_of
from blendfilter.oracles.silver_rows import SilverRow, SilverSentence
from blendfilter.records import Excerpt, Passage

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

    def test_none_and_several(self) -> None:
        assert (example().ids, example().chosen) == ("none", [])
        assert example(0, 2).ids == "0, 2"

    def test_a_passage_is_chosen_with_any_of_its_sentences(self) -> None:
        made = silver_examples([row(0, 1)], "passage")[0]
        assert (made.ids, made.chosen, len(made.knowledge)) == ("0", [0], 2)

    @pytest.mark.parametrize("unit", ["sentence", "passage"])
    def test_a_choice_that_is_no_candidate_is_told(self, unit: Unit) -> None:
        """A file cut by other rules: silently, its right reply would be none."""
        old = dataclasses.replace(row(1), sentences=(SilverSentence(0, 0, 3, 0.0), SilverSentence(9, 1, 4, 0.0)))
        with pytest.raises(
            BadData, match=rf"question '1' chooses what is no {unit} of its passages as they are cut now"
        ):
            silver_examples([old], unit)

    def test_the_samples_choices_hold_the_answer(self) -> None:
        for made in silver_examples(silver_rows()):
            assert all(any(answer.lower() in made.knowledge[at].lower() for answer in made.golden_answers)
                       for at in made.chosen)  # fmt: skip
        assert any(made.chosen for made in silver_examples(silver_rows()))


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

    def test_words_are_charged_by_their_share(self) -> None:
        """Lines of 6, 6 and 9 words: one of 6 is 2/7 of them."""
        metric = silver_metric(answer=0, tokens=0.5)
        assert metric(example(1), kept(1)) == pytest.approx(1 - 0.5 * 6 / 21)
        assert metric(example(1), kept(0, 1, 2)) == pytest.approx(0.5 - 0.5)
        assert metric(example(1), kept(0)) == 0.0  # never below

    def test_the_answer_is_asked_over_what_was_kept(self) -> None:
        lm = ScriptedLM(["Ada Brennock"])
        with dspy.context(lm=lm):
            value = silver_metric(tokens=0)(example(1), kept(1))
        assert value == pytest.approx((1 + 0.5 * 2 / 3) / 1.5)  # F1 of "Ada Brennock" and "Ada": 2/3
        ((stage, prompt),) = lm.prompts
        assert stage == "direct"
        assert "Knowledge:\nTolm | Ada kept the light.\nQuestion: Who kept it?\nAnswer:" in prompt
        assert "Honey" not in prompt.rpartition("Knowledge:")[2]

    def test_without_a_weight_nobody_is_asked(self) -> None:
        with dspy.context(lm=ScriptedLM([])):
            assert silver_metric(answer=0)(example(1), kept(1)) > 0.9

    def test_it_leaves_no_trace(self) -> None:
        with dspy.context(lm=ScriptedLM(["Ada"]), trace=[]):
            silver_metric()(example(1), kept(1))
            assert dspy.settings.trace == []

    def test_another_model_than_the_teacher_answers(self) -> None:
        own = ScriptedLM(["Ada"])
        with dspy.context(lm=ScriptedLM([])):
            silver_metric().asking(own)(example(1), kept(1))
        assert own.calls == 1


class TestThreeReadings:
    """A number, yes or no, a score with words: as DSPy's evaluation, bootstrapping and GEPA want it."""

    metric = staticmethod(silver_metric(answer=0, tokens=0, threshold=0.6))

    def test_a_number(self) -> None:
        assert self.metric(example(1), kept(0, 1)) == pytest.approx(2 / 3)

    @pytest.mark.parametrize(("got", "accepted"), [((0, 1), True), ((0, 1, 2), False), ((), False)])
    def test_yes_or_no_where_there_is_a_trace(self, got: tuple[int, ...], accepted: bool) -> None:
        assert self.metric(example(1), kept(*got), []) is accepted

    def test_silvers_own_choice_is_accepted_whatever_the_answer(self) -> None:
        with dspy.context(lm=ScriptedLM(["wrong"] * 2)):
            assert silver_metric()(example(0, 1, 2), kept(0, 1, 2), []) is True
            assert silver_metric()(example(), kept(), []) is True

    def test_a_reply_that_was_not_read_is_no_demonstration(self) -> None:
        """Everything was kept, which may be right by chance; a second reply does not mend what the first one shows."""
        all_right = dspy.Prediction(kept=[], chosen=[1], status="unparseable")
        assert self.metric(example(1), all_right) == 1.0
        assert self.metric(example(1), all_right, []) is False
        asked = FilCoFilter()
        for steps, accepted in (([asked.helpful], True), ([asked.helpful, asked.ids_again], False)):
            trace = [(each, {}, dspy.Prediction(ids="1")) for each in steps]
            assert self.metric(example(1), kept(1), trace) is accepted

    def test_words_for_gepa(self) -> None:
        said = self.metric(example(1), kept(0, 2), [], "helpful", [])
        assert said.score == 0.0
        assert "Missed: 1 ('Tolm | Ada kept the light.')" in said.feedback
        assert "Superfluous: 0 ('Tolm | Tolm is a port.'); 2 ('Honey" in said.feedback
        assert "71% of the words" in said.feedback

    def test_words_where_nothing_helps(self) -> None:
        assert "the right reply is none" in self.metric(example(), kept(0), None, "helpful", None).feedback
        assert "none was named" in self.metric(example(), kept(), None, "helpful", None).feedback

    def test_the_answer_is_told(self) -> None:
        with dspy.context(lm=ScriptedLM(["Tolm"])):
            said = silver_metric()(example(1), kept(1), None, "helpful", None)
        assert "the answer given was 'Tolm', the right one is: Ada; A. B." in said.feedback


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"agreement": -1.0}, "the weight agreement is -1.0"),
        ({"tokens": float("inf")}, "the weight tokens is inf"),
        ({"agreement": 0.0, "answer": 0.0}, "nothing would be rewarded"),
    ],
)
def test_weights_that_are_none(weights: dict[str, Any], said: str) -> None:
    with pytest.raises(BadArgument, match=said):
        silver_metric(**weights)
