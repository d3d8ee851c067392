"""What stands in for an index or a model that is gone, in a replay: what the run recorded of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from blendfilter.errors import AskedWrong, ReplayMiss
from blendfilter.evaluation.rows import Record
from blendfilter.evaluation.run import Run
from blendfilter.lm.huggingface import could_be, is_hugging_face
from blendfilter.lm.in_process import LOCAL, remembered
from blendfilter.lm.model import ConnectedLM
from blendfilter.records import Passage
from blendfilter.retrieval.base import Retriever


class RecordedIndex(Retriever):
    """An index that is gone, for the reason `gone`: what a replay searches is in the run's journal, no more.

    `searched` is what the run recorded of its corpus.
    """

    def __init__(
        self,
        kind: str,
        fingerprint: str,
        gone: AskedWrong,
        searched: Record = MappingProxyType({}),
    ) -> None:
        self.kind = kind
        self.fingerprint = fingerprint
        self.searched = searched
        self.gone = gone

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        raise ReplayMiss(f"{queries[0][:80]!r} would have to be searched for, and {self.gone}")

    def info(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "fingerprint": self.fingerprint,
            "corpus": {"name": self.searched.get("corpus")},
            "passages": self.searched.get("passages"),
            "settings": {"index": self.searched.get("type")},
        }


def recorded_index(run: Path, gone: AskedWrong) -> RecordedIndex | None:
    """The index that the run in that folder used; None where it used none, or several. Raises as `Run` does."""
    settings = Run(run).settings
    known = settings.get("retrievers") or []
    if len(known) != 1:
        return None
    (searched,) = settings.get("searched") or [{}]
    return RecordedIndex(known[0]["kind"], known[0]["fingerprint"], gone, searched)


def recorded_model(
    run: Path, file: str, gone: AskedWrong, *, of_filter: bool = False, **decoding: Any
) -> ConnectedLM | None:
    """The model in a process that the run in that folder called; None where it was another than `file` names."""
    known = Run(run).settings.get("lm") or {}
    known = known.get("filter") or {} if of_filter else known
    weights = (known.get("options") or {}).get("weights")
    same = file == LOCAL or Path(file).stem == known.get("name")
    same = could_be(file, known.get("name")) if is_hugging_face(file) else same
    return ConnectedLM(**remembered(known, gone), **decoding) if weights and same else None
