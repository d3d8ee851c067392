"""How many tokens a text is, for estimates: the best tokeniser at hand for a model, and what it is called.

In this order: the server's own (`POST /tokenize` of vLLM and llama.cpp; only where the caller wants it), the one
of a model in this process, tiktoken where the file of the model's encoding lies on this machine (nothing is
downloaded), tokens a byte as earlier calls of the model counted them, and words times `TOKENS_A_WORD`. Every estimate
names its tokeniser.

An estimate is no bound: a budget reserves by `blendfilter.lm.tokens`. Of a chat template's own tokens (some ten a call)
only the measured one knows.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blendfilter import aio
from blendfilter.dspy_surface import lm15
from blendfilter.errors import MissingFile, UnknownName
from blendfilter.lm.journaled import text_of
from blendfilter.lm.offline import OfflineEngine
from blendfilter.lm.openai import servers_of
from blendfilter.lm.tokens import bytes_of

if TYPE_CHECKING:
    from blendfilter.lm.model import ConnectedLM

TOKENS_A_WORD = 1.4
"""Tokens for a word between white space. By tiktoken's cl100k_base, the prompts of BlendFilter have 1.39 on HotPotQA,
1.43 on 2Wiki and 1.35 on StrategyQA (100 questions each, five passages a query)."""
ENOUGH = 20
"""Calls that a measured count wants at least."""


@dataclass(frozen=True)
class TokenCounter:
    """Counts the tokens of a text (an estimate may be a fraction); `name` is what an estimate calls it."""

    name: str
    count: Callable[[str], float]
    served: bool = False
    """Counted by a server, a request a text."""


WORDS = "words"
RULE = TokenCounter(
    f"words times {TOKENS_A_WORD} (a rule of thumb)",
    lambda text: len(text.split()) * TOKENS_A_WORD,
)


def tokeniser(name: str | None = None) -> TokenCounter:
    """Where no model is meant: `words`, or one of tiktoken's encodings; without a name, the first of these at hand.

    Raises:
        UnknownName: no such tokeniser. MissingFile: that encoding is not on this machine.

    >>> tokeniser("words").count("one two three four five")
    7.0
    """
    if name == WORDS:
        return RULE
    if name is not None and name not in _ENCODINGS:
        raise UnknownName.of("tokeniser", name, (WORDS, *_ENCODINGS))
    for each in ("cl100k_base", *_ENCODINGS) if name is None else (name,):
        if found := _encoding(each):
            return found
    if name is None:
        return RULE
    raise MissingFile(
        f"tiktoken's {name} is not on this machine: TIKTOKEN_CACHE_DIR names its folder, or take '{WORDS}'"
    )


def tokeniser_for(
    lm: ConnectedLM, *, ask_server: bool = False, calls: Iterable[Mapping[str, Any]] = ()
) -> TokenCounter:
    """The best tokeniser at hand for `lm`; `calls` are records of a journal, those of other models left out.

    >>> from blendfilter import connect
    >>> tokeniser_for(connect("offline")).name
    'words, as the offline reader counts them'
    """
    if isinstance(lm.inner, OfflineEngine):
        return TokenCounter(
            "words, as the offline reader counts them", lambda text: float(len(text.split()))
        )
    if ask_server and (served := _served(lm)) is not None:
        return served
    if hasattr(lm.inner, "count_tokens"):
        return TokenCounter(f"the tokeniser of {lm.name}", lm.inner.count_tokens)
    try:
        from tiktoken.model import encoding_name_for_model

        # which differs in control tokens alone
        name = encoding_name_for_model(lm.name.rpartition("/")[2]).removesuffix("_harmony")
    except (ImportError, KeyError):
        name = ""
    known = _encoding(name) if name in _ENCODINGS else None
    return known or _measured(lm.name, calls) or RULE


def _served(lm: ConnectedLM) -> TokenCounter | None:
    servers = servers_of(lm.inner)
    if not servers:
        return None
    engine = servers[0]  # all of them serve one model
    root = engine.address.removesuffix("/v1")

    def count(text: str) -> float:
        # vLLM reads `prompt` and llama.cpp `content`; each leaves the other's field alone.
        body = {"model": engine.model, "prompt": text, "content": text}
        reply = aio.run(engine.raw(f"{root}/tokenize", body), "tokenise")
        number = reply.get(
            "count", len(reply["tokens"]) if isinstance(reply.get("tokens"), list) else None
        )
        if not isinstance(number, int):
            raise lm15.ServerError(f"{root}/tokenize gave no count")
        return float(number)

    try:
        count("one two")
    except lm15.LM15Error:
        return None
    return TokenCounter(f"the tokeniser of {engine.address}", count, served=True)


def _measured(model: str, calls: Iterable[Mapping[str, Any]]) -> TokenCounter | None:
    """Tokens a byte of the prompt, as servers counted the calls of `model`; None where there are too few."""
    number = tokens = size = 0
    for call in calls:
        if call.get("model") == model and call.get("tokens_in"):
            number = number + 1
            tokens = tokens + call["tokens_in"]
            size = size + bytes_of(text_of(call["prompt"]))
    if number < ENOUGH or not size:
        return None
    name = f"{tokens / size:.3f} tokens a byte, as {number:,} earlier calls of {model} were counted"
    return TokenCounter(name, lambda text: bytes_of(text) * tokens / size)


# --- tiktoken ---

_ENCODINGS = {
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    "p50k_base": "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069",
    "r50k_base": "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
}
"""tiktoken's encodings, with the SHA-256 of each one's file."""


def _encoding(name: str) -> TokenCounter | None:
    """tiktoken's encoding, where its file is on this machine: tiktoken would download a missing or damaged one."""
    if importlib.util.find_spec("tiktoken") is None:
        return None
    import tiktoken

    # As tiktoken names the files.
    address = f"https://openaipublic.blob.core.windows.net/encodings/{name}.tiktoken"
    file = hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()
    paths = (folder / file for folder in _folders())
    good = (
        p
        for p in paths
        if p.is_file() and hashlib.sha256(p.read_bytes()).hexdigest() == _ENCODINGS[name]
    )
    if (path := next(good, None)) is None:
        return None
    before = os.environ.get("TIKTOKEN_CACHE_DIR")
    os.environ["TIKTOKEN_CACHE_DIR"] = str(path.parent)
    try:
        encoding = tiktoken.get_encoding(name)
    finally:
        if before is None:
            del os.environ["TIKTOKEN_CACHE_DIR"]
        else:
            os.environ["TIKTOKEN_CACHE_DIR"] = before
    # Control tokens in a text are text.
    return TokenCounter(
        f"tiktoken's {name}", lambda text: float(len(encoding.encode_ordinary(text)))
    )


def _folders() -> Iterator[Path]:
    """Where tiktoken, or litellm, keeps vocabularies."""
    for variable in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        if named := os.environ.get(variable):
            yield Path(named)
    yield Path(tempfile.gettempdir()) / "data-gym-cache"
    spec = importlib.util.find_spec("litellm")  # found, not imported
    for place in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(place) / "litellm_core_utils" / "tokenizers"
