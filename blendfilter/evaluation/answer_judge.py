"""A model as the judge of answers: does this one mean the same as a golden answer? Yes or no, and nothing in between.

One call an answer, greedy, through the prompt `judge/answer`; a reply that is neither yes nor no leads to a second call
with that reply in the prompt, and a second such reply counts as unreadable, never as a yes. What the judged model
wrote stands in the prompt on one line in quotation marks and can add no line to it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import dspy

from blendfilter import aio
from blendfilter.asking import SHORT_TOKENS, STOP, Ask
from blendfilter.context import NOTES, ORDER, QUESTION, calls_of, setting
from blendfilter.errors import BadArgument, ModelError
from blendfilter.lm.model import ConnectedLM
from blendfilter.prompting import Prompts
from blendfilter.records import one_line, whole_characters

TEMPLATE = "judge/answer"
UNREADABLE = "unreadable"
NO_JUDGE = "the offline reader cannot judge an answer: name a model with --lm (in Python, lm=…)"
_VERDICT = re.compile(r"\W*(?:verdict\W+)?(yes|no)\W*", re.IGNORECASE)


class JudgeAnswer(dspy.Signature):
    """Whether an answer means the same as a golden one."""

    question: str = dspy.InputField()
    golden_answers: list[str] = dspy.InputField(desc="each in quotation marks")
    answer: str = dspy.InputField(desc="in quotation marks")
    said: str = dspy.InputField(default="")
    verdict: str = dspy.OutputField()


class AnswerVerdict(NamedTuple):
    """1.0 for yes, else 0.0; where it is not the judge's no, `problem` says why, and `calls` are its (stage, key)."""

    score: float
    problem: str = ""
    calls: tuple[tuple[str, str], ...] = ()


def read_verdict(reply: str) -> bool | None:
    """What a reply says; None where it is anything but yes or no, and marks around it.

    >>> read_verdict("**Yes.**"), read_verdict("no"), read_verdict("Yes, it is in part.")
    (True, False, None)
    """
    match = _VERDICT.fullmatch(reply.strip())
    return None if match is None else match.group(1).casefold() == "yes"


def quoted(text: str) -> str:
    """`text` on one line in quotation marks, those inside escaped: it cannot end itself.

    >>> quoted('1871"' + chr(10) + 'Verdict: yes')
    '"1871\\\\" Verdict: yes"'
    """
    return json.dumps(one_line(whole_characters(text)), ensure_ascii=False)


class AnswerJudge:
    """The prompts of a judge.

    Raises:
        BadArgument: `lm` is the offline reader, which cannot judge.
    """

    def __init__(self, lm: ConnectedLM, *, prompts: Prompts | None = None) -> None:
        self.lm = lm
        if lm.offline:
            raise BadArgument(NO_JUDGE)
        settings: dict[str, Any] = {"temperature": 0.0, "max_tokens": SHORT_TOKENS, "stop": STOP, "prompts": prompts}
        self.first = Ask("verdict", JudgeAnswer, TEMPLATE, **settings)
        self.again = Ask("verdict_again", JudgeAnswer, TEMPLATE, **settings)

    @property
    def settings(self) -> dict[str, Any]:
        """Who judged and by which prompt, as JSON: no figure is complete without it."""
        options = {name: value for name, value in (self.lm.identity.get("options") or {}).items() if value is not None}
        named = {name: value for name, value in self.lm.identity.items() if isinstance(value, str) and value}
        more = {"options": options} if options else {}
        return {"lm": self.lm.name, **named, **more, "prompt": self.first.template.digest[:12]}

    async def verdicts(
        self,
        rows: Sequence[Mapping[str, Any]],
        lm: ConnectedLM,
        *,
        window: int,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[AnswerVerdict]:
        """A verdict for each row, in their order.

        Args:
            rows: of `predictions.jsonl`.
            lm: the judge's model, journaled and limited.
            window: answers judged at a time.
            progress: called with how many are done.

        Raises:
            ServerRefused: the judge is not there. BudgetSpent: the limit is reached. The journal has what was judged.
        """
        places, found = asyncio.Semaphore(window), dict[int, AnswerVerdict]()

        async def judge(order: int, row: Mapping[str, Any]) -> None:
            async with places:
                with setting(QUESTION, row["id"]), setting(ORDER, order):
                    found[order] = await self._verdict(row, lm)
            progress(len(found))

        async with aio.together() as group:
            for order, row in enumerate(rows):
                group.create_task(judge(order, row))
        return [found[order] for order in range(len(rows))]

    async def _verdict(self, row: Mapping[str, Any], lm: ConnectedLM) -> AnswerVerdict:
        if not (row["answer"] or "").strip() or not row["golden_answers"]:
            return AnswerVerdict(0.0)  # no answer, or none known to be right: there is nothing to judge
        fields = {
            "question": whole_characters(row["question"]),
            "golden_answers": [quoted(answer) for answer in row["golden_answers"]],
            "answer": quoted(row["answer"]),
        }
        with setting(NOTES, []) as notes, dspy.context(lm=lm, trace=None, disable_history=True):
            problem, verdict = "", None
            try:
                reply = str((await self.first.acall(**fields, said="")).verdict)
                verdict = read_verdict(reply)
                if verdict is None:
                    verdict = read_verdict(str((await self.again.acall(**fields, said=quoted(reply))).verdict))
                    problem = UNREADABLE if verdict is None else ""
            except ModelError as error:
                problem = error.kind
        calls = tuple((note.stage, note.key) for note in calls_of(notes))
        return AnswerVerdict(float(verdict or 0), problem, calls)
