"""Reranking: a model reads the query beside each of an index's best passages, and its scores say their order.

Two kinds of model do it. A **cross-encoder** (Nogueira & Cho 2019, https://arxiv.org/abs/1901.04085, section 3) reads
query and passage together and gives one number; the raw output is the score. **Late interaction** (Khattab & Zaharia
2020, https://arxiv.org/abs/2004.12832, section 3.3) encodes them apart, one vector a token, and adds up for each vector
of the query the largest inner product with a vector of the passage.

Passages are read as `Title | text`. The query is read whole wherever the model can; where query and passage together
are too long for a cross-encoder, the passage loses its end, and a query that is itself longer than half of what is read
loses its beginning, because a blended query ends with the question.
"""

from __future__ import annotations

import math
import os
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from blendfilter.errors import BadArgument, BadData, check_count
from blendfilter.extras import needed, quiet_transformers
from blendfilter.files import AnyPath
from blendfilter.records import Passage, whole_characters
from blendfilter.retrieval.base import (
    Retriever,
    cut_of,
    fingerprint_of,
    hits_like,
    trim_of,
)
from blendfilter.retrieval.callables import as_retriever
from blendfilter.retrieval.encoders import (
    ENCODER,
    LANGUAGE_MODEL,
    LATE,
    SPARSE,
    cannot_load,
    encoder_folder,
    files_hash,
    kind_of,
    lasting,
    missing_weights,
    positions_of,
)

DEPTH = 100
"""Passages that are reranked of each query, by default."""
EXAMPLES = "cross-encoder/ms-marco-MiniLM-L6-v2 or colbert-ir/colbertv2.0"
_WHY = "a reranker"
_BATCH = 32
_AT_ONCE = 32  # queries whose candidates are in memory together
_DECIMALS = 5  # padding changes the digits behind these
_KEPT_BYTES = 512 * 2**20


class RerankScores(NamedTuple):
    """One score for each candidate of each query, higher is better; `cut` says of each query whether it was cut."""

    scores: list[list[float]]
    cut: list[bool]


class Reranker(ABC):
    """What scores passages for queries. Threads share it.

    `kind` is how it does so and `name` which model does, both for a run's record; `identity` changes with its scores.
    """

    kind: str
    name: str
    identity: str

    @abstractmethod
    def scores(
        self, queries: Sequence[str], candidates: Sequence[Sequence[str]]
    ) -> RerankScores:
        """The scores of each query's own candidates. Equal texts have equal scores for one query."""


