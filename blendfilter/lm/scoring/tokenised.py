"""Texts as the token ids that a Hugging Face model reads.

In: pairs. Out: their tokens, with the marks that the tokeniser puts in front of a text, and by the rule of `seam` the
index of the continuation's first one. Texts are data: `<|im_end|>` in a passage is spelled out and ends nothing, unless
it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from blendfilter.errors import BadArgument
from blendfilter.lm.scoring.base import Pair, Tokens, nothing_before
from blendfilter.lm.scoring.seam import first_token

_TRIMS = b'"trim_offsets":true'


class Tokeniser:
    """A fast Hugging Face tokeniser, as scoring uses it.

    Args:
        tokenizer: the library's own.
        name: the model's, for messages.
        bos: whether the mark that begins a text stands before every text (None: where the tokeniser itself puts it).
        control: whether a control token's name in a text is read as that token.

    Raises:
        BadArgument: `bos` of a model that has none.
    """

    def __init__(self, tokenizer: Any, name: str, *, bos: bool | None = None, control: bool = False) -> None:
        self._tokenizer, self._name, self._control = tokenizer, name, control
        self._bos: int | None = tokenizer.bos_token_id
        _tell_white_space(tokenizer)
        own = _in_front(tokenizer)
        if bos and self._bos is None:
            raise BadArgument(f"{name} has no mark that begins a text (BOS): leave bos out")
        put = (self._bos,) if bos and self._bos is not None and self._bos not in own else ()
        self.lead: tuple[int, ...] = () if bos is False else put + own

    def pairs(self, pairs: Sequence[Pair]) -> list[Tokens]:
        """Prompt and continuation as one text each.

        Raises:
            BadArgument: nothing stands before a continuation.
        """
        read = self._read([prompt + continuation for prompt, continuation in pairs], return_offsets_mapping=True)
        rows = zip(pairs, read["input_ids"], read["offset_mapping"], strict=True)
        return [self._tokens(pair, ids, [end for _, end in offsets]) for pair, ids, offsets in rows]

    def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts alone, with all marks that the tokeniser puts around one: what an encoder reads."""
        return list(self._read(texts, add_special_tokens=True)["input_ids"])

    def continuations(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts alone, without marks: what a decoder writes."""
        return list(self._read(texts)["input_ids"])

    def _tokens(self, pair: Pair, ids: list[int], ends: list[int]) -> Tokens:
        lead = self.lead
        first = first_token(list(accumulate(ends, max)), len(pair.prompt))
        if first == 0 and not lead:
            if self._bos is None:
                raise nothing_before(pair, self._name)
            lead = (self._bos,)
        return Tokens((*lead, *ids), len(lead) + first)

    def _read(self, texts: Sequence[str], *, add_special_tokens: bool = False, **more: Any) -> Any:
        return self._tokenizer(
            list(texts), add_special_tokens=add_special_tokens, split_special_tokens=not self._control,
            padding=False, truncation=False, return_attention_mask=False, verbose=False, **more,
        )  # fmt: skip


def _tell_white_space(tokenizer: Any) -> None:
    """Let offsets span whole tokens: some tokenisers leave white space out, and a token would seem to end before it."""
    backend = tokenizer.backend_tokenizer
    processor = backend.post_processor
    state = b"" if processor is None else processor.__getstate__()
    if _TRIMS in state:
        processor.__setstate__(state.replace(_TRIMS, _TRIMS.replace(b"true", b"false")))
        backend.post_processor = processor


def _in_front(tokenizer: Any) -> tuple[int, ...]:
    """The marks that the tokeniser puts in front of a text by itself."""
    marked, plain = tokenizer("a")["input_ids"], tokenizer("a", add_special_tokens=False)["input_ids"]
    starts = (at for at in range(len(marked) - len(plain) + 1) if marked[at : at + len(plain)] == plain)
    return tuple(marked[: next(starts, 0)])
