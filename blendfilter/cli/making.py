"""From options to objects: the model, the method, the index and the corpus that a command was asked for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blendfilter.cli.console import Bars, say
from blendfilter.errors import BadArgument, BadData, EmptyData, NoKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import dspy

    from blendfilter.cli.options import HowToAnswer, WhichModel
    from blendfilter.files import Row
    from blendfilter.filters.cdit.rules import Rule
    from blendfilter.lm.model import ConnectedLM
    from blendfilter.prompting import Prompts
    from blendfilter.records import Passage
    from blendfilter.retrieval.base import Retriever


def connect(model: WhichModel, prices: Path | None = None, *, keyless: bool = False) -> ConnectedLM:
    """The model; `keyless`: it will be asked nothing, so that a missing key is no error."""
    from functools import partial

    from blendfilter.lm.connect import connect

    if model.lm is None and model.api_base:
        raise BadArgument(f"which model at {model.api_base[0]}? name it with --lm")
    connected = partial(
        connect, model.lm or "offline", api_base=model.api_base or None, endpoint=model.endpoint,  # type: ignore[arg-type]
        temperature=model.temperature, top_p=model.top_p, thinking=model.thinking, reasoning=model.reasoning,
        json_schema=model.json_schema, label=model.label, timeout=model.timeout, attempts=model.attempts,
        deadline=model.deadline, requests_per_minute=model.rpm, tokens_per_minute=model.tpm, context=model.context,
        threads=model.threads, prices=prices,
    )  # fmt: skip
    try:
        return connected()
    except NoKey:
        if not keyless:
            raise
        return connected(api_key="none")


def say_what_answers(model: WhichModel) -> None:
    """Said once nothing else is wrong with a command: a usage error is one line, alone."""
    if model.lm is None:
        say("no --lm: the offline reader answers, which shows the pipeline, not its quality")


OF_ONE_METHOD = ("without", "filter", "filter_union", "hops", "style", "iterations", "samples", "rewrite")
"""Options that some methods take, by the name of the argument."""


DEFAULT_K = 5


def maker(how: HowToAnswer, model: WhichModel, wording: str) -> Callable[[Retriever | None], Any]:
    """What makes the method of its retriever; what is wrong with it is said now, before a corpus is indexed."""
    from blendfilter.filters.base import Filter
    from blendfilter.filters.own import takes
    from blendfilter.modules.methods import METHODS, OWN, make_method, methods_taking
    from blendfilter.prompting import Prompts
    from blendfilter.retrieval.callables import as_retriever

    own = ":" in how.method
    if own and (how.without or how.prompts):
        raise BadArgument(f"--without and --prompts are for our own methods; {how.method} brings its own prompts")
    if ":" in how.method + (how.filter or ""):
        sys.path.insert(0, "")  # a class of one's own is looked for in the folder one stands in
    more = how.given(*OF_ONE_METHOD)
    for argument in more:
        # A class of one's own says itself whether it takes a filter; an unknown method is told as one.
        takers = methods_taking(argument)
        if how.method not in takers and (how.method in METHODS or (own and argument != "filter")):
            raise _not_taken(argument, "", takers, how.method)
    if how.method == "self-consistency" and model.top_p == 0 and how.samples != 1:
        raise BadArgument("--top-p 0 makes all samples of self-consistency alike: leave it out, or give more")
    templates = Prompts(how.prompts) if how.prompts else None
    more["filter"] = select = _filter(how, wording, templates)
    shared = {} if own else {"task": wording, "prompts": templates}

    def make(retriever: Retriever | None) -> Any:
        method = make_method(how.method, retriever, k=how.k, **shared, **more)
        if own and how.k is not None and not takes(how.method, OWN, "k"):
            say(f"{how.method} takes no argument 'k': -k {how.k} changes nothing in it")
        return method if how.program is None else _speaking(method, how.program)

    if not own:
        make(as_retriever(lambda query, k: []))
    if isinstance(select, Filter):
        select.prepare()
    return make


def _speaking(method: dspy.Module, program: Path) -> dspy.Module:
    """`method`, or its filter, speaking as a compiled program says."""
    from blendfilter.compiling.programs import load_program

    load_program(method, program)
    return method


def _filter(how: HowToAnswer, wording: str, prompts: Prompts | None) -> dspy.Module | None:
    """The filter that was asked for; None: the method's own."""
    from blendfilter.filters.named import FILTERS, filters_taking, make_filter

    asked = {
        argument.removeprefix("filter_"): value
        for argument, value in how.given("filter_n", "filter_by", "filter_model").items()
    }
    for argument in asked:
        takers = filters_taking(argument)
        if how.filter is None:
            raise BadArgument(f"--filter-{argument} goes with a filter: add --filter {' or --filter '.join(takers)}")
        if how.filter in FILTERS and how.filter not in takers:
            raise _not_taken(f"filter_{argument}", "the filters ", takers, how.filter)
    if (rules := _rules(how)) is not None:
        asked["rules"] = rules
    return None if how.filter is None else make_filter(how.filter, wording=wording, prompts=prompts, **asked)


def _rules(how: HowToAnswer) -> tuple[Rule, ...] | None:
    """The rules that the filter shall go by; None: those it has."""
    from blendfilter.filters.cdit.rules import choose_rules
    from blendfilter.filters.named import FILTERS, filters_taking

    option = "rule" if how.rule else "rules" if how.rules is not None else ""
    if not option:
        return None
    takers = filters_taking("rules")
    if how.filter is None:
        raise BadArgument(f"--{option} goes with a filter: add --filter {' or --filter '.join(takers)}")
    if how.filter in FILTERS and how.filter not in takers:
        raise _not_taken(option, "the filters ", takers, how.filter)
    return choose_rules(how.rule or (), how.rules)


