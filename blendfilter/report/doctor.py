"""`examine`: does a model do what the pipeline asks? Sample questions, counted replies, a probed server, advice.

The questions are a run like any other, journaled and resumable; so are short cases of CDIT's judge and FilCo's filter,
whose outcome is known, in a journal of their own in the run's folder. The probes are not journaled: they are about the
server as it is now. What is counted, and what is advised, is data (`doctor.toml`). `findings` names what is wrong, the
worst first, with the options that mend it; `text_of` prints an examination, 80 columns wide at most and without colour.
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections import Counter, defaultdict
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import dspy

from blendfilter import aio
from blendfilter.asking import TaskWording
from blendfilter.context import calls_of, noting, setting
from blendfilter.errors import BadArgument, ModelError
from blendfilter.evaluation.ledger import LedgerEntry, ledger, money
from blendfilter.evaluation.rows import Json, Record
from blendfilter.evaluation.run import MAX_BAD_REPLIES, Run
from blendfilter.evaluation.run_loop import RunProgress
from blendfilter.evaluation.run_passages import Passages
from blendfilter.evaluation.run_status import RunStatus, Share, check_share, stage_of
from blendfilter.evaluation.runner import evaluated
from blendfilter.files import AnyPath
from blendfilter.filters.cdit import Judge
from blendfilter.filters.filco import FilCoFilter
from blendfilter.filters.ids import negates, read_ids, restates_range
from blendfilter.journal import FILE, Journal
from blendfilter.lm.budget import Budget
from blendfilter.lm.journaled import event_of
from blendfilter.lm.model import connect
from blendfilter.lm.probing import Probe, probe
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.multi_hop import conclusion
from blendfilter.prompting import Prompts
from blendfilter.quoting import LONGEST_REPLY
from blendfilter.records import Passage
from blendfilter.report.run_text import share
from blendfilter.resources import sample
from blendfilter.retrieval.bm25 import BM25
from blendfilter.run_context import CONCURRENCY, AnyLM, RunContext
from blendfilter.statistics import wilson_interval
from blendfilter.table import Table
from blendfilter.tasks import load
from blendfilter.tasks.base import Questions
from blendfilter.text import folded, normalize_answer

WIDTH = 80
RAMBLES, LONG = 12, 6
"""More words than this in a short reply; more words than this in the answer that is read from it."""
AT_ONCE = "read_at_once"
"""The share of a stage's first replies that its reader could use."""


@dataclass(frozen=True)
class Habit:
    """What is counted of replies: its words, and from which share on it is worth a line, with which advice."""

    words: str
    group: str = ""
    advice: str = ""
    above: float = 1.0
    below: float = 0.0
    bad: bool = False
    finding: str = ""


_DATA = tomllib.loads((files("blendfilter.report") / "doctor.toml").read_text("utf-8"))
SHARES: Mapping[str, Habit] = {
    name: Habit(**habit, group=group)
    for group, habits in _DATA["groups"].items()
    for name, habit in habits.items()
}
"""All that is counted, by name; a reply counts as often as it was used."""


class Finding(NamedTuple):
    """One thing that is not as the pipeline needs it; for `bad` ones `eval` ends with exit code 1."""

    name: str
    bad: bool
    told: str
    advice: str


