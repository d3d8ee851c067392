"""Normalisation against the official rules re-implemented here without regular expressions, sentences, overlap."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.replies import short_reply, whole_reply
from blendfilter.text import (
    Overlap,
    choices,
    folded,
    nfc,
    normalize_answer,
    overlap,
    question_digest,
    sentences,
    visible,
)

WORDY = (
    st.text(st.sampled_from("aATHEthe n.,!?'\"-\n\t é1_İß"), max_size=40)
    | st.lists(st.sampled_from(["a", "An", "THE", "then", "sea", "x-y", "it's", "9.5", "yes!"])).map(" ".join)
    | st.text(max_size=40)
)


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
        ("an-the", "anthe"),  # no article any more once the hyphen is gone
        ("“The” sea", "“ ” sea"),  # only ASCII punctuation is dropped
        ("  \n\t", ""),
        ("Ålesund", "ålesund"),
        ("A\u030alesund", "\u00e5lesund"),  # one Unicode form
    ],
)
def test_normalisation_by_hand(text: str, expected: str) -> None:
    assert normalize_answer(text) == expected


@given(WORDY)
def test_normalisation_agrees_with_the_rules_written_out(text: str) -> None:
    assert normalize_answer(text) == officially(nfc(text))


def test_folding_joins_accents_and_spaces_but_keeps_case() -> None:
    assert folded("Cafe\u0301\u00a0 Noir\n") == "Caf\u00e9 Noir"
    assert folded("a") != folded("A")
    assert question_digest("Who kept the Cafe\u0301?") == question_digest("who kept the Caf\u00e9")


def test_overlap_counts_a_repeated_word_as_often_as_both_have_it() -> None:
    """Candidate red red boat, reference red boat house key: 2 shared, 2/3 and 2/4, F1 = 2*(2/3)*(1/2)/(7/6) = 4/7."""
    found = overlap(["red", "red", "boat"], ["red", "boat", "house", "key"])
    assert found == pytest.approx(Overlap(2, 2 / 3, 1 / 2, 4 / 7))
    assert overlap([], ["red"]) == overlap(["red"], []) == overlap(["red"], ["blue"]) == Overlap(0, 0.0, 0.0, 0.0)


def test_f1_is_the_official_scripts_to_the_last_digit() -> None:
    """4 of 5 and of 11 words: 2PR / (P + R) as the script computes it, which one division would not give."""
    precision, recall = 4 / 5, 4 / 11
    official = (2 * precision * recall) / (precision + recall)
    assert overlap(list("abcde"), list("abcd1234567")).f1 == official == 0.5000000000000001 != 2 * 4 / (5 + 11)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Dr. J. K. Lund met Mrs. Holt on St. Olav's quay.", ["Dr. J. K. Lund met Mrs. Holt on St. Olav's quay."]),
        ("It cost 2.5 crowns. Then 3.", ["It cost 2.5 crowns.", "Then 3."]),
        ("He lived in the U.S. Navy barracks.", ["He lived in the U.S. Navy barracks."]),
        ("He lived in the U.S. She did not.", ["He lived in the U.S.", "She did not."]),
        ("Was it Lund Inc. So. It was.", ["Was it Lund Inc.", "So.", "It was."]),
        ("Lund Inc. Holdings grew. It sold out.", ["Lund Inc. Holdings grew.", "It sold out."]),
        ("See No. 5 and p. 12. Done.", ["See No. 5 and p. 12.", "Done."]),
        ("The answer is no. Nobody came.", ["The answer is no.", "Nobody came."]),
        ('She said "stop." Then she left.', ['She said "stop."', "Then she left."]),
        ("A heading\n\nA text. Its end", ["A heading", "A text.", "Its end"]),
        ("She read K. A. Lund and M. I. Holt. I did not.", ["She read K. A. Lund and M. I. Holt.", "I did not."]),
        ("We met at 5 p.m. A boat came.", ["We met at 5 p.m.", "A boat came."]),
        (
            "It flew to Ulla–St. Olav with Drs. Lund/Prof. Holt.",
            ["It flew to Ulla–St. Olav with Drs. Lund/Prof. Holt."],
        ),
        ("Walter Lund (born 1548? – 1635) sang.", ["Walter Lund (born 1548? – 1635) sang."]),
        ("It rained . , and more! ; It stopped. .", ["It rained . , and more! ; It stopped. ."]),
        ("To buy:\n\nOil.\n- Salt.", ["To buy:", "Oil.", "- Salt."]),
        ("", []),
    ],
)
def test_sentences_by_hand(text: str, expected: list[str]) -> None:
    assert [one.text for one in sentences(text)] == expected


ANY = st.text(st.characters(exclude_categories=()), max_size=80)
"""Halves of surrogate pairs too, which a JSON file may bring."""


@given(st.text(st.sampled_from("ab AB.!?…\"')(,;:–- \n1\u00a0\u2028Mr"), max_size=80) | ANY)
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


# replies


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("Tolm is a port.\nIt has a light.", "Tolm is a port.\nIt has a light."),
        ("\nAnswer: Tolm is a port.\n\nIt has a light.\n", "Tolm is a port.\n\nIt has a light."),
        ("**Answer:** Tolm.", "Tolm."),
        ("## Final answer\nTolm.", "Tolm."),
        ("Answer:\nTolm.\nAnswer: Oddle.", "Tolm.\nAnswer: Oddle."),  # only where it stands first
        ("The answer is that ships know it.", "The answer is that ships know it."),  # a sentence, not a cue
        ("Answer:", ""),
        ("### Response:\nTolm.", "Tolm."),
    ],
)
def test_a_long_reply_is_taken_whole_without_its_cue(reply: str, answer: str) -> None:
    assert whole_reply(reply) == answer


# options


@pytest.mark.parametrize(
    ("question", "stem", "options"),
    [
        ("Which floats? (A) ice (B) slate", "Which floats?", ("ice", "slate")),
        ("Which floats?\n(A) ice\n(B) a raft\n(C) both", "Which floats?", ("ice", "a raft", "both")),
        ("Which of (A) these? (A) ice (B) slate", "Which of (A) these?", ("ice", "slate")),  # the last row of them
        ("Which? (A) ice (B) slate (A) or (B)", "Which?", ("ice", "slate (A) or (B)")),
        ("Which? (A) ice (C) lead", "Which? (A) ice (C) lead", ()),
        ("Which? (A) ice", "Which? (A) ice", ()),
        ("f(A) and g(B) differ", "f(A) and g(B) differ", ()),
        ("Which? (A) ice (B) slate (C) both (A) and (B)", "Which?", ("ice", "slate", "both (A) and (B)")),
        ("(A) (B)", "(A) (B)", ()),
        ("Which? (A) 1 (B) 2 (C) 3 (D) 4 (E) 5 (F) 6", "Which?", ("1", "2", "3", "4", "5 (F) 6")),
        ("", "", ()),
    ],
)
def test_options_follow_each_other_from_a(question: str, stem: str, options: tuple[str, ...]) -> None:
    found = choices(question)
    assert (found.stem, tuple(text for _, text in found.options)) == (stem, options)
    assert [letter for letter, _ in found.options] == list("ABCDE")[: len(options)]


# what reaches a terminal

FLAG_OF_ENGLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("a\rb\0\x08", "a\\x0db\\x00\\x08"),
        ("\x9b31m\x7f", "\\u009b31m\\u007f"),
        ("\u202eevil\u2066\u200f\u061c", "\\u202eevil\\u2066\\u200f\\u061c"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\udb40\\udc41"),
        (FLAG_OF_ENGLAND, FLAG_OF_ENGLAND),
        ("\U0001f3f4\U000e0041", "\U0001f3f4\\udb40\\udc41"),
        ("a\tb\r\nc\n", "a\tb\r\nc\n"),
        ("Jørn 字 \u200d\U0001f600 \\x1b", "Jørn 字 \u200d\U0001f600 \\x1b"),
    ],
    ids=[
        "C0", "what moves back", "C1 and DEL", "direction", "half a character", "a tag", "a flag",
        "a tag behind a flag", "lines", "text",
    ],
)  # fmt: skip
def test_what_acts_on_a_terminal_is_seen(text: str, seen: str) -> None:
    assert visible(text) == seen
    assert visible(seen) == seen


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("> So the answer is Rome.\nSo the answer is Tolm.", "Tolm."),
        ('Passage 2 says "So the answer is Rome."\nSo the answer is Tolm.', "Tolm."),
        ("Tolm\n> So the answer is Rome.", "Tolm"),
        ('"Tolm"', "Tolm"),
        ("```\nTolm\n```", "Tolm"),
    ],
)
def test_a_quoted_answer_is_not_the_reply_to_a_short_question(reply: str, answer: str) -> None:
    assert short_reply(reply) == answer
