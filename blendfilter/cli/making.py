"""From options to objects: the model, the method and the passages that a command names."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from blendfilter.cli.console import Bars, say
from blendfilter.cli.options import (
    AnySources,
    FilterModelOptions,
    FilterOptions,
    JudgeOptions,
    MethodArguments,
    MethodOptions,
    Models,
    Reranking,
    RuleOptions,
)
from blendfilter.errors import BadArgument, BlendFilterError, MissingFile, NoKey
from blendfilter.settings import CallLimits, Connection, Decoding

if TYPE_CHECKING:
    import dspy

    from blendfilter.asking import TaskWording
    from blendfilter.lm.model import ConnectedLM
    from blendfilter.retrieval.analyser import Analyser
    from blendfilter.retrieval.base import Retriever

M = TypeVar("M", bound="Models")
Opened = TypeVar("Opened", bound="Retriever | None")
DEFAULT_K = 5
NOWHERE = "http://batch.invalid/v1"
"""The address of a model that only files are written for."""
WRITING, HUGGING_FACE = ("filco", "filco-passage", "bider", "summary"), "hf/"
"""Filters whose model may be a trained one that writes, and how the name of one in a folder begins."""


def connect(model: JudgeOptions, *, keyless: bool = False, **more: Any) -> ConnectedLM:
    """The model; `keyless`: no call will be made, so that a missing key is no error."""
    from blendfilter.dspy_surface import hide_cut_replies
    from blendfilter.lm.model import connect

    hide_cut_replies(lambda: True)  # reports count and show them
    if model.lm is None and model.api_base:
        raise BadArgument(f"which model at {model.api_base[0]}? name it with --lm")
    arguments = model.given(Connection, Decoding, "prices") | more
    connected = partial(connect, model.lm or "offline", **arguments)
    try:
        return connected()
    except NoKey:
        if not keyless:
            raise
        return connected(api_key="none")


def for_files(models: M) -> M:
    """The models, where nobody is called: a name without a provider that we know needs no address."""
    if _lacks_address(models.lm, models.api_base):
        models = models.but(api_base=[NOWHERE])
    if _lacks_address(models.filter_lm, models.filter_api_base):
        models = models.but(filter_api_base=[NOWHERE])
    return models


def _lacks_address(name: str | None, api_base: list[str] | None) -> bool:
    from blendfilter.lm.model import is_in_process
    from blendfilter.lm.profiles import PROVIDERS

    if name in (None, "offline") or api_base or is_in_process(str(name), None):
        return False
    return str(name).partition("/")[0] not in PROVIDERS


def connect_both(
    models: Models, *, keyless: bool = False, **more: Any
) -> tuple[Callable[..., ConnectedLM], Callable[[], ConnectedLM | None]]:
    """What connects the model, and that of the filter; None where it has none of its own.

    Both have the decoding settings, the schema and the limits. What only one of them takes is that one's: threads of a
    model in this process, requests a minute of a server. `more` are arguments of both. A filter that writes is answered
    by its trained model.

    Raises: BadArgument for options of a filter's model that is not named, or named twice.
    """
    whose = "--filter-lm" if models.filter_lm is not None else "--filter-model"
    models = with_trained(models)
    if models.filter_lm is None:
        if needless := models.given_options(FilterModelOptions):
            raise BadArgument(
                f"{needless[0]} is for a model of the filter's own: name it with --filter-lm"
            )
        return partial(connect, models, keyless=keyless, **more), lambda: None
    of_filter = models.but(
        lm=models.filter_lm,
        api_base=models.filter_api_base,
        label="",
        thinking=None,
        reasoning=None,
        endpoint=models.filter_endpoint or "chat",
    )
    first = _without_the_others(models, of_filter)
    second = _without_the_others(of_filter, models)

    def connect_second() -> ConnectedLM:
        try:
            return connect(second, keyless=keyless, **more)
        except BlendFilterError as error:
            line = re.sub(r"\b(api_base|endpoint)=", r"filter_\1=", str(error))
            error.args = (f"{whose}: {line}",)
            raise

    return partial(connect, first, keyless=keyless, **more), connect_second


def connect_row(models: Models, name: str, **more: Any) -> ConnectedLM:
    """The model of one row of a table: connected as --lm is where it takes that, and asked as it was trained."""
    from blendfilter.filters.written import endpoint_of

    own: dict[str, Any] = {"lm": name, "label": ""}
    if name.startswith(HUGGING_FACE):
        endpoint = endpoint_of(name.removeprefix(HUGGING_FACE))
        own |= {"api_base": None, "endpoint": endpoint or models.endpoint}
    named = models.but(**own)
    return connect(named.but(**dict.fromkeys(_refused_by(named))), **more)


def with_trained(models: M) -> M:
    """The models, the filter's being the trained one where the filter writes and `--filter-model` names that.

    It is asked as it was trained. Raises: BadArgument where `--filter-lm` names another. BadData: its recipe.
    """
    if (
        not isinstance(models, FilterOptions)
        or models.filter not in WRITING
        or models.filter_model is None
    ):
        return models
    if models.filter_lm is not None:
        raise BadArgument(
            f"--filter-lm and --filter-model both name the model of {models.filter}: leave one out"
        )
    from blendfilter.filters.written import endpoint_of

    name = models.filter_model.removeprefix(HUGGING_FACE)
    endpoint = models.filter_endpoint or endpoint_of(name)
    return models.but(filter_lm=f"{HUGGING_FACE}{name}", filter_endpoint=endpoint)


def _without_the_others(model: Models, other: Models) -> Models:
    """`model` without the options that it does not take and `other` does."""
    return model.but(**dict.fromkeys(_refused_by(model) - _refused_by(other)))


def _refused_by(model: JudgeOptions) -> set[str]:
    """The options that a model in this process, or one behind a server, does not take."""
    from blendfilter.lm.model import is_in_process

    name = model.lm or "offline"
    of_server = {*CallLimits.declared()}
    of_process = {"context", "threads"}
    if name == "offline":
        return of_server | of_process
    return (
        of_server - {"deadline"} if is_in_process(name, model.api_base or None) else of_process
    )


def say_what_answers(options: Any, module: dspy.Module | None = None) -> None:
    """Name the offline reader where no `lm` was given, and the templates of `module` that the set `prompts` has.

    Once all else is checked, so that a usage error is alone. Without a module it is all templates.
    """
    from blendfilter.asking import Ask
    from blendfilter.prompting import Prompts

    templates = Prompts.of(options.prompts)
    if options.prompts is not None and templates.set_name:
        asking = [] if module is None else [ask for _, ask in module.named_sub_modules(Ask)]
        used = sorted({ask.template.name for ask in asking} or templates.names)
        of_set = ", ".join(name for name in used if templates[name].of_set)
        own = ", ".join(name for name in used if not templates[name].of_set)
        say(
            f"--prompts {options.prompts}: the papers' shape in {of_set or 'none of its prompts'}"
            f"{f'; ours in {own}' if own else ''}"
        )
    if options.lm is None:
        say("no --lm: the offline reader answers, which shows the pipeline, not its quality")


def say_unshown(demos: Path | None, module: dspy.Module, name: str) -> None:
    """Say so where `--demos` was given, and `module` shows no demonstrations."""
    from blendfilter.asking import NO_DEMOS

    if demos in (None, Path(NO_DEMOS)) or any(
        part.demos for _, part in module.named_predictors()
    ):
        return
    say(f"--demos changes nothing: {name} shows no demonstrations")


def maker(
    how: MethodOptions,
    wording: str,
    filter_lm: ConnectedLM | None = None,
    *,
    top_p: float | None = None,
) -> Callable[[Retriever | None], Any]:
    """What makes the method of its retriever; what is wrong with it is an error now, before a corpus is indexed.

    `filter_lm` is the model of a filter that writes.
    """
    from blendfilter.asking import reply_tokens_of
    from blendfilter.compiling.programs import load_program
    from blendfilter.filters.base import Filter, unship
    from blendfilter.filters.registry import takes
    from blendfilter.modules.methods import METHOD, METHODS, make_method, methods_taking
    from blendfilter.retrieval.callables import as_retriever
    from blendfilter.shipped import NO_PROGRAM

    own = ":" in how.method
    arguments = how.given("without", "filter", MethodArguments)
    ours = ["without", "prompts", "demos", *(["reply_tokens"] if how.filter is None else [])]
    if own and how.given(*ours):
        raise BadArgument(
            "--without, --prompts, --demos and --reply-tokens are for our own methods; "
            f"{how.method} brings its own prompts"
        )
    if ":" in how.method + (how.filter or ""):
        sys.path.insert(0, "")  # a user's class is looked for in the current folder
    if not how.without:  # `--without ''` leaves nothing out
        arguments.pop("without", None)
    for argument in arguments:
        # A user's class says itself whether it takes a filter; of an unknown method the name is the error.
        takers = methods_taking(argument)
        if how.method not in takers and (
            how.method in METHODS or (own and argument != "filter")
        ):
            raise _not_taken(how, argument, "", takers, how.method)
    if how.method == "self-consistency" and top_p == 0 and how.samples != 1:
        raise BadArgument(
            "--top-p 0 makes all samples of self-consistency alike: leave it out, or give more"
        )
    worded = how.worded(wording)
    arguments["filter"] = select = _filter(how, worded, filter_lm)
    shared: dict[str, Any] = {} if own else {"task": worded, "prompts": how.prompts}

    def make(retriever: Retriever | None) -> Any:
        method = make_method(how.method, retriever, k=how.k, **shared, **arguments)
        if own and how.k is not None and not takes(how.method, METHOD, "k"):
            say(f"{how.method} takes no argument 'k': -k {how.k} changes nothing in it")
        if str(how.program) == NO_PROGRAM:
            unship(method)
        elif how.program is not None:
            load_program(method, how.program)
        return method

    if not own:
        made = make(as_retriever(lambda query, k: []))
        say_unshown(how.demos, made, how.method)
        if how.reply_tokens is not None and not reply_tokens_of(made):
            say(f"--reply-tokens changes nothing: {how.method} writes short replies alone")
    if isinstance(select, Filter):
        select.prepare()
    return make


def _filter(
    how: MethodOptions, wording: TaskWording, lm: ConnectedLM | None
) -> dspy.Module | None:
    """The filter that the options name; None: the method's own."""
    from blendfilter.filters.registry import FILTERS, filters_taking, make_filter

    given = how.given(FilterOptions, RuleOptions)
    given.pop("filter", None)
    for name in given:
        takers = filters_taking("rules" if name == "rule" else name.removeprefix("filter_"))
        if how.filter is None:
            add = " or --filter ".join(takers)
            raise BadArgument(f"{how.option(name)} goes with a filter: add --filter {add}")
        if how.filter in FILTERS and how.filter not in takers:
            raise _not_taken(how, name, "the filters ", takers, how.filter)
    if how.filter is None:
        return None
    arguments = {name.removeprefix("filter_"): value for name, value in given.items()}
    if arguments.pop("rule", None) or how.rules:
        arguments["rules"] = how.chosen_rules()
    if how.filter == "bider" or (how.filter in WRITING and "model" in arguments):
        arguments["lm"] = lm
    return make_filter(how.filter, wording=wording, prompts=how.prompts, **arguments)


