"""From options to objects: the model, the method and the passages that a command names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from blendfilter.cli.console import Bars, say
from blendfilter.cli.options import (
    FilterModelOptions,
    JudgeOptions,
    MethodOptions,
    ModelOptions,
    PassageOptions,
    RerankOptions,
    given,
    given_values,
)
from blendfilter.errors import BadArgument, BlendFilterError, MissingFile, NoKey

if TYPE_CHECKING:
    import dspy

    from blendfilter.asking import TaskWording
    from blendfilter.lm.model import ConnectedLM
    from blendfilter.prompting import Prompts
    from blendfilter.retrieval.analyser import Analyser
    from blendfilter.retrieval.base import Retriever

DEFAULT_K = 5


def connect(
    model: JudgeOptions, prices: Path | None = None, *, keyless: bool = False, **more: Any
) -> ConnectedLM:
    """The model; `keyless`: no call will be made, so that a missing key is no error."""
    from blendfilter.dspy_surface import hide_cut_replies
    from blendfilter.lm.model import connect

    hide_cut_replies(_always)  # reports count and show them
    if model.lm is None and model.api_base:
        raise BadArgument(f"which model at {model.api_base[0]}? name it with --lm")
    connected = partial(connect, model.lm or "offline", prices=prices, **model.settings(), **more)
    try:
        return connected()
    except NoKey:
        if not keyless:
            raise
        return connected(api_key="none")


NOWHERE = "http://batch.invalid/v1"
"""The address of a model that only files are written for."""


def for_files(
    model: JudgeOptions, filter_model: FilterModelOptions
) -> tuple[Any, FilterModelOptions]:
    """The models, where nobody is called: a name without a provider that we know needs no address."""
    if _lacks_address(model.lm, model.api_base):
        model = replace(model, api_base=[NOWHERE])
    if _lacks_address(filter_model.filter_lm, filter_model.filter_api_base):
        filter_model = replace(filter_model, filter_api_base=[NOWHERE])
    return model, filter_model


def _lacks_address(name: str | None, api_base: list[str] | None) -> bool:
    from blendfilter.lm.model import is_in_process
    from blendfilter.lm.profiles import PROVIDERS

    if name is None or name == "offline" or api_base or is_in_process(name, None):
        return False
    return name.partition("/")[0] not in PROVIDERS


WRITING, HUGGING_FACE = ("filco", "bider", "summary"), "hf/"
"""Filters whose model may be a trained one that writes, and how the name of one in a folder begins."""
IN_PROCESS, BEHIND_A_SERVER = (
    ("context", "threads"),
    ("timeout", "attempts", "deadline", "rpm", "tpm"),
)
"""Options that only one of the two kinds of models takes (a model in this process takes a deadline, too)."""


def connect_both(
    model: JudgeOptions,
    filter_model: FilterModelOptions,
    prices: Path | None = None,
    *,
    keyless: bool = False,
    how: MethodOptions | None = None,
    **more: Any,
) -> tuple[Callable[..., ConnectedLM], Callable[[], ConnectedLM | None]]:
    """What connects the model, and that of the filter; None where it has none of its own.

    Both have the decoding settings, the schema and the limits. What only one of them takes is that one's: threads of a
    model in this process, requests a minute of a server. `more` are arguments of both. A filter of `how` that writes
    is answered by its trained model.

    Raises: BadArgument for options of a filter's model that is not named, or named twice.
    """
    whose = "--filter-lm" if filter_model.filter_lm is not None else "--filter-model"
    filter_model = with_trained(filter_model, how)
    if filter_model.filter_lm is None:
        if needless := given(filter_model):
            raise BadArgument(
                f"{needless[0]} is for a model of the filter's own: name it with --filter-lm"
            )
        return partial(connect, model, prices, keyless=keyless, **more), lambda: None
    second = replace(
        model,
        lm=filter_model.filter_lm,
        api_base=filter_model.filter_api_base,
        label="",
        thinking=None,
        reasoning=None,
        endpoint=filter_model.filter_endpoint or "chat",
    )
    first, second = _without_the_others(model, second), _without_the_others(second, model)

    def connect_second() -> ConnectedLM:
        try:
            return connect(second, prices, keyless=keyless, **more)
        except BlendFilterError as error:
            line = (
                str(error)
                .replace("--api-base", "--filter-api-base")
                .replace("--endpoint", "--filter-endpoint")
            )
            error.args = (f"{whose}: {line}",)
            raise

    return partial(connect, first, prices, keyless=keyless, **more), connect_second


def with_trained(filter_model: FilterModelOptions, how: MethodOptions | None) -> FilterModelOptions:
    """The filter's model, which is the trained one where the filter writes and `--filter-model` names that.

    It is asked as it was trained. Raises: BadArgument where `--filter-lm` names another. BadData: its recipe.
    """
    if how is None or how.filter not in WRITING or how.filter_model is None:
        return filter_model
    if filter_model.filter_lm is not None:
        raise BadArgument(
            f"--filter-lm and --filter-model both name the model of {how.filter}: leave one out"
        )
    from blendfilter.filters.written import endpoint_of

    name = how.filter_model.removeprefix(HUGGING_FACE)
    endpoint = filter_model.filter_endpoint or endpoint_of(name)
    return replace(filter_model, filter_lm=f"{HUGGING_FACE}{name}", filter_endpoint=endpoint)


def _without_the_others(model: JudgeOptions, other: JudgeOptions) -> JudgeOptions:
    """`model` without the options that it does not take and `other` does."""
    others: dict[str, Any] = dict.fromkeys(_refused_by(model) - _refused_by(other))
    return replace(model, **others)


def _refused_by(model: JudgeOptions) -> set[str]:
    from blendfilter.lm.model import is_in_process

    name = model.lm or "offline"
    if name == "offline":
        return {*IN_PROCESS, *BEHIND_A_SERVER}
    return (
        {*BEHIND_A_SERVER} - {"deadline"}
        if is_in_process(name, model.api_base or None)
        else {*IN_PROCESS}
    )


def _always() -> bool:
    return True


def say_what_answers(
    model: JudgeOptions, prompts: str | None = None, module: dspy.Module | None = None
) -> None:
    """Name the offline reader where no model was given, and the templates of `module` that a set of prompts has.

    Once all else is checked, so that a usage error is alone. Without a module it is all templates.
    """
    from blendfilter.asking import Ask

    if (templates := prompts_in(prompts)) is not None and templates.set_name:
        asking = (
            []
            if module is None
            else [part.template.name for _, part in module.named_sub_modules(Ask)]
        )
        used = sorted({*asking} or templates.names)
        of_set = ", ".join(name for name in used if templates[name].of_set) or "none of its prompts"
        own = ", ".join(name for name in used if not templates[name].of_set)
        say(
            f"--prompts {prompts}: the papers' shape in {of_set}{f'; ours in {own}' if own else ''}"
        )
    if model.lm is None:
        say("no --lm: the offline reader answers, which shows the pipeline, not its quality")


def prompts_in(name: str | None) -> Prompts | None:
    """The templates of `--prompts`: a set, or a folder."""
    from blendfilter.prompting import Prompts

    return Prompts.of(name) if name else None


def say_unshown(demos: Path | None, module: dspy.Module, name: str) -> None:
    """Say so where `--demos` was given, and `module` shows no demonstrations."""
    from blendfilter.asking import NO_DEMOS

    if (
        demos is not None
        and str(demos) != NO_DEMOS
        and not any(part.demos for _, part in module.named_predictors())
    ):
        say(f"--demos changes nothing: {name} shows no demonstrations")


def maker(
    how: MethodOptions, model: ModelOptions, wording: str, filter_lm: ConnectedLM | None = None
) -> Callable[[Retriever | None], Any]:
    """What makes the method of its retriever; what is wrong with it is an error now, before a corpus is indexed.

    `filter_lm` is the model of a filter that writes.
    """
    from blendfilter.asking import TaskWording, reply_tokens_of
    from blendfilter.compiling.programs import load_program
    from blendfilter.filters.base import Filter
    from blendfilter.filters.registry import takes
    from blendfilter.modules.methods import METHOD, METHODS, make_method, methods_taking
    from blendfilter.retrieval.callables import as_retriever

    own = ":" in how.method
    if own and (
        how.without
        or how.prompts
        or how.demos
        or (how.reply_tokens is not None and how.filter is None)
    ):
        raise BadArgument(
            "--without, --prompts, --demos and --reply-tokens are for our own methods; "
            f"{how.method} brings its own prompts"
        )
    if ":" in how.method + (how.filter or ""):
        sys.path.insert(0, "")  # a user's class is looked for in the current folder
    arguments = given_values(
        how,
        "without",
        "filter",
        "filter_union",
        "drop_conclusion",
        "hops",
        "style",
        "iterations",
        "samples",
        "rewrite",
        "max_input_tokens",
    )
    if not how.without:  # `--without ''` leaves nothing out
        arguments.pop("without", None)
    for argument in arguments:
        # A user's class says itself whether it takes a filter; of an unknown method the name is the error.
        takers = methods_taking(argument)
        if how.method not in takers and (how.method in METHODS or (own and argument != "filter")):
            raise _not_taken(argument.replace("_", "-"), "", takers, how.method)
    if how.method == "self-consistency" and model.top_p == 0 and how.samples != 1:
        raise BadArgument(
            "--top-p 0 makes all samples of self-consistency alike: leave it out, or give more"
        )
    templates = prompts_in(how.prompts)
    worded = TaskWording.of(wording).with_demos(how.demos).with_reply_tokens(how.reply_tokens)
    arguments["filter"] = select = _filter(how, worded, templates, filter_lm)
    shared = {} if own else {"task": worded, "prompts": templates}

    def make(retriever: Retriever | None) -> Any:
        method = make_method(how.method, retriever, k=how.k, **shared, **arguments)
        if own and how.k is not None and not takes(how.method, METHOD, "k"):
            say(f"{how.method} takes no argument 'k': -k {how.k} changes nothing in it")
        if how.program is not None:
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
    how: MethodOptions, wording: TaskWording, prompts: Prompts | None, lm: ConnectedLM | None
) -> dspy.Module | None:
    """The filter that the options name; None: the method's own."""
    from blendfilter.filters.cdit import choose_rules
    from blendfilter.filters.registry import FILTERS, filters_taking, make_filter

    arguments: dict[str, Any] = {}
    for name, value in given_values(
        how,
        "filter_n",
        "filter_by",
        "filter_model",
        "filter_min_score",
        "filter_tokens",
        "filter_unmatched",
        "filter_max_input_tokens",
        "rule",
        "rules",
    ).items():
        argument, option = (
            "rules" if name == "rule" else name.removeprefix("filter_"),
            name.replace("_", "-"),
        )
        takers = filters_taking(argument)
        if how.filter is None:
            raise BadArgument(
                f"--{option} goes with a filter: add --filter {' or --filter '.join(takers)}"
            )
        if how.filter in FILTERS and how.filter not in takers:
            raise _not_taken(option, "the filters ", takers, how.filter)
        arguments[argument] = (
            choose_rules(how.rule or (), how.rules) if argument == "rules" else value
        )
    if how.filter is None:
        return None
    if how.filter == "bider" or (how.filter in WRITING and "model" in arguments):
        arguments["lm"] = lm
    return make_filter(how.filter, wording=wording, prompts=prompts, **arguments)


