"""The oracles' choices on real questions, beside the paper's formulas written out plainly (FilCo, section 2.2).

The reference shares the sentences, and nothing else: its normaliser is the one of the SQuAD script, its F1 counts by
hand, its log-probabilities come from llama.cpp, one whole text at a time.
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

from blendfilter.asking import TaskWording
from blendfilter.oracles.oracle import Oracle, OracleChoice
from blendfilter.prompting import Prompts
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


def yes_or_no(question: Question) -> bool:
    return {each.lower() for each in question.golden_answers} <= {"yes", "no"}


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
            elif task == "fever" or yes_or_no(question):  # no sentence is like a verdict; one may be like its question
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
        ("fever", "lexical", 0.5, 20),
        ("fever", "lexical", 0.1, 150),
    ],
)
def test_200_real_questions(task: Any, measure: Any, threshold: float, some: int, shared_data: Path) -> None:
    """`some`: at least as many have a best span, or the comparison would say little.

    The paper's 0.5 is seldom reached by short answers; 0.1, of its footnote 3, puts more to the test.
    """
    batch = batch_of(task, shared_data, 200)
    if measure == "strinc":  # which labels no question that is answered by a yes or no: see below
        batch = [(question, passages) for question, passages in batch if not yes_or_no(question)]
    found = [place(each) for each in Oracle(measure, task=task, threshold=threshold).choose(batch)]
    assert found == [by_formula(measure, task, threshold, *each) for each in batch]
    assert sum(each is not None for each in found) >= some


def test_strinc_refuses_the_verdicts_of_real_questions(shared_data: Path) -> None:
    """HotPotQA's yes and no, FEVER's labels: none of their sentences answers by holding the word."""
    for task, some in (("hotpotqa", 5), ("fever", 200)):
        oracle = Oracle("strinc", task=task)
        refused = [question for question, _ in batch_of(task, shared_data, 200) if not oracle.answerable(question)]
        assert len(refused) >= some
        assert all(yes_or_no(each) or each.golden_answers[0] in ("SUPPORTS", "REFUTES") for each in refused)


KNOWLEDGE = "{% for line in knowledge | default([]) %}\n{{ line | own_line }}\n{% endfor %}\n"
PROMPT = "{{ instructions }}\n" + KNOWLEDGE + "Q: {{ question }}\nA:"
SPANS = 2


@pytest.mark.slow  # half a minute of one core
def test_cxmi_of_20_real_questions(shared_data: Path, tmp_path: Path) -> None:
    """With short prompts, and of each question's paragraphs the shortest first sentences."""
    pytest.importorskip("gguf")
    from blendfilter.lm.checkpoints import open_checkpoint
    from blendfilter.lm.scoring import scorer

    (tmp_path / "direct.j2").write_text(PROMPT)
    wording = TaskWording(instructions={"direct": "Answer."})
    oracle = Oracle("cxmi", task="hotpotqa", scorer=scorer("local"), wording=wording, prompts=Prompts(tmp_path))
    batch = [(question, shortest(passages)) for question, passages in batch_of("hotpotqa", shared_data, 20)]
    model = open_checkpoint("local", device="cpu")
    reference = [highest(model, question, passages) for question, passages in batch]
    assert [place(each) for each in oracle.choose(batch)] == reference
    assert None in reference
    assert len(set(reference)) > SPANS  # each place is chosen somewhere, and none


def shortest(passages: list[Passage]) -> list[Passage]:
    first = [Passage(each.id, each.title, sentences(each.text)[0].text) for each in passages]
    return sorted(first, key=lambda each: len(each.text))[:SPANS]


def highest(model: Any, question: Question, passages: list[Passage]) -> tuple[int, int] | None:
    """The passage whose one sentence makes the output likeliest, where one makes it likelier than none does."""
    output, chosen = question.golden_answers[0], None
    most = log_probability(model, f"Answer.\nQ: {question.question}\nA:", f" {output}")
    for at, passage in enumerate(passages):
        prompt = f"Answer.\n{passage.title} | {passage.text}\nQ: {question.question}\nA:"
        score = log_probability(model, prompt, f" {output}")
        if score > most:
            chosen, most = (at, 0), score
    return chosen


def log_probability(loaded: Any, prompt: str, output: str) -> float:
    """The sum over the tokens of the output, from the logits of the whole text."""
    import torch

    before, ids = (loaded.tokenizer(text)["input_ids"] for text in (prompt, f"{prompt}{output}"))
    with torch.inference_mode():
        rows = loaded.model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return sum(float(rows[at - 1, ids[at]]) for at in range(len(before), len(ids)))
