"""The options that several commands share, each with the words that `--help` teaches it in.

`HowToAnswer`, `WhichModel` and the like are groups of them: a command that takes one as a parameter, under `@spread`,
has all their options.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from blendfilter.errors import BadArgument

if TYPE_CHECKING:
    from blendfilter.lm.budget import Budget

_AFTER = "after"
"""Names the field that one of a derived group is shown behind; without it, it would stand behind all of the base's."""

Method = Annotated[
    str,
    typer.Option(
        help="direct, cot (no passages); direct-retrieval, cot-retrieval, blendfilter, react, self-ask, iter-retgen, "
        "self-consistency, ralm; or package:Class of your own."
    ),
]
Lm = Annotated[
    str | None,
    typer.Option(
        "--lm",
        help="offline (a rule-based reader: no model), provider/model (openai/gpt-4o-mini, ollama/llama3.2), "
        "any name with --api-base, or a model in this process: local, or a .gguf file. Without it: offline.",
    ),
]
ApiBase = Annotated[
    list[str] | None,
    typer.Option(
        help="An OpenAI-compatible server, http://localhost:8000/v1; given several times, all serve the same model "
        "and the calls are shared among them."
    ),
]
Endpoint = Annotated[str, typer.Option(help="chat, or completions for base models.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy, as in the papers.")]
TopP = Annotated[float | None, typer.Option(help="Nucleus sampling.")]
Thinking = Annotated[bool | None, typer.Option(help="Ask a model that thinks by default to think, or not to.")]
Reasoning = Annotated[str | None, typer.Option(help="Effort of a reasoning model: low, medium or high.")]
JsonSchema = Annotated[
    bool | None,
    typer.Option(
        "--json-schema/--no-json-schema",
        help="Hold the ids to a JSON schema. Without it: where the provider is known to take one.",
    ),
]
Timeout = Annotated[float | None, typer.Option(help="Seconds that one attempt at a call may take (120).")]
Attempts = Annotated[int | None, typer.Option(help="Attempts that a call has, where its faults may pass (6).")]
Deadline = Annotated[
    float | None,
    typer.Option(help="Seconds that all attempts at a call may take (600; a local model: as long as it takes)."),
]
Rpm = Annotated[int | None, typer.Option(help="Requests a minute that the server is sent at the most.")]
Tpm = Annotated[int | None, typer.Option(help="Tokens a minute, of prompts and replies.")]
MaxRetries = Annotated[
    int | None,
    typer.Option(
        help="Further attempts that all calls together may make. Without it: a hundred, four for each call in flight, "
        "and one for each call that succeeds."
    ),
]
Label = Annotated[str, typer.Option(help="Tells two servers apart that serve other weights under one name.")]
Context = Annotated[
    int | None, typer.Option(help="A local model's tokens of prompt and reply together (what it knows, up to 8192).")
]
Threads = Annotated[int | None, typer.Option(help="A local model's processor threads (1).")]
Corpus = Annotated[
    str | None,
    typer.Option(
        help="Passages (JSON Lines, TSV, gzipped or not), indexed with BM25 once and kept; "
        "'sample', or 'pooled' for the own paragraphs of the questions that are asked (with --limit: of these)."
    ),
]
Index = Annotated[
    list[str] | None,
    typer.Option(
        help="An index folder made before, of bm25s or colbert-ai too, or a server's URL (its token in "
        "BLENDFILTER_INDEX_TOKEN); given several times, their hits are fused by reciprocal rank."
    ),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        help="A host (HOST or HOST:PORT) that a trimmed index may call. One that lies over a server names its address "
        "in a file, and only hosts that you name are called; may be given again."
    ),
]
Retrieved = Annotated[
    Path | None,
    typer.Option(
        help="Hits found before, instead of an index: JSON Lines with question and passages "
        "(blendfilter search --queries writes them; DPR's ctxs are read too)."
    ),
]
K = Annotated[int, typer.Option("--k", "-k", help="Passages per query.")]
KOfMethod = Annotated[int | None, typer.Option("--k", "-k", help="Passages per query (5; ralm: 10).")]
Without = Annotated[str | None, typer.Option(help="Leave a query out: q, q_ex or q_in (commas for several).")]
PromptsDir = Annotated[Path | None, typer.Option(help="A folder of templates that override ours one by one.")]
Program = Annotated[
    Path | None,
    typer.Option(
        help="A compiled program (blendfilter compile) of this method, or of the filter it has; it is not evaluated on "
        "questions that it was compiled on."
    ),
]
FilterName = Annotated[
    str | None,
    typer.Option(
        help="What is kept of the passages: knowledge (BlendFilter's, asks the model), one-call (the same in one "
        "call), filco, filco-passage (FilCo's: one call names the sentences or passages that help), cdit, "
        "cdit-components (CDIT's: a call a passage, drops what is inconsistent with the question), full, passage, "
        "sentence, or package:Class of your own. Without it: what the method itself does."
    ),
]
FilterN = Annotated[int | None, typer.Option(help="How many the filters passage (1) and sentence (3) keep.")]
FilterBy = Annotated[str | None, typer.Option(help="How they score: bm25 (the default), embedding or cross-encoder.")]
FilterModel = Annotated[
    str | None, typer.Option(help="The encoder or cross-encoder they score by: a folder, or a name on the hub.")
]
RuleName = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        help="A rule that CDIT's judge goes by: phi1 (subject, predicate, object; the default), phi2 (attributive, "
        "adverbial), or one of --rules; given several times, all of them must hold.",
    ),
]
RulesFile = Annotated[
    Path | None,
    typer.Option(
        "--rules",
        help="A TOML file of your own rules: [[rule]] with name, components and sentence. All of them are gone by, or "
        "those that --rule names.",
    ),
]
FilterUnion = Annotated[
    bool, typer.Option("--filter-union", help="blendfilter: filter its three lists together, in one go; fewer calls.")
]
Hops = Annotated[int | None, typer.Option(help="react, self-ask: searches at most (5).")]
Style = Annotated[str | None, typer.Option(help="react: thought-action, or lineage (the default).")]
Iterations = Annotated[int | None, typer.Option(help="iter-retgen: rounds of retrieval and reasoning (2).")]
Samples = Annotated[
    int | None, typer.Option(help="self-consistency: reasonings that vote (10), drawn at temperature 0.7.")
]
Rewrite = Annotated[
    bool, typer.Option("--rewrite", help="ralm: put the best of the passages beside the question, a second time.")
]

