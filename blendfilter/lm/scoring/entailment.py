"""Entailment: how sure a model is that a premise supports a hypothesis.

Two kinds of model say it. A **classifier** with labels, one of which names entailment, reads premise and hypothesis
together; its probability is that label's share of a softmax. An **encoder-decoder** that writes 1 or 0 reads
`premise: … hypothesis: …`, as T5 does that was trained so (Honovich et al. 2022, TRUE,
https://arxiv.org/abs/2204.04991, section 3; google/t5_xxl_true_nli_mixture is BIDER's): its probability of writing 1.

    nli = scorer("nli", "cross-encoder/nli-deberta-v3-small", journal="runs/mine")
    nli.entailment([("The mill burned down in 1871.", "There was a fire at the mill.")])

A premise that is too long for a classifier loses its end, and its `Score` says so (`cut`); a hypothesis never does.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from blendfilter import aio
from blendfilter.errors import BadArgument, BadData
from blendfilter.extras import quiet_transformers
from blendfilter.lm.checkpoints import (
    CONFIG,
    EXTRA,
    Checkpoint,
    check_dtype,
    check_sentencepiece,
    checkpoint_of,
    fingerprint,
    load_errors,
    read_json,
    torch,
    torch_device,
    transformers,
    where_of,
)
from blendfilter.lm.huggingface import settings_in
from blendfilter.lm.scoring.base import (
    LARGEST,
    Backend,
    CutScore,
    InProcess,
    Result,
    Score,
    TextPair,
    batches,
    too_long,
)
from blendfilter.lm.scoring.huggingface import BATCH_TOKENS, HuggingFace, check_given
from blendfilter.lm.scoring.kept import KeptScorer
from blendfilter.records import whole_characters

WHY = "an entailment model"
EXAMPLES = "cross-encoder/nli-deberta-v3-small, google/t5_xxl_true_nli_mixture"
ENTAILED = frozenset(
    [
        "entailment",
        "entail",
        "entails",
        "entailed",
        "isentailed",
        "support",
        "supports",
        "supported",
    ]
)
"""What checkpoints call it, without spaces and signs."""
SETTINGS = ("device", "dtype", "batch_tokens", "batch_size")
_ENDLESS = 10**9
_WRITES = ("1", "0")
_PROBE = TextPair("The mill burned down in 1871.", "The mill burned down in 1871.")


class EntailmentScorer(KeptScorer):
    """Probabilities that premises support hypotheses, by one model, kept in `journal` as any scores.

    A pair is (premise, hypothesis); `score` gives the logarithms. Raises as `KeptScorer` does; `ModelError` where a
    hypothesis is longer than the model reads.
    """

    _warned = False

    def entailment(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """P(entailed) of each (premise, hypothesis), from 0 to 1. Warns once of premises that lost their ends."""
        return aio.run(self.aentailment(pairs), "scorer", "await scorer.aentailment(…)")

    async def aentailment(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The same, awaited."""
        scores = await self.ascore(pairs)
        if not self._warned and (cut := sum(score.cut for score in scores)):
            self._warned = True
            warnings.warn(
                f"{cut} of {len(scores)} premises are longer than {self.backend.name} reads: their ends were cut off",
                stacklevel=2,
            )
        return [math.exp(score.logprob) for score in scores]


def entailment_backend(name: str | Path, **settings: Any) -> Backend:
    """The model of a folder, or of `owner/name` on the hub, of either kind; `settings` as for `Classifier`.

    The name may bring settings of its own: `google/t5_xxl_true_nli_mixture?dtype=bfloat16`.

    Raises:
        MissingFile: there is no such model. BadData: it is none of entailment (its labels, or its kind, are named).
        BadArgument: a setting that there is not.
    """
    if strange := sorted(settings.keys() - {*SETTINGS}):
        raise BadArgument(f"an entailment model has no setting '{strange[0]}'")
    name, own = settings_in(str(name).removeprefix("hf/"))
    settings = {**own, **settings}
    folder = checkpoint_of(name).path
    kind, labels = classifier_labels(folder)
    if kind.endswith("ForConditionalGeneration"):
        return WrittenVerdict(name, **settings)
    move = f"name one whose labels say which is entailment, such as {EXAMPLES}"
    if not labels:
        raise BadData(
            f"{folder} is no entailment model but a {kind or 'model of an unknown kind'}: {move}"
        )
    at = label_at(labels, ENTAILED)
    if at is None or len(labels) < 2:
        stated = ", ".join(labels.values())
        raise BadData(
            f"{folder} is no entailment model: of its labels ({stated}) not just one names entailment; {move}, or "
            f"write the right names into id2label of its {CONFIG}"
        )
    return Classifier(name, at, **settings)


