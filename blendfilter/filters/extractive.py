"""Filters that ask no model: the sentences or passages that score best for the question, or all of them.

Comparison points for FilCo (Wang et al. 2023, "Learning to Filter Context for Retrieval-Augmented Generation",
https://arxiv.org/abs/2311.08377, section 4): `FullFilter` is its FULL, `PassageFilter` its PSG, and `SentenceFilter`
keeps sentences as FilCo does, by a score in place of a trained model. Sentences are kept as `Excerpt`s (verbatim, with
their places), in the order in which they stand; equal scores: the earlier one stays.

Differs from the paper: in PSG a fine-tuned model says yes or no to the one passage that was retrieved; here scores pick
the n best of K. FilCo's sentences are picked by a model trained on what helped to answer; here the question alone is
known. The scorer reads a title with its sentence; the title is never picked itself.

Scorers give each line `Title | text` one number, higher is better:

- `bm25` (Robertson & Zaragoza 2009, section 3): our indexes' analyser and parameters over rank-bm25's counts. Its idf
  counts the candidates of this question alone: a word that all of them share weighs as little as it should.
- `embedding`: the cosine between the question's vector and each text's, by any encoder that a dense index takes.
- `cross-encoder` (Nogueira & Cho 2019, https://arxiv.org/abs/1901.04085, section 3): question and text are read
  together, by any of sentence-transformers' cross-encoders with one output. The raw output is the score: behind a
  sigmoid the best ones would all be 1.
- `retriever`: the passage's own score, as its index or reranker gave it; for whole passages alone, and no model.

A model is loaded once, when it is first needed, and shared by the copies that optimisers make.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import dspy

from blendfilter import aio
from blendfilter.dspy_surface import Shared
from blendfilter.errors import BadArgument, UnknownName, check_count
from blendfilter.filters.base import Filter, SharedModel, selection
from blendfilter.lm.tokenisers import RULE
from blendfilter.oracles.candidates import Candidate, excerpts, passages_of, sentences_of
from blendfilter.records import Passage
from blendfilter.retrieval.analyser import Analyser
from blendfilter.retrieval.bm25 import LuceneOkapi
from blendfilter.retrieval.callables import as_passages, name_of
from blendfilter.retrieval.encoders import load_encoder
from blendfilter.text import shortened

Scores: TypeAlias = list[float]
ScoreFunction: TypeAlias = Callable[[str, Sequence[str]], Sequence[float]]
"""(question, texts) -> scores."""
By: TypeAlias = Literal["bm25", "embedding", "cross-encoder", "retriever"] | ScoreFunction
K1, B = 0.9, 0.4
"""BM25's parameters, as in our indexes."""
_BEGINNING = 60
"""Characters of a sentence in the filter's `reason`."""


class FullFilter(Filter):
    """Keeps every passage whole: FilCo's FULL."""

    async def aforward(self, question: str, passages: Sequence[Passage]) -> dspy.Prediction:
        """All of them."""
        kept = as_passages(passages)
        return selection(kept, f"kept {len(kept)} of {len(kept)}" if kept else "empty")


