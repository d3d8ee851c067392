"""What a command names to run a table on: questions by task, and indexes by task and by the retriever they stand for.

In: the words of `--data`, `--index` and `--corpus`, each `[retriever:][task=]place`. Out: `Sources`: the questions of
every task, the index for each retriever of the paper, and a note wherever one stands in for another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from blendfilter.errors import BadArgument, UnknownName
from blendfilter.evaluation.reproducing.papers import Role, Table
from blendfilter.metrics import VERDICTS
from blendfilter.resources import sample
from blendfilter.retrieval.analyser import Analyser
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.corpus import pooled
from blendfilter.retrieval.hybrid import open_indexes
from blendfilter.tasks import TASKS, Questions, load
from blendfilter.text import normalize_answer

SAMPLE = "sample"
_WORDS = re.compile(r"(?:(colbert|bm25):)?(?:(\w+)=)?(.+)", re.DOTALL)


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
            raise BadArgument("a place is written [colbert:|bm25:][TASK=]FILE, and this one is empty")
        role, task, where = found.groups()
        if task is not None and task not in TASKS:
            raise UnknownName.of("task", task, TASKS, f"in '{words}'")
        return cls(role, task, where)


_PIECES = Analyser(pattern=r"\w{1,3}", stemmer=None, stop_words=())
"""For a second ranking over the sample world, where a table wants two retrievers: three letters at a time."""


class _Passages(NamedTuple):
    """A place of passages, and whether it is an index made before or a corpus to make one of."""

    place: Place
    kind: Literal["index", "corpus"]


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
) -> Sources:
    """Questions and indexes for `table`: all of its tasks, or those in `tasks`; the table's n questions, or `limit`.

    Indexes are asked for where a row searches, of all rows or of those of `methods`.

    Raises:
        BadArgument: a task without questions (or, where retrieval is measured, without gold titles), a retriever
        without an index. UnknownName, MissingFile, BadData, EmptyData: as `load` and `open_index`.
    """
    chosen = _chosen(table, tasks)
    places = [Place.of(words) for words in data]
    questions = {task: _questions(task, places, table.n if limit is None else limit) for task in chosen}
    if table.kind == "retrieval":
        _check_gold(table, questions)
    roles = list(dict.fromkeys(table.role(row) for row in table.of(methods) if row.retrieves))
    passages = [_Passages(Place.of(words), "index") for words in index]
    passages += [_Passages(Place.of(words), "corpus") for words in corpus]
    if not passages and any(each.source == SAMPLE for each in questions.values()):
        return Sources(questions, *_sample_world(roles, chosen))
    return _with_indexes(roles, questions, passages)


def _chosen(table: Table, tasks: Iterable[str] | None) -> list[str]:
    asked = list(tasks) if tasks is not None else list(table.tasks)
    for task in asked:
        if task not in table.tasks:
            raise UnknownName.of("task", task, table.tasks, f"in {table.name}")
    return asked


def _questions(task: str, places: Sequence[Place], limit: int) -> Questions:
    named = [place for place in places if place.task == task] or [place for place in places if place.task is None]
    if not named:
        raise BadArgument(f"where are the questions of {task}? Add --data {task}=FILE, or leave it out with --tasks")
    if len(named) > 1:
        raise BadArgument(f"--data names the questions of {task} {len(named)} times: name them once")
    where = named[0].where
    if where == SAMPLE and set(TASKS[task].metrics) == {"accuracy"}:
        verdicts = [one for one in load("qa", SAMPLE) if normalize_answer(one.golden_answers[0]) in VERDICTS]
        return Questions(tuple(verdicts[:limit]), TASKS[task], SAMPLE)
    return load(task, where, limit=limit)


def _check_gold(table: Table, questions: dict[str, Questions]) -> None:
    for task, asked in questions.items():
        if not any(one.gold_titles for one in asked):
            raise BadArgument(f"{table.name} measures retrieval: the questions of {task} must name their gold titles")


def _sample_world(roles: Sequence[Role], tasks: Sequence[str]) -> tuple[dict[tuple[str, Role], Retriever], list[str]]:
    """BM25 over the sample world, and for the other retriever BM25 over pieces of words, which ranks otherwise."""
    made: dict[Role, Retriever] = {}
    for role in roles:
        world = sample("corpus.jsonl")
        made[role] = BM25.build(world) if role == "bm25" else BM25.build(world, analyser=_PIECES)
    notes = ["the sample world has no ColBERT index: BM25 over pieces of words stands in"] if "colbert" in made else []
    return {(task, role): index for task in tasks for role, index in made.items()}, notes


def _with_indexes(roles: Sequence[Role], questions: dict[str, Questions], passages: Sequence[_Passages]) -> Sources:
    opened: dict[tuple[str, str | None], Retriever] = {}
    found = Sources(questions, {})
    for task, asked in questions.items():
        for role in roles:
            best = _best(passages, task, role)
            of_its_own = task if best.place.where == "pooled" else None
            key = (best.place.where, of_its_own)
            if key not in opened:
                opened[key] = _opened(best, asked)
            found.indexes[task, role] = opened[key]
            kind = _kind(opened[key])
            if kind != role:
                found.notes.append(f"{task}: {kind} stands in for the paper's {role}")
    return replace(found, notes=list(dict.fromkeys(found.notes)))


def _best(passages: Sequence[_Passages], task: str, role: Role) -> _Passages:
    """The passages that fit best: named for both, for the task, for the retriever, for all."""
    fitting = [each for each in passages if each.place.task in (task, None) and each.place.role in (role, None)]
    if not fitting:
        raise BadArgument(
            f"which index is {role} for {task}? Add --index {role}:{task}=DIR, or --corpus {task}=FILE for BM25"
        )
    best = max(map(_fit, fitting))
    one, *others = (each for each in fitting if _fit(each) == best)
    if others:
        raise BadArgument(
            f"{one.place.where} and {others[0].place.where} are both {role} for {task}: name one of them, or put "
            "colbert: or bm25: in front of each"
        )
    return one


def _fit(passages: _Passages) -> tuple[bool, bool]:
    return passages.place.role is not None, passages.place.task is not None


def _opened(passages: _Passages, questions: Questions) -> Retriever:
    where = passages.place.where
    if passages.kind == "index":
        return open_indexes([where])
    if where == "pooled":
        return BM25.build(pooled(questions))
    return BM25.for_corpus(sample("corpus.jsonl") if where == SAMPLE else where)


def _kind(retriever: Retriever) -> str:
    info = retriever.info()
    return str(info["of"] if info["kind"] == "remote" else info["kind"])
