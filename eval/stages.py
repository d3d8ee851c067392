"""BlendFilter and its baselines by one small model that learned their stages, on questions that it never saw.

    python eval/stages.py --data DATA --base SMOLLM2 --out runs/stages

DATA has questions and corpora as JSON Lines: hotpotqa/dev and train_sample, 2wikimultihopqa/dev_hipporag and dev, and a
folder corpus/. Paragraphs are cut to whole sentences of at most --words words, so that two cores read them in time
(ours). 200 questions of each task, chosen by the hash of their ids, are held out; no training question shares a gold
paragraph with one. Everything is resumable: the same command goes on where it was stopped.

Parts, in this order, of which --only chooses some: data, train, TASK/METHOD (hotpotqa/blendfilter), untrained/FILTER,
replay (every run again from its journal alone, the same bytes), table. An estimate of the time comes first.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import blendfilter as bf
from blendfilter.errors import one_line
from blendfilter.statistics import interval, paired_bootstrap
from blendfilter.text import folded, sentences
from blendfilter.training.settings import TrainingSettings
from blendfilter.training.stages import METHODS as TAUGHT
from blendfilter.training.stages import TaughtMethod, apart, drawn, recipe_of, stage_examples
from blendfilter.training.trainer import train_model

HELD_OUT, K = 200, 5
TASKS = {
    "hotpotqa": (["hotpotqa/dev", "hotpotqa/train_sample"], "hotpotqa"),
    "twowiki": (["2wikimultihopqa/dev_hipporag", "2wikimultihopqa/dev"], "2wikimultihopqa"),
}
"""Question files, of whose first one questions are held out, and the corpus."""
METHODS: dict[str, tuple[list[Any], float, int]] = {
    "direct-retrieval": (["--method", "direct-retrieval", "-k", K], 1, 5),
    "cot-retrieval": (["--method", "cot-retrieval", "-k", K], 1.5, 70),
    "cot-retrieval-15": (["--method", "cot-retrieval", "-k", 15], 3.5, 70),
    "self-consistency": (["--method", "self-consistency", "-k", K, "--samples", 5], 1.5, 330),
    "iter-retgen": (["--method", "iter-retgen", "-k", K], 1.5, 70),
    "blendfilter": (["--method", "blendfilter", "-k", K], 9, 270),
    "blendfilter-one-call": (["--method", "blendfilter", "-k", K, "--filter", "one-call"], 5, 230),
    "blendfilter-pointwise": (["--method", "blendfilter", "-k", K, "--filter", "pointwise"], 4, 90),
}
"""Options; for the estimate, lists of K passages read and tokens written a question, without what earlier runs paid."""
FILTERS = {"knowledge": "blendfilter", "one-call": "blendfilter-one-call", "pointwise": "blendfilter-pointwise"}
"""Each filter, and the run whose first branch has what it keeps of the question's own passages."""
TRAINED, READ, WRITTEN = 280, 650, 140
"""Tokens a second on two cores, for the estimate."""


