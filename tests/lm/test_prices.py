"""What tokens cost: the shipped file against facts from outside, files of a user's own, and which of them holds."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from scripted import ScriptedEngine, response

from blendfilter import connect
from blendfilter.errors import BadData, MissingFile
from blendfilter.journal import Journal
from blendfilter.lm.attempts import CallPolicy
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.prices import Price, cost_of, price_in, price_of, read_prices, shipped
from blendfilter.lm.profiles import PROVIDERS, Profile

OURS = {"text-completion-openai": "openai", "together_ai": "together"}
"""What litellm calls a provider of ours, where it calls it something else."""


def written(folder: Path, text: str) -> Path:
    path = folder / "prices.toml"
    path.write_text(text, encoding="utf-8")
    return path


# --- the shipped file -----------------------------------------------------------------------------------------------


def outside() -> dict[str, Price]:
    """litellm's map of prices, read and not imported, under our names."""
    spec = importlib.util.find_spec("litellm")
    places = (spec.submodule_search_locations or []) if spec else []
    files = [Path(place) / "model_prices_and_context_window_backup.json" for place in places]
    if not any(file.is_file() for file in files):
        pytest.skip("litellm, or its map of prices, is not installed")
    result: dict[str, Any] = json.loads(next(file for file in files if file.is_file()).read_text(encoding="utf-8"))
    found = {}
    for name, entry in result.items():
        theirs = str(entry.get("litellm_provider"))
        rates = [entry.get(f"{kind}_cost_per_token") for kind in ("input", "output", "cache_read_input_token")]
        cached = entry.get("cache_read_input_token_cost")
        if (provider := OURS.get(theirs, theirs)) in PROVIDERS and None not in rates[:2]:
            numbers = [None if rate is None else round(1e6 * rate, 9) for rate in (*rates[:2], cached)]
            found[f"{provider}/{name.removeprefix(f'{theirs}/')}"] = Price(*numbers)  # type: ignore[arg-type]
    return found


def test_every_price_that_others_know_too_is_theirs() -> None:
    theirs = outside()
    known = {name: price for name in theirs if (price := shipped().named(name)) is not None}
    assert known == {name: theirs[name] for name in known}
    assert set(shipped().listed) <= known.keys(), "and they know all of ours"
    assert len(known) > len(shipped().listed), "dated snapshots among them"


def test_the_shipped_file_is_dated_and_of_known_providers() -> None:
    assert shipped().date.startswith("2026-")
    assert {name.partition("/")[0] for name in shipped().listed} <= PROVIDERS.keys()


def test_a_dated_snapshot_has_its_familys_price_where_the_file_says_so(tmp_path: Path) -> None:
    own = read_prices(written(tmp_path, """
[models]
"a/with" = { input = 1, output = 2, snapshots = true }
"a/with-2024-05-13" = { input = 5, output = 6 }
"a/without" = { input = 3, output = 4 }
"""))  # fmt: skip
    assert own.named("a/with-2025-01-31") == Price(1, 2)
    assert own.named("a/with-2024-05-13") == Price(5, 6)
    for name in ("a/without-2025-01-31", "a/with-mini", "a/with-2025", "a/with-2025-01-31-mini", "a/wit"):
        assert own.named(name) is None


# --- which price holds ----------------------------------------------------------------------------------------------


def test_ours_hold_at_the_provider_and_nowhere_else(tmp_path: Path) -> None:
    mini = Price(0.15, 0.6, 0.075)
    own = read_prices(written(tmp_path, '[models]\n"gpt-4o-mini" = { input = 0, output = 0 }\n'))
    at_home = connect("openai/gpt-4o-mini", api_key="k")
    elsewhere = connect("openai/gpt-4o-mini", api_base="http://127.0.0.1:9/v1")
    result = connect("openai/gpt-4o-mini", api_base="http://127.0.0.1:9/v1", prices=own)
    assert [lm.terms.price for lm in (at_home, elsewhere, result)] == [mini, None, Price(0, 0)]
    assert connect("ollama/llama3.2").terms.price is None
    assert connect("offline").terms.price is None


