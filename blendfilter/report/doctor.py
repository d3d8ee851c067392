"""`examine`: does a model do what the pipeline asks? Sample questions, counted replies, a probed server, advice.

The questions are a run like any other, journaled and resumable; so are the short cases of CDIT's judge and FilCo's
filter (`doctor_cases`), beside the run. The probes are not journaled: they are about the server as it is now.
`findings` names what is wrong, the worst first, with the options that mend it; `text_of` prints an examination, 80
columns wide at most and without colour.
"""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import dspy

from blendfilter import aio
from blendfilter.asking import TaskWording
from blendfilter.errors import BadArgument
from blendfilter.evaluation.ledger import LedgerEntry
from blendfilter.evaluation.run import MAX_BAD_REPLIES, Run
from blendfilter.evaluation.run_loop import RunProgress
from blendfilter.evaluation.run_passages import Passages
from blendfilter.evaluation.run_status import BAD, RunStatus, Share, check_share, stage_of
from blendfilter.evaluation.runner import evaluated
from blendfilter.evaluation.statistics import wilson_interval
from blendfilter.filters.ids import negates, read_ids, restates_range
from blendfilter.lm.budget import Budget
from blendfilter.lm.journaled import event_of
from blendfilter.lm.model import connect
from blendfilter.lm.probing import Probe, probe
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.multi_hop import conclusion
from blendfilter.prompting import Prompts
from blendfilter.quoting import LONGEST_REPLY
from blendfilter.records import Question
from blendfilter.report.doctor_cases import SENTENCES, CaseReplies, ask_cases
from blendfilter.report.run_text import cost, share
from blendfilter.resources import sample
from blendfilter.retrieval.bm25 import BM25
from blendfilter.run_context import CONCURRENCY
from blendfilter.tasks import load
from blendfilter.tasks.base import Questions
from blendfilter.text import folded, normalize_answer

QUESTIONS = 20
WIDTH = 80
NOTED = 0.05
"""The share above which what is not bad in itself is worth a line."""
KEPT_ALL, DROPPED_GOLD = 0.95, 0.2
"""A filter that keeps more than this filters nothing; one that drops more of the gold, or judges more wrong, than this
costs answers."""
OFFLINE = (
    "The offline reader is rules, no model: "
    "it shows what this command says of one that does all that it is asked."
)


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

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON, in fractions of 1."""
        total = self.seen.entries["total"]
        return {
            "model": self.model,
            "run": str(self.run.folder),
            "healthy": self.healthy,
            "questions": self.seen.questions,
            "replies": {name: _with_interval(share) for name, share in self.seen.shares.items()},
            "stages": {
                stage: {name: dataclasses.asdict(share) for name, share in shares.items()}
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


def _with_interval(share: Share) -> dict[str, Any]:
    if not share.of:
        return {"count": 0, "of": 0, "value": None}
    interval = wilson_interval(share.count, share.of)._asdict()
    return {
        **dataclasses.asdict(share),
        **{name: round(value, 4) for name, value in interval.items()},
    }


def examine(
    lm: dspy.BaseLM | str,
    *,
    questions: int = QUESTIONS,
    run: str | Path | None = None,
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
    done = aio.run(work, "examine", "await asyncio.to_thread(examine, …)")
    cases = ask_cases(model, done.folder, concurrency)
    counts, probes = count_replies(RunStatus(done), cases), probe(model)
    return Examination(done, model.name, counts, probes, list(findings(counts, max_bad_replies)))


def chosen(n: int) -> Questions:
    """`n` questions of the sample, an equal number of each kind as far as there are so many, each kind spread evenly.

    >>> [question.type for question in chosen(3)]
    ['bridge', 'comparison', 'yes_no']
    """
    every = load("hotpotqa", sample("questions.jsonl"))
    if not 1 <= n <= len(every):
        raise BadArgument(
            f"questions is {n}: the sample has {len(every)}, give a number from 1 to that"
        )
    kinds: dict[str, list[Question]] = {}
    for question in every:
        kinds.setdefault(str(question.type), []).append(question)
    sizes = dict.fromkeys(kinds, 0)
    while sum(sizes.values()) < n:
        for kind, rows in kinds.items():
            sizes[kind] += sum(sizes.values()) < n and sizes[kind] < len(rows)
    spread = [
        [rows[place * len(rows) // sizes[kind]] for place in range(sizes[kind])]
        for kind, rows in kinds.items()
    ]
    picked = [
        rows[place] for place in range(max(sizes.values())) for rows in spread if place < len(rows)
    ]
    return Questions(tuple(picked), every.task, "sample")


# --- what replies were like -----------------------------------------------------------------------------------------

# A reply counts as often as it was used; each share says of what it is one.
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
    "read_verdict": "verdicts read at once",
    "unread_verdict": "no verdict, asked again",
    "no_verdict": "no verdict the second time either",
    "wrong_verdict": "verdicts wrong",
    "read_sentences": "FilCo's numbers read at once",
    "unread_sentences": "FilCo's not read, asked again",
    "unparseable_sentences": "FilCo's unparseable",
    "dropped_sentence": "FilCo drops what answers",
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
_NEXT = re.compile(
    r"\n\W{0,4}(?:context|question|knowledge|passage|topic|ids|relevance)(?: \d+)?\s?:",
    re.IGNORECASE,
)
AT_ONCE = "read_at_once"
"""The share of a stage's first replies that its reader could use."""
_READ_AS = ("read_ids", "explicit_none", "suspect_ids", "unparseable_ids", "unfinished_ids")
"""What becomes of an ids reply, one of these: their shares add up to 1."""


