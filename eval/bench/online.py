"""The online method on a stream in which every question comes again in other words: judge calls, and wrong reuses.

    python eval/bench/online.py DATA [--count 60] [--run FOLDER]

DATA is a folder of real questions and paragraphs (PopQA). The offline reader judges and answers, so calls and decisions
are real, and scores are not. Beside it runs `ralm --filter cdit`, which judges every question.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from paraphrases import RULES, polite

import blendfilter as bf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--run", type=Path, default=Path(tempfile.mkdtemp(prefix="online-")))
    given = parser.parse_args()
    questions = [*bf.load("popqa", given.data / "popqa" / "test.jsonl.gz")]
    index = bf.BM25.build(given.data / "corpus" / "popqa.jsonl.gz")
    rows, source, rules = [], dict[str, str](), (*RULES, polite)
    for at, question in enumerate(random.Random(5).sample(questions, given.count)):
        for text in (question.question, rules[at % len(rules)](question.question)):
            source[text] = question.question
            rows.append({"question": text, "answer": list(question.golden_answers)})
    for name, method in (("cdit", bf.CDIT(index)), ("ralm --filter cdit", bf.RALM(index, filter="cdit"))):
        place = given.run / name.replace(" ", "")
        run = bf.evaluate(method, rows, lm="offline", run=place, progress=False)
        calls = Counter(stage for row in run.rows for stage, _ in row["calls"])
        reused = sum(row["flags"].get("verdicts_reused", 0) for row in run.rows)
        with bf.Journal(place, "replay") as journal:
            decided = [(each["question"], near) for each in journal.records("reuse") for near, _ in each["near"]]
        wrong = sum(source[question] != source[near] for question, near in decided)
        print(f"{name}: {dict(calls)}; {reused} of {len(run.rows)} by another's verdicts, {wrong} wrongly")


if __name__ == "__main__":
    main()
