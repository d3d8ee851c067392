"""The options that several commands share, each declared once, with the words that `--help` teaches it in.

The dataclasses are groups of options: a command that takes one as a parameter has all their options.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from blendfilter.errors import BadArgument
from blendfilter.resources import programs

if TYPE_CHECKING:
    from blendfilter.lm.batches import Batch
    from blendfilter.lm.budget import Budget

_PACKAGE = Path(__file__).parents[1]


def names_in(files: str, pattern: str, of: str = "") -> tuple[str, ...]:
    """The names that a registry has, read in its source: `--help` must not wait until all that it names is imported.

    `of` is the registry's own name where a file has others.
    """
    source = "\n".join(path.read_text(encoding="utf-8") for path in sorted(_PACKAGE.glob(files)))
    if of:
        source = source[source.index(f"\n{of}: ") :].partition("\n}")[0]
    return tuple(re.findall(pattern, source, re.MULTILINE))


TASKS = names_in("tasks/*.py", r'\bTask\(\s*"([\w-]+)"')
METHODS = names_in("modules/methods.py", r'^    "([\w-]+)": ', "METHODS")
FILTERS = names_in("filters/registry.py", r'^    "([\w-]+)": ', "FILTERS")
ENGINES = names_in("retrieval/indexes.py", r'^    "([\w-]+)": ', "ENGINES")
WORDINGS = tuple(sorted(path.parent.name for path in programs().glob("*/default.json")))

PANELS = ("Data", "Method", "Model", "Limits", "Output")
"""The panels of `--help`; what is of all commands stands below them."""


def declared(panel: str, *names: str, help: str, rare: bool = False, **more: Any) -> Any:
    """An option: its panel, its words, and whether `--help` of a long list leaves it to `--help-all` (`rare`).

    The other arguments are typer's.
    """
    assert panel in PANELS
    return typer.Option(*names, help=help, rich_help_panel=panel, hidden=rare, **more)


def option(panel: str, help: str, *names: str, default: Any = None, **more: Any) -> Any:
    """A field of a group of options, declared."""
    return field(default=default, metadata={"option": declared(panel, *names, help=help, **more)})


Task = Annotated[str, typer.Argument(help=f"{', '.join(TASKS)}; qa reads anyone's own JSON Lines.")]
ApiBase = Annotated[
    list[str] | None,
    declared(
        "Model",
        help="An OpenAI-compatible server, http://localhost:8000/v1; given several times, all serve the same model "
        "and the calls are shared among them.",
    ),
]
Label = Annotated[
    str,
    declared(
        "Model", rare=True, help="Tells two servers apart that serve other weights under one name."
    ),
]
Context = Annotated[
    int | None,
    declared(
        "Model",
        rare=True,
        help="A local model's tokens of prompt and reply together (what it knows, up to 8192).",
    ),
]
Threads = Annotated[
    int | None, declared("Model", rare=True, help="A local model's processor threads (1).")
]
Corpus = Annotated[
    str | None,
    declared(
        "Data",
        help="Passages (JSON Lines, TSV, gzipped or not), indexed with BM25 once and kept; "
        "'sample', or 'pooled' for the own paragraphs of the questions that are asked (with --limit: of these).",
    ),
]
Index = Annotated[
    list[str] | None,
    declared(
        "Data",
        help="An index folder made before, of bm25s or colbert-ai too, or a server's URL (its token in "
        "BLENDFILTER_INDEX_TOKEN); given several times, their hits are fused by reciprocal rank.",
    ),
]
AllowHost = Annotated[
    list[str] | None,
    declared(
        "Data",
        rare=True,
        help="A host (HOST or HOST:PORT) that a trimmed or sharded index may call. One over a server names its address "
        "in a file, and only hosts that you name are called; may be given again.",
    ),
]
Limit = Annotated[int | None, declared("Data", help="The first N questions.")]
K = Annotated[int, declared("Method", "--k", "-k", help="Passages per query.")]
KOfMethod = Annotated[
    int | None, declared("Method", "--k", "-k", help="Passages per query (5; ralm, cdit: 10).")
]
PromptsName = Annotated[
    str | None,
    declared(
        "Method",
        rare=True,
        metavar="NAME|DIR",
        help="paper: the papers' order and slots, in our words; or a folder of templates that override ours one by one "
        "(./paper where it has that name).",
    ),
]
DemosFile = Annotated[
    Path | None,
    declared(
        "Method",
        rare=True,
        help="A JSON file of demonstrations in place of the task's own (docs/prompts.md shows one); or none.",
    ),
]
ReplyTokens = Annotated[
    int | None,
    declared(
        "Method",
        rare=True,
        help="Tokens of a reasoning or a passage at the most (256); judgements have 192 more (in one call 320), and "
        "short replies keep their own cap.",
    ),
]
FilterName = Annotated[
    str | None,
    declared(
        "Method",
        help=f"What is kept of the passages: {', '.join(FILTERS)}; or package:Class of your own. Without it: what the "
        "method itself does.",
    ),
]
RuleName = Annotated[
    list[str] | None,
    declared(
        "Method",
        "--rule",
        rare=True,
        help="A rule for CDIT's judge: phi1 (subject, predicate, object; the default), phi2 (attributive, adverbial), "
        "or one of --rules; given several times, all of them must hold.",
    ),
]
RulesFile = Annotated[
    Path | None,
    declared(
        "Method",
        "--rules",
        rare=True,
        help="A TOML file of your own rules: [[rule]] with name, components and sentence. The judge applies all of "
        "them, or those that --rule names.",
    ),
]
MaxRetries = Annotated[
    int | None,
    declared(
        "Limits",
        rare=True,
        help="Further attempts that all calls together may make. Without it: a hundred, four for each call in flight, "
        "and one for each call that succeeds.",
    ),
]
PricesFile = Annotated[
    Path | None,
    declared(
        "Model",
        "--prices",
        rare=True,
        help="A file of your own prices, which go before ours (docs/costs.md says what stands in it).",
    ),
]
MaxBadReplies = Annotated[
    float,
    declared(
        "Limits",
        rare=True,
        help="Share of unparseable, empty or cut replies above which it warns and ends with exit code 1.",
    ),
]
Json = Annotated[
    bool, declared("Output", "--json", help="Print the figures as JSON, in fractions of 1.")
]


@dataclass(frozen=True)
class RerankOptions:
    """The order of what an index finds."""

    rerank: str | None = option(
        "Data",
        "Put the index's best passages into the order of a model: a cross-encoder or a ColBERT checkpoint, by its name "
        "on the hub or its folder.",
        metavar="MODEL",
    )
    rerank_from: int | None = option("Data", "How many of its best (100).", rare=True, metavar="N")


@dataclass(frozen=True)
class PassageOptions(RerankOptions):
    """Where passages come from."""

    corpus: Corpus = None
    index: Index = None
    allow_host: AllowHost = None
    partial: bool = option(
        "Data",
        "Search a sharded index without the shards that do not answer, and count it (partial_search).",
        "--partial",
        default=False,
        rare=True,
    )
    retrieved: Path | None = option(
        "Data",
        "Hits found before, instead of an index: JSON Lines with question and passages "
        "(blendfilter search --queries writes them; DPR's ctxs are read too).",
        rare=True,
    )


@dataclass(frozen=True)
class MethodOptions:
    """The method and what shapes it. What is None was not given: the method's own default holds."""

    method: str = option(
        "Method",
        f"{', '.join(METHODS)} (direct and cot take no passages), or package:Class of your own.",
        default="blendfilter",
    )
    k: KOfMethod = None
    without: str | None = option(
        "Method", "Leave a query out: q, q_ex or q_in (commas for several)."
    )
    filter: FilterName = None
    filter_n: int | None = option(
        "Method", "How many the filters passage (1) and sentence (3) keep.", rare=True
    )
    filter_by: str | None = option(
        "Method",
        "How they score: bm25 (the default), embedding, cross-encoder, or retriever (passage: its own score).",
        rare=True,
    )
    filter_min_score: float | None = option("Method", "What scores less they drop.", rare=True)
    filter_tokens: int | None = option(
        "Method", "Tokens that sentence (and a compressor) keeps at most.", rare=True
    )
    filter_model: str | None = option(
        "Method",
        "The encoder or cross-encoder they score by; of filco, bider and summary the model that writes the context "
        "(blendfilter train): a folder, or a name on the hub.",
        rare=True,
    )
    filter_unmatched: str | None = option(
        "Method",
        "Text that such a model wrote and no passage has: keep (the default), or drop.",
        rare=True,
    )
    filter_max_input_tokens: int | None = option(
        "Method",
        "Tokens that it reads at most (as it was trained, or 1024): passages are cut from the end.",
        rare=True,
    )
    rule: RuleName = None
    rules: RulesFile = None
    filter_union: bool = option(
        "Method",
        "blendfilter: filter its three lists together, in one go; fewer calls.",
        "--filter-union",
        default=False,
        rare=True,
    )
    drop_conclusion: bool = option(
        "Method",
        'blendfilter: search with q_ex less its closing sentence "So the answer is …".',
        "--drop-conclusion",
        default=False,
        rare=True,
    )
    hops: int | None = option("Method", "react, self-ask: searches at most (5).", rare=True)
    style: str | None = option(
        "Method", "react: thought-action, or lineage (the default).", rare=True
    )
    max_input_tokens: int | None = option(
        "Method",
        "direct-retrieval: tokens of its prompt without demonstrations at most: passages are cut from the end.",
        rare=True,
    )
    iterations: int | None = option(
        "Method", "iter-retgen: rounds of retrieval and reasoning (2).", rare=True
    )
    samples: int | None = option(
        "Method",
        "self-consistency: reasonings that vote (10), drawn at temperature 0.7.",
        rare=True,
    )
    rewrite: bool = option(
        "Method",
        "ralm, cdit: put the best of the passages beside the question, a second time.",
        "--rewrite",
        default=False,
        rare=True,
    )
    prompts: PromptsName = None
    demos: DemosFile = None
    reply_tokens: ReplyTokens = None
    program: Path | None = option(
        "Method",
        "A compiled program (blendfilter compile) of this method, or of the filter it has; it is not "
        "evaluated on questions that it was compiled on.",
        rare=True,
    )


