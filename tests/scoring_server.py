"""A server that gives the log-probabilities of given text, or does not, in the ways that real ones have.

In: a folder of `scoring_models` and a behaviour. Out: a server on loopback, in a thread; what it gives is what its
model computes, so a scorer over it and one over the folder must agree. It counts requests and keeps their bodies.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from http_server import Answer, answering
from scoring_models import MARKS

BEHAVIOURS = (
    "echo",  # as vLLM and OpenAI: cut characters as U+FFFD, one generated token behind the text
    "shifted",  # as llama-cpp-python without a mark: off by one, cut characters as empty texts
    "last-right",  # off by one but for the text's last token
    "prompt-logprobs",  # vLLM's own field, and no echo
    "silent",  # as llama.cpp's: echo is ignored, only what was generated comes
    "unchecked",  # the prompt's, but none of what it generates
    "broken",  # 500, as a server started without --logits_all
)


class Served:
    """A model behind HTTP: `url`, `bodies` (what was asked), and how many requests there were."""

    def __init__(self, folder: Path, behave: str) -> None:
        assert behave in BEHAVIOURS, behave
        self.folder, self.behave = folder, behave
        self.bodies: list[dict[str, Any]] = []
        self.in_flight = self.most = 0
        self._lock = threading.Lock()
        self.url = ""

    @property
    def requests(self) -> int:
        return len(self.bodies)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.bodies.append(body)
        with self._lock:
            self.in_flight += 1
            self.most = max(self.most, self.in_flight)
        try:
            return self._answer(path, body)
        finally:
            with self._lock:
                self.in_flight -= 1

    def _answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if path != "/v1/completions":
            return 404, {"error": {"message": "Not Found", "code": 404}}
        if self.behave == "broken" and "logprobs" in body:
            return 500, {"error": {"message": "logprobs is not supported for models created with logits_all=False"}}
        ids = self._tokenizer(body["prompt"], add_special_tokens=False)["input_ids"]
        new = self._generated(ids, body["max_tokens"])
        text = (body["prompt"] if body.get("echo") else "") + b"".join(map(self._piece, new)).decode("utf-8", "replace")
        choice = {"index": 0, "finish_reason": "length", "text": text, **self._tokens_given(body, ids, new)}
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(new), "total_tokens": len(ids) + len(new)}
        return 200, {"id": "cmpl-1", "object": "text_completion", "choices": [choice], "usage": usage}

    def _tokens_given(self, body: dict[str, Any], ids: list[int], new: list[int]) -> dict[str, Any]:
        given: dict[str, Any] = {"logprobs": None}
        echo = body.get("echo") and self.behave not in ("silent", "prompt-logprobs")
        if "logprobs" in body and (echo or self.behave != "unchecked"):
            given["logprobs"] = self._echoed(ids, new) if echo else self._listed(ids + new, len(ids))
        if "prompt_logprobs" in body and self.behave == "prompt-logprobs":
            scores = self._logprobs(ids)
            rows = [
                {str(i): {"logprob": s, "rank": 1, "decoded_token": self._word(i)}}
                for i, s in zip(ids, scores, strict=True)
            ]
            given["prompt_logprobs"] = [None, *rows[1:]]
        return given

    def _echoed(self, ids: list[int], new: list[int]) -> dict[str, Any]:
        every = ids + new
        if self.behave == "shifted":
            after = [self._logprobs([*every[: i + 1], every[i]])[-1] for i in range(len(every))]
            return self._listed(every, 0, [None, *after[1:]])
        scores = self._logprobs(every)
        if self.behave == "last-right":
            return self._listed(every, 0, [None, *scores[2 : len(ids)], *scores[len(ids) - 1 :]])
        return self._listed(every, 0, [None, *scores[1:]])

    def _listed(self, ids: list[int], first: int, scores: list[float | None] | None = None) -> dict[str, Any]:
        scores = self._logprobs(ids) if scores is None else scores
        pieces = [self._piece(i) for i in ids]
        whole = [len(b"".join(pieces[:i]).decode("utf-8", "ignore")) for i in range(len(ids))]
        given = {"tokens": [self._word(i) for i in ids], "token_logprobs": scores, "text_offset": whole}
        return {name: values[first:] for name, values in given.items()} | {"top_logprobs": self._tops(ids, first)}

    def _tops(self, ids: list[int], first: int) -> list[dict[str, float]]:
        import torch

        rows = torch.log_softmax(self._logits(ids).double(), -1)[max(first - 1, 0) : -1]
        return [{self._word(int(i)): float(row[i]) for i in row.topk(5).indices} for row in rows]

    def _word(self, token: int) -> str:
        return self._piece(token).decode("utf-8", "ignore" if "shifted" in self.behave else "replace")

    def _piece(self, token: int) -> bytes:
        word = self._tokenizer.convert_ids_to_tokens(token)
        if word in MARKS:
            return b"" if "shifted" in self.behave else word.encode()
        return bytes(self._bytes[character] for character in word)

    def _generated(self, ids: list[int], limit: int) -> list[int]:
        new: list[int] = []
        for _ in range(limit):
            new.append(int(self._logits(ids + new)[-1].argmax()))
        return new

    def _logprobs(self, ids: list[int]) -> list[float]:
        """Each token's, given those before it; the first one's is made up."""
        import torch

        rows = torch.log_softmax(self._logits(ids).double(), -1)
        return [0.0, *(float(rows[i - 1, ids[i]]) for i in range(1, len(ids)))]

    def _logits(self, ids: list[int]) -> Any:
        import torch

        with torch.inference_mode():
            return self._model(torch.tensor([ids])).logits[0]

    @cached_property
    def _model(self) -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.folder).eval()

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.folder)

    @cached_property
    def _bytes(self) -> dict[str, int]:
        """Byte-level BPE writes each byte as one printable character: the printable ones as themselves, then others."""
        view = [*range(33, 127), *range(161, 173), *range(174, 256)]
        hidden = [byte for byte in range(256) if byte not in view]
        return {chr(byte): byte for byte in view} | {chr(256 + at): byte for at, byte in enumerate(hidden)}


@contextmanager
def serving(folder: Path, behave: str = "echo") -> Iterator[Served]:
    """A server of that behaviour, for the length of the block."""
    served = Served(folder, behave)
    with answering(lambda request: Answer(*served.answer(request.path, request.body))) as url:
        served.url = f"{url}/v1"
        yield served
