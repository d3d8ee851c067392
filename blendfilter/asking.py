"""Predictors that speak through a prompt template, and a task's program: its instructions and demonstrations."""

from __future__ import annotations

import re
import types
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from json import dumps
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import anyio.to_thread
import dspy
import pydantic

from blendfilter import aio, resources
from blendfilter.context import setting
from blendfilter.dspy_surface import (
    FieldStream,
    answers_asynchronously,
    listeners_of,
    streaming_to,
)
from blendfilter.errors import BadArgument, BadData, UnknownName
from blendfilter.files import read_whole
from blendfilter.journal import digest
from blendfilter.lm.adopted import config_for, family_of
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.tokenisers import RULE, tokeniser_for
from blendfilter.prompting import (
    ANSWER_FORM,
    PAPER,
    WHOLE_READERS,
    Prompts,
    Template,
    TemplateAdapter,
    fills,
    what_is_wrong,
    worded_as,
)
from blendfilter.records import Passage, one_line
from blendfilter.shipped import BASE, CHAT, SMALL, ShippedStep
from blendfilter.tasks import TASKS

REPLY_TOKENS = 256  # cap of a reasoning or a passage (which the paper leaves open); `--reply-tokens` sets another
# cap of a judgement: chat models take 245 to 301 tokens for five passages
JUDGEMENT_TOKENS = REPLY_TOKENS + 192
SHORT_TOKENS = 32  # cap of ids, a topic or a short answer
NO_DEMOS = "none"
"""In place of a file of demonstrations: show none."""
REPLY_RANGE = (SHORT_TOKENS, 65_536)
"""The caps that `--reply-tokens` may set."""
SHORT_ROOM = f"{SHORT_TOKENS} tokens, its first line"  # `Ask.room` of a short answer
STOP = ["\nKnowledge:", "\nQuestion:"]  # where a model starts to invent the next example
FEW_SHOT = {
    "blendfilter/external",
    "blendfilter/answer",
    "cot",
    "direct",
    "self_ask/step",
    "react/step",
    "react/thought_action",
}
"""Templates with a task's demonstrations; the others are zero-shot (BlendFilter, appendices D and F)."""
PAPER_SHOTS = 3
"""Demonstrations in the set `paper`: the first three of a task's own (BlendFilter, appendix D)."""
ANSWERING = FEW_SHOT | {"blendfilter/short_answer", "cdit/answer"}
"""Templates that ask for an answer, or for reasoning that ends with one."""
JUDGING = {
    "blendfilter/check",
    "blendfilter/judge",
    "blendfilter/relevant",
    "filco/sentences",
    "filco/sentences_again",
    "filco/passages",
    "filco/passages_again",
}
"""Templates that ask what is relevant."""
_KNOW_THE_QUESTIONS = ANSWERING | JUDGING | {"blendfilter/internal", "blendfilter/topic"}
"""Templates that are told what a task's questions are."""
_JUDGEMENTS = {"relevance", "judgement"}
"""Replies that have a line for each passage."""
JUDGED = 5
"""Passages that a filter's demonstration shows: a model goes on for as many lines as it has seen."""
RAW_SHOTS = 2
"""Demonstrations of a zero-shot step for a base or a very small model, which learns its form from them alone."""
JUDGING_STOP = ["\nContext:"]
"""Where a base model starts to invent the next example of a judging step, beside `STOP` (servers take four at most)."""
_SHOWN_RAW = {
    "blendfilter/internal",
    "blendfilter/topic",
    "blendfilter/check",
    "blendfilter/ids",
    "blendfilter/ids_again",
    "blendfilter/judge",
    "blendfilter/relevant",
    "blendfilter/short_answer",
}


class RawPrompting(NamedTuple):
    """What a zero-shot predictor has more for a model that learns a form from examples alone.

    That is a base model, to which prompts are sent raw (`endpoint="completions"`), and a very small one
    (`Profile.small`), which does not follow a form that it is only told.

    Attributes:
        demos: its demonstrations, but in the papers' shape, which has none; those that an optimiser found go before.
        json_demos: the same with replies in JSON, for a model that is held to a schema.
        stop: further strings to stop at, of raw prompts.
    """

    demos: Sequence[dspy.Example] = ()
    json_demos: Sequence[dspy.Example] = ()
    stop: Sequence[str] = ()


