"""A run in a notebook: its headline, its scores and where questions are lost, on a card; errors in red above them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from blendfilter.evaluation.rows import LOSSES
from blendfilter.evaluation.run_folder import REPORT
from blendfilter.evaluation.run_status import RunStatus
from blendfilter.report.plots import LOSS_STYLES
from blendfilter.report.run_text import LOSS_WORDS, OFFLINE
from blendfilter.text import html_of

if TYPE_CHECKING:
    from blendfilter.evaluation.run import Run

_WIDTH, _GAP = 1000.0, 3.0
_BANNER = "background:#b3261e;color:#fff;border-radius:6px;padding:.4em .7em;margin:.4em 0;overflow-wrap:anywhere"
_BOX = "border:1px solid #8886;border-radius:10px;padding:.8em 1em;max-width:46em"


def card(run: Run) -> str:
    """The card as HTML, every text in it escaped."""
    return f'<div style="{_BOX}">{"".join(_parts(run))}</div>'


def _parts(run: Run) -> Iterator[str]:
    known, settings = RunStatus(run), run.settings
    metrics = known.metrics
    title = " · ".join((settings["task"], settings["method"]["name"], run.models))
    yield f"<div><b><bdi>{html_of(run.name)}</bdi></b> <small>{html_of(title)}</small></div>"
    if known.failures:
        yield f'<div role="alert" style="{_BANNER}"><b>Failed:</b> {html_of(known.failures)}.</div>'
    if not run.finished:
        yield f"<p>{html_of(known.unfinished)}</p>"
    if metrics and not known.failed:
        yield f'<div style="display:flex;gap:2em;margin:.3em 0">{"".join(_scores(metrics["metrics"]))}</div>'
    if metrics and any(row["gold_titles"] for row in known.rows):
        yield f'{loss_bar(metrics["losses"], 16)}<div style="margin:.3em 0">{_legend(metrics["losses"])}</div>'
    if run.offline:
        yield f"<div><small>{html_of(OFFLINE)}</small></div>"
    if run.finished:
        yield f'<div><code style="overflow-wrap:anywhere">{html_of(metrics["signature"])}</code></div>'
    path = run.folder / REPORT
    words = "the whole report:" if path.is_file() else "run.html() writes"
    yield f"<div><small>{words} {html_of(path)}</small></div>"


def _scores(scores: dict[str, dict[str, float]]) -> Iterator[str]:
    for name, score in scores.items():
        value, half = 100 * score["value"], 50 * (score["high"] - score["low"])
        yield f'<div>{html_of(name)}<br><b style="font-size:1.6em">{value:.1f}</b> <small>± {half:.1f}</small></div>'


def _legend(losses: dict[str, int]) -> str:
    return " &nbsp; ".join(
        f'<span style="white-space:nowrap"><span style="display:inline-block">{swatch(name)}</span> '
        f"{words} <b>{losses[name]}</b></span>"
        for name, words in LOSS_WORDS.items()
        if losses.get(name)
    )


def loss_bar(losses: Mapping[str, int], height: int = 28) -> str:
    """One bar with a part for each loss, in the order of the pipeline.

    >>> loss_bar({"right": 1}).count("<rect")
    1
    """
    total, x, rects = sum(losses.values()), 0.0, ""
    for name in LOSSES:
        width = _WIDTH * losses.get(name, 0) / total if total else 0.0
        if width:
            drawn = max(1.0, width - _GAP)
            rects += f'<rect x="{x:.1f}" y="0" width="{drawn:.1f}" height="{height}" fill="{LOSS_STYLES[name][0]}"/>'
        x += width
    label = ", ".join(
        f"{LOSS_WORDS[name]} {losses[name]}" for name in LOSSES if losses.get(name)
    )
    return (
        f'<svg class="bar" viewBox="0 0 {_WIDTH:.0f} {height}" preserveAspectRatio="none" width="100%" '
        f'height="{height}" role="img" aria-label="{label}">{rects}</svg>'
    )


def swatch(name: str) -> str:
    """The legend's square for one part."""
    square = f'<rect width="12" height="12" rx="3" fill="{LOSS_STYLES[name][0]}"/>'
    return f'<svg class="swatch" width="12" height="12" aria-hidden="true">{square}</svg>'


def interval(value: float, low: float, high: float) -> str:
    """A score between 0 and 1 as a point on a line, its interval as a band."""
    left, width = low * _WIDTH, max(2.0, (high - low) * _WIDTH)
    return (
        f'<svg class="interval" viewBox="0 0 {_WIDTH:.0f} 18" preserveAspectRatio="none" width="100%" '
        f'height="18" aria-hidden="true">'
        f'<rect class="track" x="0" y="8.0" width="{_WIDTH:.0f}" height="2"/>'
        f'<rect class="band" x="{left:.1f}" y="5.0" width="{width:.1f}" height="8"/>'
        f'<rect class="point" x="{value * _WIDTH - 2:.1f}" y="0" width="4" height="18"/></svg>'
    )
