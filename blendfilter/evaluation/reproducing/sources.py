"""What a command names to run a table on: questions by task, and indexes by task and by the retriever they stand for.

In: the words of `--data`, `--index` and `--corpus`, each `[retriever:][task=]place`. Out: `Sources`: the questions of
every task, the index for each retriever of the paper, and a note wherever one stands in for another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, get_args

from blendfilter.errors import BadArgument, EmptyData, UnknownName
from blendfilter.evaluation.reproducing.own import OWN, OwnParagraphs, with_paragraphs
from blendfilter.evaluation.reproducing.papers import ASKING_THE_QUESTION, Role, Row, Table
from blendfilter.resources import sample
from blendfilter.retrieval.analyser import Analyser
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.corpus import pooled
from blendfilter.retrieval.hybrid import open_indexes
from blendfilter.tasks import TASKS, Questions, load

SAMPLE = "sample"
VECTORS: tuple[Role, ...] = ("flat", "hnsw", "ivf")
"""Kinds of one dense index: where one of them is not named, what stands for another may stand in."""
_ROLES = "|".join(f"{role}:" for role in get_args(Role))
_WORDS = re.compile(rf"(?:({_ROLES.replace(':', '')}):)?(?:(\w+)=)?(.+)", re.DOTALL)
_NAMED = {
    "colbert": "ColBERT", "dpr": "DPR", "flat": "a flat index", "hnsw": "HNSW", "ivf": "IVF",
    OWN: "the questions' own paragraphs",
}  # fmt: skip


class Place(NamedTuple):
    """One `[retriever:][task=]place`; None: for every one."""

    role: str | None
    task: str | None
    where: str

    @classmethod
    def of(cls, words: str) -> Place:
        """What `words` say. Raises: UnknownName (the task), BadArgument (nothing there).

        >>> Place.of("bm25:hotpotqa=indexes/wiki17")
        Place(role='bm25', task='hotpotqa', where='indexes/wiki17')
        >>> Place.of("http://localhost:8893/").task is None
        True
        """
        found = _WORDS.fullmatch(words)
        if found is None:
            raise BadArgument(f"a place is written [{_ROLES}][TASK=]FILE, and this one is empty")
        role, task, where = found.groups()
        if task is not None and task not in TASKS:
            raise UnknownName.of("task", task, TASKS, f"in '{words}'")
        return cls(role, task, where)


_SHORT = _NAMED | {"flat": "flat"}
_PIECES = Analyser(pattern=r"\w{1,3}", stemmer=None, stop_words=())
"""For a second ranking over the sample world, where a table wants two retrievers: three letters at a time."""


class _Passages(NamedTuple):
    """A place of passages, and whether it is an index made before or a corpus to make one of."""

    place: Place
    kind: Literal["index", "corpus"]

    @property
    def own(self) -> bool:
        """Whether it stands for each question's own paragraphs."""
        return self.kind == "corpus" and self.place.where == OWN


@dataclass(frozen=True)
class Sources:
    """What a table is run on."""

    questions: dict[str, Questions]
    indexes: dict[tuple[str, Role], Retriever]
    notes: list[str] = field(default_factory=list)


