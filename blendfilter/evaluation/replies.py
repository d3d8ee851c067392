"""Replies that no method could use (unparseable ids, no verdict, nothing, cut off): their shares in a run, as warnings.

In: a run's rows, and its journal where a share is too large. Out: a line for each such share. Figures over them would
measure how a model formats, not what it knows; `blendfilter doctor` says what to change.

Uses count, not distinct calls: a call that two questions share counts for both, so a resumed run and a replay give the
same shares. Ids count where a filter read its first reply; the second try is the mending, not the event. Each reply is
one event: what is empty or cut off is that, and not unparseable too; only of verdicts it is both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blendfilter.errors import BadArgument
from blendfilter.journal import FILE, Journal
from blendfilter.lm.journaled import event_of

if TYPE_CHECKING:
    from blendfilter.evaluation.known import Known

MAX_BAD_REPLIES = 0.05
"""The share above which replies are warned of, and `eval` ends with exit code 1."""
READINGS = ("ids", "judge", "helpful")
"""The stages whose replies ids are read from, first tries."""
BAD = ("unparseable_ids", "empty_reply", "cut_reply")
_WARNED_OF = (*BAD, "no_verdict")
_IN_RECORDS = ("empty_reply", "cut_reply")
_JUDGING = ("consistent",)
"""The stage that verdicts are read from; there is no second try."""
_WORDS = {
    "unparseable_ids": ("id replies", "could not be read"),
    "no_verdict": ("judging replies", "were no verdict (the passages are kept)"),
    "empty_reply": ("replies", "were empty"),
    "cut_reply": ("replies", "were cut off at their cap"),
}
_MOVE = "blendfilter doctor says what to change"
_MOVES = {"no_verdict": "--filter cdit-components with --json-schema holds them to a form, or take a larger model"}
"""The next move; doctor judges nothing."""


@dataclass(frozen=True, slots=True)
class Share:
    """So many of so many; of nothing, the share is 0."""

    count: int
    of: int

    @property
    def value(self) -> float:
        """As a fraction of 1."""
        return self.count / self.of if self.of else 0.0

    @property
    def words(self) -> str:
        """In words.

        >>> Share(12, 220).words
        '5.5 % (12 of 220)'
        """
        return f"{100 * self.value:.1f} % ({self.count} of {self.of})"


def check_share(value: float, name: str) -> float:
    """`value` where it is a share. Raises: BadArgument."""
    if not 0 <= value <= 1:
        raise BadArgument(f"{name} is {value:g}: give a share from 0 to 1 (0.05 is 5 %)")
    return value


def stage_of(name: str) -> str:
    """The stage without the path of the module that asked: a filter inside a method of one's own says the same."""
    return name.rpartition(".")[2]


def bad_shares(flags: Mapping[str, int], rows: Iterable[Mapping[str, Any]]) -> dict[str, Share]:
    """The shares by event; `flags` are the counts over all `rows`."""
    calls, of = 0, {"unparseable_ids": 0, "no_verdict": 0}
    for row in rows:
        calls += len(row["calls"])
        if row["error"] is None:  # else how replies were read is lost with the prediction
            of["unparseable_ids"] += sum(stage_of(stage) in READINGS for stage, _ in row["calls"])
            of["no_verdict"] += sum(stage_of(stage) in _JUDGING for stage, _ in row["calls"])
    return {name: Share(flags.get(name, 0), of.get(name, calls)) for name in _WARNED_OF}


def warnings_of(known: Known, limit: float = MAX_BAD_REPLIES) -> list[str]:
    """A line for each share above `limit`, naming where most of them come from."""
    flags = known.metrics["flags"] if known.metrics else {}
    if not any(flags.get(name) for name in _WARNED_OF):
        return []
    over = {name: share for name, share in bad_shares(flags, known.whole_rows()).items() if share.value > limit}
    stages = _stages(known) if over else {}
    return [_line(name, share, stages[name]) for name, share in over.items()]


def _line(name: str, share: Share, stages: Mapping[str, Share]) -> str:
    what, how = _WORDS[name]
    worst = max(stages, key=lambda stage: stages[stage].count, default="")
    many = f" ({stages[worst].count} of {stages[worst].of})" if worst and name in _IN_RECORDS else ""
    where = f", {'most of them ' if many else ''}in stage {worst}{many}" if worst else ""
    return f"{share.words} of {what} {how}{where}; {_MOVES.get(name, _MOVE)}."


def _stages(known: Known) -> dict[str, dict[str, Share]]:
    """The events by stage: empty and cut replies as the journal has them, ids where they are read."""
    used = Counter((stage_of(stage), key) for row in known.whole_rows() for stage, key in row["calls"])
    calls, events = Counter[str](), {name: Counter[str]() for name in _WARNED_OF}
    with Journal(known.run.folder / FILE, "replay") as journal:
        for (stage, key), times in used.items():
            calls[stage] += times
            record = journal.read_call(key)
            if record and "reply" in record and (event := event_of(record)) in events:
                events[event][stage] += times
    # Which readings failed is in no record: the stages whose replies are read stand for them.
    for name, stages in (("unparseable_ids", READINGS), ("no_verdict", _JUDGING)):
        events[name] = Counter({stage: calls[stage] for stage in stages if calls[stage]})
    return {
        name: {stage: Share(count, calls[stage]) for stage, count in counted.items()}
        for name, counted in events.items()
    }