class Classifier(InProcess):
    """A classifier of pairs whose output at `entailed` is the one for entailment.

    Args:
        device: by default a GPU where there is one. dtype: what it computes in, float32 by default.
        batch_tokens: tokens of a batch on a GPU. On a CPU pairs are read one by one, so that a probability does not
            depend on the pairs beside it, to the last digit.
        batch_size: pairs of a batch, at most.
    """

    def __init__(self, name: str | Path, entailed: int, **settings: Any) -> None:
        super().__init__()
        self.model = PairClassifier(name, **settings)
        self.name = self.model.name
        self._entailed = entailed
        self._dtype = settings.get("dtype")

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """The weights' fingerprint, and the type of numbers where one was asked for."""
        return {
            "kind": "entailment",
            "weights": fingerprint(self.model.folder),
            **({"dtype": self._dtype} if self._dtype else {}),
        }

    def results(self, pairs: Sequence[TextPair]) -> Iterator[tuple[int, Result]]:
        """See `InProcess`."""
        for at, found in self.model.outputs(pairs):
            if found is None:
                yield at, too_long(pairs[at], *self.model.lengths(pairs[at]))
            else:
                logprobs = torch.log_softmax(
                    torch.tensor(found.values, dtype=torch.float64), dim=0
                )
                yield at, (CutScore if found.cut else Score)(float(logprobs[self._entailed]), 1)


class WrittenVerdict(HuggingFace):
    """An encoder-decoder that writes 1 where the premise entails the hypothesis, else 0; it is put to the test once."""

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """As of any Hugging Face model's scores, and that they are of entailment."""
        return {**super().identity, "kind": "entailment"}

    def results(self, pairs: Sequence[TextPair]) -> Iterator[tuple[int, Result]]:
        """See `InProcess`."""
        if not self._writes_verdicts:
            raise BadData(
                f"{self.name} is no entailment model: after 'premise: … hypothesis: …' it writes neither 1 nor 0; "
                f"name one that does, or one with labels, such as {EXAMPLES}"
            )
        yield from super().results([self._asked(pair, _WRITES[0]) for pair in pairs])

    @cached_property
    def _writes_verdicts(self) -> bool:
        found = dict(super().results([self._asked(_PROBE, verdict) for verdict in _WRITES]))
        sure = (math.exp(each.logprob) for each in found.values() if isinstance(each, Score))
        return sum(sure) > 0.5

    def _asked(self, pair: TextPair, verdict: str) -> TextPair:
        return TextPair(f"premise: {pair.prompt} hypothesis: {pair.continuation}", verdict)


# --- classifiers of pairs of texts ------------------------------------------------------------------------------------


class Outputs(NamedTuple):
    """A classifier's numbers for a pair, one a label, before any softmax; whether the first text lost its end."""

    values: list[float]
    cut: bool


