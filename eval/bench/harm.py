"""What a judge that errs does to an overlay: gold passages lost and rejected ones left, by threshold and rate of error.

    python eval/bench/harm.py --data DATA [--questions 300] [--seeds 3]

PopQA: BM25 over the gold paragraphs; a passage is right if it is of a gold title. TriviaQA: BM25 over the passages that
came with the questions (of those that have any); right if an answer stands in it. The judge is scripted: it knows what
is right, and turns its verdict over at a given rate, by a seed, independently for every question text and passage.
That is the kindest way to err: a model that misreads a passage for one wording misreads it for the next one, too. So
`alike` is the other end: what it gets wrong for a question it gets wrong for all of that question's paraphrases.

Ways of gathering: every question judged `once`; or `thrice`, with two paraphrases that are judged too (no reuse), so
that a pair may have several witnesses; or that with errors `alike`. Searched are the questions themselves, for which
their own verdicts count at once; the same in a polite frame that was not judged; and two other paraphrases. Over what
the bare index has in its first ten: the share of right passages that is gone (`lost`), and of these alone the ones that
the judged question had not rejected (`beside`: not by the verdict that was used); the share of wrong ones that is still
there (`left`), of questions that had a right passage and have none, and of queries to which a judged question applied.
`either side`: a pair's witnesses count whichever side they accepted (Theorem 1).
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
from paraphrases import bare, ended, moved, opened, polite

from blendfilter import BM25, load, pooled
from blendfilter.oracles.measures import strinc
from blendfilter.records import Passage, Question
from blendfilter.retrieval.base import Retriever
from blendfilter.trimming import witnesses
from blendfilter.trimming.overlay import Trimmed
from blendfilter.trimming.witnesses import JudgedBy, Pairing, Witnesses

K = 10
RATES, THRESHOLDS = (0.0, 0.05, 0.1, 0.2), (1, 2, 3)
GATHERED = {"once": (str,), "thrice": (str, opened, ended)}
"""Under what texts a question is judged."""
WAYS = {"once": ("once", False), "thrice": ("thrice", False), "thrice, errs alike": ("thrice", True)}
"""How witnesses are gathered, and whether the judge errs alike for a question's paraphrases."""
SEARCHED: dict[str, Callable[[str], str]] = {"itself": str, "polite": polite, "moved": moved, "bare": bare}
BY = JudgedBy("scripted", "word", ("phi1",), "scripted", "")


class World(NamedTuple):
    """A set of questions, the index over its passages, and what is right for each."""

    name: str
    questions: Sequence[Question]
    index: Retriever
    right: Callable[[Question, Passage], bool]


class Kept(Retriever):
    """An index that remembers what it found."""

    def __init__(self, index: Retriever) -> None:
        self.index, self.fingerprint = index, index.fingerprint
        self._find = functools.cache(lambda query, k: index.find([query], k)[0])

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [self._find(query, k) for query in queries]

    def __len__(self) -> int:
        return len(self.index)


def worlds(data: Path, count: int) -> Iterable[World]:
    chance = random.Random(0)
    popqa = chance.sample([*load("qa", data / "popqa" / "test.jsonl.gz")], count)
    index = Kept(BM25.build(data / "corpus" / "popqa.jsonl.gz"))
    yield World("PopQA", popqa, index, lambda question, passage: passage.title in question.gold_titles)
    every = load("qa", data / "triviaqa" / "test_retrieved.jsonl.gz")
    trivia = chance.sample([question for question in every if question.context], count)
    yield World(
        "TriviaQA", trivia, Kept(BM25.build(pooled(every))),
        lambda question, passage: strinc(passage.line, question.golden_answers),
    )  # fmt: skip


def gathered(
    world: World,
    texts: Sequence[Callable[[str], str]],
    rate: float,
    seed: int,
    *,
    alike: bool = False,
    pairing: Pairing = "theorem",
) -> Witnesses:
    """The witnesses that a judge leaves who errs at that rate; each text is judged once.

    `alike`: what it gets wrong for a question, it gets wrong for the question's paraphrases.
    """
    state = Witnesses(pairing)
    for question in world.questions:
        for text in dict.fromkeys(make(question.question).strip() for make in texts):
            name = witnesses.question_id(text)
            if name in state.judged:
                continue
            verdicts = dict[str, bool | None]()
            for passage in world.index(text, K):
                wording = question.question if alike else text
                errs = random.Random(f"{seed} {wording} {passage.id}").random() < rate
                verdicts[passage.id] = world.right(question, passage) != errs
            for line in witnesses.judged_lines(text, verdicts, BY):
                state.apply(line)
    return state


