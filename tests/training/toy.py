"""A copying task whose best reward is known, and a tiny model that knows how to copy and not what.

A prompt holds two sentences of two letters, one behind the mark KEEP and one behind the mark DROP, in either order, and
a cue: ``KEEP a b DROP c d CUE``. The right text is the kept sentence: ``a b END``. The model made here has
learned from texts of which three in five are right: it is right about as often, and at best every time.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any, NamedTuple

END, PAD, CUE, KEEP, DROP = range(5)
LETTERS = range(5, 13)


class Problem(NamedTuple):
    prompt: list[int]
    right: list[int]
    wrong: list[int]


class Letters:
    """A tokeniser as far as it is needed: a token's text is its number."""

    pad_token_id, eos_token_id = PAD, END

    def decode(self, row: Any, **how: bool) -> str:
        return " ".join(str(token) for token in row.tolist() if token not in (END, PAD))


def problems(n: int, seed: int) -> list[Problem]:
    drawn, found = random.Random(seed), []
    for _ in range(n):
        one, other = drawn.sample(LETTERS, 2)  # they differ in their first letters
        kept, dropped = [one, drawn.choice(LETTERS)], [other, drawn.choice(LETTERS)]
        halves = [[KEEP, *kept], [DROP, *dropped]]
        drawn.shuffle(halves)
        found.append(Problem([*halves[0], *halves[1], CUE], kept, dropped))
    return found


@cache
def _weights() -> dict[str, Any]:
    import torch

    drawn, model = random.Random(0), untaught()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(300):
        some = problems(32, drawn.randrange(10**9))
        texts = [[*drawn.choices([each.right, each.wrong], [3, 2])[0], END] for each in some]
        rows = [[*each.prompt, *text] for each, text in zip(some, texts, strict=True)]
        labels = [[-100] * len(each.prompt) + text for each, text in zip(some, texts, strict=True)]
        model(input_ids=torch.tensor(rows), labels=torch.tensor(labels)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: each.detach().clone() for name, each in model.state_dict().items()}


def copier() -> Any:
    """The model that copies the kept sentence three times in five."""
    model = untaught()
    model.load_state_dict(_weights())
    return model


def untaught(encoder_decoder: bool = False) -> Any:
    """The same with random weights, that has learned nothing."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

    marks = {"vocab_size": 13, "eos_token_id": END, "pad_token_id": PAD}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if encoder_decoder:
            return T5ForConditionalGeneration(
                T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=PAD, **marks)
            )
        return LlamaForCausalLM(
            LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                        num_key_value_heads=4, max_position_embeddings=32, bos_token_id=None, **marks)
        )  # fmt: skip


class Paid:
    """1 where the kept sentence was copied, else 0."""

    def __init__(self, asked: list[Problem]) -> None:
        self.asked = asked

    def __call__(self, texts: Any) -> list[float]:
        return [float(each.text == " ".join(map(str, self.asked[each.place].right))) for each in texts]
