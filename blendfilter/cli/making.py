"""From options to objects: the model, the method, the index and the corpus that a command was asked for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blendfilter.cli.console import Bars, say
from blendfilter.errors import BadArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from blendfilter.lm.model import ConnectedLM
    from blendfilter.retrieval.base import Retriever


def connect(
    lm: str | None, api_base: str | None, endpoint: str, temperature: float, top_p: float | None,
    thinking: bool | None, reasoning: str | None, label: str,
) -> ConnectedLM:  # fmt: skip
    from blendfilter.lm.connect import connect

    if lm is None:
        if api_base is not None:
            raise BadArgument(f"which model at {api_base}? name it with --lm")
        say("no --lm: the offline reader answers, which shows the pipeline, not its quality")
    return connect(
        lm or "offline", api_base=api_base, endpoint=endpoint, temperature=temperature, top_p=top_p,  # type: ignore[arg-type]
        thinking=thinking, reasoning=reasoning, label=label,
    )  # fmt: skip


def maker(
    name: str, k: int, wording: str, without: str | None, prompts: Path | None
) -> Callable[[Retriever | None], Any]:
    """What makes the method of its retriever; what is wrong with it is said now, before a corpus is indexed."""
    from blendfilter.modules.methods import make_method
    from blendfilter.prompting import Prompts
    from blendfilter.retrieval.callables import as_retriever

    if ":" in name:
        if without or prompts:
            raise BadArgument(f"--without and --prompts are for our own methods; {name} brings its own prompts")
        sys.path.insert(0, "")  # a class of one's own is looked for in the folder one stands in
        return lambda retriever: make_method(name, retriever, k=k)
    dropped = [part.strip() for part in without.split(",") if part.strip()] if without else []
    if dropped and name != "blendfilter":
        raise BadArgument(f"--without is for blendfilter; {name} has one query at most")
    more = {"without": dropped} if name == "blendfilter" else {}
    templates = Prompts(prompts) if prompts else None

    def make(retriever: Retriever | None) -> Any:
        return make_method(name, retriever, k=k, task=wording, prompts=templates, **more)

    make(as_retriever(lambda query, k: []))
    return make


def retriever(corpus: str | None, index: str | None, questions: Any = None) -> Retriever | None:
    from blendfilter.retrieval.bm25 import BM25
    from blendfilter.retrieval.corpus import pooled
    from blendfilter.retrieval.indexes import open_index

    if corpus is not None and index is not None:
        raise BadArgument("--corpus and --index name two sources of passages: give one")
    if index is not None:
        return open_index(index)
    if corpus is None:
        return None
    if corpus == "pooled":
        if questions is None:
            raise BadArgument("--corpus pooled takes the paragraphs of a question set: it goes with eval")
        return BM25.build(pooled(questions))
    with Bars() as progress:
        return BM25.for_corpus(corpus_file(corpus), progress=progress)


def corpus_file(corpus: str) -> Path:
    from blendfilter.resources import sample

    return sample("corpus.jsonl") if corpus == "sample" else Path(corpus)
