"""Evaluate in three shards, each in a process of its own, and merge them into the run that one process makes.

The shards share nothing, so they may as well be on three machines: `blendfilter eval … --shard 1/3 --run 1of3` there,
and `blendfilter merge ?of3 --out merged` (docs/scale.md). The bytes are the same where the same prompt gets the same
reply, as it does from the offline rules.

    questions: 1of3 10, 2of3 10, 3of3 10, merged 30
    predictions.jsonl has the bytes of the whole run: True
    metrics.json has the bytes of the whole run: True
    all five runs: …
"""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import mkdtemp

import blendfilter as bf
from blendfilter.resources import sample

lm = bf.connect("offline")  # rules that read: they show the steps, not how well a model takes them
# lm = bf.connect("openai/gpt-4o-mini")  # a model; or any name with api_base="http://localhost:8000/v1"
method, questions = bf.BlendFilter(bf.BM25.build(sample("corpus.jsonl")), k=3), bf.load("qa", "sample", limit=30)


def evaluate(part, folder):
    return bf.evaluate(method, part, lm=lm, run=folder, progress=False)


if __name__ == "__main__":
    runs, parts = Path(mkdtemp()), [questions.shard(number, 3) for number in (1, 2, 3)]
    with ProcessPoolExecutor(3) as processes:
        shards = list(processes.map(evaluate, parts, [runs / "1of3", runs / "2of3", runs / "3of3"]))
    merged, whole = bf.merge(*shards, out=runs / "merged"), evaluate(questions, runs / "whole")
    print("questions:", ", ".join(f"{run.name} {len(run.rows)}" for run in (*shards, merged)))
    for file in ("predictions.jsonl", "metrics.json"):
        same = (merged.folder / file).read_bytes() == (whole.folder / file).read_bytes()
        print(f"{file} has the bytes of the whole run: {same}")
    print("all five runs:", runs)
