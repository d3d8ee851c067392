"""The oracles' choices on real questions, beside the paper's formulas written out plainly (FilCo, section 2.2).

The reference shares the sentences, and nothing else: its normaliser is the one of the SQuAD script, and its F1 counts
by hand.
"""

from __future__ import annotations

import gzip
import json
import re
import string
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from blendfilter.oracles.oracle import Oracle, OracleChoice
from blendfilter.records import Passage, Question
from blendfilter.text import sentences

Batch = list[tuple[Question, list[Passage]]]

FILES = {
    "nq": ("nq/test_retrieved.jsonl.gz", " "),
    "hotpotqa": ("hotpotqa/dev.jsonl.gz", ""),
    "fever": ("fever/paper_dev.jsonl.gz", " "),
}
"""A file for each task, and what joins its sentences."""


def batch_of(task: str, folder: Path, count: int) -> Batch:
    """Questions that came with paragraphs, five of them at most."""
    name, joiner = FILES[task]
    found: Batch = []
    with gzip.open(folder / name, "rt", encoding="utf-8") as file:
        rows = (row for row in map(json.loads, file) if row["metadata"]["context"])
        for row in islice(rows, count):
            passages = [
                Passage(f"{row['id']}-{at}", each["title"], joiner.join(each["sentences"]))
                for at, each in enumerate(row["metadata"]["context"][:5])
            ]
            found.append((Question(row["id"], row["question"], tuple(row["golden_answers"])), passages))
    assert len(found) == count
    return found


def words(text: str) -> list[str]:
    kept = "".join(each for each in text.lower() if each not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def contains(span: list[str], output: list[str]) -> bool:
    return output != [] and any(span[at : at + len(output)] == output for at in range(len(span)))


def unigram_f1(span: list[str], reference: list[str]) -> float:
    left, shared = list(reference), 0
    for word in span:
        if word in left:
            left.remove(word)
            shared += 1
    return 2 * shared / (len(span) + len(reference)) if shared else 0.0  # 2PR / (P + R), multiplied out


def by_formula(
    measure: str, task: str, threshold: float, question: Question, passages: list[Passage]
) -> tuple[int, int] | None:
    """The best span's passage and place, or None."""
    chosen, most = None, threshold
    for at, passage in enumerate(passages):
        for one in sentences(passage.text):
            span = words(one.text)
            if measure == "strinc":
                score = float(any(contains(span, words(each)) for each in question.golden_answers))
            elif task == "fever":
                score = unigram_f1(span, words(question.question))
            else:
                score = max(unigram_f1(span, words(each)) for each in question.golden_answers)
            if score > most:
                chosen, most = (at, one.start), score
    return chosen


def place(scored: OracleChoice) -> tuple[int, int] | None:
    return next(((scored.candidates[at].position, scored.candidates[at].start) for at in scored.chosen), None)


@pytest.mark.parametrize(
    ("task", "measure", "threshold", "some"),
    [
        ("nq", "strinc", 0.0, 100),
        ("nq", "lexical", 0.5, 1),
        ("nq", "lexical", 0.1, 100),
        ("hotpotqa", "strinc", 0.0, 100),
        ("hotpotqa", "lexical", 0.5, 1),
        ("hotpotqa", "lexical", 0.1, 100),
        ("fever", "strinc", 0.0, 0),
        ("fever", "lexical", 0.5, 20),
        ("fever", "lexical", 0.1, 150),
    ],
)
def test_200_real_questions(task: Any, measure: Any, threshold: float, some: int, shared_data: Path) -> None:
    """`some`: at least as many have a best span, or the comparison would say little.

    The paper's 0.5 is seldom reached by short answers; 0.1, of its footnote 3, puts more to the test.
    """
    batch = batch_of(task, shared_data, 200)
    found = [place(each) for each in Oracle(measure, task=task, threshold=threshold).choose(batch)]
    assert found == [by_formula(measure, task, threshold, *each) for each in batch]
    assert sum(each is not None for each in found) >= some
