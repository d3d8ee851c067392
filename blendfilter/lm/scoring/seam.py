"""Where a prompt ends and its continuation begins, in tokens.

In: where each token of prompt + continuation ends, and where the prompt does. Out: the first token of the continuation.

A tokeniser may merge across the seam: `Answer: ` and `Paris` become `Answer`, `:`, ` Paris`. One rule holds for every
decoder-only model, here and behind servers: **prompt and continuation are tokenised as one text, and a token belongs to
the continuation if it ends behind the prompt's end**. So the model reads the text as it was trained to; the tokens of
the continuation spell it whole; and where a token holds the prompt's end as well, that piece of the prompt is scored
along with it, once. (Tokenising both apart would make `Paris` follow a lone space, which no training text does.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate


def first_token(ends: Sequence[int], seam: int) -> int:
    """The index of the first token that ends behind `seam`; as many as there are where none does.

    Where tokens end in rising order, in whichever unit the seam is in too (characters, bytes). A character that is cut
    into several tokens ends, in characters, with each of them.

    >>> first_token([6, 7, 13], len("Answer:")), first_token([6, 7, 13], len("Answer: "))
    (2, 2)
    """
    return bisect_right(ends, seam)


def ends_of(pieces: Sequence[bytes], text: str) -> list[int] | None:
    """Where each piece ends in `text`, in bytes of its UTF-8; None where the pieces do not spell it.

    Pieces in front of the text do not count: a tokeniser may put a space there that nobody wrote.

    >>> ends_of([b" Ca", b"f", bytes([0xC3]), bytes([0xA9])], "Café")
    [2, 3, 4, 5]
    """
    spelled, written = b"".join(pieces), text.encode("utf-8")
    before = len(spelled) - len(written)
    if before not in (0, 1) or spelled[before:] != written or spelled[:before].strip():
        return None
    return [max(0, end - before) for end in accumulate(map(len, pieces))]
