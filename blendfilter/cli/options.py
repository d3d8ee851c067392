"""Options that several commands share, as groups of settings; a command's own settings inherit from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar

from blendfilter.errors import BadArgument
from blendfilter.resources import programs
from blendfilter.settings import Argument, Connection, Decoding, Option, Rare, Settings

if TYPE_CHECKING:
    from blendfilter.asking import TaskWording
    from blendfilter.filters.cdit import Rule
    from blendfilter.lm.batches import Batch
    from blendfilter.lm.budget import Budget

# The registries' names, for --help, which imports none of them; a test holds both against each other.
TASKS = (
    "arc", "eli5", "fever", "hotpotqa", "nq", "qa", "popqa", "pubhealth", "strategyqa", "triviaqa", "twowiki", "wow",
)  # fmt: skip
METHODS = (
    "direct", "cot", "direct-retrieval", "cot-retrieval", "blendfilter", "react", "self-ask", "iter-retgen",
    "self-consistency", "ralm", "cdit",
)  # fmt: skip
FILTERS = (
    "knowledge", "one-call", "pointwise", "full", "passage", "sentence", "filco", "filco-passage", "bider", "cdit",
    "cdit-components", "summary", "longllmlingua", "selective-context",
)  # fmt: skip
ENGINES = ("bm25", "rank-bm25", "colbert", "dense")
METRICS = ("em", "f1", "accuracy", "cover-em", "inclusion", "inclusion_raw", "rouge-l")
WORDINGS = tuple(sorted(path.parent.name for path in programs().glob("*/default.json")))

PANELS = ("Data", "Method", "Model", "Limits", "Output")
"""The panels of `--help`; what is of all commands stands below them."""
T = TypeVar("T")
InData = Annotated[T, Option(panel="Data")]
InMethod = Annotated[T, Option(panel="Method")]
InModel = Annotated[T, Option(panel="Model")]
InLimits = Annotated[T, Option(panel="Limits")]
InOutput = Annotated[T, Option(panel="Output")]
"""A field that stands in another panel than those of its class."""

Task = Annotated[
    Argument[str], Option(help=f"{', '.join(TASKS)}; qa reads anyone's own JSON Lines.")
]
AllowHosts = Annotated[
    list[str] | None,
    Option(
        "--allow-host",
        panel="Data",
        rare=True,
        help="A host (HOST or HOST:PORT) that a trimmed or sharded index may call. One over a server names its address "
        "in a file, and only hosts that you name are called; may be given again.",
    ),
]
Limit = Annotated[int | None, Option(panel="Data", help="The first N questions.")]
K = Annotated[int, Option("-k --k", panel="Method", help="Passages per query.")]
KOfMethod = Annotated[
    int | None, Option("-k --k", panel="Method", help="Passages per query (5; ralm, cdit: 10).")
]
PromptsName = Annotated[
    str | None,
    Option(
        panel="Method",
        rare=True,
        metavar="NAME|DIR",
        help="ours, paper (the papers' order, slots and shots, in our words), or a folder of templates that override "
        "ours one by one (./paper where it has that name).",
    ),
]
DemosFile = Annotated[
    Path | None,
    Option(
        panel="Method",
        rare=True,
        help="A JSON file of demonstrations in place of the task's own (docs/prompts.md shows one); or none.",
    ),
]
ReplyTokens = Annotated[
    int | None,
    Option(
        panel="Method",
        rare=True,
        help="Tokens of a reasoning or a passage at the most (256); judgements have 192 more (in one call 320), and "
        "short replies keep their own cap.",
    ),
]
FilterName = Annotated[
    str | None,
    Option(
        panel="Method",
        help=f"What is kept of the passages: {', '.join(FILTERS)}; or package:Class of your own. Without it: what the "
        "method itself does.",
    ),
]
MaxRetries = Annotated[
    int | None,
    Option(
        panel="Limits",
        rare=True,
        help="Further attempts that all calls together may make. Without it: a hundred, four for each call in flight, "
        "and one for each call that succeeds.",
    ),
]
PricesFile = Annotated[
    Path | None,
    Option(
        panel="Model",
        rare=True,
        help="A file of your own prices, which go before ours (docs/costs.md says what stands in it).",
    ),
]
MaxBadReplies = Annotated[
    float,
    Option(
        panel="Limits",
        rare=True,
        help="Share of unparseable, empty or cut replies above which it warns and ends with exit code 1.",
    ),
]
Html = Annotated[
    bool,
    Option(
        panel="Output",
        rare=True,
        help="Write the run as a page too, report.html in its folder.",
    ),
]
AsJson = Annotated[
    bool, Option("--json", panel="Output", help="Print the figures as JSON, in fractions of 1.")
]


class Reranking(Settings, panel="Data"):
    """The order of what an index finds."""

    rerank: Annotated[str | None, Option(metavar="MODEL")] = None
    """Put the index's best passages into the order of a model: a cross-encoder or a ColBERT checkpoint, by its name on
    the hub or its folder."""
    depth: Annotated[
        int | None, Option("--rerank-from", rare=True, metavar="N", goes_with="rerank")
    ] = None
    """How many of its best (100)."""


class Sources(Reranking, panel="Data"):
    """Where passages come from."""

    corpus: str | None = None
    """Passages (JSON Lines, TSV, gzipped or not), indexed with BM25 once and kept; 'sample', or 'pooled' for the own
    paragraphs of the questions that are asked (with --limit: of these)."""
    index: list[str] | None = None
    """An index folder made before, of bm25s or colbert-ai too, or a server's URL (its token in
    BLENDFILTER_INDEX_TOKEN); given several times, their hits are fused by reciprocal rank."""
    allow_hosts: AllowHosts = None


class AnySources(Sources, panel="Data"):
    """Where passages come from, and those that were found before."""

    partial: Rare[bool] = False
    """Search a sharded index without the shards that do not answer, and count it (partial_search)."""
    retrieved: Rare[Path | None] = None
    """Hits found before, instead of an index: JSON Lines with question and passages (blendfilter search --queries
    writes them; DPR's ctxs are read too)."""


class RuleOptions(Settings, panel="Method"):
    """The rules of CDIT's judge."""

    rule: Rare[list[str] | None] = None
    """A rule for CDIT's judge: phi1 (subject, predicate, object; the default), phi2 (attributive, adverbial), or one of
    --rules; given several times, all of them must hold."""
    rules: Rare[Path | None] = None
    """A TOML file of your own rules: [[rule]] with name, components and sentence. The judge applies all of them, or
    those that --rule names."""

    def chosen_rules(self) -> tuple[Rule, ...]:
        """The rules of the judge. Raises: UnknownName, BadData, MissingFile."""
        from blendfilter.filters.cdit import choose_rules

        return choose_rules(self.rule or (), self.rules)


class PromptOptions(Settings, panel="Method"):
    """How predictors are worded."""

    prompts: PromptsName = None
    demos: DemosFile = None
    reply_tokens: ReplyTokens = None

    def worded(self, task: str) -> TaskWording:
        """The wording of a task with these. Raises: UnknownName, BadArgument; what a file of demonstrations may."""
        from blendfilter.asking import TaskWording

        wording = TaskWording.of(task).with_demos(self.demos)
        return wording.with_reply_tokens(self.reply_tokens)


class FilterOptions(Settings, panel="Method"):
    """The filter of a method."""

    filter: FilterName = None
    filter_n: Rare[int | None] = None
    """How many the filters passage (1) and sentence (3) keep."""
    filter_by: Rare[str | None] = None
    """How they score: bm25 (the default), embedding, cross-encoder, or retriever (passage: its own score)."""
    filter_min_score: Rare[float | None] = None
    """What scores less they drop."""
    filter_tokens: Rare[int | None] = None
    """Tokens that sentence (and a compressor) keeps at most."""
    filter_model: Rare[str | None] = None
    """The encoder or cross-encoder they score by; of filco, filco-passage, bider and summary the trained model that
    writes what is kept (blendfilter train): a folder, or a name on the hub."""
    filter_unmatched: Rare[str | None] = None
    """Text that such a model wrote and no passage has: keep (the default), or drop."""
    filter_max_input_tokens: Rare[int | None] = None
    """Tokens that it reads at most (as it was trained, or 1024): passages are cut from the end."""


class MethodArguments(Settings, panel="Method"):
    """What some methods take; what is None was not given, and the method's own default holds."""

    filter_union: Rare[bool] = False
    """blendfilter: filter its three lists together, in one go; fewer calls."""
    drop_conclusion: Rare[bool] = False
    """blendfilter: search with q_ex less its closing sentence "So the answer is …"."""
    hops: Rare[int | None] = None
    """react, self-ask: searches at most (5)."""
    style: Rare[str | None] = None
    """react: thought-action, or lineage (the default)."""
    max_input_tokens: Rare[int | None] = None
    """direct-retrieval: tokens of its prompt without demonstrations at most: passages are cut from the end."""
    iterations: Rare[int | None] = None
    """iter-retgen: rounds of retrieval and reasoning (2)."""
    samples: Rare[int | None] = None
    """self-consistency: reasonings that vote (10), drawn at temperature 0.7."""
    rewrite: Rare[bool] = False
    """ralm, cdit: put the best of the passages beside the question, a second time."""


class MethodOptions(PromptOptions, FilterOptions, RuleOptions, MethodArguments, panel="Method"):
    """The method and what shapes it."""

    method: Annotated[
        str,
        Option(
            help=f"{', '.join(METHODS)} (direct and cot take no passages), or package:Class of your own."
        ),
    ] = "blendfilter"
    k: KOfMethod = None
    without: str | None = None
    """Leave a query out: q, q_ex or q_in (commas for several)."""
    program: Rare[Path | None] = None
    """A compiled program (blendfilter compile) of this method, or of the filter it has: a file, the name of one that
    ships, or none (small and base models ask by one that ships, where there is one). It is not evaluated on questions
    that it was compiled on."""


class JudgeOptions(Connection, panel="Model"):
    """A model that judges, always at temperature 0, and how it is connected."""

    lm: str | None = None
    """offline (a rule-based reader: no model), provider/model (openai/gpt-4o-mini, anthropic/…, ollama/llama3.2), any
    name with --api-base, or a model in this process: local, a .gguf file, or hf/ and a folder or name on the hub
    (hf/Qwen/Qwen3-8B). Without it: offline."""


class ModelOptions(JudgeOptions, Decoding):
    """The model and how it is connected."""


class FilterModelOptions(Settings, panel="Model"):
    """The model that answers the calls of a method's filter, where it is another than `--lm`."""

    filter_lm: Annotated[str | None, Option("--filter-lm --judge-lm")] = None
    """A model of its own for the calls of the filter (the topic, checks and ids; FilCo's; CDIT's judge), named as --lm
    is. Without it: --lm."""
    filter_api_base: Rare[list[str] | None] = None
    """Its server; --api-base is --lm's alone."""
    filter_endpoint: Rare[str | None] = None
    """chat, or completions where it is a base model (default: as it was trained, else chat)."""


class Models(JudgeOptions, FilterModelOptions):
    """The model, and that of the filter."""


class SpendingOptions(Settings, panel="Limits"):
    """What a run may take in all its sessions."""

    calls: Annotated[int | None, Option("--max-calls")] = None
    """Attempts at a model, in all sessions of the run; it stops there and can go on."""
    tokens: Annotated[int | None, Option("--max-tokens", rare=True)] = None
    """Tokens of prompts and replies, likewise."""
    dollars: Annotated[float | None, Option("--max-cost")] = None
    """Dollars, likewise."""

    def budget(self) -> Budget | None:
        """The limits as the runner takes them; None where none is given. Raises: BadArgument."""
        from blendfilter.lm.budget import Budget

        budget = Budget(self.calls, self.tokens, self.dollars)
        return budget if budget.given() else None


class BatchOptions(Settings, panel="Limits"):
    """Whether calls are gathered and answered in batches, and by what."""

    poll: ClassVar[float] = 30.0
    """Seconds between two looks at the provider's batches."""
    batch: Rare[bool] = False
    """Ask in the provider's batches, at half the price: each step of all questions is one batch, about five in all; the
    same command goes on where it was stopped."""
    batch_window: Annotated[str | None, Option(rare=True, goes_with="batch")] = None
    """The time in which the provider answers a batch (24h)."""
    batch_dir: Rare[Path | None] = None
    """Write batch files there in place of calling a server, and stop; once they are answered (vllm run-batch), the same
    command goes on."""

    def chosen(self) -> Batch | None:
        """As the runner takes it; None: calls go out one by one. Raises: BadArgument."""
        from blendfilter.lm.batches import Batch

        if self.batch and self.batch_dir is not None:
            raise BadArgument(
                "--batch asks the provider, --batch-dir writes files: leave one of them out"
            )
        if self.batch_dir is not None:
            return Batch(self.batch_dir)
        return (
            Batch(window=self.batch_window or Batch.window, poll=self.poll)
            if self.batch
            else None
        )
