"""TriviaQA (Joshi et al. 2017): quiz questions written before their evidence was looked up, with many aliases.

Data: https://nlp.cs.washington.edu/triviaqa (`wikipedia-dev.json`, `unfiltered-web-dev.json`), or
`mandarjoshi/trivia_qa` on the Hugging Face hub; with passages from DPR or KILT. Part of a file (made up)::

    {"Data": [{"Question": "Which rock carries the light that Ada Brennock kept?", "QuestionId": "tc_417",
               "QuestionSource": "http://www.example.org/",
               "Answer": {"Value": "Skerry Rock", "Aliases": ["Skerry Rock", "The Skerry"], "Type": "WikipediaEntity",
                          "NormalizedValue": "skerry rock", "NormalizedAliases": ["skerry rock", "skerry"]},
               "EntityPages": [{"DocSource": "TagMe", "Title": "Skerry Rock", "Filename": "Skerry_Rock.txt"}]}],
     "Domain": "Web", "VerifiedEval": false, "Version": 1.0}

An answer is right under any alias, so two that the metrics cannot tell apart are one. The pages named beside a question
are guesses of an entity linker: no gold. The file is one object and is streamed; the hub writes its fields in lower
case. EM leads, as in FilCo; CDIT (Ma et al. 2024) scores by inclusion.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from blendfilter.files import JsonRow, json_rows, list_values, opened
from blendfilter.records import Question
from blendfilter.tasks.base import Hub, Task
from blendfilter.tasks.layouts import mapping, question

_OPENING = re.compile(
    rb'(?:\xef\xbb\xbf)?\s*\{(?:\s*"\w+"\s*:\s*(?:"[^"]*"|[\w.+-]+)\s*,)*\s*"Data"\s*:\s*(?=\[)'
)
_HEAD = 4096
_PAGES = frozenset({"EntityPages", "SearchResults", "entity_pages", "search_results"})


def parse(row: JsonRow) -> Question:
    """A row in the official layout, the hub's, or any other. Raises `BadData`."""
    value = {name: found for name, found in mapping(row).items() if name not in _PAGES}
    return question(row, value, names={"Question": "question", "QuestionId": "id"})


def rows(path: Path) -> Iterator[JsonRow]:
    """The rows of a file; of an official one, what stands under ``Data``."""
    with opened(path) as stream:
        opening = _OPENING.match(stream.read(_HEAD))
        if opening is not None:
            stream.seek(opening.end())
            for position, value in enumerate(list_values(stream, str(path), inside=True)):
                yield JsonRow(f"{path}, item {position + 1}", position, value)
            return
    yield from json_rows(path)


TASK = Task(
    "triviaqa",
    metrics=("em", "f1", "inclusion", "inclusion_raw"),
    wording="triviaqa",
    parse=parse,
    hub=Hub("mandarjoshi/trivia_qa", "unfiltered.nocontext", "validation"),
    rows=rows,
)
