"""Where two questions are the same by their words: false and true matches of `ByWords` by threshold, with the guard.

    python eval/bench/similarity.py QUESTIONS... [--limit 1500] [--encoder FOLDER]

QUESTIONS are files of questions (JSON Lines, gzipped or not, with `question`). Of each file: the share of questions
whose nearest *other* question of the file is at least so near (a false match: they ask different things), and, for each
rule of paraphrasing, the share of paraphrases that find the question they were made of. The rules are this file's own:
a contraction, a polite opening, another word order, articles dropped, one word for another. `relation` is no
paraphrase: a word that names a relation is exchanged for another relation's, so its matches are false ones. Each cell
is all matches, then those that the guard lets through, in percent. The last line is the guard alone: how many of the
pairs of neighbours in the file it keeps apart (a file sorted by template has two subjects of one template there).
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from blendfilter.trimming.opposites import unlike
from blendfilter.trimming.similar import ByWords, Similar

THRESHOLDS = (0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
SYNONYMS = {
    "occupation": "profession", "wrote": "penned", "film": "movie", "movie": "film", "author": "writer",
    "country": "nation", "city": "town", "located": "situated", "famous": "well-known", "company": "firm",
    "called": "named", "known": "called", "type": "kind", "genre": "kind", "played": "performed", "song": "tune",
    "started": "began", "large": "big", "largest": "biggest", "area": "region", "birthplace": "place of birth",
    "composer": "songwriter", "located in": "found in", "producer": "maker", "founded": "established",
    "singer": "vocalist", "portrayed": "played", "series": "show", "band": "group", "capital": "chief city",
}  # fmt: skip
RELATIONS = {
    "director": "producer", "producer": "director", "screenwriter": "composer", "composer": "screenwriter",
    "author": "illustrator", "father": "uncle", "mother": "aunt", "occupation": "religion", "religion": "occupation",
    "genre": "language", "sport": "instrument", "capital": "population", "country": "language", "city": "hospital",
    "wrote": "translated", "directed": "produced", "born": "buried", "founded": "sold", "year": "month",
    "name": "age", "song": "book", "film": "book",
}  # fmt: skip
Rule = Callable[[str], str]


def contracted(question: str) -> str:
    """`What is` as `What's`, `did not` as `didn't`."""
    found = re.sub(r"\b(What|Who|Where|When|How) is\b", r"\1's", question)
    return re.sub(r"\b(did|does|was|is|were|has) not\b", r"\1n't", found)


def polite(question: str) -> str:
    """With an opening."""
    return f"Please tell me, {question[0].lower()}{question[1:]}"


def moved(question: str) -> str:
    """The question word at the end, or its auxiliary behind: another order of the same words, or nearly."""
    if match := re.fullmatch(r"(Who|What|Where) (is|was|are|were) (.+)\?", question):
        return f"{match[3][0].upper()}{match[3][1:]} {match[2]} {match[1].lower()}?"
    if match := re.fullmatch(r"In (what|which) (\w+) (is|was|did|does) (.+)\?", question):
        return f"{match[1].capitalize()} {match[2]} {match[3]} {match[4]} in?"
    if match := re.fullmatch(r"Who (\w+ed|wrote|sang|won|made|began) (.+)\?", question):
        return f"Who was it that {match[1]} {match[2]}?"
    return question


def bare(question: str) -> str:
    """Without articles."""
    return re.sub(r"\b(?:the|a|an) (?=\w)", "", question)


def other_word(question: str) -> str:
    """The first word that has a synonym, exchanged."""
    return _exchanged(question, SYNONYMS)


def relation(question: str) -> str:
    """The first word that names a relation, exchanged for another relation's."""
    return _exchanged(question, RELATIONS)


RULES: dict[str, Rule] = {
    "contraction": contracted, "polite opening": polite, "word order": moved, "no articles": bare,
    "synonym": other_word, "relation (false)": relation,
}  # fmt: skip


def _exchanged(question: str, words: dict[str, str]) -> str:
    for match in re.finditer(r"[\w-]+", question):
        if match.group() in words:
            return question[: match.start()] + words[match.group()] + question[match.end() :]
    return question


def read(file: Path) -> list[str]:
    """The file's questions, each once whatever its capitals."""
    with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8") as lines:
        found = [json.loads(line)["question"].strip() for line in lines if line.strip()]
    return list({question.casefold(): question for question in found}.values())


def main() -> None:
    """A table for each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path, nargs="+")
    parser.add_argument("--limit", type=int, default=1500, help="questions of a file that are asked")
    parser.add_argument("--encoder", help="a folder: by vectors and not by words")
    asked = parser.parse_args()
    for file in asked.questions:
        table(file, read(file), asked.limit, asked.encoder)


def table(file: Path, questions: list[str], limit: int, encoder: str | None) -> None:
    """One file's shares by threshold: all matches, and those that the guard lets through."""
    some = sorted(random.Random(7).sample(range(len(questions)), min(limit, len(questions))))
    whole = measure(encoder)
    whole.add(questions)
    print(f"\n{file.parent.name}/{file.name}: {len(questions):,} questions, {len(some):,} asked, by {whole.name}")
    print(f"{'':22}{'n':>6}" + "".join(f"{threshold:>14}" for threshold in THRESHOLDS))
    row("another question", others(questions, some, encoder))
    started, count = time.perf_counter(), 0
    for name, rule in RULES.items():
        pairs = [(rule(questions[at]), at) for at in some if rule(questions[at]) != questions[at]]
        found = whole.nearest([text for text, _ in pairs], floor=THRESHOLDS[0])
        count += len(pairs)
        right = [
            (near.similarity, unlike(text, questions[near.at]) == "") if near and near.at == at else (0.0, False)
            for near, (text, at) in zip(found, pairs, strict=True)
        ]
        row(name, right)
    pairs = list(pairwise(questions))
    print(f"the guard keeps {100 * sum(bool(unlike(a, b)) for a, b in pairs) / len(pairs):.1f} % of neighbours apart")
    print(f"{1000 * (time.perf_counter() - started) / count:.2f} ms a question, guard and printing included")


def measure(encoder: str | None) -> Similar:
    """The measure that is measured."""
    if encoder is None:
        return ByWords()
    from blendfilter.retrieval.encoders import load_encoder
    from blendfilter.trimming.similar import ByVector

    return ByVector(load_encoder(encoder))


def others(questions: Sequence[str], some: Sequence[int], encoder: str | None) -> list[tuple[float, bool]]:
    """How near the nearest other question is, and whether the guard lets it through; in ten parts left out in turn."""
    found = []
    for part in range(10):
        left = [question for at, question in enumerate(questions) if at % 10 != part]
        rest = measure(encoder)
        rest.add(left)
        out = [questions[at] for at in some if at % 10 == part]
        for question, near in zip(out, rest.nearest(out, floor=THRESHOLDS[0]), strict=True):
            found.append((near.similarity, unlike(question, left[near.at]) == "") if near else (0.0, False))
    return found


def row(name: str, found: Sequence[tuple[float, bool]]) -> None:
    """Shares at each threshold, `all` / `let through by the guard`."""
    cells = []
    for threshold in THRESHOLDS:
        near = [through for similarity, through in found if similarity >= threshold]
        every = len(found) or 1
        cells.append(f"{100 * len(near) / every:6.1f} /{100 * sum(near) / every:5.1f}")
    print(f"{name:22}{len(found):6}" + " ".join(f"{cell:>13}" for cell in cells))


if __name__ == "__main__":
    main()