def _not_taken(option: str, kind: str, takers: list[str], name: str) -> BadArgument:
    *others, last = takers
    listed = f"{', '.join(others)} and {last}" if others else last
    return BadArgument(f"--{option} is for {kind}{listed}; {name} does not take it")


_Opened = TypeVar("_Opened", bound="Retriever | None")


def reranked(
    order: RerankOptions, opened: Callable[[], _Opened], k: int | None = None
) -> _Opened | Retriever:
    """What `opened` opens, reranked as the options say; `k` is how many passages will be wanted, where that is known.

    What is wrong with the options is an error before anything is opened.
    """
    if order.rerank is None:
        if order.rerank_from is not None:
            raise BadArgument(
                "--rerank-from goes with a model: add --rerank MODEL, or leave it out"
            )
        return opened()
    from blendfilter.errors import check_count
    from blendfilter.retrieval.reranked import DEPTH, Reranked

    depth = DEPTH if order.rerank_from is None else order.rerank_from
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
    sources: PassageOptions,
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
        return reranked(sources, lambda: _opened(sources, questions, analyser, sample=sample), k)

    index = made()
    before = _fingerprint_in(run) if index is not None and run is not None else ""
    if index is None or before in ("", index.fingerprint) or given(sources, "index", "retrieved"):
        return index
    old = made(Analyser(form=None))
    return old if old is not None and old.fingerprint == before else index


