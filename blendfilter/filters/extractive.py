"""Filters that ask no model: the sentences or passages that score best for the question, or all of them.

Comparison points for FilCo (Wang et al. 2023, "Learning to Filter Context for Retrieval-Augmented Generation",
https://arxiv.org/abs/2311.08377, section 4): `FullFilter` is its FULL, `PassageFilter` its PSG, and `SentenceFilter`
keeps sentences as FilCo does, by a score in place of a trained model.

In: a question and passages in rank order. Out: sentences as `Excerpt`s (verbatim, with their places, in the order in
which they stand), or whole passages, in rank order. Equal scores: the earlier one stays.

Differs from the paper: in PSG a fine-tuned model says yes or no to the one passage that was retrieved; here scores pick
the n best of K. FilCo's sentences are picked by a model trained on what helped to answer; here the question alone is
known. A title is shown to the scorer with its sentence, and is never picked itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dspy

from blendfilter import aio
from blendfilter.errors import BadArgument
from blendfilter.filters.base import Filter
from blendfilter.filters.candidates import Candidate, excerpts, passages_of, sentences_of
from blendfilter.filters.scorers import By, scorer_of
from blendfilter.records import Passage
from blendfilter.retrieval.callables import as_passage
from blendfilter.text import shortened

_SHOWN = 60
"""Characters of a sentence in the filter's `reason`."""


class FullFilter(Filter):
    """Keeps every passage whole: FilCo's FULL."""

    async def aforward(self, question: str, passages: Sequence[Passage]) -> dspy.Prediction:
        """All of them."""
        kept = [as_passage(passage) for passage in passages]
        status = _status(len(kept), len(kept)) if kept else "empty"
        return dspy.Prediction(kept=kept, status=status, reason="", flags={})


class _Best(Filter):
    """Keeps the n best candidates; subclasses say what the candidates are, and what remains of their passages."""

    def __init__(self, n: int, *, by: By, model: str | None) -> None:
        super().__init__()
        if isinstance(n, bool) or not isinstance(n, int):
            raise BadArgument(f"n must be a whole number, got {n!r}")
        if n < 1:
            raise BadArgument(f"n must be at least 1, got {n}")
        self.n = n
        self.model = model
        self.scorer = scorer_of(by, model)

    def arguments(self) -> dict[str, Any]:
        """How many are kept, and by which score."""
        return {"n": self.n, "by": self.scorer.name, "model": self.model}

    def prepare(self) -> None:
        self.scorer.prepare()

    async def aforward(self, question: str, passages: Sequence[Passage]) -> dspy.Prediction:
        """The n best, fewer where there are fewer. Scores are computed in a worker thread."""
        passages = [as_passage(passage) for passage in passages]
        if not passages:
            return dspy.Prediction(kept=[], status="empty", reason="", flags={})
        candidates = self.candidates(passages)
        lines = [each.line for each in candidates]
        scores = await aio.in_thread(self.scorer, question, lines) if lines else []
        best = sorted(range(len(candidates)), key=lambda at: -scores[at])[: self.n]
        return dspy.Prediction(
            kept=self.kept(passages, [candidates[at] for at in sorted(best)]),
            status=_status(len(best), len(candidates)),
            reason="\n".join(self.told(each, score) for each, score in zip(candidates, scores, strict=True)),
            flags={},
        )

    def candidates(self, passages: Sequence[Passage]) -> list[Candidate]:
        """What may be kept, in rank order."""
        raise NotImplementedError

    def kept(self, passages: Sequence[Passage], chosen: Sequence[Candidate]) -> list[Passage]:
        """The passages, or pieces of them, that the chosen candidates leave."""
        raise NotImplementedError

    def told(self, candidate: Candidate, score: float) -> str:
        """The line that says its score."""
        raise NotImplementedError


class PassageFilter(_Best):
    """Keeps the n best passages, whole: FilCo's PSG, by a score.

    Args:
        n: how many passages, at least 1.
        by: `bm25`, `embedding`, `cross-encoder`, or a function (question, texts) -> scores.
        model: the encoder or cross-encoder: a folder, or a name on the hub.
    """

    def __init__(self, n: int = 1, *, by: By = "bm25", model: str | None = None) -> None:
        super().__init__(n, by=by, model=model)

    def candidates(self, passages: Sequence[Passage]) -> list[Candidate]:
        """The passages themselves, each as its line."""
        return passages_of(passages)

    def kept(self, passages: Sequence[Passage], chosen: Sequence[Candidate]) -> list[Passage]:
        """Those passages."""
        return [passages[each.position] for each in chosen]

    def told(self, candidate: Candidate, score: float) -> str:
        """Its number, as a model's judgement would name it, and its score."""
        return f"knowledge {candidate.position}: {score:.4f}"


class SentenceFilter(_Best):
    """Keeps the n best sentences of all passages together, as excerpts.

    Args:
        n: how many sentences in all, at least 1.
        by: `bm25`, `embedding`, `cross-encoder`, or a function (question, texts) -> scores.
        model: the encoder or cross-encoder: a folder, or a name on the hub.
    """

    def __init__(self, n: int = 3, *, by: By = "bm25", model: str | None = None) -> None:
        super().__init__(n, by=by, model=model)

    def candidates(self, passages: Sequence[Passage]) -> list[Candidate]:
        """Every sentence, with its passage's title before it."""
        return sentences_of(passages)

    def kept(self, passages: Sequence[Passage], chosen: Sequence[Candidate]) -> list[Passage]:
        """An excerpt of every passage of which a sentence was chosen."""
        return excerpts(passages, chosen)

    def told(self, candidate: Candidate, score: float) -> str:
        """Its score, its passage's number and how it begins."""
        return f"{score:.4f} in knowledge {candidate.position}: {shortened(candidate.line, _SHOWN)}"


def _status(kept: int, of: int) -> str:
    return f"kept {kept} of {of}"
