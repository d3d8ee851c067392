"""DSPy's optimisers at work in processes of their own, over a program whose path depends on every reply.

As a process: ``python tests/optimised.py`` imports everything once and forks a session for each line ``WAY OPTIMIZER
URL FOLDER`` that it reads; it prints the process id and then the exit code. A session works in its folder and writes
`program.json` there. Hash seed and addresses are the process's own, so two such processes show what depends on them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any
from zlib import crc32

import dspy
from compiled import sample_index
from http_server import Answer, Request
from tqdm import tqdm

from blendfilter import BM25, BlendFilter, cli, connect
from blendfilter.lm.offline import read
from blendfilter.tasks import load

OPTIMIZERS = ("bootstrap", "mipro", "gepa")
WORDS = ("sound", "pilot", "the grey tower", "unknown")
GOLDEN = {question.question: question.golden_answers[0] for question in load("hotpotqa", "sample")}
TRAIN, THREADS, SEED = 6, 3, 4


class Hops(dspy.Module):
    """Two searches by one predictor, whose replies the next ones read: few words, so equal texts come again."""

    def __init__(self, retriever: Any, k: int = 2) -> None:
        super().__init__()
        self.retriever, self.k = retriever, k
        self.ask = dspy.Predict("notes: list[str], question -> query")
        self.reply = dspy.ChainOfThought("notes: list[str], question -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        notes: list[str] = []
        for _ in range(2):
            query = self.ask(notes=notes, question=question).query
            notes = [*notes, query, *(passage.line for passage in self.retriever(query, k=self.k))]
        return dspy.Prediction(answer=self.reply(notes=notes, question=question).answer)


def written(prompt: str) -> str:
    """The reply to a prompt of DSPy's: drawn by its text, every second answer the right one; to others the reader's."""
    _, marked, wanted = prompt.rpartition("Respond with")
    if not marked:
        return read(prompt)
    draw = crc32(prompt.encode())
    asked = max(GOLDEN, key=prompt.rfind)
    said = {
        "answer": GOLDEN[asked] if draw % 2 else WORDS[draw // 2 % 4],
        "query": WORDS[draw % 4],
        "reasoning": f"Of {WORDS[draw % 4]}.",
    }
    # what an optimiser asks for itself
    other = f"Read {draw % 997} times, then say what was asked."
    if "JSON" in wanted:
        return json.dumps({name: said.get(name, other) for name in re.findall(r"`(\w+)`", wanted)})
    names = [name for name in re.findall(r"\[\[ ## (\w+) ## \]\]", wanted) if name != "completed"]
    return "\n\n".join(f"[[ ## {name} ## ]]\n{said.get(name, other)}" for name in names)


def measured(example: Any, prediction: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> bool:
    """A metric as GEPA wants it."""
    return str(example.answer) == str(prediction.answer)


def optimised(optimizer: str, student: dspy.Module, lm: dspy.LM, seed: int | None = SEED) -> dspy.Module:
    """`student` as a user compiles it with DSPy alone: nothing of ours but the model and its journal."""
    rows = [dspy.Example(question=q, answer=a).with_inputs("question") for q, a in [*GOLDEN.items()][: 2 * TRAIN]]
    train, valid = rows[:TRAIN], rows[TRAIN:]
    search: dict[str, Any] = {"metric": measured, "num_threads": THREADS, "seed": seed}
    with dspy.context(lm=lm):
        if optimizer == "bootstrap":
            few_shot = dspy.BootstrapFewShot(metric=measured, max_bootstrapped_demos=4, max_rounds=2)
            return few_shot.compile(student, trainset=train)
        if optimizer == "mipro":
            mipro = dspy.MIPROv2(auto=None, num_candidates=4, **search)
            how = {"num_trials": 4, "minibatch_size": 3, "minibatch_full_eval_steps": 2}
            return mipro.compile(student, trainset=train, valset=valid, **how)
        gepa = dspy.GEPA(max_metric_calls=70, reflection_lm=lm.copy(temperature=1.0), **search)
        return gepa.compile(student, trainset=train, valset=valid)


def by_dspy(make: Callable[[BM25, int], dspy.Module], optimizer: str, url: str, **kept: Any) -> None:
    """With DSPy, as a user calls it."""
    lm = connect("test-model", api_base=url, **kept)
    optimised(optimizer, make(sample_index(), 2), lm).save("program.json")


def by_command(what: str, optimizer: str, url: str) -> None:
    """With the command line."""
    sys.argv[1:] = (
        f"compile {what} --data sample --lm test-model --api-base {url} -k 2 --train {TRAIN} --valid 4 --seed {SEED} "
        f"--optimizer {optimizer} --max-demos 2 --concurrency {THREADS} --run run --out program.json".split()
    )
    cli.main()


RUNS: dict[str, Callable[[str, str], None]] = {
    "dspy": partial(by_dspy, Hops, journal="run"),
    "dspy, our method": partial(by_dspy, BlendFilter, journal="run"),
    "command": partial(by_command, "optimised:Hops --task hotpotqa"),
    "command, our filter": partial(by_command, "filco --task nq"),
    "no journal": partial(by_dspy, Hops, cache=False),
}
WAYS = [*RUNS][:-1]


class Sessions:
    """A process that forks sessions, one at a time."""

    def __init__(self, **environment: str) -> None:
        paths = os.pathsep.join(map(os.path.abspath, [*sys.path, Path(__file__).parent, Path(__file__).parents[1]]))
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths, **environment},
            start_new_session=True,
        )

    def ready(self) -> Sessions:
        """Itself, once everything is imported."""
        assert int(self._said()) == os.getpid()
        return self

    def begin(self, way: str, optimizer: str, url: str, folder: Path) -> int:
        """The process id of a session in that folder."""
        assert self.process.stdin is not None
        print(way, optimizer, url, folder, sep="\t", file=self.process.stdin, flush=True)
        return int(self._said())

    def ended(self) -> tuple[int, float]:
        """The session's exit code, once it has ended (below 0 the signal that killed it), and its processor seconds."""
        code, seconds = self._said().split()
        return int(code), float(seconds)

    def _said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def __enter__(self) -> Sessions:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)  # and what it forked
        self.process.communicate()


