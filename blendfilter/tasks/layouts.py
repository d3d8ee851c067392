"""The layouts in which question sets are published, and how a row of each becomes a `Question`.

Official and Hugging Face (HotPotQA, 2Wiki; one is the other transposed), normalised (this package's own JSON Lines, in
which FlashRAG's rows read as well), IRCoT's processed files (Trivedi et al. 2023), DPR's and KILT's; and tables with a
header. A row's layout is recognised by its fields. Fields that no layout names end up in the question's metadata.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, cast

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from blendfilter.errors import BadData
from blendfilter.files import LONGEST, JsonRow, first_character, json_rows, opened, too_long
from blendfilter.records import Passage, Question

Model = TypeVar("Model", bound=BaseModel)
LONGEST_FIELD = 2**24
"""Characters that a field of a table may have: it may hold an article, and Python's own limit is 131,072."""


class Outside(BaseModel):
    """A row from outside: fields that we do not know are let through."""

    model_config = ConfigDict(extra="allow", coerce_numbers_to_str=True)

    @property
    def rest(self) -> dict[str, Any]:
        """The fields beside those of its layout."""
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
        found = found if len(found) <= 60 else found[:57] + "..."
        raise BadData(f"{row.where}: field '{name}' is wrong: {first['msg']}, found {found}") from None


def has(value: Mapping[str, Any]) -> str:
    """The fields there are, for a message about one that is not.

    >>> has({"id": 1, "text": "?"})
    'it has: id, text'
    """
    names = ", ".join(str(name) for name in list(value)[:12])
    return f"it has: {names}" if names else "it has no fields"


def row_id(row: JsonRow, *candidates: str | None) -> str:
    """The first id that is not blank, else one made of the row's position, which is the same on every reading."""
    return next((name for name in candidates if name and name.strip()), f"row-{row.position}")


def answers_of(row: JsonRow, answers: Iterable[str]) -> tuple[str, ...]:
    """The answers that are not blank, each once, in order. Raises `BadData` where all are."""
    kept = tuple(dict.fromkeys(answer for answer in answers if answer.strip()))
    if not kept:
        raise BadData(f"{row.where}: has no answer, so nothing can be scored: give 'answer' or 'golden_answers'")
    return kept


def distinct(names: Iterable[str]) -> tuple[str, ...]:
    """Each name once, in the order of first appearance."""
    return tuple(dict.fromkeys(names))


class Paragraph(NamedTuple):
    """A paragraph that came with a question; `extra` is what else the row has about it."""

    title: str
    sentences: Sequence[str]
    id: str | None = None
    extra: Mapping[str, Any] = {}


def question(
    row: JsonRow,
    id: str | None,
    text: str,
    answers: Iterable[str],
    *,
    titles: Iterable[str] = (),
    evidence: tuple[tuple[str, ...], ...] | None = None,
    facts: tuple[tuple[str, int], ...] = (),
    context: Iterable[Paragraph] = (),
    joiner: str = "",
    type: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Question:
    """A question out of a row's fields. Raises `BadData` where it has no answer.

    Without `evidence` all gold titles together are one set of it. Sentences of a paragraph are joined by `joiner`;
    paragraphs without an id have ``question:position``.
    """
    name, gold = row_id(row, id), distinct(titles)
    return Question(
        id=name,
        question=text.strip(),
        golden_answers=answers_of(row, answers),
        gold_titles=gold,
        evidence=((gold,) if gold else ()) if evidence is None else evidence,
        supporting_facts=facts,
        context=tuple(
            Passage(
                id=paragraph.id or f"{name}:{position}",
                title=paragraph.title,
                text=joiner.join(paragraph.sentences).strip(),
                metadata={"sentences": tuple(paragraph.sentences), **paragraph.extra},
            )
            for position, paragraph in enumerate(context)
        ),
        type=type,
        metadata=metadata or {},
    )


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
TitledSentences = Annotated[tuple[tuple[str, list[str]], ...], _transposed("title", "sentences")]
Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]


# --- multi-hop sets ---


class MultihopRow(Outside):
    """A row of HotPotQA or 2Wiki as its authors or the hub publish it."""

    id: str | None = Field(None, validation_alias=AliasChoices("_id", "id"))
    question: str
    answer: str
    aliases: Names = Field((), validation_alias=AliasChoices("aliases", "answer_aliases"))
    type: str | None = None
    supporting_facts: Facts = ()
    context: TitledSentences = ()


class NormalisedParagraph(Outside):
    title: str = ""
    sentences: list[str]
    paragraph_id: str | None = None


class NormalisedMetadata(Outside):
    type: str | None = None
    supporting_facts: Facts = ()
    gold_titles: Names = ()
    context: tuple[NormalisedParagraph, ...] = ()


