"""The options that several commands share, each with the words that `--help` teaches it in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Method = Annotated[
    str, typer.Option(help="direct, cot, direct-retrieval, cot-retrieval, blendfilter, or package:Class of your own.")
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
Without = Annotated[str | None, typer.Option(help="Leave a query out: q, q_ex or q_in (commas for several).")]
PromptsDir = Annotated[Path | None, typer.Option(help="A folder of templates that override ours one by one.")]
