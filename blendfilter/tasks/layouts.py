"""How a row of a question set becomes a `Question`, whichever layout it was published in.

A row's layout is recognised by its fields, and every task reads them all. The least that a row may hold, and a row with
everything::

    {"question": "Who runs the mill?", "answer": "Ane Lindqvist"}
    {"id": "m-17", "question": "Who runs the mill?", "answers": ["Ane Lindqvist", "A. Lindqvist"], "type": "bridge",
     "gold_titles": ["Lindqvist family", "Tide Mill"], "supporting_facts": [["Tide Mill", 2]],
     "context": [{"title": "Tide Mill", "text": "The mill at Bremsund ..."}, ["Quay", ["One sentence.", "Another."]]]}

- Official and hub (HotPotQA, 2Wiki): these fields; the hub has `supporting_facts` and `context` as columns.
- Normalised (this package's own, and FlashRAG's): all but id, question and `golden_answers` stand under `metadata`;
  the columns of `context` are `title` and `sentences` or, in FlashRAG's 2Wiki, `content`.
- DPR (Karpukhin et al. 2020): `positive_ctxs`, each gold by itself, `hard_negative_ctxs` and `negative_ctxs`; what a
  retriever found is under `ctxs`, and no gold: its `has_answer` only says that the string occurs.
- KILT (Petroni et al. 2021): `input` and `output`. Outputs are equally right, so their answers are aliases. The titles
  of one output's provenance belong together, those of another are another way to the answer. A row (made up)::

    {"id": "6d1c", "input": "who keeps the light on skerry rock",
     "output": [{"answer": "Ada Brennock", "provenance": [{"title": "Skerry Light", "wikipedia_id": "417"}]},
                {"answer": "Brennock"}, {"provenance": [{"title": "Ada Brennock", "wikipedia_id": "93"}]}]}

- IRCoT (Trivedi et al. 2023): `question_text`, `answers_objects`, and `contexts` with the gold ones marked.

Gold titles stand under `gold_titles` or `gold_title`, answers under the names in `RIGHT`; where there are several, all
count. They may be numbers, true or false (read as yes and no), a JSON list in a text (PopQA), SQuAD's
``{"text": [...]}`` or TriviaQA's ``{"value": ..., "aliases": [...]}``. An empty cell of a table (null, NaN) is as good
as no field. Fields that no layout names end up in the question's metadata.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from blendfilter.errors import BadData
from blendfilter.files import JsonRow, first_character, json_rows, lines
from blendfilter.records import Passage, Question, cell, plain
from blendfilter.text import normalize_answer

Model = TypeVar("Model", bound=BaseModel)
H = TypeVar("H", bound=Hashable)
T = TypeVar("T")
Evidence = tuple[tuple[str, ...], ...]

GOLD = ("golden_answers", "golden_answer", "gold_answers", "gold_answer", "ground_truths", "ground_truth",
        "correct_answers", "correct_answer", "reference_answers", "reference_answer", "expected_answers",
        "expected_answer", "all_answers")  # fmt: skip
"""Columns that say by their names that they hold what is right, whatever a column `answer` beside them holds."""
RIGHT = (*GOLD, "answer", "possible_answers", "answers", "short_answers", "valid_answers", "acceptable_answers",
         "accepted_answers", "alternative_answers", "other_answers", "answer_aliases", "answer_alias",
         "golden_aliases", "aliases", "alias", "normalized_aliases", "o_aliases")  # fmt: skip
"""Columns of right answers, in the order in which they are read; PopQA's `s_aliases` are of what is asked about."""
_NOT_METADATA = ("golden_answers", "answers", "answer")
_PACKED = ("possible_answers", "o_aliases")
_NESTED = ("text", "value", "aliases", "human_answers", "normalized_aliases")
_NO_ANSWER = ("", "<unk>")
"""What stands where the answer is not told; the second in TriviaQA's test split."""
_JSON_LIST = re.compile(
    r"""\[\s*(["'].*|-?\d+(\.\d+)?(\s*,\s*-?\d+(\.\d+)?)*\s*|)\]""", re.DOTALL
)
"""A text that looks like a JSON list of texts or numbers."""


class Outside(BaseModel):
    """A row from outside: fields that we do not know are let through."""

    model_config = ConfigDict(extra="allow", coerce_numbers_to_str=True)

    @property
    def rest(self) -> dict[str, Any]:
        """The fields beside those of its layout."""
        return dict(self.model_extra or {})


