"""Any callable `(query, k)` as an index: `as_retriever(search)`, whatever shape its passages come in.

Read are our `Passage`, mappings (`{title, text}`, FlashRAG's `{contents}`, `dspy.ColBERTv2`'s `{text, pid, score}`,
`WeaviateRM`'s `{long_text}`), strings `Title | text`, objects with a `.long_text`, and a `dspy.Prediction` with
`.passages` of these.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from blendfilter.errors import BadArgument
from blendfilter.journal import digest
from blendfilter.records import Passage, cell, content_id, plain
from blendfilter.retrieval.base import Retriever, fingerprint_of
from blendfilter.retrieval.corpus import BAR, IDS, TITLES, at_bar, headed

SHAPES = (
    "Passage records, {'title', 'text'} mappings, 'Title | text' strings, objects with .long_text, "
    "or a dspy.Prediction with .passages"
)
ACCEPTED = (
    "a retriever is an index (open_index, BM25.build) or a callable (query, k) that returns passages: "
    f"{SHAPES}"
)


def as_retriever(searcher: Any, *, fingerprint: str | None = None) -> Retriever:
    """`searcher` itself where it is a `Retriever`; any callable `(query, k)` wrapped as one.

    `fingerprint` (or an attribute of that name) says when its results change; without it the callable's
    module-qualified name stands for it, so name one for what a factory made. Raises `BadArgument` for anything else.

    >>> towns = as_retriever(lambda query, k: ["Ormskerry | A harbour town.", "Fell | A hill."])
    >>> [(p.title, p.text) for p in towns("where?", k=1)]
    [('Ormskerry', 'A harbour town.')]
    """
    if isinstance(searcher, Retriever):
        return searcher
    if not callable(searcher) or inspect.isclass(searcher):
        raise BadArgument(f"{searcher!r} cannot search: {ACCEPTED}")
    if inspect.iscoroutinefunction(searcher) or inspect.iscoroutinefunction(
        type(searcher).__call__
    ):
        raise BadArgument(
            f"{name_of(searcher)} is async: give a plain function (it runs in a thread of its own)"
        )
    return CallableRetriever(searcher, fingerprint)


class CallableRetriever(Retriever):
    """A callable behind the `Retriever` interface; its results are cut to k, ids made from the content if missing."""

    kind = "callable"

    def __init__(self, searcher: Callable[..., Any], fingerprint: str | None = None) -> None:
        self.searcher = searcher
        self.name = name_of(searcher)
        stated = fingerprint or getattr(searcher, "fingerprint", None)
        own = isinstance(stated, str) and re.fullmatch("[0-9a-f]{16}", stated)
        self.fingerprint = (
            str(stated)
            if own
            else fingerprint_of("callable", stated or [self.name, *_own(searcher)])
        )
        self._call = _with_k(searcher)

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """One call of the function a query, in order. What the function raises comes through as it is."""
        results: list[list[Passage]] = []
        for query in queries:
            found = self._call(query, k)
            results.append(as_passages(found, f"what {self.name} returned")[:k])
        return results

    def info(self) -> dict[str, Any]:
        """Kind, fingerprint, and the callable's name."""
        return super().info() | {"name": self.name}


def _own(searcher: Any) -> list[Any]:
    """What distinguishes two retrievers of one class: an address, a collection's name, texts that it holds itself."""
    parts: list[Any] = [str(getattr(searcher, "url", ""))]
    # DSPy's `WeaviateRM`
    if collection := getattr(searcher, "_weaviate_collection_name", None):
        parts.append(str(collection))
    # DSPy's `Embeddings`, which finds as many as its own k says
    corpus = getattr(searcher, "corpus", None)
    if isinstance(corpus, list) and all(isinstance(text, str) for text in corpus):
        parts += [digest("corpus", *corpus), getattr(searcher, "k", None)]
    return parts