class CountingServer:
    """The model behind `http_server.answering`: counts its answers by the request, and from one request on gives none.

    `held` is set by the first request that gets no answer: what is under way then is over before the reader is killed.
    """

    def __init__(self) -> None:
        self.answered: Counter[bytes] = Counter()
        self.held = threading.Event()
        self._lock, self._left = threading.Lock(), float("inf")
        self._dead, self._others = threading.Event(), {*threading.enumerate()}

    def answer(self, at_most: float = float("inf")) -> None:
        """Answer that many requests from now on, and hold the next ones back; whoever asked before is dead."""
        self._left = 0
        self._dead.set()
        # what the dead one sent is still read
        while any("process_request" in each.name for each in {*threading.enumerate()} - self._others):
            time.sleep(0.001)
        self._left, self.held, self._dead = at_most, threading.Event(), threading.Event()

    def __call__(self, request: Request) -> Answer | None:
        with self._lock:
            dead, held, given = self._dead, self.held, self._left > 0
            self._left -= 1
            if given:
                self.answered[request.content] += 1
        if not given:
            held.set()
            dead.wait(120)
            return None
        body = request.body
        text = written("\n\n".join(message["content"] for message in body["messages"]))
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        return Answer(200, {"model": "test-model", "choices": [choice]})


def serve_sessions() -> None:
    """Fork a session for each line on standard input."""
    tqdm.set_lock(threading.RLock())  # its own is shared between processes: one that is killed would keep it for ever
    sample_index()
    print(os.getppid(), flush=True)
    for line in sys.stdin:
        way, optimizer, url, folder = line.rstrip("\n").split("\t")
        pid = os.fork()
        if pid == 0:
            try:
                os.chdir(folder)
                log = os.open("session.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(log, 1)
                os.dup2(log, 2)
                RUNS[way](optimizer, url)
                os._exit(0)
            except SystemExit as ended:
                os._exit(int(ended.code or 0))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        print(pid, flush=True)
        _, status, used = os.wait4(pid, 0)
        print(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, flush=True)


if __name__ == "__main__":
    serve_sessions()
