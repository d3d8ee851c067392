"""Hugging Face models as scorers, against a reference in 64 bits that reads one token at a time and caches nothing."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import scoring_models as made
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blendfilter.errors import BadArgument, BadData, MissingFile, ModelError
from blendfilter.lm.scoring import Score, scorer
from blendfilter.lm.scoring.kept import KeptScorer

PASSAGE = "Passage: the river rises in the hills, runs past the castle and ends in the sea. "
PAIRS = [
    ("The capital of France is", " Paris, and"),
    ("The capital of France is", " the town of the king"),
    ("Answer: ", "Paris"),  # the seam lies inside a token
    ("Answer:", " 日本 — €"),
    (PASSAGE + "Question: who?", " no"),
    (PASSAGE + "Question: which island?", " no one in the south"),
    (PASSAGE + "Question: which island?", " yes"),
    ("x", "y"),
]
KINDS = [made.gpt2, made.llama, made.gemma, made.recurrent, made.t5, made.bart]
DECODERS = KINDS[:4]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def reference(folder: Path, prompt: str, text: str) -> Score:
    """log p(text | prompt), one token after another, each from a fresh reading of all before it, in 64 bits."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    config = AutoConfig.from_pretrained(folder)
    words = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if config.is_encoder_decoder:
        model = AutoModelForSeq2SeqLM.from_pretrained(folder).double().eval()
        read = {"input_ids": torch.tensor([words.encode(prompt).ids])}
        before = [config.decoder_start_token_id, *([made.BOS] if folder.name.startswith("bart") else [])]
        after = words.encode(text, add_special_tokens=False).ids
        name = "decoder_input_ids"
    else:
        model = AutoModelForCausalLM.from_pretrained(folder).double().eval()
        whole = words.encode(prompt + text, add_special_tokens=False)
        first = sum(end <= len(prompt) for _, end in whole.offsets)
        mark = [made.BOS] if words.encode("a").ids[0] == made.BOS or first == 0 else []
        read, before, after, name = {}, mark + whole.ids[:first], whole.ids[first:], "input_ids"
    total = torch.zeros((), dtype=torch.float64)
    with torch.no_grad():
        for token in after:
            logits = model(**read, **{name: torch.tensor([before])}).logits[0, -1]
            total = total + torch.log_softmax(logits, 0)[token]
            before = [*before, token]
    return Score(float(total), len(after))


@pytest.mark.parametrize("kind", KINDS)
def test_scores_equal_the_reference(kind: Any) -> None:
    for pair, found in zip(PAIRS, scorer(kind()).score(PAIRS), strict=True):
        expected = reference(kind(), *pair)
        assert found.n_tokens == expected.n_tokens
        assert found.logprob == pytest.approx(expected.logprob, abs=1e-4), pair


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_changes_no_score(kind: Any) -> None:
    ask = scorer(kind())
    alone = [ask.score([pair])[0] for pair in PAIRS]

    @settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(st.integers(0, len(PAIRS) - 1), min_size=1, max_size=10), st.integers(1, 4), st.integers(20, 300))
    def check(chosen: list[int], rows: int, tokens: int) -> None:
        # the weights are loaded once
        backend = scorer(kind(), batch_size=rows, batch_tokens=tokens).backend
        backend.__dict__["_loaded"] = ask.backend._loaded  # type: ignore[attr-defined]
        found = KeptScorer(backend).score([PAIRS[i] for i in chosen])
        for i, one in zip(chosen, found, strict=True):
            assert one.n_tokens == alone[i].n_tokens
            assert one.logprob == pytest.approx(alone[i].logprob, abs=1e-4)

    check()


@pytest.mark.parametrize("kind", DECODERS)
def test_a_shared_prefix_is_read_once_and_changes_nothing(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(PASSAGE * 2, f" {word}") for word in ("yes", "no", "the king", "Paris of the north")]
    ask = scorer(kind())
    alone = [ask.score([pair])[0] for pair in pairs]
    model = ask.backend._loaded.model  # type: ignore[attr-defined]
    read: list[tuple[int, int]] = []
    hook = model.get_input_embeddings().register_forward_hook(lambda _, given, __: read.append(tuple(given[0].shape)))
    together = ask.score(pairs)
    hook.remove()
    for one, other in zip(together, alone, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
    if kind is made.recurrent:  # its state cannot be taken up again for several texts
        assert len(read) == 1
        return
    prefix, rest = read
    assert prefix[0] == 1
    assert prefix[1] > 30
    assert rest[0] == len(pairs)
    assert rest[1] < 10


def test_a_long_continuation_does_not_underflow() -> None:
    """Its probability is far below the smallest number that 64 bits hold."""
    folder = made.gpt2(2304)
    text = "".join(f" {i % 7} the king" for i in range(500))
    (found,) = scorer(folder).score([("Once", text)])
    assert found.n_tokens >= 2000
    assert math.isfinite(found.logprob)
    assert found.logprob < -2000


# --- what stands in front -------------------------------------------------------------------------------------------


def test_an_empty_prompt_and_an_empty_continuation() -> None:
    for kind in (made.gpt2, made.llama):
        (found,) = scorer(kind()).score([("", "Paris is")])
        assert found.logprob == pytest.approx(reference(kind(), "", "Paris is").logprob, abs=1e-4)
    assert scorer(made.gpt2()).score([("Paris", ""), ("", "")]) == [Score(0.0, 0)] * 2


def test_an_empty_prompt_of_a_model_without_a_mark_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "markless"
    shutil.copytree(made.gpt2(), folder)
    named = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in named.items() if k != "bos_token"}))
    with pytest.raises(BadArgument, match=r"nothing stands before the continuation 'Paris', and markless has no mark"):
        scorer(folder).score([("", "Paris")])
    with pytest.raises(BadArgument, match="leave bos out"):
        scorer(folder, bos=True).score([("a", "Paris")])


