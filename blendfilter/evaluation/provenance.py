"""What an answer was read from, where the program that gave it does not say so.

A program of the user's own searches where it likes, and hands what it found on in code of its own. What its searches
found is known (`Asker.found`). What became of it is seen in the steps that led to the answer: those that gave it, and
those whose words these read, back to the first. A passage is *kept* where the input of such a step holds it, or eight
words of it in a row, or has a line that is all in it. Steps are the calls of DSPy's predictors (its trace), else the
model calls. Which of several that ran side by side came first must change nothing.

What only served to ask on is left out: a search whose passages no such step read, and whose every reader wrote the
query of another search, found nothing for the answer. (A last hop that lost what the first one found filtered nothing.)

Where a step read other text (a search of the program's own, a tool's), what was kept is not known as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from html import unescape
from itertools import groupby
from typing import Any, NamedTuple

from pydantic import BaseModel

from blendfilter.errors import BadArgument
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

_NUMBER = re.compile(r"\s*(?:[\[(]\d+[\])]:?|\d+[.):]|[-*•])\s+")
"""What stands before a line of a list."""
_FAULT = re.compile(r"Execution error in \w+: .*?(?=\[\[ ## |</|\Z)", re.DOTALL)
"""What an agent of DSPy's reads of a tool that failed."""
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[nrt])")
"""A sign in a text of JSON."""
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")
"""A word; each sign of Chinese and Japanese, which have no spaces."""

Text = tuple[str, ...]
"""A text as its words, without case and punctuation."""
Found = Mapping[tuple[str, int, str], Sequence[Passage]]
"""What searches found, by query, k and the index's fingerprint."""


def _words(text: str) -> Text:
    plain = _ESCAPE.sub(lambda sign: chr(int(sign[1] or "20", 16)), unescape(text))
    return tuple(_WORD.findall(plain.casefold()))


def _runs(words: Text) -> Iterator[Text]:
    return (words[at : at + RUN] for at in range(len(words) - RUN + 1))


class Words:
    """Texts as words, to look for others in."""

    def __init__(self, texts: Iterable[Text], lines: Iterable[Text] = ()) -> None:
        self.texts = [words for words in texts if words]
        self.lines = {*self.texts, *lines}
        self._joined = [f" {' '.join(words)} " for words in self.texts]

    @cached_property
    def runs(self) -> set[Text]:
        return {run for words in self.texts for run in _runs(words)}

    def hold(self, words: Text) -> bool:
        """Whether one of the texts holds these words, or `RUN` of them in a row."""
        if len(words) > RUN:
            return not self.runs.isdisjoint(_runs(words))
        return self.hold_whole(words)

    def hold_whole(self, words: Text) -> bool:
        """Whether one of the texts holds all of these words in a row."""
        return bool(words) and any(f" {' '.join(words)} " in text for text in self._joined)

    def hold_new(self, words: Text, *known: Words) -> bool:
        """The same as `hold`, but for words that are `known` from elsewhere; few words must end a line here."""
        if len(words) < FEW:
            lines = (line for line in self.lines if line[-len(words) :] == words)
            return any(not any(each.knows(line) for each in known) for line in lines)
        if len(words) > RUN:
            return not self.runs.isdisjoint(
                {*_runs(words)}.difference(*(each.runs for each in known))
            )
        return self.hold(words) and not any(each.hold(words) for each in known)

    def knows(self, line: Text) -> bool:
        """Whether `line` is one of the texts or, where it is no name or label, is in one."""
        return line in self.texts or (len(line) >= FEW and self.hold(line))

    def strange(self, words: Text) -> int:
        """How many of `words` in a row these texts do not hold, at the most; of `RUN` and fewer, whole ones count."""
        if len(words) <= RUN and self.hold(words):
            return 0
        is_known = [False] * len(words)
        for at, run in enumerate(_runs(words)):
            if run in self.runs:
                is_known[at : at + RUN] = [True] * RUN
        short = {text for text in self.texts if len(text) <= RUN}
        for length in {len(text) for text in short}:
            for at in range(len(words) - length + 1):
                if words[at : at + length] in short:
                    is_known[at : at + length] = [True] * length
        return max(
            (len([*group]) for known, group in groupby(is_known) if not known), default=0
        )


