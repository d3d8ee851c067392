"""What a method returns: a `dspy.Prediction` with branches, which a notebook shows as a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import dspy

from blendfilter.records import Excerpt, Passage
from blendfilter.text import html_of, shortened

_QUERY_WORDS = {"q": "the question", "q_ex": "external reasoning + question", "q_in": "internal knowledge + question"}
_WIDTH = 160
_CELL = "text-align:left;vertical-align:top;padding:.15em .8em .15em 0"


@dataclass(frozen=True)
class Branch:
    """What one query brought: the passages retrieved, those kept, and how the filter's decision was read."""

    retrieved: Sequence[Passage]
    kept: Sequence[Passage]
    ids_read: str | None = None
    reason: str = field(default="", repr=False)


def query_words(name: str) -> str:
    """What the query of that name is made of; empty where the name is clear.

    >>> query_words("q_ex")
    'external reasoning + question'
    """
    return _QUERY_WORDS.get(name, "")


class MethodPrediction(dspy.Prediction):
    """A `dspy.Prediction` with an HTML display: every text escaped, long ones cut."""

    @classmethod
    def of(cls, prediction: dspy.Prediction) -> MethodPrediction:
        """The same prediction with a display."""
        same = cls(**dict(prediction.items()))
        same._completions, same._lm_usage = prediction._completions, prediction._lm_usage
        return same

    def _repr_html_(self) -> str:
        return "".join(_html(self))


def _html(prediction: dspy.Prediction) -> Iterator[str]:
    yield f'<div><p style="font-size:1.2em;margin:.2em 0"><b>{_text(prediction.get("answer"))}</b></p>'
    branches = prediction.get("branches") or {}
    for name, query in (prediction.get("queries") or {}).items():
        yield f'<p style="margin:.6em 0 .1em"><code>{_text(name)}</code> <small>{_text(query_words(name))}</small><br>'
        yield f"{_text(query)}</p>{_passages(branches.get(name))}"
    if prediction.get("reasoning"):
        yield f'<p style="margin:.6em 0 .1em"><small>reasoning</small><br>{_text(prediction.reasoning, 4 * _WIDTH)}</p>'
    figures = [f"{len(prediction.get('knowledge') or [])} passages kept", f"{len(prediction.get('calls') or [])} calls"]
    events = ", ".join(f"{name} {count}" for name, count in (prediction.get("flags") or {}).items() if count)
    yield f'<p style="margin:.6em 0 0"><small>{html_of("; ".join(filter(None, [*figures, events])))}</small></p></div>'


def _passages(branch: Any) -> str:
    if branch is None:
        return ""
    kept = {passage.id: passage for passage in branch.kept}
    lines = [
        f'<tr><td style="{_CELL};white-space:nowrap">{"+ kept" if passage.id in kept else "- dropped"}</td>'
        f'<td style="{_CELL}">{_text(passage.line)}{_pieces(kept.get(passage.id))}</td></tr>'
        for passage in branch.retrieved
    ]
    return f"<table>{''.join(lines)}</table>" if lines else "<small>nothing retrieved</small>"


def _pieces(kept: Passage | None) -> str:
    spans = kept.spans if isinstance(kept, Excerpt) else ()
    return "".join(f"<br><small>kept: {_text(piece.text)}</small>" for piece in spans)


def _text(value: object, width: int = _WIDTH) -> str:
    """Escaped and isolated: a right-to-left mark in a passage must not turn the text around it."""
    return f"<bdi>{html_of(shortened(str(value), width))}</bdi>"