def prepare(given: argparse.Namespace) -> None:
    """Write each task's questions to evaluate, those to train on, and its corpus of short paragraphs."""
    for task, (files, corpus) in TASKS.items():
        rows = [[*lines(given.data / f"{name}.jsonl.gz")] for name in files]
        first = sorted(rows[0], key=lambda row: hashlib.sha256(row["id"].encode()).hexdigest())
        few = min(HELD_OUT, len(first) // 2)
        others = {row["id"]: row for row in [*first[few:], *(row for more in rows[1:] for row in more)]}
        write(given.out / f"{task}.held-out.jsonl", first[:few])
        write(given.out / f"{task}.others.jsonl", others.values())
        if not (short := corpus_of(given, task)).exists():
            passages = lines(given.data / "corpus" / f"{corpus}.jsonl.gz")
            write(short, ({**each, "text": cut(each["text"], given.words)} for each in passages))


def corpus_of(given: argparse.Namespace, task: str) -> Path:
    """The task's file of short paragraphs."""
    return Path(given.out / f"{task}.corpus-{given.words}.jsonl")


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file of JSON Lines, gzipped or not."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as rows:
        yield from map(json.loads, rows)


def write(path: Path, rows: Iterable[Any]) -> None:
    """Rows as JSON Lines, whole or not at all."""
    beside = path.with_suffix(".partial")
    beside.write_text("".join(json.dumps(row) + "\n" for row in rows))
    beside.rename(path)


def cut(text: str, words: int) -> str:
    """The first whole sentences, of `words` words at most; of a longer first one its beginning."""
    kept: list[str] = []
    for sentence in sentences(text):
        if kept and len(" ".join([*kept, sentence.text]).split()) > words:
            break
        kept.append(sentence.text)
    return " ".join(" ".join(kept).split()[:words])


def train(given: argparse.Namespace) -> None:
    """One LoRA on examples of both tasks, of every stage."""
    made, recipes = [], {}
    held_out = [each for task in TASKS for each in bf.load(task, given.out / f"{task}.held-out.jsonl")]
    for task in TASKS:
        others = bf.load(task, given.out / f"{task}.others.jsonl")
        left = apart(others, held_out)
        print(f"{task}: {len(others) - len(left)} of {len(others)} questions share gold with one held out: left out")
        taught = [*TAUGHT, TaughtMethod("cot-retrieval", k=15)]
        index = bf.BM25.for_corpus(corpus_of(given, task))
        left = left[: max(2, given.train // 4)]
        examples = stage_examples(left, index, k=K, methods=taught, progress=say)
        few = drawn(examples, given.train // len(TASKS))
        recipes[task] = {**recipe_of(few, left, index, k=K, add_gold=0.5), "words": given.words}
        made += few
    settings = TrainingSettings(epochs=1, learning_rate=3e-4, batch_size=16, warmup_steps=5, max_input_tokens=2048,
                                precision=given.precision)  # fmt: skip
    recipe = {"part": "stages", "of": recipes}
    trained = train_model(given.base, [each.example for each in made], given.out / "model", settings, recipe=recipe,
                          save_every=20, progress=say)  # fmt: skip
    print(json.dumps(trained.recipe["result"]))


def say(phase: str, done: int, total: int) -> None:
    """How far it is, now and then."""
    if done == total or not done % 25:
        print(f"{phase}: {done} of {total}", file=sys.stderr, flush=True)


def run(given: argparse.Namespace, task: str, name: str, options: list[Any], lm: str) -> None:
    """One `blendfilter eval`; calls that earlier runs of the task made are taken from them, those of fewer questions
    (--n) too, where their folder was renamed (runs-100)."""
    folder = given.out / "runs" / f"{task}-{name}"
    earlier = [each for each in sorted(given.out.glob(f"runs*/{task}-*")) if each != folder and each.is_dir()]
    words = ["eval", task, "--data", given.out / f"{task}.held-out.jsonl", "--limit", given.n, "--demos", "none",
             "--corpus", corpus_of(given, task), "--lm", lm, "--reply-tokens", 192, "--run", folder,
             "--max-bad-replies", 1, "--no-html", "--concurrency", max(16, given.batch_size), *options]  # fmt: skip
    words += [word for each in earlier for word in ("--reuse", each)]
    blendfilter(*words, *(["--threads", given.threads] if lm != "offline" else []))


def blendfilter(*words: Any) -> None:
    """The command, in a process of its own. Where it fails this script ends as it did, but for single questions."""
    command = [sys.executable, "-c", "from blendfilter.cli import main; main()", *map(str, words)]
    if (code := subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode) not in (0, 1):
        sys.exit(code)


def parts_of(given: argparse.Namespace) -> dict[str, Callable[[], None]]:
    """What there is to do, by name and in order: what is reused comes before what reuses it."""
    parts = {"data": partial(prepare, given), "train": partial(train, given)}
    for task in TASKS:
        parts |= {f"{task}/{name}": partial(run, given, task, name, METHODS[name][0], given.lm) for name in METHODS}
    for name in FILTERS:
        options = [*METHODS["direct-retrieval"][0], "--filter", name]
        parts[f"untrained/{name}"] = partial(run, given, "hotpotqa", f"untrained-{name}", options, given.base_lm)
    return parts | {"replay": partial(replay, given), "table": partial(table, given)}


def replay(given: argparse.Namespace) -> None:
    """Every finished run once more, from a copy of its folder, with no model: the same bytes or an error."""
    finished = sorted(each.parent for each in (given.out / "runs").glob("*/metrics.json"))
    for folder in finished:
        with tempfile.TemporaryDirectory() as beside:
            copy = shutil.copytree(folder, Path(beside) / folder.name)
            for name in ("predictions.jsonl", "metrics.json"):
                (copy / name).unlink()
            words = ["eval", folder.name.partition("-")[0], "--like", copy, "--run", copy, "--replay"]
            blendfilter(*words, "--max-bad-replies", 1, "--no-html")
            for name in ("predictions.jsonl", "metrics.json"):
                if (copy / name).read_bytes() != (folder / name).read_bytes():
                    sys.exit(f"{folder}: {name} is another in a replay")
    print(f"{len(finished)} runs replayed from their journals: the same bytes")


# --- tables -----------------------------------------------------------------------------------------------------------

BASES = ("direct-retrieval", "cot-retrieval")
"""What every method is compared with."""
LOSSES = ("not_retrieved", "filtered_away", "answered_wrong", "right", "right_without_gold")


def table(given: argparse.Namespace) -> None:
    """The paired table of each task, and that of the filters, as Markdown."""
    for task in TASKS:
        folders = {name: given.out / "runs" / f"{task}-{name}" for name in METHODS}
        runs = {name: bf.Run(path) for name, path in folders.items() if (path / "metrics.json").exists()}
        if "direct-retrieval" not in runs:
            continue
        differences = {
            (base, row.run, row.measure): row
            for base in BASES
            if base in runs and len(runs) > 1
            for row in bf.compare(runs[base], *runs.values(), metrics=["em", "f1"]).rows
            if row.difference is not None
        }
        n = runs["direct-retrieval"].metrics["n"]
        print(f"\n{task}, {n} held-out questions: EM and F1 in % with 95 % intervals and paired differences, "
              "gold titles in what is kept in %, and calls, tokens and seconds a question\n")  # fmt: skip
        to = [f"to {base}" for base in BASES]
        head("method", "EM", *to, "F1", *to, *(each.replace("_", " ") for each in LOSSES), "kept: precision",
             "recall", "calls", "tokens in", "out", "seconds")  # fmt: skip
        for name, done in runs.items():
            cells = [name]
            for measure in ("em", "f1"):
                score = done.metrics["metrics"][measure]
                cells.append(shown(score["value"], score["low"], score["high"]))
                for base in BASES:
                    found = differences.get((base, done.name, measure))
                    cells.append(shown(found.difference, found.low, found.high, "+") if found else "")
            cells += [str(done.losses()[kind]) for kind in LOSSES]
            cells += [f"{100 * done.metrics['retrieval']['kept'][each]:.1f}" for each in ("precision", "recall")]
            total = done.metrics["ledger"]["total"]
            cells += [f"{total[each] / n:,.1f}" for each in ("calls", "tokens_in", "tokens_out")]
            print("| " + " | ".join([*cells, f"{busy_seconds(done) / n:.1f}"]) + " |")
    filter_table(given)


def head(*names: str) -> None:
    """The head of a table."""
    print("| " + " | ".join(names) + " |\n|" + " --- |" * len(names))


def shown(value: float, low: float, high: float, sign: str = "") -> str:
    """A share and its interval in %."""
    return f"{100 * value:{sign}.1f} [{100 * low:{sign}.1f}, {100 * high:{sign}.1f}]"


def busy_seconds(done: bf.Run) -> float:
    """Seconds in which some call of the run was under way; a batch counts once, a reused call with its own time."""
    with done.journal() as journal:
        keys = {key for row in done.rows for _, key in row["calls"]}
        calls = sorted((call["at"], call["seconds"]) for key in keys if (call := journal.read_call(key)))
    end, total = 0.0, 0.0
    for begin, length in calls:
        total += max(0.0, begin + length - max(begin, end))
        end = max(end, begin + length)
    return total


def filter_table(given: argparse.Namespace) -> None:
    """What each filter keeps of a HotPotQA question's own passages, trained and not, beside chance and BM25's order."""
    titles = {row["id"]: folded(row["title"]) for row in lines(corpus_of(given, "hotpotqa"))}
    print("\nThe filters on a question's own passages, HotPotQA, in %: precision of what is kept, less the share of "
          "gold among all (chance), less that of as many of BM25's first; recall of retrieved gold, less that of as "
          "many of BM25's first\n")  # fmt: skip
    head("filter", "model", "n", "kept", "precision", "less chance", "less BM25's", "recall", "less BM25's")
    for name, method in FILTERS.items():
        for model, run_name in (("trained", method), ("untrained", f"untrained-{name}")):
            folder = given.out / "runs" / f"hotpotqa-{run_name}"
            if (folder / "metrics.json").exists():
                rows = [row for row in bf.Run(folder).rows if row["error"] is None]
                print("| " + " | ".join([name, model, *filter_figures(rows, titles)]) + " |")


def filter_figures(rows: Sequence[dict[str, Any]], titles: Mapping[str, str]) -> list[str]:
    """The cells of one filter, from rows whose branch `q` says what was retrieved and kept."""
    precision, chance, first, recall, first_recall = ([] for _ in range(5))  # type: list[list[float]]
    counts = []
    for row in rows:
        gold, branch = {folded(title) for title in row["gold_titles"]}, row["branches"]["q"]
        own, kept = ([titles[each] in gold for each in branch[which]] for which in ("retrieved", "kept"))
        likewise = own[: len(kept)]
        counts.append(len(kept))
        precision.append(fmean(kept) if kept else 0.0)
        chance.append(fmean(own))
        first.append(fmean(likewise) if kept else 0.0)
        if any(own):
            recall.append(sum(kept) / sum(own))
            first_recall.append(sum(likewise) / sum(own))
    if not recall:
        return [str(len(rows)), *["-"] * 6]
    cells = [str(len(rows)), f"{fmean(counts):.1f}"]
    for values, others in ((precision, (chance, first)), (recall, (first_recall,))):
        cells.append(shown(*interval(values, seed=0)))
        tests = [paired_bootstrap(other, values, seed=0) for other in others]
        cells += [shown(test.difference, test.low, test.high, "+") for test in tests]
    return cells


def estimate(given: argparse.Namespace) -> None:
    """Print about how long all of it takes."""
    tokens = K * 1.25 * given.words + 100  # of a list: paragraphs are a quarter shorter than the cap; and the rest
    reads, writes = (sum(each[at] for each in METHODS.values()) for at in (1, 2))
    hours = {
        "train": given.train * 0.8 * tokens / TRAINED / 3600,
        "evaluate": len(TASKS) * given.n * (reads * tokens / READ + writes / WRITTEN) / 3600,
        "untrained filters": given.n * (4 * tokens / READ + 400 / WRITTEN) / 3600,
    }
    told = ", ".join(f"{name} {value:.1f}" for name, value in hours.items())
    print(f"about {sum(hours.values()):.1f} hours on two cores ({told})", file=sys.stderr, flush=True)


def main() -> None:
    """Do the parts that are chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of questions and corpora")
    parser.add_argument("--base", default="HuggingFaceTB/SmolLM2-135M-Instruct", help="a folder, or a name on the hub")
    parser.add_argument("--out", type=Path, default=Path("runs/stages"))
    parser.add_argument("--n", type=int, default=HELD_OUT, help=f"questions of each task, of {HELD_OUT} held out")
    parser.add_argument("--train", type=int, default=2000, help="examples, of both tasks together (2000)")
    parser.add_argument("--words", type=int, default=60, help="words of a paragraph at most (60)")
    parser.add_argument("--threads", type=int, default=2, help="processor threads of the model (2)")
    parser.add_argument("--precision", default="float32", help="of training; bf16 is faster on some processors")
    parser.add_argument("--dtype", default="float32", help="of reading and answering; bfloat16 is faster")
    parser.add_argument("--batch-size", type=int, default=16, help="replies that are written at a time (16)")
    parser.add_argument("--only", action="append", default=[], help="a part, such as train, hotpotqa, twowiki/direct")
    parser.add_argument("--lm", help="another model in place of the trained one (offline: to try the script)")
    given = parser.parse_args()
    how = f"?dtype={given.dtype}&batch_size={given.batch_size}"
    given.base_lm = given.lm or f"hf/{given.base}{how}"
    given.lm = given.lm or f"hf/{given.out / 'model'}{how}"
    given.out.mkdir(parents=True, exist_ok=True)
    parts = parts_of(given)
    only = {*given.only} or {*parts}
    chosen = {part: do for part, do in parts.items() if {part, part.partition("/")[0]} & only}
    if not chosen:
        parser.error(f"--only names no part; there are {', '.join(parts)}")
    if not given.only:
        estimate(given)
    with one_line():  # bad input: what, where and the next move, exit code 2
        for part, do in chosen.items():
            print(f"--- {part}", file=sys.stderr, flush=True)
            do()


if __name__ == "__main__":
    main()