@dataclass(frozen=True)
class ReplyCounts:
    """What replies were like."""

    questions: int
    shares: Mapping[str, Share]  # by every name of `SHARES`
    stages: Mapping[
        str, Mapping[str, Share]
    ]  # `read_at_once`, `empty_reply`, `cut_reply` and the like
    errors: Mapping[str, int]  # questions by the error's kind
    entries: Mapping[str, LedgerEntry]  # of the questions
    cases: int = 0
    case_errors: Mapping[str, int] = field(default_factory=dict)
    case_entries: Mapping[str, LedgerEntry] = field(default_factory=dict)


class _Counts:
    """Events, and what they are shares of, under way."""

    def __init__(self) -> None:
        self.events, self.of = Counter[str](), Counter[str]()

    def add(self, found: Iterable[tuple[str, bool]]) -> None:
        for name, happened in found:
            self.events[name] += happened
            self.of[name] += 1

    def shares(self, names: Iterable[str]) -> dict[str, Share]:
        return {name: Share(self.events[name], self.of[name]) for name in names}


def count_replies(known: RunStatus, cases: CaseReplies | None = None) -> ReplyCounts:
    """Count what a run's replies were like, and those to short cases beside it."""
    counts, stages, errors = _Counts(), dict[str, _Counts](), Counter[str]()
    with known.run.journal() as journal:
        passages, questions = Passages(journal), 0
        for row in known.whole_rows():
            questions += 1
            if row["error"]:
                errors[row["error"]["kind"]] += 1
            for named, key in row["calls"]:
                record, stage = journal.read_call(key), stage_of(named)
                if record is not None and "reply" in record:
                    found = list(_any_reply(record))
                    more = list(_of_stage(stage, record))
                    stages.setdefault(stage, _Counts()).add(
                        [*found, (AT_ONCE, _read_at_once(stage, record, dict(more)))]
                    )
                    counts.add([*found, *more])
            counts.add([*_filtered(row, passages), *_answered(row)])
    for outcome in cases.outcomes if cases else ():
        what = "sentences" if outcome.stage == SENTENCES else "verdict"
        read = [
            (f"read_{what}", outcome.read_at_once),
            (f"unread_{what}", not outcome.read_at_once),
        ]
        counts.add([*outcome.events.items(), *(read if not outcome.error else ())])
        stages.setdefault(outcome.stage, _Counts()).add([(AT_ONCE, outcome.read_at_once)])
    for stage, replies in cases.records.items() if cases else ():
        for reply in replies:
            stages[stage].add(_any_reply(reply))
    return ReplyCounts(
        questions=questions,
        shares=counts.shares(SHARES),
        stages={stage: counted.shares(counted.of) for stage, counted in stages.items()},
        errors=errors,
        entries=known.entries,
        cases=len(cases.outcomes) if cases else 0,
        case_errors=Counter(outcome.error for outcome in cases.outcomes if outcome.error)
        if cases
        else {},
        case_entries=cases.entries if cases else {},
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
    text, event = record["reply"] or "", event_of(record)
    if stage in ("ids", "ids_again"):
        prompt = record.get("prompt") or ""
        k = len(
            numbered_lines(
                prompt if isinstance(prompt, str) else "\n".join(part for _, part in prompt)
            )
        )
        status = read_ids(text, k, cut=event == "cut_reply").status
        if stage == "ids_again":
            yield "read_again", status in ("ids", "none")
        else:
            unread = (
                "unfinished_ids" if event in ("empty_reply", "cut_reply") else "unparseable_ids"
            )
            read_as = {"ids": "read_ids", "none": "explicit_none", "suspect": "suspect_ids"}.get(
                status, unread
            )
            yield from ((name, name == read_as) for name in _READ_AS)
            yield "negated_ids", status == "suspect" and negates(text)
            yield "restated_range", restates_range(text, k)
    if stage in ("external", "answer"):
        yield "concluded", conclusion(text) != ""
    if stage in ("topic", "ids", "ids_again", "short_answer"):
        yield "rambling", len(text.split()) > RAMBLES


def _read_at_once(stage: str, record: Mapping[str, Any], found: Mapping[str, bool]) -> bool:
    """Whether the step could use a first reply as it stands: `found` is what was counted of it."""
    event, text = event_of(record), (record["reply"] or "").strip()
    if event in ("empty_reply", "refused_reply"):
        return False
    if stage in ("ids", "ids_again"):
        return any(found.get(name, False) for name in ("read_ids", "explicit_none", "read_again"))
    if stage in (
        "topic",
        "short_answer",
    ):  # the first line counts, and is whole where another one follows
        return event != "cut_reply" or "\n" in text
    return event != "cut_reply" and found.get("concluded", True)


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
        if set(map(normalize_answer, row["golden_answers"])) <= {"yes", "no"}:
            yield "not_yes_no", normalize_answer(" ".join(words)) not in ("yes", "no")


# --- advice ---------------------------------------------------------------------------------------------------------

_LARGER = "a base model wants --endpoint completions; else take a larger instruct model"
_IDS = (
    "--json-schema holds the ids to numbers where the server obeys a schema (vLLM, llama.cpp; --no-json-schema where "
    f"it does not); --no-thinking for a model that thinks; {_LARGER}"
)
_FILCO = ("unread_sentences", "unparseable_sentences")
_VERDICT = (
    "a passage without a verdict stays: --filter cdit-components with --json-schema holds the reply to a form; "
    f"--no-thinking for a model that thinks; {_LARGER}"
)
_THINKING = "--no-thinking or --reasoning low, where the model's family has a switch; else turn it off at the server"
_ADVICE: Mapping[str, str] = {
    **dict.fromkeys(
        ("unparseable_ids", "suspect_ids", "negated_ids", "restated_range", *_FILCO), _IDS
    ),
    **dict.fromkeys(("unread_verdict", "no_verdict"), _VERDICT),
    "wrong_verdict": "try it on the opposites (eval/opposites.py) before --filter cdit or trim: it may be at chance",
    "dropped_sentence": "FilCo's filter would cost answers: a larger model, or --filter sentence, which asks none",
    "explicit_none": "it keeps nothing where it says none; in Python BlendFilter(…, fallback=True) keeps K_q",
    "empty_reply": f"look at the trace (blendfilter report on this run): thinking may use the cap up; {_LARGER}",
    "cut_reply": "it writes more than the prompts ask for, or thinks: --no-thinking, more room for reasonings and "
    "judgements (--reply-tokens N), words of your own (--prompts "
    "DIR), or a larger model",
    "refused_reply": "it declines harmless questions: another model, or words of your own (--prompts DIR)",
    "thinking": f"it is set apart and costs tokens: {_THINKING}",
    "thinks_aloud": f"no tag that is known sets it apart: {_THINKING}",
    "ran_on": "the reply is cut at the stop on this end, the tokens after it are paid for: a server that obeys stop",
    "markdown": "nothing to change: readers look through the marks",
    "rambling": f"a topic, ids and an answer are a few words: {_LARGER}",
    "long_answer": "EM and F1 count every word: a larger model, or a short_answer.j2 of your own (--prompts)",
    "not_yes_no": "these count as wrong: a larger model, or a short_answer.j2 of your own (--prompts DIR)",
    "no_conclusion": f"the short answer is then read from all of it; {_LARGER}",
    "keeps_all": "the filter's calls change little: --method cot-retrieval answers from as many passages for fewer",
    "gold_dropped": "it cannot judge what bears on a question: a larger model, or --filter passage, which asks none",
    "context_too_long": "serve the model with a longer context (8,192 tokens take every prompt; in this process: "
    "--context 8192), or -k 3",
    "rate_limited": "the provider lets fewer calls through: its limit as --rpm or --tpm, or --concurrency 2",
    "timeout": "the server is slow for so many at once: --concurrency 1, or more seconds with --timeout",
    "server_error": "look at the server's log; --concurrency 1 tells load from fault",
}
"""What to change, by a finding's name or an error's kind."""
_HABITS = (
    "suspect_ids", "negated_ids", "restated_range", "explicit_none", "refused_reply", "thinking", "thinks_aloud",
    "ran_on", "rambling", "markdown", "long_answer", "not_yes_no", "unread_verdict", "unread_sentences",
)  # fmt: skip

_WRONG = ("gold_dropped", "wrong_verdict", "dropped_sentence")


def findings(counts: ReplyCounts, limit: float = MAX_BAD_REPLIES) -> Iterator[Finding]:
    """Everything worth a line: errors, then bad replies above `limit`, then habits. None is a clean bill."""
    shares = counts.shares
    for kind, count in counts.errors.items():
        words = f"{Share(count, counts.questions).words} of questions ended in an error ({kind})"
        yield Finding(
            "errors",
            True,
            words,
            _ADVICE.get(kind, "the run's report shows the server's words (--run DIR)"),
        )
    for kind, count in counts.case_errors.items():
        words = f"{Share(count, counts.cases).words} of short cases ended in an error ({kind})"
        yield Finding(
            "errors",
            True,
            words,
            _ADVICE.get(kind, "the journal beside the run shows the server's words"),
        )
    for name in (*BAD, "unparseable_sentences", "no_verdict"):
        if shares[name].value > limit:
            by_stage = {
                stage: shares[name] for stage, shares in counts.stages.items() if name in shares
            }
            worst = max(by_stage, key=lambda stage: by_stage[stage].count, default="")
            most = (
                f", most in {worst} ({by_stage[worst].count} of {by_stage[worst].of})"
                if worst
                else ""
            )
            yield Finding(name, True, f"{SHARES[name]}: {shares[name].words}{most}", _ADVICE[name])
    concluded = shares["concluded"]
    without = Share(concluded.of - concluded.count, concluded.of)
    others = [
        *((name, SHARES[name], shares[name], NOTED) for name in _HABITS),
        ("no_conclusion", "reasonings without “So the answer is”", without, NOTED),
        ("keeps_all", SHARES["kept"], shares["kept"], KEPT_ALL),
        *((name, SHARES[name], shares[name], DROPPED_GOLD) for name in _WRONG),
    ]
    for name, words, seen, least in others:
        if seen.value > least:
            yield Finding(name, False, f"{words}: {seen.words}", _ADVICE[name])


# --- as text --------------------------------------------------------------------------------------------------------

_GROUPS: Mapping[str, Sequence[str]] = {
    "Reading the ids": (
        "read_ids", "explicit_none", "suspect_ids", "negated_ids", "unparseable_ids", "unfinished_ids", "read_again",
        "restated_range",
    ),
    "Filtering and answering": ("kept", "gold_kept", "gold_dropped", "concluded", "long_answer", "not_yes_no"),
    "Replies": (
        "empty_reply", "cut_reply", "refused_reply", "thinking", "thinks_aloud", "ran_on", "rambling", "markdown",
    ),
    "Short cases: judging (CDIT) and choosing sentences (FilCo)": (
        "read_verdict", "unread_verdict", "no_verdict", "wrong_verdict",
        "read_sentences", "unread_sentences", "unparseable_sentences", "dropped_sentence",
    ),
}  # fmt: skip
_STAGE_EVENTS = {
    "empty_reply": "empty",
    "cut_reply": "cut",
    "refused_reply": "refused",
    "ran_on": "ran on",
}


def text_of(examination: Examination) -> str:
    """The whole examination: shares with counts and 95 % intervals, stages, the server, what to change."""
    return "\n".join(_lines(examination)) + "\n"


def _lines(examination: Examination) -> Iterator[str]:
    counts, total = examination.seen, examination.seen.entries["total"]
    price = "" if total.whole_cost is None else f", {cost(total)}"
    yield from _wrapped(
        f"{examination.model}: {counts.questions} questions of the sample world through BlendFilter, "
        f"{total.calls} calls, "
        + ("tokens not told" if total.tokens is None else f"{total.tokens:,} tokens")
        + price
    )
    if examination.run.offline:
        yield from _wrapped(OFFLINE)
    for title, names in _GROUPS.items():
        yield from ("", title)
        yield from (_share_line(SHARES[name], counts.shares[name]) for name in names)
    if counts.errors:
        yield from ("", "Errors")
        yield from (
            _share_line(kind, Share(count, counts.questions))
            for kind, count in counts.errors.items()
        )
    yield ""
    yield from _stages(counts)
    yield from ("", "What the server supports")
    if not examination.probes:
        yield "  nothing to ask: no OpenAI-compatible server is behind it"
    for done in examination.probes:
        yield from _wrapped(
            f"  {done.name:<20}{done.answer}" + (f": {done.why}" if done.why else ""), " " * 22
        )
    yield ""
    yield from _changes(examination)


def _share_line(words: str, share: Share) -> str:
    if not share.of:
        return f"  {words:<36}{'-':>16}"
    low, high = wilson_interval(share.count, share.of)[1:]
    count = f"{share.count} of {share.of}"
    return (
        f"  {words:<36}{count:>16}{100 * share.value:>8.1f} % ({100 * low:.1f} to {100 * high:.1f})"
    )


def _stages(counts: ReplyCounts) -> Iterator[str]:
    """A line a stage: calls as the ledger has them, events a use; `read` is the share of replies read at once."""
    events = [
        name
        for name in _STAGE_EVENTS
        if any(each[name].count for each in counts.stages.values() if name in each)
    ]
    heads = "".join(f" {_STAGE_EVENTS[name]}" for name in events)
    yield f"{'Stage':<16}{'calls':>6}{'read':>8}{'out/call':>9}{'s/call':>8}{'cached':>7}{heads}"
    first = [shares[AT_ONCE] for stage, shares in counts.stages.items() if stage in counts.entries]
    total = {
        **counts.shares,
        AT_ONCE: Share(sum(each.count for each in first), sum(each.of for each in first)),
    }

    def row(stage: str, entry: LedgerEntry) -> str:
        shares = counts.stages.get(stage, {}) if stage != "total" else total
        at_once = shares.get(AT_ONCE, Share(0, 0))
        read = f"{100 * at_once.value:.1f} %" if at_once.of else "-"
        counted = (
            f"{shares[name].count if name in shares else 0:>{len(_STAGE_EVENTS[name]) + 1}}"
            for name in events
        )
        calls = max(entry.calls, 1)
        out, seconds = (
            "-" if entry.untold else f"{entry.tokens_out / calls:.1f}",
            entry.seconds / calls,
        )
        cells = f"{entry.calls:>6,}{read:>8}{out:>9}{seconds:>8.3f}{share(entry):>7}"
        return f"{stage:<16}{cells}{''.join(counted)}"

    yield from (row(stage, entry) for stage, entry in counts.entries.items())
    n, whole = max(counts.questions, 1), counts.entries["total"]
    tokens = (
        ""
        if whole.untold
        else f"{whole.tokens_in / n:,.0f} tokens in, {whole.tokens_out / n:,.0f} out, "
    )
    yield f"  a question: {whole.calls / n:.1f} calls, {tokens}{whole.seconds / n:.2f} s of calls"
    yield from (row(stage, entry) for stage, entry in counts.case_entries.items())


def _changes(examination: Examination) -> Iterator[str]:
    if not examination.findings:
        yield "Nothing to change: every reply was what the pipeline asks for."
        return
    yield "What to change"
    for advice in dict.fromkeys(
        finding.advice for finding in examination.findings
    ):  # one change, all that it mends
        for finding in examination.findings:
            if finding.advice == advice:
                yield from _wrapped(f"{'! ' if finding.bad else '- '}{finding.told}", "  ")
        yield from _wrapped(f"  -> {advice}", "     ")
    if not examination.healthy:
        yield ""
        yield from _wrapped(
            "Lines with ! are what blendfilter eval warns of and ends with exit code 1 for."
        )


def _wrapped(line: str, indent: str = "") -> list[str]:
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