PricesFile = Annotated[
    Path | None,
    typer.Option(
        "--prices", help="A file of your own prices, which go before ours (docs/costs.md says what stands in it)."
    ),
]

Plan = Annotated[
    bool, typer.Option("--plan", help="Print calls, tokens, cost and time stage by stage, and stop: nothing is spent.")
]
PlanQuestions = Annotated[int | None, typer.Option(help="Questions, evenly spread, that a plan is made from (20).")]
AskServer = Annotated[
    bool,
    typer.Option(
        "--ask-server", help="A plan counts tokens by the server's own tokeniser (vLLM, llama.cpp); no model is asked."
    ),
]

MaxCalls = Annotated[
    int | None, typer.Option(help="Attempts at a model, over all sittings of the run; it stops there and can go on.")
]
MaxTokens = Annotated[int | None, typer.Option(help="Tokens of prompts and replies, likewise.")]
MaxCost = Annotated[float | None, typer.Option(help="Dollars, likewise.")]


@dataclass(frozen=True)
class HowToAnswer:
    """The method and what shapes it. What is None was not asked for: the method's own default holds."""

    method: Method = "blendfilter"
    k: KOfMethod = None
    without: Without = None
    filter: FilterName = None
    filter_n: FilterN = None
    filter_by: FilterBy = None
    filter_model: FilterModel = None
    rule: RuleName = None
    rules: RulesFile = None
    filter_union: FilterUnion = False
    hops: Hops = None
    style: Style = None
    iterations: Iterations = None
    samples: Samples = None
    rewrite: Rewrite = False
    prompts: PromptsDir = None
    program: Program = None

    def given(self, *names: str) -> dict[str, Any]:
        """Those of these options that were given, by name; `--without ''` leaves nothing out, and is none."""
        said = {name: getattr(self, name) for name in names}
        if not said.get("without"):
            said.pop("without", None)
        return {name: value for name, value in said.items() if value is not None and value is not False}


@dataclass(frozen=True)
class WhichJudge:
    """A model that judges, and how it is asked; it always judges at temperature 0."""

    lm: Lm = None
    api_base: ApiBase = None
    endpoint: Endpoint = "chat"
    thinking: Thinking = None
    reasoning: Reasoning = None
    label: Label = ""
    timeout: Timeout = None
    attempts: Attempts = None
    deadline: Deadline = None
    rpm: Rpm = None
    tpm: Tpm = None
    context: Context = None
    threads: Threads = None

    def model(self) -> WhichModel:
        """The same as any model."""
        return WhichModel(**{each.name: getattr(self, each.name) for each in fields(self)})


@dataclass(frozen=True)
class WhichModel(WhichJudge):
    """The model and how it is asked."""

    temperature: Temperature = field(default=0.0, metadata={_AFTER: "endpoint"})
    top_p: TopP = field(default=None, metadata={_AFTER: "temperature"})
    json_schema: JsonSchema = field(default=None, metadata={_AFTER: "reasoning"})


@dataclass(frozen=True)
class Limits:
    """What a run may take over all its sittings."""

    max_calls: MaxCalls = None
    max_tokens: MaxTokens = None
    max_cost: MaxCost = None

    def budget(self) -> Budget | None:
        """The limits as the runner takes them; None where none is given. Raises: BadArgument."""
        from blendfilter.lm.budget import Budget

        budget = Budget(self.max_calls, self.max_tokens, self.max_cost)
        return budget if budget.given() else None


@dataclass(frozen=True)
class Planning:
    """Whether a run is planned and not made, and how."""

    plan: Plan = False
    plan_questions: PlanQuestions = None
    ask_server: AskServer = False

    def check(self, *, replay: bool) -> None:
        """Raise `BadArgument` for what goes with a plan and has none, and for the plan of a run that asks nothing."""
        alone = "--ask-server" if self.ask_server else "--plan-questions" if self.plan_questions is not None else ""
        if alone and not self.plan:
            raise BadArgument(f"{alone} shapes a plan: add --plan, or leave it out")
        if self.plan and replay:
            raise BadArgument("a replay asks no model, so there is nothing to plan: leave --plan or --replay out")


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """`command`, whose parameters that are groups of options are taken option by option."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    taken: list[inspect.Parameter] = []
    for each in inspect.signature(command).parameters.values():
        if each.name in groups:
            taken.extend(_options(groups[each.name]))
        else:
            taken.append(each.replace(annotation=hints[each.name], kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def spreading(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{each.name: given.pop(each.name) for each in fields(kind)})
        command(**given)

    spreading.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
    spreading.__annotations__ = {each.name: each.annotation for each in taken}
    return spreading


def _options(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(each.name, keyword, default=each.default, annotation=hints[each.name])
        for each in _as_shown(group)
    ]


def _as_shown(group: Any) -> list[Field[Any]]:
    shown: list[Field[Any]] = []
    for each in fields(group):
        before = each.metadata.get(_AFTER)
        at = len(shown) if before is None else 1 + [other.name for other in shown].index(before)
        shown.insert(at, each)
    return shown
