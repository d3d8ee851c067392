"""The command line: parse, then import what the command needs. `--help` imports neither dspy nor torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blendfilter.errors import BadArgument, BlendFilterError
from blendfilter.options import (
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

if TYPE_CHECKING:
    from collections.abc import Callable

    from blendfilter.lm.model import ConnectedLM
    from blendfilter.retrieval.base import Retriever

app = typer.Typer(
    name="blendfilter",
    help="Retrieval-augmented question answering that blends queries and filters knowledge, evaluated honestly.",
    epilog="Exit codes: 0 done; 1 the work failed, wholly or for some questions; 2 what was asked is wrong.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

INTERRUPTED = 130
"""What shells and typer call the end by Ctrl-C."""


@app.callback()
def _options(debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False) -> None:
    _State.debug = debug


class _State:
    """What `main` must know after a command failed."""

    debug = False


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

    if corpus is None and index is None and method not in ("direct", "cot"):
        _say("no --corpus and no --index: asking the sample world that comes with blendfilter")
        corpus = "sample"
    model = _connect(lm, api_base, endpoint, temperature, top_p, thinking, reasoning, label)
    make = _maker(method, k, wording, without, prompts)
    module = make(_retriever(corpus, index))
    with dspy.context(lm=model):
        prediction = module(question=question)
    if show_trace:
        print(trace_text(prediction), end="")
    else:
        print(getattr(prediction, "answer", prediction))


@app.command()
def index(
    corpus: Annotated[
        str,
        typer.Argument(
            help="Passages: JSON Lines (id, title, text), TSV (id, text, title), BEIR, FlashRAG or DSPy's abstracts."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The index folder to make.")],
    engine: Annotated[str, typer.Option(help="bm25, or rank-bm25 (the reference, for small corpora).")] = "bm25",
    k1: Annotated[float, typer.Option("--k1", help="Term frequency saturation.")] = 0.9,
    b: Annotated[float, typer.Option("--b", help="Length normalisation.")] = 0.4,
    overwrite: Annotated[bool, typer.Option(help="Replace an index that is there.")] = False,
) -> None:
    """Make an index of a corpus: a folder with a manifest and a fingerprint.

    Example: blendfilter index wiki.abstracts.2017.jsonl --out indexes/wiki17
    """
    from blendfilter.retrieval.indexes import build

    with _counting("passages") as progress:
        made = build(engine, _corpus_file(corpus), out, k1=k1, b=b, overwrite=overwrite, progress=progress)
    info = made.info()
    print(f"{out}: {info['kind']}, {info['passages']:,} passages, fingerprint {info['fingerprint']}")


@app.command()
def search(
    index: Annotated[str, typer.Argument(help="An index folder or URL.")],
    query: Annotated[str, typer.Argument(help="What to search for, in quotes.")],
    k: K = 5,
) -> None:
    """Search an index: rank, score, id, title and text, a line a passage.

    Example: blendfilter search indexes/wiki17 "lighthouse designer" -k 10
    """
    from blendfilter.retrieval.indexes import open_index

    found = open_index(index).search([query], k)[0]
    if not found:
        _say("no passage shares a word with this query")
    for rank, passage in enumerate(found, 1):
        score = "" if passage.score is None else f"{passage.score:.4f}"
        print(f"{rank}\t{score}\t{passage.id}\t{passage.line}")


@app.command()
def eval(
    task: Annotated[str, typer.Argument(help="hotpotqa, twowiki, strategyqa, or qa for anyone's own JSON Lines.")],
    data: Annotated[
        str,
        typer.Option(
            help="A question file (qa: JSON Lines with question, answer or answers, and if known id, gold_titles); "
            "'hub' (Hugging Face), or 'sample' with the task qa."
        ),
    ],
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
    limit: Annotated[int | None, typer.Option(help="The first N questions.")] = None,
    concurrency: Annotated[int, typer.Option(help="Model calls in flight in the whole run.")] = 16,
    run: Annotated[Path | None, typer.Option(help="The run's folder; the same command again goes on there.")] = None,
    reuse: Annotated[list[Path] | None, typer.Option(help="Runs whose calls may be used; may be repeated.")] = None,
    replay: Annotated[bool, typer.Option("--replay", help="Answer from the run's journal alone; no call.")] = False,
    seed: Annotated[int, typer.Option(help="Of the bootstrap intervals.")] = 0,
    prompts: PromptsDir = None,
    metric: Annotated[list[str] | None, typer.Option(help="For the task qa: em, f1 or accuracy.")] = None,
) -> None:
    """Evaluate a method on a question set: resumable, every call journaled once.

    Example: blendfilter eval hotpotqa --data hotpot_dev_distractor_v1.json --corpus pooled --lm openai/gpt-4o-mini
    """
    from blendfilter.evaluation.report import report
    from blendfilter.evaluation.runner import evaluate
    from blendfilter.tasks import load

    questions = load(task, data, limit=limit, metrics=metric or None)
    if corpus is None and index is None and data == "sample":
        corpus = "sample"
    model = _connect(lm, api_base, endpoint, temperature, top_p, thinking, reasoning, label)
    make = _maker(method, k, questions.task.wording, without, prompts)
    module = make(_retriever(corpus, index, questions))
    folder = run or _default_folder(module, questions, model, seed, method)
    done = evaluate(
        module, questions, lm=model, run=folder, concurrency=concurrency, reuse=reuse or (), replay=replay, seed=seed,
        name=method,
    )  # fmt: skip
    _print(*report(done), f"run: {folder}")
    if done.errors:
        _say(f"{done.errors} of {len(questions)} questions ended in an error; the same command asks them again")
        raise typer.Exit(1)


@app.command(name="report")
def report_command(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
) -> None:
    """Show a run: scores with intervals, retrieval per query, losses, events, the ledger.

    Example: blendfilter report runs/blendfilter
    """
    from blendfilter.evaluation.report import report
    from blendfilter.evaluation.run import Run

    _print(*report(Run(run)))


@app.command()
def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Two runs or more over the same questions; the first is the baseline.")
    ],
    metric: Annotated[list[str] | None, typer.Option(help="Which metrics; all of the task's by default.")] = None,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
) -> None:
    """Hold runs against the first: paired bootstrap intervals, exact McNemar, Holm's correction.

    Example: blendfilter compare runs/direct-retrieval runs/cot-retrieval runs/blendfilter
    """
    from blendfilter.evaluation.run import compare as compare_runs

    _print(compare_runs(*runs, metrics=metric or None, seed=seed))


def main() -> None:
    """The entry point: errors of ours are one line and an exit code, never a traceback."""
    _quiet_libraries()
    try:
        # Without its standalone mode typer hands an exit code back, it does not raise it.
        code = app(sys.argv[1:] or ["--help"], prog_name="blendfilter", standalone_mode=False)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)
    except typer.TyperException as error:
        _fail(_usage(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        _fail("stopped; the same command goes on where it was", INTERRUPTED)
    except BlendFilterError as error:
        if _State.debug:
            raise
        _fail(str(error), error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read us has gone
        sys.exit(1)
    except OSError as error:  # a full disk, a folder one may not write to
        if _State.debug:
            raise
        _fail(f"{error.filename or 'the system says'}: {error.strerror or error}", 1)


def _connect(
    lm: str | None, api_base: str | None, endpoint: str, temperature: float, top_p: float | None,
    thinking: bool | None, reasoning: str | None, label: str,
) -> ConnectedLM:  # fmt: skip
    from blendfilter.lm.connect import connect

    if lm is None:
        if api_base is not None:
            raise BadArgument(f"which model at {api_base}? name it with --lm")
        _say("no --lm: the offline reader answers, which shows the pipeline, not its quality")
    return connect(
        lm or "offline", api_base=api_base, endpoint=endpoint, temperature=temperature, top_p=top_p,  # type: ignore[arg-type]
        thinking=thinking, reasoning=reasoning, label=label,
    )  # fmt: skip


def _maker(
    name: str, k: int, wording: str, without: str | None, prompts: Path | None
) -> Callable[[Retriever | None], Any]:
    """What makes the method of its retriever; what is wrong with it is said now, before a corpus is indexed."""
    from blendfilter.modules.methods import make_method
    from blendfilter.prompting import Prompts
    from blendfilter.retrieval.callables import as_retriever

    if ":" in name:
        if without or prompts:
            raise BadArgument(f"--without and --prompts are for our own methods; {name} brings its own prompts")
        sys.path.insert(0, "")  # a class of one's own is looked for in the folder one stands in
        return lambda retriever: make_method(name, retriever, k=k)
    dropped = [part.strip() for part in without.split(",") if part.strip()] if without else []
    if dropped and name != "blendfilter":
        raise BadArgument(f"--without is for blendfilter; {name} has one query at most")
    more = {"without": dropped} if name == "blendfilter" else {}
    templates = Prompts(prompts) if prompts else None

    def make(retriever: Retriever | None) -> Any:
        return make_method(name, retriever, k=k, task=wording, prompts=templates, **more)

    make(as_retriever(lambda query, k: []))
    return make


def _retriever(corpus: str | None, index: str | None, questions: Any = None) -> Retriever | None:
    from blendfilter.retrieval.bm25 import BM25
    from blendfilter.retrieval.corpus import pooled
    from blendfilter.retrieval.indexes import open_index

    if corpus is not None and index is not None:
        raise BadArgument("--corpus and --index name two sources of passages: give one")
    if index is not None:
        return open_index(index)
    if corpus is None:
        return None
    if corpus == "pooled":
        if questions is None:
            raise BadArgument("--corpus pooled takes the paragraphs of a question set: it goes with eval")
        return BM25.build(pooled(questions))
    with _counting("passages indexed") as progress:
        return BM25.for_corpus(_corpus_file(corpus), progress=progress)


def _corpus_file(corpus: str) -> Path:
    from blendfilter.resources import sample

    return sample("corpus.jsonl") if corpus == "sample" else Path(corpus)


def _default_folder(module: Any, questions: Any, model: ConnectedLM, seed: int, method: str) -> Path:
    """`runs/<task>-<method>-<digest>`: the same command finds its run again, another one gets another folder."""
    from blendfilter.evaluation.settings import settings_of
    from blendfilter.journal import digest

    settings = settings_of(module, questions, model, seed=seed, name=method)
    return Path("runs") / f"{questions.task.name}-{method.replace(':', '.')}-{digest(settings)[:8]}"


class _counting:  # noqa: N801 - used as a function
    """A counter on the terminal for long work of unknown length; silent elsewhere."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> Any:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} " + self.what), TimeElapsedColumn())
        self.bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
        self.bar.start()
        task = self.bar.add_task("", total=None)
        return lambda done: self.bar.update(task, completed=done)

    def __exit__(self, *_: object) -> None:
        self.bar.stop()


def _print(*parts: Any) -> None:
    from rich.console import Console

    # Names and messages are data: a bracket in them is no markup. A line of text is never cut.
    console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 110)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "blendfilter"
    return f"{error.format_message().rstrip('.')} ({command} --help shows what it takes)"


def _say(line: str) -> None:
    print(f"blendfilter: {line}", file=sys.stderr, flush=True)


def _fail(line: str, code: int) -> None:
    _say(" ".join(line.split()))
    sys.exit(code)


def _quiet_libraries() -> None:
    """Warnings as one line each; DSPy's and the clients' chatter off."""
    import logging
    import warnings

    warnings.showwarning = lambda message, *_args, **_kwargs: _say(str(message))
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    logging.basicConfig(format="blendfilter: %(message)s", level=logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.ERROR)
    logging.getLogger("dspy.clients.lm").setLevel(logging.ERROR)  # cut replies are counted and shown by us


if __name__ == "__main__":
    main()
