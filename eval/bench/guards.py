"""What may keep two near questions apart: the table of rules beside a model, on opposites and on real questions.

    python eval/bench/guards.py [FILES...] [--model FOLDER] [--limit 100]

First the sample world's opposites as 144 pairs of questions: each question beside one that asks the same in another
word, and beside one that asks something else (`opposite_questions.txt`). Then each file of questions (PopQA, TriviaQA):
paraphrases by the rules of `paraphrases.py`, one word for another by `similarity.py` (same), one relation for another,
and the nearest other question of the file by words (not the same).
*Merged* are pairs that do not ask the same and were let through, *kept apart* those that do and were not.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
import paraphrases
from similarity import other_word, read, relation

from blendfilter.resources import sample
from blendfilter.trimming.opposites import unlike
from blendfilter.trimming.similar import ByWords

EXCHANGES = Path(__file__).with_name("opposite_questions.txt")


class QuestionPair(NamedTuple):
    """Two questions, whether they ask the same, and what was done to the first."""

    one: str
    other: str
    same: bool
    kind: str


def exchanges() -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """For each of the world's questions what to exchange for the same, and for another question."""
    lines = [line for line in EXCHANGES.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [tuple(tuple(side.strip().split("=")) for side in line.split(" | ")) for line in lines]  # type: ignore[misc]


def exchanged_words() -> frozenset[str]:
    """Every word that is exchanged there, for a training that must not see them."""
    return frozenset(word for line in exchanges() for side in line for text in side for word in text.split())


def opposites() -> Iterator[QuestionPair]:
    """The sample world's opposites as pairs of questions."""
    rows = [json.loads(line) for line in sample("opposites.jsonl").read_text(encoding="utf-8").splitlines()]
    questions = [question for question, _ in itertools.groupby(row["question"] for row in rows)]
    kinds = [next(row["differs"] for row in rows if row["question"] == each and row["differs"]) for each in questions]
    for question, kind, (same, another) in zip(questions, kinds, exchanges(), strict=True):
        for (old, new), is_same in ((same, True), (another, False)):
            if old not in question:
                raise SystemExit(f"{EXCHANGES.name}: '{old}' is not in {question!r}")
            yield QuestionPair(question, question.replace(old, new, 1), is_same, "another word" if is_same else kind)


def of_file(questions: Sequence[str], limit: int) -> Iterator[QuestionPair]:
    """Pairs made of a file's questions, each kind from the same sample."""
    some = random.Random(7).sample(questions, min(limit, len(questions)))
    for rule in (*paraphrases.RULES, other_word, relation):
        for question in some:
            if (other := rule(question)) != question:
                yield QuestionPair(question, other, rule is not relation, rule.__name__)
    rest, near = sorted(set(questions) - set(some)), ByWords()
    near.add(rest)
    for question, found in zip(some, near.nearest(some), strict=True):
        if found is not None:
            yield QuestionPair(question, rest[found.at], False, "nearest other")


Decide = Callable[[Sequence[QuestionPair]], list[bool]]
"""Which pairs are let through."""


def guards(model: str | None) -> dict[str, Decide]:
    """The rules; with a model, the model alone and both."""
    found: dict[str, Decide] = {"rules": lambda pairs: [not unlike(pair.one, pair.other) for pair in pairs]}
    if model is not None:
        from blendfilter.trimming.guard import PairModel

        loaded = PairModel(model)

        def alone(pairs: Sequence[QuestionPair]) -> list[bool]:
            return [sure >= loaded.threshold for sure in loaded.same([(pair.one, pair.other) for pair in pairs])]

        found["model"] = alone
        found["rules and model"] = lambda pairs: [not loaded.apart(pair.one, [pair.other])[0] for pair in pairs]
    return found


def table(name: str, pairs: Sequence[QuestionPair], deciding: dict[str, Decide]) -> None:
    """For each guard and kind of pair how many were decided wrongly."""
    kinds = list(dict.fromkeys((pair.same, pair.kind) for pair in pairs))
    print(f"\n{name}: {len(pairs):,} pairs")
    for guard, decide in deciding.items():
        started = time.perf_counter()
        let = dict(zip(pairs, decide(pairs), strict=True))
        took = 1000 * (time.perf_counter() - started) / len(pairs)
        for same, what in ((False, "merged"), (True, "kept apart")):
            counts = {kind: [let[pair] != same for pair in pairs if (pair.same, pair.kind) == (same, kind)]
                      for own, kind in kinds if own is same}  # fmt: skip
            wrong, every = sum(map(sum, counts.values())), sum(map(len, counts.values()))
            parts = ", ".join(f"{kind} {sum(each)} of {len(each)}" for kind, each in counts.items())
            print(f"{guard:16} {what:10} {wrong:4} of {every:4} ({100 * wrong / max(1, every):.0f} %): {parts}")
        print(f"{guard:16} {took:.2f} ms a pair")


def main() -> None:
    """A table for the opposites and for each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path, nargs="*")
    parser.add_argument("--model", help="a folder or a hub name, as trim --similar takes it")
    parser.add_argument("--limit", type=int, default=100, help="questions of a file")
    given = parser.parse_args()
    deciding = guards(given.model)
    table("the sample world's opposites", list(opposites()), deciding)
    for file in given.questions:
        table(f"{file.parent.name}/{file.name}", list(of_file(read(file), given.limit)), deciding)


if __name__ == "__main__":
    main()
