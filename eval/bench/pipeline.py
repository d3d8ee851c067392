"""The whole pipeline against a local model server: calls a question, wall time, throughput, processor time a call.

    python eval/bench/pipeline.py calls|wall|throughput|command|optimisers [--delay SECONDS] [--rounds N]

The server is `tests/model_server.py` in a process of its own, which answers with the offline reader (of `optimisers`,
`tests/optimised.py` in this process: at 0 ms, by a hash of the prompt); questions and
passages are the sample world's. Times are printed as ratios of what the same run measured.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
import dspy
from http_server import answering
from model_server import Server, serve
from optimised import OPTIMIZERS, CountingServer, Sessions

import blendfilter as bf
from blendfilter.resources import sample


def index() -> bf.BM25:
    """The sample world, in memory."""
    return bf.BM25.build(sample("corpus.jsonl"))


def questions_with_three_lists(method: bf.BlendFilter, lm: dspy.LM, wanted: int) -> list[str]:
    """Sample questions whose three queries bring three different ranked lists, so that no filter is shared."""
    found = []
    with dspy.context(lm=lm):
        for question in bf.load("qa", "sample"):
            branches = method(question=question.question).branches.values()
            if len({tuple(p.id for p in branch.retrieved) for branch in branches}) == len(branches):
                found.append(question.question)
            if len(found) == wanted:
                break
    return found


def calls(_: argparse.Namespace) -> None:
    """Requests that a server counts for one question at temperature 0, three ranked lists that differ."""
    for task, expected in (("hotpotqa", 11), ("strategyqa", 10)):
        with serve(reply="offline", keep=True) as server:
            lm = bf.connect("any/model", api_base=server.url, temperature=0.0, cache=False)
            method = bf.BlendFilter(index(), task=task)
            (question,) = questions_with_three_lists(method, bf.connect("offline"), 1)
            with dspy.context(lm=lm):
                prediction = method(question=question)
            stats = server.stats()
        stages = Counter(stage for stage, _ in prediction.calls)
        different = len(set(stats["prompts"]))
        print(f"{task}: {stats['requests']} requests (expected {expected}), {different} different prompts")
        print(f"  {dict(stages)}")
        assert stats["requests"] == len(set(stats["prompts"])) == expected


def wall(args: argparse.Namespace) -> None:
    """Wall time of one question in units of the server's delay: the pipeline is 5 calls deep."""
    delay = args.delay or 0.2
    with serve(reply="offline", delay=delay) as server:
        lm = bf.connect("any/model", api_base=server.url, cache=False)
        method = bf.BlendFilter(index())
        questions = questions_with_three_lists(method, bf.connect("offline"), 12)
        times = []
        for question in questions:
            start = time.perf_counter()
            with dspy.context(lm=lm):
                method(question=question)
            times.append((time.perf_counter() - start) / delay)
    first, rest = times[0], times[1:]
    print(f"one question at {delay * 1000:.0f} ms a call: {statistics.median(rest):.2f} x the delay,")
    print(f"  median of {len(rest)}; worst {max(rest):.2f} x, the first of the process {first:.2f} x")


def throughput(args: argparse.Namespace) -> None:
    """64 questions at --concurrency 32: calls a second over the whole run, and the most in flight."""
    delay = args.delay or 0.5
    questions = bf.load("qa", "sample", limit=64)
    with serve(reply="offline", delay=delay) as server, tempfile.TemporaryDirectory() as folder:
        lm = bf.connect("any/model", api_base=server.url)
        method = bf.BlendFilter(index())
        start = time.perf_counter()
        run = bf.evaluate(method, questions, lm=lm, run=folder, concurrency=32, progress=False)
        seconds, errors = time.perf_counter() - start, run.errors
        stats = server.stats()
    ceiling = 32 / delay
    rate = stats["requests"] / seconds
    print(f"{len(questions)} questions, {stats['requests']} calls in {seconds:.2f} s: {rate:.1f} calls a second,")
    print(f"  {100 * rate / ceiling:.1f} % of {ceiling:.0f}; most in flight {stats['max_in_flight']}; errors {errors}")