def _fingerprint_in(run: Path) -> str:
    """The fingerprint of the index that the run in a folder searched; empty where there is no run, or not one index."""
    from blendfilter.evaluation.run_folder import RUN, read_json

    found = read_json(run / RUN)["settings"].get("retrievers") if (run / RUN).is_file() else None
    return str(found[0]["fingerprint"]) if found and len(found) == 1 else ""


def _opened(
    sources: PassageOptions, questions: Any, analyser: Analyser | None, *, sample: bool
) -> Retriever | None:
    from blendfilter.retrieval.bm25 import BM25
    from blendfilter.retrieval.corpus import pooled
    from blendfilter.retrieval.hybrid import open_indexes
    from blendfilter.retrieval.precomputed import Precomputed

    if len(named := given(sources, "corpus", "index", "retrieved")) > 1:
        raise BadArgument(f"{' and '.join(named)} name {len(named)} sources of passages: give one")
    if sources.retrieved is not None:
        hits = Precomputed(
            sources.retrieved, {question.id: question.question for question in questions}
        )
        if missing := hits.missing(
            question.question for question in questions
        ):  # before any model is called
            raise BadArgument(
                f"{sources.retrieved} holds no hits for {len(missing)} of {len(questions)} questions, the first of "
                f"them {missing[0][:80]!r}: search for them too, or ask fewer (--limit)"
            )
        return hits
    if sources.index:
        return open_indexes(
            sources.index, allow_hosts=sources.allow_host or (), partial=sources.partial
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
