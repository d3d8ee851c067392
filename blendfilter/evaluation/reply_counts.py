"""What a model's replies in a run of BlendFilter were like, counted from the rows and the journal.

A reply counts as often as it was used. Each share has a name of its own, and says of what it is a share.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

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

    def add(self, name: str, happened: bool) -> None:
        self.events[name] += happened
        self.of[name] += 1

    def share(self, name: str) -> Share:
        return Share(self.events[name], self.of[name])


class _UsedReply(NamedTuple):
    """One use of one call."""

    stage: str
    prompt: str
    text: str
    record: Mapping[str, Any]


def count_replies(known: RunStatus) -> ReplyCounts:
    """Count what a run's replies were like."""
    counts, stages, errors = _Counts(), dict[str, _Counts](), Counter[str]()
    with Journal(known.run.folder / FILE, "replay") as journal:
        passages, questions = Passages(journal), 0
        for row in known.whole_rows():
            questions += 1
            if row["error"]:
                errors[row["error"]["kind"]] += 1
            for reply in _replies(row, journal):
                _any_reply(reply, counts, stages.setdefault(reply.stage, _Counts()))
                _by_stage(reply, counts)
            _filtered(row, passages, counts)
            _answered(row, counts)
    return ReplyCounts(
        questions=questions,
        shares={name: counts.share(name) for name in SHARES},
        stages={stage: {name: counted.share(name) for name in counted.of} for stage, counted in stages.items()},
        errors=errors,
        entries=known.entries,
    )


def _replies(row: Mapping[str, Any], journal: Journal) -> Iterator[_UsedReply]:
    for stage, key in row["calls"]:
        record = journal.read_call(key)
        if record is not None and "reply" in record:
            prompt = record.get("prompt") or ""
            text = prompt if isinstance(prompt, str) else "\n".join(text for _, text in prompt)
            yield _UsedReply(stage_of(stage), text, record["reply"] or "", record)


def numbered_lines(prompt: str) -> list[str]:
    """The last list of numbered knowledge in a prompt: those above it are demonstrations."""
    lines: list[str] = []
    for match in _NUMBERED.finditer(prompt):
        if int(match[1]) == 0:
            lines = []
        lines.append(match[2])
    return lines


def _any_reply(reply: _UsedReply, counts: _Counts, stage: _Counts) -> None:
    event, text = event_of(reply.record), reply.text[:LONGEST_REPLY]
    events = {name: event == name for name in ("empty_reply", "cut_reply", "refused_reply")}
    events["thinking"] = bool(reply.record["reasoning"])
    events["thinks_aloud"] = _ALOUD.search(text) is not None
    events["ran_on"] = bool(reply.record.get("ran_on")) or _NEXT.search(text.strip()) is not None
    events["markdown"] = _MARKDOWN.search(text) is not None
    for name, happened in events.items():
        counts.add(name, happened)
        stage.add(name, happened)


def _by_stage(reply: _UsedReply, counts: _Counts) -> None:
    if reply.stage in READINGS:
        _reading(reply, counts)
    if reply.stage == "ids_again":
        counts.add("read_again", _read(reply)[0].status in ("ids", "none"))
    if reply.stage in REASONINGS:
        counts.add("concluded", conclusion(reply.text) != "")
    if reply.stage in SHORT:
        counts.add("rambling", len(reply.text.split()) > RAMBLES)


def _reading(reply: _UsedReply, counts: _Counts) -> None:
    read, k = _read(reply)
    unread = "unfinished_ids" if event_of(reply.record) in ("empty_reply", "cut_reply") else "unparseable_ids"
    read_as = {"ids": "read_ids", "none": "explicit_none", "suspect": "suspect_ids"}.get(read.status, unread)
    for name in _READ_AS:
        counts.add(name, name == read_as)
    counts.add("negated_ids", read.status == "suspect" and negates(reply.text))
    counts.add("restated_range", restates_range(reply.text, k))


def _read(reply: _UsedReply) -> tuple[IdsRead, int]:
    lines, cut = numbered_lines(reply.prompt), event_of(reply.record) == "cut_reply"
    k = len(lines)
    if reply.stage == "judge":
        return (IdsRead((), "unparseable") if cut else read_judgement(reply.text, k)), k
    text = unquoted(reply.text, lines) if _FILCOS.search(reply.prompt) else reply.text
    return read_ids(text, k, cut=cut), k


def _filtered(row: Mapping[str, Any], passages: Passages, counts: _Counts) -> None:
    gold = {folded(title) for title in row["gold_titles"]}
    for name, branch in row["branches"].items():
        found, kept = passages.of(row["queries"].get(name)), set(branch["kept"])
        for passage in branch["retrieved"]:
            counts.add("kept", passage in kept)
            key = passages.key(passage, found)
            record = passages.read(key) if key else None
            if record is not None and folded(record["title"]) in gold:
                counts.add("gold_kept", passage in kept)
                counts.add("gold_dropped", passage not in kept)


def _answered(row: Mapping[str, Any], counts: _Counts) -> None:
    if row["error"]:
        return
    words = (row["answer"] or "").split()
    counts.add("long_answer", len(words) > LONG)
    if set(map(normalize_answer, row["golden_answers"])) <= _YES_NO:
        counts.add("not_yes_no", normalize_answer(" ".join(words)) not in _YES_NO)
