"""What a table is run on: questions by task, and indexes by task and by the paper's retriever that they stand for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar, get_args

from blendfilter.errors import BadArgument, BadData, EmptyData, UnknownName
from blendfilter.records import Passage, Question, one_line
from blendfilter.reproduce.tables import QUESTION_ONLY, PaperTable, Role
from blendfilter.resources import sample
from blendfilter.retrieval.analyser import Analyser
from blendfilter.retrieval.base import Retriever, fingerprint_of
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.corpus import pooled
from blendfilter.retrieval.hybrid import open_indexes
from blendfilter.tasks import TASKS, Questions, load

K = TypeVar("K")
V = TypeVar("V")
SAMPLE, POOLED, OWN = "sample", "pooled", "own"
VECTORS: tuple[Role, ...] = ("flat", "hnsw", "ivf")
"""Kinds of one dense index: where one of them is not named, what stands for another may stand in."""
_ROLES = "|".join(get_args(Role))
_NAMED = {
    "colbert": "ColBERT",
    "dpr": "DPR",
    "reranked": "reranked",
    "hnsw": "HNSW",
    "ivf": "IVF",
    OWN: "the questions' own paragraphs",
}
_NO_L2 = "flat is by inner product, the paper's IndexFlatL2 by L2 (build with --similarity l2)"
_PIECES = Analyser(pattern=r"\w{1,3}", stemmer=None, stop_words=())
"""For a second ranking over the sample world, where a table wants two retrievers: three letters at a time."""


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, dict[V, None]]:
    """The second parts of `pairs`, each once, by their first parts."""
    found: dict[K, dict[V, None]] = {}
    for key, value in pairs:
        found.setdefault(key, {})[value] = None
    return found


class Given(NamedTuple):
    """One `[PREFIX:][TASK=]VALUE` of an option; what it does not name is empty, and stands for all."""

    prefix: str
    task: str
    value: Any
    option: str

    @classmethod
    def of(cls, words: str, option: str, tasks: Iterable[str], prefixes: str = "") -> Given:
        """Parse `words`; `prefixes` is a pattern. Raises: UnknownName (the task), BadArgument (no value).

        >>> Given.of("bm25:hotpotqa=indexes/wiki17", "--index", ["hotpotqa"], "bm25|colbert")
        Given(prefix='bm25', task='hotpotqa', value='indexes/wiki17', option='--index')
        """
        prefix = rf"(?:({prefixes}):)?" if prefixes else "()"
        found = re.match(rf"{prefix}(?:(\w+)=)?", words)
        assert found is not None  # an empty text matches
        name, task = found.groups(default="")
        given = cls(name, task, words[found.end() :], option)
        if not given.value:
            form = "[NAME:][TASK=]VALUE" if prefixes else "[TASK=]VALUE"
            raise BadArgument(f"{option} is written {form}, and {words!r} names no value")
        if given.task and given.task not in tasks:
            raise UnknownName.of("task", given.task, tasks, f"in '{words}'")
        return given

    @classmethod
    def each(
        cls, words: Iterable[str], option: str, tasks: Iterable[str], prefixes: str = ""
    ) -> list[Given]:
        """All that an option was given."""
        return [cls.of(word, option, tasks, prefixes) for word in words]

    @property
    def own(self) -> bool:
        """Whether it stands for each question's own paragraphs."""
        return (self.option, self.value) == ("--corpus", OWN)


def nearest(given: Sequence[Given], task: str, prefix: str = "") -> list[Given]:
    """Those that fit best: named for both, for the prefix, for the task, for all."""
    for wanted in ((prefix, task), (prefix, ""), ("", task), ("", "")):
        if fitting := [one for one in given if one[:2] == wanted]:
            return fitting
    return []


def value_for(given: Sequence[Given], task: str, prefix: str = "") -> Any:
    """What is given for them, the last where there are several; None: nothing is."""
    found = nearest(given, task, prefix)
    return found[-1].value if found else None


