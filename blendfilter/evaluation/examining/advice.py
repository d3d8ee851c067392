"""From what was seen of a model's replies to what to change: a line of advice for each finding, with the exact option.

In: a `Seen`, the probes of the server, and how the model is connected. Out: `Finding`s, the worst first; none is a
clean bill. Those that are `bad` are what `eval` ends with exit code 1 for too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from blendfilter.evaluation.examining.seen import SHARES, Seen
from blendfilter.evaluation.run import MAX_BAD_REPLIES
from blendfilter.evaluation.run_status import BAD, Share
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.probing import Probe

NOTED, MOST = 0.05, 0.5
"""The share above which what is not bad in itself is worth a line, and above which it explains what else is wrong."""
KEPT_ALL, DROPPED_GOLD = 0.95, 0.2
"""A filter that keeps more than this filters nothing; one that drops more of the gold than this costs answers."""


class Finding(NamedTuple):
    """One thing that is not as the pipeline needs it."""

    name: str
    bad: bool
    told: str
    advice: str


@dataclass(frozen=True)
class Connection:
    """How the model is asked, as far as advice depends on it.

    Attributes:
        served: whether a server is behind it; else it runs in this process.
        schema: whether the ids step is held to a JSON schema now. schema_obeyed: whether the server obeyed one; None:
            it was not asked, or cannot tell. thinks: thinking was seen in most replies. switch: its family can be told
            not to.
    """

    served: bool
    endpoint: str
    schema: bool
    schema_obeyed: bool | None
    thinks: bool
    switch: bool

    @classmethod
    def of(cls, lm: ConnectedLM, probes: Sequence[Probe], seen: Seen) -> Connection:
        """As `lm` is connected."""
        answers = {each.name: each.answer for each in probes}
        return cls(
            served=bool(probes),
            endpoint=str(lm.identity.get("endpoint") or "chat"),
            schema=lm.profile.json_schema is True,
            schema_obeyed={"yes": True, "no": False}.get(answers.get("JSON schema", "")),
            thinks=max(seen.shares["thinking"].value, seen.shares["thinks_aloud"].value) > MOST,
            switch=lm.profile.switch is not None,
        )


def findings(seen: Seen, how: Connection, limit: float = MAX_BAD_REPLIES) -> list[Finding]:
    """Everything worth a line: errors, then bad replies above `limit`, then habits."""
    return [*_errors(seen), *_bad(seen, how, limit), *_habits(seen, how), *_kept(seen)]


def _errors(seen: Seen) -> Iterator[Finding]:
    for kind, count in seen.errors.items():
        told = f"{Share(count, seen.questions).words} of questions ended in an error ({kind})"
        yield Finding("errors", True, told, _OF_ERRORS.get(kind, "the run's report names each; ask again with --run"))


def _bad(seen: Seen, how: Connection, limit: float) -> Iterator[Finding]:
    for name in BAD:
        share = seen.shares[name]
        if share.value > limit:
            yield Finding(name, True, f"{SHARES[name]}: {share.words}{_worst(seen, name)}", _ADVICE[name](how))


def _worst(seen: Seen, name: str) -> str:
    by_stage = {stage: shares[name] for stage, shares in seen.stages.items() if name in shares}
    worst = max(by_stage, key=lambda stage: by_stage[stage].count, default="")
    return f", most in {worst} ({by_stage[worst].count} of {by_stage[worst].of})" if worst else ""


def _habits(seen: Seen, how: Connection) -> Iterator[Finding]:
    for name in _HABITS:
        share = seen.shares[name]
        if share.value > NOTED:
            yield Finding(name, False, f"{SHARES[name]}: {share.words}", _ADVICE[name](how))
    concluded = seen.shares["concluded"]
    if concluded.of and 1 - concluded.value > NOTED:
        told = f"reasonings without “So the answer is”: {Share(concluded.of - concluded.count, concluded.of).words}"
        yield Finding("no_conclusion", False, told, _no_conclusion(how))


def _kept(seen: Seen) -> Iterator[Finding]:
    kept, dropped = seen.shares["kept"], seen.shares["gold_dropped"]
    if kept.value > KEPT_ALL:
        advice = "the filter's calls change little: --method cot-retrieval answers from as many passages for fewer"
        yield Finding("keeps_all", False, f"{SHARES['kept']}: {kept.words}", advice)
    if dropped.value > DROPPED_GOLD:
        advice = "it cannot judge what bears on a question: a larger model, or --filter passage, which asks none"
        yield Finding("gold_dropped", False, f"{SHARES['gold_dropped']}: {dropped.words}", advice)


def _ids(how: Connection) -> str:
    if how.schema_obeyed and not how.schema:
        return "--json-schema holds the ids to a list of numbers (in Python: connect(…, json_schema=True))"
    if how.schema and how.schema_obeyed is False:
        return (
            "a JSON schema is asked for and not obeyed: --no-json-schema, or a server that obeys one (vLLM, llama.cpp)"
        )
    if how.thinks:
        return _thinking(how)
    if how.schema and (how.schema_obeyed or not how.served):  # and they are cut off, or hold none all the same
        return "its ids are held to a JSON schema already: a larger instruct model"
    return f"serve it where a JSON schema is obeyed (vLLM, llama.cpp) and add --json-schema; {_other_endpoint(how)}"


def _rambling(how: Connection) -> str:
    if how.thinks:
        return _thinking(how)
    return f"a topic, ids and an answer are a few words: {_other_endpoint(how)}"


def _thinking(how: Connection) -> str:
    if how.switch:
        return "--no-thinking turns thinking off, --reasoning low shortens it"
    return (
        "the model thinks, and how to turn that off is not known for its name: set it at the server (connect(…, "
        "extra_body=…), or a reasoning parser), or take a model that does not think"
    )


def _other_endpoint(how: Connection) -> str:
    if not how.served:
        return "take a larger instruct model"
    if how.endpoint == "completions":
        return "an instruct model wants --endpoint chat; else take a larger model"
    return "a base model wants --endpoint completions; else take a larger instruct model"


def _empty(how: Connection) -> str:
    if how.thinks:
        return f"thinking uses the cap up: {_thinking(how)}"
    return f"look at the trace (blendfilter report on this run); {_other_endpoint(how)}"


def _cut(how: Connection) -> str:
    if how.thinks:
        return f"thinking counts against the cap: {_thinking(how)}"
    return (
        "it writes more than the prompts ask for: ask for less in words of your own (--prompts DIR), or a larger model"
    )


def _no_conclusion(how: Connection) -> str:
    if how.thinks:
        return f"thinking stands where the reasoning should: {_thinking(how)}"
    return f"the short answer is then read from all of it; {_other_endpoint(how)}"


_ADVICE: Mapping[str, Callable[[Connection], str]] = {
    "unparseable_ids": _ids,
    "suspect_ids": _ids,
    "negated_ids": _ids,
    "restated_range": _ids,
    "explicit_none": lambda how: (
        "it keeps nothing where it says none; in Python BlendFilter(…, fallback=True) keeps K_q"
    ),
    "empty_reply": _empty,
    "cut_reply": _cut,
    "refused_reply": lambda how: "it declines harmless questions: another model, or words of your own (--prompts DIR)",
    "thinking": lambda how: f"it is set apart and costs tokens: {_thinking(how)}",
    "thinks_aloud": lambda how: f"no tag that is known sets it apart: {_thinking(how)}",
    "ran_on": lambda how: (
        "the reply is cut at the stop on this end, the tokens after it are paid for: a server that obeys stop"
    ),
    "markdown": lambda how: "nothing to change: readers look through the marks",
    "rambling": _rambling,
    "long_answer": lambda how: (
        "EM and F1 count every word: a larger model, or a short_answer.j2 of your own (--prompts)"
    ),
    "not_yes_no": lambda how: "these count as wrong: a larger model, or a short_answer.j2 of your own (--prompts DIR)",
}
_HABITS = (
    "suspect_ids", "negated_ids", "restated_range", "explicit_none", "refused_reply", "thinking", "thinks_aloud",
    "ran_on", "rambling", "markdown", "long_answer", "not_yes_no",
)  # fmt: skip
_OF_ERRORS: Mapping[str, str] = {
    "context_too_long": (
        "serve the model with a longer context (8,192 tokens take every prompt; in this process: --context 8192), "
        "or -k 3"
    ),
    "rate_limited": "the provider lets fewer calls through: its limit as --rpm or --tpm, or --concurrency 2",
    "timeout": "the server is slow for so many at once: --concurrency 1, or more seconds with --timeout",
    "server_error": "look at the server's log; --concurrency 1 tells load from fault",
    "bad_request": "the server refuses a parameter or the prompt: the run's report shows its words",
}
