"""From a source of rows to checked rows: files, lists in memory, and what every question must have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from blendfilter.errors import BadData
from blendfilter.files import JsonRow
from blendfilter.records import Question

Model = TypeVar("Model", bound=BaseModel)


class Outside(BaseModel):
    """A row from outside: fields that we do not know are let through, and end up in a question's metadata."""

    model_config = ConfigDict(extra="allow", coerce_numbers_to_str=True)

    @property
    def rest(self) -> dict[str, Any]:
        """What the row holds beside the fields of its layout."""
        return dict(self.model_extra or {})


def mapping(row: JsonRow) -> Mapping[str, Any]:
    """The row's value, which has to be an object with names. Raises `BadData`."""
    if not isinstance(row.value, Mapping):
        kind = type(row.value).__name__
        raise BadData(f"{row.where}: expected an object with fields such as 'question', found a {kind}")
    return row.value


def checked(model: type[Model], row: JsonRow) -> Model:
    """The row as `model`. Raises `BadData` naming the row's place and the first field that is wrong."""
    value = mapping(row)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing":
            raise BadData(f"{row.where}: field '{name}' is missing ({has(value)})") from None
        found = repr(first["input"])
        shown = found if len(found) <= 60 else found[:57] + "..."
        raise BadData(f"{row.where}: field '{name}' is wrong: {first['msg']}, found {shown}") from None


def has(value: Mapping[str, Any]) -> str:
    """What fields there are, for a message about one that is not.

    >>> has({"id": 1, "text": "?"})
    'it has: id, text'
    """
    names = ", ".join(str(name) for name in list(value)[:12])
    return f"it has: {names}" if names else "it has no fields"


def given(rows: Iterable[Any], kind: str = "the given rows") -> Iterator[JsonRow]:
    """Rows in memory, with a place for messages."""
    for position, value in enumerate(rows):
        yield JsonRow(f"{kind}, item {position + 1}", position, value)


def row_id(row: JsonRow, *candidates: str | None) -> str:
    """The first id that says something, else one made of the row's position, which is the same on every reading."""
    return next((name for name in candidates if name and name.strip()), f"row-{row.position}")


def answers_of(row: JsonRow, answers: Iterable[str]) -> tuple[str, ...]:
    """The answers that say something, each once, in order. Raises `BadData` where none does."""
    kept = tuple(dict.fromkeys(answer for answer in answers if answer.strip()))
    if not kept:
        raise BadData(f"{row.where}: has no answer, so nothing can be scored: give 'answer' or 'golden_answers'")
    return kept


def acceptable(question: Question, where: str, seen: dict[str, str]) -> Question:
    """`question`, if it asks something and its id is new; `seen` maps ids to their places and is added to.

    Raises:
        BadData: the question is empty, has no answer, or its id has been used before (where).
    """
    if not question.question.strip():
        raise BadData(f"{where}: question '{question.id}' is empty: fill it in or drop the row")
    if not question.golden_answers:
        raise BadData(f"{where}: question '{question.id}' has no golden answers, so nothing can be scored")
    if question.id in seen:
        raise BadData(f"{where}: question id '{question.id}' was used before, at {seen[question.id]}: ids must differ")
    seen[question.id] = where
    return question
