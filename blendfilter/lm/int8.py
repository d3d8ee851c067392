"""A model in 8 bits on a processor: about half the time of float32.

Every linear layer's weights and inputs are rounded to 8 bits, each row of either with a scale of its own, the largest
absolute value over 127 (vector-wise quantisation: Dettmers et al. 2022, https://arxiv.org/abs/2208.07339, section 2.1;
without the paper's second part, outliers in 16 bits, which it finds necessary from 6.7 billion parameters on). The
products are added as integers, so that in such a layer a token does not depend on what stands beside it in a batch.
Attention, norms and embeddings stay in float32, and rounding makes more of their last digits, which do.
"""

from __future__ import annotations

from typing import Any

import torch

_ROWS = 256
"""Rows at a time, which a processor's cache holds."""
_LEAST = 1e-12
_Module: Any = torch.nn.Module


class Int8Linear(_Module):
    """A linear layer in 8 bits: `scale` (out) and `weight` (out, in)."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        weight = layer.weight.detach().float()
        scale = (weight.abs().amax(1) / 127).clamp_min(_LEAST)
        self.register_buffer("scale", scale)
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().float())

    def forward(self, inputs: Any) -> Any:
        """(…, in) of float32 to (…, out) of float32."""
        rows = inputs.reshape(-1, inputs.shape[-1])
        made = rows.new_empty(rows.shape[0], len(self.scale))
        for start in range(0, rows.shape[0], _ROWS):
            some = rows[start : start + _ROWS]
            scale = some.abs().amax(1, keepdim=True).div_(127).clamp_min_(_LEAST)
            rounded = (some / scale).round_().to(torch.int8)
            product = torch._int_mm(rounded, self.weight.t())
            torch.mul(product, self.scale, out=made[start : start + _ROWS]).mul_(scale)
        if self.bias is not None:
            made += self.bias
        return made.view(*inputs.shape[:-1], -1)


def in_8_bits(model: Any) -> Any:
    """The model, its linear layers replaced: they take a quarter of the memory, its embeddings as much as before."""
    for name, child in model.named_children():
        if isinstance(child, torch.nn.Linear):
            setattr(model, name, Int8Linear(child))
        else:
            in_8_bits(child)
    return model
