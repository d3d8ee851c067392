"""blendfilter: DSPy modules that blend queries and filter knowledge, evaluated honestly.

What a user writes::

    import dspy, blendfilter as bf

    lm = bf.connect("openai/gpt-4o-mini")        # or api_base="http://localhost:8000/v1", or "offline"
    index = bf.BM25.build(["A text.", …])        # a file, a folder; or bf.open_index(DIR), or any callable (query, k)
    with dspy.context(lm=lm):
        bf.BlendFilter(index, k=5)(question="…").answer

Names are imported when first used, so that `import blendfilter` and `blendfilter --help` are quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from blendfilter.version import VERSION
from blendfilter.views import Views, register

__version__ = VERSION

_NAMES = {
    "compiling.compile": "compile_program",
    "compiling.programs": "load_program",
    "errors": "BlendFilterError",
    "evaluation.comparison": "Comparison compare",
    "evaluation.merging": "merge",
    "evaluation.plan": "plan",
    "evaluation.run": "Run",
    "evaluation.runner": "aevaluate evaluate",
    "filters.base": "Filter",
    "filters.cdit": "CDITFilter Judge Rule",
    "filters.extractive": "FullFilter PassageFilter SentenceFilter",
    "filters.filco": "FilCoFilter",
    "filters.knowledge": "KnowledgeFilter OneCallFilter PointwiseFilter",
    "filters.written": "BIDERFilter SummaryFilter TrainedFilCoFilter TrainedPSGFilter",
    "journal": "Journal",
    "lm.batches": "Batch",
    "lm.budget": "Budget",
    "lm.model": "connect",
    "lm.scoring": "Score scorer",
    "modules.base": "Answering FilteredSearch union",
    "modules.blendfilter": "BlendFilter Blending",
    "modules.cdit": "CDIT",
    "modules.direct": "ChainOfThought Direct",
    "modules.iter_retgen": "IterRetGen",
    "modules.multi_hop": "ReAct SelfAsk",
    "modules.ralm": "RALM",
    "modules.self_consistency": "SelfConsistency",
    "oracles.bider": "Synthesis",
    "oracles.oracle": "Oracle",
    "oracles.silver_making": "make_silver",
    "oracles.silver_rows": "read_silver",
    "prompting": "Prompts TemplateAdapter",
    "records": "Excerpt Passage Question",
    "report.plots": "frontier plot",
    "reproduce.verdicts": "verdict",
    "retrieval.base": "Retriever Searcher",
    "retrieval.bm25": "BM25 RankBM25",
    "retrieval.callables": "as_retriever",
    "retrieval.colbert": "ColBERT",
    "retrieval.corpus": "pooled read_corpus",
    "retrieval.dense": "Dense",
    "retrieval.documents": "chunked read_documents",
    "retrieval.hybrid": "Hybrid",
    "retrieval.indexes": "open_index",
    "retrieval.precomputed": "Precomputed write_hits",
    "retrieval.remote": "Remote",
    "retrieval.reranked": "Reranked Reranker",
    "tasks.base": "Questions",
    "tasks.loading": "load",
    "trimming.gathering": "trim",
    "trimming.overlay": "Trimmed",
    "trimming.witnesses": "Witnesses",
}
"""The public names of each module; `__init__.pyi` gives type checkers the same."""
_HOME = {
    name: f"blendfilter.{module}" for module, names in _NAMES.items() for name in names.split()
}
_ROOMS = ("filters", "oracles", "retrieval", "tasks", "training")
"""Packages that are reached as attributes: `blendfilter.training.trainer`."""

__all__ = sorted(_HOME)  # noqa: PLE0605 - a test holds it against the stub


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'blendfilter' has no attribute '{name}'")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _views_of_a_run() -> Views:
    from blendfilter import report

    return report.views()


register(_views_of_a_run)
