"""Predictors that speak through a prompt template, and a task's program: its instructions and demonstrations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, Self

import anyio.to_thread
import dspy
import pydantic

from blendfilter import aio, resources
from blendfilter.context import STAGE, setting
from blendfilter.errors import BadData, UnknownName
from blendfilter.prompting import SHARED, WHOLE_READERS, Prompts, TemplateAdapter, own_prompts

REPLY_TOKENS = 256  # cap of a reasoning, a passage or a judgement (which the paper leaves open)
SHORT_TOKENS = 32  # cap of ids, a topic or a short answer
SHORT_ROOM = f"{SHORT_TOKENS} tokens, its first line"  # `Ask.room` of a short answer
STOP = ["\nKnowledge:", "\nQuestion:"]  # where a model starts to invent the next example
FEW_SHOT = {
    "blendfilter/external", "blendfilter/answer", "cot", "direct",
    "self_ask/step", "react/step", "react/thought_action",
}  # fmt: skip
"""Templates with a task's demonstrations; the others are zero-shot (BlendFilter, appendices D and F)."""


class Ask(dspy.Predict):
    """A `dspy.Predict` that speaks through a template: a call runs under its own adapter and its own stage name.

    Args:
        stage: the predictor's name in journals and ledgers.
        signature: its fields; the instructions come from the template (or the task's program).
        template: the template's name.
        prompts: where templates come from.
        adapter: an adapter in place of the template (`dspy.ChatAdapter()`); a `TemplateAdapter` without a template of
            its own renders this one.
        config: decoding settings, as `dspy.Predict` takes them.
    """

    def __init__(
        self,
        stage: str,
        signature: type[dspy.Signature],
        template: str,
        *,
        prompts: Prompts | None = None,
        adapter: dspy.Adapter | None = None,
        **config: Any,
    ) -> None:
        prompts = prompts or own_prompts()
        super().__init__(signature.with_instructions(prompts[template].instructions), **config)
        self.name = stage
        self.template = prompts[template]
        if isinstance(adapter, TemplateAdapter):
            adapter = adapter.with_template(template)
        self.adapter = adapter or TemplateAdapter(template, prompts)

    def forward(self, **inputs: Any) -> dspy.Prediction:
        with setting(STAGE, self.name), dspy.context(adapter=self.adapter):
            return super().forward(**inputs)

    async def aforward(self, **inputs: Any) -> dspy.Prediction:
        with setting(STAGE, self.name), dspy.context(adapter=self.adapter):
            lm = inputs.get("lm") or self.lm or dspy.settings.lm
            if lm is not None and not aio.is_asynchronous(lm):
                # One of anyio's threads, because DSPy's status messages find their way back from those.
                return await anyio.to_thread.run_sync(aio.carried(partial(super().forward, **inputs)))
            return await super().aforward(**inputs)

    @property
    def room(self) -> str:
        """How much of an answer is read (``32 tokens, its first line``); empty where the output is no answer."""
        if "answer" not in self.signature.output_fields:
            return ""
        read = self.adapter.reads if isinstance(self.adapter, TemplateAdapter) else type(self.adapter).__name__
        return f"{self.config.get('max_tokens')} tokens, {read}"

    def load_state(self, state: Mapping[str, Any], **options: Any) -> Ask:
        """As `dspy.Predict.load_state`, which would take fields over by position.

        Raises:
            BadData: the saved fields are not this predictor's. (The last one's prefix is COPRO's to rewrite.)
        """
        saved = [field["prefix"] for field in state["signature"]["fields"]]
        own = [field["prefix"] for field in self.signature.dump_state()["fields"]]
        if len(saved) != len(own) or saved[:-1] != own[:-1]:
            raise BadData(
                f"the saved program's '{self.name}' has the fields {' '.join(saved)} and this one {' '.join(own)}: "
                "it was saved for another method or version; compile it again"
            )
        super().load_state(state, **options)
        return self

    def render(self, **inputs: Any) -> str:
        """The prompt that these inputs would be sent as, through a template."""
        adapter = self.adapter if isinstance(self.adapter, TemplateAdapter) else TemplateAdapter(self.template.name)
        return adapter.render(self.signature, self.demos, inputs)


_FILLED = pydantic.ConfigDict(extra="forbid", frozen=True, str_min_length=1)


class WorkedHop(pydantic.BaseModel):
    """One follow-up of a demonstration: its reason, what it finds (numbers into the knowledge), and its answer."""

    model_config = _FILLED
    thought: str
    follow_up: str
    knowledge: list[pydantic.NonNegativeInt] = pydantic.Field(min_length=1)
    answer: str


