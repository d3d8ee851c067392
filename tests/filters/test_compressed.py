"""Compressors of other packages as filters: what they are given, what is kept of it, and what is said without them.

The packages are stood in for by modules with their interfaces (llmlingua 0.2.2, selective-context 0.1.4); where one is
installed, it is tried with a tiny model.
"""

from __future__ import annotations

import copy
import pickle
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any, ClassVar

import pytest
from isle import LINES, PASSAGES, QUESTION
from small_world import Command, small_eval

from blendfilter import Run
from blendfilter.errors import BadArgument, MissingExtra, MissingFile
from blendfilter.filters.compressed import LongLLMLinguaFilter, SelectiveContextFilter
from blendfilter.filters.registry import make_filter
from blendfilter.records import Passage, WrittenText


class PromptCompressor:
    """llmlingua's: keeps every other word."""

    made: ClassVar[list[dict[str, Any]]] = []
    calls: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, model_name: str = "", device_map: str = "cuda", model_config: Any = None) -> None:
        if model_name == "gone":
            raise OSError("gone is not a local folder")
        print("loading")
        self.made.append({"model_name": model_name, "model_config": model_config})

    def compress_prompt(self, context: list[str], instruction: str = "", question: str = "", **more: Any) -> Any:
        self.calls.append({"context": context, "question": question, **more})
        return {"compressed_prompt": "\n\n".join(" ".join(each.split()[::2]) for each in context[:2])}


class SelectiveContext:
    """selective-context's: keeps the first words."""

    calls: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, model_type: str = "gpt2", lang: str = "en") -> None:
        if (model_type, lang) != ("gpt2", "en"):
            raise NotImplementedError

    def __call__(self, text: str, reduce_ratio: float = 0.35, reduce_level: str = "phrase") -> tuple[str, list[str]]:
        self.calls.append({"ratio": reduce_ratio, "level": reduce_level})
        words = text.split()
        return " ".join(words[: round(len(words) * (1 - reduce_ratio))]), []


pytest.importorskip("transformers", reason="compressors of other packages stand on it")


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in (("llmlingua", PromptCompressor), ("selective_context", SelectiveContext)):
        module = ModuleType(name)
        setattr(module, kind.__name__, kind)
        monkeypatch.setitem(sys.modules, name, module)
    for each in (PromptCompressor.made, PromptCompressor.calls, SelectiveContext.calls):
        each.clear()


def test_longllmlingua_is_given_lines_question_and_budget(capsys: pytest.CaptureFixture[str]) -> None:
    """With the settings of LongLLMLingua's own page, and no code of a checkpoint is run."""
    select = LongLLMLinguaFilter(model="tiny", tokens=30)
    said = select(question=QUESTION, passages=list(PASSAGES))
    assert PromptCompressor.made == [{"model_name": "tiny", "model_config": {"trust_remote_code": False}}]
    (call,) = PromptCompressor.calls
    assert (call["context"], call["question"], call["target_token"]) == (LINES, QUESTION, 30)
    assert (call["rank_method"], call["concate_question"], call["reorder_context"]) == ("longllmlingua", False, "sort")
    (kept,) = said.kept
    assert isinstance(kept, WrittenText)
    assert kept.text == "Tolm | Harbour the port Quillmere. Light beside Skerry | Light a of Ada kept for years."
    assert said.status == "kept 24 of 90 tokens"
    assert capsys.readouterr().out == ""
    assert select.arguments()["model"] == "tiny"


def test_selective_context_drops_as_much_as_the_budget_wants() -> None:
    select = SelectiveContextFilter(tokens=35)
    (kept,) = select(question=QUESTION, passages=list(PASSAGES[:3])).kept
    words = " ".join(LINES[:3]).split()
    assert SelectiveContext.calls == [{"ratio": pytest.approx(1 - 35 / (1.4 * len(words))), "level": "phrase"}]
    assert kept.text.split() == words[:25]
    (whole,) = SelectiveContextFilter(tokens=500)(question=QUESTION, passages=list(PASSAGES[:3])).kept
    assert whole.text == " ".join(LINES[:3])
    assert len(SelectiveContext.calls) == 1, "what fits is left as it is"


@pytest.mark.parametrize("name", ["longllmlingua", "selective-context"])
def test_nothing_to_read_asks_nothing_and_copies_share_the_model(name: str) -> None:
    select: Any = make_filter(name, tokens=30)
    assert select(question=QUESTION, passages=[Passage("1", "Title", " ")]).kept == []
    assert PromptCompressor.calls == SelectiveContext.calls == []
    select.prepare()
    assert copy.deepcopy(select).compressor is select.compressor
    assert pickle.loads(pickle.dumps(select)).arguments() == select.arguments()
    with pytest.raises(BadArgument, match="tokens is 0"):
        make_filter(name, tokens=0)


def test_a_run_records_what_was_left_and_a_replay_keeps_it(blendfilter: Command, here: Any) -> None:
    words = ("--filter", "longllmlingua", "--filter-model", "tiny", "--filter-tokens", 30)
    assert blendfilter(*small_eval("direct-retrieval", "run", *words)).code == 0
    run = Run(here / "run")
    assert all(row["written"] and row["knowledge"] == [] for row in run.rows)
    assert run.settings["method"]["arguments"]["tokens"] == 30
    assert blendfilter(*small_eval("direct-retrieval", "run", *words, "--replay")).code == 0


@pytest.mark.parametrize(
    ("name", "module", "words"),
    [
        ("longllmlingua", "llmlingua", "LongLLMLinguaFilter needs 'llmlingua': pip install llmlingua$"),
        ("selective-context", "selective_context", "needs 'selective_context': pip install --no-deps"),
    ],
)
def test_without_the_package_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str, words: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(sys, "path", [])
    select: Any = make_filter(name)
    with pytest.raises(MissingExtra, match=words):
        select.prepare()


def test_a_model_that_is_not_there_is_one_line() -> None:
    with pytest.raises(MissingFile, match="llmlingua cannot load gone: gone is not a local folder"):
        LongLLMLinguaFilter(model="gone").prepare()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llmlingua") is None, reason="llmlingua is not installed")
def test_the_package_itself_with_a_tiny_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from litellm import __file__ as litellm
    from scoring_models import gpt2

    monkeypatch.delitem(sys.modules, "llmlingua")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", f"{litellm.removesuffix('__init__.py')}litellm_core_utils/tokenizers")
    select = LongLLMLinguaFilter(model=str(gpt2(2048)), tokens=120)
    (kept,) = select(question=QUESTION, passages=list(PASSAGES)).kept
    assert 0 < len(kept.text) < len(" ".join(LINES))