def object_of(row: JsonRow) -> Mapping[str, Any]:
    """The row's value as it is, which has to be an object with names. Raises `BadData`."""
    if not isinstance(row.value, Mapping):
        kind = type(row.value).__name__
        raise BadData(
            f"{row.where}: expected an object with fields such as 'question', found a {kind}"
        )
    return row.value


def mapping(row: JsonRow) -> Mapping[str, Any]:
    """The row's value as JSON would have it, its gaps as None. Raises `BadData`, as `object_of`."""
    try:
        value: Mapping[str, Any] = plain(object_of(row))
    except RecursionError:
        raise BadData(f"{row.where}: nested too deeply to be data") from None
    return value


def checked(model: type[Model], row: JsonRow) -> Model:
    """The row as `model`. Raises `BadData` naming the row's place and the first field that is wrong."""
    return validated(model.model_validate, mapping(row), row.where)


def validated(validate: Callable[[Any], T], value: Mapping[str, Any], where: str) -> T:
    """What pydantic makes of `value`. Raises `BadData` naming the place and the first field that is wrong."""
    try:
        return validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing":
            raise _missing(where, name, value) from None
        raise BadData(
            f"{where}: field '{name}' is wrong: {first['msg']}, found {first['input']!r:.60}"
        ) from None


def _missing(where: str, name: str, fields: Iterable[str]) -> BadData:
    there = ", ".join(map(str, list(fields)[:12]))
    return BadData(f"{where}: field '{name}' is missing (it has: {there})")


def label_of(read: Question, where: str, known: Mapping[str, str], expected: str) -> str:
    """The one label that all answers of a question stand for; `known` by normalised spellings. Raises `BadData`."""
    labels = {known.get(normalize_answer(answer)) for answer in read.golden_answers}
    label = labels.pop()
    if label is None or labels:
        found = ", ".join(map(repr, read.golden_answers))
        raise BadData(f"{where}: {expected}, found {found}; try task 'qa'")
    return label


def distinct(names: Iterable[H]) -> tuple[H, ...]:
    """Each once, in the order of first appearance."""
    return tuple(dict.fromkeys(names))


def _listed(title: str = "", *others: str) -> BeforeValidator:
    """One text for a list of one, nothing for None, and the hub's columns, `title` and one of `others`, as rows."""

    def listed(value: Any) -> Any:
        if value is None or isinstance(value, str):
            return () if value is None else (value,)
        # DSPy's HotPotQA has its gold titles so; a run is to be the same twice
        if isinstance(value, set | frozenset):
            return sorted(value)
        if not (title and isinstance(value, Mapping)):
            return value
        other = next((name for name in others if value.get(name) is not None), others[0])
        try:
            return list(zip(value[title], value[other], strict=True))
        except (KeyError, TypeError, ValueError):
            raise ValueError(
                f"expected columns {title} and {' or '.join(others)} of one length"
            ) from None

    return BeforeValidator(listed)


def answers_of(columns: Iterable[tuple[str, Any]]) -> tuple[str, ...] | None:
    """The answers in all the columns of `RIGHT`, each once; None where there is no such column.

    Raises:
        ValueError: a column holds what is no answer; or `answer` is not among the golden answers beside it, so that it
            may be a model's.

    >>> answers_of([("answer", "Ane"), ("note", "x"), ("aliases", ["A. Lindqvist", "Ane", None])])
    ('Ane', 'A. Lindqvist')
    """
    found: dict[str, list[str]] = {}
    for name, value in columns:
        column = folded_name(name)
        if column in RIGHT and value is not None:
            found.setdefault(column, []).extend(_column(column, value))
    if found.get("answer") and any(found.get(column) for column in GOLD):
        for answer in found.pop("answer"):
            known = {normalize_answer(other) for others in found.values() for other in others}
            if normalize_answer(answer) not in known:
                raise ValueError(
                    f"'answer' is {answer!r:.60}, which is not among the golden answers beside it: leave 'answer' out "
                    "where a model gave it, else add it to them"
                )
    answers = (answer for column in RIGHT for answer in found.get(column, ()))
    return distinct(answers) if found else None


