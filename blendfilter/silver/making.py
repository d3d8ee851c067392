"""Silver contexts of a question set: retrieved, chosen by an oracle, written row by row.

Wang et al. 2023 (FilCo), section 2.3: the sentences that an oracle chose are what a filter learns to write. In:
questions, an oracle, and an index or the questions' own paragraphs. Out: a silver file (`rows`) and its `Summary`.

A batch of questions is searched, scored and written before the next one begins, so memory holds one batch. What stops
it (a kill, a server that goes away) costs the batch at hand: the same call goes on there and leaves the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from blendfilter.errors import BadArgument, BadData, EmptyData, UnknownName
from blendfilter.filters.candidates import sentences_of
from blendfilter.filters.filco.oracle import Oracle, Scored
from blendfilter.filters.filco.oracles import Measure, measure_for, strinc
from blendfilter.lm.tokenisers import Tokeniser
from blendfilter.lm.tokenisers import tokeniser as default_tokeniser
from blendfilter.metrics import recall
from blendfilter.records import Passage, Question
from blendfilter.retrieval.base import ProgressCallback, Retriever, check_search, silent
from blendfilter.retrieval.callables import as_retriever
from blendfilter.silver.keeping import (
    Partial,
    Places,
    check_recipe_is_free,
    check_settings,
    read_recipe,
    write_recipe,
)
from blendfilter.silver.rows import SilverRow, SilverSentence, line_of, read_silver
from blendfilter.silver.summary import Summary, summarise
from blendfilter.tasks.base import Questions

BATCH = 32
"""Questions that are scored together."""
OWN = "the questions' own"
PHASE = "choosing sentences"
WITHOUT_MODEL: Mapping[str, Measure] = MappingProxyType(
    {"hotpotqa": "strinc", "twowiki": "strinc", "fever": "lexical", "eli5": "lexical"}
)
"""What else may find something, of the tasks whose measure is cxmi; a yes or no stands in no passage."""


def make_silver(
    questions: Questions,
    oracle: Oracle,
    out: str | Path,
    *,
    retriever: Retriever | None = None,
    k: int = 5,
    batch: int = BATCH,
    allow_empty_answers: bool = False,
    tokeniser: Tokeniser | None = None,
    progress: ProgressCallback = silent,
) -> Summary:
    """Write the silver contexts of `questions` to `out`, JSON Lines that `read_silver` reads.

    Args:
        questions: with answers, from `load`.
        oracle: what chooses; `Oracle("cxmi", …)` asks a model, whose scorer keeps a journal if it was given one.
        out: the file. It appears when its last row is there; until then rows are kept beside it, and the same call
            goes on after the last one. A finished file is not made again.
        retriever: an index or any callable (query, k); None takes each question's own paragraphs, in their order.
        k: passages of each question at most.
        batch: questions that are scored together, and lost by a kill; the rows do not depend on it.
        allow_empty_answers: of a question whose answers are articles and punctuation alone nothing is chosen; without
            this it is refused.
        tokeniser: what the summary counts tokens by; by default tiktoken's where it is at hand.

    Raises:
        RunMismatch: the file was made, or begun, with other settings. RunLocked: another process writes it.
        BadData, EmptyData, BadArgument: what cannot be chosen from, before any work. ModelError: a model failed.
    """
    places = Places.of(out)
    check_search([], k)
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise BadArgument(f"batch must be a whole number of at least 1, got {batch!r}")
    searched = None if retriever is None else as_retriever(retriever)
    if searched is None and not any(question.context for question in questions):
        raise EmptyData(f"the questions of {questions.source} bring no paragraphs of their own: name an index or a "
                        "corpus to search for some")  # fmt: skip
    if not isinstance(oracle, Oracle):
        raise BadArgument(f"oracle is {oracle!r:.60}: give what chooses, such as Oracle('strinc', task='nq')")
    oracle = oracle.asking(questions.task)
    settings = settings_of(questions, oracle, searched, k)
    counting = tokeniser or default_tokeniser()
    if not places.out.exists():
        if places.partial.exists() and places.partial.stat().st_size:
            check_settings(places, settings)  # before a model is asked
        check_recipe_is_free(places)
        _check(questions, oracle, allow_empty_answers)  # before a file is made
        _make(questions, oracle, searched, k, batch, places, settings, progress)
    check_settings(places, settings)
    summary = summarise(read_silver(places.out), threshold=oracle.threshold, tokeniser=counting)
    if "summary" not in read_recipe(places):
        write_recipe(places, settings, summary.as_dict())
    return summary


def _check(questions: Questions, oracle: Oracle, allow_empty_answers: bool) -> None:
    try:
        oracle.check(one for one in questions if not _passed_over(one, oracle, allow_empty_answers))
    except BadData as error:
        if allow_empty_answers:
            raise
        raise BadData(f"{error}, or choose nothing for such questions (--allow-empty-answers)") from None


def _passed_over(question: Question, oracle: Oracle, allow_empty_answers: bool) -> bool:
    """Whether nothing is chosen for it. Without any answer there is no output either: that is never allowed."""
    return allow_empty_answers and bool(question.golden_answers) and not oracle.answerable(question)


def settings_of(questions: Questions, oracle: Oracle, retriever: Retriever | None, k: int) -> dict[str, Any]:
    """What a silver file is bound to, as JSON."""
    info = {"kind": OWN, "fingerprint": _own(questions)} if retriever is None else retriever.info()
    return {
        "task": questions.task.name,
        "data": {"source": questions.source, "fingerprint": questions.fingerprint, "n": len(questions)},
        "oracle": oracle.identity(),
        # An index behind an address is the same index.
        "passages": {"kind": str(info.get("of", info["kind"])), "fingerprint": info["fingerprint"], "k": k},
    }


def _own(questions: Questions) -> str:
    """16 hexadecimal digits over the paragraphs, which a question set's fingerprint leaves out."""
    digest = hashlib.sha256()
    for question in questions:
        told = [question.id, [[each.title, each.text] for each in question.context]]
        digest.update(json.dumps(told).encode() + b"\n")
    return digest.hexdigest()[:16]


