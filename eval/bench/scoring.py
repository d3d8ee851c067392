"""Scores in batches against one by one; scores in this process against those of a server.

    python eval/bench/scoring.py speed
    python eval/bench/scoring.py server

`speed`: a Hugging Face model of 4 layers x 256 with random weights, 64 pairs of prompts with about 150 tokens and
continuations with about 10, one thread: one prompt for all pairs, prompts that share 100 tokens, prompts that share
nothing. `loop` is the plain way to do it, a call of the model for each pair with the logits of all its tokens. Rounds
of all three take turns; the best of each counts.

`server`: SmolLM2-135M by llama.cpp in this process, and behind the server of the package llama-cpp-python (not
llama.cpp's own, which tells no log-probabilities of prompts). Its weights stay as the file has them, as here
(`lm/local/loading.py`). Wants `pip install 'llama-cpp-python[server]'`.
"""

from __future__ import annotations

import argparse
import os
import random
import runpy
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from blendfilter.lm.scoring import Score, scorer
from blendfilter.lm.scoring.base import TextPair

PAIRS, ROUNDS = 64, 5
WORDS = ("the", "king", "of", "north", "island", "town", "river", "sea", "castle", "school", "Paris", "who", "founded")
Pairs = list[TextPair]


def words(draw: random.Random, count: int) -> str:
    """Some of the words that the test model's tokeniser knows."""
    return " ".join(draw.choice(WORDS) for _ in range(count))


def settings(prompt: int = 142, text: int = 9) -> dict[str, Pairs]:
    """The three kinds of prompts, by name; `prompt` and `text` are in words, most of them one token."""
    draw = random.Random(0)
    whole, begun = words(draw, prompt), words(draw, prompt * 2 // 3)
    return {
        "one prompt": [TextPair(whole, f" {words(draw, text)}") for _ in range(PAIRS)],
        "two thirds shared": [
            TextPair(f"{begun} {words(draw, prompt // 3)}", f" {words(draw, text)}") for _ in range(PAIRS)
        ],
        "nothing shared": [TextPair(words(draw, prompt), f" {words(draw, text)}") for _ in range(PAIRS)],
    }


def speed(vocabulary: int) -> None:
    """Print milliseconds a pair, and how many times faster a batch is."""
    import scoring_models as made
    import torch

    torch.set_num_threads(1)
    folder = made.llama(made.Size(layers=4, width=256, positions=512, vocabulary=vocabulary))
    ask = scorer(folder)
    print(f"4 layers x 256, vocabulary {vocabulary:,}, {PAIRS} pairs, 1 thread; milliseconds a pair, best of {ROUNDS}")
    for name, pairs in settings().items():
        ways: dict[str, Callable[[], list[Score]]] = {
            "loop": lambda pairs=pairs: looped(ask, pairs),
            "one by one": lambda pairs=pairs: [ask.score([pair])[0] for pair in pairs],
            "batch": lambda pairs=pairs: ask.score(pairs),
        }
        found = {way: run() for way, run in ways.items()}
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(ROUNDS):
            for way, run in ways.items():
                started = time.perf_counter()
                run()
                best[way] = min(best[way], (time.perf_counter() - started) * 1000 / PAIRS)
        apart = max(abs(a.logprob - b.logprob) for a, b in zip(found["batch"], found["one by one"], strict=True))
        tokens = sum(len(each.ids) for each in ask.backend._tokeniser.pairs(pairs)) / PAIRS
        print(f"{name:18} ({tokens:3.0f} tokens)  loop {best['loop']:5.1f}  one by one {best['one by one']:5.1f}  "
              f"batch {best['batch']:5.1f}   {best['one by one'] / best['batch']:4.1f} x, "
              f"apart by {apart:.0e} at most")  # fmt: skip


def looped(ask: object, pairs: Pairs) -> list[Score]:
    """Each pair by itself, all logits of its text: what one writes first."""
    import torch

    backend = ask.backend
    model, found = backend._loaded.model, []
    for item in backend._tokeniser.pairs(pairs):
        with torch.inference_mode():
            rows = torch.log_softmax(model(torch.tensor([item.ids])).logits[0].float(), -1)
        found.append(Score(sum(float(rows[at - 1, item.ids[at]]) for at in range(item.first, len(item.ids))), 0))
    return found


def server() -> None:
    """Print how far both ways are apart, and what each costs."""
    from blendfilter.lm.local import weights_of

    pairs = [pair for each in sampled() for pair in each]
    with serving(str(weights_of(None))) as url:
        ways = {"in process": scorer("local", bos=True), "server": scorer("smollm2", api_base=url, concurrency=1)}
        found, seconds = {}, {}
        for way, ask in ways.items():
            ask.score([TextPair("Warm", " up")])
            started = time.perf_counter()
            found[way] = ask.score(pairs)
            seconds[way] = time.perf_counter() - started
        mark = ways["server"].backend._manner.mark
    apart = [abs(a.logprob - b.logprob) / a.n_tokens for a, b in zip(*found.values(), strict=True)]
    same = all(a.n_tokens == b.n_tokens for a, b in zip(*found.values(), strict=True))
    print(f"{len(pairs)} pairs, {sum(each.n_tokens for each in found['server'])} tokens of continuations; "
          f"'{mark}' before each text; tokens counted alike: {same}")  # fmt: skip
    print(f"apart by {max(apart):.1e} nats a token at most, {sum(apart) / len(apart):.1e} on average")
    print("  ".join(f"{way} {1000 * each / len(pairs):.0f} ms a pair" for way, each in seconds.items()))


def sampled(count: int = 6) -> Iterator[Pairs]:
    """Answers of the sample questions given their passages, each passage alone, and none: what CXMI asks for."""
    import blendfilter as bf
    from blendfilter import resources

    index = bf.BM25.for_corpus(resources.sample("corpus.jsonl"))
    for each in list(bf.load("qa", "sample"))[:count]:
        asked = f"Question: {each.question}\nAnswer:"
        passages = index.search([each.question], 3)[0]
        yield [
            TextPair(f"{start}{asked}", f" {each.golden_answers[0]}") for start in ("", *(f"{p.text}\n" for p in passages))
        ]


@contextmanager
def serving(model: str) -> Iterator[str]:
    """The package's server as a process of its own, on a free port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = ["--model", model, "--port", str(port), "--n_ctx", "1024", "--logits_all", "true", "--verbose", "false"]
    threads = ["--n_threads", "1", "--n_threads_batch", "1"]
    process = subprocess.Popen(
        [sys.executable, __file__, "serve", *given, *threads], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        url = f"http://127.0.0.1:{port}/v1"
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{url}/models", timeout=1).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        yield url
    finally:
        process.kill()
        process.wait()


def serve(arguments: list[str]) -> None:
    """The package's server in this process, its weights laid out as the file has them."""
    import llama_cpp

    from blendfilter.lm.local import _plain_buffers

    sys.argv = ["llama_cpp.server", *arguments]
    with _plain_buffers(llama_cpp):
        runpy.run_module("llama_cpp.server", run_name="__main__")


def main() -> None:
    """Read the arguments, measure."""
    if sys.argv[1:2] == ["serve"]:
        return serve(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "server"))
    parser.add_argument("--vocabulary", type=int, default=32_000)
    asked = parser.parse_args()
    return server() if asked.what == "server" else speed(asked.vocabulary)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
