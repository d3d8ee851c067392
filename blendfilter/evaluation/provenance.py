"""What an answer was read from, where the program that gave it does not say so.

A program of the user's own searches where it likes, and hands what it found on in code of its own. What its searches
found is known (`Asker.found`). What became of it is seen in the steps that led to the answer: the one that gave it, and
those whose words that one read, back to the first. A passage is *kept* where the input of such a step holds it, or
eight words of it in a row. Steps are the calls of DSPy's predictors (its trace), else the model calls.

What only served to ask on is left out: a search whose passages no such step read, and whose every reader wrote the
query of another search, found nothing for the answer. (A last hop that lost what the first one found filtered nothing.)

Where a step read other text (a search of the program's own, a tool's), what was kept is not known as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from pydantic import BaseModel

from blendfilter.lm.journaled import text_of
from blendfilter.modules.base import Branch, union
from blendfilter.records import Passage, one_line
from blendfilter.retrieval.callables import as_passage

RUN = 8
"""Words in a row by which a text is known again."""
FEW = 4
"""Words of which a text must have as many, to be known inside of another."""
STRANGE = 16
"""Words in a row that come from nowhere, and so from a source that no search shows; a title, or a sign, has fewer."""

Text = tuple[str, ...]
"""A text as its words, without case and punctuation."""
Found = Mapping[tuple[str, int, str], Sequence[Passage]]
"""What searches found, by query, k and the index's fingerprint."""


def _words(text: str) -> Text:
    return tuple(re.findall(r"\w+", text.casefold()))


def _runs(words: Text) -> Iterator[Text]:
    return (words[at : at + RUN] for at in range(len(words) - RUN + 1))


class Words:
    """Texts as words, to look for others in."""

    def __init__(self, texts: Iterable[Text]) -> None:
        self.texts = [words for words in texts if words]
        self._joined = [f" {' '.join(words)} " for words in self.texts]
        self._runs = {run for words in self.texts for run in _runs(words)}

    def hold(self, words: Text) -> bool:
        """Whether one of the texts holds these words, or `RUN` of them in a row."""
        if len(words) > RUN:
            return not self._runs.isdisjoint(_runs(words))
        return self.hold_whole(words)

    def hold_whole(self, words: Text) -> bool:
        """Whether one of the texts holds all of these words in a row."""
        return bool(words) and any(f" {' '.join(words)} " in text for text in self._joined)

    def hold_new(self, words: Text, known: Words) -> bool:
        """The same, but for words that are `known` from elsewhere; few words must be a whole text here."""
        if len(words) < FEW:
            return words in self.texts and words not in known.texts
        if len(words) > RUN:
            return not self._runs.isdisjoint({*_runs(words)} - known._runs)
        return self.hold(words) and not known.hold(words)

    def strange(self, words: Text) -> int:
        """How many of `words` in a row these texts do not hold, at the most."""
        if len(words) <= RUN and self.hold(words):
            return 0
        is_known = [False] * len(words)
        for at, run in enumerate(_runs(words)):
            if run in self._runs:
                is_known[at : at + RUN] = [True] * RUN
        return max(
            (len([*group]) for known, group in groupby(is_known) if not known), default=0
        )


class Step:
    """One call: what went in, as given and as words, and the texts that came out."""

    def __init__(self, inputs: Sequence[Any], outputs: Iterable[Any]) -> None:
        self.inputs = inputs
        self.read = Words(map(_words, _texts(inputs)))
        self.said = [words for text in _texts([*outputs]) if (words := _words(text))]

    def reads(self, passages: Iterable[Passage], told: Iterable[Text] = ()) -> list[Passage]:
        """Those of `passages` that its input holds, whole or a piece.

        A piece that is in a passage held whole, or in what it was `told` by another step, is not of a third.
        """
        whole, others = list[Passage](), list[tuple[Passage, Text]]()
        for passage in passages:
            words = _words(passage.text) or _words(passage.title)
            if self.read.hold_whole(words):
                whole.append(passage)
            else:
                others.append((passage, words))
        known = Words([*told, *(_words(passage.line) for passage in whole)])
        return [*whole, *(each for each, words in others if self.read.hold_new(words, known))]

    def feeds(self, read: Words, known: Words) -> bool:
        """Whether its words are in what another one `read`, and are not `known` from elsewhere."""
        return any(read.hold_new(words, known) for words in self.said)


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value of any shape."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            yield from _texts(part)
    elif isinstance(long_text := getattr(value, "long_text", None), str):
        yield long_text
    elif isinstance(value, BaseModel):
        yield from _texts(value.model_dump())
    elif isinstance(value, int | float):
        yield str(value)


def traced(trace: Iterable[Any]) -> list[Step]:
    """The steps of DSPy's trace."""
    steps = []
    for predictor, inputs, prediction in trace:
        fields = predictor.signature.input_fields
        given = [value for name, value in inputs.items() if name in fields]
        steps.append(Step(given, [value for _, value in prediction.items()]))
    return steps


