"""The log-probabilities of given tokens, and no logits but those: what both kinds of Hugging Face model share.

A model's output layer is as wide as its vocabulary. Over a batch of prompts it would make a tensor of [batch, length,
vocabulary], of which only the continuations' rows are wanted. A hook hands the layer those rows alone; whatever the
model does to logits behind it (a scale, a soft cap) it does to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from blendfilter.errors import BadData
from blendfilter.extras import needed
from blendfilter.lm.scoring.base import Score
from blendfilter.lm.scoring.checkpoint import EXTRA, WHY

_ROWS = 256
"""Rows of logits in float32 at a time."""


class Wanted(NamedTuple):
    """One row of a batch: logits are wanted from position `start` on, and `targets` are what they predict."""

    start: int
    targets: tuple[int, ...]


def padded(rows: Sequence[Sequence[int]], device: Any) -> Any:
    """Token ids as one tensor, filled up on the right: what stands there is behind everything that is read."""
    torch = needed("torch", EXTRA, WHY)
    width = max(map(len, rows))
    return torch.tensor([[*row, *[row[-1]] * (width - len(row))] for row in rows], device=device)


def mask(rows: Sequence[Sequence[int]], device: Any) -> Any:
    """1 where `padded` has a row's own tokens."""
    torch = needed("torch", EXTRA, WHY)
    width = max(map(len, rows))
    return torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=device)


def scores(model: Any, wanted: Sequence[Wanted], **inputs: Any) -> list[Score]:
    """One score for each row of the batch in `inputs`."""
    torch = needed("torch", EXTRA, WHY)
    rows = [row for row, each in enumerate(wanted) for _ in each.targets]
    columns = [each.start + at for each in wanted for at in range(len(each.targets))]
    with _only(model, rows, columns):
        made = model(**inputs).logits
    if tuple(made.shape[:2]) != (1, len(rows)):
        raise BadData(
            f"{type(model).__name__} makes its logits in another way than by an output layer of its own: "
            "its log-probabilities cannot be told here"
        )
    logits = made[0]
    targets = torch.tensor([target for each in wanted for target in each.targets], device=logits.device)
    parts = zip(logits.split(_ROWS), targets.split(_ROWS), strict=True)
    # each in 32 bits at least, then summed in 64: neither underflows, however long the text
    logprobs = torch.cat([_logprobs(torch, part, target) for part, target in parts]).double().cpu()
    sums = [float(each.sum()) for each in logprobs.split([len(each.targets) for each in wanted])]
    return [Score(total, len(each.targets)) for total, each in zip(sums, wanted, strict=True)]


def _logprobs(torch: Any, logits: Any, targets: Any) -> Any:
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.log_softmax(wide, dim=-1).gather(1, targets[:, None])[:, 0]


@contextmanager
def _only(model: Any, rows: list[int], columns: list[int]) -> Iterator[None]:
    """Inside the block, the model's output layer is given these positions alone, as one text of a batch."""
    head = model.get_output_embeddings()
    if head is None:
        raise BadData(f"{type(model).__name__} has no output layer over its vocabulary: it gives no log-probabilities")
    hook = head.register_forward_pre_hook(lambda _, given: (given[0][rows, columns][None],))
    try:
        yield
    finally:
        hook.remove()