@dataclass(frozen=True)
class Examination:
    """What was found out: the run, how its replies were, what the server supports, what to change."""

    run: Run
    model: str
    seen: ReplyCounts
    probes: Sequence[Probe]
    findings: Sequence[Finding]

    @property
    def healthy(self) -> bool:
        """Whether nothing is bad: no errors, and no share that `eval` would warn of."""
        return not any(finding.bad for finding in self.findings)

    def as_dict(self) -> Json:
        """All of it as JSON, in fractions of 1."""
        total = self.seen.entries["total"]
        replies = {}
        for name, seen in self.seen.shares.items():
            replies[name] = {"count": seen.count, "of": seen.of, "value": None}
            if seen.of:
                ends = wilson_interval(seen.count, seen.of)._asdict()
                replies[name] |= {end: round(value, 4) for end, value in ends.items()}
        return {
            "model": self.model,
            "run": str(self.run.folder),
            "healthy": self.healthy,
            "questions": self.seen.questions,
            "replies": replies,
            "stages": {
                stage: {name: asdict(share) for name, share in shares.items()}
                for stage, shares in self.seen.stages.items()
            },
            "errors": dict(self.seen.errors),
            "cases": {"count": self.seen.cases, "errors": dict(self.seen.case_errors)},
            "ledger": {
                **total.stored(),
                "tokens_cached": total.tokens_cached if total.cached_of else None,
                "seconds": round(total.seconds, 3),
            },
            "server": [probe._asdict() for probe in self.probes],
            "findings": [finding._asdict() for finding in self.findings],
        }


def examine(
    lm: AnyLM,
    *,
    questions: int = 20,
    run: AnyPath | None = None,
    concurrency: int = CONCURRENCY,
    budget: Budget | None = None,
    max_bad_replies: float = MAX_BAD_REPLIES,
    prompts: Prompts | str | None = None,
    wording: TaskWording | str = "hotpotqa",
    progress: RunProgress | bool = True,
) -> Examination:
    """Ask `lm` some of the sample's questions through BlendFilter, and say whether it does what the pipeline asks.

    Args:
        questions: how many of the sample's, spread over its kinds.
        run: the run's folder, where the same call goes on; a temporary one by default.
        budget: what the questions may take; the short cases and the probes, some thirty tiny calls, come on top.
        max_bad_replies: the share of unparseable, empty or cut replies above which it is not healthy.
        prompts, wording: other templates, other demonstrations, as in `BlendFilter`.

    Raises:
        BadArgument: more questions than the sample has, or none. ServerRefused: the server is not there, or refuses us.
        BudgetSpent: the limit is reached; with `run`, the same call with a higher one goes on.
    """
    check_share(max_bad_replies, "max_bad_replies")
    picked = chosen(questions)
    model = connect(lm)
    work = evaluated(
        BlendFilter(BM25.for_corpus(sample("corpus.jsonl")), task=wording, prompts=prompts),
        picked,
        lm=model,
        run=run,
        concurrency=concurrency,
        budget=budget,
        progress=RunProgress([]) if progress is True else progress,
    )
    instead = "await asyncio.to_thread(examine, …)"
    done = aio.run(work, "examine", instead)
    context = RunContext(model, concurrency=concurrency)
    cases = aio.run(ask_cases(context, done.folder), "examine", instead)
    counts, probes = count_replies(RunStatus(done), cases), probe(model)
    return Examination(
        done, model.name, counts, probes, list(findings(counts, max_bad_replies))
    )


def chosen(n: int) -> Questions:
    """`n` questions of the sample, an equal number of each kind as far as there are so many.

    >>> [question.type for question in chosen(3)]
    ['bridge', 'comparison', 'yes_no']
    """
    every = load("hotpotqa", sample("questions.jsonl"))
    if not 1 <= n <= len(every):
        raise BadArgument(
            f"questions is {n}: the sample has {len(every)}, give a number from 1 to that"
        )
    seen, places = Counter[str](), dict[str, int]()
    for question in every:
        places[question.id] = seen[str(question.type)]
        seen[str(question.type)] += 1
    picked = sorted(every, key=lambda question: places[question.id])[:n]
    return Questions(tuple(picked), every.task, "sample")


# --- short cases --------------------------------------------------------------------------------------------------

CASES = "cases"
"""The folder of their journal, in the run's."""
WORD, COMPONENTS, SENTENCES = "cdit word", "cdit components", "filco sentences"
"""The names of their stages in tables: CDIT's judge in both modes, FilCo's numbers."""


