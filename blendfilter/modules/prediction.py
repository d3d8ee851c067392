"""A method's prediction as a notebook shows it: each query with what it brought, what was kept, and the answer.

In: a prediction. Out: HTML in which every text is escaped; long ones are cut, for the prediction itself has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dspy

from blendfilter.records import Excerpt, Passage
from blendfilter.text import html_of, shortened

_QUERY_WORDS = {"q": "the question", "q_ex": "external reasoning + question", "q_in": "internal knowledge + question"}
_WIDTH = 160
_CELL = "text-align:left;vertical-align:top;padding:.15em .8em .15em 0"


def query_words(name: str) -> str:
    """What a query of that name is made of; empty where the name says it itself.

    >>> query_words("q_ex")
    'external reasoning + question'
    """
    return _QUERY_WORDS.get(name, "")


class Answered(dspy.Prediction):
    """A method's prediction: DSPy's own, which a notebook shows as a trace."""

    @classmethod
    def of(cls, prediction: dspy.Prediction) -> Answered:
        """The same prediction; the class adds nothing but how it is shown."""
        answered = cls(**dict(prediction.items()))
        answered._completions, answered._lm_usage = prediction._completions, prediction._lm_usage
        return answered

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
    yield f'<p style="margin:.6em 0 0"><small>{html_of("; ".join(_figures(prediction)))}</small></p></div>'


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
    """What was kept of a passage, where that is less than all of it."""
    spans = kept.spans if isinstance(kept, Excerpt) else ()
    return "".join(f"<br><small>kept: {_text(piece.text)}</small>" for piece in spans)


def _figures(prediction: dspy.Prediction) -> Iterator[str]:
    yield f"{len(prediction.get('knowledge') or [])} passages kept"
    yield f"{len(prediction.get('calls') or [])} calls"
    events = [f"{name} {count}" for name, count in (prediction.get("flags") or {}).items() if count]
    if events:
        yield ", ".join(events)


def _text(value: object, width: int = _WIDTH) -> str:
    """Any text, isolated: a right-to-left mark in a passage must not turn what stands around it."""
    return f"<bdi>{html_of(shortened(str(value), width))}</bdi>"
