"""What a long run costs: the peak memory and the processor time of a process that answers N questions, what its page
adds, and how long its report takes to open.

    python eval/bench/long_run.py --questions dev.jsonl.gz --corpus corpus.jsonl.gz [--sizes 1000 7005] [--served]

The offline reader answers, BlendFilter's calls are journaled, each size has a process of its own. Told is its resident
memory at the most, as the system counts it: after the run and its text report (`--no-html`), and after the page too
(`--html`). Both grow by what a further call costs. The reader remembers texts that it has taken apart, which counts
too; with `--served` it answers from a server in a process of its own (`tests/model_server.py`), as a model would.
Where there are fewer questions than asked for they are asked again, with a number behind them. `--no-page`: without it.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from model_server import serve

import blendfilter as bf
from blendfilter.modules.methods import make_method
from blendfilter.report.run_text import report_text


class Took(NamedTuple):
    """A run: its questions, its calls, kB of memory at the most, without and with the page, ms of the processor for the
    run, and ms in which its report is read again."""

    questions: int
    calls: int
    run: int
    page: int
    busy: int
    opened: int


def answer(args: argparse.Namespace, size: int) -> Took:
    """In a process of its own: the run, its report, its page."""
    questions = some(args, size)
    method = make_method(args.method, bf.BM25.for_corpus(args.corpus))
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        lm = bf.connect("offline")
        if args.served:
            lm = bf.connect("any/model", api_base=stack.enter_context(serve(reply="offline")).url)
        began = time.process_time()
        run = bf.evaluate(method, questions, lm=lm, run=folder, progress=False)
        busy, began = time.process_time() - began, time.process_time()
        report_text(bf.Run(folder))
        opened = time.process_time() - began
        calls, before = run.metrics["ledger"]["total"]["calls"], peak()  # run.rows would read every row back
        if not args.no_page:
            run.html()
    return Took(len(questions), calls, before, peak(), round(1000 * busy), round(1000 * opened))


def some(args: argparse.Namespace, size: int) -> bf.Questions:
    """So many questions: the file's, and where these are too few the same again, numbered."""
    questions = bf.load(args.task, args.questions, limit=size)
    if len(questions) == size:
        return questions
    items = list(questions)
    again = (items[at % len(items)] for at in range(size))
    named = (
        replace(each, id=f"{each.id}-{at}", question=f"{each.question} ({at})") if at >= len(items) else each
        for at, each in enumerate(again)
    )
    return replace(questions, items=tuple(named))


def peak() -> int:
    """Resident memory of this process at the most, in kB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Run every size in a process of its own, print each and the growth from the one before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="hotpotqa")
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--method", default="blendfilter")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 7005])
    parser.add_argument("--served", action="store_true", help="the reader in a process of its own")
    parser.add_argument("--no-page", action="store_true", help="do not make the page")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(*answer(args, args.one))
        return
    before: Took | None = None
    for size in args.sizes:
        command = [sys.executable, __file__, *sys.argv[1:], "--one", str(size)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        took = Took(*map(int, done.stdout.split()[-6:]))
        print(f"{took.questions:,} questions, {took.calls:,} calls: {took.run / 1024:.0f} MB at the most, "
              f"{took.page / 1024:.0f} MB with the page; {took.busy / took.questions:.1f} ms of the processor a "
              f"question; report in {took.opened / 1000:.2f} s", flush=True)  # fmt: skip
        if before is not None:
            further = took.calls - before.calls
            print(f"  a further call: {(took.run - before.run) / further:.2f} kB, "
                  f"{(took.page - before.page) / further:.2f} kB with the page", flush=True)  # fmt: skip
        before = took


if __name__ == "__main__":
    main()