class Counts(NamedTuple):
    """Over the first ten of the bare index: right and wrong passages, and questions with a right one; what became."""

    right: int = 0
    lost: int = 0
    wrong: int = 0
    left: int = 0
    had: int = 0
    emptied: int = 0
    applied: int = 0
    asked: int = 0
    beside: int = 0

    def __add__(self, other: object) -> Counts:
        return Counts(*(a + b for a, b in zip(self, other, strict=True))) if isinstance(other, Counts) else self

    def shares(self) -> tuple[float, ...]:
        """Right lost, wrong left, right lost that was not rejected, questions emptied, queries with a judged one."""
        return (
            self.lost / self.right, self.left / self.wrong, self.beside / self.right, self.emptied / self.had,
            self.applied / self.asked,
        )  # fmt: skip


def measured(world: World, trimmed: Trimmed, query: Callable[[str], str]) -> Counts:
    """All questions of `world`, asked as `query` has them."""
    total = Counts()
    for question in world.questions:
        asked = query(question.question).strip()
        bare = world.index(asked, K)
        told = trimmed.explain(asked, K)
        applies = bool(told.nearest.question) and not told.nearest.why
        kept = {passage.id for passage in told.passages}
        right = [passage.id for passage in bare if world.right(question, passage)]
        wrong = [passage.id for passage in bare if not world.right(question, passage)]
        held = sum(name in kept for name in right)
        rejecting = {each for gone in told.dropped if gone.kept == "" for each in gone.witnesses}
        if applies:
            rejecting.add(witnesses.question_id(told.nearest.question))
        rejected = {name for each in rejecting for name in trimmed.witnesses.judged[each].rejected}
        total += Counts(
            len(right), len(right) - held, len(wrong), sum(name in kept for name in wrong), bool(right),
            bool(right) and not held, applies, 1, sum(name not in kept and name not in rejected for name in right),
        )  # fmt: skip
    return total


def row(name: str, counts: Sequence[Counts]) -> None:
    """Print one row: means over the seeds, and the spread of what was lost."""
    shares = [each.shares() for each in counts]
    means = tuple(statistics.mean(column) for column in zip(*shares, strict=True))
    spread = max(each[0] for each in shares) - min(each[0] for each in shares)
    lost, left, beside, emptied, applied = (f"{100 * mean:9.1f}" for mean in means)
    print(f"{name:34}{lost} ±{50 * spread:4.1f}{beside}{left}{emptied}{applied}")


def main() -> None:
    """The curve of each world, way of gathering and query."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    for world in worlds(asked.data, asked.questions):
        depth = Counter(
            kind for question in world.questions for passage in world.index(question.question, K)
            for kind in ["right" if world.right(question, passage) else "wrong"]
        )  # fmt: skip
        print(
            f"\n{world.name}: {len(world.questions)} questions, {len(world.index):,} passages, first {K}: {dict(depth)}"
        )
        for gathering, (how, alike) in WAYS.items():
            for rate in RATES:
                states = [gathered(world, GATHERED[how], rate, seed, alike=alike) for seed in range(asked.seeds)]
                pairs = [sum(1 for _ in states[0].separated(threshold)) for threshold in THRESHOLDS]
                print(f"\njudged {gathering}, errs {100 * rate:g} %; pairs from 1, 2, 3 witnesses up: {pairs}")
                heads = "".join(f"{head:>9}" for head in ("beside", "left %", "none %", "applied"))
                print(f"{'threshold, searched':34}{'lost %':>8}      {heads}")
                for name, query in SEARCHED.items():
                    for threshold, one_way in itertools.product(THRESHOLDS, (True, False)):
                        if name == "itself" and (threshold > 1 or not one_way):
                            continue  # its own verdicts count whatever these are
                        if not one_way and (threshold == 1 or how == "once"):
                            continue  # whoever rejects it is witness enough
                        overlays = [Trimmed(world.index, each, threshold=threshold, one_way=one_way) for each in states]
                        way = "" if one_way else ", either side"
                        row(f"{threshold}, {name}{way}", [measured(world, each, query) for each in overlays])


if __name__ == "__main__":
    main()