@dataclass(frozen=True)
class TableSources:
    """What a table is run on; a note says wherever one index stands in for another."""

    questions: dict[str, Questions] = field(default_factory=dict)
    indexes: dict[tuple[str, str], Retriever] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def gather(
    table: PaperTable,
    *,
    data: Sequence[str],
    index: Sequence[str] = (),
    corpus: Sequence[str] = (),
    tasks: Iterable[str] | None = None,
    limit: int | None = None,
    allow_hosts: Sequence[str] = (),
) -> TableSources:
    """Questions and indexes for `table`: all of its tasks, or those in `tasks`; the table's n questions, or `limit`.

    `data`, `index` and `corpus` are places, `[retriever:][task=]place`. Where no tasks are named, those without
    questions are left out, and a note says so. Rows that search need an index.

    Raises `BadArgument` for a named task without questions (or, where retrieval is measured, without gold titles), and
    for a retriever without an index.
    """
    files = Given.each(data, "--data", TASKS)
    passages = Given.each(index, "--index", TASKS, _ROLES)
    passages += Given.each(corpus, "--corpus", TASKS, _ROLES)
    rows = [row for row in table.rows if row.retrieves]
    roles = list(dict.fromkeys(map(table.role, rows)))
    found = TableSources()
    chosen = list(table.tasks) if tasks is None else table.named("task", tasks, table.tasks)
    missing = [task for task in chosen if not nearest(files, task)]
    if tasks is None and 0 < len(missing) < len(chosen):
        found.notes.append(
            f"left out, for nothing names their questions (--data TASK=FILE): {', '.join(missing)}"
        )
        chosen = [task for task in chosen if task not in missing]
    for task in chosen:
        own = any(place.own for role in roles for place in nearest(passages, task, role))
        for row in rows if own else ():
            if row.method not in QUESTION_ONLY:
                raise BadArgument(
                    f"{row.method} searches for more than the question, and corpus={OWN} holds what was found for "
                    f"the questions of {task} alone: name an index, or leave it out (methods=)"
                )
        questions, dropped = _questions(task, files, table.n if limit is None else limit, own)
        if dropped:
            found.notes.append(
                f"{task}: left out, for want of paragraphs of their own: {dropped} of the questions"
            )
        if table.kind == "retrieval" and not any(one.gold_titles for one in questions):
            raise BadArgument(
                f"{table.name} measures retrieval: the questions of {task} must name their gold titles"
            )
        found.questions[task] = questions
    if not passages and any(
        questions.source == SAMPLE for questions in found.questions.values()
    ):
        # where a table wants ColBERT too, BM25 over pieces of words, which ranks otherwise
        world = sample("corpus.jsonl")
        for role in roles:
            pieces = role == "colbert"
            world_index = BM25.build(world, analyser=_PIECES) if pieces else BM25.build(world)
            found.indexes.update({(task, role): world_index for task in found.questions})
            if role != "bm25":
                stands_in = f"BM25{' over pieces of words' * pieces} stands in"
                found.notes.append(
                    f"the sample world has no {_NAMED.get(role, role)} index: {stands_in}"
                )
    else:
        _add_indexes(found, roles, passages, allow_hosts)
    return found


def _questions(
    task: str, files: Sequence[Given], limit: int, own: bool
) -> tuple[Questions, int]:
    """The questions of a task, and how many of the first ones were passed over for want of `own` paragraphs."""
    named = nearest(files, task)
    if not named:
        raise BadArgument(
            f"where are the questions of {task}? Add data='{task}=FILE', or leave it out with tasks="
        )
    if len(named) > 1:
        raise BadArgument(
            f"data= names the questions of {task} {len(named)} times: name them once"
        )
    there = load(task, named[0].value, limit=None if own else limit)
    if not own:
        return there, 0
    found = replace(there, items=tuple(one for one in there if _paragraphs(one))[:limit])
    if not found:
        raise EmptyData(
            f"the questions of {task} bring no paragraphs of their own: name an index or a corpus file"
        )
    return found, [one.id for one in there].index(found[-1].id) + 1 - len(found)


