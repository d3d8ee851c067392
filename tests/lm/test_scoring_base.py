"""Where a continuation begins, which beginnings are read once, what fits into a batch: the pure parts of scoring."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scoring_models import tokenizer

from blendfilter.lm.scoring.base import TextPair, batches, common_prefix, first_token, groups
from blendfilter.lm.scoring.huggingface import PairTokeniser
from blendfilter.lm.scoring.served import GivenTokens, continuation

TEXTS = st.text(st.sampled_from("ab eé€日本🙂—\n.The kingof"), max_size=12)
SHOWN = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTES = {chr(b): b for b in SHOWN} | {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in SHOWN)}


def pieces(text: str) -> list[bytes]:
    """The tokens of a byte-level BPE as bytes, spelled by this test."""
    return [bytes(BYTES[c] for c in token) for token in tokenizer().encode(text, add_special_tokens=False).tokens]


def first_behind(text: str, seam: int) -> int:
    """The rule again, byte by byte: the first token that has a byte behind the seam."""
    at, wanted = 0, len(text[:seam].encode())
    for i, piece in enumerate(pieces(text)):
        at += len(piece)
        if at > wanted:
            return i
    return len(pieces(text))


# --- seam -----------------------------------------------------------------------------------------------------------


@given(TEXTS, TEXTS)
def test_a_continuations_tokens_cover_it_and_no_more_than_one_begins_before_it(prompt: str, text: str) -> None:
    tokens = pieces(prompt + text)
    ends = list(accumulate(map(len, tokens)))
    first = first_token(ends, len(prompt.encode()))
    covered = b"".join(tokens[first:])
    assert covered.endswith(text.encode())
    before = len(covered) - len(text.encode())
    assert before == 0 or before < len(tokens[first])  # what else is covered lies in the first token
    assert first == first_behind(prompt + text, len(prompt))


@pytest.mark.parametrize("trim", ["", "alone", "in a sequence"])
def test_tokens_that_end_in_white_space_end_where_they_do(trim: str) -> None:
    """Llama 3 and Pythia leave white space out of their offsets: a token `\\n   ` would end before its spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>"], show_progress=False)
    made.train_from_iterator(["a\n    the\n    x"] * 20, trainer)
    byte_level = processors.ByteLevel(trim_offsets=True)
    mark = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    if trim:
        made.post_processor = byte_level if trim == "alone" else processors.Sequence([byte_level, mark])
    read = PairTokeniser(PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>"), "tiny")
    text = "a\n    the\n    x\n  "
    tokens = [bytes(BYTES[c] for c in token) for token in made.encode(text, add_special_tokens=False).tokens]
    assert b"\n   " in tokens
    assert read.lead == ((0,) if trim == "in a sequence" else ())
    for seam in range(1, len(text)):
        at = [len(b"".join(tokens[: i + 1])) > seam for i in range(len(tokens))].index(True)
        (item,) = read.pairs([TextPair(text[:seam], text[seam:])])
        assert item.first - (len(item.ids) - len(tokens)) == at, seam


# --- a server's tokens ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["replace", "ignore"])
@given(prompt=TEXTS, text=TEXTS.filter(bool))
def test_what_a_server_gives_says_the_seam_or_nothing(style: str, prompt: str, text: str) -> None:
    """Whatever is cut: never another range than the bytes say; whole tokens always say it."""
    every = pieces(prompt + text)
    expected = first_behind(prompt + text, len(prompt))
    words: list[str | None] = [piece.decode("utf-8", style) for piece in every]
    found = continuation(TextPair(prompt, text), GivenTokens(words, []))
    assert found in (expected, None)
    assert found == expected or not (prompt + text).isascii()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["Answer", ":", " Paris"], 2),
        (["<s>", "Answer", ":", " Paris"], 3),  # a mark that is given too
        ([None, "Answer", ":", " Paris"], 3),  # vLLM gives nothing of the first: here a mark
        ([None, ":", " Paris"], 2),  # here the text's first token
        (["Answer", ":"], None),
        (["Answer", ":", " Rome"], None),
        ([], None),
    ],
)
def test_tokens_that_spell_the_text_say_the_seam(words: list[str | None], expected: int | None) -> None:
    assert continuation(TextPair("Answer:", " Paris"), GivenTokens(words, [])) == expected


def test_a_cut_character_at_the_seam_is_no_guess() -> None:
    """` 日` may be cut as ` ` and three bytes, or as ` \\xe6` and two: where the texts do not say, nothing is said."""
    assert continuation(TextPair("a ", "日"), GivenTokens(["a", " ", "", "", ""], [])) == 2
    assert continuation(TextPair("a ", "日"), GivenTokens(["a", " ", "", ""], [])) is None
    assert continuation(TextPair("日", "本"), GivenTokens(["\ufffd"] * 6, [])) is None


# --- prefixes and batches -------------------------------------------------------------------------------------------

SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=6).map(tuple), max_size=6)


@given(SEQUENCES, st.integers(0, 3))
def test_no_other_way_to_cut_the_sorted_order_saves_more(sequences: list[tuple[int, ...]], setup: int) -> None:
    found = groups(sequences, setup=setup)
    assert sorted(i for group in found for i in group.members) == list(range(len(sequences)))
    for shared, members in found:
        assert all(sequences[i][:shared] == sequences[members[0]][:shared] for i in members)
        assert (shared == 0) == (len(members) == 1)
    saved = sum((len(members) - 1) * shared - setup for shared, members in found if shared)
    assert saved == max(_savings(sorted(sequences), setup))


def _savings(left: list[tuple[int, ...]], setup: int) -> list[int]:
    """What every way to cut the list saves, tried one by one."""
    if not left:
        return [0]
    found = []
    for size in range(1, len(left) + 1):
        shared = min((common_prefix(left[0], each) for each in left[1:size]), default=0)
        gain = (size - 1) * shared - setup if shared else 0
        found += [gain + more for more in _savings(left[size:], setup)]
    return found


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 100), st.integers(1, 5))
def test_batches_hold_what_they_may(lengths: list[int], tokens: int, rows: int) -> None:
    found = list(batches(lengths, tokens=tokens, rows=rows))
    assert sorted(i for batch in found for i in batch) == list(range(len(lengths)))
    for batch in found:
        longest = max(lengths[i] for i in batch)
        assert len(batch) <= rows
        assert len(batch) == 1 or len(batch) * longest <= tokens
    assert all(min(lengths[i] for i in a) >= max(lengths[i] for i in b) for a, b in pairwise(found))
