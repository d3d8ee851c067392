"""Which questions must not share verdicts however near they are, and what a question is without its polite words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.trimming.opposites import OPPOSITES, plain_question, unlike

RADIO = "who turned on the radio"
ONLY_POLITER = [
    "Who turned on the radio?",
    "  who turned ON the\nradio ?!",
    "Please tell me who turned on the radio.",
    "Please, who turned on the radio?",
    "Could you tell me who turned on the radio?",
    "Hello there! Can you please tell me: who turned on the radio? Thanks a lot!",
    "Would you mind telling me who turned on the radio?",
    "Let me know who turned on the radio.",
    "Please say, who turned on the radio?",
    "Can you say who turned on the radio?",
    "Do you know who turned on the radio?",
    "Does anyone know who turned on the radio?",
    "Any idea who turned on the radio?",
    "I would like to know who turned on the radio, please.",
    "I’d like to know: who turned on the radio?",
    "I wonder who turned on the radio.",
    "I was wondering if you could tell me who turned on the radio",
    "May I ask you a question: who turned on the radio?",
    "Q: Who turned on the radio?",
    "OK, so who turned on the radio?",
    "Who turned on the radio, do you know?",
    "Who turned on the radio? I'd like to know. Thank you in advance!",
]
MEANT = [
    ("Who do you know?", "who do you know"),
    ("Do you know the Muffin Man?", "do you know the muffin man"),
    ("Can you swim?", "can you swim"),
    ("Can you name your child Orm?", "can you name your child orm"),
    ("Please please me", "please please me"),
    ("Who sang please please?", "who sang please please"),
    ("Who said thank you?", "who said thank you"),
    ("Hello, Dolly! was written by whom?", "hello, dolly! was written by whom"),
    ("Tell me about the pier.", "tell me about the pier"),
    ("Please name the mayor.", "please name the mayor"),
    ("Tell me.", "tell me"),
    ("Please?", "please"),
    ("Thanks, please.", "thanks"),
    ("?!", "?!"),
    ("", ""),
]


@pytest.mark.parametrize("question", ONLY_POLITER)
def test_polite_words_are_no_part_of_a_question(question: str) -> None:
    assert plain_question(question) == RADIO


@pytest.mark.parametrize(("question", "plain"), MEANT)
def test_words_that_mean_something_stay(question: str, plain: str) -> None:
    assert plain_question(question) == plain


PIECES = (
    "please |tell me |who |I wonder |if |you |could |say |Hello |so |know |do you |any idea|thanks|please|was it"
    "|, |? |.|: |“|İ|ﬆ| "
)
pieces = st.lists(st.sampled_from(PIECES.split("|")), max_size=14).map("".join)


@given(st.one_of(pieces, st.text(max_size=60)))
def test_a_plain_question_is_its_own_and_never_empty(text: str) -> None:
    plain = plain_question(text)
    assert plain_question(plain) == plain
    assert bool(plain) == bool(text.strip())


@pytest.mark.parametrize(
    ("piece", "left"),
    [("please ", 30_000), (", thanks", 1), ("tell me ", 30_000), ("who? ", 30_000), (".", 30_000), ("so, ", 30_000)],
)
def test_of_a_long_text_of_nothing_but_such_phrases_some_words_are_left(piece: str, left: int) -> None:
    """In a time that grows with its length: by the square of it, this test would not end."""
    assert plain_question(piece * 30_000) == (piece * left).rstrip(" ?,")


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
    ("When was the pier built?", "Where was the pier built?", "one asks when, the other where"),
    ("Who is his father?", "Who is his mother?", "one says 'father', the other 'mother'"),
    ("Which is the largest lake?", "Which is the smallest lake?", "one says 'largest', the other 'smallest'"),
    ("Is it legal to moor here?", "Is it illegal to moor here?", "one says 'legal', the other 'illegal'"),
    ("Is the pier unsafe?", "Is the pier safe?", "one says 'safe', the other 'unsafe'"),
    ("Who was born in the mill?", "Who was not born in the mill?", "one of them is negated"),
    (
        "Who turned on the lamp and turned off the radio?",
        "Who turned off the lamp and turned on the radio?",
        "they say 'on' and 'off' in another order",
    ),
    ("Who failed to sign it?", "Who signed it?", "one of them is negated"),
    ("What happened before the fair?", "What happened after the fair?", "one says 'before', the other 'after'"),
]
ALIKE = [
    ("Who turned on the radio?", "Who turned the radio on?"),
    ("Who turned on the radio?", "who was it that turned on the radio"),
    ("What is Ada Holt's occupation?", "What is the profession of Ada Holt?"),
    ("What is Ada Holt's occupation?", "what's ada holt’s job"),
    ("Where does the U.S. mint coins?", "Where does the US mint its coins?"),
    ("Who won in 1,200 tries?", "Who won in 1200 tries?"),
    ("Which one is older?", "Which is older?"),
    ("Who wrote 'the quiet hill'?", "Who wrote the quiet hill?"),
    ("Is it the café of Zoë Lund?", "Is it the cafe of Zoe Lund?"),
    ("What year was the pier built?", "When was the pier built?"),
    ("Please tell me, who built the pier?", "Who built the pier?"),
    ("Didn't Jack win?", "Did Jack not win?"),
    ("What does it put to the side?", "What does it put to the side, and into the box, in a unit?"),
    ("Is it legal, or illegal?", "Is it illegal, or legal?"),
    ("Name the mayor.", "Who is the mayor?"),
    ("Which tree did not flower?", "Which tree failed to flower?"),
    ("Who turned the page and sat down?", "Who turned the page, accepted, and sat down?"),
    ("I wonder who built the pier.", "Who built the pier?"),
    ("Do you know when it opened? Tell me.", "In what year did it open?"),
    ("May I ask where it is?", "It is in which town?"),
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


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_will_do(a: str, b: str) -> None:
    assert unlike(a, a) == ""
    assert bool(unlike(a, b)) == bool(unlike(b, a))
    assert "\n" not in unlike(a, b)