class Reranked(Retriever):
    """`Reranked(index, "cross-encoder/ms-marco-MiniLM-L6-v2")`, searched as any index.

    The best `depth` passages of `index` are put into the model's order, and carry its scores; equal scores keep the
    order of the index. With them goes whether the query was cut, by index or model, and what a trimmed index dropped.

    Args:
        index: any index, or a callable (query, k).
        model: a folder or a name on the hub, of a cross-encoder with one output or of a ColBERT checkpoint; or a
            `Reranker`.
        depth: passages of a query that are reranked, and so the most that a search gives.
        device: by default a GPU where there is one.

    Raises:
        MissingFile: there is no such model.
        BadData: it is no reranker, or not whole.
        BadArgument: a depth below 1, or beyond what the index gives.
    """

    kind = "reranked"

    def __init__(
        self,
        index: Any,
        model: AnyPath | Reranker,
        *,
        depth: int = DEPTH,
        device: str | None = None,
    ) -> None:
        depth = check_count("depth", depth)
        self.index = as_retriever(index)
        most = getattr(self.index, "max_k", None)
        if most is not None and depth > most:
            raise BadArgument(
                f"the index gives at most {most} passages a query, and {depth} of them are to be "
                f"reranked: take fewer (depth={most})"
            )
        self.reranker = (
            model
            if isinstance(model, Reranker)
            else load_reranker(os.fspath(model), device=device)
        )
        self.depth = depth
        self.fingerprint = fingerprint_of(
            "reranked", self.index.fingerprint, self.reranker.identity, depth
        )

    @property
    def max_k(self) -> int:
        """How many passages a query it gives at most: no more than are reranked."""
        return self.depth

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """The `k` best of the index's `depth` passages. Raises `BadArgument` where `k` is above the depth."""
        if k > self.depth:
            raise BadArgument(
                f"k={k} is more than the {self.depth} passages that are reranked: rerank at least k (depth={k})"
            )
        depth = min(self.depth, self.index.size or self.depth)
        found: list[list[Passage]] = []
        for start in range(0, len(queries), _AT_ONCE):
            some = queries[start : start + _AT_ONCE]
            # `find`, not `search`: a journal keeps one record of a query, and its cut is noted once
            rankings = self.index.find(some, depth)
            scored = self.reranker.scores(
                some, [[passage.line for passage in ranking] for ranking in rankings]
            )
            for ranking, scores, cut in zip(rankings, *scored, strict=True):
                if len(scores) != len(ranking) or any(map(math.isnan, scores)):
                    raise BadArgument(
                        f"{self.reranker.name} must give one number for each of {len(ranking)} passages: {scores!r:.80}"
                    )
                rounded = [round(score, _DECIMALS) for score in scores]
                order = np.argsort(-np.array(rounded), kind="stable")[:k]
                hits, trim = [ranking[at].scored(rounded[at]) for at in order], trim_of(ranking)
                if trim is not None:  # of what was filled in, what is left
                    left = {passage.id for passage in hits}
                    stays = {
                        "refilled": tuple(name for name in trim.refilled if name in left),
                        "unjudged": tuple(name for name in trim.unjudged if name in left),
                    }
                    trim = trim.model_copy(update=stays)
                found.append(hits_like(hits, ranking, trim=trim, cut=cut or cut_of(ranking)))
        return found

    def parts(self) -> Sequence[Retriever]:
        """Its index."""
        return (self.index,)

    def over(self, parts: Sequence[Retriever]) -> Reranked:
        """Reranking another index in the same way."""
        return Reranked(parts[0], self.reranker, depth=self.depth)

    def info(self) -> dict[str, Any]:
        """Kind, fingerprint, which model reranks and how many, and what the index says of itself."""
        own = self.index.info()
        return {
            **super().info(),
            **{name: own[name] for name in ("passages", "corpus") if name in own},
            "settings": {
                "model": self.reranker.name,
                "by": self.reranker.kind,
                "depth": self.depth,
            },
            "index": own,
        }

    def __len__(self) -> int:
        return len(self.index)


# --- the models -------------------------------------------------------------------------------------------------------


def load_reranker(name: str, *, device: str | None = None) -> Reranker:
    """The reranker of a folder or of a name on the hub; its files say of which kind it is. No code in them is run.

    Raises: MissingFile, BadData.
    """
    folder = encoder_folder(name, "reranker")
    kind = kind_of(folder)
    if kind == LATE:
        return LateInteractionReranker(name, device=device)
    if kind in (ENCODER, SPARSE, LANGUAGE_MODEL):
        raise BadData(
            f"{name} is a model of another kind ({kind}) and no reranker: name one, such as {EXAMPLES}"
        )
    return CrossEncoderReranker(name, device=device)