class NormalisedRow(Outside):
    """A row of this package's own layout; all of `metadata` may be missing."""

    id: str | None = None
    question: str
    golden_answers: Names = Field(validation_alias=AliasChoices("golden_answers", "answers", "answer"))
    metadata: NormalisedMetadata = Field(default_factory=NormalisedMetadata)


class IrcotParagraph(Outside):
    title: str = ""
    paragraph_text: str
    is_supporting: bool = False


class IrcotAnswer(Outside):
    spans: list[str]


class IrcotRow(Outside):
    """A row of IRCoT's processed files: paragraphs are whole, gold is marked on them."""

    question_id: str
    question_text: str
    answers_objects: list[IrcotAnswer]
    contexts: tuple[IrcotParagraph, ...] = ()


def is_normalised(row: JsonRow) -> bool:
    """Whether the row is in the normalised layout."""
    value = mapping(row)
    return "golden_answers" in value or isinstance(value.get("metadata"), Mapping)


def normalised(row: JsonRow, joiner: str) -> Question:
    """``{"id", "question", "golden_answers", "metadata": {type, supporting_facts, gold_titles, context, ...}}``."""
    read = checked(NormalisedRow, row)
    meta = read.metadata
    return question(
        row, read.id, read.question, read.golden_answers,
        titles=meta.gold_titles or (title for title, _ in meta.supporting_facts), facts=meta.supporting_facts,
        context=(Paragraph(one.title, one.sentences, one.paragraph_id, one.rest) for one in meta.context),
        joiner=joiner, type=meta.type, metadata={**read.rest, **meta.rest},
    )  # fmt: skip


def ircot(row: JsonRow) -> Question:
    """``{"question_id", "question_text", "answers_objects", "contexts"}``."""
    read = checked(IrcotRow, row)
    return question(
        row, read.question_id, read.question_text, (span for answer in read.answers_objects for span in answer.spans),
        titles=(one.title for one in read.contexts if one.is_supporting),
        context=(Paragraph(one.title, [one.paragraph_text]) for one in read.contexts), metadata=read.rest,
    )  # fmt: skip


def multihop(row: JsonRow, joiner: str, aliases: Iterable[str] = ()) -> Question:
    """A row in any layout of HotPotQA or 2Wiki; `aliases` are further answers that upstream keeps elsewhere."""
    if is_normalised(row):
        return normalised(row, joiner)
    if "question_text" in mapping(row):
        return ircot(row)
    read = checked(MultihopRow, row)
    return question(
        row, read.id, read.question, [read.answer, *read.aliases, *aliases],
        titles=(title for title, _ in read.supporting_facts), facts=read.supporting_facts,
        context=(Paragraph(title, texts) for title, texts in read.context), joiner=joiner, type=read.type,
        metadata=read.rest,
    )  # fmt: skip


# --- DPR's files (Karpukhin et al. 2020): passages that hold the answer and passages that do not ---


class RetrievedPassage(Outside):
    """A passage that a retriever found for a question: DPR's, ALCE's, Self-RAG's."""

    id: str | None = Field(None, validation_alias=AliasChoices("passage_id", "psg_id", "id"))
    title: str = ""
    text: str

    @property
    def paragraph(self) -> Paragraph:
        """As a paragraph of one sentence."""
        return Paragraph(self.title, [self.text], self.id, self.rest)


class DprRow(Outside):
    """A row of DPR's training files or of its retriever's output."""

    id: str | None = Field(None, validation_alias=AliasChoices("id", "question_id", "q_id"))
    question: str
    answers: Names
    positive_ctxs: tuple[RetrievedPassage, ...] = ()
    hard_negative_ctxs: tuple[RetrievedPassage, ...] = ()
    negative_ctxs: tuple[RetrievedPassage, ...] = ()
    ctxs: tuple[RetrievedPassage, ...] = ()


def is_dpr(row: JsonRow) -> bool:
    """Whether the row is in DPR's layout."""
    return any(name in mapping(row) for name in ("positive_ctxs", "ctxs"))


