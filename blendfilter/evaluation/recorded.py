"""The index or the model of a run that is not here any more, known by what the run kept: enough to replay, no more.

In: a run's folder. Out: a `Retriever` of the same kind and fingerprint that finds nothing anew, or a model of the same
name and weights that answers nothing anew. What a replay asks of them is in the run's journal; what is not there would
have to be searched or asked for, and that is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blendfilter.errors import AskedWrong, ReplayMiss
from blendfilter.evaluation.run import Run
from blendfilter.lm.local.connecting import remembered
from blendfilter.lm.local.loading import LOCAL
from blendfilter.lm.model import ConnectedLM
from blendfilter.records import Passage
from blendfilter.retrieval.base import Retriever


class Recorded(Retriever):
    """A kind and a fingerprint. `gone` says why the index itself cannot be had."""

    def __init__(self, kind: str, fingerprint: str, gone: AskedWrong) -> None:
        self.kind = kind
        self.fingerprint = fingerprint
        self.gone = gone

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Raise `ReplayMiss`: there is nothing to search in."""
        raise ReplayMiss(f"{queries[0][:80]!r} would have to be searched for, and {self.gone}")

    def info(self) -> dict[str, Any]:
        """Kind and fingerprint."""
        return {"kind": self.kind, "fingerprint": self.fingerprint}


def recorded(run: Path, gone: AskedWrong) -> Recorded | None:
    """The index that the run in that folder used; None where it used none, or several. Raises as `Run` does."""
    known = Run(run).settings.get("retrievers") or []
    return Recorded(known[0]["kind"], known[0]["fingerprint"], gone) if len(known) == 1 else None


def recorded_model(run: Path, file: str, gone: AskedWrong, **decoding: Any) -> ConnectedLM | None:
    """The model in a process that the run in that folder asked; None where it was another than `file` names."""
    known = Run(run).settings.get("lm") or {}
    weights = (known.get("options") or {}).get("weights")
    same = file == LOCAL or Path(file).stem == known.get("name")
    return ConnectedLM(**remembered(known, gone), **decoding) if weights and same else None
