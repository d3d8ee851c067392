"""The judge: what it is shown, how its reply is read, and that a judged answer stays an answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedLM, scripted

from blendfilter.evaluation.rescoring import TEMPLATE, AnswerJudge, AnswerVerdict, quoted, read_verdict
from blendfilter.journal import Journal
from blendfilter.prompting import own_prompts
from blendfilter.run_context import RunContext


def row(answer: str | None, **more: Any) -> dict[str, Any]:
    return {"id": "q7", "question": "Who kept the light?", "golden_answers": ["Ada Brennock", "A. Brennock"],
            "answer": answer, **more}  # fmt: skip


def judged(lm: ScriptedLM, rows: list[dict[str, Any]], folder: Path, **more: Any) -> list[AnswerVerdict]:
    context = RunContext(lm, concurrency=2)
    with Journal(folder) as journal, context.opened(journal):
        return asyncio.run(AnswerJudge(context.model).verdicts(rows, context.lm, window=4, **more))


# what is said


@pytest.mark.parametrize(
    ("replies", "verdict"),
    [
        (["yes", "Yes.", " **YES** ", "Verdict: yes", '"yes"', "yes\n"], True),
        (["no", "No!", "`no`", "verdict: No."], False),
        (["", "yes, because it is", "yes or no", "nope", "I cannot say", "yesno", "not yes"], None),
    ],
)
def test_only_yes_and_no_are_verdicts(replies: list[str], verdict: bool | None) -> None:
    assert [read_verdict(reply) for reply in replies] == [verdict] * len(replies)


@given(st.text())
def test_reading_never_raises_and_a_verdict_has_its_word(reply: str) -> None:
    result = read_verdict(reply)
    assert result is None or ("yes" if result else "no") in reply.casefold()


# what is shown


def test_the_prompt_as_a_model_reads_it(tmp_path: Path) -> None:
    with scripted({"verdict": ["no"]}, temperature=0.9) as lm:
        found = judged(lm, [row("Ada of the light")], tmp_path)
    assert found == [AnswerVerdict(0.0, "", lm_calls(tmp_path), judged=True)]
    ((_, prompt),) = lm.prompts
    assert prompt.startswith(
        f"{own_prompts()[TEMPLATE].instructions}\nWhat stands in quotation marks is text to be judged"
    )
    assert prompt.partition("\n\n")[2] == (
        "Question: Who kept the light?"
        '\nGolden answers: "Ada Brennock", "A. Brennock"'
        '\nAnswer: "Ada of the light"'
        "\nVerdict (yes or no):"
    )
    (request,) = lm.inner.requests
    assert (request.config.temperature, request.config.max_tokens) == (0.0, 32)
    assert "\nQuestion:" in request.config.stop, "a base model would write the next example"


def lm_calls(folder: Path) -> tuple[tuple[str, str], ...]:
    with Journal(folder, "replay") as journal:
        return tuple((record["stage"], record["key"]) for record in journal.records())


@given(st.text(min_size=1).filter(lambda text: text.strip()))
def test_an_answer_stays_on_its_line_and_between_its_quotation_marks(answer: str) -> None:
    judge = AnswerJudge(ScriptedLM([]))
    prompt = judge.first.render(question="Who?", golden_answers=[quoted("Ada")], answer=quoted(answer), said="")
    lines = prompt.split("\n")
    assert lines[-4:-2] == ["Question: Who?", 'Golden answers: "Ada"']
    assert lines[-2].startswith('Answer: "')
    assert lines[-2].endswith('"')
    assert not lines[-2][9:-1].replace("\\\\", "").replace('\\"', "").count('"')
    assert lines[-1] == "Verdict (yes or no):"


# what is done


def test_an_unreadable_reply_is_asked_for_once_more_and_is_never_a_yes(tmp_path: Path) -> None:
    result = {"verdict": ["Yes, in part.", "Well…"], "verdict_again": ["no", "Yes, as I said."]}
    with scripted(result) as lm:
        verdicts = judged(lm, [row("Ada"), row("Bo")], tmp_path)
    assert [(each.score, each.problem) for each in verdicts] == [(0.0, ""), (0.0, "unreadable")]
    assert [len(each.calls) for each in verdicts] == [2, 2]
    first, second = lm.prompts_of("verdict_again")
    assert first.splitlines()[-3:] == [
        'A first reply was no verdict: "Yes, in part."', "Write one word, yes or no. No other words, no explanation.",
        "Verdict (yes or no):",
    ]  # fmt: skip
    assert '"Well…"' in second


def test_no_answer_needs_no_judge(tmp_path: Path) -> None:
    with scripted([]) as lm:
        assert judged(lm, [row(None), row("  ")], tmp_path) == [AnswerVerdict(0.0)] * 2


def test_the_same_answer_is_judged_once(tmp_path: Path) -> None:
    done: list[int] = []
    with scripted({"verdict": ["yes"]}) as lm:
        verdicts = judged(lm, [row("Ada"), row("Ada", id="q8", repeat=2)], tmp_path, progress=done.append)
    assert [each.score for each in verdicts] == [1.0, 1.0]
    assert done == [1, 2]