@dataclass(frozen=True)
class CaseOutcome:
    """One case that was asked: its stage, the keys and records of its calls, and what came of it.

    Attributes:
        events: what happened and what did not, by the names of `doctor.SHARES`; empty after an error.
        error: the error's kind.
    """

    stage: str
    calls: tuple[str, ...]
    records: tuple[Record, ...]
    events: Mapping[str, bool]
    error: str

    @property
    def read_at_once(self) -> bool:
        """Whether the first reply could be read: there was no second request."""
        return not self.error and len(self.calls) == 1


async def ask_cases(context: RunContext, folder: Path) -> list[CaseOutcome]:
    """Ask the model of `context` the short cases; `folder` is the run's. Raises: ServerRefused, BudgetSpent."""
    word, components, select = Judge("word"), Judge("components"), FilCoFilter(offer_none=False)
    work = [(WORD, _judged(word, **case)) for case in _DATA["judged"]]
    work += [(COMPONENTS, _judged(components, **case)) for case in _DATA["judged"]]
    work += [(SENTENCES, _chosen(select, **case)) for case in _DATA["chosen"]]
    with Journal(folder / CASES / FILE) as journal, context.opened(journal):
        async with aio.together() as group:
            tasks = [group.create_task(_ask(*each, context.lm, journal)) for each in work]
    return [task.result() for task in tasks]


async def _ask(
    stage: str, events: Awaitable[dict[str, bool]], lm: dspy.BaseLM, journal: Journal
) -> CaseOutcome:
    with (
        setting(question=stage),
        noting() as notes,
        dspy.context(lm=lm, trace=None, disable_history=True),
    ):
        try:
            found, kind = await events, ""
        except ModelError as error:
            found, kind = {}, error.kind
    keys = tuple(note.key for note in calls_of(notes))
    records = (journal.read_call(key) for key in keys)
    replies = tuple(record for record in records if record and "reply" in record)
    return CaseOutcome(stage, keys, replies, found, kind)


async def _judged(
    judge: Judge, *, question: str, passage: Record, consistent: bool
) -> dict[str, bool]:
    found = await judge.acall(question=question, passage=Passage(**passage))
    return {
        "no_verdict": found.verdict is None,
        "wrong_verdict": found.verdict is (not consistent),
    }


async def _chosen(
    select: FilCoFilter, *, question: str, passages: Sequence[Record], answers: int
) -> dict[str, bool]:
    shown = [Passage(**passage) for passage in passages]
    found = await select.acall(question=question, passages=shown)
    return {
        "unparseable_sentences": "unparseable_ids" in found.flags,
        "dropped_sentence": answers not in found.chosen,
    }


# --- what replies were like -----------------------------------------------------------------------------------------

_NUMBERED = re.compile(r"^(?:knowledge|sentence|passage) (\d{1,4}): (.*)$", re.MULTILINE)
_MARKDOWN = re.compile(r"\*\*\S|^[^\S\n]{0,3}#{1,6}\s|^[^\S\n]*+(?:```|[-*•]\s)", re.MULTILINE)
_ALOUD = re.compile(
    r"</?\|?(?:thought|thinking|reasoning|reflection|scratchpad|analysis|channel)\b[^>\n]{0,40}>"
    r"|^\W{0,4}(?:(?:okay|ok|alright|hmm+|wait)\s?[,.…!]"
    r"|let me (?:think|see|re-?read|check)\b|the user (?:is|asks|wants)\b)",
    re.IGNORECASE | re.MULTILINE,
)
_NEXT = re.compile(
    r"\n\W{0,4}(?:context|question|knowledge|passage|topic|ids|relevance)(?: \d+)?\s?:",
    re.IGNORECASE,
)
_READ_AS = ("read_ids", "explicit_none", "suspect_ids", "unparseable_ids", "unfinished_ids")
"""What becomes of an ids reply, one of these: their shares add up to 1."""