def test_a_users_file_goes_before_ours_and_names_brokers_by_their_own_names(tmp_path: Path) -> None:
    own = read_prices(written(tmp_path, """
[models]
"openai/gpt-4o" = { input = 1, output = 1 }
"mine" = { input = 2, output = 2 }
"Qwen/Qwen2.5-7B" = { input = 3, output = 3 }
"""))  # fmt: skip
    assert price_of("gpt-4o", "openai", own) == Price(1, 1)
    assert price_of("gpt-4o", "openai") == Price(2.5, 10, 1.25)
    assert price_of("openai/gpt-4o", "openrouter", own) == price_of("openai/gpt-4o", "openrouter")
    assert price_of("mine", None, own) == price_of("mine", "vllm", own) == Price(2, 2)
    assert price_of("Qwen/Qwen2.5-7B", "together", own) == Price(3, 3)
    assert price_of("o3", "openai", own) == Price(2, 8, 0.5)


def test_a_journaled_call_is_priced_by_who_served_it(tmp_path: Path) -> None:
    own = read_prices(written(tmp_path, '[models]\n"m" = { input = 4, output = 4 }\n'))
    at_openai = {"model": "gpt-4o", "parameters": {"options": {"provider": "openai"}}}
    assert price_in(at_openai) == Price(2.5, 10, 1.25)
    assert price_in({"model": "gpt-4o", "parameters": {}}) is None
    assert price_in({"model": "m"}, own) == Price(4, 4)


# --- what a call costs ----------------------------------------------------------------------------------------------


def test_cached_tokens_cost_what_the_price_says_of_them() -> None:
    assert Price(2, 8, 0.5).of(1_000_000, 1_000_000, cached=600_000) == pytest.approx(0.8 + 0.3 + 8)
    assert Price(2, 8).of(1_000_000, 0, cached=600_000) == 2
    assert Price(2, 8, 0.5).of(10, 0, cached=99) == Price(2, 8, 0.5).of(10, 0, cached=10), "no more than there are"
    assert Price(0, 0).of(9, 9) == 0


def test_what_is_not_told_is_unknown() -> None:
    price = Price(1, 1)
    assert cost_of({"cost": 0.0, "tokens_in": 9, "tokens_out": 9}, price) == 0.0
    assert cost_of({"tokens_in": 1_000_000, "tokens_out": 0}, price) == 1.0
    for record in ({"tokens_in": None, "tokens_out": 5}, {"tokens_in": 5, "tokens_out": None}, {}):
        assert cost_of(record, price) is None
    assert cost_of({"tokens_in": 9, "tokens_out": 9}, None) is None


@pytest.mark.parametrize(("data", "cost"), [({}, 0.0013), ({"cost": 0.5}, 0.5)])
def test_a_record_keeps_the_cost_of_its_day(tmp_path: Path, data: dict[str, Any], cost: float) -> None:
    result = response("yes", usage=(1000, 100), provider_data=data)
    lm = ConnectedLM("m", ScriptedEngine([result]), profile=Profile(), terms=CallPolicy(price=Price(1, 3)))
    with Journal(tmp_path) as journal:
        asyncio.run(lm.with_journal(journal).acall("Question: who?"))
        (record,) = journal.records("call")
    assert record["cost"] == pytest.approx(cost)
    assert price_in(record) is None, "no price of today is looked up for it"


# --- files that are wrong -------------------------------------------------------------------------------------------

ENTRY = '[models]\n"m" = {{ {} }}\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[models\n", "not TOML"),
        ("[prices]\nm = 1\n", "Field required"),
        ('[models]\n"m" = 3\n', "models, m: "),
        (ENTRY.format("input = 1, output = 2, outptu = 2"), "models, m, outptu: "),
        (ENTRY.format("input = nan, output = 2"), "models, m, input: "),
        (ENTRY.format("input = true, output = 2"), "models, m, input: "),
        (ENTRY.format("input = 1, output = 2, cached = -0.5"), "models, m, cached: "),
        (ENTRY.format("input = 1.5e-7, output = 6e-7"), "a price for one token? Give it for a million"),
    ],
)
def test_a_file_that_is_none_is_one_line(text: str, expected: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(BadData) as refused:
        read_prices(path)
    line = " ".join(str(refused.value).split())
    assert expected in line
    assert line.startswith(str(path))


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="no price file"):
        read_prices(tmp_path / "gone.toml")
    with pytest.raises(MissingFile, match="no price file"):
        read_prices(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadData, match="not TOML"):
        connect("offline", prices=tmp_path / "bytes.toml")
