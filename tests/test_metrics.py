"""Answer and retrieval scores, each worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from blendfilter.errors import UnknownName
from blendfilter.metrics import (
    METRICS,
    Retrieval,
    accuracy,
    choice,
    exact_match,
    f1,
    inclusion,
    inclusion_raw,
    label,
    metric,
    recall,
    retrieval,
    rouge_l,
    truth,
    verdict,
)
from blendfilter.records import Question

PERFECT = Retrieval(1.0, 1.0, 1.0, 1.0, 1.0)
TEXTS = st.text(st.sampled_from("abc the.yesno "), max_size=20)


def annotated(*annotators: tuple[str, ...]) -> Question:
    return Question("1", "?", ("x",), tuple(dict.fromkeys(sum(annotators, ()))), annotators)


@pytest.mark.parametrize(
    ("prediction", "answers", "expected"),
    [
        ("The Lighthouse.", ["lighthouse"], 1.0),
        ("lighthouse keeper", ["lighthouse"], 0.0),
        ("Tern", ["Sterna", "tern"], 1.0),  # an alias is as right as the first answer
        ("", ["x"], 0.0),
        ("x", [], 0.0),
    ],
)
def test_exact_match(prediction: str, answers: list[str], expected: float) -> None:
    assert exact_match(prediction, answers) == expected


@pytest.mark.parametrize(
    ("prediction", "answers", "expected"),
    [
        ("the old harbour", ["harbour master"], 0.5),  # old harbour / harbour master: 1 of 2 and 1 of 2
        ("old red harbour", ["harbour"], 0.5),  # 1 of 3 and 1 of 1: 2 * 1/3 / (4/3)
        ("red red boat", ["red boat"], 0.8),  # 2 of 3 and 2 of 2: 2 * 2/3 / (5/3)
        ("harbour", ["mill", "the harbour"], 1.0),  # the best alias counts
        ("yes", ["yes"], 1.0),
        ("yes it is", ["yes"], 0.0),  # the answer is a verdict, and they differ
        ("no", ["no man's land"], 0.0),  # the prediction is one, and they differ
        ("noanswer", ["noanswer found"], 0.0),
        ("yes it is", ["yes it was"], 2 / 3),  # neither side is a bare verdict
        ("", ["x"], 0.0),
        ("the", ["a"], 0.0),  # nothing left on both sides: no overlap, as in the official script
        ("x", [], 0.0),
    ],
)
def test_f1(prediction: str, answers: list[str], expected: float) -> None:
    assert f1(prediction, answers) == pytest.approx(expected)


@given(TEXTS, TEXTS)
def test_f1_is_symmetric_within_bounds_and_full_on_a_match(one: str, other: str) -> None:
    score = f1(one, [other])
    assert 0.0 <= score <= 1.0
    assert score == pytest.approx(f1(other, [one]))
    if exact_match(one, [other]) and f1(one, [one]):
        assert score == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("Yes", "yes"),
        ("So the answer is: FALSE.", "no"),
        ("No, yes would be wrong", "no"),  # the first one counts
        ("true", "yes"),
        ("Nobody knows, yesterday", None),  # parts of words do not
        ("", None),
    ],
)
def test_verdict(reply: str, expected: str | None) -> None:
    assert verdict(reply) == expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("SUPPORTS", "SUPPORTS"),
        ("Supported.", "SUPPORTS"),
        ("The claim is refuted", "REFUTES"),
        ("The passages refute the claim, for it was built in 1871 and not later.", "REFUTES"),
        ("NOT ENOUGH INFO", "NOT ENOUGH INFO"),
        ("There is not enough information to support or refute it.", "NOT ENOUGH INFO"),
        ("SUPPORTS, not REFUTES", "SUPPORTS"),
        ("REFUTES. The claim is not supported by any passage.", "REFUTES"),
        ("It is not refuted but supported.", "SUPPORTS"),
        ("Is it supported? The text refutes it.", "REFUTES"),
        # denied, doubted, emptied, or asked: no label
        ("not supported", None),
        ("The claim isn\u2019t refuted.", None),
        ("It neither supports nor refutes the claim.", None),
        ("It is supported by nothing in the passages.", None),
        ("The text fails to support it.", None),
        ("It is unclear which passage supports it.", None),
        ("Supported?", None),
        # both, other words, parts of words
        ("SUPPORTS or REFUTES", None),
        ("unsupported", None),
        ("supporting evidence", None),
        ("True", "SUPPORTS"),
        ("The claim is not true.", "REFUTES"),
        ("The text does not support it, so REFUTES", "REFUTES"),
        ("yes", None),
        ("", None),
    ],
)
def test_label(reply: str, expected: str | None) -> None:
    assert label(reply) == expected


WORDS = st.lists(st.sampled_from(["it", "is", "the text", "supported", "refutes"]), max_size=4).map(" ".join)


@given(WORDS, st.sampled_from(["not", "never", "no", "nor", "isn't", "cannot be", "without"]), WORDS)
def test_behind_a_denial_no_label_is_read_in_its_clause(before: str, denial: str, after: str) -> None:
    assert label(f"{denial} {after}") is None
    assume(denial != "no" or not before.endswith(("supported", "refutes")))  # "supported no …": emptied by it
    assert label(f"{before} {denial} {after}") == label(before)
    assert label(f"{denial} {after}. {before}") == label(before)


@pytest.mark.parametrize(
    ("reply", "answers", "expected"),
    [
        # yes or no; a reply without a verdict is wrong
        ("Yes, it floats.", ["yes"], 1.0), ("true", ["yes"], 1.0), ("no", ["yes"], 0.0),
        ("perhaps", ["yes"], 0.0), ("perhaps", ["no"], 0.0), ("SUPPORTS", ["yes"], 0.0),
        # the label of a claim
        ("Refuted.", ["REFUTES"], 1.0), ("Refuted.", [" refutes "], 1.0), ("SUPPORTS", ["REFUTES"], 0.0),
        ("not refuted", ["REFUTES"], 0.0), ("", ["REFUTES"], 0.0), ("false", ["REFUTES"], 1.0),
        ("no", ["REFUTES"], 0.0), ("NOT ENOUGH INFO", ["NOT ENOUGH INFO"], 1.0),
        # an option: the letter, else the option's own text
        ("The Ice!", ["B", "ice"], 1.0), ("A. The ice", ["B", "ice"], 0.0), ("ice floats", ["B", "ice"], 0.0),
        ("no", ["B", "No ship floats."], 0.0), ("", ["B"], 0.0), ("5", ["B", "5"], 1.0),
        ("", ["A", "slate"], 0.0), ("The.", ["A", "slate"], 0.0),  # normalised, A is nothing
        # true or false, strictly
        ("Not true.", ["false"], 1.0), ("Not true.", ["true"], 0.0), ("It is false.", [" False "], 1.0),
    ],
)  # fmt: skip
def test_accuracy_reads_a_reply_by_the_kind_of_answer(reply: str, answers: list[str], expected: float) -> None:
    assert accuracy(reply, answers) == expected


@pytest.mark.parametrize(
    ("prediction", "answers", "expected"),
    [
        # "a b c d" and "a c d e" share "a c d": precision and recall are 3/4
        ("a b c d", ["a c d e"], 0.75),
        ("d c b a", ["a b c d"], 0.25),  # order counts: a subsequence of one word
        ("a x b y c", ["a b c"], 2 * 0.6 / 1.6),  # gaps do not: 3 of 5 and 3 of 3
        ("The-LAMP's", ["the lamp s"], 1.0),  # words are runs of letters and digits, in lower case
        ("ships", ["ship"], 0.0),  # no stemmer
        ("a b", ["x", "a b"], 1.0),  # the best answer counts
        ("été à Paris", ["Été à Paris"], 1.0),  # letters of any alphabet
        ("A\u030al", ["\u00c5l"], 1.0),  # in either Unicode form
        ("", ["a"], 0.0), ("a", [""], 0.0), ("...", ["..."], 0.0), ("a", [], 0.0),
    ],
)  # fmt: skip
def test_rouge_l_is_the_longest_common_subsequence_of_words(
    prediction: str, answers: list[str], expected: float
) -> None:
    assert rouge_l(prediction, answers) == pytest.approx(expected)


@given(st.text(st.sampled_from("ab c.T_9'"), max_size=40), st.text(st.sampled_from("ab c.T_9'"), max_size=40))
def test_rouge_l_is_that_of_google(prediction: str, answer: str) -> None:
    rouge_scorer = pytest.importorskip("rouge_score.rouge_scorer", reason="pip install rouge-score")
    scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=False)
    assert rouge_l(prediction, [answer]) == pytest.approx(scorer.score(answer, prediction)["rougeL"].fmeasure)


def test_metrics_by_name() -> None:
    assert set(METRICS) == {"em", "f1", "accuracy", "cover-em", "inclusion", "inclusion_raw", "rouge-l"}
    assert metric("em") is exact_match
    with pytest.raises(UnknownName, match="Did you mean 'accuracy'"):
        metric("acuracy")


def test_retrieval_counts_titles_once() -> None:
    """Quay, Mill, Quay against Mill, Tower: 1 of 2 gold found, 1 of 2 distinct titles gold."""
    question = annotated(("Mill", "Tower"))
    assert retrieval([], question) == Retrieval(0.0, 0.0, 0.0, 0.0, 0.0)
    assert retrieval(["Quay", "Mill", "Quay"], question)[:3] == (0.5, 0.5, 0.0)
    assert recall(["Quay", "Mill", "Quay"], question) == 0.5
    assert retrieval(["Tower", "Mill", "Tower"], question) == PERFECT


@pytest.mark.parametrize(
    ("titles", "ndcg", "mrr"),
    [
        # gold: A, B. At the top their gains are 1 and 1 / log2(3) = 0.6309, together 1.6309.
        (["A", "B", "x"], 1.0, 1.0),
        (["x", "A", "B"], (0.63093 + 0.5) / 1.63093, 1 / 2),
        (["x", "x", "A", "A", "B"], (0.63093 + 0.5) / 1.63093, 1 / 2),  # where a title's first passage stands
        (["x", "y", "z", "B"], 0.43068 / 1.63093, 1 / 4),
        (["A"], 1 / 1.63093, 1.0),  # a short list lacks the other
        (["x"], 0.0, 0.0),
    ],
)
def test_ndcg_and_reciprocal_rank_count_the_rank_of_gold(titles: list[str], ndcg: float, mrr: float) -> None:
    found = retrieval(titles, annotated(("A", "B")))
    assert found is not None
    assert (found.ndcg, found.mrr) == pytest.approx((ndcg, mrr), abs=1e-5)


def test_titles_are_compared_after_folding() -> None:
    assert retrieval(["Cafe\u0301  Noir"], annotated(("Caf\u00e9 Noir",))) == PERFECT
    assert recall(["mill"], annotated(("Mill",))) == 0.0


def test_the_best_annotator_counts_for_all_figures() -> None:
    """First annotator A B C (1/3 found), second A D (2/2): the second is meant, so precision is 2/3 and not 1/3."""
    question = annotated(("A", "B", "C"), ("A", "D"))
    assert retrieval(["A", "D", "E"], question) == pytest.approx(Retrieval(1.0, 2 / 3, 0.0, 1.0, 1.0))
    assert retrieval(["D", "A"], question) == PERFECT


def test_among_equal_recalls_the_better_precision_counts() -> None:
    assert retrieval(["A", "B"], annotated(("A",), ("A", "B"))) == PERFECT


def test_without_gold_there_is_no_score() -> None:
    for question in (Question("1", "?", ("x",)), Question("1", "?", ("x",), evidence=((),))):
        assert retrieval(["A"], question) is None
        assert recall(["A"], question) is None
    assert recall(["A"], Question("1", "?", gold_titles=("A", "B"))) == 0.5, "gold titles without an annotator"


# covering


@pytest.mark.parametrize(
    ("stated", "answers", "covered"),
    [
        ("It was the Lighthouse-keeper, of Tolm.", ["lighthousekeeper"], 1.0),
        ("Ada Brennock kept it", ["Brennock, Ada", "Ada  Brennock"], 1.0),
        ("artists", ["art"], 0.0),
        ("anything", ["the"], 0.0),
        ("", ["Ada"], 0.0),
        ("Ada", [], 0.0),
    ],
)
def test_an_answer_is_covered_where_its_words_stand_side_by_side(
    stated: str, answers: list[str], covered: float
) -> None:
    assert metric("cover-em")(stated, answers) == covered


# options


@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        ("B", "B"), ("**b**", "B"), ("B) ice", "B"), ("**B.** ice", "B"), ("(b) ice", "B"), ("Answer: B", "B"),
        ("The answer is A because slate is dense.", "A"), ("B\nIce floats, for it is light.", "B"), ("B - ice", "B"),
        ("The best choice would be B.", "B"), ("C, because ice is light.", "C"), ("I think B is correct.", "B"),
        ("The answer is A and no other.", "A"), ("(A) is wrong. The answer is (B).", "B"),
        # none, several, denied, asked about, or a word
        ("A or B", None), ("A) slate\nB) ice", None), ("The answer is not B.", None), ("Option B is incorrect.", None),
        ("Is it (B)?", None), ("A stone sinks.", None), ("The answer is A stone.", None), ("Vitamin C", None),
        ("2", None), ("", None), ("Option B's text", None), ("The answer is a stone.", None), ("A and B", None),
    ],
)  # fmt: skip
def test_choice(reply: str, letter: str | None) -> None:
    assert choice(reply) == letter


# true and false


@pytest.mark.parametrize(
    ("reply", "stated"),
    [
        ("true", "true"), ("False.", "false"), ("**True**", "true"), ("The claim is FALSE.", "false"),
        ("Yes", "true"), ("No.", "false"), ("No, it is false.", "false"), ("Yes: true.", "true"),
        ("False. The claim is not true.", "false"), ("It is not true but false", "false"),
        ("not true", "false"), ("It isn't false.", None), ("untrue", "false"), ("Is it true?", None),
        ("true or false", None),
        ("No, it is true.", None), ("No study has found it true", None), ("No study found it", None),
        ("The claim is partially true.", None), ("I cannot say. It may be true.", None), ("maybe false", None),
        ("The claim that it may cure fever is false.", "false"),
        ("partly true, partly false", None), ("half-true", None), ("SUPPORTS", None), ("", None),
    ],
)  # fmt: skip
def test_truth(reply: str, stated: str | None) -> None:
    assert truth(reply) == stated


# inclusion


@pytest.mark.parametrize(
    ("stated", "answers", "normalised", "raw"),
    [
        ("He was a politician.", ["politician"], 1.0, 1.0),
        ("He was a Politician.", ["politician"], 1.0, 0.0),  # raw, case counts
        ("the Guild of Pilots", ["The guild of pilots"], 1.0, 0.0),
        ("U.S.A.", ["USA"], 1.0, 0.0),
        ("artists", ["art"], 1.0, 1.0),  # as published: inside a word too
        ("Ada Brennock", ["Brennock, Ada"], 0.0, 0.0),
        ("Ada", ["Ada Brennock"], 0.0, 0.0),  # the reply holds the answer, not the other way round
        ("Ada", ["Orm", "Ada"], 1.0, 1.0),
        ("anything", ["the", "?!"], 0.0, 0.0),  # nothing is left of these
        ("In A\u030alesund", ["\u00c5lesund"], 1.0, 1.0),  # one letter in two Unicode forms
        ("In \u00c5lesund", ["A\u030alesund"], 1.0, 1.0),
        ("", ["Ada"], 0.0, 0.0),
        ("Ada", [], 0.0, 0.0),
        # the letter of an option
        ("A", ["A"], 1.0, 1.0),
        ("A stone sinks.", ["A"], 0.0, 1.0),
        ("Chalk, because it can", ["C"], 0.0, 1.0),
        ("The answer is 'C'.", ["C"], 1.0, 1.0),
        ("It is A because it sinks.", ["A"], 1.0, 1.0),
    ],
)
def test_inclusion(stated: str, answers: list[str], normalised: float, raw: float) -> None:
    assert (inclusion(stated, answers), inclusion_raw(stated, answers)) == (normalised, raw)


@given(TEXTS, st.lists(TEXTS, max_size=3), TEXTS)
def test_inclusion_does_not_care_for_case_and_grows_with_the_reply(stated: str, answers: list[str], more: str) -> None:
    assert inclusion(stated.upper(), answers) == inclusion(stated, answers) == inclusion(f"{stated}!", answers)
    assert inclusion_raw(stated + more, answers) >= inclusion_raw(stated, answers)
    assert inclusion(f"{stated} {more}", answers) >= inclusion(stated, answers)
    assert inclusion(stated, [*answers, more]) >= inclusion(stated, answers)