@dataclass(frozen=True)
class ReplyCounts:
    """What replies were like: shares by the names of `SHARES`; by stage `read_at_once` and what may befall any reply.

    `errors` are questions by the error's kind. The short cases beside the questions have figures of their own.
    """

    questions: int
    shares: Mapping[str, Share]
    stages: Mapping[str, Mapping[str, Share]]
    errors: Mapping[str, int]
    entries: Mapping[str, LedgerEntry]
    cases: int = 0
    case_errors: Mapping[str, int] = field(default_factory=dict)
    case_entries: Mapping[str, LedgerEntry] = field(default_factory=dict)


Event = tuple[str, bool]
"""What may happen, and whether it did."""


def count_replies(known: RunStatus, cases: Sequence[CaseOutcome]) -> ReplyCounts:
    """Count what a run's replies were like, and those to short cases beside it."""
    events: list[Event] = []
    stages = defaultdict[str, list[Event]](list)
    rows = list(known.whole_rows())
    with known.run.journal() as journal:
        passages = Passages(journal)
        for row in rows:
            for named, key in row["calls"]:
                record, stage = journal.read_call(key), stage_of(named)
                if record is not None and "reply" in record:
                    of_any, of_stage = [*_any_reply(record)], [*_of_stage(stage, record)]
                    at_once = _read_at_once(stage, record, dict(of_stage))
                    stages[stage] += [*of_any, (AT_ONCE, at_once)]
                    events += [*of_any, *of_stage]
            events += [*_filtered(row, passages), *_answered(row)]
    for case in cases:
        events += case.events.items()
        at_once = case.read_at_once
        if not case.error:
            what = "sentences" if case.stage == SENTENCES else "verdict"
            events += [(f"read_{what}", at_once), (f"unread_{what}", not at_once)]
        stages[case.stage].append((AT_ONCE, at_once))
        for asked in case.records:
            stages[case.stage] += _any_reply(asked)
    shares = _shares(events)
    records = {record["key"]: record for case in cases for record in case.records}
    calls = [(case.stage, key) for case in cases for key in case.calls]
    case_entries = ledger([{"calls": calls}], records.get)
    del case_entries["total"]
    return ReplyCounts(
        questions=len(rows),
        shares={name: shares.get(name, Share(0, 0)) for name in SHARES},
        stages={stage: _shares(found) for stage, found in stages.items()},
        errors=Counter(row["error"]["kind"] for row in rows if row["error"]),
        entries=known.entries,
        cases=len(cases),
        case_errors=Counter(case.error for case in cases if case.error),
        case_entries=case_entries,
    )


def _shares(events: Iterable[Event]) -> dict[str, Share]:
    found = defaultdict[str, list[bool]](list)
    for name, happened in events:
        found[name].append(happened)
    return {name: Share(sum(happened), len(happened)) for name, happened in found.items()}


def numbered_lines(prompt: str) -> list[str]:
    """The last list of numbered knowledge in a prompt: those above it are demonstrations."""
    lines: list[str] = []
    for match in _NUMBERED.finditer(prompt):
        if int(match[1]) == 0:
            lines = []
        lines.append(match[2])
    return lines


def _any_reply(record: Record) -> Iterator[Event]:
    event, text = event_of(record), (record["reply"] or "")[:LONGEST_REPLY]
    yield from ((name, event == name) for name in ("empty_reply", "cut_reply", "refused_reply"))
    yield "thinking", bool(record["reasoning"])
    yield "thinks_aloud", _ALOUD.search(text) is not None
    yield "ran_on", bool(record.get("ran_on")) or _NEXT.search(text.strip()) is not None
    yield "markdown", _MARKDOWN.search(text) is not None


