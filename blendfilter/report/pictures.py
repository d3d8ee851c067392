"""The two pictures of a report as SVG without text: where questions are lost, and scores with their intervals.

Colours after Okabe and Ito, which the colour-blind tell apart too; the figures always stand beside them as text.
"""

from __future__ import annotations

from collections.abc import Mapping

from blendfilter.evaluation.rows import LOSSES

LOSS_WORDS = {
    "not_retrieved": "gold not retrieved",
    "filtered_away": "retrieved and filtered away",
    "answered_wrong": "kept and answered wrong",
    "right": "right",
    "right_without_gold": "right without gold",
}
COLOURS = {
    "not_retrieved": "#d55e00",
    "filtered_away": "#e69f00",
    "answered_wrong": "#cc79a7",
    "right": "#009e73",
    "right_without_gold": "#56b4e9",
}
_WIDTH, _GAP = 1000.0, 3.0


def loss_bar(losses: Mapping[str, int], height: int = 28) -> str:
    """One bar with the five parts, in the order of the pipeline.

    >>> loss_bar({"right": 1}).count("<rect")
    1
    """
    total, x, rects = sum(losses.values()), 0.0, ""
    for name in LOSSES:
        width = _WIDTH * losses.get(name, 0) / total if total else 0.0
        if width:
            drawn = max(1.0, width - _GAP)
            rects += f'<rect x="{x:.1f}" y="0" width="{drawn:.1f}" height="{height}" fill="{COLOURS[name]}"/>'
        x += width
    label = ", ".join(f"{LOSS_WORDS[name]} {losses[name]}" for name in LOSSES if losses.get(name))
    return (
        f'<svg class="bar" viewBox="0 0 {_WIDTH:.0f} {height}" preserveAspectRatio="none" width="100%" '
        f'height="{height}" role="img" aria-label="{label}">{rects}</svg>'
    )


def swatch(name: str) -> str:
    """The legend's square for one part."""
    square = f'<rect width="12" height="12" rx="3" fill="{COLOURS[name]}"/>'
    return f'<svg class="swatch" width="12" height="12" aria-hidden="true">{square}</svg>'


def interval(value: float, low: float, high: float, height: int = 18) -> str:
    """A score between 0 and 1 as a point on a line, its interval as a band."""
    middle, left, width = height / 2, low * _WIDTH, max(2.0, (high - low) * _WIDTH)
    return (
        f'<svg class="interval" viewBox="0 0 {_WIDTH:.0f} {height}" preserveAspectRatio="none" width="100%" '
        f'height="{height}" aria-hidden="true">'
        f'<rect class="track" x="0" y="{middle - 1}" width="{_WIDTH:.0f}" height="2"/>'
        f'<rect class="band" x="{left:.1f}" y="{middle - 4}" width="{width:.1f}" height="8"/>'
        f'<rect class="point" x="{value * _WIDTH - 2:.1f}" y="0" width="4" height="{height}"/></svg>'
    )
