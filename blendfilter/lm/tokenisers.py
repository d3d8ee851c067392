"""How many tokens a text is, for estimates: the best tokeniser at hand for a model, and what it is called.

In: a model, and calls of it that were journaled. Out: a `Tokeniser`; every estimate names its. In this order: the
server's own (`POST /tokenize` of vLLM and llama.cpp; asked only where the caller says so), the own one of a model in
this process, tiktoken where the model's encoding lies on this machine (nothing is downloaded), tokens a byte as earlier
calls of the model counted them, tiktoken's other encoding, and words times `TOKENS_A_WORD`.

An estimate is no bound: a budget reserves by `blendfilter.lm.tokens`. Of a chat template's own tokens (some ten a call)
only the measured one knows.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import tempfile
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dspy import lm15

from blendfilter.errors import MissingFile, UnknownName
from blendfilter.lm import bridge
from blendfilter.lm.offline import OfflineEngine
from blendfilter.lm.tokens import bytes_of

if TYPE_CHECKING:
    import tiktoken

    from blendfilter.lm.model import ConnectedLM

TOKENS_A_WORD = 1.4
"""Tokens for a word between white space. By tiktoken's cl100k_base, the prompts of BlendFilter have 1.39 on HotPotQA,
1.43 on 2Wiki and 1.35 on StrategyQA (100 questions each, five passages a query)."""
ENOUGH = 20
"""Calls that a measured count wants at least."""


class Tokeniser(Protocol):
    """Counts tokens; `name` says whose they are."""

    @property
    def name(self) -> str:
        """What an estimate calls it."""

    def count(self, text: str) -> float:
        """Tokens of `text`; an estimate may be a fraction."""


@dataclass(frozen=True)
class Words:
    """Words between white space, times a factor."""

    factor: float
    name: str

    def count(self, text: str) -> float:
        """Tokens of `text`."""
        return len(text.split()) * self.factor


@dataclass(frozen=True)
class Measured:
    """Tokens a byte of the prompt, as servers counted them."""

    a_byte: float
    calls: int
    model: str

    @property
    def name(self) -> str:
        """How many calls it rests on."""
        return f"{self.a_byte:.3f} tokens a byte, as {self.calls:,} earlier calls of {self.model} were counted"

    def count(self, text: str) -> float:
        """Tokens of `text`."""
        return bytes_of(text) * self.a_byte


@dataclass(frozen=True)
class Own:
    """The tokeniser of a model in this process (an engine with a `count_tokens`)."""

    engine: Any
    name: str

    def count(self, text: str) -> float:
        """Tokens of `text`."""
        return float(self.engine.count_tokens(text))


@dataclass(frozen=True)
class Served:
    """The tokeniser of a server, a request a text; no model is asked."""

    engine: Any
    name: str

    def count(self, text: str) -> float:
        """Tokens of `text`. Raises: lm15 errors, where the server counts no tokens."""
        # vLLM reads `prompt` and llama.cpp `content`; each leaves the other's field alone.
        body = {"model": self.engine.model, "prompt": text, "content": text}
        root = self.engine.address.removesuffix("/v1")
        said = bridge.run(self.engine.raw(f"{root}/tokenize", body), "tokenise")
        count = said.get("count", len(said["tokens"]) if isinstance(said.get("tokens"), list) else None)
        if not isinstance(count, int):
            raise lm15.ServerError(f"{root}/tokenize told no count")
        return float(count)


@dataclass(frozen=True)
class Tiktoken:
    """An encoding of OpenAI's."""

    encoding: tiktoken.Encoding
    name: str

    def count(self, text: str) -> float:
        """Tokens of `text`; control tokens in it are text."""
        return float(len(self.encoding.encode_ordinary(text)))


WORDS = "words"
RULE = Words(TOKENS_A_WORD, f"words times {TOKENS_A_WORD} (a rule of thumb)")


def tokeniser(name: str | None = None) -> Tokeniser:
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
    there = importlib.util.find_spec("tiktoken") is not None
    for each in (_PLAIN, *_ENCODINGS) if name is None else (name,):
        if there and (found := _encoding(each)) is not None:
            return Tiktoken(found, f"tiktoken's {each}")
    if name is not None:
        raise MissingFile(f"tiktoken's {name} is not on this machine: TIKTOKEN_CACHE_DIR names its folder, or take "
                          f"'{WORDS}'")  # fmt: skip
    return RULE