def _of_stage(stage: str, record: Record) -> Iterator[Event]:
    text, event = record["reply"] or "", event_of(record)
    if stage in ("ids", "ids_again"):
        prompt = record.get("prompt") or ""
        turns = [prompt] if isinstance(prompt, str) else [part for _, part in prompt]
        k = len(numbered_lines("\n".join(turns)))
        status = read_ids(text, k, cut=event == "cut_reply").status
        if stage == "ids_again":
            yield "read_again", status in ("ids", "none")
        else:
            read_as = {"ids": "read_ids", "none": "explicit_none", "suspect": "suspect_ids"}
            unread = event in ("empty_reply", "cut_reply")
            found = read_as.get(status, "unfinished_ids" if unread else "unparseable_ids")
            yield from ((name, name == found) for name in _READ_AS)
            yield "negated_ids", status == "suspect" and negates(text)
            yield "restated_range", restates_range(text, k)
    if stage in ("external", "answer"):
        yield "concluded", conclusion(text) != ""
    if stage in ("topic", "ids", "ids_again", "short_answer"):
        yield "rambling", len(text.split()) > RAMBLES


def _read_at_once(stage: str, record: Record, found: Mapping[str, bool]) -> bool:
    """Whether the step could use a first reply as it stands: `found` is what was counted of it."""
    event, text = event_of(record), (record["reply"] or "").strip()
    if event in ("empty_reply", "refused_reply"):
        return False
    if stage in ("ids", "ids_again"):
        return any(found.get(name) for name in ("read_ids", "explicit_none", "read_again"))
    if stage in ("topic", "short_answer"):
        # the first line counts, and is whole where another one follows
        return event != "cut_reply" or "\n" in text
    return event != "cut_reply" and found.get("concluded", True)


def _filtered(row: Record, passages: Passages) -> Iterator[Event]:
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


def _answered(row: Record) -> Iterator[Event]:
    if not row["error"]:
        words = (row["answer"] or "").split()
        yield "long_answer", len(words) > LONG
        if set(map(normalize_answer, row["golden_answers"])) <= {"yes", "no"}:
            yield "not_yes_no", normalize_answer(" ".join(words)) not in ("yes", "no")


# --- advice and text ------------------------------------------------------------------------------------------------


def findings(counts: ReplyCounts, limit: float = MAX_BAD_REPLIES) -> Iterator[Finding]:
    """Everything worth a line: errors, then bad replies above `limit`, then habits. None is a clean bill."""
    advice = _DATA["advice"]
    move = "the report and the journal of the run show the server's words (--run DIR)"
    errors = [("questions", counts.questions, *each) for each in counts.errors.items()]
    errors += [("short cases", counts.cases, *each) for each in counts.case_errors.items()]
    for what, of, kind, count in errors:
        words = f"{Share(count, of).words} of {what} ended in an error ({kind})"
        yield Finding("errors", True, words, advice.get(kind, move))
    for name, habit in sorted(SHARES.items(), key=lambda pair: not pair[1].bad):
        seen, above = counts.shares[name], limit if habit.bad else habit.above
        if seen.of > 0 and (seen.value > above or seen.value < habit.below):
            words = f"{habit.words}: {seen.words}"
            by_stage = [
                (found[name], stage) for stage, found in counts.stages.items() if name in found
            ]
            if habit.bad and by_stage:
                worst, stage = max(by_stage, key=lambda pair: pair[0].count)
                words += f", most in {stage} ({worst.count} of {worst.of})"
            yield Finding(habit.finding or name, habit.bad, words, advice[habit.advice])


def text_of(examination: Examination) -> str:
    """The whole examination: shares with counts and 95 % intervals, stages, the server, what to change."""
    return "\n".join(_lines(examination)) + "\n"


