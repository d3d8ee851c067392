"""Log-probabilities of given text: what a model thinks of words that it did not choose.

CXMI, BIDER's nuggets and constrained filters are made of these; no DSPy model offers them. Models in this process
(of Hugging Face, or a GGUF file that is unpacked) and servers that give them have one interface::

    ask = scorer("local", journal="runs/mine")
    with_passage, without = ask.score([(f"{passage}\\n{question}", answer), (question, answer)])
    cxmi = with_passage.logprob - without.logprob

How sure a model is that one text supports another is asked in the same way::

    nli = scorer("nli", "cross-encoder/nli-deberta-v3-small", journal="runs/mine")
    supported, = nli.entailment([("The mill burned down in 1871.", "There was a fire at the mill.")])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, Literal, overload

import dspy

from blendfilter.errors import BadArgument
from blendfilter.journal import Journal, Mode
from blendfilter.lm.checkpoints import ADAPTER, CONFIG, HUGGING_FACE
from blendfilter.lm.huggingface import HuggingFaceEngine, settings_in
from blendfilter.lm.in_process import LOCAL, is_local
from blendfilter.lm.local import LocalEngine
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.openai import servers_of
from blendfilter.lm.profiles import PROVIDERS, addresses_of, place_of
from blendfilter.lm.replicas import ReplicatedEngine
from blendfilter.lm.scoring.base import Backend, Score
from blendfilter.lm.scoring.entailment import EXAMPLES, EntailmentScorer, entailment_backend
from blendfilter.lm.scoring.huggingface import HuggingFace
from blendfilter.lm.scoring.kept import KeptScorer
from blendfilter.lm.scoring.served import CAN, EchoEngine, ScoringServer

__all__ = ["Score", "scorer"]

NLI = "nli"


@overload
def scorer(model: Literal["nli"], name: str | Path, **settings: Any) -> EntailmentScorer: ...
@overload
def scorer(model: str | Path | dspy.BaseLM = LOCAL, **settings: Any) -> KeptScorer: ...
def scorer(
    model: str | Path | dspy.BaseLM = LOCAL,
    name: str | Path | None = None,
    *,
    journal: Journal | str | Path | None = None,
    mode: Mode = "auto",
    **settings: Any,
) -> KeptScorer:
    """What gives the log-probabilities of continuations under `model`; `scorer("nli", NAME)` those of entailment.

    Args:
        model: a Hugging Face folder, a LoRA adapter's too, or `hf/…`, whatever `connect()` opens by that name; `local`
            (SmolLM2-135M) or `PATH.gguf`, unpacked in the same way; a served model, as `provider/model`, as any name
            with `api_base`, or as `connect()` made it. "nli" for an entailment model, which `name` names.
        name: with "nli", a Hugging Face folder, or a name on its hub: a classifier with a label for entailment, or an
            encoder-decoder that writes 1 or 0.
        journal: a folder or file, or an open `Journal`; without one (or that of a connected model) nothing is kept.
        mode: `auto`, `record` or `replay`, of a journal that is given as a folder or file.
        api_base, api_key, label: as for `connect()`. concurrency: requests in flight, 8 by default.
        device, dtype, batch_tokens, batch_size, context, threads: of a model in this process, see `HuggingFace`.
        bos: whether the mark that begins a text stands before every text; by default where the model's own tokeniser
            puts it, and wherever nothing else stands before a continuation.
        control: read the name of a control token (`<|im_end|>`) in a text as that token. By default texts are data.

    Raises:
        BadArgument: a model that gives no log-probabilities; a setting that this kind of model does not have.
        MissingFile, BadData: no such model file or folder. UnknownName: no such provider. MissingExtra: its package.
    """
    settings = {setting: value for setting, value in settings.items() if value is not None}
    kind: type[KeptScorer] = KeptScorer
    if model == NLI and name is not None:
        kind, backend = EntailmentScorer, entailment_backend(name, **settings)
    elif model == NLI:
        raise BadArgument(
            f"scorer('{NLI}', MODEL): name the entailment model, such as {EXAMPLES}"
        )
    elif name is not None:
        raise BadArgument(f"a second name is for entailment: scorer('{NLI}', '{name}')")
    elif isinstance(model, dspy.BaseLM):
        backend, kept = _connected(model, settings), getattr(model, "journal", None)
        journal = journal or (kept if isinstance(kept, Journal) else None)
    else:
        backend = _named(str(model), settings)
    if isinstance(journal, str | Path):
        journal = Journal(journal, mode)
    elif mode != "auto":
        raise BadArgument(
            f"mode '{mode}' is for a journal that is opened here: name its folder or file (journal=…)"
        )
    return kind(backend, journal)


def _connected(lm: dspy.BaseLM, settings: dict[str, Any]) -> Backend:
    inner = lm.inner if isinstance(lm, ConnectedLM) else None
    if isinstance(inner, HuggingFaceEngine):
        return _made(HuggingFace, inner.checkpoint, settings)
    if isinstance(inner, LocalEngine):
        return _made(HuggingFace, inner.path, settings)
    engines = servers_of(inner)
    if not isinstance(lm, ConnectedLM) or not engines:
        raise BadArgument(
            f"{getattr(lm, 'name', lm.model)} gives no log-probabilities of given text; {CAN}"
        )
    label = str(lm.identity.get("label") or "")
    echoing = _one([engine.at_completions(EchoEngine) for engine in engines])
    return _made(
        ScoringServer,
        echoing,
        {"label": label, "terms": lm.terms, "traffic": lm.traffic, **settings},
    )


def _named(name: str, settings: dict[str, Any]) -> Backend:
    if "api_base" in settings:
        return _served(name, settings)
    if is_local(name):
        inner = name.removeprefix(f"{LOCAL}/")  # as for `connect()`
        return _made(HuggingFace, name if Path(name).is_file() else inner, settings)
    if name.startswith(HUGGING_FACE) or any(
        (Path(name).expanduser() / file).is_file() for file in (CONFIG, ADAPTER)
    ):
        plain, own = settings_in(name)
        return _made(HuggingFace, plain, {**own, **settings})
    if name.partition("/")[0] in PROVIDERS:
        return _served(name, settings)
    if name == "offline":
        raise BadArgument(
            f"the offline reader is no model and gives no log-probabilities; {CAN}"
        )
    raise BadArgument(
        f"'{name}' is nothing that gives log-probabilities of given text; {CAN}, hf/owner/name"
    )


def _served(name: str, settings: dict[str, Any]) -> Backend:
    addresses = addresses_of(settings.pop("api_base", None))
    key = settings.pop("api_key", None)
    places = [place_of(name, address, key) for address in addresses]
    engines = [
        EchoEngine(url, own, model=model, endpoint="completions") for url, model, own in places
    ]
    return _made(ScoringServer, _one(engines), settings)


def _made(kind: Callable[..., Backend], what: Any, settings: Mapping[str, Any]) -> Backend:
    if strange := settings.keys() - signature(kind).parameters.keys():
        raise BadArgument(f"{kind.__name__} has no setting '{min(strange)}'")
    return kind(what, **settings)


def _one(engines: Sequence[EchoEngine]) -> EchoEngine | ReplicatedEngine:
    return engines[0] if len(engines) == 1 else ReplicatedEngine(engines)