@dataclass(frozen=True)
class JudgeOptions:
    """A model that judges, always at temperature 0, and how it is connected."""

    lm: str | None = option(
        "Model",
        "offline (a rule-based reader: no model), provider/model (openai/gpt-4o-mini, anthropic/…, ollama/llama3.2), "
        "any name with --api-base, or a model in this process: local, a .gguf file, or hf/ and a folder or name on the "
        "hub (hf/Qwen/Qwen3-8B). Without it: offline.",
    )
    api_base: ApiBase = None
    endpoint: str = option("Model", "chat, or completions for base models.", default="chat")
    thinking: bool | None = option(
        "Model", "Ask a model that thinks by default to think, or not to.", rare=True
    )
    reasoning: str | None = option(
        "Model", "Effort of a reasoning model: low, medium or high.", rare=True
    )
    label: Label = ""
    timeout: float | None = option(
        "Limits", "Seconds that one attempt at a call may take (120).", rare=True
    )
    attempts: int | None = option(
        "Limits", "Attempts that a call has, where its faults may pass (6).", rare=True
    )
    deadline: float | None = option(
        "Limits",
        "Seconds that all attempts at a call may take (600; a local model: as long as it takes).",
        rare=True,
    )
    rpm: int | None = option(
        "Limits", "Requests a minute that the server is sent at the most.", rare=True
    )
    tpm: int | None = option("Limits", "Tokens a minute, of prompts and replies.", rare=True)
    context: Context = None
    threads: Threads = None

    def settings(self) -> dict[str, Any]:
        """The arguments of `blendfilter.connect` after the model's name."""
        names = {"rpm": "requests_per_minute", "tpm": "tokens_per_minute"}
        settings = {
            names.get(name, name): value for name, value in asdict(self).items() if name != "lm"
        }
        return {**settings, "api_base": self.api_base or None}