def _add_indexes(
    found: TableSources,
    roles: Sequence[Role],
    passages: Sequence[Given],
    allow_hosts: Sequence[str],
) -> None:
    opened: dict[tuple[str, str, str], Retriever] = {}
    for task, questions in found.questions.items():
        for role in roles:
            best = _best(passages, task, role)
            key = (best.option, best.value, task if best.value in (POOLED, OWN) else "")
            if key not in opened:
                opened[key] = _opened(best, questions, allow_hosts)
            index = found.indexes[task, role] = opened[key]
            kind = kind_of(index)
            if kind != role:
                verb = "stand" if kind == OWN else "stands"
                other = "other retriever: " * (
                    role in VECTORS and kind not in (*VECTORS, "dense")
                )
                name = _NAMED.get(kind, kind)
                found.notes.append(f"{task}: {other}{name} {verb} in for the paper's {role}")
            elif role == "flat" and index.info().get("settings", {}).get("similarity") == "dot":
                found.notes.append(f"{task}: {_NO_L2}")
        vectors = [role for role in roles if role in VECTORS]
        for same in grouped((id(found.indexes[task, role]), role) for role in vectors).values():
            if len(same) > 1:  # there, a table compares nothing
                what = "are one index here, and their rows the same runs"
                found.notes.append(f"{task}: {', '.join(same)} {what}")


def _best(passages: Sequence[Given], task: str, role: Role) -> Given:
    others = VECTORS if role in VECTORS else ()
    ranked = (nearest(passages, task, other) for other in (role, *others))
    best = next(filter(None, ranked), None)
    if best is None:
        raise BadArgument(
            f"which index is {role} for {task}? Add index='{role}:{task}=DIR', corpus='{task}=FILE' for BM25, or "
            f"corpus='{task}=own' for the question's own paragraphs"
        )
    if len(best) > 1:
        both = " and ".join(place.value for place in best[:2])
        raise BadArgument(
            f"{both} are both {role} for {task}: name one, or put the retriever ({role}:) in front"
        )
    return best[0]


def _opened(place: Given, questions: Questions, allow_hosts: Sequence[str]) -> Retriever:
    if place.option == "--index":
        return open_indexes([place.value], allow_hosts=allow_hosts)
    if place.own:
        return OwnParagraphs(questions)
    if place.value == POOLED:
        return BM25.build(pooled(questions))
    return BM25.for_corpus(sample("corpus.jsonl") if place.value == SAMPLE else place.value)


def kind_of(retriever: Retriever) -> str:
    """The kind of an index, wherever it is searched; of a dense one, which of `VECTORS` it is."""
    info = retriever.info()
    kind = str(info["of"] if info["kind"] == "remote" else info["kind"])
    return str(info.get("settings", {}).get("index", kind)) if kind == "dense" else kind


class OwnParagraphs(Retriever):
    """The paragraphs that came with each question, in their order, as an index for methods that search for it alone.

    What a question says of its paragraphs (gold or not) is left out.

    Raises:
        BadData: two questions of one text bring different ones.
    """

    kind = OWN

    def __init__(self, questions: Sequence[Question]) -> None:
        self._found: dict[str, list[Passage]] = {}
        for question in questions:
            passages = _paragraphs(question)
            if self._found.setdefault(one_line(question.question), passages) != passages:
                raise BadData(
                    f"question '{question.id}' is there twice, with other paragraphs: leave one of the two"
                )
        content = [
            [text, [[each.id, each.title, each.text] for each in own]]
            for text, own in self._found.items()
        ]
        self.fingerprint = fingerprint_of(OWN, content)

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """The first `k` paragraphs of each question; nothing else is searched for here (`gather` sees to it)."""
        return [self._found[one_line(query)][:k] for query in queries]

    def info(self) -> dict[str, Any]:
        """Kind, fingerprint, corpus, and the numbers of passages and questions."""
        return super().info() | {
            "corpus": {"name": OWN},
            "passages": sum(map(len, self._found.values())),
            "queries": len(self._found),
        }


def _paragraphs(question: Question) -> list[Passage]:
    return [
        replace(each, metadata={}, score=None) for each in question.context if each.text.strip()
    ]