def folded_name(name: Any) -> str:
    """A column's name in snake case.

    >>> folded_name("goldenAnswers"), folded_name("Correct Answers")
    ('golden_answers', 'correct_answers')
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[\s-]+", "_", str(name).strip()).lower()


def _column(name: str, value: Any) -> Iterator[str]:
    """The answers of one column."""
    value = plain(value)
    if isinstance(value, str):
        value = _unpacked(value, name)
    for answer in map(cell, _leaves(value)):
        if not isinstance(answer, str):
            raise ValueError(
                f"field '{name}' is wrong: expected an answer or a list of them, found {answer!r:.60}"
            )
        if answer.strip() not in _NO_ANSWER:
            yield answer


def _unpacked(text: str, name: str) -> Any:
    """The list that stands in a text as JSON; any other text as it is."""
    if not (_JSON_LIST.fullmatch(text.strip()) or (text.strip() and name in _PACKED)):
        return text
    try:
        return plain(json.loads(text))
    except (ValueError, RecursionError):
        raise ValueError(
            f"field '{name}' is wrong: expected a list or a JSON list, found {text!r:.60}"
        ) from None


def _leaves(value: Any) -> Iterator[Any]:
    """The answers in one value: one or a list of them, or the object of SQuAD or TriviaQA."""
    if isinstance(value, Mapping):
        parts = {folded_name(name): part for name, part in value.items()}
        named = [name for name in _NESTED if name in parts]
        if not named:
            yield value
        elif named == ["text"]:
            yield from _leaves(parts["text"])
        else:
            # those that a metric tells apart; what is empty for one is no answer
            spellings = dict[str, Any]()
            for spelling in _leaves([parts[name] for name in named]):
                spellings.setdefault(normalize_answer(str(spelling)), spelling)
            yield from (spelling for normalised, spelling in spellings.items() if normalised)
    elif isinstance(value, list | tuple | Set):
        for part in sorted(value, key=str) if isinstance(value, Set) else value:
            yield from _leaves(part)
    elif isinstance(value, bool):
        yield "yes" if value else "no"
    elif value is not None:
        yield value


def _text(value: Any) -> Any:
    value = cell(value)
    return "" if value is None else value


Text = Annotated[str, BeforeValidator(_text)]
Name = Annotated[str | None, BeforeValidator(cell)]
Names = Annotated[tuple[Text, ...], _listed()]


_PARAGRAPH_IDS = ("passage_id", "psg_id", "paragraph_id", "id", "_id", "pid", "docid", "doc_id")


class Paragraph(Outside):
    """A paragraph that came with a question: an object, a pair of title and sentences, or a text alone."""

    id: Name = Field(None, validation_alias=AliasChoices(*_PARAGRAPH_IDS))
    title: Text = ""
    sentences: Names = Field(validation_alias=AliasChoices("sentences", "text", "content"))

    @model_validator(mode="before")
    @classmethod
    def _as_object(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"text": value}
        if isinstance(value, list | tuple):
            return dict(zip(("title", "sentences"), value, strict=False))
        return value


Facts = Annotated[
    tuple[tuple[Annotated[str, BeforeValidator(cell)], int], ...], _listed("title", "sent_id")
]
Paragraphs = Annotated[tuple[Paragraph, ...], _listed("title", "sentences", "content")]


class _Row(Outside):
    id: Name = Field(
        None, validation_alias=AliasChoices("id", "_id", "qid", "q_id", "question_id")
    )
    question: str
    type: Name = None
    gold_titles: Names = Field((), validation_alias=AliasChoices("gold_titles", "gold_title"))
    supporting_facts: Facts = ()
    context: Paragraphs = ()
    positive_ctxs: Paragraphs = ()
    hard_negative_ctxs: Paragraphs = ()
    negative_ctxs: Paragraphs = ()
    ctxs: Paragraphs = ()


class _KiltPlace(Outside):
    title: Name = None


class _KiltOutput(Outside):
    answer: Name = None
    provenance: tuple[_KiltPlace, ...] | None = None


class _KiltRow(Outside):
    input: Name = None
    output: tuple[_KiltOutput, ...]


class _IrcotParagraph(Outside):
    title: Text = ""
    paragraph_text: str
    is_supporting: bool = False


class _IrcotAnswer(Outside):
    spans: Names


class _IrcotRow(Outside):
    question_text: str
    answers_objects: list[_IrcotAnswer]
    contexts: tuple[_IrcotParagraph, ...] = ()


def question(
    row: JsonRow,
    value: Mapping[str, Any] | None = None,
    *,
    names: Mapping[str, str] | None = None,
    joiner: str = " ",
    scored: bool = True,
) -> Question:
    """The question of a row in any layout.

    Args:
        value: in place of the row's own value.
        names: what a data set calls a field, and what the field is called here.
        joiner: stands between the sentences of a paragraph.
        scored: whether it must have an answer.

    Raises:
        BadData: a field is missing or wrong, or there is no answer: the row's place and the field's name.
    """
    columns = [
        ((names or {}).get(name, name), found)
        for name, found in (value or mapping(row)).items()
    ]
    fields = dict(columns)
    evidence: Evidence = ()
    if "question" not in fields and ("input" in fields or "output" in fields):
        fields, evidence = _from_kilt(row._replace(value=fields))
        columns = [*fields.items()]
    elif "question_text" in fields:
        fields = _from_ircot(checked(_IrcotRow, row._replace(value=fields)))
        columns = [*fields.items()]
    elif isinstance(metadata := fields.get("metadata"), Mapping):
        columns = [pair for pair in columns if pair[0] != "metadata"]
        fields = {**metadata, **dict(columns)}
        columns += metadata.items()
    try:
        answers = answers_of(columns)
    except ValueError as error:
        raise BadData(f"{row.where}: {error}") from None
    # what the hub has for "not there"
    fields = {
        name: value
        for name, value in fields.items()
        if value is not None and folded_name(name) not in _NOT_METADATA
    }
    read = checked(_Row, row._replace(value=fields))
    if answers is None and scored:
        raise _missing(row.where, "answer", fields)
    if not answers and scored:
        raise BadData(
            f"{row.where}: has no answer, so nothing can be scored: give 'answer' or 'golden_answers'"
        )
    named = filter(None, read.gold_titles)
    titles = distinct(named) or distinct(title for title, _ in read.supporting_facts)
    if not evidence and titles:
        evidence = (titles,)
    elif not evidence:
        evidence = distinct((one.title,) for one in read.positive_ctxs if one.title)
    # An id made of the row's position is the same on every reading.
    name = read.id if read.id and read.id.strip() else f"row-{row.position}"
    paragraphs = (
        *read.context,
        *read.positive_ctxs,
        *read.hard_negative_ctxs,
        *read.negative_ctxs,
        *read.ctxs,
    )
    return Question(
        id=name,
        question=read.question.strip(),
        golden_answers=answers or (),
        gold_titles=titles or distinct(title for one in evidence for title in one),
        evidence=evidence,
        supporting_facts=read.supporting_facts,
        context=tuple(
            Passage(
                id=paragraph.id or f"{name}:{position}",
                title=paragraph.title,
                text=joiner.join(paragraph.sentences).strip(),
                metadata={"sentences": paragraph.sentences, **paragraph.rest},
            )
            for position, paragraph in enumerate(paragraphs)
        ),
        type=read.type,
        metadata=read.rest,
    )


def _from_kilt(row: JsonRow) -> tuple[dict[str, Any], Evidence]:
    read = checked(_KiltRow, row)
    if not (read.input or "").strip():
        raise BadData(
            f"{row.where}: field 'input' is empty: in KILT's TriviaQA files its script get_triviaqa_input.py fills it"
            " in; or give the file that TriviaQA's authors publish"
        )
    places = [output.provenance or () for output in read.output]
    titles = (distinct(place.title for place in one if place.title) for one in places)
    answers = [read.rest.get("golden_answers"), [output.answer for output in read.output]]
    provenance = [place.model_dump() for one in places for place in one]
    fields = {
        **read.rest,
        "question": read.input,
        "golden_answers": answers,
        "provenance": provenance,
    }
    return fields, distinct(filter(None, titles))


def _from_ircot(read: _IrcotRow) -> dict[str, Any]:
    return {
        **read.rest,
        "question": read.question_text,
        "golden_answers": [
            read.rest.get("golden_answers"),
            [answer.spans for answer in read.answers_objects],
        ],
        "gold_titles": [one.title for one in read.contexts if one.is_supporting],
        "context": [{"title": one.title, "text": one.paragraph_text} for one in read.contexts],
    }


# --- tables ---


def table_rows(path: Path) -> Iterator[JsonRow]:
    """The rows of a tab-separated table by its header's names; of a JSON file, which some sets have as well, its rows.

    Quoted fields may hold line breaks, which are read as line feeds. Fields that a short line lacks are not there; what
    a long one has beyond the header is left out. Raises `BadData` where the file is not UTF-8 or no table.
    """
    if first_character(path) in ("[", "{"):
        yield from json_rows(path)
        return
    # Of the whole process, for there is no other; a field may hold an article, and Python's own limit is 131,072.
    csv.field_size_limit(max(csv.field_size_limit(), 2**24))
    whole = (f"{line.text}\n" for line in lines(path, blank=True))
    table = csv.DictReader(whole, delimiter="\t", restkey="")
    try:
        for position, fields in enumerate(table):
            named = {
                name: field for name, field in fields.items() if name and field is not None
            }
            yield JsonRow(f"{path}, row {position + 1}", position, named)
    except csv.Error as error:
        raise BadData(
            f"{path}, line {table.line_num}: no row of a table ({error}): fetch the file again"
        ) from None