class TracedStep:
    """One call: what went in, as given and as words, and the texts that came out, the answer's as the last.

    `name`: what such calls have in common: its last output field, or the stage of a model call.
    """

    def __init__(self, inputs: Sequence[Any], outputs: Iterable[Any], name: str = "") -> None:
        self.inputs = inputs
        self.name = name
        self.outputs = [words for text in _texts([*outputs]) if (words := _words(text))]

    @cached_property
    def output_words(self) -> Words:
        return Words(self.outputs)

    @cached_property
    def read(self) -> Words:
        texts = [*_texts(self.inputs)]
        return Words(
            map(_words, texts), (_words(line) for text in texts for line in text.splitlines())
        )

    def reads(self, passages: Iterable[Passage], earlier: Iterable[Text] = ()) -> list[Passage]:
        """Those of `passages` that its input holds, whole or a piece.

        A piece that is in a whole passage, in what an `earlier` step wrote, or in a larger piece, is not of another
        passage.
        """
        whole, others = list[Passage](), list[Passage]()
        for passage in passages:
            words = _words(passage.text) or _words(passage.title)
            (whole if self.read.hold_whole(words) else others).append(passage)
        known = Words([*earlier, *(_words(passage.line) for passage in whole)])
        pieces = [self._pieces(_words(passage.line), known) for passage in others]
        return [
            *whole,
            *(
                passage
                for passage, piece in zip(others, pieces, strict=True)
                if piece and not any(piece < larger for larger in pieces)
            ),
        ]

    def _pieces(self, words: Text, known: Words) -> set[Text]:
        """What its input holds of `words` that is not `known`: `RUN` in a row, and lines that are all in them."""
        passage = Words([words])
        runs = (passage.runs & self.read.runs) - known.runs
        return runs | {
            line
            for line in self.read.lines
            if len(line) >= FEW and passage.hold_whole(line) and not known.hold_whole(line)
        }

    def feeds(self, read: Words, *known: Words) -> bool:
        """Whether its words are in what another one `read`, and are not `known` from elsewhere."""
        return any(read.hold_new(words, *known) for words in self.outputs)


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
    elif value is not None:
        yield str(value)  # as a prompt has it, whatever it is


def traced(trace: Iterable[Any]) -> list[TracedStep]:
    """The steps of DSPy's trace."""
    steps = []
    for predictor, inputs, prediction in trace:
        fields = predictor.signature.input_fields
        given = [value for name, value in inputs.items() if name in fields]
        outputs = dict(prediction.items())
        steps.append(TracedStep(given, outputs.values(), next(reversed(outputs), "")))
    return steps


def called(calls: Iterable[Mapping[str, Any]]) -> list[TracedStep]:
    """The steps of journaled calls."""
    return [
        TracedStep([text_of(call["prompt"])], [call["reply"]], call.get("stage", ""))
        for call in calls
    ]


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


