"""`blendfilter ask`: one question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blendfilter.cli.app import command
from blendfilter.cli.console import say, show
from blendfilter.cli.making import connect_both, maker, retriever, say_what_answers
from blendfilter.cli.options import (
    WORDINGS,
    AllowHost,
    Corpus,
    FilterModelOptions,
    Index,
    MethodOptions,
    ModelOptions,
    PassageOptions,
    RerankOptions,
    declared,
)
from blendfilter.errors import BadArgument, ModelError
from blendfilter.records import whole_characters

if TYPE_CHECKING:
    import dspy

_EVENTS = {
    "empty_reply": "the model's reply was empty",
    "cut_reply": "the model's reply was cut at its limit of tokens (long replies: --reply-tokens gives more)",
}


@command()
def ask(
    question: Annotated[str, typer.Argument(help="The question, in quotes.")],
    how: MethodOptions,
    model: ModelOptions,
    filter_model: FilterModelOptions,
    order: RerankOptions,
    corpus: Corpus = None,
    index: Index = None,
    allow_host: AllowHost = None,
    wording: Annotated[
        str, declared("Method", help=f"Whose prompts: {', '.join(WORDINGS)}.")
    ] = "hotpotqa",
    show_trace: Annotated[
        bool, declared("Output", "--show-trace", help="Queries, passages, what was kept and why.")
    ] = False,
    full: Annotated[
        bool, declared("Output", "--full", help="The trace with every text whole, nothing cut.")
    ] = False,
    no_cache: Annotated[
        bool,
        declared("Model", "--no-cache", help="Ask the model, though it was asked the same before."),
    ] = False,
) -> None:
    """Answer one question.

    Example: blendfilter ask "Who painted …?" --corpus passages.jsonl.gz --lm openai/gpt-4o-mini --show-trace
    """
    import dspy

    from blendfilter.context import CARRIED, asker, calls_of, noting
    from blendfilter.evaluation.run_settings import check_reader
    from blendfilter.filters.base import with_filter_lm
    from blendfilter.report.trace import WIDTH, trace_text

    if whole_characters(question) != question:
        raise BadArgument("the question holds bytes that are no UTF-8: write it in UTF-8")
    connects, connects_filter = connect_both(
        model, filter_model, cache=False if no_cache else None, how=how
    )
    lm, filter_lm = connects(), connects_filter()
    make = maker(how, model, wording, filter_lm)
    sample = corpus is None and not index and how.method not in ("direct", "cot")
    sources = PassageOptions(
        rerank=order.rerank,
        rerank_from=order.rerank_from,
        corpus=corpus,
        index=index,
        allow_host=allow_host,
    )
    module = make(retriever(sources, k=how.k, sample=sample))
    if filter_lm is not None:
        module = with_filter_lm(module, filter_lm)
    if sample:
        say("no --corpus and no --index: asking the sample world that comes with blendfilter")
    say_what_answers(model, how.prompts, module)
    check_reader(module, lm)
    with noting() as notes, dspy.context(lm=lm, **{CARRIED: asker()}):
        try:
            prediction = _answered(module, question)
        except ModelError as error:
            # Stored errors name no address.
            address = error.address or lm.address or "the model"
            where = ", ".join([address, *([f"stage '{error.stage}'"] if error.stage else [])])
            line = (
                f"{where}: {error}; blendfilter doctor says what the model does and what to change"
            )
            raise ModelError(line, kind=error.kind, stage=error.stage) from error
    for event, words in _EVENTS.items():
        if stages := list(dict.fromkeys(note.stage for note in notes if note.event == event)):
            say(
                f"{words} ({', '.join(stages)}): --show-trace shows the calls, and 'blendfilter doctor' with the same "
                "--lm what to change"
            )
    if not show_trace and not full:
        show(str(prediction.answer))
        return
    if "calls" not in prediction:  # a user's method keeps no count
        prediction["calls"] = [(note.stage, note.key) for note in calls_of(notes)]
    show(trace_text(prediction, None if full else WIDTH).removesuffix("\n"))


def _answered(module: dspy.Module, question: str) -> dspy.Prediction:
    """The method's prediction; a user's method may be asynchronous alone, or return a mapping or a bare answer."""
    import dspy

    from blendfilter import aio

    if hasattr(type(module), "forward"):  # of the module itself, DSPy would warn
        result: Any = module(question=question)
    else:
        result = aio.run(module.acall(question=question), type(module).__name__)
    if not isinstance(result, dspy.Prediction):
        result = (
            dspy.Prediction(**result)
            if isinstance(result, Mapping)
            else dspy.Prediction(answer=result)
        )
    if "answer" not in result:
        raise BadArgument(
            "the method returned a Prediction without an answer: return dspy.Prediction(answer=…)"
        )
    return result
