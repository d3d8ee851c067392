"""`blendfilter ask`: one question."""

from __future__ import annotations

from typing import Annotated

import typer

from blendfilter.cli.app import app
from blendfilter.cli.console import say
from blendfilter.cli.making import connect, maker, retriever
from blendfilter.cli.options import Corpus, HowToAnswer, Index, WhichModel, spread


@app.command()
@spread
def ask(
    question: Annotated[str, typer.Argument(help="The question, in quotes.")],
    how: HowToAnswer,
    model: WhichModel,
    corpus: Corpus = None,
    index: Index = None,
    wording: Annotated[str, typer.Option(help="Whose prompts: hotpotqa, twowiki or strategyqa.")] = "hotpotqa",
    show_trace: Annotated[bool, typer.Option("--show-trace", help="Queries, passages, what was kept and why.")] = False,
) -> None:
    """Answer one question.

    Example: blendfilter ask "Who painted …?" --corpus passages.jsonl.gz --lm openai/gpt-4o-mini --show-trace
    """
    import dspy

    from blendfilter.evaluation.trace import trace_text

    if corpus is None and not index and how.method not in ("direct", "cot"):
        say("no --corpus and no --index: asking the sample world that comes with blendfilter")
        corpus = "sample"
    lm = connect(model)
    make = maker(how, wording)
    module = make(retriever(corpus, index))
    with dspy.context(lm=lm):
        prediction = module(question=question)
    if show_trace:
        print(trace_text(prediction), end="")
    else:
        print(getattr(prediction, "answer", prediction))
