"""What tokens cost: `prices.toml` (dollars for a million tokens, with its date), and files of the user's own before it.

What neither names costs what litellm's list says, in the copy that comes with DSPy. Both hold for a model called at its
provider; a server at an address of the user's own costs what the user's file says. An unknown price is None, never 0.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pydantic.dataclasses
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, StrictBool, ValidationError

from blendfilter.dspy_surface import listed_rates
from blendfilter.errors import BadData, MissingFile
from blendfilter.files import path_of, read_whole
from blendfilter.lm.profiles import PROVIDERS

A_MILLION = 1_000_000
LEAST = 0.0001
"""Dollars for a million tokens; what is less and not 0 was meant for one token."""
MOST = 1000.0
"""Dollars that no call costs: a larger figure is none."""
MARGIN, FEE = 10.0, 10.0
"""A server may state so many times what our price makes of a call, and so many dollars beside it: a broker's margin,
its searches, cache writes."""
Dollars = Annotated[FiniteFloat, Field(ge=0, strict=True)]


@pydantic.dataclasses.dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class Price:
    """Dollars for a million tokens; `cached`: of the prompt's tokens that the server had read before, where it differs.

    Tokens of a model's thinking are output tokens. `snapshots`: it holds for the model's dated snapshots too.
    """

    input: Dollars
    output: Dollars
    cached: Dollars | None = None
    snapshots: StrictBool = field(default=False, repr=False, compare=False)

    def of(self, tokens_in: int, tokens_out: int, cached: int = 0) -> float:
        """Dollars for a call; `cached` of its `tokens_in` count as such.

        >>> Price(input=0.15, output=0.60, cached=0.075).of(1_000_000, 500_000, cached=400_000)
        0.42
        """
        known = min(cached, tokens_in)
        rate = self.input if self.cached is None else self.cached
        dollars = (tokens_in - known) * self.input + known * rate + tokens_out * self.output
        return round(dollars / A_MILLION, 12)

    def times(self, rate: float) -> Price:
        """This, at a share of it.

        >>> Price(input=0.15, output=0.60).times(0.5)
        Price(input=0.075, output=0.3, cached=None)
        """
        cached = None if self.cached is None else round(self.cached * rate, 12)
        return Price(
            round(self.input * rate, 12), round(self.output * rate, 12), cached, self.snapshots
        )


@dataclass(frozen=True)
class Prices:
    """A file of prices: `provider/model`, or in a user's own a bare model name, to what it costs."""

    path: Path
    date: str
    listed: Mapping[str, Price]

    def named(self, name: str) -> Price | None:
        """The price under `name`, or under the model whose dated snapshot it is.

        >>> found = shipped().named("openai/gpt-4o-mini-2024-07-18")
        >>> found == shipped().named("openai/gpt-4o-mini"), shipped().named("openai/gpt-4o-mini-new")
        (True, None)
        """
        if name in self.listed:
            return self.listed[name]
        dated = re.fullmatch(r"(.+)-\d{4}-\d\d-\d\d", name)
        family = self.listed.get(dated[1]) if dated else None
        return family if family and family.snapshots else None


def price_of(
    model: str, provider: str | None = None, own: Prices | None = None
) -> Price | None:
    """What `model` costs at `provider` (None: at a user's address), by the user's file, ours, and then litellm's.

    >>> price_of("gpt-4o-mini", "openai")
    Price(input=0.15, output=0.6, cached=0.075)
    >>> price_of("claude-opus-4-6", "anthropic")
    Price(input=5.0, output=25.0, cached=0.5)
    >>> price_of("gpt-4o-mini") is None, price_of("claude-new", "anthropic") is None
    (True, True)
    """
    names = [f"{provider}/{model}"] if provider else []
    if own is not None:
        # What a broker sells under another provider's name is not that provider's.
        bare = [model] if not provider or model.partition("/")[0] not in PROVIDERS else []
        for name in (*names, *bare):
            if (price := own.named(name)) is not None:
                return price
    if not names or provider is None:
        return None
    return shipped().named(names[0]) or listed_price(model, provider)