def _lines(examination: Examination) -> Iterator[str]:
    counts, total = examination.seen, examination.seen.entries["total"]
    took = "tokens not told" if total.tokens is None else f"{total.tokens:,} tokens"
    if total.whole_cost is not None:
        took += f", {money(total.whole_cost)}"
    yield from _wrapped(
        f"{examination.model}: {counts.questions} questions of the sample world through BlendFilter, "
        f"{total.calls} calls, {took}"
    )
    if examination.run.offline:
        yield from _wrapped(
            "The offline reader is rules, no model: it shows what this command says of one that does all that it is "
            "asked."
        )
    yield from ("", _share_table(counts).text(WIDTH), "", _stage_table(counts).text(WIDTH))
    yield from ("", "What the server supports")
    if not examination.probes:
        yield "  nothing to ask: no OpenAI-compatible server is behind it"
    for done in examination.probes:
        why = f": {done.why}" if done.why else ""
        yield from _wrapped(f"  {done.name:<20}{done.answer}{why}", " " * 22)
    yield ""
    yield from _changes(examination)


def _share_table(counts: ReplyCounts) -> Table:
    rows = []
    group = ""
    shown = [(habit.group, habit.words, counts.shares[name]) for name, habit in SHARES.items()]
    for kind, count in counts.errors.items():
        shown.append(("Errors", kind, Share(count, counts.questions)))
    for of, words, seen in shown:
        if of != group:
            group = of
            rows.append([group, "", "", ""])
        cells = ["-", "", ""]
        if seen.of:
            low, high = wilson_interval(seen.count, seen.of)[1:]
            interval = f"({100 * low:.1f} to {100 * high:.1f})"
            cells = [f"{seen.count} of {seen.of}", f"{100 * seen.value:.1f} %", interval]
        rows.append([f"  {words}", *cells])
    return Table(["What replies were like", "", "", ""], rows)


def _stage_table(counts: ReplyCounts) -> Table:
    """A line a stage: calls as the ledger has them, events a use; `read` is the share of replies read at once."""
    events = ("empty_reply", "cut_reply", "refused_reply", "ran_on")
    first = [
        found[AT_ONCE] for stage, found in counts.stages.items() if stage in counts.entries
    ]
    at_once = Share(sum(each.count for each in first), sum(each.of for each in first))
    stages = {**counts.stages, "total": {**counts.shares, AT_ONCE: at_once}}
    rows = []
    for stage, entry in {**counts.entries, **counts.case_entries}.items():
        shares = defaultdict(lambda: Share(0, 0), stages.get(stage, {}))
        calls = max(entry.calls, 1)
        rows.append(
            [
                stage,
                f"{entry.calls:,}",
                f"{100 * shares[AT_ONCE].value:.1f} %" if shares[AT_ONCE].of else "-",
                "-" if entry.without_tokens else f"{entry.tokens_out / calls:.1f}",
                f"{entry.seconds / calls:.3f}",
                share(entry),
                *(str(shares[name].count) for name in events),
            ]
        )
    n, whole = max(counts.questions, 1), counts.entries["total"]
    tokens = ""
    if not whole.without_tokens:
        tokens = f"{whole.tokens_in / n:,.0f} tokens in, {whole.tokens_out / n:,.0f} out, "
    note = (
        f"a question: {whole.calls / n:.1f} calls, {tokens}{whole.seconds / n:.2f} s of calls"
    )
    header = ["Stage", "calls", "read", "out/call", "s/call", "cached"]
    header += ["empty", "cut", "refused", "ran on"]
    return Table(header, rows, notes=[note]).without_empty(("0",))


def _changes(examination: Examination) -> Iterator[str]:
    if not examination.findings:
        yield "Nothing to change: every reply was what the pipeline asks for."
        return
    yield "What to change"
    for advice in dict.fromkeys(finding.advice for finding in examination.findings):
        for finding in examination.findings:
            if finding.advice == advice:  # one change, all that it mends
                yield from _wrapped(f"{'! ' if finding.bad else '- '}{finding.told}", "  ")
        yield from _wrapped(f"  -> {advice}", "     ")
    if not examination.healthy:
        yield ""
        yield from _wrapped(
            "Lines with ! are what blendfilter eval warns of and ends with exit code 1 for."
        )


def _wrapped(line: str, indent: str = "") -> list[str]:
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
