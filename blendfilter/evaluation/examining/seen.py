"""What a model's replies in a run were like, counted from the rows and the journal.

In: a run of BlendFilter. Out: a `Seen`: shares by name, empty and cut replies by stage, what a call took. A reply
counts as often as it was used. Each share has a name of its own, and says of what it is a share.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from blendfilter.evaluation.known import Known
from blendfilter.evaluation.ledger import Entry
from blendfilter.evaluation.page.checks import Asked, shown_in
from blendfilter.evaluation.page.passages import Passages
from blendfilter.evaluation.replies import READINGS, Share, stage_of
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
class Seen:
    """What was seen. `shares` has every name of `SHARES`; `stages` has `empty_reply`, `cut_reply` and the like by
    stage; `errors` counts questions by the error's kind; `entries` is the ledger.
    """

    questions: int
    shares: Mapping[str, Share]
    stages: Mapping[str, Mapping[str, Share]]
    errors: Mapping[str, int]
    entries: Mapping[str, Entry]


class _Counts:
    """Events, and what they are shares of, under way."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        self.of: Counter[str] = Counter()

    def add(self, name: str, happened: bool | int, of: int = 1) -> None:
        self.events[name] += int(happened)
        self.of[name] += of

    def share(self, name: str) -> Share:
        return Share(self.events[name], self.of[name])


class Reply(NamedTuple):
    """One use of one call: its stage, what it was shown, what it said."""

    stage: str
    prompt: str
    text: str
    record: Mapping[str, Any]


def seen(known: Known) -> Seen:
    """Count what a run's replies were like."""
    counts, stages, errors = _Counts(), dict[str, _Counts](), Counter[str]()
    with Journal(known.run.folder / FILE, "replay") as journal:
        passages = Passages(journal)
        rows = 0
        for row in known.whole_rows():
            rows += 1
            if row["error"]:
                errors[row["error"]["kind"]] += 1
            for reply in _replies(row, journal):
                _any_reply(reply, counts, stages.setdefault(reply.stage, _Counts()))
                _by_stage(reply, counts)
            _filtered(row, passages, counts)
            _answered(row, counts)
    return Seen(
        questions=rows,
        shares={name: counts.share(name) for name in SHARES},
        stages={stage: {name: each.share(name) for name in each.of} for stage, each in stages.items()},
        errors=errors,
        entries=known.entries,
    )


def _replies(row: Mapping[str, Any], journal: Journal) -> Iterator[Reply]:
    for stage, key in row["calls"]:
        record = journal.read_call(key)
        if record is not None and "reply" in record:
            asked = Asked.of(stage, record)
            yield Reply(stage_of(stage), asked.prompt, asked.reply, record)


def _any_reply(reply: Reply, counts: _Counts, stage: _Counts) -> None:
    event, text = event_of(reply.record), reply.text[:LONGEST_REPLY]
    events = {name: event == name for name in ("empty_reply", "cut_reply", "refused_reply")}
    events["thinking"] = bool(reply.record["reasoning"])
    events["thinks_aloud"] = _ALOUD.search(text) is not None
    events["ran_on"] = bool(reply.record.get("ran_on")) or _NEXT.search(text.strip()) is not None
    events["markdown"] = _MARKDOWN.search(text) is not None
    for name, happened in events.items():
        counts.add(name, happened)
        stage.add(name, happened)


def _by_stage(reply: Reply, counts: _Counts) -> None:
    if reply.stage in READINGS:
        _reading(reply, counts)
    if reply.stage == "ids_again":
        counts.add("read_again", _read(reply)[0].status in ("ids", "none"))
    if reply.stage in REASONINGS:
        counts.add("concluded", conclusion(reply.text) != "")
    if reply.stage in SHORT:
        counts.add("rambling", len(reply.text.split()) > RAMBLES)


def _reading(reply: Reply, counts: _Counts) -> None:
    read, k = _read(reply)
    unread = "unfinished_ids" if event_of(reply.record) in ("empty_reply", "cut_reply") else "unparseable_ids"
    read_as = {"ids": "read_ids", "none": "explicit_none", "suspect": "suspect_ids"}.get(read.status, unread)
    for name in _READ_AS:
        counts.add(name, name == read_as)
    counts.add("negated_ids", read.status == "suspect" and negates(reply.text))
    counts.add("restated_range", restates_range(reply.text, k))


def _read(reply: Reply) -> tuple[IdsRead, int]:
    lines, cut = shown_in(reply.prompt), event_of(reply.record) == "cut_reply"
    k = len(lines)
    if reply.stage == "judge":
        return (IdsRead((), "unparseable") if cut else read_judgement(reply.text, k)), k
    text = unquoted(reply.text, lines) if _FILCOS.search(reply.prompt) else reply.text
    return read_ids(text, k, cut=cut), k


def _filtered(row: Mapping[str, Any], passages: Passages, counts: _Counts) -> None:
    gold = {folded(title) for title in row["gold_titles"]}
    for name, branch in row["branches"].items():
        found, kept = passages.of(row["queries"].get(name)), set(branch["kept"])
        for each in branch["retrieved"]:
            counts.add("kept", each in kept)
            key = passages.key(each, found)
            record = passages.read(key) if key else None
            if record is not None and folded(record["title"]) in gold:
                counts.add("gold_kept", each in kept)
                counts.add("gold_dropped", each not in kept)


def _answered(row: Mapping[str, Any], counts: _Counts) -> None:
    if row["error"]:
        return
    words = (row["answer"] or "").split()
    counts.add("long_answer", len(words) > LONG)
    if set(map(normalize_answer, row["golden_answers"])) <= _YES_NO:
        counts.add("not_yes_no", normalize_answer(" ".join(words)) not in _YES_NO)