def dpr(row: JsonRow) -> Question:
    """A row of `biencoder-*.json`, or of what DPR's retriever writes. Rows (made up)::

        {"dataset": "nq_dev_psgs_w100", "question": "who keeps the light on skerry rock", "answers": ["Ada Brennock"],
         "positive_ctxs": [{"title": "Skerry Light", "text": "Skerry Light is ...", "passage_id": "417"}],
         "negative_ctxs": [], "hard_negative_ctxs": [{"title": "Skerry", "text": "...", "passage_id": "93"}]}
        {"question": "who keeps the light on skerry rock", "answers": ["Ada Brennock"],
         "ctxs": [{"id": "417", "title": "Skerry Light", "text": "...", "score": "81.2", "has_answer": true}]}

    The positive passages come first. Each is gold by itself, so each title is a set of evidence of its own.
    `has_answer` only says that the string occurs: what is retrieved is no gold.
    """
    read = checked(DprRow, row)
    found = (*read.positive_ctxs, *read.hard_negative_ctxs, *read.negative_ctxs, *read.ctxs)
    titles = distinct(one.title for one in read.positive_ctxs if one.title)
    return question(
        row, read.id, read.question, read.answers, titles=titles, evidence=tuple((title,) for title in titles),
        context=(one.paragraph for one in found), metadata=read.rest,
    )  # fmt: skip


# --- KILT (Petroni et al. 2021): one layout for many tasks, over one snapshot of Wikipedia ---


class KiltProvenance(Outside):
    """A place in Wikipedia; of it only the title counts here, the rest is kept."""

    title: str | None = None


class KiltOutput(Outside):
    answer: str | None = None
    provenance: tuple[KiltProvenance, ...] | None = ()


class KiltRow(Outside):
    """A row of a KILT file; `meta` differs by task."""

    id: str | None = None
    input: str | None = None
    output: tuple[KiltOutput, ...]
    meta: Any = Field(None)


def is_kilt(row: JsonRow) -> bool:
    """Whether the row is in KILT's layout."""
    value = mapping(row)
    return "output" in value or ("input" in value and "question" not in value)


def kilt(row: JsonRow) -> Question:
    """A row of `*-kilt.jsonl`, or of `facebook/kilt_tasks` on the Hugging Face hub. A row (made up)::

        {"id": "6d1c", "input": "who keeps the light on skerry rock", "meta": {},
         "output": [{"answer": "Ada Brennock", "provenance": [
                        {"title": "Skerry Light", "wikipedia_id": "417", "start_paragraph_id": 2}]},
                    {"answer": "Brennock"}, {"provenance": [{"title": "Ada Brennock", "wikipedia_id": "93"}]}]}

    Outputs are equally right, so their answers are aliases; an output may have no answer, or no provenance. The titles
    of one output's provenance belong together (two for a question of two hops), those of another are another way to the
    answer: each is a set of evidence of its own, and the set that retrieval meets best counts. Raises `BadData`.
    """
    read = checked(KiltRow, row)
    if not (read.input or "").strip():
        raise BadData(
            f"{row.where}: field 'input' is empty: KILT's TriviaQA files name their questions by id alone until its "
            "script get_triviaqa_input.py fills them in; or give the file that TriviaQA's authors publish"
        )
    places = [output.provenance or () for output in read.output]
    titles = (distinct(place.title for place in one if place.title) for one in places)
    evidence = tuple(dict.fromkeys(one for one in titles if one))
    meta: dict[str, Any] = {"meta": read.meta} if read.meta else {}
    return question(
        row, read.id, read.input or "", (output.answer for output in read.output if output.answer),
        titles=(title for one in evidence for title in one), evidence=evidence,
        metadata={**read.rest, **meta, "provenance": [place.model_dump() for one in places for place in one]},
    )  # fmt: skip


# --- tables ---


def table_rows(path: Path) -> Iterator[JsonRow]:
    """The rows of a tab-separated table by its header's names; of a JSON file, which some sets have as well, its rows.

    Quoted fields may hold line breaks. Fields that a short line lacks are not there; what a long one has beyond the
    header is left out. Raises `BadData` where the file is not UTF-8 or no table.
    """
    if first_character(path) in ("[", "{"):
        yield from json_rows(path)
        return
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD))  # of the whole process: there is no other
    with opened(path) as stream:
        text = io.TextIOWrapper(cast(io.BufferedReader, stream), encoding="utf-8-sig", newline="")
        table = csv.DictReader(_lines(text, path), delimiter="\t", restkey="")
        try:
            for position, fields in enumerate(table):
                named = {name: field for name, field in fields.items() if name and field is not None}
                yield JsonRow(f"{path}, row {position + 1}", position, named)
        except UnicodeDecodeError as error:
            raise BadData(f"{path}: not UTF-8 (after line {table.line_num}): save the file as UTF-8") from error
        except csv.Error as error:
            raise BadData(f"{path}, line {table.line_num}: no row of a table ({error}): fetch the file again") from None


def _lines(text: io.TextIOWrapper, path: Path) -> Iterator[str]:
    """The lines of a table, as `csv` takes them; a small file may unpack to one without end."""
    for number, line in enumerate(iter(lambda: text.readline(LONGEST + 1), ""), start=1):
        if len(line) > LONGEST:
            raise BadData(f"{path}, line {number}: {too_long('the line')}")
        yield line
