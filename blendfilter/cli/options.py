"""The options that several commands share, each declared once, with the words that `--help` teaches it in.

The dataclasses are groups of options: a command that takes one as a parameter has all their options.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from blendfilter.lm.budget import Budget

# The names in the registries, written out: --help must not wait for dspy. A test holds them to the registries.
TASKS = (
    "hotpotqa", "twowiki", "strategyqa", "nq", "triviaqa", "fever", "eli5", "wow", "popqa", "arc", "pubhealth", "qa",
)  # fmt: skip
METHODS = (
    "direct", "cot", "direct-retrieval", "cot-retrieval", "blendfilter", "react", "self-ask", "iter-retgen",
    "self-consistency", "ralm",
)  # fmt: skip
FILTERS = {
    "knowledge": "BlendFilter's, asks the model",
    "one-call": "the same in one call",
    "filco": "FilCo's: one call names the sentences that help",
    "filco-passage": "FilCo's over whole passages",
    "cdit": "CDIT's: a call a passage, drops what is inconsistent with the question",
    "cdit-components": "the same, with its grounds",
    "full": "everything",
    "passage": "the best passages, no model asked",
    "sentence": "the best sentences, no model asked",
}
WORDINGS = (
    "hotpotqa", "twowiki", "strategyqa", "nq", "triviaqa", "fever", "fever-nei", "eli5", "wow", "popqa", "arc",
    "pubhealth",
)  # fmt: skip
METRICS = ("em", "f1", "accuracy", "cover-em", "inclusion", "inclusion_raw")


def option(help: str, *names: str, default: Any = None, **more: Any) -> Any:
    """A field of a group of options: what `--help` says of it, and typer's other arguments."""
    return field(default=default, metadata={"option": typer.Option(*names, help=help, **more)})


