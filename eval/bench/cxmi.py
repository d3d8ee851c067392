"""CXMI of a batch of questions in one list, against a pair at a time with the base scored again for every sentence.

    python eval/bench/cxmi.py

In: 40 questions with 5 passages of 5 sentences each, of invented words; a Hugging Face model of 4 layers x 256 with
random weights and 32,000 tokens, made here; one thread. Prompts are as long as ours are for SmolLM2's tokeniser: about
500 tokens with HotPotQA's three demonstrations, about 100 without any. Out: seconds of processor time of both ways
(others may share the machine), how many times faster the batch is, and whether both choose the same sentences.

`one by one` is the released way, with our scorer: a call for the sentence and one for the base, each pair read by
itself, logits for the output alone. `plain` is the same with a plain call of the model, which makes the logits of every
token. Both are measured on the first 5 questions and scaled to all (`--slow 40`: on all). `question first` is a prompt
in which the question stands before the knowledge, so that a question's sentences share it; ours does not, and it is
here for what it would save.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from scoring import looped, words

from blendfilter.asking import Demonstration, TaskWording, WorkedHop
from blendfilter.lm.scoring import scorer
from blendfilter.oracles.candidates import Candidate, sentences_of
from blendfilter.oracles.measures import best, cxmi
from blendfilter.oracles.oracle import Oracle
from blendfilter.prompting import Prompts
from blendfilter.records import Passage, Question

QUESTIONS, PASSAGES, SENTENCES, DEMOS = 40, 5, 5, 3
FIRST = """{{ instructions }}
{% for demo in demos %}
Question: {{ demo.question }}
Knowledge:
{{ demo.knowledge | join("\n") }}
Answer:
{{ demo.answer }}
{% endfor %}
Question: {{ question }}
Knowledge:
{{ knowledge | join("\n") }}
Answer:"""
Batch = list[tuple[Question, list[Passage]]]


def batch_of(draw: random.Random) -> Batch:
    """Questions of about 14 tokens, sentences of about 28, answers of 3."""

    def passage(name: str) -> Passage:
        text = " ".join(f"{words(draw, 24).capitalize()}." for _ in range(SENTENCES))
        return Passage(name, words(draw, 2), text)

    return [
        (
            Question(f"q{at}", f"{words(draw, 13)}?", (words(draw, 3),)),
            [passage(f"{at}-{number}") for number in range(PASSAGES)],
        )
        for at in range(QUESTIONS)
    ]


def wording_of(draw: random.Random, demos: int) -> TaskWording:
    """Instructions and demonstrations of invented words."""
    made = [
        Demonstration(
            question=f"{words(draw, 14)}?",
            knowledge=[f"{words(draw, 2)} | {words(draw, 27)}." for _ in range(3)],
            reasoning="so",
            hops=[WorkedHop(thought="so", follow_up="so", knowledge=[0], answer="so")],
            answer=words(draw, 3),
        )
        for _ in range(demos)
    ]
    return TaskWording(instructions={"direct": words(draw, 20)}, demos=made)


def timed(work: Any) -> tuple[Any, float]:
    """What it gives, and in how many seconds of processor time; one thread computes."""
    started = time.process_time()
    return work(), time.process_time() - started


def chosen_one_by_one(oracle: Oracle, batch: Batch, ask_one: Any) -> list[tuple[int, ...]]:
    """The released way: for every sentence a pair with it, and the base again."""

    def value(question: Question, each: Candidate) -> float:
        return cxmi(ask_one(oracle._ask.pair(question, each.line)).logprob, ask_one(oracle._ask.pair(question)).logprob)

    return [
        best([value(question, each) for each in sentences_of(passages)], threshold=oracle.threshold)
        for question, passages in batch
    ]


def compare(name: str, oracle: Oracle, batch: Batch, slow: int) -> None:
    """Print the times of all ways over one prompt."""
    ask, some = oracle._ask.scorer, batch[:slow]
    (item,) = ask.backend._tokeniser.pairs([oracle._ask.pair(batch[0][0], "a | b")])
    ask.score([oracle._ask.pair(batch[0][0])])
    found, fast = timed(lambda: oracle.choose(batch))
    chosen = [each.chosen for each in found]
    ways = {
        "one by one": lambda pair: ask.score([pair])[0],
        "plain": lambda pair: looped(ask, [pair])[0],
    }
    some_chosen = sum(map(bool, chosen))
    print(f"{name} ({len(item.ids)} tokens and the sentence): batch {fast:.1f} s, {some_chosen} of {len(batch)} chosen")
    for way, ask_one in ways.items():
        told, seconds = timed(lambda ask_one=ask_one: chosen_one_by_one(oracle, some, ask_one))
        whole = seconds * len(batch) / len(some)
        print(f"    {way:10} {whole:6.1f} s ({len(some)} of {len(batch)} questions, scaled), {whole / fast:5.1f} x; "
              f"same choices: {told == chosen[:slow]}", flush=True)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure."""
    import scoring_models as made
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow", type=int, default=5, help="questions that the slow ways are measured on")
    parser.add_argument("--vocabulary", type=int, default=32_000)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    draw = random.Random(0)
    batch, full, bare = batch_of(draw), wording_of(draw, DEMOS), wording_of(draw, 0)
    ask = scorer(made.llama(made.Size(layers=4, width=256, positions=1024, vocabulary=asked.vocabulary)))
    print(f"{QUESTIONS * PASSAGES * SENTENCES:,} sentences of {QUESTIONS} questions, 4 layers x 256, vocabulary "
          f"{asked.vocabulary:,}, 1 thread")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "direct.j2").write_text(FIRST)
        first = Prompts(folder)
    settings = {
        "three demonstrations": Oracle("cxmi", task="hotpotqa", scorer=ask, wording=full),
        "question first": Oracle("cxmi", task="hotpotqa", scorer=ask, wording=full, prompts=first),
        "no demonstrations": Oracle("cxmi", task="hotpotqa", scorer=ask, wording=bare),
    }
    for name, oracle in settings.items():
        compare(name, oracle, batch, asked.slow)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