def called(calls: Iterable[Mapping[str, Any]]) -> list[Step]:
    """The steps of journaled calls."""
    return [Step([text_of(call["prompt"])], [call["reply"]]) for call in calls]


class Provenance(NamedTuple):
    """Where an answer comes from.

    `queries` and `branches` are the searches, by name; `retrieved` is what they found for the answer, `kept` what it
    was read from; `whole`: it was read from nothing else.
    """

    queries: Mapping[str, str]
    branches: Mapping[str, Branch]
    retrieved: Sequence[Passage]
    kept: Sequence[Passage]
    whole: bool = True


def provenance(
    question: str, answer: Any, found: Found, trace: Sequence[Step], calls: Sequence[Step]
) -> Provenance:
    """The provenance of `answer`; where no step of the `trace` gave it, a model's call did that DSPy does not trace."""
    asked = one_line(question)
    # in an order that does not hang on which of several searches came back first
    searches = sorted(found.items(), key=lambda each: (one_line(each[0][0]) != asked, *each[0]))
    everything = union(hits for _, hits in searches)
    known = Words(map(_words, [question, *(passage.line for passage in everything)]))
    every, last = _answering(answer, trace, calls)
    used = [] if last is None else _used(every, last, known)
    read = {
        passage.id
        for step in used
        for passage in step.reads(everything, _told(step, used, every))
    }
    reading = [(step, {passage.id for passage in step.reads(everything)}) for step in every]
    queries, branches, retrieved = dict[str, str](), dict[str, Branch](), list[list[Passage]]()
    for number, ((query, *_), hits) in enumerate(searches, 1):
        name = "q" if number == 1 and one_line(query) == asked else f"search_{number}"
        # where no model was asked, code read them
        kept = [passage for passage in hits if last is None or passage.id in read]
        queries[name], branches[name] = query, Branch(hits, kept)
        # what another search found, too, was read as that one's
        elsewhere = {
            each.id for (other, *_), found in searches if other != query for each in found
        }
        alone = {passage.id for passage in hits} - elsewhere
        readers = [step for step, ids in reading if ids & alone]
        others = [Words([_words(other)]) for (other, *_), _ in searches if other != query]
        if read & alone or not _ask(readers, others, known):
            retrieved.append([*hits])
    if searches:
        kept = union(branch.kept for branch in branches.values())
        # a prompt has instructions, too, which come from nowhere
        whole = every is calls or not any(_strange(used, every, known, STRANGE))
        return Provenance(queries, branches, union(retrieved), kept, whole)
    shown = [_lines(value) for value in _strange(used, every, known, 1)]
    whole = last is not None and None not in shown
    kept = union(passages for passages in shown if passages is not None) if whole else []
    return Provenance(queries, branches, kept, kept, whole)


def _answering(answer: Any, *several: Sequence[Step]) -> tuple[Sequence[Step], Step | None]:
    """The steps, and the last of them that gave the answer; else whose words hold it; else the last of all."""
    wanted = {words for text in _texts(answer) if (words := _words(text))}

    def gave(step: Step) -> bool:
        return wanted <= {*step.said}

    def holds(step: Step) -> bool:
        said = [f" {' '.join(words)} " for words in step.said]
        return all(any(f" {' '.join(words)} " in text for text in said) for words in wanted)

    for is_last in (gave, holds):
        for every in several:
            for step in reversed(every):
                if is_last(step):
                    return every, step
    every = next(filter(None, several), ())
    return every, every[-1] if every else None


def _used(every: Sequence[Step], last: Step, known: Words) -> list[Step]:
    """`last`, and the steps whose words it read, and those whose words these read.

    Of steps that said the same, the later one was read.
    """
    used = [last]
    for step in used:  # which grows
        told = known
        for other in reversed(every[: every.index(step)]):
            if other.feeds(step.read, told):
                told = Words([*told.texts, *other.said])
                used += [] if other in used else [other]
    return used


def _told(step: Step, among: Iterable[Step], every: Sequence[Step]) -> list[Text]:
    """What the steps `among` those before it said."""
    before = every[: every.index(step)]
    return [words for other in among if other in before for words in other.said]


def _ask(readers: Sequence[Step], queries: Sequence[Words], known: Words) -> bool:
    """Whether each of the `readers` wrote one of `queries`, and there is one."""
    return bool(readers) and all(
        any(step.feeds(query, known) for query in queries) for step in readers
    )


def _strange(
    used: Iterable[Step], every: Sequence[Step], known: Words, least: int
) -> Iterator[Any]:
    """The inputs of the steps `used` that have `least` words in a row, not `known` and said by no earlier step."""
    for step in used:
        own = Words([*known.texts, *_told(step, every, every)])
        for value in step.inputs:
            if any(own.strange(_words(text)) >= least for text in _texts(value)):
                yield value


def _lines(value: Any) -> Sequence[Passage] | None:
    """The passages of a list of lines with their titles; None for anything else."""
    lines = value if isinstance(value, list | tuple) else ()
    passages = [as_passage(line) for line in lines if isinstance(line, str | Passage)]
    is_read = passages and len(passages) == len(lines) and all(one.title for one in passages)
    return passages if is_read else None
