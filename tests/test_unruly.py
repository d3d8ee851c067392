"""An unruly chat model through the pipeline: what it does is counted by name, nothing is read that it did not name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import unruly

from blendfilter.evaluation.run_status import stage_of
from blendfilter.journal import Journal
from blendfilter.lm.journaled import is_refusal
from blendfilter.lm.model import connect
from blendfilter.records import Passage
from blendfilter.report.doctor import Examination, examine
from blendfilter.resources import sample
from blendfilter.retrieval.corpus import read_corpus

QUESTIONS = 6
NAMED: Mapping[str, set[str]] = {
    "tame": set(),
    "rambles": {
        "suspect_ids",
        "rambling",
        "long_answer",
        "not_yes_no",
        "unread_verdict",
        "no_verdict",
        "unread_sentences",
    },
    "markdown": {"markdown"},
    "thinks": {"thinking"},
    "thinks_aloud": {"thinks_aloud", "rambling", "long_answer", "not_yes_no", "unread_verdict", "no_verdict"},
    "negates": {"suspect_ids", "negated_ids", "unread_sentences"},
    "restates": {"unparseable_ids", "restated_range", "unread_sentences", "unparseable_sentences"},
    "refuses": {
        "unparseable_ids",
        "refused_reply",
        "no_conclusion",
        "long_answer",
        "not_yes_no",
        "unread_verdict",
        "no_verdict",
        "unread_sentences",
        "unparseable_sentences",
    },
    "cut": {"cut_reply", "no_conclusion", "not_yes_no", "unread_verdict", "no_verdict", "unread_sentences"},
    "empty": {"empty_reply", "no_conclusion", "not_yes_no", "unread_verdict", "no_verdict", "unread_sentences"},
}
"""What `doctor` names in each mood, beside what the filter keeps."""
BAD = {"rambles", "thinks_aloud", "restates", "refuses", "cut", "empty"}
KEPT = {"keeps_all", "gold_dropped"}
READ_AS = ("read_ids", "explicit_none", "suspect_ids", "unparseable_ids", "unfinished_ids")


class Call(NamedTuple):
    stage: str
    prompt: str
    record: Mapping[str, Any]


def examined(mood: str, folder: Path) -> Examination:
    with unruly.serve(mood) as address:
        return examine(connect("unruly", api_base=address), questions=QUESTIONS, run=folder, progress=False)


def calls(folder: Path, row: Mapping[str, Any]) -> list[Call]:
    with Journal(folder, "replay") as journal:
        records = [(stage_of(stage), journal.read(key)) for stage, key in row["calls"]]
    return [Call(stage, record["prompt"], record) for stage, record in records if record is not None]


@pytest.fixture(scope="module")
def passages() -> dict[str, Passage]:
    return {passage.id: passage for passage in read_corpus(sample("corpus.jsonl"))}


@pytest.mark.parametrize("mood", [*unruly.MOODS, unruly.MIXED])
def test_what_it_does_is_counted_and_named_and_only_what_it_named_is_kept(
    mood: str, tmp_path: Path, passages: dict[str, Passage]
) -> None:
    result = examined(mood, tmp_path / "run")
    assert not result.seen.errors
    counted = Counter[str]()
    for row in result.run.rows:
        wanted = calls(tmp_path / "run", row)
        counted.update(event for call in wanted for event in [script_event(call.prompt, mood)] if event)
        named, unfinished = truly_named(wanted, mood), never_judged(wanted, mood)
        for name, branch in row["branches"].items():
            lines = [passages[each].line for each in branch["retrieved"]]
            ids = named[tuple(lines)]
            kept = None if ids is None else ids | unfinished.get(tuple(lines), set())
            expected = branch["retrieved"] if kept is None else [branch["retrieved"][i] for i in sorted(kept)]
            assert branch["kept"] == expected, (row["id"], name)
    flags = result.run.metrics["flags"]
    assert {name: flags[name] for name in ("empty_reply", "cut_reply", "refused_reply")} == {
        name: counted[name] for name in ("empty_reply", "cut_reply", "refused_reply")
    }
    assert flags["suspect_ids"] + flags["unparseable_ids"] == sum(
        not reply.named and not reply.cut and reply.text != "" for reply in readings(result, mood)
    )
    shares = [result.seen.shares[name] for name in READ_AS]
    assert sum(each.count for each in shares) == shares[0].of == len(readings(result, mood))
    assert {name: result.seen.shares[name].count for name in ("suspect_ids", "unparseable_ids")} == {
        name: flags[name] for name in ("suspect_ids", "unparseable_ids")
    }
    if mood != unruly.MIXED:
        assert {each.name for each in result.findings} - KEPT == NAMED[mood]
        assert result.healthy == (mood not in BAD)
        assert all(each.advice and each.told for each in result.findings)


def script_event(prompt: str, mood: str) -> str:
    """What the script did at a prompt, by the event's name."""
    result = unruly.said(prompt, mood)
    if not result.text:
        return "empty_reply"
    return "refused_reply" if is_refusal(result.text) else "cut_reply" if result.cut else ""


def truly_named(asked: list[Call], mood: str) -> dict[tuple[str, ...], frozenset[int] | None]:
    """By the passages that were judged: the ids that were named at the first try, else at the second; else None."""
    named: dict[tuple[str, ...], frozenset[int] | None] = {}
    for call in asked:
        if call.stage in ("ids", "ids_again"):
            lines = tuple(unruly.shown(call.prompt))
            named[lines] = named.get(lines) or unruly.said(call.prompt, mood).named
    return named


def never_judged(asked: list[Call], mood: str) -> dict[tuple[str, ...], set[int]]:
    """By the passages that were judged: those that a judgement that was cut off holds no whole line on."""
    left = {}
    for call in asked:
        if call.stage == "check" and (judgement := unruly.said(call.prompt, mood)).cut:
            lines, whole = tuple(unruly.shown(call.prompt)), judgement.text.splitlines()[:-1]
            judged = {number for number in range(len(lines)) for line in whole if line.startswith(f"{number}: ")}
            left[lines] = {*range(len(lines))} - judged
    return left


def readings(told: Examination, mood: str) -> list[unruly.Said]:
    """What the script said at each first try."""
    wanted = (call for row in told.run.rows for call in calls(told.run.folder, row))
    return [unruly.said(call.prompt, mood) for call in wanted if call.stage == "ids"]
