"""`blendfilter reproduce`: the papers' tables and figures, published beside measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blendfilter.cli.app import State, command
from blendfilter.cli.console import say, show
from blendfilter.cli.making import connect_both
from blendfilter.cli.options import (
    FilterModelOptions,
    JudgeOptions,
    PricesFile,
    PromptsName,
    ReplyTokens,
    declared,
)

if TYPE_CHECKING:
    from blendfilter.lm.model import ConnectedLM
    from blendfilter.reproduce.tables import PaperTable

_INDEX = "[colbert:|bm25:|reranked:|dpr:|flat:|hnsw:|ivf:][TASK=]PLACE"


@command()
def reproduce(
    model: JudgeOptions,
    filter_model: FilterModelOptions,
    table: Annotated[
        str | None,
        typer.Argument(
            help="table1 to table5, fair, filco-table3, cdit-table2, bider-table1 … (--list), or yourfile.toml."
        ),
    ] = None,
    list_: Annotated[
        bool, declared("Output", "--list", help="List the tables and figures, and stop.")
    ] = False,
    data: Annotated[
        list[str] | None,
        declared(
            "Data",
            metavar="[TASK=]PLACE",
            help="Questions; 'sample' for all tasks; may be repeated.",
        ),
    ] = None,
    corpus: Annotated[
        list[str] | None,
        declared(
            "Data",
            metavar=_INDEX,
            help="Passages; 'own': each question's own paragraphs, 'pooled': those of all questions; may be repeated.",
        ),
    ] = None,
    index: Annotated[
        list[str] | None,
        declared("Data", metavar=_INDEX, help="An index's folder or URL; may be repeated."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        declared(
            "Data",
            rare=True,
            help="A host that a trimmed index may call (HOST or HOST:PORT); may be repeated.",
        ),
    ] = None,
    json_schema: Annotated[
        bool,
        declared(
            "Model",
            rare=True,
            help="Hold the ids to a JSON schema; without it they are free text, as in the paper.",
        ),
    ] = False,
    prices: PricesFile = None,
    measure: Annotated[
        list[str] | None,
        declared(
            "Data",
            metavar="[TASK=]MEASURE",
            help="What SILVER is chosen by, in place of the paper's: strinc, lexical or cxmi; may be repeated.",
        ),
    ] = None,
    scorer: Annotated[
        str | None,
        declared(
            "Model",
            rare=True,
            help="The model that gives cxmi its log-probabilities; without it the reader itself.",
        ),
    ] = None,
    scorer_api_base: Annotated[
        str | None, declared("Model", rare=True, help="A server of that model.")
    ] = None,
    program: Annotated[
        list[str] | None,
        declared(
            "Method",
            rare=True,
            metavar="[TASK=]FILE",
            help="FILCO, or CDIT's judge, speaks as this compiled program (blendfilter compile); may be repeated.",
        ),
    ] = None,
    trained: Annotated[
        list[str] | None,
        declared(
            "Method",
            "--filter-model",
            metavar="[MODEL:][TASK=]NAME",
            help="A model of the rows' filters, by what the table calls it (aligned:nq=models/bider); may be repeated.",
        ),
    ] = None,
    silver: Annotated[
        list[str] | None,
        declared(
            "Data",
            rare=True,
            metavar="[TASK=]FILE",
            help="BIDER's synthesis of the questions (blendfilter silver --measure bider), for bider-figure3; may be "
            "repeated.",
        ),
    ] = None,
    prompts: PromptsName = None,
    demos: Annotated[
        list[str] | None,
        declared(
            "Method",
            rare=True,
            metavar="[TASK=]FILE",
            help="A JSON file of demonstrations in place of a task's own (docs/prompts.md shows one); may be repeated.",
        ),
    ] = None,
    reply_tokens: ReplyTokens = None,
    limit: Annotated[
        int | None, declared("Data", help="The first N questions (500; BIDER's tables: 1,000).")
    ] = None,
    tasks: Annotated[
        str | None, declared("Data", help="Some of the table's tasks, with commas between.")
    ] = None,
    methods: Annotated[
        str | None, declared("Method", help="The rows of these methods alone, with commas between.")
    ] = None,
    row: Annotated[
        list[str] | None,
        declared(
            "Method",
            metavar="LABEL",
            help="The rows of this label, FILCO say, and those that they are tested against; may be repeated.",
        ),
    ] = None,
    concurrency: Annotated[int, declared("Limits", help="Model calls in flight.")] = 16,
    repeats: Annotated[int, declared("Data", rare=True, help="Answers to each question.")] = 1,
    runs: Annotated[
        Path, declared("Output", help="The folder of the runs, and of the table under its name.")
    ] = Path("runs"),
    plan: Annotated[
        bool, declared("Output", "--plan", help="Say what the runs would cost, and make none.")
    ] = False,
    plots: Annotated[
        bool, declared("Output", "--plots/--no-plots", help="Draw the figures, as SVG and PNG.")
    ] = True,
) -> None:
    """Reproduce a table or figure of a paper: published beside measured, with paired tests, at a known cost.

    Example: blendfilter reproduce table4 --data sample --limit 20 (the sample world and the offline reader: free)
    """
    State.goes_on = (
        not plan
    )  # before the imports: these take a second, and one may be stopped in it
    from blendfilter.prompting import Prompts
    from blendfilter.reproduce import RowOptions, list_tables
    from blendfilter.reproduce import reproduce as run

    if list_ or table is None:
        show(list_tables())
        return

    connects, connects_filter = connect_both(
        model, filter_model, prices, keyless=plan, json_schema=json_schema
    )

    def reader(of: PaperTable) -> ConnectedLM:
        named = (model.lm or "offline").rpartition("/")[2].casefold() == of.reader.casefold()
        own = of.request if named else {}
        return connects(extra_body=own or None)

    options = RowOptions(
        programs=program or (),
        demos=demos or (),
        models=trained or (),
        silver=silver or (),
        measures=measure or (),
        scorer=scorer,
        scorer_api_base=scorer_api_base,
        prompts=None if prompts is None else Prompts.of(prompts),
        reply_tokens=reply_tokens,
        concurrency=concurrency,
    )
    code = run(
        table,
        reader,
        options,
        filter_lm=connects_filter(),
        show=show,
        say=say,
        runs=runs,
        data=data or (),
        index=index or (),
        corpus=corpus or (),
        allow_hosts=allow_host or (),
        limit=limit,
        tasks=_names(tasks),
        methods=_names(methods),
        rows=row or None,
        repeats=repeats,
        only_plan=plan,
        plots=plots,
    )
    if code:
        raise typer.Exit(code)


def _names(words: str | None) -> list[str] | None:
    return None if words is None else [word.strip() for word in words.split(",") if word.strip()]