class Ask(dspy.Predict):
    """A `dspy.Predict` that speaks through a template: a call runs under its own adapter and its own stage name.

    An adapter that was configured (`dspy.configure(adapter=…)`) is not used, which a warning says: `adapter=` is. Where
    an optimiser's demonstrations all lack fields, the task's own are shown, which a warning says too.

    Args:
        stage: the predictor's name in journals and ledgers.
        signature: its fields; the instructions come from the template (or the task's program).
        template: the template's name.
        prompts: where templates come from: `Prompts`, the name of a set (``"paper"``), or a folder.
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
        prompts: Prompts | str | None = None,
        adapter: dspy.Adapter | None = None,
        **config: Any,
    ) -> None:
        prompts = Prompts.of(prompts)
        self.task_demos: list[dspy.Example] = []  # what `TaskWording` gave it
        super().__init__(signature.with_instructions(prompts[template].instructions), **config)
        self.name = stage
        self.raw = RawPrompting()
        self.words = self.signature.instructions  # of its template and task
        self.shipped: Mapping[
            str, ShippedStep
        ] = {}  # by kind of model, what `Filter.ship` gave it
        self.reply_tokens: int | None = None  # what `TaskWording.reply_tokens` made of the cap
        self.template = prompts[template]
        if isinstance(adapter, TemplateAdapter):
            adapter = adapter.with_template(template)
        self.adapter = adapter or TemplateAdapter(template, prompts)
        if type(self) is Ask:
            # tracers (MLflow, OpenInference) call a module by its class
            self.__class__ = _class_of(stage)

    def __reduce__(self) -> Any:
        kind = type(self)
        return (
            _unmade,
            (kind.__name__ if kind is _class_of(kind.__name__) else kind,),
            self.__getstate__(),
        )

    def __repr__(self) -> str:
        """One line; DSPy's prints the instructions and every field."""
        fields = self.signature.signature
        return (
            f"{self.name}({fields!r}, template={self.template.name!r}, demos={len(self.demos)})"
        )

    def reset(self) -> None:
        """As `dspy.Predict.reset`, which optimisers call: the task's demonstrations stay."""
        super().reset()
        self.demos = [*self.task_demos]

    def forward(self, **inputs: Any) -> dspy.Prediction:
        with self._call(inputs) as (sent, field):
            prediction = super().forward(**sent)
            if field is not None:
                aio.run(field.end(prediction), self.name)
            return prediction

    async def aforward(self, **inputs: Any) -> dspy.Prediction:
        with self._call(inputs) as (sent, field):
            if answers_asynchronously(self._lm_for(inputs)):
                prediction = await super().aforward(**sent)
            else:
                # One of anyio's threads, because DSPy's status messages find their way back from those.
                call = aio.carried(partial(super().forward, **sent))
                prediction = await anyio.to_thread.run_sync(call)
            if field is not None:
                await field.end(prediction)
            return prediction

    @contextmanager
    def _call(
        self, inputs: dict[str, Any]
    ) -> Iterator[tuple[dict[str, Any], FieldStream | None]]:
        """One call's inputs as they are sent, and what gives its field to those who listen (`dspy.streamify`)."""
        with setting(stage=self.name), dspy.context(adapter=self._adapter_for(inputs)):
            sent = self._as_sent(inputs)
            listeners = listeners_of(self)
            if not listeners or not isinstance(self.adapter, TemplateAdapter):
                yield sent, None
                return
            read = partial(self.adapter.read_so_far, self.signature)
            field = FieldStream(self, listeners, read)
            with streaming_to(field):
                yield sent, field

    def _config(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The decoding settings of one call."""
        return {**self.config, **(inputs.get("config") or {})}

    def _held(self, inputs: Mapping[str, Any]) -> bool:
        """Whether the reply to one call is held to a JSON schema."""
        return self._config(inputs).get("response_format") is not None

    def _adapter_for(self, inputs: Mapping[str, Any]) -> dspy.Adapter:
        """The adapter of one call: a template knows where the reply is held to a JSON schema."""
        if not isinstance(self.adapter, TemplateAdapter):
            return self.adapter
        configured = dspy.settings.adapter
        if configured is not None and not isinstance(configured, TemplateAdapter):
            warnings.warn(
                f"{type(configured).__name__} is configured and not used: prompts of this package are templates, and "
                "their replies plain text; hand it over where you make the method (adapter=…) to have it used",
                stacklevel=1,
            )
        # the papers' shape is one message
        turns = kind_of_model(self._lm_for(inputs)) == SMALL and not self.template.of_set
        return self.adapter.for_call(json=self._held(inputs), turns=turns)

    def shipped_for(self, lm: dspy.BaseLM) -> ShippedStep | None:
        """The shipped program's step that a model is asked by; None where the predictor has a program of its own."""
        own = self.demos != self.task_demos or self.signature.instructions != self.words
        return None if own else self.shipped.get(kind_of_model(lm))

    def _lm_for(self, inputs: Mapping[str, Any]) -> Any:
        """The model of one call. Raises: BadArgument where there is none."""
        if (lm := inputs.get("lm") or self.lm or dspy.settings.lm) is None:
            raise BadArgument(
                'no model is configured: dspy.configure(lm=bf.connect("openai/gpt-4o-mini")), or another one '
                '(bf.connect("offline") needs no key)'
            )
        return lm

    def _as_sent(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The inputs of one call, with what its model needs and without the settings that its family refuses."""
        inputs = self._as_shown(inputs)
        config = self._config(inputs)
        fitted = config_for(self._lm_for(inputs), config)
        return inputs if fitted == config else {**inputs, "config": fitted}

    def _as_shown(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The inputs of one call, with demonstrations for a model that needs them, and the stops of a raw prompt."""
        if not isinstance(self.adapter, TemplateAdapter):
            return inputs
        lm = self._lm_for(inputs)
        kind, shipped = kind_of_model(lm), self.shipped_for(lm)
        demos = self._demos_shown(inputs.get("demos") or self.demos)
        if shipped is not None and not inputs.get("demos"):
            demos = shipped.demos or demos
            signature = self.signature.with_instructions(shipped.instructions)
            inputs = {**inputs, "signature": signature}
        inputs = {**inputs, "demos": demos}
        if kind == CHAT:
            return inputs
        if not self.template.of_set:  # the papers show such a step none
            own = self.raw.json_demos if self._held(inputs) else self.raw.demos
            inputs["demos"] = inputs["demos"] or [*own]
        stop = [*self.raw.stop] if kind == BASE else []
        # such a model numbers on, past the last passage
        if _JUDGEMENTS & self.signature.output_fields.keys():
            stop.append(f"\n{len(inputs['knowledge'])}:")
        if stop:
            config = self._config(inputs)
            stop = [*dict.fromkeys([*(config.get("stop") or []), *stop])]
            inputs["config"] = {**config, "stop": stop}
        return inputs

    def _demos_shown(self, demos: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """`demos`; the task's own where none of them has every field of this predictor."""
        if not demos or any(fills(demo, self.signature) for demo in demos):
            return demos
        warnings.warn(
            f"demonstrations with the fields {', '.join(demos[0])} lack others that predictors here have: there the "
            "task's own are shown, where it has some (BootstrapFewShot lets a model fill them)",
            stacklevel=1,
        )
        return self.task_demos

    @property
    def room(self) -> str:
        """How much of an answer is read (``32 tokens, its first line``); empty where the output is no answer."""
        if "answer" not in self.signature.output_fields:
            return ""
        read = (
            self.adapter.reads
            if isinstance(self.adapter, TemplateAdapter)
            else type(self.adapter).__name__
        )
        return f"{self.config.get('max_tokens')} tokens, {read}"

    def load_state(self, state: Mapping[str, Any], **options: Any) -> Ask:
        """As `dspy.Predict.load_state`, which would take fields over by position.

        Raises:
            BadData: the saved fields are not this predictor's. (The last one's prefix is COPRO's to rewrite.)
        """
        if wrong := _other_fields(state, self):
            raise BadData(
                f"the saved program's '{self.name}' {wrong}: it was saved for another method or version; compile it "
                "again"
            )
        super().load_state(state, **options)
        return self

    def render(self, **inputs: Any) -> str:
        """The prompt that these inputs would be sent as, through a template."""
        demos = self._demos_shown(self.demos)
        return self._renders.render(self.signature, demos, inputs)

    @property
    def _renders(self) -> TemplateAdapter:
        if isinstance(self.adapter, TemplateAdapter):
            return self.adapter
        return TemplateAdapter(self.template.name)

    @property
    def prompt_digest(self) -> str:
        """16 hex digits of the prompt over a made-up passage and question, for the recipe of a model trained on it."""
        return digest(self.render(knowledge=["Title | Text."], question="Question?"))[:16]

    def fitted(
        self,
        passages: Sequence[Passage],
        max_tokens: int,
        count: Callable[[str], float] | None = None,
        **inputs: Any,
    ) -> list[str]:
        """The lines of `passages`, cut until the prompt without its demonstrations has `max_tokens` at most.

        `count` gives the tokens of a prompt; by default as the model that answers counts them, else by a rule of thumb.
        """
        lm = self.lm or dspy.settings.lm
        tokens = count or (tokeniser_for(lm) if isinstance(lm, ConnectedLM) else RULE).count

        def fits(lines: list[str]) -> bool:
            given = {**inputs, "knowledge": lines}
            return tokens(self._renders.render(self.signature, [], given)) <= max_tokens

        return fitted(passages, fits)


def kind_of_model(lm: dspy.BaseLM) -> str:
    """The kind of a model (`blendfilter.shipped`): base and small ones learn a form from examples alone."""
    if getattr(lm, "endpoint", "chat") == "completions":
        return BASE
    return SMALL if family_of(lm).small else CHAT


def fitted(passages: Sequence[Passage], fits: Callable[[list[str]], bool]) -> list[str]:
    """The passages' lines, cut from the end until they fit, between words; a passage without a word of text is gone.

    >>> town = Passage("1", "Ormskerry", "A town. It has a pier."), Passage("2", "Oddle", "A village.")
    >>> fitted(town, lambda lines: len(" ".join(lines).split()) <= 7)
    ['Ormskerry | A town. It has a']
    """
    lines = [passage.line for passage in passages]
    if fits(lines):
        return lines
    ends = [
        (at, word.end())
        for at, (passage, line) in enumerate(zip(passages, lines, strict=True))
        for word in re.finditer(r"\S+", line)
        if word.start() >= len(line) - len(one_line(passage.text))
    ]

    def first(n: int) -> list[str]:
        """The lines up to the n-th word."""
        at, end = ends[n - 1]
        return [*lines[:at], lines[at][:end]] if n else []

    n = bisect_left(range(1, len(ends) + 1), True, key=lambda n: not fits(first(n)))
    return first(n)


@cache
def _class_of(stage: str) -> type[Ask]:
    """`Ask` under the name of a stage."""
    return types.new_class(
        stage,
        (Ask,),
        exec_body=lambda body: body.update(__module__=__name__, __doc__=Ask.__doc__),
    )


def _unmade(kind: str | type[Ask]) -> Ask:
    """A predictor of that stage or class whose state is yet to be set: how one is copied and pickled."""
    kind = _class_of(kind) if isinstance(kind, str) else kind
    return kind.__new__(kind)


_FILLED = pydantic.ConfigDict(
    extra="forbid", frozen=True, str_min_length=1, str_strip_whitespace=True
)


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
    topic: str | None = None
    relevance: list[str] | None = None
    """A line for each line of the knowledge: "relevant" or "irrelevant", a dash, and what it contributes."""
    reasoning: str
    hops: list[WorkedHop] = pydantic.Field(min_length=1)
    answer: str

    @pydantic.model_validator(mode="after")
    def _fits_together(self) -> Self:
        lines, there = self.relevance, len(self.knowledge)
        if lines is not None and len(lines) != there:
            raise ValueError(
                f"relevance has {len(lines)} lines, and knowledge {there}: give one for each"
            )
        for line in lines or ():
            if not _JUDGED.match(line):
                raise ValueError(
                    f"{line!r:.60} does not begin with 'relevant' or 'irrelevant', then ' - ' and why"
                )
        if "So the answer is " not in self.reasoning.splitlines()[-1]:
            raise ValueError('reasoning does not end with "So the answer is X."')
        if max(number for hop in self.hops for number in hop.knowledge) >= there:
            raise ValueError(f"a hop's knowledge is numbered from 0 to {there - 1}")
        return self

    @property
    def relevant(self) -> list[int]:
        """The numbers of the knowledge that is judged relevant."""
        return relevant_in(self.relevance or ())

    @property
    def judged_alone(self) -> list[dict[str, str]]:
        """Each line of the knowledge by itself, with whether it is relevant."""
        return [
            {
                "question": self.question,
                "passage": line,
                "relevant": "Yes" if judged.startswith("relevant") else "No",
            }
            for line, judged in zip(self.knowledge, self.relevance or (), strict=False)
        ]

    def among(self, others: Iterable[Demonstration], *, alone: bool = False) -> Demonstration:
        """This one as a filter meets it: behind its own passages (`alone`: without them) some of `others`, irrelevant.

        `JUDGED` in all, where there are as many.
        """
        lines = dict.fromkeys(
            line for other in others for line in other.knowledge if line not in self.knowledge
        )
        knowledge, judged = ([], []) if alone else (self.knowledge, self.relevance or [])
        more = list(lines)[: max(0, JUDGED - len(knowledge))]
        judged = [*judged, *("irrelevant - about something else" for _ in more)]
        return self.model_copy(update={"knowledge": [*knowledge, *more], "relevance": judged})

    def shown(self, reply: str, *, json: bool) -> dict[str, Any]:
        """The fields of a zero-shot step by what it replies; without that one where it says nothing of it.

        A short answer ends its reasoning, a passage tells what the relevant knowledge does, the check's reply is a line
        for each, and the ids are its relevant ones. With `json`, replies that may be held to a schema are in JSON.
        """
        if reply == "answer":
            return {"context": self.reasoning, "question": self.question, "answer": self.answer}
        fields: dict[str, Any] = {"question": self.question, "knowledge": self.knowledge}
        if texts := [self.knowledge[at].partition(" | ")[2] for at in self.relevant]:
            fields["passage"] = " ".join(texts)
        if self.topic is not None:
            fields["topic"] = self.topic
        if self.relevance is None:
            return fields
        return {**fields, **relevance_fields(self.relevance, json=json)}

    def found(self, hop: WorkedHop) -> list[str]:
        return [self.knowledge[number] for number in hop.knowledge]


_DEMOS = pydantic.TypeAdapter(Annotated[list[Demonstration], pydantic.Field(min_length=1)])


def read_demos(path: str | Path) -> list[Demonstration]:
    """The demonstrations of a JSON file: a list, each as in `demos` of programs/<task>/default.json. `none` has none.

    Raises:
        MissingFile: there is none. BadData: it is no such list; the error names the place (``1.hops.0.answer``).
    """
    if str(path) == NO_DEMOS:
        return []
    try:
        return _DEMOS.validate_json(read_whole(path))
    except pydantic.ValidationError as error:
        raise BadData(
            f"{path}: {what_is_wrong(error)}; docs/prompts.md shows a file of demonstrations"
        ) from None


_JUDGED = re.compile(r"(?:ir)?relevant - (?=\S)")
DemoFields = Callable[[Demonstration], Mapping[str, Any]]
"""Makes a predictor's fields of a demonstration."""


def relevant_in(relevance: Iterable[str]) -> list[int]:
    """The numbers of the lines that judge relevant."""
    return [at for at, line in enumerate(relevance) if line.startswith("relevant")]


def relevance_fields(relevance: Sequence[str], *, json: bool = False) -> dict[str, str]:
    """What the steps of BlendFilter's filters reply and read, of a line a passage, "relevant - why" or "irrelevant …".

    `json`: replies that may be held to a schema are in JSON.

    >>> relevance_fields(["irrelevant - another town", "relevant - the year"])["ids"]
    '1'
    """
    relevant = relevant_in(relevance)
    lines = "\n".join(f"{i}: {line}" for i, line in enumerate(relevance))
    listed = ", ".join(map(str, relevant)) or "none"
    ids, judgement = listed, f"{lines}\nIds: {listed}"
    if json:
        judged = [
            {"id": i, "reason": _JUDGED.sub("", line), "relevant": i in relevant}
            for i, line in enumerate(relevance)
        ]
        ids = dumps({"ids": relevant})
        judgement = dumps({"judgements": judged, "ids": relevant}, ensure_ascii=False)
    return {"relevance": lines, "context": lines, "ids": ids, "judgement": judgement}


class TaskWording(pydantic.BaseModel):
    """A task's default program, `programs/<task>/default.json`.

    A template's instructions are put together: `about_questions`, the template's own, then `about_relevance` where it
    asks what is relevant, or `about_answers` where it asks for an answer.

    Attributes:
        task: its name; a set of prompts may have other words for it.
        about_questions: what the questions are, where that needs saying (``Each question is a claim.``).
        about_relevance: what else makes a passage relevant, or not.
        about_answers: what an answer is (``The answer is always Yes or No.``).
        answer_form: the same in a few words, for the cue: ``Answer (Yes or No):``.
        instructions: in place of a template's own and of what follows them, by template name.
        demos: worked examples with `question`, `knowledge` (lines of Title | text), `reasoning` that ends "So the
            answer is X.", the same in `hops`, and `answer`; every predictor takes the fields it has. `topic` and
            `relevance`, for each line of knowledge "relevant" or "irrelevant" and why, are for base and
            very small models.
        offer_none, ask_topic: switches of BlendFilter's filter.
        answer_tokens: cap of the reply that is the answer.
        reply_tokens: cap of a reasoning or a passage, in place of `REPLY_TOKENS`; the caps of judgements move by as
            much. Short replies keep theirs. None: the usual.
        whole_answer: answers are sentences: the whole reply is the answer, not its first line.
        own_demos: the demonstrations are the task's own, of which the set `paper` shows `PAPER_SHOTS`.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    task: str = ""
    offer_none: bool = False
    ask_topic: bool = True
    answer_tokens: pydantic.PositiveInt = SHORT_TOKENS
    reply_tokens: int | None = pydantic.Field(None, ge=REPLY_RANGE[0], le=REPLY_RANGE[1])
    whole_answer: bool = False
    about_questions: str = ""
    about_relevance: str = ""
    about_answers: str = ""
    answer_form: str = ANSWER_FORM
    instructions: dict[str, str] = {}
    demos: list[Demonstration] = []
    own_demos: bool = False

    @staticmethod
    @lru_cache
    def of(task: str) -> TaskWording:
        """The wording of `task`, as the command line names tasks. Raises: UnknownName."""
        folder = resources.programs()
        path = folder / task / "default.json"
        if not path.is_file():
            if task in TASKS:  # `qa` has another task's words
                return TaskWording.of(TASKS[task].wording)
            raise UnknownName.of(
                "task",
                task,
                {*TASKS, *(each.parent.name for each in folder.glob("*/default.json"))},
            )
        wording = TaskWording.model_validate_json(path.read_bytes())
        return wording.model_copy(update={"task": task, "own_demos": True})

    def with_demos(self, demos: Sequence[Demonstration] | str | Path | None) -> TaskWording:
        """This wording with other demonstrations: a list, a JSON file of one (`read_demos`), or `none`.

        `none`, for a model that was trained without any, shows none, to base and very small models neither. None: with
        its own.

        >>> TaskWording.of("hotpotqa").with_demos("none").demos
        []
        """
        if demos is None:
            return self
        shown = read_demos(demos) if isinstance(demos, str | Path) else [*demos]
        return self.model_copy(update={"demos": shown, "own_demos": False})

    def demos_in(self, prompts: Prompts) -> list[Demonstration]:
        """The demonstrations that few-shot templates of `prompts` show.

        >>> [len(TaskWording.of("hotpotqa").demos_in(Prompts.of(name))) for name in ("ours", "paper")]
        [4, 3]
        """
        own = prompts.set_name == PAPER and self.own_demos
        return self.demos[:PAPER_SHOTS] if own else self.demos

    def with_reply_tokens(self, reply_tokens: int | None) -> TaskWording:
        """This wording with another cap of reasonings, passages and judgements; None changes nothing.

        >>> TaskWording().with_reply_tokens(1024).reply_tokens
        1024

        Raises: BadArgument for a number out of `REPLY_RANGE`.
        """
        low, high = REPLY_RANGE
        if reply_tokens is None:
            return self
        if type(reply_tokens) is not int or not low <= reply_tokens <= high:
            raise BadArgument(
                f"reply_tokens is {reply_tokens!r}: give a whole number of tokens from {low} to {high}"
            )
        return self.model_copy(update={"reply_tokens": reply_tokens})

    def __call__(self, predictor: Ask, worked: DemoFields = Demonstration.model_dump) -> Ask:
        """`predictor` with this task's instructions, room for answers and (in few-shot templates) demonstrations.

        `worked` makes a demonstration's fields. A template of a set (`paper`) speaks the set's words for this task
        first, then the task's; one of the user's keeps the instructions that it brings.
        """
        template, name = predictor.template, predictor.template.name
        predictor.config = config = {**predictor.config}
        words = template.instructions
        if self.task in template.for_tasks:
            words = template.for_tasks[self.task] or words
        elif not template.keeps_its_words:
            words = self.instructions_for(template)
        predictor.signature = predictor.signature.with_instructions(words)
        predictor.words = words
        if name in _SHOWN_RAW:
            predictor.raw = RawPrompting(
                self._raw_demos(predictor, json=False),
                self._raw_demos(predictor, json=True),
                JUDGING_STOP,
            )
        cap = config.get("max_tokens") or 0
        if self.reply_tokens is not None and cap >= REPLY_TOKENS:
            config["max_tokens"] = cap + self.reply_tokens - REPLY_TOKENS
            predictor.reply_tokens = self.reply_tokens
        if name in FEW_SHOT:
            predictor.task_demos = demonstrations(
                predictor, [worked(demo) for demo in self.demos_in(template.among)]
            )
            predictor.demos = [*predictor.task_demos]
        if "answer" not in predictor.signature.output_fields:
            return predictor
        if self.answer_tokens != SHORT_TOKENS:
            config["max_tokens"] = self.answer_tokens
        predictor.signature = predictor.signature.with_updated_fields(
            "answer", desc=self.answer_form
        )
        if self.whole_answer and isinstance(predictor.adapter, TemplateAdapter):
            predictor.adapter = predictor.adapter.with_readers(WHOLE_READERS)
            if "context" in predictor.signature.input_fields:
                # A base model goes on with another example: of a short answer only the first line counts anyway.
                config["stop"] = [*config.get("stop", []), "\nContext:"]
        return predictor

    def instructions_for(self, template: Template) -> str:
        """The instructions of a template in this task's words."""
        spoken = worded_as(template.name, self.instructions)
        own = self.instructions[spoken] if spoken else None
        parts = [
            self.about_questions if template.name in _KNOW_THE_QUESTIONS else "",
            own or template.instructions,
        ]
        if own is None and template.name in JUDGING:
            parts.append(self.about_relevance)
        if own is None and template.name in ANSWERING:
            parts.append(self.about_answers)
        return " ".join(filter(None, parts))

    def _raw_demos(self, predictor: Ask, *, json: bool) -> list[dspy.Example]:
        """The first demonstrations that say how this zero-shot step replies."""
        (reply,) = predictor.signature.output_fields
        demos, shots = self.demos, RAW_SHOTS
        if reply == "relevant":  # the first that is, and the first that is not
            alone = [row for demo in demos for row in demo.judged_alone]
            by_verdict = {row[reply]: row for row in reversed(alone)}
            return demonstrations(predictor, [*by_verdict.values()][:shots])
        if reply in {"ids", *_JUDGEMENTS}:
            judged = [
                each for each in demos if each.relevant or (self.offer_none and each.relevance)
            ]
            demos = [each.among(self.demos[::-1]) for each in judged]
            if demos and self.offer_none and all(each.relevant for each in judged):
                nothing = self.demos[-1].among(self.demos[:-1], alone=True)
                if nothing.knowledge:
                    demos.insert(1, nothing)
                    shots += 1
        rows = [row for demo in demos if reply in (row := demo.shown(reply, json=json))]
        return demonstrations(predictor, rows[:shots])


class PromptSettings(NamedTuple):
    """What all predictors of a module share: the task's wording, the templates, or an adapter in their place."""

    wording: TaskWording
    prompts: Prompts | None = None
    adapter: dspy.Adapter | None = None

    @classmethod
    def of(
        cls,
        task: TaskWording | str | None,
        prompts: Prompts | str | None,
        adapter: dspy.Adapter | None,
    ) -> PromptSettings:
        """`task` is a task's name or a wording (None: the templates' own words); `prompts` as in `Ask`."""
        wording = TaskWording.of(task) if isinstance(task, str) else task or TaskWording()
        return cls(wording, None if prompts is None else Prompts.of(prompts), adapter)

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
            stage,
            signature,
            template,
            prompts=self.prompts,
            adapter=self.adapter,
            max_tokens=max_tokens,
            stop=list(stop),
        )
        return self.wording(ask, worked)


def _other_fields(state: Mapping[str, Any], predictor: dspy.Predict) -> str:
    """How a predictor's saved fields differ from those that it has; "" where they are the same."""
    saved, own = (
        [field["prefix"] for field in each["fields"]]
        for each in (state["signature"], predictor.signature.dump_state())
    )
    same = len(saved) == len(own) and saved[:-1] == own[:-1]
    return "" if same else f"has the fields {' '.join(saved)} and this one {' '.join(own)}"


def check_state(module: dspy.Module, state: Mapping[str, Any]) -> None:
    """Raise `BadData` where a state, as `module.save(path)` writes it, was saved from another module."""
    own = dict(module.named_predictors())
    saved = state.keys() - {"metadata"}
    wrong = [
        f"'{name}' {other}"
        for name in own
        if name in saved and (other := _other_fields(state[name], own[name]))
    ]
    for words, names in (("it has", saved - own.keys()), ("it lacks", own.keys() - saved)):
        if names:
            wrong.append(f"{words} {', '.join(sorted(names))}")
    if wrong:
        raise BadData(
            f"the saved state is not one of {type(module).__name__} as it is here: {'; '.join(wrong)}. Load it into "
            "the module that it was saved from, or compile again"
        )


def reply_tokens_of(module: dspy.Module) -> dict[str, int]:
    """The cap of long replies, as a run's setting `reply_tokens`; nothing where it is the usual one."""
    caps = [ask.reply_tokens for _, ask in module.named_sub_modules(Ask) if ask.reply_tokens]
    return {"reply_tokens": max(caps)} if caps else {}


def demonstrations(
    predictor: dspy.Predict, rows: Sequence[Mapping[str, Any]]
) -> list[dspy.Example]:
    """`rows` as DSPy demos of `predictor`: the fields that it has."""
    inputs = list(predictor.signature.input_fields)
    fields = [*inputs, *predictor.signature.output_fields]
    return [
        dspy.Example(**{name: row[name] for name in fields if name in row}).with_inputs(*inputs)
        for row in rows
    ]