def command(args: argparse.Namespace) -> None:
    """Processor time a call of the whole command, and of the program that one would write with DSPy alone.

    Marginal, between 32 and 256 questions, so that no start counts: `blendfilter eval --method blendfilter`, and 13
    calls `lm(prompt)` one after the other, of as long prompts, under `dspy.Evaluate`; 32 in flight, server at 0 ms.
    """
    known = [question.question for question in bf.load("qa", "sample")]
    with serve(reply="offline") as server, tempfile.TemporaryDirectory() as folder:
        model = ["--lm", "any/model", "--api-base", server.url]
        whole = [
            "-m",
            "blendfilter.cli",
            "eval",
            "qa",
            "--corpus",
            "sample",
            *model,
            "--concurrency",
            "32",
            "--no-html",
        ]
        commands: dict[str, Callable[[str, int], list[str]]] = {
            "command": lambda file, at: [*whole, "--data", file, "--run", f"{file}-{at}"],
            "plain": lambda file, _: ["-c", PLAIN, server.url, file],
        }
        for n in (32, 256):
            rows = [{"question": f"{at // len(known)}: {known[at % len(known)]}", "answer": "?"} for at in range(n)]
            Path(f"{folder}/{n}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        found: dict[str, list[float]] = {name: [] for name in commands}
        for at in range(args.rounds):
            for name, words in commands.items():
                (few, little), (many, much) = (_command(server, words(f"{folder}/{n}.jsonl", at)) for n in (32, 256))
                found[name].append(1000 * (much - little) / (many - few))
                print(f"{name}: {many - few} calls, {found[name][-1]:.2f} ms of a processor each", flush=True)
    ours, plain = (statistics.median(found[name]) for name in commands)
    print(f"medians: command {ours:.2f} ms, plain DSPy {plain:.2f} ms, {ours / plain:.2f} x")


def optimisers(args: argparse.Namespace) -> None:
    """Processor and wall time of DSPy's own optimisers with a journal, over those without: runs in pairs, medians."""
    model = CountingServer()
    with answering(model) as root, Sessions() as sessions, tempfile.TemporaryDirectory() as folder:
        sessions.ready()
        for optimizer in OPTIMIZERS:
            ratios = []
            for at in range(args.rounds):
                spent: dict[str, tuple[float, float, int]] = {}
                for way in ("dspy", "no journal")[:: 1 - 2 * (at % 2)]:
                    place = Path(folder) / f"{optimizer} {at} {way}"
                    place.mkdir()
                    answered, start = model.answered.total(), time.perf_counter()
                    sessions.begin(way, optimizer, f"{root}/v1", place)
                    code, seconds = sessions.ended()
                    assert code == 0, (place / "session.log").read_text()
                    spent[way] = seconds, time.perf_counter() - start, model.answered.total() - answered
                ratios.append([a / b for a, b in zip(spent["dspy"], spent["no journal"], strict=True)])
            processor, wall, calls = (statistics.median(each) for each in zip(*ratios, strict=True))
            print(f"{optimizer}: {processor:.2f} x the processor time, {wall:.2f} x the time, {calls:.2f} x the calls")


PLAIN = """
import json, sys, dspy
url, file = sys.argv[1:]
lm = dspy.LM("openai/any/model", api_base=url, api_key="none", cache=False, temperature=0.0, max_tokens=256)
dspy.configure(lm=lm)

class Program(dspy.Module):
    def forward(self, question):
        for step in range(13):
            answer = lm(f"{step} {question} " + "Knowledge: the harbour lies in the east of the island. " * 45)[0]
        return dspy.Prediction(answer=answer)

rows = [dspy.Example(**json.loads(line)).with_inputs("question") for line in open(file)]
dspy.Evaluate(devset=rows, metric=lambda *_: 0.0, num_threads=32, display_progress=False)(Program())
"""


def _command(server: Server, words: list[str]) -> tuple[int, float]:
    """The calls that a Python command made, and the processor seconds that it took."""
    asked, before = server.stats()["requests"], resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return int(server.stats()["requests"] - asked), spent


BENCHES: dict[str, Callable[[argparse.Namespace], None]] = {
    "calls": calls,
    "wall": wall,
    "throughput": throughput,
    "command": command,
    "optimisers": optimisers,
}


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=BENCHES)
    parser.add_argument("--delay", type=float, help="seconds the server waits before each reply")
    parser.add_argument("--rounds", type=int, default=6)
    args = parser.parse_args()
    BENCHES[args.what](args)


if __name__ == "__main__":
    main()
