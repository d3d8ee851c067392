"""The data that rooms hand to each other: frozen records, no behaviour beyond how they read."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Self, overload

from blendfilter.errors import BadArgument


def one_line(text: str) -> str:
    """`text` on one line: every line break (and the white space around it) becomes one space."""
    lines = text.splitlines()
    if len(lines) < 2:
        return text.strip()
    return " ".join(stripped for line in lines if (stripped := line.strip()))


def whole_characters(text: str) -> str:
    """`text` with a question mark for each half of a surrogate pair: no file, server or tokenizer takes one."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def plain(value: Any) -> Any:
    """`value` as JSON would have it, whichever library's table or array it comes from.

    Arrays become lists and NumPy's numbers Python's, however deeply they are nested. What a table has for an empty cell
    (NaN, NaT, NA) becomes None.

    >>> plain({"answers": ["Ane", float("nan")]})
    {'answers': ['Ane', None]}
    """
    kind = type(value)
    if value is None or kind is str or kind is int or kind is bool:
        return value
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        parts = map(plain, value)
        return tuple(parts) if isinstance(value, tuple) else list(parts)
    if callable(to_list := getattr(value, "tolist", None)) and not isinstance(value, type):
        value = to_list()  # a list, or the one number of a NumPy scalar
        if isinstance(value, list):
            return plain(value)
    empty = isinstance(value, float | Decimal) and math.isnan(value)
    return None if empty or type(value).__name__ in ("NAType", "NaTType") else value


def cell(value: Any) -> Any:
    """A cell of a table that holds names or texts: its text, where the table has made a number of it.

    A column of whole numbers with a gap has decimals in pandas: 1790.0 was 1790. None for a gap; what is neither text
    nor number, or is infinite, stays as it is.

    >>> cell(7), cell(1790.0), cell("1790.0"), cell(3.5), cell(float("nan"))
    ('7', '1790', '1790.0', '3.5', None)
    """
    value = plain(value)
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if not is_number or abs(value) == math.inf:
        return value
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def content_id(title: str, text: str) -> str:
    """The id of a passage that came without one: 16 hex digits of its content."""
    return hashlib.sha256(f"{title}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, slots=True, init=False)
class Passage:
    """One retrievable text, `Passage(id, title, text)` or `Passage(text, title="…")`, whose id is made of its content.

    `score` is the retriever's, None where it has none.

    >>> Passage("A harbour town.")
    Passage(id='e8e150c7de4fb1f3', title='', text='A harbour town.', score=None)
    """

    id: str
    title: str
    text: str
    score: float | None
    metadata: Mapping[str, Any] = field(repr=False, compare=False)

    @overload
    def __init__(
        self,
        id: str,
        title: str,
        text: str,
        score: float | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        text: str,
        *,
        id: str | None = None,
        title: str = "",
        score: float | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None: ...
    def __init__(self, *given: Any, **named: Any) -> None:
        if len(given) == 1 and "text" not in named:
            named["text"], given = given[0], ()
        self._fill(*given, **named)

    def _fill(
        self,
        id: str | None = None,
        title: str | None = None,
        text: str | None = None,
        score: float | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        # as most are: every hit of every search is one
        if not (type(id) is type(title) is type(text) is str):
            id, title, text = cell(id), cell(title), cell(text)
        if text is None:
            raise TypeError(
                "a Passage takes a text (and title=…), or an id, a title and a text"
            )
        put = object.__setattr__  # the way into a frozen record
        put(self, "id", content_id(title or "", text) if id is None else id)
        put(self, "title", title or "")
        put(self, "text", text)
        put(self, "score", score)
        put(self, "metadata", {} if metadata is None else metadata)

    @property
    def line(self) -> str:
        """What a model reads: ``Title | text`` on one line, or the text alone where there is no title."""
        return (
            f"{one_line(self.title)} | {one_line(self.text)}"
            if self.title.strip()
            else one_line(self.text)
        )

    @property
    def long_text(self) -> str:
        """The name under which `dspy.Retrieve` looks for a passage's text."""
        return self.line

    def scored(self, score: float | None) -> Self:
        """The same passage with another score."""
        # every hit of every search is one; `replace` takes three times as long
        if type(self) is Passage:
            return type(self)(self.id, self.title, self.text, score, self.metadata)
        return replace(self, score=score)


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a text: `text` is ``source[start:end]``, in characters."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt(Passage):
    """What a filter kept of a passage: pieces of its text, verbatim, in the order in which they stand there.

    It has the id, title and score of its source, and a model reads it as any passage. `spans` lie in `source.text`.
    """

    source: Passage = field(repr=False)
    spans: tuple[Span, ...]

    @classmethod
    def of(cls, source: Passage, places: Iterable[tuple[int, int]]) -> Excerpt:
        """The pieces of `source` at `places`, (start, end) each; in any order; those that overlap or touch become one.

        Raises:
            BadArgument: a place that is empty or outside the text.

        >>> Excerpt.of(Passage("1", "Ormskerry", "A town. It has a pier. It rains."), [(23, 32), (0, 7)]).text
        'A town. It rains.'
        """
        text, joined = source.text, list[tuple[int, int]]()
        for start, end in sorted(places):
            if not 0 <= start < end <= len(text):
                raise BadArgument(
                    f"no span {start}:{end} in passage '{source.id}', of {len(text)} characters"
                )
            if joined and start <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((start, end))
        spans = tuple(Span(start, end, text[start:end]) for start, end in joined)
        kept = " ".join(span.text for span in spans)
        return cls(
            source.id,
            source.title,
            kept,
            source.score,
            source.metadata,
            source=source,
            spans=spans,
        )

    def joined(self, other: Excerpt) -> Excerpt:
        """This and what another filter kept of the same passage."""
        places = [(span.start, span.end) for span in (*self.spans, *other.spans)]
        return type(self).of(self.source, places).scored(self.score)


@dataclass(frozen=True, slots=True, init=False)
class WrittenText(Passage):
    """Text that a filter's model wrote and that stands in no passage; its id is made of its content."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question with what is known of its answer.

    `golden_answers` are equally right (aliases). `evidence` holds one tuple of gold titles per annotator (HotPotQA and
    2Wiki: one; StrategyQA: up to three; empty where unknown); `gold_titles` is their union in upstream's order.
    `context` are the paragraphs that came with the question, as passages (for the `pooled` corpus).
    """

    id: str
    question: str
    golden_answers: tuple[str, ...] = ()
    gold_titles: tuple[str, ...] = ()
    evidence: tuple[tuple[str, ...], ...] = ()
    supporting_facts: tuple[tuple[str, int], ...] = ()
    context: tuple[Passage, ...] = field(default=(), repr=False)
    type: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
