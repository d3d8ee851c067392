"""ARC (Clark et al. 2018), its Challenge set: questions of science exams in school, with three to five options.

Data: https://allenai.org/data/arc (`ARC-Challenge-Test.jsonl`), or `allenai/ai2_arc`, `ARC-Challenge`, on the Hugging
Face hub; Self-RAG's copy (`arc_challenge_processed.jsonl`) has the hub's layout, and passages. A row (made up, in the
official layout)::

    {"id": "Isle_417", "answerKey": "B",
     "question": {"stem": "Which of these floats on the sea?",
                  "choices": [{"text": "slate", "label": "A"}, {"text": "ice", "label": "B"}]}}

The options are part of the question, a line each, ``(A) slate``; prompts that hold a question on one line show them in
a row. They are lettered from A whatever the file calls them (some rows have 1 to 4), so that the answer is always a
letter, and the prompt the same. Golden answers are the letter and, beside it, the text of its option.

Differs from CDIT (Ma et al. 2024), which shows the options as ``A: slate`` and calls right what includes the letter:
here `accuracy`, which reads the letter strictly, leads, and `inclusion` stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from blendfilter.errors import BadData
from blendfilter.files import JsonRow
from blendfilter.records import Question, one_line
from blendfilter.tasks.base import Hub, Task
from blendfilter.tasks.layouts import mapping, question
from blendfilter.text import LETTERS, choices


def options_of(given: Any) -> list[tuple[str, str]]:
    """Options as (label, text): the hub's two columns, objects, pairs, or FlashRAG's texts, which count from 0.

    Raises: TypeError, ValueError, KeyError for what is none of these.

    >>> options_of({"label": ["A", "B"], "text": ["slate", "ice"]}), options_of(["slate", "ice"])
    ([('A', 'slate'), ('B', 'ice')], [('0', 'slate'), ('1', 'ice')])
    """
    if isinstance(given, Mapping):
        given = list(zip(given["label"], given["text"], strict=True))
    if not isinstance(given, list | tuple):
        raise TypeError
    options = []
    for at, option in enumerate(given):
        if isinstance(option, str):
            option = at, option  # noqa: PLW2901
        elif isinstance(option, Mapping):
            option = option["label"], option["text"]  # noqa: PLW2901
        label, text = map(str, option)
        options.append((label.strip(), one_line(text)))
    return options


def parse(row: JsonRow) -> Question:
    """A row in the official layout, the hub's, or any other whose options are in it. Raises `BadData`."""
    value = mapping(row)
    if isinstance(stem := value.get("question"), Mapping):
        value = {**value, **stem, "question": stem.get("stem")}
    read = question(row, value, names={"answerKey": "answer"})
    stem, given = read.question, read.metadata.get("choices")
    if given is None:  # as this package writes a question: its options stand behind it
        shown = choices(stem)
        stem, given = shown.stem, shown.options
    try:
        options = options_of(given)
    except (TypeError, ValueError, KeyError):
        options = []
    if not 2 <= len(options) <= len(LETTERS):
        raise BadData(
            f"{row.where}: a question of arc has 2 to {len(LETTERS)} options in 'choices', each with a label; without "
            "options it is one of task 'qa'"
        )
    lettered = list(zip(LETTERS, options, strict=False))
    labels = {label: letter for letter, (label, _) in lettered}
    texts = {letter: text for letter, (_, text) in lettered}
    # beside the label its option's text may stand, as this package writes it
    by_text = {text: letter for letter, text in texts.items()}
    by_letter = dict(zip(texts, texts, strict=True)) if "0" in labels else {}
    known = {**by_letter, **by_text, **labels}
    answers = [answer.strip() for answer in read.golden_answers]
    letters = {known.get(answer) for answer in answers}
    letter = letters.pop()
    if letter is None or letters or len(labels) < len(options):
        raise BadData(
            f"{row.where}: the answer of an arc question is the label of one option ({', '.join(labels)}), "
            f"found {', '.join(map(repr, answers)):.60}"
        )
    return replace(
        read,
        question="\n".join([stem, *(f"({name}) {text}" for name, text in texts.items())]),
        golden_answers=(letter, texts[letter]),
        metadata={**read.metadata, "choices": texts},
    )


TASK = Task(
    "arc",
    metrics=("accuracy", "inclusion"),
    wording="arc",
    parse=parse,
    hub=Hub("allenai/ai2_arc", "ARC-Challenge", "test"),
    sample="science.jsonl",
)