@functools.cache
def listed_price(model: str, provider: str) -> Price | None:
    """litellm's price of `model` at `provider`, of the standard tier and of ordinary context; None where it has none.

    A server on the user's own machine has no price: litellm's 0 for those is a default, not a figure.
    """
    known = PROVIDERS.get(provider)
    if known is not None and not known.key_variable:
        return None
    if (rates := listed_rates(_LITELLM_NAMES.get(provider, provider), model)) is None:
        return None
    dollars = [None if rate is None else round(rate * A_MILLION, 9) for rate in rates]
    return Price(*dollars) if any(dollars) else None  # type: ignore[arg-type]


_LITELLM_NAMES = {"together": "together_ai"}
"""What litellm calls a provider of ours, where it calls it something else."""


def unknown_price(model: str, own: Prices | None) -> str:
    """Why the price of `model` is unknown, in words."""
    if own is None:
        return "no price is known (prices=FILE)"
    return f"no price is known: {own.path} names no model '{model}'"


def price_in(record: Mapping[str, Any], own: Prices | None = None) -> Price | None:
    """What the model of a journaled call costs."""
    options = (record.get("parameters") or {}).get("options") or {}
    return rated(price_of(str(record.get("model", "")), options.get("provider"), own), record)


def rated(price: Price | None, record: Mapping[str, Any]) -> Price | None:
    """`price` at the share of it that held for a journaled call (`rate`: a provider's batch)."""
    rate = stated(record.get("rate"))
    return price if price is None or rate is None else price.times(rate)


def stated(cost: Any, ours: float | None = None) -> float | None:
    """The dollars that a server states for a call; None where they cannot be true.

    They are negative, a truth value, no number, more than any call costs; `ours`: or far more than our price makes it.

    >>> stated(0.25), stated(0), stated(-1), stated(True), stated(float("nan")), stated(10**400), stated("0.1")
    (0.25, 0.0, None, None, None, None, None)
    >>> stated(999.0), stated(1e12), stated(999.0, ours=0.01), stated(9.0, ours=0.01)
    (999.0, None, None, 9.0)
    """
    if isinstance(cost, bool) or not isinstance(cost, int | float):
        return None
    most = MOST if ours is None else MARGIN * ours + FEE
    return float(cost) if 0 <= cost <= most else None


def cost_of(record: Mapping[str, Any], price: Price | None) -> float | None:
    """What a journaled call cost: what is recorded of it, else by `price`; None: unknown.

    A reply that was asked for once more (the record's `first`) was paid for too. What attempts without a reply may have
    cost is in no sum: a budget counts it, by `tokens_lost`.
    """
    if (recorded := stated(record.get("cost"))) is not None:
        return recorded
    dollars = 0.0
    for reply in (record, *([record["first"]] if record.get("first") else [])):
        tokens_in, tokens_out = reply.get("tokens_in"), reply.get("tokens_out")
        if price is None or tokens_in is None or tokens_out is None:
            return None
        dollars += price.of(tokens_in, tokens_out, reply.get("tokens_cached") or 0)
    return dollars


@functools.cache
def shipped() -> Prices:
    """The prices that come with the package."""
    return read_prices(Path(__file__).with_suffix(".toml"))


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    date: Any = ""
    source: Any = ""
    models: Annotated[dict[str, Price], Field(min_length=1)]


def read_prices(path: str | Path) -> Prices:
    """A file of prices.

    Raises:
        MissingFile: it is not there. BadData: it is no such file; the line says where, and what to write.
    """
    path = path_of(path)
    if path.is_dir() or not path.exists():
        raise MissingFile(f"no price file at {path}: write one; {_EXAMPLE}")
    written = read_whole(path)
    try:
        data = _File.model_validate(tomllib.loads(written.decode("utf-8")))
    except ValidationError as error:
        fault = error.errors()[0]
        where = ", ".join(map(str, fault["loc"]))
        raise BadData(
            f"{path}, {where}: {fault['msg']}, not {fault['input']!r:.40}; {_EXAMPLE}"
        ) from None
    except ValueError as error:
        raise BadData(f"{path}: not TOML ({error}); {_EXAMPLE}") from error
    for name, price in data.models.items():
        if any(
            0 < dollars < LEAST for dollars in (price.input, price.output, price.cached or 0)
        ):
            raise BadData(
                f"{path}, models, {name}: a price for one token? Give it for a million"
            )
    return Prices(path, str(data.date), data.models)


_EXAMPLE = (
    'under [models] write lines such as "openai/gpt-4o-mini" = { input = 0.15, output = 0.60 }'
)