def gather(
    table: Table,
    *,
    data: Sequence[str],
    index: Sequence[str] = (),
    corpus: Sequence[str] = (),
    tasks: Iterable[str] | None = None,
    methods: Iterable[str] | None = None,
    limit: int | None = None,
    allow_hosts: Sequence[str] = (),
) -> Sources:
    """Questions and indexes for `table`: all of its tasks, or those in `tasks`; the table's n questions, or `limit`.

    Where no tasks are named, those without questions are left out, and a note says so. Indexes are asked for where a
    row searches, of all rows or of those of `methods`.

    Raises:
        BadArgument: no task with questions, or a named one without (or, where retrieval is measured, without gold
        titles), a retriever without an index. UnknownName, MissingFile, BadData, EmptyData: as `load` and `open_index`.
    """
    places = [Place.of(words) for words in data]
    chosen, notes = _with_data(_chosen(table, tasks), places, named=tasks is not None)
    passages = [_Passages(Place.of(words), "index") for words in index]
    passages += [_Passages(Place.of(words), "corpus") for words in corpus]
    roles = list(dict.fromkeys(table.role(row) for row in table.of(methods) if row.retrieves))
    questions = {}
    for task in chosen:
        own = any(each.own for role in roles for each in _nearest(passages, task, role))
        if own:
            _check_own(table, methods, task)
        questions[task], dropped = _questions(task, places, table.n if limit is None else limit, own)
        notes += [f"{task}: left out, for want of paragraphs of their own: {dropped} of the questions"] * bool(dropped)
    if table.kind == "retrieval":
        _check_gold(table, questions)
    if not passages and any(each.source == SAMPLE for each in questions.values()):
        found = Sources(questions, *_sample_world(roles, chosen))
    else:
        found = _with_indexes(roles, questions, passages, allow_hosts)
    return replace(found, notes=[*notes, *found.notes])


def _chosen(table: Table, tasks: Iterable[str] | None) -> list[str]:
    asked = list(tasks) if tasks is not None else list(table.tasks)
    for task in asked:
        if task not in table.tasks:
            raise UnknownName.of("task", task, table.tasks, f"in {table.name}")
    return asked


def _with_data(chosen: list[str], places: Sequence[Place], *, named: bool) -> tuple[list[str], list[str]]:
    """The tasks that have questions, and a note on the others; all of them where a command named them, or none has."""
    missing = [task for task in chosen if not any(place.task in (task, None) for place in places)]
    if named or len(missing) == len(chosen):
        return chosen, []
    note = f"left out, for nothing names their questions (--data TASK=FILE): {', '.join(missing)}"
    return [task for task in chosen if task not in missing], [note] * bool(missing)


def _questions(task: str, places: Sequence[Place], limit: int, own: bool) -> tuple[Questions, int]:
    """The questions of a task, and how many of the first ones were passed over for want of `own` paragraphs."""
    named = [place for place in places if place.task == task] or [place for place in places if place.task is None]
    if not named:
        raise BadArgument(f"where are the questions of {task}? Add --data {task}=FILE, or leave it out with --tasks")
    if len(named) > 1:
        raise BadArgument(f"--data names the questions of {task} {len(named)} times: name them once")
    where = named[0].where
    if not own:
        return load(task, where, limit=limit), 0
    there = load(task, where)
    found = with_paragraphs(there)[:limit]
    if not found:
        raise EmptyData(f"the questions of {task} bring no paragraphs of their own: name an index or a corpus file")
    return found, [one.id for one in there].index(found[-1].id) + 1 - len(found)


def _check_own(table: Table, methods: Iterable[str] | None, task: str) -> None:
    """Refuse, before anything is asked, what would search for more than the questions in their own paragraphs."""
    others = dict.fromkeys(row.method for row in table.rows if not _beyond(row))
    without = f", or leave it out (--methods {','.join(others)})" if others else ""
    for row in table.of(methods):
        if _beyond(row):
            raise BadArgument(
                f"{row.method} searches for more than the question, and --corpus {OWN} holds what was found for the "
                f"questions of {task} alone: name an index{without}"
            )


def _beyond(row: Row) -> bool:
    """Whether it searches for more than the question."""
    return row.retrieves and row.method not in ASKING_THE_QUESTION


def _check_gold(table: Table, questions: dict[str, Questions]) -> None:
    for task, asked in questions.items():
        if not any(one.gold_titles for one in asked):
            raise BadArgument(f"{table.name} measures retrieval: the questions of {task} must name their gold titles")


def _sample_world(roles: Sequence[Role], tasks: Sequence[str]) -> tuple[dict[tuple[str, Role], Retriever], list[str]]:
    """BM25 over the sample world; where a table wants ColBERT too, BM25 over pieces of words, which ranks otherwise."""
    world = sample("corpus.jsonl")
    made: dict[Role, Retriever] = {
        role: BM25.build(world, analyser=_PIECES) if role == "colbert" else BM25.build(world) for role in roles
    }
    stand_ins = {"colbert": "BM25 over pieces of words"} | dict.fromkeys(("dpr", *VECTORS), "BM25")
    notes = [
        f"the sample world has no {_SHORT.get(role, role)} index: {stand_in} stands in"
        for role, stand_in in stand_ins.items()
        if role in made
    ]
    return {(task, role): index for task in tasks for role, index in made.items()}, notes


