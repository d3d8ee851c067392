"""The guard: near questions that must not share verdicts, and paraphrases that may."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.retrieval.analyser import snowball
from blendfilter.trimming.opposites import OPPOSITES, unlike

APART = [
    ("Who turned on the radio?", "Who turned off the radio?", "one says 'on', the other 'off'"),
    ("When did Ada Holt die?", "When was Ada Holt born?", "one says 'died', the other 'born'"),
    ("Did the mayor not sign it?", "Did the mayor sign it?", "one of them is negated"),
    ("Why didn't the mayor sign it?", "Why did the mayor sign it?", "one of them is negated"),
    ("Who never saw the sea?", "Who saw the sea?", "one of them is negated"),
    ("What is Ada Holt's occupation?", "What is Ben Marsh's occupation?", "only one of them names 'ada'"),
    ("What is Ada Holt's occupation?", "What is Ada Marsh's occupation?", "only one of them names 'holt'"),
    ("In what city was Ada born?", "In what city was Ada Holt born?", "only one of them names 'holt'"),
    ("what is the capital of Tolm?", "what is the capital of Orm?", "only one of them names 'tolm'"),
    ("Did Jack push Mary?", "Did Mary push Jack?", "they name the same in another order"),
    ("What was built in 1871?", "What was built in 1872?", "only one of them has the number '1871'"),
    ("Who was the first mayor?", "Who was the third mayor?", "only one of them has the number '1'"),
    ("Who had three boats?", "Who had four boats?", "only one of them has the number '3'"),
    ("Who wrote 'the quiet hill'?", "Who wrote 'the quiet mill'?", "only one of them quotes 'the quiet hill'"),
    ('Who wrote "ash"?', 'Who wrote "oak"?', "only one of them quotes 'ash'"),
    ("When was the pier built?", "Where was the pier built?", "one asks when, the other where"),
    ("Who is his father?", "Who is his mother?", "one says 'father', the other 'mother'"),
    ("Which is the largest lake?", "Which is the smallest lake?", "one says 'largest', the other 'smallest'"),
    ("Is it legal to moor here?", "Is it illegal to moor here?", "one says 'legal', the other 'illegal'"),
    ("Is the pier unsafe?", "Is the pier safe?", "one says 'safe', the other 'unsafe'"),
    ("Who was born in the mill?", "Who was not born in the mill?", "one of them is negated"),
    ("What happened before the fair?", "What happened after the fair?", "one says 'before', the other 'after'"),
]
ALIKE = [
    ("Who turned on the radio?", "Who turned the radio on?"),
    ("Who turned on the radio?", "who was it that turned on the radio"),
    ("What is Ada Holt's occupation?", "What is the profession of Ada Holt?"),
    ("What is Ada Holt's occupation?", "what's ada holt’s job"),
    ("Where does the U.S. mint coins?", "Where does the US mint its coins?"),
    ("Who won in 1,200 tries?", "Who won in 1200 tries?"),
    ("Who was the first mayor?", "Who was the 1st mayor?".replace("1st", "first")),
    ("Which one is older?", "Which is older?"),
    ("Who wrote 'the quiet hill'?", "Who wrote the quiet hill?"),
    ("Is it the café of Zoë Lund?", "Is it the cafe of Zoe Lund?"),
    ("What year was the pier built?", "When was the pier built?"),
    ("Please tell me, who built the pier?", "Who built the pier?"),
    ("Didn't Jack win?", "Did Jack not win?"),
    ("What does it put to the side?", "What does it put to the side, and into the box, in a unit?"),
    ("Is it legal, or illegal?", "Is it illegal, or legal?"),
    ("Name the mayor.", "Who is the mayor?"),
]


@pytest.mark.parametrize(("a", "b", "why"), APART)
def test_what_is_kept_apart(a: str, b: str, why: str) -> None:
    assert unlike(a, b) == why
    assert unlike(b, a)


@pytest.mark.parametrize(("a", "b"), ALIKE)
def test_what_may_share(a: str, b: str) -> None:
    assert unlike(a, b) == unlike(b, a) == ""


@pytest.mark.parametrize(("first", "second"), OPPOSITES)
def test_each_opposite(first: str, second: str) -> None:
    assert unlike(f"is it what they {first}?", f"is it what they {second}?")
    assert unlike(f"is it what they {second}?", f"is it what they {first}?")


def test_opposites_are_told_apart_by_their_stems() -> None:
    stem = snowball("english")
    assert len(OPPOSITES) >= 40
    assert [pair for pair in OPPOSITES if stem(pair[0]) == stem(pair[1])] == []


def test_two_of_one_template_are_never_alike() -> None:
    names = ["Ada Holt", "Ben Marsh", "Cal Ader", "Þora Lund", "O'Dell", "Jean-Luc Roy", "W. H. Dunn", "HMS Grebe"]
    for template in ("What is {}'s occupation?", "In what city was {} born?", "Who was the director of {}?"):
        for a in names:
            assert [b for b in names if b != a and not unlike(template.format(a), template.format(b))] == []


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_will_do(a: str, b: str) -> None:
    assert unlike(a, a) == ""
    assert bool(unlike(a, b)) == bool(unlike(b, a))
    assert "\n" not in unlike(a, b)
