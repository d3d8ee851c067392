"""The paragraphs that came with each question, in their order, as an index: what somebody's retriever found for it.

In: questions with paragraphs. Out: for a question of theirs its first k paragraphs. It serves methods that search for
the question alone; any other query is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from blendfilter.errors import BadArgument, BadData, EmptyData
from blendfilter.records import Passage, Question, one_line
from blendfilter.retrieval.base import Retriever, fingerprint_of
from blendfilter.tasks import Questions

OWN = "own"


class OwnParagraphs(Retriever):
    """The questions' own paragraphs. What a question says of its own paragraph (gold or not) is left out.

    Raises:
        EmptyData: no question brings any. BadData: two questions of one text bring different ones.
    """

    def __init__(self, questions: Sequence[Question]) -> None:
        self._found: dict[str, list[Passage]] = {}
        for question in questions:
            passages = _passages(question)
            if self._found.setdefault(one_line(question.question), passages) != passages:
                raise BadData(
                    f"question '{question.id}' ({question.question[:60]!r}) is asked twice, with other paragraphs: "
                    "leave one of the two, or name an index"
                )
        if not any(self._found.values()):
            raise EmptyData("these questions bring no paragraphs of their own: name a corpus file or an index")
        told = [[asked, [[each.id, each.title, each.text] for each in found]] for asked, found in self._found.items()]
        self.fingerprint = fingerprint_of(OWN, told)

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """The first `k` paragraphs of each question; where it has fewer, all of them."""
        return [self._of(query)[:k] for query in queries]

    def _of(self, query: str) -> list[Passage]:
        found = self._found.get(one_line(query))
        if found is None:
            raise BadArgument(
                f"{query.strip()[:80]!r} is none of the questions, and only those have paragraphs of their own: "
                "name an index or a corpus for methods that search for more than the question"
            )
        return found

    def info(self) -> dict[str, Any]:
        """Kind, fingerprint and how many questions there are."""
        return {"kind": OWN, "fingerprint": self.fingerprint, "queries": len(self._found)}


def with_paragraphs(questions: Questions) -> Questions:
    """Those of `questions` that bring paragraphs."""
    return replace(questions, items=tuple(one for one in questions if _passages(one)))


def _passages(question: Question) -> list[Passage]:
    return [replace(each, metadata={}, score=None) for each in question.context if each.text.strip()]
