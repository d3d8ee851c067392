"""Questions with their gold passage among retrieved ones, as `--retrieved` reads them.

    python eval/bench/gold_among.py nq/dev_gold.jsonl.gz corpus/nq_gold.jsonl.gz corpus/wiki18_retrieved.jsonl.gz \\
        --limit 300 --out nq3.jsonl

Of each question its first own paragraph (NQ's gold one) and the best passages of BM25 over the corpora that are not it,
three in all, in an order drawn by chance.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import blendfilter as bf


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions")
    parser.add_argument("corpora", nargs="+")
    parser.add_argument("--task", default="nq")
    parser.add_argument("--limit", type=int)
    parser.add_argument("-k", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    questions = bf.load(given.task, given.questions, limit=given.limit)
    passages = {(each.title, each.text) for path in given.corpora for each in bf.read_corpus(path)}
    index = bf.BM25.build([bf.Passage(text, title=title) for title, text in sorted(passages)])
    chance = random.Random(5)
    with given.out.open("w", encoding="utf-8") as out:
        for one, found in zip(questions, index.search([one.question for one in questions], given.k), strict=True):
            gold = one.context[0]
            others = [hit for hit in found if hit.text.split() != gold.text.split()]
            three = [gold, *others[: given.k - 1]]
            chance.shuffle(three)
            rows = [{"title": each.title, "text": each.text} for each in three]
            out.write(json.dumps({"question": one.question, "passages": rows}) + "\n")


if __name__ == "__main__":
    main()
