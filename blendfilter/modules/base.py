"""What methods share: search and filter, the union, the answer, the prediction with its trace, calls and flags.

The answer: Wang et al., "BlendFilter" (EMNLP 2024), section 3.4, a = M(a | Prompt_CoT(q, K_r)), then the short answer
that the chain of thought arrives at (appendix F). Every method with a chain of thought ends with these two calls, or a
comparison would be one of answer extractors.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import dspy

from blendfilter import aio
from blendfilter.aio import relayed
from blendfilter.asking import SHORT_TOKENS, Ask, PromptSettings, TaskWording
from blendfilter.context import calls_of, setting
from blendfilter.errors import BadArgument
from blendfilter.filters.base import Bridged, Filter, ask_filter, noted
from blendfilter.filters.registry import filter_of
from blendfilter.prompting import Prompts
from blendfilter.records import Excerpt, Passage, Span, WrittenText, one_line
from blendfilter.retrieval.base import Retriever, Searcher, check_search
from blendfilter.retrieval.callables import as_passage, as_passages, as_retriever
from blendfilter.text import folded, html_of, shortened, visible
from blendfilter.views import view

FLAGS = (
    "unparseable_ids",
    "explicit_none",
    "suspect_ids",
    "empty_knowledge",
    "empty_reply",
    "cut_reply",
    "query_cut",
    "invented_observation",
    "hops_exhausted",
    "unreadable_hop",
    "repeated_hop",
    "refused_reply",
    "unread_verdict",
    "no_verdict",
    "contradicted_verdict",
    "cut_judgement",
)
"""The events that a method counts per question."""
RARE_FLAGS = ("verdicts_reused", "not_in_passages", "input_cut", "partial_search", "prompt_cut")
"""Flags of single methods, filters, indexes or servers: written to a file only where they occur."""


@dataclass(frozen=True)
class Branch:
    """What one query brought: the passages retrieved, those kept, and how the filter's decision was read."""

    retrieved: Sequence[Passage]
    kept: Sequence[Passage]
    ids_read: str | None = None
    reason: str = field(default="", repr=False)


class QuestionModule(Bridged):
    """A module that answers `question`: subclasses write `aforward`."""

    def cleaned(self, question: object) -> str:
        """A question on one line. Raises: BadArgument where there is none."""
        line = one_line(question) if isinstance(question, str) else ""
        if not line:
            raise BadArgument(f"{type(self).__name__} needs a question, got {question!r}")
        return line


class Method(QuestionModule):
    """Base class of methods: from a question to a `dspy.Prediction`; subclasses write `answer`, a coroutine.

    The prediction has `reasoning`, `knowledge` (passages kept), `context` (their texts, for DSPy's metrics), `queries`,
    `branches`, `flags`, `calls` (stage, key) in plan order, and `answer`.

    Raises:
        BadArgument: an empty question. UseAcall: the synchronous call on the loop thread.
    """

    method_name: str = ""
    """Its name on the command line."""

    async def aforward(self, question: str) -> dspy.Prediction:
        question = self.cleaned(question)
        with noted() as notes:
            async with relayed():
                prediction = await self.answer(question)
        flags = Counter(dict.fromkeys(FLAGS, 0))
        flags.update(prediction.get("flags") or {})
        flags.update(note.event for note in notes if note.event in (*FLAGS, *RARE_FLAGS))
        prediction["flags"] = dict(flags)
        prediction["calls"] = [(note.stage, note.key) for note in calls_of(notes)]
        prediction["context"] = [passage.line for passage in prediction.get("knowledge") or ()]
        return MethodPrediction.of(prediction)

    async def answer(self, question: str) -> dspy.Prediction:
        raise NotImplementedError


class RetrievingMethod(Method):
    """A method that searches and may filter what it finds.

    Args:
        retriever: an index, or any callable (query, k).
        k: passages per search.
        filter: any filter, or the name of one (`filco`).
        settings: the words that a filter by name has.
    """

    def __init__(
        self,
        retriever: Searcher,
        k: int,
        filter: Filter | str | None,
        settings: PromptSettings | None = None,
    ) -> None:
        super().__init__()
        self.retriever: Retriever | None = as_retriever(retriever)
        self.k = check_search([], k)
        self.select = filter_of(filter, settings or PromptSettings.of("hotpotqa", None, None))

    def arguments(self) -> dict[str, Any]:
        return {"k": self.k, **filter_arguments(self.select)}

    async def look_up(
        self, query: str, question: str | None = None, **more: Any
    ) -> tuple[dspy.Prediction, Branch]:
        """What the filter keeps of a query's passages, judged by `question` (the query by default), and the branch."""
        assert self.retriever is not None
        retrieved = await search(self.retriever, query, self.k)
        chosen = await filtered(
            self.select, query if question is None else question, retrieved, **more
        )
        return chosen, branch_of(retrieved, chosen)


