"""`blendfilter reproduce`: the papers' tables and figures, published beside measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blendfilter.cli.app import State, command
from blendfilter.cli.console import say, show, show_figures
from blendfilter.cli.making import connect_both, connect_row
from blendfilter.cli.options import (
    AsJson,
    InData,
    InLimits,
    InMethod,
    InModel,
    InOutput,
    Models,
    PricesFile,
    PromptsName,
    ReplyTokens,
)
from blendfilter.errors import BadArgument
from blendfilter.settings import Argument, Option, Rare, Settings

if TYPE_CHECKING:
    from blendfilter.lm.model import ConnectedLM
    from blendfilter.reproduce.tables import PaperTable

_INDEX = "[colbert:|bm25:|reranked:|dpr:|flat:|hnsw:|ivf:][TASK=]PLACE"
_FILE = "[TASK=]FILE"


class TableOptions(Settings, panel="Data"):
    """What a table is measured on."""

    data: Annotated[list[str] | None, Option(metavar="[TASK=]PLACE")] = None
    """Questions; 'sample' for all tasks; may be repeated."""
    corpus: Annotated[list[str] | None, Option(metavar=_INDEX)] = None
    """Passages; 'own': each question's own paragraphs, 'pooled': those of all questions; may be repeated."""
    index: Annotated[list[str] | None, Option(metavar=_INDEX)] = None
    """An index's folder or URL; may be repeated."""
    allow_hosts: Annotated[list[str] | None, Option("--allow-host", rare=True)] = None
    """A host that a trimmed index may call (HOST or HOST:PORT); may be repeated."""
    limit: int | None = None
    """The first N questions (500; BIDER's tables: 1,000)."""
    repeats: Rare[int] = 1
    """Answers to each question."""
    rows: Annotated[
        list[str] | None,
        Option(
            "--row", panel="Method", metavar="LABEL[.lm|.filter-lm|.filter-model=[TASK=]MODEL]"
        ),
    ] = None
    """The rows of this label, FILCO say, and those that they are tested against; or a model of these rows alone: what
    reads them (FULL.lm=hf/full), prompts their filter (PSG.filter-lm=…) or is their trained filter
    (PSG.filter-model=DIR); may be repeated."""
    all_models: Annotated[bool, Option("--all-models", panel="Method", rare=True)] = False
    """The published figures of all of the paper's models beside the same measured ones (cdit-table2)."""
    plots: InOutput[bool] = True
    """Draw the figures, as SVG and PNG."""


class RowSettings(Settings, panel="Method"):
    """What shapes the methods of its rows."""

    programs: Annotated[list[str] | None, Option("--program", metavar=_FILE, rare=True)] = None
    """FILCO, or CDIT's judge, speaks as this compiled program (blendfilter compile); may be repeated."""
    models: Annotated[
        list[str] | None, Option("--filter-model", metavar="[MODEL:][TASK=]NAME")
    ] = None
    """A model of the rows' filters, by what the table calls it (aligned:nq=models/bider); may be repeated."""
    demos: Annotated[list[str] | None, Option(metavar=_FILE, rare=True)] = None
    """A JSON file of demonstrations in place of a task's own (docs/prompts.md shows one); may be repeated."""
    reply_tokens: ReplyTokens = None
    measures: Annotated[
        list[str] | None, Option("--measure", panel="Data", metavar="[TASK=]MEASURE")
    ] = None
    """What SILVER is chosen by, in place of the paper's: strinc, lexical or cxmi; may be repeated."""
    silver: Annotated[list[str] | None, Option(panel="Data", metavar=_FILE, rare=True)] = None
    """BIDER's synthesis of the questions (blendfilter silver --measure bider), for bider-figure3; may be repeated."""
    scorer: Rare[InModel[str | None]] = None
    """The model that gives cxmi its log-probabilities; without it the reader itself."""
    scorer_api_base: Rare[InModel[str | None]] = None
    """A server of that model."""
    concurrency: InLimits[int] = 16
    """Model calls in flight."""


class ReproduceOptions(Models, TableOptions, RowSettings, panel="Output"):
    """The settings of `blendfilter reproduce`."""

    table: Argument[str | None] = None
    """table1 to table5, fair, filco-table3, cdit-table2, bider-table1 … (--list), or yourfile.toml."""
    list_tables: Annotated[bool, Option("--list")] = False
    """List the tables and figures, and stop."""
    verdict: Annotated[Path | None, Option(metavar="FILE")] = None
    """Judge a published table of anyone's (TOML: rows of name, value, n and a run or measured scores), and stop."""
    margin: float | None = None
    """Points by which a measured score may differ from a published one and still reproduce it (3)."""
    as_json: Annotated[AsJson, Option(goes_with="verdict")] = False
    json_schema: Rare[InModel[bool]] = False
    """Hold the ids to a JSON schema; without it they are free text, as in the paper."""
    prompts: PromptsName = None
    prices: PricesFile = None
    tasks: InData[str | None] = None
    """Some of the table's tasks, with commas between."""
    methods: InMethod[str | None] = None
    """The rows of these methods alone, with commas between."""
    runs: Path = Path("runs")
    """The folder of the runs, and of the table under its name."""
    plan: bool = False
    """Say what the runs would cost, and make none."""


@command()
def reproduce(options: ReproduceOptions) -> None:
    """Reproduce a table or figure of a paper: published beside measured, with paired tests, at a known cost.

    Example: blendfilter reproduce table4 --data sample --limit 20 (the sample world and the offline reader: free)
    """
    # before the imports: these take a second, and one may be stopped in it
    State.goes_on = not options.plan
    from blendfilter.prompting import Prompts
    from blendfilter.reproduce import RowOptions, list_tables
    from blendfilter.reproduce import reproduce as run

    if options.verdict is not None:
        from blendfilter.reproduce.verdicts import verdicts

        if options.table is not None:
            raise BadArgument(
                f"--verdict judges what {options.verdict} holds: leave {options.table} out"
            )
        judged = verdicts(options.verdict, options.margin)
        show_figures(judged, judged.table(), as_json=options.as_json)
        return
    if options.list_tables or options.table is None:
        show(list_tables())
        return
    connects, connects_filter = connect_both(
        options, keyless=options.plan, json_schema=options.json_schema
    )

    def reader(of: PaperTable) -> ConnectedLM:
        name = (options.lm or "offline").rpartition("/")[2]
        own = of.request if name.casefold() == of.reader.casefold() else {}
        return connects(extra_body=own or None)

    def named(name: str) -> ConnectedLM:
        return connect_row(options, name, keyless=options.plan, json_schema=options.json_schema)

    prompts = None if options.prompts is None else Prompts.of(options.prompts)
    code = run(
        options.table,
        reader,
        RowOptions(**options.given(RowSettings), prompts=prompts),
        filter_lm=connects_filter(),
        connect_named=named,
        show=show,
        say=say,
        runs=options.runs,
        tasks=_names(options.tasks),
        methods=_names(options.methods),
        only_plan=options.plan,
        margin=options.margin,
        **options.given(TableOptions),
    )
    if code:
        raise typer.Exit(code)


def _names(words: str | None) -> list[str] | None:
    return (
        None if words is None else [word.strip() for word in words.split(",") if word.strip()]
    )
