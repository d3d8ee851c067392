"""Self-consistency: samples of one prompt, a vote over what they conclude, one short answer."""

from __future__ import annotations

import dspy
import pytest
from isle import QUESTION, nothing, one_list
from scripted import ScriptedLM, scripted

from blendfilter.errors import BadArgument
from blendfilter.modules.direct import ChainOfThought
from blendfilter.modules.self_consistency import SelfConsistency, majority

BO = "Bo kept it.\nSo the answer is Bo."
ADA = "Ada Brennock kept it for thirty years.\nSo the answer is Ada Brennock."
ADA_TOO = "It was the keeper.\nSo the answer is ada brennock"
LOST = "Skerry Light stands beside"


def run(method: dspy.Module, *drawn: str) -> tuple[dspy.Prediction, ScriptedLM]:
    with scripted({"answer": drawn, "short_answer": ["Ada Brennock"]}) as lm, dspy.context(lm=lm):
        return method(question=QUESTION), lm


class TestVote:
    @pytest.mark.parametrize(
        ("conclusions", "winner", "votes"),
        [
            (["Bo", "Ada", "Ada"], 1, [("Ada", 2), ("Bo", 1)]),
            (["Bo", "The Ada.", "ada"], 1, [("The Ada.", 2), ("Bo", 1)]),
            (["Bo", "Ada", "Ada", "Bo"], 0, [("Bo", 2), ("Ada", 2)]),
            (["", "", "Ada"], 2, [("Ada", 1)]),
            (["", " "], 0, []),
            (["the", "…", "the"], 0, [("the", 2), ("…", 1)]),
            (["no", "No.", "yes"], 0, [("no", 2), ("yes", 1)]),
        ],
    )
    def test_the_largest_group_wins(self, conclusions: list[str], winner: int, votes: list[tuple[str, int]]) -> None:
        assert majority(conclusions) == (winner, votes)


class TestMethod:
    def test_samples_of_cot_retrievals_prompt_and_one_short_answer(self) -> None:
        result, lm = run(SelfConsistency(one_list(), k=2, samples=4), BO, ADA, LOST, ADA_TOO)
        plain, other = run(ChainOfThought(one_list(), k=2), ADA)
        assert set(lm.prompts_of("answer")) == set(other.prompts_of("answer"))
        assert lm.calls == 5
        assert [request.config.temperature for request in lm.inner.requests] == [0.7] * 4 + [0.0]
        assert result.votes == [("Ada Brennock.", 2), ("Bo.", 1)]
        assert result.reasoning == ADA
        assert f"\nContext:\n{ADA}\nQuestion: {QUESTION}\n" in lm.prompts_of("short_answer")[0]
        assert (result.answer, result.knowledge, result.queries) == ("Ada Brennock", plain.knowledge, plain.queries)

    def test_by_default_it_spends_what_blendfilter_does(self) -> None:
        result, lm = run(SelfConsistency(one_list()), *[ADA] * 10)
        assert lm.calls == 11
        assert [stage for stage, _ in result.calls] == ["answer"] * 10 + ["short_answer"]
        assert len({key for _, key in result.calls}) == 11  # ten samples are ten calls, equal prompt or not
        assert result.votes == [("Ada Brennock.", 10)]


@pytest.mark.parametrize("temperature", [0.0, 0.15, -1.0, float("nan")])
def test_samples_must_be_able_to_differ(temperature: float) -> None:
    with pytest.raises(BadArgument, match=r"temperature must be above 0\.15 for samples to differ"):
        SelfConsistency(nothing, temperature=temperature)


def test_name_and_arguments() -> None:
    method = SelfConsistency(nothing, 15, samples=9)
    assert method.method_name == "self-consistency"
    assert method.arguments() == {"k": 15, "samples": 9, "temperature": 0.7}
