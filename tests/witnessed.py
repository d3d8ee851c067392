"""What tests of trimming stand on: witnesses made of verdicts, and an index whose rankings a test writes down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blendfilter.records import Passage
from blendfilter.retrieval.base import Hits, Retriever, fingerprint_of
from blendfilter.trimming.witnesses import JudgedBy, Pairing, Witnesses, judged_lines

BY = JudgedBy("9f3a", "word", ("phi1",), "some-model", "shipped")
Verdicts = Mapping[str, Mapping[str, bool | None]]
"""Question to the verdicts on its passages, in rank order."""


def witnesses_of(verdicts: Verdicts, pairing: Pairing = "theorem") -> Witnesses:
    """A state in memory in which each of these questions is judged and closed."""
    state = Witnesses(pairing)
    for question, found in verdicts.items():
        judge(state, question, found)
    return state


def judge(state: Witnesses, question: str, found: Mapping[str, bool | None]) -> None:
    """One question more."""
    for line in judged_lines(question, found, BY):
        state.apply(line)


class Written(Retriever):
    """An index that finds what is written for a query (`""`: for any other), and counts how often it was asked."""

    def __init__(self, rankings: Mapping[str, Sequence[str]], *, cut: bool = False, known: bool = True) -> None:
        self.rankings = {query: list(found) for query, found in rankings.items()}
        self.cut, self.known = cut, known
        self.searches: list[tuple[tuple[str, ...], int]] = []
        self.fingerprint = fingerprint_of("written", self.rankings, cut)

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.searches.append((tuple(queries), k))
        return [Hits(self._found(query, k), cut=self.cut) for query in queries]

    def _found(self, query: str, k: int) -> list[Passage]:
        names = self.rankings.get(query, self.rankings.get("", []))
        return [Passage(name, f"Title {name}", f"Text of {name}.", 1.0 - at / 100) for at, name in enumerate(names)][:k]

    def info(self) -> dict[str, Any]:
        return {"kind": "written", "fingerprint": self.fingerprint, "corpus": {"name": "", "sha256": "5e"}}

    def __len__(self) -> int:
        if not self.known:
            return super().__len__()
        return len({name for found in self.rankings.values() for name in found})


def ids(found: Sequence[Passage]) -> list[str]:
    return [passage.id for passage in found]
