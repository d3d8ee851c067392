"""Small real models on real questions: scores, and the share of replies that each stage can use at once.

    python eval/real_models.py --data DATA --model smollm2=local --model gemma=gemma-3-270m-q4_k_m.gguf --n 200

DATA has questions and corpora as JSON Lines: nq/dev_gold, hotpotqa/dev, strategyqa/dev, and a folder corpus/. NQ's
methods that retrieve once are given the question's gold passage (`--retrieved`, K=1), all others what BM25 finds (K=5).
A model whose name begins with `gemma` is a base model: it is sent raw prompts (`--endpoint completions`).

A cell is a run folder under --runs: the same command goes on where it was stopped, and more questions (--n) reuse the
calls of fewer. --only chooses cells by parts of MODEL/TASK/METHOD; --table prints what is there, beside the runs of
--before, with as many questions as both sides have.

Usable at once, by one yardstick for any version: a reasoning that says "So the answer is"; a short answer of at most
ten words (Yes or No where StrategyQA asks); ids that need no second request; a check that calls a passage by its number
relevant or not; a topic of at most twelve words; a passage that is not empty. None of them cut at its cap.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blendfilter.metrics import METRICS
from blendfilter.statistics import interval, paired_bootstrap, wilson_interval
from blendfilter.text import normalize_answer

TASKS = {"nq": "dev_gold", "hotpotqa": "dev", "strategyqa": "dev"}
METHODS = {
    "direct": ["--method", "direct"],
    "direct-retrieval": ["--method", "direct-retrieval"],
    "cot-retrieval": ["--method", "cot-retrieval"],
    "check-ids": ["--method", "direct-retrieval", "--filter", "knowledge", "--no-json-schema"],
    "blendfilter": ["--method", "blendfilter", "--filter", "one-call", "--no-json-schema"],
}
"""Ids are as the model writes them: held to a grammar, all of them parse."""
SCORES = ("em", "f1", "cover-em")
REASONINGS, SHORT = {"external", "answer", "cot"}, {"direct", "short_answer"}
Row = dict[str, Any]


def run_cell(given: argparse.Namespace, name: str, lm: str, task: str, method: str) -> None:
    """One `blendfilter eval`."""
    data: Path = given.data
    questions, folder = data / task / f"{TASKS[task]}.jsonl.gz", given.runs / f"{name}-{task}-{method}-{given.n}"
    words = ["eval", task, "--data", questions, "--limit", given.n, *METHODS[method], "--lm", lm, "--run", folder,
             "--threads", given.threads, "--max-bad-replies", 1, "--no-html"]  # fmt: skip
    if name.startswith("gemma"):
        words += ["--endpoint", "completions"]
    if task == "nq" and method in ("direct-retrieval", "cot-retrieval"):
        words += ["--retrieved", gold_passages(questions, given.runs), "-k", 1]
    elif method != "direct":
        words += ["--corpus", data / "corpus" / f"{'nq_gold' if task == 'nq' else task}.jsonl.gz", "-k", 5]
    for earlier in given.runs.glob(f"{name}-{task}-{method}-*"):
        words += ["--reuse", earlier] if earlier != folder else []
    command = [sys.executable, "-c", "from blendfilter.cli import main; main()", *map(str, words)]
    if code := subprocess.run(command, check=False).returncode:
        print(f"{folder.name}: exit code {code}", file=sys.stderr)


def gold_passages(questions: Path, runs: Path) -> Path:
    """NQ's questions with their gold passage, as `--retrieved` reads them."""
    file = runs / "nq_gold.jsonl"
    with gzip.open(questions, "rt", encoding="utf-8") as rows, file.open("w", encoding="utf-8") as hits:
        for row in map(json.loads, rows):
            gold = [{"title": each["title"], "text": "".join(each["sentences"])} for each in row["metadata"]["context"]]
            hits.write(json.dumps({"question": row["question"], "passages": gold}) + "\n")
    return file


def rows_of(runs: Path, name: str, task: str, method: str) -> dict[str, Row]:
    """What the cell's largest run has predicted, by the question's id; each call with its record."""
    rows: dict[str, Row] = {}
    for folder in runs.glob(f"{name}-{task}-{method}-*[0-9]"):
        file = folder / "predictions.jsonl"
        found = {row["id"]: row for row in _lines(file)} if file.exists() else {}
        if folder.name == f"{name}-{task}-{method}-{folder.name.rpartition('-')[2]}" and len(found) > len(rows):
            calls = {call["key"]: call for call in _lines(folder / "journal.jsonl") if call.get("kind") == "call"}
            for row in found.values():
                row["calls"] = [(stage, calls[key]) for stage, key in row["calls"]]
            rows = found
    return rows


