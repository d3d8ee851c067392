"""Examples to train on, and their token ids: the prompt as a run sends it, and the target that continues it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from blendfilter.dspy_surface import lm15
from blendfilter.errors import BadData, EmptyData
from blendfilter.lm.checkpoints import open_tokenizer, positions_of, prompt_ids
from blendfilter.lm.journaled import text_of
from blendfilter.training.settings import TrainingSettings

IGNORED = -100
"""The label of a position without a loss, as torch has it."""


class Example(NamedTuple):
    """What the model reads, and what it should write after it.

    `question` is the question that it is about, for the list of what a model was trained on. A prompt may be a whole
    conversation, as rows (role, text).
    """

    prompt: str | tuple[tuple[str, str], ...]
    target: str
    question: str = ""


class TokenisedExample(NamedTuple):
    """Token ids of an example; `cut`: the target was longer than its cap."""

    prompt: tuple[int, ...]
    target: tuple[int, ...]
    cut: bool


def tokenised(
    tokenizer: Any, example: Example, settings: TrainingSettings, *, seq2seq: bool = False
) -> TokenisedExample:
    """The ids of prompt and target; the target ends with the end mark, where it was not cut."""
    cap = settings.max_target_tokens
    end = tokenizer.eos_token_id
    prompt = _prompt(tokenizer, example.prompt, settings.chat)
    if seq2seq:
        target = tokenizer(text_target=example.target)["input_ids"]
        target = target[:-1] if target and target[-1] == end else target
    else:
        own = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        target = list(tokenizer(example.target, **own)["input_ids"])
        text = text_of(example.prompt)
        plain = prompt_ids(tokenizer, text, chat=False)
        if prompt == plain and example.target:
            # behind a raw cue with a space, as the model itself would go on
            space = "" if text[-1:].isspace() else " "
            whole = prompt_ids(tokenizer, f"{text}{space}{example.target}", chat=False)
            if whole[: len(plain)] == plain:
                target = whole[len(plain) : -1 if whole[-1] == end else None]
    cut = len(target) >= cap
    return TokenisedExample(tuple(prompt), tuple(target[:cap] if cut else [*target, end]), cut)


def prompt_counter(base: str | Path, settings: TrainingSettings) -> Callable[[str], int]:
    """Counts the tokens of a prompt as `base` reads it. Raises: as `open_checkpoint`."""
    tokenizer = open_tokenizer(base)
    return lambda prompt: len(_prompt(tokenizer, prompt, settings.chat))


def _prompt(
    tokenizer: Any, prompt: str | Sequence[Sequence[str]], chat: bool | None
) -> list[int]:
    try:
        return prompt_ids(tokenizer, prompt, chat=chat)
    except lm15.InvalidRequestError as error:
        raise BadData(
            f"an example cannot be written out: {error}; train it with raw prompts (chat=False)"
        ) from None


def rows_of(
    tokenizer: Any, config: Any, examples: Sequence[Example], settings: TrainingSettings
) -> tuple[list[dict[str, list[int]]], dict[str, int]]:
    """The examples as the trainer takes them, and how many were left out or cut."""
    rows: list[dict[str, list[int]]] = []
    cut = 0
    seq2seq = bool(config.is_encoder_decoder)
    context = positions_of(config) or float("inf")
    if tokenizer.eos_token_id is None:
        raise BadData(
            "the tokeniser has no mark that ends a text (EOS): a model cannot learn where to stop"
        )
    for example in examples:
        made = tokenised(tokenizer, example, settings, seq2seq=seq2seq)
        prompt, target = list(made.prompt), list(made.target)
        longest = max(len(prompt), len(target)) if seq2seq else len(prompt) + len(target)
        if len(prompt) > settings.max_input_tokens or longest > context:
            continue
        cut += made.cut
        if seq2seq:
            rows.append({"input_ids": prompt, "labels": target})
        else:
            labels = [*[IGNORED] * len(prompt), *target]
            rows.append({"input_ids": [*prompt, *target], "labels": labels})
    if not rows:
        raise EmptyData(
            f"each of the {len(examples)} prompts is longer than {settings.max_input_tokens} tokens, or than the "
            f"{context} that the base reads: raise the cap (max_input_tokens=), or take another base"
        )
    left_out = len(examples) - len(rows)
    return rows, {"trained_on": len(rows), "left_out_too_long": left_out, "targets_cut": cut}