class Demonstration(pydantic.BaseModel):
    """One worked example; an unfilled slot is an error."""

    model_config = _FILLED
    question: str
    knowledge: list[str] = pydantic.Field(min_length=1)
    reasoning: str
    hops: list[WorkedHop] = pydantic.Field(min_length=1)
    answer: str

    @pydantic.model_validator(mode="after")
    def _hops_find_what_is_there(self) -> Self:
        if any(number >= len(self.knowledge) for hop in self.hops for number in hop.knowledge):
            raise ValueError(f"a hop's knowledge is numbered from 0 to {len(self.knowledge) - 1}")
        return self

    def found(self, hop: WorkedHop) -> list[str]:
        return [self.knowledge[number] for number in hop.knowledge]


DemoFields = Callable[[Demonstration], Mapping[str, Any]]
"""Makes a predictor's fields of a demonstration."""


class TaskWording(pydantic.BaseModel):
    """A task's default program, `programs/<task>/default.json`.

    Attributes:
        instructions: in place of a template's own, by template name.
        demos: worked examples with `question`, `knowledge` (lines of Title | text), `reasoning` that ends "So the
            answer is X.", the same in `hops`, and `answer`; every predictor takes the fields it has.
        offer_none, ask_topic: switches of BlendFilter's filter.
        answer_tokens: cap of the reply that is the answer.
        whole_answer: answers are sentences: the whole reply is the answer, not its first line.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    offer_none: bool = False
    ask_topic: bool = True
    answer_tokens: pydantic.PositiveInt = SHORT_TOKENS
    whole_answer: bool = False
    instructions: dict[str, str] = {}
    demos: list[Demonstration] = []

    @staticmethod
    @lru_cache
    def of(task: str) -> TaskWording:
        """The wording of `task`. Raises: UnknownName, BadData (an unfilled slot)."""
        folder = resources.programs()
        path = folder / task / "default.json"
        if not path.is_file():
            raise UnknownName.of("program", task, (each.parent.name for each in folder.glob("*/default.json")))
        try:
            return TaskWording.model_validate_json(path.read_bytes())
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            raise BadData(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error

    def __call__(self, predictor: Ask, worked: DemoFields = Demonstration.model_dump) -> Ask:
        """`predictor` with this task's instructions, room for answers and (in few-shot templates) demonstrations.

        `worked` makes a demonstration's fields. An overridden template keeps the instructions that it brings.
        """
        name = predictor.template.name
        # A second request for the same thing has the same instructions.
        names = (name, SHARED.get(name, ""), name.removesuffix("_again"))
        instructions = next((self.instructions[each] for each in names if each in self.instructions), None)
        if instructions and not predictor.template.keeps_its_words:
            predictor.signature = predictor.signature.with_instructions(instructions)
        if name in FEW_SHOT:
            predictor.demos = demonstrations(predictor, [worked(demo) for demo in self.demos])
        if "answer" not in predictor.signature.output_fields:
            return predictor
        if self.answer_tokens != SHORT_TOKENS:
            predictor.config = {**predictor.config, "max_tokens": self.answer_tokens}
        if self.whole_answer and isinstance(predictor.adapter, TemplateAdapter):
            predictor.adapter = predictor.adapter.with_readers(WHOLE_READERS)
            if "context" in predictor.signature.input_fields:
                # A base model goes on with another example: of a short answer only the first line counts anyway.
                predictor.config = {**predictor.config, "stop": [*predictor.config.get("stop", []), "\nContext:"]}
        return predictor


class PromptSettings(NamedTuple):
    """What all predictors of a module share: the task's wording, the templates, or an adapter in their place."""

    wording: TaskWording
    prompts: Prompts | None = None
    adapter: dspy.Adapter | None = None

    @classmethod
    def of(
        cls, task: TaskWording | str | None, prompts: Prompts | None, adapter: dspy.Adapter | None
    ) -> PromptSettings:
        """`task` is a task's name or a wording; None: the templates' own words."""
        wording = TaskWording.of(task) if isinstance(task, str) else task or TaskWording()
        return cls(wording, prompts, adapter)

    def predictor(
        self,
        stage: str,
        signature: type[dspy.Signature],
        template: str,
        max_tokens: int = REPLY_TOKENS,
        *,
        stop: Sequence[str] = STOP,
        worked: DemoFields = Demonstration.model_dump,
    ) -> Ask:
        """A predictor with these settings; `worked` as in `TaskWording`."""
        ask = Ask(
            stage, signature, template,
            prompts=self.prompts, adapter=self.adapter, max_tokens=max_tokens, stop=list(stop),
        )  # fmt: skip
        return self.wording(ask, worked)


def demonstrations(predictor: dspy.Predict, rows: Sequence[Mapping[str, Any]]) -> list[dspy.Example]:
    """`rows` as DSPy demos of `predictor`: the fields that it has."""
    inputs = list(predictor.signature.input_fields)
    fields = [*inputs, *predictor.signature.output_fields]
    return [dspy.Example(**{name: row[name] for name in fields if name in row}).with_inputs(*inputs) for row in rows]
