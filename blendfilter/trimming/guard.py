"""What keeps two near questions apart: rules (`Rules`), and besides them a model of pairs of questions (`PairModel`).

The nearest judged question is found by words or vectors, which is cheap; whether it asks the same is decided here. The
rules know opposites, numbers and names, and no plain nouns ("pier" and "mill"). A model of pairs reads both questions
together: one with a single output between 0 and 1 (duplicate questions, similarity), or a classifier with a label that
means the same (entailment, duplicate, paraphrase). Measured in `eval/bench/guards.py`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from blendfilter.errors import BadArgument, BadData, MissingFile
from blendfilter.lm.checkpoints import CONFIG
from blendfilter.lm.scoring.entailment import (
    ENTAILED,
    PairClassifier,
    classifier_labels,
    label_at,
)
from blendfilter.retrieval.base import fingerprint_of
from blendfilter.retrieval.encoders import files_hash
from blendfilter.trimming.opposites import plain_question, unlike

EXAMPLES = "cross-encoder/quora-distilroberta-base, cross-encoder/nli-deberta-v3-small"
_SAME = {"duplicate", "isduplicate", "paraphrase", "equivalent", "same", "similar"}


class Rules:
    """Keeps questions apart by the rules of `unlike`. Threads share it.

    >>> Rules().apart("Who turned on the radio?", ["Who turned the radio on?", "Who turned off the radio?"])
    ['', "one says 'on', the other 'off'"]
    """

    name = ""
    """Of a model: its folder, or its name on the hub."""
    identity = ""
    """What its decisions depend on, for a fingerprint; empty for the rules alone."""

    def apart(self, question: str, others: Sequence[str]) -> list[str]:
        """For each of the others what keeps it apart, as the end of a sentence; empty where nothing does."""
        return [unlike(question, other) for other in others]


class PairModel(Rules):
    """The rules, then a cross-encoder on what they let through: a folder, or a name on the hub.

    Each pair is read both ways round. With one output (behind a sigmoid) the two ask the same where the mean reaches
    `threshold`; with labels where the label for it has this probability both ways, so that for an NLI model each
    question entails the other. On a CPU a pair's decision does not depend on the pairs beside it.

    Raises:
        MissingFile: there is no such model. BadData: it is no model of pairs. BadArgument: a threshold out of range.
    """

    def __init__(self, name: str, *, threshold: float = 0.5, device: str | None = None) -> None:
        if not 0 < threshold < 1:
            raise BadArgument(f"threshold lies between 0 and 1, got {threshold!r}")
        try:
            self._model = PairClassifier(name, device=device)
        except (MissingFile, BadData) as error:
            raise type(error)(
                f"the model '{name}' of pairs of questions cannot be opened: {error}"
            ) from None
        folder = self._model.folder
        self.name = str(folder.resolve()) if Path(name).expanduser().is_dir() else name
        self.threshold = threshold
        self._same = _same_output(folder)
        self.files = files_hash(folder)
        self.identity = fingerprint_of("pair model", self.files, threshold)
        self._known: dict[tuple[str, str], float] = {}
        # a fast tokenizer that two threads use at once fails ("Already borrowed")
        self._turn = threading.Lock()

    def apart(self, question: str, others: Sequence[str]) -> list[str]:
        reasons = super().apart(question, others)
        plain = plain_question(question)
        for at, other in enumerate(others):
            if reasons[at] or plain_question(other) == plain:
                continue
            (sure,) = self.same([(question, other)])
            if sure < self.threshold:
                reasons[at] = (
                    f"the model is {sure:.2f} sure that they ask the same, {self.threshold:g} are needed"
                )
        return reasons

    def same(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """For each pair how sure the model is that they ask the same, from 0 to 1; the same whichever comes first."""
        keys = [(min(pair), max(pair)) for pair in pairs]
        with self._turn:
            missing = [key for key in dict.fromkeys(keys) if key not in self._known]
            if missing:
                self._known |= zip(missing, self._scored(missing), strict=True)
            return [self._known[key] for key in keys]

    def check(self) -> None:
        """Load it now. Raises `BadData` where it cannot be loaded, or not whole."""
        with self._turn:
            self._model.load()

    def _scored(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        both = [way for pair in pairs for way in (pair, pair[::-1])]
        found = [0.0] * len(both)
        for at, outputs in self._model.outputs(both, shorten_both=True):
            if outputs is not None:
                # the share in the softmax; of a single output its sigmoid
                logits = [outputs.values[0], 0.0] if self._same is None else outputs.values
                weights = np.exp(np.asarray(logits) - max(logits))
                found[at] = round(float(weights[self._same or 0] / weights.sum()), 4)
        join = np.mean if self._same is None else min
        return [float(join(ways)) for ways in zip(found[::2], found[1::2], strict=True)]


def guard_of(guard: bool | Rules | None, model: str = "", files: str = "") -> Rules | None:
    """What `guard` stands for: True the rules, or the `model` whose files have that hash; False nothing.

    Raises as `PairModel` does. BadData: the model's files are others.
    """
    if not isinstance(guard, bool):
        return guard
    if not guard or not model:
        return Rules() if guard else None
    found = PairModel(model)
    if found.files != files:
        raise BadData(
            f"the model {model} is not the one that this overlay was made with: restore it, or name it again"
        )
    return found


def _same_output(folder: Path) -> int | None:
    """Which output means the same; None where there is but one, a score. Raises `BadData` for another model."""
    no = f"{folder} is no model that says whether two questions ask the same"
    move = f"name one, such as {EXAMPLES}"
    kind, labels = classifier_labels(folder)
    if not labels:
        raise BadData(f"{no} but a {kind or 'model of another kind'}: {move}")
    if len(labels) > 1:
        found = label_at(labels, ENTAILED | _SAME)
        if found is None:
            raise BadData(
                f"{no}: of its labels ({', '.join(labels.values())}) not just one is for it; {move}"
            )
        return found
    config = json.loads((folder / CONFIG).read_bytes())
    names = ("sbert_ce_default_activation_function", "sentence_transformers")
    if any("Identity" in str(config.get(name)) for name in names):
        raise BadData(f"{no} but a reranker, whose scores have no bounds: {move}")
    return None
