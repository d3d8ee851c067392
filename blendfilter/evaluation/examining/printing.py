"""An examination as plain text, 80 columns wide at most, without colour.

In: an `Examination`. Out: lines: a headline, shares with counts and 95 % intervals, replies by stage, what the server
supports, what a call takes, what to change.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from blendfilter.evaluation.examining.examine import Examination
from blendfilter.evaluation.examining.seen import SHARES, Seen
from blendfilter.evaluation.ledger import LedgerEntry
from blendfilter.evaluation.run_status import Share
from blendfilter.evaluation.statistics import wilson_interval
from blendfilter.report.run_text import cost, share

WIDTH = 80
OFFLINE = (
    "The offline reader is rules, no model: it shows what this command says of one that does all that it is asked."
)
_GROUPS: Mapping[str, Sequence[str]] = {
    "Reading the ids": (
        "read_ids", "explicit_none", "suspect_ids", "negated_ids", "unparseable_ids", "unfinished_ids", "read_again",
        "restated_range",
    ),
    "Filtering and answering": ("kept", "gold_kept", "gold_dropped", "concluded", "long_answer", "not_yes_no"),
    "Replies": (
        "empty_reply", "cut_reply", "refused_reply", "thinking", "thinks_aloud", "ran_on", "rambling", "markdown",
    ),
}  # fmt: skip
_OF_STAGES = {"empty_reply": "empty", "cut_reply": "cut", "refused_reply": "refused", "ran_on": "ran on"}
_COLUMNS = {"calls": 7, "out a call": 12, "s a call": 10, "cached": 10}


def text_of(examination: Examination) -> str:
    """The whole examination."""
    return "\n".join(_lines(examination)) + "\n"


def _lines(told: Examination) -> Iterator[str]:
    seen, total = told.seen, told.seen.entries["total"]
    price = "" if total.whole_cost is None else f", {cost(total)}"
    yield from _wrapped(
        f"{told.model}: {seen.questions} questions of the sample world through BlendFilter, {total.calls} calls, "
        + ("tokens not told" if total.tokens is None else f"{total.tokens:,} tokens")
        + price
    )
    if told.run.offline:
        yield from _wrapped(OFFLINE)
    for title, names in _GROUPS.items():
        yield ""
        yield title
        yield from (_share(SHARES[name], seen.shares[name]) for name in names)
    if seen.errors:
        yield ""
        yield "Errors"
        yield from (_share(kind, Share(count, seen.questions)) for kind, count in seen.errors.items())
    yield ""
    yield from _stages(seen)
    yield ""
    yield "What the server supports"
    if not told.probes:
        yield "  nothing to ask: no OpenAI-compatible server is behind it"
    for each in told.probes:
        yield from _wrapped(f"  {each.name:<20}{each.answer}" + (f": {each.why}" if each.why else ""), " " * 22)
    yield ""
    yield from _changes(told)


def _share(words: str, share: Share) -> str:
    if not share.of:
        return f"  {words:<36}{'-':>16}"
    low, high = wilson_interval(share.count, share.of)[1:]
    count = f"{share.count} of {share.of}"
    return f"  {words:<36}{count:>16}{100 * share.value:>8.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def _stages(seen: Seen) -> Iterator[str]:
    """A line a stage: calls as the ledger has them, events a use."""
    shown = [name for name in _OF_STAGES if seen.shares[name].count]
    yield f"{'Stage':<14}" + _row(_COLUMNS) + "".join(f"{_OF_STAGES[name]:>8}" for name in shown)
    for stage, entry in seen.entries.items():
        events = seen.stages.get(stage, {}) if stage != "total" else seen.shares
        counts = (events[name].count if name in events else 0 for name in shown)
        yield f"  {stage:<12}" + _row(_cells(entry)) + "".join(f"{count:>8}" for count in counts)
    n, total = max(seen.questions, 1), seen.entries["total"]
    tokens = "" if total.untold else f"{total.tokens_in / n:,.0f} tokens in, {total.tokens_out / n:,.0f} out, "
    yield f"  a question: {total.calls / n:.1f} calls, {tokens}{total.seconds / n:.2f} s of calls"


def _cells(entry: LedgerEntry) -> Sequence[str]:
    calls = max(entry.calls, 1)
    out = "-" if entry.untold else f"{entry.tokens_out / calls:.1f}"
    return f"{entry.calls:,}", out, f"{entry.seconds / calls:.3f}", share(entry)


def _row(cells: Iterable[str]) -> str:
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, _COLUMNS.values(), strict=True))


def _changes(told: Examination) -> Iterator[str]:
    if not told.findings:
        yield "Nothing to change: every reply was what the pipeline asks for."
        return
    yield "What to change"
    for advice in dict.fromkeys(each.advice for each in told.findings):  # what one change mends stands together
        for each in told.findings:
            if each.advice == advice:
                yield from _wrapped(f"{'! ' if each.bad else '- '}{each.told}", "  ")
        yield from _wrapped(f"  -> {advice}", "     ")
    if not told.healthy:
        yield ""
        yield from _wrapped("Lines with ! are what blendfilter eval warns of and ends with exit code 1 for.")


def _wrapped(line: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        line, WIDTH, subsequent_indent=indent, drop_whitespace=True, break_on_hyphens=False, break_long_words=True
    )