class _Best(Filter):
    """Keeps the n best candidates: passages, or their sentences."""

    sentences: bool

    def __init__(
        self,
        n: int | None,
        by: By,
        model: str | None,
        min_score: float | None,
        tokens: int | None = None,
    ) -> None:
        super().__init__()
        if min_score is not None and (
            isinstance(min_score, bool) or not math.isfinite(min_score)
        ):
            raise BadArgument(f"min_score is a number, got {min_score!r}")
        self.n = None if n is None else check_count("n", n)
        self.tokens = None if tokens is None else check_count("tokens", tokens)
        self.model = model
        self.min_score = min_score
        self.scorer = scorer_of(by, model)

    def arguments(self) -> dict[str, Any]:
        """How many are kept, by which score; from which score up and within how many tokens, where that is limited."""
        floor = {} if self.min_score is None else {"min_score": self.min_score}
        budget = {} if self.tokens is None else {"tokens": self.tokens}
        return {"n": self.n, "by": self.scorer.name, "model": self.model, **floor, **budget}

    def prepare(self) -> None:
        self.scorer.prepare()

    async def aforward(self, question: str, passages: Sequence[Passage]) -> dspy.Prediction:
        """The n best, fewer where there are fewer. Scores are computed in a worker thread."""
        passages = as_passages(passages)
        if not passages:
            return selection()
        candidates = sentences_of(passages) if self.sentences else passages_of(passages)
        if self.scorer.name == "retriever":
            scores = _own_scores(passages)
        else:
            lines = [candidate.line for candidate in candidates]
            scores = await aio.in_thread(self.scorer, question, lines) if lines else []
        floor = -math.inf if self.min_score is None else self.min_score
        ranked = sorted(range(len(candidates)), key=lambda at: -scores[at])
        best = self._within(
            [at for at in ranked if scores[at] >= floor][: self.n], candidates, passages
        )
        chosen = [candidates[at] for at in sorted(best)]
        scored = zip(candidates, scores, strict=True)
        kept: list[Passage]
        if self.sentences:
            kept = excerpts(passages, chosen)
            shown = [
                f"{score:.4f} in knowledge {each.position}: {shortened(each.line, _BEGINNING)}"
                for each, score in scored
            ]
        else:
            kept = [passages[each.position] for each in chosen]
            shown = [f"knowledge {each.position}: {score:.4f}" for each, score in scored]
        return selection(kept, f"kept {len(best)} of {len(candidates)}", "\n".join(shown))

    def _within(
        self, ranked: list[int], candidates: Sequence[Candidate], passages: Sequence[Passage]
    ) -> list[int]:
        """The first of `ranked` that fit into the budget, the best one however long it is."""
        if self.tokens is None:
            return ranked
        total, titled = 0.0, set[int]()
        for place, at in enumerate(ranked):
            position = candidates[at].position
            title = "" if position in titled else passages[position].title
            titled.add(position)
            total += RULE.count(f"{title} {candidates[at].text}")
            if place and total > self.tokens:
                return ranked[:place]
        return ranked


class PassageFilter(_Best):
    """Keeps the n best passages, whole: FilCo's PSG, by a score.

    Args:
        n: how many passages at most, at least 1.
        by: `bm25`, `embedding`, `cross-encoder`, `retriever`, or a function (question, texts) -> scores.
        model: the encoder or cross-encoder: a folder, or a name on the hub.
        min_score: what scores less is dropped, though that may leave fewer than n, or none.
    """

    sentences = False

    def __init__(
        self,
        n: int = 1,
        *,
        by: By = "bm25",
        model: str | None = None,
        min_score: float | None = None,
    ) -> None:
        super().__init__(n, by, model, min_score)


class SentenceFilter(_Best):
    """Keeps the n best sentences of all passages together, as excerpts.

    Args:
        n: how many sentences in all at most, at least 1; by default 3, or any number where `tokens` is given.
        by: `bm25`, `embedding`, `cross-encoder`, or a function (question, texts) -> scores.
        model: the encoder or cross-encoder: a folder, or a name on the hub.
        min_score: what scores less is dropped, though that may leave fewer than n, or none.
        tokens: how many tokens the sentences and the titles above them have at most, counted as words times 1.4, as
            BIDER's baselines have about 180 (Jin et al. 2024, Table 1); the best sentence is kept however long it is,
            and the first that no longer fits ends the list.
    """

    sentences = True

    def __init__(
        self,
        n: int | None = None,
        *,
        by: By = "bm25",
        model: str | None = None,
        min_score: float | None = None,
        tokens: int | None = None,
    ) -> None:
        super().__init__(3 if n is None and tokens is None else n, by, model, min_score, tokens)
        if self.scorer.name == "retriever":
            raise BadArgument(
                "a retriever scores passages and no sentences: score by bm25, embedding or cross-encoder"
            )


# --- scorers ----------------------------------------------------------------------------------------------------------


