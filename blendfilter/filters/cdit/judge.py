"""CDIT's judge: is a passage consistent with a question under context matching dependencies?

CDIT ("Context-Driven Index Trimming"), section 4.2 and appendix B.1: a model extracts and compares the components that
the rules name, and decides. In: a question and a passage. Out: True, False, or None where the reply is no verdict.
Calls: consistent, one a passage.

Differs from the paper: the words are ours. What the question asks for is open and matches anything; a passage is judged
by its nearest sentence. Besides the paper's one word (`word`) the judge may give its grounds (`components`), which are
held against its verdict. A reply that is no verdict is asked for once and counted, never taken for False.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal, get_args

import dspy

from blendfilter import aio
from blendfilter.asking import REPLY_TOKENS, SHORT_TOKENS, STOP, Ask, Wording
from blendfilter.errors import UnknownName
from blendfilter.filters.base import Signed
from blendfilter.filters.cdit.reading import Comparison, contradicts, read_verdict, stated
from blendfilter.filters.cdit.rules import RULES, Rule, components_of, rules_of
from blendfilter.filters.knowledge import Reply, holds_to_schema, said, schema_of
from blendfilter.prompting import Prompts, TemplateAdapter
from blendfilter.records import Passage
from blendfilter.retrieval.callables import as_passage

Mode = Literal["word", "components"]
_ROW_TOKENS = 64
"""Room for a component's row, which as JSON needs some more."""


class Consistent(dspy.Signature):
    """Whether a passage is consistent with a question, in one word."""

    rules: list[str] = dspy.InputField()
    passage: str = dspy.InputField(desc="Title | text")
    question: str = dspy.InputField()
    verdict: str = dspy.OutputField(desc="True or False")


class ComparedWith(dspy.Signature):
    """Whether a passage is consistent with a question: component by component, the reason, the verdict."""

    rules: list[str] = dspy.InputField()
    passage: str = dspy.InputField(desc="Title | text")
    question: str = dspy.InputField()
    comparison: str = dspy.OutputField(desc="a line for each component, then Reason: and Verdict: True or False")


class Judge(dspy.Module):
    """Says of one passage whether it is consistent with a question.

    Args:
        mode: `word`, the paper's one word, or `components`: what was compared, the reason, the verdict.
        rules: names in `RULES`, or `Rule`s; all of them must hold.
        json_schema: of `components`: hold the reply to a JSON schema; None: where the model's profile says that its
            server can.
        wording: a task's instructions. prompts, adapter: see `blendfilter.asking.Ask`.

    The result has `verdict` (True, False, or None), `reason` and `compared` (in the mode `components`), `reply`, and
    `flags`: `no_verdict`, and `contradicted_verdict` where the verdict goes against its own comparison. A passage of no
    text at all has no verdict, and nothing is asked.
    """

    __signature__ = Signed()

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
        if mode not in get_args(Mode):
            raise UnknownName.of("mode", mode, get_args(Mode))
        self.mode = mode
        self.rules = rules_of(rules)
        self.json_schema = json_schema
        self.components = components_of(self.rules)
        signature, room = (Consistent, SHORT_TOKENS) if mode == "word" else (ComparedWith, self._room())
        # A base model goes on with another example.
        shared: dict[str, Any] = {"prompts": prompts, "adapter": adapter, "stop": [*STOP, "\nPassage:"]}
        self.consistent = (wording or Wording())(
            Ask("consistent", signature, f"cdit/{mode}", max_tokens=room, **shared)
        )

    def forward(self, question: str, passage: Passage) -> dspy.Prediction:
        return aio.run(self.aforward(question=question, passage=passage), type(self).__name__)

    async def aforward(self, question: str, passage: Passage) -> dspy.Prediction:
        """The verdict on one passage."""
        line = as_passage(passage).line
        if not line.strip():
            return dspy.Prediction(verdict=None, reason="there is no text to judge", compared=[], reply="", flags={})
        reply = await said(
            self.consistent,
            rules=[rule.line for rule in self.rules],
            passage=line,
            question=question,
            config=self._config(),
        )
        return self._read(reply)

    def _read(self, reply: Reply) -> dspy.Prediction:
        if self.mode == "word":
            verdict = None if reply.cut else read_verdict(reply.text)
            return _judged(Comparison(verdict, [], ""), reply.text)
        told = stated(reply.text, self.components)
        if reply.cut:
            return _judged(told._replace(verdict=None), reply.text)
        if contradicts(told):
            return _judged(told._replace(verdict=None), reply.text, contradicted_verdict=1)
        return _judged(told, reply.text)

    def _config(self) -> dict[str, Any]:
        if self.mode == "word" or not holds_to_schema(self.json_schema, self.consistent):
            return {}
        return {"response_format": schema_of("comparison", comparison_schema(self.components))}

    def _room(self) -> int:
        return REPLY_TOKENS + _ROW_TOKENS * max(0, len(self.components) - 3)

    def arguments(self) -> dict[str, Any]:
        """Its settings, as JSON, for a run's record: a rule of ours by its name, one's own with all that it says."""
        told = zip(self.rules, self.identity()["rules"], strict=True)
        rules = [rule.name if RULES.get(rule.name) == rule else said for rule, said in told]
        return {"mode": self.mode, "rules": rules, "json_schema": self.json_schema}

    def identity(self) -> dict[str, Any]:
        """What its verdicts depend on beside the model, as JSON: mode, rules, and a digest of what it is told.

        >>> Judge().identity()["rules"][0]["name"]
        'phi1'
        """
        rules = [{**asdict(rule), "components": list(rule.components)} for rule in self.rules]
        schema = {"json_schema": self.json_schema} if self.mode == "components" else {}
        return {"mode": self.mode, "rules": rules, **schema, "program": self._program()}

    def _program(self) -> str:
        """16 hex digits over instructions, demonstrations and template, or the adapter in its place."""
        adapter = self.consistent.adapter
        spoken = self.consistent.template.digest if isinstance(adapter, TemplateAdapter) else type(adapter).__qualname__
        demos = [dict(demo) for demo in self.consistent.demos]
        told = [self.consistent.signature.instructions, demos, spoken]
        return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]


def comparison_schema(components: Sequence[str]) -> dict[str, Any]:
    """The JSON schema of a comparison: these components and no others, all of them, before reason and verdict."""
    text = {"type": "string"}
    cells = {"question": text, "passage": text, "alike": {"type": "string", "enum": ["alike", "unlike", "unsaid"]}}
    row = {"type": "object", "properties": cells, "required": list(cells), "additionalProperties": False}
    rows = {
        "type": "object",
        "properties": dict.fromkeys(components, row),
        "required": list(components),
        "additionalProperties": False,
    }
    return {"comparison": rows, "reason": text, "verdict": {"type": "boolean"}}


def _judged(told: Comparison, reply: str, **flags: int) -> dspy.Prediction:
    counted = {"no_verdict": 1, **flags} if told.verdict is None else {}
    return dspy.Prediction(verdict=told.verdict, reason=told.reason, compared=told.compared, reply=reply, flags=counted)
