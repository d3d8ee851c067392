"""Silver contexts of a question set: retrieved, chosen by an oracle, written row by row.

Wang et al. 2023 (FilCo), section 2.3: the sentences that an oracle chose are what a filter learns to write. The files
of `nq.jsonl`::

    nq.jsonl.partial    the rows so far, in question order; one process writes (flock), a torn last line is dropped
    nq.recipe.json      the settings, which a resumed call must repeat, and in the end what the rows come to
    nq.jsonl            the rows, when the last one is there: the partial file under its name

A batch of questions is searched, scored and written before the next one begins, so memory holds one batch. What stops
it (a kill, a server that goes away) costs the batch at hand: the same call resumes there and leaves the same bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from blendfilter.errors import (
    BadArgument,
    BadData,
    BlendFilterError,
    EmptyData,
    RunMismatch,
    check_count,
    interruptible,
)
from blendfilter.files import AppendOnly, JsonRow, json_line, path_of, write_whole
from blendfilter.journal import digest
from blendfilter.lm.tokenisers import TokenCounter
from blendfilter.lm.tokenisers import tokeniser as default_tokeniser
from blendfilter.metrics import recall
from blendfilter.oracles import bider
from blendfilter.oracles.measures import MEASURE_OF, can_label, is_verdict, strinc
from blendfilter.oracles.oracle import INSTEAD, Oracle
from blendfilter.oracles.silver_rows import (
    SilverRow,
    SilverSentence,
    Summary,
    line_of,
    read_silver,
    row_of,
    summarise,
)
from blendfilter.records import Passage, Question
from blendfilter.retrieval.base import ProgressCallback, Retriever, check_search, silent
from blendfilter.retrieval.callables import as_retriever
from blendfilter.settings_diff import different_settings
from blendfilter.tasks.base import Questions

FORMAT = 1
BATCH = 32


@interruptible()
def make_silver(
    questions: Questions,
    oracle: Oracle,
    out: str | Path,
    *,
    retriever: Retriever | None = None,
    k: int = 5,
    batch: int = BATCH,
    allow_empty_answers: bool = False,
    tokeniser: TokenCounter | None = None,
    progress: ProgressCallback = silent,
) -> Summary:
    """Write the silver contexts of `questions` to `out`, JSON Lines that `read_silver` reads.

    Questions that the measure cannot label (STRINC, those answered by a yes or no) have no row; the summary counts
    them.

    Args:
        questions: with answers, from `load`.
        oracle: what chooses; `Oracle("cxmi", …)` asks a model, whose scorer keeps a journal if it was given one, and
            `Synthesis(…)` (BIDER's) several.
        out: the file. It appears when its last row is there; until then rows are kept beside it, and the same call
            resumes after the last one. A finished file is not made again.
        retriever: an index or any callable (query, k); None takes each question's own paragraphs, in their order.
        k: passages of each question at most.
        batch: questions that are scored together, and lost by a kill; the rows do not depend on it.
        allow_empty_answers: of a question whose answers are articles and punctuation alone nothing is chosen; without
            this it is refused.
        tokeniser: what the summary counts tokens by; by default tiktoken's where it is at hand.

    Raises:
        BadArgument: the measure can label none of the questions (STRINC, a data set of yes/no questions).
        RunMismatch: the file was made, or begun, with other settings. RunLocked: another process writes it.
        BadData, EmptyData, BadArgument: what cannot be chosen from, before any work. ModelError: a model failed.
    """
    places = Places.of(out)
    k = check_search([], k)
    batch = check_count("batch", batch)
    searched = None if retriever is None else as_retriever(retriever)
    if searched is None and not any(question.context for question in questions):
        raise EmptyData(
            f"the questions of {questions.source} bring no paragraphs of their own: name an index or a corpus"
        )
    oracle = oracle.asking(questions.task)
    answerable = labelled(questions, oracle.measure)
    settings = settings_of(questions, oracle, searched, k)
    check_settings(places, settings)  # before a model is called
    if not places.out.exists():
        allowed = [
            q
            for q in answerable
            if allow_empty_answers and q.golden_answers and oracle.fault_of(q)
        ]
        # before a file is made
        oracle.check(question for question in answerable if question not in allowed)
        _make(answerable, oracle, searched, k, batch, places, settings, progress)
        check_settings(places, settings)
    counting = tokeniser or default_tokeniser()
    made = summarise(read_silver(places.out), threshold=oracle.threshold, tokeniser=counting)
    summary = dataclasses.replace(made, left_out=len(questions) - len(answerable))
    if "summary" not in read_recipe(places):
        write_recipe(places, settings, dataclasses.asdict(summary))
    return summary


def labelled(questions: Questions, measure: str) -> list[Question]:
    """The questions that `measure` can label. Raises `BadArgument` where it can label none, for there is no need to
    search before.
    """
    task = questions.task.name
    if measure == bider.MEASURE:
        why = (
            "none of them brings all of the annotated evidence that stands in for answers that say too little "
            f"(supporting facts with their sentences): take {INSTEAD.removeprefix('take ')}"
        )
        found = [one for one in questions if bider.evidence_for(task, one) != ""]
    else:
        why = f"each is answered by a verdict (yes or no, a label), which no passage says: {INSTEAD}"
        found = [one for one in questions if can_label(measure, one.golden_answers)]
    if len(questions) and not found:
        raise BadArgument(f"{measure} cannot label the questions of {questions.source}: {why}")
    return found


def settings_of(
    questions: Questions, oracle: Oracle, retriever: Retriever | None, k: int
) -> dict[str, Any]:
    """What a silver file is bound to, as JSON."""
    if retriever is None:  # the paragraphs, which a question set's fingerprint leaves out
        paragraphs = hashlib.sha256()
        for question in questions:
            own = [[each.title, each.text] for each in question.context]
            paragraphs.update(json.dumps([question.id, own]).encode() + b"\n")
        info: Mapping[str, Any] = {
            "kind": "the questions' own",
            "fingerprint": paragraphs.hexdigest()[:16],
        }
    else:
        info = retriever.info()
    data: dict[str, Any] = {
        "source": questions.source,
        "fingerprint": questions.fingerprint,
        "n": len(questions),
    }
    task = questions.task.name
    if oracle.measure == bider.MEASURE:  # a fingerprint leaves out where evidence is read, too
        found = [(one.id, bider.evidence_for(task, one)) for one in questions]
        evidence = [[id, text] for id, text in found if text is not None]
        data |= {"evidence": digest(evidence)[:16]} if evidence else {}
    verdicts = sum(is_verdict(question.golden_answers) for question in questions)
    name = {"strinc": "left_out", "lexical": "compared_with_the_question"}.get(oracle.measure)
    return {
        "task": task,
        "data": data,
        "oracle": oracle.identity(),
        **({name: verdicts} if name and verdicts else {}),
        # An index behind an address is the same index.
        "passages": {
            "kind": str(info.get("of", info["kind"])),
            "fingerprint": info["fingerprint"],
            "k": k,
        },
    }


def _make(
    questions: Sequence[Question],
    oracle: Oracle,
    retriever: Retriever | None,
    k: int,
    batch: int,
    places: Places,
    settings: dict[str, Any],
    progress: ProgressCallback,
) -> None:
    """The rows that are missing, then the file under its name."""

    def refuse(number: int) -> BadData:
        return BadData(
            f"{places.partial}, line {number}: not the row that belongs there; delete the file, and all is made again"
        )

    busy = "by another process: wait for it, or name another file"
    rows = AppendOnly(
        places.partial, begins=b'{"id": "', refuse=refuse, contents="rows", busy=busy
    )
    with closing(rows):
        if places.out.exists():  # another process finished it meanwhile
            places.partial.unlink(missing_ok=True)
            return
        done = 0
        for _, line in rows.lines():
            try:
                its = row_of(JsonRow("", 0, json.loads(line))).id
            except (BlendFilterError, ValueError, RecursionError):
                its = None
            if done >= len(questions) or its != questions[done].id:
                raise refuse(done + 1)
            done += 1
        if done:
            check_settings(places, settings)  # another process may have begun it meanwhile
        else:
            write_recipe(places, settings)
        while some := questions[done : done + batch]:
            for row in _rows(some, oracle, retriever, k):
                rows.append(line_of(row))
            done += len(some)
            progress("choosing sentences", done, len(questions))
        rows.sync()
        places.partial.replace(places.out)


def _rows(
    questions: Sequence[Question], oracle: Oracle, retriever: Retriever | None, k: int
) -> Iterator[SilverRow]:
    """The rows of one batch, searched and scored together."""
    if retriever is None:
        found: Sequence[Sequence[Passage]] = [question.context[:k] for question in questions]
    else:
        found = retriever.search([question.question for question in questions], k)
    # plain: without an excerpt's source or marks of where the answer is
    plain = {
        question.id: tuple(
            Passage(h.id, h.title, h.text, None if h.score is None else float(h.score))
            for h in hits
        )
        for question, hits in zip(questions, found, strict=True)
    }
    answerable = [question for question in questions if oracle.answerable(question)]
    chosen = oracle.choose([(question, plain[question.id]) for question in answerable])
    choices = dict(zip((question.id for question in answerable), chosen, strict=True))
    for question in questions:
        passages = plain[question.id]
        choice = choices.get(question.id) or oracle.nothing(passages)
        sentences = tuple(
            SilverSentence(
                each.position, each.start, each.end, None if score is None else float(score)
            )
            for each, score in zip(choice.candidates, choice.scores, strict=True)
        )
        yield SilverRow(
            question.id,
            question.question,
            question.golden_answers,
            question.golden_answers[0],
            passages,
            sentences,
            choice.chosen,
            " ".join(choice.candidates[at].text for at in choice.chosen),
            supported(oracle.task, question, passages),
            choice.stages,
        )


def supported(task: str, question: Question, passages: Sequence[Passage]) -> bool | None:
    """Whether the passages support the output (section 3.2); None where that is not known.

    Of an extractive task: whether an answer stands in one of them. Of the others, whose outputs are no spans: whether
    one of them is of a gold title.
    """
    if MEASURE_OF.get(task) == "strinc":
        return any(strinc(passage.text, question.golden_answers) for passage in passages)
    found = recall((passage.title for passage in passages), question)
    return None if found is None else found > 0


# --- the files of a silver file ---------------------------------------------------------------------------------------


class Places(NamedTuple):
    """The files of one silver file; `journal` is the folder for the scores of CXMI's model."""

    out: Path
    partial: Path
    recipe: Path
    journal: Path

    @classmethod
    def of(cls, out: str | Path) -> Places:
        """The files beside `out`. Raises `BadArgument`: a folder, or a name that it cannot have.

        >>> [each.name for each in Places.of("silver/nq.jsonl")]
        ['nq.jsonl', 'nq.jsonl.partial', 'nq.recipe.json', 'nq.journal']
        """
        path = path_of(out)
        if path.is_dir():
            raise BadArgument(
                f"{path} is a folder: name a file for the silver contexts, such as {path / 'nq.jsonl'}"
            )
        if path.suffix == ".gz":
            raise BadArgument(
                f"{path}: silver files are written unpacked: name it {path.with_suffix('')}"
            )
        stem = path.name.removesuffix(".jsonl")
        names = (f"{path.name}.partial", f"{stem}.recipe.json", f"{stem}.journal")
        return cls(path, *map(path.with_name, names))


def check_settings(places: Places, settings: Mapping[str, Any]) -> None:
    """Refuse rows that other settings made, and files that are not ours under our names.

    Raises:
        RunMismatch: naming what differs, with both values. BadData: it is not known what made them.
    """
    made = places.out if places.out.exists() else places.partial
    recipe = read_recipe(places)
    if not made.exists() or not made.stat().st_size:
        return
    if not recipe:  # it may be anyone's
        raise BadData(
            f"{made} is there, and nothing says that it is a silver file ({places.recipe.name} is missing): name "
            "another file"
        )
    # The same questions under another name are the same questions.
    if differing := different_settings(
        recipe.get("settings"), settings, ignored=["data.source"]
    ):
        raise RunMismatch(
            f"{made} was made with other settings: {differing}. Name another file, or delete {made.name} and "
            f"{places.recipe.name} to make it anew"
        )


def read_recipe(places: Places) -> dict[str, Any]:
    """What a silver file was made by; empty where there is none. Raises `BadData` for another file in its place."""
    return read_recipe_file(places.recipe, "silver file", "file")


def read_recipe_file(path: Path, of: str, other: str) -> dict[str, Any]:
    """The recipe at `path`; empty where there is none. Raises `BadData` for a file that is none of ours."""
    try:
        recipe = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (ValueError, OSError):
        recipe = None
    if not isinstance(recipe, dict) or recipe.get("format") != FORMAT:
        raise BadData(f"{path} is there, and is no recipe of a {of}: name another {other}")
    return recipe


def oracle_of(path: str | Path) -> dict[str, Any]:
    """What chose the sentences of a silver file, by the recipe beside it; empty where there is none."""
    recipe = read_recipe(Places.of(str(path).removesuffix(".gz")))
    return dict(recipe.get("settings", {}).get("oracle", {}))


def measure_of(path: str | Path) -> str:
    """The measure of a silver file, by the recipe beside it; "" where there is none, or none of ours."""
    try:
        return str(oracle_of(path).get("measure", ""))
    except BlendFilterError:
        return ""


def write_recipe(
    places: Places, settings: Mapping[str, Any], summary: Mapping[str, Any] | None = None
) -> None:
    """The recipe's file, whole or not at all."""
    recipe = {"format": FORMAT, "settings": settings}
    if summary is not None:
        recipe["summary"] = summary
    write_whole(places.recipe, [json_line(recipe, indent=2)])