class _Trail:
    """How steps lead from one to another, among `every` one of a question: by what they say, and by `searches`."""

    def __init__(
        self,
        question: str,
        searches: Iterable[tuple[str, Sequence[Passage]]],
        every: Sequence[TracedStep],
    ) -> None:
        self.every, self.question = every, Words([_words(question)])
        self.searches = [(_words(query), hits) for query, hits in searches]
        self.passages = union(hits for _, hits in self.searches)
        titles = (_words(passage.title) for passage in self.passages)
        self.names = [*self.question.texts, *titles, *(query for query, _ in self.searches)]
        lines = (_words(passage.line) for passage in self.passages)
        self.known = Words([*self.question.texts, *lines])

    def to(self, ends: Sequence[TracedStep]) -> dict[TracedStep, Sequence[TracedStep]]:
        """`ends` and the steps whose words they read, and those whose words these read; with each, those it read."""
        steps, waiting = dict[TracedStep, Sequence[TracedStep]](), [*ends]
        for step in waiting:  # which grows
            if step not in steps:
                steps[step] = self._read_by(step)
                waiting += steps[step]
        return steps

    def _read_by(self, step: TracedStep) -> list[TracedStep]:
        """Earlier steps whose words are in what `step` read."""
        before = self.every[: self.every.index(step)]
        read = [one for one in before if one.feeds(step.read, self.known)]
        return self.latest(read, step.read, self.known)

    def latest(
        self, steps: Sequence[TracedStep], read: Words, *known: Words
    ) -> list[TracedStep]:
        """`steps` without those that led to a later one, whose words hold all that they gave to what was `read`."""
        return [
            one
            for at, one in enumerate(steps)
            if not any(
                not one.feeds(read, *known, later.output_words) and self.leads(one, later)
                for later in steps[at + 1 :]
            )
        ]

    def leads(self, one: TracedStep, later: TracedStep) -> bool:
        """Whether the words of `one` are in what `later` read, or in a query by which that was found."""
        return one.feeds(later.read, self.known) or any(
            self.wrote(one, query) and self.reads(later, hits) for query, hits in self.searches
        )

    def wrote(self, step: TracedStep, query: Text) -> bool:
        """Whether a query has words of `step` that the question does not have."""
        written = Words([query])
        return any(
            written.hold_new(words, self.question)
            or (written.hold_whole(words) and not self.question.hold_whole(words))
            for words in step.outputs
        )

    def reads(
        self, step: TracedStep, passages: Iterable[Passage], earlier: Iterable[TracedStep] = ()
    ) -> list[Passage]:
        """As `TracedStep.reads`; what `earlier` steps wrote, and names, are no piece of a passage."""
        return step.reads(passages, self._known_to(earlier))

    def _known_to(self, earlier: Iterable[TracedStep]) -> list[Text]:
        return [*self.names, *(words for other in earlier for words in other.outputs)]

    @cached_property
    def _reading(self) -> list[tuple[TracedStep, set[str]]]:
        """Every step, and the ids of what it read."""
        return [
            (step, {each.id for each in self.reads(step, self.passages)}) for step in self.every
        ]

    def led_to_queries(self, ids: set[str], query: str) -> bool:
        """Whether steps read the passages of `ids`, and each of them wrote another query than theirs."""
        others = [other for other, _ in self.searches if other != _words(query)]
        readers = [step for step, read in self._reading if read & ids] if others else []
        return bool(readers) and all(
            any(self.wrote(step, other) for other in others) for step in readers
        )

    def strange(
        self, steps: Mapping[TracedStep, Sequence[TracedStep]], least: int
    ) -> Iterator[Any]:
        """The inputs of `steps` that have `least` words in a row from nowhere."""
        for step, earlier in steps.items():
            own = Words([*self.known.texts, *self._known_to(earlier)])
            for value in step.inputs:
                texts = (_FAULT.sub("", text) for text in _texts(value))
                if any(own.strange(_words(text)) >= least for text in texts):
                    yield value