class CrossEncoderReranker(Reranker):
    """A cross-encoder of sentence-transformers with one output: query and passage are read together.

    Raises: MissingFile, or BadData for what is no cross-encoder, gives several numbers, or is not whole.
    """

    kind = "cross-encoder"

    def __init__(self, name: str, *, device: str | None = None) -> None:
        folder = encoder_folder(name, "cross-encoder")
        self.name = lasting(name)
        library = needed("sentence_transformers", "dense", _WHY)
        try:
            with quiet_transformers("dense", _WHY):
                self._model = library.CrossEncoder(
                    str(folder), device=device, local_files_only=True
                )
                missing = missing_weights([self._model.model])
        except (ImportError, MemoryError):
            raise
        except Exception as error:  # whatever torch, tokenizers and safetensors raise
            raise cannot_load(f"the cross-encoder in {folder}", error) from error
        self._model.float().eval()  # in 32 bits wherever it runs, so that a GPU and a CPU agree
        if missing:  # an encoder is no cross-encoder: its head would be made up
            raise BadData(
                f"{name} is no cross-encoder, or not whole: {len(missing)} of its weights are missing, "
                f"{missing[0]} first"
            )
        if (outputs := int(self._model.num_labels)) != 1:
            raise BadData(
                f"{name} gives {outputs} numbers for a text: a scorer needs a cross-encoder that gives one"
            )
        self.identity = fingerprint_of(self.kind, files_hash(folder))
        limits = (self._model.max_seq_length, positions_of(self._model[0]))
        self.limit = min((limit for limit in limits if limit), default=None)
        """Tokens read of query and passage together; None where there is no limit."""
        self._model.max_seq_length = self.limit
        # a fast tokenizer that two threads use at once fails ("Already borrowed")
        self._turn = threading.Lock()

    def scores(
        self, queries: Sequence[str], candidates: Sequence[Sequence[str]]
    ) -> RerankScores:
        """The raw outputs. Raises `BadData` where one is no number."""
        pairs, cut = list[list[tuple[str, str]]](), list[bool]()
        with self._turn:
            for query, own in zip(queries, candidates, strict=True):
                texts = [whole_characters(text) for text in own]
                fitting, was_cut = self._fitting(whole_characters(query), texts)
                pairs.append([(fitting, text) for text in texts])
                cut.append(was_cut)
            once = list(dict.fromkeys(chain.from_iterable(pairs)))
            # behind a sigmoid the best ones would all be 1
            raw = needed("torch", "dense", _WHY).nn.Identity()
            predicted = self._model.predict(
                once, batch_size=_BATCH, show_progress_bar=False, activation_fn=raw
            )
        known = {pair: float(score) for pair, score in zip(once, predicted, strict=True)}
        if not all(map(math.isfinite, known.values())):
            raise BadData(
                f"the cross-encoder {self.name} answers with numbers that are none (NaN): is it whole?"
            )
        return RerankScores([[known[pair] for pair in own] for own in pairs], cut)

    def _fitting(self, query: str, texts: Sequence[str]) -> tuple[str, bool]:
        """The query, or its end where it would not stand whole beside every text, and whether it was cut."""
        if self.limit is None:
            return query, False
        tokenizer = self._model.tokenizer
        how = {"truncation": False, "padding": False, "verbose": False}
        read = tokenizer([query, *texts], add_special_tokens=False, **how)["input_ids"]
        room = self.limit - tokenizer.num_special_tokens_to_add(pair=True)
        room -= min(room // 2, max(map(len, read[1:]), default=0))
        if len(read[0]) <= room:
            return query, False
        return tokenizer.decode(read[0][-room:]), True


class LateInteractionReranker(Reranker):
    """A ColBERT checkpoint: one vector a token, the vectors of the passages kept as long as there is room for them.

    Raises: MissingFile, or BadData for what is no checkpoint.
    """

    kind = "late interaction"

    def __init__(self, name: str, *, device: str | None = None) -> None:
        from blendfilter.retrieval.colbert.encoder import ColBERTCheckpoint, TokenEncoder
        from blendfilter.retrieval.colbert.index import device_for

        checkpoint = ColBERTCheckpoint(name)
        self.name = checkpoint.name
        self.identity = fingerprint_of(self.kind, checkpoint.sha256)
        self._encoder = TokenEncoder(checkpoint, device or device_for(None))
        # one by one on a CPU: beside other texts a vector has other last bits, and near ties another order
        self._at_once = [1] if self._encoder.device.type == "cpu" else []
        self._vectors: OrderedDict[str, Any] = OrderedDict()
        self._bytes = 0
        self._turn = threading.Lock()

    def scores(
        self, queries: Sequence[str], candidates: Sequence[Sequence[str]]
    ) -> RerankScores:
        """The sums of the largest inner products; a query is cut where it is longer than the checkpoint reads."""
        encoded = self._encoder.queries(queries, *self._at_once)
        passages = self._passages(dict.fromkeys(text for texts in candidates for text in texts))
        torch, scores = needed("torch", "colbert", _WHY), list[list[float]]()
        for query, texts in zip(encoded.vectors, candidates, strict=True):
            own = [passages[text] for text in texts]
            if not own:
                scores.append([])
                continue
            products, lengths = torch.cat(own).float() @ query.T, torch.tensor([*map(len, own)])
            best = torch.segment_reduce(products, "max", lengths=lengths)
            scores.append(best.sum(1).tolist())
        return RerankScores(scores, encoded.cut)

    def _passages(self, texts: Iterable[str]) -> dict[str, Any]:
        """The vectors of each of `texts`. Threads take turns, so that none encodes what another one is encoding."""
        with self._turn:
            found = {text: self._vectors.pop(text, None) for text in texts}
            if missing := [text for text, own in found.items() if own is None]:
                vectors, counts = self._encoder.passages(missing, *self._at_once)
                for text, own in zip(missing, vectors.split(counts), strict=True):
                    # a part of the whole would keep all of it in memory
                    found[text] = own.clone()
                    self._bytes += own.nbytes
            self._vectors.update(found)  # the latest are the last
            while self._bytes > _KEPT_BYTES:
                self._bytes -= self._vectors.popitem(last=False)[1].nbytes
            return found
