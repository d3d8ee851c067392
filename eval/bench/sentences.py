"""Where sentences end, against the boundaries that the authors of data sets published.

    python eval/bench/sentences.py hotpotqa dev.jsonl.gz --show 20

In: a task whose paragraphs come as lists of sentences, and a file of its questions. Each paragraph is joined again, as
the task joins it; the known boundaries are the ends of its sentences but the last. Out: of the boundaries that a
splitter finds, the share that is known (precision), of those known the share that it finds (recall), F1, the share of
paragraphs split right throughout, and characters a second. A boundary is where the next sentence's first character
stands that is no white space.

Splitters beside ours, in whatever environment this runs: `sentencex`, `syntok`, `pysbd`, spaCy's `sentencizer`; those
that are not installed are left out, and named.

What is measured is agreement with those who published the data, who split by rules as well: a heading before a
sentence, or "U.S." before a name, is split by some and not by others. Worst cases are shown with `--show`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import NamedTuple

Splitter = Callable[[str], list[int]]
"""A text in, and out of it where each sentence begins."""


class Paragraph(NamedTuple):
    """A paragraph, and where its sentences but the first begin."""

    text: str
    known: frozenset[int]


class Measured(NamedTuple):
    """Counts over all paragraphs, and the seconds they took."""

    right: int
    found: int
    known: int
    whole: int
    paragraphs: int
    characters: int
    seconds: float

    def line(self) -> str:
        """The figures on one line."""
        precision, recall = self.right / max(1, self.found), self.right / max(1, self.known)
        f1 = 2 * precision * recall / max(1e-9, precision + recall)
        return (
            f"precision {100 * precision:6.2f}  recall {100 * recall:6.2f}  F1 {100 * f1:6.2f}  whole paragraphs "
            f"{100 * self.whole / self.paragraphs:6.2f} %  {self.characters / self.seconds / 1e6:6.2f} M characters/s"
        )


def paragraphs(task: str, path: str, limit: int | None) -> Iterator[Paragraph]:
    """The paragraphs of several sentences, each once."""
    import gzip
    import json

    joiner = {"hotpotqa": "", "twowiki": " ", "strategyqa": " "}[task]
    seen: set[str] = set()
    with gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8") as file:
        for row in map(json.loads, file):
            if not row["metadata"].get("sentence_split", True):
                continue
            for each in row["metadata"]["context"]:
                listed = [one for one in each["sentences"] if one.strip()]
                text = joiner.join(listed)
                if len(listed) < 2 or text in seen:
                    continue
                seen.add(text)
                starts = accumulate(len(one) + len(joiner) for one in listed[:-1])
                yield Paragraph(text, frozenset(_first(text, start) for start in starts))
                if limit is not None and len(seen) >= limit:
                    return


def _first(text: str, start: int) -> int:
    """From where a sentence begins to its first character that is no white space."""
    return start + len(text[start:]) - len(text[start:].lstrip())


def ours() -> Splitter:
    """The package's own rules."""
    from blendfilter.text import sentences

    return lambda text: [each.start for each in sentences(text)]


def sentencex() -> Splitter:
    """The Wikimedia Foundation's, by language."""
    import sentencex

    return lambda text: _placed(text, sentencex.segment("en", text))


def syntok() -> Splitter:
    """Syntok's segmenter over its own tokeniser."""
    from syntok import segmenter

    return lambda text: [sentence[0].offset for part in segmenter.analyze(text) for sentence in part if sentence]


def pysbd() -> Splitter:
    """The golden rules of the pragmatic segmenter."""
    import pysbd

    made = pysbd.Segmenter(language="en", clean=False)
    return lambda text: _placed(text, made.segment(text))


def sentencizer() -> Splitter:
    """spaCy's rules for a language without a model."""
    import spacy

    made = spacy.blank("en")
    made.add_pipe("sentencizer")
    return lambda text: [each.start_char for each in made(text).sents]


def _placed(text: str, pieces: Iterator[str] | list[str]) -> list[int]:
    """Where pieces lie that are told without their places."""
    found, at = [], 0
    for piece in pieces:
        inner = piece.strip()
        start = text.find(inner, at) if inner else -1
        if start >= 0:
            found.append(start)
            at = start + len(inner)
    return found


SPLITTERS: dict[str, Callable[[], Splitter]] = {
    "ours": ours,
    "sentencex": sentencex,
    "syntok": syntok,
    "pysbd": pysbd,
    "sentencizer": sentencizer,
}


def measured(split: Splitter, texts: list[Paragraph], shown: int = 0) -> Measured:
    """The counts of one splitter."""
    right = found = whole = 0
    wrong: list[str] = []
    started = time.perf_counter()
    told = [split(each.text) for each in texts]
    seconds = time.perf_counter() - started
    for paragraph, starts in zip(texts, told, strict=True):
        inside = {_first(paragraph.text, start) for start in starts} - {_first(paragraph.text, 0)}
        right, found = right + len(inside & paragraph.known), found + len(inside)
        whole += inside == paragraph.known
        wrong += [_around("split here only", paragraph.text, at) for at in inside - paragraph.known]
        wrong += [_around("known only", paragraph.text, at) for at in paragraph.known - inside]
    for line in random.Random(0).sample(wrong, min(shown, len(wrong))):
        print(line)
    known, characters = sum(len(each.known) for each in texts), sum(len(each.text) for each in texts)
    return Measured(right, found, known, whole, len(texts), characters, seconds)


def _around(what: str, text: str, at: int) -> str:
    return f"    {what:16} {text[max(0, at - 50) : at]!r} | {text[at : at + 30]!r}"


def main() -> None:
    """Read the arguments, measure every splitter that is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("hotpotqa", "twowiki", "strategyqa"))
    parser.add_argument("data")
    parser.add_argument("--limit", type=int, help="paragraphs; all by default")
    parser.add_argument("--only", choices=SPLITTERS, nargs="*", default=list(SPLITTERS))
    parser.add_argument("--show", type=int, default=0, help="how many boundaries to show that differ")
    asked = parser.parse_args()
    texts = list(paragraphs(asked.task, asked.data, asked.limit))
    print(f"{len(texts):,} paragraphs of {asked.task}, {sum(len(each.known) for each in texts):,} boundaries")
    for name in asked.only:
        try:
            split = SPLITTERS[name]()
        except ImportError as error:
            print(f"{name:12} left out ({error})", file=sys.stderr)
            continue
        print(f"{name:12} {measured(split, texts, asked.show).line()}", flush=True)


if __name__ == "__main__":
    main()