class PairClassifier:
    """A Hugging Face classifier of pairs of texts: a folder, or `owner/name`; loaded when first asked.

    Raises:
        MissingFile, BadData: no such model. Later, `BadData`: it cannot be loaded, is not whole, or gives NaN.
    """

    def __init__(
        self,
        name: str | Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
        batch_size: int | None = None,
    ) -> None:
        check_given(batch_tokens=batch_tokens, batch_size=batch_size)
        self.folder = checkpoint_of(name).path
        here = Path(name).expanduser().is_dir()
        self.name = self.folder.resolve().name if here else str(name)
        self._device, self._dtype = device, dtype
        self._batch_tokens, self._rows = batch_tokens, batch_size or LARGEST

    def load(self) -> None:
        """Load it now."""
        self._loaded  # noqa: B018

    def lengths(self, pair: TextPair) -> tuple[int, int]:
        """The tokens of a pair, and how many the model reads."""
        return len(self._read([pair])["input_ids"][0]), self._limit

    def outputs(
        self, pairs: Sequence[tuple[str, str]], *, shorten_both: bool = False
    ) -> Iterator[tuple[int, Outputs | None]]:
        """Index and outputs of each pair, in any order; None where the second text alone is too long to be read.

        A pair that is too long loses the end of its first text, or with `shorten_both` of the longer one, token by
        token.
        """
        limit = self._limit
        texts = [TextPair(*map(whole_characters, pair)) for pair in pairs]
        lengths = [len(ids) for ids in self._read(texts)["input_ids"]]
        readable = []
        for at, (text, length) in enumerate(zip(texts, lengths, strict=True)):
            if length > limit and not shorten_both:
                # is there room for a token of the first text?
                own = self._read([TextPair("", text.continuation)])["input_ids"][0]
                if len(own) >= limit:
                    yield at, None
                    continue
            readable.append(at)
        model = self._loaded[0]
        rows, tokens = self._rows, self._batch_tokens or BATCH_TOKENS["cuda"]
        if model.device.type == "cpu":
            rows = tokens = 1
        sizes = [min(lengths[at], limit) for at in readable]
        for batch in batches(sizes, tokens=tokens, rows=rows):
            chosen = [readable[i] for i in batch]
            cut: dict[str, Any] = {}
            if any(lengths[at] > limit for at in chosen):
                which = "longest_first" if shorten_both else "only_first"
                cut = {"max_length": limit, "truncation": which}
            some = [texts[at] for at in chosen]
            read = self._read(some, padding=len(chosen) > 1, return_tensors="pt", **cut)
            with torch.inference_mode():
                found = model(**read.to(model.device)).logits.double().cpu()
            if not torch.isfinite(found).all():
                raise BadData(
                    f"the model {self.name} answers with numbers that are none (NaN): is it whole?"
                )
            for at, values in zip(chosen, found.tolist(), strict=True):
                yield at, Outputs(values, lengths[at] > limit)

    def _read(self, pairs: Sequence[TextPair], **how: Any) -> Any:
        """What the tokeniser makes of pairs; a control token's name in a text is text."""
        if not pairs:
            return {"input_ids": []}
        texts = [pair.prompt for pair in pairs], [pair.continuation for pair in pairs]
        return self._loaded[1](*texts, split_special_tokens=True, verbose=False, **how)

    @cached_property
    def _limit(self) -> int:
        """Tokens of a pair that are read, marks included."""
        model, tokenizer = self._loaded
        stated = getattr(model.config, "max_position_embeddings", None) or _ENDLESS
        embeddings = getattr(model.base_model, "embeddings", None)
        # RoBERTa counts its positions from behind its padding's
        table = getattr(embeddings, "position_embeddings", None)
        padding = getattr(table, "padding_idx", None)
        before = 0 if padding is None else padding + 1
        return int(min(stated - before, tokenizer.model_max_length, _ENDLESS))

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        place = torch_device(self._device)
        check_dtype(self._dtype)
        check_sentencepiece(self.folder)
        found = Checkpoint(self.folder)
        with quiet_transformers(EXTRA, WHY), load_errors(found):
            model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
                **where_of(found), dtype=self._dtype or "float32", output_loading_info=True
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(**where_of(found))
        if missing := sorted(report["missing_keys"]):  # they were made up, at random
            raise BadData(
                f"{self.folder} is no classifier, or not whole: {len(missing)} of its weights are missing, "
                f"{missing[0]} first"
            )
        return model.to(place).eval(), tokenizer


def classifier_labels(folder: Path) -> tuple[str, dict[int, str]]:
    """What kind of model a folder holds by its own word ("" where it does not say), and its labels by their output.

    No labels where it is no classifier of texts. Raises `BadData` where its config.json cannot be read.
    """
    try:
        config = read_json(folder / CONFIG)
        kind = str(next(iter(config.get("architectures") or ()), ""))
        stated = config.get("id2label") or {0: "LABEL_0", 1: "LABEL_1"}
        labels = sorted((int(at), str(label)) for at, label in stated.items())
    except (AttributeError, TypeError, ValueError) as error:
        raise BadData(
            f"the {CONFIG} in {folder} cannot be read ({error}): fetch the model again"
        ) from None
    return kind, dict(labels if kind.endswith("ForSequenceClassification") else [])


def label_at(labels: Mapping[int, str], names: Set[str]) -> int | None:
    """The one output whose label is among `names`, however it is spelled; None where it is none, or several.

    >>> label_at({0: "Not_Entailment", 1: "ENTAILMENT"}, {"entailment"})
    1
    """
    found = [
        at for at, label in labels.items() if re.sub(r"[\W_]+", "", label.casefold()) in names
    ]
    return found[0] if len(found) == 1 else None
