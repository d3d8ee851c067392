"""A pool of examples that compiled prompts may show as demonstrations: the package's own, or a file of the user's.

A program whose demonstrations come from a pool holds none of the questions that it was judged on. The package's pools
(`programs/pool/`) were written for it: none of their text is a data set's. A row a line, in JSON::

    filco      {"question", "knowledge": ["Title | text", …], "keep": [sentences as they stand there], "golden_answers"}
    cdit       {"question", "passage": "Title | text", "compared": {component: [question's, passage's, "alike"]},
                "reasons": {component that is unlike: a sentence}}
    knowledge  {"question", "knowledge": […], "topic", "relevance": ["relevant - why", "irrelevant - why", …]}

`keep` is empty where nothing answers. In `compared`, the third word is alike, unlike or unsaid; a pair is consistent
under a rule where none of the rule's components is unlike. `kind`, of any row, is for its reader alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import dspy
import pydantic
from pydantic import Field

from blendfilter import resources
from blendfilter.asking import relevance_fields, relevant_in
from blendfilter.errors import BadData, EmptyData
from blendfilter.files import json_rows
from blendfilter.filters.cdit import Rule, components_of, worked_example
from blendfilter.filters.filco import Unit, candidates_of
from blendfilter.prompting import what_is_wrong
from blendfilter.records import Passage

OWN = "own"
"""In place of a file: the package's pool for that filter."""

Line = Annotated[str, Field(min_length=1)]


class PoolRow(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)
    question: Line
    kind: str = ""


class FilCoRow(PoolRow):
    """A question, its passages, and the sentences that answer it, as they stand there."""

    knowledge: Annotated[list[Line], Field(min_length=1)]
    keep: list[Line]
    golden_answers: list[Line]

    @pydantic.model_validator(mode="after")
    def _keeps_what_is_there(self) -> FilCoRow:
        there = {each.text for each in candidates_of(_passages(self.knowledge), "sentence")}
        for sentence in self.keep:
            if sentence not in there:
                raise ValueError(
                    f"keeps {sentence!r:.60}, which is no sentence of its knowledge"
                )
        if self.keep and not self.golden_answers:
            raise ValueError("keeps sentences, and has no answer: give golden_answers")
        return self

    def example(self, unit: Unit = "sentence") -> dspy.Example:
        """As `silver_examples` makes them, with `context`: what is kept, written out."""
        passages = _passages(self.knowledge)
        candidates = candidates_of(passages, unit)
        chosen = [at for at, each in enumerate(candidates) if self._keeps(each.text, unit)]
        return dspy.Example(
            question=self.question,
            passages=passages,
            knowledge=[each.line for each in candidates],
            ids=", ".join(map(str, chosen)) or "none",
            chosen=chosen,
            context=" ".join(self.keep),
            golden_answers=self.golden_answers,
        ).with_inputs("question", "passages")

    def _keeps(self, text: str, unit: Unit) -> bool:
        if unit == "sentence":
            return text in self.keep
        return any(sentence in text for sentence in self.keep)


class CDITRow(PoolRow):
    """A question and a passage, compared in all components that our rules name."""

    passage: Line
    compared: dict[str, tuple[str, str, Literal["alike", "unlike", "unsaid"]]]
    reasons: dict[str, Line]

    @pydantic.model_validator(mode="after")
    def _says_why(self) -> CDITRow:
        for component, (*_, found) in self.compared.items():
            if found == "unlike" and component not in self.reasons:
                raise ValueError(f"{component} is unlike: say why under reasons")
        return self

    def example(self, rules: Sequence[Rule]) -> dspy.Example:
        """As `consistency_examples` makes them, with the verdict under `rules`."""
        if missing := [each for each in components_of(rules) if each not in self.compared]:
            raise BadData(
                f"the pool's row {self.question!r:.60} does not compare the {missing[0]}, which a rule names: compare "
                "it there, or leave the rule out"
            )
        worked = worked_example(self.model_dump(), components_of(rules))
        return dspy.Example(
            **worked,
            passages=_passages([self.passage]),
            rules=[rule.line for rule in rules],
            consistent=worked["verdict"] == "True",
        ).with_inputs("question", "passages")


class KnowledgeRow(PoolRow):
    """A question, its passages, and which of them are relevant and why."""

    knowledge: Annotated[list[Line], Field(min_length=1)]
    topic: Line
    relevance: list[Annotated[str, Field(pattern=r"^(ir)?relevant - \S")]]
    golden_answers: list[Line] = []

    @pydantic.model_validator(mode="after")
    def _judges_each(self) -> KnowledgeRow:
        if len(self.relevance) != len(self.knowledge):
            raise ValueError(
                f"relevance has {len(self.relevance)} lines, and knowledge {len(self.knowledge)}: give one for each"
            )
        return self

    def example(self) -> dspy.Example:
        """With the fields of every step of BlendFilter's filters."""
        return dspy.Example(
            question=self.question,
            passages=_passages(self.knowledge),
            knowledge=self.knowledge,
            topic=self.topic,
            chosen=relevant_in(self.relevance),
            **relevance_fields(self.relevance),
        ).with_inputs("question", "passages")


ROWS: Mapping[str, type[FilCoRow] | type[CDITRow] | type[KnowledgeRow]] = {
    "filco": FilCoRow,
    "cdit": CDITRow,
    "knowledge": KnowledgeRow,
}
"""The rows of a pool, by what it is for."""


def read_pool(kind: str, path: str | Path = OWN) -> list[Any]:
    """The rows of a pool for `filco`, `cdit` or `knowledge`: the package's own, or those of a file.

    Raises:
        MissingFile: there is none. BadData: a row is none of that kind; the error names its line and field.
    """
    own = str(path) == OWN
    file = resources.programs() / "pool" / f"{kind}.jsonl" if own else Path(path)
    rows = []
    for line in json_rows(file):
        try:
            rows.append(ROWS[kind].model_validate(line.value))
        except pydantic.ValidationError as error:
            why = what_is_wrong(error)
            if other := _kind_of(line.value):
                why = f"a row of a pool for {other}, where one for {kind} is wanted"
            raise BadData(
                f"{line.where}: {why}; docs/compiling.md shows the rows of a pool"
            ) from None
    if not rows:
        raise EmptyData(
            f"{file}: the pool is empty: give it rows, or take the package's own ({OWN})"
        )
    return rows


def _kind_of(row: Any) -> str:
    """The kind of pool that a row is of, if of any."""
    for kind, model in ROWS.items():
        try:
            model.model_validate(row)
        except pydantic.ValidationError:
            continue
        return kind
    return ""


def _passages(lines: Sequence[str]) -> list[Passage]:
    """Passages of lines of ``Title | text``."""
    found = []
    for at, line in enumerate(lines):
        title, bar, text = line.partition(" | ")
        found.append(Passage(str(at), title if bar else "", text if bar else line))
    return found
