"""How the next token is chosen: temperature, top_p, top_k, penalties, a grammar, a seed.

In: a request's settings and whose sample it is. Out: a chain of llama.cpp's samplers. Temperature is applied before
top_k and top_p, and nothing that was not asked for cuts the choice, as with the servers whose settings these are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from dspy import lm15

from blendfilter.context import REPEAT, SAMPLE
from blendfilter.lm.local.loading import native

if TYPE_CHECKING:
    from llama_cpp import Llama


class Decoding(NamedTuple):
    """One request's settings. `grammar` is GBNF text, or empty; temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int = 0
    grammar: str = ""


def decoding_of(config: lm15.Config, prompt: str) -> Decoding:
    """The settings of a request. Raises: lm15.UnsupportedFeatureError for a format that no grammar can hold."""
    return Decoding(
        temperature=1.0 if config.temperature is None else config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        frequency_penalty=config.frequency_penalty or 0.0,
        presence_penalty=config.presence_penalty or 0.0,
        seed=_seed(config.seed or 0, prompt),
        grammar=grammar_of(config.response_format) if config.response_format else "",
    )


def _seed(given: int, prompt: str) -> int:
    """A seed of the request and its sample alone: a replay or another order of calls draws the same again."""
    sample = SAMPLE.get()
    whose = f"{given}|{sample.rollout_id}|{sample.i}|{REPEAT.get()}|{prompt}"
    # llama.cpp takes the largest number for "draw a seed of your own".
    return int.from_bytes(hashlib.sha256(whose.encode("utf-8", "replace")).digest()[:4]) % (2**32 - 1)


def grammar_of(wanted: Mapping[str, Any]) -> str:
    """The GBNF grammar of a response format.

    Raises:
        lm15.UnsupportedFeatureError: a format or a schema that cannot be made one.
    """
    kind = wanted.get("type")
    if kind == "text":
        return ""
    schema = wanted.get("schema")
    if kind == "json_object":
        schema = {"type": "object"}
    elif kind != "json_schema" or not isinstance(schema, Mapping):
        raise lm15.UnsupportedFeatureError(f"a local model knows no response format {kind!r}", feature="format")
    convert = native("llama_grammar").json_schema_to_gbnf
    try:
        return str(convert(json.dumps(schema)))
    except Exception as error:  # noqa: BLE001 - it trips in many ways over what it does not know
        said = str(error) or type(error).__name__
        raise lm15.UnsupportedFeatureError(
            f"this JSON schema cannot be made a grammar: {said}", feature="format"
        ) from None


@contextmanager
def sampler(llama: Llama, how: Decoding) -> Iterator[Any]:
    """llama.cpp's chain of samplers for one reply, freed at the end of the block.

    Raises:
        lm15.UnsupportedFeatureError: llama.cpp does not take the grammar.
    """
    c = native("llama_cpp")
    chain = c.llama_sampler_chain_init(c.llama_sampler_chain_default_params())
    try:
        for link in _links(c, llama, how):
            if not link:  # only a grammar can be refused; llama.cpp would fall over it later
                raise lm15.UnsupportedFeatureError("llama.cpp refuses the grammar of this schema", feature="format")
            c.llama_sampler_chain_add(chain, link)
        yield chain
    finally:
        c.llama_sampler_free(chain)


def _links(c: Any, llama: Llama, how: Decoding) -> Iterator[Any]:
    if how.frequency_penalty or how.presence_penalty:
        yield c.llama_sampler_init_penalties(
            llama.n_vocab(), llama.n_ctx(), 1.0, how.frequency_penalty, how.presence_penalty
        )
    if how.grammar:
        vocabulary = c.llama_model_get_vocab(llama.model)
        yield c.llama_sampler_init_grammar(vocabulary, how.grammar.encode(), b"root")
    if how.temperature <= 0:
        yield c.llama_sampler_init_greedy()
        return
    yield c.llama_sampler_init_temp(how.temperature)
    if how.top_k is not None:
        yield c.llama_sampler_init_top_k(how.top_k)
    if how.top_p is not None:
        yield c.llama_sampler_init_top_p(how.top_p, 1)
    yield c.llama_sampler_init_dist(how.seed)