def tokeniser_for(
    lm: ConnectedLM, *, ask_server: bool = False, calls: Iterable[Mapping[str, Any]] = ()
) -> Tokeniser:  # fmt: skip
    """The best tokeniser at hand for `lm`; `calls` are records of a journal, those of other models left out.

    >>> from blendfilter import connect
    >>> tokeniser_for(connect("offline")).name
    'words, as the offline reader counts them'
    """
    if isinstance(lm.inner, OfflineEngine):
        return Words(1.0, "words, as the offline reader counts them")
    return next(found for found in _at_hand(lm, ask_server, calls) if found is not None)


def _at_hand(lm: ConnectedLM, ask_server: bool, calls: Iterable[Mapping[str, Any]]) -> Iterator[Tokeniser | None]:
    if ask_server:
        yield _served(lm)
    if hasattr(lm.inner, "count_tokens"):
        yield Own(lm.inner, f"the tokeniser of {lm.name}")
    name = lm.name.rpartition("/")[2]
    yield of_openai(name)
    yield measured(lm.name, calls)
    yield of_openai(name, exactly=False)
    yield RULE


def _served(lm: ConnectedLM) -> Served | None:
    engine: Any = next(iter(getattr(lm.inner, "engines", ())), lm.inner)  # replicas serve one model
    if not hasattr(engine, "raw"):
        return None
    found = Served(engine, f"the tokeniser of {engine.address}")
    try:
        found.count("one two")
    except lm15.LM15Error:
        return None
    return found


def measured(model: str, calls: Iterable[Mapping[str, Any]]) -> Measured | None:
    """Tokens a byte over the calls of `model`; None where there are too few."""
    number = tokens = size = 0
    for call in calls:
        if call.get("model") == model and call.get("tokens_in"):
            number, tokens, size = number + 1, tokens + call["tokens_in"], size + bytes_of(text_of(call["prompt"]))
    return Measured(tokens / size, number, model) if number >= ENOUGH and size else None


def text_of(prompt: str | list[list[str]]) -> str:
    """The text of a record's prompt: one text, or messages of role and text."""
    return prompt if isinstance(prompt, str) else "\n\n".join(text for _, text in prompt)


# --- tiktoken ---

_ENCODINGS = ("o200k_base", "cl100k_base", "p50k_base", "r50k_base")
_PLAIN = "cl100k_base"
"""The one that is taken where none is named."""


def of_openai(model: str, *, exactly: bool = True) -> Tiktoken | None:
    """tiktoken's encoding of `model`, or (not `exactly`) another of the family; None where it is not on this machine.

    None too where tiktoken knows no such model.
    """
    if importlib.util.find_spec("tiktoken") is None:
        return None
    from tiktoken.model import encoding_name_for_model

    try:
        wanted = encoding_name_for_model(model).removesuffix("_harmony")  # which differs in control tokens alone
    except KeyError:
        return None
    for name in [wanted] if exactly else _ENCODINGS:
        if name in _ENCODINGS and (found := _encoding(name)) is not None:
            near = "" if name == wanted else f" (the model's own, {wanted}, is not on this machine)"
            return Tiktoken(found, f"tiktoken's {name}{near}")
    return None


def _encoding(name: str) -> tiktoken.Encoding | None:
    import tiktoken
    import tiktoken_ext.openai_public as public  # type: ignore[import-untyped]

    make = getattr(public, name)
    # The same function over a loader that reads files and never the network.
    offline = types.FunctionType(make.__code__, {**make.__globals__, "load_tiktoken_bpe": _ranks})
    try:
        return tiktoken.Encoding(**offline())
    except FileNotFoundError:
        return None


def _ranks(address: str, expected_hash: str | None = None) -> dict[bytes, int]:
    """A vocabulary from where tiktoken, or litellm, keeps it. Raises: FileNotFoundError."""
    name = hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()
    for folder in _folders():
        path = folder / name
        data = path.read_bytes() if path.is_file() else b""
        if data and (expected_hash is None or hashlib.sha256(data).hexdigest() == expected_hash):
            pairs = (line.split() for line in data.splitlines() if line)
            return {base64.b64decode(token): int(rank) for token, rank in pairs}
    raise FileNotFoundError(address)


def _folders() -> Iterator[Path]:
    for variable in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        if named := os.environ.get(variable):
            yield Path(named)
    yield Path(tempfile.gettempdir()) / "data-gym-cache"
    spec = importlib.util.find_spec("litellm")  # found, not imported
    for place in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(place) / "litellm_core_utils" / "tokenizers"
