"""Normalisation against the official rules re-implemented here without regular expressions, sentences, overlap."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.text import Overlap, Sentence, folded, normalize_answer, overlap, sentences, tokens

WORDY = st.text(st.sampled_from("aATHEthe n.,!?'\"-\n\t é1_İß"), max_size=40) | st.text(max_size=40)


def officially(text: str) -> str:
    """The published rules step by step: lower, drop ASCII punctuation, blank out whole-word articles, squeeze space."""
    kept = [character for character in text.lower() if character not in string.punctuation]
    clean, run = "", ""
    for character in [*kept, " "]:
        if character.isalnum():
            run += character
        else:
            clean += (" " if run in ("a", "an", "the") else run) + character
            run = ""
    return " ".join(clean.split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Old-Man and a Sea!", "oldman and sea"),  # punctuation goes without leaving a space
        ("A.", ""),  # punctuation first, so the article is seen
        ("U.S.A.", "usa"),
        ("an-the", "anthe"),  # no article any more once the hyphen is gone
        ("theory of the sea", "theory of sea"),
        ("“The” sea", "“ ” sea"),  # only ASCII punctuation is dropped
        ("  \n\t", ""),
        ("Ålesund", "ålesund"),
    ],
)
def test_normalisation_by_hand(text: str, expected: str) -> None:
    assert normalize_answer(text) == expected


@given(WORDY)
def test_normalisation_agrees_with_the_rules_written_out(text: str) -> None:
    assert normalize_answer(text) == officially(text)


@given(st.lists(st.sampled_from(["a", "An", "THE", "then", "sea", "x-y", "it's", "9.5", "yes!"])).map(" ".join))
def test_normalisation_agrees_word_by_word(text: str) -> None:
    assert normalize_answer(text) == officially(text)


def test_tokens_are_the_normalised_words() -> None:
    assert tokens("The harbour, at dusk.") == ["harbour", "at", "dusk"]
    assert tokens("the") == []


def test_folding_joins_accents_and_spaces_but_keeps_case() -> None:
    assert folded("Cafe\u0301\u00a0 Noir\n") == "Caf\u00e9 Noir"
    assert folded("a") != folded("A")


def test_overlap_counts_a_repeated_word_as_often_as_both_have_it() -> None:
    """Candidate red red boat, reference red boat house key: 2 shared, 2/3 and 2/4, F1 = 2*(2/3)*(1/2)/(7/6) = 4/7."""
    found = overlap(["red", "red", "boat"], ["red", "boat", "house", "key"])
    assert found == pytest.approx(Overlap(2, 2 / 3, 1 / 2, 4 / 7))
    assert overlap([], ["red"]) == overlap(["red"], []) == overlap(["red"], ["blue"]) == Overlap(0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Dr. J. K. Lund met Mrs. Holt on St. Olav's quay.", ["Dr. J. K. Lund met Mrs. Holt on St. Olav's quay."]),
        ("It cost 2.5 crowns. Then 3.", ["It cost 2.5 crowns.", "Then 3."]),
        ("He lived in the U.S. Navy barracks.", ["He lived in the U.S. Navy barracks."]),
        ("He lived in the U.S. She did not.", ["He lived in the U.S.", "She did not."]),
        ("Lund Inc. Holdings grew. It sold out.", ["Lund Inc. Holdings grew.", "It sold out."]),
        ("See No. 5 and p. 12. Done.", ["See No. 5 and p. 12.", "Done."]),
        ("The answer is no. Nobody came.", ["The answer is no.", "Nobody came."]),
        ('She said "stop." Then she left.', ['She said "stop."', "Then she left."]),
        ("(It rained.) The boat left.", ["(It rained.)", "The boat left."]),
        ("Wait... what? Really?! Yes.", ["Wait... what?", "Really?!", "Yes."]),
        ("A heading\n\nA text. Its end", ["A heading", "A text.", "Its end"]),
        ("One line\nbroken. Two", ["One line\nbroken.", "Two"]),
        ("", []),
        (" \n ", []),
    ],
)
def test_sentences_by_hand(text: str, expected: list[str]) -> None:
    assert [one.text for one in sentences(text)] == expected


def test_offsets_point_into_the_text() -> None:
    assert sentences("  One.  Two. ") == [Sentence("One.", 2, 6), Sentence("Two.", 8, 12)]


@given(st.text(st.sampled_from("ab AB.!?…\"')( \n1\u00a0Mr"), max_size=80) | st.text(max_size=80))
def test_sentences_and_gaps_give_the_text_back(text: str) -> None:
    rebuilt, at = "", 0
    for one in sentences(text):
        gap = text[at : one.start]
        assert not gap.strip()
        assert one.text == text[one.start : one.end] == one.text.strip() != ""
        rebuilt += gap + one.text
        at = one.end
    assert not text[at:].strip()
    assert rebuilt + text[at:] == text
