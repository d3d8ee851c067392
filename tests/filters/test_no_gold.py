"""A filter by model reads what was retrieved, never what is right: no gold field of a question reaches a prompt.

Every gold field holds a sentinel that stands nowhere else: neither in the question nor in the corpus. A run over such
questions is done by a real runner, its journal is read, and the sentinel must not be in it. The last tests show that
the same check catches filters that do read gold, so that it would fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import dspy
import pytest
from isle import LINES, PASSAGES, QUESTION
from small_world import done_by, journaled

from blendfilter.evaluation.run_passages import contexts
from blendfilter.filters.base import Filter
from blendfilter.filters.filco import FilCoFilter
from blendfilter.filters.written import BIDERFilter, TrainedFilCoFilter, WrittenFilter
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.direct import Direct
from blendfilter.oracles.oracle import Oracle
from blendfilter.oracles.silver_making import make_silver
from blendfilter.records import Passage, Question, WrittenText
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.callables import as_retriever
from blendfilter.tasks import Questions
from blendfilter.tasks.loading import TASKS

SENTINEL = "Zyxomma"
"""A word of no prompt, template, demonstration, question or passage."""
INDEX = BM25.build(list(PASSAGES))


def planted(n: int) -> Question:
    """A question whose every other field says the sentinel, each in its own way."""

    def gold(field: str) -> str:
        return f"{SENTINEL} {field} {n}"

    return Question(
        id=f"q{n}",
        question=QUESTION if n == 0 else f"Which island has {n} villages?",
        golden_answers=(gold("answer"), gold("alias")),
        gold_titles=(gold("title"),),
        evidence=((gold("evidence"),),),
        supporting_facts=((gold("supporting"), 0),),
        context=(
            Passage(gold("id"), gold("title"), gold("text"), metadata={"is_selected": gold("mark"), "gold": True}),
        ),
        type=gold("type"),
        metadata={"answer": gold("metadata"), "nested": [{"provenance": gold("provenance")}]},
    )


QUESTIONS = Questions(tuple(planted(n) for n in range(3)), TASKS["qa"])


def strings(value: Any) -> Iterator[str]:
    """Every string in a value of a journal's record."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from (name, *strings(each))
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)


def leaks(run: Path) -> list[str]:
    """The stages of the calls and the searches of a run whose record says the sentinel, whatever its case."""
    records = [*journaled(run, "call"), *journaled(run, "search"), *journaled(run, "passage")]
    assert records
    reply = (" ".join(strings(record)).casefold() for record in records)
    return [
        record.get("stage", record["kind"])
        for record, result in zip(records, reply, strict=True)
        if SENTINEL.casefold() in result
    ]


METHODS: dict[str, Callable[[Filter], dspy.Module]] = {
    "direct-retrieval": lambda select: Direct(INDEX, k=3, filter=select),
    "blendfilter": lambda select: BlendFilter(INDEX, k=3, filter=select),
    "blendfilter, the union": lambda select: BlendFilter(INDEX, k=3, filter=select, filter_union=True),
}


def test_every_field_but_two_holds_the_sentinel() -> None:
    """A field that `Question` gains must be planted too."""
    result = {each.name: str(getattr(planted(1), each.name)) for each in fields(Question)}
    assert {name for name, value in result.items() if SENTINEL not in value} == {"id", "question"}
    assert not any(SENTINEL in line for line in LINES)


@pytest.mark.parametrize("unit", ["sentence", "passage"])
@pytest.mark.parametrize("method", METHODS)
def test_a_filco_run_shows_no_gold(method: str, unit: Any, tmp_path: Path) -> None:
    run, engine = done_by(METHODS[method](FilCoFilter(unit)), QUESTIONS, tmp_path / "run")
    assert run.errors == 0
    assert engine.stages["helpful"] >= len(QUESTIONS)
    assert leaks(tmp_path / "run") == []
    assert not any(SENTINEL.casefold() in prompt.casefold() for prompt in engine.prompts)


@pytest.mark.parametrize("kind", [TrainedFilCoFilter, BIDERFilter])
@pytest.mark.parametrize("method", METHODS)
def test_a_trained_filters_run_shows_what_its_model_predicts(
    method: str, kind: type[WrittenFilter], tmp_path: Path
) -> None:
    """Never silver, which is there for these very questions; all that is written of it reaches the answerer."""
    silver = tmp_path / "silver.jsonl"
    make_silver(QUESTIONS, Oracle("lexical", task="qa"), silver, retriever=INDEX, k=3)
    assert SENTINEL in silver.read_text(encoding="utf-8")
    run, engine = done_by(METHODS[method](kind()), QUESTIONS, tmp_path / "run")
    assert run.errors == 0
    assert engine.stages["write"] >= len(QUESTIONS)
    assert leaks(tmp_path / "run") == []
    assert not any(SENTINEL.casefold() in prompt.casefold() for prompt in engine.prompts)
    written = [call["reply"] for call in journaled(tmp_path / "run", "call") if call["stage"] == "write"]
    read = [passage for context in contexts(run) for passage in context.kept]
    assert read, "the answerer reads what was written"
    assert all(any(passage.text in reply for reply in written) for passage in read)


class Silver(TrainedFilCoFilter):
    """The released code's mistake in a trained filter: the target stands where the prediction should."""

    async def aforward(self, question: str, passages: Any) -> dspy.Prediction:
        known = next(each for each in QUESTIONS if each.question == question)
        result = await super().aforward(question, passages)
        result["kept"] = [WrittenText(str(known.golden_answers[0]))]
        return result


class Peeking(Filter):
    """What the released code does by mistake: the context comes from what is known of the answer."""

    async def aforward(self, question: str, passages: Any) -> dspy.Prediction:
        known = next(each for each in QUESTIONS if each.question == question)
        first = passages[0]
        return dspy.Prediction(kept=[Passage(first.id, first.title, f"It is {known.golden_answers[0]}.")])


class Hinted(FilCoFilter):
    """Asks as it should, and tells the model the answer."""

    async def aforward(self, question: str, passages: Any) -> dspy.Prediction:
        known = next(each for each in QUESTIONS if each.question == question)
        hinted = [Passage(each.id, f"{each.title} ({known.metadata['answer']})", each.text) for each in passages]
        result = await super().aforward(question, hinted)
        result["kept"] = list(passages)
        return result


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("select", "stage"), [(Peeking, None), (Hinted, "helpful"), (Silver, None)])
def test_filters_that_read_gold_are_caught(method: str, select: Any, stage: str | None, tmp_path: Path) -> None:
    done_by(METHODS[method](select()), QUESTIONS, tmp_path / "run")
    answering = "direct" if method == "direct-retrieval" else "answer"
    assert (stage or answering) in leaks(tmp_path / "run")


@pytest.mark.parametrize("unit", ["sentence", "passage"])
def test_marks_of_what_was_retrieved_are_not_shown(unit: Any, tmp_path: Path) -> None:
    """Passages found before often say which of them hold the answer."""

    def marked(query: str, k: int) -> list[Passage]:
        return [replace(each, metadata={"has_answer": SENTINEL, SENTINEL: True}) for each in PASSAGES[:k]]

    _, engine = done_by(Direct(as_retriever(marked), k=3, filter=FilCoFilter(unit)), QUESTIONS, tmp_path / "run")
    assert engine.stages["helpful"] == len(QUESTIONS)
    assert not any(SENTINEL.casefold() in prompt.casefold() for prompt in engine.prompts)