def _make(
    questions: Questions,
    oracle: Oracle,
    retriever: Retriever | None,
    k: int,
    batch: int,
    places: Places,
    settings: dict[str, Any],
    progress: ProgressCallback,
) -> None:
    """The rows that are missing, then the file under its name."""
    with Partial(places, settings, [question.id for question in questions]) as partial:
        if places.out.exists():  # another process finished it meanwhile
            partial.discard()
            return
        done = partial.lines
        while some := questions[done : done + batch]:
            for row in _rows(some, oracle, retriever, k):
                partial.add(line_of(row))
            done += len(some)
            progress(PHASE, done, len(questions))
        partial.finish()


def _rows(questions: Sequence[Question], oracle: Oracle, retriever: Retriever | None, k: int) -> Iterator[SilverRow]:
    """The rows of one batch, searched and scored together."""
    if retriever is None:
        found: Sequence[Sequence[Passage]] = [question.context[:k] for question in questions]
    else:
        found = retriever.search([question.question for question in questions], k)
    passages = [[_plain(each) for each in hits] for hits in found]
    pairs = list(zip(questions, passages, strict=True))
    scored = iter(oracle.choose([pair for pair in pairs if oracle.answerable(pair[0])]))
    for question, shown in pairs:
        told = next(scored) if oracle.answerable(question) else _nothing(shown)
        yield _row(question, shown, told, oracle.task)


def _nothing(passages: Sequence[Passage]) -> Scored:
    """What is chosen where there is no answer to look for."""
    candidates = tuple(sentences_of(passages))
    return Scored(candidates, (0.0,) * len(candidates), ())


def _plain(passage: Passage) -> Passage:
    """A passage without what else was said of it (an excerpt's source, marks of where the answer is)."""
    score = None if passage.score is None else float(passage.score)
    return Passage(passage.id, passage.title, passage.text, score)


def _row(question: Question, passages: Sequence[Passage], scored: Scored, task: str) -> SilverRow:
    sentences = tuple(
        SilverSentence(each.position, each.start, each.end, None if score is None else float(score))
        for each, score in zip(scored.candidates, scored.scores, strict=True)
    )
    return SilverRow(
        question.id,
        question.question,
        question.golden_answers,
        question.golden_answers[0],
        tuple(passages),
        sentences,
        scored.chosen,
        " ".join(scored.candidates[at].text for at in scored.chosen),
        supported(task, question, passages),
    )


def supported(task: str, question: Question, passages: Sequence[Passage]) -> bool | None:
    """Whether the passages support the output (section 3.2); None where nobody knows.

    Of an extractive task: whether an answer stands in one of them. Of the others, whose outputs are no spans: whether
    one of them is of a gold title.

    >>> ship = [Passage("1", "Skua", "The Skua was built in Tolm.")]
    >>> supported("nq", Question("q", "Where was it built?", ("Tolm",)), ship)
    True
    >>> supported("fever", Question("q", "It was built in Ulla.", ("REFUTES",), gold_titles=("Skua",)), ship)
    True
    """
    if _extractive(task):
        return any(strinc(passage.text, question.golden_answers) for passage in passages)
    found = recall((passage.title for passage in passages), question)
    return None if found is None else found > 0


def _extractive(task: str) -> bool:
    try:
        return measure_for(task) == "strinc"
    except UnknownName:
        return False