def _with_k(searcher: Callable[..., Any]) -> Callable[[str, int], Any]:
    """`searcher` called with `k=` where it has one, else with a second argument, else with the query alone."""
    try:
        signature = inspect.signature(searcher)
    except ValueError:  # written in C, without a signature
        return searcher

    def takes(*arguments: Any, **named: Any) -> bool:
        with suppress(TypeError):
            signature.bind(*arguments, **named)
            return True
        return False

    if takes("", k=1):
        return lambda query, k: searcher(query, k=k)
    return searcher if takes("", 1) else lambda query, _: searcher(query)


def name_of(searcher: Any) -> str:
    """Module and qualified name; anonymous and local functions share theirs, so their line is named too."""
    while isinstance(searcher, partial):
        searcher = searcher.func
    named = searcher if hasattr(searcher, "__qualname__") else type(searcher)
    name = f"{named.__module__}.{named.__qualname__}"
    code = getattr(searcher, "__code__", None)
    return f"{name}:{code.co_firstlineno}" if code is not None and name.endswith(">") else name


def as_passages(found: Any, what: str = "passages") -> list[Passage]:
    """`found`, a list in any accepted shapes. Raises `BadArgument` for others, such as one text.

    >>> as_passages("Fell | A hill.")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    blendfilter.errors.BadArgument: passages is a str: give a list of Passage records, ...
    """
    found = getattr(found, "passages", found)
    # a text's letters and a record's names can be iterated over, too
    if (
        isinstance(found, str | bytes)
        or hasattr(found, "keys")
        or not isinstance(found, Iterable)
    ):
        raise BadArgument(f"{what} is a {type(found).__name__}: give a list of {SHAPES}")
    return [as_passage(item) for item in found]


def as_passage(item: Any) -> Passage:
    """One result, in any accepted shape, as a `Passage`. Raises `BadArgument` for other shapes.

    >>> as_passage({"contents": '"Ormskerry"\\nA harbour town.', "id": 7})
    Passage(id='7', title='Ormskerry', text='A harbour town.', score=None)
    """
    if isinstance(item, Passage):
        return item
    if isinstance(item, str):
        return _passage(*at_bar(item))
    if isinstance(item, Mapping):
        return _from_mapping(item)
    text = getattr(item, "long_text", None)
    if isinstance(text, str):
        return _passage(
            *at_bar(text), name=getattr(item, "pid", None), score=getattr(item, "score", None)
        )
    raise BadArgument(f"cannot read a {type(item).__name__} as a passage: {ACCEPTED}")


def _from_mapping(row: Mapping[str, Any]) -> Passage:
    name = next((row[key] for key in IDS if row.get(key) is not None), None)
    titles = [row[key] for key in TITLES if row.get(key) is not None]
    own_title = cell(next(filter(None, titles), *titles[:1] or [None]))
    own_text = plain(row.get("text"))
    if isinstance(own_text, list) and all(isinstance(part, str) for part in own_text):
        own_text = " ".join(own_text)  # sentences
    if isinstance(row.get("contents"), str):
        title, text = headed(row["contents"])
    elif (
        "text" in row and isinstance(own_title, str) and isinstance(own_text or own_title, str)
    ):
        title, text = own_title, own_text or own_title
        # our own server states the title by itself too, beside the line that `dspy.ColBERTv2` is known to give
        text = text.removeprefix(f"{title}{BAR}") if title else text
    else:
        line = next(
            (row[key] for key in ("long_text", "text") if isinstance(row.get(key), str)), None
        )
        if line is None:
            raise BadArgument(
                f"cannot read a mapping with the keys {sorted(map(str, row))} as a passage: {ACCEPTED}"
            )
        title, text = at_bar(line)
    return _passage(title, text, name=name, score=row.get("score"))


def _passage(title: str, text: str, name: Any = None, score: Any = None) -> Passage:
    known = cell(name)
    own = content_id(title, text) if known is None else str(known)
    return Passage(own, title, text, None if score is None else float(score))
