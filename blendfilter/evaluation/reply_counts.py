"""What a model's replies in a run of BlendFilter were like, counted from the rows and the journal.

A reply counts as often as it was used. Each share has a name of its own, and says of what it is a share.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from blendfilter.evaluation.ledger import LedgerEntry
from blendfilter.evaluation.run_passages import Passages
from blendfilter.evaluation.run_status import READINGS, RunStatus, Share, stage_of
from blendfilter.filters.filco import unquoted
from blendfilter.filters.ids import IdsRead, negates, read_ids, restates_range
from blendfilter.filters.knowledge import read_judgement
from blendfilter.journal import FILE, Journal
from blendfilter.lm.journaled import event_of
from blendfilter.modules.multi_hop import conclusion
from blendfilter.quoting import LONGEST_REPLY
from blendfilter.text import folded, normalize_answer

REASONINGS = ("external", "answer")
"""Stages whose replies should end "So the answer is …"."""
SHORT = ("topic", "ids", "ids_again", "helpful", "short_answer")
"""Stages whose replies should be a few words."""
RAMBLES, LONG = 12, 6
"""More words than this in a short reply; more words than this in the answer that is read from it."""
SHARES: Mapping[str, str] = {
    "read_ids": "ids read",
    "explicit_none": "said to be none",
    "suspect_ids": "suspect, asked again",
    "negated_ids": "suspect because they negate",
    "unparseable_ids": "unparseable, asked again",
    "unfinished_ids": "empty or cut off, asked again",
    "read_again": "second tries read",
    "restated_range": "restate the range",
    "kept": "passages kept of those shown",
    "gold_kept": "gold passages kept",
    "gold_dropped": "gold passages dropped",
    "concluded": "reasonings that conclude",
    "empty_reply": "replies empty",
    "cut_reply": "replies cut at their cap",
    "refused_reply": "replies that refuse",
    "thinking": "replies with thinking before them",
    "thinks_aloud": "replies that think aloud",
    "ran_on": "replies that ran on past a stop",
    "markdown": "replies with markdown",
    "rambling": f"short replies of over {RAMBLES} words",
    "long_answer": f"answers of over {LONG} words",
    "not_yes_no": "yes/no questions answered otherwise",
}
"""Every share by name, in words."""

_NUMBERED = re.compile(r"^(?:knowledge|sentence|passage) (\d{1,4}): (.*)$", re.MULTILINE)
_MARKDOWN = re.compile(r"\*\*\S|^[^\S\n]{0,3}#{1,6}\s|^[^\S\n]*+(?:```|[-*•]\s)", re.MULTILINE)
_ALOUD = re.compile(
    r"</?\|?(?:thought|thinking|reasoning|reflection|scratchpad|analysis|channel)\b[^>\n]{0,40}>"
    r"|^\W{0,4}(?:(?:okay|ok|alright|hmm+|wait)\s?[,.…!]"
    r"|let me (?:think|see|re-?read|check)\b|the user (?:is|asks|wants)\b)",
    re.IGNORECASE | re.MULTILINE,
)
_NEXT = re.compile(r"\n\W{0,4}(?:context|question|knowledge|passage|topic|ids|relevance)(?: \d+)?\s?:", re.IGNORECASE)
_READ_AS = ("read_ids", "explicit_none", "suspect_ids", "unparseable_ids", "unfinished_ids")
"""What becomes of an ids reply, one of these: their shares add up to 1."""
_FILCOS = re.compile(r"^(?:sentence|passage) 0: ", re.MULTILINE)
"""In a prompt of FilCo's filter, which reads replies without what they write out of the prompt."""
_YES_NO = frozenset({"yes", "no"})


@dataclass(frozen=True)
class ReplyCounts:
    """What replies were like.

    Attributes:
        questions: how many were answered.
        shares: every name of `SHARES`.
        stages: `empty_reply`, `cut_reply` and the like by stage.
        errors: questions by the error's kind.
        entries: the ledger.
    """

    questions: int
    shares: Mapping[str, Share]
    stages: Mapping[str, Mapping[str, Share]]
    errors: Mapping[str, int]
    entries: Mapping[str, LedgerEntry]