@dataclass(frozen=True)
class ModelOptions(JudgeOptions):
    """The model and how it is connected."""

    temperature: float = option("Model", "0 is greedy, as in the papers.", default=0.0)
    top_p: float | None = option("Model", "Nucleus sampling.", rare=True)
    json_schema: bool | None = option(
        "Model",
        "Hold the ids to a JSON schema. Without it: where the provider is known to take one.",
        "--json-schema/--no-json-schema",
        rare=True,
    )


@dataclass(frozen=True)
class FilterModelOptions:
    """The model that answers the calls of a method's filter, where it is another than `--lm`."""

    filter_lm: str | None = option(
        "Model",
        "A model of its own for the calls of the filter (the topic, checks and ids; FilCo's; CDIT's judge), named as "
        "--lm is. Without it: --lm.",
        "--filter-lm",
        "--judge-lm",
    )
    filter_api_base: list[str] | None = option(
        "Model", "Its server; --api-base is --lm's alone.", "--filter-api-base", rare=True
    )
    filter_endpoint: str | None = option(
        "Model",
        "chat, or completions where it is a base model (default: as it was trained, else chat).",
        "--filter-endpoint",
        rare=True,
    )


@dataclass(frozen=True)
class SpendingOptions:
    """What a run may take in all its sessions."""

    max_calls: int | None = option(
        "Limits", "Attempts at a model, in all sessions of the run; it stops there and can go on."
    )
    max_tokens: int | None = option("Limits", "Tokens of prompts and replies, likewise.", rare=True)
    max_cost: float | None = option("Limits", "Dollars, likewise.")

    def budget(self) -> Budget | None:
        """The limits as the runner takes them; None where none is given. Raises: BadArgument."""
        from blendfilter.lm.budget import Budget

        budget = Budget(self.max_calls, self.max_tokens, self.max_cost)
        return budget if budget.given() else None


