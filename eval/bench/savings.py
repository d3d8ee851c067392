"""Judging calls that reuse saves: a stream of questions of which a third ask again what one before asked.

    python eval/bench/savings.py [QUESTIONS...] [--count 900] [--encoder FOLDER|minilm] [--similar MODEL]

QUESTIONS are files of questions (JSON Lines, gzipped or not); without any, questions made from this file's templates,
many of which differ in one noun, verb or opposite alone. A third of the stream are paraphrases by the rules of
`paraphrases.py`; which question each was made of is known, so that wrong reuses are counted: verdicts taken over from a
question that asks something else. What is judged and what is reused is decided by the package's own planning; a judged
question costs ten calls. Without `--encoder` by words alone; `minilm` takes the one that tests are given.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from paraphrases import RULES

from blendfilter.trimming.gathering import plan_questions
from blendfilter.trimming.guard import PairModel, Rules
from blendfilter.trimming.similar import ByWords, Similar

K = 10
THRESHOLDS = (0.7, 0.8, 0.85, 0.9, 0.95, 1.0)
TEMPLATES = (
    "Who {did} the {thing} of {place}?", "In what year was the {thing} of {place} {done}?",
    "Who {did} the {thing} in {place} {when} the war?",
)  # fmt: skip
DID = (("built", "built"), ("designed", "designed"), ("opened", "opened"), ("closed", "closed"), ("sold", "sold"))
THINGS = ("pier", "lighthouse", "mill", "harbour office", "chapel", "market hall", "observatory", "bridge")
PLACES = ("Tavenby", "Ormskerry", "Tolm", "Hule", "Brennock", "Skerry Bay", "Vaal", "Old Vaal")


class Asked(NamedTuple):
    """One question of the stream, and the one it asks again (itself, where it is new)."""

    text: str
    source: str
    rule: str = ""


def templates() -> list[str]:
    """Questions in our own words that look alike."""
    made = [
        template.format(did=did, done=done, thing=thing, place=place, when=when)
        for template, (did, done), thing, place, when in itertools.product(
            TEMPLATES, DID, THINGS, PLACES, ("before", "after")
        )
    ]
    return list(dict.fromkeys(made))


def read(file: Path) -> list[str]:
    """The questions of a file, each once."""
    with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8") as lines:
        return list(dict.fromkeys(json.loads(line)["question"].strip() for line in lines if line.strip()))


def stream(questions: Sequence[str], count: int) -> list[Asked]:
    """`count` questions in random order, a third of them paraphrases of one that stands before."""
    chance = random.Random(3)
    fresh = chance.sample(questions, min(len(questions), count - count // 3))
    wanted = len(fresh) // 2
    made = [Asked(each, each) for each in fresh]
    for source in chance.sample(fresh, wanted):
        rule = chance.choice(RULES)
        at = next(place for place, each in enumerate(made) if each.text == source)
        made.insert(chance.randint(at + 1, len(made)), Asked(rule(source), source, rule.__name__))
    return made


def row(asked: Sequence[Asked], similar: Similar | None, least: float | None, guard: bool | Rules, name: str) -> None:
    """What the stream costs: calls, and the reuses that were right, missed and wrong."""
    turns = plan_questions([each.text for each in asked], {}, similar, least, guard=guard)
    source_of = {turn.id: each.source for turn, each in zip(turns, asked, strict=True)}
    calls = K * sum(turn.kind == "judge" for turn in turns)
    right, wrong, by_rule = 0, 0, Counter[str]()
    for turn, each in zip(turns, asked, strict=True):
        if turn.kind == "reuse":
            same = source_of[turn.source] == each.source
            right, wrong = right + same, wrong + (not same)
            by_rule[each.rule] += same
    most = sum(bool(each.rule) for each in asked)
    saved = 1 - calls / (K * len(asked))
    rules = ", ".join(f"{rule.__name__} {by_rule[rule.__name__]}" for rule in RULES)
    print(f"{name:32}{calls:8,}{100 * saved:8.1f} %{right:7,} of {most:,}{wrong:7,}   {rules}")


class _Remembering:
    """An encoder that encodes each question once for all rows."""

    def __init__(self, encoder: Any) -> None:
        self.encoder, self.dimension, self.identity = encoder, encoder.dimension, encoder.identity
        self.one = functools.cache(lambda text: encoder.encode_queries([text]))

    def encode_queries(self, queries: Sequence[str]) -> Any:
        each = [self.one(query) for query in queries]
        return type(each[0])(np.concatenate([one.vectors for one in each]), [cut for one in each for cut in one.cut])


def measures(encoder: str | None) -> dict[str, Callable[[], Similar]]:
    """What finds the nearest question: made anew for each stream."""
    made: dict[str, Callable[[], Similar]] = {"words": ByWords}
    if encoder is not None:
        from checkpoints import minilm

        from blendfilter.retrieval.encoders import load_encoder
        from blendfilter.trimming.similar import ByVector

        loaded: Any = _Remembering(load_encoder(str(minilm()) if encoder == "minilm" else encoder))
        made["vectors"] = lambda: ByVector(loaded)
    return made


def main() -> None:
    """A table for each file of questions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path, nargs="*")
    parser.add_argument("--count", type=int, default=900)
    parser.add_argument("--encoder")
    parser.add_argument("--least", type=float, nargs="+", default=THRESHOLDS, help="similarities to reuse from")
    parser.add_argument("--similar", help="a model of pairs, as trim takes it")
    given = parser.parse_args()
    model = PairModel(given.similar) if given.similar else None
    for file in given.questions or [None]:
        asked = stream(templates() if file is None else read(file), given.count)
        name = "own templates" if file is None else f"{file.parent.name}/{file.name}"
        again = sum(bool(each.rule) for each in asked)
        print(f"\n{name}: {len(asked):,} questions, {again:,} of them paraphrases of earlier ones")
        print(f"{'':32}{'calls':>8}{'saved':>10}{'right reuses':>15}{'wrong':>6}   by rule")
        row(asked, None, None, guard=True, name="no reuse but of the same words")
        for measure, make in measures(given.encoder).items():
            for least in given.least:
                row(asked, make(), least, guard=True, name=f"{measure}, from {least}")
                if model is not None:
                    row(asked, make(), least, guard=model, name=f"{measure}, from {least}, model")
            row(asked, make(), 0.9, guard=False, name=f"{measure}, from 0.9, unguarded")


if __name__ == "__main__":
    main()
