"""CDIT as a filter: what the judge rejects is dropped before anything is answered from it.

CDIT ("Context-Driven Index Trimming"), Figure 3, step 4: retrieved passages that are inconsistent with the question are
discarded. In: a question and K passages. Out: those accepted, in rank order. Calls: consistent, K side by side; one for
passages that read the same. What verdicts are worth beyond their question is trimming's (`blendfilter.trimming`).

Differs from the paper: a passage without a verdict is kept, and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import dspy

from blendfilter.aio import Steps
from blendfilter.asking import Wording
from blendfilter.filters.base import Filter
from blendfilter.filters.cdit.judge import Judge, Mode
from blendfilter.filters.cdit.rules import Rule
from blendfilter.prompting import Prompts
from blendfilter.records import Passage, one_line
from blendfilter.retrieval.callables import as_passage
from blendfilter.text import shortened

_SHOWN = 200
"""Characters of a reply without a verdict in the reason."""


class CDITFilter(Filter):
    """Drops the passages that the judge finds inconsistent with the question.

    Args: as `Judge` takes them.

    The result has `verdicts`, True, False or None for each passage; `status` is `kept 3 of 5`, with how many of them
    have no verdict, or `empty`; `reason` has a line a passage; `flags` counts the replies that were `no_verdict`, and
    of these `contradicted_verdict` apart. A call that fails is the question's error, not a verdict.
    """

    def __init__(
        self,
        mode: Mode = "word",
        rules: Sequence[str | Rule] = ("phi1",),
        *,
        json_schema: bool | None = None,
        wording: Wording | None = None,
        prompts: Prompts | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        super().__init__()
        self.judge = Judge(mode, rules, json_schema=json_schema, wording=wording, prompts=prompts, adapter=adapter)

    def arguments(self) -> dict[str, Any]:
        """The judge's settings."""
        return self.judge.arguments()

    async def aforward(self, question: str, passages: Sequence[Passage]) -> dspy.Prediction:
        """The passages that were not rejected."""
        passages = [as_passage(passage) for passage in passages]
        if not passages:
            return dspy.Prediction(kept=[], status="empty", reason="", flags={}, verdicts=[])
        judged = await self._judged(question, {passage.line: passage for passage in passages})
        said = [judged[passage.line] for passage in passages]
        verdicts = [each.verdict for each in said]
        kept = [passage for passage, verdict in zip(passages, verdicts, strict=True) if verdict is not False]
        flags = Counter[str]()
        for each in judged.values():
            flags.update(each.flags)
        return dspy.Prediction(
            kept=kept,
            status=_status(len(kept), verdicts),
            reason="\n".join(f"knowledge {at}: {_told(each)}" for at, each in enumerate(said)),
            flags=dict(flags),
            verdicts=verdicts,
        )

    async def _judged(self, question: str, passages: Mapping[str, Passage]) -> dict[str, dspy.Prediction]:
        """What the judge says of each, all of them asked side by side."""
        async with Steps() as steps:
            asked = {
                line: steps.start(self.judge.acall(question=question, passage=passage))
                for line, passage in passages.items()
            }
        return {line: await step for line, step in asked.items()}


def _status(kept: int, verdicts: Sequence[bool | None]) -> str:
    silent = verdicts.count(None)
    return f"kept {kept} of {len(verdicts)}" + (f", {silent} without a verdict" if silent else "")


def _told(said: dspy.Prediction) -> str:
    """A verdict on one line, with its grounds where there are some."""
    verdict = {True: "consistent", False: "inconsistent", None: "no verdict, kept"}[said.verdict]
    unlike = "; ".join(
        f"{each.component}: {each.question or '-'} / {each.passage or '-'}"
        for each in said.compared
        if each.alike is False
    )
    heard = shortened(one_line(said.reply), _SHOWN) if said.verdict is None and not said.reason else ""
    grounds = "; ".join(one_line(part) for part in (unlike, said.reason, f"it said {heard!r}" if heard else "") if part)
    return f"{verdict} ({grounds})" if grounds else verdict
