"""The options that several commands share, each with the words that `--help` teaches it in.

`HowToAnswer` and `WhichModel` are groups of them: a command that takes one as a parameter, under `@spread`, has all
their options.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

Method = Annotated[
    str,
    typer.Option(
        help="direct, cot (no passages); direct-retrieval, cot-retrieval, blendfilter, react, self-ask, iter-retgen, "
        "self-consistency; or package:Class of your own."
    ),
]
Lm = Annotated[
    str | None,
    typer.Option(
        "--lm",
        help="offline (a rule-based reader: no model), provider/model (openai/gpt-4o-mini, ollama/llama3.2), "
        "or any name with --api-base. Without it: offline.",
    ),
]
ApiBase = Annotated[str | None, typer.Option(help="An OpenAI-compatible server, http://localhost:8000/v1.")]
Endpoint = Annotated[str, typer.Option(help="chat, or completions for base models.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy, as in the papers.")]
TopP = Annotated[float | None, typer.Option(help="Nucleus sampling.")]
Thinking = Annotated[bool | None, typer.Option(help="Ask a model that thinks by default to think, or not to.")]
Reasoning = Annotated[str | None, typer.Option(help="Effort of a reasoning model: low, medium or high.")]
Label = Annotated[str, typer.Option(help="Tells two servers apart that serve other weights under one name.")]
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
Retrieved = Annotated[
    Path | None,
    typer.Option(
        help="Hits found before, instead of an index: JSON Lines with question and passages "
        "(blendfilter search --queries writes them; DPR's ctxs are read too)."
    ),
]
K = Annotated[int, typer.Option("--k", "-k", help="Passages per query.")]
KOfMethod = Annotated[int | None, typer.Option("--k", "-k", help="Passages per query (5).")]
Without = Annotated[str | None, typer.Option(help="Leave a query out: q, q_ex or q_in (commas for several).")]
PromptsDir = Annotated[Path | None, typer.Option(help="A folder of templates that override ours one by one.")]
FilterName = Annotated[
    str | None,
    typer.Option(
        help="What is kept of the passages: knowledge (BlendFilter's, asks the model), one-call (the same in one "
        "call), full, passage, sentence, or package:Class of your own. Without it: what the method itself does."
    ),
]
FilterN = Annotated[int | None, typer.Option(help="How many the filters passage (1) and sentence (3) keep.")]
FilterBy = Annotated[str | None, typer.Option(help="How they score: bm25 (the default), embedding or cross-encoder.")]
FilterModel = Annotated[
    str | None, typer.Option(help="The encoder or cross-encoder they score by: a folder, or a name on the hub.")
]
FilterUnion = Annotated[
    bool, typer.Option("--filter-union", help="blendfilter: filter its three lists together, in one go; fewer calls.")
]
Hops = Annotated[int | None, typer.Option(help="react, self-ask: searches at most (5).")]
Style = Annotated[str | None, typer.Option(help="react: lineage (the default) or thought-action.")]
Iterations = Annotated[int | None, typer.Option(help="iter-retgen: rounds of retrieval and reasoning (2).")]
Samples = Annotated[
    int | None, typer.Option(help="self-consistency: reasonings that vote (10), drawn at temperature 0.7.")
]


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
    filter_union: FilterUnion = False
    hops: Hops = None
    style: Style = None
    iterations: Iterations = None
    samples: Samples = None
    prompts: PromptsDir = None

    def given(self, *names: str) -> dict[str, Any]:
        """Those of these options that were given, by name; `--without ''` leaves nothing out, and is none."""
        said = {name: getattr(self, name) for name in names}
        if not said.get("without"):
            said.pop("without", None)
        return {name: value for name, value in said.items() if value is not None and value is not False}


@dataclass(frozen=True)
class WhichModel:
    """The model and how it is asked."""

    lm: Lm = None
    api_base: ApiBase = None
    endpoint: Endpoint = "chat"
    temperature: Temperature = 0.0
    top_p: TopP = None
    thinking: Thinking = None
    reasoning: Reasoning = None
    label: Label = ""


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
        for each in fields(group)
    ]