Task = Annotated[str, typer.Argument(help=f"{', '.join(TASKS)}; qa reads anyone's own JSON Lines.")]
ApiBase = Annotated[
    list[str] | None,
    typer.Option(
        help="An OpenAI-compatible server, http://localhost:8000/v1; given several times, all serve the same model "
        "and the calls are shared among them."
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
Limit = Annotated[int | None, typer.Option(help="The first N questions.")]
K = Annotated[int, typer.Option("--k", "-k", help="Passages per query.")]
KOfMethod = Annotated[int | None, typer.Option("--k", "-k", help="Passages per query (5; ralm: 10).")]
PromptsDir = Annotated[Path | None, typer.Option(help="A folder of templates that override ours one by one.")]
FilterName = Annotated[
    str | None,
    typer.Option(
        help=f"What is kept of the passages: {'; '.join(f'{name} ({what})' for name, what in FILTERS.items())}; or "
        "package:Class of your own. Without it: what the method itself does."
    ),
]
RuleName = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        help="A rule for CDIT's judge: phi1 (subject, predicate, object; the default), phi2 (attributive, adverbial), "
        "or one of --rules; given several times, all of them must hold.",
    ),
]
RulesFile = Annotated[
    Path | None,
    typer.Option(
        "--rules",
        help="A TOML file of your own rules: [[rule]] with name, components and sentence. The judge applies all of "
        "them, or those that --rule names.",
    ),
]
MaxRetries = Annotated[
    int | None,
    typer.Option(
        help="Further attempts that all calls together may make. Without it: a hundred, four for each call in flight, "
        "and one for each call that succeeds."
    ),
]
PricesFile = Annotated[
    Path | None,
    typer.Option(
        "--prices", help="A file of your own prices, which go before ours (docs/costs.md says what stands in it)."
    ),
]
MaxBadReplies = Annotated[
    float,
    typer.Option(help="Share of unparseable, empty or cut replies above which it warns and ends with exit code 1."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the figures as JSON, in fractions of 1.")]


@dataclass(frozen=True)
class PassageOptions:
    """Where passages come from."""

    corpus: Corpus = None
    index: Index = None
    allow_host: AllowHost = None
    retrieved: Path | None = option(
        "Hits found before, instead of an index: JSON Lines with question and passages "
        "(blendfilter search --queries writes them; DPR's ctxs are read too)."
    )


@dataclass(frozen=True)
class MethodOptions:
    """The method and what shapes it. What is None was not given: the method's own default holds."""

    method: str = option(
        f"{', '.join(METHODS)} (direct and cot take no passages), or package:Class of your own.", default="blendfilter"
    )
    k: KOfMethod = None
    without: str | None = option("Leave a query out: q, q_ex or q_in (commas for several).")
    filter: FilterName = None
    filter_n: int | None = option("How many the filters passage (1) and sentence (3) keep.")
    filter_by: str | None = option("How they score: bm25 (the default), embedding or cross-encoder.")
    filter_model: str | None = option("The encoder or cross-encoder they score by: a folder, or a name on the hub.")
    rule: RuleName = None
    rules: RulesFile = None
    filter_union: bool = option(
        "blendfilter: filter its three lists together, in one go; fewer calls.", "--filter-union", default=False
    )
    hops: int | None = option("react, self-ask: searches at most (5).")
    style: str | None = option("react: thought-action, or lineage (the default).")
    iterations: int | None = option("iter-retgen: rounds of retrieval and reasoning (2).")
    samples: int | None = option("self-consistency: reasonings that vote (10), drawn at temperature 0.7.")
    rewrite: bool = option(
        "ralm: put the best of the passages beside the question, a second time.", "--rewrite", default=False
    )
    prompts: PromptsDir = None
    program: Path | None = option(
        "A compiled program (blendfilter compile) of this method, or of the filter it has; it is not "
        "evaluated on questions that it was compiled on."
    )


@dataclass(frozen=True)
class JudgeOptions:
    """A model that judges, always at temperature 0, and how it is connected."""

    lm: str | None = option(
        "offline (a rule-based reader: no model), provider/model (openai/gpt-4o-mini, ollama/llama3.2), "
        "any name with --api-base, or a model in this process: local, or a .gguf file. Without it: offline."
    )
    api_base: ApiBase = None
    endpoint: str = option("chat, or completions for base models.", default="chat")
    thinking: bool | None = option("Ask a model that thinks by default to think, or not to.")
    reasoning: str | None = option("Effort of a reasoning model: low, medium or high.")
    label: Label = ""
    timeout: float | None = option("Seconds that one attempt at a call may take (120).")
    attempts: int | None = option("Attempts that a call has, where its faults may pass (6).")
    deadline: float | None = option(
        "Seconds that all attempts at a call may take (600; a local model: as long as it takes)."
    )
    rpm: int | None = option("Requests a minute that the server is sent at the most.")
    tpm: int | None = option("Tokens a minute, of prompts and replies.")
    context: Context = None
    threads: Threads = None

    def settings(self) -> dict[str, Any]:
        """The arguments of `blendfilter.connect` after the model's name."""
        names = {"rpm": "requests_per_minute", "tpm": "tokens_per_minute"}
        settings = {names.get(name, name): value for name, value in asdict(self).items() if name != "lm"}
        return {**settings, "api_base": self.api_base or None}


@dataclass(frozen=True)
class ModelOptions(JudgeOptions):
    """The model and how it is connected."""

    temperature: float = option("0 is greedy, as in the papers.", default=0.0)
    top_p: float | None = option("Nucleus sampling.")
    json_schema: bool | None = option(
        "Hold the ids to a JSON schema. Without it: where the provider is known to take one.",
        "--json-schema/--no-json-schema",
    )


@dataclass(frozen=True)
class SpendingOptions:
    """What a run may take in all its sessions."""

    max_calls: int | None = option("Attempts at a model, in all sessions of the run; it stops there and can go on.")
    max_tokens: int | None = option("Tokens of prompts and replies, likewise.")
    max_cost: float | None = option("Dollars, likewise.")

    def budget(self) -> Budget | None:
        """The limits as the runner takes them; None where none is given. Raises: BadArgument."""
        from blendfilter.lm.budget import Budget

        budget = Budget(self.max_calls, self.max_tokens, self.max_cost)
        return budget if budget.given() else None


def given_values(options: Any, *names: str) -> dict[str, Any]:
    """The options of a group that were given, by name; those called `names`, or all."""
    values = {one.name: (getattr(options, one.name), one.default) for one in fields(options)}
    return {
        name: value
        for name, (value, default) in values.items()
        if (not names or name in names) and value not in (default, None, [])
    }


def given(options: Any, *names: str) -> list[str]:
    """The options that were given, as one writes them.

    >>> given(SpendingOptions(max_tokens=5)), given(MethodOptions(k=3, hops=2), "k")
    (['--max-tokens'], ['-k'])
    """
    return ["-k" if name == "k" else f"--{name.replace('_', '-')}" for name in given_values(options, *names)]
