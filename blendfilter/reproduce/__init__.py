"""The papers' tables and figures, by command: declared as data, planned, run, and put beside what was published.

`papers/` holds the tables (TOML), `tables` reads them; `sources` opens the questions and indexes that a command names,
`inputs` makes what rows need besides, `readers` says which model reads a row, `runs` names, plans and does the runs,
`results` measures them, `printing` shows that. `reproduce` is all of it, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from blendfilter.asking import TaskWording
from blendfilter.errors import BadArgument, MissingExtra, UnknownName, check_count
from blendfilter.evaluation.comparison import check_margin
from blendfilter.journal import digest
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.model import connect as connect_model
from blendfilter.lm.scoring import scorer
from blendfilter.prompting import Prompts
from blendfilter.reproduce import printing, results, sources, tables
from blendfilter.reproduce.inputs import RowInputs, RowOptions, Say
from blendfilter.reproduce.readers import RowReaders, with_models
from blendfilter.reproduce.runs import (
    TableRun,
    do,
    file_name,
    not_run,
    notes_of,
    plan,
    read_by,
    runs_of,
)
from blendfilter.reproduce.verdicts import MARGIN
from blendfilter.terminal import terminal_width

__all__ = ["RowOptions", "list_tables", "reproduce"]


def list_tables() -> str:
    """The tables that can be reproduced, a line each."""
    every = {name: tables.read(name) for name in tables.names()}
    width = max(map(len, every))
    return "\n".join(
        f"{name:<{width}}  {table.title} ({table.paper})" for name, table in every.items()
    )


def reproduce(
    table: str,
    connect: Callable[[tables.PaperTable], ConnectedLM],
    options: RowOptions,
    *,
    filter_lm: ConnectedLM | None = None,
    connect_named: Callable[[str], ConnectedLM] = connect_model,
    show: Say,
    say: Say,
    runs: Path = Path("runs"),
    data: Sequence[str] = (),
    index: Sequence[str] = (),
    corpus: Sequence[str] = (),
    allow_hosts: Sequence[str] = (),
    limit: int | None = None,
    tasks: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    all_models: bool = False,
    repeats: int = 1,
    only_plan: bool = False,
    plots: bool = True,
    margin: float | None = None,
) -> int:
    """Reproduce a table: 0, or 1 where questions ended in an error. `blendfilter reproduce --help` says the options.

    `show` is called with what is printed, `say` with notices; `connect` opens the reader of the table;
    `filter_lm` filters and judges in its place, where one is given. `rows` are labels, and models of rows
    (`readers.with_models`), which `connect_named` opens.
    """
    named, labels = with_models(tables.read(table), rows)
    paper = named.cut(methods, labels)
    check_margin(margin)
    check_count("--concurrency", options.concurrency)
    check_count("--repeats", repeats)
    if limit is not None:
        check_count("--limit", limit)
    if options.scorer is None and options.scorer_api_base:
        raise UnknownName(f"which model at {options.scorer_api_base}? name it with --scorer")
    lm = connect(paper)
    paper = paper.with_all_blocks() if all_models else paper.read_by(lm.name)
    readers = RowReaders(paper, lm, filter_lm, connect_named)
    found = sources.gather(
        paper,
        data=data,
        index=index,
        corpus=corpus,
        tasks=tasks,
        limit=limit,
        allow_hosts=allow_hosts,
    )
    options = replace(options, prompts=options.prompts or Prompts.of(paper.prompts))
    # a cap out of range is an error before anything is made
    TaskWording().with_reply_tokens(options.reply_tokens)
    with TemporaryDirectory(prefix="blendfilter-planned-") as scratch:
        inputs = RowInputs(
            paper,
            filter_lm or lm,
            runs,
            options,
            make_scorer=lambda journal: scorer(
                options.scorer or lm, journal=journal, api_base=options.scorer_api_base
            ),
            scratch=Path(scratch) if only_plan else None,
            say=say,
        )
        every, left_out = runs_of(paper, found, readers, runs, inputs, repeats=repeats)
        notes = [*found.notes, *notes_of(paper, Prompts.of(options.prompts), every)]
        if filter_lm is not None:
            notes.append(
                f"{lm.name} answers; passages are filtered and judged by {filter_lm.name} (--filter-lm)"
            )
        notes += [*readers.notes(), *read_by(every), *inputs.notes]
        if not every:
            reasons = dict.fromkeys([*inputs.notes, *(one.reason for one in left_out)])
            raise BadArgument(
                f"no row of {paper.name} can be run: {'; '.join(reasons) or 'none is left'}"
            )
        if only_plan:
            cost = plan(every, repeats=repeats).text()
            show("\n".join([cost, *notes, *not_run(left_out), *_to_serve(paper)]))
            return 0
    if filter_lm is not None and not any(one.filter_lm or one.trimmed for one in every):
        say(
            f"--filter-lm changes nothing: no row of {paper.name} has a filter or a judge that asks a model"
        )
    if (options.scorer or options.measures) and not any(
        one.row.reads_gold(one.task) for one in every
    ):
        say(f"--scorer and --measure change nothing: no row of {paper.name} reads the answer")
    done = do(every, concurrency=options.concurrency, repeats=repeats, say=say)
    result = results.result(
        paper, every, done, notes=notes, left_out=left_out, margin=margin or MARGIN
    )
    place = runs / _folder_name(paper, every, all_models)
    written = printing.write(result, place)
    show(printing.text(result, terminal_width()))
    if plots:
        try:
            written += printing.draw(result, every, done, place)
        except MissingExtra as error:  # the table itself is there
            say(f"no plots: {error}")
    show("\n" + "\n".join(map(str, written)))
    return 1 if result.errors or inputs.errors else 0


def _folder_name(table: tables.PaperTable, every: Sequence[TableRun], all_models: bool) -> str:
    """Of the table's files: tables of another model, other questions, rows or repeats lie elsewhere."""
    most = max(len(run.questions) for run in every)
    names = dict.fromkeys(run.lm.name.rpartition("/")[2] for run in every)
    name = file_name(*names) if len(names) == 1 else f"{len(names)}_readers"
    key = digest(sorted({run.folder.name for run in every}), *["all models"] * all_models)[:8]
    return f"{table.name}-{name}-{most}-{key}"


def _to_serve(table: tables.PaperTable) -> list[str]:
    """The commands that bring up the paper's own reader, or one near it, where it can still be had."""
    if not table.serve:
        return []
    served = (
        f"near the paper's reader: {table.served}"
        if table.served
        else f"the paper's reader, {table.reader}"
    )
    commands = [
        f"  {command.replace('{papers}', str(tables.PAPERS))}" for command in table.serve
    ]
    return ["", f"{served}:", *commands, f"  blendfilter reproduce {table.name} {table.ask} …"]