def _with_indexes(
    roles: Sequence[Role],
    questions: dict[str, Questions],
    passages: Sequence[_Passages],
    allow_hosts: Sequence[str] = (),
) -> Sources:
    opened: dict[tuple[str, str, str | None], Retriever] = {}
    found = Sources(questions, {})
    for task, asked in questions.items():
        for role in roles:
            best = _best(passages, task, role)
            of_its_own = task if best.kind == "corpus" and best.place.where in ("pooled", OWN) else None
            key = (best.kind, best.place.where, of_its_own)
            if key not in opened:
                opened[key] = _opened(best, asked, allow_hosts)
            found.indexes[task, role] = opened[key]
            kind = kind_of(opened[key])
            if kind != role:
                verb = "stand" if kind == OWN else "stands"
                other = "other retriever: " * (role in VECTORS and kind not in (*VECTORS, "dense"))
                found.notes.append(f"{task}: {other}{_NAMED.get(kind, kind)} {verb} in for the paper's {role}")
        found.notes.extend(_one_index(task, {role: found.indexes[task, role] for role in roles if role in VECTORS}))
    return replace(found, notes=list(dict.fromkeys(found.notes)))


def _one_index(task: str, indexes: Mapping[Role, Retriever]) -> Iterator[str]:
    """A note on kinds that one index plays: what a table compares there is nothing."""
    playing: dict[int, list[str]] = {}
    for role, index in indexes.items():
        playing.setdefault(id(index), []).append(role)
    for roles in playing.values():
        if len(roles) > 1:
            yield f"{task}: {', '.join(roles)} are one index here, and their rows the same runs"


def _best(passages: Sequence[_Passages], task: str, role: Role) -> _Passages:
    """The passages that fit best: named for both, for the task, for the retriever, for all."""
    nearest = _nearest(passages, task, role)
    for other in VECTORS if role in VECTORS else ():
        nearest = nearest or _nearest(passages, task, other)
    if not nearest:
        raise BadArgument(
            f"which index is {role} for {task}? Add --index {role}:{task}=DIR, or --corpus {task}=FILE for BM25, or "
            f"--corpus {task}=own for the question's own paragraphs"
        )
    one, *others = nearest
    if others:
        raise BadArgument(
            f"{one.place.where} and {others[0].place.where} are both {role} for {task}: name one of them, or put "
            f"{' or '.join(_ROLES.split('|'))} in front of each"
        )
    return one


def _nearest(passages: Sequence[_Passages], task: str, role: Role) -> list[_Passages]:
    """Those that fit, and none of them better than another."""
    fitting = [each for each in passages if each.place.task in (task, None) and each.place.role in (role, None)]
    best = max(map(_fit, fitting), default=None)
    return [each for each in fitting if _fit(each) == best]


def _fit(passages: _Passages) -> tuple[bool, bool]:
    return passages.place.role is not None, passages.place.task is not None


def _opened(passages: _Passages, questions: Questions, allow_hosts: Sequence[str]) -> Retriever:
    where = passages.place.where
    if passages.kind == "index":
        return open_indexes([where], allow_hosts=allow_hosts)
    if where == "pooled":
        return BM25.build(pooled(questions))
    if passages.own:
        return OwnParagraphs(questions)
    return BM25.for_corpus(sample("corpus.jsonl") if where == SAMPLE else where)


def kind_of(retriever: Retriever) -> str:
    """Its kind, wherever it is searched; of a dense index, which of `VECTORS` it is."""
    info = retriever.info()
    kind = str(info["of"] if info["kind"] == "remote" else info["kind"])
    return str(info.get("settings", {}).get("index", kind)) if kind == "dense" else kind