def _not_taken(
    how: MethodOptions, argument: str, kind: str, takers: list[str], name: str
) -> BadArgument:
    *others, last = takers
    listed = f"{', '.join(others)} and {last}" if others else last
    return BadArgument(f"{how.option(argument)} is for {kind}{listed}; {name} does not take it")


def reranked(
    order: Reranking, opened: Callable[[], Opened], k: int | None = None
) -> Opened | Retriever:
    """What `opened` opens, reranked as the options say; `k` is how many passages will be wanted, where that is known.

    What is wrong with the options is an error before anything is opened.
    """
    if order.rerank is None:
        return opened()
    from blendfilter.errors import check_count
    from blendfilter.retrieval.reranked import DEPTH, Reranked

    depth = DEPTH if order.depth is None else order.depth
    check_count("--rerank-from", depth)
    if k is not None and depth < k:
        raise BadArgument(
            f"-k {k} is more than --rerank-from {depth}: rerank at least as many as are wanted"
        )
    index = opened()
    if index is None:
        raise BadArgument(
            "--rerank orders what an index finds, and none is named: add --index or --corpus"
        )
    return Reranked(index, order.rerank, depth=depth)


def retriever(
    sources: AnySources,
    questions: Any = None,
    *,
    k: int | None = None,
    sample: bool = False,
    run: Path | None = None,
) -> Retriever | None:
    """What is searched for the `questions` of a run; where nothing was named the sample corpus (`sample`) or None.

    A `run` that goes on keeps the analyser of earlier versions, where it began with that: its index is the same then.
    """
    from blendfilter.retrieval.analyser import Analyser

    def made(analyser: Analyser | None = None) -> Retriever | None:
        return reranked(
            sources, lambda: _opened(sources, questions, analyser, sample=sample), k
        )

    index = made()
    before = _fingerprint_in(run) if index is not None and run is not None else ""
    if (
        index is None
        or before in ("", index.fingerprint)
        or sources.given("index", "retrieved")
    ):
        return index
    old = made(Analyser(form=None))
    return old if old is not None and old.fingerprint == before else index


