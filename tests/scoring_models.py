"""Language models for tests of scoring, made here with random weights: decoder-only and encoder-decoder.

Each is a Hugging Face folder, one a process and kind, with a byte-level BPE tokeniser trained here on a few
sentences, so that tokens merge, cut characters and begin with spaces as real ones do. Nothing is downloaded.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

MARKS = ("<s>", "</s>", "<pad>", "<|end|>")
BOS, EOS, PAD = 0, 1, 2
SENTENCES = (
    "The capital of France is Paris, and the Seine flows through the town.",
    "Question: who founded the school on the island? Answer: a king of the north.",
    "Passage: the river rises in the hills, runs past the castle and ends in the sea.",
    "Knowledge: Mount Harbour | Mount Harbour is a town on the coast, born of the sea.",
    "Which island is larger, the one in the north or the one in the south? Answer: yes.",
)
COUNTING = (
    "One, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve.",
    "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, and so on.",
    "The letters are A, B, C, D, E, F, G, H, I, J, K, L, M, N, O, P, Q, R, S.",
)


@cache
def gpt2(positions: int = 256) -> Path:
    """Absolute positions; its tokeniser puts nothing in front of a text."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return _written(f"gpt2-{positions}", GPT2LMHeadModel, GPT2Config, n_embd=32, n_layer=2, n_head=2,
                    n_positions=positions)  # fmt: skip


@cache
def taught() -> Path:
    """`gpt2` that has learned to count a little, with and without `<s>` in front: it goes on with words."""
    import torch
    from transformers import AutoModelForCausalLM

    words = tokenizer()
    folder = _mine() / "taught"
    shutil.copytree(gpt2(), folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_pretrained(folder)
        for weights in model.parameters():
            weights.data.mul_(1 / 6 if weights.dim() > 1 else 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        slower = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.05, total_iters=200)  # else a late step may spoil it
        texts = [mark + words.encode(text).ids for text in COUNTING for mark in ([], [BOS])]
        width = max(map(len, texts))
        read = torch.tensor([text + [PAD] * (width - len(text)) for text in texts])
        right = torch.tensor([text[1:] + [-100] * (width - len(text)) for text in texts])
        for _ in range(200):
            logits = model(read).logits[:, :-1]
            loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), right)
            loss.backward()
            optimizer.step()
            slower.step()
            optimizer.zero_grad()
    state = (model.dtype, torch.get_default_dtype(), torch.get_float32_matmul_precision(), torch.get_num_threads())
    assert loss < 0.05, f"it has not learned to count: loss {loss}, {state}"
    model.save_pretrained(folder)
    return folder


@cache
def llama(*, marks: bool = True, layers: int = 2, width: int = 32, positions: int = 256, vocabulary: int = 0) -> Path:
    """Rotary positions, fewer key heads than query heads; its tokeniser begins each text with `<s>`.

    `vocabulary` makes the output layer wider than the tokeniser's few hundred tokens want it.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    return _written(f"llama-{layers}-{width}-{positions}-{vocabulary}", LlamaForCausalLM, LlamaConfig, marks=marks,
                    hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers, num_attention_heads=4,
                    num_key_value_heads=2, max_position_embeddings=positions, least=vocabulary)  # fmt: skip


@cache
def phi() -> Path:
    """Phi-3 for long texts: all its positions turn otherwise in a text of more than 160 tokens."""
    from transformers import Phi3Config, Phi3ForCausalLM

    turns = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [8.0] * 4, "rope_theta": 10_000.0,
             "original_max_position_embeddings": 160}  # fmt: skip
    return _written("phi", Phi3ForCausalLM, Phi3Config, marks=True, hidden_size=32, intermediate_size=128,
                    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                    max_position_embeddings=512, rope_parameters=turns,
                    original_max_position_embeddings=160)  # fmt: skip


@cache
def gemma() -> Path:
    """Every second layer sees 8 tokens back, and logits are capped behind the output layer."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    return _written("gemma", Gemma2ForCausalLM, Gemma2Config, marks=True, hidden_size=32,
                    intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                    num_key_value_heads=2, head_dim=8, sliding_window=8, final_logit_softcapping=0.5,
                    max_position_embeddings=256)  # fmt: skip


@cache
def recurrent() -> Path:
    """Mamba: it keeps a state in place of keys and values."""
    from transformers import MambaConfig, MambaForCausalLM

    return _written("mamba", MambaForCausalLM, MambaConfig, hidden_size=32, num_hidden_layers=2, state_size=4)


@cache
def t5() -> Path:
    """Encoder and decoder with relative positions; its tokeniser ends each text with `</s>`."""
    from transformers import T5Config, T5ForConditionalGeneration

    return _written("t5", T5ForConditionalGeneration, T5Config, ends=True, scale=1.0, d_model=32, d_kv=8,
                    d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=PAD)  # fmt: skip


@cache
def bart() -> Path:
    """Encoder and decoder with absolute positions; marks on both sides of each text."""
    from transformers import BartConfig, BartForConditionalGeneration

    return _written("bart", BartForConditionalGeneration, BartConfig, marks=True, ends=True, d_model=32,
                    encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
                    encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=256,
                    decoder_start_token_id=EOS)  # fmt: skip


@cache
def tokenizer(*, marks: bool = False, ends: bool = False) -> Any:
    """A byte-level BPE; `marks`: it puts `<s>` in front, `ends`: and `</s>` behind."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=list(MARKS), initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([*SENTENCES * 3, *(" 日本 " * 9, " — € " * 9)], trainer)
    template = f"{'<s> ' if marks else ''}$A{' </s>' if ends else ''}"
    if marks or ends:
        made.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[("<s>", BOS), ("</s>", EOS)]
        )
    return made


def _written(
    name: str,
    kind: Any,
    config: Any,
    *,
    marks: bool = False,
    ends: bool = False,
    scale: float = 6.0,
    least: int = 0,
    **settings: Any,
) -> Path:
    import torch

    folder = _mine() / f"{name}-{marks}"
    folder.mkdir()
    words = tokenizer(marks=marks, ends=ends)
    words.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ids = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
        model = kind(config(vocab_size=max(least, words.get_vocab_size()), **ids, **settings))
        for weights in model.parameters():  # as made, an untrained model likes all tokens the same
            if weights.dim() > 1:
                weights.data.mul_(scale)
        model.save_pretrained(folder)
    return folder


@cache
def _mine() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="blendfilter-scoring-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
