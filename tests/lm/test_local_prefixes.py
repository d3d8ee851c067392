"""What was read already: it is counted, it changes no number, and shared beginnings are found again."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from local_model import llama

from blendfilter.lm.local.prefixes import CHUNK, TOGETHER, WORTH_KEEPING, Prefixes, _chunks, shared

pytestmark = pytest.mark.slow
tokens = st.lists(st.integers(0, 2), max_size=40)


def go_on() -> bool:
    return False


@given(tokens, tokens)
def test_shared_is_the_longest_common_beginning(a: list[int], b: list[int]) -> None:
    n = shared(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


@given(st.integers(0, 500), st.integers(1, 500), st.lists(st.integers(0, 1000), max_size=1))
def test_chunks_cover_the_prompt_and_none_is_short(start: int, length: int, marks: list[int]) -> None:
    end = start + length
    chunks = _chunks(start, end, marks)
    assert [chunks[0][0], *(upto for _, upto in chunks)] == [start, *(at for at, _ in chunks[1:]), end]
    assert all(TOGETHER <= upto - at < CHUNK + TOGETHER for at, upto in chunks) or length < TOGETHER
    assert {mark for mark in marks if start + TOGETHER <= mark <= end - TOGETHER} <= {upto for _, upto in chunks}


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(100, 40_000, length).tolist()  # type: ignore[no-any-return]


def numbers() -> np.ndarray:
    """The logits after what was read last."""
    import llama_cpp

    raw = llama_cpp.llama_get_logits_ith(llama().ctx, -1)
    return np.ctypeslib.as_array(raw, shape=(llama().n_vocab(),)).copy()


@pytest.fixture
def prefixes() -> Prefixes:
    fresh = Prefixes(llama())
    fresh.forget()
    return fresh


def test_a_prompt_read_before_is_read_again_at_its_end_alone(prefixes: Prefixes) -> None:
    text = prompt(1, 90)
    assert prefixes.read(text, go_on) == 0
    first = numbers()
    assert prefixes.read(text, go_on) == 90 - TOGETHER
    assert np.array_equal(first, numbers())


@pytest.mark.parametrize("there", [2, 63, 65, 89])
def test_what_was_read_before_changes_no_number(there: int, prefixes: Prefixes) -> None:
    """Bit for bit, whatever the length of the part that is used again."""
    text = prompt(1, 90)
    prefixes.read(text, go_on)
    fresh = numbers()
    prefixes.forget()
    prefixes.read(text[:there] + prompt(2, 20), go_on)
    assert prefixes.read(text, go_on) == min(there, 90 - TOGETHER)
    assert np.array_equal(fresh, numbers())


def test_nothing_of_a_reply_is_used_again(prefixes: Prefixes) -> None:
    """A token that was read alone has other last digits than the same token in a batch."""
    text, reply = prompt(1, 70), prompt(3, 8)
    prefixes.read(text + reply + prompt(4, 20), go_on)
    fresh = numbers()
    prefixes.forget()
    prefixes.read(text, go_on)
    for token in reply:
        llama().eval([token])
    assert prefixes.read(text + reply + prompt(4, 20), go_on) == 70
    assert np.array_equal(fresh, numbers())


def test_what_two_prompts_share_is_found_again_after_others(prefixes: Prefixes) -> None:
    head, other = prompt(1, 100), prompt(9, 40)
    texts = [head + prompt(seed, 20) for seed in (2, 3, 4)]
    assert prefixes.read(texts[0], go_on) == 0
    assert prefixes.read(other, go_on) == 0
    assert prefixes.read(texts[1], go_on) == 0  # here it shows what they share, and a copy is made
    assert prefixes.read(other, go_on) == 0
    assert prefixes.read(texts[2], go_on) == 100
    restored = numbers()
    prefixes.forget()
    bare = Prefixes(llama(), keep=0)
    assert bare.read(texts[2], go_on) == 0
    assert np.array_equal(restored, numbers())


def test_saved_is_what_would_be_lost_by_waiting(prefixes: Prefixes) -> None:
    head = prompt(1, 100)
    prefixes.read(head + prompt(2, 20), go_on)
    assert prefixes.saved(head + prompt(3, 20)) == 100
    prefixes.read(head + prompt(3, 20), go_on)  # the copy is made
    assert prefixes.saved(head + prompt(4, 20)) == 0
    assert prefixes.saved(prompt(5, 40)) == 0


def test_copies_keep_to_their_bytes() -> None:
    import llama_cpp

    heads = [prompt(seed, WORTH_KEEPING + 8) for seed in range(10, 14)]
    one = 80 * 23_100  # bytes of a copy, a little more
    few = Prefixes(llama(), keep=2 * one)
    few.forget()
    for head in heads:
        few.read(head + prompt(1, 20), go_on)
        few.read(head + prompt(2, 20), go_on)
    kept = [len(state) for state in few._copies.values()]
    assert len(kept) == 2
    assert sum(kept) <= 2 * one
    few.read(prompt(7, 30), go_on)
    assert few.read(heads[-1] + prompt(3, 20), go_on) == WORTH_KEEPING + 8
    assert few.read(heads[0] + prompt(3, 20), go_on) == 0
    assert llama_cpp.llama_state_seq_get_size(llama().ctx, 0) < 3 * one


def test_reading_stops_between_chunks(prefixes: Prefixes) -> None:
    asked: list[int] = []
    text = prompt(1, 5 * CHUNK)
    assert prefixes.read(text, lambda: asked.append(1) or len(asked) > 2) is None
    assert prefixes.live == text[: 2 * CHUNK]
    assert prefixes.read(text, go_on) == 2 * CHUNK


def test_what_was_read_with_few_others_is_not_used_again(prefixes: Prefixes) -> None:
    for length in (1, 2, TOGETHER - 1, TOGETHER):
        assert prefixes.read(prompt(1, length), go_on) == 0
    assert prefixes.live == prompt(1, TOGETHER)
    assert prefixes.read(prompt(1, TOGETHER + 1), go_on) == 1
    prefixes.forget()
    prefixes.read(prompt(1, TOGETHER - 1), go_on)
    assert prefixes.read(prompt(1, 40), go_on) == 0
