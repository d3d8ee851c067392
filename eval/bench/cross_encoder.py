"""Fine-tune MiniLM as a cross-encoder on HotPotQA questions, for `eval/bench/engines.py --rerank`.

    python eval/bench/cross_encoder.py --questions hotpotqa/dev.jsonl.gz --more hotpotqa/train_sample.jsonl.gz --out ce

The first --skip questions are left for measuring. Of each other question its gold paragraphs stand against some of the
other questions' paragraphs that BM25 ranks highest for it; the loss is the softmax cross-entropy of each gold one (Gao,
Dai & Callan 2021, https://arxiv.org/abs/2101.08751, section 3). MiniLM (22.7 M parameters) was trained to be one vector
a text; the head of the cross-encoder begins at random. One thread, bfloat16 where torch sees fit.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
import torch
from checkpoints import minilm
from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_linear_schedule_with_warmup

from blendfilter.records import Question
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.corpus import pooled
from blendfilter.tasks.loading import load
from blendfilter.text import normalize_answer

GOLD, NEGATIVES, RANKED = 2, 5, 20
"""Paragraphs of a question: gold ones, others, and down to which rank of BM25's the others are drawn."""
TOGETHER, TOKENS, RATE = 3, 128, 1e-4
"""Questions a step, tokens of a pair, learning rate."""


class Group(NamedTuple):
    """A question and its passages, the gold ones first."""

    question: str
    passages: list[str]


def groups(questions: list[Question], chance: random.Random) -> list[Group]:
    """One for each question that has gold paragraphs and enough others; a single gold paragraph stands there twice."""
    index, made = BM25.build(pooled(questions)), []
    for question, found in zip(questions, index.search([each.question for each in questions], RANKED), strict=True):
        gold = [passage.line for passage in question.context if passage.title in question.gold_titles][:GOLD]
        others = [passage.line for passage in found if passage.title not in question.gold_titles]
        if gold and len(others) >= NEGATIVES:
            made.append(Group(question.question, [*gold, *gold][:GOLD] + chance.sample(others, NEGATIVES)))
    chance.shuffle(made)
    return made


def main() -> None:
    """Train, and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, required=True, help="a HotPotQA question file with paragraphs")
    parser.add_argument("--skip", type=int, default=500, help="the first questions of it, which are measured")
    parser.add_argument("--more", type=Path, nargs="*", default=[], help="further files of questions")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    first = load("hotpotqa", asked.questions)
    measured = {normalize_answer(question.question) for question in first[: asked.skip]}
    every = [*first, *(question for file in asked.more for question in load("hotpotqa", file))]
    rows = groups([each for each in every if normalize_answer(each.question) not in measured], random.Random(0))
    steps = len(rows) // TOGETHER
    print(f"{len(rows)} questions, none of the {len(measured)} measured; {steps} steps", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    model = AutoModelForSequenceClassification.from_pretrained(minilm(), num_labels=1).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    started, losses = time.process_time(), list[float]()
    for step in range(steps):
        some = rows[step * TOGETHER : (step + 1) * TOGETHER]
        pairs = [(row.question, text) for row in some for text in row.passages]
        read = tokenizer(pairs, padding=True, truncation="longest_first", max_length=TOKENS, return_tensors="pt")
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(**read).logits.float().view(len(some), -1)
        gold, others = scores[:, :GOLD], scores[:, GOLD:].logsumexp(1, keepdim=True)
        loss = (torch.logaddexp(gold, others) - gold).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if len(losses) == 20:
            took = time.process_time() - started
            print(f"step {step + 1}: loss {sum(losses) / 20:.3f}, {took:.0f} s of processor time", flush=True)
            losses.clear()
    model.save_pretrained(asked.out)
    tokenizer.save_pretrained(asked.out)


if __name__ == "__main__":
    main()
