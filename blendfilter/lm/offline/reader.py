"""A rule-based reader that answers rendered prompts: no model, no network, always the same reply.

It shows the pipeline, not its quality. It truly reads the prompt: the last line says what is asked (the cue), the block
above it holds question, knowledge and context, and the reply has the shape that this kind of prompt asks for.
Input: the prompt's text. Output: the reply's text. It raises on no text and takes time linear in its length.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from blendfilter.lm.offline.answers import (
    UNKNOWN,
    answer_to,
    concluded,
    helpful_to,
    reading_of,
    reasoning_about,
    relevant_to,
    shared_words,
)
from blendfilter.lm.offline.chat import asks_for_fields, fill_fields
from blendfilter.lm.offline.claims import settled
from blendfilter.lm.offline.consistency import asks_for_consistency, consistency_of
from blendfilter.lm.offline.hopping import asks_for_hop, next_hop
from blendfilter.lm.offline.prompt import THINK, Sheet, take_apart
from blendfilter.lm.offline.reading import bare_title, split_line, stems
from blendfilter.lm.offline.responding import RESPONSE, asks_for_response, take_response_apart
from blendfilter.lm.offline.spans import Kind, kind_of, names_in
from blendfilter.text import choices

_VERDICT = re.compile(r"^\W{0,8}knowledge\W{0,3}(\d{1,6})\b(.{0,60})", re.IGNORECASE | re.MULTILINE)
_DENIED = re.compile(r"\b(?:not|irrelevant|unrelated|no)\b", re.IGNORECASE)
_SOUGHT = {
    Kind.PERSON: "the person",
    Kind.PLACE: "the place",
    Kind.TIME: "the date",
    Kind.COUNT: "the number",
    Kind.PEOPLE: "the nationality",
    Kind.YES_NO: "whether this holds",
    Kind.THING: "the name",
}


def read(prompt: str) -> str:
    """The reply to a rendered prompt (or to chat messages joined by blank lines).

    >>> read("Knowledge:\\nOrm Pier | Orm Pier opened in 1871.\\nQuestion: When did Orm Pier open?\\nAnswer:")
    '1871'
    >>> read("Question: When did Orm Pier open?\\nTopic:")
    'Orm Pier'
    """
    if asks_for_fields(prompt):
        return fill_fields(prompt)
    if asks_for_hop(prompt):
        return next_hop(prompt)
    if asks_for_consistency(prompt):
        return consistency_of(prompt)
    sheet = take_response_apart(prompt) if asks_for_response(prompt) else take_apart(prompt)
    return _REPLIES.get(sheet.cue, _answer)(sheet)


def _think(sheet: Sheet) -> str:
    """Reasoning from the knowledge, or from nothing, and the answer in its last sentence."""
    answer = settled(sheet, sheet.passages)
    if sheet.wants_sentences:
        answer = answer.removesuffix(".")
    return f"{reasoning_about(sheet.question, sheet.passages)}\nSo the answer is {answer}."


def _passage(sheet: Sheet) -> str:
    """A passage from the question's own words: it names what is asked about and claims nothing of it."""
    words = _content_words(sheet.question)
    if not words:
        return "This passage has no subject."
    subject = _topic(sheet)
    return (
        f"This passage is about {subject}. It brings together {_listed(words)}. "
        f"Who knows {subject} can tell {_SOUGHT[kind_of(sheet.question)]} that is asked for."
    )


def _topic(sheet: Sheet) -> str:
    """The question's names, at most two; else its first content words that stand side by side."""
    names = list(dict.fromkeys(names_in(sheet.question)))[:2]
    if names:
        return " and ".join(name[:120] for name in names)
    return " ".join(_content_words(sheet.question)[:4]) or UNKNOWN


def _content_words(question: str) -> list[str]:
    """The question's words without stop words, each once, at most twelve."""
    return list(dict.fromkeys(word for word in re.findall(r"[\w’'-]+", question) if stems(word)))[:12]


def _listed(words: list[str]) -> str:
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else words[0]


def _relevance(sheet: Sheet) -> str:
    """One line for each numbered passage: relevant or not, and by which words."""
    kept = set(relevant_to(sheet.question, sheet.passages))
    chain = {sentence.passage: sentence for sentence in reading_of(sheet.question, sheet.passages).chosen}
    if not sheet.passages:
        return "There is no knowledge to judge."
    lines = []
    for number, line in enumerate(sheet.passages):
        verdict = "is relevant" if number in kept else "is not relevant"
        told = bare_title(split_line(line)[0]) or "this passage"
        why = _why(sheet.question, line, number in chain)
        lines.append(f"Knowledge {number} {verdict}: {told[:120]} {why}.")
    return "\n".join(lines)


def _why(question: str, line: str, in_chain: bool) -> str:
    words = shared_words(question, line)[:8]
    shares = f"shares {_listed(words)} with the question" if words else "shares no word with the question"
    return f"{shares} and is a step towards the answer" if in_chain else shares


def _ids(sheet: Sheet) -> str:
    """The numbers that the check's reply calls relevant; by overlap where it names none."""
    count = len(sheet.passages)
    verdicts = {
        int(match[1]): not _DENIED.search(match[2].lstrip(" :").partition(":")[0])
        for match in _VERDICT.finditer(sheet.context)
        if int(match[1]) < count
    }
    chosen = [number for number in sorted(verdicts) if verdicts[number]]
    if not chosen and not (verdicts and sheet.offers_none):
        without_check = helpful_to if sheet.offers_none and not sheet.context else relevant_to
        chosen = list(without_check(sheet.question, sheet.passages))
    if not chosen:
        return "none" if sheet.offers_none or not count else "0"
    return ", ".join(map(str, chosen))


def _judgement(sheet: Sheet) -> str:
    """Relevance and ids in one reply."""
    relevance = _relevance(sheet)
    return f"{relevance}\nIds: {_ids(replace(sheet, context=relevance))}"


def _answer(sheet: Sheet) -> str:
    """What the context concludes; else an answer from the context's or the knowledge's own sentences."""
    lines = sheet.passages or tuple(line.strip() for line in sheet.context.split("\n") if line.strip())
    answer = concluded(sheet.context) or settled(sheet, lines)
    if choices(sheet.question).options:
        return answer.removesuffix(".")
    if sheet.wants_sentences:
        return answer if answer.endswith((".", "!", "?")) else f"{answer}."
    if sheet.wants_truth:
        return answer
    if said := re.match(r"(?:yes|no|true|false)\b", answer, re.IGNORECASE):
        return "Yes" if said[0].lower() in ("yes", "true") else "No"
    if sheet.wants_yes_or_no:
        return answer_to(sheet.question, lines, yes_or_no_only=True).capitalize()
    return answer


_REPLIES: dict[str, Callable[[Sheet], str]] = {
    THINK: _think,
    "Passage:": _passage,
    "Topic:": _topic,
    "Relevance:": _relevance,
    "Ids:": _ids,
    "Judgement:": _judgement,
    "Answer:": _answer,
    RESPONSE: _answer,
}
