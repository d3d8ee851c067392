"""Scores in batches against one by one.

    python eval/bench/scoring.py [--vocabulary 32000]

A Hugging Face model of 4 layers x 256 with random weights, 64 pairs of prompts with about 150 tokens and
continuations with about 10, one thread: one prompt for all pairs, prompts that share 100 tokens, prompts that share
nothing. `loop` is the plain way to do it, a call of the model for each pair with the logits of all its tokens. Rounds
of all three take turns; the best of each counts.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from blendfilter.lm.scoring import Score, scorer
from blendfilter.lm.scoring.base import TextPair

PAIRS, ROUNDS = 64, 5
WORDS = ("the", "king", "of", "north", "island", "town", "river", "sea", "castle", "school", "Paris", "who", "founded")
Pairs = list[TextPair]


def words(draw: random.Random, count: int) -> str:
    """Some of the words that the test model's tokeniser knows."""
    return " ".join(draw.choice(WORDS) for _ in range(count))


def settings(prompt: int = 142, text: int = 9) -> dict[str, Pairs]:
    """The three kinds of prompts, by name; `prompt` and `text` are in words, most of them one token."""
    draw = random.Random(0)
    whole, begun = words(draw, prompt), words(draw, prompt * 2 // 3)
    return {
        "one prompt": [TextPair(whole, f" {words(draw, text)}") for _ in range(PAIRS)],
        "two thirds shared": [
            TextPair(f"{begun} {words(draw, prompt // 3)}", f" {words(draw, text)}") for _ in range(PAIRS)
        ],
        "nothing shared": [TextPair(words(draw, prompt), f" {words(draw, text)}") for _ in range(PAIRS)],
    }


def speed(vocabulary: int) -> None:
    """Print milliseconds a pair, and how many times faster a batch is."""
    import scoring_models as made
    import torch

    torch.set_num_threads(1)
    folder = made.llama(layers=4, width=256, positions=512, vocabulary=vocabulary)
    ask = scorer(folder)
    print(f"4 layers x 256, vocabulary {vocabulary:,}, {PAIRS} pairs, 1 thread; milliseconds a pair, best of {ROUNDS}")
    for name, pairs in settings().items():
        ways: dict[str, Callable[[], list[Score]]] = {
            "loop": lambda pairs=pairs: looped(ask, pairs),
            "one by one": lambda pairs=pairs: [ask.score([pair])[0] for pair in pairs],
            "batch": lambda pairs=pairs: ask.score(pairs),
        }
        found = {way: run() for way, run in ways.items()}
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(ROUNDS):
            for way, run in ways.items():
                started = time.perf_counter()
                run()
                best[way] = min(best[way], (time.perf_counter() - started) * 1000 / PAIRS)
        apart = max(abs(a.logprob - b.logprob) for a, b in zip(found["batch"], found["one by one"], strict=True))
        tokens = sum(len(each.ids) for each in ask.backend._tokeniser.pairs(pairs)) / PAIRS
        print(f"{name:18} ({tokens:3.0f} tokens)  loop {best['loop']:5.1f}  one by one {best['one by one']:5.1f}  "
              f"batch {best['batch']:5.1f}   {best['one by one'] / best['batch']:4.1f} x, "
              f"apart by {apart:.0e} at most")  # fmt: skip


def looped(ask: object, pairs: Pairs) -> list[Score]:
    """Each pair by itself, all logits of its text: what one writes first."""
    import torch

    backend = ask.backend
    model, found = backend._loaded.model, []
    for item in backend._tokeniser.pairs(pairs):
        with torch.inference_mode():
            rows = torch.log_softmax(model(torch.tensor([item.ids])).logits[0].float(), -1)
        found.append(Score(sum(float(rows[at - 1, item.ids[at]]) for at in range(item.first, len(item.ids))), 0))
    return found


def main() -> None:
    """Read the arguments, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    speed(parser.parse_args().vocabulary)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
