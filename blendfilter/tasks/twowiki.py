"""2WikiMultihopQA (Ho et al. 2020): questions over two to four Wikipedia articles, with reasoning paths from Wikidata.

Data: https://github.com/Alab-NII/2wikimultihop (`dev.json`; the release with ids also holds `id_aliases.json`), or
`framolfese/2WikiMultihopQA` on the Hugging Face hub, a copy in HotPotQA's layout. A row (made up, official layout)::

    {"_id": "8f1c20d40baf11eb", "type": "compositional", "answer": "Bremsund", "answer_id": "Q990017",
     "question": "Where was the director of film The Salt Road born?",
     "supporting_facts": [["The Salt Road", 0], ["Ane Lindqvist", 0]],
     "evidences": [["The Salt Road", "director", "Ane Lindqvist"], ["Ane Lindqvist", "place of birth", "Bremsund"]],
     "context": [["The Salt Road", ["The Salt Road is a film by Ane Lindqvist.", "It opened in 1961."]], ...]}

An answer counts if it is right under any alias. Official files keep aliases apart: where `id_aliases.json` lies beside
the data file, a question's answers are its own and all aliases and demonyms of its `answer_id`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from blendfilter.files import JsonRow, json_rows
from blendfilter.records import Question
from blendfilter.tasks.base import Hub, Parser, Task
from blendfilter.tasks.layouts import Names, Outside, checked, distinct, question


class EntityAliases(Outside):
    """A line of `id_aliases.json`: the names of one Wikidata entity."""

    entity: str = Field(validation_alias="Q_id")
    aliases: Names = ()
    demonyms: Names = ()


def parse(row: JsonRow, names: Mapping[str, Sequence[str]] | None = None) -> Question:
    """A row, with the `names` of its `answer_id`. Raises `BadData`."""
    read = question(row)
    more = (names or {}).get(str(read.metadata.get("answer_id")), ())
    return (
        replace(read, golden_answers=distinct([*read.golden_answers, *filter(str.strip, more)]))
        if more
        else read
    )


def parse_beside(path: Path) -> Parser:
    """A parser for the rows of `path` that adds the aliases lying beside it, if there are any."""
    beside = path.parent / "id_aliases.json"
    if not beside.is_file():
        return parse
    read = (checked(EntityAliases, row) for row in json_rows(beside))
    names = {one.entity: [*one.aliases, *one.demonyms] for one in read}
    return lambda row: parse(row, names)


TASK = Task(
    "twowiki",
    metrics=("em", "f1"),
    wording="twowiki",
    parse=parse,
    hub=Hub("framolfese/2WikiMultihopQA", None, "validation"),
    beside=parse_beside,
)
