"""A model examined: which questions, what is counted, what is advised, how it is told."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import unruly
from dspy import lm15
from scripted import ScriptedLM, response

from blendfilter.errors import BadArgument, ModelError
from blendfilter.evaluation.ledger import LedgerEntry
from blendfilter.evaluation.run_status import Share
from blendfilter.lm.model import connect
from blendfilter.lm.offline import read
from blendfilter.report.doctor import SHARES, WIDTH, ReplyCounts, chosen, examine, findings, text_of

pytestmark = pytest.mark.usefixtures("fresh_dspy")


@pytest.mark.parametrize("n", [2, 20, 84])
def test_questions_are_spread_over_the_kinds(n: int) -> None:
    picked = chosen(n)
    kinds = Counter(each.type for each in picked)
    assert len({each.id for each in picked}) == len(picked) == n
    assert sum(kinds.values()) == n
    if n <= 54:  # as long as each kind has enough
        assert max(kinds.values()) - min(kinds.values(), default=0) <= 1
    assert [each.id for each in picked] == [each.id for each in chosen(n)]
    with pytest.raises(BadArgument, match="questions is 85: the sample has 84"):
        chosen(85)


def scripted_by_stage(**expected: Any) -> ScriptedLM:
    return ScriptedLM(lambda stage, prompt: expected.get(stage, read(prompt)))


def test_the_offline_reader_is_in_health(tmp_path: Path) -> None:
    result = examine("offline", questions=6, run=tmp_path / "run", progress=False)
    assert result.healthy
    assert {each.name for each in result.findings} <= {"gold_dropped"}, "its replies are what is asked for"
    assert result.probes == []
    assert result.seen.shares["read_ids"].value == 1.0
    text = text_of(dataclasses.replace(result, findings=[]))
    assert "Nothing to change: every reply was what the pipeline asks for." in text
    assert "The offline reader is rules" in text


def test_errors_are_bad_and_named_by_kind(tmp_path: Path) -> None:
    def reply(stage: str, prompt: str) -> Any:
        return ModelError("too long", kind="context_too_long", stage=stage) if stage == "check" else read(prompt)

    result = examine(ScriptedLM(reply), questions=2, run=tmp_path / "run", progress=False)
    assert not result.healthy
    assert "100.0 % (2 of 2) of questions ended in an error" in result.findings[0].told
    assert result.findings[0].bad


def test_the_limit_moves_what_is_healthy(tmp_path: Path) -> None:
    lm = scripted_by_stage(internal="")
    result = examine(lm, questions=2, run=tmp_path / "run", progress=False)
    assert not result.healthy
    again = examine(lm, questions=2, run=tmp_path / "run", max_bad_replies=0.5, progress=False)
    assert again.healthy
    assert not [each for each in again.findings if each.name == "empty_reply"]
    with pytest.raises(BadArgument, match="give a share from 0 to 1"):
        examine(lm, max_bad_replies=5)


def test_short_cases_say_whether_it_judges_and_names_sentences(tmp_path: Path) -> None:
    """Of a lost race it says nothing at first and True then; sentences it names when it is asked again."""

    def reply(stage: str, prompt: str) -> str:
        if stage == "consistent" and "lost the boat race" in prompt:
            return "Hard to tell."
        return {"consistent_again": "True", "helpful": "I cannot say."}.get(stage) or read(prompt)

    lm = ScriptedLM(reply)
    result = examine(lm, questions=2, run=tmp_path / "run", progress=False)
    shares = {name: (share.count, share.of) for name, share in result.seen.shares.items()}
    assert (shares["read_verdict"], shares["unread_verdict"], shares["no_verdict"]) == ((6, 8), (2, 8), (0, 8))
    assert shares["wrong_verdict"] == (2, 8)
    assert (shares["read_sentences"], shares["unparseable_sentences"]) == ((0, 3), (3, 3))
    assert shares["dropped_sentence"] == (0, 3)
    assert {each.name for each in result.findings if each.bad} == {"unparseable_sentences"}
    assert {each.name for each in result.findings} >= {"unread_verdict", "wrong_verdict", "unread_sentences"}
    assert not result.healthy
    rows = {line.split("  ")[0]: line for line in text_of(result).splitlines()}
    assert re.match(r"cdit word +5 +75\.0 % ", rows["cdit word"])
    assert re.match(r"filco sentences +6 +0\.0 % ", rows["filco sentences"])
    calls = lm.calls
    assert examine(lm, questions=2, run=tmp_path / "run", progress=False).seen == result.seen
    assert lm.calls == calls, "the short cases are journaled as the questions are"


def test_a_short_case_that_fails_is_bad_and_the_others_go_on(tmp_path: Path) -> None:
    def reply(stage: str, prompt: str) -> Any:
        return ModelError("gone", kind="server_error", stage=stage) if stage == "helpful" else read(prompt)

    result = examine(ScriptedLM(reply), questions=2, run=tmp_path / "run", progress=False)
    (found,) = result.findings
    assert (found.bad, found.told) == (True, "27.3 % (3 of 11) of short cases ended in an error (server_error)")
    assert result.seen.shares["read_verdict"].words == "100.0 % (8 of 8)"
    assert result.as_dict()["cases"] == {"count": 11, "errors": {"server_error": 3}}


@pytest.mark.parametrize("mood", ["mixed", "thinks"])
def test_it_is_told_in_80_columns_without_colour(mood: str, tmp_path: Path) -> None:
    with unruly.serve(mood) as address:
        result = examine(connect("unruly", api_base=address), questions=6, run=tmp_path / "run", progress=False)
    lines = text_of(result).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert all(line.isprintable() for line in lines)
    assert len([line for line in lines if line.startswith(("! ", "- "))]) == len(result.findings)
    text = "\n".join(lines)
    assert all(f"  {habit.words} " in text for habit in SHARES.values())
    share = result.seen.shares["empty_reply"]
    assert f"{share.count} of {share.of}" in text


def test_as_json_it_is_all_there(tmp_path: Path) -> None:
    result = examine("offline", questions=2, run=tmp_path / "run", progress=False)
    data = json.loads(json.dumps(result.as_dict()))
    assert (data["healthy"], data["questions"]) == (True, 2)
    assert data["replies"].keys() == SHARES.keys()
    assert data["replies"]["read_again"] == {"count": 0, "of": 0, "value": None}
    assert data["replies"]["empty_reply"]["high"] > 0
    assert data["ledger"]["calls"] == result.seen.entries["total"].calls
    assert data["ledger"]["cost"] is None


def test_what_nobody_told_is_no_number(tmp_path: Path) -> None:
    """A server that tells neither usage nor what it had cached; and one that tells both, at a price."""
    untold = ScriptedLM(lambda stage, prompt: without_usage(response(read(prompt))))
    result = examine(untold, questions=2, run=tmp_path / "run", progress=False)
    ledger, text = result.as_dict()["ledger"], text_of(result)
    assert (ledger["tokens_in"], ledger["tokens_cached"], ledger["cost"]) == (None, None, None)
    assert "calls, tokens not told" in " ".join(text.split())
    assert re.search(r"^total +\d+ +[\d.]+ % +- +[\d.]+ +-$", text, re.M)
    assert "tokens in," not in text
    with unruly.serve("tame") as address:
        priced = connect("m", api_base=address, prices=prices_of(tmp_path, "m"))
        result = examine(priced, questions=2, run=tmp_path / "priced", progress=False)
    total = result.seen.entries["total"]
    assert result.as_dict()["ledger"]["cost"] == total.tokens_in == total.whole_cost
    assert re.search(rf"tokens,\s\${total.tokens_in:,}\.00$", text_of(result), re.M)


def without_usage(expected: lm15.Response) -> lm15.Response:
    return dataclasses.replace(expected, usage=lm15.Usage())


def prices_of(folder: Path, model: str) -> Path:
    """A million dollars for a million tokens that are read, and what is written for nothing."""
    file = folder / "prices.toml"
    file.write_text(f'[models]\n"{model}" = {{ input = 1000000, output = 0 }}\n')
    return file


# --- advice ---------------------------------------------------------------------------------------------------------


def seen(**shares: Share) -> ReplyCounts:
    every = {name: Share(0, 100) for name in SHARES} | {"concluded": Share(100, 100), "kept": Share(50, 100)} | shares
    return ReplyCounts(questions=20, shares=every, stages={}, errors={}, entries={"total": LedgerEntry()})


@pytest.mark.parametrize(
    ("shares", "option"),
    [
        ({"unparseable_ids": Share(40, 100)}, "--json-schema"),
        ({"cut_reply": Share(40, 100)}, "--no-thinking"),
        ({"concluded": Share(10, 100)}, "--endpoint completions"),
    ],
)
def test_each_finding_names_its_option(shares: dict[str, Share], option: str) -> None:
    (found,) = findings(seen(**shares))
    assert option in found.advice


@pytest.mark.parametrize(
    ("name", "most", "found"),
    [("thinking", 5, "thinking"), ("kept", 95, "keeps_all"), ("gold_dropped", 20, "gold_dropped")],
)
def test_from_where_on_a_habit_is_worth_a_line(name: str, most: int, found: str) -> None:
    assert [*findings(seen(**{name: Share(0, 0) for name in SHARES}))] == []
    assert [*findings(seen(**{name: Share(most, 100)}))] == []
    assert [(each.name, each.bad) for each in findings(seen(**{name: Share(most + 1, 100)}))] == [(found, False)]


# --- FilCo ------------------------------------------------------------------------------------------------------------
