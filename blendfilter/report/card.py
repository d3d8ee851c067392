"""A run in a notebook: its headline, its scores and where questions are lost, on a card."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from blendfilter.evaluation.run_folder import REPORT
from blendfilter.evaluation.run_status import RunStatus
from blendfilter.report.pictures import LOSS_WORDS, loss_bar, swatch
from blendfilter.report.run_text import OFFLINE
from blendfilter.text import html_of

if TYPE_CHECKING:
    from blendfilter.evaluation.run import Run

_BOX = "border:1px solid #8886;border-radius:10px;padding:.8em 1em;max-width:46em"


def card(run: Run) -> str:
    """The card as HTML, every text in it escaped."""
    return f'<div style="{_BOX}">{"".join(_parts(run))}</div>'


def _parts(run: Run) -> Iterator[str]:
    known, settings = RunStatus(run), run.settings
    metrics = known.metrics
    title = " · ".join((settings["task"], settings["method"]["name"], settings["lm"]["name"]))
    yield f"<div><b><bdi>{html_of(run.name)}</bdi></b> <small>{html_of(title)}</small></div>"
    if not run.finished:
        yield f"<p>{html_of(known.unfinished)}</p>"
    if metrics:
        yield f'<div style="display:flex;gap:2em;margin:.3em 0">{"".join(_scores(metrics["metrics"]))}</div>'
        if any(row.get("gold_titles") for row in known.rows):
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