def _fingerprint_in(run: Path) -> str:
    """The fingerprint of the index that the run in a folder searched; empty where there is no run, or not one index."""
    from blendfilter.evaluation.run_folder import RUN, read_json

    found = (
        read_json(run / RUN)["settings"].get("retrievers") if (run / RUN).is_file() else None
    )
    return str(found[0]["fingerprint"]) if found and len(found) == 1 else ""


def _opened(
    sources: AnySources, questions: Any, analyser: Analyser | None, *, sample: bool
) -> Retriever | None:
    from blendfilter.retrieval.bm25 import BM25
    from blendfilter.retrieval.corpus import pooled
    from blendfilter.retrieval.hybrid import open_indexes
    from blendfilter.retrieval.precomputed import Precomputed

    if len(named := sources.given_options("corpus", "index", "retrieved")) > 1:
        raise BadArgument(
            f"{' and '.join(named)} name {len(named)} sources of passages: give one"
        )
    if sources.retrieved is not None:
        hits = Precomputed(
            sources.retrieved, {question.id: question.question for question in questions}
        )
        # before any model is called
        if missing := hits.missing(question.question for question in questions):
            raise BadArgument(
                f"{sources.retrieved} holds no hits for {len(missing)} of {len(questions)} questions, the first of "
                f"them {missing[0][:80]!r}: search for them too, or ask fewer (--limit)"
            )
        return hits
    if sources.index:
        return open_indexes(
            sources.index, allow_hosts=sources.allow_hosts or (), partial=sources.partial
        )
    corpus = "sample" if sources.corpus is None and sample else sources.corpus
    if corpus is None:
        return None
    if corpus == "pooled":
        if questions is None:
            raise BadArgument(
                "--corpus pooled takes the paragraphs of a question set: it goes with eval"
            )
        return BM25.build(pooled(questions), analyser=analyser)
    path = corpus_file(corpus)
    if not path.exists():
        raise MissingFile.of(path, ("pooled", "sample"))
    with Bars() as progress:
        return BM25.for_corpus(path, analyser=analyser, progress=progress)


def corpus_file(corpus: str) -> Path:
    """The file or folder of `--corpus`; 'sample' is the sample corpus."""
    from blendfilter.files import path_of
    from blendfilter.resources import sample

    return sample("corpus.jsonl") if corpus == "sample" else path_of(corpus)
