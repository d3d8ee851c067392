"""`blendfilter ask`: one question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from blendfilter.cli.app import command
from blendfilter.cli.console import say, show
from blendfilter.cli.making import connect_both, maker, retriever, say_what_answers
from blendfilter.cli.options import (
    WORDINGS,
    AnySources,
    InModel,
    MethodOptions,
    Models,
    Sources,
)
from blendfilter.errors import BadArgument, ModelError
from blendfilter.records import whole_characters
from blendfilter.settings import Argument, Decoding, Option

if TYPE_CHECKING:
    import dspy

_EVENTS = {
    "empty_reply": "the model's reply was empty",
    "cut_reply": "the model's reply was cut at its limit of tokens (long replies: --reply-tokens gives more)",
}


class AskOptions(Sources, MethodOptions, Models, Decoding, panel="Output"):
    """The settings of `blendfilter ask`."""

    question: Argument[str]
    """The question, in quotes."""
    wording: Annotated[
        str, Option(panel="Method", help=f"Whose prompts: {', '.join(WORDINGS)}.")
    ] = "hotpotqa"
    show_trace: bool = False
    """Queries, passages, what was kept and why."""
    full: bool = False
    """The trace with every text whole, nothing cut."""
    no_cache: InModel[bool] = False
    """Ask the model, though it was asked the same before."""


@command()
def ask(options: AskOptions) -> None:
    """Answer one question.

    Example: blendfilter ask "Who painted …?" --corpus passages.jsonl.gz --lm openai/gpt-4o-mini --show-trace
    """
    import dspy

    from blendfilter.context import CARRIED, asker, calls_of, noting
    from blendfilter.evaluation.checks import check_reader
    from blendfilter.filters.base import with_filter_lm
    from blendfilter.report.trace import WIDTH, trace_text

    if whole_characters(options.question) != options.question:
        raise BadArgument("the question holds bytes that are no UTF-8: write it in UTF-8")
    connects, connects_filter = connect_both(options, cache=False if options.no_cache else None)
    lm, filter_lm = connects(), connects_filter()
    make = maker(options, options.wording, filter_lm, top_p=options.top_p)
    searches = options.method not in ("direct", "cot")
    sample = searches and options.corpus is None and not options.index
    sources = AnySources(**options.given(Sources))
    module = make(retriever(sources, k=options.k, sample=sample))
    if filter_lm is not None:
        module = with_filter_lm(module, filter_lm)
    if sample:
        say("no --corpus and no --index: asking the sample world that comes with blendfilter")
    say_what_answers(options, module)
    check_reader(module, lm)
    with noting() as notes, dspy.context(lm=lm, **{CARRIED: asker()}):
        try:
            prediction = _answered(module, options.question)
        except ModelError as error:
            # Stored errors name no address.
            address = error.address or lm.address or "the model"
            where = ", ".join([address, *([f"stage '{error.stage}'"] if error.stage else [])])
            line = f"{where}: {error}; blendfilter doctor says what the model does and what to change"
            raise ModelError(line, kind=error.kind, stage=error.stage) from error
    for event, words in _EVENTS.items():
        if stages := list(dict.fromkeys(note.stage for note in notes if note.event == event)):
            say(
                f"{words} ({', '.join(stages)}): --show-trace shows the calls, and 'blendfilter doctor' with the same "
                "--lm what to change"
            )
    if not options.show_trace and not options.full:
        show(str(prediction.answer))
        return
    if "calls" not in prediction:  # a user's method keeps no count
        prediction["calls"] = [(note.stage, note.key) for note in calls_of(notes)]
    show(trace_text(prediction, None if options.full else WIDTH).removesuffix("\n"))


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
