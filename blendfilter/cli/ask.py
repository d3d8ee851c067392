"""`blendfilter ask`: one question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blendfilter.cli.app import app
from blendfilter.cli.console import say
from blendfilter.cli.making import connect, maker, retriever, say_what_answers
from blendfilter.cli.options import Corpus, HowToAnswer, Index, WhichModel, spread
from blendfilter.errors import BadArgument

if TYPE_CHECKING:
    import dspy


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
    full: Annotated[bool, typer.Option("--full", help="The trace with every text whole, nothing cut.")] = False,
) -> None:
    """Answer one question.

    Example: blendfilter ask "Who painted …?" --corpus passages.jsonl.gz --lm openai/gpt-4o-mini --show-trace
    """
    import dspy

    from blendfilter.context import CARRIED, NOTES, Asker, CallNote, calls_of, setting
    from blendfilter.evaluation.trace import WIDTH, trace_text

    lm = connect(model)
    make = maker(how, model, wording)
    sample = corpus is None and not index and how.method not in ("direct", "cot")
    module = make(retriever("sample" if sample else corpus, index))
    if sample:
        say("no --corpus and no --index: asking the sample world that comes with blendfilter")
    say_what_answers(model)
    notes: list[CallNote] = []
    with setting(NOTES, notes), dspy.context(lm=lm, **{CARRIED: Asker("", 0, notes, None)}):
        prediction = _told(_asked(module, question))
    if not show_trace and not full:
        print(prediction.answer)
        return
    if "calls" not in prediction:  # a method of one's own keeps no count
        prediction["calls"] = [(note.stage, note.key) for note in calls_of(notes)]
    print(trace_text(prediction, None if full else WIDTH), end="")


def _asked(module: dspy.Module, question: str) -> Any:
    """What a method says; one of somebody's own may be asynchronous alone."""
    from blendfilter.lm import bridge

    if hasattr(type(module), "forward"):  # of the module itself, DSPy would warn
        return module(question=question)
    return bridge.run(module.acall(question=question), type(module).__name__)


def _told(said: Any) -> dspy.Prediction:
    """The same as a prediction: a mapping and a bare answer will do, as they do in a run."""
    import dspy

    prediction = said if isinstance(said, dspy.Prediction) else None
    if prediction is None:
        prediction = dspy.Prediction(**said) if isinstance(said, Mapping) else dspy.Prediction(answer=said)
    if "answer" not in prediction:
        raise BadArgument("the method returned a Prediction without an answer: return dspy.Prediction(answer=…)")
    return prediction