class _Counts:
    """Events, and what they are shares of, under way."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        self.of: Counter[str] = Counter()

    def add(self, found: Iterable[tuple[str, bool]]) -> None:
        for name, happened in found:
            self.events[name] += happened
            self.of[name] += 1

    def shares(self, names: Iterable[str]) -> dict[str, Share]:
        return {name: Share(self.events[name], self.of[name]) for name in names}


def count_replies(known: RunStatus) -> ReplyCounts:
    """Count what a run's replies were like."""
    counts, stages, errors = _Counts(), dict[str, _Counts](), Counter[str]()
    with Journal(known.run.folder / FILE, "replay") as journal:
        passages, questions = Passages(journal), 0
        for row in known.whole_rows():
            questions += 1
            if row["error"]:
                errors[row["error"]["kind"]] += 1
            for named, key in row["calls"]:
                record, stage = journal.read_call(key), stage_of(named)
                if record is not None and "reply" in record:
                    found = list(_any_reply(record))
                    stages.setdefault(stage, _Counts()).add(found)
                    counts.add([*found, *_of_stage(stage, record)])
            counts.add([*_filtered(row, passages), *_answered(row)])
    return ReplyCounts(
        questions=questions,
        shares=counts.shares(SHARES),
        stages={stage: counted.shares(counted.of) for stage, counted in stages.items()},
        errors=errors,
        entries=known.entries,
    )


def numbered_lines(prompt: str) -> list[str]:
    """The last list of numbered knowledge in a prompt: those above it are demonstrations."""
    lines: list[str] = []
    for match in _NUMBERED.finditer(prompt):
        if int(match[1]) == 0:
            lines = []
        lines.append(match[2])
    return lines


def _any_reply(record: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    event, text = event_of(record), (record["reply"] or "")[:LONGEST_REPLY]
    yield from ((name, event == name) for name in ("empty_reply", "cut_reply", "refused_reply"))
    yield "thinking", bool(record["reasoning"])
    yield "thinks_aloud", _ALOUD.search(text) is not None
    yield "ran_on", bool(record.get("ran_on")) or _NEXT.search(text.strip()) is not None
    yield "markdown", _MARKDOWN.search(text) is not None


def _of_stage(stage: str, record: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    text = record["reply"] or ""
    if stage in READINGS:
        read, k = _read(stage, record)
        unread = "unfinished_ids" if event_of(record) in ("empty_reply", "cut_reply") else "unparseable_ids"
        read_as = {"ids": "read_ids", "none": "explicit_none", "suspect": "suspect_ids"}.get(read.status, unread)
        yield from ((name, name == read_as) for name in _READ_AS)
        yield "negated_ids", read.status == "suspect" and negates(text)
        yield "restated_range", restates_range(text, k)
    if stage == "ids_again":
        yield "read_again", _read(stage, record)[0].status in ("ids", "none")
    if stage in REASONINGS:
        yield "concluded", conclusion(text) != ""
    if stage in SHORT:
        yield "rambling", len(text.split()) > RAMBLES


def _read(stage: str, record: Mapping[str, Any]) -> tuple[IdsRead, int]:
    prompt, text = record.get("prompt") or "", record["reply"] or ""
    prompt = prompt if isinstance(prompt, str) else "\n".join(part for _, part in prompt)
    lines, cut = numbered_lines(prompt), event_of(record) == "cut_reply"
    k = len(lines)
    if stage == "judge":
        return (IdsRead((), "unparseable") if cut else read_judgement(text, k)), k
    return read_ids(unquoted(text, lines) if _FILCOS.search(prompt) else text, k, cut=cut), k


def _filtered(row: Mapping[str, Any], passages: Passages) -> Iterator[tuple[str, bool]]:
    gold = {folded(title) for title in row["gold_titles"]}
    for name, branch in row["branches"].items():
        found, kept = passages.of(row["queries"].get(name)), set(branch["kept"])
        for passage in branch["retrieved"]:
            yield "kept", passage in kept
            key = passages.key(passage, found)
            record = passages.read(key) if key else None
            if record is not None and folded(record["title"]) in gold:
                yield "gold_kept", passage in kept
                yield "gold_dropped", passage not in kept


def _answered(row: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    if not row["error"]:
        words = (row["answer"] or "").split()
        yield "long_answer", len(words) > LONG
        if set(map(normalize_answer, row["golden_answers"])) <= _YES_NO:
            yield "not_yes_no", normalize_answer(" ".join(words)) not in _YES_NO