async def search(retriever: Retriever, query: str, k: int) -> list[Passage]:
    """The k best passages for one query, searched in a worker thread; to DSPy's callbacks it is a tool's call."""

    async def tool(query: str, k: int) -> list[Passage]:
        return (await aio.in_thread(retriever.search, [query], k))[0]

    if not dspy.settings.callbacks:
        return await tool(query, k)
    described = f"The passages that {type(retriever).__name__} finds for a query, best first."
    return await dspy.Tool(tool, "search", described).acall(query=query, k=k)  # type: ignore[no-any-return]


async def filtered(
    select: Filter | None, question: str, passages: Sequence[Passage], **more: Any
) -> dspy.Prediction:
    """What `select` keeps of `passages`; all of them without a filter."""
    if select is None:
        return dspy.Prediction(kept=list(passages))
    with setting(judged=tuple(passage.id for passage in passages)):
        return await ask_filter(select, question, passages, **more)


async def topic_for(select: Filter | None, question: str) -> dict[str, str]:
    """What a filter that judges by the question's topic takes with each list of passages; found once a question."""
    ask = getattr(select, "topic_of", None)
    return {"topic": str(await ask(question))} if ask else {}


class FilteredSearch(QuestionModule):
    """What is kept of a search: stands between any retriever and any answerer.

    Args:
        retriever: an index, or any callable (query, k).
        filter: any, or the name of one (`filco`), for which `task`, `prompts` and `adapter` are as in `BlendFilter`.
        k: passages per search.

    `FilteredSearch(index, "filco")(question=…)` has `passages`, those kept, and `retrieved`, by the question or another
    `query`.
    """

    def __init__(
        self,
        retriever: Searcher,
        filter: Filter | str,
        k: int = 5,
        *,
        task: TaskWording | str = "hotpotqa",
        prompts: Prompts | str | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        super().__init__()
        self.retriever, self.k = as_retriever(retriever), check_search([], k)
        self.select = filter_of(filter, PromptSettings.of(task, prompts, adapter))

    def arguments(self) -> dict[str, Any]:
        """As a method's."""
        return {"k": self.k, **filter_arguments(self.select)}

    async def aforward(self, question: str, query: str | None = None) -> dspy.Prediction:
        question = self.cleaned(question)
        retrieved = await search(self.retriever, query or question, self.k)
        topic = await topic_for(self.select, question)
        chosen = await filtered(self.select, question, retrieved, **topic)
        return dspy.Prediction(**{**chosen, "passages": chosen.kept, "retrieved": retrieved})


def branch_of(retrieved: Sequence[Passage], chosen: dspy.Prediction) -> Branch:
    return Branch(retrieved, chosen.kept, chosen.get("status"), str(chosen.get("reason") or ""))


def prediction_of(
    answer: object,
    reasoning: str,
    knowledge: Sequence[Passage],
    queries: Mapping[str, str],
    branches: Mapping[str, Branch],
    chosen: Iterable[dspy.Prediction] | None,
    **more: Any,
) -> dspy.Prediction:
    """`chosen` are the filter's predictions; the events of a shared one count once (None: nothing is retrieved)."""
    flags = Counter[str]()
    if chosen is not None:
        flags["empty_knowledge"] = int(not knowledge)
        for prediction in {id(each): each for each in chosen}.values():
            flags.update(prediction.get("flags") or {})
    return dspy.Prediction(
        answer=str(answer),
        reasoning=reasoning,
        knowledge=list(knowledge),
        queries=queries,
        branches=branches,
        flags=dict(flags),
        **more,
    )


def filter_arguments(select: Filter | None) -> dict[str, Any]:
    """A filter's class and settings, for a run's record; nothing where there is none."""
    if select is None:
        return {}
    own = select.arguments() if isinstance(select, Filter) else {}
    return {"filter": type(select).__name__, **own}


def union(lists: Iterable[Sequence[Passage]]) -> list[Passage]:
    """The passages of all lists in order, each once: by id, else by title and text.

    Where several lists hold excerpts of one passage, the pieces are joined, in the order of its text; a whole passage
    stands for its excerpts. One list alone keeps its order, and excerpts of one passage apart (whoever
    writes them may come back to a passage).

    >>> a, b = Passage("1", "T", "x"), Passage("2", "T", "X ")
    >>> [p.id for p in union([[a], [b, a]])]
    ['1']
    """
    places: dict[Any, int] = {}
    merged: list[Passage] = []
    different: list[Sequence[Passage]] = []
    for passages in lists:
        if passages and passages not in different:
            different.append(passages)
    for passage in (passage for passages in different for passage in passages):
        whole = passage.source if isinstance(passage, Excerpt) else passage
        names = (("id", passage.id), ("text", folded(whole.line).casefold()))
        place = next((places[name] for name in names if name in places), len(merged))
        known = merged[place] if place < len(merged) else None
        alone = (
            len(different) == 1 and isinstance(passage, Excerpt) and isinstance(known, Excerpt)
        )
        if known is None or (alone and passage != known):
            merged.append(passage)
        else:
            merged[place] = _joined(known, passage)
        places.update((name, place) for name in names if name not in places)
    return merged


def _joined(first: Passage, second: Passage) -> Passage:
    if isinstance(first, Excerpt) and isinstance(second, Excerpt):
        return first.joined(second) if first.source.text == second.source.text else first
    return second if isinstance(first, Excerpt) and not isinstance(second, Excerpt) else first


# --- the answer ---


class Reasoning(dspy.Signature):
    """A chain of thought over knowledge, which ends with the answer."""

    knowledge: list[str] = dspy.InputField(desc="lines of Title | text")
    question: str = dspy.InputField()
    reasoning: str = dspy.OutputField()


class UnaidedReasoning(dspy.Signature):
    """A chain of thought from memory, which ends with the answer."""

    question: str = dspy.InputField()
    reasoning: str = dspy.OutputField()


class ShortAnswer(dspy.Signature):
    """The answer that a reasoning arrives at."""

    context: str = dspy.InputField(desc="the whole reasoning")
    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


def short_answer(settings: PromptSettings) -> Ask:
    """The last predictor of every method that reasons."""
    return settings.predictor(
        "short_answer", ShortAnswer, "blendfilter/short_answer", SHORT_TOKENS
    )


class Answering(QuestionModule):
    """From a question and the knowledge kept to an answer.

    Args:
        template: `blendfilter/answer`, or `cot` to reason without knowledge.
        wording, prompts, adapter: as in `Blending`.

    `Answering()(question=…, knowledge=[…])` gives a prediction with `answer` and `reasoning`.
    """

    def __init__(
        self,
        template: str = "blendfilter/answer",
        *,
        wording: TaskWording | str = "hotpotqa",
        prompts: Prompts | str | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        super().__init__()
        settings = PromptSettings.of(wording, prompts, adapter)
        self.unaided = template == "cot"
        self.answer = settings.predictor(
            "answer", UnaidedReasoning if self.unaided else Reasoning, template
        )
        self.short_answer = short_answer(settings)

    async def aforward(
        self, question: str, knowledge: Sequence[Passage] = ()
    ) -> dspy.Prediction:
        question = self.cleaned(question)
        reasoning = await self.reasoning(question, as_passages(knowledge, "knowledge"))
        return dspy.Prediction(
            answer=await self.conclude(question, reasoning), reasoning=reasoning
        )

    async def reasoning(self, question: str, knowledge: Sequence[Passage]) -> str:
        """The chain of thought, the first of the two calls."""
        lines = {} if self.unaided else {"knowledge": [passage.line for passage in knowledge]}
        return str((await self.answer.acall(question=question, **lines)).reasoning)

    async def conclude(self, question: str, reasoning: str) -> str:
        """The short answer, the second."""
        return str((await self.short_answer.acall(context=reasoning, question=question)).answer)


# --- where an answer was read ---


class Citation(NamedTuple):
    """A text that an answer was read from, and where it stands.

    `source` is the document that the passage was cut from (a file's path, or another passage's id), and "" where it was
    cut from none. `start` and `end` are characters of that document, else of the passage; None where a passage of the
    user's own names a document and not the place in it. `url` is the one in its metadata, where that is safe to follow.
    """

    title: str
    source: str
    start: int | None
    end: int | None
    text: str
    url: str

    def __str__(self) -> str:
        place = "" if self.start is None else f", characters {self.start:,}-{self.end:,}"
        named = self.title or shortened(self.text, 60)
        return f"{named} ({self.source}{place})" if self.source else named


def citations_of(knowledge: Iterable[Any]) -> list[Citation]:
    """Each piece of the passages kept; a text that a model wrote stands nowhere."""
    found: list[Citation] = []
    for passage in map(as_passage, knowledge):
        if isinstance(passage, WrittenText):
            continue
        whole, pieces = passage, [Span(0, len(passage.text), passage.text)]
        if isinstance(passage, Excerpt):
            whole, pieces = passage.source, [*passage.spans]
        about = whole.metadata
        source, begin = about.get("source"), about.get("start")
        if not isinstance(source, str):
            source, begin = "", 0
        elif type(begin) is not int or about.get("end") != begin + len(whole.text):
            begin = None
        url = str(next(filter(_is_safe, (about.get("url"), source)), ""))
        for piece in pieces:
            start = None if begin is None else begin + piece.start
            end = None if start is None else start + len(piece.text)
            found.append(Citation(whole.title, source, start, end, piece.text, url))
    return found


_ADDRESS = re.compile(r"https?://[a-zA-Z0-9.-]+(?::\d+)?(?:[/?#][^\s<>]*)?")


def _is_safe(url: object) -> bool:
    """Whether a page may link to it: the web, at a host in plain sight (no login before it)."""
    return isinstance(url, str) and url.isprintable() and bool(_ADDRESS.fullmatch(url))


# --- a prediction in a notebook ---

QUERY_WORDS = {
    "q": "the question",
    "q_ex": "external reasoning + question",
    "q_in": "internal knowledge + question",
}
"""What queries are made of, where their names do not say it."""


class MethodPrediction(dspy.Prediction):
    """A `dspy.Prediction` that IPython and notebooks show as a trace: every text escaped, long ones cut.

    It is one completion, whose last field is the answer: that is the one that `dspy.majority` counts.
    """

    @classmethod
    def of(cls, prediction: dspy.Prediction) -> MethodPrediction:
        """The same prediction with a display."""
        fields = {name: value for name, value in prediction.items() if name != "answer"}
        same: MethodPrediction = cls.from_completions(
            [{**fields, "answer": prediction.get("answer")}]
        )
        same.set_lm_usage(prediction.get_lm_usage())
        return same

    def citations(self) -> list[Citation]:
        """What the answer was read from: titles, documents and places in them."""
        return citations_of(self.get("knowledge") or ())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython prints: the trace, as `blendfilter ask --show-trace` does."""
        printer.text(visible(view("trace")(self).removesuffix("\n")))

    def _repr_html_(self) -> str:
        branches = self.get("branches") or {}
        lines = [f"<b>{_text(self.get('answer'))}</b>"]
        for number, cited in enumerate(self.citations(), 1):
            named = _text(cited)
            if cited.url:
                named = f'<a href="{html_of(cited.url)}" rel="noopener noreferrer">{named}</a>'
            lines.append(f"<small>[{number}] {named}</small>")
        for name, query in (self.get("queries") or {}).items():
            lines.append(
                f"<code>{_text(name)}</code> <small>{_text(QUERY_WORDS.get(name, ''))}</small> {_text(query)}"
            )
            branch = branches.get(name, Branch((), ()))
            kept = {passage.id for passage in branch.kept}
            for passage in branch.retrieved:
                lines.append(
                    f"{'+ kept' if passage.id in kept else '- dropped'} {_text(passage.line)}"
                )
                for part in branch.kept:
                    if part.id == passage.id and isinstance(part, Excerpt):
                        for span in part.spans:
                            lines.append(f"<small>kept: {_text(span.text)}</small>")
        for part in self.get("knowledge") or ():
            if isinstance(part, WrittenText):
                lines.append(f"+ written, in no passage: {_text(part.text)}")
        if self.get("reasoning"):
            lines.append(f"<small>reasoning</small> {_text(self.reasoning, 640)}")
        figures = [
            f"{len(self.get('knowledge') or [])} passages kept",
            f"{len(self.get('calls') or [])} calls",
        ]
        events = (self.get("flags") or {}).items()
        figures += [f"{name} {count}" for name, count in events if count]
        lines.append(f"<small>{html_of('; '.join(figures))}</small>")
        return f"<div>{'<br>'.join(lines)}</div>"


def _text(value: object, width: int = 160) -> str:
    """Escaped and isolated: a right-to-left mark in a passage must not turn the text around it."""
    return f"<bdi>{html_of(shortened(str(value), width))}</bdi>"