def provenance(
    question: str,
    answer: Any,
    found: Found,
    trace: Sequence[TracedStep],
    calls: Sequence[TracedStep],
) -> Provenance:
    """The provenance of `answer`; where no step of the `trace` gave it, a model's call did that DSPy does not trace."""
    line = one_line(question)
    # in an order that does not hang on which of several searches came back first
    keys = sorted(found, key=lambda key: (one_line(key[0]) != line, key))
    searches = [(key[0], found[key]) for key in keys]
    wanted = Words({_words(text) for text in _texts(answer)})
    every, ends, is_theirs = _answering(wanted, trace, calls)
    trail = _Trail(question, searches, every)
    used = trail.to(trail.latest(ends, wanted))
    if not searches:
        return _from_inputs(trail, used)
    read = {
        passage.id
        for step, earlier in used.items()
        for passage in trail.reads(step, trail.passages, earlier)
    }
    by_code = not (read or is_theirs)  # no model read them: code of the program did
    queries, branches, retrieved = dict[str, str](), dict[str, Branch](), list[list[Passage]]()
    for number, (query, hits) in enumerate(searches, 1):
        name = "q" if number == 1 and one_line(query) == line else f"search_{number}"
        kept = [passage for passage in hits if by_code or passage.id in read]
        queries[name], branches[name] = query, Branch(hits, kept)
        # what another search found, too, was read as that one's
        elsewhere = {each.id for other, others in searches if other != query for each in others}
        alone = {passage.id for passage in hits} - elsewhere
        if by_code or read & alone or not trail.led_to_queries(alone, query):
            retrieved.append([*hits])
    # a prompt has instructions, too, which come from nowhere
    whole = every is calls or not any(trail.strange(used, STRANGE))
    kept = union(branch.kept for branch in branches.values())
    return Provenance(queries, branches, union(retrieved), kept, whole)


def _from_inputs(trail: _Trail, used: Mapping[TracedStep, Sequence[TracedStep]]) -> Provenance:
    """The provenance of an answer without a search: passages, where all that comes from nowhere is lines of them."""
    read = [_lines(value) for value in trail.strange(used, 1)]
    passages = [lines for lines in read if lines is not None]
    if not used or len(passages) < len(read):
        return Provenance({}, {}, [], [], whole=False)
    # in an order that does not hang on which of several steps came first
    kept = union(sorted(passages, key=lambda lines: [passage.id for passage in lines]))
    return Provenance({}, {}, kept, kept)


def _answering(
    wanted: Words, trace: Sequence[TracedStep], calls: Sequence[TracedStep]
) -> tuple[Sequence[TracedStep], list[TracedStep], bool]:
    """The steps, those of them that gave the answer, and whether its words are theirs.

    They are those that gave it; else whose words hold it; else whose words are a part of it; else the last ones. Of
    steps of several names the last one's are meant: a judge, too, says yes.
    """

    def gave(step: TracedStep) -> bool:
        return all(words in step.outputs for words in wanted.texts)

    def holds(step: TracedStep) -> bool:
        return all(map(step.output_words.hold_whole, wanted.texts))

    def gave_part(step: TracedStep) -> bool:
        return any(map(wanted.hold_whole, step.outputs))

    known = [words for step in trace for words in step.outputs]
    untraced = [call for call in calls if not any(map(call.output_words.hold, known))]
    of_trace, of_calls = (trace, trace), (untraced, calls)
    ways = [
        (gave, of_trace),
        (gave, of_calls),
        (holds, of_calls),
        (holds, of_trace),
        (gave_part, of_trace),
        (gave_part, of_calls),
    ]
    for is_end, (among, every) in ways:
        if wanted.texts and (ends := [step for step in among if is_end(step)]):
            return every, _named_as_last(ends), True
    is_traced = bool(trace) and (not untraced or untraced[-1] is not calls[-1])
    among, every = of_trace if is_traced else of_calls
    return every, _named_as_last(among), False


def _named_as_last(steps: Sequence[TracedStep]) -> list[TracedStep]:
    return [step for step in steps if step.name == steps[-1].name]


def _lines(value: Any) -> Sequence[Passage] | None:
    """The passages of items or lines that have titles, all of them numbered or none; None for anything else."""
    given = value.splitlines() if isinstance(value, str) else value
    lines = [line for line in given if line] if isinstance(given, list | tuple) else []
    if all(isinstance(line, str) and _NUMBER.match(line) for line in lines):
        lines = [_NUMBER.sub("", line) for line in lines]
    with suppress(BadArgument):  # not every item is a passage
        passages = [as_passage(line) for line in lines]
        if passages and all(passage.title for passage in passages):
            return passages
    return None