def test_the_mark_in_front_is_an_argument() -> None:
    pair = ("Paris", " is")
    with_mark, without = (scorer(made.gpt2(), bos=bos).score([pair])[0] for bos in (True, None))
    assert with_mark != without
    assert scorer(made.llama(), bos=True).score([pair]) == scorer(made.llama()).score([pair])
    (bare,) = scorer(made.llama(), bos=False).score([pair])
    assert bare.logprob == pytest.approx(reference(made.llama(marks=False), *pair).logprob, abs=1e-4)


def test_texts_are_data() -> None:
    """A control token's name in a passage is spelled out, unless it is asked for."""
    pair = ("a<|end|>", " b<|end|>")
    (plain,) = scorer(made.gpt2()).score([pair])
    (read,) = scorer(made.gpt2(), control=True).score([pair])
    assert (plain.n_tokens, read.n_tokens) == (pytest.approx(plain.n_tokens), 3)
    assert plain.n_tokens > read.n_tokens + 2


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [made.gpt2, made.bart])
def test_the_context_is_used_to_its_last_token_and_no_further(kind: Any) -> None:
    ask = scorer(kind())
    (short,) = ask.score([("x", " the" * 10)])
    assert short.n_tokens == 10
    front = 1 if kind is made.gpt2 else 2  # the prompt; the decoder's start and the mark of its tokeniser
    (whole,) = ask.score([("x", " the" * (256 - front))])
    assert whole.n_tokens == 256 - front
    with pytest.raises(ModelError, match=r"257 tokens .*context of 256"):
        ask.score([("x", " the" * (257 - front))])


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="no model 'nowhere'"):
        scorer("hf/nowhere")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BadData, match="no tokeniser in"):
        scorer(tmp_path).score(PAIRS)
    broken = tmp_path / "broken"
    shutil.copytree(made.gpt2(), broken)
    from safetensors.numpy import load_file, save_file

    weights = load_file(broken / "model.safetensors")
    weights.pop(next(name for name in weights if "attn.c_proj.weight" in name))
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadData, match=r"is not whole: 1 of its weights are missing, .*attn"):
        scorer(broken).score(PAIRS)


def test_logits_that_are_made_elsewhere_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that multiplies by its output layer's weights without calling the layer: rows would be mixed up."""
    from types import SimpleNamespace

    ask = scorer(made.gpt2())
    ask.score([("warm", " up")])
    model = ask.backend._loaded.model  # type: ignore[attr-defined]

    def forward(input_ids: Any, **_: object) -> Any:
        hidden = model.transformer(input_ids).last_hidden_state
        return SimpleNamespace(logits=hidden @ model.lm_head.weight.T)

    monkeypatch.setattr(model, "forward", forward)
    with pytest.raises(BadData, match="makes its logits in another way"):
        ask.score(PAIRS[:3])


def test_a_name_on_the_hub_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: made.gpt2())
    assert scorer("hf/owner/name").backend.checkpoint.path == made.gpt2()  # type: ignore[attr-defined]


# --- identity -------------------------------------------------------------------------------------------------------


def test_weights_are_known_wherever_they_lie(tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(made.gpt2(), moved)
    identity = scorer(moved).backend.identity
    assert identity == scorer(made.gpt2()).backend.identity
    assert str(tmp_path) not in json.dumps(identity)
    assert identity != scorer(made.gpt2(), dtype="bfloat16").backend.identity
    assert identity != scorer(made.gpt2(), bos=False).backend.identity
    assert identity == scorer(made.gpt2(), batch_size=1, device="cpu").backend.identity
    weights = bytearray((moved / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (moved / "model.safetensors").write_bytes(weights)
    assert identity != scorer(moved).backend.identity