def _not_taken(argument: str, kind: str, takers: list[str], name: str) -> BadArgument:
    *others, last = takers
    listed = f"{', '.join(others)} and {last}" if others else last
    return BadArgument(f"--{argument.replace('_', '-')} is for {kind}{listed}; {name} does not take it")


def retriever(
    corpus: str | None,
    index: list[str] | None,
    questions: Any = None,
    retrieved: Path | None = None,
    *,
    allow_host: list[str] | None = None,
) -> Retriever | None:
    """What is searched; None where nothing was named. `questions` are those that a run asks."""
    from blendfilter.retrieval.bm25 import BM25
    from blendfilter.retrieval.corpus import pooled

    sources = {"--corpus": corpus, "--index": index, "--retrieved": retrieved}
    named = [name for name, value in sources.items() if value]
    if len(named) > 1:
        raise BadArgument(f"{' and '.join(named)} name {len(named)} sources of passages: give one")
    if retrieved is not None:
        return _found_before(retrieved, questions)
    if index:
        from blendfilter.retrieval.hybrid import open_indexes

        return open_indexes(index, allow_hosts=allow_host or ())
    if corpus is None:
        return None
    if corpus == "pooled":
        if questions is None:
            raise BadArgument("--corpus pooled takes the paragraphs of a question set: it goes with eval")
        return BM25.build(pooled(questions))
    path = corpus_file(corpus)
    if path.is_dir():
        raise BadArgument(
            f"{path} is a folder: make an index of its texts (blendfilter index {path} --chunk 100w --out DIR), then "
            "name that with --index; or is it one already?"
        )
    with Bars() as progress:
        return BM25.for_corpus(path, progress=progress)


def _found_before(file: Path, questions: Any) -> Retriever:
    """The hits of a file; that each question of the run has some is checked before any model is asked."""
    from blendfilter.retrieval.precomputed import Precomputed

    hits = Precomputed(file, {question.id: question.question for question in questions})
    missing = hits.missing(question.question for question in questions)
    if missing:
        raise BadArgument(
            f"{file} holds no hits for {len(missing)} of {len(questions)} questions, the first of them "
            f"{missing[0][:80]!r}: search for them too, or ask fewer (--limit)"
        )
    return hits


def corpus_file(corpus: str) -> Path:
    from blendfilter.resources import sample

    return sample("corpus.jsonl") if corpus == "sample" else Path(corpus)


def passages_to_index(corpus: str, chunk: str | None) -> Path | Iterator[Passage]:
    """What an index is built of: a corpus file as it is, or, with `chunk`, its texts or a folder's cut to that size."""
    from blendfilter.retrieval.corpus import read_corpus
    from blendfilter.retrieval.documents import chunk_size, chunked, read_documents, refuse_index

    words = None if chunk is None else chunk_size(chunk)
    path = corpus_file(corpus)
    if path.is_dir():
        refuse_index(path)
        if words is None:
            raise BadArgument(f"{path} is a folder: add --chunk 100w to make passages of its text files")
        return read_documents(path, words)
    if _is_document(path):
        raise BadArgument(f"{path} is one text, not a file of passages: name the folder it lies in, with --chunk 100w")
    return path if words is None else chunked(read_corpus(path), words)


def _is_document(path: Path) -> bool:
    """Whether a file is a text in itself; a .txt may hold passages too."""
    from blendfilter.files import first_character, lines
    from blendfilter.retrieval.documents import SUFFIXES

    if path.suffix.lower() not in SUFFIXES or first_character(path) in ("", "[", "{"):
        return False
    return "\t" not in next(lines(path)).text


def queries_of(file: str) -> list[dict[str, Any]]:
    """The queries of a file, each with its id where it has one: JSON rows with a question or query, or lines of text.

    Rows without either are read as questions of the task qa. Raises `BadData` and `EmptyData`, as `load` does.
    """
    from blendfilter.files import first_character, json_rows, lines
    from blendfilter.resources import sample
    from blendfilter.tasks import load

    path = sample("questions.jsonl") if file == "sample" else Path(file)
    if first_character(path) not in ("[", "{"):
        asked = [{"question": line.text.strip()} for line in lines(path)]
    else:
        first = next(json_rows(path), None)
        if first is None or _text(first.value) is not None:
            asked = [_query(row) for row in json_rows(path)]
        else:
            asked = [{"id": one.id, "question": one.question} for one in load("qa", path)]
    if not asked:
        raise EmptyData(f"{file} has no queries: is it the right file?")
    return asked


def _query(row: Row) -> dict[str, Any]:
    text = _text(row.value)
    if not isinstance(text, str) or not text.strip():
        raise BadData(f"{row.where}: expected an object with a 'question' or 'query', found {row.value!r:.60}")
    ids = (row.value.get(name) for name in ("id", "_id", "qid", "question_id")) if isinstance(row.value, dict) else ()
    name = next((each for each in ids if each is not None), None)
    return {"question": text.strip()} if name is None else {"id": name, "question": text.strip()}


def _text(value: Any) -> Any:
    return value.get("question", value.get("query")) if isinstance(value, dict) else value