class CandidateScorer(Shared):
    """One score a text. Threads share one; `name` is its name in a run's record.

    `score` takes a question and texts, and before them what `model` loads, where it needs one: threads take turns.
    """

    def __init__(
        self, name: str, score: Callable[..., Sequence[float]], model: SharedModel | None = None
    ) -> None:
        self.name, self._score, self._model = name, score, model

    def prepare(self) -> None:
        """Load what it needs; what is missing is an error here."""
        if self._model is not None:
            with self._model:
                pass

    def __call__(self, question: str, texts: Sequence[str]) -> Scores:
        """Raises: BadArgument where a user's function does not give one number for each text."""
        if self._model is None:
            scores = [float(score) for score in self._score(question, texts)]
            if len(scores) != len(texts) or any(map(math.isnan, scores)):
                raise BadArgument(
                    f"{self.name} must give one number for each of {len(texts)} texts: {scores[:3]!r:.80}"
                )
            return scores
        # Equal texts have equal scores to the last bit, which padding beside others would change.
        once = list(dict.fromkeys(texts))
        if not once:
            return []
        with self._model as loaded:
            found = dict(zip(once, self._score(loaded, question, once), strict=True))
        return [found[text] for text in texts]


def scorer_of(by: By, model: str | None = None) -> CandidateScorer:
    """The scorer called `by`; `model` names an encoder or a cross-encoder: a folder, or a name on the hub.

    Raises: UnknownName for what is no scorer; BadArgument for a model too few or too many.
    """
    if callable(by) and not inspect.isclass(by) and not inspect.iscoroutinefunction(by):
        scorer = CandidateScorer(name_of(by), by)
    elif not isinstance(by, str) or by not in SCORERS:
        raise UnknownName.of(
            "scorer", str(by), SCORERS, "- or a function (question, texts) -> scores"
        )
    elif by in _MODELS:
        load, score, example = _MODELS[by]
        if model is None:
            raise BadArgument(
                f"scoring by {by} needs a model: name one (model=), such as {example}"
            )
        return CandidateScorer(by, score, SharedModel(load, model))
    else:
        scorer = CandidateScorer(by, partial(_bm25, Analyser()))
    if model is not None:
        raise BadArgument(
            f"the model {model!r} goes with embedding and cross-encoder, not with {scorer.name}"
        )
    return scorer


def _bm25(analyse: Analyser, question: str, texts: Sequence[str]) -> Scores:
    """BM25 over the candidates themselves; zero for a text that shares no term with the question."""
    terms = analyse(question)
    if not texts or not terms:
        return [0.0] * len(texts)
    counted = LuceneOkapi([analyse(text) for text in texts], k1=K1, b=B)
    return [float(score) / (K1 + 1) for score in counted.scores(terms)]


def _own_scores(passages: Sequence[Passage]) -> Scores:
    """The passages' own. Raises: BadArgument where one has none."""
    scores = [passage.score for passage in passages if passage.score is not None]
    if len(scores) < len(passages):
        missing = len(passages) - len(scores)
        raise BadArgument(
            f"{missing} of {len(passages)} passages carry no score of their retriever: filter by bm25"
        )
    return scores


def _encoder(model: str) -> Any:
    return load_encoder(model, similarity="cosine")


def _by_cosine(encoder: Any, question: str, texts: list[str]) -> Scores:
    (query,) = encoder.encode_queries([question]).vectors
    return [float(cosine) for cosine in encoder.encode_passages(texts).vectors @ query]


def _cross_encoder(model: str) -> Any:
    from blendfilter.retrieval.reranked import CrossEncoderReranker

    return CrossEncoderReranker(model)


def _read_together(encoder: Any, question: str, texts: list[str]) -> Scores:
    scores: Scores = encoder.scores([question], [texts]).scores[0]
    return scores


_MODELS = {
    "embedding": (_encoder, _by_cosine, "sentence-transformers/all-MiniLM-L6-v2"),
    "cross-encoder": (_cross_encoder, _read_together, "cross-encoder/ms-marco-MiniLM-L6-v2"),
}
"""How a model is loaded, what it scores by, and one that does."""
SCORERS = ("bm25", *_MODELS, "retriever")
"""The names that `by` takes."""