def _lines(file: Path) -> Iterator[Row]:
    with file.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def usable(rows: list[Row], task: str) -> dict[str, tuple[int, int]]:
    """For each stage: how many of its first replies could be used at once, and how many there were."""
    good, total = Counter[str](), Counter[str]()
    for row in rows:
        stages = {stage for stage, _ in row["calls"]}
        for stage, call in row["calls"]:
            if stage.endswith("_again"):
                first = stage.removesuffix("_again")
                good[first if first in stages else "judge"] -= 1
                continue
            total[stage] += 1
            good[stage] += _kept_form(stage, call, row, task)
    return {stage: (good[stage], n) for stage, n in total.items()}


def _kept_form(stage: str, call: Row, row: Row, task: str) -> bool:
    reply, cut = call["reply"].strip(), call["finish"] == "length"
    if stage in ("ids", "judge"):
        return True  # a second request follows where it was not
    if stage in SHORT:
        answer, words = row["answer"] or "", ("yes", "no")
        fits = normalize_answer(answer) in words if task == "strategyqa" else 0 < len(answer.split()) <= 10
        return fits and not answer.endswith(":") and (not cut or "\n" in reply)
    if stage in REASONINGS:
        fits = "so the answer is" in reply.lower()
    elif stage == "check":
        fits = bool(re.search(r"\b\d", reply)) and "relevant" in reply.lower()
    else:
        fits = 0 < len(reply.split()) <= (12 if stage == "topic" else 1000)
    return fits and not cut


def print_tables(given: argparse.Namespace, names: list[str]) -> None:
    """Scores by cell, then usable replies by stage, with 95 % intervals."""
    sides = [side for side in (given.before, given.runs) if side]
    heads = ["before", "after"] if len(sides) == 2 else [""]
    columns = [f"{score} {head}".strip() for head in heads for score in ("EM", "F1", "cover-EM")]
    print("| model | task | method | n | " + " | ".join(columns) + " |\n|" + " --- |" * (4 + len(columns)))
    stages: dict[tuple[str, str, str, str], list[tuple[int, int]]] = {}
    for name in names:
        for task in TASKS:
            f1: dict[str, list[list[float]]] = {}
            for method in METHODS:
                found = [rows_of(side, name, task, method) for side in sides]
                asked = [key for key in found[0] if all(key in rows for rows in found)]
                if not (n := len(asked)):
                    continue
                cells = []
                for at, rows in enumerate([by_id[key] for key in asked] for by_id in found):
                    scores = [
                        [METRICS[score](row["answer"] or "", row["golden_answers"]) for row in rows] for score in SCORES
                    ]
                    f1.setdefault(method, []).append(scores[1])
                    cells += [_told(interval(values, seed=0)) for values in scores]
                    for stage, (good, total) in usable(rows, task).items():
                        counts = stages.setdefault((name, task, method, stage), [(0, 0)] * len(sides))
                        counts[at] = counts[at][0] + good, counts[at][1] + total
                print(f"| {name} | {task} | {method} | {n} | " + " | ".join(cells) + " |")
            for at, head in enumerate(heads):
                if {"direct", "direct-retrieval"} <= set(f1):
                    pairs = list(zip(f1["direct"][at], f1["direct-retrieval"][at], strict=False))
                    test = paired_bootstrap(*map(list, zip(*pairs, strict=True)), seed=0)
                    difference = f"{100 * test.difference:+.1f} [{100 * test.low:+.1f}, {100 * test.high:+.1f}]"
                    print(
                        f"F1 with passages less without, {name}, {task}, {head} n={len(pairs)}: {difference}",
                        file=sys.stderr,
                    )
    print(
        "\n| model | task | method | stage | "
        + " | ".join(f"usable at once {head}".strip() for head in heads)
        + " |\n|"
        + " --- |" * (4 + len(heads))
    )
    for key, counts in stages.items():
        told = (f"{good} of {n}: {_told(wilson_interval(good, n))}" if n else "-" for good, n in counts)
        print(f"| {' | '.join(key)} | " + " | ".join(told) + " |")


def _told(found: tuple[float, float, float]) -> str:
    value, low, high = (100 * each for each in found)
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"


def main() -> None:
    """Run the cells that are chosen, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of questions and corpora; not for --table")
    parser.add_argument("--model", action="append", required=True, help="NAME=local or NAME=FILE.gguf")
    parser.add_argument("--n", type=int, default=200, help="questions of each cell (200)")
    parser.add_argument("--only", action="append", default=[], help="such as smollm2, nq/direct; may be given again")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs/real-models"))
    parser.add_argument("--table", action="store_true", help="print the tables and stop")
    parser.add_argument("--before", type=Path, help="runs of another version, for --table")
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    models = dict(model.split("=", 1) for model in given.model)
    for name, lm in models.items():
        for cell in (f"{name}/{task}/{method}" for task in TASKS for method in METHODS):
            if not given.table and (not given.only or any(f"/{part}/" in f"/{cell}/" for part in given.only)):
                run_cell(given, name, lm, *cell.split("/")[1:])
    print_tables(given, list(models))


if __name__ == "__main__":
    main()
