"""`blendfilter ask`: one question."""

from __future__ import annotations

from typing import Annotated

import typer

from blendfilter.cli.app import app
from blendfilter.cli.console import say
from blendfilter.cli.making import connect, maker, retriever
from blendfilter.cli.options import (
    ApiBase,
    Corpus,
    Endpoint,
    Index,
    K,
    Label,
    Lm,
    Method,
    PromptsDir,
    Reasoning,
    Temperature,
    Thinking,
    TopP,
    Without,
)


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="The question, in quotes.")],
    method: Method = "blendfilter",
    corpus: Corpus = None,
    index: Index = None,
    lm: Lm = None,
    api_base: ApiBase = None,
    endpoint: Endpoint = "chat",
    temperature: Temperature = 0.0,
    top_p: TopP = None,
    thinking: Thinking = None,
    reasoning: Reasoning = None,
    label: Label = "",
    k: K = 5,
    without: Without = None,
    wording: Annotated[str, typer.Option(help="Whose prompts: hotpotqa, twowiki or strategyqa.")] = "hotpotqa",
    prompts: PromptsDir = None,
    show_trace: Annotated[bool, typer.Option("--show-trace", help="Queries, passages, what was kept and why.")] = False,
) -> None:
    """Answer one question.

    Example: blendfilter ask "Who painted …?" --corpus passages.jsonl.gz --lm openai/gpt-4o-mini --show-trace
    """
    import dspy

    from blendfilter.evaluation.trace import trace_text

    if corpus is None and not index and method not in ("direct", "cot"):
        say("no --corpus and no --index: asking the sample world that comes with blendfilter")
        corpus = "sample"
    model = connect(lm, api_base, endpoint, temperature, top_p, thinking, reasoning, label)
    make = maker(method, k, wording, without, prompts)
    module = make(retriever(corpus, index))
    with dspy.context(lm=model):
        prediction = module(question=question)
    if show_trace:
        print(trace_text(prediction), end="")
    else:
        print(getattr(prediction, "answer", prediction))
