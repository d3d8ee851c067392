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
from typing import TYPE_CHECKING, Any

from blendfilter.version import VERSION
from blendfilter.views import Views, register

if TYPE_CHECKING:
    from blendfilter.compiling.compile import compile_program as compile_program
    from blendfilter.compiling.programs import load_program as load_program
    from blendfilter.errors import BlendFilterError as BlendFilterError
    from blendfilter.evaluation.comparison import Comparison as Comparison
    from blendfilter.evaluation.comparison import compare as compare
    from blendfilter.evaluation.merging import merge as merge
    from blendfilter.evaluation.plan import plan as plan
    from blendfilter.evaluation.run import Run as Run
    from blendfilter.evaluation.runner import aevaluate as aevaluate
    from blendfilter.evaluation.runner import evaluate as evaluate
    from blendfilter.filters.base import Filter as Filter
    from blendfilter.filters.cdit import CDITFilter as CDITFilter
    from blendfilter.filters.cdit import Judge as Judge
    from blendfilter.filters.cdit import Rule as Rule
    from blendfilter.filters.extractive import FullFilter as FullFilter
    from blendfilter.filters.extractive import PassageFilter as PassageFilter
    from blendfilter.filters.extractive import SentenceFilter as SentenceFilter
    from blendfilter.filters.filco import FilCoFilter as FilCoFilter
    from blendfilter.filters.knowledge import KnowledgeFilter as KnowledgeFilter
    from blendfilter.filters.knowledge import OneCallFilter as OneCallFilter
    from blendfilter.filters.knowledge import PointwiseFilter as PointwiseFilter
    from blendfilter.filters.written import BIDERFilter as BIDERFilter
    from blendfilter.filters.written import SummaryFilter as SummaryFilter
    from blendfilter.filters.written import TrainedFilCoFilter as TrainedFilCoFilter
    from blendfilter.journal import Journal as Journal
    from blendfilter.lm.batches import Batch as Batch
    from blendfilter.lm.budget import Budget as Budget
    from blendfilter.lm.model import connect as connect
    from blendfilter.lm.scoring import Score as Score
    from blendfilter.lm.scoring import scorer as scorer
    from blendfilter.modules.base import Answering as Answering
    from blendfilter.modules.blendfilter import BlendFilter as BlendFilter
    from blendfilter.modules.blendfilter import Blending as Blending
    from blendfilter.modules.cdit import CDIT as CDIT
    from blendfilter.modules.direct import ChainOfThought as ChainOfThought
    from blendfilter.modules.direct import Direct as Direct
    from blendfilter.modules.iter_retgen import IterRetGen as IterRetGen
    from blendfilter.modules.multi_hop import ReAct as ReAct
    from blendfilter.modules.multi_hop import SelfAsk as SelfAsk
    from blendfilter.modules.ralm import RALM as RALM
    from blendfilter.modules.self_consistency import SelfConsistency as SelfConsistency
    from blendfilter.oracles.bider import Synthesis as Synthesis
    from blendfilter.oracles.oracle import Oracle as Oracle
    from blendfilter.oracles.silver_making import make_silver as make_silver
    from blendfilter.oracles.silver_rows import read_silver as read_silver
    from blendfilter.prompting import Prompts as Prompts
    from blendfilter.prompting import TemplateAdapter as TemplateAdapter
    from blendfilter.records import Excerpt as Excerpt
    from blendfilter.records import Passage as Passage
    from blendfilter.records import Question as Question
    from blendfilter.report.plots import frontier as frontier
    from blendfilter.report.plots import plot as plot
    from blendfilter.retrieval.base import Retriever as Retriever
    from blendfilter.retrieval.base import Searcher as Searcher
    from blendfilter.retrieval.bm25 import BM25 as BM25
    from blendfilter.retrieval.bm25 import RankBM25 as RankBM25
    from blendfilter.retrieval.callables import as_retriever as as_retriever
    from blendfilter.retrieval.colbert import ColBERT as ColBERT
    from blendfilter.retrieval.corpus import pooled as pooled
    from blendfilter.retrieval.corpus import read_corpus as read_corpus
    from blendfilter.retrieval.dense import Dense as Dense
    from blendfilter.retrieval.documents import chunked as chunked
    from blendfilter.retrieval.documents import read_documents as read_documents
    from blendfilter.retrieval.hybrid import Hybrid as Hybrid
    from blendfilter.retrieval.indexes import open_index as open_index
    from blendfilter.retrieval.precomputed import Precomputed as Precomputed
    from blendfilter.retrieval.precomputed import write_hits as write_hits
    from blendfilter.retrieval.remote import Remote as Remote
    from blendfilter.retrieval.reranked import Reranked as Reranked
    from blendfilter.retrieval.reranked import Reranker as Reranker
    from blendfilter.tasks.base import Questions as Questions
    from blendfilter.tasks.loading import load as load
    from blendfilter.trimming.gathering import trim as trim
    from blendfilter.trimming.overlay import Trimmed as Trimmed
    from blendfilter.trimming.witnesses import Witnesses as Witnesses

__version__ = VERSION

# Type checkers read the imports above, and so does this: one list of the public names and of the modules they are in.
_HOME = {
    name: module
    for line in __spec__.loader.get_source(__name__).splitlines()  # type: ignore[union-attr]
    if line.startswith("    from blendfilter.")
    for _, module, _, name, *_ in [line.split()]
}

_ROOMS = ("filters", "oracles", "retrieval", "tasks", "training")
"""Packages that are reached as attributes: `blendfilter.training.trainer`."""

__all__ = sorted(_HOME)  # noqa: PLE0605 - every name is there, and a test says so


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
