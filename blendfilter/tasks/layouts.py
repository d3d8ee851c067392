"""The layouts in which multi-hop question sets are published, and how a row of each becomes a `Question`.

Official and Hugging Face (HotPotQA, 2Wiki; one is the other transposed), normalised (this package's own JSON Lines, in
which FlashRAG's rows read as well), and IRCoT's processed files (Trivedi et al. 2023). Told apart by the row's fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import AliasChoices, BeforeValidator, Field

from blendfilter.files import JsonRow
from blendfilter.records import Passage, Question
from blendfilter.tasks.reading import Outside, answers_of, checked, mapping, row_id


class Paragraph(NamedTuple):
    """A paragraph that came with a question; `extra` is what else the row says of it."""

    title: str
    sentences: Sequence[str]
    id: str | None = None
    extra: Mapping[str, Any] = {}


def paragraphs(question_id: str, found: Iterable[Paragraph], joiner: str) -> tuple[Passage, ...]:
    """The paragraphs as passages: sentences joined by `joiner`, ids ``question:position`` where upstream gives none."""
    return tuple(
        Passage(
            id=paragraph.id or f"{question_id}:{position}",
            title=paragraph.title,
            text=joiner.join(paragraph.sentences).strip(),
            metadata={"sentences": tuple(paragraph.sentences), **paragraph.extra},
        )
        for position, paragraph in enumerate(found)
    )


def distinct(names: Iterable[str]) -> tuple[str, ...]:
    """Each name once, in the order of first appearance."""
    return tuple(dict.fromkeys(names))


def _transposed(first: str, second: str) -> BeforeValidator:
    """Columns to pairs: the hub stores a list of pairs as one list per column."""

    def pairs(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return () if value is None else value
        if first not in value or second not in value:
            raise ValueError(f"expected columns '{first}' and '{second}'")
        try:
            return list(zip(value[first], value[second], strict=True))
        except (TypeError, ValueError):
            raise ValueError(f"columns '{first}' and '{second}' differ in length or are no lists") from None

    return BeforeValidator(pairs)


def _listed(value: Any) -> Any:
    """One text for a list of one, and nothing for an empty list."""
    return () if value is None else (value,) if isinstance(value, str) else value


Facts = Annotated[tuple[tuple[str, int], ...], _transposed("title", "sent_id")]
Context = Annotated[tuple[tuple[str, list[str]], ...], _transposed("title", "sentences")]
Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class Published(Outside):
    """A row of HotPotQA or 2Wiki as its authors or the hub publish it."""

    id: str | None = Field(None, validation_alias=AliasChoices("_id", "id"))
    question: str
    answer: str
    aliases: Names = Field((), validation_alias=AliasChoices("aliases", "answer_aliases"))
    type: str | None = None
    supporting_facts: Facts = ()
    context: Context = ()


def published(row: JsonRow, joiner: str, aliases: Iterable[str] = ()) -> Question:
    """The official list layout and the hub's; `aliases` are further answers that upstream keeps elsewhere."""
    read = checked(Published, row)
    name = row_id(row, read.id)
    titles = distinct(title for title, _ in read.supporting_facts)
    return Question(
        id=name,
        question=read.question.strip(),
        golden_answers=answers_of(row, [read.answer, *read.aliases, *aliases]),
        gold_titles=titles,
        evidence=(titles,) if titles else (),
        supporting_facts=read.supporting_facts,
        context=paragraphs(name, (Paragraph(title, texts) for title, texts in read.context), joiner),
        type=read.type,
        metadata=read.rest,
    )


class NormalisedParagraph(Outside):
    title: str = ""
    sentences: list[str]
    paragraph_id: str | None = None


class NormalisedMetadata(Outside):
    type: str | None = None
    supporting_facts: Facts = ()
    gold_titles: Names = ()
    context: tuple[NormalisedParagraph, ...] = ()


class Normalised(Outside):
    """A row of this package's own layout; all of `metadata` may be missing."""

    id: str | None = None
    question: str
    golden_answers: Names = Field(validation_alias=AliasChoices("golden_answers", "answers", "answer"))
    metadata: NormalisedMetadata = Field(default_factory=NormalisedMetadata)


def normalised(row: JsonRow, joiner: str) -> Question:
    """``{"id", "question", "golden_answers", "metadata": {type, supporting_facts, gold_titles, context, ...}}``."""
    read = checked(Normalised, row)
    meta = read.metadata
    name = row_id(row, read.id)
    titles = distinct(meta.gold_titles or (title for title, _ in meta.supporting_facts))
    found = (Paragraph(one.title, one.sentences, one.paragraph_id, one.rest) for one in meta.context)
    return Question(
        id=name,
        question=read.question.strip(),
        golden_answers=answers_of(row, read.golden_answers),
        gold_titles=titles,
        evidence=(titles,) if titles else (),
        supporting_facts=meta.supporting_facts,
        context=paragraphs(name, found, joiner),
        type=meta.type,
        metadata={**read.rest, **meta.rest},
    )


class IrcotParagraph(Outside):
    title: str = ""
    paragraph_text: str
    is_supporting: bool = False


class IrcotAnswer(Outside):
    spans: list[str]


class Ircot(Outside):
    """A row of IRCoT's processed files: paragraphs are whole, gold is marked on them."""

    question_id: str
    question_text: str
    answers_objects: list[IrcotAnswer]
    contexts: tuple[IrcotParagraph, ...] = ()


def ircot(row: JsonRow) -> Question:
    """``{"question_id", "question_text", "answers_objects", "contexts"}``."""
    read = checked(Ircot, row)
    titles = distinct(one.title for one in read.contexts if one.is_supporting)
    found = (Paragraph(one.title, [one.paragraph_text]) for one in read.contexts)
    return Question(
        id=read.question_id,
        question=read.question_text.strip(),
        golden_answers=answers_of(row, [span for answer in read.answers_objects for span in answer.spans]),
        gold_titles=titles,
        evidence=(titles,) if titles else (),
        context=paragraphs(read.question_id, found, ""),
        metadata=read.rest,
    )


def is_normalised(row: JsonRow) -> bool:
    """Whether the row is in the normalised layout."""
    value = mapping(row)
    return "golden_answers" in value or isinstance(value.get("metadata"), Mapping)


def multihop(row: JsonRow, joiner: str, aliases: Iterable[str] = ()) -> Question:
    """A row in any layout of HotPotQA or 2Wiki."""
    if is_normalised(row):
        return normalised(row, joiner)
    if "question_text" in mapping(row):
        return ircot(row)
    return published(row, joiner, aliases)
