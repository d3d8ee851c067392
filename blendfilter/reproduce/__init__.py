"""The papers' tables and figures, by command: declared as data, planned, run, and put beside what was published.

`papers/` holds the tables (TOML), `tables` reads them; `sources` opens the questions and indexes that a command names,
`inputs` makes what rows need besides, `runs` names, plans and does the runs, `results` measures them, `printing` shows
that. `reproduce` is all of it, one after the other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from blendfilter.asking import TaskWording
from blendfilter.errors import BadArgument, MissingExtra, UnknownName, check_count
from blendfilter.journal import digest
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.scoring import scorer as make_scorer
from blendfilter.prompting import Prompts
from blendfilter.reproduce import printing, results, sources, tables
from blendfilter.reproduce.inputs import RowInputs, Say, parse_measures
from blendfilter.reproduce.runs import LeftOut, TableRun, do, file_name, plan, runs_of
from blendfilter.run_context import CONCURRENCY
from blendfilter.terminal import terminal_width

__all__ = ["list_tables", "reproduce"]


def list_tables() -> str:
    """The tables that can be reproduced, a line each."""
    every = {name: tables.read(name) for name in tables.names()}
    wide = max(map(len, every))
    return "\n".join(
        f"{name:<{wide}}  {table.title} ({table.paper})" for name, table in every.items()
    )


def reproduce(
    table: str,
    connect: Callable[[tables.PaperTable], ConnectedLM],
    *,
    filter_lm: ConnectedLM | None = None,
    show: Say,
    say: Say,
    runs: Path = Path("runs"),
    data: Sequence[str] = (),
    index: Sequence[str] = (),
    corpus: Sequence[str] = (),
    allow_hosts: Sequence[str] = (),
    measures: Sequence[str] = (),
    scorer: str | None = None,
    scorer_api_base: str | None = None,
    programs: Sequence[str] = (),
    prompts: Prompts | str | Path | None = None,
    demos: Sequence[str] = (),
    filter_models: Sequence[str] = (),
    silver: Sequence[str] = (),
    reply_tokens: int | None = None,
    limit: int | None = None,
    tasks: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    concurrency: int = CONCURRENCY,
    repeats: int = 1,
    only_plan: bool = False,
    plots: bool = True,
) -> int:
    """Reproduce a table: 0, or 1 where questions ended in an error. `blendfilter reproduce --help` says the options.

    `show` is called with what is printed, `say` with notices; `connect` opens the reader of the table;
    `filter_lm` filters and judges in its place, where one is given.
    """
    paper = tables.read(table).cut(methods, rows)
    for name, value in (("concurrency", concurrency), ("repeats", repeats), ("limit", limit)):
        if value is not None:
            check_count(f"--{name}", value)
    chosen_by = parse_measures(measures)
    paper.named("task", filter(None, chosen_by), paper.tasks)
    if scorer is None and scorer_api_base:
        raise UnknownName(f"which model at {scorer_api_base}? name it with --scorer")
    lm = connect(paper)
    found = sources.gather(
        paper,
        data=data,
        index=index,
        corpus=corpus,
        tasks=tasks,
        limit=limit,
        allow_hosts=allow_hosts,
    )
    templates = None if prompts is None else Prompts.of(prompts)
    spoken = (
        [f"the prompts are the set {templates.set_name}"]
        if templates and templates.set_name
        else []
    )
    if filter_lm is not None:
        spoken.append(
            f"{lm.name} answers; passages are filtered and judged by {filter_lm.name} (--filter-lm)"
        )
    TaskWording().with_reply_tokens(
        reply_tokens
    )  # a cap out of range is an error before anything is made

    def wanted(scratch: Path | None) -> tuple[list[TableRun], list[LeftOut], RowInputs]:
        inputs = RowInputs(
            paper,
            filter_lm or lm,
            runs,
            programs=programs,
            measures=chosen_by,
            scorer_named=scorer is not None,
            prompts=templates,
            demos=demos,
            models=filter_models,
            silver=silver,
            reply_tokens=reply_tokens,
            scorer=lambda journal: make_scorer(
                scorer or lm, journal=journal, api_base=scorer_api_base
            ),
            scratch=scratch,
            concurrency=concurrency,
            say=(lambda line: None) if scratch else say,
        )
        every, left_out = runs_of(
            paper, found, lm, runs, inputs, filter_lm=filter_lm, repeats=repeats
        )
        if not every:
            reasons = dict.fromkeys([*inputs.notes, *(one.reason for one in left_out)])
            raise BadArgument(
                f"no row of {paper.name} can be run: {'; '.join(reasons) or 'none is left'}"
            )
        return every, left_out, inputs

    if only_plan:
        with tempfile.TemporaryDirectory(prefix="blendfilter-planned-") as folder:
            every, left_out, inputs = wanted(Path(folder))
            cost = plan(every, repeats=repeats).text()
        not_run = dict.fromkeys(one.note for one in left_out)
        show("\n".join([cost, *found.notes, *spoken, *inputs.notes, *not_run, *_to_serve(paper)]))
        return 0
    every, left_out, inputs = wanted(None)
    if filter_lm is not None and not any(one.filter_lm or one.trimmed for one in every):
        say(
            f"--filter-lm changes nothing: no row of {paper.name} has a filter or a judge that asks a model"
        )
    if (scorer or measures) and not any(one.row.reads_gold(one.task) for one in every):
        say(f"--scorer and --measure change nothing: no row of {paper.name} reads the answer")
    done = do(every, concurrency=concurrency, repeats=repeats, say=say)
    notes = [*found.notes, *spoken, *inputs.notes]
    result = results.result(paper, every, done, notes=notes, left_out=left_out)
    # tables of another model, other questions, rows or repeats lie elsewhere
    most, name = max(len(run.questions) for run in every), file_name(lm.name.rpartition("/")[2])
    place = (
        runs
        / f"{paper.name}-{name}-{most}-{digest(sorted({run.folder.name for run in every}))[:8]}"
    )
    written = printing.write(result, place)
    show(printing.text(result, terminal_width()))
    if plots:
        try:
            written += printing.draw(result, every, done, place)
        except MissingExtra as error:  # the table itself is there
            say(f"no plots: {error}")
    show("\n" + "\n".join(map(str, written)))
    return 1 if result.errors or inputs.errors else 0


def _to_serve(table: tables.PaperTable) -> list[str]:
    """The commands that bring up the paper's own reader, or one near it, where it can still be had."""
    if not table.serve:
        return []
    served = (
        f"near the paper's reader: {table.served}"
        if table.served
        else f"the paper's reader, {table.reader}"
    )
    commands = [f"  {command.replace('{papers}', str(tables.PAPERS))}" for command in table.serve]
    return ["", f"{served}:", *commands, f"  blendfilter reproduce {table.name} {table.ask} …"]
