"""KILT (Petroni et al. 2021): one layout for many tasks, over one snapshot of Wikipedia.

In: a row of `*-kilt.jsonl`, or of `facebook/kilt_tasks` on the Hugging Face hub. Out: a `Question`. A row (made up)::

    {"id": "6d1c", "input": "who keeps the light on skerry rock", "meta": {},
     "output": [{"answer": "Ada Brennock", "provenance": [
                    {"title": "Skerry Light", "wikipedia_id": "417", "start_paragraph_id": 2, "start_character": 0}]},
                {"answer": "Brennock"}, {"provenance": [{"title": "Ada Brennock", "wikipedia_id": "93"}]}]}

Outputs are equally right, so their answers are aliases; an output may have no answer, or no provenance. The titles of
one output's provenance belong together (two for a question of two hops), those of another are another way to the
answer: each is a set of evidence of its own, and the set that retrieval meets best counts.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from blendfilter.errors import BadData
from blendfilter.files import JsonRow
from blendfilter.records import Question
from blendfilter.tasks.layouts import distinct
from blendfilter.tasks.reading import Outside, answers_of, checked, mapping, row_id


class Provenance(Outside):
    """A place in Wikipedia; of it only the title counts here, the rest is kept."""

    title: str | None = None


class Output(Outside):
    answer: str | None = None
    provenance: tuple[Provenance, ...] | None = ()

    def titles(self) -> tuple[str, ...]:
        """The titles of this output's provenance, each once."""
        return distinct(place.title for place in self.provenance or () if place.title)


class Kilt(Outside):
    """A row of a KILT file; `meta` differs by task."""

    id: str | None = None
    input: str | None = None
    output: tuple[Output, ...]
    meta: Any = Field(None)


def is_kilt(row: JsonRow) -> bool:
    """Whether the row is in KILT's layout."""
    value = mapping(row)
    return "output" in value or ("input" in value and "question" not in value)


def kilt(row: JsonRow) -> Question:
    """``{"id", "input", "output": [{"answer", "provenance"}], "meta"}``. Raises `BadData`."""
    read = checked(Kilt, row)
    if not (read.input or "").strip():
        raise BadData(
            f"{row.where}: field 'input' is empty: KILT's TriviaQA files name their questions by id alone until its "
            "script get_triviaqa_input.py fills them in; or give the file that TriviaQA's authors publish"
        )
    evidence = tuple(dict.fromkeys(titles for output in read.output if (titles := output.titles())))
    return Question(
        id=row_id(row, read.id),
        question=(read.input or "").strip(),
        golden_answers=answers_of(row, (output.answer for output in read.output if output.answer)),
        gold_titles=distinct(title for titles in evidence for title in titles),
        evidence=evidence,
        metadata={
            **read.rest,
            **({"meta": read.meta} if read.meta else {}),
            "provenance": [place.model_dump() for output in read.output for place in output.provenance or ()],
        },
    )