@dataclass(frozen=True)
class BatchOptions:
    """Whether calls are gathered and answered in batches, and by what."""

    poll: ClassVar[float] = 30.0
    """Seconds between two looks at the provider's batches."""
    batch: bool = option(
        "Limits",
        "Ask in the provider's batches, at half the price: each step of all questions is one batch, about five in all; "
        "the same command goes on where it was stopped.",
        "--batch",
        default=False,
        rare=True,
    )
    batch_window: str | None = option(
        "Limits", "The time in which the provider answers a batch (24h).", rare=True
    )
    batch_dir: Path | None = option(
        "Limits",
        "Write batch files there in place of calling a server, and stop; once they are answered (vllm run-batch), the "
        "same command goes on.",
        rare=True,
    )

    def chosen(self) -> Batch | None:
        """As the runner takes it; None: calls go out one by one. Raises: BadArgument."""
        from blendfilter.lm.batches import Batch

        if self.batch and self.batch_dir is not None:
            raise BadArgument(
                "--batch asks the provider, --batch-dir writes files: leave one of them out"
            )
        if self.batch_window is not None and not self.batch:
            raise BadArgument("--batch-window is the provider's: add --batch, or leave it out")
        if self.batch_dir is not None:
            return Batch(self.batch_dir)
        return (
            Batch(window=self.batch_window or Batch.window, poll=self.poll) if self.batch else None
        )


@dataclass(frozen=True)
class RayOptions:
    """Whether the work is done by a Ray cluster."""

    ray: str | None = option(
        "Limits",
        "Do it by Ray tasks: local (this machine's processors), auto (the cluster it belongs to) or the address of one "
        "that shares this folder, ray://HOST:10001.",
        metavar="ADDRESS",
        rare=True,
    )
    shards: int | None = option(
        "Limits", "With --ray: how many parts the work is done in.", rare=True, min=1
    )
    ray_gpus: float = option(
        "Limits",
        "With --ray: GPUs of each task, for a model in its process.",
        rare=True,
        default=0.0,
    )

    def check(self, **alone: Any) -> None:
        """Raise `BadArgument` for what goes with Ray alone, and for options that do not go with it (`alone`)."""
        if self.ray is None and (self.shards is not None or self.ray_gpus):
            raise BadArgument(
                f"--{'ray-gpus' if self.ray_gpus else 'shards'} goes with --ray ADDRESS (--ray local)"
            )
        if self.ray is not None and self.shards is None:
            raise BadArgument("--ray does a run in shards: say in how many, --shards 8")
        if self.ray is not None and (
            named := next((name for name, value in alone.items() if value), None)
        ):
            raise BadArgument(
                f"--ray does all shards of a live run: leave out --{named.replace('_', '-')}"
            )


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
    return [
        "-k" if name == "k" else f"--{name.replace('_', '-')}"
        for name in given_values(options, *names)
    ]
