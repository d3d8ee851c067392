"""The three measures on examples worked out by hand, and which spans are the best by them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.errors import UnknownName
from blendfilter.oracles.measures import THRESHOLDS, best, lexical, measure_for, references_for, strinc
from blendfilter.records import Question

CLAIM = "Bees were first kept on Quillmere in 1900."


class TestClaims:
    """Fact verification, in the manner of the paper's figure 7: a claim that is false, its year in a wrong place.

    Claim (normalised): bees were first kept on quillmere in 1900, 8 words.

    "The first lighthouse on Quillmere was kept in 1900." is first lighthouse on quillmere was kept in 1900, 8 words: 6
    are shared (first, on, quillmere, kept, in, 1900): precision 6/8, recall 6/8, F1 = 0.75.

    "Ada brought the bees over in 1931." is ada brought bees over in 1931, 6 words: 2 are shared (bees, in): precision
    2/6, recall 2/8, F1 = 2 (1/3) (1/4) / (7/12) = 2/7.

    LEXICAL takes the first, which would make a reader believe the year; only the second refutes the claim. The label
    REFUTES stands in neither, so STRINC takes none.
    """

    MISLEADING = "The first lighthouse on Quillmere was kept in 1900."
    REFUTING = "Ada brought the bees over in 1931."
    QUESTION = Question("f", CLAIM, ("REFUTES",))

    def test_lexical_is_misled(self) -> None:
        references = references_for("lexical", "fever", self.QUESTION)
        assert references == (CLAIM,)
        scores = [lexical(each, references) for each in (self.REFUTING, self.MISLEADING)]
        assert scores == pytest.approx([2 / 7, 0.75])
        assert best(scores, threshold=THRESHOLDS["lexical"]) == (1,)


@pytest.mark.parametrize(
    ("span", "outputs", "score"),
    [
        ("Ada Brennock kept it.", ["ada brennock"], 1),
        ("It was kept by “Ada-Brennock”.", ["Ada Brennock"], 0),  # only ASCII marks go, and leave no space
        ("Her party sailed.", ["art"], 0),  # a word, not a piece of one
        ("The U.S. Navy came.", ["us navy"], 1),
        ("Of 1,884 boats.", ["1884"], 1),
        ("Brennock, Ada", ["Ada Brennock"], 0),  # side by side, in this order
        ("The keeper of a light.", ["keeper of the light"], 1),  # articles do not count
        ("The The played.", ["The The", "the", "", " - "], 0),  # nothing is left of any of these
        ("Tolm Harbour", ["Skerry", "Tolm"], 1),  # any alias
        ("Tolm", [], 0),
        ("In A\u030alesund.", ["\u00c5lesund"], 1),  # the same letter in two Unicode forms
    ],
)
def test_string_inclusion(span: str, outputs: list[str], score: int) -> None:
    assert strinc(span, outputs) == score


def test_lexical_counts_words_as_often_as_both_hold_them() -> None:
    """red red boat against red boat house key: 2 shared, 2/3 and 2/4, F1 = 4/7. Characters would give far more."""
    assert lexical("Red, red boat!", ["a red boat, the house key"]) == pytest.approx(4 / 7)
    assert lexical("abc", ["cab"]) == 0.0


def test_rounding_tells_no_equals_apart() -> None:
    """By way of precision and recall the first is lower than the second, and the third above one half.

    3 words shared of 3 and 5, and of 4 and 4: F1 = 3/4 both. 4 words shared of 5 and 11: F1 = 8/16.
    """
    assert lexical("u v w", ["u v w x y"]) == lexical("u v w x", ["u v w y"]) == 0.75
    assert lexical("u v w x y", ["u v w x 1 2 3 4 5 6 7"]) == 0.5


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.3, 0.5, 0.7, 1.0])), st.sampled_from([0.0, 0.5]), st.integers(1, 4))
def test_nothing_left_out_is_better(scores: list[float], threshold: float, count: int) -> None:
    chosen = best(scores, threshold=threshold, num_sentences=count)
    assert list(chosen) == sorted(set(chosen))
    assert len(chosen) == min(count, sum(score > threshold for score in scores))
    for at in set(range(len(scores))) - set(chosen):
        assert scores[at] <= threshold or all((scores[each], -each) > (scores[at], -at) for each in chosen)


def test_the_measure_of_a_task_is_the_papers() -> None:
    papers = {
        "nq": "strinc",
        "triviaqa": "strinc",
        "wow": "lexical",
        "fever": "cxmi",
        "hotpotqa": "cxmi",
        "eli5": "cxmi",
    }
    assert {task: measure_for(task) for task in papers} == papers
    with pytest.raises(UnknownName, match=r"no measure for task 'never'\. Did you mean 'fever'\?"):
        measure_for("never")
