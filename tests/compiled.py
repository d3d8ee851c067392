"""What the tests of compiling share: the sample world's index and questions, silver rows, metrics, a small compile."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import dspy
from isle import replies

from blendfilter import resources
from blendfilter.compiling.compile import Compiled, compile_program
from blendfilter.compiling.examples import consistency, consistency_examples
from blendfilter.compiling.programs import save_program
from blendfilter.compiling.silver import silver_examples, silver_metric
from blendfilter.filters.cdit import CDITFilter
from blendfilter.filters.filco import FilCoFilter
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.offline import read
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.oracles.oracle import Oracle
from blendfilter.oracles.silver_rows import SilverRow, SilverSentence
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.corpus import read_corpus
from blendfilter.tasks.loading import load

OPTIMIZERS = ("labeled", "bootstrap", "mipro", "gepa")
KINDS = ("filco", "blendfilter")
CAN = [(kind, name) for kind in KINDS for name in OPTIMIZERS if (kind, name) != ("blendfilter", "labeled")]
"""What can be compiled by what: no training row fills the fields of a predictor of BlendFilter's."""
PROPOSED = "Hold each piece against the question, and say what it adds."
SMALL: dict[str, Any] = {"max_demos": 1, "candidates": 2, "trials": 2, "metric_calls": 14, "seed": 1}
"""Optimisers that do not go far."""


@cache
def sample_index() -> BM25:
    """The sample world's passages."""
    return BM25.build(read_corpus(resources.sample("corpus.jsonl")))


def sample_questions(n: int = 6) -> list[dspy.Example]:
    """A few of its questions, as DSPy examples."""
    questions = load("hotpotqa", "sample", limit=n)
    return [dspy.Example(question=q.question, answer=q.golden_answers[0]).with_inputs("question") for q in questions]


def exact(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> bool:
    return str(example.answer).lower() == str(prediction.answer).lower()


def anything(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> bool:
    return bool(prediction.answer)


@cache
def silver_rows(n: int = 8) -> list[SilverRow]:
    """Silver contexts of the sample's first questions that have one, by STRINC over three passages each."""
    oracle, rows = Oracle("strinc", task="nq"), list[SilverRow]()
    for question in load("nq", "sample"):
        if len(rows) == n or not oracle.answerable(question):
            continue
        passages = tuple(sample_index().search([question.question], 3)[0])
        (scored,) = oracle.choose([(question, passages)])
        if not scored.chosen:
            continue
        sentences = tuple(
            SilverSentence(each.position, each.start, each.end, value)
            for each, value in zip(scored.candidates, scored.scores, strict=True)
        )
        target = " ".join(scored.candidates[at].text for at in scored.chosen)
        answers = tuple(question.golden_answers)
        rows.append(
            SilverRow(
                question.id, question.question, answers, answers[0], passages, sentences, scored.chosen, target, True
            )
        )
    return rows


def proposing(prompt: str) -> str:
    """The offline reader, which to an optimiser's own prompts (DSPy's chat format, or XML) proposes an instruction."""
    if "wrapped in XML tags" in prompt:
        wanted = re.findall(r"`<(\w+)>`", prompt[prompt.rindex("Respond with") :])
        return "\n".join(f"<{name}>{PROPOSED}</{name}>" for name in wanted)
    if "[[ ##" not in prompt:
        return read(prompt)
    wanted = re.findall(r"\[\[ ## (\w+) ## \]\]", prompt[prompt.rindex("Respond with") :])
    return "\n\n".join(f"[[ ## {name} ## ]]\n{PROPOSED if name != 'completed' else ''}" for name in wanted)


def written(stage: str, prompt: str) -> str:
    """What a script says to our stages (`isle.REPLIES`), to the filter of FilCo, and to an optimiser's own prompts."""
    if stage in ("helpful", "ids_again"):
        return "0"
    if "Respond with a JSON object" in prompt:
        names = re.findall(r"`(\w+)`", prompt[prompt.rindex("Respond with") :])
        return "{" + ", ".join(f'"{name}": "{PROPOSED}"' for name in names) + "}"
    return proposing(prompt) if "[[ ##" in prompt or "in XML tags" in prompt else replies()(stage, prompt)


def student(kind: str) -> dspy.Module:
    """FilCo's filter, or BlendFilter over the sample world."""
    return FilCoFilter() if kind == "filco" else BlendFilter(sample_index(), k=2)


def compile_small(
    kind: str, optimizer: str, lm: ConnectedLM | str, run: Path, *, metric: Callable[..., Any] | None = None, **how: Any
) -> Compiled:
    """Compile FilCo's filter against silver, or BlendFilter against answers: four questions, two held back."""
    if kind == "filco":
        examples, measured = silver_examples(silver_rows()), silver_metric()
    else:
        # GEPA reflects on what went wrong: something must.
        examples, measured = sample_questions(), exact if optimizer == "gepa" else anything
    given = {"valset": examples[4:6], "metric": metric or measured, "optimizer": optimizer, "lm": lm, "run": run}
    return compile_program(student(kind), examples[:4], **given, **{**SMALL, **how})


def judge_program(path: Path) -> Path:
    """A program of CDIT's judge: labelled pairs of the sample world, four demonstrations."""
    questions = load("hotpotqa", "sample", limit=20)
    pairs = [pair for each in consistency_examples(questions, retriever=sample_index(), k=5) for pair in each.pairs]
    held = [pair for pair in pairs if pair.question == pairs[-1].question]
    train = [pair for pair in pairs if pair.question != pairs[-1].question]
    done = compile_program(
        CDITFilter(), train, valset=held, metric=consistency, run=path.parent / f"{path.stem}-run", optimizer="labeled",
        lm="offline", max_demos=4, task="hotpotqa", measure="consistency phi1",
    )  # fmt: skip
    return save_program(done.program, path, done.recipe)


def saved(done: Compiled, path: Path) -> bytes:
    """The bytes of a compiled program."""
    return save_program(done.program, path, done.recipe).read_bytes()
