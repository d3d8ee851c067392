"""Structured ids: who is asked for them, what a server that refuses or obeys makes of it, and what stays the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from isle import LINES, PASSAGES, QUESTION
from model_server import Server, serve
from small_world import journaled

from blendfilter import resources
from blendfilter.errors import BadArgument
from blendfilter.evaluation.run_settings import settings_of
from blendfilter.evaluation.runner import evaluate
from blendfilter.filters.knowledge import KnowledgeFilter, OneCallFilter, ids_schema, schema_of
from blendfilter.journal import Journal
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.direct import Direct
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.corpus import read_corpus
from blendfilter.tasks.loading import load

KEY = "sk-test-0123456789"


@pytest.fixture(scope="module")
def index() -> BM25:
    """The sample world's passages."""
    return BM25.build(read_corpus(resources.sample("corpus.jsonl")))


class TestWhoIsAsked:
    @pytest.mark.parametrize("name", ["gpt-4o-mini", "openai/gpt-5", "vllm/m"])
    def test_an_address_of_ones_own_is_asked_only_if_one_says_so(self, name: str) -> None:
        here = "http://127.0.0.1:9/v1"
        assert [connect(name, api_base=here, json_schema=mode).profile.json_schema for mode in (None, True, False)] == [
            None, True, False,
        ]  # fmt: skip


def run_over(server: Server, index: BM25, folder: Path, **how: Any) -> Any:
    lm = connect("test-model", api_base=server.url, **how)
    return evaluate(BlendFilter(index, k=15), load("hotpotqa", "sample", limit=2), lm=lm, run=folder, progress=False)


class TestServers:
    def test_a_server_that_refuses_is_asked_once_and_the_run_goes_on(self, index: BM25, tmp_path: Path) -> None:
        with serve(behave="no-schema", reply="offline", keep=True) as server:
            done = run_over(server, index, tmp_path / "run", json_schema=True)
            stats = server.stats()
        assert not done.errors
        assert sum("response_format" in body for body in stats["bodies"]) == stats["statuses"]["400"]
        # Calls that were under way together may each have been refused; those after it know.
        assert stats["statuses"]["400"] <= 6
        assert stats["statuses"]["200"] == len(journaled(tmp_path / "run"))

    @pytest.mark.parametrize("make", [KnowledgeFilter, OneCallFilter])
    def test_a_server_that_obeys_gives_ids_that_parse(self, make: Any) -> None:
        with serve(behave="schema", reply="offline", keep=True) as server:
            select = make()
            select.set_lm(connect("test-model", api_base=server.url, json_schema=True))
            prediction = select(question=QUESTION, passages=list(PASSAGES))
            sent = server.stats()["bodies"][-1]
        assert (prediction.status, [passage.id for passage in prediction.kept]) == ("ids", ["p0"])
        wanted = sent["response_format"]["json_schema"]
        assert wanted["schema"]["properties"]["ids"] == ids_schema(len(LINES), offer_none=False)
        assert (wanted["strict"], wanted["schema"]["additionalProperties"]) == (True, False)


class TestSettingsAndKeys:
    """A schema is part of a run's settings, and of the keys of those calls alone that are held to one."""

    def settings(self, lm: ConnectedLM) -> Any:
        return settings_of(Direct(), load("qa", [{"question": "Which?", "answer": "x"}]), lm, seed=0)["lm"]

    def test_asked_for_and_by_default_are_one_setting(self) -> None:
        by_default, wanted, refused = (
            self.settings(connect("openai/gpt-4o-mini", api_key=KEY, json_schema=result))
            for result in (None, True, False)
        )
        assert by_default == wanted != refused
        assert "json_schema" not in str(refused)

    def test_a_call_without_one_has_the_same_key_either_way(self, tmp_path: Path) -> None:
        keys = []
        with serve() as server:
            for i, result in enumerate((None, True, False)):
                with Journal(tmp_path / str(i)) as journal:
                    lm = connect("m", api_base=server.url, json_schema=result, journal=journal)
                    lm("hello")
                    lm("hello", response_format=schema_of("ids", {"ids": ids_schema(3, offer_none=True)}))
                    keys.append([record["key"] for record in journal.records()])
        assert keys[0] == keys[1] == keys[2]
        assert len(set(keys[0])) == 2


class TestKeysAmongFields:
    @pytest.mark.parametrize(
        "fields",
        [
            {"api_key": KEY}, {"Authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}, {"auth_token": KEY},
            {"metadata": {"client_secret": KEY}}, {"extra_headers": {"x": KEY}}, {"aws_secret_access_key": KEY},
        ],
        ids=lambda fields: next(iter(fields)),
    )  # fmt: skip
    def test_they_are_refused_in_one_line(self, fields: dict[str, Any]) -> None:
        with pytest.raises(BadArgument, match=r"extra_body must hold no key, and '\S+' looks like one") as raised:
            connect("m", api_base="http://127.0.0.1:9/v1", extra_body=fields)
        assert KEY not in str(raised.value)
        with pytest.raises(BadArgument) as raised:
            connect("m", api_base="http://127.0.0.1:9/v1", **fields if "api_key" not in fields else {"headers": fields})
        assert KEY not in str(raised.value)
